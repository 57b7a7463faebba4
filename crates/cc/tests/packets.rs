//! The controller under a stream of packets: average windows match the rules' formulas, and common properties hold for
//! all rules.

use anabranch_cc::{AckSample, Config, Controller, LossEvent, RttEstimator, RuleKind};
use anabranch_wire::{PathId, Span, Time};

const MSS: u64 = 1_000;

/// A path with a fixed loss rate and round-trip time, whose packets are acknowledged one by one.
struct Lane {
    id: PathId,
    loss: f64,
    span: Span,
    rtt: RttEstimator,
    next: Time,
    area: f64,
    seed: u64,
}

impl Lane {
    fn new(id: u32, loss: f64, millis: u64) -> Self {
        let span = Span::from_millis(millis);
        let (rtt, seed) = (RttEstimator::new(span), 0x9e37_79b9_7f4a_7c15 ^ u64::from(id));
        Self { id: PathId(id), loss, span, rtt, next: Time::ZERO + span, area: 0.0, seed }
    }

    /// A number in [0, 1) (xorshift64*).
    fn chance(&mut self) -> f64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The fate of one packet, then the time of the next, a window a round trip.
    fn step(&mut self, controller: &mut Controller) {
        let (now, window) = (self.next, controller.window(self.id));
        if self.chance() < self.loss {
            let event = LossEvent { now, lost_bytes: MSS, in_flight: window, sent_at: now - self.span };
            controller.on_loss(self.id, &event);
        } else {
            self.rtt.update(now, self.span, Span::ZERO);
            controller.on_ack(self.id, &ack(now, self.span, MSS, window), &self.rtt);
        }
        let gap = self.span.mul_f64(MSS as f64 / controller.window(self.id).max(MSS) as f64);
        self.next = now + gap;
        self.area += gap.as_secs_f64() * controller.window(self.id) as f64;
    }
}

fn ack(now: Time, rtt: Span, acked_bytes: u64, in_flight: u64) -> AckSample {
    AckSample {
        now,
        acked_bytes,
        rtt,
        in_flight,
        delivery_rate: None,
        round_start: false,
        app_limited: false,
        window_limited: true,
        ce_marks: 0,
    }
}

/// The mean window of each lane, in packets, over `seconds`.
fn run(rule: RuleKind, lanes: &mut [Lane], seconds: u64) -> Vec<f64> {
    let mut controller = Controller::new(Config { hystart: false, pacing: false, ..Config::tcp(rule) });
    lanes.iter().for_each(|lane| controller.add_path(lane.id, MSS, Time::ZERO));
    let end = Time::ZERO + Span::from_secs(seconds);
    while let Some(lane) = lanes.iter_mut().min_by_key(|lane| (lane.next, lane.id)) {
        if lane.next >= end {
            break;
        }
        lane.step(&mut controller);
    }
    lanes.iter().map(|lane| lane.area / end.as_secs_f64() / MSS as f64).collect()
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got / want - 1.0).abs() <= tolerance, "{got} is not within {tolerance} of {want}");
}

/// Random losses make a sawtooth whose mean is 1.31/√p rather than the balance equations' √(2/p).
const SAWTOOTH: f64 = 1.31 / std::f64::consts::SQRT_2;

fn tcp(loss: f64) -> f64 {
    SAWTOOTH * (2.0 / loss).sqrt()
}

#[test]
fn renos_mean_window_matches_the_formula() {
    // Small windows stay slightly below it: they grow by less than a whole packet a round.
    for (loss, tolerance) in [(0.0005, 0.05), (0.005, 0.07)] {
        let windows = run(RuleKind::Reno, &mut [Lane::new(0, loss, 50)], 1_500);
        close(windows[0], tcp(loss), tolerance);
    }
}

#[test]
fn ewtcp_over_four_paths_has_the_windows_of_one_tcp() {
    let mut lanes: Vec<Lane> = (0..4).map(|id| Lane::new(id, 0.0005, 50)).collect();
    close(run(RuleKind::Ewtcp, &mut lanes, 1_500).iter().sum(), tcp(0.0005), 0.05);
}

#[test]
fn coupled_leaves_the_lossier_path_little_more_than_one_packet() {
    let windows = run(RuleKind::Coupled, &mut [Lane::new(0, 0.0005, 50), Lane::new(1, 0.005, 50)], 1_500);
    assert!(windows[1] < 0.12 * windows[0], "{windows:?}");
    close(windows.iter().sum(), tcp(0.0005), 0.12);
}

/// P6-fig4 in packets.
#[test]
fn over_wifi_and_3g_mptcp_and_lia_are_as_fast_as_tcp_on_wifi() {
    let lanes = || [Lane::new(0, 0.004, 10), Lane::new(1, 0.001, 100)];
    let rate = |windows: &[f64]| windows[0] / 0.01 + windows[1] / 0.1;
    let alone = run(RuleKind::Reno, &mut lanes()[..1], 1_000)[0] / 0.01;
    for rule in [RuleKind::Mptcp, RuleKind::Lia] {
        close(rate(&run(rule, &mut lanes(), 1_000)), alone, 0.1);
    }
}

/// M2: separate windows add up to one flow a path; the combined window is one flow for any number of paths.
#[test]
fn three_paths_under_combined_share_one_window() {
    let mut lanes: Vec<Lane> = (0..3).map(|id| Lane::new(id, 0.001, 50)).collect();
    close(run(RuleKind::Combined, &mut lanes, 1_500).iter().sum(), tcp(0.001), 0.12);
    let mut lanes: Vec<Lane> = (0..3).map(|id| Lane::new(id, 0.001, 50)).collect();
    close(run(RuleKind::Reno, &mut lanes, 1_500).iter().sum(), 3.0 * tcp(0.001), 0.05);
}

/// The second path has the shorter round trip but 200 times the loss: TCP would get less than half there. More packets are
/// acknowledged on it only until the first path's window has grown.
#[test]
fn olia_identifies_the_best_path_by_the_bytes_acknowledged_between_losses() {
    let windows = run(RuleKind::Olia, &mut [Lane::new(0, 0.0005, 100), Lane::new(1, 0.1, 20)], 1_500);
    assert!(windows[0] > 0.7 * tcp(0.0005) && windows[1] < 1.5, "{windows:?}");
}

/// RFC 9438 §5.1's response function, where the curve counts and not the Reno region: a long path, little loss.
#[test]
fn cubics_mean_window_matches_its_response_function() {
    let (loss, rtt): (f64, f64) = (0.000_1, 0.1);
    let windows = run(RuleKind::Cubic, &mut [Lane::new(0, loss, 100)], 2_500);
    let response = 1.054 * (rtt / loss).powf(0.75);
    close(windows[0], response, 0.12);
}
