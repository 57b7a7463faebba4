//! How often a byte is copied in user space on its way from the application to the socket and from the socket to the application, counted by
//! valgrind (DHAT): the same on a busy machine as on an idle one, so that one more copy fails. Without valgrind the test says so.

mod bulk;

use std::process::Command;

use bulk::bulk;

/// Most bytes copied for each that is sent, both ends together. Measured: 2.84, of which 1 is the data itself; the others are packets, typed, that
/// move from place to place in a program that is not optimised.
const MOST: f64 = 3.2;

/// Read by the run under valgrind.
const BYTES: &str = "ANABRANCH_COUNTED_BYTES";

#[test]
fn a_byte_is_copied_no_more_often_than_it_was() {
    let [short, long] = [4_usize << 20, 12 << 20];
    let Some((before, after)) = copied(short).zip(copied(long)) else {
        println!("skipped: copies are counted with valgrind, which is not here");
        return;
    };
    let each = (after - before) as f64 / (long - short) as f64;
    println!("{each:.2} bytes copied for each that is sent");
    assert!(each <= MOST, "{each:.2} bytes are copied for each that is sent, at most {MOST} wanted");
}

/// The part that runs under valgrind, and for nothing by itself.
#[tokio::test]
async fn bulk_for_the_count() {
    let bytes = std::env::var(BYTES).ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(1 << 20);
    bulk(1, bytes, |_| ()).await;
}

/// Bytes copied while so many were sent, and before; none without valgrind.
fn copied(bytes: usize) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=dhat", "--mode=copy", "--dhat-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("a test knows its executable"))
        .args(["--exact", "bulk_for_the_count", "--test-threads=1"])
        .env(BYTES, bytes.to_string())
        .output()
        .ok()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "valgrind failed:\n{out}{err}");
    let total = err.lines().find_map(|line| line.split_once("Total:").map(|(_, rest)| rest));
    let number = total.and_then(|rest| rest.split_whitespace().next()).expect("a total");
    Some(number.replace(',', "").parse().expect("a number"))
}
