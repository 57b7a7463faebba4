//! The session with the exit, dialed again whenever it is lost.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anabranch_net::{PathInfo, PathState, PublicKey, Stream};
use anabranch_node::{Held, Holding, NodeSession};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::remote::Remote;
use crate::control::Control;
use crate::datagrams::Associations;
use crate::error::ProxyError;
use crate::head::read_outcome;
use crate::message::{Answer, Head, Outcome, Request, VERSION};

/// How long the exit may take to greet.
const HELLO: Duration = Duration::from_secs(10);
/// How long a connection waits for a session.
const SESSION: Duration = Duration::from_secs(10);
/// How often the paths are looked at while a connection waits for the exit, and how often none may work.
const LOOK: Duration = Duration::from_millis(500);
const SILENT_LOOKS: u32 = 10;
/// After this long without a packet from the exit, new connections are refused at once until one comes. Open ones stay
/// until the session ends, since the network may come back.
const AWAY: Duration = Duration::from_secs(30);
/// How long the exit may take to resolve a name and to connect.
const OPEN: Duration = Duration::from_secs(25);

/// An event, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The exit may be used.
    Up(PublicKey),
    /// The session ended or could not be opened; it is dialed again.
    Lost(String),
    /// The TCP connections of this machine go through the exit from now on.
    Redirecting,
    /// The exit does or does not accept connections at a port.
    Listener {
        /// The port and what it forwards to.
        name: String,
        /// Why it does not.
        refused: Option<String>,
    },
}

/// Where the session stands.
#[derive(Clone, Debug)]
enum State {
    /// It is being dialed; why the last attempt or session failed, and whether the exit was away before.
    Dialing(Option<String>, bool),
    Open(Arc<Link>),
    /// There will be none.
    Ended,
}

/// An open session with the exit.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) node: NodeSession,
    pub(crate) associations: Arc<Associations>,
    /// The exit has been silent for long.
    is_away: AtomicBool,
}

impl Link {
    fn is_open(&self) -> bool {
        self.node.session().close_reason().is_none()
    }

    /// Waits until no path has worked for a while.
    async fn silent(&self) {
        let mut looks = 0;
        while looks < SILENT_LOOKS {
            sleep(LOOK).await;
            let works = |path: &PathInfo| path.state == PathState::Active;
            looks = if self.node.session().paths().iter().any(works) { 0 } else { looks + 1 };
        }
    }

    /// Notes whether the exit is away, for as long as this runs.
    async fn watch(&self, notice: &impl Fn(Notice)) {
        let (mut known, mut since) = (0, Instant::now());
        loop {
            sleep(LOOK).await;
            let received = self.node.session().paths().iter().map(|path| path.stats.packets_received).sum();
            if received != known {
                (known, since) = (received, Instant::now());
            }
            let is_away = since.elapsed() >= AWAY;
            if self.is_away.swap(is_away, Ordering::Relaxed) != is_away {
                notice(if is_away {
                    Notice::Lost("the exit does not answer".to_owned())
                } else {
                    Notice::Up(self.node.session().peer())
                });
            }
        }
    }
}

/// The session with the exit.
#[derive(Clone, Debug)]
pub(crate) struct Upstream(watch::Sender<State>);

impl Upstream {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(State::Dialing(None, false)))
    }

    /// The session, or why the last one failed.
    pub(crate) fn session(&self) -> Result<NodeSession, Option<String>> {
        match &*self.0.borrow() {
            State::Open(link) => Ok(link.node.clone()),
            State::Dialing(why, _) => Err(why.clone()),
            State::Ended => Err(None),
        }
    }

    /// Waits until a session is open; returns the exit's addresses on paths without relays.
    pub(crate) async fn opened(&self) -> Vec<IpAddr> {
        let mut states = self.0.subscribe();
        let Some(link) = open_link(&mut states).await else { return std::future::pending().await };
        let session = link.node.session();
        let direct = session.paths().into_iter().filter(|path| session.relays(&path.route).is_empty());
        direct.map(|path| path.route.remote.ip().to_canonical()).collect()
    }

    /// Follows a session until it is not dialed any more, or the first attempt failed; returns why.
    pub(crate) async fn follow(
        &self,
        held: &mut Held,
        remote: &Remote,
        notice: &impl Fn(Notice),
    ) -> ProxyError {
        let (mut now, mut was_up, mut is_away) = (held.state(), false, false);
        loop {
            now = match now {
                Holding::Dialing(Some(why)) if !was_up => return self.end(ProxyError::Node(why)),
                Holding::Dialing(why) => {
                    if let Some(why) = &why {
                        notice(Notice::Lost(why.to_string()));
                    }
                    self.0.send_replace(State::Dialing(why.map(|why| why.to_string()), is_away));
                    held.changed().await
                }
                Holding::Open(session) => match timeout(HELLO, greet(&session)).await {
                    Ok(Ok(control)) => {
                        was_up = true;
                        notice(Notice::Up(session.session().peer()));
                        let associations = Associations::new(session.session());
                        let link =
                            Arc::new(Link { node: session, associations, is_away: AtomicBool::new(false) });
                        self.0.send_replace(State::Open(link.clone()));
                        let serving = async {
                            tokio::join!(link.associations.run(), remote.serve(&link, control, notice));
                            std::future::pending::<()>().await;
                        };
                        let next = tokio::select! {
                            next = held.changed() => next,
                            () = link.watch(notice) => unreachable!("it has no end"),
                            () = serving => unreachable!("it waits for the session's end"),
                        };
                        is_away = link.is_away.load(Ordering::Relaxed);
                        next
                    }
                    Ok(Err(ProxyError::Io(_))) if session.session().close_reason().is_some() => {
                        held.changed().await
                    }
                    // The paths to an exit that served before are silent. If they stay so, the session ends, and another
                    // one follows.
                    failed if was_up && matches!(failed, Err(_) | Ok(Err(ProxyError::Io(_)))) => {
                        notice(Notice::Lost("the exit does not answer".to_owned()));
                        sleep(HELLO / 10).await;
                        Holding::Open(session)
                    }
                    Ok(Err(error)) => return self.end(error),
                    Err(_) => return self.end(ProxyError::NotAnExit("it does not answer".to_owned())),
                },
                Holding::Ended(error) => return self.end(ProxyError::Node(error)),
            };
        }
    }

    fn end(&self, error: ProxyError) -> ProxyError {
        self.0.send_replace(State::Ended);
        error
    }

    /// Opens a stream and waits for the exit's answer to its head.
    ///
    /// # Errors
    /// The exit's outcome; `None` when the exit is not reached.
    pub(crate) async fn open(&self, head: &Head) -> Result<(Arc<Link>, Stream), Option<Outcome>> {
        let mut states = self.0.subscribe();
        loop {
            let link = timeout(SESSION, open_link(&mut states)).await.ok().flatten().ok_or(None)?;
            let attempted = tokio::select! {
                attempted = timeout(OPEN, attempt(&link.node, head)) => attempted.map_err(|_| None)?,
                () = link.silent() => return Err(None),
            };
            match attempted {
                Ok((stream, Outcome::Open)) => return Ok((link, stream)),
                Ok((_, outcome)) => return Err(Some(outcome)),
                // The session ended meanwhile: another one may follow.
                Err(_) if !link.is_open() => {}
                Err(_) => return Err(None),
            }
        }
    }
}

/// Waits for an open session; `None` when there will be none, or not soon.
async fn open_link(states: &mut watch::Receiver<State>) -> Option<Arc<Link>> {
    loop {
        match &*states.borrow_and_update() {
            State::Open(link) if link.is_away.load(Ordering::Relaxed) => return None,
            State::Open(link) if link.is_open() => return Some(link.clone()),
            State::Ended | State::Dialing(_, true) => return None,
            _ => {}
        }
        states.changed().await.ok()?;
    }
}

async fn attempt(session: &NodeSession, head: &Head) -> io::Result<(Stream, Outcome)> {
    let mut stream = session.session().open_stream().await.map_err(io::Error::other)?;
    stream.write_all(&head.to_bytes()).await?;
    let outcome = read_outcome(&mut stream).await?;
    Ok((stream, outcome))
}

/// Makes sure that the other end is an exit that speaks this version.
async fn greet(session: &NodeSession) -> Result<Control, ProxyError> {
    let mut stream = session.session().open_stream().await.map_err(io::Error::other)?;
    stream.write_all(&Head::Control.to_bytes()).await?;
    let mut control = Control::new(stream);
    control.send(&Request::Hello { version: VERSION }).await?;
    match control.receive::<Answer>().await? {
        Some(Answer::Welcome { version: VERSION, .. }) => Ok(control),
        Some(Answer::Welcome { version, .. }) => {
            Err(ProxyError::NotAnExit(format!("it speaks version {version}, this end version {VERSION}")))
        }
        Some(Answer::Refused { reason }) => Err(ProxyError::Refused(printable(&reason))),
        _ => Err(ProxyError::NotAnExit("it answered with something else".to_owned())),
    }
}

/// Text of the peer without control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}
