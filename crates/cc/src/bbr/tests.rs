//! Single steps of BBR, by sections of draft-ietf-ccwg-bbr-02.

use super::model::MinRtt;
use super::*;
use crate::sample::LossEvent;

const MSS: f64 = 1_000.0;

/// BBR at 10 Mbyte/s and 100 ms, with a full window sent a round trip ago.
fn steady(state: State) -> Bbr {
    let mut bbr = Bbr::new(10.0 * MSS, MSS, Time::ZERO, 1);
    bbr.path.max_bw.update(1e7);
    bbr.bw = 1e7;
    bbr.path.min_rtt.update(Time::ZERO, Span::from_millis(100));
    bbr.full.reached = true;
    bbr.cwnd = 2e6;
    bbr.on_sent(Time::ZERO, 1_250_000, Span::from_millis(100));
    bbr.enter(state, 1.0, CWND_GAIN);
    bbr
}

fn loss(bytes: u64) -> LossEvent {
    let now = Time::ZERO + Span::from_millis(100);
    LossEvent { now, lost_bytes: bytes, in_flight: 1_250_000, sent_at: Time::ZERO }
}

/// An ack of one packet that was sent 100 ms ago, at 10 Mbyte/s: acks 100 ms apart begin a round each.
fn ack(millis: u64, in_flight: u64) -> AckSample {
    AckSample {
        now: Time::ZERO + Span::from_millis(millis),
        acked_bytes: 1_000,
        rtt: Span::from_millis(100),
        in_flight,
        delivery_rate: Some(Rate::from_mbit(80.0)),
        round_start: false,
        app_limited: false,
        window_limited: true,
        ce_marks: 0,
    }
}

#[test]
fn two_percent_lost_in_a_probe_bound_the_volume_and_undo_lifts_the_bound() {
    let mut bbr = steady(State::Up);
    bbr.cycle.samples = true;
    assert!(!bbr.on_loss(&loss(25_000)), "two percent are borne");
    assert!(bbr.on_loss(&loss(1_000)));
    assert_eq!(bbr.mode.state, State::Down);
    assert!((1.2e6..1.25e6).contains(&bbr.bounds.inflight_hi), "{}", bbr.bounds.inflight_hi);
    assert_eq!(bbr.cwnd(), bbr.bounds.inflight_hi);
    bbr.on_spurious_loss();
    assert_eq!((bbr.mode.state, bbr.bounds.inflight_hi), (State::Refill, f64::INFINITY));
}

/// §5.5.11.2 of -06 "Handling a Spurious Loss Recovery": a refill phase restarts the bandwidth probe.
#[test]
fn a_probe_ended_by_spurious_losses_is_repeated_and_stops_at_real_ones() {
    let mut bbr = steady(State::Up);
    bbr.cycle.samples = true;
    assert!(bbr.on_loss(&loss(26_000)));
    bbr.on_spurious_loss();
    bbr.on_ack(&ack(200, 1_000_000));
    assert_eq!(bbr.mode.state, State::Up);
    let sent_at = Time::ZERO + Span::from_millis(200);
    bbr.on_sent(sent_at, 1_250_000, Span::from_millis(100));
    let now = sent_at + Span::from_millis(100);
    assert!(bbr.on_loss(&LossEvent { now, sent_at, ..loss(250_000) }));
    assert_eq!(bbr.mode.state, State::Down);
    assert!(bbr.bounds.inflight_hi < 1.1e6, "{}", bbr.bounds.inflight_hi);
}

/// §5.5.11.2 of -06: back to Startup or to a probe only if losses ended it.
#[test]
fn spurious_losses_do_not_restart_a_startup_or_probe_that_a_plateau_ended() {
    for (search, next) in [(State::Startup, State::Drain), (State::Up, State::Down)] {
        let mut bbr = steady(search);
        bbr.full.reached = search != State::Startup;
        bbr.on_loss(&loss(1_000));
        (2..6).for_each(|round| bbr.on_ack(&ack(100 * round, 2_000_000)));
        assert_eq!(bbr.mode.state, next);
        bbr.on_spurious_loss();
        assert_eq!((bbr.mode.state, bbr.full.reached), (next, true));
    }
}

#[test]
fn startup_continues_after_spurious_losses_even_if_they_had_ended_it() {
    for (ended, state) in [(true, State::Drain), (false, State::Startup)] {
        let mut bbr = steady(State::Startup);
        bbr.full.reached = false;
        (0..6).for_each(|_| assert!(!bbr.on_loss(&loss(5_000))));
        if ended {
            bbr.on_ack(&ack(200, 2_000_000));
        }
        assert_eq!(bbr.mode.state, state);
        bbr.on_spurious_loss();
        bbr.on_ack(&ack(201, 2_000_000));
        assert_eq!((bbr.mode.state, bbr.bounds.inflight_hi), (State::Startup, f64::INFINITY));
    }
}

#[test]
fn a_lossy_round_in_cruise_lowers_the_short_term_bounds_and_undo_lifts_them() {
    let mut bbr = steady(State::Cruise);
    assert!(!bbr.on_loss(&loss(100_000)));
    bbr.losses.bw_latest = 6e6;
    bbr.adapt_lower_bounds();
    assert_eq!((bbr.bounds.bw_lo, bbr.bounds.inflight_lo), (7e6, 1.4e6));
    bbr.on_spurious_loss();
    assert_eq!((bbr.bounds.bw_lo, bbr.bounds.inflight_lo), (f64::INFINITY, f64::INFINITY));
}

#[test]
fn five_seconds_without_a_low_sample_call_for_half_a_bdp_for_200_ms() {
    let mut bbr = steady(State::Cruise);
    let ack = |millis, in_flight| AckSample { rtt: Span::from_millis(120), ..ack(millis, in_flight) };
    bbr.on_ack(&ack(5_001, 1_000_000));
    assert_eq!(bbr.mode.state, State::ProbeRtt);
    assert_eq!(bbr.cwnd(), 500_000.0);
    bbr.on_ack(&ack(5_100, 400_000));
    bbr.on_ack(&ack(5_250, 400_000));
    assert_eq!(bbr.mode.state, State::ProbeRtt);
    bbr.on_ack(&ack(5_310, 400_000));
    assert_eq!(bbr.mode.state, State::Cruise);
    assert!(bbr.cwnd() > 1e6);
}

/// §4.3.4.4 "ProbeRTT Logic": low rate samples during ProbeRTT are ignored, and a cycle ends with Up only.
#[test]
fn probing_the_round_trip_time_does_not_lower_the_bandwidth() {
    let mut bbr = steady(State::Cruise);
    bbr.path.max_bw.advance();
    let slow = |millis, in_flight| AckSample {
        rtt: Span::from_millis(120),
        delivery_rate: Some(Rate::from_mbit(40.0)),
        ..ack(millis, in_flight)
    };
    bbr.on_ack(&slow(5_001, 1_000_000));
    for millis in [5_100, 5_250, 5_310, 5_420, 5_431, 5_560] {
        bbr.on_ack(&slow(millis, 400_000));
        assert_eq!(bbr.path.max_bw.get(), 1e7, "after {millis} ms");
    }
    assert_eq!(bbr.mode.state, State::Cruise);
    assert!(!bbr.last_ack.app_limited, "two rounds after the probe the rate is the path's again");
}

/// §4.3.1.2 "Exiting Acceleration Based on Bandwidth Plateau": the rate is compared once a round.
#[test]
fn a_high_rate_within_a_round_does_not_prolong_startup() {
    let mut bbr = steady(State::Startup);
    bbr.full.reached = false;
    for round in 1..5 {
        bbr.on_ack(&ack(100 * round, 2_000_000));
        let delivery_rate = Some(Rate::from_mbit(110.0 * round as f64));
        bbr.on_ack(&AckSample { delivery_rate, ..ack(100 * round + 50, 2_000_000) });
    }
    assert!(bbr.full.reached && !bbr.in_startup());
}

/// §4.6.2 "Pacing Rate": gain × bandwidth × 0.99, with the gains of §4.6.1 and, in Drain, of §4.3.2.
#[test]
fn every_state_is_paced_one_percent_below_its_gain() {
    let mut bbr = Bbr::new(10.0 * MSS, MSS, Time::ZERO, 1);
    let mut gains = Vec::new();
    for round in 1..45 {
        let queued = matches!(bbr.mode.state, State::Startup | State::Up);
        bbr.on_ack(&ack(100 * round, if queued { 2_000_000 } else { 1_000_000 }));
        gains.push((bbr.mode.state, (bbr.pacing_rate / 9_900.0).round() / 1_000.0));
    }
    gains.dedup();
    let expected = [
        (State::Startup, 2.77),
        (State::Drain, 0.35),
        (State::Cruise, 1.0),
        (State::Refill, 1.0),
        (State::Up, 1.25),
        (State::Down, 0.9),
    ];
    assert_eq!(gains[..6], expected);
}

/// §4.6.2 "Pacing Rate": 2.77 × InitialCwnd / SRTT, until the pipe was full or the bandwidth is higher.
#[test]
fn a_short_exchange_does_not_slow_startup_below_the_initial_window_a_round_trip() {
    let mut bbr = Bbr::new(10.0 * MSS, MSS, Time::ZERO, 1);
    let before = bbr.pacing_rate(Span::from_millis(100));
    let delivery_rate = Some(Rate::from_bits(8_000));
    bbr.on_ack(&AckSample { acked_bytes: 100, delivery_rate, app_limited: true, ..ack(100, 100) });
    assert_eq!((before, bbr.pacing_rate), (Rate::from_bits(2_216_000), 277_000.0));
}

/// §4.6.4.2 "Computing BBR.max_inflight": 2 BDPs; 2.25 and two packets in Up.
#[test]
fn up_may_have_more_in_flight_than_the_other_states() {
    let mut bbr = steady(State::Refill);
    bbr.set_cwnd(1e9);
    assert_eq!(bbr.cwnd(), 2e6);
    bbr.start_up(Time::ZERO, 1e7);
    bbr.set_cwnd(1e9);
    assert_eq!(bbr.cwnd(), 2.25e6 + 2.0 * MSS);
}

/// §4.6.4.7 "Bounding cwnd Based on Recent Congestion": the bound minus 15 % or a packet, whichever is more.
#[test]
fn cruise_leaves_headroom_below_the_long_term_bound_and_down_does_not() {
    for (state, bound, window) in
        [(State::Down, 1e6, 1e6), (State::Cruise, 1e6, 850_000.0), (State::Cruise, 6.0 * MSS, 5.0 * MSS)]
    {
        let mut bbr = steady(state);
        bbr.bounds.inflight_hi = bound;
        bbr.bound_cwnd();
        assert_eq!(bbr.cwnd(), window, "{state:?} at {bound}");
    }
}

/// §4.3.3.5 "Time Scale for Bandwidth Probing": after min(BDP in packets, 63) rounds, if those take less than 2 s.
#[test]
fn the_next_probe_comes_when_reno_would_have_found_the_bandwidth_but_after_63_rounds_at_most() {
    for (rtt, rounds) in [(1, 10), (4, 40), (10, 63)] {
        let mut bbr = steady(State::Cruise);
        let cruises = |round: &u64| {
            bbr.on_ack(&AckSample { rtt: Span::from_millis(rtt), ..ack(rtt * round, 1_000) });
            bbr.mode.state == State::Cruise
        };
        assert_eq!((1..).take_while(cruises).count() + 1, rounds, "BDP of {} packets", 10 * rtt);
    }
}

/// §4.3.3.4 "ProbeBW_UP": in each successive round the long-term bound grows by 1, 2, 4, 8 packets.
#[test]
fn up_raises_the_long_term_bound_twice_as_fast_each_round() {
    let mut bbr = steady(State::Refill);
    (bbr.cwnd, bbr.bounds.inflight_hi) = (1.5e6, 1.5e6);
    bbr.start_up(Time::ZERO, 1e7);
    let raised = |round: u64| {
        let (before, window) = (bbr.bounds.inflight_hi, bbr.cwnd() as u64);
        // A higher rate delivers more, or Up would end.
        let delivery_rate = Some(Rate::from_mbit(100.0 * round as f64));
        bbr.on_ack(&AckSample { acked_bytes: window, delivery_rate, ..ack(100 * round, window) });
        (bbr.bounds.inflight_hi - before) / MSS
    };
    assert_eq!([1, 2, 3, 4].map(raised), [1.0, 2.0, 4.0, 8.0]);
}

/// §4.3.1.3 "Exiting Startup Based on Packet Loss": six losses in a round, together more than 2 % of 1.25 Mbyte.
#[test]
fn a_round_of_many_losses_ends_startup_and_bounds_the_volume_by_the_bdp() {
    for (losses, bytes, state, bound) in [
        (5, 20_000, State::Startup, f64::INFINITY),
        (6, 4_000, State::Startup, f64::INFINITY),
        (6, 5_000, State::Drain, 1e6),
    ] {
        let mut bbr = steady(State::Startup);
        bbr.full.reached = false;
        (0..losses).for_each(|_| assert!(!bbr.on_loss(&loss(bytes))));
        bbr.on_ack(&ack(200, 2_000_000));
        assert_eq!((bbr.mode.state, bbr.bounds.inflight_hi), (state, bound), "{losses} of {bytes} bytes");
    }
}

/// §4.5.7.2 "BBR.min_rtt Min Filter", §4.3.4 "ProbeRTT": after 10 s, the least since the last probe.
#[test]
fn the_least_round_trip_time_is_forgotten_after_ten_seconds() {
    let mut least = MinRtt::new(Time::ZERO);
    for (second, rtt, expected) in [(0, 100, 100), (6, 120, 100), (10, 130, 100), (11, 130, 120)] {
        least.update(Time::ZERO + Span::from_secs(second), Span::from_millis(rtt));
        assert_eq!(least.get(), Some(Span::from_millis(expected)), "after {second} s");
    }
}

/// §4.5.9 "BBR.extra_acked": the windowed maximum over one round in Startup, over ten after it.
#[test]
fn acks_ahead_of_the_bandwidth_are_remembered_for_a_round_in_startup_and_for_ten_after_it() {
    for (state, rounds) in [(State::Startup, 1), (State::Cruise, 10)] {
        let mut bbr = steady(state);
        bbr.full.reached = state != State::Startup;
        bbr.on_ack(&AckSample { acked_bytes: 300_000, ..ack(100, 300_000) });
        let remembers = |round: &u64| {
            bbr.on_ack(&ack(100 * round, 1_000));
            bbr.path.aggregation.most() == 300_000.0
        };
        assert_eq!((2..).take_while(remembers).count() + 1, rounds, "{state:?}");
    }
}
