//! What a fault of this program may take with it: a panic ends the session it happened in, and nothing else.
//!
//! Who receives or lets in for all sessions goes on after it ([`contained`]). What was locked is put into a state that is right
//! before anybody uses it again ([`lock`], [`try_lock`]): a session's engine is replaced by one that has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Does `work`; `None` when it panicked. What it changed outside of locks has to be made anew then.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        tracing::error!("a fault of this program was contained; what it happened to has ended");
    }
    done
}

/// Locks. After a panic while it was held, `mend` puts things right first, once.
pub(crate) fn lock<T>(mutex: &Mutex<T>, mend: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| mended(mutex, poisoned, mend))
}

/// The same unless somebody else holds it now.
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
