//! Engines joined by modelled links in virtual time.
//!
//! A [`Pair`] is two sessions and the cables between them: the smallest network, and the one most tests of
//! the engine run on. Everything is a pure function of its arguments and seeds.

mod app;
mod chance;
pub mod failure;
pub mod fairness;
pub mod grid;
pub mod network;
pub mod overlay;
mod pair;
pub mod random;
pub mod scenario;
mod spent;

pub use app::{App, Delivery, Idle, Sender, Sink, Ticker};
pub use pair::{CLIENT, CableConfig, CountedPids, End, LinkHandle, Pair, SERVER};
pub use spent::Spent;
