//! Fuzz targets that run on stable Rust. Each takes any bytes, and panics or never ends if it finds a fault.
//!
//! The corpus in `corpus/TARGET/` has valid inputs of every kind, inputs on which the target once failed, and in
//! `reached.hex` inputs that libFuzzer found to reach more of the code. `cargo test` replays them and mutations of them.

mod capture;
mod consent;
mod decoders;
mod grants;
mod handshake;
mod inside;
mod session;

/// A name and the function that takes an input.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 19] = [
    ("header", decoders::header),
    ("frames", decoders::frames),
    ("params", decoders::params),
    ("text", decoders::text),
    ("relay", decoders::relay),
    ("controller", decoders::controller),
    ("sense", decoders::sense),
    ("port_mapping", decoders::port_mapping),
    ("grants", grants::unsigned),
    ("signed", grants::signed),
    ("consent", consent::consent),
    ("capture", capture::capture),
    ("keys", capture::keys),
    ("transfer", decoders::transfer),
    ("handshake", handshake::messages),
    ("packets", handshake::packets),
    ("session", session::session),
    ("proxy", inside::proxy),
    ("tunnel", inside::tunnel),
];
