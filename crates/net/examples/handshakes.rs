//! The server's cost of a handshake: `cargo run --release -p anabranch-net --example handshakes -- [SECONDS] [flooded]`
//!
//! The server is a separate process, so that its processor time is measured apart from the client's. With `flooded`, another
//! thread sends it forged first packets as fast as possible.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, Target, Verdict,
};
use anabranch_secure::{Dial, Initiator};
use anabranch_wire::{Header, Kind, Pid};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Handshakes in progress at the same time.
const AT_ONCE: usize = 32;
/// Linux always reports processor time in hundredths of a second.
const TICKS_A_SECOND: f64 = 100.0;

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

async fn endpoint(seed: u8) -> Result<Endpoint, Box<dyn std::error::Error>> {
    let anybody = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let here = Addresses::Exactly(vec![IpAddr::from([127, 0, 0, 1])]);
    Ok(Endpoint::bind(EndpointConfig::new(key(seed)).addresses(here).authorize(anybody)).await?)
}

/// Prints its address and accepts sessions until standard input ends.
async fn serve() -> Outcome {
    let endpoint = Arc::new(endpoint(1).await?);
    println!("{}", endpoint.local_addresses()[0]);
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(session) = accepting.accept().await {
            tokio::spawn(async move { session.closed().await });
        }
    });
    Ok(tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()).map(drop)).await??)
}

struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process =
            command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(Box::new)?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Self { process, address: line.trim().parse()? })
    }

    /// Processor time of the server so far, in seconds, including the kernel's work for it.
    fn processor(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("Linux");
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        // User and system time are the 12th and 13th fields after the name.
        let ticks = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
        ticks.sum::<f64>() / TICKS_A_SECOND
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It may have exited already.
        let _ = self.process.wait();
    }
}

async fn handshakes(server: &Server, seconds: u64) -> Outcome {
    let client = Arc::new(endpoint(2).await?);
    let target = Target::new(key(1).public(), vec![server.address]);
    let (begun, busy) = (Instant::now(), server.processor());
    let (mut times, mut failed) = (Vec::new(), 0_u32);
    let mut running = tokio::task::JoinSet::new();
    loop {
        // Handshakes in progress when the time is over are counted too, however long they take.
        while running.len() < AT_ONCE && begun.elapsed() < Duration::from_secs(seconds) {
            let (client, target) = (Arc::clone(&client), target.clone());
            running.spawn(async move {
                let called = Instant::now();
                let session = client.connect(&target, Config::default()).await;
                session.map(|session| session.abort(0, "")).ok().map(|()| called.elapsed())
            });
        }
        match running.join_next().await {
            Some(Ok(Some(time))) => times.push(time),
            Some(_) => failed += 1,
            None => break,
        }
    }
    times.sort_unstable();
    let made = times.len();
    let rate = made as f64 / begun.elapsed().as_secs_f64();
    let each = (server.processor() - busy) / made.max(1) as f64;
    println!("{made} handshakes, {failed} failed, {rate:.0} a second");
    for (name, share) in [("half", 50), ("99 of 100", 99)] {
        if let Some(time) = times.get((made * share / 100).min(made.saturating_sub(1))) {
            println!("{name} took at most {:.1} ms", time.as_secs_f64() * 1e3);
        }
    }
    println!(
        "the end that is called: {:.0} µs of processor each, {:.0} a second a core",
        each * 1e6,
        1.0 / each
    );
    Ok(())
}

/// Sends first packets from strangers who know the node's key. They are the most expensive kind: each is answered with a cookie.
fn flood(node: PublicKey, to: std::net::SocketAddr, over: &AtomicBool) -> u64 {
    let dial = Dial { remote: node, credential: None };
    let stranger = NodeKey::from_random([9; 32]);
    let Ok(initiator) = Initiator::new(&stranger, &dial, Pid(77), &[0; 60], [8; 32]) else { return 0 };
    let mut datagram = vec![0; Header::LEN];
    let header =
        Header { kind: Kind::Init, key_phase: false, tos: 0, hop_limit: 8, pid: Pid::HANDSHAKE, fsn: 0 };
    header.encode(&mut datagram);
    datagram.extend_from_slice(&initiator.init_body(None));
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        let Ok(socket) = std::net::UdpSocket::bind("127.0.0.1:0") else { continue };
        // Packets beyond the buffer are lost, as intended.
        sent += (0..1000).filter(|_| socket.send_to(&datagram, to).is_ok()).count() as u64;
    }
    sent
}

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if words.first().is_some_and(|word| word == "serve") {
        return runtime.block_on(serve());
    }
    let seconds = words.first().map_or(Ok(3), |word| word.parse())?;
    let server = Server::start()?;
    let over = AtomicBool::new(words.get(1).is_none_or(|word| word != "flooded"));
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(key(1).public(), server.address, &over));
        let outcome = runtime.block_on(handshakes(&server, seconds));
        over.store(true, Ordering::Relaxed);
        println!("{} forged first packets", flooding.join().unwrap_or(0));
        outcome
    })
}
