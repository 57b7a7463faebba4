//! BBR over a modelled bottleneck: it fills the link, keeps its queue short, tolerates random loss, follows the link's
//! rate, and shares.

use std::collections::VecDeque;

use anabranch_cc::{AckSample, Config, Controller, LossEvent, RttEstimator, RuleKind};
use anabranch_wire::{PathId, Rate, Span, Time};

const MSS: u64 = 1_200;
const PATH: PathId = PathId(0);

/// A packet in flight, and the sender's state when it was sent.
#[derive(Clone, Copy)]
struct Packet {
    number: u64,
    sent_at: Time,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    app_limited: bool,
}

/// A sender that always has data, or `budget` bytes a second.
struct Sender {
    controller: Controller,
    rtt: RttEstimator,
    unacked: VecDeque<Packet>,
    next: u64,
    send_at: Time,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    round_end: u64,
    lost: u64,
    budget: Option<Rate>,
}

impl Sender {
    fn new(rule: RuleKind) -> Self {
        let mut controller = Controller::new(Config::new(rule));
        controller.add_path(PATH, MSS, Time::ZERO);
        Self {
            controller,
            rtt: RttEstimator::new(Span::from_millis(100)),
            unacked: VecDeque::new(),
            next: 0,
            send_at: Time::ZERO,
            delivered: 0,
            delivered_at: Time::ZERO,
            first_sent_at: Time::ZERO,
            round_end: 0,
            lost: 0,
            budget: None,
        }
    }

    fn in_flight(&self) -> u64 {
        self.unacked.len() as u64 * MSS
    }

    /// When the next packet may be sent, if the window has room.
    fn ready_at(&self) -> Option<Time> {
        (self.in_flight() + MSS <= self.controller.window(PATH)).then_some(self.send_at)
    }

    fn send(&mut self, now: Time) -> Packet {
        if self.unacked.is_empty() {
            (self.delivered_at, self.first_sent_at) = (now, now);
        }
        let packet = Packet {
            number: self.next,
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            app_limited: self.budget.is_some(),
        };
        self.next += 1;
        self.unacked.push_back(packet);
        self.controller.on_sent(PATH, now, MSS, self.in_flight());
        let paced =
            self.controller.pacing_rate(PATH, &self.rtt).map_or(Span::ZERO, |rate| rate.time_for(MSS));
        let offered = self.budget.map_or(Span::ZERO, |rate| rate.time_for(MSS));
        self.send_at = self.send_at.max(now) + paced.max(offered);
        packet
    }

    fn acked(&mut self, now: Time, packet: Packet) {
        let in_flight = self.in_flight();
        let Ok(index) = self.unacked.binary_search_by_key(&packet.number, |packet| packet.number) else {
            return;
        };
        self.unacked.remove(index);
        let sample = now.since(packet.sent_at);
        self.rtt.update(now, sample, Span::ZERO);
        (self.delivered, self.delivered_at, self.first_sent_at) = (self.delivered + MSS, now, packet.sent_at);
        let interval = now.since(packet.delivered_at).max(packet.sent_at.since(packet.first_sent_at));
        let round_start = packet.number >= self.round_end;
        if round_start {
            self.round_end = self.next;
        }
        let sample = AckSample {
            now,
            acked_bytes: MSS,
            rtt: sample,
            in_flight,
            delivery_rate: Some(Rate::from_bytes_in(self.delivered - packet.delivered, interval)),
            round_start,
            app_limited: packet.app_limited,
            window_limited: self.budget.is_none(),
            ce_marks: 0,
        };
        self.controller.on_ack(PATH, &sample, &self.rtt);
        self.find_losses(now, packet.number);
    }

    /// Three packets sent later have arrived.
    fn find_losses(&mut self, now: Time, newest: u64) {
        while let Some(lost) = self.unacked.front().copied().filter(|packet| packet.number + 3 <= newest) {
            let in_flight = self.in_flight();
            self.unacked.pop_front();
            self.lost += 1;
            let event = LossEvent { now, lost_bytes: MSS, in_flight, sent_at: lost.sent_at };
            self.controller.on_loss(PATH, &event);
        }
    }
}

/// A bottleneck with a rate, a delay and a queue of limited bytes.
struct Link {
    rate: Rate,
    delay: Span,
    buffer: u64,
    loss: f64,
    free_at: Time,
    seed: u64,
}

impl Link {
    fn new(mbit: f64, rtt_millis: u64, buffer_bdps: f64) -> Self {
        let (rate, delay) = (Rate::from_mbit(mbit), Span::from_millis(rtt_millis));
        let buffer = (rate.bytes_in(delay) as f64 * buffer_bdps) as u64;
        Self { rate, delay, buffer, loss: 0.0, free_at: Time::ZERO, seed: 7 }
    }

    /// When a packet sent now is acknowledged, if it is not lost.
    fn carry(&mut self, now: Time) -> Option<Time> {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let start = self.free_at.max(now);
        let random_loss = ((self.seed >> 33) as f64) < self.loss * f64::from(1_u32 << 31);
        if random_loss || self.rate.bytes_in(start.since(now)) > self.buffer {
            return None;
        }
        self.free_at = start + self.rate.time_for(MSS);
        Some(self.free_at + self.delay)
    }
}

/// Senders over one link.
struct Net {
    link: Link,
    senders: Vec<Sender>,
    acks: VecDeque<(Time, usize, Packet)>,
    now: Time,
}

impl Net {
    fn new(link: Link, rules: &[RuleKind]) -> Self {
        let senders = rules.iter().map(|&rule| Sender::new(rule)).collect();
        Self { link, senders, acks: VecDeque::new(), now: Time::ZERO }
    }

    /// Runs for `seconds`; returns each sender's delivered rate in Mbit/s.
    fn run(&mut self, seconds: u64) -> Vec<f64> {
        let end = self.now + Span::from_secs(seconds);
        let before: Vec<u64> = self.senders.iter().map(|sender| sender.delivered).collect();
        while self.now < end {
            let ready = self
                .senders
                .iter()
                .enumerate()
                .filter_map(|(index, sender)| Some((sender.ready_at()?, index)));
            let send = ready.min().map(|(at, index)| (at.max(self.now), index));
            match (send, self.acks.front().copied()) {
                (Some((at, index)), ack) if ack.is_none_or(|ack| at < ack.0) => {
                    self.now = at;
                    let packet = self.senders[index].send(at);
                    if let Some(acked_at) = self.link.carry(at) {
                        self.acks.push_back((acked_at, index, packet));
                    }
                }
                (_, Some((at, index, packet))) => {
                    self.now = at;
                    self.acks.pop_front();
                    self.senders[index].acked(at, packet);
                }
                // Everything was lost: a timeout.
                _ => {
                    self.now += Span::from_millis(300);
                    for sender in &mut self.senders {
                        sender.unacked.clear();
                        sender.controller.on_timeout(PATH, self.now, 0);
                    }
                }
            }
        }
        let mbit =
            |(sender, before): (&Sender, u64)| (sender.delivered - before) as f64 * 8e-6 / seconds as f64;
        self.senders.iter().zip(before).map(mbit).collect()
    }
}

#[test]
fn it_fills_the_link_whatever_the_buffer_and_keeps_the_queue_short() {
    for (mbit, rtt, buffer) in
        [(20.0, 40, 0.3), (20.0, 40, 1.0), (50.0, 10, 1.0), (100.0, 80, 4.0), (2.0, 300, 2.0)]
    {
        let mut net = Net::new(Link::new(mbit, rtt, buffer), &[RuleKind::Bbr]);
        net.run(3);
        let lost = net.senders[0].lost;
        let rate = net.run(20)[0];
        assert!(rate > 0.92 * mbit, "{rate} of {mbit} Mbit/s, {rtt} ms, {buffer} BDP");
        let srtt = net.senders[0].rtt.smoothed();
        assert!(srtt < Span::from_millis(rtt * 3 / 2 + 2), "{srtt} at {rtt} ms, {buffer} BDP");
        let loss = (net.senders[0].lost - lost) as f64 / (rate * 20.0 / 8e-6 / MSS as f64);
        assert!(loss < 0.02, "{loss} lost at {mbit} Mbit/s, {rtt} ms, {buffer} BDP");
    }
}

#[test]
fn startup_finds_the_bandwidth_in_a_few_round_trips() {
    let mut net = Net::new(Link::new(200.0, 50, 1.0), &[RuleKind::Bbr]);
    net.run(1);
    assert!(!net.senders[0].controller.in_slow_start(PATH));
    assert!(net.run(1)[0] > 180.0);
}

#[test]
fn one_percent_of_random_loss_costs_it_little_and_reno_nearly_everything() {
    let rate = |rule| {
        let mut link = Link::new(50.0, 40, 1.0);
        link.loss = 0.01;
        let mut net = Net::new(link, &[rule]);
        net.run(2);
        net.run(20)[0]
    };
    let (bbr, reno) = (rate(RuleKind::Bbr), rate(RuleKind::Reno));
    assert!(bbr > 36.0, "{bbr}");
    assert!(reno < 10.0, "{reno}");
}

#[test]
fn it_follows_the_link_down_and_up_again() {
    let mut net = Net::new(Link::new(40.0, 40, 1.0), &[RuleKind::Bbr]);
    net.run(5);
    net.link.rate = Rate::from_mbit(10.0);
    net.run(6);
    let rate = net.run(5)[0];
    assert!(rate > 9.0, "{rate}");
    assert!(net.senders[0].rtt.smoothed() < Span::from_millis(100), "{}", net.senders[0].rtt.smoothed());
    net.link.rate = Rate::from_mbit(40.0);
    net.run(10);
    let rate = net.run(5)[0];
    assert!(rate > 35.0, "{rate}");
}

#[test]
fn two_of_them_share_a_link() {
    let mut net = Net::new(Link::new(40.0, 40, 1.0), &[RuleKind::Bbr; 2]);
    net.run(15);
    let rates = net.run(30);
    assert!(rates.iter().all(|&rate| rate > 12.0), "{rates:?}");
    assert!(rates.iter().sum::<f64>() > 36.0, "{rates:?}");
}

#[test]
fn with_cubic_on_the_link_neither_starves() {
    let mut net = Net::new(Link::new(40.0, 40, 1.0), &[RuleKind::Bbr, RuleKind::Cubic]);
    net.run(15);
    let rates = net.run(40);
    assert!(rates.iter().all(|&rate| rate > 6.0), "{rates:?}");
}

#[test]
fn a_slow_application_does_not_lower_the_bandwidth_that_was_found() {
    let mut net = Net::new(Link::new(40.0, 40, 1.0), &[RuleKind::Bbr]);
    net.run(4);
    net.senders[0].budget = Some(Rate::from_mbit(2.0));
    net.run(8);
    net.senders[0].budget = None;
    let rate = net.run(1)[0];
    assert!(rate > 32.0, "{rate}");
}

#[test]
fn a_timeout_leaves_one_packet_and_the_first_ack_after_it_restores_the_window() {
    let mut net = Net::new(Link::new(40.0, 40, 1.0), &[RuleKind::Bbr]);
    net.run(4);
    let sender = &mut net.senders[0];
    let before = sender.controller.window(PATH);
    sender.unacked.clear();
    sender.controller.on_timeout(PATH, net.now, 0);
    assert_eq!(sender.controller.window(PATH), 2 * MSS);
    net.acks.clear();
    net.run(1);
    let after = net.senders[0].controller.window(PATH);
    assert!(after * 2 > before, "{after} of {before}");
}
