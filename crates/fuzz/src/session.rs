//! A session with arbitrary decodable packets, passing time and an arbitrary application.
//!
//! The input is a list of records: action (1), length (1), that many bytes. Each packet must encode to its announced size,
//! and nothing may go on forever.

use anabranch_engine::{
    Arrival, Config, DatagramMode, Detector, Ecn, Init, MemoryBudget, PidSource, Route, Session,
};
use anabranch_wire::{
    DatagramFrame, Fsn, Message, PACKET_OVERHEAD, Packet, Params, PathId, PathUse, Pid, ResetToken, Span,
    StreamId, Time, decode_frames, encode_frames,
};
use bytes::Bytes;

struct Pids(u64);

impl PidSource for Pids {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        self.0 += 1;
        (Pid(self.0), ResetToken([1; 16]))
    }
}

fn route(which: u8) -> Route {
    Route { socket: u32::from(which % 2), remote: std::net::SocketAddr::from(([192, 0, 2, which % 4], 443)) }
}

fn params() -> Params {
    Params {
        pid: Pid(1 << 40),
        reset_token: ResetToken([2; 16]),
        initial_max_data: 100_000,
        initial_max_stream_data: 50_000,
        initial_max_streams: 10,
        max_paths: 4,
        max_udp_payload: 1472,
        max_datagram: 1200,
        idle_timeout_ms: 30_000,
        max_ack_delay_us: 25_000,
        max_block: 32,
        ordered_classes: 1 << 3,
        arrival_times: true,
        path_rates: true,
    }
}

struct Fed {
    session: Session<Bytes>,
    now: Time,
    next: [u64; 4],
}

impl Fed {
    fn packet(&mut self, path: u8, jump: u64, (from, frames): (u8, &[u8])) {
        let Ok(frames) = decode_frames(Bytes::copy_from_slice(frames)) else { return };
        let path = path % 4;
        let number = &mut self.next[usize::from(path)];
        *number += jump;
        let packet = Packet { path: PathId(u32::from(path)), fsn: Fsn(*number), frames };
        *number += 1;
        let arrival = Arrival { route: route(from), size: 1200, ecn: Ecn::Ect0, waited: Span::ZERO };
        self.session.handle_message(self.now, &arrival, Message::Packet(packet));
    }

    fn pass(&mut self, millis: u8) {
        let until = self.now + Span::from_millis(u64::from(millis));
        for round in 0.. {
            let Some(at) = self.session.poll_timeout().filter(|at| *at <= until) else { break };
            assert!(round < 10_000, "a deadline that never passes");
            self.now = self.now.max(at);
            self.session.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn drain(&mut self) {
        for round in 0.. {
            let Some(sent) = self.session.poll_transmit(self.now) else { break };
            assert!(round < 10_000, "packets without end");
            if let Message::Packet(packet) = &sent.message {
                let mut out = Vec::new();
                encode_frames(&packet.frames, &mut out);
                assert_eq!(out.len() + PACKET_OVERHEAD, sent.size);
                assert!(sent.size <= 1472);
            }
        }
        while self.session.poll_pid_change().is_some() {}
    }

    /// An action of the application; refusals are fine.
    fn act(&mut self, what: u8, with: u8) {
        let stream = StreamId(u64::from(with % 8));
        let session = &mut self.session;
        match what % 12 {
            0 => drop(session.open_stream()),
            1 => drop(session.accept_stream()),
            2 => drop(session.write(stream, &mut Bytes::from(vec![with; usize::from(with) * 64]))),
            3 => drop(session.finish(stream)),
            4 => drop(session.reset(stream, 3)),
            5 => drop(session.stop(stream, 4)),
            6 => drop(session.read(stream, usize::from(with) * 16)),
            7 => drop(session.send_datagram(DatagramFrame {
                class: with % 16,
                flow: 0,
                data: Bytes::from(vec![0; 9]),
            })),
            8 => drop(session.open_path(self.now, route(with))),
            9 => session.close_path(
                self.now,
                PathId(u32::from(with % 4)),
                anabranch_engine::AbandonReason::Requested,
            ),
            10 => drop(session.set_path_use(PathId(u32::from(with % 4)), PathUse::Backup)),
            _ if with == 77 => session.close(self.now),
            _ => while session.poll_event().is_some() {},
        }
    }
}

/// Runs the input; see the module's documentation.
pub fn session(input: &[u8]) {
    let now = Time::ZERO + Span::from_secs(1);
    let pids = Box::new(Pids(100));
    let budget = MemoryBudget::new(1 << 24);
    let modes = [DatagramMode::Once, DatagramMode::Redundant, DatagramMode::Protected];
    // The input's length selects the detector of shared bottlenecks, so that all are tested.
    let (detector, _) = Detector::ALL[input.len() % Detector::ALL.len()];
    let mut config = Config { detector, ..Config::default() };
    config.datagrams.modes = std::array::from_fn(|class| modes[class % modes.len()]);
    config.datagrams.protection.outlive_path = true;
    config.datagrams.ordered_classes = 0b1100;
    let accepted = Session::accept(config, Init { params: params(), route: route(0) }, pids, budget, now);
    let mut fed = Fed { session: accepted.expect("good parameters"), now, next: [0; 4] };
    fed.drain();
    let mut rest = input;
    while let [what, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        match what % 8 {
            0..=3 => fed.packet(what >> 4, 0, (0, bytes)),
            4 => fed.packet(what >> 4, u64::from(*len), (what >> 6, bytes)),
            5 => fed.pass(*len),
            _ => bytes.iter().for_each(|with| fed.act(what >> 4, *with)),
        }
        fed.drain();
    }
    fed.pass(255);
}
