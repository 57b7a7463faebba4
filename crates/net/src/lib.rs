//! UDP sockets, timers and the async API: Endpoint, Session, Stream.

pub mod interfaces;
