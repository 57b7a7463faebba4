//! Unpacks a body that the server compressed although it was asked not to, without I/O (RFC 1952).
//!
//! A published hash or size is that of the file, and its name has no `.gz`. Browsers therefore unpack such a body, as
//! does `curl --compressed`; the packed bytes under the plain name would be a wrong file. Files that are archives
//! themselves stay as they are.
//!
//! The bytes of one step are bounded, however well they were compressed. Space on the disk and a size that the user gave
//! bound the whole. A body is complete only with the checksum at its end.

use std::io::Write;

use bytes::{Buf, Bytes};
use flate2::write::MultiGzDecoder;

/// How a compressed body begins.
pub(crate) const BEGINNING: [u8; 2] = [0x1f, 0x8b];

/// Whether a body that its server calls compressed is not, by its first bytes.
pub(crate) fn is_plain(begin: &[u8]) -> bool {
    let len = begin.len().min(BEGINNING.len());
    begin[..len] != BEGINNING[..len]
}

/// A body that is being unpacked.
#[derive(Debug)]
pub(crate) struct Unpacking {
    decoder: MultiGzDecoder<Vec<u8>>,
    /// Bytes that came and were not unpacked yet.
    packed: Bytes,
    /// Bytes that came since the last call of [`Self::take_received`].
    received: u64,
    stage: Stage,
}

/// Empty --bytes--> Begun --end--> Over
///   \---------------end-----------^
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Empty,
    Begun,
    Over,
}

impl Unpacking {
    /// The start of a body.
    pub fn new() -> Self {
        let decoder = MultiGzDecoder::new(Vec::new());
        Self { decoder, packed: Bytes::new(), received: 0, stage: Stage::Empty }
    }

    /// Takes bytes as they came. [`Self::next`] must have used up the earlier ones.
    pub fn handle_bytes(&mut self, packed: Bytes) {
        self.received += packed.len() as u64;
        if !packed.is_empty() {
            self.stage = Stage::Begun;
        }
        self.packed = packed;
    }

    /// The number of bytes that came since the last call.
    pub fn take_received(&mut self) -> u64 {
        std::mem::take(&mut self.received)
    }

    /// The next unpacked bytes, some 32 KiB at most; `None` when more must come.
    pub fn next(&mut self) -> Result<Option<Bytes>, String> {
        while !self.packed.is_empty() {
            let used = self.decoder.write(&self.packed).map_err(|error| damaged(&error))?;
            self.packed.advance(used);
            let unpacked = std::mem::take(self.decoder.get_mut());
            if !unpacked.is_empty() {
                return Ok(Some(unpacked.into()));
            }
        }
        Ok(None)
    }

    /// The last unpacked bytes, once no more come; `None` when there are none.
    pub fn end(&mut self) -> Result<Option<Bytes>, String> {
        // Servers call a file without bytes compressed, too.
        if std::mem::replace(&mut self.stage, Stage::Over) == Stage::Begun {
            self.decoder.try_finish().map_err(|error| damaged(&error))?;
        }
        let unpacked = std::mem::take(self.decoder.get_mut());
        Ok((!unpacked.is_empty()).then(|| unpacked.into()))
    }
}

fn damaged(error: &std::io::Error) -> String {
    format!("the server says that it compresses the file, but it cannot be unpacked ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Unpacks a body that comes in pieces; also returns the longest step.
    fn unpack(body: &[u8], piece: usize) -> Result<(Vec<u8>, usize), String> {
        let (mut unpacking, mut content, mut longest) = (Unpacking::new(), Vec::new(), 0);
        let mut take = |bytes: Bytes| {
            longest = longest.max(bytes.len());
            content.extend_from_slice(&bytes);
        };
        for piece in body.chunks(piece) {
            unpacking.handle_bytes(Bytes::copy_from_slice(piece));
            while let Some(bytes) = unpacking.next()? {
                take(bytes);
            }
        }
        while let Some(bytes) = unpacking.end()? {
            take(bytes);
        }
        assert_eq!(unpacking.take_received(), body.len() as u64);
        Ok((content, longest))
    }

    #[test]
    fn a_body_in_pieces_of_any_length_is_unpacked() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(|number| (number / 3).to_le_bytes()).collect();
        let mut body = packed(&content[..500_000]);
        // A body may have several members.
        body.extend(packed(&content[500_000..]));
        for piece in [1, 7, 4096, usize::MAX] {
            assert!(unpack(&body, piece).unwrap().0 == content, "{piece}");
        }
        assert!(unpack(b"", 1).unwrap().0.is_empty());
        assert!(unpack(&packed(b""), 1).unwrap().0.is_empty());
    }

    #[test]
    fn a_bomb_is_unpacked_in_small_steps() {
        let (content, longest) = unpack(&packed(&vec![0; 50 << 20]), usize::MAX).unwrap();
        assert_eq!(content.len(), 50 << 20);
        assert!(longest <= 64 << 10, "{longest} bytes at once");
    }

    #[test]
    fn a_body_that_ends_early_or_has_a_wrong_byte_is_refused() {
        let body = packed(b"some words, and some words again");
        for len in 1..body.len() {
            assert!(unpack(&body[..len], 5).is_err(), "{len} bytes of {}", body.len());
        }
        for at in [0, 1, 12, body.len() - 8, body.len() - 1] {
            let mut wrong = body.clone();
            wrong[at] ^= 0x55;
            assert!(unpack(&wrong, 5).is_err(), "byte {at}");
        }
        assert!(unpack(b"plain text", 5).is_err());
        assert!(unpack(&[&body[..], b"more"].concat(), 5).is_err());
    }
}
