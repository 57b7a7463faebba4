//! The trait of window rules, and the group of paths that a rule reads.

/// One path of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Member {
    /// Its window in packets, greater than zero.
    pub(crate) window: f64,
    /// Its smoothed round-trip time in seconds, greater than zero.
    pub(crate) rtt: f64,
    /// Bytes acknowledged between its losses, for `olia`; zero under the other rules.
    pub(crate) interval: f64,
}

/// One path and the paths coupled with it. Others without a round-trip sample, or silent since a timeout, are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) members: &'a [Member],
    /// The index of the path itself.
    pub(crate) own: usize,
}

impl Group<'_> {
    pub(crate) fn own(&self) -> &Member {
        &self.members[self.own]
    }

    /// Number of paths.
    pub(crate) fn size(&self) -> f64 {
        self.members.len() as f64
    }

    /// The sum of all windows.
    pub(crate) fn total(&self) -> f64 {
        self.members.iter().map(|member| member.window).sum()
    }
}

/// A loss-based rule.
pub(crate) trait Rule {
    /// Packets by which the path's window grows for each packet acknowledged in congestion avoidance.
    fn increase(&self, group: &Group<'_>) -> f64;

    /// The window in packets after a loss: half, unless the rule differs.
    fn decrease(&self, group: &Group<'_>) -> f64 {
        group.own().window / 2.0
    }

    /// The factor by which a loss on this path changes the windows of the others of its group.
    fn spill(&self, _group: &Group<'_>) -> f64 {
        1.0
    }
}
