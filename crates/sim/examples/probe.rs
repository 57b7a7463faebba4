//! Prints what a pair does second by second; for looking around.
use anabranch_engine::Config;
use anabranch_sim::{CLIENT, CableConfig, Pair, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

fn main() {
    let cables = [
        CableConfig::new(50.0, Span::from_millis(10), 1.0),
        CableConfig::new(30.0, Span::from_millis(30), 1.0),
        CableConfig::new(20.0, Span::from_millis(60), 1.0),
    ];
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 1);
    pair.connect();
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    for tick in 1..=20u64 {
        let at = Time::ZERO + Span::from_millis(500) * tick;
        let from = pair.now;
        pair.run(at, &mut [&mut sender, &mut sink]);
        if tick == 2 {
            for cable in 1..3 {
                let route = pair.route(CLIENT, cable);
                println!("{:?}", pair.session(CLIENT).open_path(at, route));
            }
        }
        println!("{:.1} s  {:.2} Mbit/s", at.as_secs_f64(), sink.mbit_s(from, at));
        for path in pair.session(CLIENT).paths() {
            println!(
                "   {} {:?} rtt {} min {} cwnd {} pipe {} rate {} lost {} spur {} ce {} pto {}",
                path.id,
                path.state,
                path.rtt,
                path.min_rtt,
                path.window,
                path.in_flight,
                path.delivery_rate,
                path.stats.packets_lost,
                path.stats.spurious_losses,
                path.stats.congestion_events,
                path.stats.probe_timeouts
            );
        }
    }
}
