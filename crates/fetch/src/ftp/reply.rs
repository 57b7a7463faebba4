//! Replies of an FTP server, without I/O (RFC 959, RFC 2428, RFC 3659).

use std::net::{Ipv4Addr, SocketAddr};

/// The longest reply that is read.
pub(super) const LONGEST: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    /// The text of its last line.
    pub(super) text: String,
}

impl Reply {
    /// Reads a reply at the start of `bytes`; also returns its length. `None` when more bytes are needed.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let mut first = None;
        let mut at = 0;
        while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&bytes[at..at + end]);
            let line = line.trim_end_matches('\r');
            at += end + 1;
            let code = line
                .get(..3)
                .and_then(|code| code.parse::<u16>().ok())
                .filter(|code| (100..700).contains(code));
            let code = match (first, code) {
                (None, None) => return Err("the server does not speak FTP".to_owned()),
                (None, Some(code)) => code,
                // Lines within a long reply may look like anything.
                (Some(first), code) if code != Some(first) => continue,
                (Some(first), _) => first,
            };
            if line.as_bytes().get(3) == Some(&b'-') {
                first = Some(code);
                continue;
            }
            let text = line.get(4..).unwrap_or_default().to_owned();
            return Ok(Some((Self { code, text }, at)));
        }
        if bytes.len() > LONGEST { Err("the server's reply has no end".to_owned()) } else { Ok(None) }
    }

    /// Whether the command is done.
    pub(super) fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The size in the reply to SIZE.
    pub(super) fn size(&self) -> Option<u64> {
        (self.code == 213).then(|| self.text.trim().parse().ok()).flatten()
    }

    /// The time of change in the reply to MDTM, as it is written there.
    pub(super) fn time(&self) -> Option<String> {
        let text = self.text.trim();
        let is_time = self.code == 213
            && text.len() >= 14
            && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        (is_time && text.len() <= 32).then(|| text.to_owned())
    }

    /// The port in the reply to EPSV: `229 Entering (|||6446|)`.
    pub(super) fn extended_port(&self) -> Option<u16> {
        let inside = self.text.split_once('(')?.1.split_once(')')?.0;
        let delimiter = inside.chars().next()?;
        let parts: Vec<&str> = inside.split(delimiter).collect();
        if self.code != 229 || parts.len() != 5 {
            return None;
        }
        parts[3].parse().ok().filter(|port| *port != 0)
    }

    /// The address in the reply to PASV: `227 Entering (h1,h2,h3,h4,p1,p2)`.
    pub(super) fn passive_address(&self) -> Option<SocketAddr> {
        let start = self.text.find(|c: char| c.is_ascii_digit())?;
        let numbers = self.text[start..].split(|c: char| !c.is_ascii_digit()).take(6);
        let numbers = numbers.map(|number| number.parse::<u8>().ok()).collect::<Option<Vec<_>>>()?;
        let [a, b, c, d, high, low] = *numbers else { return None };
        let port = u16::from_be_bytes([high, low]);
        (self.code == 227 && port != 0).then(|| (Ipv4Addr::new(a, b, c, d), port).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(text: &str) -> Reply {
        Reply::read(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn replies_have_one_line_or_many() {
        assert_eq!(reply("220 hello\r\n"), Reply { code: 220, text: "hello".to_owned() });
        let long = "230-welcome\r\n 230 not yet\r\n220 neither\r\n230 now\r\n150 next\r\n";
        let (read, len) = Reply::read(long.as_bytes()).unwrap().unwrap();
        assert_eq!((read.code, &*read.text, &long[len..]), (230, "now", "150 next\r\n"));
        assert_eq!(Reply::read(b"220-a\r\n"), Ok(None));
        assert_eq!(Reply::read(b"220"), Ok(None));
        for wrong in ["HTTP/1.1 400 Bad\r\n", "SSH-2.0\r\n", "\r\n", "é20 a\r\n"] {
            assert!(Reply::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_sizes_and_times_are_read() {
        assert_eq!(reply("229 Extended (|||6446|)\n").extended_port(), Some(6446));
        assert_eq!(reply("229 Extended (|||0|)\n").extended_port(), None);
        let passive = reply("227 Entering Passive Mode (10,0,0,1,4,1).\n").passive_address();
        assert_eq!(passive, Some("10.0.0.1:1025".parse().unwrap()));
        assert_eq!(reply("227 256,0,0,1,4,1\n").passive_address(), None);
        assert_eq!(reply("213 1234\n").size(), Some(1234));
        assert_eq!(reply("550 1234\n").size(), None);
        assert_eq!(reply("213 20260102030405.123\n").time().unwrap(), "20260102030405.123");
        assert_eq!(reply("213 yesterday at noon\n").time(), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200), code in 100_u16..600) {
            if let Ok(Some((reply, len))) = Reply::read(&bytes) {
                prop_assert!(len <= bytes.len());
                let _ = (reply.size(), reply.time(), reply.extended_port(), reply.passive_address());
            }
            let text = format!("{code} {}\n", String::from_utf8_lossy(&bytes).replace('\n', ""));
            if let Ok(Some((reply, _))) = Reply::read(text.as_bytes()) {
                let _ = (reply.size(), reply.time(), reply.extended_port(), reply.passive_address());
            }
        }
    }
}
