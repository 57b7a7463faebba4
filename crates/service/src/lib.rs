//! What every long-running program here needs to be watched and asked: an HTTP API with metrics, and a Unix control socket.
//!
//! | module | content |
//! |---|---|
//! | [`control`] | a Unix socket for people and programs of the same machine |
//! | [`http`] | the HTTP API: listening, tokens, TLS, limits, metrics (feature `http`) |

#[cfg(unix)]
pub mod control;
#[cfg(feature = "http")]
pub mod http;
