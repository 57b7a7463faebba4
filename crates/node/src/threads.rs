//! The threads on which sessions run, for programs without their own runtime.

use std::num::NonZero;
use std::time::Duration;

use anabranch_service::process::memory;
use tokio::runtime::{Builder, Runtime};

use crate::error::Error;

/// How long a program waits at its end for open system calls: the resolver waits up to 10 s for a silent name server,
/// and the answer is no longer needed.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// Least address space for a program with sessions: most of it is reserved for threads and never used.
const LEAST_ADDRESS_SPACE: u64 = 512 << 20;

/// The threads on which sessions run.
#[derive(Debug)]
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts one thread for each core.
    ///
    /// # Errors
    /// When the system provides no threads, or so little address space that an allocation would fail later.
    pub fn start() -> Result<Self, Error> {
        Self::build(&mut Builder::new_multi_thread())
    }

    /// Starts one for each core but one: a tunnel or proxy leaves that to the programs whose data it carries. Each thread more costs wake-ups.
    pub fn start_all_but_one() -> Result<Self, Error> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::build(Builder::new_multi_thread().worker_threads(cores.saturating_sub(1).max(1)))
    }

    /// Uses the caller's thread alone, for a program with one session: its tasks then wake each other without the scheduler.
    pub fn start_none() -> Result<Self, Error> {
        Self::build(&mut Builder::new_current_thread())
    }

    fn build(builder: &mut Builder) -> Result<Self, Error> {
        check_address_space(memory::address_space())?;
        let built = builder.enable_all().build();
        built
            .map(|runtime| Self(Some(runtime)))
            .map_err(|error| Error::local(format!("cannot start the network threads: {error}")))
    }

    /// Runs a future to its end.
    ///
    /// # Panics
    /// If the future panics.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let Self(Some(runtime)) = self else { unreachable!("it is there until this is dropped") };
        runtime.block_on(future)
    }

    /// Ends the threads without waiting.
    pub fn shutdown_background(mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(LAST_PATIENCE);
        }
    }
}

fn check_address_space(limit: Option<u64>) -> Result<(), Error> {
    match limit {
        Some(limit) if limit < LEAST_ADDRESS_SPACE => Err(Error::local(format!(
            "the address space is limited to {} MiB (`ulimit -v`), and threads reserve up to {} MiB of it",
            limit >> 20,
            LEAST_ADDRESS_SPACE >> 20
        ))
        .hint("limit the memory in use instead: `systemd-run --user --scope -p MemoryMax=64M anabranch …`")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_unfinished_system_call_does_not_delay_the_end() {
        let threads = Threads::start().unwrap();
        let (wait, end) = std::sync::mpsc::channel::<()>();
        // The system's resolver waits like this for a silent name server.
        let resolving = move || end.recv_timeout(Duration::from_secs(20)).is_err();
        threads.block_on(async { drop(tokio::task::spawn_blocking(resolving)) });
        let begin = Instant::now();
        drop(threads);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        drop(wait);
    }

    #[test]
    fn too_little_address_space_is_an_error_with_advice_and_not_an_abort_later() {
        assert!(check_address_space(None).is_ok() && check_address_space(Some(1 << 30)).is_ok());
        let error = check_address_space(Some(200 << 20)).unwrap_err();
        assert!(error.message.contains("200 MiB") && error.hint.is_some(), "{error}");
    }
}
