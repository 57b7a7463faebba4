//! The end of a plain HTTP request, without I/O. Bytes behind it are another request, perhaps for another server.

/// The bytes of a client that follow the head of its request and belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body(Left);

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

const NEXT_CHUNK: Left = Left::Size { size: 0, is_read: false };
/// The end of a line, in bytes.
const LINE_END: u64 = 2;

impl Body {
    /// All bytes.
    pub(crate) const EVERYTHING: Self = Self(Left::Everything);

    /// The body that these headers announce; `None` if they name no length.
    pub(crate) fn announced(headers: &[httparse::Header<'_>]) -> Option<Self> {
        let named = move |name: &'static str| {
            headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name))
        };
        if named("transfer-encoding").next().is_some() {
            return Some(Self(NEXT_CHUNK));
        }
        let mut length = None;
        for header in named("content-length") {
            let this = std::str::from_utf8(header.value).ok()?.trim().parse::<u64>().ok()?;
            if length.replace(this).is_some_and(|other| other != this) {
                return None;
            }
        }
        Some(Self(Left::Length(length.unwrap_or(0))))
    }

    /// Takes a client's next bytes; returns how many of them belong to the request. Empty lines behind it do (RFC 9112 §2.2).
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(byte) = bytes.get(taken) {
            let rest = (bytes.len() - taken) as u64;
            let (now, left) = match self.0 {
                Left::Everything => (rest, Left::Everything),
                Left::Length(0) if !matches!(byte, b'\r' | b'\n') => return taken,
                Left::Length(0) => (1, Left::Length(0)),
                Left::Length(left) => (rest.min(left), Left::Length(left.saturating_sub(rest))),
                Left::Chunk(left) if left <= rest => (left, NEXT_CHUNK),
                Left::Chunk(left) => (rest, Left::Chunk(left - rest)),
                line => (1, line.after(*byte)),
            };
            self.0 = left;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn announced(headers: &[(&str, &str)]) -> Option<Body> {
        let each = headers.iter().map(|&(name, value)| httparse::Header { name, value: value.as_bytes() });
        Body::announced(&each.collect::<Vec<_>>())
    }

    #[test]
    fn a_request_ends_with_the_length_that_it_announces() {
        assert_eq!(announced(&[]).unwrap().take(b"GET"), 0);
        assert_eq!(announced(&[]).unwrap().take(b"\r\nGET"), 2);
        let length = announced(&[("Content-Length", "5"), ("content-length", "5")]);
        assert_eq!(length.unwrap().take(b"helloGET"), 5);
        for wrong in [&[("Content-Length", "x")][..], &[("Content-Length", "5"), ("Content-Length", "6")]] {
            assert_eq!(announced(wrong), None, "{wrong:?}");
        }
        let mut all = Body::EVERYTHING;
        assert_eq!(all.take(b"anything"), 8);
    }

    proptest! {
        #[test]
        fn chunks_end_with_an_empty_one_however_they_are_cut(cut in 0..60_usize) {
            let chunks = b"5;a=b\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nX: y\r\n\r\n";
            let bytes = [&chunks[..], b"GET / HTTP/1.1"].concat();
            let mut body = announced(&[("Transfer-Encoding", "chunked"), ("Content-Length", "3")]).unwrap();
            let first = body.take(&bytes[..cut]);
            prop_assert_eq!(first, cut.min(chunks.len()));
            prop_assert_eq!(first + body.take(&bytes[first..]), chunks.len());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let taken = Body(NEXT_CHUNK).take(&bytes);
            prop_assert!(taken <= bytes.len());
        }
    }
}
