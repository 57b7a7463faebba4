//! Compares the file on a server with bytes on the disk: those of an earlier attempt, or a finished file.

use std::fs::Metadata;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use super::first::{First, FirstPart, PATIENCE, read};
use super::open::{Opened, Opening, Purpose};
use super::{Context, PROBE, Report};
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::error::{FetchError, Tried};
use crate::http::validator::Same;
use crate::plan::Trouble;
use crate::source::{Refusal, Source, Wanted};
use crate::store::{Journal, Store, mirror_and_route, read_at};

/// Pauses after failed requests for bytes to compare.
pub(super) const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

impl Context<'_> {
    /// Whether the file is still that of an earlier attempt; fails when the source does not say.
    pub(super) async fn fits_journal(
        &self,
        opened: &Opened,
        part: &mut FirstPart,
        (store, journal): (&Store, &Journal),
    ) -> Result<bool, FetchError> {
        if journal.size != part.size {
            return Ok(false);
        }
        let known = |range: Range<u64>, bytes: &[u8]| store.read(range).is_ok_and(|on_disk| on_disk == bytes);
        let held = journal.ranges();
        let head = 0..part.bytes.len() as u64;
        if held.covers(&head) && !known(head, &part.bytes) {
            return Ok(false);
        }
        let mirror = opened.source.mirror.to_string();
        let version = journal.versions.iter().find(|(url, _)| *url == mirror).map(|(_, version)| version);
        match version.map_or(Same::Unknown, |version| version.compare(&part.version)) {
            Same::Yes => return Ok(true),
            Same::No => return Ok(false),
            // Its bytes may be of any version.
            Same::Unknown if version.is_some_and(|known| !known.names_version()) && !self.is_proven() => {
                return Ok(false);
            }
            Same::Unknown => {}
        }
        // The server does not say which version it is: the last bytes from there are compared, else the last of all.
        let (origins, own) = (journal.origins(), self.origin(opened));
        let is_of_mirror = |origin: &str| mirror_and_route(origin).0 == mirror;
        let by_source = origins.iter().find(|(origin, _)| **origin == own);
        let by_mirror = || origins.iter().find(|(origin, _)| is_of_mirror(origin));
        let own = by_source.or_else(by_mirror).map_or(&held, |(_, own)| own);
        let Some(range) = own.iter().last() else { return Ok(true) };
        let range = range.end.saturating_sub(PROBE).max(range.start)..range.end;
        let connection = (&*opened.source, &mut part.connection);
        let sample = sample(connection, (range.clone(), part.size), &PAUSES).await?;
        Ok(sample.is_some_and(|bytes| known(range, &bytes)))
    }

    /// Reports a finished file of an earlier run if it is the one on the server.
    ///
    /// A strong checksum proves that. Without one, the size, the first and last bytes and the time of change must fit.
    pub(super) async fn finished(&self) -> Result<Report, FetchError> {
        let target = &self.job.target;
        let found = std::fs::metadata(target).map_err(|error| FetchError::file("read", target, error))?;
        let size = found.len();
        if self.job.size.is_some_and(|known| known != size) {
            return Err(FetchError::Exists(target.clone()));
        }
        if !self.job.checksums.iter().any(Checksum::is_strong) {
            let is_same = tokio::select! {
                same = self.is_on_server(&found) => same?,
                () = self.stop.notified() => return Err(FetchError::Stopped),
            };
            if !is_same {
                return Err(FetchError::Exists(target.clone()));
            }
        }
        self.recheck(size).await
    }

    async fn is_on_server(&self, found: &Metadata) -> Result<bool, FetchError> {
        let (size, target) = (found.len(), &self.job.target);
        let (opened, first) = Opening::start(self, Purpose::Compared).first(self, Some(size)).await?;
        let mut part = match first {
            First::Part(part) if part.size == size => *part,
            First::Part(_) => return Ok(false),
            First::Whole(mut answer, _) => {
                let head = 0..PROBE.min(size);
                let is_same_size = answer.size == Some(size);
                let came = timeout(PATIENCE, read(&mut answer, head.clone())).await;
                return Ok(
                    is_same_size && came.is_ok_and(|came| came.is_ok_and(|came| has(target, head, &came)))
                );
            }
        };
        let is_newer =
            part.version.changed().zip(found.modified().ok()).is_some_and(|(one, other)| one > other);
        if is_newer || !has(target, 0..part.bytes.len() as u64, &part.bytes) {
            return Ok(false);
        }
        let tail = size.saturating_sub(PROBE).max(PROBE)..size;
        if tail.is_empty() {
            return Ok(true);
        }
        let connection = (&*opened.source, &mut part.connection);
        let sample = sample(connection, (tail.clone(), size), &PAUSES).await?;
        Ok(sample.is_some_and(|bytes| has(target, tail, &bytes)))
    }
}

/// Whether a file has these bytes there.
fn has(path: &Path, range: Range<u64>, bytes: &[u8]) -> bool {
    read_at(path, range).is_ok_and(|on_disk| on_disk == bytes)
}

/// The bytes of a range by a source, which is asked once for each pause; `None` if its file is another one now.
pub(super) async fn sample(
    (source, connection): (&Source, &mut Connection),
    (range, size): (Range<u64>, u64),
    pauses: &[Duration],
) -> Result<Option<Bytes>, FetchError> {
    let wanted = Wanted { range: Some(range.clone()), size: Some(size) };
    for pause in pauses {
        let asking = async {
            let mut answer = source.ask(connection, &wanted).await?;
            read(&mut answer, range.clone()).await
        };
        let mut asked = Duration::ZERO;
        match timeout(PATIENCE, asking).await {
            Ok(Ok(bytes)) if bytes.len() as u64 == range.end - range.start => {
                connection.end().await;
                return Ok(Some(bytes));
            }
            Ok(Err(Refusal::Changed | Refusal::NoSuchBytes(_))) => return Ok(None),
            Ok(Err(Refusal::Trouble(Trouble::Busy(Some(named))))) => {
                asked = Duration::from_nanos(named.as_nanos()).min(PATIENCE);
            }
            _ => {}
        }
        connection.close();
        sleep(asked.max(*pause)).await;
    }
    let why = "the bytes that are there cannot be compared".to_owned();
    Err(FetchError::Unreachable(vec![Tried { label: source.label.clone(), why }]))
}
