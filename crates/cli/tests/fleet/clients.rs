//! Clients that send each grant request to two controllers and record the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_net::{PublicKey, Rate};
use anabranch_node::Controllers;
use anabranch_node::{ControllerHint, Granted, LinkError};
use anabranch_overlay::controller::message::Again;
use anabranch_overlay::controller::{Ask, RequestId};
use anabranch_overlay::grant::{ControllerKey, Grant, Limits, UnixTime, open};
use tokio::time::timeout;

use super::node;

/// A controller that has not answered for this long counts as dead or cut off.
const PATIENCE: Duration = Duration::from_secs(1);

/// The results of all clients in one run.
#[derive(Default)]
pub struct Record {
    /// Requests that were answered.
    answered: AtomicUsize,
    /// Requests to which a second controller gave the same answer.
    confirmed: AtomicUsize,
    /// Grants by client and request.
    granted: Mutex<BTreeMap<(u8, RequestId), Grant>>,
    full: AtomicUsize,
    longest: Mutex<Duration>,
}

impl Record {
    /// Waits until `count` requests are answered.
    pub async fn reach(&self, count: usize) {
        while self.answered.load(Ordering::Relaxed) < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Requests that a second controller answered too.
    pub fn confirmed(&self) -> usize {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// Requests refused for lack of room.
    pub fn full(&self) -> usize {
        self.full.load(Ordering::Relaxed)
    }

    /// The longest wait for an answer.
    pub fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }

    /// All grants so far.
    pub fn granted(&self) -> Vec<Grant> {
        self.granted.lock().unwrap().values().cloned().collect()
    }

    /// Records a grant after checking its signature. A request has one grant, and a grant one request.
    fn keep(&self, name: (u8, RequestId), granted: &Granted, signing: &[ControllerKey]) {
        let grant = open(&granted.bytes, signing).expect("signed by a controller");
        let mut all = self.granted.lock().unwrap();
        let known = all.entry(name).or_insert_with(|| grant.clone());
        assert_eq!(*known, grant, "two grants for one request");
    }

    /// Total PIDs granted at each relay; checks that no two requests share a grant.
    pub fn taken(&self) -> BTreeMap<PublicKey, u64> {
        let mut ids = BTreeSet::new();
        let mut taken = BTreeMap::new();
        for grant in self.granted() {
            assert!(ids.insert(grant.id), "two requests with one grant");
            for relay in grant.relays {
                *taken.entry(relay).or_default() += u64::from(grant.limits.pids);
            }
        }
        taken
    }
}

/// A client that knows all controllers, as a group and one by one.
pub struct Client {
    seed: u8,
    all: Controllers,
    each: Vec<(PublicKey, Controllers)>,
    signing: Vec<ControllerKey>,
    record: Arc<Record>,
}

impl Client {
    /// Starts with the first of the controllers.
    pub async fn new(
        seed: u8,
        hints: Vec<ControllerHint>,
        signing: &[ControllerKey],
        record: &Arc<Record>,
    ) -> Self {
        let endpoint = node(seed).await;
        let alone =
            |hint: &ControllerHint| (hint.node(), Controllers::new(endpoint.clone(), vec![hint.clone()]));
        let each = hints.iter().map(alone).collect();
        let all = Controllers::new(endpoint, hints);
        Self { seed, all, each, signing: signing.to_vec(), record: record.clone() }
    }

    /// Sends `count` requests. Every second one goes to two controllers at once, the others to a second controller later.
    /// Finally repeats all granted requests, whichever controllers have died by then.
    pub async fn ask_many(&self, count: usize, pids: u32, made: impl Fn() -> UnixTime) {
        let mut granted = Vec::new();
        for number in 0..count {
            let request = RequestId { made: made(), random: (number as u64).to_be_bytes() };
            let limits = Limits { pids, rate: Rate::from_bits(1_000), bytes: 1 << 30, highest_tos: 3 };
            let ask = Ask { request, relays: 1, least: 1, limits, lifetime: 600 };
            let begun = Instant::now();
            let second = &self.each[number % self.each.len()];
            let from = if number % 2 == 0 {
                let (first, second) = tokio::join!(self.ask(&ask), self.ask_one(second, &ask));
                first.filter(|first| Some(*first) != second).and(second)
            } else {
                let first = self.ask(&ask).await;
                let other = self.each.iter().cycle().skip(number).find(|(node, _)| Some(*node) != first);
                self.ask_one(other.expect("there are three"), &ask).await.filter(|_| first.is_some())
            };
            self.record.confirmed.fetch_add(usize::from(from.is_some()), Ordering::Relaxed);
            let known = self.record.granted.lock().unwrap().contains_key(&(self.seed, request));
            self.record.full.fetch_add(usize::from(!known), Ordering::Relaxed);
            granted.extend(known.then_some(ask));
            self.record.answered.fetch_add(1, Ordering::Relaxed);
            if begun.elapsed() > Duration::from_secs(1) {
                eprintln!("client {}: request {number} took {:.2?}", self.seed, begun.elapsed());
            }
        }
        for ask in granted {
            assert!(self.ask(&ask).await.is_some(), "a grant was forgotten");
        }
    }

    /// Retries until there is an answer; returns the controller that granted, if it is a grant.
    async fn ask(&self, ask: &Ask) -> Option<PublicKey> {
        let begun = Instant::now();
        let from = loop {
            match self.all.allocate(ask).await {
                Ok(granted) => {
                    self.record.keep((self.seed, ask.request), &granted, &self.signing);
                    break Some(granted.from);
                }
                Err(LinkError::Denied { why, .. }) if why.raw().contains("with room") => break None,
                Err(LinkError::Denied { why, again: Again::Never }) => panic!("denied: {why}"),
                Err(error) => eprintln!("client {}: {error}", self.seed),
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no allocation for 60 s");
        };
        let mut longest = self.record.longest.lock().unwrap();
        *longest = longest.max(begun.elapsed());
        from
    }

    /// Asks one controller, which may be dead.
    async fn ask_one(&self, (node, alone): &(PublicKey, Controllers), ask: &Ask) -> Option<PublicKey> {
        let granted = timeout(PATIENCE, alone.allocate(ask)).await.ok()?.ok()?;
        self.record.keep((self.seed, ask.request), &granted, &self.signing);
        Some(*node)
    }
}
