use super::*;
use crate::event::ProtocolError;

const RTT: Span = Span::from_millis(10);

fn sent(count: u64) -> Scoreboard {
    let mut board = Scoreboard::new(true);
    for number in 0..count {
        board.on_sent(Time::ZERO + Span::from_millis(number), 1000, true, Contents::Nothing);
    }
    board
}

fn ack(board: &mut Scoreboard, ranges: &[std::ops::Range<u64>]) -> AckOutcome {
    board.on_ack(Time::ZERO + Span::from_millis(100), &ranges.iter().cloned().collect(), |_| {}).unwrap()
}

#[test]
fn each_transmission_is_taken_from_the_pipe_once() {
    let mut board = sent(4);
    assert_eq!(ack(&mut board, &[1..3]).acked_bytes, 2000);
    assert_eq!(ack(&mut board, &[1..3]).acked_bytes, 0);
    assert_eq!(board.pipe(), 2000);
    ack(&mut board, &[0..4]);
    assert_eq!(board.pipe(), 0);
}

#[test]
fn three_later_packets_make_a_loss_and_two_do_not() {
    let mut board = sent(5);
    ack(&mut board, &[1..3]);
    let now = Time::ZERO + Span::from_millis(5);
    assert_eq!(board.detect_losses(now, RTT, &mut Vec::new()).packets, 0);
    assert_eq!(board.loss_at(), Some(Time::ZERO + Span::from_micros(11_250)));
    ack(&mut board, &[1..4]);
    assert_eq!(board.detect_losses(now, RTT, &mut Vec::new()).packets, 1);
    assert_eq!(board.pipe(), 1000);
}

#[test]
fn time_makes_a_loss_without_three_later_packets() {
    let mut board = sent(3);
    ack(&mut board, &[1..2]);
    assert_eq!(board.detect_losses(Time::ZERO + Span::from_millis(12), RTT, &mut Vec::new()).packets, 1);
}

#[test]
fn a_loss_that_arrives_after_all_widens_the_reordering_window() {
    let mut board = sent(20);
    ack(&mut board, &[9..10]);
    assert_eq!(board.detect_losses(Time::ZERO, RTT, &mut Vec::new()).packets, 7);
    let outcome = ack(&mut board, &[0..10]);
    assert_eq!(outcome.spurious, 7);
    assert_eq!(board.reorder_packets(), 10);
}

#[test]
fn what_arrives_after_a_silence_does_not_widen_the_reordering_window() {
    let mut board = sent(20);
    ack(&mut board, &[0..4]);
    assert_eq!(board.give_up(&mut Vec::new()).packets, 16);
    assert_eq!(ack(&mut board, &[0..20]).spurious, 16);
    board.on_sent(Time::ZERO, 1000, true, Contents::Nothing);
    board.on_sent(Time::ZERO, 1000, true, Contents::Nothing);
    ack(&mut board, &[21..22, 0..20]);
    board.detect_losses(Time::ZERO, RTT, &mut Vec::new());
    assert_eq!(board.loss_at(), Some(Time::ZERO + Span::from_micros(11_250)));
}

/// A peer could acknowledge one number very late, so that this end waits as long before each loss.
#[test]
fn reordering_is_waited_for_within_bounds_however_late_a_packet_is() {
    let mut board = Scoreboard::new(false);
    for _ in 0..3 * MAX_REORDER_PACKETS {
        board.on_sent(Time::ZERO, 1000, true, Contents::Nothing);
    }
    ack(&mut board, &[1..3 * MAX_REORDER_PACKETS]);
    assert_eq!(board.detect_losses(Time::ZERO, RTT, &mut Vec::new()).packets, 1);
    assert_eq!(ack(&mut board, &[0..1]).spurious, 1);
    assert_eq!(board.reorder_packets(), MAX_REORDER_PACKETS);
}

#[test]
fn what_arrives_after_it_was_given_up_is_told_with_what_it_carried() {
    let mut board = Scoreboard::new(true);
    let contents: Contents = Contents::One(Content::MtuProbe(1400));
    board.on_sent(Time::ZERO, 1000, true, contents.clone());
    board.give_up(&mut Vec::new());
    let mut told = Vec::new();
    let tell = |packet: &Arrived<'_>| told.push(packet.contents.clone());
    board.on_ack(Time::ZERO + RTT, &std::iter::once(0..1).collect(), tell).unwrap();
    assert_eq!(told, [contents]);
}

#[test]
fn acknowledging_the_unsent_is_an_error() {
    let mut board = sent(3);
    let ranges = std::iter::once(2..4).collect();
    assert_eq!(board.on_ack(Time::ZERO, &ranges, |_| {}).err(), Some(ProtocolError::AckOfUnsent));
}

#[test]
fn packets_that_ask_for_nothing_leave_nothing_behind() {
    let mut board = sent(1);
    for _ in 0..100 {
        board.on_sent(Time::ZERO, 40, false, Contents::Nothing);
    }
    assert_eq!((board.next_fsn(), board.slots.len(), board.pipe()), (Fsn(101), 1, 1000));
    assert_eq!(ack(&mut board, &[0..101]).acked_bytes, 1000);
    assert_eq!((board.slots.len(), board.acked.range_count()), (0, 0));
}

#[test]
fn acknowledging_a_number_that_was_left_out_is_an_error() {
    let mut board = sent(3);
    board.skip(7);
    board.on_sent(Time::ZERO, 1000, true, Contents::Nothing);
    assert_eq!(board.next_fsn(), Fsn(5));
    assert_eq!(ack(&mut board, &[4..5, 0..3]).acked_bytes, 4000);
    let blind = std::iter::once(0..5).collect();
    assert_eq!(board.on_ack(Time::ZERO, &blind, |_| {}).err(), Some(ProtocolError::AckOfUnsent));
}

#[test]
fn room_that_a_burst_took_is_given_back() {
    let mut board = sent(1000);
    ack(&mut board, &[0..990]);
    assert!(board.slots.capacity() < 100, "{}", board.slots.capacity());
}

#[test]
fn what_a_silent_peer_loses_is_not_remembered_without_end() {
    let mut board = Scoreboard::new(true);
    for _ in 0..10 {
        for _ in 0..1000 {
            board.on_sent(Time::ZERO, 1000, true, Contents::Nothing);
        }
        board.give_up(&mut Vec::new());
    }
    assert_eq!((board.slots.len(), board.past.slots.len() as u64, board.pipe()), (0, KEEP_LOST, 0));
    assert_eq!(ack(&mut board, &[8_000..10_000]).spurious, 2000);
    assert_eq!(board.past.lost, 48);
}

/// A run of this many bytes at an offset.
fn run_at(offset: u64) -> Contents {
    let stream = anabranch_wire::StreamId(0);
    Contents::One(Content::Run(SentRun::new(stream, offset..offset + 900, false)))
}

#[test]
fn the_newest_packets_are_shown_for_copies_one_after_the_other_and_those_that_came_since_first() {
    let mut board = Scoreboard::new(true);
    for number in 0..4 {
        board.on_sent(Time::ZERO, 1000, true, run_at(number * 900));
    }
    board.on_sent(Time::ZERO, 100, true, Contents::Nothing);
    let newest = |board: &mut Scoreboard| {
        board.newest_to_copy(64).map(|found| (found.number, found.ahead, found.runs[0].offset))
    };
    assert_eq!(newest(&mut board), Some((3, 4000, 2700)), "what carries nothing is no copy");
    assert_eq!(newest(&mut board), Some((3, 4000, 2700)), "it is judged again");
    board.on_copied(3);
    assert_eq!(newest(&mut board), Some((2, 3000, 1800)));
    board.pass_newest();
    ack(&mut board, &[0..1]);
    assert_eq!(newest(&mut board), Some((1, 1000, 900)), "what was acknowledged is not ahead any more");
    board.on_sent(Time::ZERO, 1000, true, run_at(3600));
    assert_eq!(newest(&mut board), Some((5, 4100, 3600)));
    board.on_copied(5);
    board.give_up(&mut Vec::new());
    assert_eq!(newest(&mut board), None);
}

#[test]
fn no_more_packets_are_looked_at_for_copies_than_asked_and_the_search_goes_on_from_there() {
    let mut board = Scoreboard::new(true);
    board.on_sent(Time::ZERO, 1000, true, run_at(0));
    for _ in 0..10 {
        board.on_sent(Time::ZERO, 100, true, Contents::Nothing);
    }
    assert!(board.newest_to_copy(6).is_none());
    assert_eq!(board.newest_to_copy(6).map(|found| found.ahead), Some(1000));
}

#[test]
fn numbers_beyond_what_a_slot_holds_of_them_are_told_apart() {
    let mut board = Scoreboard::new(false);
    let first = u64::from(u32::MAX) - 1;
    board.next = first;
    for offset in 0..5 {
        board.on_sent(Time::ZERO, 1000, true, run_at(offset * 900));
    }
    assert_eq!(ack(&mut board, &[first + 4..first + 5]).packets, 1);
    let mut lost = Vec::new();
    assert_eq!(board.detect_losses(Time::ZERO, RTT, &mut lost).packets, 2);
    assert_eq!(lost[1].contents, run_at(900));
    assert_eq!(board.newest_to_copy(64).map(|found| found.number), Some(first + 3));
    // The two lost packets arrive after the other two.
    assert_eq!(ack(&mut board, &[first + 2..first + 5]).packets, 2);
    assert_eq!((board.slots.len(), board.past.span.clone()), (0, first..first + 2));
    assert_eq!(ack(&mut board, &[first..first + 5]).spurious, 2);
    assert_eq!((board.past.lost, board.pipe(), board.past.span.is_empty()), (0, 0, true));
}

#[test]
fn what_went_another_way_gives_no_round_trip() {
    let mut board = sent(1);
    board.on_stray();
    board.on_sent(Time::ZERO + Span::from_millis(40), 1000, true, Contents::Nothing);
    board.on_stray();
    let first = ack(&mut board, &[0..2]);
    assert_eq!((first.packets, first.rtt, board.pipe()), (1, None, 1000));
    let second = ack(&mut board, &[0..3]);
    assert_eq!((second.packets, second.rtt, board.pipe()), (1, Some(Span::from_millis(60)), 0));
}

#[test]
fn what_went_another_way_overtakes_nothing() {
    let mut board = sent(6);
    board.on_stray();
    assert_eq!(ack(&mut board, &[6..7]).packets, 0);
    assert_eq!(board.oldest_sent_at(), Some(Time::ZERO), "the first packet still waits");
    assert_eq!(ack(&mut board, &[6..7, 0..1]).packets, 1);
    let now = Time::ZERO + Span::from_millis(6);
    assert_eq!(board.detect_losses(now, RTT, &mut Vec::new()).packets, 0);
}

#[test]
fn a_probe_of_the_path_mtu_that_arrives_late_shows_no_spurious_loss() {
    for given_up in [false, true] {
        let mut board = Scoreboard::new(true);
        board.on_sent(Time::ZERO, 0, true, Contents::One(Content::MtuProbe(1400)));
        for _ in 0..5 {
            board.on_sent(Time::ZERO, 1000, true, Contents::Nothing);
        }
        // The probe and the packet after it count as lost, and both arrive.
        ack(&mut board, &[2..6]);
        let losses = match given_up {
            true => board.give_up(&mut Vec::new()),
            false => board.detect_losses(Time::ZERO + RTT * 2, RTT, &mut Vec::new()),
        };
        assert_eq!(losses.packets, 2);
        assert_eq!(ack(&mut board, &[0..6]).spurious, 1);
    }
}
