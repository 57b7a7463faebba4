//! The parameter of an INIT that has the first bytes of the client's first streams, in the order in which it opens them:
//! for each a length (1 byte), then the bytes.
//!
//! The server may handle them before the client has its INIT-ACK. The client sends them again like all others.

use bytes::BufMut;

use super::reader::Reader;
use crate::DecodeError;
use crate::varint::{put_varint, varint_len};

/// The id, above those of [`Params`](crate::Params).
const EARLY: u64 = 15;

/// Appends the first bytes of streams to encoded parameters, if they fit into `most` bytes together.
pub fn put_early(streams: &[Vec<u8>], params: &mut Vec<u8>, most: usize) {
    let len: usize = streams.iter().map(|bytes| 1 + bytes.len()).sum();
    let is_short = streams.iter().all(|bytes| bytes.len() <= usize::from(u8::MAX));
    let needed = params.len() + varint_len(EARLY) + varint_len(len as u64) + len;
    if streams.is_empty() || !is_short || needed > most {
        return;
    }
    put_varint(params, EARLY);
    put_varint(params, len as u64);
    for bytes in streams {
        params.put_u8(bytes.len() as u8);
        params.extend_from_slice(bytes);
    }
}

/// The first bytes of streams in parameters that [`decode_params`](crate::decode_params) accepts; none without them.
///
/// # Errors
/// A [`DecodeError`] when their lengths do not fill the parameter.
pub fn early_in(params: &[u8]) -> Result<Vec<&[u8]>, DecodeError> {
    let mut reader = Reader::new(params);
    let mut streams = Vec::new();
    while reader.left() > 0 {
        let (id, len) = (reader.varint("parameter id")?, reader.varint("parameter length")?);
        let mut value = Reader::new(reader.bytes("parameter", usize::try_from(len).unwrap_or(usize::MAX))?);
        while id == EARLY && value.left() > 0 {
            let len = usize::from(value.u8("length of first bytes")?);
            streams.push(value.bytes("first bytes", len)?);
        }
    }
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode_params;

    #[test]
    fn first_bytes_of_streams_are_read_back_if_they_fit_and_old_ends_skip_them() {
        let params: Vec<u8> = (1..=10_u8)
            .flat_map(|id| match id {
                1 => [&[1, 8][..], &[7; 8]].concat(),
                2 => [&[2, 16][..], &[7; 16]].concat(),
                7 => vec![7, 2, 0x44, 0xb0],
                id => vec![id, 1, 1],
            })
            .collect();
        let known = decode_params(&params).unwrap();
        let streams = [b"hello".to_vec(), Vec::new(), b"begin".to_vec()];
        for most in [params.len() + 14, params.len() + 15] {
            let mut both = params.clone();
            put_early(&streams, &mut both, most);
            assert_eq!(decode_params(&both).unwrap(), known);
            let found = early_in(&both).unwrap();
            assert!(
                if both.len() > most - 1 { found == streams } else { found.is_empty() },
                "{most}: {found:?}"
            );
            for len in params.len() + 2..both.len() {
                assert!(early_in(&both[..len]).is_err(), "cut to {len}");
            }
        }
        let mut long = params.clone();
        put_early(&[vec![0; 256]], &mut long, 10_000);
        assert_eq!(long, params);
        assert!(early_in(&params).unwrap().is_empty());
    }
}
