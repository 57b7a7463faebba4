//! The cores of the overlay, without sockets or a clock.
//!
//! | module | what |
//! |---|---|
//! | [`select`] | which paths to use: scores, shared links, maximum flow, disjoint chains, all on one graph |
//! | [`relay`] | what a relay does with requests and with packets |
//! | [`grant`] | who may use relays: signed grants, revocations, guests, and the time of day they depend on |
//!
//! The services that join them to sockets, storage and sessions are in `daemon`; `docs/overlay.md` tells how
//! the parts work together.

pub mod select;
