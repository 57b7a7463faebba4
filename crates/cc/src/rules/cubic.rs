//! CUBIC: after a loss the window is a cubic function of time, flat at the window of the loss (RFC 9438).
//!
//! `W(t) = C·(t − K)³ + W_max`, with `K = ∛((W_max − w)/C)`, C = 0.4, and t in seconds since congestion avoidance began
//! at window w. An ack moves the window towards W(t + RTT), by at most half a window a round trip. A loss leaves
//! β = 0.7 of the window; a loss before the last W_max was reached sets W_max below the window (*fast convergence*). If
//! Reno with the same average would have a larger window, Reno's is used (§4.3). Time in which the window did not limit
//! the sender does not count in t. After a timeout the curve begins at its flat point, with W_max as the window at the
//! end of slow start (§4.8).
//!
//! **Groups.** The paths of one group act as one flow: each of n equal paths has 1/n of C and of Reno's increase, and a
//! loss on one is a loss on all. So the sum of their windows moves like the window of one flow, whether their losses
//! coincide or not. With different round-trip times, all shares are scaled so that the group is as fast as one flow on
//! its fastest path.

use anabranch_wire::{Span, Time};

const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// A curve continues until the path's share of C has changed by more than this: queues change round-trip times, and
/// with them the shares, all the time.
const SAME_SHARE: f64 = 0.2;
/// The increase that gives Reno with β the same average as with 1/2 (RFC 9438 §4.3).
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The curve of one window. Windows are in packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cubic {
    /// The window at which the curve is flat; zero before the first loss and after a timeout.
    w_max: f64,
    /// The window before the last loss; zero before the first.
    before_loss: f64,
    epoch: Option<Epoch>,
    paused: Option<Time>,
}

/// The packets that an ack acknowledges on a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub(crate) packets: f64,
    /// The path's share of its group's growth.
    pub(crate) share: f64,
}

/// One period of congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Time,
    /// C times the path's share in its group.
    c: f64,
    k: f64,
    plateau: f64,
    reno: f64,
}

impl Cubic {
    /// The window after an ack at a window of `window`; `rtt` is in seconds.
    pub(crate) fn grow(&mut self, now: Time, window: f64, rtt: f64, acked: Acked) -> f64 {
        let Acked { packets, share } = acked;
        let pause = self.paused.take().map_or(Span::ZERO, |since| now.since(since));
        let c = C * share;
        let known = self.epoch.filter(|epoch| (epoch.c - c).abs() <= SAME_SHARE * epoch.c);
        let mut epoch = match known {
            Some(known) => Epoch { start: known.start + pause, ..known },
            None => Epoch::begin(now, window, self.w_max, c),
        };
        let alpha = if epoch.reno < self.before_loss { RENO_ALPHA } else { 1.0 };
        epoch.reno += alpha * share * packets / window;
        self.epoch = Some(epoch);
        let t = now.since(epoch.start).as_secs_f64();
        if epoch.at(t) < epoch.reno {
            return window.max(epoch.reno);
        }
        let target = epoch.at(t + rtt).clamp(window, 1.5 * window);
        window + (target - window) * (packets / window).min(1.0)
    }

    /// Records a loss at a window of `window`; returns the window it leaves.
    pub(crate) fn on_loss(&mut self, window: f64) -> f64 {
        self.w_max = if window < self.w_max { window * (1.0 + BETA) / 2.0 } else { window };
        self.before_loss = window;
        self.restart();
        window * BETA
    }

    /// Records that a timeout revealed the loss: the curve after slow start begins at its flat point (§4.8).
    pub(crate) fn on_timeout(&mut self) {
        self.w_max = 0.0;
    }

    /// Records that from `now` on the window does not limit the sender.
    pub(crate) fn pause(&mut self, now: Time) {
        self.paused = self.paused.or(Some(now));
    }

    /// Starts a new period at the next ack.
    pub(crate) fn restart(&mut self) {
        self.epoch = None;
        self.paused = None;
    }
}

impl Epoch {
    fn begin(now: Time, window: f64, w_max: f64, c: f64) -> Self {
        let plateau = w_max.max(window);
        Self { start: now, c, k: libm::cbrt((plateau - window) / c), plateau, reno: window }
    }

    /// The curve at `t` seconds.
    fn at(&self, t: f64) -> f64 {
        let beyond = t - self.k;
        self.c * beyond * beyond * beyond + self.plateau
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(packets: f64, share: f64) -> Acked {
        Acked { packets, share }
    }

    /// Runs one round trip of acks after another for `seconds`; returns the window.
    fn run(cubic: &mut Cubic, from: f64, seconds: f64, rtt: f64) -> f64 {
        let rounds = (seconds / rtt) as u64;
        (0..rounds).fold(from, |window, round| {
            let now = Time::ZERO + Span::from_secs_f64(round as f64 * rtt);
            // Acks of a tenth of a window each.
            (0..10).fold(window, |window, _| cubic.grow(now, window, rtt, acked(window / 10.0, 1.0)))
        })
    }

    /// The window after one ack of a whole window at `seconds`.
    fn after(cubic: &mut Cubic, seconds: u64, window: f64, share: f64) -> f64 {
        cubic.grow(Time::ZERO + Span::from_secs(seconds), window, 0.1, acked(window, share))
    }

    #[test]
    fn the_window_is_back_at_its_size_before_the_loss_after_k_seconds_and_beyond_it_after_two_k() {
        let mut cubic = Cubic::default();
        let left = cubic.on_loss(1000.0);
        assert_eq!(left, 700.0);
        let k = libm::cbrt(300.0 / C);
        let window = run(&mut cubic, left, k, 0.1);
        assert!((985.0..1005.0).contains(&window), "{window}");
        let mut again = Cubic::default();
        again.on_loss(1000.0);
        let window = run(&mut again, left, 2.0 * k, 0.1);
        assert!((1270.0..1310.0).contains(&window), "{window}");
    }

    /// RFC 9438 §4.2: W(t + RTT) = 0.4·(5.1 − ∛750)³ + 1000, and with a quarter of C 0.1·(5.1 − ∛3000)³ + 1000.
    #[test]
    fn a_window_of_acks_moves_the_window_to_the_curve_one_round_trip_ahead() {
        for (share, want) in [(1.0, 974.675), (0.25, 918.979)] {
            let mut cubic = Cubic::default();
            cubic.on_loss(1000.0);
            cubic.grow(Time::ZERO, 700.0, 0.1, acked(1.0, share));
            let window = after(&mut cubic, 5, 700.0, share);
            assert!((window - want).abs() < 0.01, "{window}");
        }
    }

    /// The average window when every 1/p-th packet is lost.
    fn average(rtt: f64, loss: f64) -> f64 {
        let (mut cubic, mut window, mut time) = (Cubic::default(), 100.0, 0.0);
        let (mut sum, mut counted) = (0.0, 0.0);
        for losses in 0..60 {
            let mut sent = 0.0;
            while sent < 1.0 / loss {
                let packets = window / 20.0;
                window = cubic.grow(Time::ZERO + Span::from_secs_f64(time), window, rtt, acked(packets, 1.0));
                (sent, time) = (sent + packets, time + rtt / 20.0);
                if losses >= 20 {
                    (sum, counted) = (sum + window, counted + 1.0);
                }
            }
            window = cubic.on_loss(window);
        }
        sum / counted
    }

    /// RFC 9438 §5.1 has (C·(3 + β)/(4·(1 − β)))^¼·(RTT/p)^¾ if each loss comes when the window reaches the plateau. The curve
    /// is flat there, so slightly smaller windows last, and fast convergence (§4.7), which the formula ignores, leads to them.
    #[test]
    fn the_average_window_at_a_loss_rate_is_that_of_the_closed_form_less_up_to_a_tenth() {
        let share: f64 = C * (3.0 + BETA) / (4.0 * (1.0 - BETA));
        for (rtt, loss) in [(0.1_f64, 1e-4_f64), (0.2, 1e-5), (0.04, 1e-6)] {
            let closed = share.powf(0.25) * (rtt / loss).powf(0.75);
            let part = average(rtt, loss) / closed;
            assert!((0.9..1.0).contains(&part), "{part}");
        }
    }

    /// 0.4·2.1³ + 700.
    #[test]
    fn without_an_earlier_loss_the_curve_begins_at_its_flat_point() {
        let mut cubic = Cubic::default();
        cubic.grow(Time::ZERO, 700.0, 0.1, acked(1.0, 1.0));
        let window = after(&mut cubic, 2, 700.0, 1.0);
        assert!((window - 703.704).abs() < 0.01, "{window}");
    }

    /// The curve began with half of C: 0.2·(5.1 − ∛1500)³ + 1000. A new curve is below Reno's 700 + share·9/17.
    #[test]
    fn a_share_that_changes_by_more_than_a_fifth_begins_a_new_curve() {
        for (share, want) in [(0.39, 700.206), (0.41, 948.860), (0.59, 948.860), (0.61, 700.323)] {
            let mut cubic = Cubic::default();
            cubic.on_loss(1000.0);
            cubic.grow(Time::ZERO, 700.0, 0.1, acked(1.0, 0.5));
            let window = after(&mut cubic, 5, 700.0, share);
            assert!((window - want).abs() < 0.01, "{share}: {window}");
        }
    }

    #[test]
    fn a_loss_below_the_plateau_lowers_the_plateau_further() {
        let mut cubic = Cubic::default();
        cubic.on_loss(1000.0);
        cubic.on_loss(1000.0);
        assert_eq!(cubic.w_max, 1000.0);
        cubic.on_loss(800.0);
        assert_eq!(cubic.w_max, 680.0);
    }

    #[test]
    fn on_a_short_path_it_grows_like_reno_with_the_same_average() {
        let mut cubic = Cubic::default();
        let left = cubic.on_loss(20.0);
        let window = run(&mut cubic, left, 0.05, 0.005);
        assert!((window - left - 10.0 * 9.0 / 17.0).abs() < 0.01, "{window}");
    }

    #[test]
    fn time_in_which_the_window_was_not_the_limit_does_not_count() {
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        let (mut busy, mut idle) = (Cubic::default(), Cubic::default());
        for cubic in [&mut busy, &mut idle] {
            cubic.on_loss(1000.0);
            cubic.grow(at(0), 700.0, 0.1, acked(1.0, 1.0));
        }
        idle.pause(at(1));
        idle.pause(at(3));
        let acked = acked(1.0, 1.0);
        assert_eq!(busy.grow(at(1), 720.0, 0.1, acked), idle.grow(at(8), 720.0, 0.1, acked));
    }

    /// A curve that has not begun yet is not delayed.
    #[test]
    fn time_in_which_the_window_was_not_the_limit_before_the_curve_begins_does_not_count() {
        let grown = |pause: Option<u64>| {
            let mut cubic = Cubic::default();
            cubic.on_loss(1000.0);
            if let Some(since) = pause {
                cubic.pause(Time::ZERO + Span::from_secs(since));
            }
            cubic.grow(Time::ZERO + Span::from_secs(60), 700.0, 0.1, acked(1.0, 1.0));
            after(&mut cubic, 65, 700.0, 1.0)
        };
        assert_eq!(grown(Some(1)), grown(None));
        assert!(grown(None) > 900.0, "{}", grown(None));
    }

    /// RFC 9438 §4.8: K is 0 and W_max the window at the start of the curve, 0.4·2.1³ + 700. A later loss lowers no plateau.
    #[test]
    fn after_a_timeout_the_curve_begins_at_its_flat_point() {
        let mut cubic = Cubic::default();
        cubic.on_loss(1000.0);
        cubic.on_timeout();
        cubic.grow(Time::ZERO, 700.0, 0.1, acked(1.0, 1.0));
        let window = after(&mut cubic, 2, 700.0, 1.0);
        assert!((window - 703.704).abs() < 0.01, "{window}");
        cubic.on_loss(800.0);
        assert_eq!(cubic.w_max, 800.0);
    }

    /// RFC 9438 §4.3: the window before the last loss counts, not the lower plateau of fast convergence. From 12.6 to 18
    /// packets at 9/17 a round trip takes 10.2 rounds.
    #[test]
    fn on_a_short_path_it_grows_like_reno_once_it_is_back_at_the_window_of_the_loss() {
        let mut cubic = Cubic::default();
        cubic.on_loss(20.0);
        let left = cubic.on_loss(18.0);
        let window = run(&mut cubic, left, 0.03, 0.001);
        assert!((window - 18.0 - (30.0 - 10.2)).abs() < 0.1, "{window}");
    }

    /// RFC 9438 §4.3: at its start the curve is below Reno's window, though one round trip ahead it is above it.
    #[test]
    fn the_curve_and_reno_are_compared_at_the_time_of_the_ack() {
        let mut cubic = Cubic::default();
        cubic.on_loss(1000.0);
        let window = cubic.grow(Time::ZERO, 700.0, 0.1, acked(70.0, 1.0));
        assert!((window - 700.0 - 0.9 / 17.0).abs() < 1e-9, "{window}");
    }

    /// RFC 9438 §4.2.
    #[test]
    fn a_round_trip_adds_at_most_half_a_window_and_never_reduces_it() {
        let grown = |seconds: u64, window: f64, packets: f64| {
            let mut cubic = Cubic::default();
            cubic.on_loss(1000.0);
            cubic.grow(Time::ZERO, 700.0, 0.1, acked(1.0, 1.0));
            cubic.grow(Time::ZERO + Span::from_secs(seconds), window, 0.1, acked(packets, 1.0))
        };
        assert!((grown(60, 700.0, 70.0) - 735.0).abs() < 1e-9, "{}", grown(60, 700.0, 70.0));
        assert_eq!((grown(60, 700.0, 700.0), grown(60, 700.0, 1400.0)), (1050.0, 1050.0));
        assert_eq!((grown(0, 900.0, 90.0), grown(1, 900.0, 90.0)), (900.0, 900.0));
    }

    #[test]
    fn a_loss_ends_a_pause() {
        let grown = |paused: bool| {
            let mut cubic = Cubic::default();
            cubic.grow(Time::ZERO, 1000.0, 0.1, acked(1.0, 1.0));
            if paused {
                cubic.pause(Time::ZERO + Span::from_secs(1));
            }
            let left = cubic.on_loss(1000.0);
            [4, 6].map(|seconds| after(&mut cubic, seconds, left, 1.0))
        };
        assert_eq!(grown(true), grown(false));
    }
}
