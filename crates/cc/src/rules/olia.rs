//! Opportunistic linked increases: for each packet acknowledged on r
//! `+ (w_r/RTT_r²) / (Σ_p w_p/RTT_p)² + α_r/w_r`, and −w_r/2 for a loss.
//!
//! Khalili, Gast, Popovic, Le Boudec, *MPTCP is not Pareto-optimal* (2012);
//! draft-khalili-mptcp-congestion-control. ℓ_p is the number of bytes acknowledged since the last loss of p, or between
//! its last two losses if that is more. The *best* paths have the largest ℓ_p/RTT_p², which estimates what TCP would get
//! there. When some of n paths are best but lack the largest window (*collected*), each of these has
//! α = 1/(n · collected) and each path with the largest window α = −1/(n · largest); otherwise α = 0.
//!
//! In equilibrium only best paths are used, with equal windows, and together get what TCP would get on one of them.

use super::rule::{Group, Member, Rule};

pub(crate) struct Olia;

impl Rule for Olia {
    fn increase(&self, group: &Group<'_>) -> f64 {
        let own = group.own();
        let sum: f64 = group.members.iter().map(|path| path.window / path.rtt).sum();
        own.window / (own.rtt * own.rtt) / (sum * sum) + alpha(group) / own.window
    }
}

fn alpha(group: &Group<'_>) -> f64 {
    let most = |value: fn(&Member) -> f64| group.members.iter().map(value).fold(0.0, f64::max);
    let (best_quality, largest_window) = (most(quality), most(|path| path.window));
    let largest = |path: &Member| path.window >= largest_window;
    let collected = |path: &Member| quality(path) >= best_quality && !largest(path);
    let count = |is: &dyn Fn(&Member) -> bool| group.members.iter().filter(|path| is(path)).count() as f64;
    let (n, own) = (group.size(), group.own());
    match count(&collected) {
        0.0 => 0.0,
        several if collected(own) => 1.0 / (n * several),
        _ if largest(own) => -1.0 / (n * count(&largest)),
        _ => 0.0,
    }
}

fn quality(path: &Member) -> f64 {
    path.interval / (path.rtt * path.rtt)
}

/// Bytes acknowledged since the last loss and between the two before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intervals {
    since: u64,
    before: u64,
}

impl Intervals {
    pub(crate) fn on_acked(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
    }

    pub(crate) fn on_loss(&mut self) {
        self.before = self.since;
        self.since = 0;
    }

    pub(crate) fn longest(&self) -> f64 {
        self.since.max(self.before) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_equally_good_paths_are_evened_out() {
        let members = [(20.0, 100.0), (5.0, 100.0), (8.0, 10.0)];
        let members = members.map(|(window, interval)| Member { window, rtt: 0.1, interval });
        let linked = |own: usize| members[own].window / 33.0 / 33.0;
        let extra =
            |own| (Olia.increase(&Group { members: &members, own }) - linked(own)) * members[own].window;
        assert!((extra(0) + 1.0 / 3.0).abs() < 1e-9);
        assert!((extra(1) - 1.0 / 3.0).abs() < 1e-9);
        assert!(extra(2).abs() < 1e-9);
    }

    #[test]
    fn a_path_is_as_good_as_the_longer_of_its_last_two_intervals_between_losses() {
        let mut intervals = Intervals::default();
        intervals.on_acked(700);
        intervals.on_acked(300);
        assert_eq!(intervals.longest(), 1_000.0, "since the beginning");
        intervals.on_loss();
        intervals.on_acked(400);
        assert_eq!(intervals.longest(), 1_000.0, "the interval before counts while it is longer");
        intervals.on_acked(800);
        assert_eq!(intervals.longest(), 1_200.0);
        intervals.on_loss();
        intervals.on_loss();
        assert_eq!(intervals.longest(), 0.0, "older intervals no longer count");
    }

    /// Only the second path has the largest ℓ/RTT²; another has the largest ℓ/RTT, another the shortest RTT.
    #[test]
    fn the_best_path_is_the_one_of_the_longest_interval_by_the_square_of_the_round_trip_time() {
        let members = [(40.0, 0.2, 900.0), (39.9, 0.1, 400.0), (20.0, 0.05, 50.0)];
        let members = members.map(|(window, rtt, interval)| Member { window, rtt, interval });
        let alphas = [0, 1, 2].map(|own| alpha(&Group { members: &members, own }));
        assert_eq!(alphas, [-1.0 / 3.0, 1.0 / 3.0, 0.0]);
    }

    #[test]
    fn several_paths_share_what_evens_them_out() {
        let members = [(20.0, 10.0), (20.0, 10.0), (5.0, 100.0), (8.0, 100.0), (6.0, 10.0)];
        let members = members.map(|(window, interval)| Member { window, rtt: 0.1, interval });
        let alphas = [0, 1, 2, 3, 4].map(|own| alpha(&Group { members: &members, own }));
        assert_eq!(alphas, [-0.1, -0.1, 0.1, 0.1, 0.0]);
    }

    #[test]
    fn nothing_is_evened_out_when_all_best_paths_have_the_largest_window() {
        let members = [(20.0, 100.0), (20.0, 100.0), (5.0, 10.0)];
        let members = members.map(|(window, interval)| Member { window, rtt: 0.1, interval });
        assert_eq!([0, 1, 2].map(|own| alpha(&Group { members: &members, own })), [0.0; 3]);
    }
}
