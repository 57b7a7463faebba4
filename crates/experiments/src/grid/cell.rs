//! A random network of the grid, drawn from its number.

use std::fmt;

use anabranch_cc::RuleKind;
use anabranch_engine::{Config, SchedulerKind};
use anabranch_link::LossModel;
use anabranch_wire::Span;

use anabranch_sim::CableConfig;
use anabranch_sim::chance::{Chance, seed_of};

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x6772_6964;
const FILE: u64 = 10_000_000;
/// Smallest receive window: less would not hold the first flight.
const LEAST_WINDOW: u64 = 20_000;

/// A path of a cell, here and in the grid of tunnels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellPath {
    /// Bottleneck rate in Mbit/s.
    pub mbit: f64,
    /// Round-trip time without queues, in milliseconds.
    pub rtt_ms: f64,
    /// Loss probability of a packet towards the receiver.
    pub loss: f64,
    /// Length of the queue in bandwidth–delay products.
    pub bdp: f64,
}

/// A network and its traffic: a function of its number alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub number: u64,
    /// Two to four, in random order.
    pub paths: Vec<CellPath>,
    /// The receive buffer is one bandwidth–delay product of the path with the highest rate.
    pub tight: bool,
    /// Bytes to send; `None` for an endless flow.
    pub file: Option<u64>,
    /// The session's window rule; the default unless chosen.
    pub rule: RuleKind,
}

impl Cell {
    /// Draws the cell with this number. Rates are 10 to 100 Mbit/s, and down to a tenth of the highest; round-trip
    /// times 5 to 50 ms, and up to 300 ms more. Half of the cells have loss up to 5 %. Queues have 0.5 to 4
    /// bandwidth–delay products. Rates, losses and queues are uniform on a logarithmic scale.
    pub fn draw(number: u64) -> Self {
        let mut chance = Chance::new(seed_of(number, KIND, 0));
        let count = 2 + chance.below(3);
        let top = chance.scaled(10.0, 100.0);
        let base = chance.between(5.0, 50.0);
        let lossy = chance.below(2) == 0;
        let mut rates: Vec<f64> = (0..count).map(|_| top / chance.scaled(1.0, 10.0)).collect();
        rates[0] = top;
        let mut rtts: Vec<f64> = (0..count).map(|_| base + chance.between(0.0, 300.0)).collect();
        rtts[0] = base;
        chance.shuffle(&mut rates);
        chance.shuffle(&mut rtts);
        let path = |(mbit, rtt_ms)| CellPath {
            mbit,
            rtt_ms,
            loss: if lossy { chance.scaled(0.0001, 0.05) } else { 0.0 },
            bdp: chance.scaled(0.5, 4.0),
        };
        let paths = rates.into_iter().zip(rtts).map(path).collect();
        let tight = chance.below(2) == 0;
        let file = (chance.below(2) == 0).then_some(FILE);
        Self { number, paths, tight, file, rule: Config::default().cc.rule }
    }

    /// The settings of both ends, the same for one path and for all.
    pub fn config(&self, scheduler: SchedulerKind) -> Config {
        let mut config = Config { scheduler, ..Config::default() };
        config.cc.rule = self.rule;
        let best = self.paths.iter().max_by(|a, b| a.mbit.total_cmp(&b.mbit));
        if let Some(best) = best.filter(|_| self.tight) {
            let bdp = (best.mbit * best.rtt_ms * 1e3 / 8.0) as u64;
            let window = bdp.clamp(LEAST_WINDOW, config.memory.max_window);
            (config.memory.initial_window, config.memory.max_window) =
                (window.min(config.memory.initial_window), window);
        }
        config
    }

    /// One cable for each path.
    pub fn cables(&self) -> Vec<CableConfig> {
        self.paths.iter().map(CellPath::cable).collect()
    }
}

impl CellPath {
    fn cable(&self) -> CableConfig {
        let mut cable = CableConfig::new(self.mbit, Span::from_secs_f64(self.rtt_ms / 1e3), self.bdp);
        if self.loss > 0.0 {
            cable.links[0].loss = LossModel::Bernoulli(self.loss);
        }
        cable
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.file.is_some() { "10 MB" } else { "steady" };
        write!(f, "{what}, {} window", if self.tight { "tight" } else { "ample" })?;
        self.paths.iter().try_for_each(|path| write!(f, "; {path}"))
    }
}

impl fmt::Display for CellPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mbit, rtt_ms, loss, bdp } = self;
        write!(f, "{mbit:.1} Mbit/s {rtt_ms:.0} ms {:.2} % {bdp:.1} BDP", loss * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_what_the_grid_promises() {
        let cells: Vec<Cell> = (0..500).map(Cell::draw).collect();
        let mut first_is_fastest = 0;
        for cell in &cells {
            assert!((2..=4).contains(&cell.paths.len()));
            let top = cell.paths.iter().map(|path| path.mbit).fold(0.0, f64::max);
            let base = cell.paths.iter().map(|path| path.rtt_ms).fold(f64::MAX, f64::min);
            for path in &cell.paths {
                assert!(path.mbit * 10.001 >= top && path.rtt_ms <= base + 300.0, "{cell}");
                assert!(path.loss <= 0.05 && (0.5..=4.0).contains(&path.bdp), "{cell}");
            }
            first_is_fastest += usize::from(cell.paths[0].mbit == top);
        }
        assert!((100..250).contains(&first_is_fastest), "{first_is_fastest}");
        for kind in [|cell: &Cell| cell.tight, |cell: &Cell| cell.file.is_some()] {
            let share = cells.iter().filter(|cell| kind(cell)).count();
            assert!((200..300).contains(&share), "{share}");
        }
        assert_eq!(Cell::draw(77), Cell::draw(77));
    }

    #[test]
    fn a_tight_window_is_one_product_of_the_fastest_path() {
        let cell = (0..).map(Cell::draw).find(|cell| cell.tight).unwrap();
        let best = cell.paths.iter().max_by(|a, b| a.mbit.total_cmp(&b.mbit)).unwrap();
        let bdp = best.mbit * best.rtt_ms * 125.0;
        let window = cell.config(SchedulerKind::default()).memory.max_window as f64;
        assert!((window - bdp.max(20_000.0)).abs() <= 1.0, "{window} {bdp}");
    }
}
