//! Queues drained elsewhere: control frames for the peer, events for the application, PID changes for the driver.

use std::collections::VecDeque;

use anabranch_wire::PathId;

use crate::control::{Control, ControlQueue};
use crate::event::{Event, PathChange, PidChange};
use crate::rare_queue::RareQueue;
use crate::route::Route;

/// Limit of waiting events for those that a peer can cause at will.
const MAX_EVENTS: usize = 1024;

/// Queues that others drain.
#[derive(Default)]
pub(super) struct Outbox {
    /// Routes over which INIT-ACK is owed.
    pub greetings: RareQueue<Route>,
    pub pid_changes: RareQueue<PidChange>,
    pub control: ControlQueue,
    pub events: VecDeque<Event>,
}

impl Outbox {
    /// Adds an event about a path.
    pub(super) fn tell(&mut self, path: PathId, change: PathChange) {
        self.events.push_back(Event::Path { path, change });
    }

    /// Adds an event that a peer can cause at will, unless very many wait: then no one reads them. True when
    /// it was added.
    pub(super) fn tell_if_read(&mut self, event: Event) -> bool {
        let room = self.events.len() < MAX_EVENTS;
        if room {
            self.events.push_back(event);
        }
        room
    }

    /// Requests that a control frame be sent.
    pub(super) fn want(&mut self, control: Control) {
        self.control.push(control);
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        if self.control.is_empty() {
            self.control = ControlQueue::default();
        }
        self.events.shrink_to_fit();
    }
}
