//! For other nodes: a session with one controller.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anabranch_net::{
    Config, ConnectError, Endpoint, Named, PublicKey, Reaches, Session, Span, Stream, Target, may_try,
};
use anabranch_overlay::controller::message::{Again, CONTROL_VERSION, GrantedRelay, Reply, Request};
use anabranch_wire::ForeignText;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::address::{NodeAt, Unresolved};

/// Longest time for opening a session, and for the answer to a request. Opening takes three round trips, each of 0.6 s
/// over a satellite; an answer takes one, and up to 1.3 s if the controller's store does not answer.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// A controller's key and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerHint(pub NodeAt);

impl ControllerHint {
    /// A controller at these addresses.
    pub fn new(node: PublicKey, addresses: &[SocketAddr]) -> Self {
        Self(NodeAt::new(node, addresses))
    }

    pub fn node(&self) -> PublicKey {
        self.0.node
    }
}

impl FromStr for ControllerHint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|()| {
            format!(
                "`{text}` does not name a controller; write KEY@ADDRESS:PORT as `anabranch controller` prints it. A host's name may replace the address, and commas separate several"
            )
        })
    }
}

impl fmt::Display for ControllerHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a request to a controller failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It cannot be reached.
    #[error("the controller cannot be reached: {0}")]
    Connect(#[from] ConnectError),
    /// Its name has no address.
    #[error("the controller cannot be reached: {0}")]
    Unresolved(#[from] Unresolved),
    /// It refused the request.
    #[error("the controller refused, and said \"{why}\"")]
    Denied {
        /// Its reason.
        why: ForeignText,
        /// Whether another try may succeed.
        again: Again,
    },
    /// It does not answer.
    #[error("the controller does not answer")]
    Silent,
    /// Its answer does not fit the request.
    #[error("the controller's answer does not fit the request")]
    Malformed,
    /// No controller is configured.
    #[error("no controller is named in the configuration")]
    NoController,
}

impl LinkError {
    /// Whether another controller may answer differently.
    pub fn is_worth_another(&self) -> bool {
        !matches!(self, Self::Denied { again: Again::Never, .. })
    }

    /// How informative an error is. Of several controllers' errors the user sees the highest: a decision counts more
    /// than a missing answer.
    pub(crate) fn weight(&self) -> u8 {
        match self {
            Self::NoController => 0,
            Self::Connect(_) | Self::Unresolved(_) | Self::Silent | Self::Malformed => 1,
            Self::Denied { again: Again::Elsewhere, .. } => 2,
            Self::Denied { .. } => 3,
        }
    }
}

/// A signed grant, as a client receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The controller that signed it.
    pub from: PublicKey,
    /// The signed grant, to be shown to relays.
    pub bytes: Vec<u8>,
    /// The relays that it is valid at.
    pub relays: Vec<GrantedRelay>,
}

/// A session with a controller.
pub struct Link {
    session: Session,
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    read: Vec<u8>,
    addresses: AddressRule,
}

/// Which of the addresses that a controller names may be tried: it is a peer like any other, reached where the
/// configuration says.
#[derive(Clone, Copy)]
struct AddressRule {
    reached: Reaches,
    locals: Reaches,
}

impl AddressRule {
    fn allows(self, address: SocketAddr) -> bool {
        may_try(address, Named::ByPeer(self.reached), self.locals)
    }
}

impl Link {
    /// Opens a session to a controller.
    pub async fn open(endpoint: &Endpoint, hint: &ControllerHint) -> Result<Self, LinkError> {
        let at = hint.0.resolve().await?;
        let addresses = AddressRule {
            reached: at.addresses.iter().copied().collect(),
            locals: endpoint.local_addresses().into_iter().collect(),
        };
        let target = Target::new(at.node, at.addresses);
        let config = Config { keep_alive: Some(Span::from_secs(5)), ..Config::default() };
        let opening = async {
            let session = endpoint.connect(&target, config).await?;
            let stream = session.open_stream().await.map_err(|_| LinkError::Silent)?;
            let (reader, writer) = tokio::io::split(stream);
            let mut link = Self { session, reader, writer, read: Vec::new(), addresses };
            match link.exchange(&Request::Hello { version: CONTROL_VERSION }).await? {
                Reply::Hello { .. } => Ok(link),
                _ => Err(LinkError::Malformed),
            }
        };
        timeout(PATIENCE, opening).await.unwrap_or(Err(LinkError::Silent))
    }

    /// Whether the session has ended.
    pub(super) fn is_over(&self) -> bool {
        self.session.close_reason().is_some()
    }

    /// The addresses at which the controller sees this node.
    pub fn observed_addresses(&self) -> Vec<SocketAddr> {
        self.session.observed_addresses()
    }

    /// Sends a request and waits for its answer.
    pub async fn request(&mut self, request: &Request) -> Result<Reply, LinkError> {
        timeout(PATIENCE, self.exchange(request)).await.unwrap_or(Err(LinkError::Silent))
    }

    async fn exchange(&mut self, request: &Request) -> Result<Reply, LinkError> {
        let mut write = Vec::new();
        request.encode(&mut write);
        self.writer.write_all(&write).await.map_err(|_| LinkError::Silent)?;
        loop {
            if let Some((mut reply, len)) = Reply::decode(&self.read).map_err(|_| LinkError::Malformed)? {
                self.read.drain(..len);
                reply.retain_addresses(|address| self.addresses.allows(address));
                return match reply {
                    Reply::Denied { why, again } => Err(LinkError::Denied { why: why.into(), again }),
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
        // A late answer must not be taken for the answer to another request.
        self.session.abort(0, "no longer needed");
    }
}

#[cfg(test)]
mod tests {
    use anabranch_net::NodeKey;
    use anabranch_overlay::controller::message::Neighbours;

    use super::*;

    fn relay(addresses: &[&str]) -> GrantedRelay {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        GrantedRelay { node: NodeKey::from_random([1; 32]).public(), addresses }
    }

    fn reaches(addresses: &[&str]) -> Reaches {
        addresses.iter().map(|address| address.parse::<SocketAddr>().unwrap()).collect()
    }

    #[test]
    fn of_the_relays_that_a_controller_names_only_addresses_within_its_own_reach_are_tried() {
        const NAMED: &[&str] = &[
            "8.8.8.8:4600",
            "192.168.1.1:53",
            "127.0.0.1:22",
            "169.254.169.254:80",
            "224.0.0.251:5353",
            "8.8.8.8:0",
        ];
        let locals = reaches(&["192.168.1.20:1", "127.0.0.1:1"]);
        let tried = |controller: &str| {
            let rule = AddressRule { reached: reaches(&[controller]), locals };
            let mut granted = Reply::Granted { grant: String::new(), relays: vec![relay(NAMED)] };
            granted.retain_addresses(|address| rule.allows(address));
            let Reply::Granted { relays, .. } = granted else { unreachable!() };
            relays[0].addresses.clone()
        };
        assert_eq!(tried("9.9.9.9:4500"), relay(&NAMED[..1]).addresses, "a public controller");
        assert_eq!(tried("192.168.1.9:4500"), relay(&NAMED[..2]).addresses, "a controller in this network");

        let neighbours = Neighbours {
            measure: vec![relay(NAMED), relay(&NAMED[1..])],
            wanted: vec![relay(&NAMED[2..])],
            ..Neighbours::default()
        };
        let rule = AddressRule { reached: reaches(&["9.9.9.9:4500"]), locals };
        let mut beat =
            Reply::Heartbeat { time: 0, revoked: Vec::new(), known: 0, neighbours: Some(neighbours) };
        beat.retain_addresses(|address| rule.allows(address));
        let Reply::Heartbeat { neighbours: Some(left), .. } = beat else { unreachable!() };
        assert_eq!((left.measure, left.wanted), (vec![relay(&NAMED[..1])], Vec::new()));
    }
}
