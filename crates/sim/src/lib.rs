//! Engines joined by modelled links in virtual time.
//!
//! A [`Pair`] is two sessions and the cables between them: the smallest network, and the one most tests of
//! the engine run on. Everything is a pure function of its arguments and seeds.

mod app;
pub mod chance;
pub mod network;
mod pair;
pub mod random;
mod spent;

pub use app::{App, Delivery, Idle, Sender, Sink, Ticker};
pub use pair::{CLIENT, CableConfig, CountedPids, End, LinkHandle, Pair, SERVER};
pub use spent::Spent;
