//! The path manager: which paths there should be, how each may be used, and why one carries nothing (design §5).
//!
//! It answers three questions, from values alone, without a clock or a socket:
//!
//! | question | answer |
//! |---|---|
//! | how does the user want a path to be used? | [`PathRules`]: the first matching rule gives primary, backup, metered or never, and the cap |
//! | which paths are left out now? | [`suppress`], and [`Suppressor`] for how long (mTCP §3.4.1 [M10]) |
//! | why is a path idle? | [`Standing`], reported as an event at each change |
//!
//! The session judges whether a path works: it detects silent and useless paths, and shared bottlenecks. The manager
//! decides on these findings.

mod meter;
mod pattern;
mod prefix;
mod rules;
mod standing;
mod suppress;

pub use meter::Meter;
pub(crate) use meter::{PathMeter, cost};
pub use pattern::{PathOrigin, Pattern};
pub use prefix::Prefix;
pub use rules::{PathRule, PathRules, Priority, Terms};
pub use standing::{Fault, IdleReason, Standing};
pub(crate) use suppress::Suppressor;
pub use suppress::{PathReport, Suppression, SuppressionLimits, suppress};
