#![allow(clippy::needless_pass_by_value, reason = "tests hand values over")]

mod decisions;
mod meanwhile;
mod messages;
mod model;

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Time};

use super::record::{client_key, relay_key};
use super::*;
use crate::grant::{Limits, UnixTime};

pub const START: u64 = 1_800_000_000;

/// Polls a future that never waits.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

pub fn key(seed: u8) -> PublicKey {
    anabranch_secure::NodeKey::from_random([seed; 32]).public()
}

pub fn limits(pids: u32, mbit: u64) -> Limits {
    Limits { pids, rate: Rate::from_bits(mbit * 1_000_000), bytes: 1 << 40, highest_tos: 15 }
}

pub fn quota(grants: u32, relays: u8, limits: Limits) -> Quota {
    Quota { grants, relays, limits, lifetime: 3_600 }
}

pub fn offer(place: &str, pids: u64, mbit: u64) -> Offer {
    Offer {
        place: Location(place.into()),
        addresses: vec!["203.0.113.7:4600".parse().unwrap()],
        pids,
        rate: Some(mbit * 1_000_000),
    }
}

pub fn ask(made: u64, number: u8, relays: u8, limits: Limits) -> Ask {
    let request = RequestId { made: UnixTime(made), random: [number; 8] };
    Ask { request, relays, least: relays, limits, lifetime: 600 }
}

/// A store, client 1, and a controller with relays 100, 101, … of 100 Mbit/s and 20 PIDs, all just heard.
pub struct World {
    pub store: MemoryStore,
    pub policy: Policy,
    pub directory: Mutex<Directory>,
    pub now: Time,
    pub wall: UnixTime,
}

impl World {
    pub fn new(relays: u8) -> Self {
        let mut policy = Policy::default();
        policy.clients.insert(key(1), quota(4, 3, limits(16, 80)));
        policy.relays.extend((0..relays).map(|at| key(100 + at)));
        let world = Self {
            store: MemoryStore::default(),
            policy,
            directory: Mutex::default(),
            now: Time::ZERO,
            wall: UnixTime(START),
        };
        for at in 0..relays {
            world.register(100 + at, offer(["fra", "lon"][usize::from(at % 2)], 20, 100)).unwrap();
        }
        world
    }

    pub fn controller(&self) -> Controller<'_, MemoryStore> {
        Controller { store: &self.store, policy: &self.policy, directory: &self.directory }
    }

    pub fn clocks(&self) -> Clocks {
        Clocks { local: self.now, wall: self.wall }
    }

    pub fn register(&self, seed: u8, offer: Offer) -> Result<(), ControlError> {
        self.hear(seed);
        run(register(&self.controller(), self.wall, key(seed), &offer))
    }

    pub fn hear(&self, seed: u8) {
        self.directory.lock().unwrap().hear(self.now, (key(seed), 7), Load::default()).unwrap();
    }

    pub fn allocate(&self, client: u8, ask: Ask) -> Result<Approved, ControlError> {
        run(allocate(&self.controller(), self.clocks(), key(client), &ask))
    }

    pub fn relay(&self, seed: u8) -> RelayRecord {
        let entry = run(self.store.get(&[relay_key(&key(seed))])).unwrap().remove(0);
        RelayRecord::read(&entry).unwrap()
    }

    pub fn pass(&mut self, seconds: u64) {
        self.now += anabranch_wire::Span::from_secs(seconds);
        self.wall.0 += seconds;
        let known: Vec<PublicKey> = self.directory.lock().unwrap().relays().map(|(key, _)| *key).collect();
        for relay in known {
            self.directory.lock().unwrap().hear(self.now, (relay, 7), Load::default()).unwrap();
        }
    }
}
