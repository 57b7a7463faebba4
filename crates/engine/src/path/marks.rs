//! Congestion marks on one path, and whether they can be trusted (RFC 9000 §13.4.2).
//!
//! Packets are sent as ECT(0) while the path is trusted to carry marks. The peer counts the packets of each codepoint
//! and reports the sums. If a router clears the field, or the peer does not count, the sums are smaller than the number
//! of acknowledged packets. From then on the path is used without ECN.

use anabranch_wire::EcnCounts;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    enabled: bool,
    /// Packets sent as ECT(0) that were acknowledged.
    acknowledged: u64,
    /// CE marks that the peer has reported.
    marked: u64,
}

impl Marks {
    pub(crate) fn new(enabled: bool) -> Self {
        Self { enabled, acknowledged: 0, marked: 0 }
    }

    /// True while packets should be sent as ECT(0).
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Handles the sums in an acknowledgement of `newly` packets; returns the number of new marks. `latest` is false
    /// for an acknowledgement that others overtook: its sums are outdated.
    pub(crate) fn on_ack(&mut self, newly: u64, told: Option<EcnCounts>, latest: bool) -> u64 {
        if !self.enabled {
            return 0;
        }
        self.acknowledged += newly;
        let told = told.unwrap_or_default();
        if latest && told.ect0 + told.ce < self.acknowledged {
            self.enabled = false;
            return 0;
        }
        let new = told.ce.saturating_sub(self.marked);
        self.marked += new;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ect0: u64, ce: u64) -> Option<EcnCounts> {
        Some(EcnCounts { ect0, ect1: 0, ce })
    }

    #[test]
    fn each_mark_is_reported_once() {
        let mut marks = Marks::new(true);
        assert_eq!(marks.on_ack(2, told(2, 0), true), 0);
        assert_eq!(marks.on_ack(3, told(3, 2), true), 2);
        assert_eq!(marks.on_ack(1, told(4, 2), true), 0);
        assert!(marks.is_enabled());
    }

    #[test]
    fn a_path_that_clears_the_field_is_used_without_marks() {
        let mut marks = Marks::new(true);
        marks.on_ack(2, told(2, 0), true);
        assert_eq!(marks.on_ack(5, told(2, 1), true), 0);
        assert!(!marks.is_enabled());
        let mut silent = Marks::new(true);
        silent.on_ack(1, None, true);
        assert!(!silent.is_enabled());
    }

    #[test]
    fn sums_that_were_overtaken_prove_nothing() {
        let mut marks = Marks::new(true);
        marks.on_ack(4, told(10, 0), true);
        marks.on_ack(3, told(3, 0), false);
        assert!(marks.is_enabled());
    }
}
