//! Chooses the address at which a path enters its relay.
//!
//! A relay may have several addresses, each behind another link. A path enters at one of them. Once it carries data,
//! paths over other addresses are tried next to it. After [`WARM_UP`] all are measured for [`MEASURED`], by the data
//! that arrives. The fastest stays. If it fails, the others are tried again.
//!
//! A path that works and carries almost nothing may just not be needed. Then the trial goes on until [`LONGEST`]. The
//! path that carries most stays for now, and another trial follows later. A path that has stalled gets until then to
//! recover: new paths often lose much at first.

use std::collections::BTreeMap;

use anabranch_engine::{IdleReason, PathInfo, PathState, Standing};
use anabranch_wire::{PathId, Span, Time};

/// Most addresses of a relay in use at a time.
pub const MOST_ENTRIES: usize = 3;
/// Most paths of a session during a trial: other relays and links need room too.
const ROOM: usize = 6;
/// Time between two looks at the paths.
const LOOK: Span = Span::from_millis(100);
/// The same while there is nothing to choose.
const WATCH: Span = Span::from_millis(500);
/// How long paths may take to open.
const GRACE: Span = Span::from_secs(3);
/// How long open paths may take to reach their rates.
const WARM_UP: Span = Span::from_secs(1);
/// How long their rates are measured.
const MEASURED: Span = Span::from_secs(2);
/// The end of a trial without a result.
const LONGEST: Span = Span::from_secs(10);
/// First pause after a trial without a result; it doubles each time.
const PAUSE: Span = Span::from_secs(5);
/// Longest such pause.
const LONGEST_PAUSE: Span = Span::from_secs(60);
/// A path that carries this many bytes between two looks is in use, so a trial may begin.
const SOME: u64 = 2_000;
/// A path that carries this many bytes in a measurement has a rate.
const ENOUGH: u64 = 25_000;
/// Another path replaces the current one if it carries this many times as much.
const BETTER: f64 = 1.25;

/// A decision for the driver to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAction {
    /// Open paths over this many other addresses.
    Try(usize),
    /// Keep this path and close the others of the trial.
    Keep(PathId),
}

/// The paths of one relay in a session.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    /// The current path.
    pub current: &'a PathInfo,
    /// The paths that are tried next to it.
    pub tried: &'a [PathInfo],
    /// How many more are being opened.
    pub opening: usize,
    /// How many other addresses answer.
    pub others: usize,
    /// All paths of the session.
    pub paths: usize,
}

/// Alone --data flow, or it fails--> Trial --all measured--> Chosen
///   ^-----------no result------------/ ^------it fails-------/
#[derive(Debug)]
enum State {
    /// A trial may begin then; `carried` are the bytes of the current path at the last look. A failure does not wait,
    /// unless the path `is_down` since the last trial.
    Alone {
        from: Time,
        carried: Option<u64>,
        is_down: bool,
    },
    /// Paths over other addresses are open, or being opened.
    Trial {
        began: Time,
        window: Option<Window>,
    },
    Chosen,
}

/// A time in which the rates of paths are measured.
#[derive(Debug)]
struct Window {
    since: Time,
    /// The bytes of each path then.
    before: BTreeMap<PathId, u64>,
    /// A path has stalled before it carried anything.
    waits: bool,
}

/// Chooses among the addresses of the relay of one path.
#[derive(Debug)]
pub struct EntryChoice {
    state: State,
    pause: Span,
    next_look: Time,
}

impl EntryChoice {
    /// A choice for a path that opens now.
    pub fn new(now: Time) -> Self {
        let state = State::Alone { from: now, carried: None, is_down: false };
        Self { state, pause: PAUSE, next_look: now + LOOK }
    }

    /// When to call [`Self::look`] next.
    pub fn next_look(&self) -> Time {
        self.next_look
    }

    /// Skips a look, without a current path.
    pub fn skip(&mut self, now: Time) {
        self.next_look = now + LOOK;
    }

    /// Skips a look, without another address.
    pub fn rest(&mut self, now: Time) {
        self.next_look = now + WATCH;
    }

    /// Checks the paths.
    pub fn look(&mut self, now: Time, entries: &Entries<'_>) -> Option<EntryAction> {
        let room = ROOM.saturating_sub(entries.paths).min(MOST_ENTRIES - 1);
        let (count, has_failed) = (entries.others.min(room), entries.current.state == PathState::Failed);
        self.next_look = now + if count == 0 && entries.tried.is_empty() { WATCH } else { LOOK };
        match &mut self.state {
            State::Alone { from, carried, is_down } => {
                let bytes = bytes(entries.current);
                let before = carried.replace(bytes).unwrap_or(bytes);
                let has_reason = has_failed || bytes.saturating_sub(before) >= SOME;
                let is_due = now >= *from || (has_failed && !*is_down);
                *is_down &= has_failed;
                (count > 0 && is_due && has_reason).then(|| self.begin(now, count))
            }
            State::Trial { began, window } => {
                let is_opening = |path: &&PathInfo| path.state == PathState::Validating;
                let opening = entries.opening + entries.tried.iter().filter(is_opening).count();
                if opening == 0 && entries.tried.is_empty() {
                    return Some(self.end_without_result(now, entries, entries.current.id));
                }
                if window.is_none() && (opening == 0 || now >= *began + GRACE) {
                    *window = Some(Window { since: now + WARM_UP, before: BTreeMap::new(), waits: false });
                }
                let window = window.as_mut()?;
                let has_recovered = window.waits && !window.has_to_wait(entries);
                if now >= window.since && (window.before.is_empty() || has_recovered) {
                    window.start(now, entries);
                }
                window.waits = now < *began + LONGEST && window.has_to_wait(entries);
                if now < window.since + MEASURED {
                    return None;
                }
                let (most, is_late) = (window.most(entries), now >= *began + LONGEST);
                if window.has_rates(entries, !is_late) {
                    self.state = State::Chosen;
                    return Some(EntryAction::Keep(most));
                }
                if is_late {
                    return Some(self.end_without_result(now, entries, most));
                }
                window.start(now, entries);
                None
            }
            State::Chosen => {
                self.next_look = now + WATCH;
                (count > 0 && has_failed).then(|| self.begin(now, count))
            }
        }
    }

    fn begin(&mut self, now: Time, count: usize) -> EntryAction {
        self.state = State::Trial { began: now, window: None };
        self.next_look = now + LOOK;
        EntryAction::Try(count)
    }

    fn end_without_result(&mut self, now: Time, entries: &Entries<'_>, kept: PathId) -> EntryAction {
        let is_down = entries.all().any(|path| path.id == kept && path.state == PathState::Failed);
        self.state = State::Alone { from: now + self.pause, carried: None, is_down };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        EntryAction::Keep(kept)
    }
}

impl Entries<'_> {
    fn all(&self) -> impl Iterator<Item = &PathInfo> {
        std::iter::once(self.current).chain(self.tried)
    }
}

impl Window {
    fn start(&mut self, now: Time, entries: &Entries<'_>) {
        self.since = now;
        self.before = entries.all().map(|path| (path.id, bytes(path))).collect();
    }

    fn carried(&self, path: &PathInfo) -> u64 {
        self.before.get(&path.id).map_or(0, |then| bytes(path).saturating_sub(*then))
    }

    fn has_to_wait(&self, entries: &Entries<'_>) -> bool {
        entries.all().any(|path| has_stalled(path) && self.carried(path) < ENOUGH)
    }

    /// Whether every path that works has carried data, and at least one works; with `hope`, every stalled path, too.
    fn has_rates(&self, entries: &Entries<'_>, hope: bool) -> bool {
        let counts = |path: &&PathInfo| may_carry(path) || (hope && has_stalled(path));
        let mut working = entries.all().filter(counts).peekable();
        working.peek().is_some() && working.all(|path| self.carried(path) >= ENOUGH)
    }

    /// The path that has not failed and has carried most, if that is clearly more than the current path.
    fn most(&self, entries: &Entries<'_>) -> PathId {
        let rank = |path: &PathInfo| (is_alive(path), self.carried(path));
        let current = entries.current;
        let is_better = |path: &PathInfo| {
            let ((works, carried), (worked, least)) = (rank(path), rank(current));
            if works == worked { carried as f64 > least as f64 * BETTER } else { works }
        };
        let best = entries.tried.iter().max_by_key(|path| rank(path));
        best.filter(|path| is_better(path)).unwrap_or(current).id
    }
}

/// Whether a path works and is used, so that its rate counts once it carries data.
fn may_carry(path: &PathInfo) -> bool {
    path.state == PathState::Active && path.standing.is_used()
}

fn is_alive(path: &PathInfo) -> bool {
    matches!(path.state, PathState::Active | PathState::Suspect)
}

/// Whether a path that would be used is in trouble, perhaps for a moment.
fn has_stalled(path: &PathInfo) -> bool {
    let is_held = matches!(path.standing, Standing::Idle(IdleReason::Overdue | IdleReason::Held(_)));
    is_alive(path) && (is_held || (path.state == PathState::Suspect && path.standing.is_used()))
}

/// The data that a path has carried in both directions, without what was lost.
fn bytes(path: &PathInfo) -> u64 {
    let lost = path.stats.packets_lost.saturating_sub(path.stats.spurious_losses) * u64::from(path.mtu);
    path.stats.data_sent.saturating_sub(lost) + path.stats.data_received
}

#[cfg(test)]
mod tests {
    use anabranch_wire::PathUse;

    use super::*;
    use crate::capacity::tests::path;

    /// A relay with addresses at which a path carries so many bytes a second, and a session that sends at most `demand`.
    struct Relay {
        rates: Vec<u64>,
        open: Vec<usize>,
        carried: Vec<u64>,
        choice: EntryChoice,
        now: Time,
        seen: Vec<(u64, EntryAction)>,
    }

    impl Relay {
        /// The path begins at the first address.
        fn new(rates: &[u64]) -> Self {
            let choice = EntryChoice::new(Time::ZERO);
            let (rates, carried) = (rates.to_vec(), vec![0; rates.len()]);
            Self { rates, open: vec![0], carried, choice, now: Time::ZERO, seen: Vec::new() }
        }

        fn info(&self, at: usize) -> PathInfo {
            let state = match (self.rates[at], self.carried[at]) {
                (0, 0) => PathState::Validating,
                (0, _) => PathState::Failed,
                _ => PathState::Active,
            };
            PathInfo { state, ..path(at as u32, (self.carried[at], 0)) }
        }

        /// The session fills its paths one after the other, in the order of their numbers.
        fn run(&mut self, seconds: u64, demand: u64) -> &mut Self {
            for _ in 0..seconds * 10 {
                let mut left = demand / 10;
                let mut order = self.open.clone();
                order.sort_unstable();
                for at in &order {
                    let part = left.min(self.rates[*at] / 10);
                    self.carried[*at] += part;
                    left -= part;
                }
                self.now += Span::from_millis(100);
                if self.now < self.choice.next_look() {
                    continue;
                }
                let tried: Vec<PathInfo> = self.open[1..].iter().map(|at| self.info(*at)).collect();
                let others = self.rates.len() - self.open.len();
                let (current, paths) = (self.info(self.open[0]), self.open.len());
                let entries = Entries { current: &current, tried: &tried, opening: 0, others, paths };
                let Some(action) = self.choice.look(self.now, &entries) else { continue };
                self.seen.push((self.now.since(Time::ZERO).as_nanos() / 1_000_000_000, action));
                match action {
                    EntryAction::Try(count) => {
                        let others = (0..self.rates.len()).filter(|at| *at != self.open[0]);
                        let others: Vec<usize> = others.take(count).collect();
                        self.open.extend(others);
                    }
                    EntryAction::Keep(path) => self.open = vec![path.0 as usize],
                }
            }
            self
        }
    }

    #[test]
    fn the_fast_address_is_kept_whichever_answered_first() {
        for (rates, fast) in [([5_000_000, 1_000_000], 0), ([1_000_000, 5_000_000], 1)] {
            let mut relay = Relay::new(&rates);
            relay.run(60, 100_000_000);
            assert_eq!(relay.open, [fast]);
            assert_eq!(relay.seen.len(), 2, "{:?}", relay.seen);
            assert!(relay.seen[1].0 <= 4, "{:?}", relay.seen);
        }
    }

    #[test]
    fn when_the_kept_path_fails_the_others_are_tried_again() {
        for demand in [100_000_000, 0] {
            let mut relay = Relay::new(&[1_000_000, 5_000_000]);
            relay.run(20, 100_000_000);
            assert_eq!(relay.open, [1]);
            relay.rates[1] = 0;
            relay.run(15, demand);
            assert_eq!(relay.open, [0], "{:?}", relay.seen);
            assert!(relay.seen[2].0 <= 21, "{:?}", relay.seen);
        }
    }

    #[test]
    fn a_failure_does_not_wait_for_the_end_of_a_pause() {
        let mut relay = Relay::new(&[1_000_000, 5_000_000]);
        // The first path suffices, so trials end without a result and pauses grow.
        relay.run(100, 100_000);
        assert_eq!((&relay.open[..], relay.seen.len()), (&[0][..], 8), "{:?}", relay.seen);
        relay.rates[0] = 0;
        relay.run(6, 100_000);
        assert_eq!(relay.open, [1], "{:?}", relay.seen);
    }

    #[test]
    fn of_two_that_carry_about_the_same_the_first_stays() {
        let mut relay = Relay::new(&[1_000_000, 1_100_000]);
        assert_eq!(relay.run(60, 100_000_000).open, [0]);
        assert_eq!(relay.seen.last().map(|(_, action)| *action), Some(EntryAction::Keep(PathId(0))));
    }

    #[test]
    fn packets_that_were_declared_lost_and_arrived_count_as_carried() {
        let mut reordered = path(0, (1_000_000, 0));
        (reordered.stats.packets_lost, reordered.stats.spurious_losses) = (500, 490);
        assert_eq!(bytes(&reordered), 1_000_000 - 10 * u64::from(reordered.mtu));
    }

    #[test]
    fn of_many_addresses_three_are_in_use_at_a_time() {
        let mut relay = Relay::new(&[1_000_000; 5]);
        relay.run(2, 100_000_000);
        assert_eq!(relay.seen, [(0, EntryAction::Try(2))]);
    }

    #[test]
    fn a_path_that_rules_leave_idle_does_not_keep_the_others_from_a_decision() {
        let mut choice = EntryChoice::new(Time::ZERO);
        let mut seen = Vec::new();
        for tick in 1..60_u64 {
            let current = path(0, (20_000 * tick, 0));
            let mut backup = path(1, (0, 0));
            backup.standing = Standing::Idle(IdleReason::Kept(PathUse::Backup));
            let tried = [backup, path(2, (200_000 * tick, 0))];
            let entries = Entries { current: &current, tried: &tried, opening: 0, others: 2, paths: 3 };
            seen.extend(choice.look(Time::ZERO + LOOK * tick, &entries));
        }
        assert_eq!(seen, [EntryAction::Try(2), EntryAction::Keep(PathId(2))]);
    }

    #[test]
    fn a_session_without_room_tries_nothing() {
        let mut choice = EntryChoice::new(Time::ZERO);
        for tick in 1..100_u64 {
            let current = path(0, (tick * 100_000, 0));
            let entries = Entries { current: &current, tried: &[], opening: 0, others: 1, paths: ROOM };
            assert_eq!(choice.look(Time::ZERO + LOOK * tick, &entries), None);
        }
    }

    #[test]
    fn nothing_is_tried_before_data_flow_nor_decided_before_every_path_has_a_rate() {
        let mut relay = Relay::new(&[1_000_000, 5_000_000]);
        assert_eq!(relay.run(60, 0).seen, []);
        // The first path suffices, so nothing is known about the other.
        relay.run(120, 100_000);
        let tries = relay.seen.iter().filter(|(_, action)| *action == EntryAction::Try(1)).count();
        assert!((3..=5).contains(&tries) && relay.open[0] == 0, "{:?}", relay.seen);
        // Then more data flow.
        relay.run(90, 100_000_000);
        assert_eq!(relay.open, [1], "{:?}", relay.seen);
    }

    #[test]
    fn an_address_that_never_answers_does_not_keep_the_others_from_a_decision() {
        let mut relay = Relay::new(&[1_000_000, 0, 5_000_000]);
        relay.run(8, 100_000_000);
        assert_eq!(relay.open, [2], "{:?}", relay.seen);
    }

    #[test]
    fn without_a_decision_the_path_that_the_session_prefers_stays() {
        let mut relay = Relay::new(&[1_000_000, 5_000_000]);
        relay.open = vec![1];
        // Paths of lower numbers are filled first.
        relay.run(15, 100_000);
        assert_eq!(relay.open, [0], "{:?}", relay.seen);
        relay.run(30, 100_000_000);
        assert_eq!(relay.open, [1], "{:?}", relay.seen);
    }

    #[test]
    fn a_trial_during_which_all_paths_fail_decides_nothing_and_another_follows() {
        let mut choice = EntryChoice::new(Time::ZERO);
        let mut seen = Vec::new();
        for tick in 1..250_u64 {
            let (state, ticks) = match tick {
                ..10 => (PathState::Active, tick),
                10..150 => (PathState::Failed, 10),
                _ => (PathState::Active, tick - 140),
            };
            let current = PathInfo { state, ..path(0, (20_000 * ticks, 0)) };
            let other = [PathInfo { state, ..path(1, (200_000 * ticks, 0)) }];
            let is_tried = matches!(seen.last(), Some(EntryAction::Try(_)));
            let tried = &other[..usize::from(is_tried)];
            let entries = Entries { current: &current, tried, opening: 0, others: 1, paths: 2 };
            seen.extend(choice.look(Time::ZERO + LOOK * tick, &entries));
        }
        let (again, keep) = (EntryAction::Try(1), |path| EntryAction::Keep(PathId(path)));
        assert_eq!(seen, [again, keep(0), again, keep(1)]);
    }

    /// The choice between a slow path and a fast one. The fast one is in trouble during these looks; it then carries
    /// nothing, or as much as before.
    fn kept_beside_trouble(trouble: std::ops::Range<u64>, carries: bool) -> Option<EntryAction> {
        let (mut choice, mut carried, mut kept) = (EntryChoice::new(Time::ZERO), 0, None);
        for tick in 1..95_u64 {
            let is_troubled = trouble.contains(&tick);
            carried += if is_troubled && !carries { 0 } else { 200_000 };
            let (current, mut fast) = (path(0, (100_000 * tick, 0)), path(1, (carried, 0)));
            if is_troubled {
                fast.state = PathState::Suspect;
                fast.standing = Standing::Idle(IdleReason::Overdue);
            }
            let entries = Entries { current: &current, tried: &[fast], opening: 0, others: 1, paths: 2 };
            let action = choice.look(Time::ZERO + LOOK * tick, &entries);
            kept = kept.or(action.filter(|action| matches!(action, EntryAction::Keep(_))));
        }
        kept
    }

    #[test]
    fn a_path_that_carried_most_is_kept_although_it_is_in_trouble_for_a_moment() {
        assert_eq!(kept_beside_trouble(30..60, true), Some(EntryAction::Keep(PathId(1))));
    }

    #[test]
    fn a_path_that_has_stalled_has_time_to_recover() {
        assert_eq!(kept_beside_trouble(10..50, false), Some(EntryAction::Keep(PathId(1))));
        assert_eq!(kept_beside_trouble(10..50, true), Some(EntryAction::Keep(PathId(1))));
    }

    #[test]
    fn a_path_that_the_session_leaves_out_as_too_slow_loses() {
        let mut choice = EntryChoice::new(Time::ZERO);
        let mut kept = None;
        for tick in 1..60_u64 {
            let mut current = path(0, (20_000 * tick, 0));
            current.standing = Standing::Idle(IdleReason::TooSlow { than: PathId(1) });
            let tried = [path(1, (0, 200_000 * tick))];
            let entries = Entries { current: &current, tried: &tried, opening: 0, others: 1, paths: 2 };
            kept = kept.or(choice
                .look(Time::ZERO + LOOK * tick, &entries)
                .filter(|action| matches!(action, EntryAction::Keep(_))));
        }
        assert_eq!(kept, Some(EntryAction::Keep(PathId(1))));
    }
}
