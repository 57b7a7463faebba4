//! Two nodes on loopback: admission by tickets and keys, redialing, and errors with advice.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anabranch_net::{Addresses, CloseReason, NodeKey, PathRules, Pid, Span, TicketSecret};
use anabranch_node::{
    Access, Dial, Entry, ErrorKind, Holding, Node, NodeBuilder, NodeSession, RelayConnection, TicketShare,
    Wanted,
};
use anabranch_overlay::relay::{FlowId, Refused, Reply, Request, Target};
use anabranch_secure::RelayHint;
use anabranch_wire::close_code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

fn builder(seed: u8) -> NodeBuilder {
    let address: IpAddr = Ipv4Addr::new(127, 0, 2, seed).into();
    Node::builder().key(key(seed)).addresses(Addresses::Exactly(vec![address]))
}

/// A node that soon gives up peers that do not answer.
fn hasty(seed: u8) -> NodeBuilder {
    builder(seed).silence(Span::from_secs(2))
}

/// The next session of a node; fails instead of waiting without end.
async fn accept(node: &Node) -> Option<NodeSession> {
    timeout(PATIENCE, node.accept()).await.expect("a session")
}

/// Sends a message from one end to the other.
async fn talk(from: &NodeSession, to: &NodeSession) {
    let mut stream = from.session().open_stream().await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    to.session().accept_stream().await.unwrap().read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_leads_to_its_maker_until_it_is_withdrawn() {
    let share = TicketShare::new(Some(Span::from_secs(60))).unwrap();
    let access = Access::by_ticket(share.clone());
    let server = builder(1).access(access.clone()).start().await.unwrap();
    // The first address does not answer. Loopback addresses are tried only if a ticket has no others.
    let outside = ["127.0.2.77:7".parse().unwrap(), server.addresses()[0]];
    let invitation = server.invite(&share, &outside).await.unwrap();
    assert!(invitation.left_out[0].starts_with("no network is up"), "{invitation:?}");
    let ticket = invitation.ticket;
    assert_eq!(ticket.addresses, outside, "each address stands once");
    let client = builder(2).start().await.unwrap();
    let dial = Dial::ticket(&ticket);
    let (here, there) = tokio::join!(client.dial(&dial), accept(&server));
    let (here, there) = (here.unwrap(), there.unwrap());
    assert_eq!(there.session().share(), Some(share.id));
    talk(&here, &there).await;
    access.remove_share(share.id);
    let refused = client.dial(&Dial::ticket(&ticket)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
    talk(&there, &here).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_handles_closes_its_sessions() {
    let server = builder(23).access(Access::by_keys([key(24).public()])).start().await.unwrap();
    let client = builder(24).start().await.unwrap();
    let dial = Dial::node(server.id(), server.addresses());
    let (here, there) = tokio::join!(client.dial(&dial), accept(&server));
    assert!(here.is_ok());
    drop((here, client));
    let end = timeout(PATIENCE, there.unwrap().session().closed()).await.expect("an end");
    assert_eq!(end, CloseReason::Finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_key_is_admitted_and_another_is_refused() {
    let server = builder(3).access(Access::by_keys([key(4).public()])).start().await.unwrap();
    let dial = Dial::node(server.id(), server.addresses());
    let friend = builder(4).start().await.unwrap();
    let (here, there) = tokio::join!(friend.dial(&dial), accept(&server));
    talk(&here.unwrap(), &there.unwrap()).await;
    let stranger = builder(5).start().await.unwrap();
    let refused = stranger.dial(&dial).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_one_dial_take_the_place_of_the_nodes() {
    let client = builder(25).start().await.unwrap();
    let dial = Dial::node(key(26).public(), vec!["127.0.2.26:4433".parse().unwrap()]);
    let rules = PathRules::new(vec![anabranch_node::parse_rule("*=never").unwrap()]);
    let error = client.dial(&dial.path_rules(rules)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Local, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dial_whose_rules_are_empty_is_not_under_those_of_the_node() {
    let server = builder(27).access(Access::by_keys([key(28).public()])).start().await.unwrap();
    let never = PathRules::new(vec![anabranch_node::parse_rule("*=never").unwrap()]);
    let client = builder(28).path_rules(never).start().await.unwrap();
    let dial = Dial::node(server.id(), server.addresses()).path_rules(PathRules::default());
    let (here, there) = tokio::join!(client.dial(&dial), accept(&server));
    talk(&here.unwrap(), &there.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_is_reported_with_what_was_tried_and_a_hint() {
    let client = hasty(6).start().await.unwrap();
    let silent = std::net::UdpSocket::bind("127.0.2.7:0").unwrap();
    let dial = Dial::node(key(7).public(), vec![silent.local_addr().unwrap()]);
    let error = client.dial(&dial).await.unwrap_err();
    assert_eq!((error.kind, error.tried.len()), (ErrorKind::Unreachable, 1), "{error}");
    assert!(error.message.contains("within 2 s") && error.hint.is_some(), "{error}");
    let mut tries = Vec::new();
    while tries.len() < 5 && tries.last().is_none_or(|took| *took >= Duration::from_millis(1_900)) {
        let begin = std::time::Instant::now();
        assert!(client.redial(&dial, Some(Duration::from_millis(300))).await.is_err());
        tries.push(begin.elapsed());
    }
    assert!(tries.iter().any(|took| *took < Duration::from_millis(1_900)), "{tries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_that_do_not_help_are_among_the_attempts() {
    let client = hasty(15).start().await.unwrap();
    let relay = RelayHint { node: key(16).public(), addresses: vec!["127.0.2.79:7".parse().unwrap()] };
    let dial = Dial::node(key(17).public(), vec!["127.0.2.78:7".parse().unwrap()]);
    let dial = dial.guest_of(vec![relay], TicketSecret::from_random([1; 16]));
    let error = timeout(PATIENCE, client.dial(&dial)).await.expect("an end").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
    let of_relay = error.tried.iter().find(|tried| tried.contains("127.0.2.79:7"));
    assert!(of_relay.is_some_and(|tried| tried.contains("the relay cannot be reached")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_did_not_help_may_do_so_later_where_rules_exclude_the_direct_route() {
    let rules = PathRules::new(vec![anabranch_node::parse_rule("to:127.0.2.78=never").unwrap()]);
    let client = hasty(13).path_rules(rules).start().await.unwrap();
    let relay = RelayHint { node: key(16).public(), addresses: vec!["127.0.2.79:7".parse().unwrap()] };
    let dial = Dial::node(key(17).public(), vec!["127.0.2.78:7".parse().unwrap()]);
    let dial = dial.guest_of(vec![relay], TicketSecret::from_random([1; 16]));
    let error = timeout(PATIENCE, client.dial(&dial)).await.expect("an end").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
    assert!(error.tried.iter().any(|tried| tried.contains("127.0.2.79:7")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_a_network_that_rules_allow_is_waited_for() {
    let rules = PathRules::new(vec![anabranch_node::parse_rule("*=never").unwrap()]);
    let client = builder(11).path_rules(rules).start().await.unwrap();
    let dial = Dial::node(key(12).public(), vec!["127.0.2.12:4433".parse().unwrap()]);
    let error = client.dial(&dial).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Local, "{error}");
    let begin = std::time::Instant::now();
    let error = client.redial(&dial, Some(Duration::from_millis(1_200))).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Local, "{error}");
    assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_session_is_dialed_again_when_its_peer_was_restarted_and_ends_when_refused() {
    let start = |port, access| builder(8).port(port).access(access).start();
    let friend = || Access::by_keys([key(9).public()]);
    let server = start(0, friend()).await.unwrap();
    let (addresses, port) = (server.addresses(), server.addresses()[0].port());
    let client = builder(9).start().await.unwrap();
    let mut held = client.hold(Dial::node(server.id(), addresses), None);
    let (here, there) = tokio::join!(held.session(), accept(&server));
    talk(&here.unwrap(), &there.unwrap()).await;
    server.close().await;
    drop(server);
    let lost = timeout(PATIENCE, held.changed()).await.expect("it is noticed");
    assert!(matches!(lost, Holding::Dialing(Some(_))), "{lost:?}");
    let server = loop {
        match start(port, friend()).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let (here, there) =
        timeout(PATIENCE, async { tokio::join!(held.session(), server.accept()) }).await.unwrap();
    talk(&here.unwrap(), &there.unwrap()).await;
    server.close().await;
    drop(server);
    let _strict = loop {
        match start(port, Access::default()).await {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    loop {
        match timeout(PATIENCE, held.changed()).await.expect("it is refused") {
            Holding::Ended(error) => return assert_eq!(error.kind, ErrorKind::Refused, "{error}"),
            other => assert!(matches!(other, Holding::Dialing(_)), "{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_session_is_dialed_again_after_a_failure_here_and_not_after_an_abort() {
    let server = builder(21).access(Access::by_keys([key(22).public()])).start().await.unwrap();
    let client = builder(22).start().await.unwrap();
    let mut held = client.hold(Dial::node(server.id(), server.addresses()), None);
    let (here, _there) = tokio::join!(held.session(), accept(&server));
    let failed = here.unwrap();
    failed.session().abort(close_code::INTERNAL, "a fault of this program, see its log");
    failed.session().closed().await;
    let again = async { tokio::join!(held.session(), server.accept()) };
    let (here, _there) = timeout(PATIENCE, again).await.expect("another session");
    here.unwrap().session().abort(0, "no longer needed");
    let end = timeout(PATIENCE, held.changed()).await.expect("it is noticed");
    assert!(matches!(end, Holding::Ended(_)), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_was_looked_at_is_no_change() {
    let server = builder(23).access(Access::by_keys([key(24).public()])).start().await.unwrap();
    let client = builder(24).start().await.unwrap();
    let mut held = client.hold(Dial::node(server.id(), server.addresses()), None);
    let _there = accept(&server).await.expect("a session");
    let open = async {
        while !matches!(held.state(), Holding::Open(_)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, open).await.expect("it opens");
    let again = timeout(Duration::from_millis(50), held.changed()).await;
    assert!(again.is_err(), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_named_twice_is_refused_before_anything_starts() {
    let relay = format!("{}@192.0.2.1:4600", key(1).public());
    let relays = vec![relay.parse().unwrap(), relay.parse().unwrap()];
    let error = builder(10).relays(relays).start().await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Usage, "{error}");
}

/// Answers one client as a relay that refuses the first requests for a path.
async fn refuse_first(node: &Node, times: u32) {
    let session = accept(node).await.expect("a session");
    let mut stream = session.session().accept_stream().await.unwrap();
    let (mut read, mut asked) = (Vec::new(), 0);
    while stream.read_buf(&mut read).await.is_ok_and(|len| len > 0) {
        while let Some((request, len)) = Request::decode(&read).unwrap() {
            read.drain(..len);
            let reply = match request {
                Request::Hello { version } => Reply::Hello { version },
                Request::Allocate { request, .. } if asked < times => {
                    asked += 1;
                    Reply::Refused { request, why: Refused::NoSuchPath }
                }
                Request::Allocate { request, .. } => {
                    Reply::Allocated { request, flow: FlowId(1), forward: Pid(2), back: Pid(3) }
                }
                _ => continue,
            };
            let mut write = Vec::new();
            reply.encode(&mut write);
            stream.write_all(&write).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_the_relay_has_not_proven_yet_is_asked_for_again() {
    let client = builder(18).start().await.unwrap();
    for (seed, times, is_given) in [(19, 3, true), (20, 100, false)] {
        let relay = builder(seed).access(Access::by_keys([client.id()])).start().await.unwrap();
        let hint = RelayHint { node: relay.id(), addresses: relay.addresses() };
        tokio::spawn(async move { refuse_first(&relay, times).await });
        let entry = Entry::default();
        let opened = RelayConnection::open(client.endpoint(), &hint, &entry);
        let connection = timeout(PATIENCE, opened).await.expect("an end").unwrap();
        let wanted = Wanted { target: Target::Host, out: Pid::HANDSHAKE, back: Pid(1) };
        let allocated = timeout(PATIENCE, connection.allocate(wanted)).await.expect("an end");
        assert_eq!(allocated.is_ok(), is_given, "{:?}", allocated.err());
    }
}
