//! Datagrams that are to arrive: copies of them, and parity that mends what is lost (PSMC [T8]).
//!
//! Each class has a [`DatagramMode`]. *Redundant* datagrams leave on every path at once. *Protected* ones are gathered in
//! blocks: a block is closed when it is full, or soon after its first datagram, and is followed by so many pieces of parity
//! as the loss measured on its paths asks for (`loss`). While nothing is lost there are no blocks, and protected datagrams cost
//! nothing. Parity takes the paths that carried the fewest datagrams of its block. Copies and parity are data like any
//! other: congestion windows and pacing hold them back, and what has waited for too long is dropped.
//!
//! ```text
//! send:    outgoing ─ number ─▶ a path        (copies ─▶ the other paths)
//!                        └─▶ block ─ full, or late ─▶ code ─▶ parity ─▶ paths that carried little of it
//! receive: number ─ seen before? ─▶ inbox
//!             └─▶ kept for a second ─ with enough parity ─▶ code ─▶ what was missing ─▶ inbox
//! ```
//!
//! | file | what |
//! |---|---|
//! | `loss` | what is lost on each path, and how much parity that asks for |
//! | `code` | the erasure code over a block |
//! | `sending` | numbers, blocks, copies and parity that wait for a path |
//! | `seen` | which numbers came |
//! | `mending` | what is kept of blocks at the receiver |
//! | `ordering` | datagrams that wait for those before them, where the receiver wants order |

mod code;
mod loss;
mod mending;
mod ordering;
mod seen;
mod sending;
mod turns;

use anabranch_wire::Span;

pub(crate) use mending::Mending;
pub(crate) use ordering::{Inflow, Ordering};
pub(crate) use sending::{Carrier, Sending, Spares};

/// What is done so that the datagrams of a class arrive. Without effect on a peer that does not mend datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramMode {
    /// Each leaves once.
    #[default]
    Once,
    /// Each leaves on every path that carries data; the first to arrive counts.
    Redundant,
    /// As many pieces of parity follow as the loss on the paths asks for (PSMC [T8]).
    Protected,
}

/// How protected datagrams are protected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protection {
    /// Datagrams in a block at most, 1 to 32. More need less parity and wait longer for it.
    pub block: u8,
    /// A block is closed so long after its first datagram at the latest.
    pub patience: Span,
    /// Most pieces of parity for each datagram of a block, above 0 and up to 1; one piece there may always be.
    pub most: f64,
    /// There is parity even while nothing is lost, enough to mend what the block's busiest path carries of it, as far
    /// as `most` allows: a path may die without a loss that lasts.
    pub outlive_path: bool,
}

impl Default for Protection {
    fn default() -> Self {
        Self { block: 16, patience: Span::from_millis(20), most: 0.5, outlive_path: false }
    }
}
