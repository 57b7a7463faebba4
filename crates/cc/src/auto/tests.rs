use super::*;

/// A path of 1 MB/s and 40 ms, whose queue is its own.
struct Alone {
    auto: Auto,
    now: Time,
    window: f64,
    before: f64,
    /// Milliseconds by which the route has become longer.
    longer: f64,
    cuts: u32,
}

impl Alone {
    fn new(window: f64) -> Self {
        let auto = Auto::new(Time::ZERO);
        Self { auto, now: Time::ZERO, window, before: 0.0, longer: 0.0, cuts: 0 }
    }

    /// A round trip; returns the advice at its end.
    fn round(&mut self, rtt: Span) -> Advice {
        self.now += rtt;
        let acked_bytes = self.window as u64;
        let sample = AckSample {
            now: self.now,
            acked_bytes,
            rtt,
            in_flight: acked_bytes,
            delivery_rate: None,
            round_start: true,
            app_limited: false,
            window_limited: true,
            ce_marks: 0,
        };
        let view = View { window: self.window, mss: 1_000.0, slow_start: false };
        let advice = self.auto.on_ack(&sample, &view);
        match advice {
            Advice::Grow | Advice::Restart => self.window += 1_000.0,
            Advice::Probe(share) => self.window *= 1.0 + share,
            Advice::Hold => {}
            Advice::Shrink(bytes) => {
                (self.before, self.window) = (self.window, bytes);
                self.cuts += 1;
            }
            Advice::TakeBack => self.window = self.before,
        }
        advice
    }

    /// So many round trips, as long as the window makes them.
    fn rounds(&mut self, count: usize) -> Vec<Advice> {
        let millis = |path: &Self| path.longer + (path.window / 1e3).max(40.0);
        (0..count).map(|_| self.round(Span::from_secs_f64(millis(self) / 1e3))).collect()
    }
}

#[test]
fn a_path_without_a_rival_keeps_its_queue_short_after_a_test() {
    let mut path = Alone::new(40_000.0);
    path.rounds(125);
    assert!(path.auto.rivalry.own_since.is_some() && path.window <= 75_000.0, "{}", path.window);
}

#[test]
fn a_path_that_had_a_rival_is_alone_after_two_tests() {
    let mut path = Alone::new(40_000.0);
    path.auto.find_rival(Time::ZERO);
    let mut after = Vec::new();
    for _ in 0..450 {
        if path.rounds(1) == [Advice::TakeBack] {
            after.push(path.auto.rivalry.own_since.is_some());
        }
    }
    assert_eq!(after.first(), Some(&false), "one test is not enough");
    assert!(path.auto.rivalry.own_since.is_some() && path.window <= 75_000.0, "{}", path.window);
}

#[test]
fn a_window_is_not_held_for_ever_because_the_route_has_become_longer() {
    let mut path = Alone::new(40_000.0);
    path.rounds(125);
    path.longer = 28.0;
    let held = path.window;
    let advice = path.rounds(300);
    assert!(path.window > 1.5 * held, "{held} {}: {advice:?}", path.window);
}

/// At four packets in a round trip, two take longer than the queue that a test cuts.
#[test]
fn a_small_window_is_not_cut_again_and_again_by_tests_that_show_nothing() {
    let mut path = Alone::new(4_000.0);
    path.round(Span::from_millis(40));
    let advice: Vec<Advice> = (0..12).map(|_| path.round(Span::from_secs(1))).collect();
    assert!(path.cuts == 1 && advice.contains(&Advice::TakeBack), "{advice:?}");
}

/// A window for 40 ms is much too small for 140 ms, and without losses CUBIC would take many seconds.
#[test]
fn a_path_that_was_alone_soon_fills_a_longer_return_path() {
    let mut path = Alone::new(40_000.0);
    path.rounds(125);
    path.auto.on_return_path_changed();
    path.round(Span::from_millis(140) + path.auto.delay.queue());
    for _ in 0..3 {
        path.round(Span::from_millis(140));
    }
    assert!(path.window >= 140_000.0, "{}", path.window);
}

/// Otherwise the queue of that moment would count as part of the route from then on.
#[test]
fn a_queue_stays_a_queue_when_the_return_path_changes() {
    let mut path = Alone::new(40_000.0);
    path.rounds(1);
    let queue = Span::from_millis(22);
    path.round(Span::from_millis(40) + queue);
    for longer in [100, 0] {
        path.auto.on_return_path_changed();
        path.now = path.now + Span::from_millis(1) - (Span::from_millis(40 + longer) + queue);
        path.round(Span::from_millis(40 + longer) + queue);
        assert_eq!(path.auto.delay.base(), Span::from_millis(40 + longer));
    }
}

#[test]
fn acknowledgements_that_arrive_together_show_no_high_rate() {
    let mut path = Alone::new(40_000.0);
    path.rounds(3);
    let rate = path.auto.rate.get();
    path.round(Span::from_millis(40));
    path.now = path.now - Span::from_millis(39);
    path.round(Span::from_millis(40));
    assert!(path.auto.rate.get() < rate * 3.0, "{} {rate}", path.auto.rate.get());
}

/// The window before may have been that of a short queue, so a share of it is less than the path carries.
#[test]
fn a_path_that_returns_grows_fast_until_there_is_a_queue_or_a_loss() {
    let mut path = Alone::new(10_000.0);
    path.auto.on_return();
    path.round(Span::from_millis(40));
    assert_eq!(path.round(Span::from_millis(40)), Advice::Probe(CATCH_UP));
    path.auto.on_reduced();
    assert_eq!(path.round(Span::from_millis(40)), Advice::Grow);
}

/// A path of 1 MB/s whose losses come without a queue.
fn lossy() -> Alone {
    let mut path = Alone::new(40_000.0);
    path.rounds(2);
    path.window = 10_000.0;
    for _ in 0..3 {
        path.round(Span::from_millis(40));
        path.window = 10_000.0;
        path.lose(1_000.0);
    }
    path
}

impl Alone {
    fn lose(&mut self, bytes: f64) -> Option<f64> {
        self.auto.on_lost(bytes);
        self.auto.spare(self.now, &View { window: self.window, mss: 1_000.0, slow_start: false })
    }
}

/// The queue overflowed at 500 kB/s: growth stops at 200 kB/s, which is 8 kB in a round trip.
#[test]
fn after_losses_of_a_short_queue_growth_stops_far_below_that_rate() {
    let mut path = lossy();
    assert!(matches!(path.round(Span::from_millis(40)), Advice::Probe(_)));
    path.auto.stop_at(path.now, 20_000.0);
    assert_eq!(path.round(Span::from_millis(40)), Advice::Hold);
    path.now += STOP.0;
    assert_eq!(path.round(Span::from_millis(40)), Advice::Probe(EXPLORE));
    let left = path.lose(8_000.0);
    assert!(left.is_some_and(|left| (left - 8_000.0).abs() < 1.0), "{left:?}");
    path.now += STOP.0;
    assert_eq!(path.round(Span::from_millis(40)), Advice::Hold, "twice as long");
}

#[test]
fn losses_that_cease_below_the_rate_of_a_short_queue_were_the_queues() {
    let mut path = lossy();
    path.auto.stop_at(path.now, 10_000.0);
    path.rounds(60);
    assert_eq!(path.auto.loss_cause(), LossCause::Queues);
}
