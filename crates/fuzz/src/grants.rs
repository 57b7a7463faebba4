//! Grants: only those that a controller signed are valid, and a relay survives whatever a controller signs.

use anabranch_overlay::grant::{self, ControllerKey, Grant, UnixTime};
use anabranch_overlay::relay::{
    Exit, Hop, Newcomer, Relay, RelayConfig, Request, Run, SessionId, Target, answer_challenge,
};
use anabranch_secure::PublicKey;
use anabranch_wire::{Header, Kind, PathId, Pid, Span, Time};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};

/// The context that precedes the bytes of a grant in its signature ([`grant`]).
const CONTEXT: &[u8] = b"anabranch 2026 grant\0";
const CLIENT: SessionId = SessionId(1);

/// An unsigned input, or one with a foreign signature.
pub fn unsigned(input: &[u8]) {
    let stranger = ControllerKey([7; 32]);
    assert!(grant::open(input, &[stranger]).is_err());
}

/// An input signed by a controller. Decoding returns the signed content, and a relay that receives the grant forwards
/// within its limits, at any time.
pub fn signed(input: &[u8]) {
    let controller = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).expect("any 32 bytes are a seed");
    let signature = controller.sign(&[CONTEXT, input].concat());
    let bytes = [input, signature.as_ref()].concat();
    let key = ControllerKey(controller.public_key().as_ref().try_into().expect("32 bytes"));
    let read = grant::read_own(&bytes);
    let Ok(grant) = grant::open(&bytes, &[key]) else {
        assert!(read.is_err(), "a grant that the controller signed is refused");
        return;
    };
    assert_eq!(read.as_ref(), Ok(&grant));
    let again = grant::GrantSigner::from_random([9; 32]).sign(&grant);
    assert_eq!(again, Ok(bytes.clone()), "decoding returns what was signed");
    let here = grant.relays.first().copied().unwrap_or(PublicKey::from_bytes([3; 32]));
    for now in [0, grant.not_before.0, grant.not_after.0, u64::MAX] {
        for tolerance in [0, 300, u64::MAX] {
            let _ = grant::judge(&grant, (&grant.client, &here), (UnixTime(now), tolerance));
        }
        show(&grant, &bytes, (key, here), UnixTime(now));
    }
}

/// Shows the grant to a relay, opens a flow with it, and sends.
fn show(grant: &Grant, bytes: &[u8], (controller, here): (ControllerKey, PublicKey), wall: UnixTime) {
    let mut now = Time::ZERO + Span::from_secs(1);
    let mut config = RelayConfig::new(here);
    config.controllers = vec![controller];
    config.exits = vec![Exit { socket: 0, local: [0, 0, 0, 0].into(), networks: Vec::new(), largest: 1_472 }];
    let mut relay = Relay::new(config, [1; 32], (now, wall));
    let client = Hop { socket: 0, address: ([203, 0, 113, 5], 1000).into() };
    relay.handle_session_opened(now, CLIENT, Newcomer::new(grant.client, None));
    relay.handle_session_path(CLIENT, PathId(0), Some(client));
    let target = Target::Address { address: ([198, 51, 99, 7], 9).into(), key: None };
    for request in [
        Request::Hello { version: 1 },
        Request::Show { grant: bytes.to_vec() },
        Request::Allocate { request: 0, via: PathId(0), target, out: Pid(5), back: Pid(6) },
    ] {
        relay.handle_request(now, CLIENT, request, None);
    }
    let mut forward = Pid(0);
    while let Some((_, reply)) = relay.poll_reply() {
        if let anabranch_overlay::relay::Reply::Allocated { forward: pid, .. } = reply {
            forward = pid;
        }
    }
    for _ in 0..4 {
        for sent in std::iter::from_fn(|| relay.poll_transmit(now)).collect::<Vec<_>>() {
            if let Some(mut answer) = answer_challenge(&sent.datagram, |_| true, None) {
                let run = Run { from: sent.to, stride: 64, ecn: 0 };
                relay.handle_run(now, run, &mut answer, &mut Vec::new());
            }
        }
        let mut packets = [0; 300];
        for packet in packets.chunks_mut(100) {
            Header { kind: Kind::Data, key_phase: false, tos: 3, hop_limit: 4, pid: forward, fsn: 1 }
                .encode(packet);
        }
        relay.handle_run(now, Run { from: client, stride: 100, ecn: 0 }, &mut packets, &mut Vec::new());
        let used: u64 = relay.usage().iter().map(|used| used.bytes).sum();
        assert!(used <= grant.limits.bytes, "{used} bytes forwarded of {}", grant.limits.bytes);
        now = relay.poll_timeout().unwrap_or(now).max(now).min(now + Span::from_secs(30));
        relay.handle_timeout(now);
    }
}
