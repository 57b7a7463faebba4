//! Chooses the bytes of a lane's next request.

use std::ops::Range;

use anabranch_wire::Time;

use super::{LaneId, Planner, SILENT, SourceId};

/// How long a request should take.
const CHUNK_S: f64 = 8.0;
/// The size of a request to a source of unknown rate.
pub(super) const FIRST_CHUNK: u64 = 1 << 20;
/// The smallest request while bytes are free, and the smallest end that is taken from another lane.
const LEAST_CHUNK: u64 = 256 << 10;
const LEAST_SPLIT: u64 = 64 << 10;
/// A copy must come in this fraction of the original's time.
const COPY_GAIN: f64 = 0.7;
/// A server that limits requests is not asked for the end of a request that lasts for less, in seconds: of one to itself,
/// and of one to another server.
const WORTH_ASKING_S: f64 = 4.0;
const WORTH_HELPING_S: f64 = 1.0;
/// Most copies of the same bytes.
const MOST_COPIES: usize = 3;

impl Planner {
    /// The first free bytes, as many as suit the lane.
    pub(super) fn chunk(&self, id: LaneId, now: Time) -> Option<Range<u64>> {
        let lane = self.lanes[id.0].as_ref()?;
        let (kept, free): (Vec<_>, Vec<_>) =
            self.free().into_iter().partition(|gap| self.is_next_of_another(id, (gap.start, now)));
        let own = free.iter().find(|gap| lane.goes_on == Some(gap.start)).cloned();
        if self.is_whole(lane.source) {
            return own.or_else(|| free.first().map(|gap| gap.start..self.size));
        }
        if self.is_limited(lane.source) {
            // Another request may be refused. Other lanes take the end of this one.
            return own.or(free.into_iter().max_by_key(|gap| gap.end - gap.start));
        }
        let own_or_free = own.or(free.into_iter().next());
        let is_of_another = own_or_free.is_none();
        let second_half = || {
            let gap = kept.into_iter().next()?;
            let half = (gap.end - gap.start) / 2;
            (half >= LEAST_CHUNK).then(|| gap.start + half..gap.end)
        };
        let gap = own_or_free.or_else(second_half)?;
        let rest = (self.size - self.received.total()) as f64;
        let source = &self.sources[lane.source.0];
        let share = |rate: f64| rest * rate / self.total_rate().max(rate);
        let wanted = match lane.pace.rate() {
            // It may be silent again.
            _ if !source.is_sound() => LEAST_CHUNK,
            Some(rate) => {
                let least = (rate * 4.0 * lane.pace.delay_s()) as u64;
                ((rate * CHUNK_S).min(share(rate) / 2.0) as u64).max(least.max(LEAST_CHUNK))
            }
            None => (lane.last * 4).max(FIRST_CHUNK),
        };
        // A small rest would cost a request of its own.
        let is_rest = gap.end - gap.start < wanted + wanted / 4;
        Some(match is_rest {
            true => gap,
            // The other answer is cut off where it meets these bytes, and what is on its way then is wasted.
            false if is_of_another => gap.end - wanted..gap.end,
            false => gap.start..gap.start + wanted,
        })
    }

    /// Whether an answer to another lane goes on with this byte.
    fn is_next_of_another(&self, own: LaneId, (at, now): (u64, Time)) -> bool {
        let others = self.lanes.iter().enumerate().filter(|(index, _)| *index != own.0);
        others.filter_map(|(_, lane)| lane.as_ref()).any(|lane| {
            let next = lane.work.as_ref().map(|work| work.end).or(lane.goes_on);
            lane.goes_on.is_some() && next == Some(at) && lane.pace.silent_for(now) <= SILENT
        })
    }

    /// A part of the request that would finish last, or a copy of it.
    pub(super) fn share_of_another(&mut self, thief: LaneId, now: Time) -> Option<Range<u64>> {
        let own = self.lanes[thief.0].as_ref()?;
        let is_limited = self.is_limited(own.source);
        let (own_rate, own_delay) = (own.pace.rate(), own.pace.delay_s());
        let usual = self.total_rate() / self.lanes.iter().flatten().count().max(1) as f64;
        let own_rate = own_rate.unwrap_or(usual).max(1.0);
        let pending = self.pending(usual, now);
        // Of several copies, the one that ends first counts.
        let is_first =
            |one: &Pending| pending.iter().all(|other| !other.overlaps(one) || other.lasts >= one.lasts);
        let last = pending.iter().filter(|one| is_first(one)).max_by(|a, b| a.lasts.total_cmp(&b.lasts))?;
        let server = |source: SourceId| self.sources[source.0].terms.server;
        let is_own = server(own.source) == server(self.lanes[last.lane].as_ref()?.source);
        if is_limited && last.lasts < if is_own { WORTH_ASKING_S } else { WORTH_HELPING_S } {
            return None;
        }
        let copies = pending.iter().filter(|other| other.overlaps(last)).count();
        let is_whole = self.is_whole(own.source);
        // A server without parts sends what is before them, too.
        let left = last.left.end - if is_whole { 0 } else { last.left.start };
        let taken = ((last.lasts - own_delay) * own_rate * last.rate / (own_rate + last.rate)) as u64;
        let alone = own_delay + left as f64 / own_rate;
        if !is_whole && copies == 1 && taken >= LEAST_SPLIT && taken < left && left - taken >= LEAST_SPLIT {
            let range = last.left.end - taken..last.left.end;
            let victim = last.lane;
            self.lanes[thief.0].as_mut()?.splits = Some(victim);
            if !is_limited {
                self.lanes[thief.0].as_mut()?.work = Some(range.clone());
                self.split(thief);
            }
            return Some(range);
        }
        (copies <= MOST_COPIES && alone < last.lasts * COPY_GAIN).then(|| last.left.clone())
    }

    /// All requests whose bytes have not come, with their rates and how long they will last.
    fn pending(&self, usual: f64, now: Time) -> Vec<Pending> {
        let lanes = self.lanes.iter().enumerate().filter_map(|(index, lane)| Some((index, lane.as_ref()?)));
        let pending = lanes.filter_map(|(lane, state)| {
            let left = state.work.clone().filter(|left| !self.received.covers(left))?;
            let rate = state.pace.rate().unwrap_or(usual) * state.pace.vigour(now);
            // A source that failed last may fail again.
            let is_sound = self.sources[state.source.0].is_sound();
            let rate = if is_sound { rate } else { rate / 10.0 }.max(1.0);
            let lasts = (left.end - left.start) as f64 / rate;
            Some(Pending { lane, left, rate, lasts })
        });
        pending.collect()
    }
}

/// A request whose bytes have not come.
struct Pending {
    lane: usize,
    left: Range<u64>,
    rate: f64,
    lasts: f64,
}

impl Pending {
    fn overlaps(&self, other: &Self) -> bool {
        self.left.start < other.left.end && other.left.start < self.left.end
    }
}
