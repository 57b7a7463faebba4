//! The cost of hostile packets, in instructions counted by callgrind. Each kind runs for a while, and then for longer. The
//! cost of a packet must neither exceed its bound nor grow with earlier packets. Without valgrind the test is skipped with a
//! message.
//!
//! Only the session's work is counted, not the attacker's. Packets that the session sends count as packets, too: windows
//! and pacing allow them, whoever causes them.

use anabranch_counted::{Part, end_of_part, is_counted};
use anabranch_engine::{AckConfig, Config, MemoryBudget, Read};
use anabranch_wire::{
    AckPath, AddressFrame, DatagramFrame, Frame, Fsn, Params, PathId, Report, Span, StreamId,
};
use bytes::Bytes;

use crate::attacker::{
    Victim, ack, elsewhere, highest, marked_frame, new_pid, params, parity_frame, route, stream_frame,
};

/// Packets before counting starts, packets of each count, and most packets between the two counts.
const SETTLING: usize = 10;
const COUNT: usize = 200;
const BETWEEN: usize = 2_000;
/// Most instructions between the two counts: the dearest attack would take longer than all others together.
const WORK_BETWEEN: u64 = 1_000_000_000;

/// Sends its next packet, to a session of its own.
type Attack = Box<dyn FnMut() -> Said>;

/// Packets and bytes to the session and from it since the attack began.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    packets: u64,
    bytes: u64,
}

/// A kind of attack.
struct Way {
    name: &'static str,
    /// Most instructions a packet, in the profile of the tests: a third more than measured.
    most: u64,
    begin: fn() -> Attack,
}

const fn way(name: &'static str, most: u64, begin: fn() -> Attack) -> Way {
    Way { name, most, begin }
}

static ATTACKS: [Way; 25] = [
    way("honest data, read at once", 2_400, honest),
    way("endless gaps in packet numbers", 3_900, gaps),
    way("numbers that leap", 2_100, leaps),
    way("200 frames with one byte in two", 250_000, one_byte_in_two),
    way("200 frames with a byte each, in order", 250_000, byte_by_byte),
    way("acknowledgements in 64 ranges of one", 24_000, ranges_of_one),
    way("the unsent acknowledged", 1_100, unsent),
    way("acknowledgements ahead of arrival", 10_000, optimistic),
    way("a byte of credit at a time for 10,000 streams", 8_400, crumbs_of_credit),
    way("credit that shrinks and is absurd", 2_800, absurd_credit),
    way("streams opened and given up, and the application sees them", 10_000, streams),
    way("more streams than admitted", 5_000, too_many_streams),
    way("paths opened and left", 5_000, paths),
    way("unread data, again", 2_500, never_read),
    way("talking without acknowledging", 3_500, talk),
    way("a hundred challenges from elsewhere", 7_000, challenges),
    way("unfetched events, seven a packet", 4_300, events),
    way("reports that lie", 2_400, reports),
    way("unread datagrams", 2_500, datagrams),
    way("300 empty datagrams", 100_000, datagrams_of_nothing),
    way("100 datagrams whose numbers jump", 122_000, jumps),
    way("100 coded datagrams of a byte", 354_000, coded),
    way("45 pieces of parity of as many blocks", 105_000, parity_of_many),
    way("31 pieces of parity for a block that misses 32", 60_000, parity_too_little),
    way("blocks of 32 to restore, all at once", 4_350_000, mended),
];

/// An attack on `victim` whose packets `next` makes from their number.
fn attack(mut victim: Victim, mut next: impl FnMut(&mut Victim, u64) + 'static) -> Attack {
    let mut round = 0;
    Box::new(move || {
        next(&mut victim, round);
        round += 1;
        Said { packets: victim.packets, bytes: victim.bytes }
    })
}

/// An attack with which the session copes.
fn borne(victim: Victim, mut next: impl FnMut(&mut Victim, u64) + 'static) -> Attack {
    attack(victim, move |victim, round| {
        next(victim, round);
        victim.assert_alive();
    })
}

fn honest() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say([stream_frame(0, round * 1_150, 1_150)]);
        let _ = victim.session.accept_stream();
        assert!(
            matches!(victim.session.read(StreamId(0), 4_000), Ok(Read::Data(data)) if data.len() == 1_150)
        );
    })
}

fn gaps() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say_as((0, 2 + round * 2), route(), [Frame::Ping]);
    })
}

fn leaps() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say_as((0, 2 + round * 100_000_000), route(), [Frame::Ping]);
    })
}

fn one_byte_in_two() -> Attack {
    borne(Victim::new(), |victim, round| {
        // Within the window, starting again at its end.
        let start = round * 400 % (Config::default().memory.initial_window - 400);
        victim.say((0..200).map(|frame| stream_frame(0, start + frame * 2 + 1, 1)));
    })
}

fn byte_by_byte() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say((0..200).map(|frame| stream_frame(0, round * 200 + frame, 1)));
        let _ = victim.session.accept_stream();
        while matches!(victim.session.read(StreamId(0), 4_000), Ok(Read::Data(_))) {}
    })
}

/// A victim that always has data to send, and a millisecond later acknowledgements with `ranges`.
fn at_a_sender(config: Config, ranges: fn(u64) -> Vec<std::ops::Range<u64>>) -> Attack {
    let mut top = 0;
    attack(Victim::with(config, MemoryBudget::new(1 << 40)), move |victim, round| {
        if round == 0 {
            victim.session.open_stream().unwrap();
        }
        for _ in 0..64 {
            let _ = victim.session.write(StreamId(1), &mut Bytes::from(vec![0; 1 << 10]));
        }
        top = highest(&victim.wait(Span::from_millis(1))).unwrap_or(top).max(top);
        top = highest(&victim.say([ack(0, ranges(top))])).unwrap_or(top).max(top);
        while victim.session.poll_event().is_some() {}
    })
}

fn ranges_of_one() -> Attack {
    let config =
        Config { acks: AckConfig { skip_numbers: false, ..AckConfig::default() }, ..Config::default() };
    at_a_sender(config, |top| {
        let each = (0..64).map(|range| (top | 1).saturating_sub(range * 2));
        each.filter(|number| *number > 0 && *number <= top).map(|number| number..number + 1).collect()
    })
}

fn optimistic() -> Attack {
    at_a_sender(Config::default(), |top| vec![0..top + 1])
}

fn unsent() -> Attack {
    attack(Victim::new(), |victim, _| {
        victim.say([ack(0, [0..1_000_000])]);
    })
}

fn crumbs_of_credit() -> Attack {
    let mut victim = Victim::offered(Params { initial_max_data: 0, ..params() });
    let streams: Vec<StreamId> = (0..10_000)
        .map(|_| {
            let stream = victim.session.open_stream().unwrap();
            victim.session.write(stream, &mut Bytes::from_static(&[0; 20])).unwrap();
            stream
        })
        .collect();
    borne(victim, move |victim, limit| {
        let stream = streams[limit as usize % streams.len()];
        victim.say([Frame::MaxData { limit }, Frame::MaxStreamData { stream, limit, received: 0 }]);
    })
}

fn absurd_credit() -> Attack {
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    borne(victim, move |victim, round| {
        let limit = [(1 << 62) - 1, 0, round][round as usize % 3];
        let credit = Frame::MaxStreamData { stream, limit, received: 0 };
        victim.say([Frame::MaxData { limit }, credit, Frame::MaxStreams { limit }]);
    })
}

/// A stream's only byte, and its early end.
fn stream_given_up(index: u64) -> [Frame<Bytes>; 3] {
    let stream = StreamId(index * 2);
    [
        stream_frame(stream.0, 0, 1),
        Frame::StopSending { stream, code: 0 },
        Frame::ResetStream { stream, code: 0, final_size: 1 },
    ]
}

fn streams() -> Attack {
    let config =
        Config { acks: AckConfig { skip_numbers: false, ..AckConfig::default() }, ..Config::default() };
    borne(Victim::with(config, MemoryBudget::new(1 << 40)), |victim, round| {
        let answered = highest(&victim.say(stream_given_up(round)));
        while let Some(stream) = victim.session.accept_stream() {
            let _ = victim.session.read(stream, 10);
            let _ = victim.session.reset(stream, 0);
        }
        // The session's answer is acknowledged, so that nothing of the stream is left.
        if let Some(top) = highest(&victim.drain()).max(answered) {
            victim.say([ack(0, [0..top + 1])]);
        }
    })
}

fn too_many_streams() -> Attack {
    attack(Victim::new(), |victim, round| {
        victim.say(stream_given_up(round));
    })
}

fn paths() -> Attack {
    attack(Victim::new(), |victim, round| {
        let id = 2 + 2 * round as u32;
        let path = PathId(id);
        victim.say([new_pid(id, u64::from(id))]);
        victim.say_as((id, 0), route(), [Frame::Ping, Frame::PathAbandon { path, reason: 0 }]);
    })
}

fn never_read() -> Attack {
    borne(Victim::new(), |victim, round| {
        let last = Config::default().memory.initial_window / 1_000 - 1;
        victim.say([stream_frame(0, round.min(last) * 1_000, 1_000)]);
    })
}

fn talk() -> Attack {
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    victim.session.write(stream, &mut Bytes::from(vec![0; 30_000])).unwrap();
    borne(victim, |victim, _| {
        victim.say([Frame::Ping]);
        victim.wait(Span::from_micros(100));
    })
}

fn challenges() -> Attack {
    borne(Victim::new(), |victim, round| {
        let tokens = (0..100).map(|token| Frame::PathChallenge { token: token + round * 100 });
        victim.say_as((0, 1 + round), elsewhere(), tokens);
    })
}

fn events() -> Attack {
    let mut victim = Victim::new();
    let stream = victim.session.open_stream().unwrap();
    borne(victim, move |victim, round| {
        let address = std::net::SocketAddr::from(([192, 0, 2, round as u8], round as u16));
        victim.say([
            Frame::ObservedAddress { path: PathId((round % 3) as u32), address },
            Frame::AddAddress(AddressFrame { id: round, address }),
            Frame::RemoveAddress { id: round },
            Frame::StopSending { stream, code: round },
            Frame::MaxStreams { limit: (1 << 60) + round },
            Frame::AckPath(AckPath { sequence: round + 1, path: Some(PathId(round as u32)) }),
            Frame::Datagram(DatagramFrame { class: 0, flow: 0, data: Bytes::new() }),
        ]);
    })
}

fn reports() -> Attack {
    borne(Victim::new(), |victim, round| {
        let highest_fsn = if round % 7 == 0 { Fsn((1 << 62) - 1) } else { Fsn(round) };
        let report = Report { path: PathId(0), bytes: 0, packets: 0, highest_fsn, highest_tsn: 0 };
        victim.say([Frame::Report(report)]);
    })
}

fn datagrams() -> Attack {
    let budget = MemoryBudget::new(2 << 20);
    borne(Victim::with(Config::default(), budget), |victim, _| {
        let data = Bytes::from_static(&[0; 1_100]);
        victim.say([Frame::Datagram(DatagramFrame { class: 0, flow: 0, data })]);
    })
}

fn datagrams_of_nothing() -> Attack {
    borne(Victim::new(), |victim, _| {
        victim
            .say((0..300).map(|_| Frame::Datagram(DatagramFrame { class: 0, flow: 0, data: Bytes::new() })));
    })
}

fn jumps() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say((0..100).map(|jump| marked_frame((0, 16_384 * (round * 100 + jump)), false, 0)));
    })
}

fn coded() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say((0..100).map(|number| marked_frame((0, round * 100 + number), true, 1)));
    })
}

fn parity_of_many() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say((0..45).map(|block| parity_frame((0, (round * 45 + block) * 32), 0, 0)));
    })
}

fn parity_too_little() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say((0..31).map(|index| parity_frame((0, round * 32), index, 0)));
    })
}

fn mended() -> Attack {
    borne(Victim::new(), |victim, round| {
        victim.say((0..32).map(|index| parity_frame((0, round * 32), index, 0)));
        while victim.session.recv_datagram().is_some() {}
    })
}

/// The attacks of one of two processes, which count side by side.
fn share(first: usize) -> impl Iterator<Item = &'static Way> {
    ATTACKS.iter().skip(first).step_by(2)
}

#[test]
fn the_cost_of_a_hostile_packet_is_bounded_and_does_not_grow() {
    let count = |test: &str| anabranch_counted::run(test, Some("*Victim*_counted"));
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| count("work::odd_attacks_for_the_count"));
        (count("work::even_attacks_for_the_count"), odd.join().expect("a count"))
    });
    let Some((even, odd)) = even.zip(odd) else {
        println!("skipped: counting instructions needs valgrind, which is not installed");
        return;
    };
    println!("instructions a packet at first, and later; then a byte of what came");
    let mut beyond = Vec::new();
    for (first, parts) in [even, odd].iter().enumerate() {
        assert_eq!(parts.len(), 4 * share(first).count());
        for (attack, parts) in share(first).zip(parts.chunks_exact(4)) {
            let [early, late] = [1, 3].map(|count| Cost::between(&parts[count - 1], &parts[count]));
            println!("{:>8} {:>8} {:>6} {}", early.a_packet(), late.a_packet(), late.a_byte(), attack.name);
            if early.a_packet().max(late.a_packet()) > attack.most {
                beyond.push(format!("{}: more than {} a packet", attack.name, attack.most));
            }
            if late.a_packet() > early.a_packet() * 3 / 2 + 1_000 {
                beyond.push(format!("{}: ever more", attack.name));
            }
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

/// Runs under callgrind; it does nothing by itself.
#[test]
fn even_attacks_for_the_count() {
    attack_for_the_count(0);
}

/// The other half.
#[test]
fn odd_attacks_for_the_count() {
    attack_for_the_count(1);
}

fn attack_for_the_count(first: usize) {
    if !is_counted() {
        return;
    }
    for attack in share(first) {
        let mut say = (attack.begin)();
        let between = BETWEEN.min((WORK_BETWEEN / attack.most) as usize);
        for packets in [SETTLING, COUNT, between, COUNT] {
            let said = (0..packets).map(|_| say()).last().unwrap_or_default();
            end_of_part(&[said.packets, said.bytes]);
        }
    }
}

/// The cost of one count.
struct Cost {
    instructions: u64,
    packets: u64,
    bytes: u64,
}

impl Cost {
    fn between(before: &Part, part: &Part) -> Self {
        let [packets, bytes] = [0, 1].map(|which| (part.numbers[which] - before.numbers[which]).max(1));
        Self { instructions: part.instructions, packets, bytes }
    }

    fn a_packet(&self) -> u64 {
        self.instructions / self.packets
    }

    fn a_byte(&self) -> u64 {
        self.instructions / self.bytes
    }
}
