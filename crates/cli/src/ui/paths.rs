//! Turns the engine's counters of each path into a line of the display.
//!
//! The engine reports totals since a path was opened, but the display shows the current rate. So each path has a
//! [`Meter`]. A sender counts what was delivered: not what is in flight, and not what was lost. A path's share is its rate
//! divided by the sum of all rates, so the share of a cut path drops to zero within seconds.

use std::collections::BTreeMap;

use anabranch_engine::{IdleReason, PathInfo, PathState as EngineState, PathStats, Standing};
use anabranch_wire::{PathId, Rate, Span};

use super::pace::{Meter, STALL, window_before};
use super::snapshot::{PathLine, PathState};

/// A suspect path, whose answers are overdue, has no rate after this long without a byte.
const DOUBTFUL: Span = Span::from_millis(400);

/// While others carry data, a path to this end has no rate after a silence in which so many bytes come at its rate: twenty
/// packets.
const MISSED: u64 = 24_000;

/// The direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Away from this machine.
    Out,
    /// To this machine.
    In,
}

/// Keeps the rate of every path of one session.
pub struct PathMeter {
    direction: Direction,
    meters: BTreeMap<PathId, PathRate>,
    /// When the first path had data, or the first again after a stall of all.
    begun: Option<Span>,
}

/// The rate of one path.
#[derive(Default)]
struct PathRate {
    meter: Meter,
    /// Bytes transferred. The estimate of a sender's bytes can fall a little, these never.
    bytes: u64,
    /// When they last became more.
    grown: Span,
}

impl PathMeter {
    /// A set of meters for data in this direction.
    pub fn new(direction: Direction) -> Self {
        Self { direction, meters: BTreeMap::new(), begun: None }
    }

    /// The lines for these named paths at `elapsed`. Drops the meters of other paths.
    pub fn lines(&mut self, elapsed: Span, paths: &[(String, PathInfo)]) -> Vec<PathLine> {
        self.meters.retain(|id, _| paths.iter().any(|(_, path)| path.id == *id));
        self.begin_anew_after_silence(elapsed, paths);
        paths.iter().for_each(|(_, path)| self.count(elapsed, path));
        let rates: Vec<Rate> = paths.iter().map(|(_, path)| self.rate(elapsed, path)).collect();
        let sum: u64 = rates.iter().map(|rate| rate.as_bits()).sum();
        let each = paths.iter().zip(rates);
        each.map(|((label, path), rate)| self.line(label, path, (rate, sum))).collect()
    }

    /// Measures all paths from now on when bytes come again after a stall of all, as the rate of the whole is.
    fn begin_anew_after_silence(&mut self, elapsed: Span, paths: &[(String, PathInfo)]) {
        let Some(grown) = self.meters.values().map(|known| known.grown).max() else { return };
        let grows = |(_, path): &(String, PathInfo)| {
            self.meters.get(&path.id).is_some_and(|known| self.bytes(path) > known.bytes)
        };
        if self.begun.is_some() && elapsed.saturating_sub(grown) >= STALL && paths.iter().any(grows) {
            self.begun = Some(elapsed);
            self.meters.values_mut().for_each(|known| known.meter.begin_anew(elapsed));
        }
    }

    fn bytes(&self, path: &PathInfo) -> u64 {
        match self.direction {
            Direction::Out => delivered(path),
            Direction::In => path.stats.data_received,
        }
    }

    /// Counts the bytes of a path.
    fn count(&mut self, elapsed: Span, path: &PathInfo) {
        let bytes = self.bytes(path);
        let begun = self.begun;
        let known = self.meters.entry(path.id).or_insert_with(|| match begun {
            // A later path is measured over the same time as the others, so that the sum is that of the same seconds.
            // Bytes at their beginning came before it.
            Some(begun) if begun < elapsed || bytes == 0 => {
                PathRate { meter: Meter::from_zero(begun.max(window_before(elapsed))), ..<_>::default() }
            }
            _ => PathRate::default(),
        });
        if bytes > known.bytes {
            (known.bytes, known.grown) = (bytes, elapsed);
            self.begun.get_or_insert(elapsed);
        }
    }

    fn rate(&mut self, elapsed: Span, path: &PathInfo) -> Rate {
        let newest = self.meters.values().map(|known| known.grown).max().unwrap_or_default();
        let Some(known) = self.meters.get_mut(&path.id) else { return Rate::ZERO };
        let rate = known.meter.sample(elapsed, known.bytes).unwrap_or(Rate::ZERO);
        // A path that carries nothing now has rate zero, even if its last seconds were fast.
        let is_closed =
            matches!(path.state, EngineState::Failed | EngineState::Closing | EngineState::Validating);
        let patience = if path.state == EngineState::Suspect { DOUBTFUL } else { STALL };
        // A receiver sends too little to find a path suspect.
        let is_left = self.direction == Direction::In && newest.saturating_sub(known.grown) >= gap(rate);
        let is_idle = is_closed || is_left || elapsed.saturating_sub(known.grown) >= patience;
        if is_idle { Rate::ZERO } else { rate }
    }

    fn line(&self, label: &str, path: &PathInfo, (rate, sum): (Rate, u64)) -> PathLine {
        let (state, why) = match (self.direction, path.standing) {
            (Direction::In, Standing::Idle(reason)) if is_open(path.state) && is_for_sending(reason) => {
                (PathState::Active, None)
            }
            _ => (state(path), why(path)),
        };
        PathLine {
            label: label.to_owned(),
            rate_mbit_s: rate.as_mbit(),
            rtt_ms: rtt_ms(path),
            loss: loss(self.direction, &path.stats),
            share: (sum > 0).then(|| rate.as_bits() as f64 / sum as f64),
            state,
            why,
        }
    }
}

/// How long a path of this rate may be silent while others are not.
fn gap(rate: Rate) -> Span {
    rate.time_for(MISSED).clamp(DOUBTFUL, STALL)
}

/// The data that was delivered over a path, as far as is known.
fn delivered(path: &PathInfo) -> u64 {
    let PathStats { data_sent, packets_sent, .. } = path.stats;
    let lost = loss(Direction::Out, &path.stats).unwrap_or(0.0) * data_sent as f64;
    if packets_sent == 0 { 0 } else { data_sent.saturating_sub(lost as u64).saturating_sub(path.in_flight) }
}

/// True for a path over which data can arrive.
fn is_open(state: EngineState) -> bool {
    matches!(state, EngineState::Active | EngineState::Suspect)
}

/// True if this end keeps its own data off the path, but the other end may send over it.
fn is_for_sending(reason: IdleReason) -> bool {
    use IdleReason::{Held, Proving, SharesBottleneck, TooSlow};
    matches!(reason, Held(_) | Proving | SharesBottleneck { .. } | TooSlow { .. })
}

/// Remembers the name of each path: the socket that the name comes from may close before the path does.
#[derive(Debug, Default)]
pub struct PathNames(BTreeMap<PathId, String>);

impl PathNames {
    /// Names these paths by `name_now`, or by its last answer if it has none now.
    pub fn name(
        &mut self,
        paths: Vec<PathInfo>,
        name_now: impl Fn(&PathInfo) -> Option<String>,
    ) -> Vec<(String, PathInfo)> {
        self.0.retain(|id, _| paths.iter().any(|path| path.id == *id));
        let named = |path: PathInfo| {
            if let Some(name) = name_now(&path) {
                self.0.insert(path.id, name);
            }
            let unnamed = || path.route.remote.ip().to_string();
            (self.0.get(&path.id).cloned().unwrap_or_else(unnamed), path)
        };
        paths.into_iter().map(named).collect()
    }
}

/// The smoothed round-trip time in milliseconds; `None` before the first sample.
pub fn rtt_ms(path: &PathInfo) -> Option<f64> {
    (!path.rtt.is_zero()).then(|| path.rtt.as_millis_f64())
}

/// The share of packets known to be lost in this direction; `None` before the first packet.
pub fn loss(direction: Direction, stats: &PathStats) -> Option<f64> {
    let (lost, sent) = match direction {
        Direction::Out => (stats.packets_lost.saturating_sub(stats.spurious_losses), stats.packets_sent),
        Direction::In => (stats.packets_missing, stats.packets_received + stats.packets_missing),
    };
    (sent > 0).then(|| (lost as f64 / sent as f64).min(1.0))
}

/// Whether a path carries data, as text.
pub fn state(path: &PathInfo) -> PathState {
    match path.state {
        EngineState::Validating => PathState::Validating,
        EngineState::Active if !path.standing.is_used() => PathState::Standby,
        EngineState::Active => PathState::Active,
        EngineState::Suspect => PathState::Suspect,
        EngineState::Failed => PathState::Failed,
        EngineState::Closing => PathState::Closing,
    }
}

/// Why a path is idle, or why it is used although better ones exist; `None` for a path in normal use.
pub fn why(path: &PathInfo) -> Option<String> {
    (path.standing != Standing::InUse).then(|| path.standing.to_string())
}

#[cfg(test)]
pub mod test {
    //! A path for tests.

    use anabranch_engine::{PathInfo, PathState, PathStats, Route, Standing};
    use anabranch_wire::{PathId, PathUse, Rate, Span};

    /// An active path with a round-trip time of 10 ms.
    pub fn info(id: u32, stats: PathStats) -> PathInfo {
        PathInfo {
            id: PathId(id),
            route: Route { socket: id, remote: "192.0.2.1:4433".parse().unwrap() },
            state: PathState::Active,
            usage: PathUse::Normal,
            standing: Standing::InUse,
            meter: None,
            rate_limit: None,
            rtt: Span::from_millis(10),
            min_rtt: Span::from_millis(9),
            rtt_variance: Span::ZERO,
            window: 0,
            in_flight: 0,
            delivery_rate: Rate::ZERO,
            mtu: 1452,
            loss_cause: Default::default(),
            group: 0,
            reliability: 1.0,
            stats,
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_engine::Fault;
    use anabranch_wire::PathUse;

    use super::*;

    fn path(id: u32, stats: PathStats) -> (String, PathInfo) {
        (format!("path {id}"), test::info(id, stats))
    }

    fn sent(bytes: u64) -> PathStats {
        PathStats { data_sent: bytes, packets_sent: bytes / 1_000, ..PathStats::default() }
    }

    #[test]
    fn shares_are_parts_of_the_present_rate() {
        let mut meter = PathMeter::new(Direction::Out);
        meter.lines(Span::ZERO, &[path(0, sent(5_000_000)), path(2, sent(0))]);
        let lines = meter.lines(Span::from_secs(1), &[path(0, sent(8_000_000)), path(2, sent(1_000_000))]);
        assert_eq!((lines[0].rate_mbit_s, lines[1].rate_mbit_s), (24.0, 8.0));
        assert_eq!((lines[0].share, lines[1].share), (Some(0.75), Some(0.25)));
    }

    #[test]
    fn a_path_that_comes_later_begins_at_nothing_and_one_that_went_is_forgotten() {
        let mut meter = PathMeter::new(Direction::Out);
        meter.lines(Span::ZERO, &[path(0, sent(0))]);
        let lines = meter.lines(Span::from_secs(1), &[path(2, sent(9_000_000))]);
        assert_eq!((lines.len(), lines[0].rate_mbit_s, lines[0].share), (1, 0.0, None));
        assert_eq!(meter.meters.len(), 1);
    }

    #[test]
    fn a_later_path_is_measured_over_the_time_of_the_others() {
        let mut meter = PathMeter::new(Direction::In);
        let received = |bytes| PathStats { data_received: bytes, ..PathStats::default() };
        for second in 0..=7 {
            meter.lines(Span::from_secs(second), &[path(0, received(1_000_000 * second))]);
        }
        for second in 8..=10 {
            let lines = meter.lines(
                Span::from_secs(second),
                &[path(0, received(1_000_000 * second)), path(2, received(1_000_000 * (second - 7)))],
            );
            let kbit = |line: &PathLine| (line.rate_mbit_s * 1e3).round() as u64;
            assert_eq!((kbit(&lines[0]), kbit(&lines[1])), (8_000, 1_600 * (second - 7)), "{second} s");
        }
    }

    #[test]
    fn what_paths_had_at_the_first_look_is_no_speed_of_any() {
        let mut meter = PathMeter::new(Direction::In);
        let received = |bytes| PathStats { data_received: bytes, ..PathStats::default() };
        for tenths in 1..=10 {
            // 10 and 20 Mbit/s
            let paths = [path(0, received(125_000 * tenths)), path(2, received(250_000 * tenths))];
            let lines = meter.lines(Span::from_millis(100 * tenths), &paths);
            let shown = [lines[0].rate_mbit_s, lines[1].rate_mbit_s];
            assert_eq!(shown, if tenths < 5 { [0.0, 0.0] } else { [10.0, 20.0] }, "{tenths}");
        }
    }

    #[test]
    fn a_path_to_this_end_that_falls_silent_has_no_rate_while_others_carry_data() {
        let received = |bytes| PathStats { data_received: bytes, ..PathStats::default() };
        let rates = |other_goes_on: bool| {
            let mut meter = PathMeter::new(Direction::In);
            let mut rate = |tenths: u64| {
                let silent = 100_000 * tenths.min(20);
                let other = if other_goes_on { 100_000 * tenths } else { silent };
                let paths = [path(0, received(silent)), path(2, received(other))];
                meter.lines(Span::from_millis(100 * tenths), &paths)[0].rate_mbit_s
            };
            (0..=30).map(&mut rate).collect::<Vec<_>>()
        };
        let alone = rates(true);
        assert!(alone[23] > 6.0 && alone[24..].iter().all(|rate| *rate == 0.0), "{alone:?}");
        let both = rates(false);
        assert!(both[30] > 0.0, "a pause of all: {both:?}");
        assert_eq!(gap(Rate::from_mbit(8.0)), DOUBTFUL);
        assert_eq!(gap(Rate::from_mbit(0.192)), Span::from_secs(1));
        assert_eq!(gap(Rate::ZERO), STALL);
    }

    #[test]
    fn losses_that_were_none_do_not_count_and_a_receiver_counts_what_is_missing() {
        let sent =
            PathStats { packets_sent: 1000, packets_lost: 30, spurious_losses: 10, ..PathStats::default() };
        let received = PathStats { packets_received: 990, packets_missing: 10, ..PathStats::default() };
        let loss = |direction, stats| PathMeter::new(direction).lines(Span::ZERO, &[path(0, stats)])[0].loss;
        assert_eq!(loss(Direction::Out, sent), Some(0.02));
        assert_eq!(loss(Direction::In, received), Some(0.01));
        assert_eq!(loss(Direction::In, sent), None);
    }

    #[test]
    fn a_sender_counts_neither_what_is_in_flight_nor_what_was_lost() {
        let mut meter = PathMeter::new(Direction::Out);
        let at = |bytes, in_flight, packets_lost| {
            let (label, info) = path(0, PathStats { packets_lost, ..sent(bytes) });
            (label, PathInfo { in_flight, ..info })
        };
        meter.lines(Span::ZERO, &[at(1_000_000, 1_000_000, 0)]);
        // A tenth of 2 MB was lost, and 800 kB are in flight.
        let lines = meter.lines(Span::from_secs(1), &[at(2_000_000, 800_000, 200)]);
        assert_eq!(lines[0].rate_mbit_s, 8.0);
        let again = meter.lines(Span::from_millis(1_100), &[at(2_000_000, 900_000, 200)]);
        assert!(
            (7.0..8.0).contains(&again[0].rate_mbit_s),
            "an estimate that falls is no new start: {again:?}"
        );
    }

    #[test]
    fn a_receiver_shows_a_path_over_which_only_its_own_data_would_not_go_as_in_use() {
        let standing = Standing::Idle(IdleReason::Held(Fault::Stalls));
        let (label, info) = path(0, PathStats::default());
        let held = [(label, PathInfo { standing, ..info })];
        let shown = |direction| PathMeter::new(direction).lines(Span::ZERO, &held).remove(0);
        assert_eq!((shown(Direction::In).state, shown(Direction::In).why), (PathState::Active, None));
        assert_eq!(shown(Direction::Out).state, PathState::Standby);
    }

    #[test]
    fn a_path_that_fell_silent_or_closes_has_no_rate_from_that_moment_on() {
        for state in [EngineState::Failed, EngineState::Closing] {
            let mut meter = PathMeter::new(Direction::Out);
            meter.lines(Span::ZERO, &[path(0, sent(0))]);
            let (name, info) = path(0, sent(1_000_000));
            let over = PathInfo { state, ..info };
            assert_eq!(meter.lines(Span::from_secs(1), &[(name, over)])[0].rate_mbit_s, 0.0, "{state:?}");
        }
    }

    #[test]
    fn a_path_that_carries_nothing_for_three_seconds_has_no_rate() {
        let mut meter = PathMeter::new(Direction::Out);
        meter.lines(Span::ZERO, &[path(0, sent(0))]);
        let mut rate = |tenths: u64| {
            let bytes = 100_000 * tenths.min(10);
            meter.lines(Span::from_millis(100 * tenths), &[path(0, sent(bytes))])[0].rate_mbit_s
        };
        let rates: Vec<f64> = (1..=40).map(&mut rate).collect();
        assert!(rates[8] > 7.0 && rates[38] > 0.0, "{rates:?}");
        assert_eq!(rates[39], 0.0);
    }

    #[test]
    fn a_suspect_path_has_no_rate_as_soon_as_nothing_comes_over_it() {
        let mut meter = PathMeter::new(Direction::Out);
        let mut rate = |tenths: u64| {
            let (name, info) = path(0, sent(100_000 * tenths.min(10)));
            let suspect = PathInfo { state: EngineState::Suspect, ..info };
            meter.lines(Span::from_millis(100 * tenths), &[(name, suspect)])[0].rate_mbit_s
        };
        let rates: Vec<f64> = (0..=14).map(&mut rate).collect();
        assert!(rates[13] > 0.0 && rates[14] == 0.0, "{rates:?}");
    }

    #[test]
    fn after_a_stall_of_all_paths_each_has_its_new_rate() {
        let mut meter = PathMeter::new(Direction::In);
        let received = |bytes| PathStats { data_received: bytes, ..PathStats::default() };
        let mut rates = |tenths: u64, bytes: u64| {
            let paths = [path(0, received(bytes)), path(2, received(bytes * 2))];
            let lines = meter.lines(Span::from_millis(100 * tenths), &paths);
            [lines[0].rate_mbit_s, lines[1].rate_mbit_s]
        };
        for tenths in 0..=20 {
            rates(tenths, 100_000 * tenths);
        }
        for more in 1..=10 {
            let shown = rates(620 + more, 2_000_000 + 100_000 * more);
            assert_eq!(shown, if more <= 4 { [0.0, 0.0] } else { [8.0, 16.0] }, "{more}");
        }
    }

    #[test]
    fn a_path_keeps_its_name_when_its_socket_is_gone() {
        let (mut names, paths) = (PathNames::default(), || vec![test::info(2, PathStats::default())]);
        let mut name = |now: Option<&str>| names.name(paths(), |_| now.map(str::to_owned)).remove(0).0;
        assert_eq!(name(None), "192.0.2.1");
        assert_eq!(name(Some("eth0")), "eth0");
        assert_eq!(name(None), "eth0");
    }

    #[test]
    fn a_receiver_sees_what_it_received() {
        let received = |bytes| PathStats { data_received: bytes, ..PathStats::default() };
        let mut meter = PathMeter::new(Direction::In);
        meter.lines(Span::ZERO, &[path(0, received(0))]);
        assert_eq!(meter.lines(Span::from_secs(1), &[path(0, received(1_000_000))])[0].rate_mbit_s, 8.0);
    }

    #[test]
    fn a_path_kept_for_need_is_on_standby() {
        let (label, info) = path(0, PathStats::default());
        let kept = Standing::Idle(IdleReason::Kept(PathUse::Backup));
        let backup = PathInfo { usage: PathUse::Backup, standing: kept, ..info.clone() };
        let standing = Standing::Idle(IdleReason::Failed);
        let failed = PathInfo { state: EngineState::Failed, standing, usage: PathUse::Backup, ..info };
        let lines =
            PathMeter::new(Direction::Out).lines(Span::ZERO, &[(label.clone(), backup), (label, failed)]);
        assert_eq!((lines[0].state, lines[1].state), (PathState::Standby, PathState::Failed));
        assert_eq!(lines[0].why.as_deref(), Some("backup: a primary path works"));
    }
}
