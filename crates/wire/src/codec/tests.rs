//! Everything that is encoded decodes to the same again and has the predicted length, and no bytes make a decoder
//! panic.

use std::net::SocketAddr;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::varint::VARINT_MAX;
use crate::{
    Ack, AckPath, AddressFrame, ArrivalTime, CODED_HEAD, Close, DatagramFrame, DatagramNumber, DecodeError,
    EcnCounts, Frame, Fsn, KeyExchange, Length, MAX_BLOCK, MarkedFrame, NewPid, Params, ParityFrame, PathId,
    PathRate, PathStatus, PathUse, Pid, Ranges, Report, ResetToken, Span, StreamFrame, StreamId,
};

/// Every length of a variable-length integer is as likely as another.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..64u64, 0..1u64 << 14, 0..1u64 << 30, 0..=VARINT_MAX]
}

fn path() -> impl Strategy<Value = PathId> {
    prop_oneof![0..64u32, any::<u32>()].prop_map(PathId)
}

fn stream_id() -> impl Strategy<Value = StreamId> {
    number().prop_map(StreamId)
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
        any::<([u8; 16], u16)>().prop_map(SocketAddr::from),
    ]
}

fn token() -> impl Strategy<Value = ResetToken> {
    any::<[u8; 16]>().prop_filter("not zero", |bytes| *bytes != [0; 16]).prop_map(ResetToken)
}

fn pid() -> impl Strategy<Value = Pid> {
    (1..=u64::MAX).prop_map(Pid)
}

/// Ranges built from the bottom up: (numbers missing, numbers received) each.
fn ranges() -> impl Strategy<Value = Ranges> {
    (number(), vec((1..1u64 << 20, 1..1u64 << 20), 1..=MAX_ACK_RANGES)).prop_map(|(lowest, steps)| {
        let mut next = lowest.min(VARINT_MAX >> 1);
        let mut ranges: Vec<_> = steps
            .into_iter()
            .map(|(gap, len)| {
                let start = next;
                next = start + len + gap;
                start..start + len
            })
            .collect();
        ranges.reverse();
        ranges.into()
    })
}

fn ack() -> impl Strategy<Value = Ack> {
    let ecn = (number(), number(), number()).prop_map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce });
    let delay = (0..1u64 << 40).prop_map(Span::from_micros);
    let arrived = option::of((0..=ArrivalTime::LAST).prop_map(ArrivalTime::from_micros));
    (path(), delay, arrived, ranges(), option::of(ecn)).prop_map(|(path, delay, arrived, ranges, ecn)| Ack {
        path,
        delay,
        arrived,
        ranges,
        ecn,
    })
}

fn data_frame() -> impl Strategy<Value = Frame<Bytes>> {
    let offset = prop_oneof![Just(0), number()].prop_map(|offset| offset.min(VARINT_MAX - 1000));
    let stream = (stream_id(), offset, any::<bool>(), payload())
        .prop_map(|(stream, offset, fin, data)| Frame::Stream(StreamFrame { stream, offset, fin, data }));
    let datagram = (0..16u8, prop_oneof![Just(0), any::<u32>()], payload())
        .prop_map(|(class, flow, data)| Frame::Datagram(DatagramFrame { class, flow, data }));
    prop_oneof![stream, datagram, marked(), parity(), ack().prop_map(Frame::Ack)]
}

fn marked() -> impl Strategy<Value = Frame<Bytes>> {
    let number =
        || (number(), any::<bool>()).prop_map(|(value, is_coded)| DatagramNumber { value, is_coded });
    let marks = prop_oneof![
        number().prop_map(|number| (Some(number), None)),
        (0..=MAX_PLACE).prop_map(|place| (None, Some(place))),
        (number(), 0..=MAX_PLACE).prop_map(|(number, place)| (Some(number), Some(place))),
    ];
    (0..16u8, prop_oneof![Just(0), any::<u32>()], payload(), marks).prop_map(|(class, flow, data, marks)| {
        let (number, place) = marks;
        Frame::Marked(MarkedFrame { datagram: DatagramFrame { class, flow, data }, number, place })
    })
}

fn parity() -> impl Strategy<Value = Frame<Bytes>> {
    let block = (1..=MAX_BLOCK, 1..=MAX_BLOCK, 0..MAX_BLOCK);
    (0..16u8, number(), block, any::<[u8; CODED_HEAD]>(), payload()).prop_map(
        |(class, first, (count, parities, index), head, data)| {
            let first = first.min(VARINT_MAX - u64::from(MAX_BLOCK));
            let data = data.slice(..data.len() / 2 * 2);
            Frame::Parity(ParityFrame { class, first, count, parities, index: index % parities, head, data })
        },
    )
}

fn stream_control() -> impl Strategy<Value = Frame<Bytes>> {
    prop_oneof![
        Just(Frame::Ping),
        (0..3000u16).prop_map(Frame::Padding),
        (stream_id(), number(), number()).prop_map(|(stream, code, final_size)| Frame::ResetStream {
            stream,
            code,
            final_size
        }),
        (stream_id(), number()).prop_map(|(stream, code)| Frame::StopSending { stream, code }),
        number().prop_map(|limit| Frame::MaxData { limit }),
        (stream_id(), number(), number()).prop_map(|(stream, limit, received)| Frame::MaxStreamData {
            stream,
            limit,
            received
        }),
        number().prop_map(|limit| Frame::MaxStreams { limit }),
        Just(Frame::Shutdown),
        Just(Frame::ShutdownAck),
        (number(), "\\PC{0,60}").prop_map(|(code, reason)| Frame::Close(Close { code, reason })),
    ]
}

fn path_control() -> impl Strategy<Value = Frame<Bytes>> {
    let usage = prop_oneof![
        Just(PathUse::Normal),
        Just(PathUse::Backup),
        Just(PathUse::Standby),
        Just(PathUse::Metered),
        Just(PathUse::Overflow)
    ];
    prop_oneof![
        any::<u64>().prop_map(|token| Frame::PathChallenge { token }),
        any::<u64>().prop_map(|token| Frame::PathResponse { token }),
        (path(), pid(), token()).prop_map(|(path, pid, reset_token)| Frame::NewPid(NewPid {
            path,
            pid,
            reset_token
        })),
        (path(), number()).prop_map(|(path, reason)| Frame::PathAbandon { path, reason }),
        (path(), number()).prop_map(|(path, limit)| Frame::MaxPathData { path, limit }),
        (path(), number(), usage).prop_map(|(path, sequence, usage)| Frame::PathStatus(PathStatus {
            path,
            sequence,
            usage
        })),
        (path(), number(), number()).prop_map(|(path, sequence, bits)| Frame::MaxPathRate(PathRate {
            path,
            sequence,
            bits
        })),
        (number(), option::of(path()))
            .prop_map(|(sequence, path)| Frame::AckPath(AckPath { sequence, path })),
        (number(), address()).prop_map(|(id, address)| Frame::AddAddress(AddressFrame { id, address })),
        number().prop_map(|id| Frame::RemoveAddress { id }),
        (1..=VARINT_MAX, any::<[u8; 32]>())
            .prop_map(|(number, key)| Frame::KeyExchange(KeyExchange { number, key })),
        (path(), address()).prop_map(|(path, address)| Frame::ObservedAddress { path, address }),
        (path(), number(), number(), number(), number()).prop_map(
            |(path, bytes, packets, highest_fsn, highest_tsn)| {
                Frame::Report(Report { path, bytes, packets, highest_fsn: Fsn(highest_fsn), highest_tsn })
            }
        ),
    ]
}

fn frame() -> impl Strategy<Value = Frame<Bytes>> {
    prop_oneof![data_frame(), stream_control(), path_control()]
}

fn params() -> impl Strategy<Value = Params> {
    (
        (pid(), token(), number(), number(), number()),
        (1..=MAX_PATHS, MIN_UDP_PAYLOAD.., any::<u16>(), any::<u32>(), 0..=MAX_ACK_DELAY_US),
        (0..=MAX_BLOCK, any::<u16>(), any::<bool>(), any::<bool>()),
    )
        .prop_map(|(credit, limits, datagrams)| Params {
            pid: credit.0,
            reset_token: credit.1,
            initial_max_data: credit.2,
            initial_max_stream_data: credit.3,
            initial_max_streams: credit.4,
            max_paths: limits.0,
            max_udp_payload: limits.1,
            max_datagram: limits.2,
            idle_timeout_ms: limits.3,
            max_ack_delay_us: limits.4,
            max_block: datagrams.0,
            ordered_classes: datagrams.1,
            arrival_times: datagrams.2,
            path_rates: datagrams.3,
        })
}

fn encoded(frames: &[Frame<Bytes>]) -> Bytes {
    let mut out = Vec::new();
    encode_frames(frames, &mut out);
    out.into()
}

fn encoded_params(params: &Params) -> Vec<u8> {
    let mut out = Vec::new();
    encode_params(params, &mut out);
    out
}

/// The same frame with its data replaced by their length, as in the simulator.
fn measured(frame: &Frame<Bytes>) -> Option<Frame<Length>> {
    match frame.clone() {
        Frame::Stream(StreamFrame { stream, offset, fin, data }) => {
            Some(Frame::Stream(StreamFrame { stream, offset, fin, data: Length(data.len()) }))
        }
        Frame::Datagram(DatagramFrame { class, flow, data }) => {
            Some(Frame::Datagram(DatagramFrame { class, flow, data: Length(data.len()) }))
        }
        Frame::Marked(MarkedFrame { datagram: DatagramFrame { class, flow, data }, number, place }) => {
            let datagram = DatagramFrame { class, flow, data: Length(data.len()) };
            Some(Frame::Marked(MarkedFrame { datagram, number, place }))
        }
        Frame::Parity(ParityFrame { class, first, count, parities, index, head, data }) => {
            let data = Length(data.len());
            Some(Frame::Parity(ParityFrame { class, first, count, parities, index, head, data }))
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn every_packet_comes_back_and_takes_the_length_foretold(frames in vec(frame(), 1..8)) {
        let bytes = encoded(&frames);
        prop_assert_eq!(bytes.len(), packet_encoded_len(&frames));
        let decoded = decode_frames(bytes).unwrap();
        prop_assert_eq!(decoded.as_slice(), frames.as_slice());
    }

    #[test]
    fn a_frame_that_is_followed_takes_the_length_foretold(frame in frame()) {
        let mut out = Vec::new();
        encode_frame(&frame, &mut out);
        prop_assert_eq!(out.len(), frame.encoded_len());
        encode_frame(&Frame::Ping, &mut out);
        let decoded = decode_frames(out.into()).unwrap();
        prop_assert_eq!(decoded.as_slice(), &[frame, Frame::Ping]);
    }

    #[test]
    fn a_length_takes_as_much_room_as_the_bytes_it_stands_for(frame in data_frame()) {
        if let Some(simulated) = measured(&frame) {
            prop_assert_eq!(simulated.encoded_len(), frame.encoded_len());
            prop_assert_eq!(simulated.encoded_len_last(), frame.encoded_len_last());
        }
    }

    #[test]
    fn arbitrary_bytes_never_make_the_frame_decoder_panic(bytes in vec(any::<u8>(), 0..300)) {
        if let Ok(frames) = decode_frames(bytes.into()) {
            prop_assert!(frames.len() <= MAX_FRAMES);
            let again = decode_frames(encoded(&frames)).unwrap();
            prop_assert_eq!(again, frames);
        }
    }

    #[test]
    fn a_damaged_packet_never_makes_the_frame_decoder_panic(
        frames in vec(frame(), 1..4), at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = encoded(&frames).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if cut {
            bytes.truncate(at);
        }
        let _ = decode_frames(bytes.into());
    }

    #[test]
    fn all_parameters_come_back(params in params()) {
        prop_assert_eq!(decode_params(&encoded_params(&params)).unwrap(), params);
    }

    #[test]
    fn arbitrary_bytes_never_make_the_parameter_decoder_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode_params(&bytes);
    }

    #[test]
    fn damaged_parameters_never_make_the_decoder_panic(
        params in params(), at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut bytes = encoded_params(&params);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = decode_params(&bytes);
        // Cut off, they are refused, unless it is just those that may be left out.
        if let Ok(cut) = decode_params(&encoded_params(&params)[..at]) {
            let Params { max_block, ordered_classes, arrival_times, .. } = cut;
            let usual =
                Params { max_block, ordered_classes, arrival_times, path_rates: false, ..params.clone() };
            prop_assert!(max_block == 0 || max_block == params.max_block);
            prop_assert!(!arrival_times || params.arrival_times);
            prop_assert!(ordered_classes == 0 || ordered_classes == params.ordered_classes);
            prop_assert_eq!(cut, usual);
        }
    }
}

#[test]
fn of_too_many_ranges_the_highest_are_encoded() {
    let ranges: Ranges = (0..100u64).rev().map(|n| n * 10..n * 10 + 3).collect();
    let ack = Ack { path: PathId(2), delay: Span::ZERO, arrived: None, ranges: ranges.clone(), ecn: None };
    let frames = [Frame::Ack(ack)];
    let bytes = encoded(&frames);
    assert_eq!(bytes.len(), packet_encoded_len(&frames));
    let decoded = decode_frames(bytes).unwrap();
    let [Frame::Ack(decoded)] = decoded.as_slice() else { panic!("{decoded:?}") };
    assert_eq!(decoded.ranges[..], ranges[..MAX_ACK_RANGES]);
}

#[test]
fn an_acknowledgement_of_nothing_takes_no_bytes() {
    let nothing = Ack { path: PathId(0), delay: Span::ZERO, arrived: None, ranges: Ranges::new(), ecn: None };
    let frames = [Frame::Ack(nothing), Frame::Ping];
    assert_eq!(packet_encoded_len(&frames), 1);
    assert_eq!(decode_frames(encoded(&frames)).unwrap().as_slice(), &[Frame::Ping]);
}

#[test]
fn a_long_reason_is_cut_where_a_character_ends() {
    let close = Close { code: 1, reason: "é".repeat(200) };
    let frames = [Frame::Close(close)];
    let bytes = encoded(&frames);
    assert_eq!(bytes.len(), packet_encoded_len(&frames));
    let decoded = decode_frames(bytes).unwrap();
    assert_eq!(decoded.as_slice(), &[Frame::Close(Close { code: 1, reason: "é".repeat(127) })]);
}

#[test]
fn only_the_last_frame_goes_without_a_length() {
    let stream = |stream| {
        let data = Bytes::from_static(b"abc");
        Frame::Stream(StreamFrame { stream: StreamId(stream), offset: 0, fin: false, data })
    };
    assert_eq!(stream_frame_overhead_last(StreamId(0), 0), 2);
    assert_eq!(packet_encoded_len(&[stream(0)]), 2 + 3);
    assert_eq!(packet_encoded_len(&[stream(0), stream(2)]), 3 + 3 + 2 + 3);
    assert_eq!(packet_encoded_len(&[stream(0), Frame::Ping]), 3 + 3 + 1);
    assert_eq!(stream_frame_overhead(StreamId(0), 1 << 30, 1200), 1 + 1 + 8 + 2);
    assert_eq!(datagram_frame_overhead(1, 64), datagram_frame_overhead_last(1) + 2);
}

#[test]
fn data_share_the_memory_of_their_packet() {
    let data = Bytes::from_static(b"not copied");
    let first = StreamFrame { stream: StreamId(0), offset: 0, fin: false, data: data.clone() };
    let last = DatagramFrame { class: 1, flow: 2, data };
    let packet = encoded(&[Frame::Stream(first), Frame::Datagram(last)]);
    let memory = packet.as_ptr_range();
    let frames = decode_frames(packet).unwrap();
    let [Frame::Stream(first), Frame::Datagram(last)] = frames.as_slice() else { panic!("{frames:?}") };
    assert!(memory.contains(&first.data.as_ptr()));
    assert!(memory.contains(&last.data.as_ptr()));
}

#[test]
fn an_error_tells_what_was_wrong_and_where() {
    let frames = |bytes: &'static [u8]| decode_frames(Bytes::from_static(bytes)).unwrap_err();
    assert_eq!(
        frames(b"\x01\x1a1234"),
        DecodeError::Truncated { what: "challenge", at: 2, needed: 8, left: 4 }
    );
    assert_eq!(frames(b"\x01\x3f"), DecodeError::Unknown { what: "frame type", at: 1, value: 0x3f });
    assert_eq!(frames(b"\x02\x00\x05\x00\x00\x06"), DecodeError::AckUnderflow { at: 6 });
    assert_eq!(frames(b"\x30\x10").to_string(), "datagram class ending at byte 2 is 16, not within 0..=15");
    assert_eq!(decode_params(&[]).unwrap_err(), DecodeError::ParamMissing { id: 1 });
}
