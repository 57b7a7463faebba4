use super::*;
use crate::{Admission, CookieJar, PublicKey, ResetKey, cookie};
use anabranch_wire::{Pid, Span, Time};
use std::net::SocketAddr;

const PARAMS: &[u8] = b"parameters of the client";
const ANSWER: &[u8] = b"parameters of the server";

fn client() -> NodeKey {
    NodeKey::from_random([1; 32])
}

fn server() -> NodeKey {
    NodeKey::from_random([2; 32])
}

fn ticket(byte: u8) -> (ShareId, TicketSecret) {
    (ShareId(77), TicketSecret::from_random([byte; 16]))
}

fn dial(credential: Option<(ShareId, TicketSecret)>) -> Initiator {
    let dial = Dial { remote: server().public(), credential };
    Initiator::new(&client(), &dial, Pid(42), PARAMS, [3; 32]).unwrap()
}

/// Writes the right mac1 at the end of the first `len` bytes after a change, as an attacker who knows the public key can.
fn with_mac1(receiver: &NodeKey, mut message: Vec<u8>, len: usize) -> Vec<u8> {
    cookie::put_mac1(&receiver.public(), &mut message[..len]);
    message
}

fn assert_keys_fit(client: &SessionKeys, server: &SessionKeys) {
    assert_eq!(client.send, server.receive);
    assert_eq!(client.receive, server.send);
    assert_ne!(client.send, client.receive);
    assert_eq!(client.id, server.id);
}

#[test]
fn without_a_ticket_both_ends_agree_on_keys_and_read_each_others_parameters() {
    let mut initiator = dial(None);
    let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    assert_eq!(pending.remote, client().public());
    assert_eq!(pending.share, None);
    assert_eq!(pending.params, PARAMS);
    let accepted = pending.accept(None, ANSWER).unwrap();
    let (keys, params) = initiator.handle_ack(&accepted.body).unwrap();
    assert_eq!(params, ANSWER);
    assert_keys_fit(&keys, &accepted.keys);
}

#[test]
fn with_a_ticket_the_server_learns_the_share_and_both_ends_agree() {
    let mut initiator = dial(Some(ticket(5)));
    let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    assert_eq!(pending.share, Some(ShareId(77)));
    let accepted = pending.accept(Some(&ticket(5).1), ANSWER).unwrap();
    let (keys, params) = initiator.handle_ack(&accepted.body).unwrap();
    assert_eq!(params, ANSWER);
    assert_keys_fit(&keys, &accepted.keys);
}

#[test]
fn a_client_with_the_wrong_secret_gets_no_keys() {
    let mut initiator = dial(Some(ticket(6)));
    let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    let accepted = pending.accept(Some(&ticket(5).1), ANSWER).unwrap();
    assert_eq!(initiator.handle_ack(&accepted.body).unwrap_err(), HandshakeError::NotAuthentic);
}

#[test]
fn the_secret_of_one_share_does_not_open_another() {
    let (share, secret) = ticket(5);
    assert_ne!(derive_psk(share, &secret), derive_psk(ShareId(share.0 + 1), &secret));
}

#[test]
fn secret_and_credential_must_match() {
    let pending = |credential| read_init(&server(), &dial(credential).init_body(None), [4; 32]).unwrap();
    let secret = ticket(5).1;
    assert_eq!(pending(Some(ticket(5))).accept(None, ANSWER).unwrap_err(), HandshakeError::WrongCredential);
    assert_eq!(pending(None).accept(Some(&secret), ANSWER).unwrap_err(), HandshakeError::WrongCredential);
}

#[test]
fn a_refusal_is_understood_with_and_without_a_ticket() {
    for credential in [None, Some(ticket(5))] {
        for why in [Refusal::NotAuthorised, Refusal::TicketNotValid, Refusal::Busy, Refusal::Other(99)] {
            let mut initiator = dial(credential.clone());
            let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
            let body = pending.refuse(why).unwrap();
            assert_eq!(initiator.handle_ack(&body).unwrap_err(), HandshakeError::Refused(why));
        }
    }
}

#[test]
fn a_server_that_ignores_the_ticket_cannot_accept() {
    let mut initiator = dial(Some(ticket(5)));
    let mut pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    pending.share = None;
    let accepted = pending.accept(None, ANSWER).unwrap();
    assert_eq!(initiator.handle_ack(&accepted.body).unwrap_err(), HandshakeError::NotAuthentic);
}

#[test]
fn only_the_node_that_was_dialled_can_read_the_init() {
    let body = dial(None).init_body(None);
    let other = NodeKey::from_random([9; 32]);
    assert_eq!(read_init(&other, &body, [4; 32]).unwrap_err(), HandshakeError::NotAuthentic);
    let body = with_mac1(&other, body, INIT_MAC2_AT);
    assert_eq!(read_init(&other, &body, [4; 32]).unwrap_err(), HandshakeError::NotAuthentic);
}

#[test]
fn only_the_node_that_was_dialled_can_answer() {
    let mut initiator = dial(None);
    let other = NodeKey::from_random([9; 32]);
    let dial = Dial { remote: other.public(), credential: None };
    let stray = Initiator::new(&client(), &dial, Pid(42), PARAMS, [3; 32]).unwrap();
    let pending = read_init(&other, &stray.init_body(None), [4; 32]).unwrap();
    let forged = pending.accept(None, ANSWER).unwrap();
    assert_eq!(initiator.handle_ack(&forged.body).unwrap_err(), HandshakeError::NotAuthentic);
}

#[test]
fn no_byte_of_an_init_can_be_changed_even_with_a_right_mac1() {
    let body = dial(Some(ticket(5))).init_body(None);
    let (pid, macs) = (1..INIT_PREFIX_LEN, INIT_MAC1_AT..INIT_PADDING_AT);
    for at in (0..INIT_BODY_LEN).filter(|at| !pid.contains(at) && !macs.contains(at)) {
        let mut changed = body.clone();
        changed[at] ^= 0x40;
        assert!(read_init(&server(), &changed, [4; 32]).is_err(), "byte {at} was changed unnoticed");
    }
}

#[test]
fn every_byte_of_an_init_before_mac2_is_under_mac1_and_the_rest_is_zeros() {
    let jar = CookieJar::new(server().public(), [7; 32]);
    let body = dial(None).init_body(None);
    let from: SocketAddr = "192.0.2.1:7".parse().unwrap();
    for at in (0..INIT_MAC2_AT).chain(INIT_PADDING_AT..INIT_BODY_LEN) {
        let mut changed = body.clone();
        changed[at] ^= 1;
        assert!(matches!(jar.admit(Time::ZERO, from, &changed), Admission::Drop(_)), "byte {at}");
    }
}

#[test]
fn no_byte_of_an_ack_can_be_changed_and_the_real_one_still_completes() {
    let mut initiator = dial(Some(ticket(5)));
    let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    let accepted = pending.accept(Some(&ticket(5).1), ANSWER).unwrap();
    for at in 0..ACK_BODY_LEN {
        let mut changed = accepted.body.clone();
        changed[at] ^= 0x01;
        assert!(initiator.handle_ack(&changed).is_err(), "byte {at} was changed unnoticed");
        let resealed = with_mac1(&client(), changed, ACK_PADDING_AT);
        if resealed != accepted.body {
            assert!(initiator.handle_ack(&resealed).is_err(), "byte {at} was changed unnoticed");
        }
    }
    let (keys, params) = initiator.handle_ack(&accepted.body).unwrap();
    assert_eq!(params, ANSWER);
    assert_keys_fit(&keys, &accepted.keys);
}

#[test]
fn messages_of_any_other_length_are_refused() {
    let mut initiator = dial(None);
    let body = initiator.init_body(None);
    for len in [0, 1, 8, 9, 40, INIT_BODY_LEN - 1] {
        assert_eq!(read_init(&server(), &body[..len], [4; 32]).unwrap_err(), HandshakeError::Malformed);
        assert_eq!(initiator.handle_ack(&body[..len]).unwrap_err(), HandshakeError::Malformed);
        assert_eq!(InitId::of(&body[..len]), None);
    }
    let longer = [body, vec![0]].concat();
    assert_eq!(read_init(&server(), &longer, [4; 32]).unwrap_err(), HandshakeError::Malformed);
}

#[test]
fn a_replayed_init_gives_other_keys_that_the_replayer_cannot_know() {
    let mut initiator = dial(None);
    let body = initiator.init_body(None);
    let first = read_init(&server(), &body, [4; 32]).unwrap().accept(None, ANSWER).unwrap();
    let replayed = read_init(&server(), &body, [5; 32]).unwrap().accept(None, ANSWER).unwrap();
    assert_ne!(first.keys.send, replayed.keys.send);
    assert_ne!(first.keys.receive, replayed.keys.receive);
    let (keys, _) = initiator.handle_ack(&first.body).unwrap();
    assert_keys_fit(&keys, &first.keys);
    // The client has its session: the answer to the replay does not affect it.
    assert!(initiator.handle_ack(&replayed.body).is_err());
}

#[test]
fn the_init_is_the_same_for_every_path_but_for_mac2_and_so_is_its_id() {
    let initiator = dial(None);
    let jar = CookieJar::new(server().public(), [7; 32]);
    let bodies: Vec<_> = ["192.0.2.1:7", "198.51.100.1:7"]
        .map(|from| match jar.admit(Time::ZERO, from.parse().unwrap(), &initiator.init_body(None)) {
            Admission::Challenge { body, .. } => {
                initiator.init_body(Some(&initiator.open_cookie(&body).unwrap()))
            }
            other => panic!("{other:?}"),
        })
        .into();
    let [a, b] = &bodies[..] else { panic!() };
    assert_ne!(a, b);
    assert_eq!(a[..INIT_MAC2_AT], b[..INIT_MAC2_AT]);
    assert_eq!(a[INIT_PADDING_AT..], b[INIT_PADDING_AT..]);
    assert_eq!(InitId::of(a), InitId::of(b));
    let other = Initiator::new(
        &client(),
        &Dial { remote: server().public(), credential: None },
        Pid(42),
        PARAMS,
        [8; 32],
    );
    assert_ne!(InitId::of(a), InitId::of(&other.unwrap().init_body(None)));
}

#[test]
fn parameters_of_the_longest_length_pass_and_longer_ones_are_refused() {
    let longest = vec![0xab; MAX_PARAMS_LEN];
    let remote = Dial { remote: server().public(), credential: Some(ticket(5)) };
    let mut initiator = Initiator::new(&client(), &remote, Pid(1), &longest, [3; 32]).unwrap();
    let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    assert_eq!(pending.params, longest);
    let accepted = pending.accept(Some(&ticket(5).1), &longest).unwrap();
    assert_eq!(initiator.handle_ack(&accepted.body).unwrap().1, longest);

    let longer = vec![0; MAX_PARAMS_LEN + 1];
    let refused = Initiator::new(&client(), &remote, Pid(1), &longer, [3; 32]);
    assert_eq!(refused.unwrap_err(), HandshakeError::ParamsTooLong);
    let pending = read_init(&server(), &dial(None).init_body(None), [4; 32]).unwrap();
    assert_eq!(pending.accept(None, &longer).unwrap_err(), HandshakeError::ParamsTooLong);
}

#[test]
fn a_public_key_of_low_order_is_refused() {
    let remote = Dial { remote: PublicKey::from_bytes([0; 32]), credential: None };
    let refused = Initiator::new(&client(), &remote, Pid(1), PARAMS, [3; 32]);
    assert_eq!(refused.unwrap_err(), HandshakeError::BadPublicKey);
}

#[test]
fn nothing_secret_is_printed() {
    let mut initiator = dial(Some(ticket(5)));
    let pending = read_init(&server(), &initiator.init_body(None), [4; 32]).unwrap();
    let shown = format!("{initiator:?} {pending:?}");
    assert!(!shown.contains("psk") && !shown.contains("5, 5"), "{shown}");
    let accepted = pending.accept(Some(&ticket(5).1), ANSWER).unwrap();
    let (keys, _) = initiator.handle_ack(&accepted.body).unwrap();
    assert_eq!(format!("{keys:?}"), "SessionKeys(not shown)");
    let jar = CookieJar::new(server().public(), [5; 32]);
    let Admission::Challenge { body, .. } =
        jar.admit(Time::ZERO, "192.0.2.1:7".parse().unwrap(), &initiator.init_body(None))
    else {
        panic!()
    };
    let cookie = initiator.open_cookie(&body).unwrap();
    assert_eq!(format!("{cookie:?} {jar:?}"), "Cookie(not shown) CookieJar(secret not shown)");
    let reset = ResetKey::from_random([5; 32]);
    let tokens = (&reset, reset.token(Pid(1)), ticket(5).1);
    assert_eq!(
        format!("{tokens:?}"),
        "(ResetKey(not shown), ResetToken(not shown), TicketSecret(not shown))"
    );
}

#[test]
fn a_whole_set_up_takes_two_round_trips_and_ends_in_a_confirmed_session() {
    let jar = CookieJar::new(server().public(), [7; 32]);
    let from = "192.0.2.1:7".parse().unwrap();
    let now = Time::ZERO + Span::from_secs(1000);
    let mut initiator = dial(None);
    let Admission::Challenge { pid, body } = jar.admit(now, from, &initiator.init_body(None)) else {
        panic!()
    };
    assert_eq!(pid, Pid(42));
    let cookie = initiator.open_cookie(&body).unwrap();
    let init = initiator.init_body(Some(&cookie));
    assert_eq!(jar.admit(now + Span::from_millis(50), from, &init), Admission::Proceed);
    let accepted = read_init(&server(), &init, [4; 32]).unwrap().accept(None, ANSWER).unwrap();
    assert!(initiator.handle_ack(&accepted.body).is_ok());
}
