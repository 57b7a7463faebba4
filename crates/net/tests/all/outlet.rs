//! A relay's outlet keeps each destination's datagrams in order, whatever their sizes, and needs few system calls.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anabranch_net::{Addresses, Ecn, Endpoint, EndpointConfig, NodeKey, Outlet, Route};

fn sink() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

async fn endpoint() -> Endpoint {
    let addresses = Addresses::Exactly(vec![Ipv4Addr::LOCALHOST.into()]);
    Endpoint::bind(EndpointConfig::new(NodeKey::from_random([1; 32])).addresses(addresses)).await.unwrap()
}

/// Sends datagrams of these lengths, each filled with its number; returns number and length of each in order of arrival.
fn send(outlet: Outlet<'_>, to: Route, sink: &UdpSocket, lengths: &[usize]) -> Vec<(u8, usize)> {
    for (number, &len) in lengths.iter().enumerate() {
        outlet.send(to, (&vec![number as u8; len], len), Ecn::NotEct);
    }
    drop(outlet);
    let mut buffer = [0; 65_536];
    let received = lengths.iter().map(|_| {
        let len = sink.recv(&mut buffer).expect("it arrives");
        assert!(buffer[..len].iter().all(|byte| *byte == buffer[0]), "one datagram's bytes");
        (buffer[0], len)
    });
    received.collect()
}

#[tokio::test]
async fn datagrams_of_many_sizes_arrive_in_order_by_few_system_calls() {
    let (endpoint, sink) = (endpoint().await, sink());
    let to = Route { socket: endpoint.sockets()[0].id, remote: sink.local_addr().unwrap() };
    let mixed: Vec<usize> = (0..48).map(|number| [1400, 1300, 40, 1400, 1400, 700][number % 6]).collect();
    let long = [&[1400, 100][..], &[30_000], &[1400, 1400]].concat();
    for lengths in [mixed.clone(), long] {
        let expected: Vec<_> = lengths.iter().enumerate().map(|(at, len)| (at as u8, *len)).collect();
        assert_eq!(send(endpoint.outlet(), to, &sink, &lengths), expected);
    }
    let before = endpoint.sockets()[0].stats.send_calls;
    send(endpoint.outlet(), to, &sink, &mixed);
    let calls = endpoint.sockets()[0].stats.send_calls - before;
    if cfg!(target_os = "linux") {
        assert!(calls <= 16, "{calls} calls for 48 datagrams");
    }
}

#[tokio::test]
async fn several_short_datagrams_stay_apart_behind_a_longer_one() {
    let (endpoint, sink) = (endpoint().await, sink());
    let to = Route { socket: endpoint.sockets()[0].id, remote: sink.local_addr().unwrap() };
    let outlet = endpoint.outlet();
    outlet.send(to, (&[1; 2_400], 1_200), Ecn::NotEct);
    outlet.send(to, (&[2; 180], 60), Ecn::NotEct);
    drop(outlet);
    let mut buffer = [0; 2_048];
    let lengths: Vec<usize> = (0..5).map(|_| sink.recv(&mut buffer).expect("it arrives")).collect();
    assert_eq!(lengths, [1_200, 1_200, 60, 60, 60]);
}
