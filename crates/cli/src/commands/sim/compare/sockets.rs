//! A scenario over real sockets: sealed datagrams on loopback, in real time, over emulated links.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_emulate::{Direction, EmulatedPath, Emulation};
use anabranch_experiments::scenario::Built;
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, Session, ShareId, Verdict,
};
use anabranch_node::{Dial, Node, NodeSession, RelayRoute, keyfile};
use anabranch_sim::network::{Change, FlowPlan, LinkChange, Plan};
use anabranch_wire::{Span, Time};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::MAX_FLOWS;
use super::relays::Relays;
use crate::commands::demo::stage::{host, hosts};
use crate::errors::{Failure, Kind};

/// Bytes of each write.
const BLOCK: usize = 1 << 18;
/// How long sessions may take to connect.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often progress is reported.
const TICK: Duration = Duration::from_millis(500);
/// How often a session is asked for the relays that carry its paths.
const LOOK: Duration = Duration::from_millis(50);

/// The measurements over sockets.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// The goodput of each flow in Mbit/s.
    pub goodputs: Vec<f64>,
    /// When each relay last began and ceased to carry a path, in seconds after its flow's start, by the simulator's name
    /// of that metric.
    pub decisions: BTreeMap<String, f64>,
}

/// Runs the scenario in real time. `tell` gets the share of time that is over.
pub(super) async fn over_sockets(built: &Built, tell: &dyn Fn(f64)) -> Result<Measured, Failure> {
    let plan = &built.plan;
    let places = built.cables.len();
    let mut keys = Vec::new();
    for _ in &plan.flows {
        keys.push(keyfile::fresh()?);
    }
    let friends: Vec<PublicKey> = keys.iter().map(|key| key.public()).collect();
    let reader = reader(plan, &friends, places).await?;
    let relays = Relays::start(plan, &friends).await?;
    let ends = reader.local_addresses();
    let port = ends.first().map_or(0, SocketAddr::port);
    let path = |place: usize| EmulatedPath {
        listen: SocketAddr::new(host(place, MIDDLE), 0),
        server: relays.at(place).unwrap_or_else(|| SocketAddr::new(host(place, READER), port)),
        forward: anabranch_link::LinkConfig { seed: plan.seed, ..plan.links[place * 2].clone() },
        reverse: anabranch_link::LinkConfig { seed: !plan.seed, ..plan.links[place * 2 + 1].clone() },
    };
    let paths: Vec<_> = (0..places).map(path).collect();
    let emulation = Emulation::start(&paths)
        .map_err(|error| Failure::local(format!("cannot set up the emulated links: {error}")))?;

    let counts: Arc<[AtomicU64]> = friends.iter().map(|_| AtomicU64::new(0)).collect();
    let decisions = Arc::default();
    let mut tasks = JoinSet::new();
    let way = Way { emulation: &emulation, relays: &relays, reader: (reader.node(), ends), places };
    tasks.spawn(receive_all(reader, friends, Arc::clone(&counts)));
    let began = Instant::now();
    for ((flow, group), key) in plan.flows.iter().zip(names(built)).zip(keys) {
        let noted = Noted { flow: group.to_owned(), decisions: Arc::clone(&decisions) };
        tasks.spawn(way.sender(flow, key, noted));
    }
    let until = |moment: Time| began + Duration::from_nanos(moment.since(Time::ZERO).as_nanos());
    let mut looks = Vec::new();
    let mut ticks = tokio::time::interval(TICK);
    let mut due = [built.warm_up, built.end].into_iter().peekable();
    let mut script = plan.script.iter().peekable();
    while let Some(moment) = due.peek() {
        let next = script.peek().map_or(built.end, |change| change.at);
        tokio::select! {
            () = tokio::time::sleep_until(until(next)), if script.peek().is_some() => {
                script.next().into_iter().for_each(|change| apply(&emulation, change));
            }
            () = tokio::time::sleep_until(until(*moment)) => {
                looks.push((began.elapsed(), read(&counts)));
                due.next();
            }
            _ = ticks.tick() => tell(began.elapsed().as_secs_f64() / built.end.since(Time::ZERO).as_secs_f64()),
            Some(ended) = tasks.join_next() => return Err(broken_off(ended)),
        }
    }
    let [(begun, before), (ended, after)] = looks.as_slice() else { return Ok(Measured::default()) };
    // On a busy machine a reading is late, so rates use the time between the two readings.
    let seconds = ended.saturating_sub(*begun).as_secs_f64();
    let goodputs = before.iter().zip(after).map(|(before, after)| (after - before) as f64 * 8e-6 / seconds);
    let decisions = decisions.lock().expect("no panic while held").clone();
    Ok(Measured { goodputs: goodputs.collect(), decisions })
}

/// The group's name of each flow.
fn names(built: &Built) -> impl Iterator<Item = &str> {
    built.groups.iter().flat_map(|group| std::iter::repeat_n(&*group.name, group.count))
}

/// The node that receives all flows.
async fn reader(plan: &Plan, friends: &[PublicKey], places: usize) -> Result<Endpoint, Failure> {
    let known = friends.to_vec();
    let let_in = move |peer: &PublicKey, _: Option<ShareId>| {
        if known.contains(peer) { Verdict::Accept { secret: None } } else { Verdict::Ignore }
    };
    let settings = plan.flows.first().map(|flow| Config::clone(&flow.config));
    let reader = EndpointConfig::new(keyfile::fresh()?)
        .addresses(Addresses::Exactly(hosts(READER, places)))
        .session(Config { max_paths: MAX_FLOWS as u32, ..settings.unwrap_or_default() });
    Endpoint::bind(reader.authorize(let_in)).await.map_err(|error| Failure::bind(&error))
}

/// Changes a link as the scenario's event says.
fn apply(emulation: &Emulation, change: &Change) {
    let place = change.link as usize / 2;
    let direction = if change.link.is_multiple_of(2) { Direction::Forward } else { Direction::Reverse };
    match &change.what {
        LinkChange::Down(down) => emulation.set_way_down(place, direction, *down),
        LinkChange::Rate(rate) => emulation.set_rate(place, direction, rate.clone()),
        LinkChange::Delay(delay) => emulation.set_delay(place, direction, *delay),
        LinkChange::Loss(loss) => emulation.set_loss(place, direction, *loss),
    }
}

/// The failure when a sender or the reader ends: they should run until the end.
fn broken_off(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Failure {
    let why = match ended {
        Ok(Err(failure)) => return failure,
        Ok(Ok(())) => "a session ended".to_owned(),
        Err(error) => error.to_string(),
    };
    Failure::new(Kind::Unreachable, format!("the comparison broke off: {why}"))
}

fn read(counts: &[AtomicU64]) -> Vec<u64> {
    counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

/// Accepts every flow's session and counts the bytes of its streams.
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

/// The routes of the flows' senders to the reader.
struct Way<'a> {
    emulation: &'a Emulation,
    relays: &'a Relays,
    reader: (PublicKey, Vec<SocketAddr>),
    places: usize,
}

impl Way<'_> {
    /// Sends a flow: connects at its start, then writes without end. The path agent opens the other paths.
    fn sender(
        &self,
        flow: &FlowPlan,
        key: NodeKey,
        noted: Noted,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let entry = |place: usize| self.emulation.addresses()[place];
        let places = flow.paths.iter().map(|path| path.forward[0] as usize / 2);
        let (direct, relayed): (Vec<_>, Vec<_>) = places.partition(|place| self.relays.at(*place).is_none());
        let routes: Vec<_> = relayed.into_iter().filter_map(|at| self.relays.route(at, entry(at))).collect();
        let pins = direct.iter().map(|place| (host(*place, SENDER), entry(*place))).collect();
        let (reader, ends) = self.reader.clone();
        let dial = Dial::node(reader, ends).pins(pins);
        let dial = flow.agent.iter().fold(dial, |dial, agent| dial.relays_at_once(agent.relays_at_once));
        let config = Config { connect_timeout: Span::from_secs(5), ..Config::clone(&flow.config) };
        let node = Node::builder().key(key).addresses(Addresses::Exactly(hosts(SENDER, self.places)));
        let node = node.session(config).relays(routes.clone());
        let wait = Duration::from_nanos(flow.start.since(Time::ZERO).as_nanos());
        async move {
            tokio::time::sleep(wait).await;
            let began = Instant::now();
            let session = node.start().await?.dial(&dial).await?;
            tokio::select! {
                end = write(session.session()) => end,
                end = noted.watch(&session, &routes, began) => end,
            }
        }
    }
}

/// Writes to a stream without end.
async fn write(session: &Session) -> Result<(), Failure> {
    let late = |_| Failure::new(Kind::Unreachable, "no stream could be opened");
    let opened = tokio::time::timeout(PATIENCE, session.open_stream()).await.map_err(late)?;
    let over = |error: &dyn std::fmt::Display| Failure::new(Kind::Unreachable, error.to_string());
    let mut stream = opened.map_err(|error| over(&error))?;
    let block = Bytes::from(vec![0xab; BLOCK]);
    loop {
        stream.write_chunk(block.clone()).await.map_err(|error| over(&error))?;
    }
}

/// Notes when relays begin and cease to carry a path of a flow.
struct Noted {
    flow: String,
    decisions: Arc<Mutex<BTreeMap<String, f64>>>,
}

impl Noted {
    async fn watch(
        &self,
        session: &NodeSession,
        routes: &[RelayRoute],
        began: Instant,
    ) -> Result<(), Failure> {
        let relays = routes.iter().flat_map(|route| &route.0);
        let keys: Vec<String> = relays.map(|relay| relay.node.to_string()).collect();
        let mut used = vec![false; keys.len()];
        loop {
            let paths = session.list();
            for (relay, (key, was_used)) in keys.iter().zip(&mut used).enumerate() {
                let is_used = paths.iter().any(|path| path.relays.contains(key));
                if is_used != std::mem::replace(was_used, is_used) {
                    let what = if is_used { "opened" } else { "closed" };
                    let name = format!("flow.{}.relay{}.{what}_s", self.flow, relay + 1);
                    let mut decisions = self.decisions.lock().expect("no panic while held");
                    decisions.insert(name, began.elapsed().as_secs_f64());
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

const SENDER: u8 = 1;
const MIDDLE: u8 = 2;
const READER: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_experiments::scenario::Scenario;

    #[test]
    fn both_worlds_carry_about_the_same() {
        let text = include_str!("../test.toml").replace("loss = \"1 %\"", "");
        let text = text.replace("duration", "warm_up = \"500 ms\"\nduration");
        let built = Scenario::parse(&text, "test").unwrap().build(1).unwrap();
        let runtime = anabranch_node::Threads::start().unwrap();
        let measured = runtime.block_on(over_sockets(&built, &|_| {})).unwrap();
        runtime.shutdown_background();
        let measured = measured.goodputs;
        // 15 Mbit/s on the wire; a busy machine may lose some, or measure a backlog.
        assert!(measured.len() == 1 && (7.0..18.0).contains(&measured[0]), "{measured:?}");
    }
}
