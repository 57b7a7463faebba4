//! Counts the copies of each byte in user space between application and socket in both directions. Valgrind (DHAT) counts
//! them, so the result does not depend on the machine's load. Reports a skipped test without valgrind.

use std::process::Command;

use crate::bulk::bulk;

/// Most bytes copied per byte sent, both ends together. Measured: 2.84, of which 1 is the data itself. The rest is packet
/// structures moved between places in an unoptimised program.
const MOST: f64 = 3.2;

/// The variable that the run under valgrind reads.
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

/// The part that runs under valgrind; otherwise it does nothing.
#[tokio::test]
async fn bulk_for_the_count() {
    let bytes = std::env::var(BYTES).ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(1 << 20);
    bulk(1, bytes, |_| ()).await;
}

/// Bytes copied while `bytes` were sent, and before that; `None` without valgrind.
fn copied(bytes: usize) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=dhat", "--mode=copy", "--dhat-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("a test knows its executable"))
        .args(["--exact", "copies::bulk_for_the_count", "--test-threads=1"])
        .env(BYTES, bytes.to_string())
        .output()
        .ok()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "valgrind failed:\n{out}{err}");
    let total = err.lines().find_map(|line| line.split_once("Total:").map(|(_, rest)| rest));
    let number = total.and_then(|rest| rest.split_whitespace().next()).expect("a total");
    Some(number.replace(',', "").parse().expect("a number"))
}
