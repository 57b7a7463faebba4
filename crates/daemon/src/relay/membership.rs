//! A relay's registration with its controllers: its reports to them, and their requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anabranch_net::{Endpoint, PublicKey, Rate, Span};
use anabranch_overlay::controller::message::Neighbours;
use anabranch_overlay::controller::{Load, Location, Offer};
use anabranch_overlay::grant::{ClockVerdict, ControllerKey, GrantId};
use anabranch_overlay::relay::{Heard, Heartbeat};
use anabranch_overlay::sense::{Changes, LinkTold, SensorStats};
use tokio::sync::watch;

use super::config::RelaySettings;
use super::ledger::Ledger;
use super::state::State;
use crate::controller::registration::{Registrant, Registration, Standing};
use crate::sensing::Sensing;
use anabranch_node::ControllerHint;

/// Shortest time that the rate is measured over.
const SAMPLE: Duration = Duration::from_secs(1);
/// Most addresses that are announced.
const MAX_ADDRESSES: usize = 16;
/// Most addresses at which controllers see the relay that are remembered, the latest ones.
const MAX_OBSERVED: usize = 8;

/// See the module's documentation.
pub(super) struct Membership {
    member: Arc<Member>,
    /// The controllers, and the registration with them.
    with: Mutex<(Vec<ControllerHint>, Registration)>,
    instance: u64,
}

/// The relay as its controllers see it.
struct Member {
    state: Arc<State>,
    endpoint: Arc<Endpoint>,
    sensing: Arc<Sensing>,
    ledger: Option<Arc<Ledger>>,
    offer: Mutex<Offered>,
    sample: Mutex<Sample>,
    /// Controllers whose clock differs from the relay's.
    apart: Mutex<BTreeSet<PublicKey>>,
    /// Addresses at which controllers see the relay, the latest last.
    observed: Mutex<Vec<IpAddr>>,
    /// Revocations that are stored in the ledger, if there is one.
    confirmed: Mutex<Confirmed>,
}

/// Revocations of each controller's last heartbeat that the ledger has stored.
#[derive(Default)]
struct Confirmed(BTreeMap<PublicKey, BTreeSet<GrantId>>);

impl Confirmed {
    /// Whether the ledger has all of these already.
    fn has(&self, controller: &PublicKey, grants: &[GrantId]) -> bool {
        let known = self.0.get(controller);
        grants.iter().all(|grant| known.is_some_and(|known| known.contains(grant)))
    }

    fn set(&mut self, controller: &PublicKey, grants: &[GrantId]) {
        self.0.insert(*controller, grants.iter().copied().collect());
    }
}

/// The settings that controllers see.
#[derive(Default)]
struct Offered {
    place: String,
    announce: Vec<SocketAddr>,
    pids: u64,
    rate: Option<u64>,
}

/// Bytes forwarded until a time, and the rate before it.
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
            observed: Mutex::default(),
            confirmed: Mutex::default(),
        };
        Self { member: Arc::new(member), with: Mutex::default(), instance }
    }

    /// Offers the configured resources from now on.
    pub(super) fn offer(&self, settings: &RelaySettings) {
        *lock(&self.member.offer) = Offered {
            place: settings.place.clone(),
            announce: settings.announce.clone(),
            pids: 2 * settings.most_flows as u64,
            rate: settings.rate.map(|rate| rate.as_bits()),
        };
    }

    /// Registers with the controllers of the settings and offers the configured resources.
    pub(super) fn join(&self, settings: &RelaySettings) {
        self.offer(settings);
        let hints: Vec<ControllerHint> =
            settings.controllers.iter().map(|controller| controller.at.clone()).collect();
        let mut with = lock(&self.with);
        if with.0 != hints {
            let registration =
                Registration::start(&self.member.endpoint, &hints, self.instance, &self.member);
            let nodes = hints.iter().map(ControllerHint::node).collect();
            *with = (hints, registration);
            self.member.sensing.forget_others(&nodes);
            self.member.update_measurers();
        }
    }

    /// The addresses at which others see the relay.
    pub(super) fn public(&self) -> Vec<IpAddr> {
        self.member.public()
    }

    /// Sets the rate of everything that the relay sends.
    pub(super) fn limit(&self, rate: Option<Rate>) {
        self.member.sensing.limit(rate);
    }

    /// Ends all registrations.
    pub(super) fn leave(&self) {
        *lock(&self.with) = Default::default();
    }

    /// True once an internal error may have left the state half changed, or ended a registration.
    pub(super) fn is_torn(&self) -> bool {
        let Member { sensing, offer, sample, apart, observed, confirmed, .. } = &*self.member;
        let poisoned = [
            offer.is_poisoned(),
            sample.is_poisoned(),
            apart.is_poisoned(),
            observed.is_poisoned(),
            confirmed.is_poisoned(),
        ];
        poisoned.contains(&true)
            || sensing.is_torn()
            || self.with.lock().map_or(true, |with| with.1.has_ended())
    }

    /// Its links to other relays, and counters of the probes.
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
    /// The addresses that the relay announces, and those at which controllers see it.
    fn public(&self) -> Vec<IpAddr> {
        let mut public: Vec<IpAddr> = lock(&self.offer).announce.iter().map(SocketAddr::ip).collect();
        public.extend(lock(&self.observed).iter());
        public
    }

    fn update_measurers(&self) {
        let sensing = &self.sensing;
        self.state.change_now(|relay, now| relay.update_measurers(now, |key| sensing.is_measurer(key)));
    }

    /// Logs once when the relay's clock or a controller's turns out to be wrong, and when it agrees again.
    fn log_clock(&self, controller: &PublicKey, verdict: ClockVerdict) {
        let mut apart = lock(&self.apart);
        let words = |seconds| Span::from_secs(seconds).in_words();
        let is_new = match verdict {
            ClockVerdict::Apart(_) => apart.insert(*controller),
            ClockVerdict::Adopted(_) | ClockVerdict::Agrees => apart.remove(controller),
        };
        match verdict {
            ClockVerdict::Apart(off) if is_new => tracing::warn!(
                %controller,
                "the controller's clock differs from the relay's time by {}: correct it. If most of the relay's controllers agree with it for 5 min, the relay adopts it",
                words(off)
            ),
            ClockVerdict::Adopted(off) => tracing::warn!(
                "the relay's time differed from its controllers' by {} and is theirs now: if this machine's clock is wrong, correct it",
                words(off)
            ),
            ClockVerdict::Agrees if is_new => {
                tracing::warn!(%controller, "the controller's clock agrees again");
            }
            ClockVerdict::Apart(_) | ClockVerdict::Agrees => {}
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
        Offer { place: Location(place.as_str().into()), addresses, pids: *pids, rate: *rate }
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

    fn observed(&self, addresses: &[SocketAddr]) {
        for ip in addresses.iter().map(|address| address.ip().to_canonical()) {
            let mut observed = lock(&self.observed);
            if observed.contains(&ip) {
                continue;
            }
            observed.push(ip);
            let excess = observed.len().saturating_sub(MAX_OBSERVED);
            observed.drain(..excess);
            drop(observed);
            tracing::info!(%ip, "a controller sees this relay at this address: it is never a next hop");
            self.state.change_now(|relay, now| {
                let mut config = relay.config().clone();
                config.next_hops.public = self.public();
                relay.reconfigure(now, config);
            });
        }
    }

    fn changes(&self, known: u64) -> Option<Changes> {
        self.sensing.changes(known)
    }

    fn measure(&self, controller: &PublicKey, neighbours: &Neighbours) {
        self.sensing.measure(controller, neighbours);
        self.update_measurers();
    }

    fn urgent(&self) -> watch::Receiver<u64> {
        self.sensing.urgent()
    }

    fn heartbeat(&self, controller: &PublicKey, heartbeat: &Heartbeat) -> Vec<GrantId> {
        let Heard { clock, remembered } =
            self.state.change_now(|relay, now| relay.handle_heartbeat(now, controller, heartbeat));
        self.log_clock(controller, clock);
        let is_new = !lock(&self.confirmed).has(controller, &remembered);
        if is_new && self.ledger.as_ref().is_some_and(|ledger| !ledger.is_written()) {
            // A restart would forget it, so the controller has to repeat it.
            return Vec::new();
        }
        lock(&self.confirmed).set(controller, &remembered);
        remembered
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while held")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anabranch_net::NodeKey;

    use super::super::RelayService;
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_reported_during_a_reload_is_never_a_next_hop() {
        let text = "key = \"k\"\nport = 0\naddresses = [\"127.0.0.1\"]\n";
        let settings = RelaySettings::parse(text, "relay.toml").unwrap();
        let service = RelayService::start(NodeKey::from_random([7; 32]), &settings).await.unwrap();
        let both = Barrier::new(2);
        for last in 0..=255 {
            let seen = SocketAddr::from(([192, 0, 2, last], 1));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    service.reload(&settings);
                });
                both.wait();
                // The report meets each moment of the reload.
                (0..usize::from(last) * 16).for_each(|_| std::hint::spin_loop());
                service.membership.member.observed(&[seen]);
            });
            let is_known = service.state.change(|relay| relay.config().next_hops.public.contains(&seen.ip()));
            assert!(is_known, "{seen}");
        }
    }

    #[test]
    fn a_revocation_is_stored_once_also_when_controllers_take_turns_and_others_lapse() {
        let [first, second] = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
        let [a, b, c] = [1, 2, 3].map(|byte| GrantId([byte; 16]));
        let mut confirmed = Confirmed::default();
        assert!(confirmed.has(&first, &[]) && !confirmed.has(&first, &[a]));
        confirmed.set(&first, &[a, b]);
        confirmed.set(&second, &[c]);
        for _ in 0..2 {
            assert!(confirmed.has(&first, &[a, b]) && confirmed.has(&second, &[c]));
        }
        assert!(confirmed.has(&first, &[b]), "the other has expired");
        assert!(!confirmed.has(&first, &[b, c]));
    }
}
