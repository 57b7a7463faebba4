//! `docs/reference/vectors/wire.json` and this implementation agree, and `docs/reference/protocol.md` names every code.

use std::collections::BTreeSet;

use anabranch_wire::{
    Ack, AckPath, AddressFrame, ArrivalTime, Close, DatagramFrame, DatagramNumber, EcnCounts, Frame, Fsn,
    Header, KeyExchange, Kind, MarkedFrame, NewPid, Params, ParityFrame, PathId, PathRate, PathStatus,
    PathUse, Pid, Report, ResetToken, Span, StreamFrame, StreamId, abandon_reason, close_code, decode_frames,
    decode_params, encode_frames, encode_params, expand_fsn, packet_encoded_len, rewrite_for_hop,
};
use bytes::Bytes;
use serde_json::Value;

const VECTORS: &str = include_str!("../../../docs/reference/vectors/wire.json");
const PROTOCOL: &str = include_str!("../../../docs/reference/protocol.md");

fn list(path: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(VECTORS).expect("wire.json is JSON");
    all.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("{path} is a list")).clone()
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_else(|| panic!("{key} is text in {of}"))
}

/// A number, or one in decimal text when it is too large for a double.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value} is a number"))
}

fn field<T: TryFrom<u64>>(of: &Value, key: &str) -> T {
    T::try_from(number(&of[key])).ok().unwrap_or_else(|| panic!("{key} fits its type in {of}"))
}

fn bytes(of: &Value, key: &str) -> Vec<u8> {
    let digits = text(of, key);
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn fixed<const N: usize>(of: &Value, key: &str) -> [u8; N] {
    bytes(of, key).try_into().expect("the right length")
}

fn pid(of: &Value, key: &str) -> Pid {
    Pid(u64::from_be_bytes(fixed(of, key)))
}

fn path(of: &Value) -> PathId {
    PathId(field(of, "path"))
}

fn header(of: &Value) -> Header {
    let kind = match text(of, "kind") {
        "init" => Kind::Init,
        "init_ack" => Kind::InitAck,
        "cookie" => Kind::Cookie,
        "data" => Kind::Data,
        "reset" => Kind::Reset,
        "relay_challenge" => Kind::RelayChallenge,
        "relay_response" => Kind::RelayResponse,
        other => panic!("no kind {other}"),
    };
    Header {
        kind,
        key_phase: of["key_phase"].as_bool().expect("true or false"),
        tos: field(of, "tos"),
        hop_limit: field(of, "hop_limit"),
        pid: pid(of, "pid"),
        fsn: field(of, "fsn"),
    }
}

fn ack(of: &Value) -> Ack {
    let ranges = of["ranges"].as_array().expect("ranges");
    let ecn = of.get("ecn").map(|counts| EcnCounts {
        ect0: field(counts, "ect0"),
        ect1: field(counts, "ect1"),
        ce: field(counts, "ce"),
    });
    Ack {
        path: path(of),
        delay: Span::from_micros(field(of, "delay_us")),
        arrived: of.get("arrived_us").map(|_| ArrivalTime::from_micros(field(of, "arrived_us"))),
        ranges: ranges.iter().map(|range| number(&range[0])..number(&range[1]) + 1).collect(),
        ecn,
    }
}

fn path_frame(of: &Value) -> Option<Frame<Bytes>> {
    let address = || text(of, "address").parse().expect("an address");
    let token = || u64::from_be_bytes(fixed(of, "token"));
    Some(match text(of, "type") {
        "path_challenge" => Frame::PathChallenge { token: token() },
        "path_response" => Frame::PathResponse { token: token() },
        "new_pid" => Frame::NewPid(NewPid {
            path: path(of),
            pid: pid(of, "pid"),
            reset_token: ResetToken(fixed(of, "reset_token")),
        }),
        "path_abandon" => Frame::PathAbandon { path: path(of), reason: field(of, "reason") },
        "path_status" => {
            let usage = match text(of, "use") {
                "normal" => PathUse::Normal,
                "backup" => PathUse::Backup,
                "standby" => PathUse::Standby,
                "metered" => PathUse::Metered,
                "overflow" => PathUse::Overflow,
                other => panic!("no use {other}"),
            };
            Frame::PathStatus(PathStatus { path: path(of), sequence: field(of, "sequence"), usage })
        }
        "max_path_data" => Frame::MaxPathData { path: path(of), limit: field(of, "limit") },
        "max_path_rate" => Frame::MaxPathRate(PathRate {
            path: path(of),
            sequence: field(of, "sequence"),
            bits: field(of, "bits"),
        }),
        "ack_path" => Frame::AckPath(AckPath {
            sequence: field(of, "sequence"),
            path: (!of["path"].is_null()).then(|| path(of)),
        }),
        "add_address" => Frame::AddAddress(AddressFrame { id: field(of, "id"), address: address() }),
        "key_exchange" => {
            Frame::KeyExchange(KeyExchange { number: field(of, "number"), key: fixed(of, "key") })
        }
        "remove_address" => Frame::RemoveAddress { id: field(of, "id") },
        "observed_address" => Frame::ObservedAddress { path: path(of), address: address() },
        "report" => Frame::Report(Report {
            path: path(of),
            bytes: field(of, "bytes"),
            packets: field(of, "packets"),
            highest_fsn: Fsn(field(of, "highest_fsn")),
            highest_tsn: field(of, "highest_tsn"),
        }),
        _ => return None,
    })
}

fn frame(of: &Value) -> Frame<Bytes> {
    let stream = || StreamId(field(of, "stream"));
    let data = || Bytes::from(bytes(of, "data"));
    match text(of, "type") {
        "ping" => Frame::Ping,
        "padding" => Frame::Padding(field(of, "len")),
        "ack" => Frame::Ack(ack(of)),
        "stream" => Frame::Stream(StreamFrame {
            stream: stream(),
            offset: field(of, "offset"),
            fin: of["fin"].as_bool().expect("true or false"),
            data: data(),
        }),
        "datagram" => Frame::Datagram(DatagramFrame {
            class: field(of, "class"),
            flow: field(of, "flow"),
            data: data(),
        }),
        "marked" => Frame::Marked(MarkedFrame {
            datagram: DatagramFrame { class: field(of, "class"), flow: field(of, "flow"), data: data() },
            number: of.get("number").map(|value| DatagramNumber {
                value: number(value),
                is_coded: of["coded"].as_bool().expect("true or false"),
            }),
            place: of.get("place").map(number),
        }),
        "parity" => Frame::Parity(ParityFrame {
            class: field(of, "class"),
            first: field(of, "first"),
            count: field(of, "count"),
            parities: field(of, "parities"),
            index: field(of, "index"),
            head: fixed(of, "head"),
            data: data(),
        }),
        "reset_stream" => Frame::ResetStream {
            stream: stream(),
            code: field(of, "code"),
            final_size: field(of, "final_size"),
        },
        "stop_sending" => Frame::StopSending { stream: stream(), code: field(of, "code") },
        "max_data" => Frame::MaxData { limit: field(of, "limit") },
        "max_stream_data" => Frame::MaxStreamData {
            stream: stream(),
            limit: field(of, "limit"),
            received: field(of, "received"),
        },
        "max_streams" => Frame::MaxStreams { limit: field(of, "limit") },
        "shutdown" => Frame::Shutdown,
        "shutdown_ack" => Frame::ShutdownAck,
        "close" => Frame::Close(Close { code: field(of, "code"), reason: text(of, "reason").to_owned() }),
        other => path_frame(of).unwrap_or_else(|| panic!("no frame {other}")),
    }
}

#[test]
fn headers_are_as_published_before_and_after_a_relay() {
    for vector in list("/header") {
        let (name, header, published) = (text(&vector, "name"), header(&vector), bytes(&vector, "bytes"));
        let mut written = [0; Header::LEN];
        header.encode(&mut written);
        assert_eq!(written[..], published, "{name}");
        assert_eq!(Header::decode(&published), Ok((header, &[][..])), "{name}");
        let associated = bytes(&vector, "associated_data");
        assert_eq!(header.associated_data(path(&vector))[..], associated, "{name}");
        if vector.get("next_pid").is_some() {
            rewrite_for_hop(&mut written, pid(&vector, "next_pid")).expect("a hop is left");
            assert_eq!(written[..], bytes(&vector, "after_hop"), "{name}");
            let (forwarded, _) = Header::decode(&written).expect("a header");
            assert_eq!(forwarded.associated_data(path(&vector))[..], associated, "{name}");
        }
    }
}

#[test]
fn packet_numbers_are_restored_as_published() {
    for vector in list("/expand_fsn") {
        let restored = expand_fsn(field(&vector, "truncated"), Fsn(field(&vector, "expected_next")));
        assert_eq!(restored, Fsn(field(&vector, "fsn")), "{vector}");
    }
}

#[test]
fn packets_are_as_published() {
    let mut types = BTreeSet::new();
    for vector in list("/packet") {
        let name = text(&vector, "name");
        let fields = vector["frames"].as_array().expect("frames");
        types.extend(fields.iter().map(|of| text(of, "type").to_owned()));
        let frames: Vec<_> = fields.iter().map(frame).collect();
        let mut written = Vec::new();
        encode_frames(&frames, &mut written);
        assert_eq!(written, bytes(&vector, "bytes"), "{name}");
        assert_eq!(written.len(), packet_encoded_len(&frames), "{name}");
        assert_eq!(decode_frames(written.into()).unwrap().as_slice(), frames.as_slice(), "{name}");
    }
    assert_eq!(types.len(), 28, "every frame has a vector: {types:?}");
}

#[test]
fn numbers_are_as_published() {
    for vector in list("/varint") {
        let limit = number(&vector["value"]);
        let mut written = Vec::new();
        encode_frames(&[Frame::MaxData { limit }], &mut written);
        assert_eq!(written[1..], bytes(&vector, "bytes"), "{limit}");
    }
}

#[test]
fn parameters_are_as_published() {
    for vector in list("/params") {
        let params = Params {
            pid: pid(&vector, "pid"),
            reset_token: ResetToken(fixed(&vector, "reset_token")),
            initial_max_data: field(&vector, "initial_max_data"),
            initial_max_stream_data: field(&vector, "initial_max_stream_data"),
            initial_max_streams: field(&vector, "initial_max_streams"),
            max_paths: field(&vector, "max_paths"),
            max_udp_payload: field(&vector, "max_udp_payload"),
            max_datagram: field(&vector, "max_datagram"),
            idle_timeout_ms: field(&vector, "idle_timeout_ms"),
            max_ack_delay_us: field(&vector, "max_ack_delay_us"),
            max_block: vector.get("max_block").map_or(0, |_| field(&vector, "max_block")),
            ordered_classes: vector.get("ordered_classes").map_or(0, |_| field(&vector, "ordered_classes")),
            arrival_times: vector
                .get("arrival_times")
                .is_some_and(|_| field::<u64>(&vector, "arrival_times") == 1),
            path_rates: vector.get("path_rates").is_some_and(|_| field::<u64>(&vector, "path_rates") == 1),
        };
        assert_eq!(decode_params(&bytes(&vector, "bytes")).as_ref(), Ok(&params), "{vector}");
        if vector.get("decode_only").is_none() {
            let mut written = Vec::new();
            encode_params(&params, &mut written);
            assert_eq!(written, bytes(&vector, "bytes"));
        }
    }
}

#[test]
fn what_must_be_refused_is_refused() {
    for vector in list("/refused/header") {
        assert!(Header::decode(&bytes(&vector, "bytes")).is_err(), "{vector}");
    }
    for vector in list("/refused/packet") {
        assert!(decode_frames(bytes(&vector, "bytes").into()).is_err(), "{vector}");
    }
    for vector in list("/refused/params") {
        assert!(decode_params(&bytes(&vector, "bytes")).is_err(), "{vector}");
    }
}

#[test]
fn the_protocol_page_lists_every_code_with_its_number() {
    for (name, code) in [
        ("NONE", close_code::NONE),
        ("INTERNAL", close_code::INTERNAL),
        ("FLOW_CONTROL", close_code::FLOW_CONTROL),
        ("STREAM_LIMIT", close_code::STREAM_LIMIT),
        ("STREAM_STATE", close_code::STREAM_STATE),
        ("FINAL_SIZE", close_code::FINAL_SIZE),
        ("ACK_OF_UNSENT", close_code::ACK_OF_UNSENT),
        ("PATH_LIMIT", close_code::PATH_LIMIT),
        ("DATAGRAM_SIZE", close_code::DATAGRAM_SIZE),
        ("PARAMS", close_code::PARAMS),
        ("FRAME_ENCODING", close_code::FRAME_ENCODING),
        ("PROTOCOL_VIOLATION", close_code::PROTOCOL_VIOLATION),
        ("NO_PATH", close_code::NO_PATH),
        ("NOT_ALLOWED", close_code::NOT_ALLOWED),
        ("KEYS_EXHAUSTED", close_code::KEYS_EXHAUSTED),
        ("BUSY", close_code::BUSY),
    ] {
        let row = format!("\n{code:#05x}  {name} ");
        assert!(PROTOCOL.contains(&row), "docs/reference/protocol.md has no row{row}");
    }
    for (name, reason) in [
        ("REQUESTED", abandon_reason::REQUESTED),
        ("UNREACHABLE", abandon_reason::UNREACHABLE),
        ("ADDRESS_GONE", abandon_reason::ADDRESS_GONE),
        ("TOO_MANY", abandon_reason::TOO_MANY),
        ("SUPPRESSED", abandon_reason::SUPPRESSED),
    ] {
        let row = format!("\n{reason}       {name} ");
        assert!(PROTOCOL.contains(&row), "docs/reference/protocol.md has no row{row}");
    }
}
