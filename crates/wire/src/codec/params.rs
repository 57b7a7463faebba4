//! Encodes and decodes the parameters of the handshake.
//!
//! They are a list of (id, length, value), with ids and lengths as variable-length integers, in ascending order of id, so
//! that no id appears twice. Unknown ids are skipped, so later versions can add to the list. Ids 1 to 10 are required;
//! the others are 0 when absent.

use bytes::BufMut;

use super::reader::Reader;
use super::{MAX_ACK_DELAY_US, MAX_PATHS, MIN_UDP_PAYLOAD};
use crate::varint::{VARINT_MAX, put_varint, varint_len};
use crate::{DecodeError, MAX_BLOCK, Params, Pid, ResetToken};

mod id {
    pub const PID: u64 = 1;
    pub const RESET_TOKEN: u64 = 2;
    pub const INITIAL_MAX_DATA: u64 = 3;
    pub const INITIAL_MAX_STREAM_DATA: u64 = 4;
    pub const INITIAL_MAX_STREAMS: u64 = 5;
    pub const MAX_PATHS: u64 = 6;
    pub const MAX_UDP_PAYLOAD: u64 = 7;
    pub const MAX_DATAGRAM: u64 = 8;
    pub const IDLE_TIMEOUT_MS: u64 = 9;
    pub const MAX_ACK_DELAY_US: u64 = 10;
    pub const MAX_BLOCK: u64 = 11;
    pub const ORDERED_CLASSES: u64 = 12;
    pub const ARRIVAL_TIMES: u64 = 13;
    pub const PATH_RATES: u64 = 14;
}

/// The integer parameters: id, name, minimum, maximum.
const LIMITS: [(u64, &str, u64, u64); 12] = [
    (id::INITIAL_MAX_DATA, "initial_max_data", 0, VARINT_MAX),
    (id::INITIAL_MAX_STREAM_DATA, "initial_max_stream_data", 0, VARINT_MAX),
    (id::INITIAL_MAX_STREAMS, "initial_max_streams", 0, VARINT_MAX),
    (id::MAX_PATHS, "max_paths", 1, MAX_PATHS as u64),
    (id::MAX_UDP_PAYLOAD, "max_udp_payload", MIN_UDP_PAYLOAD as u64, u16::MAX as u64),
    (id::MAX_DATAGRAM, "max_datagram", 0, u16::MAX as u64),
    (id::IDLE_TIMEOUT_MS, "idle_timeout_ms", 0, u32::MAX as u64),
    (id::MAX_ACK_DELAY_US, "max_ack_delay_us", 0, MAX_ACK_DELAY_US as u64),
    (id::MAX_BLOCK, "max_block", 0, MAX_BLOCK as u64),
    (id::ORDERED_CLASSES, "ordered_classes", 0, u16::MAX as u64),
    (id::ARRIVAL_TIMES, "arrival_times", 0, 1),
    (id::PATH_RATES, "path_rates", 0, 1),
];

/// Parameters from this id on may be absent, which means 0.
const FIRST_OPTIONAL: u64 = id::MAX_BLOCK;

/// Appends the parameters.
///
/// # Panics
/// When `out` has no room for them and cannot grow.
pub fn encode_params(params: &Params, out: &mut impl BufMut) {
    put_varint(out, id::PID);
    put_varint(out, 8);
    out.put_u64(params.pid.0);
    put_varint(out, id::RESET_TOKEN);
    put_varint(out, params.reset_token.0.len() as u64);
    out.put_slice(&params.reset_token.0);
    let integers = [
        params.initial_max_data,
        params.initial_max_stream_data,
        params.initial_max_streams,
        params.max_paths.into(),
        params.max_udp_payload.into(),
        params.max_datagram.into(),
        params.idle_timeout_ms.into(),
        params.max_ack_delay_us.into(),
        params.max_block.into(),
        params.ordered_classes.into(),
        params.arrival_times.into(),
        params.path_rates.into(),
    ];
    for ((id, ..), value) in LIMITS.iter().zip(integers) {
        if *id >= FIRST_OPTIONAL && value == 0 {
            continue;
        }
        put_varint(out, *id);
        put_varint(out, varint_len(value) as u64);
        put_varint(out, value);
    }
}

/// Reads the parameters, which must fill `bytes`.
///
/// # Errors
/// A [`DecodeError`] when one is missing, repeated, out of order, of the wrong length or outside its limits.
pub fn decode_params(bytes: &[u8]) -> Result<Params, DecodeError> {
    let mut reader = Reader::new(bytes);
    let mut pid: Option<Pid> = None;
    let mut reset_token: Option<ResetToken> = None;
    let mut integers: [Option<u64>; LIMITS.len()] = [None; LIMITS.len()];
    let mut lowest_allowed = 0;
    while reader.left() > 0 {
        let id = reader.varint("parameter id")?;
        if id < lowest_allowed {
            return Err(DecodeError::ParamOrder { id, at: reader.at() });
        }
        lowest_allowed = id + 1;
        let len = reader.varint("parameter length")?;
        if len > reader.left() as u64 {
            return Err(reader.truncated("parameter", len));
        }
        let end = reader.at() + len as usize;
        match id {
            id::PID => pid = Some(reader.pid()?),
            id::RESET_TOKEN => reset_token = Some(reader.reset_token()?),
            _ => match LIMITS.iter().position(|limit| limit.0 == id) {
                Some(index) => {
                    let (_, what, min, max) = LIMITS[index];
                    integers[index] = Some(reader.varint_within(what, min, max)?);
                }
                None => {
                    reader.slice("parameter", len as usize)?;
                }
            },
        }
        if reader.at() != end {
            return Err(DecodeError::ParamLength { id, at: end, len: len as usize });
        }
    }
    let integer = |id: u64| {
        let index = (id - id::INITIAL_MAX_DATA) as usize;
        let usual = (id >= FIRST_OPTIONAL).then_some(0);
        integers[index].or(usual).ok_or(DecodeError::ParamMissing { id })
    };
    Ok(Params {
        pid: pid.ok_or(DecodeError::ParamMissing { id: id::PID })?,
        reset_token: reset_token.ok_or(DecodeError::ParamMissing { id: id::RESET_TOKEN })?,
        initial_max_data: integer(id::INITIAL_MAX_DATA)?,
        initial_max_stream_data: integer(id::INITIAL_MAX_STREAM_DATA)?,
        initial_max_streams: integer(id::INITIAL_MAX_STREAMS)?,
        max_paths: integer(id::MAX_PATHS)? as u32,
        max_udp_payload: integer(id::MAX_UDP_PAYLOAD)? as u16,
        max_datagram: integer(id::MAX_DATAGRAM)? as u16,
        idle_timeout_ms: integer(id::IDLE_TIMEOUT_MS)? as u32,
        max_ack_delay_us: integer(id::MAX_ACK_DELAY_US)? as u32,
        max_block: integer(id::MAX_BLOCK)? as u8,
        ordered_classes: integer(id::ORDERED_CLASSES)? as u16,
        arrival_times: integer(id::ARRIVAL_TIMES)? == 1,
        path_rates: integer(id::PATH_RATES)? == 1,
    })
}
