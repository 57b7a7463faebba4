//! The other side: a node's requests to its controllers.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Config, ConnectError, Endpoint, PublicKey, Session, Span, Stream, Target};
use anabranch_overlay::controller::Ask;
use anabranch_overlay::controller::message::{Again, CONTROL_VERSION, GrantedRelay, Reply, Request};
use anabranch_overlay::grant::GrantId;
use data_encoding::BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::client::{node_at, write_node_at};

/// How long a controller may take to open a session, and to answer a request.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerHint {
    /// Its node key.
    pub node: PublicKey,
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
}

impl FromStr for ControllerHint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, addresses) = node_at(text).ok_or_else(|| {
            format!("`{text}` is no controller; write KEY@ADDRESS:PORT as `anabranch controller` prints it, several addresses joined by commas")
        })?;
        Ok(Self { node, addresses })
    }
}

impl fmt::Display for ControllerHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_node_at(f, (&self.node, &self.addresses))
    }
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
        /// Whether it may be answered otherwise.
        again: Again,
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
    pub(crate) fn is_worth_another(&self) -> bool {
        !matches!(self, Self::Denied { again: Again::Never, .. })
    }

    /// Of what several controllers said, the user is told what says most: a decision before the want of one.
    fn weight(&self) -> u8 {
        match self {
            Self::NoController => 0,
            Self::Connect(_) | Self::Silent | Self::Malformed => 1,
            Self::Denied { again: Again::Elsewhere, .. } => 2,
            Self::Denied { .. } => 3,
        }
    }
}

/// A grant as a client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The controller that signed it.
    pub from: PublicKey,
    /// To be shown to relays.
    pub bytes: Vec<u8>,
    /// The relays where it is good.
    pub relays: Vec<GrantedRelay>,
}

/// A session with a controller.
pub(super) struct Link {
    session: Session,
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    read: Vec<u8>,
}

impl Link {
    pub(super) async fn open(endpoint: &Endpoint, hint: &ControllerHint) -> Result<Self, LinkError> {
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
    pub(super) async fn request(&mut self, request: &Request) -> Result<Reply, LinkError> {
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
                    Reply::Denied { why, again } => Err(LinkError::Denied { why, again }),
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
    /// What the controllers said.
    pub async fn allocate(&self, ask: &Ask) -> Result<Granted, LinkError> {
        self.granted(&Request::allocate(ask)).await
    }

    /// Keeps a grant for so many seconds from now.
    ///
    /// # Errors
    /// What the controllers said.
    pub async fn renew(&self, grant: GrantId, lifetime: u64) -> Result<Granted, LinkError> {
        self.granted(&Request::Renew { grant, lifetime }).await
    }

    async fn granted(&self, request: &Request) -> Result<Granted, LinkError> {
        match self.request(request).await? {
            (from, Reply::Granted { grant, relays }) => {
                let bytes = BASE64.decode(grant.as_bytes()).map_err(|_| LinkError::Malformed)?;
                Ok(Granted { from, bytes, relays })
            }
            _ => Err(LinkError::Malformed),
        }
    }

    /// Gives a grant back.
    ///
    /// # Errors
    /// What the controllers said.
    pub async fn give_back(&self, grant: GrantId) -> Result<(), LinkError> {
        match self.request(&Request::GiveBack { grant }).await? {
            (_, Reply::GivenBack) => Ok(()),
            _ => Err(LinkError::Malformed),
        }
    }

    /// The first answer, and whose it is; of errors the one that says most.
    async fn request(&self, request: &Request) -> Result<(PublicKey, Reply), LinkError> {
        let mut current = self.current.lock().await;
        let mut told = LinkError::NoController;
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
                    if error.weight() >= told.weight() {
                        told = error;
                    }
                }
                answer => return answer.map(|reply| (hint.node, reply)),
            }
        }
        Err(told)
    }
}
