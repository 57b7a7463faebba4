//! The state shared by the handle of an emulation and its thread.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;
use crate::path::Links;

/// The state shared by the handle and the thread.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) clock: Clock,
    pub(crate) stop: AtomicBool,
    pub(crate) links: Mutex<Vec<Links>>,
}

impl State {
    pub(crate) fn links(&self) -> MutexGuard<'_, Vec<Links>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
