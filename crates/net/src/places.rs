//! Places for sessions that do not count as open: answered but not yet confirmed by their clients, or ended and only
//! answering late packets.
//!
//! There are few places for each. When all are taken, the next session gets the oldest place of the source with the most.
//! So clients that never confirm shut out no one. A client that confirms within a round trip keeps its place, because
//! the [door](crate::door) limits how fast handshakes are computed. Without places for ended sessions, clients could
//! open and lose sessions faster than the ended ones are forgotten, until the endpoint is full.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use anabranch_wire::source;

use crate::by_source::BySource;

pub(crate) struct Places<S> {
    most: usize,
    taken: Mutex<BySource<Weak<S>>>,
}

/// A place, released when this is dropped.
pub(crate) struct Hold<S> {
    table: Arc<Places<S>>,
    number: u64,
}

impl<S> Places<S> {
    /// A table of `most` places.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Takes a place for a session with `remote`. Also returns the session that lost its place for it, if any. `None` if the table
    /// has no places at all.
    pub(crate) fn take(self: &Arc<Self>, remote: IpAddr) -> Option<(Hold<S>, Option<Arc<S>>)> {
        let mut taken = self.taken();
        let mut loser = None;
        if taken.len() >= self.most {
            let [oldest, _] = taken.most()?;
            loser = taken.remove(oldest).and_then(|session| session.upgrade());
        }
        let number = taken.push(source(remote), Weak::new());
        Some((Hold { table: self.clone(), number }, loser))
    }

    fn taken(&self) -> MutexGuard<'_, BySource<Weak<S>>> {
        self.taken.lock().expect("no panic while held")
    }
}

impl<S> Hold<S> {
    /// Assigns the place to a session.
    pub(crate) fn belongs_to(&self, session: &Arc<S>) {
        if let Some(holder) = self.table.taken().get_mut(self.number) {
            *holder = Arc::downgrade(session);
        }
    }
}

impl<S> Drop for Hold<S> {
    fn drop(&mut self) {
        self.table.taken().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(table: &Arc<Places<()>>, address: &str) -> Option<Hold<()>> {
        table.take(address.parse().unwrap()).map(|(place, _)| place)
    }

    fn held(table: &Arc<Places<()>>, address: &str) -> usize {
        table.taken().count(&address.parse().unwrap())
    }

    fn keeps(table: &Arc<Places<()>>, hold: &Hold<()>) -> bool {
        table.taken().get_mut(hold.number).is_some()
    }

    #[test]
    fn who_has_most_gives_up_its_oldest_for_others() {
        let table = Arc::new(Places::new(4));
        let hoard: Vec<_> = (0..4).map(|_| take(&table, "192.0.2.1").unwrap()).collect();
        let others: Vec<_> = (0..2).map(|_| take(&table, "192.0.2.2").unwrap()).collect();
        assert_eq!((held(&table, "192.0.2.1"), held(&table, "192.0.2.2")), (2, 2));
        assert!(keeps(&table, &hoard[3]), "the oldest go");
        let third = take(&table, "192.0.2.3").unwrap();
        assert_eq!(
            (held(&table, "192.0.2.1"), held(&table, "192.0.2.2")),
            (1, 2),
            "of two alike the older one"
        );
        drop((hoard, others, third));
        assert_eq!(table.taken().len(), 0);
    }

    #[test]
    fn many_sources_with_a_place_each_shut_nobody_out() {
        let table = Arc::new(Places::new(100));
        let many: Vec<_> =
            (0..100).map(|net| take(&table, &format!("2001:db8:0:{net:x}::1")).unwrap()).collect();
        let newcomer = take(&table, "192.0.2.1").unwrap();
        assert!(!keeps(&table, &many[0]), "the oldest of all goes");
        assert!(keeps(&table, &many[1]) && keeps(&table, &newcomer));
    }

    #[test]
    fn places_given_back_are_free() {
        let table: Arc<Places<()>> = Arc::new(Places::new(1));
        let (place, loser) = table.take([192, 0, 2, 1].into()).unwrap();
        assert!(loser.is_none());
        drop(place);
        assert_eq!(table.taken().len(), 0);
        let (first, _) = table.take([192, 0, 2, 2].into()).unwrap();
        drop(table.take([192, 0, 2, 3].into()).unwrap());
        // A lost place is not released twice.
        let (_second, _) = table.take([192, 0, 2, 4].into()).unwrap();
        drop(first);
        assert_eq!(table.taken().len(), 1);
    }
}
