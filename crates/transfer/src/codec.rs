//! Bytes and frames: the layer below the messages.
//!
//! A frame is a kind (1 byte), the length of its body (4 bytes, big-endian) and the body. Readers limit the length, so
//! a peer cannot make them allocate more.

use std::io;

use anabranch_wire::Reader;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::error::{TransferError, cut};

/// Length of a frame's header.
pub(crate) const FRAME_HEADER: usize = 5;

/// Appends a frame to `out`; `body` writes its body.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.push(kind);
    out.extend_from_slice(&[0; 4]);
    body(out);
    finish_frame(out, start);
}

/// Sets the length of the frame that lasts from `start` to the end of `out`.
pub(crate) fn finish_frame(out: &mut [u8], start: usize) {
    let len = (out.len() - start - FRAME_HEADER) as u32;
    out[start + 1..start + FRAME_HEADER].copy_from_slice(&len.to_be_bytes());
}

/// Reads a frame's kind and length; `None` if the stream has ended.
pub(crate) async fn read_header<R: AsyncRead + Unpin>(
    reader: &mut R,
    longest: usize,
) -> Result<Option<(u8, usize)>, TransferError> {
    let mut header = [0; FRAME_HEADER];
    if reader.read(&mut header[..1]).await.map_err(TransferError::Connection)? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut header[1..]).await.map_err(TransferError::Connection)?;
    parse_header(header, longest).map(Some)
}

/// A frame's kind and length, which is at most `longest`.
pub(crate) fn parse_header(header: [u8; FRAME_HEADER], longest: usize) -> Result<(u8, usize), TransferError> {
    let [kind, len @ ..] = header;
    let len = u32::from_be_bytes(len) as usize;
    if len > longest {
        return Err(TransferError::protocol(format!(
            "a message of {len} bytes, where {longest} are allowed; is the other command one for files?"
        )));
    }
    Ok((kind, len))
}

/// Reads `len` bytes into the empty `body`, without clearing its memory first.
pub(crate) async fn read_body<R: AsyncRead + Unpin>(
    reader: &mut R,
    len: usize,
    body: &mut Vec<u8>,
    count: impl Fn(u64),
) -> Result<(), TransferError> {
    body.clear();
    body.reserve(len);
    let mut rest = reader.take(len as u64);
    while body.len() < len {
        match rest.read_buf(body).await.map_err(TransferError::Connection)? {
            0 => return Err(TransferError::Connection(io::ErrorKind::UnexpectedEof.into())),
            bytes => count(bytes as u64),
        }
    }
    Ok(())
}

/// Reads a text that follows its length in two bytes.
pub(crate) fn read_text<'a>(reader: &mut Reader<&'a [u8]>) -> Result<&'a str, TransferError> {
    let len = reader.u16("length of a text")?;
    std::str::from_utf8(reader.bytes("text", len.into())?)
        .map_err(|_| TransferError::protocol("text that is not UTF-8"))
}

/// Writes a text after its length in two bytes, cut to the longest that fits.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = cut(text, u16::MAX.into());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
