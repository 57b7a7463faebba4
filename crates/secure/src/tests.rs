//! `docs/reference/vectors/secure.json` matches this implementation: the tests recompute every vector from its inputs.

use std::net::SocketAddr;

use anabranch_wire::{Fsn, Header, Kind, PathId, Pid, Side, Span, TAG_LEN, Time};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::handshake::{SessionKeys, derive_psk};
use crate::{
    Admission, CookieJar, Dial, Envelope, Initiator, Limits, NodeKey, Protection, RelayHint, ResetKey,
    ShareId, Ticket, TicketSecret, noise, read_init,
};

const PUBLISHED: &str = include_str!("../../../docs/reference/vectors/secure.json");
const FROM: &str = "192.0.2.1:4000";

fn hex(bytes: impl AsRef<[u8]>) -> String {
    HEXLOWER.encode(bytes.as_ref())
}

/// The recomputed bytes of a section's vectors must equal the published ones.
fn assert_published(section: &str, made: &Value) {
    let published: Value = serde_json::from_str(PUBLISHED).unwrap();
    assert_eq!(&published[section], made, "section {section} should be\n{made:#}");
}

#[test]
fn keys_and_tickets_are_written_as_published() {
    let node = NodeKey::from_random([1; 32]);
    let address: SocketAddr = FROM.parse().unwrap();
    let ticket = Ticket {
        node: node.public(),
        addresses: vec![address, "[2001:db8::1]:4001".parse().unwrap()],
        relays: vec![RelayHint { node: NodeKey::from_random([2; 32]).public(), addresses: vec![address] }],
        share: ShareId(7),
        secret: TicketSecret::from_random([5; 16]),
        expires: Some(1_800_000_000),
    };
    assert_published(
        "text",
        &json!({
            "secret_key": hex([1; 32]),
            "public_key": hex(node.public().as_bytes()),
            "public_key_text": node.public().to_string(),
            "secret_key_line": node.to_file_text().lines().last(),
            "ticket_relay": hex(ticket.relays[0].node.as_bytes()),
            "ticket": ticket.to_text().as_str(),
        }),
    );
}

fn handshake(credential: Option<&(ShareId, TicketSecret)>) -> Value {
    let (client, server) = (NodeKey::from_random([1; 32]), NodeKey::from_random([2; 32]));
    let (client_seed, server_seed) = ([3; 32], [4; 32]);
    let psk =
        credential.as_ref().map_or(Zeroizing::new([0; 32]), |(share, secret)| derive_psk(*share, secret));
    let dial = Dial { remote: server.public(), credential: credential.cloned() };
    let mut initiator =
        Initiator::new(&client, &dial, Pid(0x0102_0304), b"from client", client_seed).unwrap();
    let init = initiator.init_body(None);
    let jar = CookieJar::new(server.public(), [6; 32]);
    let now = Time::ZERO + Span::from_secs(1);
    let Admission::Challenge { body: cookie_body, .. } = jar.admit(now, FROM.parse().unwrap(), &init) else {
        panic!("no cookie was asked for");
    };
    let cookie = initiator.open_cookie(&cookie_body).unwrap();
    let proven = initiator.init_body(Some(&cookie));
    assert_eq!(jar.admit(now, FROM.parse().unwrap(), &proven), Admission::Proceed);
    let pending = read_init(&server, &proven, server_seed).unwrap();
    let accepted = pending.accept(credential.map(|(_, secret)| secret), b"from server").unwrap();
    let (keys, _) = initiator.handle_ack(&accepted.body).unwrap();
    // Zeros at the end are left out.
    let unpadded =
        |body: &[u8]| hex(&body[..body.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)]);
    json!({
        "client_secret": hex(client.secret()),
        "server_secret": hex(server.secret()),
        "client_ephemeral": hex(noise::tests::ephemeral(client_seed)),
        "server_ephemeral": hex(noise::tests::ephemeral(server_seed)),
        "share": credential.map(|(share, _)| share.0),
        "ticket_secret": credential.map(|(_, secret)| hex(secret.expose())),
        "psk": hex(psk.as_slice()),
        "reply_pid": "0000000001020304",
        "client_params": hex(b"from client"),
        "server_params": hex(b"from server"),
        "init_without_cookie": unpadded(&init),
        "cookie_body": hex(&cookie_body),
        "init_with_cookie": unpadded(&proven),
        "init_ack": unpadded(&accepted.body),
        "client_to_server": hex(keys.send.as_slice()),
        "server_to_client": hex(keys.receive.as_slice()),
        "id": hex(keys.id),
    })
}

#[test]
fn handshakes_go_as_published() {
    let ticket = (ShareId(7), TicketSecret::from_random([5; 16]));
    assert_published("handshake", &json!([handshake(None), handshake(Some(&ticket))]));
}

/// The key and mask of a phase by the formulas of docs/reference/protocol.md, without using the chain.
fn phase_by_formula(secret: [u8; 32], phase: u32) -> ([u8; 16], [u8; 12]) {
    let secret =
        (0..phase).fold(secret, |secret, _| blake3::derive_key("anabranch 2026 next key phase", &secret));
    let mut hasher = blake3::Hasher::new_derive_key("anabranch 2026 packet key");
    hasher.update(&secret);
    let mut material = [0; 28];
    hasher.finalize_xof().fill(&mut material);
    (material[..16].try_into().unwrap(), material[16..].try_into().unwrap())
}

fn packet(phase: u32, path: PathId, fsn: Fsn) -> Value {
    let secret = [9; 32];
    let keys = |send, receive, side| SessionKeys {
        send: Zeroizing::new(send),
        receive: Zeroizing::new(receive),
        side,
        id: [0; 32],
    };
    let (mut here, mut there) = (
        Protection::new(&keys(secret, [8; 32], Side::Client), Limits::default(), Time::ZERO),
        Protection::new(&keys([8; 32], secret, Side::Server), Limits::default(), Time::ZERO),
    );
    let mut header = Header {
        kind: Kind::Data,
        key_phase: false,
        tos: 2,
        hop_limit: 8,
        pid: Pid(0x55),
        fsn: fsn.0 as u32,
    };
    // Both ends send on a separate path until the phase is reached.
    for step in 0..=u64::from(phase) {
        let now = Time::ZERO + Span::from_secs(step * 200);
        for (from, to) in [(true, false), (false, true)] {
            let (from, to) = if from && !to { (&mut here, &mut there) } else { (&mut there, &mut here) };
            header.key_phase = from.key_phase(now);
            let envelope = Envelope::new(&header, PathId(u32::MAX), Fsn(step));
            let mut buffer = [0; TAG_LEN];
            from.seal(&envelope, &mut buffer).unwrap();
            to.open(now, &envelope, &mut buffer).unwrap();
            from.handle_acked(PathId(u32::MAX), Fsn(step));
        }
    }
    assert_eq!(here.phases(), u64::from(phase));
    header.key_phase = phase % 2 == 1;
    let mut buffer = [b"frames".to_vec(), vec![0; TAG_LEN]].concat();
    here.seal(&Envelope::new(&header, path, fsn), &mut buffer).unwrap();

    let (key, mask) = phase_by_formula(secret, phase);
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&path.0.to_be_bytes());
    nonce[4..].copy_from_slice(&fsn.0.to_be_bytes());
    let nonce: Vec<u8> = nonce.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
    let mut again = b"frames".to_vec();
    let sealer = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
    let nonce_value = Nonce::try_assume_unique_for_key(&nonce).unwrap();
    sealer
        .seal_in_place_append_tag(nonce_value, Aad::from(header.associated_data(path)), &mut again)
        .unwrap();
    assert_eq!(hex(&again), hex(&buffer));
    json!({
        "secret": hex(secret),
        "phase": phase,
        "key": hex(key),
        "mask": hex(mask),
        "path": path.0,
        "fsn": fsn.0,
        "nonce": hex(nonce),
        "associated_data": hex(header.associated_data(path)),
        "frames": hex(b"frames"),
        "sealed": hex(&buffer),
    })
}

#[test]
fn packets_are_sealed_as_published() {
    assert_published(
        "packet",
        &json!([
            packet(0, PathId(0), Fsn(0)),
            packet(0, PathId(2), Fsn(0x1_2345_6789)),
            packet(1, PathId(2), Fsn(7)),
            packet(2, PathId(7), Fsn(8)),
        ]),
    );
}

/// A fresh exchange in phase 0: its secret, the secret of the client's direction in phase 1, and a packet under it.
#[test]
fn a_fresh_secret_enters_the_keys_as_published() {
    let keys = |send: [u8; 32], receive, side| SessionKeys {
        send: Zeroizing::new(send),
        receive: Zeroizing::new(receive),
        side,
        id: [0; 32],
    };
    let limits = Limits { exchange_after: Span::ZERO, retention: Span::ZERO, ..Limits::default() };
    let (now, path) = (Time::ZERO, PathId(2));
    let mut client = Protection::new(&keys([9; 32], [8; 32], Side::Client), limits, now);
    let mut server = Protection::new(&keys([8; 32], [9; 32], Side::Server), limits, now);
    let mut header =
        Header { kind: Kind::Data, key_phase: false, tos: 2, hop_limit: 4, pid: Pid(0x55), fsn: 0 };
    let mut pass = |from: &mut Protection, to: &mut Protection, fsn: u32| {
        header = Header { key_phase: from.key_phase(now), fsn, ..header };
        let envelope = Envelope::new(&header, path, Fsn(u64::from(fsn)));
        let mut buffer = [b"frames".to_vec(), vec![0; TAG_LEN]].concat();
        from.seal(&envelope, &mut buffer).unwrap();
        let sealed = hex(&buffer);
        to.open(now, &envelope, &mut buffer).unwrap();
        (header, sealed)
    };
    pass(&mut client, &mut server, 0);
    pass(&mut server, &mut client, 0);
    let offer = client.exchange(now, None, [3; 32]).unwrap().half.unwrap();
    let answered = server.exchange(now, Some(&offer), [4; 32]).unwrap();
    let answer = answered.half.unwrap();
    client.exchange(now, Some(&answer), [5; 32]).unwrap();
    let (header, sealed) = pass(&mut client, &mut server, 1);
    assert_eq!((client.phases(), server.phases()), (1, 1));

    // By the formulas of docs/reference/protocol.md, without using the chain.
    let shared = NodeKey::from_random([3; 32]).agree(&answer.key).unwrap();
    let parts = [shared.as_slice(), &offer.key, &answer.key].concat();
    let fresh = blake3::derive_key("anabranch 2026 fresh secret", &parts);
    let hashed = blake3::derive_key("anabranch 2026 next key phase", &[9; 32]);
    let mixed = blake3::derive_key("anabranch 2026 fresh key phase", &[hashed, fresh].concat());
    assert_eq!(answered.fresh.unwrap().expose(), fresh);
    assert_published(
        "fresh",
        &json!({
            "secret": hex([9; 32]),
            "offered_secret": hex([3; 32]),
            "offered": hex(offer.key),
            "answered_secret": hex([4; 32]),
            "answered": hex(answer.key),
            "shared": hex(shared.as_slice()),
            "fresh": hex(fresh),
            "secret_of_phase_1_without": hex(hashed),
            "secret_of_phase_1": hex(mixed),
            "path": path.0,
            "fsn": header.fsn,
            "associated_data": hex(header.associated_data(path)),
            "frames": hex(b"frames"),
            "sealed": sealed,
        }),
    );
}

#[test]
fn reset_tokens_are_as_published() {
    let token = ResetKey::from_random([1; 32]).token(Pid(5));
    assert_published(
        "reset",
        &json!({ "key": hex([1; 32]), "pid": "0000000000000005", "token": hex(token.0) }),
    );
}
