//! A session with another node, as the application sees it.

pub(crate) mod core;
pub(crate) mod greeting;
pub(crate) mod inner;
pub(crate) mod outbox;
pub(crate) mod wakers;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use anabranch_engine::{
    AbandonReason, CloseReason, DatagramError, DatagramMode, Event, PathError, PathInfo, PathRules, Pattern,
    ReservedPath, Route, Scheduler, SessionStats,
};
use anabranch_secure::{PublicKey, ShareId};
use anabranch_wire::{DatagramFrame, PathId, PathUse, Pid, Side, StreamId, Time};
use bytes::Bytes;
use tokio::sync::broadcast;

use crate::relayed::Chain;
use crate::stream::Stream;
use inner::SessionInner;
use wakers::Wait;

/// Why something cannot be done with a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It is over.
    #[error("the session is over: {0}")]
    Closed(CloseReason),
    /// The message does not fit or cannot be sent.
    #[error(transparent)]
    Datagram(#[from] DatagramError),
    /// The path is not there or cannot be had.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl From<SessionError> for std::io::Error {
    fn from(error: SessionError) -> Self {
        let kind = match error {
            SessionError::Closed(_) => std::io::ErrorKind::ConnectionAborted,
            _ => std::io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// A session with another node: streams and datagrams over every path there is between the two.
///
/// Clones are handles to the same session. When the last one and the last stream are dropped, the session
/// closes after delivering what was written.
///
/// ```no_run
/// use anabranch_net::Session;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// async fn ask(session: &Session) -> std::io::Result<String> {
///     let mut stream = session.open_stream().await?;
///     stream.write_all(b"how are you?").await?;
///     stream.shutdown().await?;
///     let mut answer = String::new();
///     stream.read_to_string(&mut answer).await?;
///     Ok(answer)
/// }
/// ```
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
}

/// Closes the session when the application has let go of it.
pub(crate) struct Handle {
    pub(crate) inner: Arc<SessionInner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(inner: Arc<SessionInner>) -> Self {
        Self { handle: Arc::new(Handle { inner }) }
    }

    /// The node at the other end, proven by its key.
    #[must_use]
    pub fn peer(&self) -> PublicKey {
        self.handle.inner.peer
    }

    /// The share whose ticket opened the session, if one did.
    #[must_use]
    pub fn share(&self) -> Option<ShareId> {
        self.handle.inner.share
    }

    /// Which end this is: the one that connected or the one that accepted.
    #[must_use]
    pub fn side(&self) -> Side {
        self.handle.inner.core().engine.side()
    }

    /// Opens a stream, as soon as the peer allows one more. The peer learns of it with its first bytes.
    ///
    /// # Errors
    /// [`SessionError::Closed`].
    pub async fn open_stream(&self) -> Result<Stream, SessionError> {
        let id = poll_fn(|cx| self.poll_stream(cx, Wait::Open)).await?;
        Ok(Stream::new(self.handle.clone(), id))
    }

    /// The next stream that the peer opens.
    ///
    /// # Errors
    /// [`SessionError::Closed`].
    pub async fn accept_stream(&self) -> Result<Stream, SessionError> {
        let id = poll_fn(|cx| self.poll_stream(cx, Wait::Accept)).await?;
        Ok(Stream::new(self.handle.clone(), id))
    }

    fn poll_stream(&self, cx: &Context<'_>, what: Wait) -> Poll<Result<StreamId, SessionError>> {
        let mut core = self.handle.inner.core();
        let stream = match what {
            Wait::Accept => core.engine.accept_stream(),
            _ if core.closed.is_some() => None,
            _ => core.engine.open_stream(),
        };
        match (stream, &core.closed) {
            (Some(stream), _) => Poll::Ready(Ok(stream)),
            (None, Some(reason)) => Poll::Ready(Err(SessionError::Closed(reason.clone()))),
            (None, None) => {
                core.wakers.wait(what, cx.waker());
                Poll::Pending
            }
        }
    }

    /// Queues an unreliable message. When too many wait, the oldest of the lowest class makes room.
    ///
    /// # Errors
    /// When it is larger than the paths or the peer take, or the session is over.
    pub fn send_datagram(&self, datagram: Datagram) -> Result<(), SessionError> {
        let Datagram { class, flow, data } = datagram;
        let mut core = self.handle.inner.core();
        if let Some(reason) = &core.closed {
            return Err(SessionError::Closed(reason.clone()));
        }
        core.engine.send_datagram(DatagramFrame { class, flow, data })?;
        drop(core);
        self.handle.inner.wake_driver();
        Ok(())
    }

    /// The next unreliable message from the peer.
    ///
    /// # Errors
    /// [`SessionError::Closed`].
    pub async fn recv_datagram(&self) -> Result<Datagram, SessionError> {
        self.recv_datagram_at().await.map(|(_, datagram)| datagram)
    }

    /// The next unreliable message from the peer, and when it came by the endpoint's clock: that is before the application had time for it.
    ///
    /// # Errors
    /// [`SessionError::Closed`].
    pub async fn recv_datagram_at(&self) -> Result<(Time, Datagram), SessionError> {
        poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            if let Some((at, DatagramFrame { class, flow, data })) = core.engine.recv_datagram() {
                return Poll::Ready(Ok((at, Datagram { class, flow, data })));
            }
            if let Some(reason) = &core.closed {
                return Poll::Ready(Err(SessionError::Closed(reason.clone())));
            }
            core.wakers.wait(Wait::Datagram, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// What is done from now on so that the datagrams of a class, 0 to 15, arrive. [`Config::datagrams`](crate::Config::datagrams) says what is done at first,
    /// [`Config::protection`](crate::Config::protection) how they are protected.
    ///
    /// ```no_run
    /// # fn set(session: &anabranch_net::Session) {
    /// use anabranch_net::DatagramMode;
    ///
    /// session.set_datagram_mode(8, DatagramMode::Protected);
    /// # }
    /// ```
    pub fn set_datagram_mode(&self, class: u8, mode: DatagramMode) {
        self.handle.inner.core().engine.set_datagram_mode(class, mode);
    }

    /// Every path as it stands, with the local address it leaves from.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        self.handle.inner.core().engine.paths()
    }

    /// The local address that a path's packets leave from, while there is a socket for it.
    #[must_use]
    pub fn local_address(&self, route: &Route) -> Option<std::net::SocketAddr> {
        self.handle.inner.endpoint.socket(route.socket).map(|socket| socket.udp.local_addr())
    }

    /// The name of the interface that a path's packets leave by, while there is a socket for it.
    #[must_use]
    pub fn interface(&self, route: &Route) -> Option<String> {
        let socket = self.handle.inner.endpoint.socket(route.socket)?;
        Some(socket.place().interface.to_string())
    }

    /// Says how a path should be used, to the peer too.
    ///
    /// # Errors
    /// When there is no such path.
    pub fn set_path_use(&self, path: PathId, usage: PathUse) -> Result<(), SessionError> {
        self.handle.inner.core().engine.set_path_use(path, usage)?;
        self.handle.inner.wake_driver();
        Ok(())
    }

    /// What is wanted of this session's paths.
    #[must_use]
    pub fn path_rules(&self) -> PathRules {
        self.handle.inner.core().engine.path_rules()
    }

    /// Says what is wanted of this session's paths from now on: those that are ruled out are closed, those that are allowed
    /// now are opened.
    ///
    /// # Errors
    /// [`SessionError::Path`] when no path would be left; then nothing changes.
    pub fn set_path_rules(&self, rules: PathRules) -> Result<(), SessionError> {
        let inner = &self.handle.inner;
        let now = inner.endpoint.clock.now();
        let set = inner.core().set_path_rules(inner, now, rules);
        inner.pump();
        Ok(set?)
    }

    /// What a rule says to be about exactly the way of this path.
    #[must_use]
    pub fn pattern_of(&self, route: &Route) -> Pattern {
        let place = self.handle.inner.endpoint.rule_place(route.socket);
        Pattern::Way { local: place.local, remote: route.remote, relays: place.relays }
    }

    /// Has a scheduler of the caller's choose the path of what this end sends.
    ///
    /// ```
    /// use anabranch_net::{Decision, Item, PathView, Scheduler, SessionView};
    ///
    /// /// The path that has carried least, a packet at a time.
    /// struct Fair;
    ///
    /// impl Scheduler for Fair {
    ///     fn pick(&mut self, session: &SessionView, paths: &[PathView], _: &Item) -> Decision {
    ///         let open = paths.iter().filter(|path| path.budget > 0);
    ///         match open.min_by_key(|path| path.bytes_sent) {
    ///             Some(path) => Decision::Send { path: path.id, run: path.mtu },
    ///             None => Decision::Wait(session.now),
    ///         }
    ///     }
    /// }
    ///
    /// # fn set(session: &anabranch_net::Session) {
    /// session.set_scheduler(Box::new(Fair));
    /// # }
    /// ```
    pub fn set_scheduler(&self, scheduler: Box<dyn Scheduler>) {
        self.handle.inner.core().engine.set_scheduler(scheduler);
        self.handle.inner.wake_driver();
    }

    /// Sets a path id aside for a path through relays, which need the two PIDs it comes with.
    ///
    /// # Errors
    /// [`SessionError::Path`]; with [`PathError::NotReady`] it can be had a round trip later.
    pub fn reserve_path(&self) -> Result<ReservedPath, SessionError> {
        let reserved = self.handle.inner.core().engine.reserve_path()?;
        self.handle.inner.pump();
        Ok(reserved)
    }

    /// Opens a reserved path through relays that are ready for it. It carries data once the peer has answered on it.
    ///
    /// # Errors
    /// [`SessionError::Path`] when it cannot be had any more; the reservation is over then.
    pub fn open_path_through(&self, reserved: ReservedPath, chain: Chain) -> Result<(), SessionError> {
        let endpoint = &self.handle.inner.endpoint;
        let back = chain.back;
        let route = endpoint.relayed.add(reserved.own, chain).route();
        let now = endpoint.clock.now();
        let mut core = self.handle.inner.core();
        core.engine.describe_socket(now, route.socket, endpoint.rule_place(route.socket));
        let opened = core.engine.open_reserved(now, reserved.id, (route, back));
        drop(core);
        self.handle.inner.pump();
        Ok(opened?)
    }

    /// The peer's PID for a path, for a relay that has to know it.
    #[must_use]
    pub fn remote_pid(&self, path: PathId) -> Option<Pid> {
        self.handle.inner.core().engine.remote_pid(path)
    }

    /// Gives back a reservation.
    pub fn release_path(&self, reserved: ReservedPath) {
        self.handle.inner.core().engine.release_path(reserved.id);
        self.handle.inner.pump();
    }

    /// Stops using a path; what is in flight on it goes over the others. A direct path that is still wanted is opened
    /// again later.
    pub fn close_path(&self, path: PathId) {
        let now = self.handle.inner.endpoint.clock.now();
        self.handle.inner.core().engine.close_path(now, path, AbandonReason::Requested);
        self.handle.inner.pump();
    }

    /// As [`Self::close_path`], where another path works; false, and it stays, when none does.
    #[must_use]
    pub fn close_spare_path(&self, path: PathId) -> bool {
        let now = self.handle.inner.endpoint.clock.now();
        let closed = self.handle.inner.core().close_spare_path(now, path);
        self.handle.inner.pump();
        closed
    }

    /// The keys of the relays that a path goes through, in order; none for a direct path.
    #[must_use]
    pub fn relays(&self, route: &Route) -> Vec<PublicKey> {
        let via = self.handle.inner.endpoint.relayed.find(route.socket);
        via.map(|via| via.chain.relays.clone()).unwrap_or_default()
    }

    /// Counters of the session.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.handle.inner.core().engine.stats()
    }

    /// What happens to the session and its paths from now on.
    #[must_use]
    pub fn events(&self) -> Events {
        Events { receiver: self.handle.inner.core().subscribe() }
    }

    /// Why the session ended; `None` while it lives.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.handle.inner.close_reason()
    }

    /// Waits until the session has ended, for whatever reason.
    pub async fn closed(&self) -> CloseReason {
        self.handle.inner.closed().await
    }

    /// Waits until nothing of the session is left at this end. One that has ended lingers for a moment, to say so again to a peer that has
    /// not heard it: until then, what carries its packets is to stay.
    pub async fn forgotten(&self) {
        poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            if core.is_forgotten {
                return Poll::Ready(());
            }
            core.wakers.wait(Wait::State, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Closes once everything written has been delivered and the peer has sent what it had left; waits for it.
    pub async fn close(&self) -> CloseReason {
        self.handle.inner.close();
        self.closed().await
    }

    /// Ends the session at once; what is not delivered is lost. The peer is told code and reason.
    pub fn abort(&self, code: u64, reason: &str) {
        self.handle.inner.abort(code, reason);
    }

    /// Waits until the handshake is over; false when it failed.
    pub(crate) async fn established(&self) -> bool {
        poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            if core.established || core.closed.is_some() {
                return Poll::Ready(core.closed.is_none());
            }
            core.wakers.wait(Wait::State, cx.waker());
            Poll::Pending
        })
        .await
    }
}

/// An unreliable message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// Type of service, 0 (dropped first) to 15 (MPMTP-AR [R11]).
    pub class: u8,
    /// Hash of the flow it belongs to, so that a flow can be kept on one path; 0 for none.
    pub flow: u32,
    /// The message.
    pub data: Bytes,
}

impl From<Bytes> for Datagram {
    fn from(data: Bytes) -> Self {
        Self { data, ..Self::default() }
    }
}

/// A stream of events. One that is not read falls behind and loses the oldest.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

impl Events {
    /// The next event; `None` when the session is over and forgotten.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
