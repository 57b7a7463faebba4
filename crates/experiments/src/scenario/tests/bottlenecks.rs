//! Scenarios of bottlenecks: verdicts of sessions about them, and short queues.

use crate::scenario::{Metrics, Scenario};

/// A session over two links, with or without a common link behind them, and a TCP wherever its paths may queue.
const MEETING: &str = r#"
name = "meeting"
duration = "45 s"
warm_up = "0 s"
sample = "100 ms"

[transport]
profile = "default"

[links]
rate = "10 Mbit/s"
delay = "10 ms"
queue = "60 kB"
random_drop = true

[[link]]
name = "near"
rate = "100 Mbit/s"

[[link]]
name = "far"
rate = "100 Mbit/s"
delay = "20 ms"

[[link]]
name = "one"

[[link]]
name = "other"
rate = "4 Mbit/s"

[[flow]]
name = "M"
paths = [["near", "one"], ["far", "one"]]

[[flow]]
name = "T"
paths = ["one"]
profile = "tcp"
rule = "cubic"
start_within = "1 s"

[[flow]]
name = "U"
paths = ["other"]
profile = "tcp"
rule = "cubic"
start_within = "1 s"
"#;

/// The metrics of a run with some of its text replaced.
fn measured(replaced: &[(&str, &str)]) -> Metrics {
    let text = replaced.iter().fold(MEETING.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replacen(old, new, 1)
    });
    Scenario::parse(&text, "meeting.toml").unwrap().run(1).unwrap().metrics
}

#[test]
fn one_way_delays_tell_one_bottleneck_from_two_that_are_unlike() {
    let delays = ("profile = \"default\"", "profile = \"default\"\ndetector = \"delays\"");
    let one = measured(&[delays]);
    let found = one["flow.M.shared_s"];
    assert!((20.0..30.0).contains(&found) && one["flow.M.separate_share"] == 0.0, "{one:#?}");
    let two = measured(&[delays, ("[\"far\", \"one\"]", "[\"far\", \"other\"]")]);
    assert!(!two.contains_key("flow.M.shared_s") && two["flow.M.separate_share"] > 0.2, "{two:#?}");
}

#[test]
fn waves_need_half_the_time_and_who_asks_for_nothing_believes_nothing() {
    let waves = measured(&[("profile = \"default\"", "profile = \"default\"\ndetector = \"waves\"")]);
    assert!((8.0..15.0).contains(&waves["flow.M.shared_s"]), "{waves:#?}");
    let fixed = measured(&[("profile = \"default\"", "profile = \"default\"\ncoupling = \"fixed\"")]);
    assert!(fixed.keys().all(|name| !name.contains("shared")), "{fixed:#?}");
}

#[test]
fn codel_keeps_a_queue_short_and_marks_packets_of_who_asks_for_ecn() {
    let full = measured(&[]);
    let codel = ("random_drop = true", "aqm = \"codel\"");
    let short = measured(&[codel]);
    let queue = |metrics: &Metrics| metrics["link.one.queue_pkt"];
    assert!(queue(&short) < queue(&full) / 2.0, "{} {}", queue(&short), queue(&full));
    // Slow start fills the queue quicker than CoDel reacts.
    let later = ("warm_up = \"0 s\"", "warm_up = \"10 s\"");
    let short = measured(&[codel, later]);
    let marked = measured(&[codel, later, ("profile = \"default\"", "profile = \"default\"\necn = true")]);
    let lost = |metrics: &Metrics| metrics["flow.M.lost_share"];
    assert!(lost(&short) > 0.0 && lost(&marked) < lost(&short) / 4.0, "{} {}", lost(&short), lost(&marked));
    assert!(marked["flow.M.reductions"] > 10.0, "{marked:#?}");
    // The return direction can have another queue.
    let back = ("name = \"one\"", "name = \"one\"\naqm = \"codel\"\nback = { aqm = \"none\" }");
    assert!(queue(&measured(&[back])) < queue(&full) / 2.0);
}
