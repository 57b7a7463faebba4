//! Experiments on the simulator.
//!
//! A [`scenario`] file describes links, flows, events and expected results. Six experiments are written in Rust, because
//! each draws its own networks: [`grid`], [`failure`], [`fairness`], [`losses`], [`overlay`] and [`tunnels`]. [`results`]
//! and [`plots`] compare and draw many runs.
//!
//! A result is a pure function of a scenario (or a case number) and a seed. The caller reads files, runs threads and
//! draws.

pub mod failure;
pub mod fairness;
pub mod grid;
pub mod losses;
pub mod overlay;
pub mod plots;
pub mod results;
pub mod scenario;
pub mod tunnels;
