//! Loss, reordering, failure and packet size: the engine over imperfect networks.

use anabranch_engine::cc::RuleKind;
use anabranch_engine::{AckPolicy, Config, PathState, SchedulerKind};
use anabranch_link::{Jitter, JitterShape, LossModel, Reorder};
use anabranch_sim::{CLIENT, CableConfig, Idle, Pair, SERVER, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

/// Share of data in packets with 1,472 bytes of UDP payload.
const PAYLOAD_SHARE: f64 = 1430.0 / 1500.0;

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

fn seconds(seconds: f64) -> Time {
    Time::ZERO + Span::from_secs_f64(seconds)
}

fn pair(config: &Config, cables: &[CableConfig]) -> Pair<Length> {
    Pair::new([config.clone(), config.clone()], cables, 1)
}

/// The papers' constants: only the failure timer of χ = 2 TCP timeouts, acknowledgements on the primary.
fn papers() -> Config {
    let mut config = Config::tcp();
    config.acks.policy = AckPolicy::Primary;
    config
}

#[test]
fn reordering_within_a_path_widens_the_wait_instead_of_halving_the_window() {
    let mut cable = CableConfig::new(20.0, ms(40), 1.0);
    cable.links[0].reorder = Reorder { probability: 0.05, extra: ms(8) };
    let mut config = Config::default();
    config.cc.rule = RuleKind::Reno;
    let mut pair = pair(&config, &[cable]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(12.0), &mut [&mut sender, &mut sink]);
    // If one packet in 20 counted as lost, Reno would have five packets per round trip: 1.5 Mbit/s.
    let rate = sink.mbit_s(seconds(4.0), seconds(12.0));
    assert!(rate > 0.8 * 20.0 * PAYLOAD_SHARE, "{rate:.2} Mbit/s");
}

#[test]
fn a_window_reduced_in_error_is_given_back() {
    // The window is the limit: 300 kB per round trip of 100 ms, far below the rate.
    let mut cable = CableConfig::new(400.0, ms(100), 1.0);
    cable.links[0].jitter = Jitter { shape: JitterShape::None, overtakes: true };
    let mut config = Config::default();
    config.cc.rule = RuleKind::Reno;
    config.cc.max_window = 300_000;
    config.cc.pacing = false;
    config.cc.hystart = false;
    let mut pair = pair(&config, &[cable]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(5.0), &mut [&mut sender, &mut sink]);
    assert_eq!(pair.session(CLIENT).paths()[0].window, 300_000);
    // The shorter delay lets new packets overtake those of the last 20 ms.
    let mut lowest = u64::MAX;
    pair.link(0, 0).set_delay(ms(30));
    for step in 1..=40 {
        pair.run(seconds(5.0) + ms(5) * step, &mut [&mut sender, &mut sink]);
        lowest = lowest.min(pair.session(CLIENT).paths()[0].window);
    }
    let path = &pair.session(CLIENT).paths()[0];
    assert!(path.stats.spurious_losses > 0, "{:?}", path.stats);
    assert!(lowest < 250_000, "the scenario reduced nothing: {lowest}");
    // Without the undo, Reno would need a hundred round trips.
    assert!(path.window > 290_000, "{} after {lowest}", path.window);
}

#[test]
fn what_had_arrived_over_a_path_that_died_is_not_sent_again_for_long() {
    let near = CableConfig::new(6.6, ms(28), 1.0);
    let far = CableConfig::new(43.0, ms(50), 2.0);
    let mut pair = pair(&Config::default(), &[near, far]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(4.0), &mut [&mut sender, &mut sink]);
    let repeated = |pair: &mut Pair<Length>| {
        pair.session(SERVER).paths().into_iter().map(|path| path.stats.data_duplicate).sum::<u64>()
    };
    let before = repeated(&mut pair);
    pair.set_down(1, true);
    pair.run(seconds(4.5), &mut [&mut sender, &mut sink]);
    let again = repeated(&mut pair) - before;
    // One window of the near path, including its queue, is in flight before the answer arrives.
    assert!(again < 80_000, "{again} bytes came again");
}

#[test]
fn path_mtu_discovery_settles_just_below_what_the_path_carries() {
    let mut cable = CableConfig::new(20.0, ms(30), 1.0);
    cable.links[0].mtu = Some(1400);
    let mut pair = pair(&Config::default(), &[cable]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(6.0), &mut [&mut sender, &mut sink]);
    let mtu = pair.session(CLIENT).paths()[0].mtu;
    assert!((1384..=1400).contains(&mtu), "{mtu}");
    let share = sink.mbit_s(seconds(3.0), seconds(6.0)) / 20.0;
    // With packets of the base size, headers would leave 94.3 %.
    assert!(share > 0.944, "{share:.4}");
}

#[test]
fn a_path_that_begins_to_swallow_large_packets_goes_on_with_smaller_ones() {
    for rtt in [10, 60, 200] {
        for profile in [Config::default(), Config::tcp()] {
            let mut config = profile;
            (config.mtu.base, config.mtu.max) = (1200, 1472);
            let mut pair = pair(&config, &[CableConfig::new(10.0, ms(rtt), 1.0)]);
            let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
            pair.establish(&mut [&mut sender, &mut sink]);
            pair.run(seconds(4.0), &mut [&mut sender, &mut sink]);
            assert_eq!(pair.session(CLIENT).paths()[0].mtu, 1472);
            pair.link(0, 0).set_mtu(Some(1300));
            pair.run(seconds(14.0), &mut [&mut sender, &mut sink]);
            let gap = sink.longest_gap(seconds(4.0), seconds(14.0));
            assert!(gap < ms(2_500), "round trip {rtt} ms, gap {} ms", gap.as_millis_f64());
            let mtu = pair.session(CLIENT).paths()[0].mtu;
            assert!((1200..=1300).contains(&mtu), "{mtu}");
            let rate = sink.mbit_s(seconds(10.0), seconds(14.0));
            assert!(rate > 4.0, "round trip {rtt} ms, {rate:.2} Mbit/s");
        }
    }
}

/// mTCP §3.1.3 [M4].
#[test]
fn reordering_between_paths_never_triggers_a_retransmission() {
    for scheduler in [SchedulerKind::RoundRobin, SchedulerKind::LeastFilled, SchedulerKind::EarliestArrival] {
        let mut config = Config { scheduler, ..Config::default() };
        // The windows fit into the queues, so nothing is dropped.
        config.cc.max_window = 60_000;
        config.mtu.max = config.mtu.base;
        let cables =
            [CableConfig::new(50.0, ms(4), 4.0), CableConfig::new(20.0, ms(180), 4.0)].map(|mut cable| {
                for link in &mut cable.links {
                    link.queue.limit = anabranch_link::Limit::Bytes(1 << 20);
                }
                cable
            });
        let mut pair = pair(&config, &cables);
        let (mut sender, mut sink) = (Sender::new(4_000_000), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        pair.run(seconds(30.0), &mut [&mut sender, &mut sink]);
        assert_eq!(sink.received, 4_000_000);
        let paths = pair.session(CLIENT).paths();
        assert!(paths.len() == 2 && paths.iter().all(|path| path.stats.data_sent > 10_000), "{paths:?}");
        assert!(paths.iter().all(|path| path.stats.packets_lost == 0), "{scheduler}: {paths:?}");
        assert_eq!(pair.session(CLIENT).stats().bytes_resent, 0, "{scheduler}");
    }
}

/// mTCP §3.1.4 [M6].
#[test]
fn what_is_lost_goes_over_any_path_and_what_arrived_is_never_sent_again() {
    let mut cables = [CableConfig::new(10.0, ms(30), 2.0), CableConfig::new(10.0, ms(50), 2.0)];
    cables[0].links[0].loss = LossModel::Bernoulli(0.01);
    let mut config = papers();
    config.acks.policy = AckPolicy::SamePath;
    let mut pair = pair(&config, &cables);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(10.0), &mut [&mut sender, &mut sink]);
    let lost: u64 = pair.session(CLIENT).paths().iter().map(|path| path.stats.packets_lost).sum();
    let spurious: u64 = pair.session(CLIENT).paths().iter().map(|path| path.stats.spurious_losses).sum();
    let twice: u64 = pair.session(SERVER).paths().iter().map(|path| path.stats.data_duplicate).sum();
    assert!(lost > 20, "{lost}");
    assert!(twice <= spurious * 1472, "{twice} bytes came twice, {spurious} packets were taken for lost");
    assert!(sink.received > 5_000_000, "{}", sink.received);
}

/// mTCP §3.5 [M12], with χ = 2 and TCP's timeout.
#[test]
fn an_auxiliary_path_that_fails_hands_its_packets_to_the_others() {
    let cables = [CableConfig::new(10.0, ms(40), 1.0), CableConfig::new(10.0, ms(60), 1.0)];
    let mut pair = pair(&papers(), &cables);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(5.0), &mut [&mut sender, &mut sink]);
    pair.set_down(1, true);
    pair.run(seconds(12.0), &mut [&mut sender, &mut sink]);
    let paths = pair.session(CLIENT).paths();
    let state = |cable| paths.iter().find(|path| path.route.socket == cable).map(|path| path.state);
    assert_eq!((state(0), state(1)), (Some(PathState::Active), Some(PathState::Failed)));
    let gap = sink.longest_gap(seconds(5.0), seconds(12.0));
    assert!(gap < ms(1_500), "{} ms", gap.as_millis_f64());
    let rate = sink.mbit_s(seconds(8.0), seconds(12.0));
    assert!(rate > 0.8 * 10.0 * PAYLOAD_SHARE, "{rate:.2} Mbit/s");
}

/// mTCP §3.5 [M13], Fig 5: recovered in about 3 s.
#[test]
fn when_the_primary_fails_acknowledgements_move_and_no_other_path_is_lost() {
    let cables = [40, 60, 90].map(|rtt| CableConfig::new(8.0, ms(rtt), 1.0));
    let mut pair = pair(&papers(), &cables);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(5.0), &mut [&mut sender, &mut sink]);
    pair.set_down(0, true);
    pair.run(seconds(16.0), &mut [&mut sender, &mut sink]);
    let gap = sink.longest_gap(seconds(5.0), seconds(16.0));
    assert!(gap < ms(3_000), "{} ms", gap.as_millis_f64());
    for path in pair.session(CLIENT).paths() {
        let expected = if path.route.socket == 0 { PathState::Failed } else { PathState::Active };
        assert_eq!(path.state, expected, "{}", path.id);
    }
    let rate = sink.mbit_s(seconds(10.0), seconds(16.0));
    assert!(rate > 0.8 * 16.0 * PAYLOAD_SHARE, "{rate:.2} Mbit/s");
}

/// MPMTP-AR §3.4 [R5].
#[test]
fn a_gap_on_one_path_holds_no_room_from_the_others() {
    let cables = [CableConfig::new(20.0, ms(20), 1.0), CableConfig::new(20.0, ms(150), 1.0)];
    let mut pair = pair(&Config::default(), &cables);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(5.0), &mut [&mut sender, &mut sink]);
    // From now on the slow path's packets are missing, which the receiver notices later.
    pair.link(1, 0).set_down(true);
    pair.run(seconds(5.1), &mut [&mut sender, &mut sink]);
    let arrived = |pair: &mut Pair<Length>| {
        let paths = pair.session(SERVER).paths();
        paths.iter().find(|path| path.route.socket == 0).map_or(0, |path| path.stats.data_received)
    };
    let before = arrived(&mut pair);
    pair.run(seconds(5.2), &mut [&mut sender, &mut sink]);
    let held = pair.session(SERVER).stats().bytes_reassembling;
    let mbit = (arrived(&mut pair) - before) as f64 * 8e-6 / 0.1;
    assert!(held > 0, "nothing waits behind the gap");
    assert!(mbit > 0.9 * 20.0 * PAYLOAD_SHARE, "{mbit:.2} Mbit/s over the living path");
}

#[test]
fn a_gigabit_over_300_ms_fills_with_default_settings() {
    let mut pair = pair(&Config::default(), &[CableConfig::new(1000.0, ms(300), 1.0)]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(9.0), &mut [&mut sender, &mut sink]);
    let rate = sink.mbit_s(seconds(6.0), seconds(9.0));
    assert!(rate > 0.9 * 1000.0 * PAYLOAD_SHARE, "{rate:.1} Mbit/s");
}

#[test]
fn nothing_is_sent_without_end_to_an_end_that_never_reads() {
    let mut config = Config::default();
    config.memory.initial_window = 50_000;
    config.memory.max_window = 200_000;
    let mut pair = pair(&config, &[CableConfig::new(10.0, ms(20), 1.0)]);
    let mut sender = Sender::new(u64::MAX);
    pair.establish(&mut [&mut sender, &mut Idle]);
    pair.run(seconds(20.0), &mut [&mut sender, &mut Idle]);
    let received: u64 = pair.session(SERVER).paths().iter().map(|path| path.stats.data_received).sum();
    assert_eq!(received, 50_000);
}

/// MPMTP-AR §3.6 [R5].
#[test]
fn what_was_bound_to_a_path_and_never_left_it_is_not_sent_again() {
    let config = Config { early_binding: Some(512 << 10), ..Config::default() };
    let cables = [CableConfig::new(10.0, ms(40), 1.0), CableConfig::new(10.0, ms(60), 1.0)];
    let mut pair = pair(&config, &cables);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(seconds(3.0), &mut [&mut sender, &mut sink]);
    let before = pair.session(CLIENT).stats().bytes_resent;
    let in_flight = pair.session(CLIENT).paths()[0].in_flight;
    pair.set_down(0, true);
    pair.run(seconds(3.6), &mut [&mut sender, &mut sink]);
    let lost = pair.session(CLIENT).paths()[0].stats.packets_lost;
    let resent = pair.session(CLIENT).stats().bytes_resent - before;
    assert!(resent <= in_flight + 60_000, "{resent} bytes, of {in_flight} in flight; {lost} packets lost");
}
