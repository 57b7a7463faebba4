//! Rate, fairness and drop order.

use proptest::prelude::*;

use super::*;
use crate::relay::egress::{DEPTH, Egress, Outgoing};

const PACKET: usize = 1_000;

fn packet(mark: u8) -> Outgoing {
    Outgoing { to: hop("192.0.2.1:1"), ecn: 0, datagram: vec![mark; PACKET].into() }
}

fn at(micros: u64) -> Time {
    Time::ZERO + Span::from_secs(1) + Span::from_micros(micros)
}

/// Offers `rates` packets of each key every 10 ms for a second; returns the number sent of each key.
fn served(egress: &mut Egress, offered: &[(u32, u32)]) -> Vec<usize> {
    let mut served = vec![0; offered.len()];
    for step in 0..1_000u64 {
        let now = at(step * 1_000);
        if step % 10 == 0 {
            for (key, count) in offered {
                for _ in 0..*count {
                    if egress.pass(now, *key, PACKET as u64) {
                        served[*key as usize] += 1;
                    } else {
                        egress.enqueue(*key, 0, packet(*key as u8));
                    }
                }
            }
        }
        while let Some(packet) = egress.take(now) {
            served[usize::from(packet.datagram[0])] += 1;
        }
    }
    served
}

#[test]
fn keys_share_the_rate_equally_however_much_they_send() {
    let mut egress = Egress::new(Some(Rate::from_mbit(8.0)));
    for number in 0..3 {
        egress.set_rate(number, None);
    }
    // 1,000 packets a second leave; the keys offer 10,000, 1,000 and 200.
    let served = served(&mut egress, &[(0, 100), (1, 10), (2, 2)]);
    assert!(served[2] >= 198, "who asks for less than a share gets it all: {served:?}");
    assert!(served[0].abs_diff(served[1]) <= 15 && served[0] >= 390, "{served:?}");
    assert!(served.iter().sum::<usize>().abs_diff(1_000) <= 5, "{served:?}");
}

#[test]
fn a_key_gets_no_more_than_its_own_rate_and_the_others_the_rest() {
    let mut egress = Egress::new(Some(Rate::from_mbit(8.0)));
    egress.set_rate(0, Some(Rate::from_mbit(0.8)));
    egress.set_rate(1, None);
    let served = served(&mut egress, &[(0, 50), (1, 50)]);
    assert!(served[0].abs_diff(100) <= 5 && served[1].abs_diff(900) <= 12, "{served:?}");
}

#[test]
fn the_high_class_loses_nothing_while_the_low_class_has_packets_to_give() {
    let mut egress = Egress::new(Some(Rate::from_mbit(8.0)));
    egress.set_rate(0, None);
    let (mut high_in, mut high_out, mut low_out, mut last_high) = (0u32, 0u32, 0, None);
    for step in 0..2_000u64 {
        let now = at(step * 1_000);
        // Twice the rate, a third of it of the high class.
        for (class, mark) in [(9, 200), (1, 1), (if step % 3 == 0 { 9 } else { 1 }, 0)] {
            let high = class == 9;
            let mark = if high { (high_in % 100) as u8 + 100 } else { mark };
            if step % 3 != 2 {
                high_in += u32::from(high);
                egress.enqueue(0, class, packet(mark));
            }
        }
        while let Some(packet) = egress.take(now) {
            let mark = packet.datagram[0];
            if mark >= 100 {
                assert!(
                    last_high.is_none_or(|last: u8| (last - 100 + 1) % 100 == mark - 100),
                    "order is kept"
                );
                last_high = Some(mark);
                high_out += 1;
            } else {
                low_out += 1;
            }
        }
    }
    assert!(high_in - high_out <= 21, "{high_in} in, {high_out} out, the rest still waits");
    assert!(low_out > 0);
}

#[test]
fn what_waits_is_never_more_than_20_ms_of_the_rate() {
    for mbit in [8.0, 100.0, 1_000.0] {
        let rate = Rate::from_mbit(mbit);
        let mut egress = Egress::new(Some(rate));
        egress.set_rate(0, None);
        egress.set_rate(1, Some(Rate::from_mbit(mbit / 2.0)));
        for _ in 0..5_000 {
            egress.enqueue(0, 0, packet(0));
            egress.enqueue(1, 0, packet(1));
            assert!(egress.waiting() <= rate.bytes_in(DEPTH));
        }
        egress.forget(0);
        assert!(egress.waiting() <= rate.bytes_in(DEPTH) / 2);
        egress.forget(1);
        assert_eq!((egress.waiting(), egress.poll_timeout()), (0, None));
    }
}

/// Its first packet waits for a very long time, or without end.
#[test]
fn a_key_with_next_to_no_rate_that_sends_on_takes_no_more_memory() {
    for rate in [Rate::ZERO, Rate::from_bits(1)] {
        let mut egress = Egress::new(None);
        egress.set_rate(0, Some(rate));
        for step in 0..10_000u64 {
            egress.enqueue(0, (step % 16) as u8, packet(0));
            assert_eq!(egress.take(at(step)).is_some(), step == 0 && rate != Rate::ZERO);
            assert!(egress.places() <= 16 * 6, "{} places for {} bytes", egress.places(), egress.waiting());
        }
    }
}

#[test]
fn a_key_that_had_no_rate_goes_on_once_it_has_one() {
    for rate in [Some(Rate::from_mbit(8.0)), None] {
        let mut egress = Egress::new(None);
        egress.set_rate(0, Some(Rate::ZERO));
        (0..5).for_each(|mark| assert_eq!(egress.enqueue(0, 0, packet(mark)), Tally::default()));
        assert_eq!((egress.take(at(0)), egress.poll_timeout()), (None, None));
        egress.set_rate(0, rate);
        for mark in 0..5 {
            let now = egress.poll_timeout().unwrap().max(at(10_000));
            assert_eq!(egress.take(now), Some(packet(mark)));
        }
        while egress.poll_timeout().is_some_and(|due| due <= at(20_000)) {
            assert_eq!(egress.take(at(20_000)), None);
        }
        assert!(egress.pass(at(30_000), 0, PACKET as u64), "nothing waits");
    }
}

proptest! {
    /// Every packet leaves once or is dropped, and the queue returns a deadline while any waits.
    #[test]
    fn packets_are_neither_lost_nor_doubled(operations in prop::collection::vec((0..4u32, 0..16u8, 0..4u64, 1..5_000usize), 1..200)) {
        let mut egress = Egress::new(Some(Rate::from_mbit(4.0)));
        for number in 0..4 {
            egress.set_rate(number, (number > 1).then(|| Rate::from_mbit(f64::from(number))));
        }
        let (mut now, mut inside) = (at(0), 0u64);
        for (key, class, wait, len) in operations {
            now += Span::from_millis(wait);
            let packet = Outgoing { to: hop("192.0.2.1:1"), ecn: 0, datagram: vec![0; len].into() };
            inside += 1;
            inside -= egress.enqueue(key, class, packet).packets;
            while egress.take(now).is_some() {
                inside -= 1;
            }
        }
        for _ in 0..10_000 {
            let Some(due) = egress.poll_timeout() else { break };
            now = now.max(due);
            while egress.take(now).is_some() {
                inside -= 1;
            }
        }
        prop_assert_eq!((inside, egress.waiting()), (0, 0));
    }
}

/// A packet train of the relay, 193 kB, which alone would occupy a link of 10 Mbit/s for 155 ms.
#[test]
fn a_relays_own_packets_delay_others_by_no_more_than_the_queue() {
    let rate = Rate::from_mbit(10.0);
    for honest_every in [1_000_000, 10_000, 2_000, 900] {
        let mut egress = Egress::new(Some(rate));
        egress.set_rate(0, None);
        // When the link behind has sent all packets so far, and the longest delay of another key's packet there.
        let (mut free, mut longest, mut left, mut own, mut dropped) = (at(0), Span::ZERO, None, 160, 0);
        let mut arrived = std::collections::VecDeque::new();
        let through = |free: &mut Time, now: Time, bytes: u64| {
            *free = (*free).max(now) + rate.time_for(bytes);
            *free
        };
        for step in 0..5_000u64 {
            let now = at(step * 100);
            if (step * 100) % honest_every == 0 {
                if egress.pass(now, 0, PACKET as u64) {
                    longest = longest.max(through(&mut free, now, PACKET as u64).since(now));
                } else {
                    arrived.push_back(now);
                    dropped += egress.enqueue(0, 0, packet(1)).packets;
                }
            }
            while egress.take(now).is_some() {
                let since = arrived.pop_front().unwrap();
                longest = longest.max(through(&mut free, now, PACKET as u64).since(since));
            }
            // Timers are no finer than a millisecond.
            while step % 10 == 0 && own > 0 && egress.pass_own(now, 1_208).is_ok() {
                through(&mut free, now, 1_208);
                own -= 1;
                left = Some(now);
            }
        }
        assert!(longest <= DEPTH && dropped == 0, "{longest:?}, {dropped} dropped, every {honest_every} us");
        let took = left.unwrap().since(at(0));
        let alone = rate.time_for(160 * 1_208);
        if honest_every == 1_000_000 {
            assert!(own == 0 && took < alone + Span::from_millis(2) && took + Span::from_millis(15) > alone);
        } else {
            // The key that sends most of the rate goes first.
            assert!(own == 0 || honest_every == 900, "{own} of the train are left");
        }
    }
}

#[test]
fn what_a_relay_sends_for_itself_waits_for_all_that_others_wait_with() {
    let mut egress = Egress::new(Some(Rate::from_mbit(8.0)));
    egress.set_rate(0, None);
    egress.enqueue(0, 0, packet(1));
    assert_eq!(egress.pass_own(at(0), 1_000), Err(at(2_000)));
    assert_eq!((egress.take(at(0)), egress.take(at(0))), (Some(packet(1)), None));
    assert_eq!(egress.pass_own(at(0), 1_000), Ok(()));
}

#[test]
fn a_type_of_service_above_what_the_key_may_use_saves_no_packet() {
    for (highest_tos, kept) in [(15, 9), (1, 1)] {
        let mut world = World::with(|config| {
            config.rate = Some(Rate::from_mbit(8.0));
            config.listed = [(key(1), Limits { highest_tos, ..limits(8, 10_000.0) })].into();
        });
        let session = world.open(1, 1, "203.0.113.5:1000");
        let (_, pid, _) = world.ready(session, "198.51.99.7:2000", Pid(42));
        for tos in [1, 9] {
            let mut bytes = vec![0; PACKET];
            Header { kind: Kind::Data, key_phase: false, tos, hop_limit: 4, pid, fsn: 0 }.encode(&mut bytes);
            // As many packets as the queue holds.
            assert_eq!(world.run(hop("203.0.113.5:1000"), &mut bytes.repeat(20), PACKET), []);
        }
        for sent in world.sent() {
            assert_eq!(Header::decode(&sent.datagram).unwrap().0.tos, kept, "up to {highest_tos}");
        }
        assert_eq!(world.relay.stats().dropped.congested, 20);
    }
}
