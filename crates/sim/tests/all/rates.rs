//! Rate limits of paths: the receiver asks, the sender keeps to them (PSMC [T8]).

use anabranch_engine::{Config, PathRule, PathRules, Terms};
use anabranch_sim::{CLIENT, CableConfig, Pair, SERVER, Sender, Sink};
use anabranch_wire::{Length, Rate, Span, Time};

fn at(seconds: u64) -> Time {
    Time::ZERO + Span::from_secs(seconds)
}

/// A rule that limits the first cable's paths.
fn at_most(mbit: f64) -> PathRules {
    let terms = Terms { rate: Some(Rate::from_mbit(mbit)), ..Terms::default() };
    PathRules::new(vec![PathRule { pattern: "cable0".parse().unwrap(), terms }])
}

fn pair(ends: [PathRules; 2]) -> Pair<Length> {
    let cables = [20.0, 10.0].map(|mbit| CableConfig::new(mbit, Span::from_millis(20), 1.0));
    Pair::new(ends.map(|rules| Config { rules, ..Config::default() }), &cables, 7)
}

/// Mbit/s on a cable in the sender's direction between these seconds, headers of IP and UDP included.
fn carried(
    pair: &mut Pair<Length>,
    apps: (&mut Sender, &mut Sink),
    cable: usize,
    seconds: std::ops::Range<u64>,
) -> f64 {
    let ((sender, sink), (from, to)) = (apps, (seconds.start, seconds.end));
    pair.run(at(from), &mut [sender, sink]);
    let before = pair.link(cable, 0).stats().offered.bytes;
    pair.run(at(to), &mut [sender, sink]);
    (pair.link(cable, 0).stats().offered.bytes - before) as f64 * 8e-6 / (to - from) as f64
}

fn limits(pair: &mut Pair<Length>, end: usize) -> Vec<Option<f64>> {
    pair.session(end).paths().iter().map(|path| path.rate_limit.map(Rate::as_mbit)).collect()
}

#[test]
fn the_sender_keeps_to_the_lower_limit_of_both_ends() {
    for (ends, limit) in [
        ([PathRules::default(), at_most(5.0)], 5.0),
        ([at_most(5.0), PathRules::default()], 5.0),
        // Neither end raises what the other one asks for.
        ([at_most(15.0), at_most(5.0)], 5.0),
        ([at_most(5.0), at_most(15.0)], 5.0),
    ] {
        let mut pair = pair(ends);
        let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        let rate = carried(&mut pair, (&mut sender, &mut sink), 0, 2..8);
        assert!((0.95 * limit..1.08 * limit).contains(&rate), "{rate:.2} Mbit/s on the limited cable");
        let other = carried(&mut pair, (&mut sender, &mut sink), 1, 8..12);
        assert!(other > 9.0, "{other:.2} Mbit/s on the other one");
        assert_eq!(limits(&mut pair, CLIENT), [Some(limit), None]);
    }
}

#[test]
fn a_limit_holds_for_a_path_that_comes_back_and_ends_with_its_rule() {
    let mut pair = pair([PathRules::default(), at_most(5.0)]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(at(2), &mut [&mut sender, &mut sink]);
    // Long enough for the path to be given up and opened anew.
    pair.set_down(0, true);
    pair.run(at(60), &mut [&mut sender, &mut sink]);
    pair.set_down(0, false);
    let open =
        |pair: &mut Pair<Length>| pair.session(CLIENT).paths().iter().any(|path| path.route.socket == 0);
    for second in 61..90 {
        pair.run(at(second), &mut [&mut sender, &mut sink]);
        if !open(&mut pair) {
            pair.open_missing();
        }
    }
    let rate = carried(&mut pair, (&mut sender, &mut sink), 0, 90..96);
    assert!((4.7..5.4).contains(&rate), "{rate:.2} Mbit/s after the path came back");

    pair.session(SERVER).set_path_rules(at(96), PathRules::default(), []).unwrap();
    let rate = carried(&mut pair, (&mut sender, &mut sink), 0, 98..104);
    assert!(rate > 18.0, "{rate:.2} Mbit/s without the rule");
    assert_eq!(limits(&mut pair, CLIENT), [None, None]);

    pair.session(SERVER).set_path_rules(at(104), at_most(2.0), []).unwrap();
    let rate = carried(&mut pair, (&mut sender, &mut sink), 0, 106..112);
    assert!((1.9..2.2).contains(&rate), "{rate:.2} Mbit/s with a new rule");
}

#[test]
fn an_overflow_path_joins_where_the_limit_fills_the_primary_one() {
    let overflow = PathRule {
        pattern: "cable1".parse().unwrap(),
        terms: Terms { priority: "overflow".parse().unwrap(), ..Terms::default() },
    };
    let mut pair = pair([at_most(5.0).with(&overflow), PathRules::default()]);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    let rate = carried(&mut pair, (&mut sender, &mut sink), 1, 4..8);
    assert!(rate > 8.0, "{rate:.2} Mbit/s on the overflow path");
}
