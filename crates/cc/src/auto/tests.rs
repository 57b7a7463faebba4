use super::*;

/// The advice on an ack of a whole window of so many bytes, after a round trip that takes so long.
fn round(auto: &mut Auto, now: &mut Time, millis: u64, bytes: u32) -> Advice {
    let rtt = Span::from_millis(millis);
    *now += rtt;
    let acked_bytes = u64::from(bytes);
    let sample = AckSample {
        now: *now,
        acked_bytes,
        rtt,
        in_flight: acked_bytes,
        delivery_rate: None,
        round_start: true,
        app_limited: false,
        window_limited: true,
        ce_marks: 0,
    };
    auto.on_ack(&sample, &View { window: f64::from(bytes), mss: 1_000.0, slow_start: false })
}

/// The advice in the next round trips after the route has become longer, as if by a queue that no cut shortens.
fn advice_after(millis: u64, bytes: u32, rounds: usize) -> Vec<Advice> {
    let (mut auto, mut now) = (Auto::new(Time::ZERO), Time::ZERO);
    round(&mut auto, &mut now, 40, bytes);
    (0..rounds).map(|_| round(&mut auto, &mut now, millis, bytes)).collect()
}

#[test]
fn a_window_is_not_held_for_ever_because_of_a_delay_just_above_the_aim() {
    let advice = advice_after(68, 100_000, 200);
    assert!(advice.contains(&Advice::Hold) && advice.contains(&Advice::TakeBack), "{advice:?}");
    assert_eq!(advice.last(), Some(&Advice::Probe(CATCH_UP)));
}

/// At four packets in a round trip, two take longer than the queue that a test cuts.
#[test]
fn a_small_window_is_not_cut_again_and_again_by_tests_that_show_nothing() {
    let advice = advice_after(1_000, 4_000, 20);
    let cuts = advice.iter().filter(|advice| matches!(advice, Advice::Shrink(_))).count();
    assert!(cuts == 1 && advice.contains(&Advice::TakeBack), "{advice:?}");
}
