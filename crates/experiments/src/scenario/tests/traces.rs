//! Tests of links whose rate is a trace.

use crate::scenario::{Metrics, Scenario, Traces};

/// A link there with a trace, back with a fixed rate.
fn scenario(rate: &str) -> String {
    format!(
        "duration = \"4 s\"\n[[link]]\nname = \"lte\"\nqueue = \"1 MB\"\ndelay = \"10 ms\"\nrate = {rate}\n\
         back = {{ rate = \"1 Gbit/s\" }}\n[[flow]]\nname = \"F\"\npaths = [\"lte\"]\nprofile = \"default\"\n"
    )
}

/// A packet each millisecond in the first second (12 Mbit/s), none in the second one.
fn gap() -> String {
    (1..=1000).chain([2000]).map(|at| format!("{at}\n")).collect()
}

fn files(file: &str) -> Result<Vec<u8>, String> {
    match file {
        "gap" => Ok(gap().into_bytes()),
        "late" => Ok(b"10\n20\n15\n".to_vec()),
        "text" => Ok(b"10\n\xff\n".to_vec()),
        "zeros" => Ok(b"0\n0\n".to_vec()),
        "packed" => Ok(vec![0x1f, 0x8b, 8, 0]),
        "long" => Ok("1\n".repeat(4_000_001).into_bytes()),
        _ if file.starts_with("large") => Ok("1\n".repeat(3_500_000).into_bytes()),
        _ => Err("no such file".to_owned()),
    }
}

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::with_traces(text, "lte.toml", &Traces::new(files)).map_err(|error| error.to_string())
}

fn run(rate: &str) -> Metrics {
    parse(&scenario(rate)).unwrap().run(1).unwrap().metrics
}

#[test]
fn an_interval_without_opportunities_delays_packets_and_drops_none() {
    let metrics = run("{ trace = \"gap\" }");
    let goodput = metrics["flow.F.goodput_mbit_s"];
    assert!(goodput > 5.0 && goodput < 6.0, "{goodput} Mbit/s of 6");
    assert_eq!(metrics["link.lte.loss"], 0.0);
    let pause = metrics["flow.F.pause_s"];
    assert!(pause > 0.9 && pause < 1.1, "{pause} s");
}

#[test]
fn a_trace_that_does_not_repeat_carries_nothing_after_its_end() {
    let (once, twice) = (run("{ trace = \"gap\", repeat = false }"), run("{ trace = \"gap\" }"));
    let [once, twice] = [once, twice].map(|metrics| metrics["flow.F.goodput_mbit_s"]);
    assert!(once > 0.8 * twice / 2.0 && once < 1.1 * twice / 2.0, "{once} of {twice}");
}

#[test]
fn each_direction_has_its_own_trace_and_its_mean_is_the_rate() {
    let text = scenario("{ trace = \"gap\" }");
    let cables = |text: &str| parse(text).unwrap().build(1).unwrap().cables;
    let mean = 1001 * 1500 * 8 / 2;
    assert_eq!(cables(&text)[0].rates, [mean, 1_000_000_000]);
    let both = text.replace("back = { rate = \"1 Gbit/s\" }\n", "");
    assert_eq!(cables(&both)[0].rates, [mean, mean]);
}

#[test]
fn mistakes_in_a_trace_name_file_line_and_remedy() {
    let cases = [
        (
            "late",
            "late: line 3: 15 ms comes before 20 ms on the line above\n  hint    times never decrease: sort",
        ),
        ("text", "text: line 2: expected a whole number of milliseconds\n  hint    a line for each packet"),
        (
            "zeros",
            "zeros: the last line must be later than 0 ms: it is the period of the trace\n  hint    the last",
        ),
        ("packed", "packed: it is compressed\n  hint    unpack it with `gunzip -k`"),
        ("long", "long: line 4000001: more than 4000000 lines\n  hint    cut it"),
        ("none", "cannot read none: no such file\n  hint    its place is relative to the scenario's file"),
    ];
    for (file, told) in cases {
        let error = parse(&scenario(&format!("{{ trace = \"{file}\" }}"))).unwrap_err();
        assert!(error.starts_with(&format!("lte.toml:6: link.lte.rate: {told}")), "{error}");
    }
    let error = parse(&scenario("{ trace = \"gap\", loop = true }")).unwrap_err();
    assert!(error.contains("lte.toml:6: ") && error.contains("repeat"), "{error}");
}

#[test]
fn traces_together_are_bounded() {
    let more: String = (0..5)
        .map(|number| format!("[[link]]\nname = \"l{number}\"\nrate = {{ trace = \"large{number}\" }}\n"))
        .collect();
    let error = parse(&(scenario("\"1 Mbit/s\"") + &more)).unwrap_err();
    assert!(error.contains("link.l4.rate: large4: the traces have more than 16000000 lines"), "{error}");
    let same = more.replace("large1", "large0").replace("large4", "large0");
    assert!(parse(&(scenario("\"1 Mbit/s\"") + &same)).is_ok());
}

#[test]
fn a_sweep_sets_a_trace() {
    let base = parse(&scenario("\"1 Mbit/s\"")).unwrap();
    let setting = "link.lte.rate=\"2 Mbit/s\",{ trace = \"gap\" }".parse().unwrap();
    let variants = crate::scenario::variants(&base, &[setting]).unwrap();
    let rates = variants.iter().map(|variant| variant.scenario.build(1).unwrap().cables[0].rates[0]);
    assert_eq!(rates.collect::<Vec<_>>(), [2_000_000, 1001 * 1500 * 8 / 2]);
}
