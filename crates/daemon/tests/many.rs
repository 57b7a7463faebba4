//! Many relay paths at once over links of 20 ms round-trip time, and how fast one goes and another comes.
//!
//! `cargo test --release -p anabranch-daemon --test many -- --nocapture` prints the times.

mod common;

use std::time::{Duration, Instant};

use anabranch_daemon::client::RelayPaths;
use common::network::network;
use common::{through_relays, until};

async fn set_up(base: u8, count: u8) -> Duration {
    let network = network(base, count, 100.0).await;
    let (here, _there) = network.join().await;
    let begin = Instant::now();
    let _paths = RelayPaths::keep(&network.client, &here, &network.routes, &network.peer());
    until("all paths are open", || through_relays(&here).len() == usize::from(count)).await;
    begin.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_paths_through_relays_are_set_up_in_a_moment() {
    for (base, count) in [(120, 2), (125, 5), (135, 10), (150, 50)] {
        let took = set_up(base, count).await;
        println!("{count:>3} relay paths set up in {:.0} ms", took.as_secs_f64() * 1e3);
        assert!(took < Duration::from_secs(10), "{count} paths in {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_is_noticed_and_another_recruited_while_data_flow() {
    let mut network = network(210, 3, 100.0).await;
    let (here, there) = network.join().await;
    let mut paths = RelayPaths::keep(&network.client, &here, &network.routes[..2], &network.peer());
    until("two paths", || through_relays(&here).len() == 2).await;
    let mut stream = here.open_stream().await.unwrap();
    let sending =
        tokio::spawn(async move { while stream.write_chunk(vec![1; 64 << 10].into()).await.is_ok() {} });
    let reading = tokio::spawn(async move {
        let mut stream = there.accept_stream().await.unwrap();
        while matches!(stream.read_chunk(1 << 20).await, Ok(Some(_))) {}
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let victim = network.relays.remove(0);
    let begin = Instant::now();
    victim.kill();
    until("one is noticed", || through_relays(&here).len() == 1).await;
    let noticed = begin.elapsed();
    let begin = Instant::now();
    paths.add(&network.client, &here, network.routes[2].clone(), network.peer());
    until("another is there", || through_relays(&here).len() == 2).await;
    let added = begin.elapsed();
    let begin = Instant::now();
    here.close_path(through_relays(&here)[0].id);
    until("one is deleted", || through_relays(&here).len() < 2).await;
    println!("noticed {noticed:.0?}, added {added:.0?}, deleted {:.0?}", begin.elapsed());
    sending.abort();
    reading.abort();
    assert!(noticed < Duration::from_secs(5) && added < Duration::from_secs(5));
}
