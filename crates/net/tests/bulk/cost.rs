//! Counts the system calls and allocations of a packet. Fails when batches fall apart, or when packets allocate memory one
//! by one.

use std::time::Duration;

use stats_alloc::Region;
use tokio::time::timeout;

use crate::bulk::bulk;
use crate::{ALLOCATOR, TURN};

const BYTES: usize = 150_000_000;

/// Most allocations per packet, both ends together, and most bytes of them.
const MOST_ALLOCATIONS: (f64, f64) = (0.5, 700.0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_share_system_calls_and_memory() {
    let _turn = TURN.lock().await;
    for paths in [1, 3] {
        let mut settled = None;
        let moved = bulk(paths, BYTES, |count| settled = Some((count.sent, Region::new(ALLOCATOR))));
        let [sender, receiver] = timeout(Duration::from_secs(60), moved).await.unwrap();
        let (before, region) = settled.expect("half of it was read");
        let change = region.change();
        println!("{paths} paths: sender {sender:?}, receiver {receiver:?}");
        assert!(sender.sent > BYTES as f64 / 1472.0);
        assert!(sender.sent >= 20.0 * sender.sends, "{paths} paths: packets a send: {sender:?}");
        assert!(
            receiver.received >= 20.0 * receiver.receives,
            "{paths} paths: packets a receive: {receiver:?}"
        );
        assert!(
            sender.sent >= 20.0 * receiver.sent,
            "{paths} paths: packets an acknowledgement: {receiver:?}"
        );
        let packets = sender.sent - before;
        let each = |count: usize| count as f64 / packets;
        let calls = each(change.allocations + change.reallocations);
        let bytes = each(change.bytes_allocated);
        println!("{paths} paths: {calls:.3} allocations and {bytes:.0} bytes of them a packet");
        assert!(calls <= MOST_ALLOCATIONS.0, "{paths} paths: {calls} allocations a packet");
        assert!(bytes <= MOST_ALLOCATIONS.1, "{paths} paths: {bytes} bytes allocated a packet");
    }
}
