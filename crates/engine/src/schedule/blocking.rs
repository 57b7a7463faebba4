//! Schedulers that wait for the fastest path rather than let a slow one block it: BLEST and ECF as published.

use anabranch_wire::Time;

use super::scheduler::{Decision, Item, PathView, Scheduler, SessionView, open, run_length};

/// The path with the lowest round-trip time, with room or without, and the fastest one with room.
fn fastest_and_open(paths: &[PathView]) -> Option<(&PathView, &PathView)> {
    let rank = |path: &&PathView| (path.rtt, path.id);
    Some((paths.iter().min_by_key(rank)?, open(paths).min_by_key(rank)?))
}

fn send(path: &PathView) -> Decision {
    Decision::Send { path: path.id, run: run_length(path) }
}

/// When the fast path's pacing releases it. If its window is the limit, an acknowledgement will wake the session.
fn wait_for(fast: &PathView, now: Time) -> Decision {
    Decision::Wait(if fast.ready_at > now { fast.ready_at } else { Time::NEVER })
}

/// Blocking estimation (Ferlin, Alay, Mehani, Boreli 2016): avoids a slow path when what the fastest can send during the
/// slow one's round trip, `X = mss·(w + (r − 1)/2)·r` with `r = rtt_s/rtt_f` and w in packets, does not fit into the send
/// window next to the bytes on the slow path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blest;

impl Scheduler for Blest {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        let Some((fast, slow)) = fastest_and_open(paths) else { return Decision::Wait(Time::NEVER) };
        if fast.id == slow.id {
            return send(fast);
        }
        let ratio = slow.rtt.as_secs_f64() / fast.rtt.as_secs_f64().max(1e-9);
        let mss = fast.mtu as f64;
        let growing = mss * (fast.window as f64 / mss + (ratio - 1.0) / 2.0) * ratio;
        let left = session.window as f64 - (slow.in_flight + slow.mtu) as f64;
        if growing > left { wait_for(fast, session.now) } else { send(slow) }
    }
}

/// β: how much longer a scheduler that waits keeps waiting.
const PERSISTENCE: f64 = 0.25;

/// Earliest completion first (Lim, Nahum, Towsley, Gibbens 2017): avoids a slow path when the fastest delivers all that
/// waits before the slow one would, and the slow one would not finish in time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ecf {
    waiting: bool,
}

impl Scheduler for Ecf {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], item: &Item) -> Decision {
        let Some((fast, slow)) = fastest_and_open(paths) else { return Decision::Wait(Time::NEVER) };
        if fast.id == slow.id {
            return send(fast);
        }
        // An application that waits to write has more data than the backlog.
        let backlog = if session.more_expected { f64::INFINITY } else { item.bytes as f64 };
        let (fast_rtt, slow_rtt) = (fast.rtt.as_secs_f64(), slow.rtt.as_secs_f64());
        let margin = fast.rtt_variance.max(slow.rtt_variance).as_secs_f64();
        let rounds = |path: &PathView| backlog / path.window.max(1) as f64;
        let patience = if self.waiting { 1.0 + PERSISTENCE } else { 1.0 };
        let soon = (1.0 + rounds(fast)) * fast_rtt < patience * (slow_rtt + margin);
        if soon {
            let late = rounds(slow).max(1.0) * slow_rtt >= 2.0 * fast_rtt + margin;
            if late {
                self.waiting = true;
                return wait_for(fast, session.now);
            }
        } else {
            self.waiting = false;
        }
        send(slow)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{PathId, Span};

    use super::*;
    use crate::schedule::tests_support::{item, session, view};

    /// A fast path without room and a slow one with.
    fn pair() -> [PathView; 2] {
        let (mut fast, mut slow) = (view(0, 100_000), view(1, 100_000));
        (fast.rtt, fast.budget) = (Span::from_millis(10), 0);
        slow.rtt = Span::from_millis(100);
        [fast, slow]
    }

    #[test]
    fn blest_avoids_the_slow_path_when_the_window_would_block() {
        // r = 10, X = 1400 · (71.4 + 4.5) · 10 = 1.06 MB.
        let tight = SessionView { window: 1_000_000, ..session() };
        assert_eq!(Blest.pick(&tight, &pair(), &item()), Decision::Wait(Time::NEVER));
        let ample = SessionView { window: 1_100_000, ..session() };
        let decision = Blest.pick(&ample, &pair(), &item());
        assert!(matches!(decision, Decision::Send { path: PathId(1), .. }), "{decision:?}");
    }

    #[test]
    fn ecf_avoids_the_slow_path_only_for_the_tail() {
        let last = SessionView { more_expected: false, ..session() };
        let few = Item { bytes: 50_000, ..item() };
        assert_eq!(Ecf::default().pick(&last, &pair(), &few), Decision::Wait(Time::NEVER));
        let many = Item { bytes: 5_000_000, ..item() };
        let decision = Ecf::default().pick(&last, &pair(), &many);
        assert!(matches!(decision, Decision::Send { path: PathId(1), .. }), "{decision:?}");
    }

    #[test]
    fn ecf_that_waits_keeps_waiting_a_little_longer() {
        let last = SessionView { more_expected: false, ..session() };
        // Ten rounds of the fast path take 110 ms: longer than 101, less than a quarter longer.
        let border = Item { bytes: 1_000_000, ..item() };
        let mut fresh = Ecf::default();
        assert!(matches!(fresh.pick(&last, &pair(), &border), Decision::Send { .. }));
        let mut patient = Ecf { waiting: true };
        assert_eq!(patient.pick(&last, &pair(), &border), Decision::Wait(Time::NEVER));
    }
}
