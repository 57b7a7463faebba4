//! Network coordinates, after Vivaldi (Dabek, Cox, Kaashoek, Morris: *Vivaldi*, SIGCOMM 2004, §5.4).
//!
//! A coordinate is a point of a plane and a height above it. The plane represents the core of the network, the height
//! the node's access link; a third axis predicted no better in `anabranch sim run overlay`. The round-trip time of two
//! nodes is about the distance of their points plus both heights. Each measurement moves the node along the line to the
//! other by a part of the error. It moves less if the node is more certain of its coordinate than the other.

use serde::{Deserialize, Serialize};

use anabranch_wire::Span;

/// How far a measurement moves a node, and how fast its error estimate adapts: c_c and c_e of the paper.
const STEP: f64 = 0.25;
/// Lowest height in milliseconds: every node has an access link.
const LEAST_HEIGHT: f64 = 0.05;
/// Largest component in milliseconds; values from peers are clamped to it.
const FARTHEST: f64 = 10_000.0;

/// Dimensions of the space.
const AXES: usize = 2;

/// A node's coordinate, in milliseconds of round-trip time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coordinate {
    /// Position in the plane.
    pub at: [f32; AXES],
    /// Height above the plane.
    pub height: f32,
    /// Relative error of its recent predictions; 1 at the start.
    pub error: f32,
}

/// A coordinate as sent: position and height in microseconds, error in 1/10,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed(pub [i32; AXES + 1], pub u16);

impl From<Coordinate> for Placed {
    fn from(coordinate: Coordinate) -> Self {
        let Coordinate { at: [x, y], height, error } = coordinate.bounded();
        // Rounded to the nearest, so a coordinate that is passed on does not change.
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
    /// Clamps all fields; values that are not finite are reset.
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

    /// The predicted round-trip time to another node.
    pub fn rtt(&self, other: &Self) -> Span {
        Span::from_secs_f64(self.distance(other) / 1e3)
    }

    /// The likely relative error of [`Self::rtt`].
    pub fn error_to(&self, other: &Self) -> f64 {
        f64::from(self.error.max(other.error))
    }

    fn distance(&self, other: &Self) -> f64 {
        length(self.from(other)) + f64::from(self.height) + f64::from(other.height)
    }

    fn from(&self, other: &Self) -> [f64; AXES] {
        [0, 1].map(|axis| f64::from(self.at[axis]) - f64::from(other.at[axis]))
    }

    /// Learns from a measured round-trip time to `other`. `aside`, numbers from -1 to 1, is the direction in which
    /// nodes at the same point separate.
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
        // A vector with height scales in its flat part and its height alike.
        let (along, up) = (push / (flat + heights), push * heights / (flat + heights));
        let at = [0, 1].map(|axis| (f64::from(self.at[axis]) + towards[axis] * along) as f32);
        *self = Self { at, height: (f64::from(self.height) + up) as f32, error: error as f32 }.bounded();
    }

    /// Whether it differs enough from `told` to be sent again.
    pub fn differs(&self, told: &Self) -> bool {
        let moved = length(self.from(told)) + f64::from((self.height - told.height).abs());
        moved > 3.0 || (self.error - told.error).abs() > 0.2
    }
}

fn length(vector: [f64; AXES]) -> f64 {
    vector.iter().map(|part| part * part).sum::<f64>().sqrt()
}
