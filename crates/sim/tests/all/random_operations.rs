//! Hundreds of random runs: no invariant may be violated.
//!
//! A failure prints the command that replays it. `cargo xtask soak` runs 20,000 seeds; to choose others:
//! `ANABRANCH_SEEDS=2000..3000 cargo test -p anabranch-sim --test all random_operations`.

#[path = "../random/mod.rs"]
mod random;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const SEEDS: Range<u64> = 0..500;

fn outcome(seed: u64) -> Result<random::Summary, String> {
    let run = catch_unwind(AssertUnwindSafe(|| random::run(seed)));
    let text = match run {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(broken)) => format!("at {:.3} s: {}", broken.at.as_secs_f64(), broken.what),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        }
    };
    Err(format!(
        "seed {seed} {text}\n  ANABRANCH_SEED={seed} cargo test -p anabranch-sim --test all random_operations::replay -- --nocapture"
    ))
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("ANABRANCH_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("ANABRANCH_SEEDS is like 0..2000");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn no_invariant_breaks_under_random_operations() {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(text) = outcome(seed) {
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort();
    let shown = failures.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} seeds failed:\n{shown}", failures.len(), seeds.end - seeds.start);
}

/// Seeds that once found a fault.
macro_rules! regressions {
    ($($name:ident: $seed:expr,)*) => {
        $(#[test]
        fn $name() {
            outcome($seed).unwrap_or_else(|text| panic!("{text}"));
        })*
    };
}

regressions! {
    closing_with_nothing_left_to_deliver_says_so_at_once: 13,
    a_path_that_swallows_large_packets_and_answers_small_ones_goes_on: 59,
    a_probe_of_the_path_mtu_leaves_a_small_window_to_data: 100,
    a_reset_where_the_bytes_happen_to_end_is_no_end: 104,
    overdue_packets_do_not_make_the_ends_drown_each_other_in_probes: 255,
    a_lost_probe_of_an_idle_path_takes_no_room_from_the_others: 630,
    an_acknowledgement_that_comes_after_the_timeout_still_counts: 1757,
    reports_on_a_slow_path_leave_room_to_data: 10538,
    packets_a_little_below_the_path_mtu_that_never_arrive_are_noticed: 16280,
    the_last_word_goes_where_the_peer_is_now: 46207,
    a_path_follows_its_peer_to_an_address_that_another_path_has_found_before: 2586,
    what_probes_a_failed_path_takes_nothing_from_a_window_that_all_share: 328_744,
    stopping_a_stream_that_the_peer_gave_up_takes_no_credit_back: 308_803,
    who_never_heard_a_peer_that_ended_gives_up_connecting: 363_692,
    an_answer_to_one_question_does_not_take_the_place_of_another: 373_507,
    who_never_gets_through_gives_up_while_others_would_go_on: 528_163,
}

/// Runs and describes one seed: that of `ANABRANCH_SEED`, or the first.
#[test]
fn replay() {
    let seed = std::env::var("ANABRANCH_SEED").map_or(0, |text| text.parse().expect("a number"));
    println!("{}", random::describe(seed));
    println!("{:#?}", outcome(seed).unwrap_or_else(|text| panic!("{text}")));
}
