//! The dumbbell and the parking lot that come along do what they are there to show.

use anabranch_sim::scenario::{BUILTIN, Metrics, Scenario, Setting, variants};

/// What a scenario that comes along measures within 60 s, with a key set.
fn measured(name: &str, setting: &str) -> Metrics {
    let (_, text) = BUILTIN.iter().find(|(known, _)| *known == name).expect("it comes along");
    let base = Scenario::parse(text, name).expect("a scenario");
    let settings: [Setting; 2] = ["duration=60 s", setting].map(|text| text.parse().expect("a setting"));
    let variants = variants(&base, &settings).expect("a variant");
    variants[0].scenario.run(1).expect("it runs").metrics
}

#[test]
fn two_paths_over_one_bottleneck_get_as_much_as_a_tcp_unless_they_are_uncoupled() {
    for (rule, least, most) in [("mptcp", 0.8, 1.25), ("reno", 1.5, 2.5)] {
        let metrics = measured("dumbbell", &format!("transport.rule={rule}"));
        let of = |flow: &str| metrics[&format!("flow.{flow}.goodput_mbit_s")];
        let ratio = of("M") / f64::midpoint(of("first"), of("second"));
        assert!((least..most).contains(&ratio), "{rule}: {ratio}");
        assert!(metrics["link.core.utilisation"] > 0.95, "{metrics:#?}");
    }
}

#[test]
fn a_tcp_over_three_bottlenecks_gets_less_than_those_over_one_and_all_are_full() {
    let metrics = measured("parking-lot", "transport.rule=reno");
    let of = |flow: &str| metrics[&format!("flow.{flow}.goodput_mbit_s")];
    for flow in ["first", "second", "third"] {
        assert!(of("long") < 0.4 * of(flow) && of("long") + of(flow) > 8.5, "{flow}: {metrics:#?}");
    }
}
