//! An open path through relays, and when it is closed.
//!
//! A session whose last path is closed is over. So a path that its relays carry no more, or that is not wanted any more, stays
//! where no other works, silent if need be, until one does.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};

use anabranch_net::{Event, Events, PathChange, PathId, Session};
use tokio::runtime::Handle;

use super::RelayError;
use super::chain::{Prepared, RelayChain, changed};
use super::tries::Try;

/// What a keeper has of its way, for others to see.
pub(crate) type Shown = Arc<Way>;

#[derive(Debug, Default)]
pub(crate) struct Way {
    /// The path that is open, or being opened.
    pub path: Mutex<Option<PathId>>,
    pub tried: Try,
}

/// What carries a path.
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
    /// The relays carry it no more.
    Dropped(RelayError),
}

/// A path that is open or being opened, closed when this is dropped: at once, or as soon as another one works.
pub(crate) struct OpenPath {
    session: Session,
    path: PathId,
    shown: Shown,
    events: Events,
    is_open: bool,
    /// `None` once the relays have dropped it.
    carrier: Option<Carrier>,
}

impl OpenPath {
    /// A path that is being opened; the events are those of the session since before that.
    pub fn new(
        (session, events): (&Session, Events),
        (path, shown): (PathId, &Shown),
        carrier: Carrier,
    ) -> Self {
        *lock(&shown.path) = Some(path);
        let (session, shown) = (session.clone(), shown.clone());
        Self { session, path, shown, events, is_open: false, carrier: Some(carrier) }
    }

    /// The same of one that is open already.
    pub fn opened(mut self) -> Self {
        self.is_open = true;
        self.shown.tried.opened();
        self
    }

    /// The relays that carry it.
    pub fn chain(&self) -> Option<&Arc<RelayChain>> {
        self.carrier.as_ref().map(|carrier| &carrier.chain)
    }

    /// Waits until it is closed, or dropped by its relays.
    pub async fn end(&mut self) -> End {
        let Self { path, shown, events, is_open, carrier, .. } = self;
        let closed = async {
            while let Some(event) = events.next().await {
                match event {
                    Event::Path { path: changed, change } if changed == *path => match change {
                        PathChange::Opened(_) => {
                            *is_open = true;
                            shown.tried.opened();
                        }
                        PathChange::Closed(_) => return *is_open,
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

    /// Its relays carry it no more: what is allocated there is given back.
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
            // Without a runtime nothing goes on.
            _ => *lock(&self.shown.path) = None,
        }
    }
}

/// Gives back what carries a path: at once, or, of a session that has ended, when it has nothing to say any more.
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
