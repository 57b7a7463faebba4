//! Runs a cell with a seed: every path alone, then all together.

use anabranch_engine::{Config, SchedulerKind};
use anabranch_wire::{Length, Span, Time};

use super::Cell;
use anabranch_sim::Spent;
use anabranch_sim::{CableConfig, Pair};
use anabranch_sim::{Sender, Sink};

/// When an endless flow is measured.
const STEADY: (Time, Time) = (Time::from_nanos(5_000_000_000), Time::from_nanos(25_000_000_000));
/// How long a file may take.
const PATIENCE: Span = Span::from_secs(600);

/// The result of one seed; rates are goodputs in Mbit/s.
#[derive(Clone, Debug, PartialEq)]
pub struct CellRun {
    /// Over all paths at once.
    pub multi: f64,
    /// Over each path alone.
    pub singles: Vec<f64>,
    /// Bytes sent over all paths together, needed and not.
    pub spent: Spent,
}

impl Cell {
    /// Runs the cell with a seed, which decides which packets the links lose.
    pub fn run(&self, scheduler: SchedulerKind, seed: u64) -> CellRun {
        let (config, cables) = (self.config(scheduler), self.cables());
        let singles = cables.iter().map(|cable| self.carry(&config, std::slice::from_ref(cable), seed).0);
        let singles = singles.collect();
        let (multi, spent) = self.carry(&config, &cables, seed);
        CellRun { multi, singles, spent }
    }

    /// Runs over these cables; returns the rate and the bytes sent.
    fn carry(&self, config: &Config, cables: &[CableConfig], seed: u64) -> (f64, Spent) {
        let mut pair: Pair<Length> = Pair::new([config.clone(), config.clone()], cables, seed);
        let (mut sender, mut sink) = (Sender::new(self.file.unwrap_or(u64::MAX)), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        let rate = match self.file {
            None => {
                pair.run(STEADY.1, &mut [&mut sender, &mut sink]);
                sink.mbit_s(STEADY.0, STEADY.1)
            }
            Some(bytes) => {
                let deadline = Time::ZERO + PATIENCE;
                while sink.finished_at.is_none() && pair.now < deadline {
                    pair.run(pair.now + Span::from_millis(100), &mut [&mut sender, &mut sink]);
                }
                bytes as f64 * 8e-6 / sink.finished_at.unwrap_or(deadline).as_secs_f64()
            }
        };
        (rate, pair.spent())
    }
}
