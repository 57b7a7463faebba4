//! The costs of idle sessions: memory, processor time, and the slowdown of a concurrent transfer.
//!
//! `cargo run --release -p anabranch-net --example idle -- [SESSIONS] [PATHS]`
//!
//! Both ends run in this process, over shared sockets on loopback addresses, so each session counts twice. To find the
//! slowdown, transfers alternate with those of a second process without other sessions.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, Session, ShareId, Span, Target, Verdict,
};
use bytes::Bytes;
use tokio::io::AsyncReadExt;

type Failure = Box<dyn std::error::Error>;

/// Bytes of one timed transfer, and the number of transfers with idle sessions and without.
const TRANSFER: usize = 100 << 20;
const TRANSFERS: usize = 41;
/// The argument that starts the process without idle sessions.
const ALONE: &str = "alone";
/// How long the idle sessions are observed.
const WATCHED: Duration = Duration::from_secs(30);

fn config() -> Config {
    let patience = Span::from_secs(120);
    Config {
        keep_alive: Some(Span::from_secs(25)),
        connect_timeout: patience,
        idle_timeout: patience,
        ..Config::default()
    }
}

fn addresses(host: u8, paths: u8) -> Vec<IpAddr> {
    (1..=paths).map(|path| IpAddr::from([127, 0, path, host])).collect()
}

async fn endpoint(host: u8, paths: u8) -> Result<Endpoint, Failure> {
    let open = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
    let config = EndpointConfig::new(NodeKey::from_random([host; 32])).authorize(open).session(config());
    Ok(Endpoint::bind(config.addresses(Addresses::Exactly(addresses(host, paths)))).await?)
}

/// Resident memory in KiB, and processor time in seconds.
fn usage() -> (u64, f64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let memory = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|word| word.parse().ok());
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<u64>().ok());
    (memory.unwrap_or(0), ticks.sum::<u64>() as f64 / 100.0)
}

/// Accepts everything, and reads every stream to its end.
async fn serve(server: Endpoint) {
    while let Some(session) = server.accept().await {
        tokio::spawn(async move {
            while let Ok(mut stream) = session.accept_stream().await {
                while let Ok(Some(_)) = stream.read_chunk(1 << 20).await {}
                drop(stream);
            }
        });
    }
}

/// Seconds that a transfer takes in a new session, until the far end has read it all.
async fn transfer(client: &Endpoint, target: &Target) -> Result<f64, Failure> {
    let session = client.connect(target, config()).await?;
    let mut stream = session.open_stream().await?;
    let (data, begun) = (Bytes::from(vec![7; 1 << 20]), Instant::now());
    for _ in 0..TRANSFER >> 20 {
        stream.write_chunk(data.clone()).await?;
    }
    stream.finish()?;
    // Its reader drops the stream when it has read everything.
    stream.read_to_end(&mut Vec::new()).await?;
    let seconds = begun.elapsed().as_secs_f64();
    session.close().await;
    Ok(seconds)
}

/// A process without idle sessions that runs a transfer on request.
struct Alone {
    process: Child,
}

impl Alone {
    fn start(paths: u8) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ALONE, &paths.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self { process: command.spawn()? })
    }

    /// Seconds that a transfer takes in that process.
    fn transfer(&mut self) -> Result<f64, Failure> {
        self.process.stdin.as_mut().ok_or("no input")?.write_all(b"\n")?;
        let mut line = String::new();
        // The process prints one line per request, so this reader holds no leftover.
        BufReader::new(self.process.stdout.as_mut().ok_or("no output")?).read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It may have exited already.
        let _ = self.process.wait();
    }
}

/// Runs the second process.
async fn alone(paths: u8) -> Result<(), Failure> {
    let (client, target) = pair(paths).await?;
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", transfer(&client, &target).await?);
    }
    Ok(())
}

/// Quartiles of this process's transfer rate divided by the other's, transfer by transfer.
async fn compare(client: &Endpoint, target: &Target, other: &mut Alone) -> Result<[f64; 3], Failure> {
    let mut ratios = Vec::new();
    for round in 0..TRANSFERS {
        let first = if round % 2 == 0 { Some(other.transfer()?) } else { None };
        let beside = transfer(client, target).await?;
        let alone = first.map_or_else(|| other.transfer(), Ok)?;
        ratios.push(alone / beside);
    }
    ratios.sort_by(f64::total_cmp);
    Ok([1, 2, 3].map(|quarter| ratios[(TRANSFERS - 1) * quarter / 4]))
}

async fn open(client: &Arc<Endpoint>, target: &Target, count: usize) -> Result<Vec<Session>, Failure> {
    let mut sessions = Vec::new();
    while sessions.len() < count {
        let many = (0..64.min(count - sessions.len())).map(|_| {
            let (client, target) = (client.clone(), target.clone());
            tokio::spawn(async move { client.connect(&target, config()).await })
        });
        for session in many.collect::<Vec<_>>() {
            sessions.push(session.await??);
        }
    }
    Ok(sessions)
}

/// Two endpoints that listen and call, and the target by which the second finds the first.
async fn pair(paths: u8) -> Result<(Arc<Endpoint>, Target), Failure> {
    let (server, client) = (endpoint(1, paths).await?, endpoint(2, paths).await?);
    let mut target = Target::new(server.node(), server.local_addresses());
    target.pins = addresses(2, paths).into_iter().zip(server.local_addresses()).collect();
    tokio::spawn(serve(server));
    Ok((Arc::new(client), target))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let number = |at: usize| std::env::args().nth(at).and_then(|text| text.parse().ok());
    let paths = u8::try_from(number(2).unwrap_or(3))?;
    if std::env::args().nth(1).is_some_and(|word| word == ALONE) {
        return alone(paths).await;
    }
    let (count, mut other) = (number(1).unwrap_or(10_000), Alone::start(paths)?);
    let (client, target) = pair(paths).await?;
    let before = usage();
    let sessions = open(&client, &target, count).await?;
    while !sessions.iter().all(|session| session.paths().len() == usize::from(paths)) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let memory = (usage().0 - before.0) as f64 / (2 * count) as f64;
    println!("{memory:.1} KiB a session and end with {paths} paths");
    let begun = usage().1;
    tokio::time::sleep(WATCHED).await;
    let share = (usage().1 - begun) / WATCHED.as_secs_f64() * 50.0;
    println!("{share:.2} % of a core an end while idle");
    let [low, median, high] = compare(&client, &target, &mut other).await?;
    println!("{TRANSFERS} pairs of 100 MiB: {median:.3} of the rate without them ({low:.3} to {high:.3})");
    Ok(())
}
