//! For clients: requests to the controllers, of which any can answer.
//!
//! A request goes to the controller that answered last. If it has not answered after [`SLOW`], or cannot decide, the next
//! one is asked too, and the first answer counts. A request has an id, so several controllers give it the same grant. If all
//! answer but none can decide (their store elects a leader), they are asked again for a few seconds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Endpoint, PublicKey};
use anabranch_overlay::controller::Ask;
use anabranch_overlay::controller::message::{Again, FiguresTold, Reply, Request};
use anabranch_overlay::grant::GrantId;
use data_encoding::BASE64;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

mod link;

pub use link::{ControllerHint, Granted, Link, LinkError};

/// A controller gets this long before the next one is asked too.
const SLOW: Duration = Duration::from_millis(400);
/// Pause before all are asked again, and how long this is repeated.
const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);

/// The controllers of a client.
pub struct Controllers {
    endpoint: Arc<Endpoint>,
    hints: Vec<ControllerHint>,
    known: Mutex<Known>,
}

/// Sessions with the controllers.
struct Known {
    /// The one that answered last.
    good: usize,
    /// The sessions, by index of the controller.
    links: Vec<Option<Link>>,
}

/// A controller's index, its session if it can be used again, and its answer.
type Answer = (usize, Option<Link>, Result<Reply, LinkError>);

impl Controllers {
    /// Opens no session yet.
    pub fn new(endpoint: Arc<Endpoint>, hints: Vec<ControllerHint>) -> Self {
        let links = hints.iter().map(|_| None).collect();
        Self { endpoint, hints, known: Mutex::new(Known { good: 0, links }) }
    }

    /// Gets a grant. Asking again with the same request gives the same grant.
    pub async fn allocate(&self, ask: &Ask) -> Result<Granted, LinkError> {
        self.granted(Request::Allocate(ask.clone())).await
    }

    /// Extends a grant to this many seconds from now.
    pub async fn renew(&self, grant: GrantId, lifetime: u64) -> Result<Granted, LinkError> {
        self.granted(Request::Renew { grant, lifetime }).await
    }

    pub async fn give_back(&self, grant: GrantId) -> Result<(), LinkError> {
        match self.request(Request::GiveBack { grant }).await? {
            (_, Reply::GivenBack) => Ok(()),
            _ => Err(LinkError::Malformed),
        }
    }

    /// Round-trip times and loss between relays, and to the relay at an address; also returns that relay's key.
    pub async fn figures(
        &self,
        relays: Vec<PublicKey>,
        to: Option<IpAddr>,
    ) -> Result<(Vec<FiguresTold>, Option<PublicKey>), LinkError> {
        match self.request(Request::Figures { relays, to, known: false }).await? {
            (_, Reply::Figures { figures, node, .. }) => Ok((figures, node.first().copied())),
            _ => Err(LinkError::Malformed),
        }
    }

    /// Whether a relay is draining, as far as the answering controller knows. Nothing is measured for it.
    pub async fn is_draining(&self, relay: PublicKey) -> Result<bool, LinkError> {
        match self.request(Request::Figures { relays: vec![relay], to: None, known: true }).await? {
            (_, Reply::Figures { draining, .. }) => Ok(draining.contains(&relay)),
            _ => Err(LinkError::Malformed),
        }
    }

    /// Which of these relays are draining or silent, as far as the answering controller knows.
    pub async fn gone(&self, relays: Vec<PublicKey>) -> Result<Vec<PublicKey>, LinkError> {
        match self.request(Request::Figures { relays, to: None, known: true }).await? {
            (_, Reply::Figures { draining, silent, .. }) => Ok([draining, silent].concat()),
            _ => Err(LinkError::Malformed),
        }
    }

    async fn granted(&self, request: Request) -> Result<Granted, LinkError> {
        match self.request(request).await? {
            (from, Reply::Granted { grant, relays }) => {
                let bytes = BASE64.decode(grant.as_bytes()).map_err(|_| LinkError::Malformed)?;
                Ok(Granted { from, bytes, relays })
            }
            _ => Err(LinkError::Malformed),
        }
    }

    /// The first answer with its controller, or the most informative error.
    async fn request(&self, request: Request) -> Result<(PublicKey, Reply), LinkError> {
        let mut known = self.known.lock().await;
        let (request, begin) = (Arc::new(request), Instant::now());
        loop {
            match self.ask_all(&mut known, &request).await {
                Err(LinkError::Denied { again: Again::Elsewhere, .. }) if begin.elapsed() < PATIENCE => {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Asks every controller once, until one has answered.
    async fn ask_all(
        &self,
        known: &mut Known,
        request: &Arc<Request>,
    ) -> Result<(PublicKey, Reply), LinkError> {
        let count = self.hints.len();
        let first = known.good;
        let mut turns = (0..count).map(|turn| (first + turn) % count);
        let mut asked = JoinSet::new();
        let mut told = LinkError::NoController;
        loop {
            let next = turns.next();
            if let Some(at) = next {
                let link = known.links[at].take();
                let (endpoint, hint) = (self.endpoint.clone(), self.hints[at].clone());
                asked.spawn(ask(endpoint, (at, hint), link, request.clone()));
            }
            // With all asked, wait for each to answer or to fail.
            let waited = match next {
                Some(_) => timeout(SLOW, asked.join_next()).await,
                None => Ok(asked.join_next().await),
            };
            let (at, link, answer) = match waited {
                Err(_) | Ok(Some(Err(_))) => continue,
                Ok(None) => return Err(told),
                Ok(Some(Ok(answered))) => answered,
            };
            known.links[at] = link;
            match answer {
                Err(error) if error.is_worth_another() => {
                    if error.weight() >= told.weight() {
                        told = error;
                    }
                }
                answer => {
                    known.good = at;
                    return answer.map(|reply| (self.hints[at].node(), reply));
                }
            }
        }
    }
}

/// Sends a request over the session, or over a new one. An abandoned request ends its session, because its late answer
/// could be mistaken for the next one.
async fn ask(
    endpoint: Arc<Endpoint>,
    (at, hint): (usize, ControllerHint),
    link: Option<Link>,
    request: Arc<Request>,
) -> Answer {
    let opened = match link.filter(|link| !link.is_over()) {
        Some(link) => Ok(link),
        None => Link::open(&endpoint, &hint).await,
    };
    let mut link = match opened {
        Ok(link) => link,
        Err(error) => return (at, None, Err(error)),
    };
    let answer = link.request(&request).await;
    let is_good = matches!(answer, Ok(_) | Err(LinkError::Denied { .. }));
    (at, is_good.then_some(link), answer)
}
