//! A store in etcd, shared by several controllers.
//!
//! It uses etcd's JSON gateway (`/v3/kv/…`, on by default since etcd 3.4), which needs no protocol compiler and no gRPC stack.
//! Revisions are etcd's modification revisions, compared inside its transactions; reads are
//! linearizable. Locks and leases of etcd are not used.
//!
//! A request goes to one member. If it fails or does not answer after [`SLOW`], the next member is asked too, and so on; the
//! first answer counts. A transaction that is sent twice that way is done at most once: it names the revisions that it
//! replaces, so the second one conflicts, and the controller reads the decision instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_overlay::controller::{Commit, Entry, PAGE, Revision, Store, StoreError, Transaction};
use bytes::Bytes;
use data_encoding::BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::http::Server;

/// A member gets this long before the next one is asked too.
const SLOW: Duration = Duration::from_millis(250);
/// Pause after a member's error.
const PAUSE: Duration = Duration::from_millis(30);
/// Longest time for an answer in all; a controller's clients wait a little longer.
const PATIENCE: Duration = Duration::from_millis(1_300);
/// How often each member is asked; a request during an election may never be answered.
const ROUNDS: usize = 5;

/// How etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// Client addresses of its members, `http://host:port`.
    pub endpoints: Vec<String>,
    /// Prefix of all keys.
    pub prefix: String,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Arc<Server>>,
    prefix: String,
    /// The member that answered last.
    good: AtomicUsize,
}

impl Etcd {
    /// A store in this etcd. Nothing is sent yet.
    pub fn new(settings: &EtcdSettings) -> Result<Self, String> {
        let members = settings.endpoints.iter().map(|url| member(url).map(Arc::new));
        let members = members.collect::<Result<Vec<_>, String>>()?;
        if members.is_empty() {
            return Err("no endpoint of etcd is named: write one such as \"http://127.0.0.1:2379\"".into());
        }
        Ok(Self { members, prefix: settings.prefix.clone(), good: AtomicUsize::new(0) })
    }

    /// The first answer of a member.
    async fn ask<A: DeserializeOwned + Send + 'static>(
        &self,
        path: &'static str,
        question: &impl Serialize,
    ) -> Result<A, StoreError> {
        let body =
            serde_json::to_vec(question).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let body = Bytes::from(body);
        let mut why = "etcd: no answer in time".to_owned();
        let first = self.good.load(Ordering::Relaxed);
        let mut turns = (0..ROUNDS * self.members.len()).map(|turn| (first + turn) % self.members.len());
        let mut asked = JoinSet::new();
        let end = Instant::now() + PATIENCE;
        loop {
            let next = turns.next();
            if let Some(at) = next {
                let (member, body) = (self.members[at].clone(), body.clone());
                asked.spawn(async move { (at, member.ask::<A>(path, body).await) });
            }
            let until = if next.is_some() { end.min(Instant::now() + SLOW) } else { end };
            match timeout_at(until, asked.join_next()).await {
                Ok(Some(Ok((at, Ok(answer))))) => {
                    self.good.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Some(Ok((at, Err(error))))) => {
                    why = format!("etcd at {:?}: {error}", self.members[at]);
                    sleep(PAUSE).await;
                }
                Ok(Some(Err(_))) => {}
                Ok(None) => break,
                Err(_) if Instant::now() >= end => break,
                Err(_) => {}
            }
        }
        Err(StoreError::Unavailable(why))
    }

    fn encoded(&self, key: &str) -> String {
        BASE64.encode(format!("{}{key}", self.prefix).as_bytes())
    }

    fn key(&self, pair: &Pair) -> Result<String, StoreError> {
        let foreign = || StoreError::Damaged("etcd gave a key that was not asked for".into());
        let bytes = BASE64.decode(pair.key.as_bytes()).map_err(|_| foreign())?;
        let key = String::from_utf8(bytes).map_err(|_| foreign())?;
        key.strip_prefix(&self.prefix).map(str::to_owned).ok_or_else(foreign)
    }
}

/// Host and port of an endpoint.
fn member(url: &str) -> Result<Server, String> {
    let wrong = || {
        format!(
            "`{url}` is no endpoint of etcd: write http://HOST:PORT. For an etcd on another machine, have a tunnel bring its port \
             to this one: the connection is not encrypted"
        )
    };
    let authority = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
    let is_port = port.parse::<u16>().is_ok();
    if host.is_empty() || !is_port || authority.contains(['/', '@', ' ']) {
        return Err(wrong());
    }
    Ok(Server::new(authority))
}

/// A key and its value in etcd's answers. Numbers are text, and empty fields are left out.
#[derive(Debug, Deserialize)]
struct Pair {
    key: String,
    #[serde(default)]
    value: String,
    mod_revision: String,
}

#[derive(Debug, Deserialize)]
struct Found {
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Debug, Deserialize)]
struct Done {
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Debug, Deserialize)]
struct Response {
    response_range: Option<Found>,
}

fn entry(pair: &Pair) -> Result<Entry, StoreError> {
    let odd = || StoreError::Damaged("etcd gave a value that cannot be read".into());
    let value = BASE64.decode(pair.value.as_bytes()).map_err(|_| odd())?;
    let revision = pair.mod_revision.parse().map_err(|_| odd())?;
    Ok(Entry { value, revision: Revision(revision) })
}

/// The first key after all keys with this prefix; etcd's `\0` ("to the end") if there is no such key.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while end.last() == Some(&0xff) {
        end.pop();
    }
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    end
}

impl Store for Etcd {
    async fn get(&self, keys: &[String]) -> Result<Vec<Entry>, StoreError> {
        let reads: Vec<Value> =
            keys.iter().map(|key| json!({ "request_range": { "key": self.encoded(key) } })).collect();
        let done: Done = self.ask("/v3/kv/txn", &json!({ "success": reads })).await?;
        if done.responses.len() != keys.len() {
            return Err(StoreError::Damaged("etcd answered another question".into()));
        }
        let read = done.responses.iter().map(|response| {
            let pair = response.response_range.as_ref().and_then(|found| found.kvs.first());
            pair.map(entry).transpose().map(Option::unwrap_or_default)
        });
        read.collect()
    }

    async fn range(&self, prefix: &str, after: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        // The first key behind another is that key with a zero.
        let from = if after < prefix { prefix.to_owned() } else { format!("{after}\0") };
        let end = BASE64.encode(&end_of(&format!("{}{prefix}", self.prefix)));
        let question = json!({ "key": self.encoded(&from), "range_end": end, "limit": PAGE });
        let found: Found = self.ask("/v3/kv/range", &question).await?;
        found.kvs.iter().map(|pair| Ok((self.key(pair)?, entry(pair)?))).collect()
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Commit, StoreError> {
        let compare: Vec<Value> = transaction
            .expect
            .iter()
            .map(|(key, revision)| {
                let revision = revision.0.to_string();
                json!({ "key": self.encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision })
            })
            .collect();
        let writes: Vec<Value> = transaction
            .writes
            .iter()
            .map(|(key, value)| match value {
                Some(value) => {
                    json!({ "request_put": { "key": self.encoded(key), "value": BASE64.encode(value) } })
                }
                None => json!({ "request_delete_range": { "key": self.encoded(key) } }),
            })
            .collect();
        let done: Done = self.ask("/v3/kv/txn", &json!({ "compare": compare, "success": writes })).await?;
        Ok(if done.succeeded { Commit::Committed } else { Commit::Conflict })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_invalid_endpoint_shows_how_to_write_one() {
        for wrong in
            ["", "127.0.0.1:2379", "https://a:1", "http://a", "http://:1", "http://a:b", "http://u@a:1"]
        {
            let why = member(wrong).unwrap_err();
            assert!(why.contains("http://HOST:PORT"), "{why}");
        }
        assert_eq!(format!("{:?}", member("http://[::1]:2379/").unwrap()), "[::1]:2379");
    }

    #[test]
    fn a_range_ends_behind_all_keys_with_its_prefix() {
        assert_eq!(end_of("client/"), b"client0");
        assert_eq!(end_of(""), b"\0");
    }
}
