//! Fuzz targets that run on stable Rust. Each takes any bytes, and panics or never ends if it finds a fault.
//!
//! Inputs are mutations of the corpus in `corpus/TARGET/`. An input on which a target fails is added there, and `cargo
//! test` replays it from then on. Without coverage feedback, each corpus begins with one valid input of every kind, and
//! mutations are small.

mod capture;
mod consent;
mod decoders;
mod grants;
mod handshake;
mod mutate;
mod session;
mod watch;

pub use mutate::Mutator;
pub use watch::{Found, MOST, feed};

/// A name and the function that takes an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 16] = [
    ("header", decoders::header),
    ("frames", decoders::frames),
    ("params", decoders::params),
    ("text", decoders::text),
    ("relay", decoders::relay),
    ("controller", decoders::controller),
    ("sense", decoders::sense),
    ("grants", grants::unsigned),
    ("signed", grants::signed),
    ("consent", consent::consent),
    ("capture", capture::capture),
    ("keys", capture::keys),
    ("transfer", decoders::transfer),
    ("handshake", handshake::messages),
    ("packets", handshake::packets),
    ("session", session::session),
];

/// The folder with a target's inputs.
#[must_use]
pub fn corpus(target: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}
