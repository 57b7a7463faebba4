//! The inputs of a controller's decisions.

use std::sync::Mutex;

use anabranch_wire::Time;

use super::directory::Directory;
use super::policy::Policy;
use crate::grant::UnixTime;

/// The parts of a controller.
#[derive(Debug)]
pub struct Controller<'a, S> {
    /// The store that all controllers share.
    pub store: &'a S,
    /// The operator's policy.
    pub policy: &'a Policy,
    /// This controller's view of the relays.
    pub directory: &'a Mutex<Directory>,
}

/// The time of a decision by both clocks of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The monotonic clock.
    pub local: Time,
    /// The calendar clock.
    pub wall: UnixTime,
}
