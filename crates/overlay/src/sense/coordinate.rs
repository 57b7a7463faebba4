//! Network coordinates, after Vivaldi (Dabek, Cox, Kaashoek, Morris: *Vivaldi*, SIGCOMM 2004, §5.4).
//!
//! A node is a point of a space and a height above it: the space stands for the core of the network, the height for the node's own
//! access link. The space is a plane, as
//! in the paper: a third axis told no more in `anabranch sim run overlay`. The round-trip time of two nodes is about the distance of their points plus both heights. Each measurement moves the node a
//! little along the line to the other, by how wrong the distance was, and less when the node is surer of itself than the other.

use serde::{Deserialize, Serialize};

use anabranch_wire::Span;

/// How far a measurement moves a node, and how fast it learns how wrong it is: c_c and c_e of the paper.
const STEP: f64 = 0.25;
/// Least height in milliseconds: nobody is without an access link.
const LEAST_HEIGHT: f64 = 0.05;
/// No coordinate is further out, in milliseconds: whatever a peer says of itself stays within.
const FARTHEST: f64 = 10_000.0;

/// Dimensions of the space.
const AXES: usize = 2;

/// Where a node is, in milliseconds of round-trip time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coordinate {
    /// Place in the core.
    pub at: [f32; AXES],
    /// Above it.
    pub height: f32,
    /// How wrong its distances were of late, relatively; 1 in the beginning.
    pub error: f32,
}

/// A coordinate as it is told: place and height in microseconds, error in 1/10,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed(pub [i32; AXES + 1], pub u16);

impl From<Coordinate> for Placed {
    fn from(coordinate: Coordinate) -> Self {
        let Coordinate { at: [x, y], height, error } = coordinate.bounded();
        // To the nearest: a coordinate that is told on stays what it is.
        let micros = |millis| (f64::from(millis) * 1e3).round() as i32;
        Self([x, y, height].map(micros), (error * 1e4).round() as u16)
    }
}

impl From<Placed> for Coordinate {
    fn from(Placed(place, error): Placed) -> Self {
        let [x, y, height] = place.map(|micros| (f64::from(micros) / 1e3) as f32);
        Self { at: [x, y], height, error: f32::from(error) / 1e4 }.bounded()
    }
}

impl Default for Coordinate {
    fn default() -> Self {
        Self { at: [0.0; AXES], height: LEAST_HEIGHT as f32, error: 1.0 }
    }
}

impl Coordinate {
    /// The same within sensible bounds; what is no number becomes the beginning.
    #[must_use]
    pub fn bounded(self) -> Self {
        if !self.at.iter().chain([&self.height, &self.error]).all(|value| value.is_finite()) {
            return Self::default();
        }
        let far = FARTHEST as f32;
        Self {
            at: self.at.map(|value| value.clamp(-far, far)),
            height: self.height.clamp(LEAST_HEIGHT as f32, far),
            error: self.error.clamp(0.01, 1.0),
        }
    }

    /// The round-trip time to another, as far as coordinates tell.
    #[must_use]
    pub fn rtt(&self, other: &Self) -> Span {
        Span::from_secs_f64(self.distance(other) / 1e3)
    }

    /// How wrong [`Self::rtt`] is likely to be, relatively.
    #[must_use]
    pub fn error_to(&self, other: &Self) -> f64 {
        f64::from(self.error.max(other.error))
    }

    fn distance(&self, other: &Self) -> f64 {
        length(self.from(other)) + f64::from(self.height) + f64::from(other.height)
    }

    fn from(&self, other: &Self) -> [f64; AXES] {
        [0, 1].map(|axis| f64::from(self.at[axis]) - f64::from(other.at[axis]))
    }

    /// Learns from a round-trip time that was measured to `other`. `aside`, numbers from -1 to 1, is the direction in which two
    /// nodes at the same place part.
    pub fn learn(&mut self, other: &Self, rtt: Span, aside: [f64; AXES]) {
        let (other, measured) = (other.bounded(), rtt.as_millis_f64().clamp(LEAST_HEIGHT, FARTHEST));
        let distance = self.distance(&other);
        let (own, theirs) = (f64::from(self.error), f64::from(other.error));
        let weight = own / (own + theirs);
        let wrong = ((distance - measured) / measured).abs();
        let error = wrong * STEP * weight + own * (1.0 - STEP * weight);
        let push = STEP * weight * (measured - distance);
        let apart = self.from(&other);
        let flat = length(apart);
        let heights = f64::from(self.height) + f64::from(other.height);
        let (towards, flat) = if flat > 1e-6 { (apart, flat) } else { (aside, length(aside).max(1e-6)) };
        // Of a vector with height the flat part and the height shrink or grow alike.
        let (along, up) = (push / (flat + heights), push * heights / (flat + heights));
        let at = [0, 1].map(|axis| (f64::from(self.at[axis]) + towards[axis] * along) as f32);
        *self = Self { at, height: (f64::from(self.height) + up) as f32, error: error as f32 }.bounded();
    }

    /// Whether it has moved so far from `told` that others should know.
    #[must_use]
    pub fn differs(&self, told: &Self) -> bool {
        let moved = length(self.from(told)) + f64::from((self.height - told.height).abs());
        moved > 3.0 || (self.error - told.error).abs() > 0.2
    }
}

fn length(vector: [f64; AXES]) -> f64 {
    vector.iter().map(|part| part * part).sum::<f64>().sqrt()
}
