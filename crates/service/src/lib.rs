//! For long-running programs: an HTTP API with metrics, a Unix control socket, and protection of the process itself.
//!
//! | module | content |
//! |---|---|
//! | [`control`] | a Unix socket for people and programs of the same machine |
//! | [`http`] | the HTTP API: listening, tokens, TLS, limits, metrics; files for browsers (feature `http`) |
//! | [`process`] | core dumps, reachable files, available memory |

pub mod control;
#[cfg(feature = "http")]
pub mod http;
pub mod process;
