//! Runs a target on a separate thread, to find inputs on which it never returns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most time for an input; the slowest take some milliseconds.
pub const MOST: Duration = Duration::from_secs(20);

/// An input on which a target fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The input.
    pub input: Vec<u8>,
    /// Whether it ran out of time; otherwise it panicked.
    pub hung: bool,
}

/// Runs the target on all inputs; returns their number.
///
/// # Errors
/// The first input on which it panics, or takes longer than `most`. In that case the thread is abandoned.
pub fn feed(
    target: fn(&[u8]),
    inputs: impl Iterator<Item = Vec<u8>> + Send + 'static,
    most: Duration,
) -> Result<u64, Found> {
    // The current input and its number.
    let current = Arc::new(Mutex::new((Vec::new(), 0_u64)));
    let shown = current.clone();
    let (done, waiting) = channel();
    std::thread::spawn(move || {
        for input in inputs {
            {
                let mut current = shown.lock().expect("no panic while held");
                current.0.clone_from(&input);
                current.1 += 1;
            }
            if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                return drop(done.send(Some(input)));
            }
        }
        drop(done.send(None));
    });
    let mut seen = 0;
    loop {
        let result = waiting.recv_timeout(most);
        let (input, count) = current.lock().expect("no panic while held").clone();
        match result {
            Ok(None) => return Ok(count),
            Ok(Some(input)) => return Err(Found { input, hung: false }),
            Err(RecvTimeoutError::Disconnected) => return Err(Found { input, hung: false }),
            Err(RecvTimeoutError::Timeout) if count == seen => return Err(Found { input, hung: true }),
            Err(RecvTimeoutError::Timeout) => seen = count,
        }
    }
}

/// Never returns on 7, panics on 9.
fn picky(input: &[u8]) {
    if input == [7] {
        loop {
            std::thread::yield_now();
        }
    }
    assert_ne!(input, [9]);
}

fn fed(last: u8) -> Result<u64, Found> {
    feed(picky, (0..=last).map(|number| vec![number]), Duration::from_millis(100))
}

#[test]
fn an_input_that_never_ends_is_found() {
    assert_eq!(fed(6), Ok(7));
    assert_eq!(fed(20), Err(Found { input: vec![7], hung: true }));
}

#[test]
fn an_input_that_panics_is_found() {
    let inputs = [8, 9, 10].map(|number| vec![number]).into_iter();
    assert_eq!(feed(picky, inputs, MOST), Err(Found { input: vec![9], hung: false }));
}
