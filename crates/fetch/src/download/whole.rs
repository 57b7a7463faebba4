//! A file from a server without ranges: one connection from the beginning to the end.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::open::Opened;
use super::{Context, End, Ended, Report, TICK};
use crate::connection::Connection;
use crate::error::{FetchError, Tried};
use crate::http::validator::Validator;
use crate::limit::Limit;
use crate::source::Answer;
use crate::store::{Journal, Piece, Store};

/// A server without bytes for this long is given up.
const SILENT: Duration = Duration::from_secs(30);
/// Why one answer brings everything.
const NO_VERSION: &str = "names no version of the file";
/// One without bytes for so long is named.
const SLOW: Duration = Duration::from_secs(3);

impl Context<'_> {
    /// Fetches a file by an answer that holds all of it. It cannot be resumed.
    pub(super) async fn whole(
        &self,
        (answer, mut connection): (Answer, Connection),
        from: &Opened,
        store: Store,
    ) -> Result<Report, Ended> {
        let disk = |error| Ended::from(FetchError::file("write", &self.job.target, error));
        if answer.size.is_some_and(|size| size > self.options.left(from.route)) {
            return Err(self.capped(from.route));
        }
        store.reset().map_err(disk)?;
        let (size, digest, version) = (answer.size, answer.digest.clone(), answer.version.clone());
        if let Some(size) = size {
            store.reserve(size).map_err(disk)?;
        }
        if !self.is_proven() {
            self.note_unused(self.mirror(from.index));
        }
        let lacks_version = from.source.lacks_version();
        if lacks_version && self.job.mirrors.len() == 1 {
            self.take_whole(NO_VERSION);
        }
        let why = match answer.body.is_packed() {
            true => "compresses the file",
            false if lacks_version => NO_VERSION,
            false => "sends no parts",
        };
        let why = self.takes_whole().unwrap_or(why);
        let hint = if why == NO_VERSION { "; with `--checksum`, all paths help" } else { "" };
        if size != Some(0) {
            self.progress.note(format!(
                "the server {why}: one connection fetches the file, and it cannot be resumed{hint}"
            ));
        }
        let came = tokio::select! {
            came = self.receive(answer, from, &store) => came,
            () = self.stop.notified() => Err(FetchError::Stopped.into()),
        };
        let checked = came.and_then(|came| match size.or(self.job.size) {
            Some(size) if size != came => Err(Ended::Again(FetchError::Short { came, announced: size })),
            _ => Ok(came),
        });
        // Without a size, a transfer that breaks off looks like one that is over.
        let has_size = size.or(self.job.size).is_some();
        let is_sure = checked.is_err() || has_size || connection.confirms_end().await;
        let doubtful = || self.lost("the server does not say that it sent everything".to_owned());
        let checked = if is_sure { checked } else { Err(doubtful()) };
        let checked = match checked {
            Ok(came) => self.confirmed((from, &mut connection), (&version, size)).await.map(|()| came),
            failed => failed,
        };
        match checked {
            Ok(came) => {
                let journal = Journal::new(came, Vec::new());
                self.finish(store, End { journal, digest, resumed: 0 }).await
            }
            Err(ended) => {
                let discarded = tokio::task::spawn_blocking(move || store.discard()).await;
                tracing::debug!(?discarded, "the unfinished file is removed");
                Err(ended)
            }
        }
    }

    /// Fails if the file on the server changed while it came.
    async fn confirmed(
        &self,
        (from, connection): (&Opened, &mut Connection),
        (version, size): (&Validator, Option<u64>),
    ) -> Result<(), Ended> {
        let still = tokio::select! {
            still = from.source.still_has(connection, (version, size)) => still,
            () = self.stop.notified() => return Err(FetchError::Stopped.into()),
        };
        match still {
            Ok(true) => Ok(()),
            Ok(false) => Err(Ended::Again(FetchError::Changed)),
            Err(why) => Err(self.lost(why)),
        }
    }

    async fn receive(&self, mut answer: Answer, from: &Opened, store: &Store) -> Result<u64, Ended> {
        let mut limit = self.options.limit.map(Limit::new);
        let (mut came, mut shown) = (0, Instant::now());
        let origin = self.origin(from);
        let most = answer.size.or(self.job.size).unwrap_or(u64::MAX);
        loop {
            let piece = {
                let mut next = pin!(timeout(SILENT, answer.body.next()));
                match timeout(SLOW, &mut next).await {
                    Ok(piece) => piece,
                    Err(_) => {
                        self.show_silent(from);
                        next.await
                    }
                }
            };
            let bytes = match piece.unwrap_or_else(|_| Err("the server is silent".to_owned())) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    self.show(from, came, answer.size);
                    return Ok(came);
                }
                Err(why) => return Err(self.lost(why)),
            };
            let len = bytes.len() as u64;
            let carried = answer.body.take_carried(len);
            if !self.options.spend(from.route, carried) {
                return Err(self.capped(from.route));
            }
            if len > most - came {
                return Err(self.lost("the server sends more than it announced".to_owned()));
            }
            store
                .write(Piece { origin: origin.clone(), at: came, bytes })
                .await
                .map_err(|error| FetchError::file("write", &self.job.target, error))?;
            came += len;
            if shown.elapsed() >= TICK {
                shown = Instant::now();
                self.show(from, came, answer.size);
            }
            if let Some(limit) = &mut limit
                && carried > 0
            {
                let wait = limit.spend(carried, self.now());
                sleep(Duration::from_nanos(wait.as_nanos())).await;
            }
        }
    }

    fn show(&self, from: &Opened, came: u64, size: Option<u64>) {
        self.progress.update(|snapshot| {
            (snapshot.bytes, snapshot.size) = (came, size);
            let status = &mut snapshot.sources[from.index];
            (status.bytes, status.is_ready, status.why) = (came, true, None);
        });
    }

    fn show_silent(&self, from: &Opened) {
        let why = format!("no bytes for {} s", SLOW.as_secs());
        self.progress.update(|snapshot| snapshot.sources[from.index].why = Some(why));
    }

    fn capped(&self, route: usize) -> Ended {
        let (label, why) = (self.options.routes[route].name.clone(), self.options.used_up(route));
        FetchError::Unreachable(vec![Tried { label, why }]).into()
    }

    fn lost(&self, why: String) -> Ended {
        let label = self.job.mirrors.first().map(ToString::to_string).unwrap_or_default();
        Ended::Again(FetchError::Unreachable(vec![Tried { label, why }]))
    }
}
