//! Fresh exchanges on virtual time: two ends over paths of different delay, with loss and reordering, and a thief who has
//! stolen the secrets of one moment.

use anabranch_secure::{
    CapturedSession, Dial, Envelope, Initiator, Limits, NodeKey, Protection, SessionKeys, UnusableKey,
    read_init,
};
use anabranch_wire::{Fsn, Header, KeyExchange, Kind, PathId, Pid, Side, Span, TAG_LEN, Time, expand_fsn};
use proptest::prelude::*;

const HALF_LEN: usize = 40;

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

/// The keys of a client and a server.
fn session() -> [SessionKeys; 2] {
    let (client, server) = (NodeKey::from_random([1; 32]), NodeKey::from_random([2; 32]));
    let dial = Dial { remote: server.public(), credential: None };
    let mut initiator = Initiator::new(&client, &dial, Pid(7), b"", [3; 32]).unwrap();
    let accepted =
        read_init(&server, &initiator.init_body(None), [4; 32]).unwrap().accept(None, b"").unwrap();
    let (keys, _) = initiator.handle_ack(&accepted.body).unwrap();
    [keys, accepted.keys]
}

/// A packet on its way, or in the thief's collection.
#[derive(Clone)]
struct Sent {
    at: u64,
    due: u64,
    from: Side,
    path: PathId,
    fsn: u64,
    datagram: Vec<u8>,
}

/// An end. Each packet repeats its latest half, since delivery is the session's work and not tested here.
struct End {
    keys: Protection,
    side: Side,
    half: Option<KeyExchange>,
    exchanges: u64,
}

impl End {
    fn exchange(&mut self, now: u64, half: Option<&KeyExchange>) -> Option<String> {
        // Never the same twice: equal numbers at both ends give an earlier secret again, and the thief skips its line.
        let mut random = [self.side as u8; 32];
        random[..8].copy_from_slice(&now.to_be_bytes());
        let exchanged = self.keys.exchange(at(now), half, random).expect("the peer is honest");
        self.half = exchanged.half.or(self.half);
        let fresh = exchanged.fresh?;
        self.exchanges += 1;
        Some(self.keys.line_of(&fresh).to_string())
    }
}

/// How a session's packets travel.
#[derive(Clone, Debug)]
struct Network {
    /// Of each path, in milliseconds.
    delays: Vec<u64>,
    /// Packets that are lost, in turn; none if empty.
    lost: Vec<bool>,
    /// Packets of each path and direction come this many milliseconds apart.
    pause: u64,
    /// Halves of this end are lost.
    mute: Option<Side>,
}

impl Network {
    fn with_spread() -> Self {
        Self { delays: vec![20, 320], lost: Vec::new(), pause: 20, mute: None }
    }
}

struct World {
    network: Network,
    ends: [End; 2],
    in_flight: Vec<Sent>,
    turn: usize,
    fsn: u64,
    /// All packets, as a listener collects them.
    listened: Vec<Sent>,
    /// Lines of keys, with their times.
    lines: Vec<(u64, String)>,
    opened: u64,
}

impl World {
    fn new(network: Network, limits: Limits) -> Self {
        let keys = session();
        let end = |keys: &SessionKeys, side| End {
            keys: Protection::new(keys, limits, at(0)),
            side,
            half: None,
            exchanges: 0,
        };
        Self {
            network,
            ends: [end(&keys[0], Side::Client), end(&keys[1], Side::Server)],
            in_flight: Vec::new(),
            turn: 0,
            fsn: 0,
            listened: Vec::new(),
            lines: vec![(0, keys[0].to_line().to_string())],
            opened: 0,
        }
    }

    fn run(&mut self, from: u64, until: u64) {
        for now in (from..until).step_by(self.network.pause as usize) {
            for index in 0..self.network.delays.len() {
                self.send(now, 0, index);
                self.send(now, 1, index);
            }
            self.fsn += 1;
            let mut due: Vec<_> = self.in_flight.extract_if(.., |sent| sent.due <= now).collect();
            due.sort_by_key(|sent| sent.due);
            due.iter().for_each(|sent| self.receive(now, sent));
        }
    }

    fn send(&mut self, now: u64, from: usize, index: usize) {
        let end = &mut self.ends[from];
        let path = PathId(index as u32 * 2);
        let key_phase = end.keys.key_phase(at(now));
        if end.keys.wants_exchange(at(now)) {
            let line = end.exchange(now, None);
            self.lines.extend(line.map(|line| (now, line)));
        }
        let header = Header {
            kind: Kind::Data,
            key_phase,
            tos: 0,
            hop_limit: 4,
            pid: pid(from, path),
            fsn: self.fsn as u32,
        };
        let mut datagram = vec![0; Header::LEN];
        header.encode(&mut datagram);
        let end = &mut self.ends[from];
        let half = end.half.filter(|_| self.network.mute != Some(end.side));
        datagram.extend_from_slice(&half.map_or([0; HALF_LEN], encoded));
        datagram.extend_from_slice(&[0; TAG_LEN]);
        let envelope = Envelope::new(&header, path, Fsn(self.fsn));
        end.keys.seal(&envelope, &mut datagram[Header::LEN..]).expect("seals");
        self.turn += 1;
        let is_lost = self.network.lost.get(self.turn % self.network.lost.len().max(1)).copied();
        // Neighbours overtake each other.
        let due = now + self.network.delays[index] + (self.turn as u64 * 7 % 3) * self.network.pause;
        let sent = Sent { at: now, due, from: end.side, path, fsn: self.fsn, datagram };
        self.listened.push(sent.clone());
        if !is_lost.unwrap_or(false) {
            self.in_flight.push(sent);
        }
    }

    fn receive(&mut self, now: u64, sent: &Sent) {
        let to = usize::from(sent.from == Side::Client);
        let end = &mut self.ends[to];
        let (header, body) = Header::decode(&sent.datagram).unwrap();
        let envelope =
            Envelope::new(&header, sent.path, expand_fsn(header.fsn, end.keys.expected_fsn(sent.path)));
        let mut body = body.to_vec();
        let text = end.keys.open(at(now), &envelope, &mut body);
        let text = text.unwrap_or_else(|error| panic!("{} of {} at {now}: {error}", sent.fsn, sent.path));
        self.opened += 1;
        if let Some(half) = decoded(text) {
            let line = end.exchange(now, Some(&half));
            self.lines.extend(line.map(|line| (now, line)));
        }
        self.ends[1 - to].keys.handle_acked(sent.path, Fsn(sent.fsn));
    }

    /// Packets of each direction that the thief opens who had all secrets until `stolen`, sent at `from` or later.
    fn thief_opens(&self, stolen: u64, from: u64) -> usize {
        // Both ends tell each secret.
        let mut lines: Vec<&str> = Vec::new();
        for (_, line) in self.lines.iter().filter(|(when, _)| *when <= stolen) {
            if !lines.contains(&line.as_str()) {
                lines.push(line);
            }
        }
        let mut thief = CapturedSession::read_all(&lines.join("\n")).unwrap().remove(0);
        let opens = |sent: &&Sent| {
            let (header, body) = Header::decode(&sent.datagram).unwrap();
            thief.open(&header, &mut body.to_vec()).is_some()
        };
        self.listened.iter().filter(opens).filter(|sent| sent.at >= from).count()
    }
}

fn pid(from: usize, path: PathId) -> Pid {
    Pid(100 * (from as u64 + 1) + u64::from(path.0))
}

fn encoded(half: KeyExchange) -> [u8; HALF_LEN] {
    let mut bytes = [0; HALF_LEN];
    bytes[..8].copy_from_slice(&half.number.to_be_bytes());
    bytes[8..].copy_from_slice(&half.key);
    bytes
}

fn decoded(text: &[u8]) -> Option<KeyExchange> {
    let (number, key) = text.split_first_chunk().unwrap();
    let number = u64::from_be_bytes(*number);
    (number > 0).then(|| KeyExchange { number, key: key.try_into().unwrap() })
}

#[test]
fn a_stolen_chain_of_keys_opens_nothing_two_minutes_later() {
    let network =
        Network { lost: (0..50).map(|turn| turn % 7 == 0).collect(), pause: 100, ..Network::with_spread() };
    let mut world = World::new(network, Limits::default());
    world.run(0, 700_000);
    let all = world.listened.len();
    for stolen in (0..560_000).step_by(35_000) {
        let after = world.listened.iter().filter(|sent| sent.at > stolen).count();
        let opened = world.thief_opens(stolen, 0);
        assert!(opened >= all - after, "the thief opens all until {stolen} ms");
        assert_eq!(world.thief_opens(stolen, stolen + 120_000), 0, "stolen at {stolen} ms");
    }
    assert_eq!(world.thief_opens(u64::MAX, 0), all, "a thief who learns all secrets opens all");
}

#[test]
fn without_fresh_secrets_a_stolen_chain_opens_the_rest_of_the_session() {
    let network = Network { mute: Some(Side::Server), pause: 100, ..Network::with_spread() };
    let mut world = World::new(network, Limits::default());
    world.run(0, 400_000);
    assert_eq!(world.thief_opens(0, 0), world.listened.len());
    assert!(world.ends[0].keys.phases() >= 3, "a silent peer does not keep keys from changing");
    assert_eq!(world.ends[0].exchanges, 0);
}

#[test]
fn every_packet_opens_while_secrets_are_fresh_every_hundred_seconds_and_paths_differ_by_300_milliseconds() {
    let network = Network { lost: (0..20).map(|turn| turn % 10 == 3).collect(), ..Network::with_spread() };
    let mut world = World::new(network, Limits::default());
    world.run(0, 510_000);
    assert_eq!(world.ends.each_ref().map(|end| end.exchanges), [5, 5]);
    assert_eq!(world.ends.each_ref().map(|end| end.keys.phases()), [5, 5], "no phase without a fresh secret");
    assert!(world.opened > 90_000, "{}", world.opened);
    assert_eq!(world.ends[0].keys.forgeries() + world.ends[1].keys.forgeries(), 0);
}

/// A fast session uses up keys every few seconds: it goes on with the chain, and mixes fresh secrets in as they come.
#[test]
fn keys_that_are_used_up_sooner_change_without_a_fresh_secret() {
    let limits = Limits { rekey_after_packets: 400, ..Limits::default() };
    let mut world = World::new(Network::with_spread(), limits);
    world.run(0, 250_000);
    assert!(world.ends[0].keys.phases() > 40, "{}", world.ends[0].keys.phases());
    assert_eq!(world.ends.each_ref().map(|end| end.exchanges), [2, 2]);
    assert_eq!(world.thief_opens(0, 120_000), 0);
}

/// A client whose own limits have it offer ten times as often as the server answers.
#[test]
fn a_client_that_exchanges_without_pause_is_answered_once_in_fifty_seconds() {
    let mut world = World::new(Network::with_spread(), Limits::default());
    let eager = Limits { exchange_after: Span::from_secs(5), ..Limits::default() };
    world.ends[0].keys = Protection::new(&session()[0], eager, at(0));
    world.run(0, 500_000);
    assert_eq!(world.ends.each_ref().map(|end| end.exchanges), [10, 10]);
}

#[test]
fn a_client_that_never_uses_the_secret_gets_no_other_answer() {
    let mut world = World::new(Network::with_spread(), Limits::default());
    world.run(0, 1_000);
    let mut answers = 0;
    for number in 1..10_000 {
        let key = *NodeKey::from_random([number as u8; 32]).public().as_bytes();
        let now = at(1_000 + 100 * number);
        let exchanged =
            world.ends[1].keys.exchange(now, Some(&KeyExchange { number, key }), [7; 32]).unwrap();
        answers += u32::from(exchanged.half.is_some());
    }
    assert_eq!(answers, 1);
}

#[test]
fn halves_that_were_not_asked_for_change_nothing() {
    let mut world = World::new(Network::with_spread(), Limits::default());
    world.run(0, 1_000);
    let key = *NodeKey::from_random([9; 32]).public().as_bytes();
    for number in [1, 2, u64::MAX] {
        let exchanged =
            world.ends[0].keys.exchange(at(1_000), Some(&KeyExchange { number, key }), [7; 32]).unwrap();
        assert!(exchanged.half.is_none() && exchanged.fresh.is_none(), "a client has offered nothing");
    }
    for number in [0, 2, u64::MAX] {
        let exchanged =
            world.ends[1].keys.exchange(at(1_000), Some(&KeyExchange { number, key }), [7; 32]).unwrap();
        assert!(
            exchanged.half.is_none() && exchanged.fresh.is_none(),
            "a server answers the next number alone"
        );
    }
    world.run(1_000, 210_000);
    assert_eq!(world.ends.each_ref().map(|end| end.exchanges), [2, 2]);
}

#[test]
fn a_key_of_low_order_is_refused() {
    let mut world = World::new(Network::with_spread(), Limits::default());
    world.run(0, 1_000);
    let half = KeyExchange { number: 1, key: [0; 32] };
    let result = world.ends[1].keys.exchange(at(1_000), Some(&half), [7; 32]);
    assert_eq!(result.unwrap_err(), UnusableKey);
}

/// Random numbers that repeated here once gave the second and the fourth exchange one secret.
#[test]
fn every_exchange_has_a_secret_of_its_own_and_a_thief_who_learns_all_opens_all() {
    let limits = Limits {
        rekey_after_packets: 1,
        exchange_after: Span::from_secs(11),
        retention: Span::from_secs(7),
        ..Limits::default()
    };
    let lost = (0..44).map(|turn| [0, 8, 20, 32, 43].contains(&turn)).collect();
    let mut world = World::new(Network { delays: vec![101, 1], lost, pause: 50, mute: None }, limits);
    world.run(0, 120_000);
    let secrets: std::collections::HashSet<_> = world.lines.iter().map(|(_, line)| line).collect();
    assert_eq!(world.ends.each_ref().map(|end| end.exchanges), [9, 9]);
    assert_eq!(secrets.len(), 1 + 9, "the line of the session and one for each exchange");
    assert_eq!(world.thief_opens(u64::MAX, 0), world.listened.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any delays, loss, volumes of a phase and pauses between exchanges: every arriving packet opens, and both ends go on
    /// to exchange.
    #[test]
    fn ends_that_change_keys_whenever_they_may_never_lose_each_other(
        delays in prop::collection::vec(1_u64..2_000, 2),
        lost in prop::collection::vec(prop::bool::weighted(0.2), 1..50),
        volume in 1_u64..200,
        exchange_after in 1_u64..20,
    ) {
        // The two ends send in turn. Something must arrive in each direction.
        let arrives = |first| lost.iter().cycle().skip(first).step_by(2).take(lost.len()).any(|lost| !lost);
        prop_assume!(arrives(0) && arrives(1));
        let limits = Limits {
            rekey_after_packets: volume,
            exchange_after: Span::from_secs(exchange_after),
            retention: Span::from_secs(7),
            ..Limits::default()
        };
        let mut world = World::new(Network { delays, lost, pause: 50, mute: None }, limits);
        world.run(0, 120_000);
        prop_assert!(world.ends[0].exchanges >= 3, "{} exchanges", world.ends[0].exchanges);
        prop_assert_eq!(world.thief_opens(u64::MAX, 0), world.listened.len());
    }
}
