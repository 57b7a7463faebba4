//! The cores of the overlay, without sockets or a clock.
//!
//! | module | what |
//! |---|---|
//! | [`select`] | which paths to use: scores, shared links, maximum flow, disjoint chains, all on one graph |
//! | [`sense`] | how far apart relays are: measured by few probes, told by changes, else estimated |
//! | [`admission`] | how many sessions a relay or a controller admits, and whose ends when it is full |
//! | [`grant`] | who may use relays: signed grants, guests, and the time of day they depend on |
//! | [`controller`] | which relays there are, who may use how much of them, and grants that say so |
//! | [`relay`] | what a relay does with requests and with packets |
//!
//! The services that join them to sockets, storage and sessions are in `daemon`; `docs/explanation/overlay.md` tells how
//! the parts work together.

pub mod admission;
mod codec;
pub mod controller;
pub mod grant;
pub mod relay;
pub mod select;
pub mod sense;

pub use codec::MessageError;
