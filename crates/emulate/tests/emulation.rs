//! The emulation between real sockets. Measurements in real time have three attempts, because the machine may be busy.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_emulate::{Direction, EmulatedPath, Emulation};
use anabranch_link::{Limit, LinkConfig, QueueModel, RateModel};
use anabranch_wire::{Rate, Span};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};

const MBIT: [f64; 3] = [50.0, 30.0, 20.0];
const RTT_MS: [u64; 3] = [10, 30, 60];
const PAYLOAD: usize = 1200;
/// Longest wait for a datagram.
const PATIENCE: Duration = Duration::from_secs(20);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn address(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// A path without rate limit and a millisecond of delay each way.
fn quick(server: &UdpSocket, change: impl FnOnce(&mut LinkConfig)) -> EmulatedPath {
    let mut link = LinkConfig { delay: Span::from_millis(1), ..LinkConfig::default() };
    change(&mut link);
    EmulatedPath::symmetric(address(server), link)
}

/// The next datagram and its source; `None` when none arrives within the socket's timeout.
fn receive(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; 2048];
    let (length, from) = socket.recv_from(&mut buffer).ok()?;
    Some((buffer[..length].to_vec(), from))
}

fn is_silent(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let silent = receive(socket).is_none();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    silent
}

/// Waits until the emulation's thread has come so far.
fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Three paths, each to its own server and at its own loopback address, with a second of queue.
fn three_paths(servers: &[UdpSocket]) -> Vec<EmulatedPath> {
    let config = |index: usize| {
        let rate = Rate::from_mbit(MBIT[index]);
        let queue = anabranch_link::bdp_bytes(rate, Span::from_secs(1));
        let link = LinkConfig::fixed(rate, Span::from_millis(RTT_MS[index] / 2), queue);
        let path = EmulatedPath::symmetric(address(&servers[index]), link);
        let host = if cfg!(target_os = "linux") { index as u8 + 1 } else { 1 };
        EmulatedPath { listen: SocketAddr::from(([127, 0, 0, host], 0)), ..path }
    };
    (0..servers.len()).map(config).collect()
}

/// Sends at one and a half times the rate for `span`, a millisecond's worth at a time, so that a queue builds up that
/// outlasts the pauses in which the machine does not run this thread.
fn blast(to: SocketAddr, mbit: f64, span: Duration) {
    let socket = socket();
    let (start, mut sent) = (Instant::now(), 0.0);
    while start.elapsed() < span {
        while sent * (PAYLOAD * 8) as f64 <= start.elapsed().as_secs_f64() * mbit * 1.5e6 {
            socket.send_to(&[0; PAYLOAD], to).unwrap();
            sent += 1.0;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Megabits a second that arrive during the last second of `span`.
fn measure(socket: &UdpSocket, span: Duration) -> f64 {
    let start = Instant::now();
    let (mut first, mut last, mut bytes) = (None, start, 0);
    while start.elapsed() < span {
        let Some((payload, _)) = receive(socket) else { break };
        if start.elapsed() + Duration::from_secs(1) < span {
            continue;
        }
        last = Instant::now();
        match first {
            None => first = Some(last),
            Some(_) => bytes += payload.len(),
        }
    }
    first.map_or(0.0, |first| bytes as f64 * 8e-6 / last.duration_since(first).as_secs_f64())
}

/// Makes up to three attempts.
fn within_three_attempts(attempt: impl Fn() -> Result<(), String>) {
    let failures: Vec<_> = (0..3).map_while(|_| attempt().err()).collect();
    assert!(failures.len() < 3, "{failures:?}");
}

#[test]
fn three_paths_carry_their_rates_at_the_same_time() {
    within_three_attempts(|| {
        let servers: Vec<_> = MBIT.iter().map(|_| socket()).collect();
        let emulation = Emulation::start(&three_paths(&servers)).unwrap();
        let span = Duration::from_millis(1_400);
        let measured: Vec<f64> = thread::scope(|scope| {
            let receivers: Vec<_> =
                servers.iter().map(|server| scope.spawn(move || measure(server, span))).collect();
            for (to, mbit) in emulation.addresses().iter().zip(MBIT) {
                scope.spawn(move || blast(*to, mbit, span));
            }
            receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect()
        });
        let right = measured.iter().zip(MBIT).all(|(found, mbit)| (found / mbit - 1.0).abs() < 0.03);
        if right { Ok(()) } else { Err(format!("{measured:.2?} Mbit/s")) }
    });
}

/// The milliseconds that a packet takes to the server and back, ten times.
fn round_trips(server: &UdpSocket, to: SocketAddr) -> Vec<f64> {
    let client = socket();
    let round_trip = |_| {
        let sent = Instant::now();
        client.send_to(&[7; 100], to).unwrap();
        let (payload, from) = receive(server).unwrap();
        server.send_to(&payload, from).unwrap();
        receive(&client).unwrap();
        sent.elapsed().as_secs_f64() * 1e3
    };
    (0..10).map(round_trip).collect()
}

#[test]
fn a_lone_packet_takes_the_round_trip_of_its_path() {
    within_three_attempts(|| {
        let servers: Vec<_> = MBIT.iter().map(|_| socket()).collect();
        let emulation = Emulation::start(&three_paths(&servers)).unwrap();
        let measured: Vec<_> = thread::scope(|scope| {
            let ends = servers.iter().zip(emulation.addresses());
            let paths: Vec<_> = ends.map(|(server, to)| scope.spawn(|| round_trips(server, *to))).collect();
            paths.into_iter().map(|path| path.join().unwrap()).collect()
        });
        for (path, found) in measured.iter().enumerate() {
            let model = RTT_MS[path] as f64 + 2.0 * 800.0 / MBIT[path] * 1e-3;
            let best = found.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(best >= model, "path {path} was faster than light: {best} ms, by the model {model} ms");
            if best > model + 2.0 {
                return Err(format!("path {path}: {found:.2?} ms, by the model {model:.2} ms"));
            }
        }
        Ok(())
    });
}

#[test]
fn each_client_is_answered_and_the_server_distinguishes_them() {
    let server = socket();
    let emulation = Emulation::start(&[quick(&server, |_| ())]).unwrap();
    let clients: Vec<_> = (0..5).map(|_| socket()).collect();
    for (number, client) in clients.iter().enumerate() {
        client.send_to(&[number as u8], emulation.addresses()[0]).unwrap();
    }
    let mut sources: Vec<_> = clients.iter().map(|_| receive(&server).unwrap()).collect();
    for (payload, source) in sources.iter().rev() {
        server.send_to(&[payload[0] + 100], source).unwrap();
    }
    for (number, client) in clients.iter().enumerate() {
        assert_eq!(receive(client), Some((vec![number as u8 + 100], emulation.addresses()[0])));
    }
    sources.dedup_by_key(|(_, source)| *source);
    assert_eq!(sources.len(), 5);
    assert_eq!(emulation.stats()[0].clients, 5);
}

#[test]
fn a_stranger_does_not_reach_a_client_through_its_socket() {
    let (server, client, stranger) = (socket(), socket(), socket());
    let emulation = Emulation::start(&[quick(&server, |_| ())]).unwrap();
    client.send_to(b"hello", emulation.addresses()[0]).unwrap();
    let (_, source) = receive(&server).unwrap();
    stranger.send_to(b"psst", source).unwrap();
    wait_until(|| emulation.stats()[0].refused == 1);
    assert!(is_silent(&client));
}

#[test]
fn a_cut_path_is_silent_both_ways_until_restored() {
    let (server, client) = (socket(), socket());
    let emulation = Emulation::start(&[quick(&server, |_| ())]).unwrap();
    let to = emulation.addresses()[0];
    client.send_to(b"1", to).unwrap();
    let (_, source) = receive(&server).unwrap();
    emulation.set_down(0, true);
    client.send_to(b"2", to).unwrap();
    server.send_to(b"3", source).unwrap();
    let lost = || {
        let stats = emulation.stats()[0];
        (stats.forward.dropped.outage, stats.reverse.dropped.outage)
    };
    wait_until(|| lost() == (1, 1));
    assert!(is_silent(&server) && is_silent(&client));
    emulation.set_down(0, false);
    client.send_to(b"4", to).unwrap();
    assert_eq!(receive(&server), Some((b"4".to_vec(), source)));
    assert_eq!(lost(), (1, 1));
}

#[test]
fn a_rate_that_returns_frees_the_packets_that_waited() {
    let (server, client) = (socket(), socket());
    let emulation = Emulation::start(&[quick(&server, |_| ())]).unwrap();
    emulation.set_rate(0, Direction::Forward, RateModel::Fixed(Rate::ZERO));
    client.send_to(b"patience", emulation.addresses()[0]).unwrap();
    assert!(is_silent(&server));
    emulation.set_rate(0, Direction::Forward, RateModel::Unlimited);
    assert_eq!(receive(&server).unwrap().0, b"patience");
}

#[test]
fn a_damaged_packet_differs_in_one_byte() {
    let (server, client) = (socket(), socket());
    let emulation = Emulation::start(&[quick(&server, |link| link.corrupt = 1.0)]).unwrap();
    client.send_to(&[9; 300], emulation.addresses()[0]).unwrap();
    let (payload, _) = receive(&server).unwrap();
    assert_eq!(payload.len(), 300);
    assert_eq!(payload.iter().filter(|byte| **byte != 9).count(), 1);
}

/// A server's state that receives datagrams one by one: joined, they would leave no room for the mark.
fn receives_singly(server: &UdpSocket) -> UdpSocketState {
    let state = UdpSocketState::new(server.into()).unwrap();
    #[cfg(target_os = "linux")]
    nix::sys::socket::setsockopt(server, nix::sys::socket::sockopt::UdpGroSegment, &false).unwrap();
    state
}

/// Receives until `count` datagrams are there; returns the mark of each.
fn marks(socket: &UdpSocket, state: &UdpSocketState, count: usize) -> io::Result<Vec<Option<EcnCodepoint>>> {
    let (mut marks, mut buffer) = (Vec::new(), vec![0; 65_536]);
    let start = Instant::now();
    while marks.len() < count && start.elapsed() < PATIENCE {
        let mut meta = [RecvMeta::default()];
        match state.recv(socket.into(), &mut [IoSliceMut::new(&mut buffer)], &mut meta) {
            Ok(_) => marks.push(meta[0].ecn),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(marks)
}

#[test]
fn congestion_marks_pass_and_are_set_even_when_the_sender_joins_its_datagrams() {
    let (server, client) = (socket(), socket());
    let state = receives_singly(&server);
    let mark_above = Some(Limit::Packets(2));
    let emulation = Emulation::start(&[quick(&server, |link| {
        link.queue = QueueModel { mark_above, ..QueueModel::default() };
        link.rate = RateModel::Fixed(Rate::from_mbit(8.0));
    })])
    .unwrap();
    let sender = UdpSocketState::new((&client).into()).unwrap();
    let contents = vec![0; 1000 * 5];
    // Five datagrams in one send where the system can, which also arrive joined.
    let chunk = if sender.max_gso_segments() > 1 { 5 } else { 1 };
    for contents in contents.chunks(1000 * chunk) {
        let ecn = Some(EcnCodepoint::Ect0);
        let segment_size = Some(1000);
        let destination = emulation.addresses()[0];
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip: None };
        sender.try_send((&client).into(), &transmit).unwrap();
    }
    let (ect, ce) = (Some(EcnCodepoint::Ect0), Some(EcnCodepoint::Ce));
    assert_eq!(marks(&server, &state, 5).unwrap(), [ect, ect, ect, ce, ce]);
}

#[test]
fn datagrams_due_together_arrive_whole_and_in_order_whatever_their_sizes() {
    let (server, client) = (socket(), socket());
    let emulation = Emulation::start(&[quick(&server, |link| link.delay = Span::from_millis(20))]).unwrap();
    let sizes = [700, 700, 700, 300, 700, 0, 1, 1, 900, 900, 1400, 0, 0, 5];
    for (number, size) in sizes.into_iter().enumerate() {
        client.send_to(&vec![number as u8; size], emulation.addresses()[0]).unwrap();
    }
    for (number, size) in sizes.into_iter().enumerate() {
        assert_eq!(receive(&server).unwrap().0, vec![number as u8; size]);
    }
}

#[test]
fn impossible_paths_are_refused_with_a_reason() {
    let server = socket();
    let listen = "[::1]:0".parse().unwrap();
    let error = Emulation::start(&[EmulatedPath { listen, ..quick(&server, |_| ()) }]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let listen = address(&server);
    let error = Emulation::start(&[EmulatedPath { listen, ..quick(&server, |_| ()) }]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn dropping_an_emulation_frees_its_addresses() {
    let server = socket();
    let emulation = Emulation::start(&[quick(&server, |_| ())]).unwrap();
    let listen = emulation.addresses()[0];
    socket().send_to(b"x", listen).unwrap();
    assert!(receive(&server).is_some());
    drop(emulation);
    UdpSocket::bind(listen).unwrap();
}

#[test]
fn ipv6_paths_work_as_ipv4_ones_do() {
    let Ok(server) = UdpSocket::bind("[::1]:0") else { return };
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let listen = "[::1]:0".parse().unwrap();
    let emulation = Emulation::start(&[EmulatedPath { listen, ..quick(&server, |_| ()) }]).unwrap();
    let client = UdpSocket::bind("[::1]:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.send_to(b"six", emulation.addresses()[0]).unwrap();
    let (payload, from) = receive(&server).unwrap();
    server.send_to(&payload, from).unwrap();
    assert_eq!(receive(&client), Some((b"six".to_vec(), emulation.addresses()[0])));
}
