//! A relay's place among others: what it tells its controllers, and what it takes from them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anabranch_net::{Endpoint, PublicKey, Rate, Span};
use anabranch_overlay::controller::message::Neighbours;
use anabranch_overlay::controller::{Load, Offer, Place};
use anabranch_overlay::grant::{ControllerKey, GrantId, Told};
use anabranch_overlay::relay::{Heard, Heartbeat};
use anabranch_overlay::sense::{Changes, LinkTold, SensorStats};
use tokio::sync::watch;

use super::config::RelaySettings;
use super::ledger::Ledger;
use super::state::State;
use crate::controller::registration::{Registrant, Registration, Standing};
use crate::sensing::Sensing;
use anabranch_node::ControllerHint;

/// Over how long the rate is taken, at least.
const SAMPLE: Duration = Duration::from_secs(1);
/// Most addresses that are told.
const MAX_ADDRESSES: usize = 16;

/// See the module's documentation.
pub(super) struct Membership {
    member: Arc<Member>,
    /// With whom, and how far that is.
    with: Mutex<(Vec<ControllerHint>, Registration)>,
    instance: u64,
}

/// What controllers see of a relay.
struct Member {
    state: Arc<State>,
    endpoint: Arc<Endpoint>,
    sensing: Arc<Sensing>,
    ledger: Option<Arc<Ledger>>,
    offer: Mutex<Offered>,
    sample: Mutex<Sample>,
    /// Controllers whose time is not gone by.
    apart: Mutex<BTreeSet<PublicKey>>,
    /// Revocations that are written down, where there is a ledger.
    confirmed: Mutex<Vec<GrantId>>,
}

/// What of the settings is offered.
#[derive(Default)]
struct Offered {
    place: String,
    announce: Vec<SocketAddr>,
    pids: u64,
    rate: Option<u64>,
}

/// What was forwarded until some time, and how fast before.
struct Sample {
    at: Instant,
    bytes: u64,
    rate: u64,
}

impl Membership {
    pub(super) fn new(
        (state, endpoint, sensing): (&Arc<State>, &Arc<Endpoint>, &Arc<Sensing>),
        ledger: Option<Arc<Ledger>>,
        instance: u64,
    ) -> Self {
        let member = Member {
            state: state.clone(),
            endpoint: endpoint.clone(),
            sensing: sensing.clone(),
            ledger,
            offer: Mutex::default(),
            sample: Mutex::new(Sample { at: Instant::now(), bytes: 0, rate: 0 }),
            apart: Mutex::default(),
            confirmed: Mutex::default(),
        };
        Self { member: Arc::new(member), with: Mutex::default(), instance }
    }

    /// Offers what the settings say, to the controllers that they name.
    pub(super) fn join(&self, settings: &RelaySettings) {
        *lock(&self.member.offer) = Offered {
            place: settings.place.clone(),
            announce: settings.announce.clone(),
            pids: 2 * settings.most_flows as u64,
            rate: settings.rate.map(|rate| rate.as_bits()),
        };
        let hints: Vec<ControllerHint> =
            settings.controllers.iter().map(|controller| controller.at.clone()).collect();
        let mut with = lock(&self.with);
        if with.0 != hints {
            let registration =
                Registration::start(&self.member.endpoint, &hints, self.instance, &self.member);
            *with = (hints, registration);
        }
    }

    /// All that the relay sends keeps to this rate from now on.
    pub(super) fn limit(&self, rate: Option<Rate>) {
        self.member.sensing.limit(rate);
    }

    /// Ends the registration with all.
    pub(super) fn leave(&self) {
        *lock(&self.with) = Default::default();
    }

    /// True once a fault of this program left what it knows half changed, or ended a registration.
    pub(super) fn is_torn(&self) -> bool {
        let Member { sensing, offer, sample, apart, confirmed, .. } = &*self.member;
        let poisoned =
            [offer.is_poisoned(), sample.is_poisoned(), apart.is_poisoned(), confirmed.is_poisoned()];
        poisoned.contains(&true)
            || sensing.is_torn()
            || self.with.lock().map_or(true, |with| with.1.has_ended())
    }

    /// Its links to other relays, and what was sent to know them.
    pub(super) fn links(&self) -> (Vec<LinkTold>, SensorStats) {
        self.member.sensing.status()
    }

    /// How the relay stands with each controller.
    pub(super) fn standings(&self) -> Vec<(ControllerHint, Standing)> {
        let with = lock(&self.with);
        let standings = with.1.standings().into_iter().map(|(_, standing)| standing);
        with.0.iter().cloned().zip(standings).collect()
    }
}

impl Member {
    /// Says once when the relay's time, or a controller's, turns out to be wrong, and when it is right again.
    fn tell_clock(&self, controller: &PublicKey, told: Told) {
        let mut apart = lock(&self.apart);
        let words = |seconds| Span::from_secs(seconds).in_words();
        let is_new = match told {
            Told::Apart(_) => apart.insert(*controller),
            Told::Taken(_) | Told::Agrees => apart.remove(controller),
        };
        match told {
            Told::Apart(off) if is_new => tracing::warn!(
                %controller,
                "the controller's clock is {} away from the time that the relay goes by: set it right; if most of the relay's controllers say so for 5 min, the relay goes by it",
                words(off)
            ),
            Told::Taken(off) => tracing::warn!(
                "the relay's time was {} away from its controllers' and is theirs now: if this machine's clock is wrong, set it right",
                words(off)
            ),
            Told::Agrees if is_new => tracing::info!(%controller, "the controller's clock agrees again"),
            Told::Apart(_) | Told::Agrees => {}
        }
    }
}

impl Registrant for Member {
    fn offer(&self) -> Offer {
        let Offered { place, announce, pids, rate } = &*lock(&self.offer);
        let mut addresses = if announce.is_empty() {
            anabranch_node::reachable(self.endpoint.local_addresses())
        } else {
            announce.clone()
        };
        addresses.truncate(MAX_ADDRESSES);
        Offer { place: Place(place.clone()), addresses, pids: *pids, rate: *rate }
    }

    fn load(&self) -> Load {
        let (stats, draining) = self.state.stats();
        let mut sample = lock(&self.sample);
        let passed = sample.at.elapsed();
        if passed >= SAMPLE {
            let bits = stats.forwarded.bytes.saturating_sub(sample.bytes) as f64 * 8.0;
            let rate = (bits / passed.as_secs_f64()) as u64;
            *sample = Sample { at: Instant::now(), bytes: stats.forwarded.bytes, rate };
        }
        Load { pids: 2 * stats.flows as u64, rate: sample.rate, draining }
    }

    fn trusts(&self, signs: &ControllerKey) -> bool {
        self.state.change(|relay| relay.config().controllers.contains(signs))
    }

    fn changes(&self, known: u64) -> Option<Changes> {
        self.sensing.changes(known)
    }

    fn measure(&self, controller: &PublicKey, neighbours: &Neighbours) {
        self.sensing.measure(controller, neighbours);
    }

    fn urgent(&self) -> watch::Receiver<u64> {
        self.sensing.urgent()
    }

    fn heartbeat(&self, controller: &PublicKey, heartbeat: &Heartbeat) -> Vec<GrantId> {
        let Heard { clock, remembered } =
            self.state.change_now(|relay, now| relay.handle_heartbeat(now, controller, heartbeat));
        self.tell_clock(controller, clock);
        let is_new = !remembered.is_empty() && *lock(&self.confirmed) != remembered;
        if is_new && self.ledger.as_ref().is_some_and(|ledger| !ledger.is_written()) {
            // A restart would forget it, so the controller goes on telling.
            return Vec::new();
        }
        lock(&self.confirmed).clone_from(&remembered);
        remembered
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while held")
}
