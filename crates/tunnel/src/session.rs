//! Settings of the sessions that carry a tunnel.

use anabranch_engine::{Config, DatagramMode};
use anabranch_wire::Span;

use crate::entry::class;

/// Largest inner packet of a tunnel over ordinary paths.
pub const MTU: u16 = 1380;
/// Most connections of the stream lane in one session at the same time.
pub const MOST_CONNECTIONS: usize = 4096;

/// Settings of both ends of a session that carries a tunnel.
pub fn session_config() -> Config {
    let mut config = Config {
        // Paths may be silent for long: a closed laptop, a train in a tunnel.
        idle_timeout: Span::from_secs(1800),
        keep_alive: Some(Span::from_secs(15)),
        max_streams: MOST_CONNECTIONS as u64,
        ..Config::default()
    };
    config.memory.datagrams = 4096;
    config.memory.independent_streams = true;
    config.datagrams.ordered_classes = class::ORDERED;
    config.datagrams.burst_classes = class::BURST;
    config.datagrams.urgent_classes = class::URGENT;
    config.datagrams.modes[usize::from(class::REDUNDANT)] = DatagramMode::Redundant;
    config.datagrams.modes[usize::from(class::PROTECTED)] = DatagramMode::Protected;
    config
}
