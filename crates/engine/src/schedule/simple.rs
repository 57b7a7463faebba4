//! Schedulers that need one line of reasoning.

use anabranch_wire::{PathId, Time};

use super::scheduler::{Decision, Item, PathView, Scheduler, SessionView, open, run_length};

fn send(path: Option<&PathView>) -> Decision {
    path.map_or(Decision::Wait(Time::NEVER), |path| Decision::Send { path: path.id, run: run_length(path) })
}

/// Picks the path with the least share of its window in flight (mTCP §3.1.4 [M5]), packet by packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastFilled;

impl Scheduler for LeastFilled {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        // Paths are sorted by id: among equal ones, the first is chosen.
        let least = open(paths).reduce(|least, path| if is_less_filled(path, least) { path } else { least });
        least.map_or(Decision::Wait(Time::NEVER), |path| Decision::Send { path: path.id, run: path.mtu })
    }
}

/// Compares [`PathView::fill`] without dividing: this is done for every path and every packet.
fn is_less_filled(path: &PathView, other: &PathView) -> bool {
    let share = |of: &PathView, than: &PathView| u128::from(of.in_flight) * u128::from(than.window.max(1));
    share(path, other) < share(other, path)
}

/// Picks the path with room that has the lowest smoothed round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        send(open(paths).min_by_key(|path| (path.rtt, path.id)))
    }
}

/// Sends one packet on each path with room in turn (PSMC [T3]).
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    last: Option<PathId>,
}

impl Scheduler for RoundRobin {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        let next = open(paths).find(|path| Some(path.id) > self.last).or_else(|| open(paths).next());
        self.last = next.map(|path| path.id);
        next.map_or(Decision::Wait(Time::NEVER), |path| Decision::Send { path: path.id, run: path.mtu })
    }
}

/// Sends streams on every path. Latency is the lowest and a dying path causes no pause, but the rate is that of one
/// path. The fastest open path carries the original. Datagrams are also sent everywhere, if the peer recognises copies
/// by number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Redundant;

impl Scheduler for Redundant {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        let Some(first) = open(paths).min_by_key(|path| (path.rtt, path.id)) else {
            return Decision::Wait(Time::NEVER);
        };
        let others = paths.iter().map(|path| path.id).filter(|id| *id != first.id);
        Decision::Duplicate(std::iter::once(first.id).chain(others).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests_support::{item, session, view};

    #[test]
    fn least_filled_compares_shares_not_bytes() {
        let mut small = view(0, 10_000);
        small.in_flight = 6_000;
        let mut large = view(1, 100_000);
        large.in_flight = 20_000;
        let decision = LeastFilled.pick(&session(), &[small, large], &item());
        assert_eq!(decision, Decision::Send { path: PathId(1), run: 1400 });
    }

    #[test]
    fn round_robin_skips_paths_without_room_and_wraps() {
        let mut scheduler = RoundRobin::default();
        let mut paths = [view(0, 10_000), view(1, 10_000), view(2, 10_000)];
        paths[1].budget = 0;
        let mut order = Vec::new();
        for _ in 0..4 {
            if let Decision::Send { path, .. } = scheduler.pick(&session(), &paths, &item()) {
                order.push(path.0);
            }
        }
        assert_eq!(order, [0, 2, 0, 2]);
    }

    #[test]
    fn redundant_names_the_fastest_first_and_every_other_path() {
        let mut paths = [view(0, 10_000), view(1, 10_000)];
        paths[0].rtt = paths[0].rtt * 3;
        let decision = Redundant.pick(&session(), &paths, &item());
        assert_eq!(decision, Decision::Duplicate([PathId(1), PathId(0)].into_iter().collect()));
    }
}
