//! Sensing: round-trip times, loss and capacity between relays (SAFIRE §II.A [S3], PSMC §3.C [T9]).
//!
//! Probing every pair costs n² packets; at RON's rate that limits the overlay to some fifty nodes. Here a node
//! measures a few neighbours, whatever the size of the overlay, and all other links are estimated and marked as such.
//!
//! ```text
//!   controller: Mesh ── neighbours ──▶ Sensor (each relay) ── probe, answer ── Sensor (a neighbour)
//!               LinkMap ◀── Changes, by version ──┘
//!                  └─▶ Figures of any pair, measured or estimated; the best ways
//! ```
//! - **Neighbours.** [`Mesh`] gives each relay `k` neighbours to measure, and `k` others that measure it. When a
//!   relay comes or goes, `k` others change one neighbour. Requested pairs are measured for a while too.
//! - **Probes.** Relays have no traffic of their own with each other and cannot read what they forward; live traffic
//!   is measured by its sessions, on each of their paths. A link is probed once every [`SensorConfig::interval`].
//!   After an unanswered probe others follow at once; after [`LOST_IN_A_ROW`] of them the link is down. An answer
//!   says how many probes came and when, so loss and changes of delay are known for each direction.
//! - **Capacity.** A packet train ([`Train`]) measures a link's capacity and its unused part. Requested links get
//!   their train first. Each link has at most two every ten minutes, and its result is remembered for two hours after
//!   the link was last measured. A node with a rate limit sends trains at that rate, after waiting packets of others.
//! - **Budget.** All packets that a node sends for sensing, with headers and acknowledgements, come out of four
//!   [`Bucket`]s: probes, answers, changes for controllers, and trains (with all handshakes, and acknowledgements of
//!   others' trains); [`SensorConfig::budget`] in total. When a bucket is empty nothing is sent: a probe waits, an
//!   answer is omitted, changes accumulate.
//! - **Estimates.** Every node has a [`Coordinate`] (Vivaldi): the distance of two is about their round-trip time.
//!   Loss is estimated from the least loss over each node's links.
//! - **Changes, not states.** A link is reported again when it differs noticeably from the last report. A node
//!   numbers its changes; a controller returns the version that it has, and newer changes are sent ([`Changes`]). A
//!   controller that restarted or missed some gets everything [S7].
//! - **Little history.** A link has averages, a decaying count of losses and two minima, but no samples.

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
mod ways;

pub use bucket::Bucket;
pub use coordinate::{Coordinate, Placed};
pub use estimate::Figures;
pub use link::LOST_IN_A_ROW;
pub use map::{LinkMap, NodeView};
pub use mesh::Mesh;
pub use message::{Answer, CAR, Car, Changes, LinkTold, Probe, Seen, SenseMessage};
pub use sensor::{CALL_COST, CALLED_COST, Sensor, SensorConfig, SensorStats};
pub use train::Train;
pub use ways::{RelayWay, WayLimits, best_ways, stretches};
