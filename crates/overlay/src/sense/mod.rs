//! Sensing: how far apart relays are and what gets lost between them (SAFIRE §II.A [S3], PSMC §3.C [T9]).
//!
//! Probing every pair costs n² packets; at RON's rate it ends at some fifty nodes. Here a node measures a few
//! neighbours, whatever the size of the overlay, and all other links are estimated and marked so.
//!
//! ```text
//!   controller: Mesh ── whom to measure ──▶ Sensor (each relay) ── probe, answer ── Sensor (a neighbour)
//!               LinkMap ◀── Changes, by version ──┘      ▲── live traffic
//!                  └─▶ Figures of any pair, measured or estimated; the best ways
//! ```
//! - **Who measures whom.** [`Mesh`] gives each relay `k` neighbours to measure, and has each measured by `k` others. When a relay
//!   comes or goes, `k` of the others get one other neighbour. A pair that somebody asks for is measured for a while too.
//! - **Live traffic first.** What a session between two relays tells of the link ([`Sensor::handle_live`]) counts like a probe and
//!   puts the next probe off.
//! - **Probes second.** One probe a link every [`SensorConfig::interval`]. A probe without answer is followed by others at once; after
//!   [`LOST_IN_A_ROW`] the link is down. The answer says how many probes came and when, so each direction has its loss and its change of
//!   delay.
//! - **The budget.** All that a node sends for sensing, packets' headers and acknowledgements included, comes out of three
//!   [`Bucket`]s: its probes, its answers to others, its changes for controllers; [`SensorConfig::budget`] in all. What a bucket does not hold is not
//!   sent: a probe waits, an answer is left out, changes gather.
//! - **The rest is estimated.** Every node has a [`Coordinate`] (Vivaldi): the distance of two is about their round-trip time. Loss is
//!   put together from what all links of a node have in common.
//! - **Changes, not states.** A link is told again when it differs noticeably from what was told. A node counts its changes; a controller
//!   says up to which it knows; what is newer is sent ([`Changes`]). Who restarts or has missed some gets everything [S7].
//! - **Little history.** A link has averages, a decaying count of losses and two minima; no samples are kept.

mod bucket;
mod coordinate;
mod estimate;
mod link;
mod map;
mod mesh;
mod message;
mod sensor;
#[cfg(test)]
mod tests;
mod ways;

pub use bucket::Bucket;
pub use coordinate::{Coordinate, Placed};
pub use estimate::Figures;
pub use link::{LOST_IN_A_ROW, Live};
pub use map::{LinkMap, NodeView};
pub use mesh::Mesh;
pub use message::{Answer, Changes, LinkTold, Probe, SenseMessage};
pub use sensor::{Sensor, SensorConfig, SensorStats};
pub use ways::{RelayWay, WayLimits, best_ways, stretches};
