//! The cost of a packet in virtual time: data packets (with their acknowledgements) a CPU second.
use anabranch_engine::Config;
use anabranch_sim::{CLIENT, CableConfig, Pair, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

fn main() {
    let paths: usize = std::env::args().nth(1).map_or(1, |n| n.parse().unwrap());
    let loss: f64 = std::env::args().nth(2).map_or(0.0, |n| n.parse().unwrap());
    let mut cable = CableConfig::new(1000.0 / paths as f64, Span::from_millis(10), 1.0);
    if loss > 0.0 {
        cable.links[0].loss = anabranch_link::LossModel::Bernoulli(loss);
    }
    let cables = vec![cable; paths];
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 1);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(Time::ZERO + Span::from_secs(2), &mut [&mut sender, &mut sink]);
    let before: u64 = pair.session(CLIENT).paths().iter().map(|path| path.stats.packets_sent).sum();
    let start = std::time::Instant::now();
    pair.run(Time::ZERO + Span::from_secs(12), &mut [&mut sender, &mut sink]);
    let seconds = start.elapsed().as_secs_f64();
    let sent: u64 = pair.session(CLIENT).paths().iter().map(|path| path.stats.packets_sent).sum::<u64>() - before;
    println!("{paths} paths: {:.0} thousand data packets a second, {:.2} µs each", sent as f64 / seconds / 1e3, seconds * 1e6 / sent as f64);
}
