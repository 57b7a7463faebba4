//! One link, as its measurer sees it.
//!
//! ```text
//!   New ──answer──▶ Up ──a probe without answer──▶ Doubt ──three in a row──▶ Down
//!                    ▲◀────────────answer────────────┘                        │
//!                    └──────────────────────answer────────────────────────────┘
//! ```

use std::collections::VecDeque;

use anabranch_wire::{Rate, Span, Time};

use super::message::{Answer, micros};
use super::train::Capacity;

/// Unanswered probes in a row after which a link is down.
pub const LOST_IN_A_ROW: u32 = 3;
/// Shortest and longest wait for an answer; the longest while nothing is known.
const SHORTEST_WAIT: Span = Span::from_millis(200);
const LONGEST_WAIT: Span = Span::from_secs(1);
/// Most probes without an answer yet.
const MOST_WAITING: usize = 8;
/// Number of probes over which loss is averaged; older ones fade.
const LOSS_OVER: f64 = 128.0;
/// How long a minimum of the delay counts.
const LEAST_FOR: Span = Span::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    New,
    Up,
    Doubt { missing: u32 },
    Down,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub state: State,
    pub next_probe: Time,
    number: u32,
    /// Unanswered probes: number, time of departure, and until when each counts.
    waiting: VecDeque<(u32, Time, Time)>,
    /// Round-trip time and mean deviation, in microseconds.
    rtt: Option<(f64, f64)>,
    /// Number and count in the last answer.
    answered: Option<(u32, u32)>,
    loss: [Share; 2],
    queue: [Above; 2],
    pub capacity: Capacity,
}

/// A loss average in which older losses fade.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    lost: f64,
    of: f64,
}

impl Share {
    fn add(&mut self, lost: f64, of: f64) {
        self.lost += lost;
        self.of += of;
        if self.of > LOSS_OVER {
            let fade = LOSS_OVER / self.of;
            self.lost *= fade;
            self.of *= fade;
        }
    }

    fn value(&self) -> f64 {
        if self.of > 0.0 { (self.lost / self.of).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// How far a delay is above its minimum of the last one or two minutes. Clocks of two machines need not agree, since
/// only changes count.
#[derive(Clone, Copy, Debug, Default)]
struct Above {
    /// Minimum of this span and of the one before, in microseconds.
    least: [Option<f64>; 2],
    since: Time,
    above: f64,
}

impl Above {
    fn add(&mut self, now: Time, delay: f64) {
        if now.since(self.since) >= LEAST_FOR {
            self.least = [None, self.least[0]];
            self.since = now;
        }
        self.least[0] = Some(self.least[0].map_or(delay, |least| least.min(delay)));
        let least = self.least.iter().flatten().fold(delay, |least, other| least.min(*other));
        self.above += (delay - least - self.above) / 8.0;
    }
}

impl Link {
    /// Rates that trains have measured.
    pub fn new(first_probe: Time, capacity: Capacity) -> Self {
        Self {
            state: State::New,
            next_probe: first_probe,
            number: 0,
            waiting: VecDeque::new(),
            rtt: None,
            answered: None,
            loss: Default::default(),
            queue: Default::default(),
            capacity,
        }
    }

    /// A probe leaves now.
    pub fn on_probe(&mut self, now: Time) -> u32 {
        self.number = self.number.wrapping_add(1);
        if self.waiting.len() == MOST_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.number, now, now + self.patience()));
        self.number
    }

    fn patience(&self) -> Span {
        let wait = self
            .rtt
            .map_or(LONGEST_WAIT, |(rtt, deviation)| Span::from_micros((rtt + 4.0 * deviation) as u64));
        wait.max(SHORTEST_WAIT).min(LONGEST_WAIT)
    }

    /// When the last probe counts as lost.
    pub fn deadline(&self) -> Option<Time> {
        self.waiting.back().map(|(.., until)| *until).filter(|until| *until != Time::NEVER)
    }

    /// The last probe was not answered in time. True when the link is down because of that.
    pub fn on_silence(&mut self) -> bool {
        if let Some((.., until)) = self.waiting.back_mut() {
            // A late answer still counts.
            *until = Time::NEVER;
        }
        let before = self.state;
        self.state = match before {
            State::Down => State::Down,
            State::New | State::Up => State::Doubt { missing: 1 },
            State::Doubt { missing } if missing + 1 < LOST_IN_A_ROW => State::Doubt { missing: missing + 1 },
            State::Doubt { .. } => {
                self.answered = None;
                State::Down
            }
        };
        self.state == State::Down && before != State::Down
    }

    /// Handles an answer; returns the round-trip time if it belongs to a probe of this link.
    pub fn on_answer(&mut self, now: Time, answer: &Answer) -> Option<Span> {
        let at = self.waiting.iter().position(|(number, ..)| *number == answer.number)?;
        let (_, sent, _) = self.waiting.remove(at)?;
        let rtt = now.since(sent);
        self.sample(rtt);
        self.count(answer);
        let (left, came) = (micros(sent) as f64, micros(now) as f64);
        self.queue[0].add(now, answer.at as f64 - left);
        self.queue[1].add(now, came - answer.at as f64);
        self.state = State::Up;
        Some(rtt)
    }

    /// Computes loss from the numbers in this answer and the last.
    fn count(&mut self, answer: &Answer) {
        let ahead = |new: u32, old: u32| new.wrapping_sub(old).cast_signed();
        if let Some((number, received)) = self.answered {
            let (sent, came) = (ahead(answer.number, number), ahead(answer.received, received));
            if sent <= 0 {
                return; // An answer that was overtaken.
            }
            // Ignore a peer that restarted its count, or whose numbers are impossible.
            if (1..=sent).contains(&came) {
                self.loss[0].add(f64::from(sent - came), f64::from(sent));
                self.loss[1].add(f64::from(came - 1), f64::from(came));
            }
        }
        self.answered = Some((answer.number, answer.received));
    }

    fn sample(&mut self, rtt: Span) {
        let new = rtt.as_nanos() as f64 / 1e3;
        self.rtt = Some(match self.rtt {
            None => (new, new / 2.0),
            Some((rtt, deviation)) => {
                (rtt + (new - rtt) / 8.0, deviation + ((new - rtt).abs() - deviation) / 4.0)
            }
        });
    }

    /// The link as it is reported; `None` before the first answer.
    pub fn told(&self, now: Time, to: anabranch_secure::PublicKey) -> Option<super::LinkTold> {
        let down = self.state == State::Down;
        if self.rtt.is_none() && !down {
            return None;
        }
        let (rtt, deviation) = self.rtt.unwrap_or_default();
        let share = |share: &Share| if down { 10_000 } else { (share.value() * 1e4).round() as u16 };
        let kbits = |rate: Option<Rate>| {
            rate.map_or(0, |rate| (rate.as_bits() / 1_000).min(u64::from(u32::MAX)) as u32)
        };
        Some(super::LinkTold {
            to,
            up: !down,
            rtt: [rtt as u32, deviation as u32],
            loss: [share(&self.loss[0]), share(&self.loss[1])],
            queue: [self.queue[0].above as u32, self.queue[1].above as u32],
            available: kbits(self.capacity.left(now)),
            capacity: kbits(self.capacity.capacity()),
        })
    }
}
