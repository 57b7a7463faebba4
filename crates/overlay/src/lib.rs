//! The cores of the overlay, without sockets or a clock.
//!
//! | module | content |
//! |---|---|
//! | [`select`] | which paths to use: scores, shared links, maximum flow, disjoint chains, all on one graph |
//! | [`sense`] | distances between relays: measured with few probes, reported as changes, otherwise estimated |
//! | [`admission`] | how many sessions a relay or a controller admits, and which session ends when it is full |
//! | [`grant`] | permission to use relays: signed grants, guests, and the time of day |
//! | [`controller`] | registers relays, and grants clients their use |
//! | [`relay`] | handles requests and forwards packets |
//! | [`port_mapping`] | asks a router to let packets in: PCP and NAT-PMP |
//!
//! The services around these cores, with sockets, storage and sessions, are in `daemon`. `docs/explanation/overlay.md`
//! explains how the parts work together.

pub mod admission;
mod codec;
pub mod controller;
pub mod grant;
pub mod port_mapping;
pub mod relay;
pub mod select;
pub mod sense;

pub use codec::MessageError;
