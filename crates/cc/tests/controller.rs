//! Behaviour common to all rules: slow start, episodes, undo, timeouts, restart, bounds, pacing, groups.

use anabranch_cc::{AckSample, Config, Controller, LossEvent, RttEstimator, RuleKind};
use anabranch_wire::{PathId, Rate, Span, Time};
use proptest::prelude::*;

const MSS: u64 = 1_200;
const A: PathId = PathId(0);
const B: PathId = PathId(2);
const RTT: Span = Span::from_millis(50);

/// A controller with its own clock, whose paths all have [`RTT`].
struct Bench {
    controller: Controller,
    rtt: RttEstimator,
    now: Time,
}

impl Bench {
    fn new(config: Config, paths: &[PathId]) -> Self {
        let mut controller = Controller::new(config);
        paths.iter().for_each(|&path| controller.add_path(path, MSS, Time::ZERO));
        let mut rtt = RttEstimator::new(RTT);
        rtt.update(Time::ZERO, RTT, Span::ZERO);
        Self { controller, rtt, now: Time::ZERO + Span::from_secs(1) }
    }

    fn sample(&self, path: PathId, acked_bytes: u64) -> AckSample {
        AckSample {
            now: self.now,
            acked_bytes,
            rtt: RTT,
            in_flight: self.controller.window(path),
            delivery_rate: None,
            round_start: false,
            app_limited: false,
            window_limited: true,
            ce_marks: 0,
        }
    }

    fn ack(&mut self, path: PathId, bytes: u64) {
        let sample = self.sample(path, bytes);
        self.controller.on_ack(path, &sample, &self.rtt);
    }

    /// A round trip later, acknowledges every packet of the window separately.
    fn round(&mut self, path: PathId) {
        self.wait(RTT);
        for _ in 0..self.controller.window(path) / MSS {
            self.ack(path, MSS);
        }
    }

    fn wait(&mut self, span: Span) {
        self.now += span;
    }

    /// A loss of a packet sent `ago`.
    fn lose(&mut self, path: PathId, ago: Span) -> bool {
        let in_flight = self.controller.window(path);
        let event = LossEvent { now: self.now, lost_bytes: MSS, in_flight, sent_at: self.now - ago };
        self.controller.on_loss(path, &event)
    }

    /// Ends the slow start of both paths by a loss, and lets another round trip pass.
    fn leave_slow_start(&mut self) {
        for path in [A, B] {
            self.round(path);
            self.wait(RTT);
            self.lose(path, RTT);
            self.wait(RTT);
            self.round(path);
        }
    }

    fn packets(&self, path: PathId) -> f64 {
        self.controller.window(path) as f64 / MSS as f64
    }
}

/// The rules under which every loss counts; the tests of `auto` are in `auto.rs`.
fn loss_based() -> impl Iterator<Item = RuleKind> {
    RuleKind::ALL.into_iter().filter(|rule| !matches!(rule, RuleKind::Bbr | RuleKind::Auto))
}

#[test]
fn slow_start_doubles_the_window_of_each_path_by_itself() {
    let mut bench = Bench::new(Config::new(RuleKind::Lia), &[A, B]);
    bench.round(A);
    bench.round(A);
    bench.round(B);
    assert_eq!((bench.packets(A), bench.packets(B)), (40.0, 20.0));
    assert!(bench.controller.in_slow_start(A));
    assert_eq!(bench.controller.ssthresh(A), u64::MAX);
}

#[test]
fn the_first_slow_start_ends_at_the_configured_window() {
    let config = Config { initial_ssthresh: Some(20), ..Config::tcp(RuleKind::Reno) };
    let mut bench = Bench::new(config, &[A]);
    bench.round(A);
    assert_eq!((bench.packets(A), bench.controller.in_slow_start(A)), (20.0, false));
    bench.round(A);
    assert!((20.5..=21.0).contains(&bench.packets(A)), "{}", bench.packets(A));
}

#[test]
fn after_a_loss_a_reno_window_is_half_and_grows_by_almost_a_packet_a_round_trip() {
    let mut bench = Bench::new(Config::new(RuleKind::Reno), &[A]);
    bench.round(A);
    assert!(bench.lose(A, RTT));
    assert_eq!(bench.packets(A), 10.0);
    assert!(!bench.controller.in_slow_start(A));
    bench.wait(RTT);
    for round in 1..6 {
        bench.round(A);
        // Not by a whole packet: otherwise flows that meet at a queue would always meet at the same point of a round.
        let grown = bench.packets(A) - 10.0;
        assert!(grown < f64::from(round) && grown > 0.8 * f64::from(round), "{grown}");
    }
}

#[test]
fn every_loss_based_rule_reduces_once_for_an_episode_and_again_for_the_next() {
    for rule in loss_based() {
        let mut bench = Bench::new(Config::new(rule), &[A]);
        bench.round(A);
        bench.wait(RTT);
        assert!(bench.lose(A, RTT), "{rule}");
        let after = bench.controller.window(A);
        assert!(after < 20 * MSS, "{rule}");
        bench.wait(RTT / 2);
        assert!(!bench.lose(A, RTT), "{rule}: sent before the reduction");
        bench.ack(A, MSS);
        assert_eq!(bench.controller.window(A), after, "{rule}: what was sent before does not grow it either");
        bench.wait(RTT);
        assert!(bench.lose(A, RTT), "{rule}: sent after it");
        assert!(bench.controller.window(A) < after, "{rule}");
    }
}

#[test]
fn marks_reduce_as_losses_do_and_belong_to_the_same_episode() {
    let mut bench = Bench::new(Config::new(RuleKind::Reno), &[A]);
    let event = LossEvent { now: bench.now, lost_bytes: MSS, in_flight: 12_000, sent_at: bench.now - RTT };
    assert!(bench.controller.on_ecn(A, &event));
    assert_eq!(bench.packets(A), 5.0);
    assert!(!bench.lose(A, RTT));
}

#[test]
fn undo_restores_the_windows_of_the_whole_group_under_every_rule() {
    for rule in loss_based() {
        let mut bench = Bench::new(Config::new(rule), &[A, B]);
        bench.leave_slow_start();
        let read =
            |bench: &Bench, path| (bench.packets(path), bench.controller.ssthresh(path) as f64 / MSS as f64);
        let before = [A, B].map(|path| read(&bench, path));
        bench.wait(RTT);
        assert!(bench.lose(A, RTT));
        assert_ne!(read(&bench, A), before[0], "{rule}");
        bench.controller.on_spurious_loss(A);
        // Under combined, B's window depends on the bytes outstanding on A.
        let paths = if rule == RuleKind::Combined { &[A][..] } else { &[A, B] };
        for (&path, (window, _)) in paths.iter().zip(before) {
            assert!(
                (bench.packets(path) - window).abs() < 0.01,
                "{rule} {path}: {window} {}",
                bench.packets(path)
            );
            assert!(!bench.controller.in_slow_start(path), "{rule} {path}");
        }
        let once = bench.packets(A);
        bench.controller.on_spurious_loss(A);
        assert_eq!(bench.packets(A), once, "{rule}: a second undo does nothing");
        assert!(bench.lose(A, Span::ZERO), "{rule}: the episode was undone with it");
    }
}

#[test]
fn losses_that_reduced_another_path_are_undone_when_the_two_share_no_bottleneck() {
    let mut bench = Bench::new(Config::new(RuleKind::Cubic), &[A, B]);
    bench.leave_slow_start();
    let before = [A, B].map(|path| bench.packets(path));
    bench.wait(RTT);
    assert!(bench.lose(A, RTT));
    let cut = bench.packets(A);
    assert!(bench.packets(B) < before[1]);
    bench.controller.on_parted(A, B);
    assert_eq!(bench.packets(A), cut, "its own losses it keeps");
    bench.controller.on_parted(B, B);
    assert!(bench.packets(B) < before[1], "those of a path that it does share with, too");
    bench.controller.on_parted(B, A);
    assert!((bench.packets(B) - before[1]).abs() < 0.01, "{before:?}");
    bench.controller.on_parted(B, A);
    assert!((bench.packets(B) - before[1]).abs() < 0.01, "once");
}

/// Cubic leaves 0.7 of the bytes delivered, whatever the window was.
#[test]
fn the_overshoot_of_slow_start_is_subtracted_but_at_most_half_the_window() {
    for (lost, held) in [(1, 80), (20, 60), (40, 40), (79, 40)] {
        let mut bench = Bench::new(Config::new(RuleKind::Cubic), &[A]);
        (0..3).for_each(|_| bench.round(A));
        assert_eq!(bench.packets(A), 80.0);
        (0..lost).for_each(|_| {
            bench.lose(A, RTT);
        });
        assert!((bench.packets(A) - 0.7 * f64::from(held)).abs() < 1.0, "{lost}: {}", bench.packets(A));
        bench.controller.on_spurious_loss(A);
        assert_eq!(bench.packets(A), 80.0);
    }
    let mut plain = Bench::new(Config::tcp(RuleKind::Reno), &[A]);
    (0..3).for_each(|_| plain.round(A));
    let before = plain.packets(A);
    (0..9).for_each(|_| {
        plain.lose(A, RTT);
    });
    assert_eq!(plain.packets(A), before / 2.0, "RFC 5681");
}

#[test]
fn undoing_a_loss_in_slow_start_resumes_slow_start() {
    let mut bench = Bench::new(Config::new(RuleKind::Cubic), &[A]);
    bench.round(A);
    bench.lose(A, RTT);
    assert!(!bench.controller.in_slow_start(A));
    bench.controller.on_spurious_loss(A);
    assert!(bench.controller.in_slow_start(A));
    assert_eq!(bench.controller.ssthresh(A), u64::MAX);
}

/// M2.
#[test]
fn a_timeout_sets_the_window_to_one_packet_and_the_end_of_slow_start_to_half_the_former_window() {
    let mut bench = Bench::new(Config::tcp(RuleKind::Reno), &[A]);
    bench.round(A);
    bench.controller.on_timeout(A, bench.now, 0);
    assert_eq!((bench.packets(A), bench.controller.ssthresh(A)), (1.0, 10 * MSS));
    bench.wait(RTT);
    bench.controller.on_timeout(A, bench.now, 0);
    assert_eq!(bench.controller.ssthresh(A), 10 * MSS, "a timeout in a row keeps it");
    bench.wait(RTT);
    for packets in [2.0, 4.0, 8.0] {
        bench.round(A);
        assert_eq!(bench.packets(A), packets);
    }
    bench.round(A);
    assert!((10.0..11.0).contains(&bench.packets(A)));
    assert!(!bench.controller.in_slow_start(A));
}

/// RFC 5681 §3.1.
#[test]
fn slow_start_after_a_timeout_ends_at_two_packets_or_more() {
    let mut bench = Bench::new(Config { initial_window: 3, ..Config::tcp(RuleKind::Reno) }, &[A]);
    bench.controller.on_timeout(A, bench.now, 0);
    assert_eq!((bench.packets(A), bench.controller.ssthresh(A)), (1.0, 2 * MSS));
}

/// RFC 9438 §4.8: 700 + 0.4·t³, or slightly more where Reno's window is larger; not back at 1000 after 9 s.
#[test]
fn under_cubic_the_curve_after_a_timeout_begins_at_its_flat_point() {
    let config = Config { initial_window: 1000, hystart: false, ..Config::new(RuleKind::Cubic) };
    let mut bench = Bench::new(config, &[A]);
    bench.controller.on_timeout(A, bench.now, 0);
    while bench.controller.in_slow_start(A) {
        bench.round(A);
    }
    let begun = bench.packets(A);
    (0..40).for_each(|_| bench.round(A));
    assert!((begun - 700.0).abs() < 5.0 && bench.packets(A) - begun < 25.0, "{begun} {}", bench.packets(A));
}

/// Time in which the window was not needed, before the first curve begins, does not delay the curve.
#[test]
fn under_cubic_a_window_grows_although_little_was_sent_after_a_loss() {
    let after = |seconds: u32| {
        let config = Config { initial_window: 1000, hystart: false, ..Config::new(RuleKind::Cubic) };
        let mut bench = Bench::new(config, &[A]);
        bench.lose(A, RTT);
        for _ in 0..seconds * 20 {
            bench.wait(RTT);
            let sample = AckSample { window_limited: false, app_limited: true, ..bench.sample(A, MSS) };
            bench.controller.on_ack(A, &sample, &bench.rtt);
        }
        (0..200).for_each(|_| bench.round(A));
        bench.packets(A)
    };
    assert!((after(60) - after(0)).abs() < 5.0, "{} {}", after(60), after(0));
}

#[test]
fn undoing_a_spurious_timeout_restores_the_window_before_the_first_timeout() {
    let mut bench = Bench::new(Config::tcp(RuleKind::Mptcp), &[A, B]);
    bench.round(A);
    bench.controller.on_timeout(A, bench.now, 0);
    bench.controller.on_timeout(A, bench.now + RTT, 0);
    bench.controller.on_spurious_loss(A);
    assert_eq!((bench.packets(A), bench.controller.ssthresh(A)), (20.0, u64::MAX));
}

#[test]
fn a_window_that_does_not_limit_the_sender_does_not_grow() {
    for rule in loss_based() {
        let mut bench = Bench::new(Config::new(rule), &[A]);
        for slow_start in [true, false] {
            assert_eq!(bench.controller.in_slow_start(A), slow_start);
            let before = bench.controller.window(A);
            bench.wait(RTT * 2);
            let sample = AckSample { window_limited: false, ..bench.sample(A, MSS) };
            bench.controller.on_ack(A, &sample, &bench.rtt);
            assert_eq!(bench.controller.window(A), before, "{rule}");
            bench.lose(A, Span::ZERO);
        }
    }
}

#[test]
fn an_idle_path_halves_its_window_for_each_timeout_down_to_the_initial_one() {
    let mut bench = Bench::new(Config::new(RuleKind::Reno), &[A]);
    for _ in 0..3 {
        bench.round(A);
    }
    bench.controller.on_sent(A, bench.now, MSS, MSS);
    bench.controller.on_idle_restart(A, bench.now + Span::from_millis(150));
    assert_eq!(bench.packets(A), 80.0, "less than a timeout is no pause");
    bench.controller.on_idle_restart(A, bench.now + Span::from_millis(450));
    assert_eq!(bench.packets(A), 20.0);
    bench.controller.on_idle_restart(A, bench.now + Span::from_secs(3_600));
    assert_eq!(bench.packets(A), 10.0);
    assert_eq!(bench.controller.ssthresh(A), u64::MAX);
    // In congestion avoidance slow start raises it to three quarters again (RFC 2861 §3.1).
    let mut steady = Bench::new(Config::tcp(RuleKind::Reno), &[A]);
    (0..3).for_each(|_| steady.round(A));
    steady.lose(A, RTT);
    steady.wait(RTT * 2);
    (0..40).for_each(|_| steady.round(A));
    let before = steady.controller.window(A);
    steady.controller.on_sent(A, steady.now, MSS, MSS);
    steady.controller.on_idle_restart(A, steady.now + Span::from_secs(3_600));
    assert!(before > 70 * MSS && steady.packets(A) == 10.0, "{before}");
    assert!(steady.controller.ssthresh(A).abs_diff(before * 3 / 4) < 2, "{}", steady.controller.ssthresh(A));
}

#[test]
fn a_longer_return_path_does_not_end_slow_start() {
    for (told, still_slow_start) in [(true, true), (false, false)] {
        let mut bench = Bench::new(Config::new(RuleKind::Reno), &[A]);
        for round in 0..10 {
            if round == 2 && told {
                bench.controller.on_return_path_changed(A);
            }
            for packet in 0..10 {
                let rtt = if round < 2 { RTT } else { RTT * 2 };
                let sample = AckSample { rtt, round_start: packet == 0, ..bench.sample(A, MSS) };
                bench.controller.on_ack(A, &sample, &bench.rtt);
            }
            bench.wait(RTT * 2);
        }
        assert_eq!(bench.controller.in_slow_start(A), still_slow_start, "told: {told}");
    }
}

#[test]
fn growth_of_the_round_trip_time_ends_slow_start_without_a_loss() {
    let mut bench = Bench::new(Config::new(RuleKind::Reno), &[A]);
    for round in 0..20 {
        // A bottleneck of 50 packets a round trip: more packets wait in the queue.
        let queue = (bench.packets(A) / 50.0 - 1.0).max(0.0);
        bench.wait(RTT);
        for index in 0..bench.controller.window(A) / MSS {
            let rtt = RTT + RTT.mul_f64(queue);
            let sample = AckSample { rtt, round_start: index == 0, ..bench.sample(A, MSS) };
            bench.controller.on_ack(A, &sample, &bench.rtt);
        }
        if !bench.controller.in_slow_start(A) {
            assert!(round > 5);
            assert!(bench.packets(A) < 330.0, "{}", bench.packets(A));
            return;
        }
    }
    panic!("still in slow start at {} packets", bench.packets(A));
}

/// P2.
#[test]
fn the_coupling_is_recomputed_after_a_packet_of_growth_or_a_round_trip() {
    let mut bench = Bench::new(Config::new(RuleKind::SemiCoupled), &[A, B]);
    for path in [A, B] {
        bench.round(path);
        bench.lose(path, RTT);
    }
    bench.wait(RTT * 2);
    let step = |bench: &mut Bench| {
        let before = bench.controller.window(A);
        bench.ack(A, MSS);
        bench.controller.window(A) - before
    };
    // Two windows of ten: a fortieth of a packet each.
    assert_eq!(step(&mut bench), 30);
    (0..300).for_each(|_| bench.ack(B, MSS));
    assert!(bench.packets(B) > 14.0, "{}", bench.packets(B));
    // The other window's growth is not noticed at once ...
    assert_eq!([step(&mut bench), step(&mut bench)], [29, 30]);
    // ... but after a round trip at the latest ...
    bench.wait(RTT);
    assert!(step(&mut bench) < 26);
    // ... or when the window has grown by a packet.
    let before = bench.packets(A);
    (0..1000).for_each(|_| bench.ack(B, MSS));
    while bench.packets(A) < before + 0.9 {
        assert!(step(&mut bench) >= 20);
    }
    (0..10).for_each(|_| bench.ack(A, MSS));
    let before = step(&mut bench);
    assert!(before < 18);
    // A loss on the other path is noticed at once.
    assert!(bench.lose(B, Span::ZERO) && step(&mut bench) > before * 5 / 4);
}

#[test]
fn cubic_paths_of_one_group_lose_and_grow_together_as_one_flow() {
    let totals = |paths: &[PathId], doublings: u32| {
        let config = Config { hystart: false, ..Config::new(RuleKind::Cubic) };
        let mut bench = Bench::new(config, paths);
        let total =
            |bench: &Bench| paths.iter().map(|path| bench.controller.window(*path)).sum::<u64>() as f64;
        let round = |bench: &mut Bench| {
            bench.wait(RTT);
            for path in paths {
                (0..bench.controller.window(*path) / MSS).for_each(|_| bench.ack(*path, MSS));
            }
        };
        (0..doublings).for_each(|_| round(&mut bench));
        paths.iter().for_each(|path| assert!(bench.lose(*path, Span::ZERO)));
        let mut totals = vec![total(&bench)];
        bench.wait(RTT * 2);
        assert!(bench.lose(paths[0], Span::ZERO));
        totals.push(total(&bench));
        for _ in 0..5 {
            (0..20).for_each(|_| round(&mut bench));
            totals.push(total(&bench));
        }
        totals
    };
    let (one, two) = (totals(&[A], 5), totals(&[A, B], 4));
    for (one, two) in one.iter().zip(&two) {
        assert!((two / one - 1.0).abs() < 0.05, "{two} {one}");
    }
}

#[test]
fn cubic_paths_of_one_group_are_together_as_fast_as_one_flow_over_the_fastest() {
    // Packets a second, ten seconds after a loss on all.
    let rate = |paths: &[(PathId, u64)]| {
        let ids: Vec<PathId> = paths.iter().map(|(path, _)| *path).collect();
        let mut bench = Bench::new(Config { hystart: false, ..Config::new(RuleKind::Cubic) }, &ids);
        let estimator = |ms| {
            let mut rtt = RttEstimator::new(RTT);
            rtt.update(Time::ZERO, Span::from_millis(ms), Span::ZERO);
            rtt
        };
        let rtts: Vec<RttEstimator> = paths.iter().map(|(_, ms)| estimator(*ms)).collect();
        let turn = |bench: &mut Bench, step: u64| {
            bench.wait(Span::from_millis(10));
            for ((path, ms), rtt) in
                paths.iter().zip(&rtts).filter(|((_, ms), _)| (step * 10).is_multiple_of(*ms))
            {
                let sample = AckSample {
                    rtt: Span::from_millis(*ms),
                    ..bench.sample(*path, bench.controller.window(*path))
                };
                bench.controller.on_ack(*path, &sample, rtt);
            }
        };
        (0..60).for_each(|step| turn(&mut bench, step));
        ids.iter().for_each(|path| assert!(bench.lose(*path, Span::ZERO)));
        (60..1060).for_each(|step| turn(&mut bench, step));
        paths.iter().map(|(path, ms)| bench.packets(*path) * 1000.0 / *ms as f64).sum::<f64>()
    };
    let (one, several) = (rate(&[(A, 40)]), rate(&[(A, 40), (B, 200)]));
    assert!((0.9..1.1).contains(&(several / one)), "{several} {one}");
}

#[test]
fn a_returning_path_is_in_slow_start_up_to_most_of_its_former_window() {
    let config = Config { hystart: false, ..Config::new(RuleKind::Reno) };
    let mut bench = Bench::new(config, &[A]);
    bench.controller.set_group(A, 7);
    bench.controller.on_return(A, Some(100 * MSS), bench.now);
    assert_eq!(bench.controller.window(A), config.initial_window * MSS);
    assert_eq!((bench.controller.ssthresh(A), bench.controller.group(A)), (70 * MSS, 7));
    bench.lose(A, Span::ZERO);
    assert!(!bench.controller.in_slow_start(A));
    bench.controller.on_recovery(A, 100 * MSS);
    assert!(bench.controller.in_slow_start(A));
    assert_eq!(bench.controller.ssthresh(A), 70 * MSS);
}

#[test]
fn paths_of_different_groups_are_independent() {
    let mut bench = Bench::new(Config::new(RuleKind::Coupled), &[A, B]);
    bench.controller.set_group(B, 1);
    assert_eq!((bench.controller.group(A), bench.controller.group(B)), (0, 1));
    for path in [A, B] {
        bench.round(path);
    }
    bench.lose(A, RTT);
    assert_eq!(bench.packets(A), 10.0, "its own half");
    bench.controller.set_group(B, 0);
    bench.wait(RTT * 2);
    bench.lose(A, RTT);
    assert_eq!(bench.packets(A), 2.0, "half of what both have");
}

#[test]
fn a_path_silent_since_a_timeout_does_not_slow_the_others_down() {
    let mut bench = Bench::new(Config::new(RuleKind::Ewtcp), &[A, B]);
    for path in [A, B] {
        bench.round(path);
        bench.lose(path, RTT);
    }
    let growth = |bench: &mut Bench| {
        let before = bench.packets(A);
        bench.wait(RTT * 2);
        bench.round(A);
        bench.packets(A) - before
    };
    assert!((growth(&mut bench) - 0.25).abs() < 0.02, "one of two");
    bench.controller.on_timeout(B, bench.now, 0);
    assert!((growth(&mut bench) - 1.0).abs() < 0.1, "as if alone");
    bench.wait(RTT);
    bench.ack(B, MSS);
    assert!((growth(&mut bench) - 0.25).abs() < 0.02, "one of two again");
}

/// R9, R12 Fig 6.
#[test]
fn under_csd_a_loss_moves_weight_to_the_other_paths() {
    let mut bench = Bench::new(Config::new(RuleKind::Csd), &[A, B]);
    for path in [A, B] {
        bench.round(path);
    }
    bench.lose(A, RTT);
    assert!((bench.packets(A) - 7.5).abs() < 0.01 && (bench.packets(B) - 22.5).abs() < 0.01);
}

/// M2.
#[test]
fn under_combined_a_path_may_use_what_the_others_leave_of_the_one_window() {
    let mut bench = Bench::new(Config::new(RuleKind::Combined), &[A, B]);
    bench.controller.on_sent(A, bench.now, 4 * MSS, 4 * MSS);
    assert_eq!((bench.packets(A), bench.packets(B)), (10.0, 6.0));
    bench.controller.on_sent(B, bench.now, 6 * MSS, 6 * MSS);
    assert_eq!((bench.packets(A), bench.packets(B)), (4.0, 6.0));
    let event = LossEvent { now: bench.now, lost_bytes: MSS, in_flight: 4 * MSS, sent_at: bench.now };
    bench.controller.on_loss(A, &event);
    assert_eq!((bench.packets(A), bench.packets(B)), (0.0, 2.0));
    bench.controller.remove_path(A);
    assert_eq!(bench.packets(B), 5.0, "the window outlives the path that carried it");
}

#[test]
fn pacing_is_at_twice_the_window_in_slow_start_and_a_quarter_above_it_later() {
    let mut bench = Bench::new(Config::new(RuleKind::Reno), &[A]);
    let rate = |bench: &Bench| bench.controller.pacing_rate(A, &bench.rtt);
    assert_eq!(rate(&bench), Some(Rate::from_bits(2 * 12_000 * 8 * 20)));
    bench.lose(A, RTT);
    assert_eq!(rate(&bench), Some(Rate::from_bits(7_500 * 8 * 20)));
    assert_eq!(bench.controller.pacing_rate(A, &RttEstimator::new(RTT)), None);
    assert_eq!(Bench::new(Config::tcp(RuleKind::Reno), &[A]).controller.pacing_rate(A, &bench.rtt), None);
}

#[test]
fn unknown_paths_have_no_window_and_change_nothing() {
    let mut bench = Bench::new(Config::new(RuleKind::Lia), &[A]);
    bench.ack(B, MSS);
    assert!(!bench.lose(B, RTT));
    bench.controller.on_timeout(B, bench.now, 0);
    bench.controller.remove_path(B);
    assert_eq!((bench.controller.window(B), bench.packets(A)), (0, 10.0));
}

/// An event on a path, with arbitrary numbers.
#[derive(Clone, Debug)]
enum Event {
    Ack { path: u32, bytes: u64, rtt: u64, round_start: bool, limited: bool },
    Loss { path: u32, ago: u64 },
    Mark { path: u32 },
    Timeout { path: u32, in_flight: u64 },
    Spurious { path: u32 },
    Idle { path: u32 },
    Group { path: u32, group: u32 },
    Mss { path: u32, mss: u64 },
    Sent { path: u32, bytes: u64 },
    Replace { path: u32 },
    Wait { nanos: u64 },
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>(), 1_000_u64..100_000_000]
}

fn event() -> impl Strategy<Value = Event> {
    let path = 0_u32..4;
    prop_oneof![
        6 => (path.clone(), number(), number(), any::<bool>(), any::<bool>()).prop_map(
            |(path, bytes, rtt, round_start, limited)| Event::Ack { path, bytes, rtt, round_start, limited }),
        3 => (path.clone(), number()).prop_map(|(path, ago)| Event::Loss { path, ago }),
        1 => path.clone().prop_map(|path| Event::Mark { path }),
        1 => (path.clone(), number()).prop_map(|(path, in_flight)| Event::Timeout { path, in_flight }),
        1 => path.clone().prop_map(|path| Event::Spurious { path }),
        1 => path.clone().prop_map(|path| Event::Idle { path }),
        1 => (path.clone(), 0_u32..2).prop_map(|(path, group)| Event::Group { path, group }),
        1 => (path.clone(), number()).prop_map(|(path, mss)| Event::Mss { path, mss: mss.min(65_535) }),
        1 => (path.clone(), number()).prop_map(|(path, bytes)| Event::Sent { path, bytes }),
        1 => path.prop_map(|path| Event::Replace { path }),
        3 => (0_u64..2_000_000_000).prop_map(|nanos| Event::Wait { nanos }),
    ]
}

impl Event {
    /// The path that it names.
    fn path(&self) -> Option<PathId> {
        match *self {
            Self::Ack { path, .. }
            | Self::Loss { path, .. }
            | Self::Mark { path }
            | Self::Timeout { path, .. }
            | Self::Spurious { path }
            | Self::Idle { path }
            | Self::Group { path, .. }
            | Self::Mss { path, .. }
            | Self::Sent { path, .. }
            | Self::Replace { path } => Some(PathId(path)),
            Self::Wait { .. } => None,
        }
    }

    fn happen(self, bench: &mut Bench) {
        let (now, controller) = (bench.now, &mut bench.controller);
        let loss = |ago: u64| LossEvent {
            now,
            lost_bytes: ago,
            in_flight: ago / 2,
            sent_at: now - Span::from_nanos(ago),
        };
        match self {
            Self::Ack { path, bytes, rtt, round_start, limited } => {
                bench.rtt.update(now, Span::from_nanos(rtt), Span::from_nanos(bytes));
                let rtt = Span::from_nanos(rtt);
                let sample = AckSample {
                    rtt,
                    round_start,
                    window_limited: limited,
                    app_limited: !limited,
                    delivery_rate: (bytes % 3 != 0).then_some(Rate::from_bits(bytes.rotate_left(7))),
                    ..bench.sample(PathId(path), bytes)
                };
                bench.controller.on_ack(PathId(path), &sample, &bench.rtt);
            }
            Self::Loss { path, ago } => drop(controller.on_loss(PathId(path), &loss(ago))),
            Self::Mark { path } => drop(controller.on_ecn(PathId(path), &loss(0))),
            Self::Timeout { path, in_flight } => controller.on_timeout(PathId(path), now, in_flight),
            Self::Spurious { path } => controller.on_spurious_loss(PathId(path)),
            Self::Idle { path } => controller.on_idle_restart(PathId(path), now),
            Self::Group { path, group } => controller.set_group(PathId(path), group),
            Self::Mss { path, mss } => controller.set_mss(PathId(path), mss),
            Self::Sent { path, bytes } => controller.on_sent(PathId(path), now, bytes, bytes),
            Self::Replace { path } => controller.add_path(PathId(path), MSS, now),
            Self::Wait { nanos } => bench.wait(Span::from_nanos(nanos)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_window_ever_leaves_its_bounds_whatever_happens(
        events in prop::collection::vec(event(), 1..120),
        min_window in 0_u64..3,
        pacing in any::<bool>(),
    ) {
        for rule in RuleKind::ALL {
            let config = Config { min_window, pacing, max_window: 3_000_000, ..Config::new(rule) };
            let paths: Vec<PathId> = (0..4).map(PathId).collect();
            let mut bench = Bench::new(config, &paths);
            let mut sizes = [MSS; 4];
            for event in events.clone() {
                match event {
                    Event::Mss { path, mss } => sizes[path as usize] = mss.max(1),
                    Event::Replace { path } => sizes[path as usize] = MSS,
                    _ => {}
                }
                event.happen(&mut bench);
                for (path, mss) in paths.iter().zip(sizes) {
                    let window = bench.controller.window(*path);
                    prop_assert!(window <= 3_000_000, "{rule} {window}");
                    let least = if rule == RuleKind::Combined { 0 } else { min_window.max(1) * mss };
                    prop_assert!(window >= least, "{rule} {window} below {least}");
                    let ssthresh = bench.controller.ssthresh(*path);
                    prop_assert!(ssthresh > 0, "{rule}");
                    if let Some(rate) = bench.controller.pacing_rate(*path, &bench.rtt) {
                        prop_assert!(rate > Rate::ZERO, "{rule}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_window_changes_without_its_path_being_named_only_with_a_new_revision(
        events in prop::collection::vec(event(), 1..120),
    ) {
        for rule in RuleKind::ALL {
            let paths: Vec<PathId> = (0..4).map(PathId).collect();
            let mut bench = Bench::new(Config::new(rule), &paths);
            for event in events.clone() {
                let named = event.path();
                let revision = bench.controller.revision();
                let windows = |bench: &Bench| paths.iter().map(|path| bench.controller.window(*path)).collect::<Vec<_>>();
                let before = windows(&bench);
                event.happen(&mut bench);
                let other_changed = paths.iter().zip(before).any(|(path, window)| {
                    Some(*path) != named && bench.controller.window(*path) != window
                });
                let told = revision.is_none() || bench.controller.revision() != revision;
                prop_assert!(told || !other_changed, "{rule}");
            }
        }
    }
}
