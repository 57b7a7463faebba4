//! Stores the usage of grants and users, and revoked grants, in a file. So a restart does not restore used bytes or a
//! revoked grant.
//!
//! If something has changed, the file is written twice a minute and at the end. A revocation is written before the
//! relay confirms it to the controller. The relay does not start with an unreadable file, because that would reset the
//! usage. If the disk fills up later, paths continue and the log reports it; a restart then loses the usage since the
//! last successful write.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_net::{Lasting, PublicKey};
use anabranch_overlay::grant::UnixTime;
use anabranch_overlay::relay::{GrantUse, ListedUse};
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
    #[serde(default)]
    users: Vec<UserLine>,
}

#[derive(Serialize, Deserialize)]
struct UserLine {
    key: String,
    bytes: u64,
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

/// The contents of the file.
#[derive(Clone, Default, PartialEq, Eq)]
struct Usage {
    grants: Vec<GrantUse>,
    listed: Vec<ListedUse>,
}

/// See the module's documentation.
pub(super) struct Ledger {
    file: PathBuf,
    state: Arc<State>,
    /// The contents of the file as last written; `None` before that.
    written: Mutex<Option<Usage>>,
    /// Why the last write failed.
    failure: Mutex<Lasting>,
}

impl Ledger {
    /// Loads the usage of an earlier run. Creates a missing file, so that a wrong name or a read-only disk is reported
    /// at the start.
    pub(super) fn open(file: &Path, state: &Arc<State>) -> io::Result<Self> {
        let known = match read(file) {
            Ok(known) => Some(known),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let file = file.display();
                let what = format!(
                    "{file} cannot be read ({error}), and without it used-up quotas and revoked grants would count again: \
                     restore the file from a copy, or accept that and move it away with `mv {file} {file}.damaged`"
                );
                return Err(io::Error::new(error.kind(), what));
            }
        };
        let restored = known.clone().unwrap_or_default();
        state.change(|relay| {
            relay.restore_usage(restored.grants);
            relay.restore_listed_usage(restored.listed);
        });
        let ledger = Self {
            file: file.to_owned(),
            state: state.clone(),
            written: Mutex::new(known),
            failure: Mutex::default(),
        };
        ledger.is_written();
        Ok(ledger)
    }

    /// True once an internal error may have left the state half changed.
    pub(super) fn is_torn(&self) -> bool {
        self.written.is_poisoned() || self.failure.is_poisoned()
    }

    /// Writes at intervals, for as long as it is polled.
    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.is_written();
        }
    }

    /// Writes changes; false if that fails. A failure is logged once, until its reason changes.
    pub(super) fn is_written(&self) -> bool {
        let failure = self.write().err().map(|error| error.to_string());
        if self.failure.lock().expect("no panic while held").is_news(failure.as_deref()) {
            let file = self.file.display();
            match &failure {
                Some(why) => tracing::warn!(
                    "{file} cannot be written: {why}. The relay retries; until it succeeds, a restart would forget what is used \
                     of grants and listings, and controllers repeat which grants are revoked"
                ),
                None => tracing::warn!("{file} can be written again"),
            }
        }
        failure.is_none()
    }

    /// Writes changes.
    pub(super) fn write(&self) -> io::Result<()> {
        // Locked before the usage is read: of two writes at once, the one that ends last has the newer usage.
        let mut written = self.written.lock().expect("no panic while held");
        let usage = self.state.change(|relay| Usage { grants: relay.usage(), listed: relay.listed_usage() });
        if written.as_ref() == Some(&usage) {
            return Ok(());
        }
        let line = |GrantUse { grant, bytes, until, revoked }: &GrantUse| Line {
            grant: grant.to_string(),
            bytes: *bytes,
            until: until.0,
            revoked: *revoked,
        };
        let user = |used: &ListedUse| UserLine { key: used.key.to_string(), bytes: used.bytes };
        let content = File {
            version: VERSION,
            grants: usage.grants.iter().map(line).collect(),
            users: usage.listed.iter().map(user).collect(),
        };
        anabranch_node::file::replace(&self.file, &serde_json::to_vec(&content)?)?;
        *written = Some(usage);
        Ok(())
    }
}

fn read(file: &Path) -> io::Result<Usage> {
    let File { version, grants, users } = serde_json::from_slice(&std::fs::read(file)?)?;
    if version != VERSION {
        return Err(io::Error::other(format!(
            "it has version {version}, and this program reads version {VERSION}"
        )));
    }
    let usage = |line: &Line| {
        let grant = line.grant.parse().map_err(io::Error::other)?;
        Ok(GrantUse { grant, bytes: line.bytes, until: UnixTime(line.until), revoked: line.revoked })
    };
    let listed = |user: &UserLine| {
        let key: PublicKey = user.key.parse().map_err(io::Error::other)?;
        Ok(ListedUse { key, bytes: user.bytes })
    };
    Ok(Usage {
        grants: grants.iter().map(usage).collect::<io::Result<_>>()?,
        listed: users.iter().map(listed).collect::<io::Result<_>>()?,
    })
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
    fn a_revoked_grant_is_in_the_file_and_known_to_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("usage.json");
        let first = state();
        let ledger = Ledger::open(&file, &first).unwrap();
        let (key, revoked) = (NodeKey::from_random([3; 32]).public(), vec![GrantId([7; 16])]);
        first.change_now(|relay, now| relay.handle_heartbeat(now, &key, &Heartbeat { time: NOW, revoked }));
        ledger.write().unwrap();
        let second = state();
        Ledger::open(&file, &second).unwrap();
        let known = second.change(Relay::usage);
        assert!(known.len() == 1 && known[0].grant == GrantId([7; 16]) && known[0].revoked, "{known:?}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_reported_once_until_that_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (state, inner) = (state(), dir.path().join("gone"));
        let ledger = Ledger::open(&inner.join("usage.json"), &state).unwrap();
        let (key, revoked) = (NodeKey::from_random([3; 32]).public(), vec![GrantId([7; 16])]);
        state.change_now(|relay, now| relay.handle_heartbeat(now, &key, &Heartbeat { time: NOW, revoked }));
        let is_reported = || ledger.failure.lock().unwrap().clone().is_news(None);
        assert!(is_reported(), "at the start");
        assert!(!ledger.is_written() && !ledger.is_written() && is_reported());
        std::fs::create_dir(&inner).unwrap();
        assert!(ledger.is_written() && !is_reported(), "the recovery was reported");
    }

    #[test]
    fn a_damaged_file_keeps_the_relay_from_starting_and_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("usage.json");
        let damaged: [&[u8]; 5] = [
            b"",
            b"{\"version\":1,\"gran",
            b"{\"version\":9,\"grants\":[]}",
            b"{\"version\":1,\"grants\":[{\"grant\":\"x\",\"bytes\":1,\"until\":1}]}",
            b"\xff",
        ];
        for content in damaged {
            std::fs::write(&file, content).unwrap();
            let why = Ledger::open(&file, &state()).err().expect("it is refused").to_string();
            assert!(why.contains("cannot be read") && why.contains("mv "), "{why}");
            assert_eq!(std::fs::read(&file).unwrap(), content);
        }
    }

    #[test]
    fn bytes_of_a_listed_user_are_in_the_file_and_count_in_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let (file, key) = (dir.path().join("usage.json"), NodeKey::from_random([5; 32]).public());
        let listing = |state: &Arc<State>| {
            let user = crate::relay::config::User::new("laptop", key);
            let settings = RelaySettings::local([127, 0, 0, 1].into(), vec![user]);
            state.reconfigure(settings.core(NodeKey::from_random([1; 32]).public()));
        };
        let used = ListedUse { key, bytes: 1_234 };
        let first = state();
        listing(&first);
        first.change(|relay| relay.restore_listed_usage([used]));
        Ledger::open(&file, &first).unwrap();
        let second = state();
        listing(&second);
        Ledger::open(&file, &second).unwrap();
        assert_eq!(second.change(Relay::listed_usage), [used]);
    }
}
