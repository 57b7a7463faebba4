//! The core of the tunnel, without I/O: assigns packets to flows, chooses their lane, path and time, and converts
//! between packets and super-packets.
//!
//! ```text
//! device ─ super-packet ─▶ offload::segment ─▶ entry queue (fair, CoDel) ─ asked by the session ─▶ lane, path ─▶ datagram
//! datagram ─▶ (in order per flow, in the session) ─▶ guard: source, MSS, ECN ─▶ coalesce ─ super-packet ─▶ device
//! ```
//!
//! | module | job |
//! |---|---|
//! | `packet`, `checksum` | headers of inner packets |
//! | `flow` | the flow of a packet |
//! | `offload` | splits the device's super-packets into packets |
//! | `coalesce` | joins packets of one flow into a super-packet |
//! | `queue` | a fair queue over flows with CoDel |
//! | `router` | flow routing (SAFIRE [S1, S2]): a path for each flow |
//! | `trial` | whether striping pays for a flow |
//! | `entry` | the entry queue and the choice of lane and path, asked by the session |
//! | `rewrite`, `icmp` | what a tunnel changes in packets, or answers to them |
//! | `policy` | classes of packets and their lanes |
//! | `access` | prefixes: who may send from where to where |
//! | `message` | what both ends agree on over the control stream |
//! | `session` | settings of the session below |

pub mod access;
pub mod checksum;
pub mod coalesce;
mod codel;
pub mod entry;
pub mod flow;
pub mod icmp;
pub mod message;
pub mod offload;
pub mod packet;
pub mod policy;
pub mod queue;
pub mod rewrite;
pub mod router;
#[cfg(test)]
mod samples;
pub mod session;
mod trial;
