//! A file in parts: lanes come and go as the planner says, and the journal follows.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_wire::Span;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, interval};

use super::agree::Fact;
use super::first::{First, FirstPart, OTHER_CONTENT};
use super::lane::{self, Active, Halt, Shared};
use super::open::{Opened, Opening};
use super::{Context, Earlier, End, Ended, Report, TICK};
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::error::{FetchError, Tried};
use crate::http::validator::Same;
use crate::limit::Limit;
use crate::plan::{Planner, SourceTerms, Standing, Trouble};
use crate::source::{FileBegin, Source};
use crate::store::{Journal, Piece, mirror_and_route};

/// How often the journal is written.
const CHECKPOINT: Duration = Duration::from_secs(1);

/// A source without bytes for longer is named.
const SLOW: Span = Span::from_secs(3);

/// Why a mirror does not take part.
const CHANGED: &str = "its file is another one now";

/// The file that all sources must have.
struct Reference {
    first: bytes::Bytes,
    size: u64,
    digest: Option<Checksum>,
    /// The number of its mirror.
    mirror: usize,
}

/// The bytes for a later attempt.
enum Keep {
    All,
    /// Bytes of two versions may have come: a server that sends a range may go on with a new file within it.
    Nothing,
    /// The mirrors have other files than the one that decides.
    AllBut(Vec<Arc<str>>),
}

impl Context<'_> {
    /// Fetches a file whose first bytes have come. Bytes of another file from an earlier attempt are dropped.
    pub(super) async fn parts(
        &self,
        (opened, part): (Opened, FirstPart),
        opening: Opening,
        Earlier { store, journal, fits }: Earlier,
    ) -> Result<Report, Ended> {
        let disk = |error| Ended::from(FetchError::file("write", &self.job.target, error));
        if !fits {
            store.reset().map_err(disk)?;
            self.progress.note("the file on the server is another one now; beginning again");
        }
        let reference = Reference {
            first: part.bytes.clone(),
            size: part.size,
            digest: part.digest.clone(),
            mirror: self.mirror(opened.index),
        };
        store.reserve(part.size).map_err(disk)?;
        let resumed = store.written();
        let origin = self.origin(&opened);
        store.write(Piece { origin, at: 0, bytes: part.bytes.clone() }).await.map_err(disk)?;
        let mut received = resumed.clone();
        received.insert(0..part.bytes.len() as u64);
        let resumed = resumed.total();
        let caps = self.options.caps.iter().map(|cap| cap.left.load(Ordering::Relaxed)).collect();
        let planner = Planner::new(part.size, received, caps);
        let shared = Shared {
            planner: Mutex::new(planner),
            store,
            limit: self.options.limit.map(|rate| Mutex::new(Limit::new(rate))),
            news: tokio::sync::Notify::new(),
            begin: self.begin,
            size: part.size,
            notes: Mutex::default(),
            changes: AtomicUsize::new(0),
        };
        let mut run = Run {
            context: self,
            shared: Arc::new(shared),
            reference,
            opening,
            active: Vec::new(),
            lanes: JoinSet::new(),
            resumed,
            facts: journal.filter(|_| fits).map(|journal| facts(&journal)).unwrap_or_default(),
            keep: Keep::All,
            saving: None,
        };
        run.admit(&opened, part);
        let ended = run.run().await;
        run.show();
        run.end(ended).await
    }
}

fn no_bytes(silent: Span) -> String {
    format!("no bytes for {:.0} s", silent.as_secs_f64())
}

/// The versions on the mirrors that sent what an earlier attempt left.
fn facts(journal: &Journal) -> Vec<Fact> {
    let origins = journal.origins();
    let sent = |mirror: &String| origins.iter().any(|(known, _)| mirror_and_route(known).0 == mirror);
    let versions = journal.versions.iter().filter(|(mirror, _)| sent(mirror));
    versions
        .map(|(mirror, version)| Fact {
            origin: mirror.as_str().into(),
            version: version.clone(),
            digest: None,
        })
        .collect()
}

/// A download in parts.
pub(super) struct Run<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) shared: Arc<Shared>,
    reference: Reference,
    opening: Opening,
    pub(super) active: Vec<Arc<Active>>,
    lanes: JoinSet<Result<(), Halt>>,
    pub(super) resumed: u64,
    /// The versions of the file on all mirrors that sent bytes, in earlier attempts first.
    pub(super) facts: Vec<Fact>,
    keep: Keep,
    /// The journal that is being written.
    saving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Run<'_> {
    /// Lets a source take part.
    fn admit(&mut self, opened: &Opened, part: FirstPart) {
        let usage = &self.context.options.routes[opened.route];
        let terms = SourceTerms {
            rank: usage.rank,
            route: opened.route,
            server: self.context.mirror(opened.index),
            cap: usage.cap,
            most_lanes: self.context.options.connections,
        };
        let begin = FileBegin { first: part.bytes.clone(), written: self.shared.store.written_part() };
        let origin = self.context.origin(opened);
        let fact = Fact { origin: origin.clone(), version: part.version.clone(), digest: part.digest };
        self.facts.push(fact);
        opened.source.begin(part.version, begin);
        let mut planner = self.shared.planner();
        let id = planner.add_source(terms, self.context.now());
        planner.spend(id, part.bytes.len() as u64);
        if opened.source.was_busy() {
            planner.on_limit(id);
        }
        drop(planner);
        self.active.push(Arc::new(Active {
            source: opened.source.clone(),
            id,
            index: opened.index,
            route: opened.route,
            spare: Mutex::new(Some(part.connection)),
            stream: Mutex::new(part.stream),
            origin,
            bytes: AtomicU64::new(0),
        }));
    }

    /// Compares another source with the first one. The file of the mirror that is named first is the right one.
    fn consider(&mut self, opened: &Opened, first: First) -> Result<(), Ended> {
        let differs = first.differs((Some(self.reference.size), &self.reference.first));
        let is_page = first.is_page() && self.context.is_no_page();
        let why = match (first, differs) {
            (_, Some(_)) if is_page => {
                self.opening.leave_out(self.context, opened, &Trouble::Page.why());
                return Ok(());
            }
            (First::Whole(..), None) => {
                self.opening.refuse(self.context, opened, "it sends the whole file only");
                return Ok(());
            }
            (First::Part(_), _) if self.opening.has_changed(&opened.source.mirror) => CHANGED,
            (_, Some(why)) => why,
            (First::Part(part), None) if self.is_unsure(&part) => {
                self.opening.refuse(self.context, opened, "it names no version of its file");
                return Ok(());
            }
            (First::Part(part), None) => match self.other_version(opened, &part) {
                // Another machine of the same name may have answered.
                Some(_) if self.opening.reopen(self.context, opened) => return Ok(()),
                Some(why) => why,
                None => {
                    self.admit(opened, *part);
                    return Ok(());
                }
            },
        };
        let is_earlier = self.context.mirror(opened.index) < self.reference.mirror;
        if is_earlier && self.resumed == 0 {
            self.keep = Keep::Nothing;
            return Err(Ended::Again(FetchError::Outranked(opened.source.label.clone())));
        }
        self.opening.leave_out(self.context, opened, why);
        Ok(())
    }

    /// Whether bytes of several answers of a source may be of two files, unnoticed: its own hash is not that of the result.
    fn is_unsure(&self, part: &FirstPart) -> bool {
        let is_checked = self.reference.digest.is_some() || !self.context.job.checksums.is_empty();
        !is_checked && !part.version.names_version()
    }

    /// Why the file of a source is another one, by what servers say about it.
    fn other_version(&self, opened: &Opened, part: &FirstPart) -> Option<&'static str> {
        let digests = self.reference.digest.as_ref().zip(part.digest.as_ref());
        if digests.is_some_and(|(one, other)| one.differs(other) == Some(true)) {
            return Some(OTHER_CONTENT);
        }
        let mirror = opened.source.mirror.to_string();
        let is_other = |active: &Arc<Active>| {
            active.source.mirror == opened.source.mirror
                && active.source.version().compare(&part.version) == Same::No
        };
        if self.active.iter().any(is_other) {
            return Some("its file has another version");
        }
        let mut earlier = self.facts.iter().filter(|fact| mirror_and_route(&fact.origin).0 == mirror);
        earlier.any(|fact| fact.version.compare(&part.version) == Same::No).then_some(CHANGED)
    }

    async fn run(&mut self) -> Result<(), Ended> {
        let mut tick = interval(TICK);
        let (mut saved, mut nearly) = (Instant::now(), None);
        loop {
            self.open_lanes();
            let (complete, received) = {
                let planner = self.shared.planner();
                (planner.is_complete(), planner.received())
            };
            if nearly.is_none() && received >= self.reference.size / 100 * 99 {
                nearly = Some(self.context.begin.elapsed());
            }
            if complete && self.lanes.is_empty() {
                let took = self.context.begin.elapsed();
                let last = took.saturating_sub(nearly.unwrap_or(took));
                tracing::info!(?took, ?last, "all bytes came; `last` is the time of the last hundredth");
                return self.confirm().await;
            }
            if !self.shared.planner().any_works() {
                self.opening.widen(self.context);
            }
            // A lane that gave up its source because the file changed says so before the download is given up.
            let is_stuck = self.shared.planner().is_stuck(self.shared.now());
            if is_stuck && self.opening.is_over() && self.shared.changes.load(Ordering::SeqCst) == 0 {
                return Err(self.failure().into());
            }
            tokio::select! {
                _ = tick.tick() => self.show(),
                Some(ended) = self.lanes.join_next() => self.on_lane_end(ended)?,
                Some((opened, first)) = self.opening.next(self.context) => self.consider(&opened, first)?,
                () = self.context.stop.notified() => return Err(FetchError::Stopped.into()),
            }
            if self.saving.as_ref().is_some_and(JoinHandle::is_finished)
                && let Some(Ok(Err(error))) = self.saved().await
            {
                return Err(FetchError::file("write", &self.context.job.target, error).into());
            }
            if self.saving.is_none() && saved.elapsed() >= CHECKPOINT {
                saved = Instant::now();
                let (checkpoint, journal) = (self.shared.store.checkpointer(), self.journal());
                self.saving = Some(tokio::task::spawn_blocking(move || checkpoint(&journal)));
            }
        }
    }

    /// Asks sources whether the file changed while the last bytes came; a checksum from the user shows that as well.
    async fn confirm(&mut self) -> Result<(), Ended> {
        if self.context.is_proven() {
            return Ok(());
        }
        tokio::select! {
            compared = self.compare_mirrors() => {
                if !compared.differing.is_empty() {
                    let others = compared.sources(self.context);
                    self.context.excluded.lock().unwrap_or_else(PoisonError::into_inner).extend(others);
                    let names = self.context.names(&compared.differing);
                    self.keep = Keep::AllBut(compared.differing);
                    return Err(Ended::Again(FetchError::Mixed(names)));
                }
                // A hash by the server proves the file as well.
                if self.reference.digest.is_none() {
                    compared.notes(self.context).into_iter().for_each(|note| self.context.progress.note(note));
                    let used = self.active.iter().map(|active| self.context.mirror(active.index)).min();
                    self.context.note_unused(used.unwrap_or_default());
                }
            },
            () = self.context.stop.notified() => return Err(FetchError::Stopped.into()),
        }
        let mut asked = Vec::new();
        for (number, active) in self.active.iter().enumerate() {
            // The first bytes of the first source were written, those of the others only compared.
            let has_sent = number == 0 || active.bytes.load(Ordering::Relaxed) > 0;
            let is_http = active.source.mirror.scheme().is_http();
            let is_out = matches!(self.shared.planner().standing(active.id), Standing::Out(_));
            if has_sent && !is_out && !is_http {
                let spare = active.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
                asked.push((active.source.clone(), spare));
            }
        }
        // An open connection may hold the only login that the server gives, so it is used and closed before others open.
        asked.sort_by_key(|(_, spare)| !spare.as_ref().is_some_and(Connection::is_open));
        if !asked.is_empty() {
            self.opening.close().await;
        }
        for (source, spare) in asked {
            let mut connection = spare.unwrap_or_else(|| source.connection());
            let version = source.version();
            let still = tokio::select! {
                still = source.still_has(&mut connection, (&version, Some(self.reference.size))) => still,
                () = self.context.stop.notified() => return Err(FetchError::Stopped.into()),
            };
            match still {
                Ok(true) => {}
                Ok(false) => {
                    self.keep = Keep::Nothing;
                    return Err(Ended::Again(FetchError::Changed));
                }
                Err(why) => {
                    let tried = Tried { label: source.label.clone(), why };
                    return Err(FetchError::Unreachable(vec![tried]).into());
                }
            }
        }
        Ok(())
    }

    /// Waits until the journal is written.
    async fn saved(&mut self) -> Option<Result<std::io::Result<()>, JoinError>> {
        match self.saving.take() {
            Some(saving) => Some(saving.await),
            None => None,
        }
    }

    fn on_lane_end(&mut self, ended: Result<Result<(), Halt>, JoinError>) -> Result<(), Ended> {
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Halt::Changed(source))) => {
                self.shared.changes.fetch_sub(1, Ordering::SeqCst);
                self.on_change(&source)
            }
            Ok(Err(Halt::Disk(error))) => {
                Err(FetchError::file("write", &self.context.job.target, error).into())
            }
            Err(error) => Err(FetchError::file("fetch", &self.context.job.target, error.into()).into()),
        }
    }

    /// Goes on without a mirror whose file has changed, if another one still has the file.
    fn on_change(&mut self, changed: &Source) -> Result<(), Ended> {
        if !changed.mirror.scheme().is_http() {
            self.keep = Keep::Nothing;
            return Err(Ended::Again(FetchError::Changed));
        }
        let planner = self.shared.planner();
        let is_of_use = |active: &Arc<Active>| {
            active.source.mirror != changed.mirror && !matches!(planner.standing(active.id), Standing::Out(_))
        };
        if !self.active.iter().any(is_of_use) {
            if let Some(why) = changed.takes_whole() {
                self.context.take_whole(why);
                return Err(Ended::Again(FetchError::Unsure(why)));
            }
            return Err(Ended::Again(FetchError::Changed));
        }
        let why = changed.takes_whole().map_or_else(|| CHANGED.to_owned(), |why| format!("the server {why}"));
        self.context.progress.note(format!("{}: {why}; going on without it", changed.label));
        Ok(())
    }

    fn open_lanes(&mut self) {
        let now = self.context.now();
        let mut planner = self.shared.planner();
        planner.adapt(now);
        for active in &self.active {
            while let Some(id) = planner.open_lane(active.id, now) {
                active.goes_on().into_iter().for_each(|at| planner.go_on(id, at));
                let (shared, active) = (self.shared.clone(), active.clone());
                self.lanes.spawn(async move { lane::run(&shared, &active, id).await });
            }
        }
    }

    fn show(&self) {
        let notes = std::mem::take(&mut *self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner));
        notes.into_iter().for_each(|note| self.context.progress.note(note));
        let planner = self.shared.planner();
        for (cap, left) in self.context.options.caps.iter().zip(planner.caps()) {
            cap.left.store(*left, Ordering::Relaxed);
        }
        self.context.progress.update(|snapshot| {
            (snapshot.bytes, snapshot.resumed) = (planner.received(), self.resumed);
            snapshot.size = Some(self.reference.size);
            for active in &self.active {
                let status = &mut snapshot.sources[active.index];
                status.bytes = active.bytes.load(Ordering::Relaxed);
                let silent = planner.silence_of(active.id, self.shared.now()).filter(|span| *span > SLOW);
                (status.is_ready, status.why) = match planner.standing(active.id) {
                    Standing::Ready => (true, silent.map(no_bytes)),
                    Standing::Resting(why) | Standing::Out(why) => (false, Some(why.clone())),
                };
            }
        });
    }

    /// Why there is no file when no source is left.
    fn failure(&mut self) -> FetchError {
        let planner = self.shared.planner();
        for active in &self.active {
            let cap = self.context.options.routes[active.route].cap;
            let has_room = cap.is_none_or(|cap| planner.caps()[cap] > 0);
            let why = match planner.standing(active.id) {
                Standing::Out(why) => why.clone(),
                Standing::Resting(why) if has_room => why.clone(),
                Standing::Ready | Standing::Resting(_) => self.context.options.used_up(active.route),
            };
            self.opening.failed.push(Tried { label: active.source.label.clone(), why });
        }
        FetchError::Unreachable(std::mem::take(&mut self.opening.failed))
    }

    fn journal(&self) -> Journal {
        let version = |active: &Arc<Active>| (active.source.mirror.to_string(), active.source.version());
        let mut versions: Vec<_> = self.active.iter().map(version).collect();
        let earlier =
            self.facts.iter().map(|fact| (mirror_and_route(&fact.origin).0.to_owned(), fact.version.clone()));
        versions.extend(earlier);
        let mut seen = std::collections::BTreeSet::new();
        versions.retain(|(mirror, _)| seen.insert(mirror.clone()));
        let mut journal = Journal::new(self.reference.size, versions);
        journal.is_page = !self.context.is_no_page();
        journal.peers = self.context.peers.list();
        journal
    }

    /// Keeps or finishes the file.
    async fn end(mut self, ended: Result<(), Ended>) -> Result<Report, Ended> {
        self.lanes.shutdown().await;
        // Its outcome does not matter: the journal is written once more, or removed.
        self.saved().await;
        for (cap, left) in self.context.options.caps.iter().zip(self.shared.planner().caps()) {
            cap.left.store(*left, Ordering::Relaxed);
        }
        let journal = self.journal();
        let (context, resumed, keep) = (self.context, self.resumed, self.keep);
        let digest = self.reference.digest;
        let shared = Arc::into_inner(self.shared);
        let lost =
            || FetchError::file("finish", &context.job.target, std::io::Error::other("a lane still runs"));
        let store = shared.ok_or_else(lost)?.store;
        match ended {
            Ok(()) => context.finish(store, End { journal, digest, resumed }).await,
            Err(failed) => {
                // Also when the file seems to have changed: the next attempt compares it with the server.
                let mut store = store;
                let keep = move || {
                    let forgotten = match keep {
                        Keep::Nothing => return store.discard(),
                        Keep::AllBut(mirrors) => mirrors,
                        Keep::All => Vec::new(),
                    };
                    store.flush()?;
                    forgotten.iter().for_each(|mirror| store.forget(mirror));
                    store.checkpoint(&journal)
                };
                let kept = tokio::task::spawn_blocking(keep).await;
                tracing::debug!(?kept, "the unfinished file is kept or removed");
                Err(failed)
            }
        }
    }
}
