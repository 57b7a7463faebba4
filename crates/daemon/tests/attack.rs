//! A transfer over five paths, one of which is attacked, with another in reserve (mTCP §5.3.4: recruiting while data flow).
//!
//! `ANABRANCH_TRANSFER_S=30 cargo test --release -p anabranch-daemon --test attack -- --ignored --nocapture` prints the times.

mod common;

use std::time::{Duration, Instant};

use anabranch_daemon::client::RelayPaths;
use anabranch_emulate::Direction;
use anabranch_link::RateModel;
use anabranch_net::Rate;
use common::network::network;
use common::{through_relays, until};

/// How long a transfer is to take without an attack; `ANABRANCH_TRANSFER_S=30` for the full measure.
fn transfer_seconds() -> f64 {
    std::env::var("ANABRANCH_TRANSFER_S").ok().and_then(|text| text.parse().ok()).unwrap_or(8.0)
}

/// How long a transfer over the direct path and four of five relays takes, all of 10 Mbit/s; with an attack others take
/// nearly all of one relay's link after a third of the time.
async fn transfer(base: u8, attack: bool) -> Duration {
    const RATE: f64 = 10.0;
    let network = network(base, 5, RATE).await;
    let (here, there) = network.join().await;
    let _paths = RelayPaths::choose(&network.client, &here, &network.routes, (&network.peer(), 4));
    until("four paths through relays", || through_relays(&here).len() == 4).await;
    let seconds = transfer_seconds();
    let len = (5.0 * RATE * 1e6 / 8.0 * seconds) as usize;
    let mut stream = here.open_stream().await.unwrap();
    let sending = tokio::spawn(async move {
        let mut left = len;
        while left > 0 {
            let part = left.min(64 << 10);
            stream.write_chunk(vec![1; part].into()).await.unwrap();
            left -= part;
        }
        stream
    });
    let begin = Instant::now();
    let receiving = tokio::spawn(async move {
        let mut stream = there.accept_stream().await.unwrap();
        let mut got = 0;
        while got < len {
            got += stream.read_chunk(1 << 20).await.unwrap().expect("more").len();
        }
        got
    });
    if attack {
        tokio::time::sleep(Duration::from_secs_f64(seconds / 3.0)).await;
        let rate = RateModel::Fixed(Rate::from_mbit(RATE / 50.0));
        network.emulation.set_rate(1, Direction::Forward, rate.clone());
        network.emulation.set_rate(1, Direction::Reverse, rate);
    }
    let patience = Duration::from_secs_f64(3.0 * seconds + 20.0);
    let Ok(received) = tokio::time::timeout(patience, receiving).await else {
        panic!("attack {attack}: nothing more comes over {:?}", here.paths());
    };
    assert_eq!(received.unwrap(), len);
    let took = begin.elapsed();
    drop(sending);
    if attack {
        let in_use: Vec<_> = through_relays(&here).iter().flat_map(|path| here.relays(&path.route)).collect();
        assert!(in_use.contains(&network.relays[4].node()), "the one in reserve was not recruited");
        assert!(!in_use.contains(&network.relays[1].node()), "the one under attack is still in use");
    }
    took
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "did not end on a machine that was overloaded; why is not known"]
async fn a_path_under_attack_is_replaced_by_one_in_reserve_and_the_transfer_takes_hardly_longer() {
    let (without, with) = (transfer(60, false).await, transfer(70, true).await);
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    println!("without an attack {without:.2?}, with one {with:.2?}: {ratio:.3} of the time");
    // The bound is 1.05 of 30 s; what is lost is a second or so, whatever the length.
    assert!(ratio < 1.5, "{ratio}");
}
