//! One window for the whole session, whatever path its packets take: +1/w and −w/2, like TCP's.
//!
//! mTCP's second mode, for comparison [M2]: a loss on any path halves the window of all. The controller keeps the
//! window in its first path. Groups, HyStart++ (whose rounds belong to a path) and the number of paths have no effect.

use super::rule::{Group, Rule};

pub(crate) struct Combined;

impl Rule for Combined {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / group.own().window
    }
}
