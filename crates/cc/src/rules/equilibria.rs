//! The rules against their closed forms: each runs as a fluid, every path at a fixed loss rate and round-trip time, until
//! its windows are stable.

use super::*;

/// A path's loss rate and round-trip time in seconds.
type PathOf = (f64, f64);

const STEPS: usize = 60_000;

/// The windows in packets at which `kind` settles (the mean of the last half of the run).
fn settle(kind: RuleKind, paths: &[PathOf]) -> Vec<f64> {
    let rule = rule(kind);
    let new = |&(loss, rtt): &PathOf| Member { window: 10.0, rtt, interval: 1.0 / loss };
    let mut members: Vec<Member> = paths.iter().map(new).collect();
    let mut means = vec![0.0; paths.len()];
    let step = paths.iter().map(|path| path.1).fold(f64::INFINITY, f64::min) * 0.2;
    for round in 0..STEPS {
        // All paths at once: a step of one path does not affect the others before the next step.
        let before = members.clone();
        for (own, &(loss, rtt)) in paths.iter().enumerate() {
            let group = Group { members: &before, own };
            let sent = step * before[own].window / rtt;
            let lost = before[own].window - rule.decrease(&group);
            members[own].window += sent * ((1.0 - loss) * rule.increase(&group) - loss * lost);
            let spilled = sent * loss * (rule.spill(&group) - 1.0);
            for other in (0..members.len()).filter(|&other| other != own) {
                members[other].window += spilled * before[other].window;
            }
        }
        members.iter_mut().for_each(|member| member.window = member.window.max(1e-3));
        if round >= STEPS / 2 {
            let later = (STEPS - STEPS / 2) as f64;
            means.iter_mut().zip(&members).for_each(|(mean, member)| *mean += member.window / later);
        }
    }
    means
}

/// TCP's window at a loss rate.
fn tcp(loss: f64) -> f64 {
    (2.0 * (1.0 - loss) / loss).sqrt()
}

/// Packets a second.
fn throughput(windows: &[f64], paths: &[PathOf]) -> f64 {
    windows.iter().zip(paths).map(|(window, path)| window / path.1).sum()
}

/// The most packets a second that TCP would get on any of the paths.
fn best_tcp(paths: &[PathOf]) -> f64 {
    paths.iter().map(|&(loss, rtt)| tcp(loss) / rtt).fold(0.0, f64::max)
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got / want - 1.0).abs() <= tolerance, "{got} is not within {tolerance} of {want}");
}

/// WiFi and 3G as in Fig 4 of the MPTCP paper.
const FIG_4: [PathOf; 2] = [(0.04, 0.01), (0.01, 0.1)];

#[test]
fn every_loss_based_rule_but_cubic_is_tcp_on_a_single_path() {
    let others = [RuleKind::Cubic, RuleKind::Bbr];
    for kind in RuleKind::ALL.into_iter().filter(|kind| !others.contains(kind)) {
        close(settle(kind, &[(0.001, 0.05)])[0], tcp(0.001), 0.005);
    }
}

#[test]
fn reno_takes_a_tcp_share_on_each_path() {
    let windows = settle(RuleKind::Reno, &FIG_4);
    close(windows[0] / 0.01, 693.0, 0.01);
    close(windows[1] / 0.1, 140.7, 0.01);
}

#[test]
fn ewtcp_adds_up_to_one_tcp_and_as_printed_to_more_than_one() {
    let alike = [(0.002, 0.05); 4];
    close(settle(RuleKind::Ewtcp, &alike).iter().sum(), tcp(0.002), 0.005);
    close(settle(RuleKind::EwtcpPrinted, &alike).iter().sum(), tcp(0.002) * 4.0 * 0.5_f64.sqrt(), 0.005);
}

/// P6-fig4, without the paper's 1 − p ≈ 1.
#[test]
fn over_wifi_and_3g_ewtcp_gets_424_coupled_141_and_mptcp_707_packets_a_second() {
    let rate = |kind| throughput(&settle(kind, &FIG_4), &FIG_4);
    close(rate(RuleKind::Ewtcp), 424.0, 0.03);
    close(rate(RuleKind::Coupled), 141.0, 0.03);
    close(rate(RuleKind::Mptcp), 707.0, 0.03);
    close(rate(RuleKind::Lia), 707.0, 0.03);
}

#[test]
fn coupled_puts_everything_on_the_least_lossy_paths() {
    let windows = settle(RuleKind::Coupled, &[(0.002, 0.05), (0.004, 0.05), (0.002, 0.05)]);
    assert!(windows[1] < 0.01, "{windows:?}");
    close(windows[0] + windows[2], tcp(0.002), 0.01);
}

#[test]
fn semi_coupled_splits_45_45_10_where_the_third_path_loses_five_times_as_much() {
    let windows = settle(RuleKind::SemiCoupled, &[(0.01, 0.05), (0.01, 0.05), (0.05, 0.05)]);
    let total: f64 = windows.iter().sum();
    for (window, share) in windows.iter().zip([5.0 / 11.0, 5.0 / 11.0, 1.0 / 11.0]) {
        assert!((window / total - share).abs() < 0.01, "{windows:?}");
    }
}

/// The windows that the rule's file states, for a = 1/n.
#[test]
fn semi_coupled_windows_are_those_of_the_closed_form() {
    let paths = [(0.001, 0.05), (0.003, 0.02), (0.0005, 0.1)];
    let windows = settle(RuleKind::SemiCoupled, &paths);
    let inverse: f64 = paths.iter().map(|path| 1.0 / path.0).sum();
    for (window, (loss, _)) in windows.iter().zip(paths) {
        close(*window, (2.0_f64 / 3.0).sqrt() / loss / inverse.sqrt(), 0.01);
    }
}

/// The windows that the rule's file states.
#[test]
fn lia_windows_are_those_of_the_closed_form() {
    let paths = [(0.002, 0.1), (0.01, 0.02), (0.005, 0.05)];
    let windows = settle(RuleKind::Lia, &paths);
    let sum: f64 = paths.iter().map(|&(loss, rtt)| 1.0 / (loss * rtt)).sum();
    for (window, (loss, _)) in windows.iter().zip(paths) {
        close(*window, best_tcp(&paths) / loss / sum, 0.01);
    }
}

/// RFC 6356 §3: without the cap the long path would have 90 packets, twice as many, since the short one sets the pace.
#[test]
fn lia_takes_on_no_path_more_than_tcp_would() {
    let paths = [(0.05, 0.01), (0.001, 0.2)];
    let windows = settle(RuleKind::Lia, &paths);
    for (window, (loss, _)) in windows.iter().zip(paths) {
        assert!(*window <= 1.01 * tcp(loss), "{windows:?}");
    }
    close(windows[1], tcp(paths[1].0), 0.01);
}

/// Checks the equilibrium of `kind`: on each used path, acks add as much as losses on all paths remove. `left` returns
/// the windows after a loss on a path.
#[track_caller]
fn stands_still(kind: RuleKind, paths: &[PathOf], left: fn(&[f64], usize) -> Vec<f64>) -> Vec<f64> {
    let windows = settle(kind, paths);
    let total: f64 = windows.iter().sum();
    let sent = |path: usize| windows[path] / paths[path].1;
    let lost = |path: usize| paths[path].0 * sent(path);
    for own in (0..paths.len()).filter(|&path| windows[path] > 0.01 * total) {
        let taken = (0..paths.len()).map(|lossy| lost(lossy) * (windows[own] - left(&windows, lossy)[own]));
        close(taken.sum(), (sent(own) - lost(own)) / total, 0.01);
    }
    windows
}

/// R9, step by step: the weight is halved, the others share the difference, the session's window is reduced.
fn csd_leaves(windows: &[f64], lossy: usize) -> Vec<f64> {
    let total: f64 = windows.iter().sum();
    let mut weights: Vec<f64> = windows.iter().map(|window| window / total).collect();
    let halved = weights[lossy] / 2.0;
    let others = 1.0 - weights[lossy];
    weights[lossy] = halved;
    for other in (0..weights.len()).filter(|&other| other != lossy) {
        weights[other] += halved * weights[other] / others;
    }
    weights.iter().map(|weight| weight * (1.0 - halved) * total).collect()
}

/// T7.
fn residual_leaves(windows: &[f64], lossy: usize) -> Vec<f64> {
    let total: f64 = windows.iter().sum();
    windows.iter().map(|window| window * ((total - windows[lossy]) / total).max(0.5)).collect()
}

#[test]
fn csd_equals_one_window_from_which_a_loss_takes_half_a_paths_weight() {
    // n equal paths: √n of TCP's window.
    let alike = stands_still(RuleKind::Csd, &[(0.002, 0.05); 4], csd_leaves);
    close(alike.iter().sum(), tcp(0.002) * 2.0, 0.01);
    stands_still(RuleKind::Csd, &[(0.002, 0.05), (0.003, 0.02)], csd_leaves);
    stands_still(RuleKind::Csd, &[(0.001, 0.05), (0.004, 0.1), (0.002, 0.06)], csd_leaves);
}

/// The weights that the rule's file states.
#[test]
fn csd_weights_are_those_of_the_closed_form() {
    let alike = [(0.001, 0.05), (0.002, 0.05), (0.006, 0.05)];
    let unlike = [(0.001, 0.05), (0.004, 0.1), (0.002, 0.06)];
    for paths in [alike, unlike] {
        let windows = settle(RuleKind::Csd, &paths);
        let total: f64 = windows.iter().sum();
        let moved = |path: usize| {
            let ((loss, rtt), weight) = (paths[path], windows[path] / total);
            let by_losses = loss * weight * (1.0 - weight / 2.0) / (1.0 - weight);
            (by_losses - 2.0 * (1.0 - loss) / (total * total)) / rtt
        };
        close(moved(1), moved(0), 0.01);
        close(moved(2), moved(0), 0.01);
    }
}

#[test]
fn residual_equals_one_window_from_which_a_loss_takes_a_paths_weight() {
    // n equal paths: √(n/2) of TCP's window.
    let alike = stands_still(RuleKind::Residual, &[(0.002, 0.05); 4], residual_leaves);
    close(alike.iter().sum(), tcp(0.002) * 2.0_f64.sqrt(), 0.01);
    stands_still(RuleKind::Residual, &[(0.001, 0.05), (0.004, 0.05)], residual_leaves);
}

#[test]
fn residual_ends_as_tcp_on_the_fastest_path_when_only_losses_limit_the_paths() {
    let windows =
        stands_still(RuleKind::Residual, &[(0.002, 0.1), (0.01, 0.02), (0.001, 0.05)], residual_leaves);
    let total: f64 = windows.iter().sum();
    close(windows[1], total, 0.01);
    close(total, tcp(0.01), 0.01);
}

/// P5: constraint (3) as an equality, constraint (4) for every set of paths.
#[test]
fn mptcp_gets_what_tcp_gets_on_the_best_path_and_no_set_of_paths_gives_more_than_its_best() {
    let cases: [&[PathOf]; 5] = [
        &FIG_4,
        &[(0.01, 0.05), (0.01, 0.05)],
        &[(0.001, 0.2), (0.01, 0.02), (0.005, 0.1)],
        &[(0.02, 0.01), (0.002, 0.1), (0.0005, 0.3), (0.01, 0.05)],
        &[(0.001, 0.05), (0.03, 0.05), (0.03, 0.05)],
    ];
    for paths in cases {
        let windows = settle(RuleKind::Mptcp, paths);
        close(throughput(&windows, paths), best_tcp(paths), 0.01);
        for set in 1_usize..1 << paths.len() {
            let inside = |index: &usize| set & (1 << index) != 0;
            let chosen: Vec<PathOf> = (0..paths.len()).filter(inside).map(|index| paths[index]).collect();
            let theirs: Vec<f64> = (0..paths.len()).filter(inside).map(|index| windows[index]).collect();
            assert!(
                throughput(&theirs, &chosen) <= best_tcp(&chosen) * 1.01,
                "{paths:?} set {set:b}: {windows:?}"
            );
        }
    }
}

/// The first path is TCP's best with 198 packets a second. The second has the lowest loss, the third the shortest round
/// trip; TCP would get 112 and 94 there.
#[test]
fn olia_gets_what_tcp_gets_on_the_best_path_and_leaves_the_others() {
    let paths = [(0.02, 0.05), (0.004, 0.2), (0.2, 0.03)];
    let windows = settle(RuleKind::Olia, &paths);
    close(throughput(&windows, &paths), best_tcp(&paths), 0.02);
    close(windows[0], tcp(0.02), 0.05);
}

/// Loss rates and times that make both paths equally good for TCP, to the last bit.
#[test]
fn olia_evens_out_the_windows_of_the_best_paths_whatever_their_round_trip_times() {
    let best = [(1.0 / 256.0, 1.0 / 16.0), (1.0 / 1024.0, 1.0 / 8.0)];
    let paths = [best[0], (1.0 / 16.0, 1.0 / 16.0), best[1]];
    let windows = settle(RuleKind::Olia, &paths);
    close(throughput(&windows, &paths), best_tcp(&paths), 0.02);
    close(windows[0], windows[2], 0.05);
    assert!(windows[1] < 0.05 * windows[0], "{windows:?}");
}

/// The closed form that the rule's file states.
#[test]
fn balia_gets_what_tcp_gets_on_the_best_path_and_divides_it_by_what_tcp_would_get_on_each() {
    let cases: [&[PathOf]; 3] = [
        &[(0.001, 0.05), (0.01, 0.05)],
        &[(0.01, 0.02), (0.002, 0.1)],
        &[(0.002, 0.1), (0.001, 0.05), (0.02, 0.02), (0.004, 0.04)],
    ];
    for paths in cases {
        let windows = settle(RuleKind::Balia, paths);
        close(throughput(&windows, paths), best_tcp(paths), 0.01);
        let rate = |path: usize| windows[path] / paths[path].1;
        let fastest = (0..paths.len()).map(rate).fold(0.0, f64::max);
        for (path, &(loss, rtt)) in paths.iter().enumerate() {
            let behind = best_tcp(paths) / (tcp(loss) / rtt);
            let alpha = if behind == 1.0 { 1.0 } else { ((9.0 + 60.0 * behind * behind).sqrt() - 5.0) / 2.0 };
            close(fastest / rate(path), alpha, 0.01);
        }
    }
}

#[test]
fn balia_adds_up_to_one_tcp_on_equal_paths_and_separates_almost_equal_ones() {
    close(settle(RuleKind::Balia, &[(0.002, 0.05); 3]).iter().sum(), tcp(0.002), 0.005);
    let windows = settle(RuleKind::Balia, &[(0.002, 0.05), (0.002_02, 0.05)]);
    close(windows[0] / windows[1], 1.66, 0.01);
}
