//! One flow over several paths reaches the sum of their rates in any order of paths, and at least the best single path
//! (mTCP Fig 3 [M14], MPTCP [P5]).

use anabranch_engine::Config;
use anabranch_link::{Limit, LossModel, QueueModel};
use anabranch_sim::{CableConfig, Pair, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

/// Share of data in an IP packet of 1,500 bytes, after headers, tag and stream frame.
const PAYLOAD_SHARE: f64 = 1430.0 / 1500.0;

/// Goodput in Mbit/s from the third to the thirteenth second, with default settings.
fn goodput(cables: &[CableConfig], seed: u64) -> f64 {
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], cables, seed);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    let (from, to) = (Time::ZERO + Span::from_secs(3), Time::ZERO + Span::from_secs(13));
    pair.run(to, &mut [&mut sender, &mut sink]);
    sink.mbit_s(from, to)
}

/// A cable with queues of 100 packets at any rate.
fn hundred_packets(mbit: f64, rtt_ms: u64, loss: f64) -> CableConfig {
    let mut cable = CableConfig::new(mbit, Span::from_millis(rtt_ms), 1.0);
    for link in &mut cable.links {
        link.queue = QueueModel { limit: Limit::Packets(100), ..QueueModel::default() };
    }
    cable.links[0].loss = if loss > 0.0 { LossModel::Bernoulli(loss) } else { LossModel::None };
    cable
}

fn three() -> [CableConfig; 3] {
    [(50.0, 10), (30.0, 30), (20.0, 60)]
        .map(|(mbit, rtt)| CableConfig::new(mbit, Span::from_millis(rtt), 1.0))
}

#[test]
fn three_paths_give_the_sum_of_their_rates_in_any_order() {
    let [a, b, c] = three();
    let orders = [[&a, &b, &c], [&a, &c, &b], [&b, &a, &c], [&b, &c, &a], [&c, &a, &b], [&c, &b, &a]];
    for (seed, order) in orders.into_iter().enumerate() {
        let got = goodput(&order.map(Clone::clone), seed as u64);
        println!("three paths, order {seed}: {got:.2} Mbit/s of {:.2}", 100.0 * PAYLOAD_SHARE);
        assert!(got >= 0.95 * 100.0 * PAYLOAD_SHARE, "order {seed}: {got:.2} Mbit/s");
    }
}

#[test]
fn a_fast_and_a_slow_path_give_the_sum_of_their_rates_in_any_order() {
    let (fast, slow) = (hundred_packets(50.0, 10, 0.0), hundred_packets(20.0, 100, 0.0));
    for order in [[&fast, &slow], [&slow, &fast]] {
        let got = goodput(&order.map(Clone::clone), 1);
        println!("fast and slow: {got:.2} Mbit/s of {:.2}", 70.0 * PAYLOAD_SHARE);
        assert!(got >= 0.95 * 70.0 * PAYLOAD_SHARE, "{got:.2} Mbit/s");
    }
}

#[test]
fn a_lossy_second_path_never_brings_the_flow_below_the_best_single_path() {
    for (loss_fast, loss_slow) in [(0.0, 0.01), (0.01, 0.0)] {
        let (fast, slow) = (hundred_packets(50.0, 10, loss_fast), hundred_packets(20.0, 100, loss_slow));
        for seed in 0..5 {
            let single =
                goodput(std::slice::from_ref(&fast), seed).max(goodput(std::slice::from_ref(&slow), seed));
            for order in [[&fast, &slow], [&slow, &fast]] {
                let got = goodput(&order.map(Clone::clone), seed);
                println!("loss {loss_fast}/{loss_slow}, seed {seed}: {got:.2} against {single:.2} Mbit/s");
                assert!(got >= single, "seed {seed}: {got:.2} below {single:.2} Mbit/s");
            }
        }
    }
}
