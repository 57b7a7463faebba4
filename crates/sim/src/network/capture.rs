//! Packets as the ends of a network see them, for traces.

use anabranch_wire::{Length, Message, Time};

use super::packets::Destination;

/// A packet at the moment when a session sent or received it.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When.
    pub at: Time,
    /// Whose: the place of the flow in the plan; flows of arrivals follow the plan's own.
    pub flow: usize,
    /// Over which of the flow's paths, by its place in the plan.
    pub path: usize,
    /// Whether the packet is on its way to the server.
    pub to_server: bool,
    /// Whether it was sent now; else it was received now.
    pub sent: bool,
    /// UDP payload in bytes.
    pub size: u32,
    /// What it says.
    pub message: Message<Length>,
}

impl Captured {
    pub(super) fn new(
        at: Time,
        (to, sent): (Destination, bool),
        size: u32,
        message: &Message<Length>,
    ) -> Self {
        Self {
            at,
            flow: to.flow as usize,
            path: usize::from(to.path),
            to_server: to.end == 1,
            sent,
            size,
            message: message.clone(),
        }
    }
}
