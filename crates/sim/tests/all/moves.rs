//! Path 0 settles on one route of the handshake, even if answers become slow right after it.

use anabranch_engine::Config;
use anabranch_sim::{CLIENT, CableConfig, Pair, SERVER, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

/// Moves of path 0 at both ends, in total and after second 4. A cable becomes slower by `extra` each way as soon as the
/// client is established over it.
fn moves((first, second): (u64, u64), extra: u64, open_others: bool) -> (u32, u32) {
    let cable = |rtt| CableConfig::new(20.0, Span::from_millis(rtt), 2.0);
    let configs = [Config::default(), Config::default()];
    let mut pair: Pair<Length> = Pair::new(configs, &[cable(first), cable(second)], 1);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    let (mut all, mut late, mut last, mut slowed) = (0, 0, [None; 2], false);
    pair.connect();
    while pair.now < Time::ZERO + Span::from_secs(8) {
        pair.run(pair.now + Span::from_millis(1), &mut [&mut sender, &mut sink]);
        if !slowed && !pair.session(CLIENT).paths().is_empty() {
            slowed = true;
            for direction in 0..2 {
                pair.link(0, direction).set_delay(Span::from_millis(first) / 2 + Span::from_millis(extra));
            }
        }
        if open_others {
            pair.open_missing();
        }
        for end in [CLIENT, SERVER] {
            let session = pair.ends[end].session.as_ref();
            let route = session.and_then(|session| session.paths().first().map(|path| path.route));
            if last[end].is_some() && last[end] != route {
                all += 1;
                late += u32::from(pair.now > Time::ZERO + Span::from_secs(4));
            }
            last[end] = route;
        }
    }
    assert!(sink.received > 4_000_000, "{} bytes in 8 s", sink.received);
    (all, late)
}

/// A path is silent for a moment during the handshake, and the driver opens the others only every 50 ms. Afterwards
/// each cable must have one path.
#[test]
fn a_route_that_path_0_was_to_move_to_is_not_used_twice() {
    let cable = |rate, rtt| CableConfig::new(rate, Span::from_millis(rtt), 1.0);
    for (rtts, silence) in (20..200)
        .step_by(20)
        .flat_map(|slow| (10..90).step_by(20).map(move |from| ([8, slow], (from, from + 150))))
    {
        let configs = [Config::default(), Config::default()];
        let cables = [cable(30.0, rtts[0]), cable(20.0, rtts[1])];
        let mut pair: Pair<Length> = Pair::new(configs, &cables, 1);
        let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
        pair.connect();
        for milli in 1..=3_000 {
            pair.set_down(0, (silence.0..silence.1).contains(&milli));
            pair.run(Time::ZERO + Span::from_millis(milli), &mut [&mut sender, &mut sink]);
            if milli % 50 == 0 {
                pair.open_missing();
            }
        }
        let mut sockets: Vec<_> =
            pair.session(CLIENT).paths().into_iter().map(|path| path.route.socket).collect();
        sockets.sort_unstable();
        assert_eq!(sockets, [0, 1], "{rtts:?} ms, silent {silence:?} ms");
    }
}

#[test]
fn ends_do_not_chase_each_other_between_two_routes() {
    for (rtts, extra, open_others) in
        [((20, 150), 100, false), ((50, 60), 20, false), ((50, 60), 20, true), ((5, 30), 40, true)]
    {
        let (all, late) = moves(rtts, extra, open_others);
        assert!(all <= 6 && late == 0, "{rtts:?} {extra} {open_others}: {all} moves, {late} of them late");
    }
}

/// Bytes that arrive within ten seconds, half a minute after two failed routes work again; one of them was `cut` in
/// these directions. The route of path 0 stays dead. The second route has a round trip of `rtt` ms, the others `other`
/// times as much.
fn found_again(rtt: u64, other: f64, cut: [bool; 2]) -> u64 {
    let cable = |factor: f64| CableConfig::new(20.0, Span::from_millis(rtt).mul_f64(factor), 1.0);
    let configs = [Config::default(), Config::default()];
    let mut pair: Pair<Length> = Pair::new(configs, &[cable(0.8), cable(1.0), cable(other)], 1);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    let mut run_for = |pair: &mut Pair<Length>, millis: u64| {
        pair.run(pair.now + Span::from_millis(millis), &mut [&mut sender, &mut sink]);
        sink.received
    };
    pair.connect();
    run_for(&mut pair, 2 * rtt + 100);
    pair.set_down(0, true);
    for (direction, cut) in cut.into_iter().enumerate() {
        pair.link(1, direction).set_down(cut);
        pair.link(2, direction).set_down(direction == 0 || !cut);
    }
    run_for(&mut pair, 5_000);
    pair.set_down(1, false);
    pair.set_down(2, false);
    let before = run_for(&mut pair, 25_000 + 10 * rtt);
    run_for(&mut pair, 10_000) - before
}

/// Round trips are longer than the pause between probes. Questions, answers and data use different routes, and no end
/// may undo a change that the other has begun.
#[test]
fn a_client_that_tries_one_route_after_the_other_is_found() {
    let ways = [
        (65, 1.9),
        (100, 1.0),
        (380, 0.5),
        (425, 1.0),
        (600, 1.0),
        (875, 0.95),
        (1000, 0.8),
        (1010, 0.8),
        (1500, 1.2),
    ];
    for (rtt, other) in ways {
        for cut in [[true, false], [false, true], [true, true]] {
            let received = found_again(rtt, other, cut);
            assert!(received > 100_000, "{rtt} ms, {other}, {cut:?}: {received} bytes in 10 s");
        }
    }
}
