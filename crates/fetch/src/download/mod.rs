//! One download, from the first request to the final name.
//!
//! 1. Every source asks for the first [`PROBE`] bytes. The mirror that is named first among those that answer soon defines
//!    the file: its size and its version. If an earlier one answers later and has another file, the download begins again.
//! 2. Each other source must have the same first bytes and size before it takes part.
//! 3. The planner hands out the rest to lanes. A server without ranges sends everything over one connection instead.
//! 4. The bytes of several mirrors are compared.
//! 5. The complete file is checked against its checksums, synced and renamed.

mod agree;
mod compare;
mod first;
mod lane;
mod open;
mod parts;
mod stream;
#[cfg(test)]
mod tests;
mod whole;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anabranch_wire::{Span, Time};
use tokio::sync::Notify;

use crate::checksum::Checksum;
use crate::error::FetchError;
use crate::peers::Peers;
use crate::progress::{Progress, SourceStatus};
use crate::route::Route;
use crate::source::Source;
use crate::store::{Journal, Opened, Store, origin};
use crate::tls::Tls;
use crate::url::Url;
use first::First;
use open::{Opened as OpenedSource, Opening, Purpose};

/// The first bytes, by which mirrors are compared.
const PROBE: u64 = 64 << 10;
/// Advice for mirrors that were not compared byte by byte.
const PROVES: &str = "`--checksum` proves the whole file";
/// The note about a false `Content-Encoding`.
const MISLABELLED: &str =
    "the server says that it compresses the file (gzip), but does not: it is saved as it comes";
/// How often a download begins because the file changed again or a server without ranges broke off.
const MOST_BEGINNINGS: usize = 3;
/// After so many changes, one answer has to bring the whole file.
const MOST_CHANGES: usize = 2;

/// A file to fetch.
#[derive(Clone, Debug)]
pub struct Job {
    /// Where it is.
    pub mirrors: Vec<Url>,
    /// Its final name.
    pub target: PathBuf,
    /// Whether a file of this name is replaced.
    pub replace: bool,
    /// Whether a file of this name counts as fetched if it is the one on the server.
    pub keep_finished: bool,
    /// Hashes that it must have.
    pub checksums: Vec<Checksum>,
    /// The size that it must have.
    pub size: Option<u64>,
}

/// A route and how it is used.
#[derive(Clone, Debug)]
pub struct RouteUse {
    pub route: Route,
    /// Its name for people.
    pub name: String,
    /// Routes with a larger number are used only while none with a smaller number works.
    pub rank: u8,
    /// The cap that its bytes count toward: an index into [`Options::caps`].
    pub cap: Option<usize>,
}

/// A bound of the bytes over some routes.
#[derive(Clone, Debug)]
pub struct Cap {
    /// Bytes that may still be fetched; each download takes its bytes from there.
    pub left: Arc<AtomicU64>,
    /// Says that nothing is left, and names the cap.
    pub used_up: String,
}

/// How files are fetched.
#[derive(Clone, Debug)]
pub struct Options {
    /// All routes; at least one.
    pub routes: Vec<RouteUse>,
    pub caps: Vec<Cap>,
    /// Most connections of one source.
    pub connections: usize,
    /// Most bits a second in all.
    pub limit: Option<NonZeroU64>,
    pub tls: Tls,
}

/// A finished download.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Bytes of earlier attempts.
    pub resumed: u64,
    /// Whether it was there before.
    pub was_there: bool,
    /// Whether it was checked against a checksum.
    pub verified: bool,
    /// Bytes by source.
    pub sources: Vec<SourceStatus>,
}

/// The inputs of a download, for all its parts.
struct Context<'a> {
    job: &'a Job,
    options: &'a Options,
    progress: &'a Progress,
    stop: &'a Notify,
    begin: Instant,
    /// Whether to wait long for the mirrors that are named first.
    is_patient: AtomicBool,
    /// Sources of another file, which sent bytes of it.
    excluded: Mutex<Vec<usize>>,
    /// The file began as something else than a web page, so a page is not the file.
    is_no_page: AtomicBool,
    /// Why one answer has to bring everything: what the server does with the versions of its parts.
    takes_whole: Mutex<Option<&'static str>>,
    /// The addresses of servers that answered.
    peers: Peers,
}

impl Context<'_> {
    fn is_no_page(&self) -> bool {
        self.is_no_page.load(Ordering::Relaxed)
    }

    fn now(&self) -> Time {
        now(self.begin)
    }

    fn takes_whole(&self) -> Option<&'static str> {
        *self.takes_whole.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, one answer has to bring everything.
    fn take_whole(&self, why: &'static str) {
        self.takes_whole.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }
}

/// Time since `begin`.
fn now(begin: Instant) -> Time {
    let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Time::ZERO + Span::from_nanos(nanos)
}

/// Fetches a file. When `stop` is notified, keeps the received bytes for the next attempt.
pub async fn fetch(
    job: &Job,
    options: &Options,
    progress: &Progress,
    stop: &Notify,
) -> Result<Report, FetchError> {
    let context = Context {
        job,
        options,
        progress,
        stop,
        begin: Instant::now(),
        is_patient: AtomicBool::new(false),
        excluded: Mutex::default(),
        is_no_page: AtomicBool::new(false),
        takes_whole: Mutex::new(None),
        peers: Peers::default(),
    };
    let (mut beginnings, mut changes) = (1, 0);
    loop {
        let unfit = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => FetchError::Exists(job.target.clone()),
            _ => FetchError::file("create", &job.target, error),
        };
        let (store, journal) = match Store::open(&job.target, job.replace).map_err(unfit) {
            Ok(Opened::Store(store, journal)) => (*store, journal),
            Ok(Opened::Complete(bytes)) => return context.recheck(bytes).await,
            Err(FetchError::Exists(_)) if job.keep_finished => return context.finished().await,
            Err(error) => return Err(error),
        };
        let was_whole = context.takes_whole().is_some();
        let error = match context.attempt(store, journal).await {
            Ok(report) => return Ok(report),
            Err(Ended::Failed(error)) => return Err(error),
            Err(Ended::Again(error)) => error,
        };
        let is_change = matches!(error, FetchError::Changed);
        changes += usize::from(is_change);
        if changes == MOST_CHANGES && job.mirrors.iter().any(|mirror| mirror.scheme().is_http()) {
            // Several machines with versions of their own may answer, or the file changes all the time.
            context.take_whole("names another version in other answers");
        }
        // Whatever failed before, a change gets its second attempt, and the whole file its own ones.
        match context.takes_whole().is_some() && !was_whole {
            true => beginnings = 1,
            false if is_change && changes < MOST_CHANGES => {}
            false if beginnings < MOST_BEGINNINGS => beginnings += 1,
            false => return Err(error),
        }
        context.is_patient.store(matches!(error, FetchError::Outranked(_)), Ordering::Relaxed);
        progress.note(format!("{error}; beginning again"));
    }
}

/// How an attempt ends without a file.
enum Ended {
    /// The download begins again a few times; what was kept is compared with the server's file first.
    Again(FetchError),
    /// The download is over.
    Failed(FetchError),
}

impl From<FetchError> for Ended {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

impl Options {
    /// Bytes that may still be fetched over a route.
    fn left(&self, route: usize) -> u64 {
        let cap = self.routes[route].cap.map(|cap| self.caps[cap].left.load(Ordering::Relaxed));
        cap.unwrap_or(u64::MAX)
    }

    /// Takes bytes from the cap of a route; false if there are not so many.
    fn spend(&self, route: usize, bytes: u64) -> bool {
        let rest = |left: u64| left.checked_sub(bytes);
        self.routes[route].cap.is_none_or(|cap| {
            self.caps[cap].left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
        })
    }

    /// Why nothing more is fetched over a route.
    fn used_up(&self, route: usize) -> String {
        self.routes[route].cap.map_or_else(String::new, |cap| self.caps[cap].used_up.clone())
    }
}

impl Context<'_> {
    async fn attempt(&self, store: Store, journal: Option<Journal>) -> Result<Report, Ended> {
        if let Some(journal) = &journal {
            self.peers.remember(&journal.peers);
        }
        if journal.as_ref().is_some_and(|journal| !journal.is_page) {
            self.is_no_page.store(true, Ordering::Relaxed);
        }
        let purpose = if journal.is_none() { Purpose::Fresh } else { Purpose::Resumed };
        let mut opening = Opening::start(self, purpose);
        let mut kept = None;
        loop {
            let first = tokio::select! {
                first = self.first(&mut opening, (&store, journal.as_ref())) => first?,
                () = self.stop.notified() => return Err(FetchError::Stopped.into()),
            };
            if first.0.source.is_mislabelled() {
                self.progress.note(MISLABELLED);
            }
            if !first.1.is_page() {
                self.is_no_page.store(true, Ordering::Relaxed);
            }
            let (opened, part, fits) = match first {
                (opened, First::Whole(answer, connection), _) => {
                    // Open requests would hold the memory and the connections of the server.
                    opening.close().await;
                    return self.whole((*answer, *connection), &opened, store).await;
                }
                (opened, First::Part(part), fits) => (opened, *part, fits),
            };
            // The source that was kept comes again when no better one has answered.
            let is_last = kept == Some(opened.index) || opening.is_over();
            if fits || is_last || self.job.mirrors.len() == 1 {
                if !fits {
                    opening.begin_again();
                }
                return self.parts((opened, part), opening, Earlier { store, journal, fits }).await;
            }
            // Another mirror may still have the file of the earlier attempt.
            kept = Some(opened.index);
            opening.defer(opened, part);
        }
    }

    /// Whether a checksum of the user tells if the file is right.
    fn is_proven(&self) -> bool {
        self.job.checksums.iter().any(Checksum::is_strong)
    }

    /// The next source, and whether its file is that of an earlier attempt.
    async fn first(
        &self,
        opening: &mut Opening,
        (store, journal): (&Store, Option<&Journal>),
    ) -> Result<(OpenedSource, First, bool), FetchError> {
        let (opened, mut first) = opening.first(self, journal.map(|journal| journal.size)).await?;
        let fits = match (&mut first, journal) {
            (First::Part(part), Some(journal)) => self.fits_journal(&opened, part, (store, journal)).await?,
            _ => true,
        };
        Ok((opened, first, fits))
    }

    /// Checks a file that an earlier attempt has given its name.
    async fn recheck(&self, bytes: u64) -> Result<Report, FetchError> {
        let (checksums, target) = (self.job.checksums.clone(), self.job.target.clone());
        let checked = tokio::task::spawn_blocking(move || match first_wrong(&checksums, &target)? {
            // It is the file of another checksum.
            Some(_) => Err(FetchError::Exists(target)),
            None => Ok(checksums.iter().any(Checksum::is_strong)),
        });
        let verified =
            checked.await.map_err(|error| FetchError::file("check", &self.job.target, error.into()))??;
        Ok(Report { was_there: true, ..self.report(bytes, bytes, verified) })
    }

    fn report(&self, bytes: u64, resumed: u64, verified: bool) -> Report {
        let sources = self.progress.sources();
        Report { path: self.job.target.clone(), bytes, resumed, was_there: false, verified, sources }
    }

    /// All sources: every mirror over every route.
    fn sources(&self) -> Vec<(Arc<Source>, usize)> {
        let many = self.job.mirrors.len() > 1;
        let routes = self.options.routes.iter().enumerate();
        let pairs =
            routes.flat_map(|(index, route)| self.job.mirrors.iter().map(move |url| (index, route, url)));
        pairs
            .map(|(index, route, url)| {
                let label =
                    if many { format!("{} {}", route.name, url.authority()) } else { route.name.clone() };
                let (tls, peers) = (self.options.tls.clone(), self.peers.clone());
                let source = Source::new(url.clone(), route.route.clone(), label, tls, peers);
                (Arc::new(source), index)
            })
            .collect()
    }

    /// The number of the mirror of a source.
    fn mirror(&self, source: usize) -> usize {
        source % self.job.mirrors.len()
    }

    /// The origin of bytes from a source.
    fn origin(&self, opened: &OpenedSource) -> Arc<str> {
        origin(&opened.source.mirror.to_string(), &self.options.routes[opened.route].name)
    }

    /// Notes which mirror's file is taken if it is not the one that is named first.
    fn note_unused(&self, taken: usize) {
        let names: Vec<_> = self.job.mirrors[..taken].iter().map(Url::authority).collect();
        if !names.is_empty() {
            let taken = self.job.mirrors[taken].authority();
            self.progress.note(format!(
                "the file is that of {taken}: {}, named before it, cannot be used; {PROVES}",
                names.join(", ")
            ));
        }
    }

    /// Checks the complete file and gives it its name.
    async fn finish(&self, mut store: Store, end: End) -> Result<Report, Ended> {
        let mut checksums = self.job.checksums.clone();
        checksums.extend(end.digest);
        let (target, size) = (self.job.target.clone(), end.journal.size);
        let checked = tokio::task::spawn_blocking(move || {
            let file = |action, error| FetchError::file(action, &target, error);
            store.flush().map_err(|error| file("write", error))?;
            if let Some(wrong) = first_wrong(&checksums, store.part())? {
                store.discard().map_err(|error| file("remove", error))?;
                return Err(FetchError::Corrupt(wrong.to_string()));
            }
            store.finish(&end.journal).map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => FetchError::Exists(target.clone()),
                _ => file("finish", error),
            })?;
            Ok(checksums.iter().any(Checksum::is_strong))
        });
        let verified =
            checked.await.map_err(|error| FetchError::file("finish", &self.job.target, error.into()))??;
        Ok(self.report(size, end.resumed, verified))
    }
}

/// The first checksum that a file does not have. Blocks.
fn first_wrong<'a>(checksums: &'a [Checksum], path: &Path) -> Result<Option<&'a Checksum>, FetchError> {
    let failed = |error| FetchError::file("read", path, error);
    for checksum in checksums {
        let file = std::fs::File::open(path).map_err(failed)?;
        if !checksum.fits(file).map_err(failed)? {
            return Ok(Some(checksum));
        }
    }
    Ok(None)
}

/// The state that an earlier attempt left.
struct Earlier {
    store: Store,
    journal: Option<Journal>,
    /// Whether the file on the server is still that one.
    fits: bool,
}

/// Facts about a complete file.
struct End {
    journal: Journal,
    digest: Option<Checksum>,
    resumed: u64,
}

/// How often the state is shown and the numbers of connections are thought over.
const TICK: Duration = Duration::from_millis(100);
