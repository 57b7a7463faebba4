//! `docs/reference/vectors/relay.json` holds the output of this code. `ANABRANCH_WRITE_VECTORS=1` writes it again.

use serde_json::{Value, json};

use super::*;
use crate::grant::GuestSecret;
use anabranch_secure::consent::{Question, challenge};

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn requests() -> Vec<Request> {
    let target = Target::Address { address: "[2606:4700::1]:4433".parse().unwrap(), key: Some(key(50)) };
    let plain = Target::Address { address: "8.8.8.8:4433".parse().unwrap(), key: None };
    let allocate = |target, out| Request::Allocate {
        request: 7,
        via: PathId(2),
        target,
        out: Pid(out),
        back: Pid(0xb0),
    };
    vec![
        Request::Hello { version: 1 },
        allocate(plain, 0xa0),
        allocate(target, 0),
        allocate(Target::Host, 0),
        Request::Redirect { flow: FlowId(3), out: Pid(4), back: Pid(5) },
        Request::Release { flow: FlowId(3) },
        Request::Host { share: ShareId(6), hash: TicketSecret::from_random([1; 16]), flows: 4 },
        Request::Unhost { share: ShareId(6) },
    ]
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Hello { version: 1 },
        Reply::Granted { id: GrantId([4; 16]), limits: limits(8, 1_000.0) },
        Reply::Allocated { request: 7, flow: FlowId(3), forward: Pid(0xf0), back: Pid(0xf1) },
        Reply::Refused { request: 7, why: Refused::NextHopDenied },
        Reply::Flow { flow: FlowId(3), state: FlowState::Ready },
        Reply::Hosting { share: ShareId(6) },
        Reply::Draining { seconds: 30 },
    ]
}

fn vectors() -> Value {
    let bytes = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        encode(&mut out);
        hex(&out)
    };
    let request = |request: &Request| json!({ "message": format!("{request:?}"), "bytes": bytes(&|out| request.encode(out)) });
    let reply =
        |reply: &Reply| json!({ "message": format!("{reply:?}"), "bytes": bytes(&|out| reply.encode(out)) });
    let question = Question { reference: 0x0102, token: 0x0304 };
    let (known, handshake) = (challenge(Pid(9), question, None), challenge(Pid(0), question, Some(&key(50))));
    let guest = GuestSecret::new(&TicketSecret::from_random([3; 16]), &key(100));
    json!({
        "keys": "the public key of number n is that of the secret key of 32 bytes n",
        "requests": requests().iter().map(request).collect::<Vec<_>>(),
        "replies": replies().iter().map(reply).collect::<Vec<_>>(),
        "challenge": {
            "pid_9": hex(&known),
            "pid_9_response": hex(&answer_challenge(&known, |_| true, None).unwrap()),
            "pid_0_to_key_50": hex(&handshake),
            "pid_0_response": hex(&answer_challenge(&handshake, |_| false, Some(&key(50))).unwrap()),
        },
        "grant": {
            "signing_seed": hex(&[99; 32]),
            "controller": hex(&signer().public().0),
            "client": hex(key(5).as_bytes()),
            "relay": hex(key(100).as_bytes()),
            "bytes": hex(&signer().sign(&grant(1, 5)).unwrap()),
        },
        "guest": {
            "ticket_secret": hex(&[3; 16]),
            "relay": hex(key(100).as_bytes()),
            "share": hex(&guest.share().0.to_be_bytes()),
            "hash": hex(guest.hash().expose()),
        },
    })
}

#[test]
fn the_vectors_in_the_documentation_are_what_is_written() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/vectors/relay.json");
    if std::env::var_os("ANABRANCH_WRITE_VECTORS").is_some() {
        std::fs::write(path, serde_json::to_string_pretty(&vectors()).unwrap() + "\n").unwrap();
    }
    let documented: Value =
        serde_json::from_str(include_str!("../../../../../docs/reference/vectors/relay.json")).unwrap();
    assert_eq!(documented, vectors());
}
