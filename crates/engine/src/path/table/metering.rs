//! The use of the paths' caps.

use super::Paths;

impl Paths {
    /// Counts this end's use of the path's cap; true if that took another slice or used up the cap.
    pub(crate) fn meter_sent(&mut self, place: usize) -> bool {
        let path = &mut self.list[place];
        path.usage.on_sent(path.allowance.spent())
    }

    /// Counts the peer's use of the path's cap; true if that took another slice or used up the cap.
    pub(crate) fn meter_received(&mut self, place: usize) -> bool {
        let path = &mut self.list[place];
        let spent = path.spent_by_peer();
        path.usage.on_received(spent)
    }

    /// Reserves again from a path's used-up cap that has started anew; true if it did.
    pub(crate) fn renew_cap(&mut self, place: usize) -> bool {
        self.list[place].usage.renew_cap()
    }
}
