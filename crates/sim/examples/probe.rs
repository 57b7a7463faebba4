//! Prints what a pair does; for looking around. Arguments: one cable each as `mbit,rtt_ms,queue_bdp,loss`.
//! With `ANABRANCH_TICKS=n` every half second's state is printed too.
use anabranch_engine::{Config, SchedulerKind};
use anabranch_link::LossModel;
use anabranch_sim::{CLIENT, CableConfig, Pair, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

fn main() {
    let cables: Vec<_> = std::env::args()
        .skip(1)
        .map(|text| {
            let f: Vec<f64> = text.split(',').map(|part| part.parse().unwrap()).collect();
            let mut cable = CableConfig::new(f[0], Span::from_secs_f64(f[1] / 1e3), f[2]);
            if let Some(loss) = f.get(3) {
                cable.links[0].loss = LossModel::Bernoulli(*loss);
            }
            cable
        })
        .collect();
    let mut config = Config::default();
    if let Ok(rule) = std::env::var("CC") {
        config.cc.rule = rule.parse().unwrap();
    }
    if let Ok(name) = std::env::var("SCHED") {
        config.scheduler = name.parse::<SchedulerKind>().unwrap();
    }
    let ticks: u64 = std::env::var("ANABRANCH_TICKS").map_or(0, |t| t.parse().unwrap());
    let mut pair: Pair<Length> = Pair::new([config.clone(), config], &cables, 1);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    println!("established at {:.3}", pair.now.as_secs_f64());
    let cut: Option<usize> = std::env::var("CUT").ok().map(|t| t.parse().unwrap());
    for tick in 1..=ticks.max(40) {
        let at = Time::ZERO + Span::from_millis(500) * tick;
        let from = pair.now;
        if tick == 20
            && let Some(cable) = cut
        {
            pair.set_down(cable, true);
        }
        if tick == 30
            && let Some(cable) = cut
        {
            pair.set_down(cable, false);
        }
        pair.run(at, &mut [&mut sender, &mut sink]);
        if ticks == 0 {
            continue;
        }
        println!(
            "{:.1} s  {:.2} Mbit/s gap {}",
            at.as_secs_f64(),
            sink.mbit_s(from, at),
            sink.longest_gap(from, at)
        );
        for path in pair.session(CLIENT).paths() {
            println!(
                "   {} {:?} rtt {} min {} cwnd {} pipe {} rate {} sent {} lost {} spur {} ce {} pto {}",
                path.id,
                path.state,
                path.rtt,
                path.min_rtt,
                path.window,
                path.in_flight,
                path.delivery_rate,
                path.stats.bytes_sent,
                path.stats.packets_lost,
                path.stats.spurious_losses,
                path.stats.congestion_events,
                path.stats.probe_timeouts
            );
        }
    }
    let (from, to) = (Time::ZERO + Span::from_secs(5), pair.now);
    println!("5 s on: {:.2} Mbit/s  gap {}", sink.mbit_s(from, to), sink.longest_gap(from, to));
    for path in pair.session(CLIENT).paths() {
        println!(
            "   {} sent {} lost {} spur {} pto {}",
            path.id,
            path.stats.bytes_sent,
            path.stats.packets_lost,
            path.stats.spurious_losses,
            path.stats.probe_timeouts
        );
    }
}
