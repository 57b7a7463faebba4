//! The cost of hostile packets for the seal, in instructions, compared with honest ones of the same size under the same
//! keys. Without valgrind the test is skipped with a message.

use anabranch_counted::{end_of_part, is_counted};
use anabranch_secure::{
    Dial, Envelope, Initiator, Limits, NodeKey, OpenError, Protection, SessionKeys, read_init,
};
use anabranch_wire::{Fsn, Header, Kind, PathId, Pid, Span, TAG_LEN, Time};

/// Packets before counting starts, and packets counted.
const SETTLING: u64 = 8;
const COUNT: u64 = 64;
const LEN: usize = 1_200 + TAG_LEN;

/// A name, the most instructions per packet in percent of an honest one's, and a function that makes its packets.
type Way = (&'static str, u64, fn() -> Ends);

const WAYS: [Way; 6] = [
    ("honest", 100, Ends::new),
    ("seen before", 10, Ends::replaying),
    ("forged", 110, Ends::forging),
    ("forged, as if keys had changed", 110, Ends::forging_the_next_phase),
    ("forged, on a path that the last change has not reached", 220, Ends::forging_on_a_slow_path),
    ("true, with a change of keys for each", 700, Ends::changing),
];

/// A hostile peer and its victim.
struct Ends {
    peer: Protection,
    victim: Protection,
    now: Time,
    next: u64,
    hostile: Hostile,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hostile {
    No,
    Replaying,
    /// On this path, with the bit of another phase or not.
    Forging(PathId, bool),
    Changing,
}

fn keys() -> (SessionKeys, SessionKeys) {
    let (server, client) = (NodeKey::from_random([1; 32]), NodeKey::from_random([2; 32]));
    let dial = Dial { remote: server.public(), credential: None };
    let mut initiator = Initiator::new(&client, &dial, Pid(7), &[5; 60], [3; 32]).unwrap();
    let pending = read_init(&server, &initiator.init_body(None), [6; 32]).unwrap();
    let accepted = pending.accept(None, &[8; 60]).unwrap();
    (initiator.handle_ack(&accepted.body).unwrap().0, accepted.keys)
}

impl Ends {
    fn with(hostile: Hostile, limits: Limits) -> Self {
        let (peer, victim) = keys();
        let now = Time::ZERO;
        let mut ends = Self {
            peer: Protection::new(&peer, limits, now),
            victim: Protection::new(&victim, Limits::default(), now),
            now,
            next: 0,
            hostile,
        };
        ends.true_packet().unwrap();
        ends
    }

    fn new() -> Self {
        Self::with(Hostile::No, Limits::default())
    }

    fn replaying() -> Self {
        Self::with(Hostile::Replaying, Limits::default())
    }

    fn forging() -> Self {
        Self::with(Hostile::Forging(PathId(0), false), Limits::default())
    }

    fn forging_the_next_phase() -> Self {
        Self::with(Hostile::Forging(PathId(0), true), Limits::default())
    }

    fn forging_on_a_slow_path() -> Self {
        let mut ends = Self::with(Hostile::Forging(PathId(2), true), eager());
        ends.answer();
        ends.now += Span::from_secs(1);
        ends.true_packet().unwrap();
        ends
    }

    fn changing() -> Self {
        Self::with(Hostile::Changing, eager())
    }

    fn envelope(&self, path: PathId, key_phase: bool, number: u64) -> Envelope {
        let header =
            Header { kind: Kind::Data, key_phase, tos: 0, hop_limit: 4, pid: Pid(7), fsn: number as u32 };
        Envelope::new(&header, path, Fsn(number))
    }

    /// The peer's next packet on path 0.
    fn true_packet(&mut self) -> Result<(), OpenError> {
        let phase = self.peer.key_phase(self.now);
        let envelope = self.envelope(PathId(0), phase, self.next);
        let mut body = vec![7; LEN];
        self.peer.seal(&envelope, &mut body).unwrap();
        let opened = self.open_counted(&envelope, &mut body);
        self.peer.handle_acked(PathId(0), Fsn(self.next));
        self.next += 1;
        opened
    }

    /// Sends a packet by which the peer learns that the victim follows.
    fn answer(&mut self) {
        let phase = self.victim.key_phase(self.now);
        let envelope = self.envelope(PathId(0), phase, self.next);
        let mut body = vec![7; 20 + TAG_LEN];
        self.victim.seal(&envelope, &mut body).unwrap();
        self.peer.open(self.now, &envelope, &mut body).unwrap();
    }

    #[inline(never)]
    fn open_counted(&mut self, envelope: &Envelope, body: &mut [u8]) -> Result<(), OpenError> {
        self.victim.open(self.now, envelope, body).map(|_| ())
    }

    fn say(&mut self) {
        let expected = match self.hostile {
            Hostile::No => return self.true_packet().unwrap(),
            Hostile::Changing => {
                self.answer();
                self.now += Span::from_secs(1);
                return self.true_packet().unwrap();
            }
            Hostile::Replaying => OpenError::Replayed,
            Hostile::Forging(..) => OpenError::NotAuthentic,
        };
        let (path, other) = match self.hostile {
            Hostile::Forging(path, other) => (path, other),
            _ => (PathId(0), false),
        };
        let number = if self.hostile == Hostile::Replaying { 0 } else { self.next + 5 };
        let present = self.victim.key_phase(self.now);
        let envelope = self.envelope(path, present != other, number);
        assert_eq!(self.open_counted(&envelope, &mut [7; LEN]), Err(expected));
    }
}

/// Limits that change keys as often as allowed.
fn eager() -> Limits {
    Limits { rekey_after_packets: 1, retention: Span::ZERO, ..Limits::default() }
}

#[test]
fn no_hostile_packet_costs_the_seal_much_more_than_an_honest_one() {
    let Some(parts) = anabranch_counted::run("ways_for_the_count", Some("*Ends*open_counted*")) else {
        println!("skipped: instructions are counted with valgrind, which is not here");
        return;
    };
    let costs: Vec<u64> = parts.chunks_exact(2).map(|pair| pair[1].instructions / COUNT).collect();
    let mut beyond = Vec::new();
    for ((name, most, _), cost) in WAYS.iter().zip(&costs) {
        println!("{cost:>8} instructions a packet {name}");
        if cost * 100 > costs[0] * most {
            beyond.push(format!("{name}: {cost}, more than {most} in a hundred of {}", costs[0]));
        }
    }
    assert!(costs.len() == WAYS.len() && beyond.is_empty(), "{beyond:#?}");
}

/// The part that runs under callgrind; it does nothing by itself.
#[test]
fn ways_for_the_count() {
    for (_, _, begin) in WAYS {
        let mut ends = begin();
        for packets in [SETTLING, if is_counted() { COUNT } else { 0 }] {
            (0..packets).for_each(|_| ends.say());
            end_of_part(&[]);
        }
    }
}
