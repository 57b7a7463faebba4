//! A relay among strangers, with real sockets: it forwards only requested packets, to next hops that agreed.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::controllers::controller;
use crate::common::{
    address, carry, doubts, ip, join, keep, key, node, relay, route, settings, through_relays, until,
};
use anabranch_daemon::relay::RelayService;
use anabranch_net::{ConnectError, Ecn, PathId, PathUse, Pid, Refusal, Route};
use anabranch_node::{Entry, Peer, RelayConnection, RelayError, RelayPaths, Wanted};
use anabranch_overlay::relay::{CHALLENGE_LEN, FlowState, Refused, Target};
use anabranch_secure::RelayHint;
use anabranch_wire::{Header, Kind};

fn data(pid: Pid, len: usize) -> Vec<u8> {
    let mut bytes = vec![7; len];
    Header { kind: Kind::Data, key_phase: false, tos: 8, hop_limit: 4, pid, fsn: 0 }.encode(&mut bytes);
    bytes
}

fn bystander(last: u8) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((ip(last), 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Sizes of all datagrams until none comes for a moment.
fn heard(socket: &UdpSocket) -> Vec<usize> {
    let mut buffer = [0; 2048];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).collect()
}

fn wanted(address: SocketAddr, out: Pid) -> Wanted {
    Wanted { target: Target::Address { address, key: None }, out, back: Pid(77) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlisted_key_is_refused_with_the_reason() {
    let stranger = node(52).await;
    let (_relay, hint) = relay(54, &[53]).await;
    let refused = RelayConnection::open(&stranger, &hint, &Entry::default()).await.err();
    assert_eq!(refused, Some(RelayError::Connect(ConnectError::Refused(Refusal::NotAuthorised))));
}

/// A stranger may open four sessions; a fifth is refused for their number, not because its key is not listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_a_grant_has_few_sessions_and_one_with_a_grant_is_admitted() {
    let controllers = controller(190, (&[191], 192), 600).await;
    let relay = controllers.relay(191).await;
    let (client, stranger) = (node(192).await, node(193).await);
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let target = anabranch_net::Target::new(relay.node(), relay.addresses());
    let mut kept = Vec::new();
    let refused = loop {
        match stranger.connect(&target, anabranch_net::Config::default()).await {
            Ok(session) => kept.push(session),
            Err(error) => break error,
        }
        until("taken in", || relay.status().sessions == kept.len()).await;
    };
    assert_eq!((kept.len(), refused), (4, ConnectError::Refused(Refusal::Busy)));
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    assert!(RelayConnection::open(&client, &hint, &Entry::Member(grants)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_hop_that_did_not_agree_gets_three_questions_and_nothing_else() {
    let client = node(62).await;
    let (service, hint) = relay(64, &[62]).await;
    let (victim, place) = bystander(65);
    let connection = RelayConnection::open(&client, &hint, &Entry::default()).await.unwrap();
    let mut flow = connection.allocate(wanted(place, Pid(5))).await.unwrap();
    let flood = data(flow.forward, 1_200);
    for _ in 0..200 {
        client.outlet().send(flow.entry, (&flood, flood.len()), Ecn::NotEct);
    }
    assert_eq!(flow.ready().await, Err(RelayError::Over(FlowState::NoConsent)));
    assert_eq!(heard(&victim), vec![CHALLENGE_LEN; 3]);
    let status = service.status();
    assert!(status.forwarded_packets == 0 && status.dropped.no_consent > 0, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pids_that_were_overheard_or_guessed_carry_nothing_and_amplify_nothing() {
    let (client, server) = (node(72).await, node(73).await);
    let (service, hint) = relay(74, &[72]).await;
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    let connection = RelayConnection::open(&client, &hint, &Entry::default()).await.unwrap();
    let (_next, place) = bystander(75);
    let overheard = connection.allocate(wanted(place, Pid(5))).await.unwrap().forward;
    let before = service.status();
    let (thief, _) = bystander(76);
    let (mut sent, relay_address) = (0, hint.addresses[0]);
    for guess in 0..500u64 {
        let pid = if guess % 2 == 0 { overheard } else { Pid(guess.wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
        sent += thief.send_to(&data(pid, 64), relay_address).unwrap();
    }
    let back: usize = heard(&thief).iter().sum();
    assert!(back < sent, "{back} bytes for {sent}");
    let after = service.status();
    assert!(
        after.dropped.wrong_source + after.dropped.no_consent + after.dropped.unknown_pid >= 400,
        "{after:?}"
    );
    assert!(after.forwarded_packets - before.forwarded_packets < 50, "{after:?}");
    carry(&here, &there, 200_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_next_hop_is_refused_before_it_receives_anything() {
    let client = node(82).await;
    let mut public_only = settings(84, &[82]);
    public_only.allow.clear();
    let service = RelayService::start(key(84), &public_only).await.unwrap();
    let hint = RelayHint { node: service.node(), addresses: service.addresses() };
    let (victim, place) = bystander(85);
    let connection = RelayConnection::open(&client, &hint, &Entry::default()).await.unwrap();
    for (place, why) in [
        (place, Refused::NextHopDenied),
        ("10.1.2.3:4".parse().unwrap(), Refused::NextHopDenied),
        (hint.addresses[0], Refused::NextHopOwn),
    ] {
        let refused = connection.allocate(wanted(place, Pid(5))).await.err();
        assert_eq!(refused, Some(RelayError::NextHop { to: place, why }), "{place}");
    }
    assert!(heard(&victim).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_and_a_used_up_quota_stop_the_relay_and_not_the_session() {
    let (client, server) = (node(92).await, node(93).await);
    let mut small = settings(94, &[92]);
    small.most_flows = 1;
    small.users[0].limits.bytes = 300_000;
    let service = RelayService::start(key(94), &small).await.unwrap();
    let hint = RelayHint { node: service.node(), addresses: service.addresses() };
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    let connection = RelayConnection::open(&client, &hint, &Entry::default()).await.unwrap();
    let refused = connection.allocate(wanted(address(&server), Pid(5))).await.err();
    assert_eq!(refused, Some(RelayError::Refused(Refused::TableFull)));
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    let doubted = doubts(&here);
    for turn in 0..10 {
        carry(&here, &there, 2_000_000).await;
        if service.status().dropped.quota > 0 {
            break;
        }
        let doubts = doubted.load(Ordering::Relaxed);
        eprintln!("turn {turn}: the relay's path carried little; {doubts} doubts");
        // While the relay's path is suspect, the direct path carries the data.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let status = service.status();
    assert!(status.forwarded_bytes <= 300_000 && status.dropped.quota > 0, "{status:?}");
    carry(&here, &there, 100_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_found_the_table_full_goes_on_and_gets_its_path_when_there_is_room() {
    let (client, other, server) = (node(96).await, node(97).await, node(98).await);
    let mut small = settings(99, &[96, 97]);
    small.most_flows = 1;
    let service = RelayService::start(key(99), &small).await.unwrap();
    let hint = RelayHint { node: service.node(), addresses: service.addresses() };
    let (here, _there) = join(&client, &server, 1).await;
    let first = keep((&client, &server), &here, &[&hint]).await;
    let (here2, there2) = join(&other, &server, 1).await;
    let peer = Peer { addresses: vec![address(&server)], entry: Entry::default() };
    let _second = RelayPaths::keep(&other, &here2, &[route(&[&hint])], &peer);
    carry(&here2, &there2, 200_000).await;
    assert!(through_relays(&here2).is_empty(), "the table is full");
    drop(first);
    until("a path of the second", || through_relays(&here2).len() == 1).await;
    carry(&here2, &there2, 200_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_takes_a_user_off_the_list_while_others_go_on() {
    let (client, other, server) = (node(102).await, node(103).await, node(105).await);
    let (service, hint) = relay(104, &[102, 103]).await;
    let (here, _there) = join(&client, &server, 1).await;
    let _first = keep((&client, &server), &here, &[&hint]).await;
    let (here2, there2) = join(&other, &server, 1).await;
    let _second = keep((&other, &server), &here2, &[&hint]).await;
    let id = through_relays(&here2)[0].id;
    service.reload(&settings(104, &[103]));
    until("the first is off", || through_relays(&here).is_empty()).await;
    carry(&here2, &there2, 200_000).await;
    assert_eq!(through_relays(&here2).first().map(|path| path.id), Some(id), "its path was not disturbed");
    assert_eq!(service.status().flows, 1);
}

/// A flood at the link's rate takes no more than its share of the processor from an honest session.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_strangers_packets_does_not_stop_an_honest_session() {
    let (client, server) = (node(112).await, node(113).await);
    let (service, hint) = relay(114, &[112]).await;
    let (here, there) = join(&client, &server, 1).await;
    let _paths = keep((&client, &server), &here, &[&hint]).await;
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    let (thief, _) = bystander(116);
    let target: Route = Route { socket: 0, remote: hint.addresses[0] };
    let flood = tokio::task::spawn_blocking(move || {
        for guess in 0..20_000u64 {
            let pid = Pid(guess.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            // A full buffer loses some, as a network would.
            let _ = thief.send_to(&data(pid, 1_200), target.remote);
        }
    });
    carry(&here, &there, 2_000_000).await;
    flood.await.unwrap();
    assert!(service.status().forwarded_bytes > 0);
}
