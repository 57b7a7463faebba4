//! Emulated links between TUN devices, for measurements between network namespaces: rate, delay, loss and queue of the simulator's link model.
//!
//! ```text
//! links NAME_A NAME_B RATE_MBIT DELAY_MS QUEUE_PACKETS LOSS_PERCENT [NAME_A NAME_B …]
//! ```
//! Each group of six words makes two devices, `NAME_A` and `NAME_B`, joined by one link in each direction. The caller moves the devices into
//! namespaces and gives them addresses. They vanish when this program ends. A packet comes out about 0.1 ms late.

use std::error::Error;
use std::os::fd::AsFd;
use std::time::Instant;

use anabranch_link::{Ecn, Limit, Link, LinkConfig, LossModel, QueueModel, RateModel};
use anabranch_wire::{Rate, Span, Time};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};
use tun_rs::{DeviceBuilder, SyncDevice};

/// Room for one packet.
const MTU: u16 = 1500;

/// One direction: packets read from `from` are written to `to` once they have passed the link.
struct Way {
    link: Link<Vec<u8>>,
    from: usize,
    to: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() || !words.len().is_multiple_of(6) {
        return Err("usage: links NAME_A NAME_B RATE_MBIT DELAY_MS QUEUE_PACKETS LOSS_PERCENT …".into());
    }
    let threads: Vec<_> = words
        .chunks(6)
        .enumerate()
        .map(|(number, words)| {
            let (devices, ways) = open(number as u64, words)?;
            Ok(std::thread::spawn(move || carry(&devices, ways)))
        })
        .collect::<Result<_, Box<dyn Error>>>()?;
    println!("ready");
    for thread in threads {
        thread.join().map_err(|_| "a link's thread panicked")??;
    }
    Ok(())
}

fn open(number: u64, words: &[String]) -> Result<([SyncDevice; 2], [Way; 2]), Box<dyn Error>> {
    let device = |name: &str| {
        let device = DeviceBuilder::new().name(name).mtu(MTU).build_sync()?;
        device.set_tx_queue_len(10_000)?;
        device.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(device)
    };
    let devices = [device(&words[0])?, device(&words[1])?];
    let way = |direction: u64| {
        let config = LinkConfig {
            rate: RateModel::Fixed(Rate::from_mbit(words[2].parse()?)),
            delay: Span::from_micros((words[3].parse::<f64>()? * 1e3) as u64),
            queue: QueueModel { limit: Limit::Packets(words[4].parse()?), ..QueueModel::default() },
            loss: LossModel::Bernoulli(words[5].parse::<f64>()? / 100.0),
            seed: 2 * number + direction,
            ..LinkConfig::default()
        };
        let (from, to) = if direction == 0 { (0, 1) } else { (1, 0) };
        Ok::<_, Box<dyn Error>>(Way { link: Link::new(config), from, to })
    };
    Ok((devices, [way(0)?, way(1)?]))
}

fn carry(devices: &[SyncDevice; 2], mut ways: [Way; 2]) -> std::io::Result<()> {
    let start = Instant::now();
    let now = || Time::ZERO + Span::from_nanos(start.elapsed().as_nanos() as u64);
    let mut buffer = vec![0; usize::from(MTU) + 100];
    loop {
        let next = ways.iter().filter_map(|way| way.link.next_arrival()).min();
        let timeout = next.map(|at| TimeSpec::nanoseconds(at.since(now()).as_nanos() as i64));
        let mut polled = [0, 1].map(|index: usize| PollFd::new(devices[index].as_fd(), PollFlags::POLLIN));
        ppoll(&mut polled, timeout, None)?;
        for way in &mut ways {
            while let Ok(length) = devices[way.from].recv(&mut buffer) {
                let packet = buffer[..length].to_vec();
                // What the link drops is lost.
                let _ = way.link.enqueue(now(), length as u32, packet, Ecn::NotCapable);
            }
            while let Some(arrival) = way.link.pop(now()) {
                // A full device loses packets, as any receiver does.
                let _ = devices[way.to].send(&arrival.item);
            }
        }
    }
}
