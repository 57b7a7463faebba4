use super::*;

const SMALL: &str = r#"
name = "small"
duration = "10 s"
warm_up = "2 s"

[[link]]
name = "wifi"
rate = "10 Mbit/s"
delay = "5 ms"
queue = "20 packets"

[[link]]
name = "lte"
rate = "5 Mbit/s"
delay = "20 ms"
queue = "1 BDP"

[[flow]]
name = "M"
paths = ["wifi", "lte"]
rule = "mptcp"

[[flow]]
name = "T"
paths = ["wifi"]
rule = "reno"

[expect]
"flow.M.goodput_mbit_s" = { min = 5, above = "flow.T.goodput_mbit_s" }
"#;

#[test]
fn a_small_scenario_runs_and_is_as_expected() {
    let report = Scenario::parse(SMALL, "small.toml").unwrap().run(1).unwrap();
    assert!(report.ok(), "{report:#?}");
}
