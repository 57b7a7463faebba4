//! A path that is cut for hours costs no more with every hour, and is used again after its repair.

use anabranch_experiments::scenario::Scenario;
use stats_alloc::Region;

use super::{ALLOCATOR, turn};

/// Bytes allocated by a run with a cut of `cut` seconds, and Mbit/s over the path in the minute after it.
fn run(cut: u64) -> (usize, f64) {
    let text = format!(
        "duration = \"{end} s\"\nwarm_up = \"{mended} s\"\nsample = \"10 s\"\n\
         [[link]]\nname = \"a\"\nrate = \"1 Mbit/s\"\ndelay = \"10 ms\"\n\
         [[link]]\nname = \"b\"\nrate = \"1 Mbit/s\"\ndelay = \"10 ms\"\n\
         [[flow]]\nname = \"f\"\npaths = [\"a\", \"b\"]\n\
         script = [[\"0 s\", \"1 MB\"], [\"{mended} s\", \"100 MB\"]]\n\
         [[event]]\nat = \"2 s\"\nlink = \"b\"\ndown = true\n\
         [[event]]\nat = \"{mended} s\"\nlink = \"b\"\ndown = false\n",
        mended = cut + 2,
        end = cut + 62,
    );
    let scenario = Scenario::parse(&text, "cut").expect("a scenario");
    let region = Region::new(ALLOCATOR);
    let report = scenario.run(1).expect("a network");
    (region.change().bytes_allocated, report.metrics["flow.f.path2.goodput_mbit_s"])
}

#[test]
fn a_path_that_stays_cut_for_hours_is_probed_at_the_same_cost_and_used_again() {
    let _turn = turn();
    let (short, long, longer) = (run(100), run(10_000), run(20_000));
    println!("{short:?} {long:?} {longer:?}");
    let used = |(_, goodput): (usize, f64)| goodput > 0.8;
    assert!(used(short) && used(long) && used(longer), "{short:?} {long:?} {longer:?}");
    let each = [long.0 - short.0, longer.0 - long.0];
    assert!((each[1] as f64) < each[0] as f64 * 1.5, "{each:?} bytes for 10,000 s more each");
}
