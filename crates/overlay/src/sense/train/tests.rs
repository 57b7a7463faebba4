//! The order of trains, and lost trains. `crates/experiments/tests/all/overlay.rs` shows how exact trains are.

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::{Capacity, Counting, Remembered};
use crate::sense::Figures;
use crate::sense::message::{CAR, Car, Seen, SenseMessage};
use crate::sense::sensor::{Sensor, SensorConfig};

/// A sensor with one link that is up.
fn sensor(config: SensorConfig) -> (Sensor, PublicKey, Time) {
    let to = PublicKey::from_bytes([1; 32]);
    let mut sensor = Sensor::new(config, [0; 32], Time::ZERO);
    sensor.measure(Time::ZERO, &[to].into(), &Default::default());
    let now = Time::ZERO + Span::from_secs(3);
    let mut other = Sensor::new(config, [1; 32], now);
    let (_, probe) = sensor.poll_transmit(now).expect("a probe");
    let answer = other.handle_message(now, &to, &probe).expect("an answer");
    sensor.handle_message(now + Span::from_millis(30), &to, &answer);
    (sensor, to, now + Span::from_millis(30))
}

#[test]
fn a_train_of_which_nothing_came_tells_nothing_and_the_next_one_follows() {
    let (mut sensor, to, now) = sensor(SensorConfig::default());
    let now = sensor.train_timeout(now).unwrap();
    let train = sensor.poll_train(now).unwrap();
    let nothing = Counting::default().seen(&to, train.number);
    sensor.handle_message(now, &to, &SenseMessage::Seen(nothing));
    assert_eq!(sensor.links(now)[0].capacity, 0);
    let later = sensor.train_timeout(now).unwrap();
    assert!(sensor.poll_train(later).is_some());
}

#[test]
fn a_train_that_somebody_waits_for_is_sent_first() {
    let keys: Vec<PublicKey> = (1..=9).map(|index| PublicKey::from_bytes([index; 32])).collect();
    let config = SensorConfig::default();
    let mut sensor = Sensor::new(config, [0; 32], Time::ZERO);
    sensor.measure(Time::ZERO, &keys.iter().copied().collect(), &[keys[6]].into());
    let mut now = Time::ZERO;
    let mut trains = Vec::new();
    while trains.len() < 2 {
        now += Span::from_millis(100);
        while let Some((to, probe)) = sensor.poll_transmit(now) {
            let mut other = Sensor::new(config, [1; 32], now);
            let answer = other.handle_message(now, &to, &probe).unwrap();
            sensor.handle_message(now, &to, &answer);
        }
        sensor.handle_timeout(now);
        trains.extend(sensor.poll_train(now).map(|train| train.to));
    }
    assert_eq!(trains[0], keys[6]);
    assert_ne!(trains[1], keys[6]);
}

/// A report on a train: 9.3 Mbit/s.
fn came(number: u32) -> SenseMessage {
    SenseMessage::Seen(Seen { number, packets: 32, sent: 32, left: 1_000, came: 32_000 })
}

/// Makes the link answer once; returns its reported capacity, in kbit/s.
fn capacity(sensor: &mut Sensor, to: &PublicKey, now: Time) -> u32 {
    let (_, probe) = sensor.poll_transmit(now).expect("a probe");
    let answer = Sensor::new(SensorConfig::default(), [1; 32], now).handle_message(now, to, &probe).unwrap();
    sensor.handle_message(now, to, &answer);
    sensor.links(now)[0].capacity
}

#[test]
fn a_trains_result_is_remembered_for_two_hours_after_the_link_was_last_measured() {
    let (nobody, minute) = (Default::default(), Span::from_secs(60));
    for (later, known) in [(minute, true), (minute * 115, true), (minute * 121, false)] {
        let (mut sensor, to, now) = sensor(SensorConfig::default());
        let now = sensor.train_timeout(now).unwrap();
        let train = sensor.poll_train(now).unwrap();
        // The link is removed while its train is under way.
        sensor.measure(now, &nobody, &nobody);
        sensor.handle_message(now + Span::from_millis(200), &to, &came(train.number));
        sensor.measure(now + later, &nobody, &[to].into());
        let told = capacity(&mut sensor, &to, now + later);
        assert_eq!(told > 0, known, "{told} kbit/s after {later:?}");
    }
}

#[test]
fn results_are_remembered_for_a_bounded_number_of_links() {
    let mut kept = Remembered::default();
    for index in 0..1_000_u32 {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&index.to_be_bytes());
        let mut capacity = Capacity::default();
        capacity.on_train(Time::ZERO + Span::from_secs(u64::from(index)), false);
        kept.put(PublicKey::from_bytes(bytes), capacity);
    }
    assert_eq!(kept.len(), 128);
}

#[test]
fn trains_keep_to_the_rate_that_this_node_sends_at_and_tell_no_more_than_that() {
    let rate = Rate::from_mbit(20.0);
    // A report at the train's own rate, a slower one, and an impossibly fast one.
    for (left, came, told) in [(15_000, 15_200, 20_000), (15_000, 30_000, 9_986), (15_000, 5_000, 20_000)] {
        let (mut sensor, to, now) = sensor(SensorConfig::default());
        sensor.limit(Some(rate));
        let now = sensor.train_timeout(now).unwrap();
        let train = sensor.poll_train(now).unwrap();
        assert_eq!(train.offset(159), rate.time_for(159 * CAR));
        let seen = Seen { number: train.number, packets: 32, sent: 32, left, came };
        sensor.handle_message(now, &to, &SenseMessage::Seen(seen));
        assert_eq!(sensor.links(now)[0].capacity, told, "{left} {came}");
        assert!(!train.is_held_up(rate.time_for(159 * CAR) + Span::from_millis(20)));
        assert!(train.is_held_up(rate.time_for(159 * CAR) * 2));
    }
}

/// Eight neighbours in each direction, as many trains as possible, and all their sessions.
#[test]
fn trains_handshakes_and_acknowledgements_stay_within_the_budget() {
    let others: Vec<PublicKey> = (1..=8).map(|index| PublicKey::from_bytes([index; 32])).collect();
    let (nobody, all) = (Default::default(), others.iter().copied().collect());
    let mut sensor = Sensor::new(SensorConfig::default(), [0; 32], Time::ZERO);
    sensor.measure(Time::ZERO, &all, &nobody);
    let (mut now, hour) = (Time::ZERO, Span::from_secs(3_600));
    others.iter().for_each(|other| {
        sensor.call(now).expect("all at once");
        sensor.on_called(now, other);
    });
    let (mut trains, mut refused) = (0, 0);
    while now < Time::ZERO + hour {
        now += Span::from_millis(500);
        while let Some((to, probe)) = sensor.poll_transmit(now) {
            let mut other = Sensor::new(SensorConfig::default(), [1; 32], now);
            let answer = other.handle_message(now, &to, &probe).expect("an answer");
            sensor.handle_message(now, &to, &answer);
            sensor.handle_message(now, &to, &probe);
        }
        trains += u32::from(sensor.poll_train(now).is_some());
        // Each sends a train every five minutes, and one of them sends without pause.
        let second = now.since(Time::ZERO).as_nanos() / 1_000_000_000;
        for (at, other) in others.iter().enumerate() {
            if (second + at as u64).is_multiple_of(300) || at == 7 {
                sensor.on_called(now, other);
                for index in 0..160 {
                    let car = Car { number: second as u32, index, of: 160, at: 0 };
                    sensor.handle_message(now, other, &SenseMessage::Car(car));
                }
            }
        }
        // A neighbour that does not answer is tried again and again.
        if second.is_multiple_of(10) {
            match sensor.call(now) {
                Ok(()) => sensor.on_call_failed(now),
                Err(_) => refused += 1,
            }
        }
    }
    let kbit = sensor.stats().bytes as f64 * 8e-3 / hour.as_secs_f64();
    assert!(kbit < 20.0 && kbit > 15.0, "{kbit} kbit/s with {trains} trains");
    assert!(refused > 0, "who is called in vain is called less often");
    assert!(sensor.stats().unanswered == 0, "no probe is left without answer for it");
}

#[test]
fn impossible_reports_on_a_train_are_ignored() {
    for (packets, sent) in [(33, 40), (32, 31), (32, 161), (7, 32)] {
        let (mut sensor, to, now) = sensor(SensorConfig::default());
        let now = sensor.train_timeout(now).unwrap();
        let number = sensor.poll_train(now).unwrap().number;
        let seen = crate::sense::message::Seen { number, packets, sent, left: 1_000, came: 10_000 };
        sensor.handle_message(now, &to, &SenseMessage::Seen(seen));
        assert_eq!(sensor.links(now)[0].capacity, 0, "{packets} of {sent}");
    }
}

#[test]
fn a_node_that_floods_probes_takes_no_answers_from_other_measurers() {
    let config = SensorConfig::default();
    let mut asked = Sensor::new(config, [0; 32], Time::ZERO);
    let honest: Vec<PublicKey> = (1..=12).map(|index| PublicKey::from_bytes([index; 32])).collect();
    let greedy = PublicKey::from_bytes([99; 32]);
    let (mut now, mut unanswered) = (Time::ZERO, 0);
    for number in 1..=6_000_u32 {
        now += Span::from_millis(10);
        let probe = |number| SenseMessage::Probe(crate::sense::message::Probe { number });
        asked.handle_message(now, &greedy, &probe(number));
        asked.handle_message(now, &greedy, &SenseMessage::End(number));
        if number % 5 == 0 {
            // It comes again with another session.
            asked.forget(&greedy);
            asked.on_called(now, &greedy);
        }
        // Twelve that probe every 2.4 s each.
        if number % 20 == 0 {
            let node = &honest[(number / 20) as usize % 12];
            unanswered += u32::from(asked.handle_message(now, node, &probe(number)).is_none());
        }
    }
    assert_eq!(unanswered, 0, "of 300");
}

#[test]
fn what_is_free_is_never_more_than_the_whole() {
    let rate = |mbit| Some(Rate::from_mbit(mbit));
    let seen = |mbit: f64| {
        let micros = (31 * CAR * 8) as f64 / mbit;
        Seen { number: 1, packets: 32, sent: 32, left: micros as u32, came: micros as u32 }
    };
    let mut capacity = Capacity::default();
    let now = Time::ZERO;
    capacity.on_seen(now, &seen(10.0), (false, None));
    capacity.on_seen(now, &seen(10.0), (true, None));
    assert!(capacity.left(now) > rate(9.9));
    // The link became slower, and the unused part was not measured again yet.
    capacity.on_seen(now, &seen(4.0), (false, None));
    assert!(capacity.capacity() < rate(4.1) && capacity.left(now) == capacity.capacity());
    let told = Figures::measured(Span::ZERO, 0.0).with_rates(rate(4.0), rate(9.0));
    assert_eq!((told.rate(), told.with_rates(None, rate(9.0)).rate()), (rate(4.0), rate(9.0)));
}
