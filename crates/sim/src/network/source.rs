//! Sources: bursts of plain packets, and sessions that arrive at random.

use anabranch_wire::{Span, Time};

use super::plan::{ArrivalPlan, BurstPlan};
use crate::chance::Chance;

/// A source of plain packets.
#[derive(Debug)]
pub(crate) struct Burst {
    pub plan: BurstPlan,
    /// Index of its route in the route table.
    pub route: u32,
    chance: Chance,
    /// End of the current burst.
    until: Time,
    /// The rest of the packet spacing at the end of the last burst.
    left: Span,
    pub sent: u64,
    pub received: u64,
}

impl Burst {
    pub(crate) fn new(plan: BurstPlan, route: u32, seed: u64) -> Self {
        let until = plan.start;
        Self { plan, route, chance: Chance::new(seed), until, left: Span::ZERO, sent: 0, received: 0 }
    }

    /// Whether a packet leaves now, and the time of the next call.
    pub(crate) fn call(&mut self, now: Time) -> (bool, Time) {
        if now >= self.plan.stop {
            return (false, Time::NEVER);
        }
        if now >= self.until {
            // A new burst begins.
            self.until = now + self.chance.duration(self.plan.on);
            let first = now + self.left;
            if first > now || first >= self.until {
                return (false, self.due(first));
            }
        }
        self.sent += 1;
        (true, self.due(now + self.plan.every))
    }

    /// The time of a packet that is due at `next`: within this burst, or after the pause.
    fn due(&mut self, next: Time) -> Time {
        self.left = next.since(self.until);
        if next < self.until { next } else { self.until + self.pause() }
    }

    /// A pause, at least a nanosecond.
    fn pause(&mut self) -> Span {
        self.chance.duration(self.plan.off).max(Span::from_nanos(1))
    }
}

/// A source of sessions.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pub plan: ArrivalPlan,
    chance: Chance,
    phase: usize,
    phase_end: Time,
    /// Whether the next call is an arrival; otherwise it is a change of phase.
    due: bool,
    /// Sessions that arrived.
    pub arrived: u64,
    /// Sessions refused because too many were open.
    pub refused: u64,
    /// Completion time, duration and size of each file, in order of completion.
    pub completed: Vec<(Time, Span, u64)>,
    pub bytes: u64,
    /// Free slots of flows.
    pub free: Vec<u32>,
    pub open: usize,
}

/// Most open sessions of one source.
pub(crate) const MAX_OPEN: usize = 20_000;

impl Arrivals {
    pub(crate) fn new(plan: ArrivalPlan, seed: u64) -> Self {
        let phase_end = plan.start;
        Self {
            phase: plan.phases.len() - 1,
            plan,
            chance: Chance::new(seed),
            phase_end,
            due: false,
            arrived: 0,
            refused: 0,
            completed: Vec::new(),
            bytes: 0,
            free: Vec::new(),
            open: 0,
        }
    }

    /// The size of the file that arrives now, if one does, and the time of the next call.
    pub(crate) fn call(&mut self, now: Time) -> (Option<u64>, Time) {
        if now >= self.plan.stop {
            return (None, Time::NEVER);
        }
        let size = std::mem::take(&mut self.due).then(|| self.chance.size(self.plan.sizes));
        if now >= self.phase_end {
            self.phase = (self.phase + 1) % self.plan.phases.len();
            self.phase_end = now + self.plan.phases[self.phase].1;
        }
        // A Poisson process is memoryless, so it can restart when the rate changes.
        let rate = self.plan.phases[self.phase].0;
        let wait = Span::from_secs_f64(self.chance.exponential() / rate);
        let next = now + wait.max(Span::from_nanos(1));
        self.due = next < self.phase_end;
        (size, next.min(self.phase_end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::plan::Duration;

    /// Packets that leave within `seconds`, with one every 12 ms in bursts as long as the pauses between them.
    fn sent(length: Duration, seconds: u64) -> u64 {
        let end = Time::ZERO + Span::from_secs(seconds);
        let every = Span::from_millis(12);
        let (links, start, stop) = (Vec::new(), Time::ZERO, end);
        let plan = BurstPlan { links, every, packet: 1472, on: length, off: length, start, stop };
        let (mut burst, mut now) = (Burst::new(plan, 0, 1), Time::ZERO);
        while now < end {
            now = burst.call(now).1;
        }
        burst.sent
    }

    #[test]
    fn bursts_keep_their_rate_however_short_they_are() {
        for millis in [1, 5, 20, 100, 1000] {
            let length = Span::from_millis(millis);
            let fixed = sent(Duration::Fixed(length), 1200);
            assert!((49_900..=50_100).contains(&fixed), "{fixed} packets in bursts of {length}");
            for length in [Duration::Exponential(length), Duration::Uniform(length)] {
                let sent = sent(length, 1200);
                assert!((45_000..=55_000).contains(&sent), "{sent} packets in bursts of {length:?}");
            }
        }
    }
}
