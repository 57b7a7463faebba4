//! A scenario over real sockets: sealed datagrams on loopback, in real time, over emulated links.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_experiments::scenario::Built;
use anabranch_net::{Addresses, Endpoint, EndpointConfig, PublicKey, Session, ShareId, Target, Verdict};
use anabranch_sim::network::FlowPlan;
use anabranch_wire::{Span, Time};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::MAX_FLOWS;
use crate::commands::demo::stage::{host, hosts};
use crate::errors::{Failure, Kind};
use anabranch_node::keyfile;

/// Bytes of each write.
const BLOCK: usize = 1 << 18;
/// How long sessions may take to connect.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often progress is reported.
const TICK: Duration = Duration::from_millis(500);

/// Runs the scenario in real time and returns the goodput of each flow in Mbit/s. `tell` gets the share of time that is over.
pub(super) async fn over_sockets(built: &Built, tell: &dyn Fn(f64)) -> Result<Vec<f64>, Failure> {
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
    let mut looks = Vec::new();
    let mut ticks = tokio::time::interval(TICK);
    let mut due = [built.warm_up, built.end].into_iter().peekable();
    while let Some(moment) = due.peek() {
        tokio::select! {
            () = tokio::time::sleep_until(until(*moment)) => {
                looks.push((began.elapsed(), read(&counts)));
                due.next();
            }
            _ = ticks.tick() => tell(began.elapsed().as_secs_f64() / built.end.since(Time::ZERO).as_secs_f64()),
            Some(ended) = tasks.join_next() => return Err(broken_off(ended)),
        }
    }
    let [(begun, before), (ended, after)] = looks.as_slice() else { return Ok(Vec::new()) };
    // On a busy machine a reading is late, so rates use the time between the two readings.
    let seconds = ended.saturating_sub(*begun).as_secs_f64();
    Ok(before.iter().zip(after).map(|(before, after)| (after - before) as f64 * 8e-6 / seconds).collect())
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

/// The route of a flow's sender to the reader.
struct Way<'a> {
    emulation: &'a Emulation,
    reader: PublicKey,
    places: usize,
}

impl Way<'_> {
    /// Sends a flow: connects over its first path at its start, then writes without end.
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
        // 15 Mbit/s on the wire; a busy machine may lose some, or measure a backlog.
        assert!(measured.len() == 1 && (7.0..18.0).contains(&measured[0]), "{measured:?}");
    }
}
