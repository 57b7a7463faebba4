//! `anabranch sim compare`: a scenario in virtual time and again over real sockets, side by side.
//!
//! Both worlds have the same engine, settings and link model; over sockets the packets are sealed datagrams on
//! loopback, time is real, and each link of the scenario is an emulated path. So what differs is what the
//! simulator leaves out: the operating system, the seal, the driver. A scenario fits when its flows are bulk, each
//! path is one link, and nothing else sends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_net::{Addresses, Endpoint, EndpointConfig, PublicKey, Session, ShareId, Target, Verdict};
use anabranch_sim::network::{FlowPlan, Supply};
use anabranch_sim::scenario::{Built, Setting, variants};
use anabranch_wire::{Span, Time};
use bytes::Bytes;
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::{load, mistake, wrong_setting};
use crate::args::OUTPUT;
use crate::errors::{Failure, Kind};
use crate::ui::out::{self, Stream};
use crate::values::whole;
use crate::{interrupt, keyfile, node};

/// What is to be compared.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A file, or the name of a scenario that comes along
    #[arg(value_name = "SCENARIO")]
    pub scenario: String,
    /// A key and the value it takes, as duration=20s; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// The simulator's seed; the scenario's own when left out
    #[arg(long, value_name = "SEED", value_parser = whole(0..=u64::MAX))]
    pub seed: Option<u64>,
    /// How many per cent goodputs may differ
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = per_cent)]
    pub within: f64,
    /// One JSON object instead of a table
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// Longest that a comparison may take: it runs in real time.
const MAX_DURATION: Span = Span::from_secs(300);
/// Most flows and links.
const MAX_FLOWS: usize = 16;
/// Bytes handed to a stream at a time.
const BLOCK: usize = 1 << 18;
/// How long sessions may take to be set up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Two worlds are never quite the same: within nothing they never are.
fn per_cent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse();
    let number = number.ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number of per cent above 0; write 5 or 2.5"))
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Comparison {
    scenario: String,
    seed: u64,
    within_percent: f64,
    flows: Vec<Row>,
    ok: bool,
}

/// A flow in both worlds, in Mbit/s of what its reader got.
#[derive(Debug, Serialize)]
struct Row {
    flow: String,
    simulator_mbit_s: f64,
    sockets_mbit_s: f64,
    difference_percent: f64,
    ok: bool,
}

/// Runs both and compares.
///
/// # Errors
/// When the scenario cannot be run over sockets, sockets cannot be had, or goodputs differ by more than allowed.
pub(super) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let base = load(&args.scenario)?;
    let mut variants = variants(&base, &args.set).map_err(|error| wrong_setting(&error))?;
    if variants.len() > 1 {
        return Err(Failure::usage("a comparison of several variants").hint("give each key one value"));
    }
    let scenario = variants.remove(0).scenario;
    let seed = args.seed.unwrap_or_else(|| scenario.seed());
    let built = scenario.build(seed).map_err(|error| mistake(&error))?;
    check(&built)?;
    let metrics = scenario.run(seed).map_err(|error| mistake(&error))?.metrics;
    let runtime = node::runtime()?;
    let measured = runtime.block_on(async {
        tokio::select! {
            () = interrupt::requested() => Err(Failure::new(Kind::Interrupted, "the comparison is incomplete")),
            measured = over_sockets(&built) => measured,
        }
    });
    runtime.shutdown_background();
    let measured = measured?;
    let mut flows = Vec::new();
    let mut first = 0;
    for group in &built.groups {
        let sum: f64 = measured[first..first + group.count].iter().sum();
        let simulated = metrics[&format!("flow.{}.goodput_mbit_s", group.name)];
        flows.push(Row::new(&group.name, simulated, sum / group.count as f64, args.within));
        first += group.count;
    }
    if measured.len() > 1 {
        let total = metrics["total.goodput_mbit_s"];
        flows.push(Row::new("all together", total, measured.iter().sum(), args.within));
    }
    let ok = flows.iter().all(|row| row.ok);
    show(&Comparison { scenario: scenario.name, seed, within_percent: args.within, flows, ok }, args.json)?;
    if ok {
        return Ok(());
    }
    Err(Failure::local(format!("goodputs differ by more than {} %", args.within)).hint(
        "flows that live on few losses vary from run to run: let it run longer; or the machine is too busy",
    ))
}

impl Row {
    fn new(flow: &str, simulated: f64, measured: f64, within: f64) -> Self {
        // Nothing at all in both is the same.
        let ratio = if measured == simulated { 1.0 } else { measured / simulated };
        let difference_percent = 100.0 * (ratio - 1.0);
        Self {
            flow: flow.to_owned(),
            simulator_mbit_s: simulated,
            sockets_mbit_s: measured,
            difference_percent,
            ok: difference_percent.abs() <= within,
        }
    }
}

fn show(comparison: &Comparison, json: bool) -> Result<(), Failure> {
    if json {
        return Stream::Stdout.json(comparison);
    }
    let mut text = format!("{} (seed {}): goodput in Mbit/s\n", comparison.scenario, comparison.seed);
    text.push_str(&format!("  {:<24}{:>12}{:>12}{:>12}\n", "flow", "simulator", "sockets", "difference"));
    for row in &comparison.flows {
        let Row { flow, simulator_mbit_s, sockets_mbit_s, difference_percent, .. } = row;
        text.push_str(&format!(
            "  {flow:<24}{simulator_mbit_s:>12.3}{sockets_mbit_s:>12.3}{difference_percent:>+10.1} %\n"
        ));
    }
    out::print(&text)
}

/// Checks that sockets can do what the scenario says.
fn check(built: &Built) -> Result<(), Failure> {
    let plan = &built.plan;
    let whole = built.end.since(Time::ZERO);
    let refuse = |message: &str, hint: &str| Err(Failure::local(message.to_owned()).hint(hint));
    if whole > MAX_DURATION {
        let hint = "shorten it: --set duration=20s --set warm_up=5s";
        return refuse("over sockets it would take more than five minutes", hint);
    }
    if !plan.arrivals.is_empty() || !plan.bursts.is_empty() || !plan.script.is_empty() {
        return refuse(
            "arrivals, cbr and events cannot be run over sockets",
            "take them out of the scenario",
        );
    }
    if plan.flows.is_empty() {
        return refuse("nothing sends, so there is nothing to compare", "give it a [[flow]]");
    }
    if plan.flows.len() > MAX_FLOWS || built.cables.len() > MAX_FLOWS {
        return refuse("too many flows or links for sockets", "at most 16 of each");
    }
    let simple = |flow: &FlowPlan| {
        flow.supply == Supply::Bulk
            && flow.stop == Time::NEVER
            && flow.paths.iter().all(|path| path.forward.len() == 1 && path.forward[0] % 2 == 0)
    };
    if !plan.flows.iter().all(simple) {
        return refuse(
            "over sockets a flow is bulk, does not stop, and each of its paths is one link",
            "take `size`, `rate` and `stop` out, and name a single link for each path",
        );
    }
    Ok(())
}

/// Runs the scenario in real time; answers the goodput of each flow in Mbit/s.
async fn over_sockets(built: &Built) -> Result<Vec<f64>, Failure> {
    let plan = &built.plan;
    let places = built.cables.len();
    let mut keys = Vec::new();
    for _ in &plan.flows {
        keys.push(keyfile::fresh()?);
    }
    let friends: Vec<PublicKey> = keys.iter().map(|key| key.public()).collect();
    let known = friends.clone();
    let let_in = move |peer: &PublicKey, _: Option<ShareId>| {
        if known.contains(peer) { Verdict::Accept { secret: None } } else { Verdict::Ignore }
    };
    let settings = plan.flows.first().map(|flow| anabranch_net::Config::clone(&flow.config));
    let reader = EndpointConfig::new(keyfile::fresh()?)
        .addresses(Addresses::Exactly(hosts(READER, places)))
        .session(anabranch_net::Config { max_paths: MAX_FLOWS as u32, ..settings.unwrap_or_default() });
    let reader = Endpoint::bind(reader.authorize(let_in)).await.map_err(|error| Failure::bind(&error))?;
    let port = reader.local_addresses().first().map_or(0, SocketAddr::port);
    let path = |place: usize| EmulatedPath {
        listen: SocketAddr::new(host(place, MIDDLE), 0),
        server: SocketAddr::new(host(place, READER), port),
        forward: anabranch_link::LinkConfig { seed: plan.seed, ..plan.links[place * 2].clone() },
        reverse: anabranch_link::LinkConfig { seed: !plan.seed, ..plan.links[place * 2 + 1].clone() },
    };
    let paths: Vec<_> = (0..places).map(path).collect();
    let emulation = Emulation::start(&paths)
        .map_err(|error| Failure::local(format!("cannot set up the emulated links: {error}")))?;

    let counts: Arc<[AtomicU64]> = friends.iter().map(|_| AtomicU64::new(0)).collect();
    let mut tasks = JoinSet::new();
    let node = reader.node();
    tasks.spawn(receive_all(reader, friends, Arc::clone(&counts)));
    let began = tokio::time::Instant::now();
    for (flow, key) in plan.flows.iter().zip(keys) {
        let way = Way { emulation: &emulation, reader: node, places };
        tasks.spawn(way.sender(flow, key)?);
    }
    let until = |moment: Time| began + Duration::from_nanos(moment.since(Time::ZERO).as_nanos());
    let mut broken = None;
    let before = tokio::select! {
        () = tokio::time::sleep_until(until(built.warm_up)) => read(&counts),
        Some(ended) = tasks.join_next() => { broken = Some(ended); Vec::new() }
    };
    if broken.is_none() {
        tokio::select! {
            () = tokio::time::sleep_until(until(built.end)) => {}
            Some(ended) = tasks.join_next() => broken = Some(ended),
        }
    }
    if let Some(ended) = broken {
        let why = match ended {
            Ok(Err(failure)) => return Err(failure),
            Ok(Ok(())) => "a session ended".to_owned(),
            Err(error) => error.to_string(),
        };
        return Err(Failure::new(Kind::Unreachable, format!("the comparison broke off: {why}")));
    }
    let seconds =
        (began.elapsed() - Duration::from_nanos(built.warm_up.since(Time::ZERO).as_nanos())).as_secs_f64();
    let after = read(&counts);
    Ok(before.iter().zip(after).map(|(before, after)| (after - before) as f64 * 8e-6 / seconds).collect())
}

fn read(counts: &[AtomicU64]) -> Vec<u64> {
    counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

/// Takes in every flow's session and counts what its streams bring.
async fn receive_all(
    reader: Endpoint,
    friends: Vec<PublicKey>,
    counts: Arc<[AtomicU64]>,
) -> Result<(), Failure> {
    let mut sessions = JoinSet::new();
    while let Some(session) = reader.accept().await {
        let Some(flow) = friends.iter().position(|friend| *friend == session.peer()) else { continue };
        let counts = Arc::clone(&counts);
        sessions.spawn(async move {
            while let Ok(mut stream) = session.accept_stream().await {
                while let Ok(Some(piece)) = stream.read_chunk(BLOCK).await {
                    counts[flow].fetch_add(piece.len() as u64, Ordering::Relaxed);
                }
            }
        });
    }
    Ok(())
}

/// How a flow's sender gets to the reader.
struct Way<'a> {
    emulation: &'a Emulation,
    reader: PublicKey,
    places: usize,
}

impl Way<'_> {
    /// What sends a flow: it connects over the flow's first path at its start and writes for ever.
    fn sender(
        &self,
        flow: &FlowPlan,
        key: anabranch_net::NodeKey,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static, Failure> {
        let entries: Vec<(usize, SocketAddr)> = flow
            .paths
            .iter()
            .map(|path| path.forward[0] as usize / 2)
            .map(|place| (place, self.emulation.addresses()[place]))
            .collect();
        let mut target = Target::new(self.reader, entries.iter().map(|(_, entry)| *entry).collect());
        target.pins = entries.iter().map(|(place, entry)| (host(*place, SENDER), *entry)).collect();
        let local = Addresses::Exactly(hosts(SENDER, self.places));
        let config = anabranch_net::Config {
            connect_timeout: Span::from_secs(5),
            ..anabranch_net::Config::clone(&flow.config)
        };
        let wait = Duration::from_nanos(flow.start.since(Time::ZERO).as_nanos());
        Ok(async move {
            tokio::time::sleep(wait).await;
            let endpoint = EndpointConfig::new(key).addresses(local);
            let endpoint = Endpoint::bind(endpoint).await.map_err(|error| Failure::bind(&error))?;
            let session: Session = endpoint.connect(&target, config).await?;
            let late = |_| Failure::new(Kind::Unreachable, "no stream could be opened");
            let opened = tokio::time::timeout(PATIENCE, session.open_stream()).await.map_err(late)?;
            let over = |error: &dyn std::fmt::Display| Failure::new(Kind::Unreachable, error.to_string());
            let mut stream = opened.map_err(|error| over(&error))?;
            let block = Bytes::from(vec![0xab; BLOCK]);
            loop {
                stream.write_chunk(block.clone()).await.map_err(|error| over(&error))?;
            }
        })
    }
}

const SENDER: u8 = 1;
const MIDDLE: u8 = 2;
const READER: u8 = 3;

/// An address for each role at each link, where the system has all of 127.0.0.0/8; one for all elsewhere.
fn host(place: usize, role: u8) -> IpAddr {
    let net = u8::try_from(place + 1).unwrap_or(u8::MAX);
    if cfg!(target_os = "linux") { [127, 78, net, role].into() } else { Ipv4Addr::LOCALHOST.into() }
}

fn hosts(role: u8, places: usize) -> Vec<IpAddr> {
    let mut hosts: Vec<_> = (0..places).map(|place| host(place, role)).collect();
    hosts.dedup();
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_sim::scenario::Scenario;

    fn built(change: impl Fn(&str) -> String) -> Built {
        let text = change(include_str!("test.toml"));
        Scenario::parse(&text, "test").unwrap().build(1).unwrap()
    }

    #[test]
    fn a_scenario_that_sockets_cannot_do_is_refused_with_the_reason() {
        assert_eq!(check(&built(str::to_owned)), Ok(()));
        let told = |change: &dyn Fn(&str) -> String| check(&built(change)).unwrap_err().message;
        assert!(told(&|text| text.replace("\"2 s\"", "\"1 h\"")).contains("five minutes"));
        assert!(told(&|text| format!("{text}size = \"1 MB\"\n")).contains("is bulk"));
        assert!(told(&|text| text.replace("[\"a\", \"b\"]", "[[\"a\", \"b\"]]")).contains("one link"));
        assert!(told(&|text| format!("{text}count = 17\n")).contains("too many"));
        let event = "[[event]]\nat = \"1 s\"\nlink = \"a\"\ndown = true\n";
        assert!(told(&|text| format!("{text}{event}")).contains("events"));
    }

    #[test]
    fn both_worlds_carry_about_the_same() {
        let built = built(|text| {
            text.replace("loss = \"1 %\"", "").replace("duration", "warm_up = \"500 ms\"\nduration")
        });
        let runtime = node::runtime().unwrap();
        let measured = runtime.block_on(over_sockets(&built)).unwrap();
        runtime.shutdown_background();
        // 15 Mbit/s of wire; a busy machine may cost some of it.
        assert!(measured.len() == 1 && (7.0..14.5).contains(&measured[0]), "{measured:?}");
    }

    #[test]
    fn rows_that_differ_too_much_are_not_ok() {
        let row = |measured| Row::new("M", 10.0, measured, 5.0);
        assert!(row(10.4).ok && row(9.6).ok && !row(9.4).ok && !row(f64::NAN).ok);
        assert!(Row::new("M", 0.0, 0.0, 5.0).ok && !Row::new("M", 0.0, 1.0, 5.0).ok);
    }

    #[test]
    fn how_much_goodputs_may_differ_is_a_number_above_nothing() {
        for (text, wanted) in [("5", 5.0), ("0.1", 0.1), ("12.5 %", 12.5), ("400", 400.0)] {
            assert_eq!(per_cent(text), Ok(wanted));
        }
        for text in ["nan", "NaN", "inf", "-inf", "-5", "0", "-0", "", "x", "1e999"] {
            assert_eq!(
                per_cent(text),
                Err(format!("`{text}` is not a number of per cent above 0; write 5 or 2.5"))
            );
        }
    }
}
