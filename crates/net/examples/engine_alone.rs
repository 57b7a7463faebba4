//! The engine alone in virtual time: two sessions without data bytes or sockets. Prints data packets, with their
//! acknowledgements, per second.
//!
//! `cargo run --release -p anabranch-net --example engine_alone -- [SECONDS] [BYTES A MILLISECOND]`

use std::time::{Duration, Instant};

use anabranch_engine::{
    Arrival, Config, Ecn, Init, MemoryBudget, PidSource, Read, Route, Session, StreamError, Transmit,
};
use anabranch_wire::{Length, Message, Pid, ResetToken, Span, Time};

struct Pids(u64);

impl PidSource for Pids {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        self.0 += 1;
        (Pid(self.0), ResetToken([1; 16]))
    }
}

fn route() -> Route {
    Route { socket: 0, remote: std::net::SocketAddr::from(([192, 0, 2, 1], 443)) }
}

fn establish(now: Time) -> Option<[Session<Length>; 2]> {
    let budget = MemoryBudget::new(1 << 40);
    let pids = |from| Box::new(Pids(from));
    let mut client = Session::connect(Config::default(), &[route()], pids(1 << 32), budget.clone(), now);
    let Message::Init(params) = client.poll_transmit(now)?.message else { return None };
    let server =
        Session::accept(Config::default(), Init { params, route: route() }, pids(1 << 33), budget, now);
    Some([client, server.ok()?])
}

/// One end's turn: handles the packets that have arrived, advances its clock, and collects its output.
fn turn(session: &mut Session<Length>, now: Time, landed: &mut Vec<Transmit<Length>>) {
    for transmit in landed.drain(..) {
        let arrival = Arrival { route: route(), size: transmit.size, ecn: Ecn::NotEct, waited: Span::ZERO };
        session.handle_message(now, &arrival, transmit.message);
    }
    if session.poll_timeout().is_some_and(|at| at <= now) {
        session.handle_timeout(now);
    }
    while session.poll_event().is_some() {}
    while session.poll_pid_change().is_some() {}
}

fn main() -> Result<(), StreamError> {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (seconds, rate) = (words.next().unwrap_or(5), words.next().unwrap_or(1_000_000) as usize);
    let mut now = Time::ZERO + Span::from_secs(1);
    let [mut client, mut server] = establish(now).expect("a session");
    let (mut to_client, mut to_server, mut stream) = (Vec::new(), Vec::new(), None);
    let (mut packets, mut steps, mut begun) = (0_u64, 0, Instant::now());
    while steps < 2_000 || begun.elapsed() < Duration::from_secs(seconds) {
        steps += 1;
        if steps == 2_000 {
            (packets, begun) = (0, Instant::now());
        }
        now += Span::from_millis(1);
        packets += to_server.len() as u64;
        turn(&mut client, now, &mut to_client);
        turn(&mut server, now, &mut to_server);
        stream = stream.or_else(|| client.open_stream());
        if let Some(stream) = stream {
            client.write(stream, &mut Length(rate))?;
            while let Ok(Read::Data(_)) = server.read(stream, 1 << 20) {}
        }
        to_server.extend(std::iter::from_fn(|| client.poll_transmit(now)));
        to_client.extend(std::iter::from_fn(|| server.poll_transmit(now)));
    }
    let taken = begun.elapsed().as_secs_f64();
    println!(
        "{:.2} million data packets a second with their acknowledgements, {:.0} ns each",
        packets as f64 / taken * 1e-6,
        taken * 1e9 / packets as f64
    );
    Ok(())
}
