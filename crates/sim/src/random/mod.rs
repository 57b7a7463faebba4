//! Random operations on a [`Pair`](crate::Pair), from a seed: what a test runs by the thousand.
//!
//! A seed makes a world (`world`): one to four cables of any quality, a configuration for each end, and
//! a script in virtual time: cuts, one-way cuts, changes of address, rate, loss and packet size, streams,
//! resets, stops, datagrams, slow readers, paths opened and closed, and an end (graceful, early, abort, one
//! end gone). Two applications that live by events alone (`talker`) carry it out and know every byte. The run
//! (`run`) looks at what must hold all the time, and at the end, when everything is mended, asks for
//! everything to have been delivered and for both sessions to be closed.

mod dice;
mod run;
mod talker;
mod world;

pub use run::{Broken, Summary, describe, run};
