//! The trait of schedulers, their view of paths and session, and their decisions.

use anabranch_wire::{PathId, Rate, Span, Time};
use smallvec::SmallVec;

/// A path as a scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    pub id: PathId,
    /// Bytes that it may send now: what window and pacing allow, and less while its queue is kept short for urgent data.
    pub budget: u64,
    /// The same for urgent data.
    pub room: u64,
    /// The round trip that urgent data can expect there, apart from other data of this session.
    pub calm_rtt: Span,
    /// When pacing lets it send again; in the past when the window is the limit.
    pub ready_at: Time,
    /// Bytes that may be in flight: the congestion window, or what a rate limit leaves of it in a round trip.
    pub window: u64,
    /// Bytes in flight: `pipe_i` of [M3].
    pub in_flight: u64,
    /// Smoothed round-trip time, queueing included. While nothing is in flight, a queue that stood before drains.
    pub rtt: Span,
    /// Lowest recent round-trip time.
    pub min_rtt: Span,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Span,
    /// Its delivery rate: the measured one, or in slow start a window per round trip if that is more.
    pub rate: Rate,
    /// Largest packet in bytes.
    pub mtu: u64,
    /// Bytes sent so far, for schedulers that even out use.
    pub bytes_sent: u64,
    /// Load weight, 1 when all paths are equal (MPMTP-AR §3.5 [R6]).
    pub weight: f64,
}

/// The session as a scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct SessionView {
    pub now: Time,
    /// Whether an application waits for room to write, so more will follow the backlog.
    pub more_expected: bool,
    /// The peer's receive window: bytes that may be in flight or waiting there at the same time.
    pub window: u64,
}

/// The data to send.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Bytes behind this decision: all lost data, or all new data.
    pub bytes: u64,
    /// Whether it was lost and is sent again.
    pub resend: bool,
    /// Type of service, 0 to 15; streams are 0.
    pub class: u8,
    /// Hash of the inner flow of a datagram, or a stream's id.
    pub flow: u32,
}

/// A scheduler's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Send up to `run` bytes on this path before the next decision.
    Send {
        path: PathId,
        /// Bytes.
        run: u64,
    },
    /// Send it on the first of these, and copies on the others as they have room.
    Duplicate(SmallVec<[PathId; 4]>),
    /// Send nothing now; decide again at this time or when something changes.
    Wait(Time),
}

/// A rule that spreads data over paths. Implement it to add your own.
pub trait Scheduler: Send {
    /// Chooses the path of one item. `paths` is sorted by id and never empty; at least one has a budget.
    fn pick(&mut self, session: &SessionView, paths: &[PathView], item: &Item) -> Decision;

    /// True if small messages beside bulk data take the path with the least delay instead of the one picked.
    fn lets_messages_pass(&self) -> bool {
        false
    }
}

/// The paths that may send now.
pub(super) fn open(paths: &[PathView]) -> impl Iterator<Item = &PathView> + Clone {
    paths.iter().filter(|path| path.budget > 0)
}

/// How much a path may send before the next decision: a batch that the driver can pass to the system at once, but at most
/// a quarter of the window, so that paths take turns.
pub(crate) fn run_length(path: &PathView) -> u64 {
    path.budget.min(path.window / 4).clamp(path.mtu, 64 * 1024)
}
