//! Congestion control: how much may be outstanding on each path, and how fast it may be sent.
//!
//! The engine's scoreboard turns acks and losses into [`AckSample`]s and [`LossEvent`]s for the session's
//! [`Controller`], and reads a window and a pacing rate for each path. This crate sees no packets, sockets or clock.
//!
//! The controller has everything that all rules share: slow start with HyStart++ on each path, growth only while the
//! window limits the sender, one reduction per episode of losses, undo, restart after idle, bounds. A [`RuleKind`]
//! determines how a window grows in congestion avoidance, and how far a loss reduces it. Most rules are a few lines
//! over the windows and round-trip times of a *group*: paths that count as one flow because they may share a
//! bottleneck. `bbr` models each path instead.

mod auto;
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
pub use sample::{AckSample, LossCause, LossEvent};
