//! Sends on the path where the data will arrive first, including the queue there.
//!
//! With much data, every path with room should carry some: all data on the slow path relieves the fast one. In two
//! cases a slow path is harmful, and the item waits for a faster one:
//!
//! 1. **The tail.** If the faster paths could deliver *everything* that waits before one packet would arrive over the
//!    slow path, the slow path only delays the end (the idea of ECF, Lim et al. 2017).
//! 2. **The receive window.** While a packet travels on the slow path, the faster ones fill the peer's receive window
//!    behind it, until its acknowledgement returns. If the window is smaller than the data they can send in that time,
//!    the packet stalls them all (the idea of BLEST, Ferlin et al. 2016). That amount follows from their congestion
//!    windows, because such stalls may have limited the data that they did send.
//!
//! Lost data delays all later data. It counts as a separate tail: it waits for a faster path that would deliver all of
//! it before the slow one delivers a packet.

use anabranch_wire::{PathId, Rate, Span, Time};

use super::scheduler::{Decision, Item, PathView, Scheduler, SessionView, run_length};

/// The default scheduler; see the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarliestArrival;

impl Scheduler for EarliestArrival {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], item: &Item) -> Decision {
        let open = paths.iter().filter(|path| path.budget > 0);
        let Some((arrival, best)) =
            open.map(|path| (one_way(path), path)).min_by_key(|(at, path)| (*at, path.id))
        else {
            return Decision::Wait(Time::NEVER);
        };
        if should_wait(session, paths, (best, arrival), item) {
            return Decision::Wait(next_ready(session.now, paths, best.id));
        }
        Decision::Send { path: best.id, run: run_length(best) }
    }

    fn lets_messages_pass(&self) -> bool {
        true
    }
}

/// Time from sending to arrival, including queueing: half the smoothed round-trip time, or the time to deliver all
/// bytes in flight if that is longer. Then there is a queue that no acknowledgement has shown yet.
fn one_way(path: &PathView) -> Span {
    let queued = path.rate.time_for(path.in_flight).saturating_sub(path.min_rtt / 2);
    queued.max(path.rtt / 2)
}

/// Whether the item should wait for a path without room instead of taking `slow`, the fastest one with room.
fn should_wait(
    session: &SessionView,
    paths: &[PathView],
    (slow, arrival): (&PathView, Span),
    item: &Item,
) -> bool {
    let (mut rate, mut able, mut first) = (0, 0, Span::MAX);
    for path in paths.iter().filter(|path| path.budget == 0) {
        let one_way = one_way(path);
        if one_way >= arrival {
            continue;
        }
        rate += path.rate.as_bits();
        able += path.rate.max(Rate::from_bytes_in(path.window, path.rtt)).as_bits();
        first = first.min(one_way);
    }
    if rate == 0 {
        return false;
    }
    let lead = arrival.saturating_sub(first);
    let in_time = Rate::from_bits(rate).time_for(item.bytes) < lead;
    if item.resend {
        return in_time;
    }
    let tail = !session.more_expected && in_time;
    let meanwhile = Rate::from_bits(able).bytes_in(arrival + first);
    tail || session.window < meanwhile + slow.mtu
}

/// When pacing releases another path. If its window is the limit, an acknowledgement will wake the session.
fn next_ready(now: Time, paths: &[PathView], not: PathId) -> Time {
    let paced = paths.iter().filter(|path| path.id != not && path.ready_at > now);
    paced.map(|path| path.ready_at).min().unwrap_or(Time::NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests_support::{item, session, view};

    fn fast_and_slow() -> [PathView; 2] {
        let mut fast = view(0, 100_000);
        (fast.rtt, fast.rate, fast.budget) = (Span::from_millis(10), Rate::from_mbit(80.0), 0);
        let mut slow = view(1, 100_000);
        (slow.rtt, slow.rate) = (Span::from_millis(210), Rate::from_mbit(8.0));
        [fast, slow]
    }

    #[test]
    fn a_queue_that_no_acknowledgement_has_shown_counts() {
        let (mut near, mut far) = (view(0, 400_000), view(1, 400_000));
        for (path, rtt) in [(&mut near, 40), (&mut far, 60)] {
            (path.rtt, path.min_rtt, path.rate) =
                (Span::from_millis(rtt), Span::from_millis(rtt), Rate::from_mbit(16.0));
        }
        let pick = |near: PathView| EarliestArrival.pick(&session(), &[near, far], &item());
        assert!(matches!(pick(near), Decision::Send { path: PathId(0), .. }));
        near.in_flight = 200_000;
        assert!(matches!(pick(near), Decision::Send { path: PathId(1), .. }));
    }

    #[test]
    fn a_slow_path_is_used_while_there_is_more_than_the_fast_one_can_deliver_first() {
        let view = SessionView { more_expected: false, ..session() };
        let much = Item { bytes: 2_000_000, ..item() };
        let decision = EarliestArrival.pick(&view, &fast_and_slow(), &much);
        assert!(matches!(decision, Decision::Send { path: PathId(1), .. }), "{decision:?}");
    }

    #[test]
    fn the_tail_waits_for_the_fast_path() {
        let view = SessionView { more_expected: false, ..session() };
        let little = Item { bytes: 500_000, ..item() };
        assert_eq!(EarliestArrival.pick(&view, &fast_and_slow(), &little), Decision::Wait(Time::NEVER));
    }

    #[test]
    fn a_tight_receive_window_keeps_the_slow_path_empty() {
        let view = SessionView { window: 1_000_000, ..session() };
        assert_eq!(EarliestArrival.pick(&view, &fast_and_slow(), &item()), Decision::Wait(Time::NEVER));
    }

    #[test]
    fn lost_data_take_the_slow_path_only_when_there_are_many() {
        let few = Item { resend: true, bytes: 1_400, ..item() };
        assert_eq!(EarliestArrival.pick(&session(), &fast_and_slow(), &few), Decision::Wait(Time::NEVER));
        let many = Item { resend: true, bytes: 2_000_000, ..item() };
        let decision = EarliestArrival.pick(&session(), &fast_and_slow(), &many);
        assert!(matches!(decision, Decision::Send { path: PathId(1), .. }), "{decision:?}");
    }
}
