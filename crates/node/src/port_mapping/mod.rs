//! Keeps ports of this machine's routers open for a node: by PCP, or NAT-PMP where that is not known.
//!
//! Each socket at a private IPv4 address behind a router has a mapping of its own. A [`Keeper`] requests it and renews it;
//! [`follow`] tells the keeper which sockets there are, and announces the outer addresses to peers. A mapping ends with
//! its node. If the process is killed, it ends within [`LIFETIME`], or [`FIRST_LIFETIME`] if it was just made.
//! `overlay::port_mapping` has the messages.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anabranch_net::interfaces;
use anabranch_net::{Endpoint, Lasting, NodeKey, SocketInfo};
use anabranch_overlay::port_mapping::{
    LIFETIME, LONGEST, NAT_PMP_ADDRESS, PORT, PortGranted, PortRefusal, PortRequest, read_nat_pmp_address,
};
use anabranch_wire::Reach;
use futures_util::future::join_all;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::describe;

/// How long to wait for the answer to a request and to its repetition. A router is near.
const PATIENCE: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(500)];
/// Shortest time between two requests for a mapping (RFC 6887 §11.2.1).
const LEAST_PAUSE: Duration = Duration::from_secs(4);
/// A router that maps nothing is asked again after twice the pause before, at most after this time. It may have begun to
/// start together with this machine.
const AGAIN: Duration = Duration::from_secs(LIFETIME as u64 / 2);
/// Seconds that a new mapping is requested for, the shortest time that routers should grant (RFC 6887 §15). Ctrl-C ends a
/// program that still starts at once, and nothing removes the mapping then.
const FIRST_LIFETIME: u32 = 120;
/// Most sockets with a mapping.
const MOST: usize = 8;

/// A node as routers know it. It is derived from the node's key: a router may refuse a port to a node that was killed
/// and does not come back with the nonce of its earlier run.
#[derive(Clone, Copy)]
pub(crate) struct PortOwner([u8; 32]);

impl PortOwner {
    pub(crate) fn of(key: &NodeKey) -> Self {
        Self(blake3::derive_key("anabranch 2026 port owner", key.to_file_text().as_bytes()))
    }

    /// The nonce of the mapping for this place. No router learns that of another one.
    fn nonce(&self, place: &Place) -> [u8; 12] {
        let text = format!("{} {}", place.local, place.router);
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&blake3::keyed_hash(&self.0, text.as_bytes()).as_bytes()[..12]);
        nonce
    }
}

/// The mappings of a node. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct PortMappings {
    mapped: watch::Receiver<Vec<Mapped>>,
    keeper: AbortHandle,
}

impl PortMappings {
    /// Asks the routers of all sockets, and keeps what they grant. Takes 1.5 s if one is silent.
    pub(crate) async fn start(endpoint: &Arc<Endpoint>, owner: PortOwner) -> Self {
        let moved = endpoint.sockets_changed();
        let found = find(endpoint).await;
        if found.is_empty() {
            tracing::warn!("no port to map: no private IPv4 address of this machine is behind a router");
        }
        let (places, wanted) = watch::channel(found);
        let mappings = Self::over(wanted, owner).await;
        tokio::spawn(follow(Arc::downgrade(endpoint), places, mappings.mapped.clone(), moved));
        mappings
    }

    /// Keeps mappings for these sockets.
    async fn over(places: watch::Receiver<Vec<Place>>, owner: PortOwner) -> Self {
        let (sender, mapped) = watch::channel(Vec::new());
        let mut keeper = Keeper { owner, places, mapped: sender, held: Vec::new() };
        keeper.ask_those_due().await;
        Self { mapped, keeper: tokio::spawn(keeper.run()).abort_handle() }
    }

    /// The addresses at which routers let packets in now.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.mapped.borrow().iter().map(|mapped| mapped.outer.into()).collect()
    }

    /// Ends the mappings. If a request is lost, its mapping lasts until its life ends.
    pub(crate) fn end(&self) {
        self.keeper.abort();
        for mapped in self.mapped.borrow().iter() {
            // The interface may be gone, and its router with it.
            let _ = mapped.place.open().and_then(|socket| socket.send(&mapped.removal));
        }
    }
}

impl Drop for PortMappings {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket of the endpoint, and the router of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    socket: u32,
    local: SocketAddrV4,
    interface: Arc<str>,
    router: SocketAddrV4,
}

/// A mapping that a router granted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapped {
    place: Place,
    outer: SocketAddrV4,
    /// The request that ends it.
    removal: Vec<u8>,
}

/// Why a router maps no port.
#[derive(Debug, thiserror::Error)]
enum Unmapped {
    #[error("it does not answer")]
    Silent,
    #[error(transparent)]
    Refused(#[from] PortRefusal),
    #[error("{}", describe(.0))]
    Io(#[from] io::Error),
}

/// The places of the endpoint's sockets.
async fn find(endpoint: &Endpoint) -> Vec<Place> {
    let routers = interfaces::routers().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the routers of this machine");
        Vec::new()
    });
    places(&endpoint.sockets(), &routers)
}

/// The sockets at private IPv4 addresses whose interfaces have a router, given each router with its interface.
fn places(sockets: &[SocketInfo], routers: &[(u32, Ipv4Addr)]) -> Vec<Place> {
    let place = |socket: &SocketInfo| {
        let SocketAddr::V4(local) = socket.local else { return None };
        let is_private = Reach::of((*local.ip()).into()) == Reach::Site;
        let (_, router) = routers.iter().find(|(interface, _)| *interface == socket.place.index)?;
        (is_private && !socket.ruled_out).then(|| Place {
            socket: socket.id,
            local,
            interface: socket.place.interface.clone(),
            router: SocketAddrV4::new(*router, PORT),
        })
    };
    sockets.iter().filter_map(place).take(MOST).collect()
}

/// Passes changes of the endpoint's sockets on to the keeper, and outer addresses to the endpoint's peers.
async fn follow(
    endpoint: Weak<Endpoint>,
    places: watch::Sender<Vec<Place>>,
    mut mapped: watch::Receiver<Vec<Mapped>>,
    mut moved: watch::Receiver<()>,
) {
    loop {
        let Some(endpoint) = endpoint.upgrade() else { return };
        let known = mapped.borrow_and_update().clone();
        for socket in endpoint.sockets() {
            let outer = known.iter().find(|mapped| mapped.place.socket == socket.id);
            endpoint.announce_mapped(socket.id, outer.map(|mapped| mapped.outer.into()));
        }
        let found = find(&endpoint).await;
        drop(endpoint);
        replace(&places, found);
        let changed = tokio::select! {
            changed = mapped.changed() => changed,
            changed = moved.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Replaces a watched value, unless it stays the same.
fn replace<T: PartialEq>(watched: &watch::Sender<T>, value: T) {
    watched.send_if_modified(|known| {
        let is_new = *known != value;
        *known = value;
        is_new
    });
}

/// Requests and renews mappings.
struct Keeper {
    owner: PortOwner,
    places: watch::Receiver<Vec<Place>>,
    mapped: watch::Sender<Vec<Mapped>>,
    held: Vec<Held>,
}

impl Keeper {
    /// Renews until the endpoint is gone.
    async fn run(mut self) {
        loop {
            let due = self.held.iter().map(|held| held.due).min();
            let due = due.unwrap_or_else(|| Instant::now() + AGAIN);
            let is_over = tokio::select! {
                changed = self.places.changed() => changed.is_err(),
                () = sleep_until(due) => false,
            };
            if is_over {
                return;
            }
            self.ask_those_due().await;
        }
    }

    /// Begins with new places, forgets those that are gone, and asks the routers for which it is time.
    async fn ask_those_due(&mut self) {
        let places = self.places.borrow_and_update().clone();
        self.held.retain(|held| places.contains(&held.place));
        for place in places {
            if !self.held.iter().any(|held| held.place == place) {
                self.held.push(Held::new(place, self.owner));
            }
        }
        let now = Instant::now();
        let due = self.held.iter_mut().filter(|held| held.due <= now);
        let asked: Vec<_> = due.map(Held::ask).collect();
        join_all(asked).await;
        replace(&self.mapped, self.held.iter().filter_map(|held| held.mapped.clone()).collect());
    }
}

/// The mapping of one place, wanted or granted.
#[derive(Debug)]
struct Held {
    place: Place,
    request: PortRequest,
    mapped: Option<Mapped>,
    /// When the mapping ends, and when the router is to be asked.
    ends: Instant,
    due: Instant,
    /// The last pause of a router that maps nothing.
    pause: Duration,
    trouble: Lasting,
}

impl Held {
    /// A mapping to request now.
    fn new(place: Place, owner: PortOwner) -> Self {
        // Another port would do, but people know this one.
        let outer = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, place.local.port());
        let request =
            PortRequest { inner: place.local, outer, nonce: owner.nonce(&place), lifetime: FIRST_LIFETIME };
        let (ends, due) = (Instant::now(), Instant::now());
        let (pause, trouble) = (LEAST_PAUSE, Lasting::default());
        Self { place, request, mapped: None, ends, due, pause, trouble }
    }

    /// Asks the router, and notes its answer.
    async fn ask(&mut self) {
        let begin = Instant::now();
        let answer = self.place.ask(&self.request).await;
        let problem = answer.as_ref().err().map(ToString::to_string);
        let mut is_news = self.trouble.is_news(problem.as_deref());
        let (router, local) = (self.place.router.ip(), self.place.local);
        match answer {
            Ok((granted, removal)) => {
                let (outer, life) = (granted.outer, Duration::from_secs(granted.lifetime.into()));
                (self.ends, self.due) = (begin + life, begin + (life / 2).max(LEAST_PAUSE));
                is_news |= !self.request.outer.ip().is_unspecified() && self.request.outer != outer;
                if is_news {
                    tracing::warn!(
                        "the router {router} lets packets in at {outer} now; earlier tickets may differ"
                    );
                } else {
                    tracing::info!("the router {router} lets packets in at {outer}");
                }
                (self.request.outer, self.request.lifetime) = (outer, LIFETIME);
                self.mapped = Some(Mapped { place: self.place.clone(), outer, removal });
                self.pause = LEAST_PAUSE;
            }
            Err(why) => {
                let left = self.ends.saturating_duration_since(Instant::now());
                let has_moved = matches!(why, Unmapped::Refused(PortRefusal::NotPublic(_)));
                if left.is_zero() || has_moved {
                    self.mapped = None;
                }
                let pause = if self.mapped.is_some() {
                    (left / 2).max(LEAST_PAUSE)
                } else {
                    self.pause = (self.pause * 2).min(AGAIN);
                    self.pause
                };
                self.due = Instant::now() + pause;
                if is_news {
                    tracing::warn!(
                        "the router {router} maps no port: {why}; let it forward a UDP port to {local} and name that by \
                         `--address`, or name a relay by `--relay`"
                    );
                }
            }
        }
    }
}

impl Place {
    /// Asks the router by PCP, and if that fails by NAT-PMP. Returns also the request that ends the mapping.
    async fn ask(&self, request: &PortRequest) -> Result<(PortGranted, Vec<u8>), Unmapped> {
        let socket = self.open()?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        let removal = request.removal();
        let pcp = exchange(&socket, &request.pcp(), |bytes| request.read_pcp(bytes)).await;
        let why = match pcp {
            Ok(granted) => return Ok((granted, removal.pcp().to_vec())),
            Err(why) => why,
        };
        if let Unmapped::Refused(PortRefusal::NotPublic(_)) = why {
            // It was granted, but is of no use.
            socket.send(&removal.pcp()).await?;
            return Err(why);
        }
        match ask_by_nat_pmp(&socket, request).await {
            Ok(granted) => Ok((granted, removal.nat_pmp().to_vec())),
            Err(refused @ Unmapped::Refused(_)) => Err(refused),
            Err(_) => Err(why),
        }
    }

    /// A socket that sends to the router and receives from there only.
    fn open(&self) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((*self.local.ip(), 0))?;
        if !self.interface.is_empty() {
            // Two routers may have the same address. Where the system does not allow this, routes decide.
            let _ = setsockopt(&socket, sockopt::BindToDevice, &OsString::from(&*self.interface));
        }
        socket.connect(self.router)?;
        Ok(socket)
    }
}

async fn ask_by_nat_pmp(
    socket: &tokio::net::UdpSocket,
    request: &PortRequest,
) -> Result<PortGranted, Unmapped> {
    let outer = exchange(socket, &NAT_PMP_ADDRESS, read_nat_pmp_address).await?;
    exchange(socket, &request.nat_pmp(), |bytes| request.read_nat_pmp(bytes, outer)).await
}

/// Sends a request, repeats it, and returns the first answer that `read` takes for one.
async fn exchange<T>(
    socket: &tokio::net::UdpSocket,
    request: &[u8],
    read: impl Fn(&[u8]) -> Option<Result<T, PortRefusal>>,
) -> Result<T, Unmapped> {
    let mut bytes = [0; LONGEST];
    for patience in PATIENCE {
        socket.send(request).await?;
        let until = Instant::now() + patience;
        // During a flood, the timeout alone would never fire.
        while Instant::now() < until
            && let Ok(received) = timeout_at(until, socket.recv(&mut bytes)).await
        {
            if let Some(answer) = read(&bytes[..received?]) {
                return Ok(answer?);
            }
        }
    }
    Err(Unmapped::Silent)
}

#[cfg(test)]
mod tests;
