//! For relays: the registration with controllers. One task for each controller connects, registers, sends heartbeats, and
//! connects again after a failure.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Endpoint, PublicKey};
use anabranch_overlay::controller::message::{Again, Neighbours, Reply, Request};
use anabranch_overlay::controller::{Load, Offer};
use anabranch_overlay::grant::{ControllerKey, GrantId, UnixTime};
use anabranch_overlay::relay::Heartbeat;
use anabranch_overlay::sense::Changes;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use anabranch_node::{ControllerHint, Link, LinkError};

const HEARTBEAT: Duration = Duration::from_secs(2);
/// Pause before a relay connects again, and after a refusal.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AFTER_NO: Duration = Duration::from_secs(10);

/// The relay behind a registration.
pub trait Registrant: Send + Sync + 'static {
    /// Its current offer; it registers again when this changes.
    fn offer(&self) -> Offer;
    /// Its current load.
    fn load(&self) -> Load;
    /// Changes of its links since the version that a controller has, 0 for none. A relay that does not measure has no changes.
    fn changes(&self, known: u64) -> Option<Changes> {
        let _ = known;
        None
    }
    /// Takes the relays to measure, and those that measure this one. A relay that does not measure ignores it.
    fn measure(&self, controller: &PublicKey, neighbours: &Neighbours) {
        let _ = (controller, neighbours);
    }
    /// Whether it accepts grants that are signed with this key.
    fn trusts(&self, signs: &ControllerKey) -> bool {
        let _ = signs;
        true
    }
    /// Takes the addresses at which the controller sees the relay.
    fn observed(&self, addresses: &[SocketAddr]) {
        let _ = addresses;
    }
    /// Changes when a heartbeat should be sent at once.
    fn urgent(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }
    /// Handles a controller's time and revocations. Returns the revoked grants that the controller need not repeat.
    fn heartbeat(&self, controller: &PublicKey, heartbeat: &Heartbeat) -> Vec<GrantId>;
}

/// The state of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Connecting for the first time.
    #[default]
    Calling,
    Registered,
    /// Registered, but the relay's configuration names another signing key, so the controller's grants do not count.
    Untrusted(ControllerKey),
    /// Not registered.
    Not(LinkError),
}

impl Standing {
    /// Whether the relay is registered.
    pub fn is_registered(&self) -> bool {
        matches!(self, Self::Registered | Self::Untrusted(_))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calling => f.write_str("connecting"),
            Self::Registered => f.write_str("registered"),
            Self::Untrusted(signs) => write!(
                f,
                "registered, but its grants do not count: it signs with another key than the relay's configuration names; if that key is right, set `signs = \"{signs}\"` there"
            ),
            Self::Not(LinkError::Silent) => write!(
                f,
                "{}: is `anabranch controller` running there, is its UDP port open, and is the key in `at` the one that it prints? A controller with another key does not answer",
                LinkError::Silent
            ),
            Self::Not(why) => write!(f, "{why}"),
        }
    }
}

/// Keeps a relay registered with its controllers until dropped.
#[derive(Debug, Default)]
pub struct Registration {
    tasks: Vec<JoinHandle<()>>,
    standings: Vec<(PublicKey, watch::Receiver<Standing>)>,
}

impl Registration {
    /// Starts to register. `instance` is a random number of this run of the program.
    pub fn start(
        endpoint: &Arc<Endpoint>,
        hints: &[ControllerHint],
        instance: u64,
        relay: &Arc<impl Registrant>,
    ) -> Self {
        let mut registration = Self::default();
        for hint in hints {
            let (sender, standing) = watch::channel(Standing::Calling);
            registration.standings.push((hint.node(), standing));
            let (endpoint, hint, relay) = (endpoint.clone(), hint.clone(), relay.clone());
            registration.tasks.push(tokio::spawn(async move {
                loop {
                    let Err(why) = stay(&endpoint, &hint, (instance, &*relay), &sender).await;
                    let told = matches!(why, LinkError::Denied { again: Again::Never, .. });
                    stand(&sender, &hint.node(), &Standing::Not(why));
                    tokio::time::sleep(if told { AGAIN_AFTER_NO } else { AGAIN }).await;
                }
            }));
        }
        registration
    }

    /// True once a task has ended, which only an internal error causes.
    pub fn has_ended(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// The state of each registration.
    pub fn standings(&self) -> Vec<(PublicKey, Standing)> {
        self.standings.iter().map(|(node, standing)| (*node, standing.borrow().clone())).collect()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Notes the state, and logs a change.
fn stand(sender: &watch::Sender<Standing>, controller: &PublicKey, standing: &Standing) {
    let mut was_calling = true;
    let is_new = sender.send_if_modified(|known| {
        was_calling = *known == Standing::Calling;
        let is_new = known != standing;
        known.clone_from(standing);
        is_new
    });
    match standing {
        Standing::Not(_) if is_new => tracing::warn!(%controller, "not registered: {standing}"),
        Standing::Untrusted(_) if is_new => tracing::warn!(%controller, "{standing}"),
        Standing::Registered if is_new && was_calling => tracing::info!(%controller, "registered"),
        // A problem has ended.
        Standing::Registered if is_new => tracing::warn!(%controller, "registered"),
        _ => {}
    }
}

/// Registers and sends heartbeats until a failure.
async fn stay(
    endpoint: &Endpoint,
    hint: &ControllerHint,
    (instance, relay): (u64, &impl Registrant),
    standing: &watch::Sender<Standing>,
) -> Result<std::convert::Infallible, LinkError> {
    let mut link = Link::open(endpoint, hint).await?;
    let (mut registered, mut signs) = (None, None);
    let (mut confirmed, mut known, mut urgent) = (Vec::new(), 0, relay.urgent());
    let mut neighbours = Neighbours::default();
    loop {
        let offer = relay.offer();
        if registered.as_ref() != Some(&offer) {
            let request = Request::Register { instance, offer: offer.clone() };
            if let Reply::Registered { signs: told } = link.request(&request).await? {
                signs = told.parse::<ControllerKey>().ok();
            }
            registered = Some(offer);
        }
        urgent.mark_unchanged();
        let links = relay.changes(known);
        let request = Request::Heartbeat { load: relay.load(), confirmed, links };
        let Reply::Heartbeat { time, revoked, known: up_to, neighbours: other } =
            link.request(&request).await?
        else {
            return Err(LinkError::Malformed);
        };
        let untrusted = signs.filter(|signs| !relay.trusts(signs));
        stand(standing, &hint.node(), &untrusted.map_or(Standing::Registered, Standing::Untrusted));
        relay.observed(&link.observed_addresses());
        known = up_to;
        neighbours = other.unwrap_or(neighbours);
        relay.measure(&hint.node(), &neighbours);
        let heartbeat = Heartbeat { time: UnixTime(time), revoked };
        confirmed = relay.heartbeat(&hint.node(), &heartbeat);
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => {}
            // An error means that the relay is shutting down.
            Ok(()) = urgent.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_silent_controller_says_what_to_check() {
        let told = Standing::Not(LinkError::Silent).to_string();
        assert!(told.starts_with("the controller does not answer: "), "{told}");
        assert!(told.contains("is the key in `at` the one that it prints?"), "{told}");
    }
}
