//! Measures one noq connection with AES-128-GCM over loopback: bulk throughput or ping-pong latency.
//!
//! `noq_bulk [SECONDS] [bulk|ping|ping-beside-bulk|ping-beside-steady] [WORKERS] [MBIT MILLISECONDS]`
//! The last two emulate a link of that rate and round-trip time for the pings. A steady stream takes half of the link,
//! or 500 Mbit/s of loopback, as in the example `cost` of anabranch-net.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::LinkConfig;
use anabranch_wire::{Rate, Span};
use bytes::Bytes;
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq::{ClientConfig, Endpoint, ServerConfig, TransportConfig};
use rustls::crypto::CryptoProvider;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Only the suite that Anabranch uses.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Windows in MiB: `NOQ_WINDOW_MIB`, or 2, with which noq is fastest.
fn window() -> u32 {
    let mib = std::env::var("NOQ_WINDOW_MIB").ok().and_then(|mib| mib.parse().ok());
    mib.unwrap_or(2_u32) << 20
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let window = window();
    transport.stream_receive_window(window.into());
    transport.receive_window(window.into());
    transport.send_window(u64::from(window));
    Arc::new(transport)
}

fn endpoints() -> Outcome<(Endpoint, Endpoint, SocketAddr)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let versions = &[&rustls::version::TLS13];
    let server = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
    server.transport_config(transport());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let client = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
    client.transport_config(transport());
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Endpoint::server(server, any)?;
    let address = server.local_addr()?;
    let calling = Endpoint::client(any)?;
    calling.set_default_client_config(client);
    Ok((server, calling, address))
}

async fn bulk(seconds: u64) -> Outcome<()> {
    let (server, client, address) = endpoints()?;
    let receiving = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let (mut bytes, start) = (0, Instant::now());
        while let Ok(Some(chunk)) = stream.read_chunk(1 << 20).await {
            bytes += chunk.len();
        }
        println!(
            "received {:.0} MB at {:.2} Gbit/s",
            bytes as f64 * 1e-6,
            bytes as f64 * 8e-9 / start.elapsed().as_secs_f64()
        );
    });
    let connection = client.connect(address, "localhost")?.await?;
    let mut stream = connection.open_uni().await?;
    // Passed on without a copy, as in Anabranch's benchmark.
    let data = Bytes::from(vec![7; 1 << 20]);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        stream.write_chunk(data.clone()).await?;
    }
    stream.finish()?;
    receiving.await?;
    Ok(())
}

/// Echoes messages on the first bidirectional stream, and discards the data of unidirectional streams.
async fn serve(server: Endpoint) {
    let connection = server.accept().await.unwrap().await.unwrap();
    let swallowing = connection.clone();
    tokio::spawn(async move {
        while let Ok(mut stream) = swallowing.accept_uni().await {
            while let Ok(Some(_)) = stream.read_chunk(1 << 20).await {}
        }
    });
    let (mut sender, mut receiver) = connection.accept_bi().await.unwrap();
    let mut message = [0; 64];
    while receiver.read_exact(&mut message).await.is_ok() {
        sender.write_all(&message).await.unwrap();
    }
}

/// Sends without end, at a rate or as fast as possible.
async fn beside(connection: noq::Connection, rate: Option<Rate>) -> Outcome<()> {
    let mut stream = connection.open_uni().await?;
    let Some(rate) = rate else {
        let data = vec![7; 1 << 20];
        loop {
            stream.write_all(&data).await?;
        }
    };
    let mut turns = tokio::time::interval(Duration::from_millis(2));
    let data = vec![7; rate.bytes_in(Span::from_millis(2)) as usize];
    loop {
        turns.tick().await;
        stream.write_all(&data).await?;
    }
}

fn link_to(server: SocketAddr, rate: Rate, rtt: Span) -> std::io::Result<Emulation> {
    let link = LinkConfig::fixed(rate, rtt / 2, rate.bytes_in(rtt).max(64 << 10));
    Emulation::start(&[EmulatedPath::symmetric(server, link)])
}

async fn ping(seconds: u64, what: &str, link: Option<(f64, f64)>) -> Outcome<()> {
    let (server, client, mut address) = endpoints()?;
    tokio::spawn(serve(server));
    let rate = link.map_or(Rate::from_mbit(1000.0), |(mbit, _)| Rate::from_mbit(mbit));
    let emulated =
        link.map(|(_, millis)| link_to(address, rate, Span::from_secs_f64(millis / 1e3))).transpose()?;
    if let Some(emulation) = &emulated {
        address = emulation.addresses()[0];
    }
    let connection = client.connect(address, "localhost")?.await?;
    let bulk = connection.clone();
    match what {
        "ping-beside-bulk" => drop(tokio::spawn(async { drop(beside(bulk, None).await) })),
        "ping-beside-steady" => {
            let half = Some(Rate::from_bits(rate.as_bits() / 2));
            tokio::spawn(async move { drop(beside(bulk, half).await) });
        }
        _ => {}
    }
    let (mut sender, mut receiver) = connection.open_bi().await?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut message, mut times) = ([0; 64], Vec::new());
    while Instant::now() < end {
        let begun = Instant::now();
        sender.write_all(&message).await?;
        receiver.read_exact(&mut message).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!(
        "{} pings, p50 {:?}, p99 {:?}",
        times.len(),
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds = words.first().and_then(|word| word.parse().ok()).unwrap_or(5);
    let workers = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let number = |index: usize| words.get(index).and_then(|word| word.parse().ok());
    match words.get(1).map_or("bulk", String::as_str) {
        "bulk" => runtime.block_on(bulk(seconds)),
        what => runtime.block_on(ping(seconds, what, number(3).zip(number(4)))),
    }
}
