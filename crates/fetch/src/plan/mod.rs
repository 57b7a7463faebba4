//! Decides which source fetches which bytes next.
//!
//! A *source* is a mirror over a route (an interface or an exit). It has *lanes*: connections with one request at a time. A
//! driver reports what happens, with the time, and asks [`Planner::next`] for each idle lane. Nothing here reads a clock.
//!
//! 1. A lane gets the first free bytes: as many as it fetches in eight seconds, but at most half of its fair share of the
//!    rest. So requests shrink toward the end and all lanes stay busy.
//! 2. When no bytes are free, a lane takes the end of the request that would finish last. Both then finish together.
//! 3. When that request is too short to split, or its lane is silent, a faster lane repeats it. The first copy counts.
//! 4. A silent lane counts as slower with every second, so its bytes are taken before its time limit ends it.
//! 5. A source has one lane at first and gets another while that makes its route faster. A server that limits
//!    connections halves the number.
//! 6. A server that limits requests gets few large ones: a lane takes the longest free range. Only a request that lasts long
//!    is split for another lane to that server, and not before the answer to the second request comes.
//! 7. The first answer goes on to the end of the file. Its lane reads on while the bytes behind are free, so other lanes begin
//!    in the middle of them. A server that allows one request sends everything with it.
//! 8. A server that refuses parts is limited, too. One that sends the file only from its beginning gets one request for everything
//!    that is missing.

mod choose;
mod rate;
mod source;
#[cfg(test)]
mod tests;

use std::ops::Range;

use anabranch_wire::{Span, Time};

use crate::ranges::RangeSet;
use rate::Pace;
use source::Source;
pub use source::{LONGEST_WAIT, SourceTerms, Standing, Trouble};

/// While a lane of a source is silent for longer, its other lanes get no work.
const SILENT: Span = Span::from_secs(2);
/// A request without an answer for longer leaves its bytes to an open answer that goes on there.
const LATE: Span = Span::from_secs(1);
/// How soon a lane without work asks again.
const ASK_AGAIN: Span = Span::from_millis(50);

/// A source, numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId(pub usize);

/// A lane, numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneId(pub usize);

/// The next step of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask for these bytes.
    Fetch(Range<u64>),
    /// Ask again at this time, or when another lane has news.
    Wait(Time),
    /// Close the connection: its source has too many, or is of no use.
    Leave,
}

/// The use of bytes that a lane received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Where the bytes belong in the file.
    pub at: u64,
    /// How many of them are wanted.
    pub len: u64,
    /// Whether the request goes on.
    pub more: bool,
}

#[derive(Debug)]
struct Lane {
    source: SourceId,
    /// Bytes of the current request that have not come yet.
    work: Option<Range<u64>>,
    pace: Pace,
    /// Its last request, which sizes the next one while its rate is unknown.
    last: u64,
    /// Bytes that came for it.
    came: u64,
    /// Where its answer goes on behind the request, if it does.
    goes_on: Option<u64>,
    /// The lane whose request ends where this one begins, as soon as bytes come.
    splits: Option<usize>,
}

/// A route: an interface or an exit.
#[derive(Clone, Copy, Debug, Default)]
struct RouteState {
    bytes: u64,
}

/// Plans one file of known size.
#[derive(Debug)]
pub struct Planner {
    size: u64,
    received: RangeSet,
    sources: Vec<Source>,
    lanes: Vec<Option<Lane>>,
    routes: Vec<RouteState>,
    /// Bytes that may still be fetched under each cap.
    caps: Vec<u64>,
}

impl Planner {
    /// A planner for a file of `size` bytes, of which `received` are there. `caps` are numbers of bytes.
    pub fn new(size: u64, received: RangeSet, caps: Vec<u64>) -> Self {
        Self { size, received, sources: Vec::new(), lanes: Vec::new(), routes: Vec::new(), caps }
    }

    pub fn add_source(&mut self, terms: SourceTerms, now: Time) -> SourceId {
        self.sources.push(Source::new(terms, now));
        self.routes.resize(self.routes.len().max(terms.route + 1), RouteState::default());
        SourceId(self.sources.len() - 1)
    }

    /// Counts bytes that a source sent before it took part.
    pub fn spend(&mut self, source: SourceId, bytes: u64) {
        if let Some(cap) = self.sources[source.0].terms.cap {
            self.caps[cap] = self.caps[cap].saturating_sub(bytes);
        }
    }

    /// Bytes that may still be fetched under each cap.
    pub fn caps(&self) -> &[u64] {
        &self.caps
    }

    /// Bytes that have come.
    pub fn received(&self) -> u64 {
        self.received.total()
    }

    /// Whether every byte has come.
    pub fn is_complete(&self) -> bool {
        self.received.covers(&(0..self.size))
    }

    /// Whether bytes are missing, and every source is given up, asks for a long pause or has a cap that is used up.
    pub fn is_stuck(&self, now: Time) -> bool {
        let has_work = self.lanes.iter().flatten().any(|lane| lane.work.is_some());
        !self.is_complete()
            && !has_work
            && self
                .sources
                .iter()
                .all(|source| source.is_out() || source.is_away(now) || !self.has_room(source))
    }

    /// Whether a source that may be used works.
    pub fn any_works(&self) -> bool {
        self.sources.iter().any(|source| source.works() && self.has_room(source))
    }

    /// Whether a source is used.
    pub fn standing(&self, source: SourceId) -> &Standing {
        &self.sources[source.0].standing
    }

    /// Opens one more lane for a source if it may have one now.
    pub fn open_lane(&mut self, source: SourceId, now: Time) -> Option<LaneId> {
        let wanted = &self.sources[source.0];
        let open = self.lanes.iter().flatten().filter(|lane| lane.source == source).count();
        let is_ready = wanted.ready_at().is_some_and(|at| at <= now);
        if self.is_complete() || !is_ready || open >= wanted.lanes() || !self.may_use(source) {
            return None;
        }
        let like = self.lanes.iter().flatten().find(|lane| lane.source == source).map(|lane| lane.pace);
        let pace = like.or(wanted.pace).map_or_else(|| Pace::new(now), |pace| Pace::like(&pace, now));
        let free = self.lanes.iter().position(Option::is_none);
        let place = free.unwrap_or(self.lanes.len());
        self.lanes.resize_with(self.lanes.len().max(place + 1), || None);
        self.lanes[place] =
            Some(Lane { source, work: None, pace, last: 0, came: 0, goes_on: None, splits: None });
        Some(LaneId(place))
    }

    /// Forgets a lane whose connection is closed.
    pub fn close_lane(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes[lane.0].take() {
            self.sources[lane.source.0].pace = Some(lane.pace);
        }
    }

    /// Decides about the numbers of lanes; to be called a few times a second.
    pub fn adapt(&mut self, now: Time) {
        let missing = if self.free().is_empty() { 0 } else { self.size - self.received.total() };
        for index in 0..self.sources.len() {
            let lanes = self.lanes.iter().flatten().filter(|lane| lane.source.0 == index);
            let busy = lanes.filter(|lane| lane.work.is_some()).count();
            let source = &mut self.sources[index];
            let bytes = self.routes[source.terms.route].bytes;
            source.adapt(bytes, if busy >= source.lanes() { missing } else { 0 }, now);
        }
    }

    /// Decides the next step of an idle lane.
    ///
    /// # Panics
    /// If the lane is closed.
    pub fn next(&mut self, lane: LaneId, now: Time) -> Next {
        let Some(source) = self.lanes[lane.0].as_ref().map(|lane| lane.source) else {
            panic!("a closed lane asks for work")
        };
        let open = self.lanes.iter().flatten().filter(|lane| lane.source == source).count();
        let state = &self.sources[source.0];
        let Some(ready_at) = state.ready_at() else { return Next::Leave };
        let goes_on = self.lanes[lane.0].as_ref().and_then(|lane| lane.goes_on);
        let is_too_many = open > state.lanes() && goes_on.is_none();
        if self.is_complete() || is_too_many || !self.may_use(source) {
            return Next::Leave;
        }
        if now < ready_at && goes_on.is_none() {
            return Next::Wait(ready_at);
        }
        let is_silent = self.is_silent(source, now);
        if is_silent && goes_on.is_none() {
            return Next::Wait(now + ASK_AGAIN);
        }
        let cap = state.terms.cap;
        let most = cap.map_or(u64::MAX, |cap| self.caps[cap]);
        // Without a new request, an open answer brings the next bytes, also those of a request that is late.
        let behind = goes_on.and_then(|at| self.asked_from(at, now));
        let range = match (self.chunk(lane, now), behind) {
            (Some(free), _) if goes_on == Some(free.start) => Some(free),
            (_, Some((work, is_late))) => is_late.then_some(work),
            (_, None) if is_silent => None,
            (Some(free), None) => Some(free),
            (None, None) => self.share_of_another(lane, now),
        };
        let Some(range) = range else { return Next::Wait(now + ASK_AGAIN) };
        let range = range.start..range.end.min(range.start.saturating_add(most));
        if let Some(cap) = cap {
            // Bytes count when they are asked for; unused ones return.
            self.caps[cap] -= range.end - range.start;
        }
        let lane = self.lanes[lane.0].as_mut().expect("checked above");
        (lane.last, lane.came) = (range.end - range.start, 0);
        if lane.goes_on == Some(range.start) {
            lane.pace.go_on(now);
        } else {
            lane.goes_on = None;
            lane.pace.on_request(now);
        }
        lane.work = Some(range.clone());
        Next::Fetch(range)
    }

    /// Takes bytes that came for the lane's request.
    pub fn on_bytes(&mut self, lane: LaneId, len: u64, now: Time) -> Taken {
        let none = Taken { at: 0, len: 0, more: false };
        self.split(lane);
        let Some(lane) = &mut self.lanes[lane.0] else { return none };
        let Some(work) = &mut lane.work else { return none };
        lane.pace.on_bytes(now, len);
        let (at, len) = (work.start, len.min(work.end - work.start));
        work.start += len;
        lane.came += len;
        self.received.insert(at..at + len);
        let more = !self.received.covers(work);
        let (route, source) = (self.sources[lane.source.0].terms.route, lane.source);
        self.routes[route].bytes += len;
        self.sources[source.0].on_success();
        Taken { at, len, more }
    }

    /// Notes that the answer to the lane begins with `skipped` bytes before those that it asked for, at the beginning of the
    /// file. It goes on to the end as far as a cap allows; false if the cap does not allow the first bytes.
    pub fn on_whole(&mut self, lane: LaneId, skipped: u64) -> bool {
        let Some(lane) = &mut self.lanes[lane.0] else { return false };
        let Some(work) = &mut lane.work else { return false };
        let source = &mut self.sources[lane.source.0];
        source.on_whole();
        let cap = source.terms.cap;
        let Some(room) = cap.map_or(u64::MAX, |cap| self.caps[cap]).checked_sub(skipped) else {
            return false;
        };
        let more = room.min(self.size - work.end);
        work.end += more;
        cap.into_iter().for_each(|cap| self.caps[cap] -= more);
        true
    }

    /// Notes that an answer to an idle lane goes on at this byte.
    pub fn go_on(&mut self, lane: LaneId, at: u64) {
        if let Some(lane) = &mut self.lanes[lane.0] {
            lane.goes_on = Some(at);
        }
    }

    /// Notes that the server of a source refused a request because there were too many.
    pub fn on_limit(&mut self, source: SourceId) {
        self.sources[source.0].on_limit();
    }

    /// Notes bytes before those that the lane asked for.
    pub fn on_skipped(&mut self, lane: LaneId, len: u64, now: Time) {
        let Some(lane) = &mut self.lanes[lane.0] else { return };
        lane.pace.on_bytes(now, len);
        let source = lane.source;
        self.spend(source, len);
    }

    /// Ends a lane's request; what did not come is free again.
    pub fn on_end(&mut self, lane: LaneId, trouble: Option<Trouble>, now: Time) {
        let Some(lane) = &mut self.lanes[lane.0] else { return };
        let (source, came) = (lane.source, lane.came);
        (lane.splits, lane.goes_on) = (None, None);
        lane.last = if came > 0 { lane.last } else { 0 };
        if let Some(work) = lane.work.take() {
            self.refund(source, work.end - work.start);
        }
        if let Some(trouble) = trouble {
            let is_receiving = |lane: &&Lane| lane.work.is_some() || lane.goes_on.is_some();
            let lanes = self.lanes.iter().flatten().filter(|lane| lane.source == source);
            let others = lanes.filter(is_receiving).count();
            self.sources[source.0].on_trouble(trouble, (came, others), now);
        }
    }

    /// Gives up a source.
    pub fn leave(&mut self, source: SourceId, why: String) {
        self.sources[source.0].leave(why);
    }

    /// Notes that a lane stops reading because of a limit, or reads again: its server is not silent meanwhile.
    pub fn pause(&mut self, lane: LaneId, paused: bool, now: Time) {
        if let Some(lane) = &mut self.lanes[lane.0] {
            lane.pace.pause(paused, now);
        }
    }

    /// How long a lane with a request has been silent, and whether others have its bytes already.
    pub fn silence(&self, lane: LaneId, now: Time) -> (Span, bool) {
        let Some(lane) = &self.lanes[lane.0] else { return (Span::ZERO, true) };
        let is_done = lane.work.as_ref().is_some_and(|work| self.received.covers(work));
        (lane.pace.silent_for(now), is_done)
    }

    /// How long each lane of a source that has a request has been silent, at least; `None` without a request.
    pub fn silence_of(&self, source: SourceId, now: Time) -> Option<Span> {
        let busy = self.lanes.iter().flatten().filter(|lane| lane.source == source && lane.work.is_some());
        busy.map(|lane| lane.pace.silent_for(now)).min()
    }

    /// Whether rules and caps allow the source now.
    fn may_use(&self, source: SourceId) -> bool {
        let terms = self.sources[source.0].terms;
        let better = |other: &Source| other.terms.rank < terms.rank && other.works() && self.has_room(other);
        self.has_room(&self.sources[source.0]) && !self.sources.iter().any(better)
    }

    /// The rest of a request whose next byte is this one, and whether it is late.
    fn asked_from(&self, at: u64, now: Time) -> Option<(Range<u64>, bool)> {
        let mut busy = self.lanes.iter().flatten().filter_map(|lane| Some((lane, lane.work.as_ref()?)));
        let (lane, work) = busy.find(|(_, work)| work.start == at && !self.received.covers(work))?;
        Some((work.clone(), lane.pace.silent_for(now) > LATE))
    }

    /// Returns bytes to the cap of a source.
    fn refund(&mut self, source: SourceId, bytes: u64) {
        let cap = self.sources[source.0].terms.cap;
        cap.into_iter().for_each(|cap| self.caps[cap] += bytes);
    }

    fn has_room(&self, source: &Source) -> bool {
        source.terms.cap.is_none_or(|cap| self.caps[cap] > 0)
    }

    /// Ranges that no lane fetches.
    fn free(&self) -> Vec<Range<u64>> {
        let mut taken = self.received.clone();
        let works = self.lanes.iter().flatten().filter_map(|lane| lane.work.as_ref());
        works.for_each(|work| taken.insert(work.clone()));
        taken.gaps(self.size)
    }

    /// The sum of the rates of all lanes.
    fn total_rate(&self) -> f64 {
        self.lanes.iter().flatten().filter_map(|lane| lane.pace.rate()).sum()
    }

    /// Ends the request that a lane takes the end of.
    fn split(&mut self, thief: LaneId) {
        let Some(thief) = &mut self.lanes[thief.0] else { return };
        let Some((victim, work)) = thief.splits.take().zip(thief.work.clone()) else { return };
        let Some(victim) = &mut self.lanes[victim] else { return };
        let (source, from) = (victim.source, work.start);
        if let Some(other) = &mut victim.work
            && (other.start..other.end).contains(&from)
        {
            let taken = other.end - from;
            other.end = from;
            self.refund(source, taken);
        }
    }

    /// Whether the server of a source refused a request, perhaps over another route, because there were too many.
    fn is_limited(&self, source: SourceId) -> bool {
        let server = self.sources[source.0].terms.server;
        self.sources.iter().any(|other| other.terms.server == server && other.is_limited())
    }

    /// Whether the server of a source sends the file only from the beginning.
    fn is_whole(&self, source: SourceId) -> bool {
        let server = self.sources[source.0].terms.server;
        self.sources.iter().any(|other| other.terms.server == server && other.is_whole())
    }

    /// Whether a lane of the source has been silent for long: then the others get no work.
    fn is_silent(&self, source: SourceId, now: Time) -> bool {
        let busy = self.lanes.iter().flatten().filter(|lane| lane.source == source && lane.work.is_some());
        busy.into_iter().any(|lane| lane.pace.silent_for(now) > SILENT)
    }
}
