//! The costs of several paths per data packet: the engine with 2, 8 and 32 paths, each in its own group or all coupled
//! as one flow. The scheduler and the detectors of shared bottlenecks are also measured alone. The path manager's cost
//! is the difference made by a cap on all paths and by suppression that leaves no path out, the least of [`TURNS`]
//! each.
//!
//! *At most* is the share of the engine's time if every packet needed a decision and an acknowledgement. A decision covers a
//! run of packets; the number of decisions is counted.
//!
//! `cargo run --release -p anabranch-net --example multipath_cost -- [SECONDS]`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anabranch_engine::{
    Arrival, Config, Coupling, Decision, DelaySample, DelayWaves, EarliestArrival, Ecn, FastRetransmits,
    FullQueues, Groups, Init, Item, MemoryBudget, Meter, OneWay, OneWayDelays, PathRule, PathRules, PathView,
    Pattern, PidSource, Priority, Read, Route, Scheduler, Session, SessionView, SharedCongestion,
    SuppressionLimits, Terms, Transmit, Verdict,
};
use anabranch_wire::{ArrivalTime, Length, Message, PathId, Pid, Rate, ResetToken, Span, Time};

/// How often the engine is measured with and without a path manager, in turn.
const TURNS: usize = 3;
/// Bytes written in a millisecond of virtual time.
const WRITTEN: usize = 1_000_000;
/// One-way delay.
const STEP: Span = Span::from_millis(1);

/// The default scheduler with a counter.
struct Counting(Arc<AtomicU64>);

impl Scheduler for Counting {
    fn pick(&mut self, session: &SessionView, paths: &[PathView], item: &Item) -> Decision {
        self.0.fetch_add(1, Ordering::Relaxed);
        EarliestArrival.pick(session, paths, item)
    }
}

struct Pids(u64);

impl PidSource for Pids {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        self.0 += 1;
        (Pid(self.0), ResetToken([1; 16]))
    }
}

fn route(socket: u32) -> Route {
    Route { socket, remote: std::net::SocketAddr::from(([192, 0, 2, 1], 443)) }
}

fn establish(config: &Config, now: Time) -> Option<[Session<Length>; 2]> {
    let budget = MemoryBudget::new(1 << 40);
    let pids = |from| Box::new(Pids(from));
    let mut client = Session::connect(config.clone(), &[route(0)], pids(1 << 32), budget.clone(), now);
    let Message::Init(params) = client.poll_transmit(now)?.message else { return None };
    let server =
        Session::accept(config.clone(), Init { params, route: route(0) }, pids(1 << 33), budget, now);
    Some([client, server.ok()?])
}

fn turn(session: &mut Session<Length>, now: Time, landed: &mut Vec<Transmit<Length>>) {
    for transmit in landed.drain(..) {
        let arrival =
            Arrival { route: transmit.route, size: transmit.size, ecn: Ecn::NotEct, waited: Span::ZERO };
        session.handle_message(now, &arrival, transmit.message);
    }
    if session.poll_timeout().is_some_and(|at| at <= now) {
        session.handle_timeout(now);
    }
    while session.poll_event().is_some() {}
    while session.poll_pid_change().is_some() {}
}

/// Nanoseconds per data packet with its acknowledgements, both ends together; and decisions per packet.
fn engine(paths: u32, (coupling, rules): (Coupling, PathRules), seconds: u64) -> (f64, f64) {
    let config = Config { max_paths: paths, coupling, rules, ..Config::default() };
    let decisions = Arc::new(AtomicU64::new(0));
    let mut now = Time::ZERO + Span::from_secs(1);
    let [mut client, mut server] = establish(&config, now).expect("a session");
    client.set_scheduler(Box::new(Counting(decisions.clone())));
    let (mut to_client, mut to_server, mut stream) = (Vec::new(), Vec::new(), None);
    let (mut packets, mut steps, mut begun) = (0_u64, 0, Instant::now());
    while steps < 2_000 || begun.elapsed() < Duration::from_secs(seconds) {
        steps += 1;
        if steps == 2_000 {
            (packets, begun) = (0, Instant::now());
            decisions.store(0, Ordering::Relaxed);
        }
        now += STEP;
        packets += to_server.len() as u64;
        turn(&mut client, now, &mut to_client);
        turn(&mut server, now, &mut to_server);
        let open = client.paths().len() as u32;
        if steps % 10 == 0 && open < paths {
            // Refused until the peer has given a PID for the path; retried ten steps later.
            client.open_path(now, route(open)).ok();
        }
        stream = stream.or_else(|| client.open_stream());
        if let Some(stream) = stream {
            client.write(stream, &mut Length(WRITTEN)).expect("an open stream");
            while let Ok(Read::Data(_)) = server.read(stream, 1 << 20) {}
        }
        to_server.extend(std::iter::from_fn(|| client.poll_transmit(now)));
        to_client.extend(std::iter::from_fn(|| server.poll_transmit(now)));
    }
    assert_eq!(client.paths().len() as u32, paths, "every path is open");
    let nanoseconds = begun.elapsed().as_secs_f64() * 1e9;
    (nanoseconds / packets as f64, decisions.load(Ordering::Relaxed) as f64 / packets as f64)
}

/// A cap that is never reached and limits that no path exceeds: the manager does all its work without effect.
fn managed() -> PathRules {
    let terms = Terms { priority: Priority::Primary, meter: Some(Meter::new(1 << 60)), rate: None };
    let limits = SuppressionLimits { omega: f64::INFINITY, d: usize::MAX };
    PathRules::new(vec![PathRule { pattern: Pattern::Any, terms }]).suppressing(Some(limits))
}

/// Nanoseconds a data packet without a path manager and with one, and decisions a packet.
fn with_and_without(paths: u32, seconds: u64) -> ([f64; 2], f64) {
    let (mut least, mut decisions) = ([f64::INFINITY; 2], 0.0);
    for turn in 0..2 * TURNS {
        let rules = if turn % 2 == 0 { PathRules::default() } else { managed() };
        let took = engine(paths, (Coupling::Adaptive, rules), seconds);
        least[turn % 2] = least[turn % 2].min(took.0);
        decisions = took.1;
    }
    (least, decisions)
}

/// Nanoseconds of one call.
fn time(mut call: impl FnMut(u64)) -> f64 {
    const CALLS: u64 = 200_000;
    (0..CALLS / 10).for_each(&mut call);
    let begun = Instant::now();
    (0..CALLS).for_each(call);
    begun.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}

/// One decision of the default scheduler, all paths open.
fn decision(paths: u32) -> f64 {
    let now = Time::ZERO + Span::from_secs(1);
    let rtt = |id: u32| Span::from_millis(20 + u64::from(id * 7 % 11));
    let view = |id: u32| PathView {
        id: PathId(id),
        budget: 50_000,
        room: 50_000,
        ready_at: Time::ZERO,
        window: 200_000,
        in_flight: 100_000,
        rtt: rtt(id),
        min_rtt: rtt(id),
        calm_rtt: rtt(id),
        rtt_variance: Span::from_millis(1),
        rate: Rate::from_mbit(50.0),
        mtu: 1472,
        bytes_sent: 0,
        weight: 1.0,
    };
    let views: Vec<PathView> = (0..paths).map(view).collect();
    let session = SessionView { now, more_expected: true, window: 96 << 20 };
    let item = Item { bytes: 1 << 20, resend: false, class: 0, flow: 0 };
    time(|_| {
        black_box(EarliestArrival.pick(&session, black_box(&views), &item));
    })
}

/// The cost of an acknowledgement to the detectors, and of one judgement of all pairs.
fn detectors(paths: u32) -> (f64, f64) {
    let (mut waves, mut losses, mut groups) =
        (DelayWaves::default(), FastRetransmits::default(), Groups::default());
    let (mut one_way, mut queues) = (OneWayDelays::default(), FullQueues::default());
    let at = |call: u64| Time::ZERO + Span::from_micros(call * 100);
    let acknowledgement = time(|call| {
        let path = PathId((call % u64::from(paths)) as u32);
        let delay = Span::from_micros(20_000 + call % 7_919);
        losses.on_rtt(at(call), path, delay);
        let arrived = ArrivalTime::of(at(call) + delay);
        let OneWay { delay, waited, .. } = one_way.measure(path, (at(call), delay), arrived);
        queues.on_wait(at(call), path, waited, delay * 2);
        waves.on_delay(path, &DelaySample { now: at(call) + delay, delay });
    });
    let now = at(200_000);
    let known: Vec<(PathId, u32)> = (0..paths).map(|id| (PathId(id), id)).collect();
    let begun = Instant::now();
    const TIMES: u32 = 200;
    for _ in 0..TIMES {
        for b in 0..paths {
            for a in 0..b {
                let verdict = match waves.verdict(now, PathId(a), PathId(b)) {
                    Verdict::Undecided => losses.verdict(now, PathId(a), PathId(b)),
                    decided => decided,
                };
                groups.note(now, (PathId(a), PathId(b)), verdict);
            }
        }
        black_box(groups.of(&known));
    }
    (acknowledgement, begun.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES))
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(3);
    println!(
        "paths  a data packet      coupled      managed  decisions  a decision  an acknowledgement  a judgement  at most"
    );
    for paths in [2, 8, 32] {
        let ([engine_ns, managed], decisions) = with_and_without(paths, seconds);
        let (coupled, _) = engine(paths, (Coupling::Fixed, PathRules::default()), seconds);
        let decision = decision(paths);
        let (acknowledgement, judgement) = detectors(paths);
        let most = 100.0 * (decision + acknowledgement) / engine_ns;
        println!(
            "{paths:>5}  {engine_ns:>10.0} ns  {coupled:>8.0} ns  {managed:>8.0} ns  {decisions:>9.2}  {decision:>7.0} ns  {acknowledgement:>15.0} ns  {:>8.1} us  {most:>5.0} %",
            judgement / 1e3
        );
    }
}
