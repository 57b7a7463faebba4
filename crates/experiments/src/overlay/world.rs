//! Relays in towns on a globe, with the delay and loss between any two: a function of the seed.

use anabranch_wire::{Rate, Span};

use anabranch_sim::chance::{Chance, seed_of};

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x676c_6f62;

/// The places of relays.
#[derive(Clone, Debug)]
pub struct World {
    seed: u64,
    relays: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// On the unit sphere.
    at: [f64; 3],
    /// Round-trip time of the access link in milliseconds.
    access_ms: f64,
    /// Loss of the access link, out and in.
    loss: [f64; 2],
    /// Capacity out and in.
    rate: [Rate; 2],
    /// Burst of its shaper, in bytes.
    bucket: u32,
}

/// Nominal rates of access links, in Mbit/s.
const RATES: [f64; 6] = [10.0, 25.0, 50.0, 100.0, 250.0, 500.0];

/// The network between two relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    /// Round-trip time without queues.
    pub rtt: Span,
    /// Fraction lost one way.
    pub loss: f64,
    /// Capacity of the slower access link, and the rate of other traffic on it.
    pub rate: [Rate; 2],
    /// Burst of the shaper, in bytes.
    pub bucket: u32,
}

impl World {
    /// Places relays: half in a dozen large towns, half elsewhere.
    ///
    /// Access links have 0.2 to 20 ms, 0.01 to 0.5 % loss, 10 to 500 Mbit/s each way, and shapers with bursts up to 100 kB.
    pub fn new(relays: usize, seed: u64) -> Self {
        let mut chance = Chance::new(seed_of(seed, KIND, 0));
        let towns: Vec<[f64; 3]> = (0..12 + relays / 20).map(|_| anywhere(&mut chance)).collect();
        let mut place = |index: usize| {
            let near = if index.is_multiple_of(2) { 12 } else { towns.len() };
            let town = towns[chance.below(near)];
            // Within about 50 km of its centre.
            let off = anywhere(&mut chance).map(|part| part * 0.008);
            Place {
                at: unit([town[0] + off[0], town[1] + off[1], town[2] + off[2]]),
                access_ms: chance.scaled(0.2, 20.0),
                loss: [chance.scaled(1e-4, 5e-3), chance.scaled(1e-4, 5e-3)],
                rate: [(); 2].map(|()| Rate::from_mbit(RATES[chance.below(RATES.len())])),
                bucket: 3_000 + chance.below(97_000) as u32,
            }
        };
        let relays = (0..relays).map(&mut place).collect();
        Self { seed, relays }
    }

    /// How many relays there are.
    pub fn len(&self) -> usize {
        self.relays.len()
    }

    /// True without relays.
    pub fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }

    /// The network between two relays, the same in both directions.
    ///
    /// Light in fibre takes 1.1 to 2.5 times the great circle. Three pairs in a hundred lose 1 to 5 %. Other traffic takes
    /// up to 0.6 of the slower access link.
    pub fn between(&self, from: usize, to: usize) -> Between {
        let (a, b) = (&self.relays[from], &self.relays[to]);
        let pair = (from.min(to) as u64) << 32 | from.max(to) as u64;
        let draw = |what: u64| (seed_of(self.seed, KIND ^ what, pair) >> 11) as f64 / (1_u64 << 53) as f64;
        let cosine: f64 = a.at.iter().zip(b.at).map(|(a, b)| a * b).sum();
        let km = libm::acos(cosine.clamp(-1.0, 1.0)) * 6_371.0;
        // Most detours are short.
        let detour = 1.1 + 1.4 * draw(1) * draw(2) * draw(3);
        let ms = km * 2.0 / 200.0 * detour + a.access_ms + b.access_ms;
        let bad = if draw(4) < 0.03 { 0.01 + 0.04 * draw(5) } else { 0.0 };
        let loss = 1.0 - (1.0 - a.loss[0]) * (1.0 - b.loss[1]) * (1.0 - bad);
        let rate = a.rate[0].min(b.rate[1]);
        let others = rate.mul_f64(0.6 * draw(6));
        Between { rtt: Span::from_secs_f64(ms / 1e3), loss, rate: [rate, others], bucket: a.bucket }
    }
}

fn anywhere(chance: &mut Chance) -> [f64; 3] {
    let (z, turn) = (chance.between(-1.0, 1.0), chance.between(0.0, std::f64::consts::TAU));
    let flat = (1.0 - z * z).sqrt();
    [flat * libm::cos(turn), flat * libm::sin(turn), z]
}

fn unit(vector: [f64; 3]) -> [f64; 3] {
    let length = vector.iter().map(|part| part * part).sum::<f64>().sqrt();
    vector.map(|part| part / length)
}
