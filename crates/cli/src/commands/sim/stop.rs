//! Ctrl-C during experiments.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::errors::{Failure, Kind};
use crate::interrupt;

/// The failure of a command that the user stopped early.
pub(super) fn unless_stopped(done: usize, all: usize) -> Result<(), Failure> {
    if done >= all {
        return Ok(());
    }
    let message = format!("stopped after {done} of {all} runs");
    Err(Failure::new(Kind::Interrupted, message).hint("complete runs have been written"))
}

/// Becomes true on Ctrl-C. A second Ctrl-C ends the program at once.
pub(super) fn stop_on_interrupt() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let listen = move || {
        // Without a runtime or a thread, Ctrl-C ends the program, as by default.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            interrupt::requested().await;
            told.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        });
    };
    let _ = std::thread::Builder::new().spawn(listen);
    stop
}
