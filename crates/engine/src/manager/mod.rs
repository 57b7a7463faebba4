//! The path manager: which paths there should be, how each may be used, and why one carries nothing (design §5).
//!
//! Three questions, all answered by values and without a clock or a socket:
//!
//! | question | answer |
//! |---|---|
//! | what the user wants of a path | [`PathRules`]: the first rule that fits says primary, backup, metered or never, and how many bytes |
//! | which paths to leave out for now | [`suppress`], and [`Suppressor`] for how long (mTCP §3.4.1 [M10]) |
//! | why a path is idle | [`Standing`], told as an event whenever it changes |
//!
//! Whether a path works at all is not judged here: silence and paths that are no use are the session's doubt,
//! shared bottlenecks its evidence. The manager decides on what these find.

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
