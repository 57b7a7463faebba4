//! Path rules are obeyed: backups, caps, and paths that are never used.

use anabranch_engine::{
    Config, Event, IdleReason, PathChange, PathRule, PathRules, PathState, Standing, SuppressionLimits,
};
use anabranch_sim::{App, CLIENT, CableConfig, Pair, SERVER, Sender, Sink};
use anabranch_wire::{Length, PathId, PathUse, Span, StreamId, Time};

/// Rules such as `cable1=metered`, with caps in bytes.
fn rules(all: &[(&str, &str, u64)]) -> PathRules {
    let rule = |(pattern, priority, cap): &(&str, &str, u64)| PathRule {
        pattern: pattern.parse().unwrap(),
        terms: anabranch_engine::Terms {
            priority: priority.parse().unwrap(),
            meter: (*cap > 0).then(|| anabranch_engine::Meter::new(*cap)),
            rate: None,
        },
    };
    PathRules::new(all.iter().map(rule).collect())
}

fn config(rules: PathRules) -> Config {
    Config { rules, ..Config::default() }
}

fn pair(ends: [PathRules; 2], cables: &[CableConfig]) -> Pair<Length> {
    Pair::new(ends.map(config), cables, 7)
}

fn millis(millis: u64) -> Span {
    Span::from_millis(millis)
}

/// Two cables of 20 Mbit/s, 20 and 40 ms.
fn two_cables() -> [CableConfig; 2] {
    [CableConfig::new(20.0, millis(20), 1.0), CableConfig::new(20.0, millis(40), 1.0)]
}

/// Bytes offered to a cable in both directions, including IP and UDP headers.
fn bytes_on(pair: &mut Pair<Length>, cable: usize) -> u64 {
    (0..2).map(|direction| pair.link(cable, direction).stats().offered.bytes).sum()
}

/// Reads all data and records path events.
#[derive(Default)]
struct Listener {
    standings: Vec<(Time, PathId, Standing)>,
    sink: Sink,
}

impl App<Length> for Listener {
    fn poll(&mut self, now: Time, session: &mut anabranch_engine::Session<Length>) {
        while let Some(event) = session.poll_event() {
            if let Event::Path { path, change: PathChange::Standing(standing) } = event {
                self.standings.push((now, path, standing));
            }
        }
        self.sink.poll(now, session);
    }
}

#[test]
fn a_cap_is_never_exceeded_whichever_end_sets_it_and_whoever_sends() {
    let cap = 3_000_000;
    let capped = || rules(&[("cable1", "primary", cap)]);
    for (setter, ends) in
        [(CLIENT, [capped(), PathRules::default()]), (SERVER, [PathRules::default(), capped()])]
    {
        let mut pair = pair(ends, &two_cables());
        let (mut sender, mut sink) = (Sender::new(30_000_000), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        pair.run(Time::ZERO + Span::from_secs(20), &mut [&mut sender, &mut sink]);
        assert_eq!(sink.received, 30_000_000, "the other path carries the rest");
        let spent = bytes_on(&mut pair, 1);
        assert!(spent <= cap, "{spent} of {cap}, set by {setter}");
        assert!(spent >= cap * 3 / 4, "only {spent} of {cap}, set by {setter}");
        let paths = pair.session(setter).paths();
        let path = paths.iter().find(|path| path.route.socket == 1).unwrap();
        assert_eq!(path.standing, Standing::Idle(IdleReason::CapReached { cap }));
    }
}

#[test]
fn a_path_that_falls_silent_with_its_last_bytes_is_idle_for_its_cap() {
    let cap = 3_000_000;
    let mut pair = pair([rules(&[("cable1", "primary", cap)]), PathRules::default()], &two_cables());
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    let reached = Standing::Idle(IdleReason::CapReached { cap });
    let capped = |pair: &mut Pair<Length>| {
        let paths = pair.session(CLIENT).paths();
        paths.into_iter().find(|path| path.route.socket == 1).map(|path| (path.state, path.standing))
    };
    let at = |millis: u64| Time::ZERO + Span::from_millis(millis);
    let used_up = (0..5_000).find(|now| {
        pair.run(at(*now), &mut [&mut sender, &mut sink]);
        capped(&mut pair).is_some_and(|path| path.1 == reached)
    });
    pair.set_down(1, true);
    pair.run(at(used_up.expect("a cap used up") + 5_000), &mut [&mut sender, &mut sink]);
    assert_eq!(capped(&mut pair), Some((PathState::Failed, reached)));
}

#[test]
fn a_path_that_failed_with_the_peers_cap_used_up_comes_back_and_at_once_with_a_higher_limit() {
    for (renews, seconds) in [(false, 120), (true, 1)] {
        let capped = rules(&[("cable1", "primary", 1_000_000)]);
        let meter = capped.iter().find_map(|rule| rule.terms.meter.clone()).expect("a cap");
        let cables = [CableConfig::new(0.5, millis(20), 1.0), two_cables()[1].clone()];
        let mut pair = pair([PathRules::default(), capped], &cables);
        let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        let mut state_after = |pair: &mut Pair<Length>, span: Span| {
            pair.run(pair.now + span, &mut [&mut sender, &mut sink]);
            let paths = pair.session(CLIENT).paths();
            paths.iter().find(|path| path.route.socket == 1).map(|path| path.state)
        };
        let is_reached = |path: &anabranch_engine::PathInfo| {
            matches!(path.standing, Standing::Idle(IdleReason::CapReached { .. }))
        };
        while !pair.session(SERVER).paths().iter().any(is_reached) {
            state_after(&mut pair, millis(1));
        }
        pair.set_down(1, true);
        assert_eq!(state_after(&mut pair, Span::from_secs(120)), Some(PathState::Failed));
        pair.set_down(1, false);
        if renews {
            meter.begin_anew();
        }
        let state = state_after(&mut pair, Span::from_secs(seconds));
        assert_eq!(state, Some(PathState::Active), "a new limit: {renews}");
    }
}

#[test]
fn two_paths_and_a_second_session_under_one_rule_share_one_cap() {
    let cap = 4_000_000;
    let shared = rules(&[("cable*", "primary", cap)]);
    let mut total = 0;
    for seed in 0..2 {
        let mut pair: Pair<Length> =
            Pair::new([config(shared.clone()), Config::default()], &two_cables(), seed);
        let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        pair.run(Time::ZERO + Span::from_secs(5), &mut [&mut sender, &mut sink]);
        total += bytes_on(&mut pair, 0) + bytes_on(&mut pair, 1);
    }
    assert!(total <= cap, "{total} of {cap}");
    assert!(total >= cap * 3 / 4, "only {total} of {cap}");
}

#[test]
fn a_backup_carries_data_while_the_primary_is_silent_and_is_left_again_after() {
    let ends = [rules(&[("cable1", "backup", 0)]), PathRules::default()];
    let mut pair = pair(ends, &two_cables());
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(at(3), &mut [&mut sender, &mut sink]);
    let before = bytes_on(&mut pair, 1);
    assert!(before < 20_000, "the backup carried {before} bytes next to the primary");

    let longest = pair.session(CLIENT).paths().into_iter().map(|path| path.rtt).max().unwrap();
    pair.set_down(0, true);
    pair.run(at(6), &mut [&mut sender, &mut sink]);
    let gap = sink.longest_gap(at(3), at(6));
    assert!(gap <= (longest * 3).max(millis(200)), "nothing came for {gap}");
    assert!(sink.mbit_s(at(4), at(6)) > 16.0, "the backup carries {:.1}", sink.mbit_s(at(4), at(6)));

    pair.set_down(0, false);
    pair.run(at(9), &mut [&mut sender, &mut sink]);
    let back = bytes_on(&mut pair, 1);
    pair.run(at(12), &mut [&mut sender, &mut sink]);
    let late = bytes_on(&mut pair, 1) - back;
    assert!(late < 20_000, "the backup carried {late} bytes after the primary was back");
    assert!(sink.mbit_s(at(9), at(12)) > 17.0, "the primary carries {:.1}", sink.mbit_s(at(9), at(12)));
}

/// Writes what is due.
#[derive(Default)]
struct Steady {
    due: usize,
    stream: Option<StreamId>,
}

impl App<Length> for Steady {
    fn poll(&mut self, _: Time, session: &mut anabranch_engine::Session<Length>) {
        while session.poll_event().is_some() {}
        if self.due > 0 && session.state().carries_data() {
            let stream = *self.stream.get_or_insert_with(|| session.open_stream().unwrap());
            self.due -= session.write(stream, &mut Length(self.due)).unwrap();
        }
    }
}

/// Sends at this rate until then.
fn send_steadily(
    pair: &mut Pair<Length>,
    sender: &mut Steady,
    sink: &mut Sink,
    (mbit, until): (usize, Time),
) {
    while pair.now < until {
        sender.due += mbit * 1250;
        pair.run(pair.now + millis(10), &mut [sender, sink]);
    }
}

#[test]
fn an_overflow_path_carries_data_only_while_the_primary_is_full() {
    for overflow_at in [CLIENT, SERVER] {
        let mut ends = [PathRules::default(), PathRules::default()];
        ends[overflow_at] = rules(&[("cable1", "overflow", 0)]);
        let mut pair = pair(ends, &two_cables());
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        let (mut sender, mut sink) = (Steady::default(), Sink::default());
        pair.establish(&mut [&mut sender, &mut sink]);
        send_steadily(&mut pair, &mut sender, &mut sink, (10, at(4)));
        let before = bytes_on(&mut pair, 1);
        assert!(before < 20_000, "{before} bytes next to a primary path with room");

        send_steadily(&mut pair, &mut sender, &mut sink, (30, at(12)));
        let rate = sink.mbit_s(at(8), at(12));
        assert!(rate > 27.0, "{rate:.1} Mbit/s");
        let paths = pair.session(CLIENT).paths();
        assert!(paths.iter().all(|path| path.standing == Standing::InUse), "{paths:?}");

        send_steadily(&mut pair, &mut sender, &mut sink, (5, at(20)));
        let back = bytes_on(&mut pair, 1);
        send_steadily(&mut pair, &mut sender, &mut sink, (5, at(24)));
        let late = bytes_on(&mut pair, 1) - back;
        assert!(late < 20_000, "{late} bytes after the primary path had room again");
        let overflow = pair.session(CLIENT).paths().pop().unwrap();
        assert_eq!(overflow.standing, Standing::Idle(IdleReason::Kept(PathUse::Overflow)));

        pair.set_down(0, true);
        send_steadily(&mut pair, &mut sender, &mut sink, (5, at(28)));
        assert!(sink.mbit_s(at(26), at(28)) > 4.5, "it stands in as a backup does");
    }
}

#[test]
fn metered_comes_after_backup() {
    let three = [two_cables()[0].clone(), two_cables()[1].clone(), CableConfig::new(20.0, millis(30), 1.0)];
    let ends = [rules(&[("cable1", "metered", 0), ("cable2", "backup", 0)]), PathRules::default()];
    let mut pair = pair(ends, &three);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.set_down(0, true);
    pair.run(pair.now + Span::from_secs(3), &mut [&mut sender, &mut sink]);
    let (metered, backup) = (bytes_on(&mut pair, 1), bytes_on(&mut pair, 2));
    assert!(metered < 20_000 && backup > 3_000_000, "metered {metered}, backup {backup}");
    pair.set_down(2, true);
    pair.run(pair.now + Span::from_secs(3), &mut [&mut sender, &mut sink]);
    assert!(bytes_on(&mut pair, 1) > 3_000_000, "the metered path is the last that works");
}

#[test]
fn never_means_no_byte_whoever_opens_the_path() {
    let never = || rules(&[("cable1", "never", 0)]);
    let mut here = pair([never(), PathRules::default()], &two_cables());
    let (mut sender, mut sink) = (Sender::new(5_000_000), Sink::default());
    here.establish(&mut [&mut sender, &mut sink]);
    here.run(Time::ZERO + Span::from_secs(10), &mut [&mut sender, &mut sink]);
    assert_eq!((sink.received, bytes_on(&mut here, 1)), (5_000_000, 0));

    let mut there = pair([PathRules::default(), never()], &two_cables());
    let (mut sender, mut sink) = (Sender::new(5_000_000), Sink::default());
    there.establish(&mut [&mut sender, &mut sink]);
    there.run(Time::ZERO + Span::from_secs(10), &mut [&mut sender, &mut sink]);
    assert_eq!(sink.received, 5_000_000);
    let said = there.link(1, SERVER).stats().offered.bytes;
    assert!(said == 0, "the server said {said} bytes where it never should");
    let paths = there.session(CLIENT).paths();
    assert_eq!(paths.len(), 1, "it was notified that its path is refused: {paths:?}");
}

#[test]
fn rules_that_change_while_data_flow_are_followed_at_once_and_never_leave_the_session_without_a_path() {
    let mut pair = pair([PathRules::default(), PathRules::default()], &two_cables());
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(Time::ZERO + Span::from_secs(3), &mut [&mut sender, &mut sink]);
    let (now, places) = (pair.now, [(0, pair.place(CLIENT, 0)), (1, pair.place(CLIENT, 1))]);
    let refused = pair.session(CLIENT).set_path_rules(now, rules(&[("*", "never", 0)]), places.clone());
    assert!(refused.is_err());
    pair.session(CLIENT).set_path_rules(now, rules(&[("cable0", "backup", 0)]), places).unwrap();
    pair.run(Time::ZERO + Span::from_secs(4), &mut [&mut sender, &mut sink]);
    let before = bytes_on(&mut pair, 0);
    pair.run(Time::ZERO + Span::from_secs(6), &mut [&mut sender, &mut sink]);
    let more = bytes_on(&mut pair, 0) - before;
    assert!(more < 20_000, "{more} bytes on what is a backup now");
    let usage = |path: &anabranch_engine::PathInfo| (path.route.socket == 0).then_some(path.usage);
    let told = pair.session(SERVER).paths().iter().find_map(usage);
    assert_eq!(told, Some(PathUse::Backup), "the peer knows");
}

#[test]
fn every_change_of_what_a_path_is_for_is_told_with_its_reason() {
    let ends = [rules(&[("cable1", "backup", 0)]), PathRules::default()];
    let mut pair = pair(ends, &two_cables());
    let (mut listener, mut far) = (Listener::default(), Sender::new(u64::MAX));
    pair.establish(&mut [&mut listener, &mut far]);
    pair.run(Time::ZERO + Span::from_secs(2), &mut [&mut listener, &mut far]);
    pair.set_down(0, true);
    pair.run(Time::ZERO + Span::from_secs(4), &mut [&mut listener, &mut far]);
    pair.set_down(0, false);
    pair.run(Time::ZERO + Span::from_secs(8), &mut [&mut listener, &mut far]);
    let of = |socket: u32| {
        let id = pair.ends[CLIENT].session.as_ref().unwrap().paths();
        let id = id.iter().find(|path| path.route.socket == socket).unwrap().id;
        let all = listener.standings.iter().filter(move |(_, path, _)| *path == id);
        all.map(|(_, _, standing)| *standing).collect::<Vec<_>>()
    };
    let kept = Standing::Idle(IdleReason::Kept(PathUse::Backup));
    assert_eq!(of(1), [kept, Standing::StandsIn, kept]);
    let primary = of(0);
    assert_eq!((primary[0], *primary.last().unwrap()), (Standing::InUse, Standing::InUse), "{primary:?}");
    assert!(primary.contains(&Standing::Idle(IdleReason::Failed)), "{primary:?}");
}

#[test]
fn a_path_that_is_far_slower_is_left_out_and_taken_in_when_the_fast_one_dies() {
    let cables = [CableConfig::new(40.0, millis(20), 1.0), CableConfig::new(1.0, millis(60), 1.0)];
    let limits = SuppressionLimits { omega: 10.0, d: usize::MAX };
    let ends = [PathRules::default().suppressing(Some(limits)), PathRules::default()];
    let mut pair = pair(ends, &cables);
    let (mut sender, mut sink) = (Sender::new(u64::MAX), Sink::default());
    pair.establish(&mut [&mut sender, &mut sink]);
    pair.run(Time::ZERO + Span::from_secs(8), &mut [&mut sender, &mut sink]);
    let slow = |pair: &mut Pair<Length>| {
        let paths = pair.session(CLIENT).paths();
        paths.iter().find(|path| path.route.socket == 1).unwrap().standing
    };
    assert_eq!(slow(&mut pair), Standing::Idle(IdleReason::TooSlow { than: PathId::FIRST }));
    pair.set_down(0, true);
    pair.run(pair.now + Span::from_secs(1), &mut [&mut sender, &mut sink]);
    assert!(slow(&mut pair).is_used(), "{:?}", slow(&mut pair));
}

#[test]
fn an_end_learns_that_its_caps_are_used_up_although_the_last_packets_were_lost() {
    let caps = [3_000_000, 2_000_000];
    for (seed, setter, bdp) in
        (0..10).flat_map(|seed| [(seed, SERVER, 5.0), (seed, SERVER, 10.0), (seed, CLIENT, 10.0)])
    {
        let capped = rules(&[("cable0", "metered", caps[0]), ("cable1", "metered", caps[1])]);
        let mut ends = [Config::default(), Config::default()];
        ends[setter] = config(capped);
        let cables = [CableConfig::new(20.0, millis(10), bdp), CableConfig::new(20.0, millis(10), bdp)];
        let mut pair: Pair<Length> = Pair::new(ends, &cables, seed);
        let (mut sender, mut sink) = (Sender::new(12_000_000), Sink::default());
        let mut apps: [&mut dyn App<Length>; 2] = [&mut sender, &mut sink];
        if setter == CLIENT {
            apps.swap(0, 1);
        }
        pair.establish(&mut apps);
        pair.run(Time::ZERO + Span::from_secs(10), &mut apps);
        for path in pair.session(setter).paths() {
            let reached = matches!(path.standing, Standing::Idle(IdleReason::CapReached { .. }));
            assert!(reached, "seed {seed}, set by {setter}: {path:?}");
        }
        let spent = [bytes_on(&mut pair, 0), bytes_on(&mut pair, 1)];
        assert!(spent[0] <= caps[0] && spent[1] <= caps[1], "{spent:?}");
    }
}
