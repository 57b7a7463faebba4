//! Packets on a link, to the nanosecond where nothing is random.

use std::sync::Arc;

use anabranch_link::{
    Arrival, CodelConfig, DropReason, Ecn, Jitter, JitterShape, Limit, Link, LinkConfig, LossModel,
    PlainLink, QueueModel, RandomDrop, RateModel, Reorder, Trace, bdp_bytes,
};
use anabranch_wire::{Rate, Span, Time};

fn ms(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn us(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

fn mbit(rate: f64) -> RateModel {
    RateModel::Fixed(Rate::from_mbit(rate))
}

/// 8 Mbit/s, so a packet of 1,000 bytes takes a millisecond, and 10 ms of delay.
fn one_a_millisecond() -> LinkConfig {
    LinkConfig { rate: mbit(8.0), delay: Span::from_millis(10), ..LinkConfig::default() }
}

/// Everything that comes out, driven only by the link's own deadlines.
fn drain<T: Clone>(link: &mut Link<T>) -> Vec<Arrival<T>> {
    let mut out = Vec::new();
    while let Some(at) = link.next_arrival() {
        out.extend(link.pop(at).inspect(|packet| assert_eq!(packet.at, at)));
    }
    out
}

fn items(arrivals: &[Arrival<u32>]) -> Vec<u32> {
    arrivals.iter().map(|packet| packet.item).collect()
}

/// Offers `count` packets of 1,000 bytes at `now`, numbered from zero; returns how many were taken.
fn offer(link: &mut Link<u32>, now: Time, count: u32) -> usize {
    (0..count).filter(|number| link.enqueue(now, 1000, *number, Ecn::NotCapable).is_ok()).count()
}

/// Offers a packet of 1,000 bytes every `gap`, and takes out everything when it arrives.
fn stream(link: &mut Link<u32>, gap: Span, count: u32, ecn: Ecn) -> Vec<Arrival<u32>> {
    let (mut out, mut now) = (Vec::new(), Time::ZERO);
    for number in 0..count {
        while let Some(at) = link.next_arrival().filter(|at| *at <= now) {
            out.extend(link.pop(at));
        }
        let _ = link.enqueue(now, 1000, number, ecn);
        now += gap;
    }
    out.extend(drain(link));
    out
}

#[test]
fn a_link_is_busy_while_a_packet_is_being_sent_even_if_it_is_lost() {
    let lossy = LinkConfig { loss: LossModel::Bernoulli(1.0), ..one_a_millisecond() };
    for config in [one_a_millisecond(), lossy] {
        let mut link = Link::new(config);
        assert_eq!(offer(&mut link, ms(5), 3), 3);
        for (at, busy) in [(5_000, 0), (6_500, 1_500), (8_000, 3_000), (20_000, 3_000)] {
            assert_eq!(link.busy(us(at)), Span::from_micros(busy), "{at}");
        }
        assert_eq!(offer(&mut link, ms(20), 1), 1);
        assert_eq!(link.busy(us(20_500)), Span::from_micros(3_500));
        // Half of it is left, which now takes twice as long.
        link.set_rate(us(20_500), mbit(4.0));
        for (at, busy) in [(21_000, 4_000), (21_500, 4_500), (90_000, 4_500)] {
            assert_eq!(link.busy(us(at)), Span::from_micros(busy), "{at}");
        }
    }
    let mut plain = PlainLink::new(one_a_millisecond()).unwrap();
    let mut pass = |at, until| {
        plain.pass(ms(at), 1000).unwrap();
        plain.busy(us(until))
    };
    assert_eq!((pass(5, 5_500), pass(5, 6_500)), (Span::from_micros(500), Span::from_micros(1_500)));
    assert_eq!((pass(5, 19_000), pass(20, 20_500)), (Span::from_millis(3), Span::from_micros(3_500)));
}

#[test]
fn packets_larger_than_the_mtu_vanish() {
    let mut link = Link::new(LinkConfig { mtu: Some(1000), ..one_a_millisecond() });
    assert_eq!(link.enqueue(ms(0), 1001, 1, Ecn::NotCapable), Err(DropReason::TooLarge));
    assert_eq!(link.enqueue(ms(0), 1000, 2, Ecn::NotCapable), Ok(()));
    link.set_mtu(None);
    assert_eq!(link.enqueue(ms(0), 1001, 3, Ecn::NotCapable), Ok(()));
    assert_eq!((link.stats().dropped.too_large, link.stats().dropped.total()), (1, 1));
}

#[test]
fn packets_leave_one_after_the_other_and_arrive_a_delay_later() {
    let mut link = Link::new(one_a_millisecond());
    offer(&mut link, ms(5), 3);
    assert_eq!(link.next_arrival(), Some(ms(16)));
    assert_eq!(link.pop(us(15_999)), None);
    let times: Vec<_> = drain(&mut link).iter().map(|packet| packet.at).collect();
    assert_eq!(times, [ms(16), ms(17), ms(18)]);
    assert_eq!(link.next_arrival(), None);
}

#[test]
fn a_plain_link_costs_one_wake_up_a_packet() {
    let mut link = Link::new(one_a_millisecond());
    offer(&mut link, ms(0), 100);
    let mut wake_ups = 0;
    while let Some(at) = link.next_arrival() {
        assert!(link.pop(at).is_some());
        wake_ups += 1;
    }
    assert_eq!(wake_ups, 100);
}

#[test]
fn a_perfect_link_delivers_a_packet_at_once() {
    let mut link = Link::new(LinkConfig::default());
    offer(&mut link, ms(5), 2);
    let arrived = drain(&mut link);
    assert!(arrived.iter().all(|packet| packet.at == ms(5) && !packet.ce && !packet.corrupt));
    assert_eq!(items(&arrived), [0, 1]);
}

#[test]
fn overhead_takes_time_on_the_wire_and_room_in_the_queue() {
    let queue = QueueModel { limit: Limit::Bytes(2_100), ..QueueModel::default() };
    let mut link = Link::new(LinkConfig { overhead: 100, queue, ..one_a_millisecond() });
    assert_eq!(offer(&mut link, ms(0), 2), 1);
    let arrived = drain(&mut link);
    assert_eq!((arrived[0].at, arrived[0].size), (us(11_100), 1000));
}

#[test]
fn a_late_caller_gets_the_same_times_as_an_early_one() {
    let mut late = Link::new(one_a_millisecond());
    offer(&mut late, ms(0), 50);
    let mut early = late.clone();
    let prompt = drain(&mut early);
    let at_once: Vec<_> = std::iter::from_fn(|| late.pop(ms(1_000))).collect();
    assert_eq!(prompt, at_once);
}

#[test]
fn a_full_queue_accepts_no_packet_until_one_has_left() {
    let queue = QueueModel { limit: Limit::Packets(3), ..QueueModel::default() };
    let mut link = Link::new(LinkConfig { queue, ..one_a_millisecond() });
    assert_eq!(offer(&mut link, ms(0), 10), 3);
    assert_eq!(link.enqueue(us(999), 1000, 10, Ecn::NotCapable), Err(DropReason::QueueFull));
    assert_eq!(link.enqueue(ms(1), 1000, 11, Ecn::NotCapable), Ok(()));
    assert_eq!(items(&drain(&mut link)), [0, 1, 2, 11]);
    let stats = link.stats();
    assert_eq!((stats.offered.packets, stats.delivered.packets, stats.dropped.queue_full), (12, 4, 8));
    assert_eq!((stats.offered.bytes, stats.delivered.bytes), (12_000, 4_000));
    assert_eq!((stats.max_queue_packets, stats.max_queue_bytes), (3, 3_000));
    assert_eq!((stats.waits, stats.wait_total), (4, Span::from_millis(5)));
}

#[test]
fn a_limit_in_bytes_counts_the_bytes_still_in_the_queue() {
    let mut link = Link::new(LinkConfig::fixed(Rate::from_mbit(8.0), Span::ZERO, 2_500));
    assert_eq!(offer(&mut link, ms(0), 3), 2);
    assert_eq!(link.enqueue(ms(0), 500, 7, Ecn::NotCapable), Ok(()));
    assert_eq!(link.backlog(ms(0)), (3, 2_500));
    assert_eq!(link.backlog(ms(2)), (1, 500));
}

#[test]
fn the_last_places_drop_at_random_and_the_others_never() {
    let random_drop = Some(RandomDrop { places: 5, probability: 0.5 });
    let queue = QueueModel { limit: Limit::Packets(10), random_drop, ..QueueModel::default() };
    let drops = |seed| {
        let mut link = Link::new(LinkConfig { queue, seed, ..one_a_millisecond() });
        assert_eq!(offer(&mut link, ms(0), 5), 5);
        offer(&mut link, ms(0), 5);
        assert_eq!(link.stats().dropped.queue_full, 0);
        link.stats().dropped.random_drop
    };
    let total: u64 = (0..200).map(drops).sum();
    assert!((400..600).contains(&total), "{total} of about 500");
}

#[test]
fn a_packet_that_finds_a_queue_above_the_threshold_is_marked_if_it_can_be() {
    let queue = QueueModel { mark_above: Some(Limit::Packets(2)), ..QueueModel::default() };
    let mut link = Link::new(LinkConfig { queue, ..one_a_millisecond() });
    for number in 0..5 {
        let ecn = if number == 3 { Ecn::NotCapable } else { Ecn::Capable };
        link.enqueue(ms(0), 1000, number, ecn).unwrap();
    }
    link.enqueue(ms(4), 1000, 5, Ecn::Marked).unwrap();
    let marks: Vec<_> = drain(&mut link).iter().map(|packet| packet.ce).collect();
    assert_eq!(marks, [false, false, false, false, true, true]);
    assert_eq!(link.stats().marked, 1);
}

#[test]
fn random_loss_takes_its_share_and_its_time_on_the_wire() {
    let mut link = Link::new(LinkConfig { loss: LossModel::Bernoulli(0.1), ..one_a_millisecond() });
    let arrived = stream(&mut link, Span::from_millis(1), 20_000, Ecn::NotCapable);
    let lost = link.stats().dropped.loss;
    assert_eq!(arrived.len() as u64 + lost, 20_000);
    assert!((1_800..2_200).contains(&lost), "{lost} of about 2,000");
    assert!(arrived.iter().all(|packet| packet.at == ms(u64::from(packet.item) + 11)));
    link.set_loss(ms(100_000), LossModel::None);
    offer(&mut link, ms(100_000), 500);
    assert_eq!(drain(&mut link).len(), 500);
}

#[test]
fn packets_behind_a_lost_one_arrive_no_earlier_than_otherwise() {
    let mut link = Link::new(LinkConfig { loss: LossModel::Bernoulli(1.0), ..one_a_millisecond() });
    offer(&mut link, ms(0), 2);
    assert_eq!(link.next_arrival(), Some(ms(11)));
    link.set_loss(us(500), LossModel::None);
    link.set_delay(us(1_500), Span::from_millis(2));
    let arrived = drain(&mut link);
    assert_eq!((arrived.len(), arrived[0].at, arrived[0].item), (1, ms(11), 1));
}

#[test]
fn packets_leave_at_the_times_of_a_trace_which_repeats() {
    let trace = Trace::parse("2\n3\n10\n").unwrap();
    let rate = RateModel::Trace(Arc::new(trace));
    let mut link = Link::new(LinkConfig { rate, delay: Span::from_millis(1), ..LinkConfig::default() });
    for number in 0..5 {
        link.enqueue(ms(0), 1500, number, Ecn::NotCapable).unwrap();
    }
    let times: Vec<_> = drain(&mut link).iter().map(|packet| packet.at).collect();
    assert_eq!(times, [ms(3), ms(4), ms(11), ms(13), ms(14)]);
}

#[test]
fn packets_wait_through_a_gap_in_a_trace_and_are_not_dropped() {
    let rate = RateModel::Trace(Arc::new(Trace::parse("1\n2\n5000\n5000\n").unwrap()));
    let mut link = Link::new(LinkConfig { rate, ..LinkConfig::default() });
    for number in 0..4 {
        link.enqueue(ms(0), 1500, number, Ecn::NotCapable).unwrap();
    }
    let times: Vec<_> = drain(&mut link).iter().map(|packet| packet.at).collect();
    assert_eq!(times, [ms(1), ms(2), ms(5000), ms(5000)]);
    assert_eq!(link.stats().dropped.total(), 0);
}

#[test]
fn after_a_trace_that_plays_once_packets_wait_until_the_rate_changes() {
    let trace = Trace::parse("2\n3\n").unwrap().once();
    let mut link = Link::new(LinkConfig { rate: RateModel::Trace(Arc::new(trace)), ..LinkConfig::default() });
    for number in 0..3 {
        link.enqueue(ms(0), 1500, number, Ecn::NotCapable).unwrap();
    }
    let times: Vec<_> = drain(&mut link).iter().map(|packet| packet.at).collect();
    assert_eq!(times, [ms(2), ms(3)]);
    assert_eq!(link.next_arrival(), None);
    link.set_rate(ms(9), RateModel::Unlimited);
    assert_eq!(drain(&mut link)[0].at, ms(9));
}

#[test]
fn a_new_rate_applies_to_waiting_packets_and_the_rest_of_the_one_being_sent() {
    let mut link = Link::new(one_a_millisecond());
    offer(&mut link, ms(0), 3);
    link.set_rate(us(1_500), mbit(4.0));
    // Half of the second packet is left, which now takes twice as long.
    let times: Vec<_> = drain(&mut link).iter().map(|packet| packet.at).collect();
    assert_eq!(times, [ms(11), us(12_500), us(14_500)]);
}

#[test]
fn at_rate_zero_everything_waits_until_the_rate_returns() {
    let mut link = Link::new(one_a_millisecond());
    offer(&mut link, ms(0), 2);
    link.set_rate(us(250), mbit(0.0));
    assert_eq!(link.next_arrival(), None);
    assert_eq!(link.pop(ms(5_000)), None);
    link.set_rate(ms(6_000), mbit(8.0));
    let times: Vec<_> = drain(&mut link).iter().map(|packet| packet.at).collect();
    assert_eq!(times, [us(6_010_750), us(6_011_750)]);
    link.set_rate(ms(7_000), RateModel::Unlimited);
    offer(&mut link, ms(7_000), 2);
    assert!(drain(&mut link).iter().all(|packet| packet.at == ms(7_010)));
}

#[test]
fn a_new_delay_applies_to_packets_that_have_not_left_and_reorders_nothing() {
    let mut link = Link::new(one_a_millisecond());
    offer(&mut link, ms(0), 3);
    link.set_delay(us(1_500), Span::from_millis(2));
    let arrived = drain(&mut link);
    let times: Vec<_> = arrived.iter().map(|packet| packet.at).collect();
    assert_eq!(times, [ms(11), ms(11), ms(11)]);
    assert_eq!(items(&arrived), [0, 1, 2]);
}

#[test]
fn packets_offered_or_departing_during_a_scheduled_outage_vanish() {
    let outages = vec![(ms(2), ms(4))];
    let mut link = Link::new(LinkConfig { outages, ..one_a_millisecond() });
    offer(&mut link, ms(0), 5);
    assert_eq!(link.enqueue(ms(2), 1000, 5, Ecn::NotCapable), Err(DropReason::Outage));
    assert_eq!(link.enqueue(ms(4), 1000, 6, Ecn::NotCapable), Ok(()));
    // The second and third packets depart at 2 and 3 ms.
    assert_eq!(items(&drain(&mut link)), [0, 3, 4, 6]);
    assert_eq!(link.stats().dropped.outage, 3);
}

#[test]
fn a_cut_link_delivers_the_packets_on_the_wire_and_nothing_else_until_restored() {
    let mut link = Link::new(one_a_millisecond());
    offer(&mut link, ms(0), 3);
    link.set_down(us(1_500), true);
    assert_eq!(link.enqueue(us(1_600), 1000, 3, Ecn::NotCapable), Err(DropReason::Outage));
    assert_eq!(items(&drain(&mut link)), [0]);
    link.set_down(ms(50), false);
    assert_eq!(offer(&mut link, ms(50), 1), 1);
    assert_eq!(drain(&mut link)[0].at, ms(61));
}

#[test]
fn jitter_without_overtaking_changes_times_and_keeps_order() {
    for shape in [JitterShape::Uniform(Span::from_millis(5)), JitterShape::Normal(Span::from_millis(5))] {
        let jitter = Jitter { shape, overtakes: false };
        let mut link = Link::new(LinkConfig { jitter, ..one_a_millisecond() });
        let arrived = stream(&mut link, Span::from_millis(1), 2_000, Ecn::NotCapable);
        assert_eq!(items(&arrived), (0..2_000).collect::<Vec<_>>());
        assert!(arrived.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!(arrived.iter().any(|packet| packet.at > ms(u64::from(packet.item) + 13)));
    }
}

#[test]
fn jitter_with_overtaking_reorders_within_its_spread() {
    let jitter = Jitter { shape: JitterShape::Uniform(Span::from_millis(5)), overtakes: true };
    let mut link = Link::new(LinkConfig { jitter, ..one_a_millisecond() });
    let arrived = stream(&mut link, Span::from_millis(1), 10_000, Ecn::NotCapable);
    assert_eq!(arrived.len(), 10_000);
    assert!(arrived.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert!(items(&arrived).windows(2).any(|pair| pair[0] > pair[1]));
    let late = |packet: &Arrival<u32>| packet.at.as_secs_f64() - f64::from(packet.item) * 1e-3 - 11e-3;
    assert!(arrived.iter().all(|packet| late(packet).abs() <= 5e-3 + 1e-9));
    let mean = arrived.iter().map(late).sum::<f64>() / 1e4;
    assert!(mean.abs() < 2e-4, "mean jitter {mean}");
}

#[test]
fn normal_jitter_has_its_standard_deviation_and_never_a_negative_delay() {
    let jitter = Jitter { shape: JitterShape::Normal(Span::from_millis(2)), overtakes: true };
    let deviation = |delay: u64| {
        let config = LinkConfig { jitter, delay: Span::from_millis(delay), ..LinkConfig::default() };
        let arrived = stream(&mut Link::new(config), Span::from_millis(1), 20_000, Ecn::NotCapable);
        let late =
            |packet: &Arrival<u32>| packet.at.as_secs_f64() * 1e3 - f64::from(packet.item) - delay as f64;
        assert!(arrived.iter().all(|packet| late(packet) >= -(delay as f64) - 1e-6));
        (arrived.iter().map(|packet| late(packet).powi(2)).sum::<f64>() / 2e4).sqrt()
    };
    assert!((deviation(20) - 2.0).abs() < 0.05, "{}", deviation(20));
    assert!(deviation(0) < 1.9);
}

#[test]
fn a_packet_held_back_arrives_after_those_sent_later() {
    let reorder = Reorder { probability: 0.1, extra: Span::from_micros(2_500) };
    let mut link = Link::new(LinkConfig { reorder, seed: 4, ..one_a_millisecond() });
    let arrived = stream(&mut link, Span::from_millis(1), 1_000, Ecn::NotCapable);
    let held = arrived.iter().filter(|packet| packet.at != ms(u64::from(packet.item) + 11)).count();
    assert!((70..130).contains(&held), "{held} of about 100");
    assert!(items(&arrived).windows(2).any(|pair| pair[0] > pair[1]));
}

#[test]
fn packets_are_duplicated_and_damaged_at_the_configured_shares() {
    let mut link = Link::new(LinkConfig { duplicate: 0.1, corrupt: 0.2, ..one_a_millisecond() });
    let arrived = stream(&mut link, Span::from_millis(1), 10_000, Ecn::NotCapable);
    let stats = *link.stats();
    assert_eq!(arrived.len() as u64, 10_000 + stats.duplicated);
    assert!((900..1_100).contains(&stats.duplicated), "{}", stats.duplicated);
    let damaged = arrived.iter().filter(|packet| packet.corrupt).count() as u64;
    assert_eq!(damaged, stats.corrupted);
    assert!((2_000..2_400).contains(&damaged), "{damaged} of about 2,200");
}

#[test]
fn codel_drains_a_standing_queue_that_drop_tail_leaves_standing() {
    let wait_of_the_last = |codel| {
        let queue = QueueModel { codel, limit: Limit::Packets(200), ..QueueModel::default() };
        let mut link = Link::new(LinkConfig { queue, ..one_a_millisecond() });
        // A hundred packets at once, then just what the link can carry: the queue never drains by itself.
        offer(&mut link, Time::ZERO, 100);
        let arrived = stream(&mut link, Span::from_millis(1), 10_000, Ecn::NotCapable);
        let last = arrived.last().unwrap();
        (last.at.since(ms(u64::from(last.item) + 11)), link.stats().dropped.codel)
    };
    assert_eq!(wait_of_the_last(None), (Span::from_millis(100), 0));
    let (wait, drops) = wait_of_the_last(Some(CodelConfig::default()));
    assert!(wait <= Span::from_millis(6), "{wait}");
    assert!((90..110).contains(&drops), "{drops}");
}

#[test]
fn codel_lets_a_burst_pass_that_drains_within_an_interval() {
    let queue = QueueModel { codel: Some(CodelConfig::default()), ..QueueModel::default() };
    let mut link = Link::new(LinkConfig { queue, ..one_a_millisecond() });
    offer(&mut link, ms(0), 90);
    assert_eq!(drain(&mut link).len(), 90);
}

#[test]
fn codel_marks_packets_capable_of_ecn_and_drops_none_of_them() {
    let queue = QueueModel {
        codel: Some(CodelConfig::default()),
        limit: Limit::Packets(10_000),
        ..QueueModel::default()
    };
    let mut link = Link::new(LinkConfig { queue, ..one_a_millisecond() });
    let arrived = stream(&mut link, Span::from_micros(500), 2_000, Ecn::Capable);
    assert_eq!(arrived.len(), 2_000);
    let marked = arrived.iter().filter(|packet| packet.ce).count() as u64;
    assert!(marked > 20 && marked == link.stats().marked, "{marked}");
}

#[test]
fn the_same_seed_gives_the_same_packets_and_another_seed_others() {
    let run = |seed| {
        let config = LinkConfig {
            jitter: Jitter { shape: JitterShape::Normal(Span::from_millis(3)), overtakes: true },
            loss: LossModel::bursts(0.05, 3.0),
            duplicate: 0.02,
            corrupt: 0.02,
            reorder: Reorder { probability: 0.01, extra: Span::from_millis(4) },
            seed,
            ..one_a_millisecond()
        };
        stream(&mut Link::new(config), Span::from_micros(900), 5_000, Ecn::NotCapable)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn the_number_of_calls_does_not_change_the_result() {
    let config = LinkConfig {
        loss: LossModel::Bernoulli(0.05),
        jitter: Jitter { shape: JitterShape::Uniform(Span::from_millis(3)), overtakes: false },
        queue: QueueModel {
            codel: Some(CodelConfig::default()),
            random_drop: Some(RandomDrop { places: 20, probability: 0.1 }),
            limit: Limit::Packets(60),
            mark_above: None,
        },
        ..one_a_millisecond()
    };
    let prompt = stream(&mut Link::new(config.clone()), Span::from_micros(900), 3_000, Ecn::NotCapable);
    let mut link = Link::new(config);
    for number in 0..3_000 {
        let _ = link.enqueue(us(u64::from(number) * 900), 1000, number, Ecn::NotCapable);
    }
    let late: Vec<_> = std::iter::from_fn(|| link.pop(ms(100_000))).collect();
    assert_eq!(prompt, late);
}

#[test]
fn held_bytes_cover_the_queue_and_the_wire() {
    let mut link = Link::new(LinkConfig { overhead: 50, ..one_a_millisecond() });
    offer(&mut link, ms(0), 3);
    assert_eq!(link.held_bytes(), 3_150);
    link.backlog(ms(4));
    assert_eq!(link.held_bytes(), 3_000);
    drain(&mut link);
    assert_eq!(link.held_bytes(), 0);
}

#[test]
fn the_product_of_bandwidth_and_delay_is_in_bytes() {
    assert_eq!(bdp_bytes(Rate::from_mbit(50.0), Span::from_millis(10)), 62_500);
}

#[test]
fn packets_lost_on_the_wire_can_be_taken_back() {
    let config = LinkConfig { loss: LossModel::Bernoulli(1.0), ..LinkConfig::default() };
    let mut link = Link::new(config.clone()).keeping_lost();
    link.enqueue(Time::ZERO, 100, 7_u32, Ecn::NotCapable).unwrap();
    assert_eq!(link.pop(Time::ZERO), None);
    assert_eq!((link.take_lost(), link.take_lost()), (Some(7), None));
    let mut forgetful = Link::new(config);
    forgetful.enqueue(Time::ZERO, 100, 7_u32, Ecn::NotCapable).unwrap();
    assert_eq!((forgetful.pop(Time::ZERO), forgetful.take_lost()), (None, None));
}
