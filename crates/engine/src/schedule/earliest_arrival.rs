//! Sends where the data will arrive first, given what is queued there.
//!
//! With much to send, every path that has room should carry some: whatever the slow path takes is off
//! the fast one. Two things make a slow path harmful, and in both cases the item waits for a faster one:
//!
//! 1. **The tail.** When the faster paths could deliver *everything* that waits before one packet would
//!    arrive over the slow path, the slow path only delays the end (the thought behind ECF, Lim et al. 2017).
//! 2. **The receive window.** While a packet travels the slow path the faster ones go on filling the
//!    peer's receive window behind it, until it has arrived and word of that has come back. When the window
//!    does not cover what they can send meanwhile, the packet will stall them all (the thought behind BLEST,
//!    Ferlin et al. 2016). What they *can* send is judged by their congestion windows: what they did send
//!    may have been held back by just this.
//!
//! What is sent again holds back everything behind it. It counts as a tail of its own: it waits for a
//! faster path too when that would deliver all that is missing before the slow one delivers a packet.

use anabranch_wire::{PathId, Rate, Span, Time};

use super::{Decision, Item, PathView, Scheduler, SessionView, run_length};

/// The default scheduler; the module tells how it decides.
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
}

/// Time from sending to arrival, queueing included: half the smoothed round-trip time, or what it takes to deliver
/// all that is in flight where that is longer, for then there is a queue that no acknowledgement has told of yet.
fn one_way(path: &PathView) -> Span {
    let queued = path.rate.time_for(path.in_flight).saturating_sub(path.min_rtt / 2);
    queued.max(path.rtt / 2)
}

/// Whether the item does better to wait for a path that has no room now than to take `slow`, the fastest that has, which
/// takes so long.
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

/// When pacing lets another path go; if its window is what holds it back, an acknowledgement will tell.
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
    fn a_queue_that_no_acknowledgement_has_told_of_counts() {
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
    fn what_is_missing_takes_the_slow_path_only_when_there_is_much_of_it() {
        let few = Item { resend: true, bytes: 1_400, ..item() };
        assert_eq!(EarliestArrival.pick(&session(), &fast_and_slow(), &few), Decision::Wait(Time::NEVER));
        let many = Item { resend: true, bytes: 2_000_000, ..item() };
        let decision = EarliestArrival.pick(&session(), &fast_and_slow(), &many);
        assert!(matches!(decision, Decision::Send { path: PathId(1), .. }), "{decision:?}");
    }
}
