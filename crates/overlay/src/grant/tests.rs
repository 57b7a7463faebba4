//! Grants that are forged, changed, stolen, shown elsewhere or at the wrong time.

use anabranch_secure::{NodeKey, TicketSecret};
use anabranch_wire::{Span, Time};
use proptest::prelude::*;

use super::*;

fn key(byte: u8) -> PublicKey {
    NodeKey::from_random([byte; 32]).public()
}

fn signer() -> GrantSigner {
    GrantSigner::from_random([9; 32])
}

fn grant() -> Grant {
    Grant {
        id: GrantId([4; 16]),
        client: key(1),
        relays: vec![key(2), key(3)],
        limits: Limits { pids: 10, rate: Rate::from_mbit(20.0), bytes: 1 << 30, highest_tos: 7 },
        issued: UnixTime(999),
        not_before: UnixTime(1_000),
        not_after: UnixTime(5_000),
    }
}

#[test]
fn a_signed_grant_is_read_and_judged_good_at_its_relays_in_its_time() {
    let bytes = signer().sign(&grant()).unwrap();
    let read = open(&bytes, &[GrantSigner::from_random([8; 32]).public(), signer().public()]).unwrap();
    assert_eq!(read, grant());
    for relay in [key(2), key(3)] {
        assert_eq!(judge(&read, (&key(1), &relay), (UnixTime(2_000), 30)), Ok(()));
    }
    let anywhere = Grant { relays: Vec::new(), ..grant() };
    assert_eq!(judge(&anywhere, (&key(1), &key(7)), (UnixTime(2_000), 30)), Ok(()));
}

#[test]
fn a_grant_is_worth_nothing_to_others_elsewhere_or_at_another_time() {
    let judge =
        |client: u8, relay: u8, time| judge(&grant(), (&key(client), &key(relay)), (UnixTime(time), 30));
    assert_eq!(judge(5, 2, 2_000), Err(GrantError::OtherClient));
    assert_eq!(judge(1, 5, 2_000), Err(GrantError::OtherRelay));
    assert_eq!(judge(1, 2, 969), Err(GrantError::NotYet(31)));
    assert_eq!(judge(1, 2, 970), Ok(()));
    assert_eq!(judge(1, 2, 5_030), Ok(()));
    assert_eq!(judge(1, 2, 5_031), Err(GrantError::Expired(31)));
}

#[test]
fn no_changed_bit_and_no_other_signer_passes() {
    let bytes = signer().sign(&grant()).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(open(&forged, &[signer().public()]).is_err(), "bit {bit}");
    }
    assert_eq!(open(&bytes, &[GrantSigner::from_random([8; 32]).public()]), Err(GrantError::Signature));
    assert_eq!(open(&bytes, &[]), Err(GrantError::Signature));
}

#[test]
fn a_grant_beyond_its_limits_is_neither_signed_nor_read() {
    let too_long = Grant { not_after: UnixTime(1_001 + MAX_VALIDITY), ..grant() };
    let backwards = Grant { not_after: UnixTime(0), ..grant() };
    let too_high = Grant { limits: Limits { highest_tos: 16, ..grant().limits }, ..grant() };
    let too_many = Grant { relays: vec![key(2); 17], ..grant() };
    for wrong in [too_long, backwards, too_high, too_many] {
        assert!(matches!(signer().sign(&wrong), Err(MessageError::Invalid(_))));
    }
    assert!(signer().sign(&Grant { relays: vec![key(2); 16], ..grant() }).unwrap().len() == MAX_GRANT_LEN);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_grant(bytes in prop::collection::vec(any::<u8>(), 0..800), head in any::<bool>()) {
        let mut bytes = bytes;
        if head && !bytes.is_empty() {
            bytes[0] = 1;
        }
        prop_assert!(open(&bytes, &[signer().public()]).is_err());
    }
}

#[test]
fn a_wrong_clock_is_put_right_by_heartbeats_and_never_behind_a_signature() {
    let at = |seconds| Time::ZERO + Span::from_secs(seconds);
    let mut clock = WallClock::new(at(0), UnixTime(100));
    assert_eq!((clock.at(at(10)), clock.tolerance()), (UnixTime(110), 300));
    clock.on_signature(at(10), UnixTime(50));
    assert_eq!(clock.at(at(10)), UnixTime(110));
    clock.on_signature(at(10), UnixTime(5_000));
    assert_eq!(clock.at(at(20)), UnixTime(5_010));
    assert_eq!(clock.on_heartbeat(at(20), (&key(1), UnixTime(4_000))), (ClockVerdict::Adopted(1_010), None));
    assert_eq!((clock.at(at(21)), clock.tolerance()), (UnixTime(4_001), 30));
    clock.on_signature(at(21), UnixTime(9_000));
    assert_eq!(clock.at(at(21)), UnixTime(4_001), "a heartbeat is believed more");
}

#[test]
fn of_several_controllers_the_median_counts_and_a_leap_of_most_has_to_last() {
    let at = |seconds| Time::ZERO + Span::from_secs(seconds);
    let mut clock = WallClock::new(at(0), UnixTime(1_000));
    let says = |clock: &mut WallClock, now, controller, ahead: u64| {
        clock.on_heartbeat(at(now), (&key(controller), UnixTime(1_000 + now + ahead))).0
    };
    // Until the others send a time, the first one counts.
    assert_eq!(says(&mut clock, 0, 1, 7_200), ClockVerdict::Adopted(7_200));
    says(&mut clock, 1, 2, 0);
    assert_eq!(says(&mut clock, 1, 3, 1), ClockVerdict::Adopted(7_199));
    assert_eq!(clock.at(at(1)), UnixTime(1_002));
    let mut now = 2;
    // One of three, or one of two, may differ forever; two of three for less than five minutes.
    for (ahead, turns) in [(&[7_200, 0, 0][..], 500), (&[0, 7_200], 500), (&[7_200, 7_200, 0], 140)] {
        for _ in 0..turns {
            now += 2;
            for (controller, ahead) in (1..).zip(ahead) {
                let apart = if *ahead > 0 { ClockVerdict::Apart(*ahead) } else { ClockVerdict::Agrees };
                let told = says(&mut clock, now, controller, *ahead);
                // The last time of a silent controller counts for 10 s.
                assert!(
                    told == apart
                        || matches!((told, apart), (ClockVerdict::Apart(7_199), ClockVerdict::Apart(_))),
                    "{told:?}"
                );
            }
        }
    }
    assert!(clock.at(at(now)).0.abs_diff(1_000 + now) <= 1);
    for _ in 0..20 {
        now += 2;
        for controller in 1..3 {
            says(&mut clock, now, controller, 7_200);
        }
    }
    assert_eq!(clock.at(at(now)), UnixTime(8_200 + now));
}

#[test]
fn a_guest_secret_differs_by_ticket_and_relay_and_shows_nothing_of_the_ticket() {
    let ticket = |byte| TicketSecret::from_random([byte; 16]);
    let guest = GuestSecret::new(&ticket(1), &key(2));
    let again = GuestSecret::new(&ticket(1), &key(2));
    assert_eq!((guest.share(), guest.hash()), (again.share(), again.hash()));
    assert_ne!(guest.hash(), ticket(1));
    for other in [GuestSecret::new(&ticket(2), &key(2)), GuestSecret::new(&ticket(1), &key(3))] {
        assert_ne!(guest.share(), other.share());
        assert_ne!(guest.hash(), other.hash());
    }
}

#[test]
fn a_controllers_key_is_written_and_read_again() {
    let key = GrantSigner::from_random([4; 32]).public();
    let text = key.to_string();
    assert_eq!(text.parse(), Ok(key));
    for wrong in ["", "abs1", &text[..67], &text.replace("abs1", "ab1"), &format!("{text}0"), "abs1\u{e9}"] {
        assert!(wrong.parse::<ControllerKey>().is_err(), "{wrong}");
    }
}
