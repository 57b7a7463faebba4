//! The built-in dumbbell and parking lot give the expected results.

use anabranch_experiments::scenario::{BUILTIN, Metrics, Scenario, Setting, variants};

/// The metrics of a built-in scenario after 60 s, with one key set.
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

/// BBR's share does not depend on losses: it sends at the bottleneck's rate with a window of twice the bandwidth–delay
/// product (draft-ietf-ccwg-bbr, ProbeBW), and a loss below 2 % changes neither.
#[test]
fn bbr_has_the_bottlenecks_rate_with_two_bandwidth_delay_products_whatever_is_lost() {
    for (rate, delay, loss) in [(10.0, 40.0, "0 %"), (10.0, 40.0, "1 %"), (40.0, 15.0, "0.5 %")] {
        let text = format!(
            "duration = \"40 s\"\nwarm_up = \"20 s\"\n[[link]]\nname = \"x\"\nrate = \"{rate} Mbit/s\"\ndelay = \"{delay} ms\"\n\
             loss = \"{loss}\"\nqueue = \"4 BDP\"\n[[flow]]\nname = \"f\"\npaths = [\"x\"]\nrule = \"bbr\"\n"
        );
        let metrics = Scenario::parse(&text, "bbr").expect("a scenario").run(1).expect("it runs").metrics;
        let product = rate * 1e6 / 8.0 * 2.0 * delay * 1e-3 / 1500.0;
        let window = metrics["flow.f.path1.window_pkt"] / product;
        let used = metrics["link.x.utilisation"];
        assert!(used > 0.93 && (1.6..2.6).contains(&window), "{loss}: {window} products, {used} used");
    }
}
