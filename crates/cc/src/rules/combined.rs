//! One window for the whole session, whatever path its packets take: +1/w and −w/2 as TCP's.
//!
//! mTCP's second mode, there for comparison [M2]: a loss on any path halves what all of them may send. The
//! controller keeps the one window in its first path; groups, HyStart++ (whose rounds are a path's) and
//! the number of paths mean nothing to it.

use super::{Group, Rule};

pub(crate) struct Combined;

impl Rule for Combined {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / group.own().window
    }
}
