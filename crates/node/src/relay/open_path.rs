//! An open path through relays, and its closing.
//!
//! Closing the last path ends the session. So a path that is no longer carried or wanted stays in the session until
//! another one works, even if it is silent.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use anabranch_net::{AbandonReason, Event, Events, PathChange, PathId, Session};
use tokio::runtime::Handle;

use super::RelayError;
use super::chain::{Prepared, RelayChain, changed};
use super::tries::Try;

/// The state that a keeper shares with others.
pub(crate) type Shown = Arc<Way>;

#[derive(Debug, Default)]
pub(crate) struct Way {
    /// The path that is open, or being opened.
    pub path: Mutex<Option<PathId>>,
    pub tried: Try,
}

/// The relays and flows that carry a path.
pub(crate) struct Carrier {
    pub chain: Arc<RelayChain>,
    pub prepared: Prepared,
}

/// How a path ended.
pub(crate) enum End {
    /// The session has closed it.
    Closed {
        /// Whether it had been open.
        was_open: bool,
    },
    /// The relays no longer carry it.
    Dropped(RelayError),
}

/// A path that is open or being opened. Dropping it closes the path, at once or as soon as another one works.
pub(crate) struct OpenPath {
    session: Session,
    path: PathId,
    shown: Shown,
    events: Events,
    is_open: bool,
    /// Why the session has closed it.
    closed: Option<AbandonReason>,
    /// `None` once the relays have dropped it.
    carrier: Option<Carrier>,
}

impl OpenPath {
    /// A path that is being opened. Subscribe to `events` before opening it.
    pub fn new(
        (session, events): (&Session, Events),
        (path, shown): (PathId, &Shown),
        carrier: Carrier,
    ) -> Self {
        *lock(&shown.path) = Some(path);
        let (session, shown) = (session.clone(), shown.clone());
        Self { session, path, shown, events, is_open: false, closed: None, carrier: Some(carrier) }
    }

    /// Marks it as open.
    pub fn opened(mut self) -> Self {
        self.is_open = true;
        self.shown.tried.opened();
        self
    }

    pub fn id(&self) -> PathId {
        self.path
    }

    /// Why the session has closed it, once [`Self::end`] has reported that.
    pub fn why_closed(&self) -> Option<AbandonReason> {
        self.closed
    }

    /// The address of the first relay.
    pub fn entry(&self) -> Option<SocketAddr> {
        self.carrier.as_ref().map(|carrier| carrier.prepared.chain.entry.remote)
    }

    /// Closes this path and shows another one in its place.
    pub fn become_other(&mut self, mut other: Self) {
        other.shown = self.shown.clone();
        *lock(&other.shown.path) = Some(other.path);
        *self = other;
    }

    /// The relays that carry it.
    pub fn chain(&self) -> Option<&Arc<RelayChain>> {
        self.carrier.as_ref().map(|carrier| &carrier.chain)
    }

    /// Waits until it is closed, or dropped by its relays.
    pub async fn end(&mut self) -> End {
        let Self { path, shown, events, is_open, closed: why, carrier, .. } = self;
        let closed = async {
            while let Some(event) = events.next().await {
                match event {
                    Event::Path { path: changed, change } if changed == *path => match change {
                        PathChange::Opened(_) => {
                            *is_open = true;
                            shown.tried.opened();
                        }
                        PathChange::Closed(reason) => {
                            *why = Some(reason);
                            return *is_open;
                        }
                        _ => {}
                    },
                    _ => {}
                }
            }
            pending().await
        };
        let dropped = async {
            match carrier {
                Some(carrier) => carrier.prepared.over().await,
                None => pending().await,
            }
        };
        tokio::select! {
            was_open = closed => End::Closed { was_open },
            error = dropped => End::Dropped(error),
        }
    }

    /// Releases the flows of a path that its relays no longer carry.
    pub fn on_dropped(&mut self) {
        self.carrier = None;
    }
}

impl Drop for OpenPath {
    fn drop(&mut self) {
        let is_closed = self.session.close_spare_path(self.path);
        let is_over = self.session.close_reason().is_some();
        match Handle::try_current() {
            Ok(runtime) if is_over || !is_closed => {
                let (session, path, carrier) = (self.session.clone(), self.path, self.carrier.take());
                runtime.spawn(async move {
                    close_later(&session, path).await;
                    outlive(&session, carrier).await;
                });
            }
            // Without a runtime, no task can continue.
            _ => {
                lock(&self.shown.path).take_if(|path| *path == self.path);
            }
        }
    }
}

/// Releases the flows of a path. If the session has ended, waits until it has sent its last packet.
pub(crate) async fn outlive(session: &Session, carrier: Option<Carrier>) {
    if session.close_reason().is_some() {
        session.forgotten().await;
    }
    drop(carrier);
}

/// Closes a path as soon as another one works.
async fn close_later(session: &Session, path: PathId) {
    let mut events = session.events();
    let closing = async {
        while !session.close_spare_path(path) {
            changed(&mut events).await;
        }
    };
    tokio::select! {
        () = closing => {}
        _ = session.closed() => {}
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while held")
}
