//! The steps of a packet of 1,452 bytes between engine and socket: encode, seal, open, decode.
//!
//! `cargo bench -p anabranch-secure --bench packet`

use anabranch_secure::{Dial, Envelope, Initiator, Limits, NodeKey, Protection, SessionKeys, read_init};
use anabranch_wire::{
    Frame, Frames, Fsn, Header, Kind, PathId, Pid, StreamFrame, StreamId, TAG_LEN, Time, decode_frames,
    encode_frames,
};
use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const SIZE: usize = 1452;
const BODY: usize = SIZE - Header::LEN - TAG_LEN;

fn keys() -> (SessionKeys, SessionKeys) {
    let (server, client) = (NodeKey::from_random([1; 32]), NodeKey::from_random([2; 32]));
    let dial = Dial { remote: server.public(), credential: None };
    let mut initiator = Initiator::new(&client, &dial, Pid(7), &[5; 60], [3; 32]).unwrap();
    let pending = read_init(&server, &initiator.init_body(None), [6; 32]).unwrap();
    let accepted = pending.accept(None, &[8; 60]).unwrap();
    (initiator.handle_ack(&accepted.body).unwrap().0, accepted.keys)
}

fn limits() -> Limits {
    Limits { rekey_after_packets: u64::MAX, max_packets: u64::MAX, ..Limits::default() }
}

fn frames() -> Frames<Bytes> {
    let data = Bytes::from(vec![7; BODY - 9]);
    [Frame::Stream(StreamFrame { stream: StreamId(0), offset: 1 << 20, fin: false, data })]
        .into_iter()
        .collect()
}

fn envelope(number: u64) -> Envelope {
    let header =
        Header { kind: Kind::Data, key_phase: false, tos: 8, hop_limit: 8, pid: Pid(5), fsn: number as u32 };
    Envelope::new(&header, PathId(0), Fsn(number))
}

fn packet(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packet of 1452 bytes");
    group.throughput(Throughput::Bytes(SIZE as u64));
    let (frames, mut out) = (frames(), Vec::with_capacity(SIZE));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| {
            out.clear();
            encode_frames(&frames, &mut out);
        });
    });
    let encoded = Bytes::from(out.clone());
    group.bench_function("decode", |bencher| bencher.iter(|| decode_frames(encoded.clone()).unwrap()));
    let (client, server) = keys();
    let mut sealer = Protection::new(&client, limits(), Time::ZERO);
    let (mut number, mut buffer) = (0, vec![7; BODY + TAG_LEN]);
    group.bench_function("seal", |bencher| {
        bencher.iter(|| {
            number += 1;
            sealer.seal(&envelope(number), &mut buffer).unwrap();
        });
    });
    let mut opener = Protection::new(&server, limits(), Time::ZERO);
    group.bench_function("open", |bencher| {
        bencher.iter_batched_ref(
            || {
                number += 1;
                let mut buffer = vec![7; BODY + TAG_LEN];
                sealer.seal(&envelope(number), &mut buffer).unwrap();
                (number, buffer)
            },
            |(number, buffer)| opener.open(Time::ZERO, &envelope(*number), buffer).unwrap().len(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, packet);
criterion_main!(benches);
