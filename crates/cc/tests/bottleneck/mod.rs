//! A bottleneck with a drop-tail queue, and flows with a controller of one path each, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use anabranch_cc::{AckSample, Config, Controller, LossEvent, RttEstimator, RuleKind};
use anabranch_wire::{PathId, Rate, Span, Time};

const MSS: u64 = 1_500;
const PATH: PathId = PathId(0);
/// Packets for which the last places of the queue have room, and the chance that one there is dropped.
const LAST: u64 = 5;
const EARLY: f64 = 0.1;
/// Later packets that show a loss.
const REORDERING: u64 = 3;

/// The bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    pub mbit: f64,
    /// The queue, in bandwidth–delay products of the first flow.
    pub bdp: f64,
    /// Share of packets lost at random.
    pub loss: f64,
    /// Share of each second at whose end nothing leaves the queue.
    pub pause: f64,
    pub seed: u64,
}

/// A flow without end.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    config: Config,
    rtt: Span,
    start: Time,
    stop: Time,
}

impl Flow {
    /// A flow as deployed, with this round trip in milliseconds and start in seconds.
    pub fn new(rule: RuleKind, rtt_ms: u64, start: f64) -> Self {
        let start = Time::ZERO + Span::from_secs_f64(start);
        Self { config: Config::new(rule), rtt: Span::from_millis(rtt_ms), start, stop: Time::NEVER }
    }

    /// A background TCP.
    pub fn tcp(rule: RuleKind, rtt_ms: u64, start: f64) -> Self {
        Self { config: Config::tcp(rule), ..Self::new(rule, rtt_ms, start) }
    }

    /// The same flow, which vanishes after so many seconds.
    pub fn until(self, stop: f64) -> Self {
        Self { stop: Time::ZERO + Span::from_secs_f64(stop), ..self }
    }
}

/// The results of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub mbit: f64,
    /// Mean queueing delay of its packets.
    pub queue_ms: f64,
    /// Share of packets lost.
    pub lost: f64,
}

struct Packet {
    number: u64,
    sent_at: Time,
    delivered: u64,
}

struct Sender {
    flow: Flow,
    controller: Controller,
    rtt: RttEstimator,
    out: VecDeque<Packet>,
    next: u64,
    next_at: Time,
    wakes_at: Time,
    round: Time,
    delivered: u64,
    counts: [f64; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake,
    Ack(u64),
}

struct World {
    line: Bottleneck,
    rate: Rate,
    room: Span,
    free_at: Time,
    seed: u64,
    events: BinaryHeap<Reverse<(Time, u64, usize, Event)>>,
    count: u64,
    measure_from: Time,
}

/// Runs the flows for so many seconds, and measures from `from` on.
pub fn run(line: &Bottleneck, flows: &[Flow], from: f64, seconds: f64) -> Vec<Measured> {
    let rate = Rate::from_mbit(line.mbit);
    let end = Time::ZERO + Span::from_secs_f64(seconds);
    let mut world = World {
        line: *line,
        rate,
        room: flows[0].rtt.mul_f64(line.bdp),
        free_at: Time::ZERO,
        seed: 0x9e37_79b9_7f4a_7c15 ^ line.seed << 20,
        events: BinaryHeap::new(),
        count: 0,
        measure_from: Time::ZERO + Span::from_secs_f64(from),
    };
    let mut senders: Vec<Sender> = flows.iter().map(Sender::new).collect();
    for (index, sender) in senders.iter().enumerate() {
        world.push(sender.flow.start, index, Event::Wake);
    }
    while let Some(Reverse((now, _, index, event))) = world.events.pop() {
        if now >= end {
            break;
        }
        let sender = &mut senders[index];
        if now >= sender.flow.stop {
            continue;
        }
        if let Event::Ack(number) = event {
            sender.on_ack(now, number);
            if now >= world.measure_from {
                sender.counts[0] += 1.0;
            }
        }
        sender.send(now, index, &mut world);
    }
    let seconds = end.since(world.measure_from).as_secs_f64();
    let measured = |sender: &Sender| {
        let [acked, queue, lost] = sender.counts;
        let mbit = acked * MSS as f64 * 8e-6 / seconds;
        Measured { mbit, queue_ms: queue * 1e3 / acked, lost: lost / (acked + lost) }
    };
    senders.iter().map(measured).collect()
}

impl World {
    fn push(&mut self, at: Time, index: usize, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, index, event)));
    }

    /// A number in [0, 1) (xorshift64*).
    fn chance(&mut self) -> f64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A packet enters the queue; returns its queueing delay and departure, or `None` if it is lost.
    fn enter(&mut self, now: Time) -> Option<(Span, Time)> {
        let start = self.free_at.max(self.open(now));
        let waits = start.since(self.open(now));
        // Drops at random in the last places avoid phase effects between regular senders.
        let last = self.room.saturating_sub(self.rate.time_for(MSS * LAST));
        if waits > self.room || (waits > last && self.chance() < EARLY) {
            return None;
        }
        self.free_at = start + self.rate.time_for(MSS);
        let departs = self.real(self.free_at);
        let lost = self.line.loss > 0.0 && self.chance() < self.line.loss;
        (!lost).then_some((departs.since(now), departs))
    }
}

/// Without pauses, both times are the same.
impl World {
    /// How long the link has been open at this time.
    fn open(&self, now: Time) -> Time {
        let seconds = now.since(Time::ZERO).as_secs_f64();
        let open = 1.0 - self.line.pause;
        let whole = seconds.floor();
        Time::ZERO + Span::from_secs_f64(whole * open + (seconds - whole).min(open))
    }

    /// The time at which the link has been open for so long.
    fn real(&self, open: Time) -> Time {
        let seconds = open.since(Time::ZERO).as_secs_f64();
        let whole = (seconds / (1.0 - self.line.pause)).floor();
        Time::ZERO + Span::from_secs_f64(seconds + whole * self.line.pause)
    }
}

impl Sender {
    fn new(flow: &Flow) -> Self {
        let mut controller = Controller::new(flow.config);
        controller.add_path(PATH, MSS, flow.start);
        Self {
            flow: *flow,
            controller,
            rtt: RttEstimator::new(Span::from_millis(100)),
            out: VecDeque::new(),
            next: 0,
            next_at: flow.start,
            wakes_at: Time::ZERO,
            round: flow.start,
            delivered: 0,
            counts: [0.0; 3],
        }
    }

    fn in_flight(&self) -> u64 {
        self.out.len() as u64 * MSS
    }

    fn send(&mut self, now: Time, index: usize, world: &mut World) {
        while self.in_flight() + MSS <= self.controller.window(PATH) {
            if now < self.next_at {
                if self.wakes_at < self.next_at {
                    self.wakes_at = self.next_at;
                    world.push(self.next_at, index, Event::Wake);
                }
                return;
            }
            let number = self.next;
            self.next += 1;
            self.out.push_back(Packet { number, sent_at: now, delivered: self.delivered });
            self.controller.on_sent(PATH, now, MSS, self.in_flight());
            match world.enter(now) {
                Some((waits, departs)) => {
                    if now >= world.measure_from {
                        self.counts[1] += waits.as_secs_f64();
                    }
                    world.push(departs + self.flow.rtt, index, Event::Ack(number));
                }
                None if now >= world.measure_from => self.counts[2] += 1.0,
                None => {}
            }
            let pace = self.controller.pacing_rate(PATH, &self.rtt);
            self.next_at = pace.map_or(now, |pace| self.next_at.max(now) + pace.time_for(MSS));
        }
    }

    fn on_ack(&mut self, now: Time, number: u64) {
        let in_flight = self.in_flight();
        let Ok(place) = self.out.binary_search_by_key(&number, |packet| packet.number) else { return };
        let Some(packet) = self.out.remove(place) else { return };
        let rtt = now.since(packet.sent_at);
        self.delivered += MSS;
        self.rtt.update(now, rtt, Span::ZERO);
        let round_start = packet.sent_at >= self.round;
        if round_start {
            self.round = now;
        }
        let window = self.controller.window(PATH);
        let slack = if self.controller.in_slow_start(PATH) { window / 2 } else { window / 4 };
        let sample = AckSample {
            now,
            acked_bytes: MSS,
            rtt,
            in_flight,
            delivery_rate: Some(Rate::from_bytes_in(self.delivered - packet.delivered, rtt)),
            round_start,
            app_limited: false,
            window_limited: in_flight + slack + MSS >= window,
            ce_marks: 0,
        };
        self.controller.on_ack(PATH, &sample, &self.rtt);
        let (mut lost_bytes, mut sent_at, in_flight) = (0, Time::ZERO, self.in_flight());
        while self.out.front().is_some_and(|packet| packet.number + REORDERING <= number) {
            lost_bytes += MSS;
            sent_at = self.out.pop_front().map_or(sent_at, |packet| packet.sent_at);
        }
        if lost_bytes > 0 {
            self.controller.on_loss(PATH, &LossEvent { now, lost_bytes, in_flight, sent_at });
        }
    }
}
