//! Places of sessions that were answered and that their clients have not confirmed yet.
//!
//! They are few ([`Limits::half_open`](crate::Limits::half_open)). When all are taken, the next one gets the oldest place of whoever has most,
//! counted by source: who never confirms shuts out nobody, and who confirms within a round trip has done so by then, as handshakes
//! are computed no faster than the [door](crate::door) lets them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use anabranch_wire::source;

use crate::session::inner::SessionInner;

/// See the module's documentation.
pub(crate) struct HalfOpen {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// By age.
    places: BTreeMap<u64, (IpAddr, Weak<SessionInner>)>,
    /// How many each source has.
    counts: BTreeMap<IpAddr, usize>,
    next: u64,
}

impl Taken {
    fn add(&mut self, own: IpAddr) -> u64 {
        let number = self.next;
        self.next += 1;
        self.places.insert(number, (own, Weak::new()));
        *self.counts.entry(own).or_default() += 1;
        number
    }

    fn remove(&mut self, number: u64) -> Option<Weak<SessionInner>> {
        let (holder, session) = self.places.remove(&number)?;
        if let Entry::Occupied(mut count) = self.counts.entry(holder) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(session)
    }

    /// The oldest place of those who have most.
    fn to_give_up(&self) -> Option<u64> {
        let most = self.counts.values().max()?;
        let is_rich = |holder: &IpAddr| self.counts.get(holder) == Some(most);
        self.places.iter().find(|(_, (holder, _))| is_rich(holder)).map(|(number, _)| *number)
    }
}

/// A place, given back when it is dropped.
pub(crate) struct Hold {
    table: Arc<HalfOpen>,
    number: u64,
}

impl HalfOpen {
    /// A table of so many places.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// A place for a session with `remote`, and the session that has lost its own for it. `None` when there are none at all.
    pub(crate) fn take(self: &Arc<Self>, remote: IpAddr) -> Option<(Hold, Option<Arc<SessionInner>>)> {
        let mut taken = self.taken();
        let mut loser = None;
        if taken.places.len() >= self.most {
            let number = taken.to_give_up()?;
            loser = taken.remove(number).and_then(|session| session.upgrade());
        }
        let number = taken.add(source(remote));
        Some((Hold { table: self.clone(), number }, loser))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("no panic while held")
    }
}

impl Hold {
    /// Tells whose it is.
    pub(crate) fn belongs_to(&self, session: &Arc<SessionInner>) {
        if let Some((_, holder)) = self.table.taken().places.get_mut(&self.number) {
            *holder = Arc::downgrade(session);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.table.taken().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(table: &Arc<HalfOpen>, address: &str) -> Option<Hold> {
        table.take(address.parse().unwrap()).map(|(place, _)| place)
    }

    fn held(table: &Arc<HalfOpen>, address: &str) -> usize {
        let address: IpAddr = address.parse().unwrap();
        table.taken().places.values().filter(|(holder, _)| *holder == address).count()
    }

    #[test]
    fn who_has_most_gives_up_its_oldest_for_others() {
        let table = Arc::new(HalfOpen::new(4));
        let hoard: Vec<_> = (0..4).map(|_| take(&table, "192.0.2.1").unwrap()).collect();
        let others: Vec<_> = (0..2).map(|_| take(&table, "192.0.2.2").unwrap()).collect();
        assert_eq!((held(&table, "192.0.2.1"), held(&table, "192.0.2.2")), (2, 2));
        assert!(table.taken().places.contains_key(&hoard[3].number), "the oldest go");
        let third = take(&table, "192.0.2.3").unwrap();
        assert_eq!(
            (held(&table, "192.0.2.1"), held(&table, "192.0.2.2")),
            (1, 2),
            "of two alike the older one"
        );
        drop((hoard, others, third));
        assert!(table.taken().places.is_empty() && table.taken().counts.is_empty());
    }

    #[test]
    fn many_sources_with_a_place_each_shut_nobody_out() {
        let table = Arc::new(HalfOpen::new(100));
        let many: Vec<_> =
            (0..100).map(|net| take(&table, &format!("2001:db8:0:{net:x}::1")).unwrap()).collect();
        let newcomer = take(&table, "192.0.2.1").unwrap();
        let taken = table.taken();
        assert!(!taken.places.contains_key(&many[0].number), "the oldest of all goes");
        assert!(taken.places.contains_key(&newcomer.number));
    }

    #[test]
    fn places_given_back_are_free() {
        let table = Arc::new(HalfOpen::new(1));
        let (place, loser) = table.take([192, 0, 2, 1].into()).unwrap();
        assert!(loser.is_none());
        drop(place);
        assert!(table.taken().places.is_empty());
        let (first, _) = table.take([192, 0, 2, 2].into()).unwrap();
        drop(table.take([192, 0, 2, 3].into()).unwrap());
        // One that was lost already is nobody else's.
        let (_second, _) = table.take([192, 0, 2, 4].into()).unwrap();
        drop(first);
        assert_eq!(table.taken().places.len(), 1);
    }
}
