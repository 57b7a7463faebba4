//! Tests of metrics.

use super::*;
use crate::scenario::Scenario;

/// A file that is complete before measuring begins, and a flow that continues.
const LINK: &str = r#"
duration = "12 s"
warm_up = "4 s"

[[link]]
name = "a"
rate = "10 Mbit/s"
delay = "10 ms"
queue = "30 packets"

[[flow]]
name = "file"
paths = ["a"]
size = "20 kB"

[[flow]]
name = "M"
paths = ["a"]
"#;

fn measured(text: &str) -> Metrics {
    Scenario::parse(text, "link.toml").unwrap().run(1).unwrap().metrics
}

#[test]
fn of_a_flow_that_is_over_there_is_no_window_and_no_round_trip() {
    let metrics = measured(LINK);
    assert!(metrics["flow.file.completion_s"] < 4.0);
    for key in ["window_pkt", "rtt_ms"] {
        assert!(metrics[&format!("flow.M.path1.{key}")] > 10.0, "{metrics:#?}");
        assert_eq!(metrics.get(&format!("flow.file.path1.{key}")), None);
    }
    // A bound on it is valid: with another seed the metric may exist.
    let bound = format!("{LINK}\n[expect]\n\"flow.file.path1.rtt_ms\" = {{ max = 100 }}\n");
    let report = Scenario::parse(&bound, "link.toml").unwrap().run(1).unwrap();
    assert_eq!((report.ok(), report.expect[0].value), (false, None));
}

#[test]
fn shares_of_nothing_are_left_out_and_keep_no_bound() {
    let text = format!(
        "{LINK}\n[[cbr]]\nname = \"none\"\npath = \"a\"\nrate = \"1 kbit/s\"\nstart = \"1 s\"\nstop = \"2 s\"\n"
    );
    let names = [
        "flow.file.lost_share",
        "flow.file.late_share",
        "flow.file.overhead_share",
        "flow.file.pause_s",
        "flow.file.buffer_kb",
        "flow.file.reassembly_ms",
        "flow.file.path1.lost_share",
        "cbr.none.loss",
    ];
    let bounds = names.map(|name| format!("\"{name}\" = {{ min = 0, max = 1 }}\n")).concat();
    let report = Scenario::parse(&format!("{text}\n[expect]\n{bounds}"), "s").unwrap().run(1).unwrap();
    assert!(report.expect.iter().all(|bound| !bound.ok && bound.value.is_none()), "{report:#?}");
    let kept = report.metrics.keys().filter(|name| names.contains(&name.as_str()));
    assert_eq!(kept.count(), 0, "{:#?}", report.metrics);
    // The metrics are those of the flow that continues.
    assert!(report.metrics["flow.M.pause_s"] < 1.0);
    assert!(report.metrics["link.a.loss"] > 0.0);
}

#[test]
fn a_link_is_never_used_by_more_than_all_also_where_its_rate_changes() {
    let event = |what: &str| format!("{LINK}\n[[event]]\nat = \"6 s\"\nlink = \"a\"\n{what}\n");
    for text in [
        LINK.to_owned(),
        event("rate = \"20 Mbit/s\""),
        event("rate = \"5 Mbit/s\""),
        event("loss = \"0.1 %\""),
        LINK.replace("4 s", "4.0007 s").replace("10 Mbit/s", "7.3 Mbit/s"),
    ] {
        let used = measured(&text)["link.a.utilisation"];
        assert!((0.9..=1.0).contains(&used), "{used}: {text}");
    }
    let half = measured(&event("down = true"))["link.a.utilisation"];
    assert!((0.2..0.3).contains(&half), "{half}");
}

#[test]
fn what_a_reduction_left_is_told_by_looks_between_which_it_was_the_only_one() {
    let mut samples = FlowSamples::new(1);
    for (windows, reductions) in [(0, 0), (100, 0), (75, 1), (80, 1), (20, 3), (10, 4)] {
        samples.on_windows(windows, reductions, true);
    }
    samples.on_windows(11, 5, false);
    assert_eq!((samples.kept.known(), samples.kept.count), (Some(0.625), 2));
}

const WIRE: &str = r#"
duration = "10 s"

[[link]]
name = "a"
rate = "10 Mbit/s"
delay = "500 ms"
queue = "1000 packets"
"#;

#[test]
fn plain_packets_on_their_way_are_not_lost_and_those_that_are_lost_count_when_they_are() {
    let cbr = "\n[[cbr]]\nname = \"c\"\npath = \"a\"\nrate = \"1 Mbit/s\"\n";
    let loss = |keys: &str| measured(&format!("{WIRE}{cbr}{keys}\n")).get("cbr.c.loss").copied();
    assert_eq!(loss("start = \"9 s\""), Some(0.0));
    assert_eq!(loss("start = \"9800 ms\""), None);
    let lossy = format!("{WIRE}loss = \"10 %\"\n{cbr}");
    for text in [lossy.clone(), format!("{lossy}start = \"8 s\"\n")] {
        let lost = measured(&text)["cbr.c.loss"];
        assert!((0.05..0.16).contains(&lost), "{lost}");
    }
}

#[test]
fn what_was_largest_before_measuring_does_not_count() {
    let cbr = |name: &str, rate: &str, times: &str| {
        format!("\n[[cbr]]\nname = \"{name}\"\npath = \"a\"\nrate = \"{rate}\"\n{times}\n")
    };
    let wire = WIRE.replace("duration", "warm_up = \"5 s\"\nduration");
    let early = cbr("early", "20 Mbit/s", "stop = \"500 ms\"");
    let text = format!("{wire}{early}{}", cbr("late", "1 Mbit/s", ""));
    assert_eq!(measured(&text)["link.a.queue_max_pkt"], 1.0);
    // Also with links that run one by one.
    let event = "\n[[event]]\nat = \"9 s\"\nlink = \"a\"\nrate = \"11 Mbit/s\"\n";
    assert_eq!(measured(&format!("{text}{event}"))["link.a.queue_max_pkt"], 1.0);
    assert!(measured(&text.replace("warm_up = \"5 s\"", ""))["link.a.queue_max_pkt"] > 100.0);
}

#[test]
fn looks_are_out_of_step_with_what_is_sent() {
    let cbr = "\n[[cbr]]\nname = \"c\"\npath = \"a\"\nrate = \"118 kbit/s\"\npacket = \"1472 B\"\n";
    let metrics = measured(&format!("sample = \"100 ms\"\n{WIRE}{cbr}"));
    let (queue, used) = (metrics["link.a.queue_pkt"], metrics["link.a.utilisation"]);
    assert!((queue - used).abs() < 0.03, "{queue} packets in {used} of the time");
}

#[test]
fn datagrams_are_goodput_like_bytes_of_streams() {
    let flow = |name: &str, what: &str| format!("\n[[flow]]\nname = \"{name}\"\npaths = [\"a\"]\n{what}\n");
    let stream = flow("s", "rate = \"2 Mbit/s\"");
    let datagrams = flow("d", "datagrams = { rate = \"2 Mbit/s\", size = \"1000 B\" }");
    let wire = WIRE.replace("500 ms", "20 ms");
    let metrics = measured(&format!("warm_up = \"4 s\"\n{wire}{stream}{datagrams}"));
    for flow in ["s", "d"] {
        let goodput = metrics[&format!("flow.{flow}.goodput_mbit_s")];
        assert!((1.95..2.05).contains(&goodput), "{flow}: {goodput}");
    }
    assert!(metrics["jain"] > 0.99);
}

#[test]
fn a_stream_of_a_tunnel_has_the_goodput_of_its_own_and_no_paths() {
    let flow = "\n[[tunnel]]\nname = \"t\"\npaths = [\"a\"]\n[[flow]]\nname = \"f\"\ntunnel = \"t\"\n";
    let text = format!("{}{flow}", WIRE.replace("500 ms", "20 ms"));
    let metrics = measured(&text);
    for key in ["flow.f.goodput_mbit_s", "tunnel.t.path1.goodput_mbit_s"] {
        assert!(metrics[key] > 5.0, "{metrics:#?}");
    }
    for key in ["path1.goodput_mbit_s", "reductions", "buffer_kb"] {
        assert_eq!(metrics.get(&format!("flow.f.{key}")), None);
    }
    // In another lane it has a session, so a sweep may have a bound.
    let bound = format!("{text}\n[expect]\n\"flow.f.reductions\" = {{ max = 100 }}\n");
    assert!(Scenario::parse(&bound, "s").is_ok());
}

#[test]
fn a_flow_that_nothing_arrives_of_has_no_pause() {
    let flow = "\n[[flow]]\nname = \"f\"\npaths = [\"a\"]\n\n[expect]\n\"flow.f.pause_s\" = { max = 1 }\n";
    let text = format!("{WIRE}loss = \"100 %\"\n{flow}");
    let report = Scenario::parse(&text, "s").unwrap().run(1).unwrap();
    assert_eq!((report.expect[0].value, report.ok()), (None, false));
}

#[test]
fn a_flow_that_is_stopped_pauses_until_then_and_no_longer() {
    let event = "\n[[event]]\nat = \"5 s\"\nlink = \"a\"\ndown = true\n";
    let flow = "\n[[flow]]\nname = \"f\"\npaths = [\"a\"]\nrate = \"1 Mbit/s\"\nstop = \"8 s\"\n";
    let pause = measured(&format!("{}{flow}{event}", WIRE.replace("500 ms", "20 ms")))["flow.f.pause_s"];
    assert!((2.9..3.0).contains(&pause), "{pause}");
}

#[test]
fn the_fullest_receive_buffer_is_the_same_however_seldom_one_looks() {
    let flow = "\n[[link]]\nname = \"b\"\nrate = \"5 Mbit/s\"\ndelay = \"40 ms\"\n[[flow]]\nname = \"f\"\npaths = [\"a\", \"b\"]\n";
    let of = |sample: &str| {
        let metrics = measured(&format!("sample = \"{sample}\"\n{WIRE}{flow}"));
        (
            metrics["flow.f.buffer_max_kb"],
            metrics["flow.f.buffer_kb"],
            metrics.get("flow.f.kept_share").copied(),
        )
    };
    let (often, seldom) = (of("10 ms"), of("2 s"));
    assert!(often.0 == seldom.0 && often.0 > often.1 && often.1 > 0.0, "{often:?} {seldom:?}");
    // Two seconds contain more than one reduction.
    assert_eq!(seldom.2, None);
}

#[test]
fn files_that_arrive_are_packets_with_data_and_those_refused_count_from_the_warm_up_on() {
    let arrivals = "\n[[arrivals]]\nname = \"w\"\npaths = [\"a\"]\nrate = [\"5 /s\"]\nsize = \"14 kB\"\n";
    let metrics = measured(&format!("{WIRE}{arrivals}"));
    let completed = metrics["arrivals.w.completed"];
    assert!(metrics["run.data_packets"] >= 10.0 * completed && completed > 20.0, "{metrics:#?}");
}
