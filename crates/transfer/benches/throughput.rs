//! Throughput of a transfer over a connection in memory, with real files.
//!
//! `cargo bench -p anabranch-transfer`; `TRANSFER_BENCH_DIR` names the working directory. A file system in memory
//! measures the code, a disk measures the disk.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use anabranch_transfer::{Connection, Progress, ReceiveOptions, Share, Target, receive, send};
use tokio::io::DuplexStream;
use tokio::sync::{Mutex, mpsc};

struct Memory {
    to_peer: mpsc::UnboundedSender<DuplexStream>,
    from_peer: Mutex<mpsc::UnboundedReceiver<DuplexStream>>,
}

impl Connection for Memory {
    type Stream = DuplexStream;

    async fn open(&self) -> io::Result<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        self.to_peer.send(theirs).map_err(|_| io::ErrorKind::ConnectionReset)?;
        Ok(ours)
    }

    async fn accept(&self) -> io::Result<DuplexStream> {
        Ok(self.from_peer.lock().await.recv().await.ok_or(io::ErrorKind::ConnectionReset)?)
    }
}

fn connect() -> (Memory, Memory) {
    let (to_second, from_first) = mpsc::unbounded_channel();
    let (to_first, from_second) = mpsc::unbounded_channel();
    let end = |to_peer, from_peer| Memory { to_peer, from_peer: Mutex::new(from_peer) };
    (end(to_second, from_second), end(to_first, from_first))
}

async fn transfer(share: Share, to: &Path) -> u64 {
    let (sender, receiver) = connect();
    let sending = tokio::spawn(async move { send(&sender, &share, &Progress::new()).await });
    let (target, progress) = (Target::Directory(to.to_owned()), Progress::new());
    let summary = receive(&receiver, target, &ReceiveOptions::default(), &progress).await.expect("receive");
    sending.await.expect("join").expect("send");
    summary.bytes
}

fn measure(runtime: &tokio::runtime::Runtime, what: &str, from: &Path, to: &Path) {
    for round in 0..3 {
        // The directory may not exist yet.
        let _ = fs::remove_dir_all(to);
        let start = Instant::now();
        let bytes = runtime.block_on(transfer(Share::from_paths(&[from]).expect("share"), to));
        let seconds = start.elapsed().as_secs_f64();
        println!("{what}, round {round}: {:.2} GB/s, {seconds:.3} s", bytes as f64 / seconds / 1e9);
    }
    let start = Instant::now();
    runtime.block_on(transfer(Share::from_paths(&[from]).expect("share"), to));
    println!("{what}, all there already: {:.3} s", start.elapsed().as_secs_f64());
}

fn main() {
    let base = std::env::var_os("TRANSFER_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let work = tempfile::tempdir_in(base).expect("a directory to work in");
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let (big, small, to) = (work.path().join("big"), work.path().join("small"), work.path().join("to"));
    fs::create_dir(&small).expect("create");
    let content: Vec<u8> =
        (0..1_000_000_000_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    fs::write(&big, &content).expect("write");
    for at in 0..10_000 {
        fs::write(small.join(at.to_string()), &content[at * 1000..at * 1000 + 4000]).expect("write");
    }
    drop(content);
    measure(&runtime, "one file of 1 GB", &big, &to);
    measure(&runtime, "10,000 files of 4 kB", &small, &to);
}
