//! A capture file from a stranger, and the keys to it.

use std::sync::LazyLock;

use anabranch_cli::Reading;
use anabranch_secure::CapturedSession;

use crate::handshake;

/// The keys of the session whose packets are in the corpus.
static KEYS: LazyLock<String> = LazyLock::new(|| handshake::keys().0.to_line().to_string());

/// The input as a capture file; it yields at most a line for each block that fits in it.
pub fn capture(input: &[u8]) {
    let mut sessions = [CapturedSession::from_line(&KEYS).expect("a good line")];
    let Ok(mut reading) = Reading::new(input) else { return };
    let mut lines = 0;
    while let Ok(Some(found)) = reading.next_packet(&mut sessions) {
        let line = found.line();
        lines += 1;
        assert!(!line.contains('\n') && line.len() < 20 * input.len());
    }
    // A block has 32 bytes in addition to its packet.
    assert!(lines <= input.len() / 32, "{lines} lines");
}

/// The input as a file of keys.
pub fn keys(input: &[u8]) {
    drop(CapturedSession::read_all(&String::from_utf8_lossy(input)));
}
