//! Runs jobs on several threads; results come in the order of the jobs.
//!
//! If the user stops the command, no new run begins and complete runs are delivered. Runs under way end with the program.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anabranch_experiments::results::RunRecord;
use anabranch_experiments::scenario::{Captured, Course, Extras, Group, Variant};

use super::load::mistake;
use super::qlog::Qlog;
use super::trace::Trace;
use super::usage;
use crate::capture::qlog::EXTENSION;
use crate::errors::{Failure, describe};
use crate::ui::human;

/// How often the display is updated and an interruption is noticed.
const TICK: Duration = Duration::from_millis(200);
/// The unit of progress: a complete run.
const WHOLE: f64 = 10_000.0;

/// A run to do.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub variant: Arc<Variant>,
    pub seed: u64,
    /// Its number in the sweep.
    pub run: usize,
}

/// How jobs are run.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    pub threads: usize,
    /// Show progress.
    pub tell: bool,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
}

impl Crew {
    /// Runs all jobs to the end.
    pub(super) fn new(threads: usize, tell: bool) -> Self {
        Self { threads, tell, stop: Arc::default() }
    }
}

/// Outputs of a run in addition to its metrics, and its time limit.
#[derive(Clone, Default)]
pub(super) struct Wanted {
    /// Record values over time.
    pub course: bool,
    /// Write packets there.
    pub trace: Option<Traced>,
    /// End each run after this time.
    pub time_limit: Option<Duration>,
}

/// The trace of a run. However the run ends, its file is completed.
#[derive(Clone)]
pub(super) struct Traced {
    path: PathBuf,
    tracer: Arc<Mutex<Option<Tracer>>>,
    /// Set when the file cannot be written.
    stop: Arc<AtomicBool>,
}

impl Traced {
    /// A trace to that file; `stop` is set if it cannot be written.
    pub(super) fn to(path: &Path, stop: &Arc<AtomicBool>) -> Self {
        Self { path: path.to_owned(), tracer: Arc::default(), stop: Arc::clone(stop) }
    }

    fn begin(&self, groups: &[Group]) -> Result<(), Failure> {
        *self.lock() = Some(Tracer::create(&self.path, groups)?);
        Ok(())
    }

    /// Writes a packet, unless the trace is complete.
    fn add(&self, packet: &Captured) {
        if let Some(tracer) = &mut *self.lock()
            && !tracer.add(packet)
        {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Completes the file.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.lock().take().map_or(Ok(()), Tracer::finish)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tracer>> {
        self.tracer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A complete run.
pub(super) struct Done {
    pub run: RunRecord,
    /// Empty unless requested.
    pub course: Course,
}

/// Does all runs and delivers their results in order; returns how many it delivered.
pub(super) fn run_jobs(
    jobs: Vec<Job>,
    crew: &Crew,
    wanted: Wanted,
    add: &mut dyn FnMut(Done) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let work = move |job: &Job, progress: &dyn Fn(f64)| run(job, &wanted, progress);
    in_order(jobs, crew, work, &mut |_, result| add(result?))
}

/// The state that threads share.
struct Desk<J> {
    jobs: Vec<J>,
    next: AtomicUsize,
    progress: Vec<AtomicU32>,
}

/// Does `work` for each job and delivers the results in the order of the jobs; returns how many it delivered. Work reports
/// which share of its job is done.
pub(super) fn in_order<J, R>(
    jobs: Vec<J>,
    crew: &Crew,
    work: impl Fn(&J, &dyn Fn(f64)) -> R + Send + Sync + 'static,
    add: &mut dyn FnMut(&J, R) -> Result<(), Failure>,
) -> Result<usize, Failure>
where
    J: Send + Sync + 'static,
    R: Send + 'static,
{
    let (all, threads) = (jobs.len(), crew.threads.min(jobs.len()));
    let progress = (0..threads).map(|_| AtomicU32::new(0)).collect();
    let desk = Arc::new(Desk { jobs, next: AtomicUsize::new(0), progress });
    let (results, finished) = mpsc::channel();
    let work = Arc::new(work);
    start(threads, &mut |thread| {
        let (results, desk, work) = (results.clone(), Arc::clone(&desk), Arc::clone(&work));
        let work = move || desk.work(thread, &*work, &results);
        std::thread::Builder::new().spawn(work).map(drop)
    })?;
    drop(results);
    let teller = Teller::new(all, crew.tell);
    let (mut waiting, mut due, mut come) = (BTreeMap::new(), 0, 0);
    let mut outcome = Ok(());
    while outcome.is_ok() && come < all && !crew.stop.load(Ordering::Relaxed) {
        teller.tell(come, &desk.progress);
        let (index, result) = match finished.recv_timeout(TICK) {
            Ok(finished) => finished,
            Err(mpsc::RecvTimeoutError::Timeout) => continue,
            // A thread panicked and printed the reason.
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        };
        waiting.insert(index, result);
        come += 1;
        while outcome.is_ok()
            && let Some(result) = waiting.remove(&due)
        {
            outcome = add(&desk.jobs[due], result);
            due += 1;
        }
    }
    // Threads find no more work.
    desk.next.store(all, Ordering::Relaxed);
    teller.clear();
    outcome?;
    // Runs that were complete out of order when the user stopped.
    let left = waiting.len();
    waiting.into_iter().try_for_each(|(index, result)| add(&desk.jobs[index], result))?;
    Ok(due + left)
}

/// Starts threads; if the system allows fewer, those do all the work.
fn start(threads: usize, spawn: &mut dyn FnMut(usize) -> io::Result<()>) -> Result<(), Failure> {
    match (0..threads).try_for_each(|thread| spawn(thread).map_err(|error| (thread, error))) {
        Err((0, error)) => Err(Failure::local(format!("cannot start a thread: {}", describe(&error)))
            .hint("`ulimit -a` shows how much memory and how many processes it may have")),
        _ => Ok(()),
    }
}

impl<J> Desk<J> {
    fn work<R>(
        &self,
        thread: usize,
        work: &(impl Fn(&J, &dyn Fn(f64)) -> R + ?Sized),
        results: &mpsc::Sender<(usize, R)>,
    ) {
        let tell = |share: f64| self.progress[thread].store((share * WHOLE) as u32, Ordering::Relaxed);
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(index) else { return };
            let result = work(job, &tell);
            tell(0.0);
            if results.send((index, result)).is_err() {
                return;
            }
        }
    }
}

fn run(job: &Job, wanted: &Wanted, tell: &dyn Fn(f64)) -> Result<Done, Failure> {
    let scenario = &job.variant.scenario;
    let trace = wanted.trace.as_ref();
    if let Some(trace) = trace {
        trace.begin(&scenario.build(job.seed).map_err(|error| mistake(&error))?.groups)?;
    }
    let mut note = |packet: &_| {
        if let Some(trace) = trace {
            trace.add(packet);
        }
    };
    let started = Instant::now();
    let mut progress = |share: f64| {
        tell(share);
        wanted.time_limit.is_none_or(|limit| started.elapsed() < limit)
    };
    let before = usage::thread_cpu();
    let extras = Extras {
        course: wanted.course,
        trace: trace.is_some().then_some(&mut note),
        progress: Some(&mut progress),
    };
    let (mut report, course) = scenario.run_with(job.seed, extras).map_err(|error| mistake(&error))?;
    if let (Some(before), Some(after)) = (before, usage::thread_cpu()) {
        report.metrics.insert("run.cpu_s".to_owned(), after.saturating_sub(before).as_secs_f64());
    }
    if let Some(bytes) = usage::peak_memory() {
        report.metrics.insert("run.peak_rss_mb".to_owned(), bytes as f64 / 1e6);
    }
    Ok(Done { run: RunRecord::new(report, job.run, &job.variant.set), course })
}

/// A trace file in the format of its extension.
enum Tracer {
    Pcapng(Trace),
    Qlog(Qlog),
}

impl Tracer {
    fn create(path: &Path, groups: &[Group]) -> Result<Self, Failure> {
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            return Ok(Self::Qlog(Qlog::new(path, groups)));
        }
        Trace::create(path, groups).map(Self::Pcapng)
    }

    /// Writes a packet; false if the file takes no more.
    fn add(&mut self, packet: &Captured) -> bool {
        match self {
            Self::Pcapng(trace) => trace.add(packet),
            Self::Qlog(qlog) => qlog.add(packet),
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Pcapng(trace) => trace.finish(),
            Self::Qlog(qlog) => qlog.finish(),
        }
    }
}

/// Shows progress and remaining time on a terminal.
struct Teller {
    started: Instant,
    all: usize,
    active: bool,
}

impl Teller {
    fn new(all: usize, tell: bool) -> Self {
        Self { started: Instant::now(), all, active: tell && std::io::stderr().is_terminal() }
    }

    fn tell(&self, done: usize, progress: &[AtomicU32]) {
        let elapsed = self.started.elapsed();
        if !self.active || elapsed < TICK {
            return;
        }
        let under_way: f64 =
            progress.iter().map(|part| f64::from(part.load(Ordering::Relaxed)) / WHOLE).sum();
        let share = ((done as f64 + under_way) / self.all as f64).clamp(0.0, 1.0);
        let left = match share {
            0.0 => "?".to_owned(),
            share => human::seconds(elapsed.as_secs_f64() * (1.0 - share) / share),
        };
        let percent = 100.0 * share;
        let line = format!("\r{done} of {} runs done, {percent:.0} %, {left} to go\x1b[K", self.all);
        crate::ui::out::error(&line);
    }

    fn clear(&self) {
        if self.active {
            crate::ui::out::error("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_that_the_system_gives_are_enough() {
        let give = |most: usize| {
            let mut started = 0;
            let outcome = start(9, &mut |thread| {
                if thread < most {
                    started += 1;
                    return Ok(());
                }
                Err(io::Error::from(io::ErrorKind::WouldBlock))
            });
            (started, outcome.map_err(|failure| failure.message))
        };
        assert_eq!((give(9), give(2)), ((9, Ok(())), (2, Ok(()))));
        let (started, outcome) = give(0);
        assert!(started == 0 && outcome.unwrap_err().starts_with("cannot start a thread: "));
    }
}
