//! Limits the damage of a panic to the session in which it happened.
//!
//! Tasks that serve all sessions continue after a panic ([`contained`]). A lock that was held is repaired before its
//! next use ([`lock`], [`try_lock`]): a session's engine is replaced by one that has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Runs `work`; `None` if it panicked. State that it changed outside of locks must be discarded then.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        tracing::error!("a fault of this program was contained; what it happened to has ended");
    }
    done
}

/// Locks. If a panic happened under the lock, `mend` repairs the contents first, once.
pub(crate) fn lock<T>(mutex: &Mutex<T>, mend: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| mended(mutex, poisoned, mend))
}

/// As [`lock`]; `None` if the lock is held.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>, mend: impl FnOnce(&mut T)) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(mended(mutex, poisoned, mend)),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn mended<'a, T>(
    mutex: &Mutex<T>,
    poisoned: PoisonError<MutexGuard<'a, T>>,
    mend: impl FnOnce(&mut T),
) -> MutexGuard<'a, T> {
    let mut guard = poisoned.into_inner();
    mend(&mut guard);
    mutex.clear_poison();
    guard
}
