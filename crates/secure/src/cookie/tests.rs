use super::*;
use crate::INIT_BODY_LEN;
use crate::{Dial, Initiator, NodeKey};

fn server() -> NodeKey {
    NodeKey::from_random([2; 32])
}

fn initiator(seed: u8) -> Initiator {
    let dial = Dial { remote: server().public(), credential: None };
    Initiator::new(&NodeKey::from_random([1; 32]), &dial, Pid(42), b"params", [seed; 32]).unwrap()
}

fn jar() -> CookieJar {
    CookieJar::new(server().public(), [7; 32])
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Span::from_secs(seconds)
}

fn home() -> SocketAddr {
    "192.0.2.1:4000".parse().unwrap()
}

fn challenge(jar: &CookieJar, now: Time, from: SocketAddr, init: &[u8]) -> Vec<u8> {
    match jar.admit(now, from, init) {
        Admission::Challenge { body, .. } => body,
        other => panic!("expected a challenge, not {other:?}"),
    }
}

/// An INIT with the cookie that `jar` issues at `now` to `from`.
fn proven(jar: &CookieJar, now: Time, from: SocketAddr) -> Vec<u8> {
    let initiator = initiator(3);
    let body = challenge(jar, now, from, &initiator.init_body(None));
    initiator.init_body(Some(&initiator.open_cookie(&body).unwrap()))
}

#[test]
fn a_cookie_admits_from_the_address_it_was_sent_to_and_from_no_other() {
    let jar = jar();
    let init = proven(&jar, at(10), home());
    assert_eq!(jar.admit(at(11), home(), &init), Admission::Proceed);
    for other in ["192.0.2.2:4000", "192.0.2.1:4001", "[2001:db8::1]:4000"] {
        let admission = jar.admit(at(11), other.parse().unwrap(), &init);
        assert!(matches!(admission, Admission::Challenge { .. }), "{other} was taken for proven");
    }
}

#[test]
fn an_ipv4_address_seen_through_an_ipv6_socket_is_the_same() {
    let jar = jar();
    let init = proven(&jar, at(10), home());
    assert_eq!(jar.admit(at(11), "[::ffff:192.0.2.1]:4000".parse().unwrap(), &init), Admission::Proceed);
}

#[test]
fn a_cookie_outlives_one_rotation_and_not_two() {
    let jar = jar();
    let init = proven(&jar, at(119), home());
    assert_eq!(jar.admit(at(121), home(), &init), Admission::Proceed);
    assert_eq!(jar.admit(at(239), home(), &init), Admission::Proceed);
    assert!(matches!(jar.admit(at(240), home(), &init), Admission::Challenge { .. }));
    assert!(matches!(jar.admit(at(2400), home(), &init), Admission::Challenge { .. }));
}

#[test]
fn a_cookie_of_another_or_a_restarted_node_is_challenged_again() {
    let init = proven(&jar(), at(10), home());
    let restarted = CookieJar::new(server().public(), [8; 32]);
    assert!(matches!(restarted.admit(at(11), home(), &init), Admission::Challenge { .. }));
    let other = CookieJar::new(NodeKey::from_random([9; 32]).public(), [7; 32]);
    assert_eq!(other.admit(at(11), home(), &init), Admission::Drop(DropReason::Mac1));
}

#[test]
fn a_changed_mac2_admits_nothing() {
    let jar = jar();
    let init = proven(&jar, at(10), home());
    for byte in INIT_MAC2_AT..INIT_PADDING_AT {
        let mut changed = init.clone();
        changed[byte] ^= 1;
        assert!(matches!(jar.admit(at(11), home(), &changed), Admission::Challenge { .. }), "byte {byte}");
    }
}

#[test]
fn a_mac2_made_for_one_init_does_not_serve_another() {
    let jar = jar();
    let init = proven(&jar, at(10), home());
    let mut other = initiator(4).init_body(None);
    let mac = INIT_MAC2_AT..INIT_PADDING_AT;
    other[mac.clone()].copy_from_slice(&init[mac]);
    assert!(matches!(jar.admit(at(11), home(), &other), Admission::Challenge { .. }));
}

#[test]
fn strangers_without_the_public_key_get_no_answer() {
    let jar = jar();
    assert_eq!(jar.admit(at(1), home(), &[0; INIT_BODY_LEN]), Admission::Drop(DropReason::Mac1));
    assert_eq!(jar.admit(at(1), home(), &[0; 100]), Admission::Drop(DropReason::Malformed));
    assert_eq!(jar.admit(at(1), home(), &[]), Admission::Drop(DropReason::Malformed));
}

#[test]
fn the_answer_to_an_unproven_address_is_a_fraction_of_what_it_sent() {
    let body = challenge(&jar(), at(1), home(), &initiator(3).init_body(None));
    assert_eq!(body.len(), 49);
    const { assert!(COOKIE_BODY_LEN < INIT_BODY_LEN) };
}

#[test]
fn no_byte_of_a_cookie_can_be_changed_and_it_opens_for_its_init_only() {
    let first = initiator(3);
    let body = challenge(&jar(), at(1), home(), &first.init_body(None));
    for byte in 0..body.len() {
        let mut changed = body.clone();
        changed[byte] ^= 1;
        assert_eq!(first.open_cookie(&changed).unwrap_err(), CookieError::NotAuthentic, "byte {byte}");
        assert!(first.open_cookie(&body[..byte]).is_err());
    }
    assert_eq!(initiator(4).open_cookie(&body).unwrap_err(), CookieError::NotAuthentic);
    assert!(first.open_cookie(&body).is_ok());
}

#[test]
fn a_server_of_another_version_reports_its_version() {
    let mut init = initiator(3).init_body(None);
    init[0] = VERSION + 1;
    put_mac1(&server().public(), &mut init[..INIT_MAC2_AT]);
    let body = challenge(&jar(), at(1), home(), &init);
    // The newer client would report that the other end speaks version 1. Here the versions are swapped.
    assert_eq!(body[0], VERSION);
    assert!(open(&server().public(), &init, &body).is_ok());

    let nonce = [5; NONCE_LEN];
    let init = initiator(3).init_body(None);
    let key = seal_key(&server().public(), mac1_of_init(&init), &nonce);
    let mut sealed = [6; MAC_LEN];
    let tag = key.seal_in_place_separate_tag(zero_nonce(), Aad::from([9]), &mut sealed).unwrap();
    let newer = [&[9], &nonce[..], &sealed, tag.as_ref()].concat();
    assert_eq!(initiator(3).open_cookie(&newer).unwrap_err(), CookieError::Version(9));
}

#[test]
fn a_proven_init_of_another_version_is_never_accepted() {
    let jar = jar();
    let mut init = initiator(3).init_body(None);
    init[0] = VERSION + 1;
    put_mac1(&server().public(), &mut init[..INIT_MAC2_AT]);
    let cookie = jar.cookie(0, home());
    put_mac2(&cookie, &mut init);
    assert!(matches!(jar.admit(at(1), home(), &init), Admission::Challenge { .. }));
}
