//! Single steps of BBR.

use super::*;
use crate::sample::LossEvent;

const MSS: f64 = 1_000.0;

/// BBR at 10 Mbyte/s and 100 ms, with a full window sent a round trip ago.
fn steady(state: State) -> Bbr {
    let mut bbr = Bbr::new(10.0 * MSS, MSS, Time::ZERO, 1);
    bbr.max_bw.update(1e7);
    bbr.bw = 1e7;
    bbr.min_rtt.update(Time::ZERO, Span::from_millis(100));
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

#[test]
fn two_percent_lost_of_a_probe_bound_the_volume_where_they_were_lost_and_undo_unbinds_it() {
    let mut bbr = steady(State::Up);
    bbr.cycle.samples = true;
    assert!(!bbr.on_loss(&loss(25_000)), "two percent are borne");
    assert!(bbr.on_loss(&loss(1_000)));
    assert_eq!(bbr.state, State::Down);
    assert!((1.2e6..1.25e6).contains(&bbr.inflight_hi), "{}", bbr.inflight_hi);
    assert_eq!(bbr.cwnd(), bbr.inflight_hi);
    bbr.on_spurious_loss();
    assert_eq!((bbr.state, bbr.inflight_hi), (State::Up, f64::INFINITY));
}

#[test]
fn a_lossy_round_in_cruise_lowers_the_short_term_bounds_and_undo_lifts_them() {
    let mut bbr = steady(State::Cruise);
    assert!(!bbr.on_loss(&loss(100_000)));
    bbr.losses.bw_latest = 6e6;
    bbr.adapt_lower_bounds();
    assert_eq!((bbr.bw_lo, bbr.inflight_lo), (7e6, 1.4e6));
    bbr.on_spurious_loss();
    assert_eq!((bbr.bw_lo, bbr.inflight_lo), (f64::INFINITY, f64::INFINITY));
}

#[test]
fn five_seconds_without_a_low_sample_call_for_half_a_bdp_for_200_ms() {
    let mut bbr = steady(State::Cruise);
    let ack = |millis: u64, in_flight: u64| AckSample {
        now: Time::ZERO + Span::from_millis(millis),
        acked_bytes: 1_000,
        rtt: Span::from_millis(120),
        in_flight,
        delivery_rate: Some(Rate::from_mbit(80.0)),
        round_start: false,
        app_limited: false,
        window_limited: true,
        ce_marks: 0,
    };
    bbr.on_ack(&ack(5_001, 1_000_000));
    assert_eq!(bbr.state, State::ProbeRtt);
    assert_eq!(bbr.cwnd(), 500_000.0);
    bbr.on_ack(&ack(5_100, 400_000));
    bbr.on_ack(&ack(5_250, 400_000));
    assert_eq!(bbr.state, State::ProbeRtt);
    bbr.on_ack(&ack(5_310, 400_000));
    assert_eq!(bbr.state, State::Cruise);
    assert!(bbr.cwnd() > 1e6);
}
