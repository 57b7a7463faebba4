//! Two sensors over a link of given delay and loss; a mesh; a map.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time};
use proptest::prelude::*;

use super::*;

fn key(index: u8) -> PublicKey {
    PublicKey::from_bytes([index; 32])
}

/// Sensors that measure each other over links of one delay.
struct World {
    now: Time,
    sensors: BTreeMap<PublicKey, Sensor>,
    one_way: Span,
    /// How far the other clocks are ahead of the first one's.
    ahead: Span,
    down: bool,
    wire: Vec<(Time, PublicKey, PublicKey, Vec<u8>)>,
    packets: u64,
    /// One packet in this many is lost.
    lose: u64,
}

impl World {
    fn new(count: u8) -> Self {
        let config = SensorConfig::default();
        let sensor = |index: u8| (key(index), Sensor::new(config, [index; 32], Time::ZERO));
        Self {
            now: Time::ZERO,
            sensors: (0..count).map(sensor).collect(),
            one_way: Span::from_millis(20),
            ahead: Span::from_secs(5_000),
            down: false,
            wire: Vec::new(),
            packets: 0,
            lose: u64::MAX,
        }
    }

    /// The first sensor measures the others.
    fn measuring(count: u8) -> Self {
        let mut world = Self::new(count);
        let others = (1..count).map(key).collect();
        world.sensor(0).measure(Time::ZERO, &others, &BTreeSet::new());
        world
    }

    fn sensor(&mut self, index: u8) -> &mut Sensor {
        self.sensors.get_mut(&key(index)).unwrap()
    }

    fn clock(&self, node: &PublicKey) -> Time {
        if *node == key(0) { self.now } else { self.now + self.ahead }
    }

    fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.now += Span::from_millis(1);
            let (now, wire) = (self.now, std::mem::take(&mut self.wire));
            let (due, later) = wire.into_iter().partition(|(at, ..)| *at <= now);
            self.wire = later;
            let due: Vec<(Time, PublicKey, PublicKey, Vec<u8>)> = due;
            for (_, from, to, bytes) in due {
                let (clock, message) = (self.clock(&to), SenseMessage::decode(&bytes).unwrap());
                let answer = self.sensors.get_mut(&to).unwrap().handle_message(clock, &from, &message);
                answer.into_iter().for_each(|answer| self.send(to, from, &answer));
            }
            for node in self.sensors.keys().copied().collect::<Vec<_>>() {
                let clock = self.clock(&node);
                self.sensors.get_mut(&node).unwrap().handle_timeout(clock);
                while let Some((to, probe)) = self.sensors.get_mut(&node).unwrap().poll_transmit(clock) {
                    self.send(node, to, &probe);
                }
            }
        }
    }

    fn send(&mut self, from: PublicKey, to: PublicKey, message: &SenseMessage) {
        self.packets += 1;
        if !self.down && !self.packets.is_multiple_of(self.lose) {
            self.wire.push((self.now + self.one_way, from, to, message.encode()));
        }
    }

    fn link(&mut self) -> LinkTold {
        let now = self.now;
        self.sensor(0).links(now).remove(0)
    }
}

#[test]
fn a_probe_tells_the_round_trip_time_whatever_the_clocks_say() {
    let mut world = World::measuring(2);
    world.run(Span::from_secs(10));
    let link = world.link();
    assert!(link.up && (40_000..42_000).contains(&link.rtt[0]), "{link:?}");
    assert_eq!((link.loss, link.queue), ([0, 0], [0, 0]));
}

#[test]
fn queueing_delay_is_measured_for_each_direction() {
    let mut world = World::measuring(2);
    world.run(Span::from_secs(20));
    // Twice the delay there and back; the clocks do not matter.
    world.one_way = Span::from_millis(50);
    world.run(Span::from_secs(30));
    let LinkTold { queue: [there, back], .. } = world.link();
    assert!((20_000..=31_000).contains(&there) && (20_000..=31_000).contains(&back), "{there} {back}");
}

#[test]
fn loss_is_reported_in_the_direction_where_it_happens() {
    // Probes and answers alternate, so every sixth packet is an answer.
    let mut world = World::measuring(2);
    world.run(Span::from_secs(10));
    world.packets = 0;
    world.lose = 6;
    world.run(Span::from_secs(600));
    let link = world.link();
    assert!(link.up && link.loss[1] > 1_500 && link.loss[0] < 500, "{link:?}");
}

#[test]
fn a_link_without_answers_is_down_after_three_probes_and_up_with_the_first_answer() {
    let mut world = World::measuring(2);
    world.run(Span::from_secs(10));
    world.down = true;
    world.run(Span::from_secs(3));
    assert!(!world.link().up);
    let before = world.packets;
    world.run(Span::from_secs(10));
    assert!(world.packets - before <= 6, "{} probes while it is down", world.packets - before);
    world.down = false;
    world.run(Span::from_secs(3));
    assert!(world.link().up);
    assert!(world.link().loss[0] < 2_000, "what was sent in vain while it was down is not its loss");
}

#[test]
fn the_budget_is_kept_with_any_number_of_links_and_measurers() {
    let mut world = World::measuring(60);
    for index in 1..60 {
        world.sensor(index).measure(Time::ZERO, &BTreeSet::from([key(0)]), &BTreeSet::new());
    }
    world.run(Span::from_secs(60));
    let mut known = 0;
    for _ in 0..60 {
        let now = world.now;
        if let Some(changes) = world.sensor(0).poll_changes(now, known) {
            known = changes.version;
        }
        world.run(Span::from_secs(1));
    }
    let stats = world.sensor(0).stats();
    let kbit = stats.bytes as f64 * 8e-3 / 120.0;
    assert!((14.0..20.5).contains(&kbit), "{kbit} kbit/s: {stats:?}");
    assert!(stats.unanswered > 0, "59 askers are more than it answers");
    let now = world.now;
    assert_eq!(world.sensor(0).links(now).len(), 59, "all are measured, more slowly");
}

/// A map that knows the first sensor of a world.
fn map(world: &mut World, known: u64, map: &mut LinkMap) -> u64 {
    let now = world.now;
    match world.sensor(0).poll_changes(now, known) {
        Some(changes) => map.take(now, &key(0), &changes),
        None => known,
    }
}

#[test]
fn only_changes_are_reported_and_a_controller_that_missed_some_gets_everything() {
    let mut world = World::measuring(4);
    world.run(Span::from_secs(10));
    let mut first = LinkMap::default();
    (0..4).for_each(|index| first.join(key(index)));
    let mut second = first.clone();
    let known = map(&mut world, 0, &mut first);
    assert!(known >= 3);
    world.run(Span::from_secs(20));
    let now = world.now;
    let changes = world.sensor(0).poll_changes(now, known);
    let known = changes.map_or(known, |changes| {
        assert_eq!(changes.links, [], "no link has changed, at most the coordinate");
        first.take(now, &key(0), &changes)
    });
    assert_eq!(world.sensor(0).poll_changes(now, known), None);
    world.sensor(0).measure(now, &BTreeSet::from([key(1), key(2)]), &BTreeSet::new());
    let changes = world.sensor(0).poll_changes(now, known).unwrap();
    assert_eq!((changes.since, changes.links.len(), &changes.gone), (known, 0, &vec![key(3)]));
    assert_eq!(second.take(now, &key(0), &changes), 0, "who does not know what was before asks for all");
    let known = first.take(now, &key(0), &changes);
    assert_eq!((first.node(0).unwrap().links, known), ([2, 0], changes.version));
    map(&mut world, 0, &mut second);
    assert_eq!(second.node(0).unwrap().links, [2, 0]);
}

#[test]
fn a_controller_knows_of_a_link_that_fails_at_once() {
    let mut world = World::measuring(2);
    world.run(Span::from_secs(10));
    let mut known_to = LinkMap::default();
    [key(0), key(1)].into_iter().for_each(|node| known_to.join(node));
    let known = map(&mut world, 0, &mut known_to);
    world.down = true;
    world.run(Span::from_secs(3));
    map(&mut world, known, &mut known_to);
    known_to.take(world.now, &key(1), &Changes { version: 1, ..Changes::default() });
    for (from, to) in [(0, 1), (1, 0)] {
        let figures = known_to.figures(world.now, from, to).unwrap();
        assert_eq!((figures.loss, figures.estimated), (1.0, None));
    }
}

#[test]
fn unmeasured_links_are_estimated_and_marked_as_such() {
    let at = |x: i32| Placed([x, 0, 2_000], 1_000);
    let told = |loss| LinkTold {
        to: key(9),
        up: true,
        rtt: [30_000, 0],
        loss: [loss, 0],
        queue: [0; 2],
        available: 0,
        capacity: 0,
    };
    let mut map = LinkMap::default();
    [0, 1, 9].into_iter().for_each(|index| map.join(key(index)));
    for (index, x, loss) in [(0, 0, 100), (1, 60_000, 0)] {
        let changes =
            Changes { version: 1, coordinate: at(x), links: vec![told(loss)], ..Changes::default() };
        map.take(Time::ZERO, &key(index), &changes);
    }
    let figures = map.figures(Time::ZERO, 0, 1).unwrap();
    assert_eq!(figures.rtt.as_micros(), 64_000);
    assert!(
        (figures.loss - 0.01).abs() < 1e-9 && figures.estimated == Some(f64::from(0.1_f32)),
        "{figures:?}"
    );
    assert_eq!(map.figures(Time::ZERO, 0, 2), None, "the third was never heard");
    assert_eq!(map.figures(Time::ZERO + Span::from_secs(11), 0, 1), None, "both fell silent");
}

#[test]
fn coordinates_of_nodes_on_a_line_tell_their_distances() {
    let places = [0.0_f64, 10.0, 35.0, 80.0, 120.0];
    let mut coordinates = [Coordinate::default(); 5];
    for round in 0..2_000_u32 {
        for at in 0..5 {
            let other = (at + 1 + round as usize % 4) % 5;
            let rtt = Span::from_secs_f64((4.0 + (places[at] - places[other]).abs()) / 1e3);
            let aside = [f64::from(round % 7) / 7.0 - 0.5, 0.3];
            let peer = coordinates[other];
            coordinates[at].learn(&peer, rtt, aside);
        }
    }
    for (a, b) in [(0, 4), (1, 3), (0, 1)] {
        let (told, truth) =
            (coordinates[a].rtt(&coordinates[b]).as_millis_f64(), 4.0 + (places[a] - places[b]).abs());
        assert!((told / truth - 1.0).abs() < 0.15, "{a} {b}: {told} {truth}");
    }
}

#[test]
fn a_mesh_stays_regular_while_nodes_come_and_go() {
    let mut mesh = Mesh::new(4, 7);
    for index in 0..100 {
        mesh.join(key(index));
        let most = (usize::from(index)).min(4);
        assert!(mesh.nodes().all(|node| mesh.measures(node).len() <= 4 && mesh.measured_by(node).len() <= 4));
        assert_eq!(mesh.measures(&key(index)).len(), most, "{index}");
    }
    let before: Vec<_> = (0..100).map(|index| mesh.measures(&key(index))).collect();
    for gone in [3, 50, 77] {
        assert!(mesh.leave(&key(gone)) && !mesh.leave(&key(gone)));
    }
    assert!(mesh.join(key(200)) && !mesh.join(key(200)));
    let changed = (0..100).filter(|index| mesh.measures(&key(*index)) != before[usize::from(*index)]).count();
    assert!(changed <= 3 + 4 * 4, "{changed} have other neighbours");
    for node in mesh.nodes() {
        let (to, by) = (mesh.measures(node), mesh.measured_by(node));
        assert!((3..=4).contains(&to.len()) && by.len() <= 4, "{to:?} {by:?}");
        assert!(!to.contains(node) && to.iter().collect::<BTreeSet<_>>().len() == to.len());
        assert!(to.iter().all(|other| mesh.measured_by(other).contains(node)));
    }
}

#[test]
fn ways_over_one_and_two_relays_come_best_first() {
    let ms = |rtt| Some(Figures::measured(Span::from_millis(rtt), 0.001));
    let first = [ms(10), ms(50), ms(200), None];
    let last = [ms(300), ms(60), ms(10), ms(1)];
    let between = |a: usize, b: usize| if (a, b) == (0, 2) { ms(20) } else { ms(500) };
    let (ways, looked_at) = best_ways(&first, &last, between, WayLimits::default());
    assert_eq!((ways[0].relays.clone(), ways[1].relays.clone()), (vec![0, 2], vec![1]));
    assert_eq!(ways[0].figures.rtt, Span::from_millis(40));
    assert_eq!(looked_at, 3 + 9);
    let (few, _) = best_ways(&first, &last, between, WayLimits { most: 1, near: 0 });
    assert_eq!(few.len(), 1);
    assert_eq!(few[0].relays, [1]);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let mut world = World::measuring(3);
        world.run(Span::from_secs(3));
        if let Ok(message) = SenseMessage::decode(&bytes) {
            prop_assert_eq!(SenseMessage::decode(&message.encode()).is_ok(), true);
            let now = world.now;
            world.sensor(0).handle_message(now, &key(1), &message);
            prop_assert!(world.sensor(0).coordinate().rtt(&Coordinate::default()) < Span::from_secs(60));
        }
    }

    #[test]
    fn whatever_a_node_tells_the_map_stays_sane(
        since in 0_u64..3, version: u64, place: [i32; 3], error: u16, rtt: u32, loss: [u16; 2], up: bool
    ) {
        let mut map = LinkMap::default();
        [0, 1].into_iter().for_each(|index| map.join(key(index)));
        let link = |to| LinkTold { to: key(to), up, rtt: [rtt, 0], loss, queue: [rtt, rtt], available: rtt, capacity: rtt };
        let links = (0..3).map(link).collect();
        let changes =
            Changes { since, version, coordinate: Placed(place, error), links, gone: vec![key(7)] };
        map.take(Time::ZERO, &key(0), &changes);
        map.take(Time::ZERO, &key(1), &Changes { version: 1, ..Changes::default() });
        for (from, to) in [(0, 1), (1, 0), (0, 0)] {
            if let Some(figures) = map.figures(Time::ZERO, from, to) {
                prop_assert!((0.0..=1.0).contains(&figures.loss));
            }
        }
    }
}
