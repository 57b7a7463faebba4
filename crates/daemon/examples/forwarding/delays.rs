//! The delay that a forwarder adds. Packets carry their time of sending.

use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_net::Pid;
use anabranch_wire::Header;

use super::{PACKET, packets};

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Nanoseconds that each packet with a time took.
static DELAYS: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// Position of the time in a packet; packets without one have 0xda in all bytes.
const STAMP: std::ops::Range<usize> = Header::LEN..Header::LEN + 8;

fn nanos() -> u64 {
    BEGIN.elapsed().as_nanos() as u64
}

/// Records how long each packet of a run took.
pub fn note_delays(bytes: &[u8], stride: usize) {
    let stamp =
        |packet: &[u8]| packet.get(STAMP).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let stamps =
        bytes.chunks(stride).filter_map(stamp).filter(|stamp| *stamp != u64::from_be_bytes([0xda; 8]));
    let now = nanos();
    let mut delays = DELAYS.lock().expect("no panic while held");
    delays.extend(stamps.map(|stamp| now.saturating_sub(stamp)));
}

/// Packets per second that generator, forwarder and sink can handle on two processors together.
const MOST_RATE: f64 = 250_000.0;

/// Sends runs at a rate, each packet with its time; returns the median and the 99th percentile of the delays.
async fn delays(
    length: Duration,
    (rate, run): (f64, usize),
    (pid, send): (Pid, impl Fn(&[u8])),
) -> (Duration, Duration) {
    DELAYS.lock().expect("no panic while held").clear();
    let mut bytes = packets(pid, PACKET, run);
    let (begin, mut sent) = (Instant::now(), 0);
    while begin.elapsed() < length {
        while (sent as f64) < rate * begin.elapsed().as_secs_f64() && begin.elapsed() < length {
            let now = nanos().to_be_bytes();
            bytes.chunks_mut(PACKET).for_each(|packet| packet[STAMP].copy_from_slice(&now));
            send(&bytes);
            sent += run;
        }
        thread::sleep(Duration::from_micros(50));
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut all = std::mem::take(&mut *DELAYS.lock().expect("no panic while held"));
    all.sort_unstable();
    let at = |share: f64| {
        let index = (all.len() as f64 * share) as usize;
        Duration::from_nanos(all.get(index.min(all.len().saturating_sub(1))).copied().unwrap_or_default())
    };
    (at(0.5), at(0.99))
}

/// A forwarder: how to send to it, and its packets per second in runs of 8 and single.
pub struct Forwarding<'a> {
    pub name: &'a str,
    pub pid: Pid,
    pub capacity: [f64; 2],
    pub send: &'a dyn Fn(&[u8]),
}

/// Prints the delay that each forwarder adds at half of its rate, but at most at [`MOST_RATE`].
pub async fn show_delays(length: Duration, direct: &dyn Fn(&[u8]), forwarders: &[Forwarding<'_>]) {
    for (index, run) in [8, 1].into_iter().enumerate() {
        for Forwarding { name, pid, capacity, send } in forwarders {
            let rate = (capacity[index] / 2.0).min(MOST_RATE);
            let (p50, p99) = delays(length, (rate, run), (Pid(5), direct)).await;
            let (with50, with99) = delays(length, (rate, run), (*pid, *send)).await;
            let us = |with: Duration, without: Duration| {
                (with.as_nanos() as f64 - without.as_nanos() as f64) / 1e3
            };
            println!(
                "runs of {run}, {name:<18} at {rate:>7.0} packets a second: adds {:>6.1} µs at the median, {:>6.1} at the 99th percentile (without it {:.1} and {:.1})",
                us(with50, p50),
                us(with99, p99),
                p50.as_nanos() as f64 / 1e3,
                p99.as_nanos() as f64 / 1e3
            );
        }
    }
}
