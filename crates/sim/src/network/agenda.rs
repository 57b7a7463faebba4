//! What happens when: one pending moment for each party, the earliest first.
//!
//! A four-way heap of moments. Each party (a link, a session, a source) has at most one moment that
//! counts, noted beside the heap; an entry whose moment has been brought forward meanwhile is passed over
//! when it comes up. A moment that only moves back is left as it is: the party is asked then, and
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
    /// For each party the moment of its entry that counts.
    due: Vec<Time>,
}

impl Agenda {
    pub(crate) fn new(parties: usize) -> Self {
        Self { heap: Vec::with_capacity(parties * 2), due: vec![Time::NEVER; parties] }
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
            let key = *self.heap.first()?;
            let (at, party) = (Time::from_nanos((key >> 32) as u64), (key & 0xffff_ffff) as usize);
            if at > until {
                return None;
            }
            self.pop();
            if self.due[party] == at {
                self.due[party] = Time::NEVER;
                return Some((at, party));
            }
        }
    }

    fn push(&mut self, key: Key) {
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

    fn pop(&mut self) {
        let Some(key) = self.heap.pop() else { return };
        if self.heap.is_empty() {
            return;
        }
        let mut hole = 0;
        loop {
            let first = hole * WAYS + 1;
            let last = (first + WAYS).min(self.heap.len());
            let Some(least) = (first..last).min_by_key(|child| self.heap[*child]) else { break };
            if self.heap[least] >= key {
                break;
            }
            self.heap[hole] = self.heap[least];
            hole = least;
        }
        self.heap[hole] = key;
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
    fn nothing_beyond_the_limit_is_called() {
        let mut agenda = Agenda::new(1);
        agenda.call(0, at(50));
        assert_eq!(agenda.next(at(49)), None);
        assert_eq!(agenda.next(at(50)), Some((at(50), 0)));
    }
}
