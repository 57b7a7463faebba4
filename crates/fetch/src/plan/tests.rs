//! The planner in virtual time, with sources of constant rate.

use super::choose::FIRST_CHUNK;
use super::*;

const STEP: Span = Span::from_millis(5);

/// A source as it behaves.
#[derive(Clone, Copy)]
struct Line {
    mbit: f64,
    delay: Span,
    /// It is silent from then on.
    dies: Option<Time>,
    /// It refuses requests that come sooner after the last one that it answered.
    least_gap: Span,
    /// The number of the server that counts its requests.
    server: usize,
}

impl Line {
    fn new(mbit: f64, delay_ms: u64) -> Self {
        Self { mbit, delay: Span::from_millis(delay_ms), dies: None, least_gap: Span::ZERO, server: 0 }
    }
}

/// A lane as it behaves.
struct Connection {
    lane: LaneId,
    line: usize,
    /// When its answer comes.
    answers: Option<Time>,
    asks: Time,
    fraction: f64,
}

struct Outcome {
    seconds: f64,
    /// When 99 % had come.
    at_99: f64,
    bytes: Vec<u64>,
    lanes: Vec<usize>,
}

/// Runs a download; a line's rate is shared by its connections.
fn run(planner: &mut Planner, lines: &[Line]) -> Outcome {
    let mut now = Time::ZERO;
    let sources: Vec<_> = (0..lines.len()).map(SourceId).collect();
    let mut open: Vec<Connection> = Vec::new();
    let mut outcome =
        Outcome { seconds: 0.0, at_99: 0.0, bytes: vec![0; lines.len()], lanes: vec![0; lines.len()] };
    let mut done = 0;
    // Each server has answered a first request, as in a download.
    let mut answered = vec![now; lines.len()];
    while !planner.is_complete() {
        now += STEP;
        assert!(now.as_secs_f64() < 4000.0, "it never ends");
        planner.adapt(now);
        for source in &sources {
            while let Some(lane) = planner.open_lane(*source, now) {
                open.push(Connection { lane, line: source.0, answers: None, asks: now, fraction: 0.0 });
            }
        }
        let busy: Vec<usize> =
            (0..lines.len()).map(|line| open.iter().filter(|lane| lane.line == line).count()).collect();
        let mut keep = Vec::new();
        for mut connection in open.drain(..) {
            let line = lines[connection.line];
            outcome.lanes[connection.line] = outcome.lanes[connection.line].max(busy[connection.line]);
            if connection.answers.is_none() && now >= connection.asks {
                match planner.next(connection.lane, now) {
                    Next::Fetch(_) if now < answered[line.server] + line.least_gap => {
                        planner.on_end(connection.lane, Some(Trouble::Busy(None)), now);
                    }
                    Next::Fetch(_) => {
                        answered[line.server] = now;
                        connection.answers = Some(now + line.delay);
                    }
                    Next::Wait(at) => connection.asks = at,
                    Next::Leave => {
                        planner.close_lane(connection.lane);
                        continue;
                    }
                }
            }
            let is_dead = line.dies.is_some_and(|at| now >= at);
            let (silent, is_done) = planner.silence(connection.lane, now);
            if connection.answers.is_some() && (is_done || silent > Span::from_secs(10)) {
                let trouble = (!is_done).then(|| Trouble::Failed("silent".to_owned()));
                planner.on_end(connection.lane, trouble, now);
                planner.close_lane(connection.lane);
                continue;
            }
            if !is_dead && connection.answers.is_some_and(|at| now >= at) {
                let bytes = line.mbit * 1e6 / 8.0 * STEP.as_secs_f64() / busy[connection.line] as f64;
                connection.fraction += bytes;
                let whole = connection.fraction as u64;
                connection.fraction -= whole as f64;
                let taken = planner.on_bytes(connection.lane, whole, now);
                (done, outcome.bytes[connection.line]) =
                    (done + taken.len, outcome.bytes[connection.line] + taken.len);
                if !taken.more {
                    planner.on_end(connection.lane, None, now);
                    (connection.answers, connection.asks) = (None, now);
                }
            }
            keep.push(connection);
        }
        open = keep;
        if outcome.at_99 == 0.0 && done * 100 >= planner.size * 99 {
            outcome.at_99 = now.as_secs_f64();
        }
    }
    outcome.seconds = now.as_secs_f64();
    outcome
}

fn terms(route: usize) -> SourceTerms {
    SourceTerms { route, server: route, most_lanes: 4, ..SourceTerms::default() }
}

/// A planner for lines to one server.
fn planner_of_one_server(size: u64, lines: usize) -> Planner {
    let mut planner = Planner::new(size, RangeSet::default(), Vec::new());
    for route in 0..lines {
        planner.add_source(SourceTerms { server: 0, ..terms(route) }, Time::ZERO);
    }
    planner
}

fn planner(size: u64, lines: usize) -> Planner {
    let mut planner = Planner::new(size, RangeSet::default(), Vec::new());
    for route in 0..lines {
        planner.add_source(terms(route), Time::ZERO);
    }
    planner
}

#[test]
fn unequal_lines_run_at_their_sum_and_end_together() {
    let size = 500_000_000;
    let lines = [Line::new(50.0, 10), Line::new(30.0, 40), Line::new(20.0, 100)];
    let outcome = run(&mut planner(size, 3), &lines);
    let ideal = size as f64 * 8.0 / 100e6;
    assert!(outcome.seconds < ideal * 1.04, "{} s of {ideal} s", outcome.seconds);
    let tail = (outcome.seconds - outcome.at_99) / outcome.seconds;
    assert!(tail <= 0.02, "the last 1 % takes {tail} of the time");
    assert!(outcome.lanes.iter().all(|lanes| *lanes <= 2), "more lanes gain nothing: {:?}", outcome.lanes);
}

#[test]
fn a_very_slow_line_does_not_decide_when_the_download_ends() {
    let size = 50_000_000;
    let outcome = run(&mut planner(size, 2), &[Line::new(100.0, 10), Line::new(0.2, 300)]);
    assert!(outcome.seconds < 4.6, "{} s", outcome.seconds);
}

#[test]
fn a_line_that_dies_loses_its_work_to_the_others() {
    let dying = Line { dies: Some(Time::ZERO + Span::from_secs(5)), ..Line::new(50.0, 20) };
    let outcome = run(&mut planner(200_000_000, 2), &[Line::new(50.0, 20), dying]);
    // 31 MB came over the dying line, the rest over the other.
    let ideal = (200.0 - 31.0) * 8.0 / 50.0;
    assert!(outcome.seconds < ideal * 1.06, "{} s of {ideal} s", outcome.seconds);
}

#[test]
fn a_line_that_dies_at_the_end_costs_little_time() {
    let dying = Line { dies: Some(Time::ZERO + Span::from_millis(6_000)), ..Line::new(50.0, 20) };
    let outcome = run(&mut planner(80_000_000, 2), &[Line::new(50.0, 20), dying]);
    assert!(outcome.seconds < 10.0, "{} s", outcome.seconds);
}

#[test]
fn caps_hold_and_sources_of_lower_rank_wait_for_need() {
    let mut planner = Planner::new(10_000_000, RangeSet::default(), vec![2_000_000]);
    planner.add_source(terms(0), Time::ZERO);
    planner.add_source(SourceTerms { cap: Some(0), ..terms(1) }, Time::ZERO);
    planner.add_source(SourceTerms { rank: 1, ..terms(2) }, Time::ZERO);
    let outcome = run(&mut planner, &[Line::new(8.0, 10), Line::new(80.0, 10), Line::new(800.0, 10)]);
    assert_eq!(outcome.bytes[2], 0, "a backup is not used while others work");
    assert_eq!(outcome.bytes[1], 2_000_000, "the cap holds, and is used");
}

#[test]
fn a_backup_is_used_when_the_others_fail() {
    let mut planner = Planner::new(10_000_000, RangeSet::default(), Vec::new());
    planner.add_source(terms(0), Time::ZERO);
    planner.add_source(SourceTerms { rank: 1, ..terms(1) }, Time::ZERO);
    let dying = Line { dies: Some(Time::ZERO + Span::from_secs(1)), ..Line::new(8.0, 10) };
    let outcome = run(&mut planner, &[dying, Line::new(80.0, 10)]);
    assert!(outcome.bytes[1] > 5_000_000, "{:?}", outcome.bytes);
}

#[test]
fn a_busy_server_gets_fewer_connections_and_its_pause() {
    let mut planner = planner(100_000_000, 1);
    let at = |seconds| Time::ZERO + Span::from_secs(seconds);
    let source = SourceId(0);
    let lane = planner.open_lane(source, at(0)).unwrap();
    assert!(matches!(planner.next(lane, at(0)), Next::Fetch(_)));
    planner.on_end(lane, Some(Trouble::Busy(Some(Span::from_secs(7)))), at(1));
    assert_eq!(planner.next(lane, at(1)), Next::Wait(at(8)));
    assert!(matches!(planner.standing(source), Standing::Resting(_)));
    assert!(matches!(planner.next(lane, at(8)), Next::Fetch(_)));
    planner.on_bytes(lane, 1000, at(9));
    assert_eq!(planner.standing(source), &Standing::Ready);
}

#[test]
fn a_server_that_limits_requests_is_as_fast_as_with_one_request() {
    // Two requests a second, 4 MB/s.
    let line = Line { least_gap: Span::from_millis(500), ..Line::new(32.0, 5) };
    let outcome = run(&mut planner(20_000_000, 1), &[line]);
    assert!(outcome.seconds < 5.0 * 1.2, "{} s", outcome.seconds);
    let slow = Line { least_gap: Span::from_secs(3), ..Line::new(32.0, 5) };
    let other = Line { server: 1, ..Line::new(32.0, 5) };
    let outcome = run(&mut planner(80_000_000, 2), &[slow, other]);
    // It begins after 3.5 s, with pauses that grow.
    assert!(outcome.seconds < (10.0 + 3.5 / 2.0) * 1.05, "{} s with another source", outcome.seconds);
}

#[test]
fn a_server_that_limits_the_requests_of_all_lines_is_not_slower_than_over_one() {
    for (lines, gap_ms) in [(2, 700), (2, 1500), (3, 1000), (3, 3000), (3, 10_000)] {
        let line = Line { least_gap: Span::from_millis(gap_ms), ..Line::new(16.0, 5) };
        let outcome = run(&mut planner_of_one_server(40_000_000, lines), &vec![line; lines]);
        // Pauses after refused requests double.
        let one = 20.0 + 2.0 * gap_ms as f64 / 1000.0;
        assert!(outcome.seconds < one, "{lines} lines, {gap_ms} ms: {} s of {one} s", outcome.seconds);
    }
}

#[test]
fn a_request_to_a_server_that_limits_them_ends_early_only_when_another_is_answered() {
    let mut planner = planner_of_one_server(100_000_000, 2);
    let at = |ms| Time::ZERO + Span::from_millis(ms);
    let lanes: Vec<_> = (0..2).map(|source| planner.open_lane(SourceId(source), at(0)).unwrap()).collect();
    assert!(matches!(planner.next(lanes[0], at(0)), Next::Fetch(_)));
    planner.on_end(lanes[0], Some(Trouble::Busy(None)), at(1));
    assert_eq!(planner.next(lanes[0], at(1000)), Next::Fetch(0..100_000_000), "all in one request");
    for ms in 1001..3000 {
        assert!(planner.on_bytes(lanes[0], 1000, at(ms)).more);
    }
    assert!(matches!(planner.next(lanes[1], at(3000)), Next::Fetch(_)), "the rest takes long");
    planner.on_end(lanes[1], Some(Trouble::Busy(None)), at(3001));
    let Next::Fetch(end) = planner.next(lanes[1], at(4000)) else { panic!("it is asked for again") };
    let work = |planner: &Planner| planner.lanes[0].as_ref().unwrap().work.clone().unwrap();
    assert_eq!(work(&planner).end, 100_000_000, "nothing was taken from the other");
    planner.on_bytes(lanes[1], 1000, at(4001));
    assert_eq!(work(&planner).end, end.start);
    let left = end.start - 1_999_000;
    assert!(planner.on_bytes(lanes[0], left - 1, at(4002)).more);
    assert!(!planner.on_bytes(lanes[0], 1000, at(4003)).more, "it ends where the other begins");
    // A rest that takes less than some seconds is not split.
    planner.on_end(lanes[0], None, at(4003));
    for ms in 4004..6000 {
        planner.on_bytes(lanes[1], 40_000, at(ms));
    }
    assert!(!matches!(planner.next(lanes[0], at(6000)), Next::Fetch(_)), "no more requests");
}

#[test]
fn a_second_connection_that_is_refused_does_not_stop_the_first() {
    let mut planner = planner(1_000_000_000, 1);
    let (source, mut now) = (SourceId(0), Time::ZERO);
    let first = planner.open_lane(source, now).unwrap();
    assert!(matches!(planner.next(first, now), Next::Fetch(_)));
    let second = loop {
        now += Span::from_millis(100);
        planner.on_bytes(first, 1000, now);
        planner.adapt(now);
        if let Some(lane) = planner.open_lane(source, now) {
            break lane;
        }
    };
    assert!(matches!(planner.next(second, now), Next::Fetch(_)));
    planner.on_end(second, Some(Trouble::Busy(None)), now);
    assert_eq!(planner.next(second, now), Next::Leave);
    planner.close_lane(second);
    for _ in 0..100 {
        now += Span::from_millis(100);
        planner.on_bytes(first, 1000, now);
        planner.adapt(now);
        assert_eq!(planner.open_lane(source, now), None, "the limit is remembered");
    }
    planner.on_end(first, None, now);
    assert!(matches!(planner.next(first, now), Next::Fetch(_)), "it goes on at once");
}

#[test]
fn a_request_that_is_refused_for_good_does_not_stop_an_answer_that_goes_on() {
    for trouble in [Trouble::Useless("403".to_owned()), Trouble::NoParts("416".to_owned())] {
        let source = SourceId(0);
        let (mut planner, mut now) = (planner(100_000_000, 1), Time::ZERO);
        let first = planner.open_lane(source, now).unwrap();
        planner.go_on(first, 0);
        let Next::Fetch(range) = planner.next(first, now) else { panic!("it goes on") };
        let second = loop {
            now += Span::from_millis(100);
            assert!(planner.on_bytes(first, 1000, now).more);
            planner.adapt(now);
            if let Some(lane) = planner.open_lane(source, now) {
                break lane;
            }
        };
        assert!(matches!(planner.next(second, now), Next::Fetch(_)));
        planner.on_end(second, Some(trouble.clone()), now);
        planner.on_bytes(first, range.end - range.start, now);
        planner.on_end(first, None, now);
        planner.go_on(first, range.end);
        assert_eq!(planner.next(first, now), Next::Fetch(range.end..100_000_000), "{trouble:?}");
        assert_eq!(planner.next(second, now), Next::Leave, "{trouble:?}");
    }
}

#[test]
fn a_server_that_refuses_parts_is_not_asked_for_the_end_of_its_open_answer() {
    let mut planner = planner_of_one_server(20_000_000, 2);
    let at = |ms| Time::ZERO + Span::from_millis(ms);
    let lanes: Vec<_> = (0..2).map(|source| planner.open_lane(SourceId(source), at(0)).unwrap()).collect();
    planner.go_on(lanes[0], 0);
    let Next::Fetch(first) = planner.next(lanes[0], at(0)) else { panic!("it goes on") };
    for ms in 0..500 {
        assert!(planner.on_bytes(lanes[0], first.end / 1000, at(ms)).more);
    }
    assert!(matches!(planner.next(lanes[1], at(500)), Next::Fetch(range) if range.start > first.end));
    planner.on_end(lanes[1], Some(Trouble::NoParts("200".to_owned())), at(500));
    assert!(matches!(planner.next(lanes[1], at(1001)), Next::Wait(_)), "the open answer brings it");
    planner.on_end(lanes[1], Some(Trouble::NoParts("200".to_owned())), at(1001));
    planner.on_bytes(lanes[0], first.end, at(1001));
    planner.on_end(lanes[0], None, at(1001));
    planner.go_on(lanes[0], first.end);
    assert_eq!(planner.next(lanes[0], at(1001)), Next::Fetch(first.end..20_000_000));
    for ms in 1001..2100 {
        planner.on_bytes(lanes[0], 1000, at(ms));
    }
    assert!(matches!(planner.next(lanes[1], at(2100)), Next::Wait(_)), "the whole file would take longer");
    planner.on_end(lanes[0], None, at(2100));
    let from = first.end + 1_099_000;
    assert_eq!(planner.next(lanes[1], at(2100)), Next::Fetch(from..20_000_000), "everything that is missing");
}

#[test]
fn another_connection_is_not_tried_when_little_is_missing() {
    for (size, opens) in [(3_000_000, false), (9_000_000, true)] {
        let mut planner = planner(size, 1);
        let lane = planner.open_lane(SourceId(0), Time::ZERO).unwrap();
        for ms in 1..2500 {
            let now = Time::ZERO + Span::from_millis(ms);
            if !planner.on_bytes(lane, 1000, now).more {
                planner.on_end(lane, None, now);
                planner.next(lane, now);
            }
            planner.adapt(now);
        }
        let now = Time::ZERO + Span::from_millis(2500);
        assert_eq!(planner.open_lane(SourceId(0), now).is_some(), opens, "{size}");
    }
}

#[test]
fn a_source_that_only_fails_is_given_up_and_a_useless_one_at_once() {
    let mut planner = planner(1000, 2);
    let mut now = Time::ZERO;
    for _ in 0..8 {
        let lane = planner.open_lane(SourceId(0), now).unwrap();
        assert!(matches!(planner.next(lane, now), Next::Fetch(_)));
        planner.on_end(lane, Some(Trouble::Failed("refused".to_owned())), now);
        planner.close_lane(lane);
        now += Span::from_secs(60);
    }
    assert_eq!(planner.standing(SourceId(0)), &Standing::Out("refused".to_owned()));
    assert!(!planner.is_stuck(now));
    let lane = planner.open_lane(SourceId(1), now).unwrap();
    planner.next(lane, now);
    planner.on_end(lane, Some(Trouble::Useless("not found".to_owned())), now);
    assert!(planner.is_stuck(now));
}

#[test]
fn a_server_that_asks_for_a_long_pause_is_not_waited_for_and_may_come_back() {
    let mut planner = planner(1_000_000, 2);
    let at = |seconds| Time::ZERO + Span::from_secs(seconds);
    for source in [0, 1] {
        assert!(!planner.is_stuck(at(0)), "the other source may work");
        let lane = planner.open_lane(SourceId(source), at(0)).unwrap();
        planner.next(lane, at(0));
        planner.on_end(lane, Some(Trouble::Busy(Some(Span::from_secs(600)))), at(0));
        planner.close_lane(lane);
    }
    assert!(planner.is_stuck(at(0)) && !planner.any_works());
    assert!(!planner.is_stuck(at(500)), "the rest of the pause is short");
    assert_eq!(planner.open_lane(SourceId(0), at(599)), None);
    assert!(planner.open_lane(SourceId(0), at(600)).is_some());
}

#[test]
fn a_lane_that_pauses_for_a_limit_keeps_its_bytes() {
    let mut planner = planner(2 * FIRST_CHUNK, 2);
    let at = |seconds| Time::ZERO + Span::from_secs(seconds);
    let lanes: Vec<_> = (0..2).map(|source| planner.open_lane(SourceId(source), at(0)).unwrap()).collect();
    for lane in &lanes {
        assert!(matches!(planner.next(*lane, at(0)), Next::Fetch(_)));
    }
    planner.on_bytes(lanes[0], FIRST_CHUNK - 1000, at(1));
    planner.pause(lanes[0], true, at(1));
    planner.on_bytes(lanes[1], FIRST_CHUNK, at(2));
    planner.on_end(lanes[1], None, at(2));
    assert!(matches!(planner.next(lanes[1], at(30)), Next::Wait(_)), "a short rest is left to its lane");
    assert_eq!(planner.silence(lanes[0], at(30)), (Span::ZERO, false));
    planner.pause(lanes[0], false, at(31));
    assert_eq!(planner.silence(lanes[0], at(33)).0, Span::from_secs(2));
}

#[test]
fn a_download_whose_caps_are_used_up_is_stuck_and_not_before() {
    let mut planner = Planner::new(10_000_000, RangeSet::default(), vec![500_000]);
    let source = planner.add_source(SourceTerms { cap: Some(0), ..terms(0) }, Time::ZERO);
    let lane = planner.open_lane(source, Time::ZERO).unwrap();
    assert_eq!(planner.next(lane, Time::ZERO), Next::Fetch(0..500_000));
    assert!(!planner.is_stuck(Time::ZERO) && !planner.any_works());
    planner.on_bytes(lane, 500_000, Time::ZERO);
    planner.on_end(lane, None, Time::ZERO);
    assert_eq!(planner.next(lane, Time::ZERO), Next::Leave);
    assert!(planner.is_stuck(Time::ZERO));
}

#[test]
fn a_request_that_brought_bytes_before_it_failed_is_followed_by_a_short_pause() {
    let mut planner = planner(10_000_000, 1);
    let mut now = Time::ZERO;
    let lane = planner.open_lane(SourceId(0), now).unwrap();
    for (bytes, pause) in [(100_000, 20), (100_000, 20), (0, 1000), (0, 2000), (100_000, 20)] {
        assert!(matches!(planner.next(lane, now), Next::Fetch(_)));
        if bytes > 0 {
            planner.on_bytes(lane, bytes, now);
        }
        planner.on_end(lane, Some(Trouble::Failed("cut".to_owned())), now);
        let at = now + Span::from_millis(pause);
        assert_eq!(planner.next(lane, now), Next::Wait(at), "{bytes} bytes");
        now = at;
    }
}

#[test]
fn a_server_that_sends_only_whole_files_gets_one_request_over_one_line() {
    let mut planner = planner_of_one_server(10_000_000, 2);
    let lanes: Vec<_> =
        (0..2).map(|source| planner.open_lane(SourceId(source), Time::ZERO).unwrap()).collect();
    let Next::Fetch(range) = planner.next(lanes[0], Time::ZERO) else { panic!("it is asked") };
    assert!(range.end < 10_000_000);
    assert!(planner.on_whole(lanes[0], 0));
    assert!(planner.on_bytes(lanes[0], 1_000_000, Time::ZERO).more);
    assert!(planner.on_bytes(lanes[0], 8_000_000, Time::ZERO).more, "everything comes by one answer");
    assert!(!matches!(planner.next(lanes[1], Time::ZERO), Next::Fetch(_)), "the other line waits");
}

#[test]
fn an_answer_that_goes_on_keeps_the_bytes_behind_it() {
    let mut planner = planner(40_000_000, 2);
    let now = Time::ZERO;
    let lanes: Vec<_> = (0..2).map(|source| planner.open_lane(SourceId(source), now).unwrap()).collect();
    planner.go_on(lanes[0], 0);
    let Next::Fetch(first) = planner.next(lanes[0], now) else { panic!("it reads on") };
    assert_eq!(
        planner.next(lanes[1], now),
        Next::Fetch(40_000_000 - FIRST_CHUNK..40_000_000),
        "as far behind the other answer as possible"
    );
    planner.on_bytes(lanes[0], first.end, now);
    planner.on_end(lanes[0], None, now);
    planner.go_on(lanes[0], first.end);
    // The other source refuses a second request of the same server.
    planner.on_end(lanes[1], Some(Trouble::Busy(None)), now);
    planner.on_limit(SourceId(0));
    assert_eq!(planner.next(lanes[0], now), Next::Fetch(first.end..40_000_000), "all by one request");
    // An answer that is silent keeps nothing.
    let later = now + Span::from_secs(3);
    planner.on_end(lanes[0], None, later);
    planner.go_on(lanes[0], first.end);
    let Next::Fetch(range) = planner.next(lanes[1], later) else { panic!("there is work") };
    assert_eq!(range.start, first.end);
}

#[test]
fn an_open_answer_brings_what_a_silent_request_to_the_same_server_does_not() {
    for rate in [1_000_000, 30_000_000] {
        open_answer_beside_a_silent_request(rate);
    }
}

/// The open answer brings so many bytes in a tenth of a second, so that it comes to the silent request late or soon.
fn open_answer_beside_a_silent_request(rate: u64) {
    let mut planner = planner(100_000_000, 1);
    let (source, mut now) = (SourceId(0), Time::ZERO);
    let first = planner.open_lane(source, now).unwrap();
    planner.go_on(first, 0);
    assert!(matches!(planner.next(first, now), Next::Fetch(_)));
    // The first answer brings so many bytes; returns how far it has come.
    let read = |planner: &mut Planner, bytes, now| {
        let taken = planner.on_bytes(first, bytes, now);
        if !taken.more {
            planner.on_end(first, None, now);
            planner.go_on(first, taken.at + taken.len);
        }
        (taken.at + taken.len, taken.more)
    };
    let second = loop {
        now += Span::from_millis(100);
        if let (at, false) = read(&mut planner, 10_000, now) {
            assert!(matches!(planner.next(first, now), Next::Fetch(range) if range.start == at));
        }
        planner.adapt(now);
        if let Some(lane) = planner.open_lane(source, now) {
            break lane;
        }
    };
    let Next::Fetch(silent) = planner.next(second, now) else { panic!("there is work") };
    loop {
        now += Span::from_millis(100);
        match read(&mut planner, rate, now) {
            (_, true) => {}
            (at, false) if at == silent.start => break,
            (at, false) => {
                let next = planner.next(first, now);
                assert!(matches!(&next, Next::Fetch(range) if range.start == at), "{next:?} at {at}");
            }
        }
    }
    let next = match planner.next(first, now) {
        Next::Wait(_) => planner.next(first, now + LATE + STEP),
        next => next,
    };
    assert_eq!(next, Next::Fetch(silent));
}
