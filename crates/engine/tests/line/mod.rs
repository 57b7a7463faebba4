//! Two sessions in steady state, for tests that count the cost of a packet.

use anabranch_engine::{Arrival, Config, Ecn, Init, MemoryBudget, PidSource, Read, Route, Session, Transmit};
use anabranch_wire::{Length, Message, Pid, ResetToken, Span, StreamId, Time};

struct Pids(u64);

impl PidSource for Pids {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        self.0 += 1;
        (Pid(self.0), ResetToken([1; 16]))
    }
}

/// Two sessions a millisecond apart, one of which always has data.
pub struct Line {
    ends: [Session<Length>; 2],
    stream: Option<StreamId>,
    now: Time,
    /// Packets in flight to either end.
    flying: [Vec<Transmit<Length>>; 2],
    landed: Vec<Transmit<Length>>,
    /// Packets with data that have arrived.
    pub data_packets: u64,
}

fn route() -> Route {
    Route { socket: 0, remote: "192.0.2.1:443".parse().unwrap() }
}

impl Line {
    pub fn new() -> Self {
        let now = Time::ZERO + Span::from_secs(1);
        let budget = MemoryBudget::new(1 << 40);
        let mut client =
            Session::connect(Config::default(), &[route()], Box::new(Pids(1 << 32)), budget.clone(), now);
        let init = client.poll_transmit(now).unwrap();
        let Message::Init(params) = init.message else { panic!("INIT comes first") };
        let accepted = Init { params, route: route() };
        let server =
            Session::accept(Config::default(), accepted, Box::new(Pids(1 << 33)), budget, now).unwrap();
        let flying = [Vec::new(), Vec::new()];
        Self { ends: [client, server], stream: None, now, flying, landed: Vec::new(), data_packets: 0 }
    }

    /// A millisecond: packets in flight arrive, both ends send, the receiver reads.
    pub fn step(&mut self) {
        self.now += Span::from_millis(1);
        for end in 0..2 {
            std::mem::swap(&mut self.landed, &mut self.flying[end]);
            for mut transmit in self.landed.drain(..) {
                let arrival =
                    Arrival { route: route(), size: transmit.size, ecn: Ecn::NotEct, waited: Span::ZERO };
                self.data_packets += u64::from(end == 1);
                self.ends[end].take_in(self.now, &arrival, &mut transmit.message);
                self.ends[1 - end].reclaim(&mut transmit.message);
            }
            let session = &mut self.ends[end];
            if session.poll_timeout().is_some_and(|at| at <= self.now) {
                session.handle_timeout(self.now);
            }
            while session.poll_event().is_some() {}
            while session.poll_pid_change().is_some() {}
        }
        self.talk();
        for end in 0..2 {
            while let Some(transmit) = self.ends[end].poll_transmit(self.now) {
                self.flying[1 - end].push(transmit);
            }
        }
    }

    fn talk(&mut self) {
        let [client, server] = &mut self.ends;
        if self.stream.is_none() {
            self.stream = client.open_stream();
        }
        let Some(stream) = self.stream else { return };
        // Ten megabytes a second: the windows stop growing.
        let _ = client.write(stream, &mut Length(10_000));
        while let Ok(Read::Data(_)) = server.read(stream, 1 << 20) {}
    }
}
