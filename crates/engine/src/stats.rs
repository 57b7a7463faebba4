//! Numbers about a session and its paths, taken as values.

use anabranch_cc::LossCause;
use anabranch_wire::{PathId, PathUse, Rate, Span};

use crate::manager::{Meter, Standing};
use crate::path::PathState;
pub use crate::path::PathStats;
use crate::route::Route;

/// A snapshot of one path.
#[derive(Clone, Debug)]
pub struct PathInfo {
    pub id: PathId,
    pub route: Route,
    /// Whether it carries data.
    pub state: PathState,
    /// How it should be used.
    pub usage: PathUse,
    /// Its current use, or why it carries nothing.
    pub standing: Standing,
    /// The cap that its bytes count against.
    pub meter: Option<Meter>,
    /// The highest rate for packets to the peer, the lower of both ends' limits.
    pub rate_limit: Option<Rate>,
    /// Smoothed round-trip time, zero before the first sample.
    pub rtt: Span,
    /// Lowest recent round-trip time.
    pub min_rtt: Span,
    /// Variation of the round-trip time.
    pub rtt_variance: Span,
    /// Congestion window in bytes.
    pub window: u64,
    /// Bytes in flight: `pipe_i` of mTCP [M3].
    pub in_flight: u64,
    /// Rate at which data was last acknowledged.
    pub delivery_rate: Rate,
    /// Largest UDP payload in use.
    pub mtu: u16,
    /// The cause of its losses, as the window rule `auto` judges.
    pub loss_cause: LossCause,
    /// Paths with the same number are coupled by congestion control.
    pub group: u32,
    /// Reliability from receiver reports, 1 without any (MPMTP-AR [R6]).
    pub reliability: f64,
    /// Counters.
    pub stats: PathStats,
}

/// The figures of a path that callers read many times a second.
#[derive(Clone, Copy, Debug)]
pub struct PathWindow {
    pub route: Route,
    /// Congestion window in bytes.
    pub window: u64,
    /// Largest UDP payload in use.
    pub mtu: u16,
    /// Smoothed round-trip time, zero before the first sample.
    pub rtt: Span,
    /// Times the window was reduced for losses or marks.
    pub reductions: u64,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Stream bytes accepted from the application.
    pub bytes_written: u64,
    /// Stream bytes handed to the application.
    pub bytes_read: u64,
    /// Stream bytes sent again.
    pub bytes_resent: u64,
    /// Stream bytes copied to a faster path while their first path still owed them.
    pub bytes_copied: u64,
    /// Stream bytes that wait for earlier ones.
    pub bytes_reassembling: u64,
    /// Stream bytes that were written and are not acknowledged yet.
    pub bytes_unacknowledged: u64,
    /// Datagrams dropped here because a queue was full.
    pub datagrams_dropped: u64,
    /// Datagrams sent, each counted once.
    pub datagrams_sent: u64,
    /// Copies of datagrams and pieces of parity sent.
    pub spares_sent: u64,
    /// UDP payload bytes of the packets that carried them.
    pub spare_bytes: u64,
    /// Datagrams that arrived or were restored, each counted once.
    pub datagrams_received: u64,
    /// Of these, those that were lost and restored by parity.
    pub datagrams_mended: u64,
    /// Datagrams that arrived again, or so late that they count as repeats.
    pub datagrams_repeated: u64,
    /// Datagrams that arrived before others of their flow and waited for them.
    pub datagrams_reordered: u64,
    /// Gaps in a flow that were given up because too many datagrams waited behind them (PSMC §III.C [T6]).
    pub gaps_overflowed: u64,
    /// Gaps given up because datagrams waited behind them for too long.
    pub gaps_timed_out: u64,
    /// Packets dropped because they could not be used.
    pub packets_ignored: u64,
}
