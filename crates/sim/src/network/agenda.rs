//! What happens when: one pending moment for each party, the earliest first.
//!
//! A four-way heap of moments. Each party (a link, a session, a source) has at most one moment that
//! counts, noted beside the heap; an entry whose moment has been brought forward meanwhile is passed over
//! when it comes up. The place of the entry taken out last stays empty until the next call, which mostly
//! comes from the same party and goes there, so that the heap is put in order once and not twice. A moment that only moves back is left as it is: the party is asked then, and
//! names the later one. So a retransmission timer that every acknowledgement moves costs nothing.

use anabranch_wire::Time;

/// Children of a place in the heap.
const WAYS: usize = 4;

/// Moment and party as one number that sorts by moment first, so that ties are broken by party.
type Key = u128;

/// The calendar of a run.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: Vec<Key>,
    /// The first entry was taken out and its place is empty.
    vacant: bool,
    /// For each party the moment of its entry that counts.
    due: Vec<Time>,
}

impl Agenda {
    pub(crate) fn new(parties: usize) -> Self {
        Self { heap: Vec::with_capacity(parties * 2), vacant: false, due: vec![Time::NEVER; parties] }
    }

    /// Makes room for one more party; returns its number.
    pub(crate) fn add_party(&mut self) -> usize {
        self.due.push(Time::NEVER);
        self.due.len() - 1
    }

    /// Asks for the party to be called at `at`, unless it is called earlier anyway.
    pub(crate) fn call(&mut self, party: usize, at: Time) {
        if at < self.due[party] {
            self.due[party] = at;
            self.push((u128::from(at.as_nanos()) << 32) | party as u128);
        }
    }

    /// Takes out the first party to be called by `until`.
    pub(crate) fn next(&mut self, until: Time) -> Option<(Time, usize)> {
        loop {
            if std::mem::take(&mut self.vacant) {
                self.pop();
            }
            let key = *self.heap.first()?;
            let (at, party) = (Time::from_nanos((key >> 32) as u64), (key & 0xffff_ffff) as usize);
            if at > until {
                return None;
            }
            self.vacant = true;
            if self.due[party] == at {
                self.due[party] = Time::NEVER;
                return Some((at, party));
            }
        }
    }

    fn push(&mut self, key: Key) {
        if std::mem::take(&mut self.vacant) {
            return self.sink(key);
        }
        let mut hole = self.heap.len();
        self.heap.push(key);
        while hole > 0 {
            let parent = (hole - 1) / WAYS;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = key;
    }

    /// Fills the first place with the last entry.
    fn pop(&mut self) {
        let Some(key) = self.heap.pop() else { return };
        if !self.heap.is_empty() {
            self.sink(key);
        }
    }

    /// Puts an entry into the first place, or as far below as it belongs.
    fn sink(&mut self, key: Key) {
        let heap = &mut self.heap[..];
        let mut hole = 0;
        loop {
            let first = hole * WAYS + 1;
            let least = match heap.get(first..first + WAYS) {
                Some(&[a, b, c, d]) => {
                    let (left, right) = (usize::from(b < a), 2 + usize::from(d < c));
                    let least = if c.min(d) < a.min(b) { right } else { left };
                    first + least
                }
                _ => match (first..heap.len()).min_by_key(|child| heap[*child]) {
                    Some(least) => least,
                    None => break,
                },
            };
            if heap[least] >= key {
                break;
            }
            heap[hole] = heap[least];
            hole = least;
        }
        heap[hole] = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn parties_are_called_in_order_of_time_and_then_of_number() {
        let mut agenda = Agenda::new(40);
        for party in 0..40_usize {
            agenda.call(party, at((party as u64 * 7919) % 13));
        }
        let called: Vec<_> = std::iter::from_fn(|| agenda.next(at(100))).collect();
        let mut sorted = called.clone();
        sorted.sort_unstable();
        assert_eq!((called.len(), &called), (40, &sorted));
    }

    #[test]
    fn a_moment_brought_forward_replaces_the_old_one_and_a_later_wish_changes_nothing() {
        let mut agenda = Agenda::new(2);
        agenda.call(0, at(50));
        agenda.call(0, at(20));
        agenda.call(0, at(70));
        agenda.call(1, at(30));
        assert_eq!(agenda.next(at(100)), Some((at(20), 0)));
        assert_eq!(agenda.next(at(100)), Some((at(30), 1)));
        assert_eq!(agenda.next(at(100)), None);
    }

    #[test]
    fn a_long_run_of_calls_comes_in_order_whoever_calls_again() {
        let mut agenda = Agenda::new(300);
        let mut state = 1_u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        (0..300).for_each(|party| agenda.call(party, at(draw(1000))));
        let (mut last, mut count) = (at(0), 0);
        while let Some((now, party)) = agenda.next(at(20_000)) {
            assert!(now >= last, "{now:?} after {last:?}");
            (last, count) = (now, count + 1);
            // Somebody is called once more, or earlier than it was to be.
            for _ in 0..=draw(3) {
                agenda.call(
                    (party + draw(7) as usize) % 300,
                    now + anabranch_wire::Span::from_nanos(draw(500)),
                );
            }
        }
        assert!(count > 1000, "{count}");
    }

    #[test]
    fn nothing_beyond_the_limit_is_called() {
        let mut agenda = Agenda::new(1);
        agenda.call(0, at(50));
        assert_eq!(agenda.next(at(49)), None);
        assert_eq!(agenda.next(at(50)), Some((at(50), 0)));
    }
}
