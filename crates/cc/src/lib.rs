//! Congestion control: how much may be outstanding on each path, and how fast it may leave.
//!
//! The engine's scoreboard turns acks and losses into [`AckSample`]s and [`LossEvent`]s and hands them to the
//! session's one [`Controller`]; it reads back a window and a pacing rate for each path. Nothing here sees
//! packets, sockets or a clock.
//!
//! The controller does what all rules have in common: slow start with HyStart++ on each path by itself,
//! growth only where the window is what limits the sender, one reduction for an episode of losses, undo,
//! restart after idle, bounds. A [`RuleKind`] names how a window grows in congestion avoidance and what a loss
//! takes from it; most rules are a few lines over the windows and round-trip times of a *group* of paths, the
//! ones that are to count as one flow where they share a bottleneck. `bbr` models each path instead.

mod bbr;
mod config;
mod controller;
mod reduction;
mod rtt;
mod rules;
mod sample;
mod slow_start;
mod window;

pub use config::{Config, RuleKind, UnknownRule};
pub use controller::Controller;
pub use rtt::{RtoBounds, RttEstimator};
pub use sample::{AckSample, LossEvent};
