//! Programs that others wrote, through `proxy`: a browser loads a page with 100 objects, and a QUIC client talks over SOCKS5 datagrams.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::common::netns::{Side, run, three_links};
use crate::common::programs::Running;
use crate::common::{say, skip};
use crate::proxy::{Links, PUBLIC, Pair, WEB_PORT};

const OBJECTS: usize = 100;
const OBJECT_BYTES: usize = 20_000;
const BROWSER: &str = "chromium";
/// Runs of each kind; the middle one is reported.
const RUNS: usize = 3;

/// Writes a page whose scripts count themselves. In the end it says how many ran, and when.
fn write_page(links: &Links<'_>) {
    let mut page = "<!doctype html><body><script>loaded = 0; addEventListener('load', () => \
         document.body.dataset.got = loaded + ' in ' + Math.round(performance.now()) + ' ms')</script>\n"
        .to_owned();
    for number in 0..OBJECTS {
        page.push_str(&format!("<script async src={number}.js></script>\n"));
        let script = format!("loaded++; // {}", "x".repeat(OBJECT_BYTES));
        std::fs::write(links.scratch.path(&format!("from/{number}.js")), script).unwrap();
    }
    std::fs::write(links.scratch.path("from/page.html"), page).unwrap();
}

/// Loads the page in a new browser; returns the milliseconds until everything was there.
fn load(links: &Links<'_>, options: &[&str]) -> u32 {
    let mut browser = links.machines.command(Side::Near, BROWSER);
    let profile = tempfile::tempdir().unwrap();
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--dump-dom",
    ]);
    browser.arg(format!("--user-data-dir={}", profile.path().display())).env("HOME", profile.path());
    let output = browser.args(options).arg(format!("http://{PUBLIC}:{WEB_PORT}/page.html")).output().unwrap();
    let page = String::from_utf8_lossy(&output.stdout);
    let got = page.split("data-got=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let (objects, time) = got.split_once(" in ").unwrap_or_default();
    assert_eq!(objects, OBJECTS.to_string(), "{page}\n{}", String::from_utf8_lossy(&output.stderr));
    time.trim_end_matches(" ms").parse().unwrap()
}

#[test]
fn a_browser_loads_a_page_with_a_hundred_objects() {
    let test = "a_browser_loads_a_page_with_a_hundred_objects";
    if !Command::new(BROWSER).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip(test, "chromium is not installed");
    }
    let Some((machines, _turn)) = three_links(test) else { return };
    let Some(links) = Links::up(test, &machines) else { return };
    write_page(&links);
    let route = |action: &str| {
        let (near, gateway) = (machines.namespace_name(Side::Near), machines.address(Side::Far, 0));
        run("ip", &format!("-n {near} route {action} {PUBLIC}/32 via {gateway}")).unwrap();
    };
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        // Over the fastest link alone.
        route("add");
        direct.push(load(&links, &[]));
        route("delete");
        proxied.push(load(&links, &["--proxy-server=socks5://127.0.0.1:1080"]));
    }
    direct.sort_unstable();
    proxied.sort_unstable();
    say(&format!(
        "{test}: direct {} ms of {direct:?}, by the proxy {} ms of {proxied:?}",
        direct[RUNS / 2],
        proxied[RUNS / 2]
    ));
}

/// A QUIC server that echoes, and a client that sends its datagrams through the SOCKS5 proxy at this port.
const QUIC: &str = r"
import asyncio, datetime, os, socket, ssl, sys, threading, time
from aioquic.asyncio import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

key = ec.generate_private_key(ec.SECP256R1())
name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'test')])
now = datetime.datetime.now(datetime.timezone.utc)
day = datetime.timedelta(days=1)
certificate = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
certificate = certificate.serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
server = QuicConfiguration(is_client=False, alpn_protocols=['test'])
server.certificate, server.private_key = certificate.sign(key, hashes.SHA256()), key
at, ready = ('127.0.0.1', int(sys.argv[2])), threading.Event()

async def echo(reader, writer):
    writer.write(await reader.read())
    writer.write_eof()

async def run():
    await serve(*at, configuration=server, stream_handler=lambda r, w: asyncio.ensure_future(echo(r, w)))
    ready.set()
    await asyncio.Future()

threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
ready.wait()

control = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
control.sendall(bytes([5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]))
reply = b''
while len(reply) < 12:
    reply += control.recv(12 - len(reply))
relay = (socket.inet_ntoa(reply[6:10]), int.from_bytes(reply[10:12], 'big'))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
header = bytes([0, 0, 0, 1]) + socket.inet_aton(at[0]) + at[1].to_bytes(2, 'big')
client = QuicConnection(configuration=QuicConfiguration(is_client=True, alpn_protocols=['test'], verify_mode=ssl.CERT_NONE))
client.connect(at, time.time())
data, back, ended = os.urandom(1000000), b'', False
client.send_stream_data(client.get_next_available_stream_id(), data, end_stream=True)
while not ended:
    for datagram, _ in client.datagrams_to_send(time.time()):
        udp.sendto(header + datagram, relay)
    udp.settimeout(max(0.001, (client.get_timer() or time.time() + 1) - time.time()))
    try:
        client.receive_datagram(udp.recv(65535)[10:], at, time.time())
    except TimeoutError:
        client.handle_timer(time.time())
    while event := client.next_event():
        if isinstance(event, StreamDataReceived):
            back, ended = back + event.data, event.end_stream
        elif isinstance(event, ConnectionTerminated):
            sys.exit(event.reason_phrase)
print('echoed' if back == data else 'damaged', flush=True)
";

#[test]
fn a_quic_client_talks_through_an_association() {
    let test = "a_quic_client_talks_through_an_association";
    let has = Command::new("python3").args(["-c", "import aioquic"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return skip(test, "Python with aioquic is not installed");
    }
    let pair = Pair::start(&[], &[]);
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports = [pair.at.port(), server].map(|port| port.to_string());
    let mut quic = Running::start(Command::new("python3").args(["-c", QUIC]).args(ports));
    let line = quic.line();
    assert_eq!(line, "echoed", "{}", quic.end().1);
}
