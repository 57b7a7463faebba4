//! `guided`: libFuzzer for one target. `cargo xtask fuzz` builds and runs it.
#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls a function by its C name")]

use std::sync::LazyLock;

use anabranch_fuzz::TARGETS;

/// The variable that names the target.
const TARGET: &str = "ANABRANCH_FUZZ_TARGET";

/// The target's function.
static CHOSEN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var(TARGET).unwrap_or_default();
    let found = TARGETS.into_iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("set {TARGET} to the name of a target, not to {name:?}")).1
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| CHOSEN(input));
