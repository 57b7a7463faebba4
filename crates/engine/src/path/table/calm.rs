//! The path that carries urgent data keeps its queue short: other data leave a little less in flight there than would
//! build a queue. Urgent data are datagrams of some classes, and small messages next to a bulk stream.

use anabranch_wire::{PathId, Rate, Span, Time};
use smallvec::SmallVec;

use super::{Path, Paths};

/// How long a path stays calm after the last urgent data.
const LASTS: Span = Span::from_secs(2);
/// The delay of the queue that bulk data may build on the calm path.
const QUEUE: Span = Span::from_millis(3);
/// Least packets that bulk data may have in flight on the calm path.
const LEAST_PACKETS: u64 = 4;
/// In this time the calm path's own queue drains. A delay that remains has another cause, and to hold bulk data back would
/// only slow them.
const SETTLES: Span = Span::from_millis(500);
/// Such a path is tried again after this time.
const TRIED_AGAIN: Span = Span::from_secs(20);
/// At these intervals half as much is in flight for some round trips: without that, the queue that bulk data keep would
/// soon count as the path's least round trip, which is known for ten seconds at most.
const DIPS_EVERY: Span = Span::from_secs(8);
const DIP_ROUNDS: u64 = 3;
/// The rate is measured over at least this time: acknowledgements that wait for the processor, or for a shaper, come
/// together, and one round trip then shows many times the path's rate.
const MEASURED_OVER: Span = Span::from_millis(100);
/// Another path has to promise a round trip that is shorter by this to be preferred.
const BETTER_BY: Span = Span::from_millis(2);

/// The calm path of a session, if any.
#[derive(Clone, Debug, Default)]
pub(super) struct Calm {
    path: Option<PathId>,
    since: Time,
    until: Time,
    /// Since when its queue is longer than bulk data keep it: at first, and after a moment without the processor.
    long_since: Option<Time>,
    /// The path's highest rate from `since` on, or the latest while its queue is long. Where less in flight has lowered
    /// the present one, it would lower the number in flight again.
    rate: Rate,
    /// When the present measurement of the rate began, and the bytes that had arrived by then.
    measured_from: (Time, u64),
    /// Paths that others delay, and until when they are not tried again.
    delayed: SmallVec<[(PathId, Time); 2]>,
}

impl Calm {
    /// Urgent data left on a path.
    pub(super) fn on_urgent(&mut self, now: Time, path: &Path) {
        let id = path.id();
        let before = self.delayed.len();
        self.delayed.retain(|(_, until)| *until > now);
        if !self.is(now, id) || self.delayed.len() < before {
            (self.path, self.since, self.rate) = (Some(id), now, path.delivery().rate());
            self.measured_from = (now, path.board().delivered());
            self.long_since = Some(now);
        } else if is_short(path) {
            self.long_since = None;
        } else {
            self.long_since.get_or_insert(now);
            if !self.may_settle(now, path) && !self.is_delayed(now, id) {
                self.delayed.push((id, now + TRIED_AGAIN));
            }
        }
        self.measure(now, path);
        self.until = now + LASTS;
    }

    fn measure(&mut self, now: Time, path: &Path) {
        let ((from, before), bytes) = (self.measured_from, path.board().delivered());
        if now < from + MEASURED_OVER {
            return;
        }
        let measured = Rate::from_bytes_in(bytes - before, now.since(from));
        // A path with a queue carries all that it can.
        self.rate =
            if path.rtt().smoothed() > usual_delay(path) { measured } else { self.rate.max(measured) };
        self.measured_from = (now, bytes);
    }

    /// True while a path is calm.
    #[inline]
    pub(super) fn lasts(&self, now: Time) -> bool {
        now < self.until
    }

    fn is(&self, now: Time, path: PathId) -> bool {
        self.lasts(now) && self.path == Some(path)
    }

    fn is_delayed(&self, now: Time, path: PathId) -> bool {
        self.delayed.iter().any(|(known, until)| *known == path && now < *until)
    }

    /// Whether the queue is short, or may become short.
    fn may_settle(&self, now: Time, path: &Path) -> bool {
        is_short(path) || self.long_since.is_none_or(|since| now < since + SETTLES)
    }

    /// Bytes that bulk data may have in flight on a path; `None` for any number.
    pub(super) fn window(&self, now: Time, path: &Path) -> Option<u64> {
        let is_known = self.rate > Rate::ZERO && path.rtt().has_sample();
        if !is_known
            || !self.may_settle(now, path)
            || !self.is(now, path.id())
            || self.is_delayed(now, path.id())
        {
            return None;
        }
        let packet = path.size() as u64;
        let since_dip = now.since(self.since).as_nanos() % DIPS_EVERY.as_nanos();
        let bytes = if since_dip < (path.rtt().smoothed() * DIP_ROUNDS).as_nanos() {
            self.rate.bytes_in(path.rtt().min()) / 2
        } else {
            // With a packet more, a slow path finds out that it has become faster.
            self.rate.bytes_in(usual_delay(path)) + packet
        };
        Some(bytes.max(LEAST_PACKETS * packet))
    }

    /// Until when a path delivers less than it could.
    pub(super) fn until(&self, path: PathId) -> Time {
        let is_delayed = self.delayed.iter().any(|(known, _)| *known == path);
        if self.path == Some(path) && !is_delayed { self.until } else { Time::ZERO }
    }

    /// The round trip of urgent data on a path, apart from this session's other data.
    pub(super) fn rtt(&self, now: Time, path: &Path) -> Span {
        let (least, smoothed) = (path.rtt().min(), path.rtt().smoothed());
        if self.is_delayed(now, path.id()) {
            smoothed.max(least)
        } else if self.is(now, path.id()) {
            least
        } else {
            least + BETTER_BY
        }
    }
}

/// The round trip of a calm path. One whose delay varies by itself needs more in flight.
fn usual_delay(path: &Path) -> Span {
    path.rtt().min() + QUEUE + path.rtt().variance() * 2
}

/// True if the path's queue is about as short as bulk data keep it.
fn is_short(path: &Path) -> bool {
    path.rtt().smoothed() <= usual_delay(path) + QUEUE * 2
}

impl Paths {
    /// Urgent data left on a path, or should have.
    pub(crate) fn on_urgent(&mut self, now: Time, path: PathId) {
        if let Some(path) = self.place_of(path).map(|place| &self.list[place]) {
            self.calm.on_urgent(now, path);
        }
    }

    /// True while a path keeps its queue short.
    #[inline]
    pub(crate) fn is_one_calm(&self, now: Time) -> bool {
        self.calm.lasts(now)
    }

    /// Bytes that bulk data may have in flight on a path that keeps its queue short; `None` on any other.
    #[inline]
    pub(crate) fn calm_window(&self, now: Time, place: usize) -> Option<u64> {
        if self.calm.lasts(now) { self.calm.window(now, &self.list[place]) } else { None }
    }

    /// Until when a path keeps its queue short, and so may deliver less than before.
    pub(crate) fn calm_until(&self, path: PathId) -> Time {
        self.calm.until(path)
    }

    /// The round trip that urgent data can expect on a path.
    pub(crate) fn calm_rtt(&self, now: Time, place: usize) -> Span {
        self.calm.rtt(now, &self.list[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::path::Contents;
    use crate::route::Route;

    const MBIT: f64 = 50.0;
    const PACKET: u16 = 1250;
    /// The packets that arrive together, every 10 ms.
    const BUNCH: u64 = 50;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    /// A path of 50 Mbit/s and 1 ms. Its acknowledgements came together, so that its delivery rate is far too high.
    fn bunched() -> Path {
        let route = Route { socket: 0, remote: "192.0.2.1:4433".parse().unwrap() };
        let mut path = Path::new(PathId(0), route, &Config::default(), Time::ZERO);
        path.sample_rtt(Time::ZERO, PathId(0), Span::from_millis(1), Span::ZERO);
        path.delivery_mut().set_rate(Rate::from_mbit(MBIT * 8.0));
        path
    }

    /// Bulk and urgent data for so long. All bulk data take this round trip.
    fn carry(calm: &mut Calm, path: &mut Path, from: u64, millis: u64, rtt: Span) {
        for number in from / 10..(from + millis) / 10 {
            let now = at(number * 10);
            (0..BUNCH).for_each(|_| path.board_mut().on_sent(now, PACKET, true, Contents::Nothing));
            let all = std::iter::once(number * BUNCH..(number + 1) * BUNCH).collect();
            path.board_mut().on_ack(now + Span::from_millis(1), &all, |_| {}).unwrap();
            path.sample_rtt(now, PathId(0), rtt, Span::ZERO);
            calm.on_urgent(now, path);
        }
    }

    #[test]
    fn acknowledgements_that_come_together_do_not_lengthen_the_queue() {
        let (mut calm, mut path) = (Calm::default(), bunched());
        carry(&mut calm, &mut path, 0, 400, Span::from_millis(44));
        let window = calm.window(at(400), &path).unwrap();
        let queue = Rate::from_mbit(MBIT).time_for(window);
        assert!(queue <= usual_delay(&path) + Span::from_millis(1), "{queue}");
    }

    #[test]
    fn a_slower_time_without_a_queue_leaves_the_rate_as_it_was() {
        let (mut calm, mut path) = (Calm::default(), bunched());
        path.delivery_mut().set_rate(Rate::from_mbit(MBIT * 2.0));
        carry(&mut calm, &mut path, 0, 400, Span::from_millis(1));
        let window = calm.window(at(400), &path).unwrap();
        assert!(Rate::from_mbit(MBIT * 2.0).time_for(window) >= usual_delay(&path), "{window}");
    }
}
