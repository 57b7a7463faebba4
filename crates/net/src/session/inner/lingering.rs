//! An ended session that answers late packets: for how long depends on the peer's delays, so their number is limited.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SessionInner;

impl SessionInner {
    /// Takes a place among the ended sessions. The session that loses its place leaves: its peer's late packets are
    /// answered by resets.
    pub(super) fn linger(self: &Arc<Self>) {
        let mut core = self.core();
        let remote = core.engine.paths().first().map(|path| path.route.remote.ip());
        let Some(remote) = remote.filter(|_| !core.engine.is_closed()) else { return };
        let Some((hold, loser)) = self.endpoint.sessions.lingering.take(remote) else { return };
        hold.belongs_to(self);
        core.lingering = Some(hold);
        drop(core);
        if let Some(loser) = loser {
            loser.must_leave.store(true, Ordering::SeqCst);
            loser.wake_driver();
        }
    }
}
