//! Controllers, relays that registered with them and a client with a grant, all with real sessions on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller, RelaySettings};
use anabranch_net::{Addresses, PathId, PathUse};
use anabranch_node::{Dial, GrantWanted, Grants, Node, parse_rules};
use anabranch_secure::RelayHint;

use crate::common::controllers::{Controllers, WANTED, controller, session};
use crate::common::{address, carry, ip, key, node, relay, restart, route, through_relays, until};

#[tokio::test(flavor = "multi_thread")]
async fn granted_relays_become_paths_which_do_not_notice_that_every_controller_is_gone() {
    let mut controllers = controller(150, (&[151, 152], 153), 600).await;
    let relays = [controllers.relay(151).await, controllers.relay(152).await];
    let (client, server) = (node(153).await, node(154).await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grants");
    let few = GrantWanted { relays: (1, 1), ..WANTED };
    let few = Grants::obtain(&client, &controllers.hints, few, Some(file.clone())).await.unwrap();
    assert_eq!(few.relays().len(), 1);
    let grants = controllers.grants(&client, &file).await.unwrap();
    assert_eq!(grants.relays().len(), 2, "more are wanted than were asked for");
    let (here, there, _paths) = session(&client, &server, &grants).await;
    until("a path through each relay", || through_relays(&here).len() == 2).await;
    carry(&here, &there, 200_000).await;

    controllers.running.pop().unwrap().kill();
    let again = controllers.grants(&client, &file).await.expect("what was kept is used");
    let (here2, there2, _paths2) = session(&client, &server, &again).await;
    until("a path through each relay, for a new session", || through_relays(&here2).len() == 2).await;
    carry(&here2, &there2, 200_000).await;
    // A relay that is restarted now checks the grant offline.
    let [first, _second] = relays;
    let settings =
        RelaySettings { port: first.addresses()[0].port(), ..first_settings(&controllers, &first) };
    first.close().await;
    let _first = restart(151, &settings).await;
    until("the path comes back", || through_relays(&here).len() == 2).await;
    carry(&here, &there, 200_000).await;

    // Without a stored grant, the search for a controller ends soon.
    let none = controllers.grants(&client, &dir.path().join("none")).await.unwrap_err();
    assert!(none.to_string().contains("controller"), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_dial_through_a_relay_that_moved_uses_the_address_that_a_controller_knows() {
    let controllers = controller(190, (&[191], 192), 600).await;
    let relay = controllers.relay(191).await;
    // The relay was there when the user wrote its route.
    let moved = RelayHint { node: relay.node(), addresses: vec![SocketAddr::new(ip(194), 9)] };
    let server = node(193).await;
    // Only the relay reaches the server.
    let rules = parse_rules("[[path]]\nmatch = \"127.0.0.193\"\nuse = \"never\"", "test").unwrap();
    let client = Node::builder().key(key(192)).addresses(Addresses::Exactly(vec![ip(192)]));
    let client =
        client.controllers(controllers.hints.clone()).relays(vec![route(&[&moved])]).path_rules(rules);
    let client = client.start().await.unwrap();
    let dial = Dial::node(server.node(), vec![address(&server)]);
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    let (dialed, there) = tokio::try_join!(client.dial(&dial), accept).unwrap();
    assert_eq!(dialed.list()[0].relays, [relay.node().to_string()]);
    carry(dialed.session(), &there, 100_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_also_lead_to_an_address_that_the_user_named() {
    let server = node(131).await;
    let (_relay, hint) = relay(132, &[133]).await;
    let client = Node::builder().key(key(133)).addresses(Addresses::Exactly(vec![ip(133)]));
    let client = client.relays(vec![route(&[&hint])]).start().await.unwrap();
    // The listed address does not answer.
    let dial = Dial::node(server.node(), vec!["127.0.0.29:9".parse().unwrap()]);
    let dial = dial.addresses([address(&server)]);
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    let (dialed, _there) = tokio::try_join!(client.dial(&dial), accept).unwrap();
    until("a path through the relay", || through_relays(dialed.session()).len() == 1).await;
}

/// The relay has started, though its controller is gone.
fn first_settings(controllers: &Controllers, relay: &RelayService) -> RelaySettings {
    let signs = anabranch_daemon::controller::signer(&key(150)).public();
    let controller = Controller { at: controllers.hints[0].clone(), signs };
    assert_eq!(relay.status().controllers[0].at, controller.at.to_string());
    RelaySettings { controllers: vec![controller], ..crate::common::settings(151, &[]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_renewed_while_it_is_used_and_a_revoked_one_ends_its_paths() {
    let controllers = controller(160, (&[161], 162), 8).await;
    let relay = controllers.relay(161).await;
    let (client, server) = (node(162).await, node(163).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let first = grants.until().unwrap();
    let (here, there, _paths) = session(&client, &server, &grants).await;
    // A busy machine may doubt it for a moment.
    let mut path = None;
    until("a path through the relay", || {
        path = through_relays(&here).first().map(|path| path.id);
        path.is_some()
    })
    .await;
    let id = path.unwrap();
    until("renewed twice", || grants.until().unwrap() >= first + 8).await;
    until("the same path", || through_relays(&here).iter().any(|path| path.id == id)).await;
    carry(&here, &there, 100_000).await;

    // The operator removes the client, then revokes its grant.
    let mut settings = controllers.settings.clone();
    settings.policy.clients.clear();
    controllers.running[0].reload(&settings);
    let watch = controllers.running[0].watch();
    let held = watch.grants(client.node()).await.unwrap();
    assert_eq!((held.len(), held[0].paths), (1, 4));
    assert_eq!(watch.revoke(client.node(), None).await.unwrap().len(), 1);
    until("no path through the relay", || through_relays(&here).is_empty()).await;
    until("the relay carries nothing", || relay.status().flows == 0).await;
    carry(&here, &there, 100_000).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(through_relays(&here).is_empty(), "it came back");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_of_a_grant_stays_used_when_the_relay_is_restarted_and_a_full_disk_costs_no_path() {
    let mut controllers = controller(180, (&[181], 182), 600).await;
    let quota = controllers.settings.policy.clients.get_mut(&key(182).public()).unwrap();
    quota.limits.bytes = 400_000;
    controllers.running[0].reload(&controllers.settings);
    let dir = tempfile::tempdir().unwrap();
    let usage = Some(dir.path().join("relay.usage"));
    let settings = RelaySettings { usage, ..controllers.relay_settings(181) };
    let relay = RelayService::start(key(181), &settings).await.unwrap();
    until("registered", || relay.status().controllers[0].registered).await;
    let (client, server) = (node(182).await, node(183).await);
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let (here, there, paths) = session(&client, &server, &grants).await;
    until("a path through the relay", || through_relays(&here).len() == 1).await;
    here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
    carry(&here, &there, 200_000).await;
    let left = |relay: &RelayService| relay.status().users.iter().find_map(|user| user.bytes_left);
    let before = left(&relay).expect("a limit");
    assert!(before < 250_000, "{before}");
    drop(paths);
    relay.close().await;

    // The directory is gone, as after a disk failure: the relay still runs.
    let lost = RelaySettings { usage: Some(dir.path().join("nowhere/relay.usage")), ..settings.clone() };
    for (settings, knows) in [(settings, true), (lost, false)] {
        let relay = RelayService::start(key(181), &settings).await.unwrap();
        until("registered", || relay.status().controllers[0].registered).await;
        let addresses = relay.addresses();
        let hint = anabranch_secure::RelayHint { node: relay.node(), addresses };
        let entry = anabranch_node::Entry::Member(grants.clone());
        let _connection = anabranch_node::RelayConnection::open(&client, &hint, &entry).await.unwrap();
        assert_eq!(left(&relay).unwrap() <= before, knows);
        relay.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_grant_and_one_with_a_stolen_or_forged_grant_get_nothing() {
    use anabranch_net::Pid;
    use anabranch_node::{Entry, RelayConnection, RelayError, Wanted};
    use anabranch_overlay::relay::{Refused, Target};
    use anabranch_secure::RelayHint;

    let controllers = controller(170, (&[171], 172), 600).await;
    let relay = controllers.relay(171).await;
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let (client, thief) = (node(172).await, node(173).await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grants");
    let grants = controllers.grants(&client, &file).await.unwrap();

    // A client without a grant is admitted for a while, since it may show one, but gets no path.
    let connection = RelayConnection::open(&thief, &hint, &Entry::default()).await.unwrap();
    let target = Target::Address { address: address(&client), key: Some(client.node()) };
    let wanted = Wanted { target, out: Pid(1), back: Pid(2) };
    assert_eq!(connection.allocate(wanted).await.err(), Some(RelayError::Refused(Refused::NotGranted)));
    // The grant is useless to another key.
    let stolen = RelayConnection::open(&thief, &hint, &Entry::Member(grants.clone())).await;
    assert_eq!(stolen.err(), Some(RelayError::Refused(Refused::GrantOtherClient)));
    // Grants of a controller that the relay does not name are invalid.
    let other = controller(174, (&[171], 172), 600).await;
    let mut named = controllers.relay_settings(171);
    named.controllers[0].at = other.hints[0].clone();
    relay.reload(&named);
    until("registered", || relay.status().controllers.iter().all(|known| known.registered)).await;
    // The operator gets the reason in words, with what to do.
    let standing = &relay.status().controllers[0].standing;
    let signs = other.running[0].signing_key().to_string();
    assert!(standing.contains(&format!("set `signs = \"{signs}\"`")), "{standing}");
    let forged = other.grants(&client, &dir.path().join("forged")).await.unwrap();
    let forged = RelayConnection::open(&client, &hint, &Entry::Member(forged)).await;
    assert_eq!(forged.err(), Some(RelayError::Refused(Refused::GrantSignature)));
    assert_eq!(relay.status().forwarded_packets, 0);
    RelayConnection::open(&client, &hint, &Entry::Member(grants)).await.expect("its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_shown_again_in_another_session_adds_nothing() {
    use anabranch_net::Pid;
    use anabranch_node::{Entry, RelayConnection, RelayError, Wanted};
    use anabranch_overlay::relay::{Refused, Target};
    use anabranch_secure::RelayHint;

    let controllers = controller(176, (&[177], 178), 600).await;
    let relay = controllers.relay(177).await;
    let hint = RelayHint { node: relay.node(), addresses: relay.addresses() };
    let (client, server) = (node(178).await, node(179).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    let target = Target::Address { address: address(&server), key: Some(server.node()) };
    let wanted = |out| Wanted { target, out: Pid(out), back: Pid(2) };
    let mut sessions = Vec::new();
    let mut flows = Vec::new();
    for _ in 0..3 {
        let session = RelayConnection::open(&client, &hint, &Entry::Member(grants.clone())).await.unwrap();
        for out in 0..u64::from(WANTED.paths) {
            match session.allocate(wanted(out + 10)).await {
                Ok(flow) => flows.push(flow),
                Err(error) => assert_eq!(error, RelayError::Refused(Refused::TooManyPids)),
            }
        }
        sessions.push(session);
    }
    assert_eq!(flows.len(), WANTED.paths as usize, "as many as it says, whoever shows it how often");
    assert_eq!(relay.status().forwarded_packets, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_lists_relays_learns_which_of_them_are_draining() {
    use anabranch_net::Span;

    let controllers = controller(60, (&[61, 62], 63), 600).await;
    let relays = [controllers.relay(61).await, controllers.relay(62).await];
    let (client, server) = (node(63).await, node(64).await);
    let dir = tempfile::tempdir().unwrap();
    let grants = controllers.grants(&client, &dir.path().join("grants")).await.unwrap();
    // Its paths keep the relay running for a while.
    let (here, _there, _paths) = session(&client, &server, &grants).await;
    until("a path through each relay", || through_relays(&here).len() == 2).await;
    let asked = anabranch_node::Controllers::new(client, controllers.hints.clone());
    for relay in &relays {
        assert_eq!(asked.is_draining(relay.node()).await, Ok(false));
    }
    relays[0].drain(Span::from_secs(60));
    let told = async {
        while asked.is_draining(relays[0].node()).await != Ok(true) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.expect("with the next heartbeat");
    assert_eq!(asked.is_draining(relays[1].node()).await, Ok(false));
}
