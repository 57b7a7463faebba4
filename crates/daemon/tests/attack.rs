//! A transfer over five paths, one of which is attacked, with another relay in reserve (mTCP §5.3.4: recruiting while
//! data flows).
//!
//! `ANABRANCH_TRANSFER_S=30 cargo test --release -p anabranch-daemon --test attack -- --nocapture` prints the times.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_emulate::Direction;
use anabranch_link::RateModel;
use anabranch_net::Rate;
use anabranch_node::RelayPaths;
use common::network::network;
use common::{through_relays, until};

const FULL: &str = "ANABRANCH_TRANSFER_S";

fn is_full() -> bool {
    std::env::var_os(FULL).is_some()
}

/// Seconds that a transfer should take without an attack, and Mbit/s of each link; `ANABRANCH_TRANSFER_S=30` for the
/// full measurement. The short one puts little load on a machine that runs other tests.
fn measure() -> (f64, f64) {
    let full = std::env::var(FULL).ok().and_then(|text| text.parse().ok());
    full.map_or((10.0, 4.0), |seconds| (seconds, 10.0))
}

/// The share of one relay's link that the attack leaves, from a third of the time on.
const NEARLY_NOTHING: f64 = 0.02;
const A_FIFTH: f64 = 0.2;

/// Whether the end that chooses relays sends or receives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Course {
    Sends,
    Receives,
}

/// Measures a transfer over the direct path and four of five relays; `left` is what an attack leaves of one of them.
async fn transfer(base: u8, course: Course, left: Option<f64>) -> Duration {
    let (seconds, mbit) = measure();
    let network = network(base, 5, mbit).await;
    let (here, there) = network.join().await;
    let _paths = RelayPaths::choose(&network.client, &here, &network.routes, (&network.peer(), 4));
    until("four paths through relays", || through_relays(&here).len() == 4).await;
    let len = (5.0 * mbit * 1e6 / 8.0 * seconds) as usize;
    let (from, to) = match course {
        Course::Sends => (here.clone(), there),
        Course::Receives => (there, here.clone()),
    };
    let mut stream = from.open_stream().await.unwrap();
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
    let got = Arc::<AtomicUsize>::default();
    let count = got.clone();
    let receiving = tokio::spawn(async move {
        let mut stream = to.accept_stream().await.unwrap();
        while count.load(Ordering::Relaxed) < len {
            let part = stream.read_chunk(1 << 20).await.unwrap().expect("more").len();
            count.fetch_add(part, Ordering::Relaxed);
        }
    });
    if let Some(left) = left {
        tokio::time::sleep(Duration::from_secs_f64(seconds / 3.0)).await;
        let rate = RateModel::Fixed(Rate::from_mbit(mbit * left));
        network.emulation.set_rate(1, Direction::Forward, rate.clone());
        network.emulation.set_rate(1, Direction::Reverse, rate);
    }
    let in_use = |relay: usize| {
        let node = network.relays[relay].node();
        through_relays(&here).iter().any(|path| here.relays(&path.route).contains(&node))
    };
    let has_path = |relay: usize| {
        let node = network.relays[relay].node();
        here.paths().iter().any(|path| here.relays(&path.route).contains(&node))
    };
    let (mut recruited, mut replaced) = (false, false);
    // Continue while bytes arrive: a busy machine is slow without a fault.
    let mut before = usize::MAX;
    while !receiving.is_finished() {
        let now = got.load(Ordering::Relaxed);
        assert_ne!(
            now,
            before,
            "{course:?}, {left:?}: {now} of {len} bytes, and none for 10 s, over {:?}",
            here.paths()
        );
        before = now;
        let finish = async {
            while !receiving.is_finished() {
                recruited |= in_use(4);
                // On a busy machine another relay may be tried in addition for a while.
                replaced |= has_path(4) && !(0..4).all(has_path);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        // Check again in either case.
        let _ = tokio::time::timeout(Duration::from_secs(10), finish).await;
    }
    receiving.await.unwrap();
    let took = begin.elapsed();
    drop(sending);
    if left.is_none() {
        assert!(!replaced, "{course:?}: one was replaced without need: {:?}", here.paths());
    } else {
        assert!(recruited, "{course:?}, {left:?}: the one in reserve was not recruited: {:?}", here.paths());
        assert!(!is_full() || !in_use(1), "{course:?}, {left:?}: the one under attack is in use still");
    }
    took
}

async fn attacked(base: u8, course: Course, left: f64) {
    let with = transfer(base, course, Some(left)).await;
    // The additional time is measured only on request, on an idle machine.
    if is_full() {
        let without = transfer(base + 10, course, None).await;
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        println!(
            "{course:?}, {left} left: {without:.2?} without an attack, {with:.2?} with one, {ratio:.3} of the time"
        );
        assert!(ratio <= 1.05, "{ratio}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_an_attack_leaves_nearly_nothing_is_replaced_by_one_in_reserve() {
    attacked(60, Course::Sends, NEARLY_NOTHING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_an_attack_leaves_a_fifth_is_replaced_by_one_in_reserve() {
    attacked(80, Course::Sends, A_FIFTH).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_replaces_a_path_that_an_attack_leaves_a_fifth() {
    attacked(100, Course::Receives, A_FIFTH).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_keeps_its_paths_while_a_stream_does_not_need_them() {
    let network = network(120, 6, 10.0).await;
    let (here, there) = network.join().await;
    let _paths = RelayPaths::choose(&network.client, &here, &network.routes, (&network.peer(), 2));
    until("two paths through relays", || through_relays(&here).len() == 2).await;
    let mut stream = there.open_stream().await.unwrap();
    let sending = tokio::spawn(async move {
        // 1 Mbit/s of the 30.
        while stream.write_chunk(vec![1; 1_250].into()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let reading = here.clone();
    let reading = tokio::spawn(async move {
        let mut stream = reading.accept_stream().await.unwrap();
        while matches!(stream.read_chunk(1 << 20).await, Ok(Some(_))) {}
    });
    let (mut used, mut stalls) = (BTreeSet::new(), 0);
    let begin = Instant::now();
    let mut looked = begin;
    while begin.elapsed() < Duration::from_secs(12) {
        used.extend(through_relays(&here).iter().flat_map(|path| here.relays(&path.route)));
        tokio::time::sleep(Duration::from_millis(50)).await;
        stalls += usize::from(looked.elapsed() > Duration::from_millis(150));
        looked = Instant::now();
    }
    sending.abort();
    reading.abort();
    // On a busy machine a path may seem to hang for half a second without a visible cause.
    assert!(
        used.len() <= 3 + stalls,
        "{} relays in turn, of which two were enough; {stalls} stalls",
        used.len()
    );
}
