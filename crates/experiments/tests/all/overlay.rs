//! Sensing in an overlay of fifty relays [S3, S7]: `anabranch sim run overlay` runs larger ones.

use std::collections::BTreeSet;

use anabranch_experiments::overlay::{OverlayConfig, OverlayRun, Shaper};
use anabranch_overlay::sense::{CAR, SenseMessage, Sensor, SensorConfig, Train};
use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

#[test]
fn fifty_relays_keep_their_budget_notice_what_fails_and_know_the_rest_about() {
    let run = OverlayRun::new(OverlayConfig::of(50), 1);
    let metric = |name: &str| run.metrics[name];
    assert!(metric("sensing_kbit_s.max") <= 20.0, "{:?}", run.metrics);
    assert_eq!(metric("links_measured"), 50.0 * 8.0);
    assert_eq!(metric("failures_known"), metric("failures"));
    assert!(metric("known_s.max") < 5.0, "{:?}", run.metrics);
    assert!(metric("estimate_off.p50") < 0.35, "{:?}", run.metrics);
    assert!(metric("capacity_known") > 80.0 && metric("capacity_off.p90") < 0.1, "{:?}", run.metrics);
    assert!(metric("available_known") > 30.0 && metric("available_off.p50") < 0.2, "{:?}", run.metrics);
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

/// The bottleneck between two sensors.
struct Way {
    rate: f64,
    bucket: u32,
    others: f64,
}

impl Way {
    /// The report on a train that is sent at `now`.
    fn pass(&self, now: Time, train: &Train, (from, far): (&PublicKey, &mut Sensor)) -> SenseMessage {
        let mut shaper =
            Shaper::new(now, Rate::from_mbit(self.rate), self.bucket, Rate::from_mbit(self.others));
        for index in 0..train.packets {
            let left = now + train.offset(index);
            far.handle_message(shaper.pass(left), from, &SenseMessage::Car(train.car(index, left)));
        }
        let end = now + Span::from_secs(1);
        far.handle_message(end, from, &SenseMessage::End(train.number)).expect("within the budget")
    }

    /// Sends this many trains, each as soon as the budget allows. Returns capacity and available capacity in Mbit/s,
    /// and the trains' rate in bit/s.
    fn after(&self, trains: usize) -> ([f64; 2], f64) {
        let (near_key, far_key) = (PublicKey::from_bytes([1; 32]), PublicKey::from_bytes([2; 32]));
        let config = SensorConfig::default();
        let [mut near, mut far] = [[1; 32], [2; 32]].map(|seed| Sensor::new(config, seed, Time::ZERO));
        near.measure(Time::ZERO, &[far_key].into(), &BTreeSet::new());
        let (mut now, mut packets, mut sent) = (Time::ZERO, 0, 0);
        while sent < trains {
            now += Span::from_millis(50);
            near.handle_timeout(now);
            while let Some((_, probe)) = near.poll_transmit(now) {
                let answer = far.handle_message(now, &near_key, &probe).expect("an answer");
                near.handle_message(now + Span::from_millis(30), &far_key, &answer);
            }
            if let Some(train) = near.poll_train(now) {
                (packets, sent) = (packets + u64::from(train.packets), sent + 1);
                let seen = self.pass(now, &train, (&near_key, &mut far));
                near.handle_message(now + Span::from_millis(40), &far_key, &seen);
            }
        }
        let link = near.links(now).remove(0);
        let rate = (packets * CAR * 8) as f64 / now.since(Time::ZERO).as_secs_f64();
        ([link.capacity, link.available].map(|kbits| f64::from(kbits) / 1e3), rate)
    }
}

fn is_near(value: f64, wanted: f64, part: f64) -> bool {
    (value / wanted - 1.0).abs() < part
}

#[test]
fn a_train_tells_what_a_link_carries_and_the_next_one_what_others_leave_of_it() {
    for (rate, others) in [(2.0, 0.0), (20.0, 5.0), (100.0, 70.0), (500.0, 100.0)] {
        let ([capacity, left], _) = Way { rate, bucket: 3_000, others }.after(2);
        assert!(
            is_near(capacity, rate, 0.1) && is_near(left, rate - others, 0.2),
            "{capacity} {left} {rate} {others}"
        );
    }
}

#[test]
fn a_shaper_that_lets_a_bucketful_through_is_seen_through() {
    for bucket in [10_000, 32_000, 64_000, 120_000, 150_000] {
        let ([capacity, left], _) = Way { rate: 20.0, bucket, others: 8.0 }.after(2);
        assert!(
            is_near(capacity, 20.0, 0.1) && is_near(left, 12.0, 0.2),
            "{capacity} {left} behind {bucket} bytes"
        );
    }
}

#[test]
fn trains_stay_within_their_share_of_the_budget() {
    let (_, rate) = Way { rate: 20.0, bucket: 3_000, others: 0.0 }.after(5);
    assert!(rate < 4_000.0, "{rate} bit/s");
}
