use super::opener::MAX_CLOSED_RUNS;
use super::*;
use anabranch_wire::{Kind, Pid, expand_fsn, rewrite_for_hop};
use proptest::prelude::*;
use zeroize::Zeroizing;

const FAST: PathId = PathId(0);
const SLOW: PathId = PathId(2);

fn at(millis: u64) -> Time {
    Time::ZERO + Span::from_millis(millis)
}

fn limits() -> Limits {
    Limits {
        rekey_after_packets: 100,
        rekey_at_once_after_packets: 150,
        max_packets: 200,
        ..Limits::default()
    }
}

/// Both ends of a session.
fn pair(limits: Limits) -> (Protection, Protection) {
    let keys = |send, receive, side| SessionKeys {
        send: Zeroizing::new([send; 32]),
        receive: Zeroizing::new([receive; 32]),
        side,
        id: [0; 32],
    };
    let (client, server) = (keys(1, 2, Side::Client), keys(2, 1, Side::Server));
    (Protection::new(&client, limits, at(0)), Protection::new(&server, limits, at(0)))
}

/// Header, sealed text, tag: as transmitted.
fn send(from: &mut Protection, now: Time, path: PathId, fsn: u64) -> Vec<u8> {
    let header = Header {
        kind: Kind::Data,
        key_phase: from.key_phase(now),
        tos: 3,
        hop_limit: 4,
        pid: Pid(0x1122_3344_5566_7788),
        fsn: fsn as u32,
    };
    let mut datagram = vec![0; Header::LEN];
    header.encode(&mut datagram);
    datagram.extend_from_slice(&text(path, fsn));
    datagram.extend_from_slice(&[0; TAG_LEN]);
    let envelope = Envelope::new(&header, path, Fsn(fsn));
    from.seal(&envelope, &mut datagram[Header::LEN..]).expect("seals");
    datagram
}

fn text(path: PathId, fsn: u64) -> Vec<u8> {
    format!("path {} number {fsn}", path.0).into_bytes()
}

fn receive(to: &mut Protection, now: Time, path: PathId, datagram: &[u8]) -> Result<Vec<u8>, OpenError> {
    let (header, rest) = Header::decode(datagram).expect("a header");
    let envelope = Envelope::new(&header, path, expand_fsn(header.fsn, to.expected_fsn(path)));
    let mut rest = rest.to_vec();
    to.open(now, &envelope, &mut rest).map(|text| text.to_vec())
}

/// Sends, receives and acknowledges at once.
fn pass(from: &mut Protection, to: &mut Protection, now: Time, path: PathId, fsn: u64) {
    let datagram = send(from, now, path, fsn);
    assert_eq!(receive(to, now, path, &datagram), Ok(text(path, fsn)), "{path} number {fsn}");
    from.handle_acked(path, Fsn(fsn));
}

#[test]
fn packets_sealed_by_one_end_open_at_the_other_and_nowhere_else() {
    let (mut a, mut b) = pair(limits());
    let datagram = send(&mut a, at(0), FAST, 0);
    assert!(!datagram.windows(6).any(|bytes| bytes == b"number"));
    assert_eq!(receive(&mut a, at(0), FAST, &datagram), Err(OpenError::NotAuthentic));
    assert_eq!(receive(&mut b, at(0), FAST, &datagram), Ok(text(FAST, 0)));
    assert_eq!(receive(&mut b, at(0), FAST, &datagram), Err(OpenError::Replayed));
}

#[test]
fn a_packet_survives_relays_that_rewrite_pid_hop_limit_and_checksum() {
    let (mut a, mut b) = pair(limits());
    let mut datagram = send(&mut a, at(0), FAST, 7);
    for pid in [9, 99, 999, 9999] {
        rewrite_for_hop(&mut datagram, Pid(pid)).unwrap();
    }
    assert_eq!(Header::decode(&datagram).unwrap().0.pid, Pid(9999));
    assert_eq!(Header::decode(&datagram).unwrap().0.hop_limit, 0);
    assert_eq!(receive(&mut b, at(0), FAST, &datagram), Ok(text(FAST, 7)));
}

#[test]
fn no_bit_under_the_seal_can_be_changed() {
    let (mut a, mut b) = pair(limits());
    let datagram = send(&mut a, at(0), FAST, 7);
    let (header, sealed) = Header::decode(&datagram).unwrap();
    let mut forged = 0;
    let mut refused = |header: &Header, path, fsn, sealed: &[u8]| {
        let mut copy = sealed.to_vec();
        let error = b.open(at(0), &Envelope::new(header, path, fsn), &mut copy).unwrap_err();
        assert_eq!(error, OpenError::NotAuthentic);
        forged += 1;
        assert_eq!(b.forgeries(), forged);
    };
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        refused(&header, FAST, Fsn(7), &changed);
    }
    for len in TAG_LEN..sealed.len() {
        refused(&header, FAST, Fsn(7), &sealed[..len]);
    }
    refused(&header, SLOW, Fsn(7), sealed);
    refused(&header, FAST, Fsn(8), sealed);
    refused(&header, FAST, Fsn(7 + (1 << 32)), sealed);
    refused(&Header { tos: 4, ..header }, FAST, Fsn(7), sealed);
    refused(&Header { fsn: 8, ..header }, FAST, Fsn(7), sealed);
    refused(&Header { kind: Kind::Reset, ..header }, FAST, Fsn(7), sealed);
    refused(&Header { key_phase: true, ..header }, FAST, Fsn(7), sealed);
    assert_eq!(receive(&mut b, at(0), FAST, &datagram), Ok(text(FAST, 7)));
}

#[test]
fn a_forged_number_does_not_move_the_replay_window() {
    let (mut a, mut b) = pair(limits());
    pass(&mut a, &mut b, at(0), FAST, 0);
    let mut forged = send(&mut a, at(0), FAST, 1);
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert_eq!(receive(&mut b, at(0), FAST, &forged), Err(OpenError::NotAuthentic));
    assert_eq!(b.expected_fsn(FAST), Fsn(1));
    forged[last] ^= 1;
    assert_eq!(receive(&mut b, at(0), FAST, &forged), Ok(text(FAST, 1)));
}

#[test]
fn a_packet_that_fails_to_open_keeps_its_last_bytes_so_that_a_reset_is_recognised() {
    let (_, mut b) = pair(limits());
    let token = crate::ResetKey::from_random([4; 32]).token(Pid(1));
    let header = Header { kind: Kind::Data, key_phase: false, tos: 0, hop_limit: 0, pid: Pid(1), fsn: 0 };
    let mut rest = [vec![7; 30], token.0.to_vec()].concat();
    assert!(b.open(at(0), &Envelope::new(&header, FAST, Fsn(0)), &mut rest).is_err());
    assert_eq!(rest.last_chunk(), Some(&token.0));
    assert_eq!(
        b.open(at(0), &Envelope::new(&header, FAST, Fsn(0)), &mut rest[..15]),
        Err(OpenError::TooShort)
    );
}

#[test]
fn a_number_is_sealed_once_under_a_key() {
    let (mut a, _) = pair(limits());
    send(&mut a, at(0), FAST, 5);
    let header = Header { kind: Kind::Data, key_phase: false, tos: 0, hop_limit: 0, pid: Pid(1), fsn: 5 };
    for fsn in [5, 4, 0] {
        let sealed = a.seal(&Envelope::new(&header, FAST, Fsn(fsn)), &mut [0; 40]);
        assert_eq!(sealed, Err(SealError::NumberReused));
    }
    assert_eq!(a.seal(&Envelope::new(&header, SLOW, Fsn(5)), &mut [0; 40]), Ok(()));
    let wrong = Header { key_phase: true, ..header };
    assert_eq!(a.seal(&Envelope::new(&wrong, FAST, Fsn(6)), &mut [0; 40]), Err(SealError::WrongPhase));
    assert_eq!(a.seal(&Envelope::new(&header, FAST, Fsn(6)), &mut [0; 15]), Err(SealError::BufferSize));
}

#[test]
fn a_closed_path_stays_closed() {
    let (mut a, mut b) = pair(limits());
    let first = send(&mut a, at(0), SLOW, 0);
    let second = send(&mut a, at(0), SLOW, 1);
    assert!(receive(&mut b, at(0), SLOW, &first).is_ok());
    b.close_path(SLOW);
    assert_eq!(receive(&mut b, at(0), SLOW, &first), Err(OpenError::PathClosed));
    assert_eq!(receive(&mut b, at(0), SLOW, &second), Err(OpenError::PathClosed));
    pass(&mut a, &mut b, at(0), PathId(4), 0);
    pass(&mut a, &mut b, at(0), PathId(3), 0);
}

#[test]
fn closing_paths_again_and_again_takes_bounded_memory_and_reopens_none() {
    let (mut a, mut b) = pair(limits());
    for id in (0..40_000).step_by(4) {
        b.close_path(PathId(id));
    }
    assert!(b.opener.closed.iter().all(|closed| closed.range_count() <= MAX_CLOSED_RUNS));
    for id in (0..40_000).step_by(4) {
        assert!(b.opener.is_closed(PathId(id)), "{id} was reopened");
    }
    pass(&mut a, &mut b, at(0), PathId(40_004), 0);
}

/// A peer that never follows into the next phase makes this end seal under one key for as long as it likes.
#[test]
fn sealing_on_ever_more_paths_leaves_no_memory_of_closed_ones() {
    let (mut a, _) = pair(Limits::default());
    for id in 0..10_000 {
        send(&mut a, at(0), PathId(id), 0);
        a.close_path(PathId(id));
    }
    assert_eq!(a.sealer.next.len(), 0);
    let header = Header { kind: Kind::Data, key_phase: false, tos: 3, hop_limit: 4, pid: Pid(1), fsn: 0 };
    let again = Envelope::new(&header, PathId(7), Fsn(0));
    assert_eq!(a.seal(&again, &mut [0; 40]), Err(SealError::PathClosed));
}

#[test]
fn at_rest_a_path_that_missed_numbers_takes_as_little_memory_as_one_in_order() {
    let (mut a, mut b) = pair(Limits::default());
    let numbers: Vec<u64> = (0..2_000).filter(|number| *number != 500).collect();
    let sent: Vec<_> = numbers.iter().map(|number| send(&mut a, at(0), FAST, *number)).collect();
    sent.iter().for_each(|datagram| assert!(receive(&mut b, at(0), FAST, datagram).is_ok()));
    assert_eq!(b.window_memory(), 256);
    b.rest();
    assert_eq!(b.window_memory(), 16);
    sent.iter()
        .for_each(|datagram| assert_eq!(receive(&mut b, at(0), FAST, datagram), Err(OpenError::Replayed)));
    pass(&mut a, &mut b, at(0), FAST, 2_001);
    pass(&mut a, &mut b, at(0), FAST, 2_000 + 100);
}

#[test]
fn a_phase_does_not_start_before_a_packet_of_the_peer_was_opened() {
    let (mut a, mut b) = pair(limits());
    for fsn in 0..200 {
        pass(&mut a, &mut b, at(10_000), FAST, fsn);
    }
    assert_eq!((a.phases(), a.is_confirmed(), b.is_confirmed()), (0, false, true));
    let header = Header { kind: Kind::Data, key_phase: false, tos: 0, hop_limit: 0, pid: Pid(1), fsn: 200 };
    assert_eq!(a.seal(&Envelope::new(&header, FAST, Fsn(200)), &mut [0; 40]), Err(SealError::Exhausted));
    pass(&mut b, &mut a, at(10_000), FAST, 0);
    assert!(a.key_phase(at(13_000)), "heard, and the volume is used up: the next phase begins");
}

#[test]
fn both_ends_change_phase_after_a_volume_and_again_only_after_confirmation() {
    let (mut a, mut b) = pair(limits());
    pass(&mut b, &mut a, at(0), FAST, 0);
    let mut fsn = 0;
    let mut pass_many = |a: &mut Protection, b: &mut Protection, now, count| {
        for _ in 0..count {
            pass(a, b, now, FAST, fsn);
            fsn += 1;
        }
    };
    pass_many(&mut a, &mut b, at(5000), 100);
    assert_eq!((a.phases(), b.phases()), (0, 0));
    pass_many(&mut a, &mut b, at(5000), 1);
    assert_eq!((a.phases(), b.phases()), (1, 1), "the peer follows at once");
    // A's own change is unconfirmed until a packet of B in the new phase was opened.
    pass_many(&mut a, &mut b, at(60_000), 180);
    assert_eq!(a.phases(), 1);
    pass(&mut b, &mut a, at(60_000), FAST, 1);
    // Just confirmed: the retention time must pass first, unless the volume is near the limit, which it is.
    pass_many(&mut a, &mut b, at(60_001), 1);
    assert_eq!((a.phases(), b.phases()), (2, 2));
}

#[test]
fn an_end_that_followed_begins_no_phase_before_a_packet_of_the_present_one_was_acknowledged() {
    let (mut a, mut b) = pair(limits());
    pass(&mut a, &mut b, at(0), FAST, 0);
    pass(&mut b, &mut a, at(0), FAST, 0);
    pass(&mut a, &mut b, at(120_000), FAST, 1);
    assert_eq!((a.phases(), b.phases()), (1, 1));
    for lost in 1..=150 {
        send(&mut b, at(120_000), FAST, lost);
    }
    b.handle_acked(FAST, Fsn(0));
    // By its volume and by its age the phase is over, but A could not open the next one.
    pass(&mut b, &mut a, at(250_000), FAST, 151);
    assert_eq!((a.phases(), b.phases()), (1, 1));
    pass(&mut b, &mut a, at(250_000), FAST, 152);
    assert_eq!((a.phases(), b.phases()), (2, 2));
}

#[test]
fn within_the_retention_time_only_a_volume_near_the_limit_starts_another_phase() {
    let (mut a, mut b) = pair(limits());
    a.set_retention(Span::from_secs(6));
    pass(&mut b, &mut a, at(0), FAST, 0);
    for fsn in 0..150 {
        pass(&mut a, &mut b, at(5_999), FAST, fsn);
    }
    assert_eq!(a.phases(), 0);
    pass(&mut a, &mut b, at(5_999), FAST, 150);
    assert_eq!(a.phases(), 1);

    let (mut a, mut b) = pair(limits());
    a.set_retention(Span::from_secs(6));
    pass(&mut b, &mut a, at(0), FAST, 0);
    for fsn in 0..100 {
        pass(&mut a, &mut b, at(5_999), FAST, fsn);
    }
    pass(&mut a, &mut b, at(6_000), FAST, 100);
    assert_eq!(a.phases(), 1);
}

#[test]
fn a_phase_ages_with_use_and_not_in_silence() {
    let (mut a, mut b) = pair(limits());
    pass(&mut b, &mut a, at(0), FAST, 0);
    assert!(!a.key_phase(at(1_000_000)), "nothing was sealed: nothing to renew");
    pass(&mut a, &mut b, at(1_000), FAST, 0);
    assert!(!a.key_phase(at(119_999)));
    assert!(a.key_phase(at(120_000)));
}

#[test]
fn a_fresh_secret_starts_no_phase_before_a_packet_of_the_present_one_was_sealed() {
    let (mut a, mut b) = pair(limits());
    pass(&mut a, &mut b, at(0), FAST, 0);
    pass(&mut b, &mut a, at(0), FAST, 0);
    pass(&mut b, &mut a, at(120_000), FAST, 1);
    let fresh = FreshSecret::from_bytes(Zeroizing::new([7; 32]));
    a.sealer.fresh = Some(fresh.clone());
    b.opener.expect(fresh);
    pass(&mut a, &mut b, at(130_000), FAST, 1);
    assert_eq!((a.phases(), b.phases()), (1, 1), "A has followed, and B has not heard so yet");
    pass(&mut a, &mut b, at(130_001), FAST, 2);
    assert_eq!((a.phases(), b.phases()), (2, 2));
}

#[test]
fn two_ends_that_change_phase_simultaneously_are_in_the_same_phase() {
    let (mut a, mut b) = pair(limits());
    pass(&mut a, &mut b, at(0), FAST, 0);
    pass(&mut b, &mut a, at(0), FAST, 0);
    let from_a = send(&mut a, at(120_000), FAST, 1);
    let from_b = send(&mut b, at(120_000), FAST, 1);
    assert!(receive(&mut b, at(120_010), FAST, &from_a).is_ok());
    assert!(receive(&mut a, at(120_010), FAST, &from_b).is_ok());
    assert_eq!((a.phases(), b.phases()), (1, 1));
    pass(&mut a, &mut b, at(120_020), FAST, 2);
    pass(&mut b, &mut a, at(120_020), FAST, 2);
}

/// Two paths of one session, one 2 s slower, both busy, while the keys change: nothing is lost.
#[test]
fn packets_of_both_phases_open_while_one_path_lags_by_two_seconds() {
    let (mut a, mut b) = pair(Limits { rekey_after_packets: 400, ..Limits::default() });
    for end in [&mut a, &mut b] {
        end.set_retention(Span::from_secs(7));
    }
    let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
    let (mut fsn, mut opened, mut both_bits_on_slow) = (0, 0, [false; 2]);
    for now in (0..60_000_u64).step_by(20) {
        for (path, delay) in [(FAST, 10), (SLOW, 2_010)] {
            to_b.push((now + delay, path, fsn, send(&mut a, at(now), path, fsn)));
            to_a.push((now + delay, path, fsn, send(&mut b, at(now), path, fsn)));
        }
        fsn += 1;
        for is_to_b in [true, false] {
            let (arrivals, from, to) =
                if is_to_b { (&mut to_b, &mut a, &mut b) } else { (&mut to_a, &mut b, &mut a) };
            let due: Vec<_> = arrivals.extract_if(.., |(when, ..)| *when <= now).collect();
            for (_, path, fsn, datagram) in due {
                assert_eq!(receive(to, at(now), path, &datagram), Ok(text(path, fsn)), "at {now} ms");
                assert_eq!(receive(to, at(now), path, &datagram), Err(OpenError::Replayed));
                from.handle_acked(path, Fsn(fsn));
                opened += 1;
                if path == SLOW {
                    both_bits_on_slow[usize::from(Header::decode(&datagram).unwrap().0.key_phase)] = true;
                }
            }
        }
    }
    assert!(a.phases() >= 5, "{}", a.phases());
    assert!(a.phases().abs_diff(b.phases()) <= 1);
    assert_eq!(both_bits_on_slow, [true, true]);
    assert!(opened > 11_000);
    assert_eq!((a.forgeries(), b.forgeries()), (0, 0));
}

/// The slow path carries nothing in a whole phase: its first packet afterwards is two phases on, or one.
#[test]
fn packets_open_on_a_path_that_was_silent_for_whole_phases() {
    for phases in 1..=4 {
        let (mut a, mut b) = pair(limits());
        pass(&mut a, &mut b, at(0), SLOW, 0);
        let mut now = 0;
        for fsn in 0..phases {
            pass(&mut b, &mut a, at(now), FAST, fsn);
            now += 130_000;
            pass(&mut a, &mut b, at(now), FAST, fsn);
        }
        assert_eq!(a.phases(), phases);
        pass(&mut a, &mut b, at(now), SLOW, 1);
        assert_eq!(b.forgeries(), 0);
    }
}

/// The only case in which neither bit nor number decides: a slow path misses a whole phase that volume cut short.
#[test]
fn packets_open_on_a_path_that_missed_a_phase_while_the_previous_key_is_retained() {
    let (mut a, mut b) = pair(limits());
    a.set_retention(Span::from_secs(6));
    b.set_retention(Span::from_secs(6));
    pass(&mut a, &mut b, at(0), SLOW, 0);
    pass(&mut b, &mut a, at(0), FAST, 0);
    let late = send(&mut a, at(0), SLOW, 1);
    for fsn in 0..100 {
        pass(&mut a, &mut b, at(6_000), FAST, fsn);
    }
    assert_eq!((a.phases(), b.phases()), (1, 1));
    pass(&mut b, &mut a, at(6_000), FAST, 1);
    assert_eq!(receive(&mut b, at(6_001), SLOW, &late), Ok(text(SLOW, 1)), "of phase 0");
    // On to the volume at which the retention time is waived, while nothing gets through on the slow path.
    let mut fsn = 100;
    while a.sealer.packets < limits().rekey_at_once_after_packets {
        pass(&mut a, &mut b, at(6_002), FAST, fsn);
        fsn += 1;
    }
    assert_eq!((a.phases(), b.phases()), (1, 1));
    let first_of_next = send(&mut a, at(6_002), SLOW, 2);
    assert_eq!((a.phases(), b.phases()), (2, 1));
    assert_eq!(receive(&mut b, at(6_003), SLOW, &first_of_next), Ok(text(SLOW, 2)), "of phase 2");
    assert_eq!((b.phases(), b.forgeries()), (2, 0));
}

#[test]
fn a_late_packet_opens_until_the_retention_time_is_over() {
    let old = |when: u64| {
        let (mut a, mut b) = pair(limits());
        b.set_retention(Span::from_secs(6));
        pass(&mut b, &mut a, at(0), FAST, 0);
        pass(&mut a, &mut b, at(0), FAST, 0);
        let late = send(&mut a, at(0), FAST, 1);
        pass(&mut a, &mut b, at(120_000), FAST, 2);
        assert_eq!((a.phases(), b.phases()), (1, 1));
        receive(&mut b, at(120_000 + when), FAST, &late)
    };
    assert_eq!(old(5_999), Ok(text(FAST, 1)));
    assert_eq!(old(6_000), Err(OpenError::PhaseGone));
}

#[test]
fn a_number_after_the_change_is_refused_under_the_old_key() {
    let (mut a, mut b) = pair(limits());
    let (mut old_a, _) = pair(limits());
    pass(&mut b, &mut a, at(0), FAST, 0);
    pass(&mut a, &mut b, at(0), FAST, 0);
    pass(&mut a, &mut b, at(120_000), FAST, 1);
    pass(&mut a, &mut b, at(120_000), FAST, 9);
    for fsn in [2, 10] {
        let stale = send(&mut old_a, at(0), FAST, fsn);
        assert_eq!(receive(&mut b, at(120_000), FAST, &stale), Err(OpenError::NotAuthentic));
    }
}

#[test]
fn numbers_sealed_under_a_key_are_dropped_with_it() {
    let (mut a, mut b) = pair(limits());
    pass(&mut b, &mut a, at(0), FAST, 0);
    for id in 0..90 {
        pass(&mut a, &mut b, at(0), PathId(id), 5);
    }
    assert_eq!(a.sealer.next.len(), 90);
    pass(&mut a, &mut b, at(120_000), FAST, 6);
    assert_eq!((a.phases(), a.sealer.next.len()), (1, 1));
}

#[test]
fn the_same_number_on_two_paths_is_sealed_with_two_nonces() {
    let key = KeyChain::new(Zeroizing::new([1; 32])).advance();
    let [a, b] = [FAST, SLOW].map(|path| {
        let (mut text, mut tag) = ([0; 32], [0; TAG_LEN]);
        assert!(key.seal(path, Fsn(0), &[], &mut text, &mut tag));
        text
    });
    assert_ne!(a, b);
}

#[test]
fn an_idle_session_takes_a_few_kilobytes_and_may_move_between_threads() {
    fn movable<T: Send>() -> usize {
        size_of::<T>()
    }
    assert!(movable::<Protection>() <= 4096, "{}", movable::<Protection>());
    movable::<crate::Initiator>();
    movable::<crate::PendingInit>();
}

#[test]
fn a_peer_that_changes_phase_before_this_end_followed_is_cut_off() {
    let (mut a, mut b) = pair(limits());
    a.opener.confirmed_at = Some(at(0));
    pass(&mut a, &mut b, at(0), FAST, 0);
    let early = send(&mut a, at(120_000), FAST, 1);
    let error = receive(&mut b, at(120_000), FAST, &early).unwrap_err();
    assert_eq!(error, OpenError::KeyUpdateViolation);
    assert!(error.is_fatal());
}

#[test]
fn too_many_forgeries_end_the_session() {
    let (mut a, mut b) = pair(Limits { max_forgeries: 3, ..limits() });
    let good = send(&mut a, at(0), FAST, 0);
    let mut bad = good.clone();
    bad[20] ^= 1;
    for _ in 0..3 {
        assert_eq!(receive(&mut b, at(0), FAST, &bad), Err(OpenError::NotAuthentic));
    }
    assert_eq!(receive(&mut b, at(0), FAST, &good), Err(OpenError::TooManyForgeries));
    assert!(OpenError::TooManyForgeries.is_fatal() && !OpenError::NotAuthentic.is_fatal());
}

#[test]
fn by_default_the_limits_are_those_of_aes_gcm() {
    let limits = Limits::default();
    assert_eq!((limits.max_packets, limits.max_forgeries), (1 << 23, 1 << 52), "RFC 9001 §6.6");
    assert!(limits.rekey_at_once_after_packets < limits.max_packets);
}

#[test]
fn keys_of_successive_phases_and_of_both_directions_differ() {
    let mut sealed = std::collections::BTreeSet::new();
    for secret in [1, 2] {
        let mut chain = KeyChain::new(Zeroizing::new([secret; 32]));
        for _ in 0..10 {
            let (mut text, mut tag) = ([0; 32], [0; TAG_LEN]);
            assert!(chain.advance().seal(FAST, Fsn(0), &[], &mut text, &mut tag));
            assert!(sealed.insert(text));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Paths of any delay up to 2 s, loss, and phases as short as the rules allow: every arriving packet opens, once.
    /// Acknowledgements travel in the packets, so they are late and may be lost. Still, one phase follows the other.
    #[test]
    fn whatever_arrives_within_the_retention_time_opens(
        delays in prop::collection::vec(1_u64..2_000, 3),
        lost in prop::collection::vec(prop::bool::weighted(0.2), 1..50),
        volume in 1_u64..60,
    ) {
        let limits = Limits { rekey_after_packets: volume, retention: Span::from_secs(7), ..Limits::default() };
        let (a, b) = pair(limits);
        let mut ends = [a, b];
        // The highest number that each end has received on each path.
        let mut heard = [[None::<Fsn>; 3]; 2];
        let mut in_flight = Vec::new();
        let mut turn = 0_usize;
        let path_at = |place: usize| PathId(place as u32 * 2);
        for (fsn, now) in (0..40_000_u64).step_by(100).enumerate() {
            for (place, delay) in delays.iter().enumerate() {
                for from in [0, 1] {
                    let datagram = send(&mut ends[from], at(now), path_at(place), fsn as u64);
                    turn += 1;
                    if !lost[turn % lost.len()] {
                        in_flight.push((now + delay, from, (place, fsn as u64), datagram, heard[from]));
                    }
                }
            }
            let due: Vec<_> = in_flight.extract_if(.., |(when, ..)| *when <= now).collect();
            for (_, from, (place, fsn), datagram, acked) in due {
                let (to, path) = (1 - from, path_at(place));
                prop_assert_eq!(receive(&mut ends[to], at(now), path, &datagram), Ok(text(path, fsn)));
                heard[to][place] = heard[to][place].max(Some(Fsn(fsn)));
                for (place, highest) in acked.into_iter().enumerate() {
                    highest.into_iter().for_each(|highest| ends[to].handle_acked(path_at(place), highest));
                }
            }
        }
        let phases = ends.each_ref().map(Protection::phases);
        if lost.iter().any(|lost| !lost) {
            prop_assert!(phases[0].abs_diff(phases[1]) <= 1);
        }
        if heard.iter().all(|paths| paths.iter().any(Option::is_some)) {
            prop_assert!(phases.iter().all(|phase| *phase >= 2), "{phases:?}");
        }
    }

    #[test]
    fn no_bytes_make_the_opener_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        path in any::<u32>(),
        fsn in any::<u64>(),
        key_phase in any::<bool>(),
    ) {
        let (_, mut b) = pair(limits());
        let header =
            Header { kind: Kind::Data, key_phase, tos: 0, hop_limit: 0, pid: Pid(1), fsn: fsn as u32 };
        let mut bytes = bytes;
        prop_assert!(b.open(at(0), &Envelope::new(&header, PathId(path), Fsn(fsn)), &mut bytes).is_err());
    }
}
