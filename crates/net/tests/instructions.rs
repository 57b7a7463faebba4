//! Counts the instructions of a packet outside the kernel, from the sending application's buffer to the receiving one's:
//! engine, sealing and opening, outbox, sockets, wake-ups. Callgrind counts them, so new work for each byte or packet fails
//! the test on busy and idle machines alike. Reports a skipped test without valgrind.

mod bulk;
// In this program, because each would compile sessions anew.
#[path = "bulk/copies.rs"]
mod copies;

use bulk::bulk;

/// Most instructions per packet sent, both ends together, in the test profile: 21 % above the figure of an idle machine, and
/// 10 % above the worst of a busy one, where batches are smaller.
const MOST: u64 = 21_500;

/// Bytes moved under callgrind: the first half until windows stop growing, the second half for the count.
const BYTES: usize = 24 << 20;

#[test]
fn a_packet_costs_no_more_instructions_than_it_did() {
    let Some(parts) = anabranch_counted::run("bulk_for_the_count", None) else {
        println!("skipped: instructions are counted with valgrind, which is not here");
        return;
    };
    let each = parts[1].instructions / (parts[1].numbers[0] - parts[0].numbers[0]);
    println!("{each} instructions a packet");
    assert!(each <= MOST, "{each} instructions a packet, at most {MOST} wanted");
}

/// The part that runs under callgrind; otherwise it does nothing.
#[tokio::test]
async fn bulk_for_the_count() {
    let bytes = if anabranch_counted::is_counted() { BYTES } else { 1 << 20 };
    let [sender, _] = bulk(1, bytes, |count| anabranch_counted::end_of_part(&[count.sent as u64])).await;
    anabranch_counted::end_of_part(&[sender.sent as u64]);
}
