//! A network of the tunnel grid: how it is drawn from its number, and its runs.

use std::fmt;

use anabranch_cc::RuleKind;
use anabranch_engine::{Config, MtuConfig};
use anabranch_link::{LinkConfig, LossModel};
use anabranch_sim::chance::{Chance, seed_of};
use anabranch_sim::network::{FlowPlan, InTunnel, Network, PathPlan, Plan, TunnelPlan};
use anabranch_tunnel::entry::Lane;
use anabranch_tunnel::session::{MTU, session_config};
use anabranch_wire::{Rate, Span, Time};

use crate::grid::CellPath;

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x7475_6e6e;
/// Bytes of IPv4 and UDP headers on each packet.
const OVERHEAD: u32 = 28;
/// UDP payload of the largest inner packet.
const INNER: u16 = MTU - OVERHEAD as u16;
/// Shortest queue: the packets that a sender without pacing sends at once.
const LEAST_QUEUE: u64 = 10 * 1500;
/// When a flow is measured.
const MEASURED: (Time, Time) = (Time::from_nanos(6_000_000_000), Time::from_nanos(21_000_000_000));

/// The inner flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// A TCP with CUBIC that the tunnel may end: `auto` takes the stream lane.
    Tcp,
    /// The same as packets.
    TcpPackets,
    /// A QUIC-like flow with this rule.
    Quic(RuleKind),
}

/// A tunnel and its flow: a function of its number alone.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelCell {
    pub number: u64,
    /// Two or three, in random order.
    pub paths: Vec<CellPath>,
    /// Its flow.
    pub inner: Inner,
}

/// The result of one seed: goodputs in Mbit/s.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelRun {
    /// Over all paths, with each of [`super::LANES`].
    pub lanes: [f64; 3],
    /// Over each path alone.
    pub singles: Vec<f64>,
}

impl TunnelCell {
    /// Draws the cell with this number. The highest rate is 5 to 40 Mbit/s, the others are down to a twentieth of it. The
    /// shortest round-trip time is 10 to 60 ms, the others are up to 200 ms longer. Half of the cells lose 0.03 to 3 %
    /// on every path. Queues have 0.25 to 10 bandwidth–delay products. All except times are uniform on a logarithmic
    /// scale.
    pub fn draw(number: u64) -> Self {
        let mut chance = Chance::new(seed_of(number, KIND, 0));
        let count = 2 + chance.below(2);
        let (top, base) = (chance.scaled(5.0, 40.0), chance.between(10.0, 60.0));
        let lossy = chance.below(2) == 0;
        let mut rates: Vec<f64> = (0..count).map(|_| top / chance.scaled(1.0, 20.0)).collect();
        rates[0] = top;
        let mut rtts: Vec<f64> = (0..count).map(|_| base + chance.between(0.0, 200.0)).collect();
        rtts[0] = base;
        chance.shuffle(&mut rates);
        chance.shuffle(&mut rtts);
        let path = |(mbit, rtt_ms)| CellPath {
            mbit,
            rtt_ms,
            loss: if lossy { chance.scaled(0.0003, 0.03) } else { 0.0 },
            bdp: chance.scaled(0.25, 10.0),
        };
        let paths = rates.into_iter().zip(rtts).map(path).collect();
        let inner = match number % 4 {
            0 => Inner::TcpPackets,
            1 => Inner::Quic(RuleKind::Cubic),
            2 => Inner::Tcp,
            _ => Inner::Quic(RuleKind::Bbr),
        };
        Self { number, paths, inner }
    }

    /// Runs the cell with a seed, which decides which packets the links lose.
    pub fn run(&self, seed: u64) -> TunnelRun {
        let auto = (self.inner != Inner::Tcp).then_some(Lane::Auto);
        let lanes = [auto, Some(Lane::Routed), Some(Lane::Striped)];
        let singles = self.paths.iter().map(|path| self.carry(&[*path], auto, seed)).collect();
        TunnelRun { lanes: lanes.map(|lane| self.carry(&self.paths, lane, seed)), singles }
    }

    /// The rate of the flow in a lane of a tunnel over these paths; `None` is the stream lane.
    fn carry(&self, paths: &[CellPath], lane: Option<Lane>, seed: u64) -> f64 {
        let route =
            |path: usize| PathPlan { forward: vec![path as u32 * 2], back: vec![path as u32 * 2 + 1] };
        let mut config = session_config();
        config.max_paths = paths.len() as u32;
        let tunnel = TunnelPlan { paths: (0..paths.len()).map(route).collect(), config: config.into() };
        let flow = FlowPlan::bulk(Vec::new(), self.inner.config(), (Time::ZERO, Time::NEVER));
        let is_tcp = !matches!(self.inner, Inner::Quic(_));
        let flow = FlowPlan { tunnel: Some(InTunnel { tunnel: 0, lane, is_tcp }), ..flow };
        let links = paths.iter().flat_map(links).collect();
        let plan = Plan { seed, links, flows: vec![flow], tunnels: vec![tunnel], ..Plan::default() };
        let mut network = Network::new(plan);
        network.run(MEASURED.0);
        let before = network.flow(0).bytes;
        network.run(MEASURED.1);
        (network.flow(0).bytes - before) as f64 * 8e-6 / MEASURED.1.since(MEASURED.0).as_secs_f64()
    }
}

impl Inner {
    /// The settings of both ends.
    fn config(self) -> Config {
        let (mut config, rule) = match self {
            Self::Tcp | Self::TcpPackets => (Config::tcp(), RuleKind::Cubic),
            Self::Quic(rule) => (Config::default(), rule),
        };
        (config.cc.rule, config.cc.initial_window, config.max_paths) = (rule, 10, 1);
        config.mtu = MtuConfig { base: config.mtu.base.min(INNER), max: INNER };
        config
    }
}

/// The links of a path, there and back.
fn links(path: &CellPath) -> [LinkConfig; 2] {
    let (rate, half) = (Rate::from_mbit(path.mbit), Span::from_secs_f64(path.rtt_ms / 2e3));
    let queue = (rate.bytes_in(half * 2) as f64 * path.bdp) as u64;
    let link = LinkConfig::fixed(rate, half, queue.max(LEAST_QUEUE));
    let back = LinkConfig { overhead: OVERHEAD, ..link.clone() };
    let loss = if path.loss > 0.0 { LossModel::Bernoulli(path.loss) } else { LossModel::None };
    [LinkConfig { loss, ..back.clone() }, back]
}

impl fmt::Display for TunnelCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner {
            Inner::Tcp => write!(f, "tcp")?,
            Inner::TcpPackets => write!(f, "tcp as packets")?,
            Inner::Quic(rule) => write!(f, "quic {rule}")?,
        }
        self.paths.iter().try_for_each(|path| write!(f, "; {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_what_the_grid_promises() {
        let cells: Vec<TunnelCell> = (0..300).map(TunnelCell::draw).collect();
        for cell in &cells {
            let top = cell.paths.iter().map(|path| path.mbit).fold(0.0, f64::max);
            let base = cell.paths.iter().map(|path| path.rtt_ms).fold(f64::MAX, f64::min);
            assert!((2..=3).contains(&cell.paths.len()), "{cell}");
            for path in &cell.paths {
                assert!(path.mbit * 20.001 >= top && path.rtt_ms <= base + 200.0, "{cell}");
                assert!(path.loss <= 0.03 && (0.25..=10.0).contains(&path.bdp), "{cell}");
            }
        }
        let lossy = cells.iter().filter(|cell| cell.paths[0].loss > 0.0).count();
        assert!((120..180).contains(&lossy), "{lossy}");
    }

    #[test]
    fn a_path_that_filled_once_is_used_again() {
        let path = |mbit| CellPath { mbit, rtt_ms: 1.0, loss: 0.0, bdp: 50.0 };
        let paths = [25.0, 15.0, 10.0].map(path).to_vec();
        let run = TunnelCell { number: 0, paths, inner: Inner::Quic(RuleKind::Bbr) }.run(1);
        let best = run.singles.iter().copied().fold(0.0, f64::max);
        assert!(run.lanes[0] > 1.4 * best, "{run:?}");
    }
}
