//! Data in both directions over the same paths, so that each end's data delays the other's acknowledgements.

use anabranch_engine::{Config, PathState, Session};
use anabranch_link::{Limit, QueueModel};
use anabranch_sim::{App, CLIENT, CableConfig, Pair, Sender, Sink};
use anabranch_wire::{Length, Span, Time};

const SECOND: Span = Span::from_secs(1);

/// Sends from a given time on, and reads all data.
struct Both {
    from: Time,
    sender: Sender,
    sink: Sink,
}

impl Both {
    fn new(from: Time) -> Self {
        Self { from, sender: Sender::new(u64::MAX), sink: Sink::default() }
    }
}

impl App<Length> for Both {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        if now >= self.from {
            self.sender.poll(now, session);
        }
        self.sink.poll(now, session);
    }
}

/// Cables of 50, 30 and 20 Mbit/s with the delay of a local network and queues of 50 ms.
fn cables() -> [CableConfig; 3] {
    [50.0, 30.0, 20.0].map(|mbit| {
        let mut cable = CableConfig::new(mbit, Span::from_micros(400), 1.0);
        for link in &mut cable.links {
            let limit = Limit::Packets((mbit * 1e6 * 0.05 / 8.0 / 1500.0) as u32);
            link.queue = QueueModel { limit, ..QueueModel::default() };
        }
        cable
    })
}

#[test]
fn an_upload_under_a_download_uses_every_path_at_once() {
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables(), 1);
    let started = Time::ZERO + SECOND;
    let (mut client, mut server) = (Both::new(started), Both::new(Time::ZERO));
    pair.establish(&mut [&mut client, &mut server]);
    for second in 1..=4 {
        pair.run(Time::ZERO + SECOND * second, &mut [&mut client, &mut server]);
        let paths = pair.session(CLIENT).paths();
        assert!(paths.iter().all(|path| path.state == PathState::Active), "second {second}: {paths:?}");
    }
    let upload = server.sink.mbit_s(started, started + SECOND * 3);
    assert!(upload > 50.0, "three paths gave {upload} Mbit/s, less than the best of them has");
}
