//! A file in parts: lanes come and go as the planner says, and the journal follows.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, interval, sleep, timeout};

use super::compare::sample;
use super::lane::{self, Active, Halt, Shared};
use super::open::{First, FirstPart, OTHER_SIZE, Opened, Opening};
use super::{Context, End, Ended, PROBE, Report, TICK};
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::error::{FetchError, Tried};
use crate::http::validator::Same;
use crate::limit::Limit;
use crate::plan::{Planner, SourceTerms, Standing};
use crate::source::{FileBegin, Source};
use crate::store::{Journal, Store};

/// How often the journal is written.
const CHECKPOINT: Duration = Duration::from_secs(1);

/// How long a comparison of a mirror may take when all bytes are there.
const COMPARISON: Duration = Duration::from_secs(5);

/// The file that all sources must have.
struct Reference {
    first: bytes::Bytes,
    size: u64,
    /// The number of its mirror.
    mirror: usize,
}

/// The mirrors after a comparison.
#[derive(Default)]
struct Compared {
    /// Those that have other bytes.
    differing: Vec<Arc<Active>>,
    /// The names of those that could not be asked.
    unsure: Vec<String>,
}

impl Context<'_> {
    /// Fetches a file whose first bytes have come. Unless it `fits` what an earlier attempt left, that is dropped.
    pub(super) async fn parts(
        &self,
        (opened, part): (Opened, FirstPart),
        opening: Opening,
        (store, fits): (Store, bool),
    ) -> Result<Report, Ended> {
        let disk = |error| Ended::from(FetchError::file("write", &self.job.target, error));
        if !fits {
            store.reset().map_err(disk)?;
            self.progress.note("the file on the server is another one now; beginning again");
        }
        let reference =
            Reference { first: part.bytes.clone(), size: part.size, mirror: self.mirror(opened.index) };
        store.reserve(part.size).map_err(disk)?;
        let resumed = store.written();
        store.write(0, part.bytes.clone()).await.map_err(disk)?;
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
        };
        let digest = part.digest.clone();
        let mut run = Run {
            context: self,
            shared: Arc::new(shared),
            reference,
            opening,
            active: Vec::new(),
            lanes: JoinSet::new(),
            resumed,
            is_mixed: false,
            saving: None,
        };
        run.admit(&opened, part);
        let ended = run.run().await;
        run.show();
        run.end(ended, digest).await
    }
}

/// A download in parts.
struct Run<'a> {
    context: &'a Context<'a>,
    shared: Arc<Shared>,
    reference: Reference,
    opening: Opening,
    active: Vec<Arc<Active>>,
    lanes: JoinSet<Result<(), Halt>>,
    resumed: u64,
    /// Bytes of two versions may have come: a server that sends a range may go on with a new file within it.
    is_mixed: bool,
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
            cap: usage.cap,
            most_lanes: self.context.options.connections,
        };
        let begin = FileBegin { first: part.bytes.clone(), written: self.shared.store.written_part() };
        opened.source.begin(part.version, begin);
        let mut planner = self.shared.planner();
        let id = planner.add_source(terms, self.context.now());
        planner.spend(id, part.bytes.len() as u64);
        drop(planner);
        self.active.push(Arc::new(Active {
            source: opened.source.clone(),
            id,
            index: opened.index,
            route: opened.route,
            spare: Mutex::new(Some(part.connection)),
            ranges: Mutex::default(),
            bytes: AtomicU64::new(0),
        }));
    }

    /// Compares another source with the first one. The file of the mirror that is named first is the right one.
    fn consider(&mut self, opened: &Opened, first: First) -> Result<(), Ended> {
        let why = match first {
            First::Whole(answer, _) if answer.size.is_none_or(|size| size == self.reference.size) => {
                self.opening.refuse(self.context, opened, "it sends the whole file only");
                return Ok(());
            }
            First::Whole(..) => OTHER_SIZE,
            First::Part(_) if self.opening.has_changed(&opened.source.mirror) => {
                "its file is another one now"
            }
            First::Part(part) if part.size != self.reference.size => OTHER_SIZE,
            First::Part(part) if part.bytes != self.reference.first => "its file has another content",
            First::Part(part) => {
                let other = self.active.iter().any(|active| {
                    active.source.mirror == opened.source.mirror
                        && active.source.version().compare(&part.version) == Same::No
                });
                if !other {
                    self.admit(opened, part);
                    return Ok(());
                }
                "its file has another version"
            }
        };
        let is_earlier = self.context.mirror(opened.index) < self.reference.mirror;
        if is_earlier && self.resumed == 0 {
            self.is_mixed = true;
            return Err(Ended::Again(FetchError::Outranked(opened.source.label.clone())));
        }
        self.opening.leave_out(self.context, opened, why);
        Ok(())
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
            if self.shared.planner().is_stuck() && self.opening.is_over() {
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
            compared = self.other_contents() => {
                if let [other, ..] = &*compared.differing {
                    self.is_mixed = true;
                    let mirrors = compared.differing.iter().map(|other| self.context.mirror(other.index));
                    self.context.excluded.lock().unwrap_or_else(PoisonError::into_inner).extend(mirrors);
                    return Err(Ended::Again(FetchError::Mixed(other.source.label.clone())));
                }
                for label in compared.unsure {
                    self.context.progress.note(format!(
                        "{label} sent a part and could not be compared with the other mirrors: `--checksum` would tell \
                         whether all have the same file"
                    ));
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
                    self.is_mixed = true;
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

    /// Asks the other mirrors for bytes that came from the one that defines the file: files of the same size may begin alike.
    async fn other_contents(&self) -> Compared {
        let context = self.context;
        let longest = |mirror: usize| {
            let own = self.active.iter().filter(|active| context.mirror(active.index) == mirror);
            own.filter_map(|active| active.middle(PROBE)).max_by_key(|range| range.end - range.start)
        };
        let mut compared = Compared::default();
        // If that mirror sent nothing more than the first bytes, another one defines the rest.
        let mirrors = std::iter::once(self.reference.mirror)
            .chain(self.active.iter().map(|active| context.mirror(active.index)));
        let found = mirrors.filter_map(|mirror| Some((mirror, longest(mirror)?))).next();
        let Some((reference, range)) = found else { return compared };
        let others = self.active.iter().filter(|active| context.mirror(active.index) != reference);
        let others: Vec<_> = others.filter(|active| active.bytes.load(Ordering::Relaxed) > 0).collect();
        if others.is_empty() {
            return compared;
        }
        let Some(known) = self.written(range.clone()).await else { return compared };
        for active in others {
            if !self.has_room_for_a_sample(active) {
                compared.unsure.push(active.source.label.clone());
                continue;
            }
            let spare = active.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
            // An FTP server may refuse another login.
            let is_http = active.source.mirror.scheme().is_http();
            let Some(mut connection) = spare.or_else(|| is_http.then(|| active.source.connection())) else {
                compared.unsure.push(active.source.label.clone());
                continue;
            };
            let asking = sample((&active.source, &mut connection), range.clone(), self.reference.size);
            match timeout(COMPARISON, asking).await {
                Ok(Ok(Some(bytes))) if bytes != known => compared.differing.push(active.clone()),
                Ok(Ok(Some(_))) => {}
                _ => compared.unsure.push(active.source.label.clone()),
            }
            if connection.is_open() {
                *active.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
            }
        }
        compared
    }

    /// Whether a cap leaves bytes for a comparison; takes them.
    fn has_room_for_a_sample(&self, active: &Active) -> bool {
        let mut planner = self.shared.planner();
        let cap = self.context.options.routes[active.route].cap;
        let has_room = cap.is_none_or(|cap| planner.caps()[cap] >= PROBE);
        if has_room {
            planner.spend(active.id, PROBE);
        }
        has_room
    }

    /// Bytes that came, as soon as they are written; `None` if that fails, which is reported later.
    async fn written(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let store = &self.shared.store;
        let waiting = async {
            while !store.written().covers(&range) {
                sleep(TICK).await;
            }
        };
        timeout(COMPARISON, waiting).await.ok()?;
        store.read(range).ok()
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
            Ok(Err(Halt::Changed(source))) => self.on_change(&source),
            Ok(Err(Halt::Disk(error))) => {
                Err(FetchError::file("write", &self.context.job.target, error).into())
            }
            Err(error) => Err(FetchError::file("fetch", &self.context.job.target, error.into()).into()),
        }
    }

    /// Goes on without a mirror whose file has changed, if another one still has the file.
    fn on_change(&mut self, changed: &Source) -> Result<(), Ended> {
        if !changed.mirror.scheme().is_http() {
            self.is_mixed = true;
            return Err(Ended::Again(FetchError::Changed));
        }
        let planner = self.shared.planner();
        let is_of_use = |active: &Arc<Active>| {
            active.source.mirror != changed.mirror && !matches!(planner.standing(active.id), Standing::Out(_))
        };
        if !self.active.iter().any(is_of_use) {
            return Err(Ended::Again(FetchError::Changed));
        }
        self.context
            .progress
            .note(format!("{}: its file is another one now; going on without it", changed.label));
        Ok(())
    }

    fn open_lanes(&mut self) {
        let now = self.context.now();
        let mut planner = self.shared.planner();
        planner.adapt(now);
        for active in &self.active {
            while let Some(id) = planner.open_lane(active.id, now) {
                let (shared, active) = (self.shared.clone(), active.clone());
                self.lanes.spawn(async move { lane::run(&shared, &active, id).await });
            }
        }
    }

    fn show(&self) {
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
                (status.is_ready, status.why) = match planner.standing(active.id) {
                    Standing::Ready => (true, None),
                    Standing::Resting(why) | Standing::Out(why) => (false, Some(why.clone())),
                };
            }
        });
    }

    /// Why there is no file when no source is left.
    fn failure(&mut self) -> FetchError {
        let planner = self.shared.planner();
        for active in &self.active {
            let why = match planner.standing(active.id) {
                Standing::Out(why) => why.clone(),
                Standing::Ready | Standing::Resting(_) => self.context.options.used_up(active.route),
            };
            self.opening.failed.push(Tried { label: active.source.label.clone(), why });
        }
        FetchError::Unreachable(std::mem::take(&mut self.opening.failed))
    }

    fn journal(&self) -> Journal {
        let version = |active: &Arc<Active>| (active.source.mirror.to_string(), active.source.version());
        let mut versions: Vec<_> = self.active.iter().map(version).collect();
        versions.dedup_by(|one, other| one.0 == other.0);
        Journal::new(self.reference.size, versions)
    }

    /// Keeps or finishes the file.
    async fn end(mut self, ended: Result<(), Ended>, digest: Option<Checksum>) -> Result<Report, Ended> {
        self.lanes.shutdown().await;
        // Its outcome does not matter: the journal is written once more, or removed.
        self.saved().await;
        for (cap, left) in self.context.options.caps.iter().zip(self.shared.planner().caps()) {
            cap.left.store(*left, Ordering::Relaxed);
        }
        let journal = self.journal();
        let (context, resumed, is_mixed) = (self.context, self.resumed, self.is_mixed);
        let shared = Arc::into_inner(self.shared);
        let lost =
            || FetchError::file("finish", &context.job.target, std::io::Error::other("a lane still runs"));
        let store = shared.ok_or_else(lost)?.store;
        match ended {
            Ok(()) => context.finish(store, End { journal, digest, resumed }).await,
            Err(failed) => {
                // Also when the file seems to have changed: the next attempt compares it with the server.
                let mut store = store;
                let keep = move || match is_mixed {
                    true => store.discard(),
                    false => store.flush().and_then(|()| store.checkpoint(&journal)),
                };
                let kept = tokio::task::spawn_blocking(keep).await;
                tracing::debug!(?kept, "the unfinished file is kept or removed");
                Err(failed)
            }
        }
    }
}
