//! Targets for decoders: what was decoded stays the same when it is encoded and decoded again.

use std::net::{Ipv4Addr, SocketAddrV4};

use anabranch_overlay::controller::message as control;
use anabranch_overlay::port_mapping::{LIFETIME, PortRequest, read_nat_pmp_address};
use anabranch_overlay::sense::SenseMessage;
use anabranch_overlay::{MessageError, relay};
use anabranch_secure::{PublicKey, Ticket};
use anabranch_wire::{
    Header, Reach, decode_frames, decode_params, encode_frames, encode_params, packet_encoded_len,
};
use bytes::Bytes;

/// The clear header.
pub fn header(input: &[u8]) {
    if let Ok((header, _)) = Header::decode(input) {
        let mut out = [0; Header::LEN];
        header.encode(&mut out);
        assert_eq!(out, input[..Header::LEN]);
    }
}

/// The frames of a packet.
pub fn frames(input: &[u8]) {
    let Ok(frames) = decode_frames(Bytes::copy_from_slice(input)) else { return };
    let mut out = Vec::new();
    encode_frames(&frames, &mut out);
    assert_eq!(out.len(), packet_encoded_len(&frames));
    let again = decode_frames(out.into()).expect("what was written can be read");
    assert_eq!(again, frames);
}

/// Parameters of the handshake.
pub fn params(input: &[u8]) {
    let Ok(params) = decode_params(input) else { return };
    let mut out = Vec::new();
    encode_params(&params, &mut out);
    assert_eq!(decode_params(&out), Ok(params));
}

/// Tickets and keys in text form.
pub fn text(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(ticket) = text.parse::<Ticket>() {
        assert!(ticket.to_text().parse::<Ticket>().is_ok());
    }
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string().parse::<PublicKey>().ok(), Some(key));
    }
}

/// Messages between a client and a relay.
pub fn relay(input: &[u8]) {
    one(input, relay::Request::decode, relay::Request::encode);
    one(input, relay::Reply::decode, relay::Reply::encode);
}

/// Messages between a relay or a client and a controller.
pub fn controller(input: &[u8]) {
    one(input, control::Request::decode, control::Request::encode);
    one(input, control::Reply::decode, control::Reply::encode);
}

/// Messages between relays that measure.
pub fn sense(input: &[u8]) {
    let Ok(message) = SenseMessage::decode(input) else { return };
    assert_eq!(SenseMessage::decode(&message.encode()), Ok(message));
}

/// One message of a stream.
fn one<M: PartialEq + std::fmt::Debug>(
    input: &[u8],
    decode: impl Fn(&[u8]) -> Result<Option<(M, usize)>, MessageError>,
    encode: impl Fn(&M, &mut Vec<u8>),
) {
    let Ok(Some((message, len))) = decode(input) else { return };
    assert!((1..=input.len()).contains(&len));
    let mut out = Vec::new();
    encode(&message, &mut out);
    assert_eq!(decode(&out), Ok(Some((message, out.len()))));
}

/// Messages between the sender and the receiver of a transfer.
pub fn transfer(input: &[u8]) {
    if let Some((kind, body)) = input.split_first() {
        anabranch_transfer::check_message(*kind, body);
    }
}

/// Answers of routers that are asked for a port.
pub fn port_mapping(input: &[u8]) {
    let (inner, outer) =
        (SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    let request = PortRequest { inner, outer, nonce: [7; 12], lifetime: LIFETIME };
    let address = read_nat_pmp_address(input).and_then(Result::ok);
    let nat_pmp = request.read_nat_pmp(input, address.unwrap_or(Ipv4Addr::new(8, 8, 8, 8)));
    for granted in [request.read_pcp(input), nat_pmp].into_iter().flatten().flatten() {
        assert!((1..=LIFETIME).contains(&granted.lifetime) && granted.outer.port() > 0);
        assert_eq!(Reach::of((*granted.outer.ip()).into()), Reach::Public);
    }
}
