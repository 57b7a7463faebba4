//! Never slower than one path: random cells, each against its best single path.
use anabranch_engine::Config;
use anabranch_link::LossModel;
use anabranch_sim::{CableConfig, Pair, Sender, Sink};
use anabranch_wire::{Length, Span, Time};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

fn between(r: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * (f64::from(r.next_u32()) / f64::from(u32::MAX))
}

fn run(cables: &[CableConfig], config: &Config, bytes: u64, seed: u64) -> f64 {
    let mut pair: Pair<Length> = Pair::new([config.clone(), config.clone()], cables, seed);
    let (mut sender, mut sink) = (Sender::new(bytes), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    if bytes == u64::MAX {
        let (from, to) = (Time::ZERO + Span::from_secs(5), Time::ZERO + Span::from_secs(25));
        pair.run(to, &mut [&mut sender, &mut sink]);
        return sink.mbit_s(from, to);
    }
    while sink.finished_at.is_none() && pair.now < Time::ZERO + Span::from_secs(600) {
        let to = pair.now + Span::from_millis(200);
        pair.run(to, &mut [&mut sender, &mut sink]);
    }
    bytes as f64 * 8e-6 / sink.finished_at.unwrap_or(pair.now).as_secs_f64()
}

fn main() {
    let first: u64 = std::env::args().nth(1).map_or(0, |n| n.parse().unwrap());
    let last: u64 = std::env::args().nth(2).map_or(20, |n| n.parse().unwrap());
    for cell in first..last {
        let mut r = ChaCha8Rng::seed_from_u64(cell);
        let count = 2 + (r.next_u32() % 3) as usize;
        let top = between(&mut r, 10f64.ln(), 100f64.ln()).exp();
        let base = between(&mut r, 5.0, 50.0);
        let lossy = r.next_u32() % 2 == 0;
        let mut text = String::new();
        let mut cables = Vec::new();
        let mut sum = 0.0;
        for i in 0..count {
            let rate = if i == 0 { top } else { top / between(&mut r, 0.0, 10f64.ln()).exp() };
            let rtt = if i == 0 { base } else { base + between(&mut r, 0.0, 300.0) };
            let loss = if lossy { between(&mut r, 0.0001f64.ln(), 0.05f64.ln()).exp() } else { 0.0 };
            let bdp = between(&mut r, 0.5f64.ln(), 4f64.ln()).exp();
            let mut cable = CableConfig::new(rate, Span::from_secs_f64(rtt / 1e3), bdp);
            if loss > 0.0 {
                cable.links[0].loss = LossModel::Bernoulli(loss);
            }
            text += &format!(" {rate:.1},{rtt:.0},{bdp:.2},{loss:.4}");
            sum += rate * 1430.0 / 1500.0;
            cables.push(cable);
        }
        let tight = r.next_u32() % 2 == 0;
        let files = r.next_u32() % 2 == 0;
        let mut config = Config::default();
        if tight {
            // One bandwidth-delay product of the best path.
            let bdp = (top * 1e6 / 8.0 * base / 1e3) as u64;
            config.memory.initial_window = bdp.max(20_000);
            config.memory.max_window = bdp.max(20_000);
        }
        let bytes = if files { 10_000_000 } else { u64::MAX };
        let singles: Vec<f64> =
            cables.iter().map(|c| run(std::slice::from_ref(c), &config, bytes, cell)).collect();
        let best = singles.iter().copied().fold(0.0, f64::max);
        let multi = run(&cables, &config, bytes, cell);
        let single_sum: f64 = singles.iter().sum();
        println!(
            "{:.3} of best {:.3} of sum-of-singles  {multi:.2}/{best:.2} cap {sum:.1} cell {cell} {}{}{text}",
            multi / best,
            multi / single_sum,
            if tight { "TIGHT " } else { "" },
            if files { "FILE" } else { "" }
        );
    }
}
