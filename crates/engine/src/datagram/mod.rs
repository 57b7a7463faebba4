//! Datagrams with better odds: copies of them, and parity that restores lost ones (PSMC [T8]).
//!
//! Each class has a [`DatagramMode`]. *Redundant* datagrams are sent on every path at once. *Protected* ones are gathered
//! in blocks. A block is closed when it is full, or soon after its first datagram. It is followed by as many pieces of
//! parity as the loss measured on its paths requires (`loss`). Without loss there are no blocks, and protected datagrams
//! cost nothing. Parity takes the paths that carried the fewest datagrams of its block. Copies and parity count as data:
//! congestion windows and pacing apply, and those that wait too long are dropped.
//!
//! ```text
//! send:    outgoing ─ number ─▶ a path        (copies ─▶ the other paths)
//!                        └─▶ block ─ full, or late ─▶ code ─▶ parity ─▶ paths that carried little of it
//! receive: number ─ seen before? ─▶ inbox
//!             └─▶ kept for a second ─ with enough parity ─▶ code ─▶ missing datagrams ─▶ inbox
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `loss` | the loss of each path, and the parity it requires |
//! | `code` | the erasure code over a block |
//! | `sending` | numbers, blocks, and copies and parity that wait for a path |
//! | `seen` | the numbers received |
//! | `mending` | the receiver's blocks, and restoring lost datagrams |
//! | `turns` | the rate limit of restoring |
//! | `frontier` | what the order on each path proves lost |
//! | `lateness` | how late datagrams come behind later ones |
//! | `ordering` | datagrams that wait for earlier ones, where the receiver wants order |
//! | `outlet` | datagrams that become deliverable together and leave one after another |
//! | `source` | datagrams that wait outside the session until a path may carry them |

mod code;
mod frontier;
mod lateness;
mod loss;
mod mending;
mod ordering;
mod outlet;
mod seen;
mod sending;
mod source;
mod turns;

use anabranch_wire::Span;

pub(crate) use mending::Mending;
pub(crate) use ordering::{Arrived, Inflow, Ordering};
pub(crate) use sending::{Carrier, Sending, Spares};
pub use source::{DatagramSource, Pulled};

/// How the datagrams of a class are protected against loss. Without effect if the peer does not repair datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramMode {
    /// Each is sent once.
    #[default]
    Once,
    /// Each is sent on every path that carries data; the first to arrive counts.
    Redundant,
    /// As many pieces of parity follow as the loss on the paths requires (PSMC [T8]).
    Protected,
}

/// The parameters of protected datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protection {
    /// Most datagrams in a block, 1 to 32. Larger blocks need less parity and wait longer for it.
    pub block: u8,
    /// Longest time from the first datagram of a block to its closing.
    pub patience: Span,
    /// Most pieces of parity for each datagram of a block, above 0 and up to 1; one piece is always allowed.
    pub most: f64,
    /// Send parity even without loss: enough to restore the datagrams of the block's busiest path, within `most`. This
    /// covers a path that dies without warning.
    pub outlive_path: bool,
}

impl Default for Protection {
    fn default() -> Self {
        Self { block: 16, patience: Span::from_millis(20), most: 0.5, outlive_path: false }
    }
}
