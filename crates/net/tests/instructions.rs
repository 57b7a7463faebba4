//! What a packet costs both ends from the application's buffer to the application's buffer, in instructions outside the kernel: engine,
//! sealing and opening, outbox, sockets, wake-ups. Counted by callgrind, so that work that is done for each byte or packet and was not
//! before fails on a busy machine as on an idle one. Without valgrind the test says so.

mod bulk;

use bulk::bulk;

/// Most instructions a packet that the sender sends, both ends together, in the profile of the tests: 21 % over what is measured on an idle
/// machine, 10 % over the most on a busy one, where fewer packets come together.
const MOST: u64 = 21_500;

/// Bytes moved when it is counted: half of them until windows no longer grow, half for the count.
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

/// The part that runs under callgrind, and for nothing by itself.
#[tokio::test]
async fn bulk_for_the_count() {
    let bytes = if anabranch_counted::is_counted() { BYTES } else { 1 << 20 };
    let [sender, _] = bulk(1, bytes, |count| anabranch_counted::end_of_part(&[count.sent as u64])).await;
    anabranch_counted::end_of_part(&[sender.sent as u64]);
}
