//! Fuzz targets that run on stable Rust: each takes any bytes and panics when something is wrong.
//!
//! Inputs are mutations of the corpus in `corpus/TARGET/`; what made a target panic is put there and replayed by
//! `cargo test` from then on. There is no coverage feedback: instead each target's corpus begins with one valid input
//! of every kind, and mutations are small.

mod decoders;
mod handshake;
mod mutate;
mod session;

pub use mutate::Mutator;

/// A name and what to do with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 12] = [
    ("header", decoders::header),
    ("frames", decoders::frames),
    ("params", decoders::params),
    ("text", decoders::text),
    ("relay", decoders::relay),
    ("controller", decoders::controller),
    ("sense", decoders::sense),
    ("grants", decoders::grants),
    ("transfer", decoders::transfer),
    ("handshake", handshake::messages),
    ("packets", handshake::packets),
    ("session", session::session),
];

/// Where the inputs of a target are kept.
#[must_use]
pub fn corpus(target: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}
