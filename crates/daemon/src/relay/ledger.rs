//! What was used of grants, in a file, so that a restart gives nobody their bytes again.
//!
//! Written when something has changed, twice a minute and at the end. A disk that is full or gone costs no path: people are told, and
//! what was used since the last time that it could be written would be forgotten by a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_overlay::grant::{GrantId, UnixTime};
use serde::{Deserialize, Serialize};

use super::state::State;

/// How often it is written.
const EVERY: Duration = Duration::from_secs(30);
/// Version of the file; others are not read.
const VERSION: u32 = 1;

type Usage = (GrantId, u64, UnixTime);

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
}

/// See the module's documentation.
pub(super) struct Ledger {
    file: PathBuf,
    state: Arc<State>,
    /// What stands in the file.
    written: Mutex<Vec<Usage>>,
}

impl Ledger {
    /// Takes over what an earlier run had counted. A file that cannot be read is left as it is until there is something to write.
    pub(super) fn open(file: &Path, state: &Arc<State>) -> Self {
        let known = match read(file) {
            Ok(known) => known,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::warn!("{}: {error}; what was used of grants before is not known", file.display());
                Vec::new()
            }
        };
        state.change(|relay| relay.restore_usage(known.iter().copied()));
        Self { file: file.to_owned(), state: state.clone(), written: Mutex::new(known) }
    }

    /// Writes now and then, for as long as it is polled.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut failing = false;
        loop {
            tokio::time::sleep(EVERY).await;
            let done = self.write();
            match &done {
                Err(error) if !failing => tracing::warn!(
                    "{}: {error}; the relay goes on, but would forget what is used of grants when it is restarted",
                    self.file.display()
                ),
                Ok(()) if failing => tracing::info!("{} can be written again", self.file.display()),
                _ => {}
            }
            failing = done.is_err();
        }
    }

    /// Writes what has changed.
    pub(super) fn write(&self) -> io::Result<()> {
        let usage = self.state.change(anabranch_overlay::relay::Relay::usage);
        let mut written = self.written.lock().expect("no panic while held");
        if *written == usage {
            return Ok(());
        }
        let line =
            |(grant, bytes, until): &Usage| Line { grant: grant.to_string(), bytes: *bytes, until: until.0 };
        let content = File { version: VERSION, grants: usage.iter().map(line).collect() };
        crate::file::replace(&self.file, &serde_json::to_vec(&content)?)?;
        *written = usage;
        Ok(())
    }
}

fn read(file: &Path) -> io::Result<Vec<Usage>> {
    let File { version, grants } = serde_json::from_slice(&std::fs::read(file)?)?;
    if version != VERSION {
        return Err(io::Error::other(format!("it has version {version}, and this program reads {VERSION}")));
    }
    let usage = |line: &Line| {
        let grant = line.grant.parse().map_err(io::Error::other)?;
        Ok((grant, line.bytes, UnixTime(line.until)))
    };
    grants.iter().map(usage).collect()
}
