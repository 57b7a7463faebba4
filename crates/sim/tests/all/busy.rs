//! A busy machine: the process of an end does not run for a while, again and again.
//!
//! Then the process is late, and no path has a fault.

use anabranch_engine::{Config, Event, PathChange, Session};
use anabranch_sim::chance::Chance;
use anabranch_sim::{App, CLIENT, CableConfig, Pair, SERVER, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

/// Writes, and counts how often a path was suspected, and how often it was held back.
struct Watch {
    sender: Sender,
    suspected: usize,
    held: usize,
}

impl App<Length> for Watch {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        while let Some(event) = session.poll_event() {
            let Event::Path { change, .. } = event else { continue };
            self.suspected += usize::from(change == PathChange::Suspect);
            self.held += usize::from(format!("{change:?}").contains("Held"));
        }
        self.sender.poll(now, session);
    }
}

/// Sends for ten seconds over paths of 10, 6 and 4 Mbit/s while the process of `end` runs for up to 200 ms at a time and
/// does not run for 20 to 100 ms in between. Returns how often a path was suspected, how often it was held back, and the
/// share of the rate.
fn paused(end: usize, seed: u64) -> (usize, usize, f64) {
    let cables = [10.0, 6.0, 4.0].map(|mbit| CableConfig::new(mbit, Span::from_millis(2), 25.0));
    let mut pair = Pair::new([Config::default(), Config::default()], &cables, seed);
    let (mut watch, mut sink) =
        (Watch { sender: Sender::new(u64::MAX), suspected: 0, held: 0 }, Sink::default());
    pair.establish(&mut [&mut watch, &mut sink]);
    let (mut chance, begin) = (Chance::new(seed), pair.now);
    let until = begin + Span::from_secs(10);
    while pair.now < until {
        let runs = Span::from_secs_f64(chance.between(0.005, 0.2));
        pair.run(pair.now + runs, &mut [&mut watch, &mut sink]);
        pair.pause(end, Span::from_secs_f64(chance.between(0.02, 0.1)));
    }
    let read = pair.session(SERVER).stats().bytes_read;
    let rate = read as f64 * 8e-6 / pair.now.since(begin).as_secs_f64();
    (watch.suspected, watch.held, rate / 20.0)
}

#[test]
fn no_path_is_suspected_while_the_sender_does_not_run() {
    for seed in 1..=4 {
        let (suspected, held, share) = paused(CLIENT, seed);
        assert!(suspected <= 2 && held == 0 && share > 0.6, "{seed}: {suspected} {held} {share:.3}");
    }
}

/// Without regard to the silence on every path, paths were held back 145 times, and 0.44 of the rate arrived.
#[test]
fn paths_are_rarely_held_back_while_the_receiver_does_not_run() {
    let runs = [1, 2, 3, 4].map(|seed| paused(SERVER, seed));
    let held: usize = runs.iter().map(|(_, held, _)| held).sum();
    let share = runs.iter().map(|(_, _, share)| share).sum::<f64>() / 4.0;
    assert!(held <= 20 && share > 0.55, "{runs:?}");
}
