//! What was used of grants and which were revoked, in a file, so that a restart gives nobody their bytes or their grant again.
//!
//! Written when something has changed, twice a minute and at the end; a revocation at once, before the controller is told that it is known. A disk that is full or gone costs no path: people are told, and
//! what was used since the last time that it could be written would be forgotten by a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_overlay::grant::UnixTime;
use anabranch_overlay::relay::GrantUse;
use serde::{Deserialize, Serialize};

use super::state::State;

/// How often it is written.
const EVERY: Duration = Duration::from_secs(30);
/// Version of the file; others are not read.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    grants: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    grant: String,
    bytes: u64,
    until: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    revoked: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// See the module's documentation.
pub(super) struct Ledger {
    file: PathBuf,
    state: Arc<State>,
    /// What stands in the file; `None` when there is none.
    written: Mutex<Option<Vec<GrantUse>>>,
    /// Why it could not be written the last time.
    failure: Mutex<Option<String>>,
}

impl Ledger {
    /// Takes over what an earlier run had counted. A file that cannot be read is left as it is until there is something to write;
    /// one that is not there is made, so that people are told at once when it cannot be.
    pub(super) fn open(file: &Path, state: &Arc<State>) -> Self {
        let known = match read(file) {
            Ok(known) => Some(known),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("{}: {error}; what was used of grants before is not known", file.display());
                Some(Vec::new())
            }
        };
        state.change(|relay| relay.restore_usage(known.iter().flatten().copied()));
        let ledger = Self {
            file: file.to_owned(),
            state: state.clone(),
            written: Mutex::new(known),
            failure: Mutex::default(),
        };
        ledger.is_written();
        ledger
    }

    /// True once a fault of this program left what it knows half changed.
    pub(super) fn is_torn(&self) -> bool {
        self.written.is_poisoned() || self.failure.is_poisoned()
    }

    /// Writes now and then, for as long as it is polled.
    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.is_written();
        }
    }

    /// Writes what has changed; false when that fails, of which people are told once until it is different.
    pub(super) fn is_written(&self) -> bool {
        let failure = self.write().err().map(|error| error.to_string());
        if self.is_news(&failure) {
            let file = self.file.display();
            match &failure {
                Some(why) => tracing::warn!(
                    "{file}: {why}; see to that disk, the relay writes again by itself. Until then a restart would forget what is used of \
                     grants, and controllers go on telling which they took back"
                ),
                None => tracing::info!("{file} can be written again"),
            }
        }
        failure.is_none()
    }

    fn is_news(&self, failure: &Option<String>) -> bool {
        let mut known = self.failure.lock().expect("no panic while held");
        let is_news = *known != *failure;
        known.clone_from(failure);
        is_news
    }

    /// Writes what has changed.
    pub(super) fn write(&self) -> io::Result<()> {
        let usage = self.state.change(anabranch_overlay::relay::Relay::usage);
        let mut written = self.written.lock().expect("no panic while held");
        if written.as_ref() == Some(&usage) {
            return Ok(());
        }
        let line = |GrantUse { grant, bytes, until, revoked }: &GrantUse| Line {
            grant: grant.to_string(),
            bytes: *bytes,
            until: until.0,
            revoked: *revoked,
        };
        let content = File { version: VERSION, grants: usage.iter().map(line).collect() };
        anabranch_node::file::replace(&self.file, &serde_json::to_vec(&content)?)?;
        *written = Some(usage);
        Ok(())
    }
}

fn read(file: &Path) -> io::Result<Vec<GrantUse>> {
    let File { version, grants } = serde_json::from_slice(&std::fs::read(file)?)?;
    if version != VERSION {
        return Err(io::Error::other(format!(
            "it has version {version}, and this program reads {VERSION}: run the version that wrote it, or move it away, which makes grants count as unused"
        )));
    }
    let usage = |line: &Line| {
        let grant = line.grant.parse().map_err(io::Error::other)?;
        Ok(GrantUse { grant, bytes: line.bytes, until: UnixTime(line.until), revoked: line.revoked })
    };
    grants.iter().map(usage).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_net::{NodeKey, Time};
    use anabranch_overlay::grant::GrantId;
    use anabranch_overlay::relay::{Heartbeat, Relay};

    use super::*;
    use crate::relay::config::RelaySettings;

    const NOW: UnixTime = UnixTime(1_700_000_000);

    fn state() -> Arc<State> {
        let settings = RelaySettings::local([127, 0, 0, 1].into(), Vec::new());
        let config = settings.core(NodeKey::from_random([1; 32]).public());
        Arc::new(State::new(Relay::new(config, [2; 32], (Time::ZERO, NOW))))
    }

    #[test]
    fn a_grant_that_was_taken_back_is_in_the_file_and_known_to_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("usage.json");
        let first = state();
        let ledger = Ledger::open(&file, &first);
        let (key, revoked) = (NodeKey::from_random([3; 32]).public(), vec![GrantId([7; 16])]);
        first.change_now(|relay, now| relay.handle_heartbeat(now, &key, &Heartbeat { time: NOW, revoked }));
        ledger.write().unwrap();
        let second = state();
        Ledger::open(&file, &second);
        let known = second.change(Relay::usage);
        assert!(known.len() == 1 && known[0].grant == GrantId([7; 16]) && known[0].revoked, "{known:?}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_once_until_that_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (state, inner) = (state(), dir.path().join("gone"));
        let ledger = Ledger::open(&inner.join("usage.json"), &state);
        let (key, revoked) = (NodeKey::from_random([3; 32]).public(), vec![GrantId([7; 16])]);
        state.change_now(|relay, now| relay.handle_heartbeat(now, &key, &Heartbeat { time: NOW, revoked }));
        assert!(ledger.failure.lock().unwrap().is_some(), "it was told at the start");
        assert!(!ledger.is_written() && !ledger.is_written());
        let why = ledger.failure.lock().unwrap().clone();
        assert!(why.is_some() && !ledger.is_news(&why) && ledger.is_news(&Some("another".into())));
        std::fs::create_dir(&inner).unwrap();
        assert!(ledger.is_written() && !ledger.is_news(&None), "that it works again was told");
    }
}
