//! Datagrams that wait outside the session until a path may carry them.
//!
//! A program that sends more than its paths carry wants its own queue discipline: fair between flows, short, by class. So
//! the session takes no such datagrams in advance. When a path has room, it asks the source for one and shows it the
//! paths, as it does for a [`Scheduler`](crate::Scheduler).

use anabranch_wire::{DatagramFrame, PathId, Time};

use crate::schedule::{PathView, SessionView};

/// A queue of datagrams outside the session.
pub trait DatagramSource<P>: Send {
    /// True while a datagram waits.
    fn is_waiting(&self) -> bool;

    /// Takes the next datagram for these paths out of the queue. `paths` is sorted by id and never empty; at least one has a budget.
    fn next(&mut self, session: &SessionView, paths: &[PathView]) -> Pulled<P>;
}

/// The answer of a [`DatagramSource`].
#[derive(Debug)]
pub enum Pulled<P> {
    /// Send this datagram on this path.
    Send {
        /// One of the paths shown, with a budget.
        path: PathId,
        /// The datagram. One that is too large for the path is dropped.
        datagram: DatagramFrame<P>,
    },
    /// Send nothing now; ask again at this time or when something changes.
    Wait(Time),
}
