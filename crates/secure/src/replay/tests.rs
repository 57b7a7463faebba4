use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn marked(numbers: impl IntoIterator<Item = u64>) -> ReplayWindow {
    let mut window = ReplayWindow::default();
    for number in numbers {
        assert!(window.mark(Fsn(number)), "{number} was refused");
    }
    window
}

#[test]
fn a_number_is_accepted_once() {
    let mut window = marked([0, 1, 5, 3]);
    for number in [0, 1, 3, 5] {
        assert!(!window.check(Fsn(number)));
        assert!(!window.mark(Fsn(number)));
    }
    for number in [2, 4, 6, 1000] {
        assert!(window.check(Fsn(number)));
    }
    assert_eq!(window.next(), Fsn(6));
}

#[test]
fn checking_changes_nothing() {
    let window = marked([7]);
    let before = format!("{window:?}");
    assert!(window.check(Fsn(3)) && window.check(Fsn(1 << 40)) && !window.check(Fsn(7)));
    assert_eq!(format!("{window:?}"), before);
}

#[test]
fn a_path_in_order_stays_small_however_long_it_runs() {
    let window = marked(0..200_000);
    assert_eq!(window.memory(), 16);
    assert!((0..200_000).step_by(977).all(|number| !window.check(Fsn(number))));
}

#[test]
fn numbers_late_by_thousands_are_still_accepted_and_only_once() {
    let late: Vec<u64> = (0..40_000).filter(|number| number % 10 == 3).collect();
    let mut window = marked((0..40_000).filter(|number| number % 10 != 3));
    assert_eq!(window.memory() as u64, ReplayWindow::MAX_LEN / 8);
    for number in late.into_iter().filter(|number| *number >= 8000) {
        assert!(window.mark(Fsn(number)), "{number} was refused");
        assert!(!window.mark(Fsn(number)), "{number} was taken twice");
    }
}

#[test]
fn the_edge_of_the_window_is_where_it_is_documented() {
    let highest = 10 * ReplayWindow::MAX_LEN + 5;
    let mut window = marked([0, highest]);
    let floor = (highest / 64 + 1) * 64 - ReplayWindow::MAX_LEN;
    assert!(!window.check(Fsn(floor - 1)));
    assert!(window.check(Fsn(floor)));
    assert!(window.mark(Fsn(floor)));
    assert!(!window.check(Fsn(floor)));
    // The next word pushes out the oldest.
    assert!(window.mark(Fsn(highest + 64)));
    assert!(!window.check(Fsn(floor + 63)));
    assert!(window.check(Fsn(floor + 64)));
}

#[test]
fn a_jump_over_the_whole_window_makes_no_received_number_acceptable_again() {
    let mut window = marked(0..1000);
    assert!(window.mark(Fsn(1 << 60)));
    assert!((0..1000).all(|number| !window.check(Fsn(number))));
    assert!(!window.check(Fsn((1 << 60) - ReplayWindow::MAX_LEN)));
    assert!(window.check(Fsn((1 << 60) - 1)));
    assert!(!window.check(Fsn(u64::MAX)));
}

#[test]
fn words_that_left_a_small_window_count_as_seen_when_it_grows() {
    let mut window = marked(0..640);
    assert_eq!(window.memory(), 16);
    assert!(window.mark(Fsn(900)));
    assert!(window.memory() > 16);
    assert!((0..640).all(|number| !window.check(Fsn(number))));
    assert!((640..900).all(|number| window.check(Fsn(number))));
}

#[test]
fn at_rest_only_the_newest_numbers_are_stored_and_none_is_accepted_twice() {
    let mut window = marked((0..5_000).filter(|number| number % 10 != 3));
    window.rest();
    assert_eq!(window.memory(), 16);
    // 4_999 lies in the word that begins at 4_992, the one before at 4_928.
    assert!((4_928..5_000).all(|number| window.check(Fsn(number)) == (number % 10 == 3)));
    assert!((0..4_928).all(|number| !window.check(Fsn(number))));
    assert!(window.mark(Fsn(4_933)) && !window.mark(Fsn(4_933)) && window.mark(Fsn(5_000)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a set that stores everything: nothing is accepted twice, nothing recent is refused.
    #[test]
    fn it_agrees_with_a_set_that_never_forgets(
        steps in prop::collection::vec((0_u64..3000, prop::bool::weighted(0.7), 0_u64..40_000), 1..400)
    ) {
        let (mut window, mut seen, mut highest) = (ReplayWindow::default(), BTreeSet::new(), 0);
        for (step, forward, back) in steps {
            let number = if forward { highest + step } else { highest - back.min(highest) };
            let taken = window.mark(Fsn(number));
            if seen.contains(&number) {
                prop_assert!(!taken, "{} was taken twice", number);
            } else if number + ReplayWindow::MAX_LEN - 64 > highest {
                prop_assert!(taken, "{} was refused, highest {}", number, highest);
            }
            if taken {
                seen.insert(number);
                highest = highest.max(number);
            }
            prop_assert!(window.memory() as u64 <= ReplayWindow::MAX_LEN / 8);
        }
    }
}
