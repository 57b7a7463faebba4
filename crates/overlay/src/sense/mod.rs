//! Sensing: how far apart relays are and what gets lost between them (SAFIRE §II.A [S3], PSMC §3.C [T9]).
//!
//! Probing every pair costs n² packets; at RON's rate it ends at some fifty nodes. Here a node measures a few
//! neighbours, whatever the size of the overlay, and all other links are estimated and marked so.
//!
//! ```text
//!   controller: Mesh ── whom to measure ──▶ Sensor (each relay) ── probe, answer ── Sensor (a neighbour)
//!               LinkMap ◀── Changes, by version ──┘
//!                  └─▶ Figures of any pair, measured or estimated; the best ways
//! ```
//! - **Who measures whom.** [`Mesh`] gives each relay `k` neighbours to measure, and has each measured by `k` others. When a relay
//!   comes or goes, `k` of the others get one other neighbour. A pair that somebody asks for is measured for a while too.
//! - **Probes.** Relays have no traffic of their own with each other, and cannot read what they forward: live traffic is measured by the
//!   sessions that it belongs to, on each of their paths. One probe a link every [`SensorConfig::interval`]. A probe without answer is followed by others at once; after
//!   [`LOST_IN_A_ROW`] the link is down. The answer says how many probes came and when, so each direction has its loss and its change of
//!   delay.
//! - **What a link carries** packet trains tell ([`Train`]): what comes out of it when many packets leave at once, and how much others leave of that.
//!   A link that somebody asks for has its train first; each has two at most every ten minutes; what they told is remembered for two hours after a link
//!   is measured no more. Where a node sends at a rate of its own, trains keep to it and wait for what it sends for others.
//! - **The budget.** All that a node sends for sensing, packets' headers and acknowledgements included, comes out of four
//!   [`Bucket`]s: its probes, its answers to others, its changes for controllers, its trains (with all handshakes, and the acknowledgements
//!   of others' trains); [`SensorConfig::budget`] in all. What a bucket does not hold is not
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
mod train;
#[cfg(test)]
mod train_tests;
mod ways;

pub use bucket::Bucket;
pub use coordinate::{Coordinate, Placed};
pub use estimate::Figures;
pub use link::LOST_IN_A_ROW;
pub use map::{LinkMap, NodeView};
pub use mesh::Mesh;
pub use message::{Answer, Car, Changes, LinkTold, Probe, Seen, SenseMessage};
pub use sensor::{CALL_COST, CALLED_COST, Sensor, SensorConfig, SensorStats};
pub use train::{CAR, Train};
pub use ways::{RelayWay, WayLimits, best_ways, stretches};
