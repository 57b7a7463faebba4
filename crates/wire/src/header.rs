//! The clear header of every datagram, 16 bytes, and how a relay rewrites it.
//!
//! ```text
//!  0       1       2       3       4                8                12              16
//!  +-------+-------+-------+-------+----------------+----------------+----------------+
//!  |kind|K0|tos|hop| checksum      | PID                             | FSN, low 32    |
//!  +-------+-------+-------+-------+----------------+----------------+----------------+
//! ```
//! A relay reads kind, type of service, hop limit and PID, and rewrites PID, hop limit and checksum. The seal cannot
//! cover what a relay rewrites: the associated data of a packet are the rest of the header and the end-to-end path id
//! ([`Header::associated_data`]). MPMTP-AR [R2] asks for type of service, checksum, PID and sequence numbers in the
//! header; the TSN is under the seal, in the stream frame.
//!
//! The checksum is the Internet's (RFC 1071). It lets a relay drop a damaged packet [R8] and spares an end the work of
//! opening one; only the seal protects against an attacker. A relay updates the checksum incrementally (RFC 1624), so
//! that damage by the relay itself is still detected.

use crate::varint::VARINT_MAX;
use crate::{DecodeError, Fsn, PathId, Pid};

/// Bytes of the seal's tag at the end of a packet.
pub const TAG_LEN: usize = 16;

/// Bytes of a datagram that are not frames: the header and the seal's tag.
pub const PACKET_OVERHEAD: usize = Header::LEN + TAG_LEN;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The first message of the handshake; its PID is [`Pid::HANDSHAKE`].
    Init = 1,
    /// The answer to it.
    InitAck = 2,
    /// A cookie that the client returns with its INIT to prove its address.
    Cookie = 3,
    /// A sealed packet of frames.
    Data = 4,
    /// The sender has no state for this PID.
    Reset = 5,
    /// A relay asks the next hop whether it issued the PID in the header, before it forwards packets to it.
    RelayChallenge = 6,
    /// The issuer's answer, never longer than the challenge.
    RelayResponse = 7,
}

impl Kind {
    fn from_wire(value: u8) -> Result<Self, DecodeError> {
        Ok(match value {
            1 => Self::Init,
            2 => Self::InitAck,
            3 => Self::Cookie,
            4 => Self::Data,
            5 => Self::Reset,
            6 => Self::RelayChallenge,
            7 => Self::RelayResponse,
            _ => return Err(DecodeError::Unknown { what: "kind", at: 0, value: value.into() }),
        })
    }
}

/// The clear header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the datagram.
    pub kind: Kind,
    /// Flips with every key renewal; false at first.
    pub key_phase: bool,
    /// Type of service, 0 (dropped first by a congested relay [R11]) to [`Header::MAX_TOS`].
    pub tos: u8,
    /// How many relays may still forward the datagram, up to [`Header::MAX_HOP_LIMIT`].
    pub hop_limit: u8,
    /// Chosen by the node that receives the datagram: a relay or an end.
    pub pid: Pid,
    /// The low 32 bits of the packet's number on its path.
    pub fsn: u32,
}

const KEY_PHASE: u8 = 0x08;
const RESERVED: u8 = 0x07;

impl Header {
    /// Length in bytes.
    pub const LEN: usize = 16;
    /// The highest type of service.
    pub const MAX_TOS: u8 = 15;
    /// The highest hop limit.
    pub const MAX_HOP_LIMIT: u8 = 15;
    /// Length of [`Header::associated_data`].
    pub const ASSOCIATED_LEN: usize = 10;

    /// Writes the header with its checksum to the first [`Header::LEN`] bytes of `out`. A type of service or hop limit
    /// above its maximum is written as the maximum.
    ///
    /// # Panics
    /// When `out` is shorter than [`Header::LEN`].
    #[inline]
    pub fn encode(&self, out: &mut [u8]) {
        let out = out.first_chunk_mut::<{ Self::LEN }>().expect("room for the header");
        out[0] = self.first_byte();
        out[1] = self.tos.min(Self::MAX_TOS) << 4 | self.hop_limit.min(Self::MAX_HOP_LIMIT);
        out[2..4].fill(0);
        out[4..12].copy_from_slice(&self.pid.0.to_be_bytes());
        out[12..].copy_from_slice(&self.fsn.to_be_bytes());
        let checksum = checksum(out);
        out[2..4].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Reads the header and returns what follows it.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer than [`Header::LEN`] bytes are left, [`DecodeError::Checksum`] when they are
    /// damaged, [`DecodeError::Unknown`] for an unknown kind and [`DecodeError::NotZero`] for reserved bits that are set.
    #[inline]
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (bytes, rest) =
            datagram.split_first_chunk::<{ Self::LEN }>().ok_or_else(|| truncated(datagram.len()))?;
        let carried = word(bytes, 2);
        let computed = checksum(bytes);
        if carried != computed {
            return Err(DecodeError::Checksum { carried, computed });
        }
        if bytes[0] & RESERVED != 0 {
            return Err(DecodeError::NotZero { what: "reserved bits", at: 0 });
        }
        let [_, _, _, _, p0, p1, p2, p3, p4, p5, p6, p7, fsn @ ..] = *bytes;
        let header = Self {
            kind: Kind::from_wire(bytes[0] >> 4)?,
            key_phase: bytes[0] & KEY_PHASE != 0,
            tos: bytes[1] >> 4,
            hop_limit: bytes[1] & 0x0f,
            pid: Pid(u64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7])),
            fsn: u32::from_be_bytes(fsn),
        };
        Ok((header, rest))
    }

    /// The part of the header that the seal protects: kind, key phase, type of service, path id and FSN. PID, hop limit
    /// and checksum are left out because relays rewrite them.
    #[inline]
    pub fn associated_data(&self, path: PathId) -> [u8; Self::ASSOCIATED_LEN] {
        let mut data = [0; Self::ASSOCIATED_LEN];
        data[0] = self.first_byte();
        data[1] = self.tos.min(Self::MAX_TOS) << 4;
        data[2..6].copy_from_slice(&path.0.to_be_bytes());
        data[6..].copy_from_slice(&self.fsn.to_be_bytes());
        data
    }

    fn first_byte(&self) -> u8 {
        (self.kind as u8) << 4 | if self.key_phase { KEY_PHASE } else { 0 }
    }
}

/// Prepares a datagram for the next hop, as a relay does: sets `new_pid`, lowers the hop limit by one and updates the
/// checksum incrementally. The header must have been decoded: this does not check it.
///
/// # Errors
/// [`DecodeError::HopLimit`] when the hop limit is used up, [`DecodeError::Truncated`] when the header is incomplete.
/// The bytes are unchanged then.
#[inline]
pub fn rewrite_for_hop(datagram: &mut [u8], new_pid: Pid) -> Result<(), DecodeError> {
    let len = datagram.len();
    let bytes = datagram.first_chunk_mut::<{ Header::LEN }>().ok_or_else(|| truncated(len))?;
    if bytes[1] & 0x0f == 0 {
        return Err(DecodeError::HopLimit);
    }
    let old_sum: u32 = WORDS_REWRITTEN.iter().map(|&at| u32::from(!word(bytes, at))).sum();
    bytes[1] -= 1;
    bytes[4..12].copy_from_slice(&new_pid.0.to_be_bytes());
    let new_sum: u32 = WORDS_REWRITTEN.iter().map(|&at| u32::from(word(bytes, at))).sum();
    // RFC 1624 §3, equation 3: HC' = ~(~HC + ~m + m').
    let checksum = !fold(u32::from(!word(bytes, 2)) + old_sum + new_sum);
    bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// Offsets of the 16-bit words that a relay rewrites, without the checksum.
const WORDS_REWRITTEN: [usize; 5] = [0, 4, 6, 8, 10];

/// The packet number closest to `expected_next` whose low 32 bits are `truncated` (RFC 9000 §A.3). `expected_next`
/// follows the highest number received on the path.
#[inline]
pub fn expand_fsn(truncated: u32, expected_next: Fsn) -> Fsn {
    const WINDOW: u64 = 1 << 32;
    let expected = expected_next.0;
    let candidate = expected & !(WINDOW - 1) | u64::from(truncated);
    if candidate.saturating_add(WINDOW / 2) <= expected && candidate <= VARINT_MAX - WINDOW {
        Fsn(candidate + WINDOW)
    } else if candidate > expected.saturating_add(WINDOW / 2) && candidate >= WINDOW {
        Fsn(candidate - WINDOW)
    } else {
        Fsn(candidate)
    }
}

/// RFC 1071 over the header as if its checksum field were zero.
#[inline]
fn checksum(bytes: &[u8; Header::LEN]) -> u16 {
    let sum = [0, 4, 6, 8, 10, 12, 14].iter().map(|&at| u32::from(word(bytes, at))).sum();
    !fold(sum)
}

#[inline]
fn word(bytes: &[u8; Header::LEN], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cold]
fn truncated(left: usize) -> DecodeError {
    DecodeError::Truncated { what: "header", at: 0, needed: Header::LEN as u64, left }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Kind; 7] = [
        Kind::Init,
        Kind::InitAck,
        Kind::Cookie,
        Kind::Data,
        Kind::Reset,
        Kind::RelayChallenge,
        Kind::RelayResponse,
    ];

    fn header() -> impl Strategy<Value = Header> {
        let kind = (0..KINDS.len()).prop_map(|index| KINDS[index]);
        (kind, any::<bool>(), 0..16u8, 0..16u8, any::<u64>(), any::<u32>()).prop_map(
            |(kind, key_phase, tos, hop_limit, pid, fsn)| Header {
                kind,
                key_phase,
                tos,
                hop_limit,
                pid: Pid(pid),
                fsn,
            },
        )
    }

    fn encoded(header: &Header) -> [u8; Header::LEN] {
        let mut bytes = [0xff; Header::LEN];
        header.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn every_header_comes_back_with_what_follows(header in header(), rest in prop::collection::vec(any::<u8>(), 0..9)) {
            let mut datagram = encoded(&header).to_vec();
            datagram.extend(&rest);
            prop_assert_eq!(Header::decode(&datagram), Ok((header, &rest[..])));
        }

        #[test]
        fn one_changed_bit_is_noticed(header in header(), bit in 0..Header::LEN * 8) {
            let mut bytes = encoded(&header);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn a_relay_writes_the_same_bytes_as_the_encoder(header in header(), pid in any::<u64>()) {
            let mut bytes = encoded(&header);
            let result = rewrite_for_hop(&mut bytes, Pid(pid));
            if header.hop_limit == 0 {
                prop_assert_eq!(result, Err(DecodeError::HopLimit));
                prop_assert_eq!(bytes, encoded(&header));
            } else {
                let next = Header { pid: Pid(pid), hop_limit: header.hop_limit - 1, ..header };
                prop_assert_eq!(bytes, encoded(&next));
                prop_assert_eq!(next.associated_data(PathId(3)), header.associated_data(PathId(3)));
            }
        }

        #[test]
        fn a_relay_does_not_hide_earlier_damage(header in header(), bit in 0..Header::LEN * 8, pid in any::<u64>()) {
            let mut bytes = encoded(&Header { hop_limit: 15, ..header });
            // Overwriting repairs those fields; the lowest hop limit bits keep it above 0.
            prop_assume!(!(12..16).contains(&bit) && !(32..96).contains(&bit));
            bytes[bit / 8] ^= 1 << (bit % 8);
            rewrite_for_hop(&mut bytes, Pid(pid)).unwrap();
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_make_the_header_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Header::decode(&bytes);
            let _ = rewrite_for_hop(&mut bytes.clone(), Pid(1));
        }

        #[test]
        fn a_packet_number_within_half_the_window_is_restored(
            expected in 0..VARINT_MAX - (1 << 32), ahead in any::<bool>(), distance in 0..(1u64 << 31) - 1,
        ) {
            let fsn = if ahead { expected + distance } else { expected.saturating_sub(distance) };
            prop_assert_eq!(expand_fsn(fsn as u32, Fsn(expected)), Fsn(fsn));
        }

        #[test]
        fn no_packet_number_overflows(truncated in any::<u32>(), expected in any::<u64>()) {
            let _ = expand_fsn(truncated, Fsn(expected));
        }
    }

    #[test]
    fn each_sealed_field_changes_the_associated_data_and_no_other_does() {
        let header = Header {
            kind: Kind::Data,
            key_phase: false,
            tos: 3,
            hop_limit: 7,
            pid: Pid(0x0123_4567_89ab_cdef),
            fsn: 0xfedc_ba98,
        };
        let data = header.associated_data(PathId(2));
        for changed in [
            Header { kind: Kind::Reset, ..header },
            Header { key_phase: true, ..header },
            Header { tos: 4, ..header },
            Header { fsn: header.fsn + 1, ..header },
        ] {
            assert_ne!(changed.associated_data(PathId(2)), data, "{changed:?}");
        }
        assert_ne!(header.associated_data(PathId(4)), data);
        for same in [Header { hop_limit: 6, ..header }, Header { pid: Pid(9), ..header }] {
            assert_eq!(same.associated_data(PathId(2)), data, "{same:?}");
        }
    }

    #[test]
    fn values_too_large_for_their_field_are_written_as_the_largest() {
        let header =
            Header { kind: Kind::Init, key_phase: true, tos: 99, hop_limit: 99, pid: Pid::HANDSHAKE, fsn: 0 };
        let (decoded, _) = Header::decode(&encoded(&header)).unwrap();
        assert_eq!((decoded.tos, decoded.hop_limit), (Header::MAX_TOS, Header::MAX_HOP_LIMIT));
        assert_eq!(decoded.associated_data(PathId::FIRST), header.associated_data(PathId::FIRST));
    }
}
