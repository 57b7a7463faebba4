//! Any path breaks in any way at any moment; the session goes on (mTCP §3.5 [M12, M13]).
//!
//! `anabranch sim run failures` runs as many cases as one likes; here are a few of each kind.

use std::ops::Range;

use anabranch_sim::failure::Case;

const CASES: Range<u64> = 0..14;
/// Once broken: a path that answered and did not carry; what was sent while all paths were in doubt; a window found while
/// acknowledgements took a longer way back; and one found among losses before they were known for trouble.
const BROKEN_ONCE: [u64; 4] = [305, 571, 1220, 2488];

#[test]
fn a_redundant_stream_pauses_for_the_difference_of_delays_at_most() {
    let breaches = CASES.flat_map(|number| {
        let case = Case::draw(number);
        case.run_redundant().breaches(&case)
    });
    let found: Vec<_> = breaches.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_break_of_any_path_in_any_way_at_any_moment_is_bridged() {
    let half = |first: usize| {
        let breaches = |number| {
            let case = Case::draw(number);
            case.run().breaches(&case)
        };
        let cases = CASES.chain(BROKEN_ONCE);
        move || cases.skip(first).step_by(2).flat_map(breaches).collect::<Vec<_>>()
    };
    let other = std::thread::Builder::new().spawn(half(1)).expect("a thread");
    let mut found = half(0)();
    found.extend(other.join().expect("the other half"));
    assert!(found.is_empty(), "{}", found.join("\n"));
}
