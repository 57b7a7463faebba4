//! The end of a plain HTTP request, without I/O. Bytes behind it are another request, perhaps for another server.
//!
//! A request for another protocol has no end if the server agrees, which the status of its answer shows.

use crate::http::{LONGEST_HEAD, MOST_HEADERS};

/// The bytes of a client that follow the head of its request and belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    left: Left,
    /// Asks for another protocol.
    asks_upgrade: bool,
}

/// The rest of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Anything: the connection is no single request.
    Everything,
    /// So many bytes.
    Length(u64),
    /// The rest of a line with the size of a chunk (RFC 9112 §7.1), and whether its digits are over.
    Size { size: u64, is_read: bool },
    /// So many bytes of a chunk and of the line's end behind it.
    Chunk(u64),
    /// Trailers, and whether the current line is empty so far.
    Trailers { is_empty: bool },
}

/// Headers that say where a body ends.
pub(crate) const ENDS_BODY: [&str; 2] = ["content-length", "transfer-encoding"];
const NEXT_CHUNK: Left = Left::Size { size: 0, is_read: false };
/// The end of a line, in bytes.
const LINE_END: u64 = 2;

impl Body {
    /// All bytes.
    pub(crate) const EVERYTHING: Self = Self { left: Left::Everything, asks_upgrade: false };

    /// The body that these headers of HTTP/1.`minor` announce; `None` if its end is not clear: servers may take such a request
    /// for two, one of them hidden (RFC 9112 §6.1, §11.2).
    pub(crate) fn announced(
        headers: &[httparse::Header<'_>],
        (minor, asks_upgrade): (u8, bool),
    ) -> Option<Self> {
        let named = move |name: &'static str| {
            headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name))
        };
        if let Some(codings) = named("transfer-encoding").next_back() {
            let last = codings.value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
            let is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            let is_clear = is_chunked && minor > 0 && named("content-length").next().is_none();
            return is_clear.then_some(Self { left: NEXT_CHUNK, asks_upgrade });
        }
        let mut lengths = named("content-length").map(|header| header.value.trim_ascii());
        let Some(length) = lengths.next() else { return Some(Self { left: Left::Length(0), asks_upgrade }) };
        let is_clear = lengths.all(|other| other == length) && length.iter().all(u8::is_ascii_digit);
        let length = std::str::from_utf8(length).ok().filter(|_| is_clear)?.parse().ok()?;
        Some(Self { left: Left::Length(length), asks_upgrade })
    }

    /// The answer to watch, if it decides about another protocol.
    pub(crate) fn awaited(&self) -> Option<Answer> {
        self.asks_upgrade.then(Answer::default)
    }

    /// Takes a client's next bytes; returns how many of them belong to the request. Empty lines behind it do (RFC 9112 §2.2).
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(byte) = bytes.get(taken) {
            let rest = (bytes.len() - taken) as u64;
            let (now, left) = match self.left {
                Left::Everything => (rest, Left::Everything),
                Left::Length(0) if !matches!(byte, b'\r' | b'\n') => return taken,
                Left::Length(0) => (1, Left::Length(0)),
                Left::Length(left) => (rest.min(left), Left::Length(left.saturating_sub(rest))),
                Left::Chunk(left) if left <= rest => (left, NEXT_CHUNK),
                Left::Chunk(left) => (rest, Left::Chunk(left - rest)),
                line => (1, line.after(*byte)),
            };
            self.left = left;
            // No more than the rest of the bytes.
            taken += now as usize;
        }
        taken
    }
}

impl Left {
    /// The rest after a byte of a line.
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Size { size: 0, .. }, b'\n') => Self::Trailers { is_empty: true },
            (Self::Size { size, .. }, b'\n') => Self::Chunk(size.saturating_add(LINE_END)),
            (Self::Size { size, is_read: false }, _) => match char::from(byte).to_digit(16) {
                Some(digit) => {
                    let size = size.saturating_mul(16).saturating_add(u64::from(digit));
                    Self::Size { size, is_read: false }
                }
                None => Self::Size { size, is_read: true },
            },
            (Self::Trailers { is_empty: true }, b'\n') => Self::Length(0),
            (Self::Trailers { .. }, b'\n') => Self::Trailers { is_empty: true },
            (Self::Trailers { .. }, byte) if byte != b'\r' => Self::Trailers { is_empty: false },
            (same, _) => same,
        }
    }
}

/// The first bytes of a server's answer to a request for another protocol.
#[derive(Debug, Default)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// Takes the next bytes. Returns whether the server agrees, once that is known.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<bool> {
        // A head that is too long is a refusal as well.
        let room = (LONGEST_HEAD + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            match response.parse(&self.0) {
                Ok(httparse::Status::Complete(_)) if response.code == Some(101) => return Some(true),
                Ok(httparse::Status::Complete(length)) if response.code.is_some_and(is_interim) => {
                    self.0.drain(..length);
                }
                Ok(httparse::Status::Partial) if self.0.len() <= LONGEST_HEAD => return None,
                _ => return Some(false),
            }
        }
    }
}

/// Whether another answer follows one with this status.
fn is_interim(status: u16) -> bool {
    (100..200).contains(&status)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn announced(headers: &[(&str, &str)]) -> Option<Body> {
        let each = headers.iter().map(|&(name, value)| httparse::Header { name, value: value.as_bytes() });
        Body::announced(&each.collect::<Vec<_>>(), (1, false))
    }

    #[test]
    fn a_server_agrees_to_another_protocol_by_its_status() {
        let answers = |text: &str| {
            // In one piece, and byte by byte: the same.
            let whole = Answer::default().take(text.as_bytes());
            let mut answer = Answer::default();
            let single = text.as_bytes().chunks(1).find_map(|byte| answer.take(byte));
            assert_eq!(single, whole, "{text}");
            whole
        };
        assert_eq!(
            answers("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nframes"),
            Some(true)
        );
        assert_eq!(answers("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Yes\r\n\r\n"), Some(true));
        assert_eq!(answers("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"), Some(false));
        assert_eq!(answers("HTTP/1.1 101 Switching"), None);
        assert_eq!(answers("SSH-2.0"), Some(false));
        assert_eq!(answers(&format!("HTTP/1.1 101 Yes\r\nX: {}", "x".repeat(LONGEST_HEAD))), Some(false));
    }

    #[test]
    fn a_request_ends_with_the_length_that_it_announces() {
        assert_eq!(announced(&[]).unwrap().take(b"GET"), 0);
        assert_eq!(announced(&[]).unwrap().take(b"\r\nGET"), 2);
        let length = announced(&[("Content-Length", "5"), ("content-length", "5")]);
        assert_eq!(length.unwrap().take(b"helloGET"), 5);
        let (chunked, length) = (("Transfer-Encoding", "chunked"), ("Content-Length", "5"));
        for wrong in [
            &[("Content-Length", "x")][..],
            &[("Content-Length", "+5")],
            &[("Content-Length", "-0")],
            &[("Content-Length", "")],
            &[("Content-Length", "5, 5")],
            &[length, ("Content-Length", "05")],
            &[("Content-Length", "18446744073709551616")],
            &[length, ("Content-Length", "6")],
            &[chunked, length],
            &[length, chunked],
            &[chunked, ("Transfer-Encoding", "gzip")],
        ] {
            assert_eq!(announced(wrong), None, "{wrong:?}");
        }
        let value = b"chunked";
        let chunked = [httparse::Header { name: chunked.0, value }];
        assert_eq!(Body::announced(&chunked, (0, false)), None, "HTTP/1.0 has no chunks");
        let mut all = Body::EVERYTHING;
        assert_eq!(all.take(b"anything"), 8);
    }

    proptest! {
        #[test]
        fn chunks_end_with_an_empty_one_however_they_are_cut(cut in 0..60_usize) {
            let chunks = b"5;a=b\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nX: y\r\n\r\n";
            let bytes = [&chunks[..], b"GET / HTTP/1.1"].concat();
            let mut body = announced(&[("Transfer-Encoding", "gzip, Chunked")]).unwrap();
            let first = body.take(&bytes[..cut]);
            prop_assert_eq!(first, cut.min(chunks.len()));
            prop_assert_eq!(first + body.take(&bytes[first..]), chunks.len());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let taken = announced(&[("Transfer-Encoding", "chunked")]).unwrap().take(&bytes);
            let _ = Answer::default().take(&bytes);
            prop_assert!(taken <= bytes.len());
        }
    }
}
