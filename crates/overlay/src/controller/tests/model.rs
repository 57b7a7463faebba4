//! Several controllers over one store. Their steps are interleaved at random, they crash between any two, their clocks
//! differ, and the store fails before or after it has committed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::grant::{Grant, GrantId};

const CONTROLLERS: usize = 3;
const RELAYS: u8 = 3;
const CLIENTS: u8 = 4;
/// The offer of each relay.
const PIDS: u64 = 20;
const MBIT: u64 = 100;

/// A store that lets other tasks run before each step, and sometimes fails.
struct Flaky {
    inner: MemoryStore,
    failing: std::sync::Mutex<ChaCha8Rng>,
}

impl Flaky {
    async fn turn(&self) {
        let mut waited = false;
        poll_fn(move |_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending })
            .await;
    }

    fn fails(&self, one_in: u32) -> Result<(), StoreError> {
        let fails = self.failing.lock().unwrap().random_ratio(1, one_in);
        if fails { Err(StoreError::Unavailable("so it was drawn".into())) } else { Ok(()) }
    }
}

impl Store for Flaky {
    async fn get(&self, keys: &[String]) -> Result<Vec<Entry>, StoreError> {
        self.turn().await;
        self.fails(50)?;
        self.inner.get(keys).await
    }

    async fn range(&self, prefix: &str, after: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        self.turn().await;
        self.fails(50)?;
        self.inner.range(prefix, after).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Commit, StoreError> {
        self.turn().await;
        self.fails(20)?;
        let done = self.inner.commit(transaction).await;
        self.turn().await;
        self.fails(20)?;
        done
    }
}

enum Outcome {
    Granted(PublicKey, RequestId, Approved),
    Renewed(Approved),
    Informed(u8, Vec<GrantId>),
    Nothing,
}

type Work<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// The part of a relay that handles grants: it accepts a signed grant until that has expired by its own clock.
#[derive(Default)]
struct Relay {
    refuses: BTreeSet<GrantId>,
    skew: i64,
}

#[derive(Default)]
struct Seen {
    by_request: BTreeMap<(PublicKey, RequestId), Grant>,
    grants: BTreeMap<GrantId, Grant>,
    relays: BTreeMap<u8, Relay>,
    told: usize,
    renewed: usize,
    changed: bool,
}

impl Seen {
    fn on(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Granted(client, request, approved) => {
                let grant = approved.grant();
                let first = self.by_request.entry((client, request)).or_insert_with(|| grant.clone());
                let what = |grant: &Grant| (grant.id, grant.relays.clone(), grant.limits);
                assert_eq!(what(first), what(grant), "two grants for one request");
                self.on_grant(grant);
            }
            Outcome::Renewed(approved) => {
                self.renewed += 1;
                self.on_grant(approved.grant());
            }
            Outcome::Informed(relay, grants) => {
                self.told += grants.len();
                self.relays.entry(relay).or_default().refuses.extend(grants);
            }
            Outcome::Nothing => {}
        }
    }

    /// A late arrival may have the earlier end.
    fn on_grant(&mut self, grant: &Grant) {
        let known = self.grants.entry(grant.id).or_insert_with(|| grant.clone());
        if known.not_after < grant.not_after {
            *known = grant.clone();
        }
        self.changed = true;
    }

    fn check_capacity(&mut self, wall: u64) {
        // A grant that no relay accepts any more needs no further check.
        self.grants.retain(|_, grant| grant.not_after.0 + 30 + MAX_SKEW >= wall);
        for (seed, relay) in &self.relays {
            let clock = wall.saturating_add_signed(relay.skew);
            let takes = |grant: &&Grant| {
                grant.relays.contains(&key(*seed))
                    && clock <= grant.not_after.0 + 30
                    && !relay.refuses.contains(&grant.id)
            };
            let (pids, rate) = self.grants.values().filter(takes).fold((0, 0), |(pids, rate), grant| {
                (pids + u64::from(grant.limits.pids), rate + grant.limits.rate.as_bits())
            });
            assert!(pids <= PIDS && rate <= MBIT * 1_000_000, "relay {seed}: {pids} PIDs, {rate} bit/s");
        }
    }
}

struct Decider {
    directory: Mutex<Directory>,
    skew: i64,
}

struct Run<'a> {
    store: &'a Flaky,
    policy: &'a Policy,
    controllers: &'a [Decider],
    rng: ChaCha8Rng,
    now: Time,
    wall: u64,
    asks: Vec<(PublicKey, Ask)>,
    seen: Seen,
}

impl<'a> Run<'a> {
    fn begin(&mut self) -> Work<'a> {
        let (store, policy, now) = (self.store, self.policy, self.now);
        let decider = &self.controllers[self.rng.random_range(0..CONTROLLERS)];
        let controller = Controller { store, policy, directory: &decider.directory };
        let wall = UnixTime(self.wall.saturating_add_signed(decider.skew));
        match self.rng.random_range(0..11) {
            0..6 => {
                let (client, ask) = self.some_ask();
                Box::pin(async move {
                    let granted = allocate(&controller, Clocks { local: now, wall }, client, &ask).await;
                    granted.map_or(Outcome::Nothing, |grant| Outcome::Granted(client, ask.request, grant))
                })
            }
            6 => match self.some_grant() {
                Some(grant) => Box::pin(async move {
                    drop(give_back(store, wall, grant.client, grant.id).await);
                    Outcome::Nothing
                }),
                None => Box::pin(async { Outcome::Nothing }),
            },
            7 => match self.some_grant() {
                Some(grant) => Box::pin(async move {
                    drop(revoke(store, wall, grant.client, grant.id).await);
                    Outcome::Nothing
                }),
                None => Box::pin(async { Outcome::Nothing }),
            },
            8 => match (self.some_grant(), self.rng.random_range(1..240)) {
                (Some(grant), lifetime) => Box::pin(async move {
                    let renewed = renew(&controller, wall, grant.client, grant.id, lifetime).await;
                    renewed.map_or(Outcome::Nothing, Outcome::Renewed)
                }),
                (None, _) => Box::pin(async { Outcome::Nothing }),
            },
            9 => {
                let relay = self.rng.random_range(0..RELAYS) + 100;
                let refuses = &self.seen.relays[&relay].refuses;
                let known: Vec<GrantId> = refuses.iter().copied().collect();
                Box::pin(async move {
                    if confirm(store, wall, key(relay), &known).await.is_err() {
                        return Outcome::Nothing;
                    }
                    taken_back(store, key(relay))
                        .await
                        .map_or(Outcome::Nothing, |told| Outcome::Informed(relay, told))
                })
            }
            _ => {
                let node = key(200 + self.rng.random_range(0..CONTROLLERS as u8));
                Box::pin(async move {
                    if let Ok(Ok(revision)) = lead(store, wall, (&node, 5)).await {
                        drop(sweep(store, wall, revision).await);
                    }
                    Outcome::Nothing
                })
            }
        }
    }

    /// A new request, or a recent one again.
    fn some_ask(&mut self) -> (PublicKey, Ask) {
        if !self.asks.is_empty() && self.rng.random_ratio(1, 3) {
            let recent = self.asks.len().saturating_sub(40);
            return self.asks[self.rng.random_range(recent..self.asks.len())].clone();
        }
        let client = key(1 + self.rng.random_range(0..CLIENTS));
        let request = RequestId { made: UnixTime(self.wall), random: self.rng.next_u64().to_be_bytes() };
        let limits = limits(self.rng.random_range(1..8), self.rng.random_range(1..40));
        let lifetime = self.rng.random_range(1..240);
        let relays = self.rng.random_range(1..=RELAYS);
        let ask = Ask { request, relays, least: self.rng.random_range(1..=relays), limits, lifetime };
        self.asks.push((client, ask.clone()));
        (client, ask)
    }

    fn some_grant(&mut self) -> Option<Grant> {
        let good: Vec<&Grant> =
            self.seen.grants.values().filter(|grant| grant.not_after.0 >= self.wall).collect();
        (!good.is_empty()).then(|| good[self.rng.random_range(0..good.len())].clone())
    }

    fn pass(&mut self) {
        let seconds = self.rng.random_range(0..20);
        self.wall += seconds;
        self.now += anabranch_wire::Span::from_secs(seconds);
        for controller in self.controllers {
            for relay in 0..RELAYS {
                let mut directory = controller.directory.lock().unwrap();
                directory.hear(self.now, (key(100 + relay), 7), Load::default()).unwrap();
            }
        }
    }

    fn go(&mut self, steps: usize) {
        let mut works: Vec<Work<'a>> = Vec::new();
        for _ in 0..steps {
            match self.rng.random_range(0..100) {
                0..15 if works.len() < 8 => {
                    let work = self.begin();
                    works.push(work);
                }
                // A crash, after which the client does not know the outcome.
                15..17 if !works.is_empty() => drop(works.swap_remove(self.rng.random_range(0..works.len()))),
                17..19 => {
                    self.pass();
                    self.seen.changed = true;
                }
                _ if !works.is_empty() => {
                    let at = self.rng.random_range(0..works.len());
                    let polled = works[at].as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if let Poll::Ready(outcome) = polled {
                        drop(works.swap_remove(at));
                        self.seen.on(outcome);
                    }
                }
                _ => {}
            }
            if std::mem::take(&mut self.seen.changed) {
                self.seen.check_capacity(self.wall);
            }
        }
    }
}

fn controllers(rng: &mut ChaCha8Rng, store: &Flaky, policy: &Policy) -> Vec<Decider> {
    let half = MAX_SKEW as i64 / 2;
    let mut make = || {
        let directory = Mutex::default();
        for relay in 0..RELAYS {
            let offer = offer("", PIDS, MBIT);
            let controller = Controller { store: &store.inner, policy, directory: &directory };
            run(register(&controller, UnixTime(START - 100), key(100 + relay), &offer)).unwrap();
        }
        Decider { directory, skew: rng.random_range(-half..=half) }
    };
    (0..CONTROLLERS).map(|_| make()).collect()
}

fn play(seed: u64) -> [usize; 4] {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let failing = std::sync::Mutex::new(ChaCha8Rng::seed_from_u64(!seed));
    let store = Flaky { inner: MemoryStore::default(), failing };
    let mut policy = Policy { others: Some(quota(6, RELAYS, limits(1_000, 1_000))), ..Policy::default() };
    policy.relays.extend((0..RELAYS).map(|at| key(100 + at)));
    let controllers = controllers(&mut rng, &store, &policy);
    let half = MAX_SKEW as i64 / 2;
    let mut seen = Seen::default();
    for relay in 0..RELAYS {
        let skew = rng.random_range(-half..=half);
        seen.relays.insert(100 + relay, Relay { skew, ..Relay::default() });
    }
    let (store, policy, controllers) = (&store, &policy, &controllers[..]);
    let mut run_ =
        Run { store, policy, controllers, rng, now: Time::ZERO, wall: START, asks: Vec::new(), seen };
    run_.pass();
    run_.go(3_000);
    let end = UnixTime(run_.wall + 10_000);
    let revision = run(lead(&store.inner, end, (&key(200), 5))).unwrap().unwrap();
    run(sweep(&store.inner, end, revision)).unwrap();
    assert_eq!(run(store.inner.range("client/", "")).unwrap(), [], "something is left of clients");
    for (name, entry) in run(store.inner.range("relay/", "")).unwrap() {
        let record = RelayRecord::read(&entry).unwrap();
        assert_eq!(record.len(), (0, 0), "something is left at {name}");
    }
    let Seen { by_request, told, renewed, .. } = run_.seen;
    [by_request.len(), run_.asks.len(), told, renewed]
}

#[test]
fn no_interleaving_crash_or_clock_gives_two_grants_or_more_than_there_is() {
    let mut all = [0; 4];
    for seed in 0..20 {
        let done = std::panic::catch_unwind(|| play(seed)).unwrap_or_else(|cause| {
            eprintln!("failed with seed {seed}");
            std::panic::resume_unwind(cause)
        });
        all.iter_mut().zip(done).for_each(|(all, done)| *all += done);
    }
    // The runs must have made progress.
    let [grants, asks, told, renewed] = all;
    assert!(grants > 500 && asks > grants && told > 100 && renewed > 100, "{all:?}");
}
