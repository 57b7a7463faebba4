//! Serves all clients, each in its own task, and reports what they did.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anabranch_net::{PublicKey, Session, ShareId};
use anabranch_node::Node;
use anabranch_transfer::{Folders, Progress, Served, Task, Visitor};
use tokio::task::JoinSet;

use super::access::Doors;
use crate::carrier::{CAP_PATIENCE, Carrier};
use crate::commands::send::resources::{self, Placed};
use crate::errors::{Failure, log_missed, printable, without_codes};
use crate::report::TransferReport;
use crate::ui::out::{self, Stream};
use crate::ui::render;

/// Most sessions of one key at the same time.
const MOST_OF_A_KEY: usize = 16;

/// How often the server looks for revoked tickets.
const LOOK: Duration = Duration::from_secs(1);

/// How events are reported.
#[derive(Clone, Copy, Debug)]
pub struct Telling {
    pub json: bool,
    pub quiet: bool,
}

/// The bytes that a client has moved: in finished requests, and in the current one.
#[derive(Clone, Debug, Default)]
struct Moved(Arc<Mutex<(u64, Progress)>>);

impl Moved {
    /// Counters for the next request.
    fn next(&self) -> Progress {
        let mut moved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moved.0 += moved.1.snapshot().bytes_done;
        moved.1 = Progress::new();
        moved.1.clone()
    }

    fn bytes(&self) -> u64 {
        let moved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moved.0 + moved.1.snapshot().bytes_done
    }
}

/// A client with a session.
struct Client {
    key: PublicKey,
    /// The ticket that opened the session.
    share: Option<ShareId>,
    address: Option<IpAddr>,
    since: Instant,
    moved: Moved,
    carrier: Carrier,
}

/// Serves folders on one node.
pub struct Host<'a> {
    node: &'a Node,
    folders: Folders,
    doors: Doors,
    how: Telling,
    tasks: JoinSet<u64>,
    /// Shows the folders to browsers.
    browsers: JoinSet<()>,
    /// The clients by order of arrival.
    clients: BTreeMap<u64, Client>,
    arrived: u64,
}

impl<'a> Host<'a> {
    /// Prepares to serve the folders to those that the doors let in, while `browsers` shows them over HTTP.
    pub fn new(
        node: &'a Node,
        (folders, doors): (Folders, Doors),
        browsers: JoinSet<()>,
        how: Telling,
    ) -> Self {
        let (tasks, clients) = (JoinSet::new(), BTreeMap::new());
        Self { node, folders, doors, how, tasks, browsers, clients, arrived: 0 }
    }

    /// Serves until `stop` completes.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(done) = self.tasks.join_next() => {
                    if let Ok(number) = done {
                        self.clients.remove(&number);
                    }
                }
                Some(session) = self.node.accept() => self.start(session.session().clone()),
                _ = look.tick() => self.close_revoked(),
            }
        }
        self.clients.values().for_each(|client| client.carrier.leave());
    }

    /// Ends the sessions of tickets that were revoked.
    fn close_revoked(&mut self) {
        for door in self.doors.close_revoked() {
            let opened = self.clients.values().filter(|client| client.share == Some(door.share.id));
            opened.for_each(|client| client.carrier.revoke());
            if !self.how.quiet && !self.how.json {
                out::sentence(&format!("the ticket `{}` was revoked", door.name));
            }
        }
        if self.doors.tickets().is_empty() {
            self.browsers.abort_all();
        }
    }

    /// Looks whether the earlier sessions of a key are alive. A client that was killed would otherwise keep the files that
    /// it was putting from the same client when it starts again.
    fn check_earlier(&self, key: PublicKey) {
        for client in self.clients.values().filter(|client| client.key == key) {
            let carrier = client.carrier.clone();
            tokio::spawn(async move {
                if !carrier.is_answering().await {
                    carrier.replace();
                }
            });
        }
    }

    /// True when there is a place for another session of this key from this address. With many of the key, the oldest makes
    /// room. When all places are taken, [another client](resources::gives_way) may lose its own.
    fn has_room(&mut self, key: PublicKey, address: Option<IpAddr>) -> bool {
        let all = self.clients.iter().map(|(number, client)| (*number, client.key));
        if let Some(oldest) = makes_room(all, key)
            && let Some(client) = self.clients.remove(&oldest)
        {
            client.carrier.refuse();
        }
        if self.clients.len() < resources::most_receivers() {
            return true;
        }
        let placed = |(number, client): (&u64, &Client)| Placed {
            number: *number,
            address: client.address,
            since: client.since,
            bytes: client.moved.bytes(),
        };
        let all: Vec<Placed> = self.clients.iter().map(placed).collect();
        let Some(least) = resources::gives_way(&all, address) else { return false };
        if let Some(client) = self.clients.remove(&least) {
            client.carrier.refuse();
        }
        true
    }

    fn start(&mut self, session: Session) {
        let (key, share, visitor) = (session.peer(), session.share(), self.doors.visitor(&session));
        let carrier = Carrier::new(session);
        let Some(visitor) = visitor else { return carrier.revoke() };
        let address = carrier.address();
        if !self.has_room(key, address) {
            return carrier.refuse();
        }
        self.check_earlier(key);
        let (number, moved) = (self.arrived, Moved::default());
        self.arrived += 1;
        let (since, held) = (Instant::now(), carrier.clone());
        let client = Client { key, share, address, since, moved: moved.clone(), carrier: held };
        self.clients.insert(number, client);
        let (folders, how) = (self.folders.clone(), self.how);
        self.tasks.spawn(async move {
            attend(&folders, &carrier, &visitor, (&moved, how)).await;
            // The farewell goes on in the background.
            tokio::spawn(async move { carrier.close().await });
            number
        });
    }
}

/// The client that makes room for another session of this key. The clients are in order of arrival.
fn makes_room(clients: impl Iterator<Item = (u64, PublicKey)>, key: PublicKey) -> Option<u64> {
    let of_the_key: Vec<u64> = clients.filter(|(_, of)| *of == key).map(|(number, _)| number).collect();
    if of_the_key.len() < MOST_OF_A_KEY { None } else { of_the_key.first().copied() }
}

/// Answers a client's requests, one after the other.
async fn attend(folders: &Folders, carrier: &Carrier, visitor: &Visitor, (moved, how): (&Moved, Telling)) {
    let name = carrier.peer_name();
    loop {
        let (start, counters) = (Instant::now(), moved.next());
        let served = tokio::select! {
            served = folders.serve(carrier, visitor, &counters) => served,
            used_up = carrier.caps_used_up(|| counters.snapshot().bytes_moved, CAP_PATIENCE) => {
                carrier.end_for_caps(&used_up);
                return tracing::warn!(client = name, "{}", used_up.message);
            }
        };
        let Some(served) = served else { return };
        let failed = served.outcome.is_err();
        tell(&name, visitor, (served, start.elapsed()), how);
        if failed && counters.snapshot().bytes_done == 0 {
            // A refused client needs another session.
            return;
        }
    }
}

fn tell(name: &str, visitor: &Visitor, (served, took): (Served, Duration), how: Telling) {
    let (verb, paths) = match served.task {
        Task::List(path) => ("ls", path),
        Task::Get(paths) => ("get", paths.join(" ")),
        Task::Put(to) => ("put", to),
    };
    let outcome = served.outcome.map_err(Failure::from);
    match &outcome {
        Ok(summary) => {
            log_missed(summary);
            summary
                .warnings
                .iter()
                .for_each(|note| tracing::info!("{name}: {}", printable(&without_codes(note))));
        }
        Err(failure) if how.json || how.quiet => {
            failure.details.iter().for_each(|file| tracing::info!("{}", printable(file)));
        }
        Err(failure) => failure.log_hidden(),
    }
    if how.json {
        let mut event = serde_json::json!({
            "event": "served", "client": name, "key": visitor.name, "request": verb, "paths": paths,
        });
        match &outcome {
            Ok(summary) => event["done"] = serde_json::json!(TransferReport::new(summary, took)),
            Err(failure) => event["error"] = serde_json::json!(failure),
        }
        // The reader of the events may be gone; the server goes on.
        let _ = Stream::Stdout.json(&event);
        return;
    }
    if how.quiet {
        return;
    }
    let what = format!("{verb} {}", printable(&paths));
    let what = what.trim_end();
    let line = match outcome {
        Ok(_) if verb == "ls" => format!("{name}: {what}"),
        Ok(summary) => format!("{name}: {what}: {}", render::summary(&summary, took)),
        Err(failure) => format!("{name}: {what} failed: {}", failed(&failure)),
    };
    out::sentence(&line);
}

/// Why a request failed, and the first of the files that failed, a line each.
fn failed(failure: &Failure) -> String {
    let said = failure.said.as_ref().map_or_else(String::new, |said| format!(", saying \"{said}\""));
    let details = failure.shown_details();
    let lines = details.iter().map(|file| format!("\n  {}", printable(file)));
    std::iter::once(failure.message.clone() + &said).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_net::NodeKey;
    use anabranch_transfer::{Reason, TransferError};

    use super::*;

    #[test]
    fn the_first_files_that_could_not_be_stored_are_named_and_cannot_steer_the_terminal() {
        let file = |n: u32| anabranch_transfer::Failure {
            path: format!("f{n}\n\u{1b}[2J").into(),
            reason: Reason::Here("the disk is full".into()),
        };
        let text = failed(&Failure::from(TransferError::Incomplete {
            failures: (0..12).map(file).collect(),
            count: 12,
            here: 12,
            again: 12,
            notes: vec!["nothing else was removed".into()],
            advice: None,
            unsynced: 0,
        }));
        let first = "12 files were not transferred\n  f0\\u{a}\\u{1b}[2J: the disk is full\n  f1";
        assert!(text.starts_with(first), "{text}");
        assert!(text.ends_with("\n  and 2 more; `-v` names them\n  nothing else was removed"), "{text}");
        assert_eq!(text.lines().count(), 13);
    }

    #[test]
    fn of_sixteen_sessions_of_a_key_the_oldest_makes_room_for_another() {
        let [key, other] = [1, 2].map(|byte| NodeKey::from_random([byte; 32]).public());
        let clients =
            |count: u64| std::iter::once((0, other)).chain((1..=count).map(move |number| (number, key)));
        assert_eq!(makes_room(clients(15), key), None);
        assert_eq!(makes_room(clients(16), key), Some(1));
    }
}
