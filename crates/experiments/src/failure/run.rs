//! One case in virtual time.

use std::cmp::Reverse;

use anabranch_engine::{Config, PathInfo, PathState};
use anabranch_link::LossModel;
use anabranch_wire::{Length, Span, Time};

use super::{Break, Case, CasePath, Outcome};
use anabranch_sim::{App, Sender, Sink, Ticker};
use anabranch_sim::{CLIENT, CableConfig, Pair, SERVER};

/// How long a path stays broken.
const BROKEN: Span = Span::from_secs(6);
/// How long the mended path is measured.
const MEASURED: Span = Span::from_secs(3);
/// UDP payload of 1,472 bytes: 1,430 of data in an IP packet of 1,500.
const PAYLOAD_SHARE: f64 = 1430.0 / 1500.0;
/// How often the driver reopens paths.
const LOOKED_AT: Span = Span::from_millis(250);
/// The factor of a longer delay.
const LONGER: u64 = 20;
/// How long a flapping path is up, and down.
const FLAP: Span = Span::from_millis(500);

/// Interval of the writes of a redundant stream.
const TICK: Span = Span::from_millis(5);
/// Rate of a redundant stream, as a share of the slowest path's rate.
const TICKED: f64 = 0.25;
/// A path can hold the stream if its window has had room for it for this many round trips.
const HELD_FOR: u64 = 2;
/// How often that is checked.
const STEP: Span = Span::from_millis(1);
/// Bytes of a full packet on the wire: one may be queued ahead.
const PACKET: f64 = 1500.0;

struct World<S> {
    pair: Pair<Length>,
    sender: S,
    sink: Sink,
    /// The longest time between two calls of the sender.
    step: Span,
}

impl<S: App<Length>> World<S> {
    fn new(case: &Case, sender: S, step: Span) -> Self {
        let cable = |path: &CasePath| CableConfig::new(path.mbit, path.rtt, path.bdp);
        let cables: Vec<_> = case.paths.iter().map(cable).collect();
        let mut config = Config::default();
        config.cc.rule = case.rule;
        let pair = Pair::new([config.clone(), config], &cables, case.number);
        let mut world = Self { pair, sender, sink: Sink::default(), step };
        world.pair.establish(&mut [&mut world.sender, &mut world.sink]);
        world
    }

    /// Runs, and reopens abandoned paths, as a driver does.
    fn run(&mut self, until: Time) {
        while self.pair.now < until {
            let next = until.min(self.pair.now + LOOKED_AT);
            while self.pair.now < next {
                let step = next.min(self.pair.now + self.step);
                self.pair.run(step, &mut [&mut self.sender, &mut self.sink]);
            }
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

    /// The longest smoothed round-trip time in use when a path breaks. A path that is used only later counts with its later
    /// round-trip time.
    fn longest_rtt(&mut self, case: &Case) -> Span {
        let cables = 0..case.paths.len();
        let rtts = cables.map(|cable| self.rtt(cable).unwrap_or_else(|| case.rtt_after_break(cable)));
        rtts.max().unwrap_or(Span::ZERO)
    }

    /// The smoothed round-trip time over a cable that is in use.
    fn rtt(&mut self, cable: usize) -> Option<Span> {
        let paths = self.pair.session(CLIENT).paths().into_iter();
        let in_use = |path: &PathInfo| path.state != PathState::Validating;
        let its = paths.filter(|path| path.route.socket as usize == cable && in_use(path));
        its.map(|path| path.rtt).max()
    }

    /// The congestion window of a cable's path in bytes; 0 without a path.
    fn window(&mut self, cable: usize) -> u64 {
        let paths = self.pair.session(CLIENT).paths().into_iter();
        paths.filter(|path| path.route.socket as usize == cable).map(|path| path.window).max().unwrap_or(0)
    }

    /// Mbit/s of stream bytes, each counted once, that arrive over a cable from now on.
    fn received_while_measured(&mut self, cable: usize) -> f64 {
        let before = self.received_on(cable);
        self.run(self.pair.now + MEASURED);
        self.received_on(cable).saturating_sub(before) as f64 * 8e-6 / MEASURED.as_secs_f64()
    }

    /// Stream bytes that arrived first over a cable, by paths that the session still knows.
    fn received_on(&mut self, cable: usize) -> u64 {
        let paths = self.pair.session(SERVER).paths().into_iter();
        let its = paths.filter(|path| path.route.socket as usize == cable);
        its.map(|path| path.stats.data_received).sum()
    }

    /// Mbit/s sent over a cable from now on.
    fn sent_while_measured(&mut self, cable: usize) -> f64 {
        let before = self.sent_on(cable);
        self.run(self.pair.now + MEASURED);
        self.sent_on(cable).saturating_sub(before) as f64 * 8e-6 / MEASURED.as_secs_f64()
    }

    /// Bytes that were sent over a cable by paths that the session still knows.
    fn sent_on(&mut self, cable: usize) -> u64 {
        let paths = self.pair.session(CLIENT).paths().into_iter();
        paths.filter(|path| path.route.socket as usize == cable).map(|path| path.stats.bytes_sent).sum()
    }
}

impl Case {
    /// The round-trip time of full packets in both directions on a path without queues, after a path broke.
    fn rtt_after_break(&self, index: usize) -> Span {
        let CasePath { mbit, rtt, .. } = self.paths[index];
        let (mbit, rtt) = match self.how {
            Break::Rate if index == self.broken => (mbit / 100.0, rtt),
            Break::Delay if index == self.broken => (mbit, rtt * LONGER),
            _ => (mbit, rtt),
        };
        rtt + Span::from_secs_f64(2.0 * PACKET * 8e-6 / mbit)
    }

    /// When the ends can notice that a path was repaired at `mend_at`. Links keep the order of packets, so packets behind
    /// those with a long delay arrive after them.
    fn settled(&self, mend_at: Time) -> Time {
        match self.how {
            Break::Delay => mend_at + self.paths[self.broken].rtt / 2 * LONGER,
            _ => mend_at,
        }
    }

    /// Runs the case.
    pub fn run(&self) -> Outcome {
        let mut world = World::new(self, Sender::new(u64::MAX), LOOKED_AT);
        let break_at = Time::ZERO + self.after;
        world.run(break_at);
        let allowed = allowed(world.longest_rtt(self));
        let own = world.rtt(self.broken).unwrap_or(self.paths[self.broken].rtt);
        world.break_path(self);
        let mend_at = break_at + BROKEN;
        world.run_broken(self, mend_at);
        world.mend(self);
        let living = self.paths.iter().enumerate().filter(|(index, _)| *index != self.broken);
        let living: f64 = living.map(|(_, path)| path.mbit * PAYLOAD_SHARE).sum();
        let living_share = world.sink.mbit_s(break_at + allowed, mend_at) / living;

        world.run(self.settled(mend_at) + Span::from_secs(2).max(own * 10));
        let restored = world.received_while_measured(self.broken);
        let restored_share = restored / (self.paths[self.broken].mbit * PAYLOAD_SHARE);
        let gap = world.sink.longest_gap(break_at, world.pair.now);
        Outcome { gap, allowed, living_share, restored_share, spent: world.pair.spent() }
    }

    /// Runs the case with a redundant stream that each path could carry alone; shares are of the bytes written.
    ///
    /// The allowed gap is the difference of one-way delays between the fastest working path that can hold the stream and the
    /// broken one, plus the pause between two writes and their time on that path behind a full packet. If no path can hold
    /// it yet, the gap without redundancy is allowed.
    pub fn run_redundant(&self) -> Outcome {
        let slowest = self.paths.iter().map(|path| path.mbit).fold(f64::MAX, f64::min);
        let chunk = slowest * TICKED * 1e6 / 8.0 * TICK.as_secs_f64();
        let mut world = World::new(self, Ticker::new(chunk as usize, TICK), STEP);
        let break_at = Time::ZERO + self.after;
        let quickest = self.quickest_holding(&mut world, chunk, break_at);
        let allowed = match quickest {
            Some(path) => self.allowed_redundant(path, chunk),
            None => allowed(world.longest_rtt(self)),
        };
        let before = (world.sender.written, world.sink.received);
        world.break_path(self);
        let mend_at = break_at + BROKEN;
        world.run_broken(self, mend_at);
        world.mend(self);
        let written = (world.sender.written - before.0) as f64;
        let living_share = (world.sink.received - before.1) as f64 / written;
        let gap = world.sink.longest_gap(break_at, mend_at);
        let longest = self.paths.iter().map(|path| path.rtt).max().unwrap_or(Span::ZERO);
        world.run(self.settled(mend_at) + Span::from_secs(2).max(longest * 10));
        let restored_share = world.sent_while_measured(self.broken) / (slowest * TICKED);
        Outcome { gap, allowed, living_share, restored_share, spent: world.pair.spent() }
    }

    /// Runs until the break. Returns the fastest working path that can hold a redundant stream of `chunk` bytes each
    /// [`TICK`]: its window has had room for it for [`HELD_FOR`] round trips, so earlier backlogs are gone.
    fn quickest_holding<S: App<Length>>(
        &self,
        world: &mut World<S>,
        chunk: f64,
        break_at: Time,
    ) -> Option<&CasePath> {
        let holds = |world: &mut World<S>, index: usize, path: &CasePath| {
            let needed = chunk * path.rtt.as_secs_f64() / TICK.as_secs_f64();
            world.window(index) as f64 >= needed
        };
        let mut living: Vec<_> = self.paths.iter().enumerate().collect();
        living.remove(self.broken);
        living.sort_by_key(|(_, path)| Reverse(path.rtt));
        living.retain(|(index, path)| {
            let since = self.after.saturating_sub(path.rtt * HELD_FOR);
            world.run(Time::ZERO + since);
            world.pair.now == Time::ZERO + since && holds(world, *index, path)
        });
        world.run(break_at);
        living.retain(|(index, path)| holds(world, *index, path));
        living.last().map(|(_, path)| *path)
    }

    /// The allowed gap of a redundant stream of `chunk` bytes each [`TICK`] that this path can hold.
    fn allowed_redundant(&self, holding: &CasePath, chunk: f64) -> Span {
        let sending = Span::from_secs_f64((chunk + PACKET) * 8e-6 / holding.mbit);
        holding.rtt.saturating_sub(self.paths[self.broken].rtt) / 2 + TICK + STEP + sending
    }
}

/// The allowed gap in delivery for this longest smoothed round-trip time.
fn allowed(longest: Span) -> Span {
    (longest * 3).max(Span::from_millis(200))
}
