//! Rules for paths over real sockets and emulated links: backups, caps, excluded paths, and changes while data flow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{address, carry, config, doubts, ip, join, key, node, relay, route, until};
use anabranch_emulate::{EmulatedPath, Emulation};
use anabranch_link::{LinkConfig, bdp_bytes};
use anabranch_net::{Addresses, Endpoint, EndpointConfig, PathRules, Rate, Session, Span, Target};
use anabranch_node::{NodeSession, Peer, parse_rule};

/// A client with two addresses, each with a link of 40 Mbit/s to the server.
struct Stage {
    client: Arc<Endpoint>,
    server: Arc<Endpoint>,
    emulation: Emulation,
    seed: u8,
}

async fn stage(seed: u8, rules: &[&str]) -> Stage {
    let rules = PathRules::new(rules.iter().map(|rule| parse_rule(rule).unwrap()).collect());
    let here = EndpointConfig::new(key(seed))
        .addresses(Addresses::Exactly(vec![ip(seed), ip(seed + 1)]))
        .path_rules(rules);
    let client = Arc::new(Endpoint::bind(here).await.unwrap());
    let server = node(seed + 2).await;
    let (rate, rtt) = (Rate::from_mbit(40.0), Span::from_millis(10));
    let link = LinkConfig::fixed(rate, rtt / 2, bdp_bytes(rate, rtt) * 4);
    let ways = [link.clone(), link].map(|link| EmulatedPath::symmetric(address(&server), link));
    Stage { client, server, emulation: Emulation::start(&ways).unwrap(), seed }
}

impl Stage {
    async fn join(&self) -> (Session, Session) {
        let ways = self.emulation.addresses();
        let mut target = Target::new(self.server.node(), ways.to_vec());
        target.pins = vec![(ip(self.seed), ways[0]), (ip(self.seed + 1), ways[1])];
        let accept = async { Ok(self.server.accept().await.expect("it takes sessions")) };
        tokio::try_join!(self.client.connect(&target, config()), accept).expect("a session")
    }

    /// Bytes of UDP payload on a link so far, in both directions.
    fn bytes_on(&self, way: usize) -> u64 {
        let stats = self.emulation.stats()[way];
        stats.forward.offered.bytes + stats.reverse.offered.bytes
    }

    fn running(&self, session: &Session) -> NodeSession {
        NodeSession::new(&self.client, session, &[], &Peer::default())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_waits_until_the_primary_is_silent_and_says_why() {
    let stage = stage(190, &["from:127.0.0.191=backup"]).await;
    let (here, there) = stage.join().await;
    let running = stage.running(&here);
    let standing = |way: usize| {
        let remote = stage.emulation.addresses()[way].to_string();
        let path = running.list().into_iter().find(|path| path.remote == remote);
        path.map_or_else(String::new, |path| path.standing)
    };
    until("a backup", || standing(1) == "backup").await;
    let doubted = [doubts(&here), doubts(&there)];
    let doubts = || doubted.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
    let mut turns = 0;
    loop {
        let before = (stage.bytes_on(1), doubts());
        carry(&here, &there, 2_000_000).await;
        carry(&there, &here, 2_000_000).await;
        let carried = stage.bytes_on(1) - before.0;
        if carried < 50_000 {
            break;
        }
        // Only doubt of the primary path, which a busy machine may cause, makes the backup carry data.
        eprintln!("the backup carried {carried} bytes; {} doubts", doubts() - before.1);
        assert!(doubts() > before.1, "the backup carried {carried} beside a primary that was well");
        turns += 1;
        assert!(turns < 5, "the primary is never well");
    }

    stage.emulation.set_down(0, true);
    let before = stage.bytes_on(1);
    carry(&here, &there, 1_000_000).await;
    assert!(stage.bytes_on(1) - before > 1_000_000);
    until("a backup that stands in", || standing(1) == "stands-in").await;
    stage.emulation.set_down(0, false);
    until("the primary is back", || standing(0) == "in-use" && standing(1) == "backup").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_holds_over_sockets_and_the_other_way_carries_the_rest() {
    let cap = 1_500_000;
    let stage = stage(193, &["from:127.0.0.194=primary:1.5MB"]).await;
    let (here, there) = stage.join().await;
    until("two paths", || here.paths().len() == 2).await;
    let running = stage.running(&here);
    let capped = || running.list().into_iter().find(|path| path.cap.is_some()).unwrap();
    for turn in 1..=10 {
        carry(&here, &there, 2_000_000).await;
        carry(&there, &here, 2_000_000).await;
        // While a busy machine has the path doubted, it carries less.
        if turn >= 3 && capped().standing == "cap-reached" {
            break;
        }
    }
    assert_eq!(capped().standing, "cap-reached", "{:?}", capped());
    assert!(stage.bytes_on(1) <= cap, "{} of {cap}", stage.bytes_on(1));
    assert!(stage.bytes_on(1) >= cap / 2, "only {} of {cap}", stage.bytes_on(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wanted_of_paths_is_set_while_they_run() {
    let stage = stage(196, &["from:127.0.0.197=never"]).await;
    let (here, there) = stage.join().await;
    let running = stage.running(&here);
    carry(&here, &there, 500_000).await;
    assert_eq!((stage.bytes_on(1), running.list().len()), (0, 1), "never is not a byte");
    let only = running.list()[0].id;
    assert!(running.set(&format!("{only}=never")).unwrap_err().contains("without a path"));

    running.set("from:127.0.0.197=primary").unwrap();
    until("a path where there may be one now", || running.list().len() == 2).await;
    let id = running.list()[0].id;
    running.set(&format!("{id}=backup")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let doubted = doubts(&here);
    for turn in 1..=5 {
        let before = (stage.bytes_on(0), doubted.load(Ordering::Relaxed));
        carry(&here, &there, 2_000_000).await;
        let carried = stage.bytes_on(0) - before.0;
        if carried < 100_000 {
            break;
        }
        // Only doubt of the other path, which a busy machine may cause, makes the backup carry data.
        let is_doubted = doubted.load(Ordering::Relaxed) > before.1;
        assert!(turn < 5 && is_doubted, "{carried} bytes on a backup in turn {turn}");
    }

    assert!(running.set("99=backup").unwrap_err().contains("no path 99"));
    assert!(running.set("*=never").unwrap_err().contains("without a path"));
    assert_eq!(running.list().len(), 2, "nothing changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_the_other_end_excludes_is_retried_at_growing_intervals() {
    let here = EndpointConfig::new(key(200)).addresses(Addresses::Exactly(vec![ip(200), ip(201)]));
    let client = Arc::new(Endpoint::bind(here).await.unwrap());
    let server = node(202).await;
    let target = Target::new(server.node(), vec![address(&server)]);
    let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
    let (here, there) = tokio::try_join!(client.connect(&target, config()), accept).expect("a session");
    let [ours, theirs] = [(&client, &here), (&server, &there)]
        .map(|(at, session)| NodeSession::new(at, session, &[], &Peer::default()));
    until("two paths", || ours.list().iter().filter(|path| path.state == "active").count() == 2).await;
    theirs.set("to:127.0.0.201=never").unwrap();
    let (mut ids, begin) = (BTreeSet::new(), Instant::now());
    // On a busy machine the first retry may be late.
    while begin.elapsed() < Duration::from_secs(3)
        || (ids.len() < 3 && begin.elapsed() < Duration::from_secs(60))
    {
        ids.extend(here.paths().into_iter().map(|path| path.id));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The first two, and further ones after zero, one, and two seconds.
    assert!((3..=5).contains(&ids.len()), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_through_a_relay_that_the_node_excludes_is_reported_as_that() {
    let (client, server) = (node(209).await, node(210).await);
    let (_relay, hint) = relay(211, &[209]).await;
    let (here, there) = join(&client, &server, 2).await;
    let rule = parse_rule(&format!("to:{}=never", ip(211))).unwrap();
    there.set_path_rules(PathRules::new(vec![rule])).unwrap();
    let running = NodeSession::new(&client, &here, &[], &Peer::default());
    let why = running.add(&route(&[&hint])).await.unwrap_err();
    assert!(why.contains("rules for paths exclude it"), "{why}");
}
