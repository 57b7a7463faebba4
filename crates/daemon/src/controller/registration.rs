//! A relay's registration with its controllers: one task each, which calls, registers, sends heartbeats, and calls again
//! when anything goes wrong.

use std::fmt;
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

/// How often a relay says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long a relay waits before it calls a controller again, and how long after it was told no.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AFTER_NO: Duration = Duration::from_secs(10);

/// What a relay gives to its registration, and takes from it.
pub trait Registrant: Send + Sync + 'static {
    /// What it offers now; it is registered anew when that has changed.
    fn offer(&self) -> Offer;
    /// What it does now.
    fn load(&self) -> Load;
    /// What a controller that knows its links up to a version does not know yet; 0 is who knows nothing. Unless it measures, nothing.
    fn changes(&self, known: u64) -> Option<Changes> {
        let _ = known;
        None
    }
    /// A controller says which relays to measure, and which measure this one. Unless it measures, that is nothing to it.
    fn measure(&self, controller: &PublicKey, neighbours: &Neighbours) {
        let _ = (controller, neighbours);
    }
    /// Whether grants are taken that are signed with this key.
    fn trusts(&self, signs: &ControllerKey) -> bool {
        let _ = signs;
        true
    }
    /// Changes when there is something to be told at once. Unless it measures, never.
    fn urgent(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }
    /// A controller said what time it is and what does not count any more; gives the grants of which it may take for known that
    /// they are not taken any more.
    fn heartbeat(&self, controller: &PublicKey, heartbeat: &Heartbeat) -> Vec<GrantId>;
}

/// How a relay stands with a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Called for the first time.
    #[default]
    Calling,
    /// Registered, and heard a moment ago.
    Registered,
    /// Registered, but the relay takes no grant that is signed as this controller's are.
    Untrusted(ControllerKey),
    /// Not registered.
    Not(LinkError),
}

impl Standing {
    /// Whether the controller knows the relay.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(self, Self::Registered | Self::Untrusted(_))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calling => f.write_str("calling"),
            Self::Registered => f.write_str("registered"),
            Self::Untrusted(signs) => write!(
                f,
                "registered, but no grant of it is taken: it signs with another key than the relay's configuration says; if that is right, set `signs = \"{signs}\"` there"
            ),
            Self::Not(LinkError::Silent) => write!(
                f,
                "{}: is `anabranch controller` running there, is its UDP port open, and is the key in `at` the one that it prints? One with another key does not answer",
                LinkError::Silent
            ),
            Self::Not(why) => write!(f, "{why}"),
        }
    }
}

/// Keeps a relay registered with every controller. Dropping it ends that.
#[derive(Debug, Default)]
pub struct Registration {
    tasks: Vec<JoinHandle<()>>,
    standings: Vec<(PublicKey, watch::Receiver<Standing>)>,
}

impl Registration {
    /// Begins. `instance` is drawn anew whenever the program starts.
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

    /// True once it ended with some controller, which only a fault of this program has it do.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// How the relay stands with each controller.
    #[must_use]
    pub fn standings(&self) -> Vec<(PublicKey, Standing)> {
        self.standings.iter().map(|(node, standing)| (*node, standing.borrow().clone())).collect()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Notes how things stand, and tells people when that is new.
fn stand(sender: &watch::Sender<Standing>, controller: &PublicKey, standing: &Standing) {
    let is_new = sender.send_if_modified(|known| {
        let is_new = known != standing;
        known.clone_from(standing);
        is_new
    });
    match standing {
        Standing::Not(_) if is_new => tracing::warn!(%controller, "not registered: {standing}"),
        Standing::Untrusted(_) if is_new => tracing::warn!(%controller, "{standing}"),
        Standing::Registered if is_new => tracing::info!(%controller, "registered"),
        _ => {}
    }
}

/// Registers and sends heartbeats until something goes wrong.
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
        known = up_to;
        neighbours = other.unwrap_or(neighbours);
        relay.measure(&hint.node(), &neighbours);
        let heartbeat = Heartbeat { time: UnixTime(time), revoked };
        confirmed = relay.heartbeat(&hint.node(), &heartbeat);
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => {}
            // When nobody can tell any more, the relay is going.
            Ok(()) = urgent.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_controller_that_does_not_answer_it_is_told_what_to_look_at() {
        let told = Standing::Not(LinkError::Silent).to_string();
        assert!(told.starts_with("the controller does not answer: "), "{told}");
        assert!(told.contains("is the key in `at` the one that it prints?"), "{told}");
    }
}
