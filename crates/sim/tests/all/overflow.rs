//! Overflow paths with datagrams, as a tunnel sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_engine::{
    Config, DatagramSource, PathRule, PathRules, PathView, Pulled, Session, SessionView, Terms,
};
use anabranch_sim::{App, CLIENT, CableConfig, Idle, Pair};
use anabranch_wire::{DatagramFrame, Length, Span, Time};

const SIZE: usize = 1_200;

/// Datagrams that wait outside the session, for the first path with room.
struct Waiting(Arc<AtomicUsize>);

impl DatagramSource<Length> for Waiting {
    fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn next(&mut self, _: &SessionView, paths: &[PathView]) -> Pulled<Length> {
        let Some(path) = paths.iter().find(|path| path.budget > SIZE as u64 + 100) else {
            return Pulled::Wait(Time::NEVER);
        };
        self.0.fetch_sub(1, Ordering::Relaxed);
        let datagram = DatagramFrame { class: 5, flow: 9, data: Length(SIZE) };
        Pulled::Send { path: path.id, datagram }
    }
}

/// Counts what arrives.
#[derive(Default)]
struct Taker(usize);

impl App<Length> for Taker {
    fn poll(&mut self, _: Time, session: &mut Session<Length>) {
        while session.poll_event().is_some() {}
        while session.recv_datagram().is_some() {
            self.0 += SIZE;
        }
    }
}

#[test]
fn an_overflow_path_carries_datagrams_only_while_the_primary_is_full() {
    let rule = PathRule {
        pattern: "cable1".parse().unwrap(),
        terms: Terms { priority: "overflow".parse().unwrap(), ..Terms::default() },
    };
    let config = Config { rules: PathRules::new(vec![rule]), ..Config::default() };
    let cables = [20, 40].map(|rtt| CableConfig::new(20.0, Span::from_millis(rtt), 1.0));
    let mut pair: Pair<Length> = Pair::new([config, Config::default()], &cables, 7);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    let waiting = Arc::new(AtomicUsize::new(0));
    pair.session(CLIENT).set_datagram_source(Box::new(Waiting(waiting.clone())));
    let mut taker = Taker::default();
    // Sends at this rate for so many seconds; returns Mbit/s that arrive and bytes on the overflow path.
    let mut send = |mbit: f64, seconds: u64| {
        let (begin, end) = (pair.now, pair.now + Span::from_secs(seconds));
        let (mut sent, arrived) = (0, taker.0);
        let before = pair.link(1, 0).stats().offered.bytes;
        while pair.now < end {
            let due = (pair.now.since(begin).as_secs_f64() * mbit * 1e6 / 8.0) as usize / SIZE;
            waiting.fetch_add(due - sent, Ordering::Relaxed);
            sent = due;
            pair.run(pair.now + Span::from_millis(1), &mut [&mut Idle, &mut taker]);
        }
        let rate = (taker.0 - arrived) as f64 * 8e-6 / seconds as f64;
        (rate, pair.link(1, 0).stats().offered.bytes - before)
    };
    let (rate, spilt) = send(10.0, 4);
    assert!(rate > 9.5 && spilt < 20_000, "{rate:.1} Mbit/s, {spilt} bytes next to a primary path with room");
    send(30.0, 4);
    let (rate, spilt) = send(30.0, 4);
    assert!(rate > 27.0 && spilt > 4_000_000, "{rate:.1} Mbit/s, {spilt} bytes on the overflow path");
    send(5.0, 8);
    let (rate, spilt) = send(5.0, 4);
    assert!(rate > 4.7 && spilt < 20_000, "{rate:.1} Mbit/s, {spilt} bytes after the primary had room again");
}
