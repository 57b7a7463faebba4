use super::*;

const RTT: Span = Span::from_millis(50);

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

/// Acknowledgements return over the same path as before.
fn returns() -> ReturnPaths {
    let mut returns = ReturnPaths::new(PathId::FIRST, RTT);
    returns.sample(at(0), PathId::FIRST, RTT, Span::ZERO);
    returns
}

fn answer(millis: u64, acked_bytes: u64, age: u64) -> Answer {
    Answer {
        now: at(millis),
        smoothed: RTT,
        acked_bytes,
        packets: 1,
        round_start: millis.is_multiple_of(50),
        window: Some(50_000),
        oldest: Some(at(millis.saturating_sub(age))),
        via: PathId::FIRST,
        blocks: false,
        is_bunched: false,
    }
}

/// A path that delivered a packet every 2 ms for a second.
fn usual() -> Trouble {
    let mut trouble = Trouble::default();
    for millis in (0..1000).step_by(2) {
        assert_eq!(trouble.on_ack(&answer(millis, 1400, 50)), None);
    }
    trouble
}

#[test]
fn a_rate_cut_to_a_hundredth_is_noticed_within_four_round_trips() {
    let mut trouble = usual();
    let found = (1000..2000)
        .step_by(40)
        .find(|millis| trouble.on_ack(&answer(*millis, 1400, millis - 950)).is_some());
    assert!(found.is_some_and(|millis| millis <= 1200), "{found:?}");
}

#[test]
fn a_stall_is_told_beforehand_and_put_off_by_every_answer() {
    let mut trouble = usual();
    let stall_at =
        |trouble: &Trouble, oldest| trouble.stall_at((at(oldest), 30_000), Span::from_millis(5)).unwrap();
    let first = stall_at(&trouble, 990);
    // Not before the oldest packet is old, and not much later: recent delivery delays it by four times the
    // usual time.
    assert!((at(990 + 2 * 50 + 20 + 5)..at(1_160)).contains(&first), "{first:?}");
    trouble.on_ack(&answer(999, 14_000, 10));
    assert!(stall_at(&trouble, 990) > first);
    assert_eq!(Trouble::default().stall_at((at(0), 30_000), Span::ZERO), None, "nothing is usual yet");
    let few = trouble.stall_at((at(990), 1_400), Span::ZERO);
    assert_eq!(few, None, "a packet that is late is no stall");
}

/// The window after a hold that ends with answers of `millis`, for a path that had 50 kB at 50 ms.
fn window_after(millis: u64) -> u64 {
    let mut trouble = usual();
    trouble.hold(at(1_000), Fault::Stalls);
    let end = 1_000 + 60_000;
    assert!(trouble.is_well(at(end), Some(Span::from_millis(millis)), Span::ZERO));
    trouble.window_before(&returns()).unwrap()
}

#[test]
fn the_window_to_be_found_again_is_smaller_where_the_round_trip_is_much_shorter() {
    assert_eq!(
        (window_after(50), window_after(10)),
        (50_000, 50_000),
        "a queue may have made the difference"
    );
    assert_eq!(window_after(5), 5_000);
}

#[test]
fn answers_that_came_together_put_off_only_the_verdict() {
    let (mut apart, mut together) = (usual(), usual());
    for millis in (1000..1200).step_by(50) {
        let answer = answer(millis, 35_000, 50);
        assert_eq!(apart.on_ack(&answer), None);
        assert_eq!(together.on_ack(&Answer { is_bunched: true, ..answer }), None);
    }
    assert_eq!(apart.usual_rate, together.usual_rate, "delivery is measured all the same");
    let late = answer(1_400, 1_400, 250);
    assert_eq!(together.on_ack(&Answer { is_bunched: true, ..late }), None);
    assert_eq!(together.on_ack(&late), Some(Fault::Stalls));
}

#[test]
fn in_the_first_slow_start_the_latest_delivery_is_the_usual_one() {
    let mut trouble = Trouble::default();
    for (round, bytes) in [7_000, 14_000, 28_000, 56_000, 112_000].into_iter().enumerate() {
        let answer = Answer { window: None, ..answer(round as u64 * 50, bytes, 40) };
        assert_eq!(trouble.on_ack(&answer), None);
    }
    let cut = Answer { window: None, ..answer(400, 10_000, 200) };
    assert_eq!(trouble.on_ack(&cut), Some(Fault::Stalls), "a tenth of it is a stall");
}

#[test]
fn a_queue_that_fills_is_no_stall() {
    let mut trouble = usual();
    let stalled = (1000..2000).step_by(2).any(|millis| trouble.on_ack(&answer(millis, 1400, 400)).is_some());
    assert!(!stalled);
}

#[test]
fn a_queue_that_fills_is_a_stall_when_the_other_paths_wait_for_it() {
    let mut trouble = usual();
    let blocking = |millis| Answer { blocks: true, ..answer(millis, 1400, millis - 950) };
    let found = (1000..2000).step_by(2).find(|millis| trouble.on_ack(&blocking(*millis)).is_some());
    assert!(found.is_some_and(|millis| (1070..1150).contains(&millis)), "{found:?}");
}

#[test]
fn a_window_that_the_trouble_itself_found_is_forgotten() {
    for (periods, known) in [(2, false), (40, true)] {
        let mut trouble = Trouble::default();
        for millis in (0..1000).step_by(2) {
            trouble.on_ack(&Answer { window: None, ..answer(millis, 1400, 50) });
        }
        for millis in (1000..1000 + 50 * periods).step_by(2) {
            trouble.on_ack(&answer(millis, 1400, 50));
        }
        trouble.hold(at(1000 + 50 * periods), Fault::Stalls);
        assert_eq!(trouble.window_before(&returns()).is_some(), known, "{periods}");
    }
}

#[test]
fn a_window_found_among_many_losses_is_none_however_long_ago() {
    let mut trouble = Trouble::default();
    for millis in (0..1000).step_by(2) {
        trouble.on_ack(&Answer { window: None, ..answer(millis, 1400, 50) });
    }
    // With so few packets per round trip, judging takes long.
    for millis in (1000..2000).step_by(25) {
        trouble.on_lost(at(millis), 1, at(millis));
        trouble.on_ack(&answer(millis, 1400, 50));
    }
    trouble.hold(at(2000), Fault::Stalls);
    assert_eq!(trouble.window_before(&returns()), None);
}

#[test]
fn over_a_shorter_way_back_there_is_less_to_find_again() {
    let mut returns = returns();
    returns.sample(at(0), PathId(2), RTT * 5, Span::ZERO);
    let mut trouble = Trouble::default();
    for millis in (0..1000).step_by(2) {
        assert_eq!(trouble.on_ack(&Answer { via: PathId(2), ..answer(millis, 1400, 50) }), None);
    }
    assert_eq!(trouble.window_before(&returns), Some(50_000));
    returns.sample(at(1000), PathId::FIRST, RTT, Span::ZERO);
    assert_eq!(trouble.window_before(&returns), Some(10_000));
}

#[test]
fn loss_of_three_in_ten_is_noticed_and_one_in_twenty_is_not() {
    for (every, expected) in [(3, true), (20, false)] {
        let mut trouble = usual();
        let mut found = false;
        for millis in (1000_u64..3000).step_by(10) {
            if (millis / 10).is_multiple_of(every) {
                trouble.on_lost(at(millis), 1, at(millis));
            } else {
                found |= trouble.on_ack(&answer(millis, 1400, 50)) == Some(Fault::Loses);
            }
        }
        assert_eq!(found, expected, "one in {every}");
    }
}

#[test]
fn a_burst_of_losses_in_one_round_trip_is_no_trouble() {
    let mut trouble = usual();
    for millis in (1000..1400).step_by(2) {
        if millis < 1050 {
            trouble.on_lost(at(millis), 4, at(millis));
        }
        assert_eq!(trouble.on_ack(&answer(millis, 1400, 50)), None, "{millis}");
    }
}

/// Handles an answer in the usual time; a requested train arrives.
fn answers(trouble: &mut Trouble, now: Time) -> bool {
    if trouble.is_on_trial() {
        for _ in 0..10 {
            trouble.on_probe_sent(1200);
            trouble.on_arrived(now, now);
        }
    }
    trouble.is_well(now, Some(RTT), Span::ZERO)
}

#[test]
fn a_path_that_answers_but_carries_a_hundredth_is_held_until_that_is_how_it_is() {
    let mut trouble = usual();
    trouble.hold(at(1000), Fault::Stalls);
    let well = (1..2000).find(|k| {
        let now = at(1000 + 10 * k);
        if trouble.is_on_trial() && k % 20 == 0 {
            trouble.on_probe_sent(1200);
            trouble.on_arrived(now, now);
        }
        trouble.is_well(now, Some(RTT), Span::ZERO)
    });
    assert!(well.is_some_and(|k| (1000..1010).contains(&k)), "{well:?}");
    let rate = trouble.found_rate().expect("the trials told a rate").as_bits();
    assert!((20_000..200_000).contains(&rate), "{rate}");
}

#[test]
fn a_first_silence_ends_with_the_first_answer_in_time_and_a_late_answer_is_not_enough() {
    let mut trouble = usual();
    trouble.on_silence(at(1000), 2);
    assert!(trouble.is_well(at(1100), Some(RTT), Span::ZERO));
    let mut trouble = usual();
    trouble.on_silence(at(1000), 2);
    assert!(!trouble.is_well(at(1400), Some(RTT * 8), Span::ZERO));
    assert!(trouble.is_held());
    let well = (1..20).find(|k| answers(&mut trouble, at(1400 + 10 * k)));
    assert_eq!(well, Some(9));
}

#[test]
fn a_path_that_was_in_trouble_and_loses_nothing_more_finds_its_window_again() {
    let mut trouble = usual();
    assert_eq!(trouble.take_recovery(at(1000), (10_000, RTT), &returns()), None);
    trouble.hold(at(1000), Fault::Stalls);
    assert!((0..20).any(|k| answers(&mut trouble, at(1000 + 10 * k))));
    trouble.on_lost(at(1250), 1, at(1250));
    let mut found = Vec::new();
    for millis in (1300..2000).step_by(10) {
        trouble.on_ack(&answer(millis, 1400, 50));
        found.extend(trouble.take_recovery(at(millis), (10_000, RTT), &returns()));
    }
    assert_eq!(found.len(), 1);
    assert!(found[0] > 40_000, "{found:?}");
}

#[test]
fn an_answer_over_a_longer_path_is_not_late() {
    let mut trouble = usual();
    trouble.on_silence(at(1000), 2);
    assert!(trouble.is_well(at(1400), Some(RTT * 8), RTT * 6));
}

#[test]
fn one_lost_packet_after_the_other_does_not_make_an_episode() {
    let mut trouble = usual();
    for k in 0..20 {
        trouble.on_silence(at(1000 + 200 * k), 1);
        assert!(trouble.is_well(at(1100 + 200 * k), Some(RTT), Span::ZERO));
    }
}

#[test]
fn a_path_that_flaps_waits_longer_each_time() {
    let mut trouble = usual();
    let mut waits = Vec::new();
    for flap in 0..6 {
        let up = 1000 + flap * 2000;
        trouble.on_silence(at(up - 200), 2);
        let well = (0..2000).step_by(10).find(|wait| answers(&mut trouble, at(up + wait)));
        waits.push(well.expect("well again within two seconds"));
    }
    assert!(waits[0] == 0 && waits.is_sorted() && waits[5] >= 900, "{waits:?}");
}

#[test]
fn another_round_trip_time_counts_as_usual_after_a_while() {
    let mut trouble = usual();
    trouble.on_silence(at(1000), 2);
    let well = (0..200).find(|k| trouble.is_well(at(2000 + 100 * k), Some(RTT * 20), Span::ZERO));
    assert!(well.is_some_and(|k| (99..110).contains(&k)), "{well:?}");
}

#[test]
fn a_bloated_path_comes_back_with_a_small_window_and_finds_the_old_one_when_no_queue_is_left() {
    let mut trouble = usual();
    // 50 kB was its window, 14 kB fill it.
    trouble.hold_bloated(at(1000), (RTT, Rate::from_bytes_in(280_000, Span::from_secs(1))));
    assert_eq!(trouble.fault(), Some(Fault::Bloated));
    assert!(!trouble.is_well(at(1010), Some(RTT * 4), Span::ZERO), "it still drains");
    assert!((2..40).any(|k| answers(&mut trouble, at(1000 + 10 * k))));
    assert_eq!(trouble.window_to_return_to(&returns()), Some(28_000));
    let mut found = Vec::new();
    for millis in (1500..40_000).step_by(10) {
        let smoothed = if millis < 30_000 { RTT * 3 / 2 } else { RTT };
        trouble.on_ack(&Answer { smoothed, ..answer(millis, 1400, 50) });
        let window = trouble.take_recovery(at(millis), (10_000, smoothed), &returns());
        found.extend(window.map(|window| (millis, window > 28_000)));
    }
    assert_eq!(found, [(30_000, true)]);
}

#[test]
fn another_fault_ends_what_a_queue_has_taught() {
    let mut trouble = usual();
    trouble.hold_bloated(at(1000), (RTT, Rate::from_bytes_in(280_000, Span::from_secs(1))));
    assert!((0..40).any(|k| answers(&mut trouble, at(1000 + 10 * k))));
    trouble.hold(at(2000), Fault::Stalls);
    assert!(trouble.window_to_return_to(&returns()).is_none_or(|window| window > 28_000));
}
