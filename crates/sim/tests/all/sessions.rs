//! Sessions from INIT to CLOSE over networks that lose messages, change addresses or fall silent.

use anabranch_engine::{
    AbandonReason, AckPolicy, Arrival, CloseReason, Config, DatagramError, Ecn, Event, PathError, PathState,
    Session, State,
};
use anabranch_sim::{App, CLIENT, CableConfig, Idle, Pair, SERVER, Sender, Sink};
use anabranch_wire::{DatagramFrame, Length, Message, PathUse, ResetToken, Side, Span, Time};

fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

fn at(millis: u64) -> Time {
    Time::ZERO + ms(millis)
}

fn pair(config: &Config, cables: usize) -> Pair<Length> {
    Pair::new([config.clone(), config.clone()], &vec![CableConfig::new(10.0, ms(20), 1.0); cables], 1)
}

fn idle(pair: &mut Pair<Length>, until: Time) {
    pair.run(until, &mut [&mut Idle, &mut Idle]);
}

fn states(pair: &mut Pair<Length>) -> [State; 2] {
    [CLIENT, SERVER].map(|end| pair.session(end).state())
}

/// Records why the session ended, and how often an event reported it.
#[derive(Default)]
struct Ends {
    told: Vec<CloseReason>,
    sink: Sink,
}

impl App<Length> for Ends {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        while let Some(event) = session.poll_event() {
            if let Event::Closed(reason) = event {
                self.told.push(reason);
            }
        }
        self.sink.poll(now, session);
    }
}

/// Sends and reads.
struct Both(Sender, Sink);

impl App<Length> for Both {
    fn poll(&mut self, now: Time, session: &mut Session<Length>) {
        self.0.poll(now, session);
        self.1.poll(now, session);
    }
}

#[test]
fn a_lost_init_is_sent_again() {
    let mut pair = pair(&Config::default(), 1);
    pair.link(0, 0).set_down(true);
    pair.connect();
    idle(&mut pair, at(100));
    assert!(pair.ends[SERVER].session.is_none());
    pair.link(0, 0).set_down(false);
    idle(&mut pair, at(600));
    assert_eq!(states(&mut pair), [State::Established; 2]);
}

#[test]
fn a_lost_init_ack_is_answered_by_another_init() {
    let mut pair = pair(&Config::default(), 1);
    pair.link(0, 1).set_down(true);
    pair.connect();
    idle(&mut pair, at(100));
    assert_eq!(states(&mut pair), [State::InitSent, State::InitRecv]);
    pair.link(0, 1).set_down(false);
    idle(&mut pair, at(600));
    assert_eq!(states(&mut pair), [State::Established; 2]);
}

#[test]
fn a_lost_third_message_delays_the_server_only() {
    let mut pair = pair(&Config::default(), 1);
    pair.connect();
    idle(&mut pair, at(15));
    pair.link(0, 0).set_down(true);
    idle(&mut pair, at(150));
    assert_eq!(states(&mut pair), [State::Established, State::InitRecv]);
    pair.link(0, 0).set_down(false);
    idle(&mut pair, at(1_500));
    assert_eq!(states(&mut pair), [State::Established; 2]);
}

#[test]
fn dead_candidates_cost_no_time() {
    let mut pair = pair(&Config::default(), 3);
    pair.set_down(0, true);
    pair.set_down(2, true);
    pair.connect();
    idle(&mut pair, at(50));
    assert_eq!(states(&mut pair), [State::Established; 2]);
    assert_eq!(pair.session(CLIENT).paths()[0].route.socket, 1);
}

#[test]
fn without_any_answer_connecting_ends_after_its_time() {
    let mut pair = pair(&Config::default(), 2);
    pair.set_down(0, true);
    pair.set_down(1, true);
    let mut ends = Ends::default();
    pair.connect();
    pair.run(at(11_000), &mut [&mut ends, &mut Idle]);
    assert_eq!(ends.told, [CloseReason::ConnectTimeout]);
}

/// MPTCP §2 [P4].
#[test]
fn a_peer_that_takes_one_path_only_gets_a_plain_session() {
    let single = Config { max_paths: 1, ..Config::default() };
    let cables = vec![CableConfig::new(10.0, ms(20), 1.0); 2];
    let mut pair: Pair<Length> = Pair::new([Config::default(), single], &cables, 1);
    let (mut sender, mut sink) = (Sender::new(2_000_000), Sink::default());
    pair.connect();
    pair.run(at(500), &mut [&mut sender, &mut sink]);
    let (now, route) = (pair.now, pair.route(CLIENT, 1));
    assert_eq!(pair.session(CLIENT).open_path(now, route), Err(PathError::TooMany(1)));
    pair.run(at(5_000), &mut [&mut sender, &mut sink]);
    assert_eq!(sink.received, 2_000_000);
    assert_eq!([CLIENT, SERVER].map(|end| pair.session(end).paths().len()), [1, 1]);
}

/// MPTCP §6 [P3].
#[test]
fn a_receiver_that_stops_reading_never_deadlocks_the_other_direction() {
    let mut config = Config::default();
    config.memory.initial_window = 20_000;
    let mut pair = pair(&config, 1);
    let mut client = Both(Sender::new(u64::MAX), Sink::default());
    // The server writes and never reads.
    let mut server = Sender::new(3_000_000);
    pair.establish(&mut [&mut client, &mut server]);
    pair.run(at(6_000), &mut [&mut client, &mut server]);
    assert_eq!(client.1.received, 3_000_000);
}

#[test]
fn an_upload_survives_the_nat_forgetting_the_client() {
    let mut pair = pair(&Config::default(), 1);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(at(3_000), &mut [&mut sender, &mut sink]);
    pair.rebind(0);
    pair.run(at(6_000), &mut [&mut sender, &mut sink]);
    let gap = sink.longest_gap(at(3_000), at(6_000));
    assert!(gap < ms(500), "{} ms", gap.as_millis_f64());
    assert_eq!(pair.session(SERVER).paths()[0].route.remote.port(), 1001);
}

/// A receiver that only acknowledges shows its new address soon, without keep-alives.
#[test]
fn a_download_survives_the_nat_forgetting_the_client() {
    for rtt in [2, 20, 60, 150, 400] {
        let rtt = ms(rtt);
        let cable = CableConfig::new(10.0, rtt, 1.0);
        let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &[cable], 1);
        let (mut sink, mut sender) = (Sink::default(), Sender::new(u64::MAX));
        pair.establish(&mut [&mut sink, &mut sender]);
        for round in 1..=3 {
            let from = at(5_000 * round);
            pair.run(from, &mut [&mut sink, &mut sender]);
            pair.rebind(0);
            let port = pair.route(SERVER, 0).remote.port();
            while pair.session(SERVER).paths()[0].route.remote.port() != port {
                pair.run(pair.now + ms(1), &mut [&mut sink, &mut sender]);
            }
            // The queue holds up to one more round trip.
            let (proven, most) = (pair.now.since(from), (rtt * 3).max(ms(200)) + rtt);
            assert!(proven <= most, "{rtt}, round {round}: proven after {proven}");
            pair.run(from + ms(4_000), &mut [&mut sink, &mut sender]);
            let gap = sink.longest_gap(from, from + ms(4_000));
            assert!(
                gap <= proven + rtt * 2 + ms(20),
                "{rtt}, round {round}: a pause of {gap} after {proven}"
            );
        }
    }
}

/// A pair over two cables of 10 Mbit/s, the second with the longer round trip.
fn near_and_far() -> Pair<Length> {
    let cables = [20, 100].map(|rtt| CableConfig::new(10.0, ms(rtt), 1.0));
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 1);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    idle(&mut pair, at(2_000));
    pair
}

#[test]
fn a_path_that_a_nat_forgot_while_it_was_idle_carries_a_download_again() {
    let mut pair = near_and_far();
    pair.rebind(1);
    let (mut sink, mut sender) = (Sink::default(), Sender::new(u64::MAX));
    pair.run(at(8_000), &mut [&mut sink, &mut sender]);
    let paths = pair.session(CLIENT).paths();
    let over: u64 =
        paths.iter().filter(|path| path.route.socket == 1).map(|path| path.stats.data_received).sum();
    assert!(over > 2_000_000, "{over} bytes");
}

/// Seconds in which a download of 14 MB at 10 Mbit/s arrives while the client's NAT forgets it at these times.
fn download(rebound_at: &[u64]) -> f64 {
    let cable = CableConfig::new(10.0, ms(60), 1.0);
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &[cable], 1);
    let (mut sink, mut sender) = (Sink::default(), Sender::new(14_000_000));
    pair.establish(&mut [&mut sink, &mut sender]);
    for second in rebound_at {
        pair.run(at(second * 1_000), &mut [&mut sink, &mut sender]);
        pair.rebind(0);
    }
    while sink.received < 14_000_000 && pair.now < at(60_000) {
        pair.run(pair.now + ms(10), &mut [&mut sink, &mut sender]);
    }
    pair.now.as_secs_f64()
}

#[test]
fn three_rebindings_in_twelve_seconds_cost_less_than_one_second() {
    let (without, with) = (download(&[]), download(&[3, 6, 9]));
    assert!(without > 11.5 && with < without + 1.0, "{with:.2} s instead of {without:.2} s");
}

#[test]
fn a_path_for_probes_only_does_not_let_the_other_be_suspected() {
    let mut pair = pair(&Config::default(), 2);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    let paths = pair.session(CLIENT).paths();
    let standby = paths.iter().find(|path| path.route.socket == 1).map(|path| path.id).unwrap();
    pair.session(CLIENT).set_path_use(standby, PathUse::Standby).unwrap();
    let (mut sink, mut sender) = (Sink::default(), Sender::new(u64::MAX));
    pair.run(at(3_000), &mut [&mut sink, &mut sender]);
    pair.set_down(0, true);
    pair.run(at(3_200), &mut [&mut sink, &mut sender]);
    let paths = pair.session(SERVER).paths();
    let cut = paths.iter().find(|path| path.route.socket == 0).unwrap();
    assert!(cut.stats.probe_timeouts > 0 && cut.state == PathState::Active, "{cut:?}");
}

#[test]
fn only_the_peers_own_token_resets_a_session() {
    let mut pair = pair(&Config::default(), 1);
    let mut ends = Ends::default();
    pair.establish(&mut [&mut ends, &mut Idle]);
    let token = pair.session(SERVER).local_params().reset_token;
    let (now, route) = (pair.now, pair.route(CLIENT, 0));
    let arrival = Arrival { route, size: 40, ecn: Ecn::NotEct, waited: Span::ZERO };
    let mut wrong = token.0;
    wrong[15] ^= 1;
    pair.session(CLIENT).handle_message(now, &arrival, Message::Reset(ResetToken(wrong)));
    pair.run(at(200), &mut [&mut ends, &mut Idle]);
    assert_eq!(pair.session(CLIENT).state(), State::Established);
    let now = pair.now;
    pair.session(CLIENT).handle_message(now, &arrival, Message::Reset(token));
    pair.run(at(300), &mut [&mut ends, &mut Idle]);
    assert_eq!(ends.told, [CloseReason::Reset]);
}

#[test]
fn closing_at_both_ends_at_once_ends_both_in_order() {
    let mut pair = pair(&Config::default(), 2);
    let (mut client, mut server) = (Ends::default(), Ends::default());
    pair.establish(&mut [&mut client, &mut server]);
    for end in [CLIENT, SERVER] {
        let now = pair.now;
        pair.session(end).close(now);
    }
    pair.run(at(5_000), &mut [&mut client, &mut server]);
    assert_eq!(client.told, [CloseReason::Finished]);
    assert_eq!(server.told, [CloseReason::Finished]);
    assert!(pair.session(CLIENT).is_closed() && pair.session(SERVER).is_closed());
}

#[test]
fn closing_delivers_what_was_written_before() {
    let mut pair = pair(&Config::default(), 1);
    let (mut sender, mut ends) = (Sender::new(1_000_000), Ends::default());
    pair.establish(&mut [&mut sender, &mut ends]);
    pair.run(at(200), &mut [&mut sender, &mut ends]);
    let (now, written) = (pair.now, pair.session(CLIENT).stats().bytes_written);
    pair.session(CLIENT).close(now);
    pair.run(at(5_000), &mut [&mut Idle, &mut ends]);
    assert_eq!(ends.told, [CloseReason::Finished]);
    assert!(written > 200_000 && ends.sink.received == written, "{} of {written}", ends.sink.received);
}

#[test]
fn the_close_of_the_last_path_is_told_to_the_peer() {
    let mut pair = pair(&Config::default(), 1);
    let mut ends = Ends::default();
    pair.establish(&mut [&mut Idle, &mut ends]);
    let (now, path) = (pair.now, pair.session(CLIENT).paths()[0].id);
    pair.session(CLIENT).close_path(now, path, anabranch_engine::AbandonReason::Requested);
    pair.run(at(1_000), &mut [&mut Idle, &mut ends]);
    assert!(matches!(ends.told.as_slice(), [CloseReason::Peer { .. }]), "{:?}", ends.told);
}

#[test]
fn silence_ends_a_session_at_the_idle_timeout() {
    let mut pair = pair(&Config::default(), 1);
    let (mut client, mut server) = (Ends::default(), Ends::default());
    pair.establish(&mut [&mut client, &mut server]);
    pair.run(at(500), &mut [&mut client, &mut server]);
    pair.set_down(0, true);
    pair.run(at(29_000), &mut [&mut client, &mut server]);
    assert!(client.told.is_empty() && server.told.is_empty());
    pair.run(at(32_000), &mut [&mut client, &mut server]);
    assert_eq!((client.told, server.told), (vec![CloseReason::IdleTimeout], vec![CloseReason::IdleTimeout]));
}

#[test]
fn keep_alive_outlasts_the_idle_timeout_and_an_outage_without_paths() {
    let config = Config { keep_alive: Some(Span::from_secs(5)), ..Config::default() };
    let mut pair = pair(&config, 1);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    idle(&mut pair, at(100_000));
    pair.set_down(0, true);
    idle(&mut pair, at(120_000));
    pair.set_down(0, false);
    idle(&mut pair, at(200_000));
    assert_eq!(states(&mut pair), [State::Established; 2]);
}

#[test]
fn paths_that_never_reached_the_peer_do_not_use_up_what_it_made_ready() {
    let mut pair = pair(&Config::default(), 2);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    idle(&mut pair, at(200));
    let second = pair.session(CLIENT).paths()[1].id;
    let now = pair.now;
    pair.session(CLIENT).close_path(now, second, anabranch_engine::AbandonReason::Requested);
    pair.set_down(1, true);
    for round in 0..8 {
        let from = pair.now;
        let route = pair.route(CLIENT, 1);
        assert!(pair.session(CLIENT).open_path(from, route).is_ok(), "round {round}");
        idle(&mut pair, from + Span::from_secs(9));
        assert_eq!(pair.session(CLIENT).paths().len(), 1);
    }
    pair.set_down(1, false);
    let (now, route) = (pair.now, pair.route(CLIENT, 1));
    assert!(pair.session(CLIENT).open_path(now, route).is_ok());
    idle(&mut pair, now + Span::from_secs(1));
    assert_eq!(pair.session(SERVER).paths().len(), 2);
}

#[test]
fn a_session_whose_only_address_is_gone_goes_on_from_another() {
    let mut pair = pair(&Config::default(), 2);
    let (mut sender, mut sink) = (Sender::new(2_000_000), Sink::default());
    pair.connect();
    pair.run(at(500), &mut [&mut sender, &mut sink]);
    let first = pair.session(CLIENT).paths()[0].clone();
    let other = pair.route(CLIENT, 1 - first.route.socket as usize);
    pair.session(CLIENT).close_path(at(500), first.id, AbandonReason::AddressGone);
    pair.run(at(1_500), &mut [&mut sender, &mut sink]);
    pair.session(CLIENT).open_path(at(1_500), other).expect("a path from the new address");
    pair.run(at(20_000), &mut [&mut sender, &mut sink]);
    assert_eq!(sink.received, 2_000_000);
}

#[test]
fn of_two_paths_that_both_ends_open_over_one_route_one_is_kept() {
    let mut pair = pair(&Config::default(), 2);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    idle(&mut pair, at(200));
    for round in 0..3 {
        let (now, second) = (pair.now, pair.session(CLIENT).paths()[1].id);
        pair.session(CLIENT).close_path(now, second, AbandonReason::AddressGone);
        idle(&mut pair, now + Span::from_secs(3));
        let now = pair.now;
        for side in [CLIENT, SERVER] {
            let route = pair.route(side, 1);
            pair.session(side).open_path(now, route).expect("no session has a path over this route now");
        }
        idle(&mut pair, now + Span::from_secs(3));
        for side in [CLIENT, SERVER] {
            let paths = pair.session(side).paths();
            assert_eq!(paths.len(), 2, "round {round}: {paths:?}");
            assert!(paths.iter().all(|path| path.id.opener() == Side::Client), "round {round}: {paths:?}");
        }
    }
}

/// Sends datagrams of the largest size, and counts received ones.
#[derive(Default)]
struct Datagrams {
    sent: usize,
    received: usize,
}

impl App<Length> for Datagrams {
    fn poll(&mut self, _: Time, session: &mut Session<Length>) {
        while session.recv_datagram().is_some() {
            self.received += 1;
        }
        let mut size = 60_000;
        while self.sent < 500 {
            let datagram = DatagramFrame { class: 0, flow: 0, data: Length(size) };
            match session.send_datagram(datagram) {
                Ok(()) => self.sent += 1,
                Err(DatagramError::TooLarge { most }) => size = most,
                Err(DatagramError::NotConnected) => return,
            }
        }
    }
}

#[test]
fn the_largest_datagrams_both_ways_all_arrive_where_nothing_is_lost() {
    let config = Config::default();
    let mut pair: Pair<Length> =
        Pair::new([config.clone(), config], &[CableConfig::new(10.0, ms(20), 100.0)], 1);
    let (mut near, mut far) = (Datagrams::default(), Datagrams::default());
    pair.connect();
    pair.run(at(5_000), &mut [&mut near, &mut far]);
    assert_eq!((near.received, far.received), (500, 500));
}

#[test]
fn a_path_on_which_nothing_waits_does_not_fail() {
    let mut pair = pair(&Config::default(), 1);
    let (mut near, mut far) = (Datagrams::default(), Idle);
    pair.connect();
    pair.run(at(200), &mut [&mut near, &mut far]);
    pair.link(0, 0).set_loss(anabranch_link::LossModel::Bernoulli(0.5));
    pair.run(at(400), &mut [&mut near, &mut far]);
    pair.link(0, 0).set_loss(anabranch_link::LossModel::None);
    pair.run(at(5_000), &mut [&mut near, &mut far]);
    let path = pair.session(CLIENT).paths()[0].clone();
    assert_eq!((path.state, path.stats.failures), (PathState::Active, 0));
}

#[test]
fn a_session_whose_first_path_dies_at_once_goes_on_over_another_candidate() {
    for after in [0, 1, 5, 10, 20] {
        let cables = [CableConfig::new(50.0, ms(20), 1.0), CableConfig::new(50.0, ms(30), 1.0)];
        let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 1);
        let (mut sender, mut sink) = (Sender::new(5_000_000), Sink::default());
        pair.connect();
        while pair.session(CLIENT).state() != State::Established {
            let next = pair.now + ms(1);
            pair.run(next, &mut [&mut sender, &mut sink]);
        }
        let cut = pair.now + ms(after);
        pair.run(cut, &mut [&mut sender, &mut sink]);
        pair.set_down(0, true);
        while sink.finished_at.is_none() && pair.now < at(10_000) {
            pair.open_missing();
            let next = pair.now + ms(5);
            pair.run(next, &mut [&mut sender, &mut sink]);
        }
        assert_eq!(sink.received, 5_000_000, "cut {after} ms after the handshake");
        assert!(pair.now < at(3_000), "cut {after} ms after the handshake: {}", pair.now.as_secs_f64());
    }
}

#[test]
fn a_dead_path_does_not_stop_the_keep_alives_of_a_living_one() {
    let config = Config { keep_alive: Some(Span::from_secs(5)), ..Config::default() };
    let mut pair = pair(&config, 2);
    pair.establish(&mut [&mut Idle, &mut Idle]);
    idle(&mut pair, at(500));
    let (mut sender, mut sink) = (Sender::new(100_000), Sink::default());
    pair.set_down(0, true);
    pair.run(at(10_000), &mut [&mut sender, &mut sink]);
    idle(&mut pair, at(200_000));
    assert_eq!(states(&mut pair), [State::Established; 2]);
}

/// The peer provides new path ids. Those available must last until the peer is heard again, even if direct routes would
/// use all of them.
#[test]
fn while_the_peer_is_not_heard_tries_of_other_routes_leave_an_id_for_a_relay() {
    for max_paths in [8, 3] {
        let config = Config { idle_timeout: Span::from_secs(300), max_paths, ..Config::default() };
        let mut pair = pair(&config, 3);
        pair.set_down(1, true);
        pair.set_down(2, true);
        pair.connect();
        // Challenges to unproven addresses need credit from the peer's bytes: it sends some before it falls silent.
        let (mut taker, mut giver) = (Sink::default(), Sender::new(50_000));
        pair.run(at(1_000), &mut [&mut taker, &mut giver]);
        pair.set_down(0, true);
        let (mut sender, mut sink) = (Sender::new(100_000), Sink::default());
        for second in 2..120 {
            pair.open_missing();
            pair.run(at(second * 1_000), &mut [&mut sender, &mut sink]);
        }
        let reserved = pair.session(CLIENT).reserve_path();
        let reserved = reserved.unwrap_or_else(|error| panic!("of {max_paths} paths: {error}"));
        pair.session(CLIENT).release_path(reserved.id);
        pair.set_down(1, false);
        pair.set_down(2, false);
        pair.run(at(128_000), &mut [&mut sender, &mut sink]);
        assert_eq!(sink.received, 100_000, "of {max_paths} paths");
    }
}

/// A path that waits for a silent peer is given up like any other once the peer is heard again.
#[test]
fn a_route_that_nobody_answers_on_is_given_up_when_the_peer_is_heard_again() {
    let config = Config { idle_timeout: Span::from_secs(300), ..Config::default() };
    let mut pair = pair(&config, 2);
    pair.set_down(1, true);
    pair.connect();
    idle(&mut pair, at(1_000));
    pair.set_down(0, true);
    let (mut sender, mut sink) = (Sender::new(100_000), Sink::default());
    pair.open_missing();
    pair.run(at(30_000), &mut [&mut sender, &mut sink]);
    let route = pair.route(CLIENT, 1);
    let tried = |pair: &mut Pair<Length>| {
        let paths = pair.session(CLIENT).paths();
        paths.iter().any(|path| path.route == route && path.state == PathState::Validating)
    };
    assert!(tried(&mut pair));
    pair.set_down(0, false);
    pair.run(at(45_000), &mut [&mut sender, &mut sink]);
    assert_eq!((sink.received, tried(&mut pair)), (100_000, false));
}

/// An idle session probes its peer, so it does not wait for the route forever.
#[test]
fn a_route_that_nobody_answers_on_is_given_up_in_a_session_at_rest() {
    let mut pair = pair(&Config { idle_timeout: Span::from_secs(300), ..Config::default() }, 2);
    pair.set_down(1, true);
    pair.connect();
    idle(&mut pair, at(30_000));
    pair.open_missing();
    idle(&mut pair, at(50_000));
    let route = pair.route(CLIENT, 1);
    assert!(pair.session(CLIENT).paths().iter().all(|path| path.route != route));
}

#[test]
fn a_path_that_was_cut_in_its_slow_start_has_its_share_soon_after_it_is_back() {
    let cables = [CableConfig::new(50.0, ms(40), 1.0), CableConfig::new(50.0, ms(40), 1.0)];
    for cut in [250, 300, 350, 400] {
        let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 1);
        let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        pair.run(at(cut), &mut [&mut sender, &mut sink]);
        pair.set_down(1, true);
        pair.run(at(4_000), &mut [&mut sender, &mut sink]);
        pair.set_down(1, false);
        pair.run(at(8_000), &mut [&mut sender, &mut sink]);
        let rate = sink.mbit_s(at(6_000), at(8_000));
        assert!(rate > 85.0, "cut at {cut} ms: {rate:.1} Mbit/s");
    }
}

#[test]
fn how_a_path_is_to_be_used_may_be_known_before_the_path() {
    let cables = [CableConfig::new(20.0, ms(10), 1.0), CableConfig::new(20.0, ms(200), 1.0)];
    let mut pair: Pair<Length> = Pair::new([Config::default(), Config::default()], &cables, 1);
    pair.connect();
    idle(&mut pair, at(300));
    let (now, route) = (pair.now, pair.route(CLIENT, 1));
    let path = pair.session(CLIENT).open_path(now, route).expect("the peer has made it ready");
    pair.session(CLIENT).set_path_use(path, PathUse::Backup).expect("it is there");
    idle(&mut pair, at(2_000));
    let there = pair.session(SERVER).paths().into_iter().find(|info| info.id == path);
    assert_eq!(there.map(|info| (info.state, info.usage)), Some((PathState::Active, PathUse::Backup)));
}

#[test]
fn the_primary_path_is_elected_anew_when_it_is_closed() {
    let mut config = Config::default();
    config.acks.policy = AckPolicy::Primary;
    let cables = [30, 40, 60].map(|rtt| CableConfig::new(8.0, ms(rtt), 1.0));
    let mut pair: Pair<Length> = Pair::new([config.clone(), config], &cables, 1);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(at(3_000), &mut [&mut sender, &mut sink]);
    let (now, first) = (pair.now, pair.session(CLIENT).paths()[0].id);
    pair.session(CLIENT).close_path(now, first, AbandonReason::Requested);
    pair.run(at(4_000), &mut [&mut sender, &mut sink]);
    let sent = |pair: &mut Pair<Length>| -> Vec<u64> {
        pair.session(SERVER).paths().iter().map(|path| path.stats.packets_sent).collect()
    };
    let before = sent(&mut pair);
    pair.run(at(6_000), &mut [&mut sender, &mut sink]);
    let acks: Vec<u64> = sent(&mut pair).iter().zip(before).map(|(after, before)| after - before).collect();
    let (most, all) = (acks.iter().max().unwrap(), acks.iter().sum::<u64>());
    assert!(*most as f64 > 0.9 * all as f64, "acknowledgements by path: {acks:?}");
}
