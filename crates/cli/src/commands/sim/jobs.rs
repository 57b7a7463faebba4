//! Many runs on several threads; their results come out in the order in which they were asked for.
//!
//! When the user stops them, no new run begins, those that are complete come out, and those under way are left to
//! end with the program.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anabranch_experiments::results::RunRecord;
use anabranch_experiments::scenario::{Captured, Course, Extras, Group, Variant};

use super::qlog::Qlog;
use super::trace::Trace;
use super::{mistake, usage};
use crate::capture::qlog::EXTENSION;
use crate::errors::{Failure, describe};
use crate::ui::human;

/// How often the display is renewed and a wish to stop is looked at.
const TICK: Duration = Duration::from_millis(200);
/// Parts that the progress of a run is counted in.
const WHOLE: f64 = 10_000.0;

/// One run to do.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub variant: Arc<Variant>,
    pub seed: u64,
    /// Which of the sweep's runs it is.
    pub run: usize,
}

/// Who works, and under which conditions.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    pub threads: usize,
    /// Show how far things are.
    pub tell: bool,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
}

impl Crew {
    /// A crew that only ends when all is done.
    pub(super) fn new(threads: usize, tell: bool) -> Self {
        Self { threads, tell, stop: Arc::default() }
    }
}

/// What is wanted of runs beside their metrics.
#[derive(Clone, Default)]
pub(super) struct Wanted {
    /// Note how each run goes.
    pub course: bool,
    /// Write packets there.
    pub trace: Option<Traced>,
}

/// Where the packets of a single run go: whoever ends the run, for whatever reason, ends what was written, too.
#[derive(Clone)]
pub(super) struct Traced {
    path: PathBuf,
    tracer: Arc<Mutex<Option<Tracer>>>,
    /// Set when nothing more can be written.
    stop: Arc<AtomicBool>,
}

impl Traced {
    /// Packets go to that file; when it cannot be written, the run is to stop.
    pub(super) fn to(path: &Path, stop: &Arc<AtomicBool>) -> Self {
        Self { path: path.to_owned(), tracer: Arc::default(), stop: Arc::clone(stop) }
    }

    fn begin(&self, groups: &[Group]) -> Result<(), Failure> {
        *self.lock() = Some(Tracer::create(&self.path, groups)?);
        Ok(())
    }

    /// Writes a packet, unless all has ended.
    fn add(&self, packet: &Captured) {
        if let Some(tracer) = &mut *self.lock()
            && !tracer.add(packet)
        {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Ends what is written.
    ///
    /// # Errors
    /// When something could not be written.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.lock().take().map_or(Ok(()), Tracer::finish)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tracer>> {
        self.tracer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that is complete.
pub(super) struct Done {
    pub run: RunRecord,
    /// Empty unless it was asked for.
    pub course: Course,
}

/// Does all runs and hands out their results in order; answers how many were handed out.
pub(super) fn run_jobs(
    jobs: Vec<Job>,
    crew: &Crew,
    wanted: Wanted,
    add: &mut dyn FnMut(Done) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let work = move |job: &Job, progress: &dyn Fn(f64)| run(job, &wanted, progress);
    in_order(jobs, crew, work, &mut |_, result| add(result?))
}

/// What the threads share.
struct Desk<J> {
    jobs: Vec<J>,
    next: AtomicUsize,
    /// How far each thread is with its job.
    progress: Vec<AtomicU32>,
}

/// Does some work for each job and hands out the results in the order of the jobs; answers how many. Work may tell
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
            // A thread that panicked has said why.
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
    // Threads look for more work only until then.
    desk.next.store(all, Ordering::Relaxed);
    teller.clear();
    outcome?;
    // What was complete out of turn when the user stopped.
    let left = waiting.len();
    waiting.into_iter().try_for_each(|(index, result)| add(&desk.jobs[index], result))?;
    Ok(due + left)
}

/// Starts threads, as many as the system gives: those that are there do the work of all.
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
    let mut progress = |share: f64| tell(share);
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

/// Writes packets in the form that the name of the file asks for.
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

    /// Writes a packet; false when that and what follows cannot be written.
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

/// Says on a terminal how far things are and how long they will take.
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
