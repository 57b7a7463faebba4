//! Schedulers that balance how much each path is used (MPMTP-AR §3.5 [R6, R10], PSMC §III.B [T3]).

use std::collections::VecDeque;

use anabranch_wire::{PathId, Span, Time};

use super::scheduler::{Decision, Item, PathView, Scheduler, SessionView, open};

/// Picks the path with the least utilisation: bytes sent over its load weight [R10]. Weights come from receiver reports
/// [R6] and are 1 without reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Utilization;

impl Scheduler for Utilization {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        least(paths, |path| path.bytes_sent as f64 / path.weight.max(f64::MIN_POSITIVE))
    }
}

/// Picks the path with the fewest bytes sent, whatever its rate [T3].
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastUsed;

impl Scheduler for LeastUsed {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        least(paths, |path| path.bytes_sent as f64)
    }
}

fn least(paths: &[PathView], of: impl Fn(&PathView) -> f64) -> Decision {
    let found = open(paths).min_by(|a, b| of(a).total_cmp(&of(b)).then(a.id.cmp(&b.id)));
    found.map_or(Decision::Wait(Time::NEVER), |path| Decision::Send { path: path.id, run: path.mtu })
}

const BLOCK: u64 = 64 << 10;

/// Whole blocks of [`BLOCK`] bytes, each on one path, in turn [T3]: for data coded in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    /// The path of the current block, and the rest of the block.
    current: Option<(PathId, u64)>,
}

impl Scheduler for Block {
    fn pick(&mut self, _: &SessionView, paths: &[PathView], _: &Item) -> Decision {
        // A removed path loses its block; one with a full window keeps it.
        let (last, left) = self.current.unwrap_or((PathId(0), 0));
        let keeps = left > 0 && paths.iter().any(|path| path.id == last);
        let next = || open(paths).find(|path| self.current.is_some() && path.id > last);
        let path = if keeps {
            open(paths).find(|path| path.id == last)
        } else {
            next().or_else(|| open(paths).next())
        };
        let Some(path) = path else { return Decision::Wait(Time::NEVER) };
        let left = if keeps { left } else { BLOCK };
        self.current = Some((path.id, left.saturating_sub(path.mtu)));
        Decision::Send { path: path.id, run: path.mtu }
    }
}

/// Most flows stored.
const MAX_FLOWS: usize = 1024;
/// A flow silent for this long is over.
const SILENCE: Span = Span::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Flow {
    number: u32,
    path: PathId,
    seen: Time,
}

/// Keeps each flow on one path; a new flow takes the path with the fewest flows [T3].
#[derive(Clone, Debug, Default)]
pub struct LeastConnections {
    /// The one used last at the back.
    flows: VecDeque<Flow>,
}

impl Scheduler for LeastConnections {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], item: &Item) -> Decision {
        let now = session.now;
        while self.flows.front().is_some_and(|flow| now.since(flow.seen) > SILENCE) {
            self.flows.pop_front();
        }
        let known = self.flows.iter().position(|flow| flow.number == item.flow);
        let known = known.and_then(|index| self.flows.remove(index));
        let known = known.filter(|flow| paths.iter().any(|path| path.id == flow.path));
        let count = |path: &PathView| self.flows.iter().filter(|flow| flow.path == path.id).count();
        let fewest = || paths.iter().min_by_key(|path| (count(path), path.rtt, path.id)).map(|path| path.id);
        let Some(id) = known.map(|flow| flow.path).or_else(fewest) else {
            return Decision::Wait(Time::NEVER);
        };
        if self.flows.len() == MAX_FLOWS {
            self.flows.pop_front();
        }
        self.flows.push_back(Flow { number: item.flow, path: id, seen: now });
        match open(paths).find(|path| path.id == id) {
            Some(path) => Decision::Send { path: id, run: path.mtu },
            None => Decision::Wait(Time::NEVER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests_support::{item, session, view};

    fn chosen(scheduler: &mut dyn Scheduler, paths: &[PathView], item: &Item) -> Option<u32> {
        match scheduler.pick(&session(), paths, item) {
            Decision::Send { path, .. } => Some(path.0),
            _ => None,
        }
    }

    #[test]
    fn utilization_divides_by_the_load_weight_and_least_used_does_not() {
        let mut paths = [view(0, 10_000), view(1, 10_000)];
        (paths[0].bytes_sent, paths[0].weight) = (30_000, 1.5);
        (paths[1].bytes_sent, paths[1].weight) = (20_000, 0.5);
        assert_eq!(chosen(&mut Utilization, &paths, &item()), Some(0));
        assert_eq!(chosen(&mut LeastUsed, &paths, &item()), Some(1));
    }

    #[test]
    fn a_block_stays_whole_and_the_next_goes_elsewhere() {
        let paths = [view(0, 100_000), view(1, 100_000)];
        let mut block = Block::default();
        let order: Vec<u32> = (0..150).filter_map(|_| chosen(&mut block, &paths, &item())).collect();
        let packets = BLOCK.div_ceil(1400) as usize;
        assert!(order[..packets].iter().all(|path| *path == 0), "{order:?}");
        assert!(order[packets..2 * packets].iter().all(|path| *path == 1), "{order:?}");
        assert_eq!(order[2 * packets], 0);
    }

    #[test]
    fn a_block_waits_for_its_path_and_moves_when_that_is_removed() {
        let mut paths = [view(0, 100_000), view(1, 100_000)];
        let mut block = Block::default();
        assert_eq!(chosen(&mut block, &paths, &item()), Some(0));
        paths[0].budget = 0;
        assert_eq!(chosen(&mut block, &paths, &item()), None);
        assert_eq!(chosen(&mut block, &paths[1..], &item()), Some(1));
    }

    #[test]
    fn flows_stay_on_their_paths_and_new_ones_take_the_emptiest() {
        let paths = [view(0, 100_000), view(1, 100_000)];
        let mut scheduler = LeastConnections::default();
        let flow = |number| Item { flow: number, ..item() };
        let order: Vec<_> =
            [5, 6, 7, 5, 6, 7].iter().map(|n| chosen(&mut scheduler, &paths, &flow(*n)).unwrap()).collect();
        assert_eq!(order, [0, 1, 0, 0, 1, 0]);
        assert_eq!(chosen(&mut scheduler, &paths[1..], &flow(5)), Some(1));
        for number in 0..5000 {
            chosen(&mut scheduler, &paths, &flow(number));
        }
        assert_eq!(scheduler.flows.len(), MAX_FLOWS);
    }
}
