//! `proxy` and `exit` on one machine, with clients for each protocol over loopback; and between two namespaces joined by three links.
#![cfg(target_os = "linux")]

use crate::common;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::netns::{CEILING, Machines, Side, three_links};
use common::programs::{PROGRAM, Running, Scratch, free_port, noise, program, wait_for};
use common::{skip, within_three_attempts};
use serde_json::Value;

/// How long a client of these tests waits for an answer.
const PATIENCE: Duration = Duration::from_secs(40);

/// An exit and a proxy that uses it.
pub struct Pair {
    scratch: Scratch,
    exit: Option<Running>,
    proxy: Option<Running>,
    /// The exit's UDP port, its line and the proxy's address.
    exit_port: u16,
    ticket: String,
    pub at: SocketAddr,
}

impl Pair {
    /// Starts both; the exit allows loopback besides these options.
    pub fn start(exit: &[&str], proxy: &[&str]) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut pair = Self {
            scratch: Scratch::new(),
            exit: None,
            proxy: None,
            exit_port: free_port(),
            ticket: String::new(),
            at: nowhere,
        };
        pair.start_exit(exit);
        pair.start_proxy(proxy);
        pair
    }

    fn command(&self, home: &str, words: &[&str]) -> Command {
        let mut command = program(words);
        command.env("HOME", self.scratch.path(home)).env("XDG_RUNTIME_DIR", self.scratch.path(home));
        command.env_remove("XDG_CONFIG_HOME");
        command
    }

    fn start_exit(&mut self, options: &[&str]) {
        let port = self.exit_port.to_string();
        let usual = ["exit", "--port", &port, "--address", "127.0.0.1", "--allow", "127.0.0.1"];
        let words = [&usual[..], options].concat();
        let mut exit = Running::start(&mut self.command("from", &words));
        let line = exit.line();
        let Some(ticket) = line.strip_prefix("anabranch proxy ") else { panic!("{line}: {}", exit.end().1) };
        ticket.clone_into(&mut self.ticket);
        self.exit = Some(exit);
    }

    fn start_proxy(&mut self, options: &[&str]) {
        let words = [&["proxy", &self.ticket, "--listen", "127.0.0.1:0"], options].concat();
        let mut proxy = Running::start(&mut self.command("to", &words));
        let line = proxy.line();
        let Some(at) = line.strip_prefix("export ALL_PROXY=socks5h://") else {
            panic!("{line}: {}", proxy.end().1)
        };
        self.at = at.parse().unwrap();
        self.proxy = Some(proxy);
    }

    fn dial(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A connection by SOCKS5 with a name, or the code of the reply.
    fn socks5(&self, host: &str, port: u16) -> Result<TcpStream, u8> {
        let mut stream = self.dial();
        stream.write_all(&[5, 2, 0, 2]).unwrap();
        assert_eq!(bytes::<2>(&mut stream), [5, 0]);
        let name = [&[5, 1, 0, 3, host.len() as u8], host.as_bytes(), &port.to_be_bytes()].concat();
        stream.write_all(&name).unwrap();
        let reply = bytes::<10>(&mut stream);
        if reply[1] == 0 { Ok(stream) } else { Err(reply[1]) }
    }

    /// A connection by SOCKS4a, or the code of the reply.
    fn socks4a(&self, host: &str, port: u16) -> Result<TcpStream, u8> {
        let mut stream = self.dial();
        let port = port.to_be_bytes();
        let request = [&[4, 1, port[0], port[1], 0, 0, 0, 1], &b"user\0"[..], host.as_bytes(), &[0]].concat();
        stream.write_all(&request).unwrap();
        let reply = bytes::<8>(&mut stream);
        if reply[1] == 90 { Ok(stream) } else { Err(reply[1]) }
    }

    /// A connection by CONNECT, or the status.
    fn connect(&self, to: &str) -> Result<TcpStream, u16> {
        let mut stream = self.dial();
        stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).unwrap();
        let head = head(&mut stream);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 200 { Ok(stream) } else { Err(status) }
    }

    /// The response to a plain request, whole.
    fn get(&self, url: &str) -> String {
        let mut stream = self.dial();
        write!(stream, "GET {url} HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The status of the proxy or the exit.
    fn status(&self, whom: &str) -> Value {
        let (port, at) = (self.exit_port.to_string(), self.at.to_string());
        let mut command = match whom {
            "exit" => self.command("from", &["exit", "status", "--json", "--port", &port]),
            _ => self.command("to", &["proxy", "status", "--json", "--listen", &at]),
        };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn bytes<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads a head up to its empty line, and nothing behind it.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(bytes::<1>(stream)[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A server on loopback that handles each connection on a thread of its own; returns its port.
fn server(handle: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || handle(connection));
        }
    });
    port
}

fn echo(mut connection: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = connection.read(&mut buffer) {
        if connection.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

fn is_echoed(stream: &mut TcpStream) -> bool {
    stream.write_all(b"there and back").unwrap();
    bytes(stream) == *b"there and back"
}

#[test]
fn a_named_key_file_that_is_missing_is_made_at_both_ends() {
    let scratch = Scratch::new();
    let keys = ["exit.key", "proxy.key"].map(|name| scratch.text(name));
    let _pair = Pair::start(&["--key", &keys[0]], &["--key", &keys[1]]);
    assert!(keys.iter().all(|key| std::path::Path::new(key).exists()));
}

#[test]
fn every_protocol_reaches_a_destination_by_address_and_by_name() {
    let port = server(echo);
    let pair = Pair::start(&[], &["--forward", &format!("0=127.0.0.1:{port}")]);
    for host in ["127.0.0.1", "localhost"] {
        assert!(is_echoed(&mut pair.socks5(host, port).unwrap()), "socks5 {host}");
        assert!(is_echoed(&mut pair.socks4a(host, port).unwrap()), "socks4a {host}");
        assert!(is_echoed(&mut pair.connect(&format!("{host}:{port}")).unwrap()), "connect {host}");
    }
    let web = server(|mut connection| {
        let request = head(&mut connection);
        let body = format!("you asked: {request}");
        let length = body.len();
        write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .unwrap();
    });
    let response = pair.get(&format!("http://localhost:{web}/a?b"));
    let asked = format!("you asked: GET /a?b HTTP/1.1\r\nHost: localhost:{web}\r\nConnection: close\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with(&asked), "{response}");
    let settings = pair.get("/proxy.pac");
    assert!(settings.contains(&format!("return \"SOCKS5 {0}; PROXY {0}\"", pair.at)), "{settings}");
}

#[test]
fn the_next_request_of_a_client_does_not_go_to_a_server_that_leaves_the_connection_open() {
    let (sender, requests) = mpsc::channel();
    let web = server(move |mut connection| {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = connection.read(&mut buffer) {
            let _ = sender.send(String::from_utf8_lossy(&buffer[..length]).into_owned());
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let pair = Pair::start(&[], &[]);
    let mut stream = pair.dial();
    let request = format!("POST http://localhost:{web}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody");
    stream.write_all(request.as_bytes()).unwrap();
    assert!(head(&mut stream).starts_with("HTTP/1.1 200 OK"));
    assert_eq!(&bytes::<2>(&mut stream), b"ok");
    assert!(requests.recv().unwrap().ends_with("Connection: close\r\n\r\nbody"));
    stream.write_all(b"GET http://other.example/ HTTP/1.1\r\nCookie: secret\r\n\r\n").unwrap();
    assert_eq!(stream.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    let got = requests.recv_timeout(Duration::from_secs(1));
    assert!(got.is_err(), "{got:?}");
}

#[test]
fn a_refused_upgrade_ends_with_its_answer_and_an_accepted_one_goes_on() {
    let (sender, requests) = mpsc::channel();
    let web = server(move |mut connection| {
        if head(&mut connection).starts_with("GET /yes") {
            connection
                .write_all(b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                .unwrap();
            return echo(connection);
        }
        connection.write_all(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno").unwrap();
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = connection.read(&mut buffer) {
            let _ = sender.send(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
    });
    let pair = Pair::start(&[], &[]);
    let ask = |path: &str| {
        let mut stream = pair.dial();
        let head = format!(
            "GET http://localhost:{web}/{path} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut accepted = ask("yes");
    assert!(head(&mut accepted).starts_with("HTTP/1.1 101 Yes"));
    assert!(is_echoed(&mut accepted));
    let mut refused = ask("no");
    assert!(head(&mut refused).starts_with("HTTP/1.1 403 No"));
    assert_eq!(&bytes::<2>(&mut refused), b"no");
    refused.write_all(b"GET http://other.example/ HTTP/1.1\r\nCookie: secret\r\n\r\n").unwrap();
    assert_eq!(refused.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    let got = requests.recv_timeout(Duration::from_secs(1));
    assert!(got.is_err(), "{got:?}");
}

#[test]
fn a_direction_that_has_ended_leaves_the_other_open() {
    let data = noise(3 << 20, 7);
    let copy = data.clone();
    // Answers only when it has read everything.
    let reads_first = server(move |mut connection| {
        let mut all = Vec::new();
        connection.read_to_end(&mut all).unwrap();
        connection.write_all(&all).unwrap();
    });
    // Ends its side at once and reads on.
    let (sender, received) = std::sync::mpsc::channel();
    let writes_first = server(move |mut connection| {
        connection.write_all(&copy).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        connection.read_to_end(&mut all).unwrap();
        sender.send(all).unwrap();
    });
    let pair = Pair::start(&[], &[]);
    let mut stream = pair.socks5("127.0.0.1", reads_first).unwrap();
    stream.write_all(&data).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back == data, "{} bytes came back", back.len());

    let mut stream = pair.socks5("127.0.0.1", writes_first).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert!(all == data, "{} bytes came", all.len());
    stream.write_all(&data).unwrap();
    drop(stream);
    assert!(received.recv_timeout(PATIENCE).unwrap() == data);
}

#[test]
fn a_refusal_stays_a_refusal_with_the_code_of_each_protocol() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let open = server(echo);
    let pair = Pair::start(&["--deny", "127.0.0.1:9"], &[]);
    for (host, port, socks, status) in [
        ("127.0.0.1", closed, 5, 502),
        ("127.0.0.1", 9, 2, 403),
        ("127.0.0.2", open, 2, 403),
        ("10.0.0.1", 80, 2, 403),
        ("169.254.169.254", 80, 2, 403),
        ("::ffff:10.0.0.1", 80, 2, 403),
        ("nowhere.invalid", 80, 4, 502),
    ] {
        assert_eq!(pair.socks5(host, port).err(), Some(socks), "{host}:{port}");
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        assert_eq!(pair.connect(&format!("{bracketed}:{port}")).err(), Some(status), "{host}:{port}");
        if !host.contains(':') {
            assert_eq!(pair.socks4a(host, port).err(), Some(91), "{host}:{port}");
        }
        let response = pair.get(&format!("http://{bracketed}:{port}/"));
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{host}:{port}: {response}");
    }
}

#[test]
fn a_reset_stays_a_reset() {
    let port = server(|connection| {
        let mut connection = connection;
        let _ = bytes::<1>(&mut connection);
        socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let pair = Pair::start(&[], &[]);
    let mut stream = pair.socks5("127.0.0.1", port).unwrap();
    stream.write_all(b"x").unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_connection_that_the_end_of_either_program_cuts_off_does_not_look_complete() {
    let port = server(echo);
    for whom in ["proxy", "exit"] {
        let mut pair = Pair::start(&[], &[]);
        let mut stream = pair.socks5("127.0.0.1", port).unwrap();
        assert!(is_echoed(&mut stream));
        let running = if whom == "proxy" { &mut pair.proxy } else { &mut pair.exit };
        let running = running.take().unwrap();
        running.interrupt();
        assert_eq!(running.end().0, Some(0), "{whom}");
        let error = stream.read(&mut [0]).expect_err(whom);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{whom}");
    }
}

#[test]
fn a_killed_exit_gives_clear_errors_until_it_is_back() {
    let port = server(echo);
    let mut pair = Pair::start(&[], &[]);
    let mut before = pair.socks5("127.0.0.1", port).unwrap();
    assert!(is_echoed(&mut before));
    pair.exit.take().unwrap().kill();
    let begin = Instant::now();
    assert_eq!(pair.socks5("127.0.0.1", port).err(), Some(3), "the exit is not reached");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let response = pair.get(&format!("http://127.0.0.1:{port}/"));
    assert!(response.starts_with("HTTP/1.1 503 ") && response.contains("dialed again"), "{response}");
    pair.start_exit(&[]);
    wait_for("a connection through the exit that is back", || {
        pair.socks5("127.0.0.1", port).is_ok_and(|mut stream| is_echoed(&mut stream))
    });
    // Connections of the old session ended with it.
    let _ = before.write_all(b"x");
    assert!(!matches!(before.read(&mut [0; 14]), Ok(1..)));
}

#[test]
fn an_exit_that_stays_away_is_no_longer_waited_for_and_is_back_when_it_returns() {
    let port = server(echo);
    let mut pair = Pair::start(&[], &[]);
    let mut before = pair.socks5("127.0.0.1", port).unwrap();
    assert!(is_echoed(&mut before));
    pair.exit.take().unwrap().kill();
    wait_for("a refusal at once", || {
        let begin = Instant::now();
        pair.socks5("127.0.0.1", port).err() == Some(3) && begin.elapsed() < Duration::from_secs(2)
    });
    // The network may come back, so open connections stay until the session ends.
    before.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    assert_eq!(before.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let response = pair.get(&format!("http://127.0.0.1:{port}/"));
    assert!(response.starts_with("HTTP/1.1 503 ") && response.contains("does not answer"), "{response}");
    pair.start_exit(&[]);
    wait_for("a connection through the exit that is back", || {
        pair.socks5("127.0.0.1", port).is_ok_and(|mut stream| is_echoed(&mut stream))
    });
}

#[test]
fn datagrams_go_to_addresses_and_names_and_come_back_from_where_they_were_sent() {
    let port = datagram_echo();
    let pair = Pair::start(&[], &[]);
    let mut control = pair.dial();
    control.write_all(&[5, 1, 0]).unwrap();
    assert_eq!(bytes::<2>(&mut control), [5, 0]);
    // Many programs name their destination here; it must not matter.
    control.write_all(&[5, 3, 0, 1, 9, 9, 9, 9, 0, 53]).unwrap();
    let reply = bytes::<10>(&mut control);
    assert_eq!(reply[..8], [5, 0, 0, 1, 127, 0, 0, 1]);
    let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_be_bytes([reply[8], reply[9]])));
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    own.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let [high, low] = port.to_be_bytes();
    let by_address = [0, 0, 0, 1, 127, 0, 0, 1, high, low];
    let by_name = [&[0, 0, 0, 3, 9][..], b"localhost", &[high, low]].concat();
    // Sends until the datagram comes back; returns it.
    let round_trip = |datagram: &[u8]| {
        let begin = Instant::now();
        loop {
            own.send_to(datagram, relay).unwrap();
            let mut buffer = vec![0; 65_535];
            match own.recv_from(&mut buffer) {
                Ok((length, from)) if buffer[10..length] == datagram[datagram.len() + 10 - length..] => {
                    assert_eq!(from, relay);
                    return buffer[..length].to_vec();
                }
                _ => assert!(begin.elapsed() < PATIENCE, "{} bytes", datagram.len()),
            }
        }
    };
    for (header, size) in [(&by_address[..], 10), (&by_name, 10), (&by_address, 1400), (&by_address, 20_000)]
    {
        let answer = round_trip(&[header, &noise(size, size as u64)].concat());
        assert_eq!(answer[..10], by_address, "the source is the destination's address");
    }
    // A destination that is not allowed, and another address than the program's, get nothing.
    own.send_to(&[0, 0, 0, 1, 127, 0, 0, 2, high, low, 1], relay).unwrap();
    let other = UdpSocket::bind("127.0.0.3:0").unwrap();
    other.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    other.send_to(&[&by_address[..], b"x"].concat(), relay).unwrap();
    assert!(other.recv_from(&mut [0; 100]).is_err());
    // The kernel looks after the connection: 02 is its timer for that.
    let (at, program) = (pair.at.port(), control.local_addr().unwrap().port());
    let is_at = |column: &str, port: u16| column.ends_with(&format!(":{port:04X}"));
    wait_for("the timer", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| is_at(row[1], at) && is_at(row[2], program)).any(|row| row[5].starts_with("02:"))
    });
    // The association ends with its connection.
    drop(control);
    wait_for("the association to end", || pair.status("exit")["open"] == 0);
}

/// A server that sends each datagram back; returns its port.
fn datagram_echo() -> u16 {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = far.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 65_535];
        while let Ok((length, from)) = far.recv_from(&mut buffer) {
            let _ = far.send_to(&buffer[..length], from);
        }
    });
    port
}

#[test]
fn each_port_of_a_program_gets_the_answers_to_its_own_datagrams() {
    let [high, low] = datagram_echo().to_be_bytes();
    let pair = Pair::start(&[], &[]);
    let mut control = pair.dial();
    control.write_all(&[5, 1, 0]).unwrap();
    assert_eq!(bytes::<2>(&mut control), [5, 0]);
    control.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let reply = bytes::<10>(&mut control);
    let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_be_bytes([reply[8], reply[9]])));
    // More ports than the proxy remembers: those in use work.
    let own: Vec<_> = (0..40).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for (number, socket) in own.iter().enumerate().chain(own.iter().enumerate().skip(38)) {
        let datagram = [0, 0, 0, 1, 127, 0, 0, 1, high, low, number as u8];
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let begin = Instant::now();
        let mut buffer = [0; 100];
        loop {
            socket.send_to(&datagram, relay).unwrap();
            match socket.recv_from(&mut buffer) {
                Ok((length, _)) => break assert_eq!(buffer[..length], datagram),
                Err(_) => assert!(begin.elapsed() < PATIENCE, "port {number} gets no answer"),
            }
        }
    }
    // Answers to two ports that ask at once are not exchanged.
    for (number, socket) in own.iter().enumerate().skip(38) {
        while socket.recv(&mut [0; 100]).is_ok() {}
        socket.send_to(&[0, 0, 0, 1, 127, 0, 0, 1, high, low, number as u8], relay).unwrap();
    }
    for (number, socket) in own.iter().enumerate().skip(38) {
        let mut buffer = [0; 100];
        if let Ok(length) = socket.recv(&mut buffer) {
            assert_eq!(buffer[..length].last(), Some(&(number as u8)));
        }
    }
}

#[test]
fn a_proxy_at_all_addresses_names_an_ipv4_address_to_ipv4_programs() {
    if TcpListener::bind("[::]:0").is_err() {
        return skip("a proxy at all addresses", "there is no IPv6 here");
    }
    let mut pair = Pair::start(&[], &[]);
    let words = ["proxy", &pair.ticket, "--listen", "[::]:0"];
    let mut proxy = Running::start(&mut pair.command("other", &words));
    let line = proxy.line();
    let port: u16 = line.rsplit_once(':').unwrap().1.parse().unwrap();
    pair.at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut control = pair.dial();
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(bytes::<10>(&mut control), [5, 0, 5, 0, 0, 1, 127, 0, 0, 1]);
    let settings = pair.get("/proxy.pac");
    assert!(settings.contains(&format!("PROXY 127.0.0.1:{port}")), "{settings}");
}

#[test]
fn ports_are_forwarded_both_ways() {
    let port = server(echo);
    let (near, far) = (free_port(), free_port());
    let options = [
        "--forward",
        &format!("{near}=localhost:{port}"),
        "--remote-forward",
        &format!("{far}=127.0.0.1:{port}"),
        "--remote-forward",
        &format!("9=127.0.0.1:{port}"),
    ];
    let mut pair = Pair::start(&["--listen", "127.0.0.1:1024-65535", "--log"], &options);
    for place in [near, far] {
        wait_for("the port", || TcpStream::connect((Ipv4Addr::LOCALHOST, place)).is_ok());
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, place)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(is_echoed(&mut stream), "{place}");
    }
    let proxy = pair.proxy.take().unwrap();
    proxy.interrupt();
    let (code, errors) = proxy.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("does not accept connections at 127.0.0.1:9 "), "{errors}");
    wait_for("the exit to close its port", || TcpStream::connect((Ipv4Addr::LOCALHOST, far)).is_err());
    // The exit logs connections of both kinds.
    let exit = pair.exit.take().unwrap();
    exit.interrupt();
    let log = exit.end().1;
    assert!(log.contains(&format!(" → localhost:{port}: 14 B there, 14 B back")), "{log}");
    assert!(log.contains(&format!(" → 127.0.0.1:{far} for ab1")), "{log}");
}

#[test]
fn a_port_of_the_exit_that_is_taken_is_forwarded_as_soon_as_it_is_free() {
    let port = server(echo);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = taken.local_addr().unwrap().port();
    let forward = format!("{far}=127.0.0.1:{port}");
    let pair = Pair::start(&["--listen", "127.0.0.1:1024-65535"], &["--remote-forward", &forward]);
    // The proxy has asked for the port by then.
    thread::sleep(Duration::from_secs(1));
    drop(taken);
    wait_for("the port", || {
        // Many attempts would meet themselves: a connection to a free port may get that port as its own.
        thread::sleep(Duration::from_millis(100));
        TcpStream::connect((Ipv4Addr::LOCALHOST, far)).is_ok()
    });
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, far)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_echoed(&mut stream));
    drop(pair);
}

#[test]
fn bounds_of_connections_bytes_and_rate_hold() {
    let port = server(echo);
    let pair = Pair::start(&["--connections", "2", "--bytes", "1MB", "--rate", "8Mbit/s"], &[]);
    let mut first = pair.socks5("127.0.0.1", port).unwrap();
    let second = pair.socks5("127.0.0.1", port).unwrap();
    assert_eq!(pair.socks5("127.0.0.1", port).err(), Some(1), "too many");
    drop(second);
    wait_for("room", || pair.socks5("127.0.0.1", port).is_ok());
    // 300 kB there and 300 kB back at 1 MB a second.
    let begin = Instant::now();
    let (data, mut back) = (noise(300_000, 1), vec![0; 300_000]);
    let mut writing = first.try_clone().unwrap();
    let sent = data.clone();
    let writer = thread::spawn(move || writing.write_all(&sent));
    first.read_exact(&mut back).unwrap();
    writer.join().unwrap().unwrap();
    assert!(back == data);
    assert!(begin.elapsed() > Duration::from_millis(450), "{:?}", begin.elapsed());
    // The rest is used up in the middle of the next.
    let mut writing = first.try_clone().unwrap();
    thread::spawn(move || {
        let _ = writing.write_all(&data);
    });
    assert!(first.read_exact(&mut back).is_err());
    assert_eq!(pair.socks5("127.0.0.1", port).err(), Some(2), "used up");
}

#[test]
fn clients_that_stop_reading_hold_up_no_other() {
    let data = noise(12 << 20, 5);
    let copy = data.clone();
    let port = server(move |mut connection| {
        let _ = connection.write_all(&copy);
    });
    let pair = Pair::start(&[], &[]);
    let paused: Vec<_> = (0..4).map(|_| pair.socks5("127.0.0.1", port).unwrap()).collect();
    // The sockets and windows on their way are full by then.
    thread::sleep(Duration::from_secs(1));
    for mut stream in [pair.socks5("127.0.0.1", port).unwrap()].into_iter().chain(paused) {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all == data, "{} bytes came", all.len());
    }
}

#[test]
fn sixty_downloads_that_nobody_reads_hold_up_no_other() {
    let port = server(|mut connection| {
        let _ = io::copy(&mut io::repeat(7).take(64 << 20), &mut connection);
    });
    let pair = Pair::start(&[], &[]);
    let mut stalled = Vec::new();
    for _ in 0..60 {
        stalled.push(pair.socks5("127.0.0.1", port).unwrap());
        // It has filled the sockets on its way by then, and its window.
        thread::sleep(Duration::from_millis(50));
    }
    let mut read = pair.socks5("127.0.0.1", port).unwrap();
    assert_eq!(io::copy(&mut read, &mut io::sink()).unwrap(), 64 << 20);
}

#[test]
fn memory_of_downloads_that_nobody_read_is_given_back() {
    let port = server(|mut connection| {
        let _ = io::copy(&mut io::repeat(7).take(64 << 20), &mut connection);
    });
    let pair = Pair::start(&[], &[]);
    let resident = || [&pair.exit, &pair.proxy].map(|program| resident(program.as_ref().unwrap()));
    let stalled: Vec<_> = (0..200).map(|_| pair.socks5("127.0.0.1", port).unwrap()).collect();
    wait_for("bytes to wait in memory", || resident()[1] > 100 << 20);
    drop(stalled);
    wait_for("memory to be given back", || resident().into_iter().max() < Some(70 << 20));
}

/// The memory of its own that a program occupies.
fn resident(program: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn an_upload_that_is_broken_off_leaves_nothing_open_though_its_destination_never_reads() {
    let port = server(|connection| {
        thread::sleep(4 * PATIENCE);
        drop(connection);
    });
    let pair = Pair::start(&[], &[]);
    let mut stream = pair.socks5("127.0.0.1", port).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while stream.write_all(&[7; 1 << 16]).is_ok() {}
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    wait_for("the proxy to end the connection", || pair.status("proxy")["open"] == 0);
    wait_for("the exit to end the connection", || pair.status("exit")["open"] == 0);
}

#[test]
fn a_client_that_half_closes_and_then_breaks_off_leaves_nothing_open() {
    let port = server(|connection| {
        thread::sleep(4 * PATIENCE);
        drop(connection);
    });
    let pair = Pair::start(&[], &[]);
    let stream = pair.socks5("127.0.0.1", port).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    wait_for("the connection to be open", || pair.status("exit")["open"] == 1);
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    wait_for("the proxy to end the connection", || pair.status("proxy")["open"] == 0);
    wait_for("the exit to end the connection", || pair.status("exit")["open"] == 0);
}

#[test]
fn connections_beyond_the_limit_of_descriptors_wait() {
    let port = server(echo);
    let pair = Pair::start(&[], &[]);
    let process = pair.proxy.as_ref().unwrap().child.id().to_string();
    let limit = Command::new("prlimit").args(["--pid", &process, "--nofile=64:64"]).status();
    if !limit.is_ok_and(|status| status.success()) {
        return skip("connections_beyond_the_limit_of_descriptors_wait", "prlimit is not installed");
    }
    thread::scope(|scope| {
        for _ in 0..150 {
            scope.spawn(|| {
                let mut stream = pair.socks5("127.0.0.1", port).unwrap();
                thread::sleep(Duration::from_millis(100));
                assert!(is_echoed(&mut stream));
            });
        }
    });
    wait_for("all connections to end", || pair.status("proxy")["open"] == 0);
}

#[test]
fn an_exit_without_descriptors_refuses_and_recovers() {
    let port = server(echo);
    let pair = Pair::start(&[], &[]);
    assert!(is_echoed(&mut pair.socks5("127.0.0.1", port).unwrap()));
    wait_for("the connection to end", || pair.status("exit")["open"] == 0);
    let exit = pair.exit.as_ref().unwrap();
    let before = descriptors(exit);
    let process = exit.child.id().to_string();
    let most = before + 40;
    let limit =
        Command::new("prlimit").args(["--pid", &process, &format!("--nofile={most}:{most}")]).status();
    if !limit.is_ok_and(|status| status.success()) {
        return skip("an_exit_without_descriptors_refuses_and_recovers", "prlimit is not installed");
    }
    let mut held: Vec<_> = (0..60).map(|_| pair.socks5("127.0.0.1", port)).collect();
    let refused: Vec<_> = held.iter().filter_map(|one| one.as_ref().err()).collect();
    assert!((10..50).contains(&refused.len()) && refused.iter().all(|code| **code == 1), "{refused:?}");
    // Those that are open still work.
    held.iter_mut().flatten().for_each(|stream| assert!(is_echoed(stream)));
    drop(held);
    wait_for("the connections to end", || descriptors(exit) <= before);
    assert!(is_echoed(&mut pair.socks5("127.0.0.1", port).unwrap()));
}

/// The files that a program has open.
fn descriptors(program: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", program.child.id())).unwrap().count()
}

#[test]
fn two_thousand_connections_leave_nothing_open() {
    let port = server(echo);
    let pair = Pair::start(&[], &[]);
    let programs = [pair.exit.as_ref().unwrap(), pair.proxy.as_ref().unwrap()];
    assert!(is_echoed(&mut pair.socks5("127.0.0.1", port).unwrap()));
    wait_for("the connection to end", || pair.status("exit")["open"] == 0);
    let before = programs.map(descriptors);
    for round in 0..2_000_u32 {
        let mut stream = pair.socks5("127.0.0.1", port).unwrap();
        match round % 4 {
            0 => assert!(is_echoed(&mut stream)),
            1 => stream.shutdown(Shutdown::Write).unwrap(),
            2 => socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap(),
            _ => {}
        }
    }
    wait_for("all connections to end", || {
        pair.status("exit")["open"] == 0 && pair.status("proxy")["open"] == 0
    });
    wait_for("all descriptors to be closed", || {
        programs.map(descriptors).iter().zip(before).all(|(now, before)| *now <= before)
    });
    assert_eq!(pair.status("proxy")["totals"]["connections"], 2_001);
}

#[test]
fn slow_clients_and_strangers_are_cut_off() {
    let pair = Pair::start(&[], &[]);
    let begin = Instant::now();
    let mut slow = pair.dial();
    let mut text = String::new();
    slow.write_all(b"GET http://localhost/ HTTP/1.1\r\n").unwrap();
    let mut drip = slow.try_clone().unwrap();
    thread::spawn(move || {
        while drip.write_all(b"a: b\r\n").is_ok() {
            thread::sleep(Duration::from_millis(300));
        }
    });
    let _ = slow.read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    for stranger in
        [&b"\x16\x03\x01\x02\x00\x01"[..], b"\x05\x01\x02", b"GET / HTTP/1.1\r\n\r\n", b"\x04\x02\0\0"]
    {
        let mut stream = pair.dial();
        stream.write_all(stranger).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let is_answered =
            answer.starts_with(b"HTTP/1.1 400") || answer == [5, 255] || answer.get(1) == Some(&91);
        assert!(is_answered, "{stranger:?}: {answer:?}");
    }
}

#[test]
fn a_key_opens_the_exit_without_a_ticket_and_another_does_not() {
    let port = server(echo);
    let mut pair = Pair::start(&[], &[]);
    pair.proxy.take().unwrap().kill();
    pair.exit.take().unwrap().kill();
    let output = pair.command("to", &["keys", "show"]).output().unwrap();
    let key = String::from_utf8(output.stdout).unwrap();
    let key = key.split_whitespace().find(|word| word.starts_with("ab1")).unwrap().to_owned();
    pair.start_exit(&["--client", &key, "--no-ticket"]);
    assert!(pair.ticket.starts_with("ab1"), "{}", pair.ticket);
    pair.start_proxy(&[]);
    assert!(is_echoed(&mut pair.socks5("127.0.0.1", port).unwrap()));
    let stranger =
        pair.command("from", &["proxy", &pair.ticket, "--listen", "127.0.0.1:0"]).output().unwrap();
    assert!(!stranger.status.success());
}

#[test]
fn a_taken_port_and_a_wrong_ticket_are_clear_errors() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start(&[], &[]);
    let listen = taken.local_addr().unwrap().to_string();
    let output = pair.command("to", &["proxy", &pair.ticket, "--listen", &listen]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains(&format!("cannot listen on {listen}")) && errors.contains("--listen"),
        "{errors}"
    );
    // A ticket for something else.
    std::fs::write(pair.scratch.path("from/file"), "x").unwrap();
    let file = pair.scratch.text("from/file");
    let mut send = Running::start_into(&mut pair.command("from", &["send", &file]), Stdio::piped());
    let mut line = String::new();
    BufReader::new(send.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ticket = line.split_whitespace().last().unwrap();
    let output = pair.command("to", &["proxy", ticket, "--listen", "127.0.0.1:0"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("exit"), "{errors}");
}

/// An address of the far machine that stands for one on the Internet.
pub const PUBLIC: &str = "1.2.3.4";
pub const WEB_PORT: &str = "8000";

/// A web server of a folder at an address and port.
const WEB: &str = "
import functools, http.server, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = 'HTTP/1.1', True
handler = functools.partial(Handler, directory=sys.argv[3])
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), handler).serve_forever()
";

/// An exit with a web server on the far machine, and a proxy on the near one.
pub struct Links<'a> {
    pub machines: &'a Machines,
    pub scratch: Scratch,
    _running: Vec<Running>,
}

impl<'a> Links<'a> {
    /// Starts all three; `None` where a program is missing.
    pub fn up(test: &str, machines: &'a Machines) -> Option<Self> {
        for name in ["curl", "python3"] {
            if Command::new(name).arg("--version").output().is_err() {
                skip(test, &format!("{name} is not installed"));
                return None;
            }
        }
        let address = ["address", "replace", &format!("{PUBLIC}/32"), "dev", "lo"];
        assert!(machines.command(Side::Far, "ip").args(address).status().unwrap().success());
        let scratch = Scratch::in_memory();
        scratch.file("from/file", 48 << 20, 3);
        let serve = ["-c", WEB, PUBLIC, WEB_PORT, &scratch.text("from")];
        let web = Running::start(machines.command(Side::Far, "python3").args(serve));
        wait_for("the web server", || {
            let url = format!("http://{PUBLIC}:{WEB_PORT}/");
            let asked = machines.command(Side::Far, "curl").args(["-s", "-o", "/dev/null", &url]).status();
            asked.unwrap().success()
        });
        let command = |side, home: &str, words: &[&str]| {
            let mut command = machines.command(side, PROGRAM);
            command.args(words).env("HOME", scratch.path(home)).env("XDG_RUNTIME_DIR", scratch.path(home));
            command.env_remove("ANABRANCH_KEY").env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
            command
        };
        let mut exit = Running::start(&mut command(Side::Far, "from", &["exit", "--allow", PUBLIC]));
        let line = exit.line();
        let ticket = line.split_whitespace().last().unwrap_or_default();
        let mut proxy = Running::start(&mut command(Side::Near, "to", &["proxy", ticket]));
        assert!(proxy.line().starts_with("export"));
        Some(Self { machines, scratch, _running: vec![web, exit, proxy] })
    }

    /// A download through the proxy by these options of curl, which prints its bytes a second at the end.
    fn curl(&self, options: &[&str]) -> Command {
        let url = format!("http://{PUBLIC}:{WEB_PORT}/file");
        let into = self.scratch.text("to/file");
        let mut command = self.machines.command(Side::Near, "curl");
        command.args(["-s", "-S", "-o", &into, "-w", "%{speed_download}", &url]).args(options);
        command
    }

    fn is_whole(&self) -> bool {
        let read = |name| std::fs::read(self.scratch.path(name)).unwrap();
        read("from/file") == read("to/file")
    }
}

#[test]
fn one_download_runs_at_the_sum_of_the_links() {
    let test = "one_download_runs_at_the_sum_of_the_links";
    let Some((machines, _turn)) = three_links(test) else { return };
    let Some(links) = Links::up(test, &machines) else { return };
    for options in [&["--socks5-hostname", "127.0.0.1:1080"][..], &["-p", "-x", "http://127.0.0.1:1080"]] {
        within_three_attempts(test, || {
            let output = links.curl(options).output().unwrap();
            assert!(
                output.status.success() && links.is_whole(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let rate: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_default();
            let found = format!("{options:?}: {:.1} Mbit/s", rate * 8.0 / 1e6);
            if rate * 8.0 / 1e6 >= 0.9 * CEILING { Ok(found) } else { Err(found) }
        });
    }
}

#[test]
fn a_connection_survives_the_loss_of_its_fastest_path() {
    let test = "a_connection_survives_the_loss_of_its_fastest_path";
    let Some((machines, _turn)) = three_links(test) else { return };
    let Some(links) = Links::up(test, &machines) else { return };
    let mut curl = Running::start(&mut links.curl(&["--socks5-hostname", "127.0.0.1:1080"]));
    let so_far = || std::fs::metadata(links.scratch.path("to/file")).map_or(0, |found| found.len());
    wait_for("the first megabytes", || so_far() > 8 << 20);
    machines.blackhole(0).unwrap();
    // The others go on at once.
    let before = so_far();
    wait_for("more bytes", || so_far() > before + (2 << 20) || so_far() == 48 << 20);
    assert!(curl.child.wait().unwrap().success());
    assert!(links.is_whole());
}
