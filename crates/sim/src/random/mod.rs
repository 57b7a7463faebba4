//! Random operations on a [`Pair`](crate::Pair), from a seed: what a test runs by the thousand.
//!
//! A seed makes a world (`world`): one to four cables of any quality, a configuration for each end, and
//! a script in virtual time: cuts, one-way cuts, changes of address, rate, loss and packet size, streams,
//! resets, stops, datagrams, slow readers, paths opened and closed, and an end (graceful, early, abort, one
//! end gone). Two applications that rely on events alone (`talker`) execute it and check every byte. The run
//! (`run`) checks invariants all the time. At the end, when all links work, everything must be delivered and both sessions
//! closed.

mod dice;
mod run;
mod talker;
mod world;

pub use run::{Broken, Summary, describe, run};
