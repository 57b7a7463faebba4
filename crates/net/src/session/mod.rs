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
    AbandonReason, CloseReason, DatagramError, DatagramMode, DatagramSource, Event, PathError, PathInfo,
    PathRules, Pattern, ReservedPath, Route, Scheduler, SessionStats,
};
use anabranch_secure::{PublicKey, ShareId};
use anabranch_wire::{DatagramFrame, PathId, PathUse, Pid, Side, StreamId, Time};
use bytes::Bytes;
use tokio::sync::broadcast;

use crate::relayed::{Chain, is_chain};
use crate::stream::Stream;
use inner::Handle;
use wakers::Wait;

/// Why an operation on a session fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The session is over.
    #[error("the session is over: {0}")]
    Closed(CloseReason),
    /// The message is too large, or cannot be sent.
    #[error(transparent)]
    Datagram(#[from] DatagramError),
    /// The path does not exist, or cannot be opened.
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

/// A session with another node: streams and datagrams over every path between the two.
///
/// Clones are handles to the same session. When the last handle and the last stream are dropped, the session closes
/// after all written data has been delivered.
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

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle: Arc::new(handle) }
    }

    /// The node at the other end, proven by its key.
    pub fn peer(&self) -> PublicKey {
        self.handle.inner.peer
    }

    /// The share whose ticket opened the session, if any.
    pub fn share(&self) -> Option<ShareId> {
        self.handle.inner.share
    }

    /// Whether this end connected (client) or accepted (server).
    pub fn side(&self) -> Side {
        self.handle.inner.core().engine.side()
    }

    /// Opens a stream, as soon as the peer allows one more. The peer learns of it with its first bytes.
    pub async fn open_stream(&self) -> Result<Stream, SessionError> {
        let id = poll_fn(|cx| self.poll_stream(cx, Wait::Open)).await?;
        Ok(Stream::new(self.handle.clone(), id))
    }

    /// The next stream that the peer opens.
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
    /// If the message is larger than the paths or the peer take, or the session is over.
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

    /// Takes datagrams from `source` whenever a path has room. Call [`Session::datagrams_wait`] after adding to an
    /// empty source.
    pub fn set_datagram_source(&self, source: Box<dyn DatagramSource<Bytes>>) {
        self.handle.inner.core().engine.set_datagram_source(source);
    }

    /// Wakes the session because its [`DatagramSource`] has datagrams.
    pub fn datagrams_wait(&self) {
        self.handle.inner.wake_driver();
    }

    /// Waits for unreliable messages from the peer and adds up to `most` of them to `arrived`.
    pub async fn recv_datagrams(&self, arrived: &mut Vec<Datagram>, most: usize) -> Result<(), SessionError> {
        poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            let before = arrived.len();
            while arrived.len() - before < most
                && let Some((_, DatagramFrame { class, flow, data })) = core.engine.recv_datagram()
            {
                arrived.push(Datagram { class, flow, data });
            }
            if arrived.len() > before {
                return Poll::Ready(Ok(()));
            }
            if let Some(reason) = &core.closed {
                return Poll::Ready(Err(SessionError::Closed(reason.clone())));
            }
            core.wakers.wait(Wait::Datagram, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// The next unreliable message from the peer.
    pub async fn recv_datagram(&self) -> Result<Datagram, SessionError> {
        self.recv_datagram_at().await.map(|(_, datagram)| datagram)
    }

    /// The next unreliable message from the peer, and when it arrived by the endpoint's clock.
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

    /// Sets how datagrams of a class, 0 to 15, are protected against loss from now on. [`Config::datagrams`](crate::Config::datagrams)
    /// gives the initial modes, [`DatagramConfig::protection`](anabranch_engine::DatagramConfig::protection) the parameters.
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

    /// All paths with their current state.
    pub fn paths(&self) -> Vec<PathInfo> {
        self.handle.inner.core().engine.paths()
    }

    /// The IP address of the other end, or of the relay to it, if there is a path.
    pub fn remote_ip(&self) -> Option<std::net::IpAddr> {
        self.paths().first().map(|path| path.route.remote.ip())
    }

    /// The local address of a path, while its socket exists.
    pub fn local_address(&self, route: &Route) -> Option<std::net::SocketAddr> {
        self.handle.inner.endpoint.sockets.get(route.socket).map(|socket| socket.udp.local_addr())
    }

    /// The name of a path's interface, while its socket exists.
    pub fn interface(&self, route: &Route) -> Option<String> {
        let socket = self.handle.inner.endpoint.sockets.get(route.socket)?;
        Some(socket.place().interface.to_string())
    }

    /// Sets the use of a path at both ends.
    pub fn set_path_use(&self, path: PathId, usage: PathUse) -> Result<(), SessionError> {
        self.handle.inner.core().engine.set_path_use(path, usage)?;
        self.handle.inner.wake_driver();
        Ok(())
    }

    /// This session's path rules.
    pub fn path_rules(&self) -> PathRules {
        self.handle.inner.core().engine.path_rules()
    }

    /// Replaces this session's path rules. Paths that they exclude are closed, and newly allowed ones opened.
    ///
    /// # Errors
    /// [`SessionError::Path`] if no path would be left; then nothing changes.
    pub fn set_path_rules(&self, rules: PathRules) -> Result<(), SessionError> {
        let inner = &self.handle.inner;
        let now = inner.endpoint.clock.now();
        let set = inner.core().set_path_rules(inner, now, rules);
        inner.pump();
        Ok(set?)
    }

    /// The pattern of a rule that fits exactly this path's route.
    pub fn pattern_of(&self, route: &Route) -> Pattern {
        let place = self.handle.inner.endpoint.rule_place(route.socket);
        Pattern::Way { local: place.local, remote: route.remote, relays: place.relays }
    }

    /// Lets `scheduler` choose the path of each packet that this end sends.
    ///
    /// ```
    /// use anabranch_net::{Decision, Item, PathView, Scheduler, SessionView};
    ///
    /// /// Chooses the path that has carried least, for one packet at a time.
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

    /// Reserves a path id for a path through relays. The relays need its two PIDs.
    ///
    /// # Errors
    /// [`SessionError::Path`]. After [`PathError::NotReady`], try again a round trip later.
    pub fn reserve_path(&self) -> Result<ReservedPath, SessionError> {
        let reserved = self.handle.inner.core().engine.reserve_path()?;
        self.handle.inner.pump();
        Ok(reserved)
    }

    /// Opens a reserved path through prepared relays. It carries data after the peer has answered on it.
    ///
    /// # Errors
    /// [`SessionError::Path`] if it cannot be opened; the reservation is then used up.
    pub fn open_path_through(&self, reserved: ReservedPath, chain: Chain) -> Result<(), SessionError> {
        let endpoint = &self.handle.inner.endpoint;
        let back = chain.back;
        let route = endpoint.sockets.relayed.add(reserved.own, chain).route();
        let now = endpoint.clock.now();
        let mut core = self.handle.inner.core();
        core.engine.describe_socket(now, route.socket, endpoint.rule_place(route.socket));
        let opened = core.engine.open_reserved(now, reserved.id, (route, back));
        drop(core);
        self.handle.inner.pump();
        Ok(opened?)
    }

    /// The peer's PID for a path, which a relay may need.
    pub fn remote_pid(&self, path: PathId) -> Option<Pid> {
        self.handle.inner.core().engine.remote_pid(path)
    }

    /// Releases a reservation.
    pub fn release_path(&self, reserved: ReservedPath) {
        self.handle.inner.core().engine.release_path(reserved.id);
        self.handle.inner.pump();
    }

    /// Closes a path; its data in flight is sent over the others. A direct path that the path agent wants is opened again later.
    pub fn close_path(&self, path: PathId) {
        let now = self.handle.inner.endpoint.clock.now();
        self.handle.inner.core().engine.close_path(now, path, AbandonReason::Requested);
        self.handle.inner.pump();
    }

    /// Closes a path if another one works; false if it stays.
    pub fn close_spare_path(&self, path: PathId) -> bool {
        let now = self.handle.inner.endpoint.clock.now();
        let closed = self.handle.inner.core().close_spare_path(now, path);
        self.handle.inner.pump();
        closed
    }

    /// The keys of a path's relays in order; empty for a direct path. Of a path that the peer opened, only the relay that
    /// this end told it of.
    pub fn relays(&self, route: &Route) -> Vec<PublicKey> {
        let relayed = &self.handle.inner.endpoint.sockets.relayed;
        let entrance = || relayed.entrance(route.remote).filter(|_| self.side() == Side::Server);
        relayed
            .find(route.socket)
            .map_or_else(|| entrance().into_iter().collect(), |via| via.chain.relays.clone())
    }

    /// Counters of the session.
    pub fn stats(&self) -> SessionStats {
        self.handle.inner.core().engine.stats()
    }

    /// A receiver of the session's events from now on.
    pub fn events(&self) -> Events {
        Events { receiver: self.handle.inner.core().subscribe() }
    }

    /// The addresses at which the peer sees this end, by its own report.
    pub fn observed_addresses(&self) -> Vec<std::net::SocketAddr> {
        self.handle.inner.core().engine.observed_addresses().collect()
    }

    /// Reports to the peer the address from which its packets seem to come on the first path.
    pub fn report_address(&self) {
        self.handle.inner.core().engine.report_address();
        self.handle.inner.wake_driver();
    }

    /// Announces the addresses at which the peer sees this end in the endpoint's other sessions, as further addresses of
    /// the same sockets. For sessions with relays, which introduce nodes behind NATs to each other.
    pub fn announce_observed(&self) {
        let endpoint = &self.handle.inner.endpoint;
        let observed: Vec<_> = self.handle.inner.core().engine.observed_routes().collect();
        let direct = observed.into_iter().filter(|(route, _)| !is_chain(route.socket));
        let news = direct.filter(|(route, seen)| endpoint.sockets.learn(*route, *seen)).count();
        if news > 0 {
            endpoint.each_session(|session| session.addresses_changed());
        }
    }

    /// Why the session ended; `None` while it lives.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.handle.inner.close_reason()
    }

    /// Like [`Self::closed`], but holds no handle: the session still closes when all handles are dropped.
    pub fn ended(&self) -> impl Future<Output = CloseReason> + Send + use<> {
        let inner = self.handle.inner.clone();
        async move { inner.closed().await }
    }

    /// Waits until the session has ended, for any reason.
    pub async fn closed(&self) -> CloseReason {
        self.handle.inner.closed().await
    }

    /// Waits until nothing of the session is left at this end. A session that has ended lingers briefly, to repeat the
    /// end for a peer that missed it. Until then, relays that carry its packets must stay.
    pub async fn forgotten(&self) {
        let inner = &self.handle.inner;
        inner.changes.until(|| inner.core().is_forgotten.then_some(())).await;
    }

    /// Closes after all written data has been delivered and the peer has sent its remaining data; waits for it.
    pub async fn close(&self) -> CloseReason {
        self.handle.inner.close();
        self.closed().await
    }

    /// Ends the session at once; undelivered data is lost. Code and reason are sent to the peer.
    pub fn abort(&self, code: u64, reason: &str) {
        self.handle.inner.abort(code, reason);
    }

    /// Waits until the handshake is over; false if it failed.
    pub(crate) async fn established(&self) -> bool {
        let inner = &self.handle.inner;
        let is_over = || {
            let core = inner.core();
            (core.established || core.closed.is_some()).then_some(core.closed.is_none())
        };
        inner.changes.until(is_over).await
    }
}

/// An unreliable message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// Type of service, 0 (dropped first) to 15 (MPMTP-AR [R11]).
    pub class: u8,
    /// Hash of the flow it belongs to, so that a flow can stay on one path; 0 without a flow.
    pub flow: u32,
    /// The message.
    pub data: Bytes,
}

impl From<Bytes> for Datagram {
    fn from(data: Bytes) -> Self {
        Self { data, ..Self::default() }
    }
}

/// A stream of events. A slow reader loses the oldest ones.
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
