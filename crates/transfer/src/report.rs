//! What came of a transfer: collected by the threads that work on it, given to the caller at its end.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Failure, MOST_FAILURES, TransferError, printable};
use crate::manifest::LeftOut;

/// What a transfer that succeeded did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files that were sent or received.
    pub files: u64,
    /// Files that the receiver had already, identical or kept by [`Conflict::Skip`](crate::Conflict::Skip).
    pub skipped: u64,
    /// Bytes of files, those resumed included.
    pub bytes: u64,
    /// Bytes that were on the receiver's disk before.
    pub resumed: u64,
    /// Things of the share that are never sent (sockets, links that lead out of it).
    pub left_out: u64,
    /// What was left out although all else went well, one printable line each; the first hundred.
    pub warnings: Vec<String>,
}

/// The same while it grows; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    summary: Summary,
    failures: Vec<Failure>,
    failed: u64,
}

impl Report {
    pub fn add(&self, change: impl FnOnce(&mut Summary)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).summary);
    }

    pub fn warn(&self, warning: &str) {
        self.add(|summary| {
            if summary.warnings.len() < MOST_FAILURES {
                summary.warnings.push(printable(warning));
            }
        });
    }

    /// Notes something of the share that is not sent.
    pub fn leave_out(&self, what: &LeftOut) {
        self.add(|summary| summary.left_out += 1);
        self.warn(&what.shown());
    }

    /// Notes that one file, named by its printable path, failed; the others go on.
    pub fn fail(&self, path: String, reason: impl Into<String>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.failed += 1;
        if inner.failures.len() < MOST_FAILURES {
            inner.failures.push(Failure { path, reason: reason.into() });
        }
    }

    /// The summary, or [`TransferError::Incomplete`] when a file failed.
    pub fn finish(&self) -> Result<Summary, TransferError> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.failed == 0 {
            return Ok(std::mem::take(&mut inner.summary));
        }
        Err(TransferError::Incomplete { failures: std::mem::take(&mut inner.failures), count: inner.failed })
    }
}
