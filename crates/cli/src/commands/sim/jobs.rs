//! Many runs on several threads; their results come out in the order in which they were asked for.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anabranch_sim::scenario::{ScenarioError, Variant};

use super::output::Run;
use super::{mistake, usage};
use crate::errors::Failure;
use crate::ui::human;

/// One run to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub variant: &'a Variant,
    pub seed: u64,
}

/// Does all runs on so many threads and hands out their results in order.
pub(super) fn run_jobs(
    jobs: &[Job<'_>],
    threads: usize,
    tell: bool,
    add: &mut dyn FnMut(Run) -> Result<(), Failure>,
) -> Result<(), Failure> {
    in_order(jobs, threads, tell, run, &mut |_, result| add(result.map_err(|error| mistake(&error))?))
}

/// Does some work for each job on so many threads and hands out the results in the order of the jobs.
pub(super) fn in_order<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    tell: bool,
    work: impl Fn(&J) -> R + Sync,
    add: &mut dyn FnMut(&J, R) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let (results, finished) = mpsc::channel();
    let mut teller = Teller::new(jobs.len(), tell);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            let (results, next, work) = (results.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { return };
                    if results.send((index, work(job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let (mut waiting, mut due) = (BTreeMap::new(), 0);
        let outcome = finished.iter().try_for_each(|(index, result)| {
            waiting.insert(index, result);
            teller.on_finished();
            while let Some(result) = waiting.remove(&due) {
                add(&jobs[due], result)?;
                due += 1;
            }
            Ok(())
        });
        // Threads look for more work only until then.
        next.store(jobs.len(), Ordering::Relaxed);
        teller.clear();
        outcome
    })
}

fn run(job: &Job<'_>) -> Result<Run, ScenarioError> {
    let before = usage::thread_cpu();
    let mut report = job.variant.scenario.run(job.seed)?;
    if let (Some(before), Some(after)) = (before, usage::thread_cpu()) {
        report.metrics.insert("run.cpu_s".to_owned(), after.saturating_sub(before).as_secs_f64());
    }
    if let Some(bytes) = usage::peak_memory() {
        report.metrics.insert("run.peak_rss_mb".to_owned(), bytes as f64 / 1e6);
    }
    Ok(Run::new(report, &job.variant.set))
}

/// Says on a terminal how far things are.
struct Teller {
    started: Instant,
    done: usize,
    all: usize,
    active: bool,
}

impl Teller {
    fn new(all: usize, tell: bool) -> Self {
        let active = tell && all > 1 && std::io::stderr().is_terminal();
        Self { started: Instant::now(), done: 0, all, active }
    }

    fn on_finished(&mut self) {
        self.done += 1;
        if self.active {
            let each = self.started.elapsed() / self.done as u32;
            let left: Duration = each * (self.all - self.done) as u32;
            let seconds = human::seconds(left.as_secs_f64());
            crate::ui::out::error(&format!("\r{} of {} runs, {seconds} to go\x1b[K", self.done, self.all));
        }
    }

    fn clear(&self) {
        if self.active {
            crate::ui::out::error("\r\x1b[K");
        }
    }
}
