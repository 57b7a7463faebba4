//! Random operations on a [`Pair`](anabranch_sim::Pair) from a seed, for tests with thousands of seeds.
//!
//! A seed determines a world (`world`): one to four cables of any quality, a configuration for each end, and a script
//! in virtual time. The script has cuts, one-way cuts, changes of address, rate, loss and packet size, streams, resets,
//! stops, datagrams, slow readers, and paths that open and close. It ends gracefully, early, by an abort, or with one
//! end gone. Two applications that rely only on events (`talker`) execute it and check every byte. The run (`run`)
//! checks invariants throughout. At the end, when all links work, all data must be delivered and both sessions closed.

mod dice;
mod run;
mod talker;
mod world;

pub use run::{Summary, describe, run};
