//! `auto` on a modelled bottleneck: a short queue alone, a fair share next to `cubic`, and the full rate despite losses.

mod bottleneck;

use anabranch_cc::RuleKind::{self, Auto, Cubic, Reno};
use anabranch_cc::{AckSample, Config, Controller, LossEvent, RttEstimator};
use anabranch_wire::{PathId, Span, Time};
use bottleneck::{Bottleneck, Flow, Measured, run};

const SEEDS: std::ops::Range<u64> = 1..5;

/// Rate in Mbit/s, round trip in ms, queue in BDP, share lost on the wire.
#[derive(Clone, Copy, Debug)]
struct Network(f64, u64, f64, f64);

/// A flow alone from its tenth to its fortieth second.
fn alone(rule: RuleKind, network: Network, seed: u64) -> Measured {
    let Network(mbit, rtt, bdp, loss) = network;
    run(&Bottleneck { mbit, bdp, loss, pause: 0.0, seed }, &[Flow::new(rule, rtt, 0.0)], 10.0, 40.0)[0]
}

#[test]
fn alone_it_keeps_its_queue_short_at_the_full_rate() {
    for network in [
        Network(50.0, 40, 4.0, 0.0),
        Network(5.0, 70, 8.0, 0.0),
        Network(20.0, 200, 20.0, 0.0),
        Network(200.0, 10, 10.0, 0.0),
    ] {
        let aim = f64::max(25.0, network.1 as f64 / 4.0);
        let Measured { mbit, queue_ms, lost } = alone(Auto, network, 1);
        assert!(mbit >= 0.99 * network.0, "{network:?}: {mbit} Mbit/s");
        assert!(queue_ms <= 1.3 * aim && lost == 0.0, "{network:?}: {queue_ms} ms, {lost} lost");
    }
}

/// Two packets take longer than 25 ms there, and were once taken for a rival's queue.
#[test]
fn on_a_slow_link_its_queue_is_a_few_packets() {
    for network in [Network(0.3, 40, 12.0, 0.0), Network(0.5, 20, 25.0, 0.0)] {
        let packet_ms = 12.0 / network.0;
        let Measured { mbit, queue_ms, .. } = alone(Auto, network, 1);
        assert!(mbit >= 0.95 * network.0, "{network:?}: {mbit} Mbit/s");
        assert!(queue_ms <= 6.0 * packet_ms, "{network:?}: {queue_ms} ms");
    }
}

#[test]
fn losses_on_the_wire_hardly_cost_rate() {
    let networks = [
        Network(20.0, 100, 0.6, 0.01),
        Network(20.0, 600, 1.0, 0.01),
        Network(20.0, 40, 0.25, 0.001),
        Network(100.0, 5, 1.0, 0.001),
        Network(30.0, 100, 20.0, 0.002),
    ];
    for network in networks {
        for seed in SEEDS {
            let Measured { mbit, queue_ms, .. } = alone(Auto, network, seed);
            assert!(mbit >= 0.95 * network.0 * (1.0 - network.3), "{network:?} {seed}: {mbit} Mbit/s");
            assert!(queue_ms <= f64::max(6.0, network.1 as f64 / 10.0), "{network:?} {seed}: {queue_ms} ms");
        }
    }
}

/// A queue of a few packets drops without delay, at random, but only what exceeds the rate.
#[test]
fn a_very_short_queue_is_not_taken_for_losses_on_the_wire() {
    for network in [Network(20.0, 20, 0.1, 0.0), Network(20.0, 40, 0.05, 0.0), Network(20.0, 40, 0.25, 0.0)] {
        for seed in SEEDS {
            let (auto, cubic) = (alone(Auto, network, seed), alone(Cubic, network, seed));
            assert!(auto.mbit >= 0.95 * cubic.mbit, "{network:?}: {auto:?} {cubic:?}");
            assert!(auto.lost <= cubic.lost * 2.0, "{network:?}: {auto:?} {cubic:?}");
        }
    }
}

/// Radio links pause. A short queue would be empty after each pause.
#[test]
fn on_a_link_that_pauses_it_carries_as_much_as_cubic() {
    for pause in [0.2, 0.5] {
        let line = Bottleneck { mbit: 20.0, bdp: 6.0, loss: 0.0, pause, seed: 1 };
        let rate = |rule| run(&line, &[Flow::new(rule, 50, 0.0)], 2.0, 60.0)[0].mbit;
        let (auto, cubic) = (rate(Auto), rate(Cubic));
        assert!(auto >= 0.98 * cubic, "pauses of {pause} s: {auto}, cubic {cubic}");
    }
}

/// The mean rates of a flow of this rule that begins at `start`, and of a background TCP.
fn next_to_cubic(rule: RuleKind, bdp: f64, start: f64) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for seed in SEEDS {
        let line = Bottleneck { mbit: 50.0, bdp, loss: 0.0, pause: 0.0, seed };
        let flows = [Flow::new(rule, 40, start), Flow::tcp(Cubic, 40, 0.1 + seed as f64 * 0.2)];
        let measured = run(&line, &flows, 10.0, 130.0);
        (0..2).for_each(|flow| sums[flow] += measured[flow].mbit / SEEDS.count() as f64);
    }
    sums
}

#[test]
fn next_to_cubic_it_is_as_fair_as_cubic() {
    for bdp in [0.25, 0.5, 1.0, 4.0] {
        let [auto, neighbour] = next_to_cubic(Auto, bdp, 5.0);
        let [cubic, usual] = next_to_cubic(Cubic, bdp, 5.0);
        assert!(neighbour >= 0.9 * usual, "{bdp} BDP: the neighbour has {neighbour}, next to cubic {usual}");
        assert!(auto >= 0.9 * cubic, "{bdp} BDP: auto has {auto}, cubic {cubic}");
    }
}

/// Cubic flows take most of a deep queue from Reno, which makes them look as if they were alone; over far paths, tests
/// take long.
#[test]
fn next_to_reno_or_far_away_it_is_as_fair_as_cubic() {
    for (neighbour, rtt, bdp) in [(Reno, 80, 1.0), (Reno, 40, 4.0), (Cubic, 400, 2.0), (Cubic, 300, 8.0)] {
        let rates = |rule| {
            let mut sums = [0.0; 2];
            for seed in SEEDS {
                let line = Bottleneck { mbit: 10.0, bdp, loss: 0.0, pause: 0.0, seed };
                let flows = [Flow::new(rule, rtt, 3.0), Flow::tcp(neighbour, rtt, 0.1 + seed as f64 * 0.2)];
                let measured = run(&line, &flows, 15.0, 63.0);
                (0..2).for_each(|flow| sums[flow] += measured[flow].mbit);
            }
            sums
        };
        let ([auto, left], [cubic, usual]) = (rates(Auto), rates(Cubic));
        assert!(left >= 0.9 * usual, "{neighbour} {rtt} ms: the neighbour has {left}, next to cubic {usual}");
        assert!(auto >= 0.9 * cubic, "{neighbour} {rtt} ms: auto has {auto}, cubic {cubic}");
    }
}

/// After ten seconds the neighbour's queue once counted as a part of the least round trip, so the path held back.
#[test]
fn in_a_deep_queue_that_is_never_empty_it_keeps_its_share_for_minutes() {
    let shares = SEEDS.map(|seed| {
        let line = Bottleneck { mbit: 20.0, bdp: 4.0, loss: 0.0, pause: 0.0, seed };
        let flows = [Flow::new(Auto, 40, 0.0), Flow::tcp(Cubic, 40, 0.1 + seed as f64 * 0.2)];
        run(&line, &flows, 60.0, 310.0)[0].mbit / 20.0
    });
    let mean = shares.sum::<f64>() / SEEDS.count() as f64;
    assert!(mean >= 0.47, "{mean}");
}

#[test]
fn a_neighbour_that_comes_later_leaves_it_a_share() {
    for bdp in [0.5, 1.0, 4.0] {
        let [auto, neighbour] = next_to_cubic(Auto, bdp, 0.0);
        let [_, usual] = next_to_cubic(Cubic, bdp, 0.0);
        assert!(neighbour >= 0.9 * usual, "{bdp} BDP: the neighbour has {neighbour}, next to cubic {usual}");
        // While the neighbour's slow start fills the queue, the flow loses three times.
        assert!(auto >= 0.75 * 25.0, "{bdp} BDP: auto has {auto}");
    }
}

#[test]
fn the_queue_is_short_again_after_a_neighbour_has_left() {
    let line = Bottleneck { mbit: 50.0, bdp: 4.0, loss: 0.0, pause: 0.0, seed: 1 };
    let flows = [Flow::new(Auto, 40, 0.0), Flow::tcp(Cubic, 40, 0.0).until(30.0)];
    let measured = run(&line, &flows, 80.0, 120.0)[0];
    assert!(measured.mbit >= 49.0 && measured.queue_ms <= 35.0, "{measured:?}");
}

/// A path in congestion avoidance, whose round trips are acknowledged at once.
struct Rounds {
    controller: Controller,
    rtt: RttEstimator,
    now: Time,
}

impl Rounds {
    /// A path at 100 packets of 1,000 bytes.
    fn new() -> Self {
        let config = Config { initial_window: 100, initial_ssthresh: Some(100), ..Config::new(Auto) };
        let mut controller = Controller::new(config);
        controller.add_path(PathId::FIRST, 1_000, Time::ZERO);
        Self { controller, rtt: RttEstimator::new(Span::from_millis(40)), now: Time::ZERO }
    }

    /// A round trip that takes so long and delivers so much; returns the window.
    fn round(&mut self, millis: u64, acked_bytes: u64) -> u64 {
        let rtt = Span::from_millis(millis);
        self.now += rtt;
        self.rtt.update(self.now, rtt, Span::ZERO);
        let sample = AckSample {
            now: self.now,
            acked_bytes,
            rtt,
            in_flight: acked_bytes,
            delivery_rate: None,
            round_start: true,
            app_limited: false,
            window_limited: true,
            ce_marks: 0,
        };
        self.controller.on_ack(PathId::FIRST, &sample, &self.rtt);
        self.controller.window(PathId::FIRST)
    }

    /// Round trips with a queue, until the path cuts its window to test it; returns the window that is left.
    fn test_queue(&mut self) -> u64 {
        self.round(40, 100_000);
        let before = self.round(100, 100_000);
        let left = self.round(100, 100_000);
        assert!(left < before * 4 / 5, "{left} of {before}: a test begins");
        left
    }
}

#[test]
fn a_rival_that_a_test_finds_does_not_undo_a_timeout() {
    let mut path = Rounds::new();
    path.test_queue();
    path.now += Span::from_secs(1);
    path.controller.on_timeout(PathId::FIRST, path.now, 0);
    let after = [2_000; 3].map(|acked| path.round(100, acked));
    assert!(after[2] < 8_000, "{after:?}");
}

#[test]
fn a_rival_that_a_test_finds_does_not_undo_a_loss_before_its_cut() {
    let mut path = Rounds::new();
    let in_flight = path.test_queue();
    let sent_at = path.now - Span::from_millis(50);
    path.now += Span::from_millis(10);
    let loss = LossEvent { now: path.now, lost_bytes: 1_000, in_flight, sent_at };
    path.controller.on_loss(PathId::FIRST, &loss);
    let after = [100_000; 3].map(|acked| path.round(100, acked));
    assert!((60_000..80_000).contains(&after[2]), "{after:?}: 0.7 of the window before the test");
}

/// The loss was of a packet sent before the cut, so it reduced nothing.
#[test]
fn a_loss_that_proves_spurious_does_not_undo_a_cut_for_the_queue() {
    let mut path = Rounds::new();
    let left = path.test_queue();
    let sent_at = path.now - Span::from_millis(50);
    path.now += Span::from_millis(10);
    let loss = LossEvent { now: path.now, lost_bytes: 1_000, in_flight: left, sent_at };
    assert!(!path.controller.on_loss(PathId::FIRST, &loss));
    path.controller.on_spurious_loss(PathId::FIRST);
    assert_eq!(path.controller.window(PathId::FIRST), left);
}
