//! Connections that are open now, with their counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::account::Account;

/// Counters of one connection.
#[derive(Debug)]
pub struct Meter {
    /// How it came and where it goes.
    pub name: ConnectionName,
    begin: Instant,
    /// Bytes from the TCP connection into the session, and back.
    up: AtomicU64,
    down: AtomicU64,
    account: Option<Arc<Account>>,
}

/// How a connection came and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionName {
    /// The protocol of the client, or the node at an exit.
    pub from: String,
    /// The destination.
    pub to: String,
}

impl Meter {
    /// Counts bytes from the TCP connection; waits for the account's rate. False when no more may pass.
    pub(crate) async fn up(&self, bytes: usize) -> bool {
        self.up.fetch_add(bytes as u64, Ordering::Relaxed);
        self.spend(bytes).await
    }

    /// Counts bytes to the TCP connection, as [`Self::up`].
    pub(crate) async fn down(&self, bytes: usize) -> bool {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
        self.spend(bytes).await
    }

    async fn spend(&self, bytes: usize) -> bool {
        match &self.account {
            Some(account) => account.spend(bytes).await,
            None => true,
        }
    }

    /// Bytes from the TCP connection and to it.
    pub fn bytes(&self) -> [u64; 2] {
        [self.up.load(Ordering::Relaxed), self.down.load(Ordering::Relaxed)]
    }

    /// The current status of the connection.
    pub fn status(&self) -> ConnectionStatus {
        ConnectionStatus {
            name: self.name.clone(),
            seconds: self.begin.elapsed().as_secs_f64(),
            bytes: self.bytes(),
        }
    }
}

/// A connection that is open now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// How it came and where it goes.
    #[serde(flatten)]
    pub name: ConnectionName,
    /// How long it has been open.
    pub seconds: f64,
    /// Bytes from the TCP connection into the session, and back.
    pub bytes: [u64; 2],
}

/// All connections that are open now.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Arc<Meter>>,
    /// Counters of those that have ended.
    ended: Totals,
}

/// Counters of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub connections: u64,
    /// Bytes from TCP connections into sessions, and back.
    pub bytes: [u64; 2],
}

impl Connections {
    /// Adds a connection until the result is dropped.
    pub fn enter(&self, name: ConnectionName, account: Option<Arc<Account>>) -> Entered {
        let counters = (AtomicU64::new(0), AtomicU64::new(0));
        let meter =
            Arc::new(Meter { name, begin: Instant::now(), up: counters.0, down: counters.1, account });
        let mut table = self.table();
        table.next += 1;
        let number = table.next;
        table.open.insert(number, meter.clone());
        drop(table);
        Entered { meter, number, connections: self.clone() }
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.table().open.len()
    }

    /// Those that are open, with most bytes first, at most `most`; and the counters of all there have been.
    pub fn status(&self, most: usize) -> (Vec<ConnectionStatus>, Totals) {
        let table = self.table();
        let mut totals = table.ended;
        let mut open: Vec<ConnectionStatus> = table.open.values().map(|meter| meter.status()).collect();
        drop(table);
        totals.connections += open.len() as u64;
        open.iter().for_each(|connection| totals.add_bytes(connection.bytes));
        open.sort_by_key(|connection| std::cmp::Reverse(connection.bytes[0] + connection.bytes[1]));
        open.truncate(most);
        (open, totals)
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    fn add_bytes(&mut self, bytes: [u64; 2]) {
        self.bytes[0] += bytes[0];
        self.bytes[1] += bytes[1];
    }
}

/// A connection among those that are open now, until it is dropped.
#[derive(Debug)]
pub struct Entered {
    /// Its counters.
    pub meter: Arc<Meter>,
    number: u64,
    connections: Connections,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.open.remove(&self.number);
        table.ended.connections += 1;
        table.ended.add_bytes(self.meter.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_listed_while_they_are_open_and_counted_after() {
        let connections = Connections::default();
        let name = |to: &str| ConnectionName { from: "socks5".to_owned(), to: to.to_owned() };
        let (one, two) = (connections.enter(name("a:1"), None), connections.enter(name("b:1"), None));
        assert!(one.meter.up(10).await && two.meter.down(30).await);
        let (open, totals) = connections.status(1);
        assert_eq!((open.len(), open[0].name.to.as_str(), open[0].bytes), (1, "b:1", [0, 30]));
        assert_eq!(totals, Totals { connections: 2, bytes: [10, 30] });
        drop((one, two));
        assert_eq!(connections.count(), 0);
        assert_eq!(connections.status(9).1, totals);
    }
}
