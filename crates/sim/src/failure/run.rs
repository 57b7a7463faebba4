//! One case in virtual time.

use anabranch_engine::Config;
use anabranch_link::LossModel;
use anabranch_wire::{Length, Span, Time};

use super::{Break, Case, Outcome};
use crate::app::{Sender, Sink};
use crate::pair::{CLIENT, CableConfig, Pair};

/// How long a path stays broken.
const BROKEN: Span = Span::from_secs(6);
/// How long the mended path is measured.
const MEASURED: Span = Span::from_secs(3);
/// UDP payload of 1,472 bytes: 1,430 of data in an IP packet of 1,500.
const PAYLOAD_SHARE: f64 = 1430.0 / 1500.0;
/// How often the driver looks for cables without a path.
const LOOKED_AT: Span = Span::from_millis(250);
/// So many times the delay, while it is longer.
const LONGER: u64 = 20;
/// Half of a flapping path's second.
const FLAP: Span = Span::from_millis(500);

struct World {
    pair: Pair<Length>,
    sender: Sender,
    sink: Sink,
}

impl World {
    /// Runs, and opens again what was given up, as a driver does.
    fn run(&mut self, until: Time) {
        while self.pair.now < until {
            let next = until.min(self.pair.now + LOOKED_AT);
            self.pair.run(next, &mut [&mut self.sender, &mut self.sink]);
            self.pair.open_missing();
        }
    }

    /// Runs while the path is broken.
    fn run_broken(&mut self, case: &Case, until: Time) {
        let mut down = false;
        while case.how == Break::Flapping && self.pair.now < until {
            down = !down;
            self.pair.set_down(case.broken, down);
            self.run((self.pair.now + FLAP).min(until));
        }
        self.run(until);
    }

    fn break_path(&mut self, case: &Case) {
        let path = &case.paths[case.broken];
        for direction in 0..2 {
            let mut link = self.pair.link(case.broken, direction);
            match case.how {
                Break::Silence => link.set_down(true),
                Break::OneWay => link.set_down(direction == 0),
                Break::OneWayBack => link.set_down(direction == 1),
                Break::Loss => link.set_loss(LossModel::Bernoulli(0.3)),
                Break::Rate => link.set_rate(path.mbit / 100.0),
                Break::Delay => link.set_delay(path.rtt / 2 * LONGER),
                Break::Flapping => {}
            }
        }
    }

    fn mend(&mut self, case: &Case) {
        let path = &case.paths[case.broken];
        for direction in 0..2 {
            let mut link = self.pair.link(case.broken, direction);
            link.set_down(false);
            link.set_loss(LossModel::Bernoulli(0.0));
            link.set_rate(path.mbit);
            link.set_delay(path.rtt / 2);
        }
    }

    /// Bytes that were sent over a cable by paths that the session still knows.
    fn sent_on(&mut self, cable: usize) -> u64 {
        let paths = self.pair.session(CLIENT).paths().into_iter();
        paths.filter(|path| path.route.socket as usize == cable).map(|path| path.stats.bytes_sent).sum()
    }
}

impl Case {
    /// When the ends can see that a path was mended at `mend_at`. Links keep the order of packets: behind those that left
    /// on a long way, all that follow arrive no sooner than they do, and round trips are as long as before until then.
    fn settled(&self, mend_at: Time) -> Time {
        match self.how {
            Break::Delay => mend_at + self.paths[self.broken].rtt / 2 * LONGER,
            _ => mend_at,
        }
    }

    /// Runs the case.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let cable = |path: &super::CasePath| CableConfig::new(path.mbit, path.rtt, path.bdp);
        let cables: Vec<_> = self.paths.iter().map(cable).collect();
        let configs = [Config::default(), Config::default()];
        let (sender, sink) = (Sender::new(u64::MAX), Sink::default());
        let mut world = World { pair: Pair::new(configs, &cables, self.number), sender, sink };
        let World { pair, sender, sink } = &mut world;
        pair.establish(&mut [sender, sink]);
        let break_at = Time::ZERO + self.after;
        world.run(break_at);
        let longest = world.pair.session(CLIENT).paths().iter().map(|path| path.rtt).max();
        let longest = longest.unwrap_or(Span::ZERO);
        let allowed = (longest * 3).max(Span::from_millis(200));
        world.break_path(self);
        let mend_at = break_at + BROKEN;
        world.run_broken(self, mend_at);
        world.mend(self);
        let gap = world.sink.longest_gap(break_at, break_at + Span::from_secs(3));
        let living = self.paths.iter().enumerate().filter(|(index, _)| *index != self.broken);
        let living: f64 = living.map(|(_, path)| path.mbit * PAYLOAD_SHARE).sum();
        let living_share = world.sink.mbit_s(break_at + allowed, mend_at) / living;

        world.run(self.settled(mend_at) + Span::from_secs(2).max(longest * 10));
        let before = world.sent_on(self.broken);
        let until = world.pair.now + MEASURED;
        world.run(until);
        let sent = world.sent_on(self.broken).saturating_sub(before);
        let restored_share = sent as f64 * 8e-6 / MEASURED.as_secs_f64() / self.paths[self.broken].mbit;
        Outcome { gap, allowed, living_share, restored_share }
    }
}
