//! Networks of sessions and modelled links in virtual time.
//!
//! - A [`Pair`] is two sessions joined by cables. Most tests of the engine use it.
//! - A [`network::Network`] has many sessions over many links, with arriving sessions, plain packets and changing links.
//!
//! Everything is a pure function of its arguments and seeds. Scenario files and experiments are in `anabranch-experiments`.

mod app;
pub mod chance;
pub mod network;
mod pair;
mod spent;

pub use app::{App, Delivery, Idle, Sender, Sink, Ticker};
pub use pair::{CLIENT, CableConfig, CountedPids, End, LinkHandle, Pair, SERVER};
pub use spent::Spent;
