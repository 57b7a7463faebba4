//! Compressed lists, of a share and of what failed: an entry resembles the one before it.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use crate::codec::{FRAME_HEADER, parse_header, put_frame};
use crate::error::TransferError;
use crate::message::{ATTRIBUTE, ENTRY, HARD_LINK, LEFT_OUT, LONGEST_CONTROL, MISSING};

/// Kind of a frame with compressed messages of a list.
pub(crate) const PACKED: u8 = 0x0b;
/// Most bytes of the messages in one frame.
const MOST_PACKED: usize = 64 << 10;
/// Higher levels take several times as long and save a few percent.
const LEVEL: u8 = 2;

/// The messages of a part of a list as one frame, or unchanged if that would not be shorter.
pub(crate) fn pack(messages: Vec<u8>) -> Vec<u8> {
    let packed = compress_to_vec(&messages, LEVEL);
    let is_short = packed.len() <= LONGEST_CONTROL && packed.len() + FRAME_HEADER < messages.len();
    if !is_short || messages.len() > MOST_PACKED {
        return messages;
    }
    let mut frame = Vec::new();
    put_frame(&mut frame, PACKED, |out| out.extend_from_slice(&packed));
    frame
}

/// The messages in a frame of the kind [`PACKED`].
///
/// # Errors
/// [`TransferError::Protocol`] if they are too long, not whole, or not of a list. So no frame holds packed messages that
/// have to be unpacked again.
pub(crate) fn unpack(body: &[u8]) -> Result<Vec<u8>, TransferError> {
    let invalid = || TransferError::protocol("a part of a list that cannot be unpacked");
    let messages = decompress_to_vec_with_limit(body, MOST_PACKED).map_err(|_| invalid())?;
    let mut rest = &messages[..];
    while let Some((header, after)) = rest.split_first_chunk::<FRAME_HEADER>() {
        let (kind, len) = parse_header(*header, LONGEST_CONTROL)?;
        let is_of_list = matches!(kind, ENTRY | ATTRIBUTE | HARD_LINK | LEFT_OUT | MISSING);
        rest = after.get(len..).filter(|_| is_of_list).ok_or_else(invalid)?;
    }
    if rest.is_empty() { Ok(messages) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Control;

    fn message(kind: u8, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, kind, |out| out.resize(out.len() + len, 7));
        out
    }

    fn body(messages: &[u8]) -> Vec<u8> {
        compress_to_vec(messages, LEVEL)
    }

    #[test]
    fn messages_of_a_list_are_packed_where_that_is_shorter() {
        let list: Vec<u8> = (0..200).flat_map(|_| message(ENTRY, 30)).collect();
        let packed = pack(list.clone());
        assert_eq!(packed[0], PACKED);
        assert!(packed.len() < list.len() / 20, "{} bytes", packed.len());
        assert_eq!(unpack(&packed[FRAME_HEADER..]).unwrap(), list);
        assert_eq!(pack(message(ENTRY, 1)), message(ENTRY, 1));
        let long: Vec<u8> = (0..5).flat_map(|_| message(ENTRY, 16 << 10)).collect();
        assert_eq!(pack(long.clone()), long, "more than the receiver takes");
    }

    #[test]
    fn only_whole_messages_of_a_list_are_unpacked() {
        assert!(unpack(&body(&message(ENTRY, 9))).is_ok());
        assert!(unpack(&body(&message(PACKED, 9))).is_err(), "packed twice");
        let mut done = Vec::new();
        Control::Done { removed: 0, updated: 0 }.encode(&mut done);
        assert!(unpack(&body(&done)).is_err(), "not of a list");
        let whole = message(LEFT_OUT, 9);
        assert!(unpack(&body(&whole[..10])).is_err(), "cut");
        assert!(unpack(&body(&whole[..3])).is_err(), "cut in the header");
        assert!(unpack(&body(&message(ENTRY, LONGEST_CONTROL + 1))).is_err(), "a message that is too long");
        let bomb: Vec<u8> = (0..1 << 12).flat_map(|_| message(ENTRY, 1 << 10)).collect();
        assert!(unpack(&body(&bomb)).is_err(), "4 MiB in {} bytes", body(&bomb).len());
        assert!(unpack(&body(&whole)[..4]).is_err(), "a stream that is cut");
        assert!(unpack(b"anything").is_err());
    }
}
