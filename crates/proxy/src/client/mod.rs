//! The proxy on the user's machine: one port for SOCKS4a, SOCKS5 and HTTP, and forwarded ports.

mod associate;
mod dialer;
mod forward;
mod handshake;
mod remote;
mod upstream;
mod waiting;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anabranch_node::{Grants, Held};
use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::body::Body;
use crate::copy;
use crate::error::ProxyError;
use crate::message::{Head, Outcome};
use crate::meter::{ConnectionName, Connections};
use crate::redirect::{Keeper, RedirectError, Redirection, Taker};
use crate::status::{MOST_LISTED, ProxyStatus};
use crate::target::Target;

use handshake::{Asked, Protocol, handshake, refuse};
use remote::Remote;
use upstream::Upstream;
use waiting::Waiting;

pub use dialer::ExitDialer;
pub use forward::Forward;
pub use upstream::Notice;

/// Pause after a connection could not be accepted: the descriptors are used up, most likely.
const PAUSE: Duration = Duration::from_millis(50);

/// Settings of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Where SOCKS and HTTP are spoken.
    pub listen: SocketAddr,
    /// Ports that lead to one destination each.
    pub forwards: Vec<Forward>,
    /// Ports of the exit that lead to a destination on this side.
    pub remote_forwards: Vec<Forward>,
    /// Leads the TCP connections of this machine here.
    pub redirection: Option<Redirection>,
    /// The address that associations name as theirs, where programs reach this machine at another than it knows.
    pub advertise: Option<IpAddr>,
    /// Connections at the same time; others wait to be accepted.
    pub most_connections: usize,
}

/// Where connections come in.
enum Port {
    /// Programs say where they want to go.
    Asking(TcpListener),
    /// Each connection goes to one destination.
    Forward(TcpListener, Target),
    /// The firewall knows where each wanted to go.
    Redirected(Taker),
}

impl Port {
    /// The next connection; its protocol and destination unless the program is still to be asked.
    async fn accept(&self) -> io::Result<(TcpStream, Option<(Protocol, Target)>)> {
        match self {
            Self::Asking(listener) => listener.accept().await.map(|(connection, _)| (connection, None)),
            Self::Forward(listener, to) => {
                let (connection, _) = listener.accept().await?;
                Ok((connection, Some((Protocol::Forward, to.clone()))))
            }
            Self::Redirected(taker) => {
                let (connection, to) = taker.accept().await;
                Ok((connection, Some((Protocol::Redirect, to.into()))))
            }
        }
    }
}

/// A proxy that listens.
pub struct Proxy {
    at: SocketAddr,
    ports: Vec<Port>,
    /// Leads connections to [`Port::Redirected`].
    keeper: Option<Keeper>,
    /// The keeper's rules are in force.
    is_redirecting: AtomicBool,
    remote: Remote,
    advertise: Option<IpAddr>,
    upstream: Upstream,
    connections: Connections,
    room: Arc<Semaphore>,
}

impl Proxy {
    /// Binds all ports, and makes sure that connections can be redirected if that is wanted.
    pub async fn bind(options: &ProxyOptions) -> Result<Arc<Self>, ProxyError> {
        let main = listen(options.listen).await?;
        let at = main.local_addr()?;
        let mut ports = vec![Port::Asking(main)];
        for forward in &options.forwards {
            ports.push(Port::Forward(listen(forward.at).await?, forward.to.clone()));
        }
        let mut keeper = None;
        if let Some(redirection) = &options.redirection {
            let taker = Taker::bind(redirection.method).map_err(RedirectError::from)?;
            keeper = Some(Keeper::prepare(redirection, taker.port()).await?);
            ports.push(Port::Redirected(taker));
        }
        let connections = Connections::default();
        Ok(Arc::new(Self {
            at,
            remote: Remote {
                forwards: options.remote_forwards.clone(),
                connections: connections.clone(),
                is_marked: keeper.is_some(),
            },
            keeper,
            is_redirecting: AtomicBool::new(false),
            advertise: options.advertise,
            upstream: Upstream::new(),
            connections,
            // Each port holds room for one while it waits.
            room: Arc::new(Semaphore::new(options.most_connections + ports.len() - 1)),
            ports,
        }))
    }

    /// Where SOCKS and HTTP are spoken.
    pub fn local_addr(&self) -> SocketAddr {
        self.at
    }

    /// The current status.
    pub fn status(&self) -> ProxyStatus {
        let session = self.upstream.session();
        let (connections, totals) = self.connections.status(MOST_LISTED);
        ProxyStatus {
            listen: self.at.to_string(),
            exit: session.as_ref().map(|session| session.session().peer().to_string()).unwrap_or_default(),
            paths: session.as_ref().map(|session| session.list()).unwrap_or_default(),
            why: session.err().flatten(),
            redirecting: self.keeper.as_ref().map(|_| self.is_redirecting.load(Ordering::Relaxed)),
            open: self.connections.count(),
            connections,
            totals,
        }
    }

    /// Serves until the session is not dialed any more, the first attempt to dial failed, or this future is dropped. Returns why.
    /// Connections to the relays of `grants` are not redirected.
    pub async fn run(
        self: &Arc<Self>,
        mut held: Held,
        grants: Grants,
        notice: impl Fn(Notice) + Send + Sync,
    ) -> ProxyError {
        // Dropped with this future, and all connections with it.
        let mut serving = JoinSet::new();
        for index in 0..self.ports.len() {
            serving.spawn(self.clone().accept(index));
        }
        tokio::select! {
            error = self.upstream.follow(&mut held, &self.remote, &notice) => error,
            error = self.redirect(grants, &notice) => error.into(),
        }
    }

    /// Has the firewall lead connections here as soon as the exit is reached. Returns why it no longer does.
    async fn redirect(&self, grants: Grants, notice: &(impl Fn(Notice) + Send + Sync)) -> RedirectError {
        let Some(keeper) = &self.keeper else { return std::future::pending().await };
        let exit = self.upstream.opened().await;
        match keeper.set(&exit, grants).await {
            Ok(rules) => {
                self.is_redirecting.store(true, Ordering::Relaxed);
                notice(Notice::Redirecting);
                rules.follow().await
            }
            Err(error) => error,
        }
    }

    /// Accepts connections at a port.
    async fn accept(self: Arc<Self>, port: usize) {
        let mut connections = JoinSet::new();
        let mut waiting = Waiting::default();
        loop {
            // Those that are over are forgotten.
            while connections.try_join_next().is_some() {}
            let Ok(room) = self.room.clone().acquire_owned().await else { return };
            let (mut connection, to) = match self.ports[port].accept().await {
                Ok(accepted) => {
                    if waiting.on_accepted(Instant::now()) {
                        tracing::warn!("programs no longer wait for a connection to the proxy");
                    }
                    accepted
                }
                Err(error) => {
                    if waiting.on_failure(Instant::now()) {
                        tracing::warn!("programs wait for a connection to the proxy: {error}");
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let proxy = self.clone();
            connections.spawn(async move {
                let asked = match to {
                    Some((protocol, to)) => {
                        Ok(Asked::Connect { protocol, to, first: Bytes::new(), body: Body::EVERYTHING })
                    }
                    None => handshake(&mut connection).await,
                };
                match asked {
                    Ok(asked) => proxy.serve(connection, asked).await,
                    Err(error) => tracing::debug!(%error, "a client was not understood"),
                }
                drop(room);
            });
        }
    }

    async fn serve(&self, mut connection: TcpStream, asked: Asked) {
        match asked {
            Asked::Answered => {}
            Asked::Associate => {
                let name = ConnectionName { from: Protocol::Socks5.name().to_owned(), to: "udp".to_owned() };
                let entered = self.connections.enter(name, None);
                match self.upstream.open(&Head::Datagrams).await {
                    Ok(opened) => {
                        let means = associate::Means {
                            upstream: self.upstream.clone(),
                            meter: entered.meter.clone(),
                            advertised: self.advertise,
                        };
                        let ended = associate::carry(connection, opened, means).await;
                        tracing::debug!(?ended, "an association ended");
                    }
                    Err(outcome) => {
                        let _ = refuse(&mut connection, &Protocol::Socks5.answer(outcome)).await;
                    }
                }
            }
            Asked::Connect { protocol, to, first, body } => {
                let name = ConnectionName { from: protocol.name().to_owned(), to: to.to_string() };
                let entered = self.connections.enter(name, None);
                match self.upstream.open(&Head::Connect(to)).await {
                    Ok((_, mut stream)) => {
                        entered.meter.up(first.len()).await;
                        let answer = protocol.answer(Some(Outcome::Open));
                        if connection.write_all(&answer).await.is_ok()
                            && stream.write_chunk(first).await.is_ok()
                        {
                            copy::carry_request(connection, stream, &entered.meter, body).await;
                        }
                    }
                    Err(outcome) => {
                        tracing::debug!(to = entered.meter.name.to, ?outcome, "not connected");
                        if !protocol.has_answers() {
                            return copy::reset(connection);
                        }
                        // The client may be gone; there is nothing left to do for it.
                        let _ = refuse(&mut connection, &protocol.answer(outcome)).await;
                    }
                }
            }
        }
    }
}

async fn listen(at: SocketAddr) -> Result<TcpListener, ProxyError> {
    TcpListener::bind(at).await.map_err(|error| ProxyError::Listen { at, error })
}
