//! The running tunnel: a TUN device, the system's settings around it, and the sessions that carry its packets.
//!
//! | module | job |
//! |---|---|
//! | `device` | the TUN device: reads and writes super-packets |
//! | `system` | addresses, routes, rules, DNS, NAT: the commands that set them up and remove them |
//! | `guard` | a small process that removes them when this one is killed |
//! | `pump` | packets from the device into entry queues, and from sessions into the device |
//! | `streams` | the stream lane: TCP connections as streams of a session |
//! | `client` | `tunnel up`: one session at a time, dialed again when it is lost |
//! | `hosts` | the addresses that a server gives its clients |
//! | `server` | `tunnel serve`: many clients behind one device |
//! | `metrics` | the status for Prometheus |
//! | `status` | what a running tunnel reports |
//!
//! `anabranch-tunnel` decides the lane and path of each packet, without I/O.

pub mod client;
pub mod device;
mod error;
pub mod guard;
mod hosts;
mod metrics;
mod pump;
pub mod server;
pub mod status;
mod streams;
pub mod system;
mod table;

pub use error::TunnelError;
