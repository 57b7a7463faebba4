//! The control socket of a node: lists and changes the paths of its sessions.
//!
//! A request is one line: `list`, `add ROUTE`, `remove PATH`, `remove ROUTE` or `set RULE`. If there are several
//! sessions, `in SESSION` comes first. The answer lists all paths of that session, or of all sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::session::{NodeSession, PathStatus};

/// The usage, for wrong requests.
const WORDS: &str =
    "say `list`, `add ROUTE`, `remove PATH`, `remove ROUTE` or `set RULE`, after `in SESSION` if need be";

/// A path, and the number of its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionPath {
    /// The session's number, from 1 in the order of their start.
    pub session: u32,
    #[serde(flatten)]
    pub path: PathStatus,
}

/// The sessions of a node; clones share them.
#[derive(Clone, Default)]
pub struct RunningSessions(Arc<Mutex<Numbered>>);

#[derive(Default)]
struct Numbered {
    last: u32,
    running: BTreeMap<u32, NodeSession>,
}

impl RunningSessions {
    fn numbered(&self) -> MutexGuard<'_, Numbered> {
        self.0.lock().expect("no panic while held")
    }

    /// Lists a session until it is closed, or until the list is dropped.
    pub fn add(&self, paths: NodeSession) {
        let ended = paths.session().ended();
        let number = {
            let mut numbered = self.numbered();
            numbered.last += 1;
            let number = numbered.last;
            numbered.running.insert(number, paths);
            number
        };
        // The task holds neither the session nor the list: otherwise a node without handles would never end.
        let sessions = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            ended.await;
            let Some(sessions) = sessions.upgrade().map(Self) else { return };
            let gone = sessions.numbered().running.remove(&number);
            // Its paths are given up without the lock.
            drop(gone);
        });
    }

    fn list(&self, wanted: Option<u32>) -> Vec<SessionPath> {
        let numbered = self.numbered();
        let listed =
            numbered.running.iter().filter(|(number, _)| wanted.is_none_or(|wanted| wanted == **number));
        let paths = |(number, paths): (&u32, &NodeSession)| {
            let session = *number;
            paths.list().into_iter().map(move |path| SessionPath { session, path })
        };
        listed.flat_map(paths).collect()
    }

    /// The session with that number, or the only one.
    fn one(&self, wanted: Option<u32>) -> Result<NodeSession, String> {
        let numbered = self.numbered();
        let mut running = numbered.running.iter();
        match (wanted, running.next(), running.next()) {
            (Some(number), ..) => {
                let found = numbered.running.get(&number);
                found.cloned().ok_or_else(|| format!("there is no session {number} any more, or not yet"))
            }
            (None, Some((_, only)), None) => Ok(only.clone()),
            (None, None, _) => Err("no session runs at the moment".to_owned()),
            (None, Some(_), Some(_)) => {
                let all: Vec<String> = numbered.running.keys().map(u32::to_string).collect();
                Err(format!("which session? {} run; name one with `--session`", all.join(", ")))
            }
        }
    }

    /// Carries out a request; returns its session.
    async fn handle(&self, line: &str) -> Result<Option<u32>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (wanted, request) = match &words[..] {
            ["in", number, request @ ..] => {
                let number = number.parse().map_err(|_| format!("`{number}` is no session's number"))?;
                (Some(number), request)
            }
            request => (None, request),
        };
        match request {
            ["list"] if wanted.is_none() => {}
            ["list"] => drop(self.one(wanted)?),
            ["add", route] => self.one(wanted)?.add(&route.parse()?).await?,
            ["remove", which] => match which.parse() {
                Ok(path) => self.one(wanted)?.remove(path)?,
                Err(_) => self.one(wanted)?.take_back(&which.parse()?).await?,
            },
            ["set", rule] => self.one(wanted)?.set(rule)?,
            _ => return Err(WORDS.to_owned()),
        }
        Ok(wanted)
    }
}

impl anabranch_service::control::Answer for RunningSessions {
    async fn answer(&self, line: &str) -> String {
        match self.handle(line).await {
            Ok(wanted) => anabranch_service::control::reply(&self.list(wanted)),
            Err(why) => anabranch_service::control::refusal(&why),
        }
    }
}
