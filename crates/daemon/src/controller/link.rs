//! The other side: a node's requests to its controllers, and a relay's registration with all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Config, ConnectError, Endpoint, PublicKey, Session, Span, Stream, Target};
use anabranch_overlay::controller::message::{CONTROL_VERSION, GrantedRelay, Reply, Request};
use anabranch_overlay::controller::{Ask, Load, Offer};
use anabranch_overlay::grant::{GrantId, UnixTime};
use anabranch_overlay::relay::Heartbeat;
use data_encoding::BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a controller may take to open a session, and to answer a request.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How often a relay says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long a relay waits before it calls a controller again, and how long after it was told no.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AFTER_NO: Duration = Duration::from_secs(10);

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerHint {
    /// Its node key.
    pub node: PublicKey,
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
}

/// Why a controller gave no answer, or not the one wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It cannot be reached.
    #[error("the controller cannot be reached: {0}")]
    Connect(#[from] ConnectError),
    /// It said no.
    #[error("the controller refused: {why}")]
    Denied {
        /// Its words.
        why: String,
        /// Whether another may answer otherwise.
        retry: bool,
    },
    /// It does not answer.
    #[error("the controller does not answer")]
    Silent,
    /// It answered what makes no sense.
    #[error("the controller's answer makes no sense")]
    Malformed,
    /// None is configured.
    #[error("no controller is named in the configuration")]
    NoController,
}

impl LinkError {
    /// Whether another controller may do better.
    fn is_worth_another(&self) -> bool {
        !matches!(self, Self::Denied { retry: false, .. })
    }
}

/// A grant as a client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// To be shown to relays.
    pub bytes: Vec<u8>,
    /// The relays where it is good.
    pub relays: Vec<GrantedRelay>,
}

/// A session with a controller.
struct Link {
    session: Session,
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    read: Vec<u8>,
}

impl Link {
    async fn open(endpoint: &Endpoint, hint: &ControllerHint) -> Result<Self, LinkError> {
        let target = Target::new(hint.node, hint.addresses.clone());
        let config = Config { keep_alive: Some(Span::from_secs(5)), ..Config::default() };
        let opening = async {
            let session = endpoint.connect(&target, config).await?;
            let stream = session.open_stream().await.map_err(|_| LinkError::Silent)?;
            let (reader, writer) = tokio::io::split(stream);
            let mut link = Self { session, reader, writer, read: Vec::new() };
            match link.exchange(&Request::Hello { version: CONTROL_VERSION }).await? {
                Reply::Hello { .. } => Ok(link),
                _ => Err(LinkError::Malformed),
            }
        };
        timeout(PATIENCE, opening).await.unwrap_or(Err(LinkError::Silent))
    }

    /// Puts a request and waits for its answer.
    async fn request(&mut self, request: &Request) -> Result<Reply, LinkError> {
        timeout(PATIENCE, self.exchange(request)).await.unwrap_or(Err(LinkError::Silent))
    }

    async fn exchange(&mut self, request: &Request) -> Result<Reply, LinkError> {
        let mut write = Vec::new();
        request.encode(&mut write);
        self.writer.write_all(&write).await.map_err(|_| LinkError::Silent)?;
        loop {
            if let Some((reply, len)) = Reply::decode(&self.read).map_err(|_| LinkError::Malformed)? {
                self.read.drain(..len);
                return match reply {
                    Reply::Denied { why, retry } => Err(LinkError::Denied { why, retry }),
                    reply => Ok(reply),
                };
            }
            if !matches!(self.reader.read_buf(&mut self.read).await, Ok(1..)) {
                return Err(LinkError::Silent);
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // An answer that comes late belongs to nobody.
        self.session.abort(0, "no longer needed");
    }
}

/// The controllers of a client, of which any will do.
pub struct Controllers {
    endpoint: Arc<Endpoint>,
    hints: Vec<ControllerHint>,
    /// Which was used last, and the session with it.
    current: Mutex<(usize, Option<Link>)>,
}

impl Controllers {
    /// Calls nobody yet.
    #[must_use]
    pub fn new(endpoint: Arc<Endpoint>, hints: Vec<ControllerHint>) -> Self {
        Self { endpoint, hints, current: Mutex::new((0, None)) }
    }

    /// Gets a grant from the first controller that gives one, beginning with the one that answered last. Asking again with the
    /// same request gives the same grant.
    ///
    /// # Errors
    /// What the last one said.
    pub async fn allocate(&self, ask: &Ask) -> Result<Granted, LinkError> {
        match self.request(&Request::allocate(ask)).await? {
            Reply::Granted { grant, relays } => {
                let bytes = BASE64.decode(grant.as_bytes()).map_err(|_| LinkError::Malformed)?;
                Ok(Granted { bytes, relays })
            }
            _ => Err(LinkError::Malformed),
        }
    }

    /// Gives a grant back.
    ///
    /// # Errors
    /// What the last controller said.
    pub async fn give_back(&self, grant: GrantId) -> Result<(), LinkError> {
        match self.request(&Request::GiveBack { grant }).await? {
            Reply::GivenBack => Ok(()),
            _ => Err(LinkError::Malformed),
        }
    }

    async fn request(&self, request: &Request) -> Result<Reply, LinkError> {
        let mut current = self.current.lock().await;
        let mut last = LinkError::NoController;
        for _ in 0..self.hints.len() {
            let (at, link) = &mut *current;
            let Some(hint) = self.hints.get(*at) else { break };
            let answer = match link {
                Some(link) => link.request(request).await,
                None => match Link::open(&self.endpoint, hint).await {
                    Ok(opened) => link.insert(opened).request(request).await,
                    Err(error) => Err(error),
                },
            };
            match answer {
                Err(error) if error.is_worth_another() => {
                    *current = ((*at + 1) % self.hints.len(), None);
                    last = error;
                }
                answer => return answer,
            }
        }
        Err(last)
    }
}

/// What a relay gives to its registration, and takes from it.
pub trait Registrant: Send + Sync + 'static {
    /// What it does now.
    fn load(&self) -> Load;
    /// A controller said what time it is and what does not count any more.
    fn heartbeat(&self, heartbeat: &Heartbeat);
}

/// Registers a relay with every controller and keeps it registered. Dropping it ends that.
pub struct Registration(Vec<JoinHandle<()>>);

impl Registration {
    /// Begins. `instance` is drawn anew whenever the program starts.
    pub fn start(
        endpoint: &Arc<Endpoint>,
        hints: &[ControllerHint],
        (instance, offer): (u64, &Offer),
        relay: &Arc<impl Registrant>,
    ) -> Self {
        let task = |hint: &ControllerHint| {
            let (endpoint, hint, relay) = (endpoint.clone(), hint.clone(), relay.clone());
            let register = Request::Register { instance, offer: offer.clone() };
            tokio::spawn(async move {
                loop {
                    let Err(why) = stay(&endpoint, &hint, &register, &*relay).await;
                    let told = matches!(why, LinkError::Denied { retry: false, .. });
                    if told {
                        tracing::error!(controller = %hint.node, "{why}");
                    } else {
                        tracing::debug!(controller = %hint.node, "{why}");
                    }
                    tokio::time::sleep(if told { AGAIN_AFTER_NO } else { AGAIN }).await;
                }
            })
        };
        Self(hints.iter().map(task).collect())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Registers and sends heartbeats until something goes wrong.
async fn stay(
    endpoint: &Endpoint,
    hint: &ControllerHint,
    register: &Request,
    relay: &impl Registrant,
) -> Result<std::convert::Infallible, LinkError> {
    let mut link = Link::open(endpoint, hint).await?;
    link.request(register).await?;
    let mut confirmed = Vec::new();
    loop {
        let request = Request::Heartbeat { load: relay.load(), confirmed };
        let Reply::Heartbeat { time, revoked } = link.request(&request).await? else {
            return Err(LinkError::Malformed);
        };
        let heartbeat = Heartbeat { time: UnixTime(time), revoked };
        relay.heartbeat(&heartbeat);
        confirmed = heartbeat.revoked;
        tokio::time::sleep(HEARTBEAT).await;
    }
}
