//! Sensing in an overlay of fifty relays [S3, S7]: `anabranch sim run overlay` runs larger ones.

use anabranch_sim::overlay::{OverlayConfig, OverlayRun};

#[test]
fn fifty_relays_keep_their_budget_notice_what_fails_and_know_the_rest_about() {
    let run = OverlayRun::new(OverlayConfig::of(50), 1);
    let metric = |name: &str| run.metrics[name];
    assert!(metric("sensing_kbit_s.max") <= 20.0, "{:?}", run.metrics);
    assert_eq!(metric("links_measured"), 50.0 * 8.0);
    assert_eq!(metric("failures_known"), metric("failures"));
    assert!(metric("known_s.max") < 5.0, "{:?}", run.metrics);
    assert!(metric("estimate_off.p50") < 0.35, "{:?}", run.metrics);
    assert!(metric("way_rtt_over_best.p50") < 1.25, "{:?}", run.metrics);
    assert!(metric("controller_bytes_a_relay") < 1_000.0, "{:?}", run.metrics);
    assert_eq!(
        run.metrics,
        OverlayRun::new(OverlayConfig::of(50), 1).metrics,
        "the same seed, the same figures"
    );
    let (pairs, looked_at) = run.choose_ways();
    assert!(pairs == 100 && looked_at > 0);
}
