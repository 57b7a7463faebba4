//! Tests of whole scenarios.

mod bottlenecks;
mod course;
mod documented;
mod errors;
mod traces;

use super::*;
use errors::mistake;

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
start_within = "1 s"

[expect]
"flow.M.goodput_mbit_s" = { min = 5, above = "flow.M.path1.goodput_mbit_s" }
"#;

fn small() -> Scenario {
    Scenario::parse(SMALL, "small.toml").unwrap()
}

#[test]
fn a_small_scenario_runs_and_is_as_expected() {
    let report = small().run(1).unwrap();
    assert!(report.ok() && report.expect.len() == 2, "{report:#?}");
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_seed_another() {
    assert_eq!(small().run(1).unwrap(), small().run(1).unwrap());
    assert_ne!(small().run(1).unwrap().metrics, small().run(2).unwrap().metrics);
}

#[test]
fn how_long_a_pause_was_does_not_depend_on_when_it_was_looked_at() {
    let pauses = ["10 ms", "2 s"].map(|sample| {
        let text = SMALL.replace("warm_up = \"2 s\"", &format!("warm_up = \"2 s\"\nsample = \"{sample}\""))
            + "[[event]]\nat = \"6 s\"\nlink = \"wifi\"\ndown = true\n[[event]]\nat = \"7 s\"\nlink = \"wifi\"\ndown = false\n";
        let metrics = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap().metrics;
        ["flow.M.pause_s", "flow.T.pause_s"].map(|key| metrics[key])
    });
    assert_eq!(pauses[0], pauses[1]);
    let [both, alone] = pauses[0];
    assert!(both > 0.01 && both < 0.5 && alone > 1.0 && alone < 3.0, "{both} {alone}");
}

#[test]
fn flows_that_were_over_before_are_not_unfair_to_anybody() {
    let over = "[[flow]]\nname = \"F\"\npaths = [\"lte\"]\nsize = \"10 kB\"\n[[flow]]\nname = \"S\"\npaths = [\"lte\"]\nstop = \"1 s\"\n";
    let jain = |text: &str| Scenario::parse(text, "small.toml").unwrap().run(1).unwrap().metrics["jain"];
    let (with, without) = (jain(&(SMALL.to_owned() + over)), jain(SMALL));
    assert!(with > without - 0.05 && without > 0.6, "{with} {without}");
}

#[test]
fn bounds_that_are_not_kept_are_told() {
    let text = SMALL.replace("min = 5,", "min = 500,");
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    let failed: Vec<_> = report.expect.iter().filter(|outcome| !outcome.ok).collect();
    assert_eq!((report.ok(), failed.len(), failed[0].bound.as_str()), (false, 1, "≥ 500"));
}

#[test]
fn what_was_counted_of_a_flow_outlives_it() {
    for end in ["size = \"3 MB\"", "stop = \"9.9 s\""] {
        let lossy = SMALL.replacen("queue = \"20 packets\"", "queue = \"20 packets\"\nloss = \"2 %\"", 1);
        let text =
            lossy.replacen("rule = \"mptcp\"", &format!("rule = \"mptcp\"\nstart = \"2 s\"\n{end}"), 1);
        let metrics =
            Scenario::parse(&text.replace("min = 5,", ""), "small.toml").unwrap().run(1).unwrap().metrics;
        let of = |key: &str| metrics[&format!("flow.M.{key}")];
        assert!((0.002..0.05).contains(&of("lost_share")), "{end}: {metrics:#?}");
        assert!(of("reductions") > 3.0 && of("path1.goodput_mbit_s") > 0.3, "{end}: {metrics:#?}");
        let paths = of("path1.goodput_mbit_s") + of("path2.goodput_mbit_s");
        assert!((paths / of("goodput_mbit_s") - 1.0).abs() < 0.02, "{end}: {metrics:#?}");
    }
}

#[test]
fn to_look_on_changes_nothing_and_the_course_adds_up() {
    let (mut packets, mut shares) = (0, Vec::new());
    let mut trace = |_: &Captured| packets += 1;
    let mut progress = |share: f64| {
        shares.push(share);
        true
    };
    let extras = Extras { course: true, trace: Some(&mut trace), progress: Some(&mut progress) };
    let (report, course) = small().run_with(1, extras).unwrap();
    assert_eq!(report, small().run(1).unwrap());
    assert!(packets > 10_000 && shares.is_sorted() && shares.last() == Some(&1.0), "{packets} {shares:?}");
    assert!(course.lines.iter().all(|line| line.values.len() == course.times.len()));
    let line = course.lines.iter().find(|line| line.of == "M" && line.quantity == Quantity::Goodput).unwrap();
    let measured: Vec<f64> =
        line.values.iter().zip(&course.times).filter(|(_, at)| **at > 2.0).map(|(value, _)| *value).collect();
    let mean = measured.iter().sum::<f64>() / measured.len() as f64;
    let goodput = report.metrics["flow.M.goodput_mbit_s"];
    assert!((mean / goodput - 1.0).abs() < 0.01, "{mean} {goodput}");
}

#[test]
fn generated_networks_have_as_many_hosts_and_shortest_paths_as_they_should() {
    let flows = |topology: &str, paths: usize| {
        let text = format!(
            "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\n{topology}\n[[traffic]]\nname = \"t\"\n\
             pattern = \"permutation\"\npaths = {paths}\n"
        );
        Scenario::parse(&text, "n").unwrap().build(1).unwrap()
    };
    let tree = flows("kind = \"fat-tree\"\nk = 4", 8);
    assert_eq!((tree.plan.flows.len(), tree.cables.len()), (16, 48));
    // Between pods there are (k/2)² = 4 shortest paths of six links.
    let counts: Vec<_> =
        tree.plan.flows.iter().map(|flow| (flow.paths.len(), flow.paths[0].forward.len())).collect();
    assert!(counts.iter().all(|count| [(4, 6), (2, 4), (1, 2)].contains(count)), "{counts:?}");
    let cube = flows("kind = \"bcube\"\nn = 5\nk = 2", 3);
    assert_eq!((cube.plan.flows.len(), cube.cables.len()), (125, 375));
    for flow in &cube.plan.flows {
        let mut links: Vec<_> = flow.paths.iter().flat_map(|path| &path.forward).collect();
        let all = links.len();
        links.sort_unstable();
        links.dedup();
        assert_eq!((flow.paths.len(), links.len()), (3, all), "the paths share no link");
    }
}

#[test]
fn single_paths_in_order_correct_the_highest_wrong_digit_first_and_take_no_detour() {
    let text = "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\nkind = \"bcube\"\nn = 5\nk = 2\n\
        [[traffic]]\nname = \"t\"\npattern = \"permutation\"\nrouting = \"in-order\"\n";
    let cube = Scenario::parse(text, "n").unwrap().build(1).unwrap();
    let mut lengths = std::collections::BTreeSet::new();
    for flow in &cube.plan.flows {
        // A cable is two links, and each level has 125 cables. A hop crosses a link to a switch and one from it.
        let levels: Vec<_> = flow.paths[0].forward.iter().map(|link| link / 2 / 125).collect();
        let corrected: Vec<_> = levels.chunks(2).map(|hop| hop[0]).collect();
        assert!(levels.chunks(2).all(|hop| hop[0] == hop[1]), "{levels:?}");
        assert!(corrected.is_sorted_by(|a, b| a > b), "{corrected:?}");
        lengths.insert(levels.len());
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [2, 4, 6]);
}

#[test]
fn a_sweep_is_every_combination_and_names_what_it_cannot_set() {
    let settings =
        ["flow.*.rule=reno,lia", "link.lte.rate=1 Mbit/s,2 Mbit/s"].map(|text| text.parse().unwrap());
    let sweep = variants(&small(), &settings).unwrap();
    let told: Vec<_> = sweep
        .iter()
        .map(|variant| variant.set.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(told, ["reno 1 Mbit/s", "reno 2 Mbit/s", "lia 1 Mbit/s", "lia 2 Mbit/s"]);
    let unknown = variants(&small(), &["flow.X.rule=reno".parse().unwrap()]).unwrap_err();
    assert!(unknown.to_string().starts_with("--set: flow.X.rule: there is no flow \"X\""), "{unknown}");
    let wrong = variants(&small(), &["duration=1".parse().unwrap()]).unwrap_err();
    assert!(wrong.to_string().starts_with("small --set duration=1: duration: 1 has no unit"), "{wrong}");
}

/// A generated host link that the file names, to measure it, stays a host link.
#[test]
fn a_link_of_a_host_that_is_named_is_still_one() {
    let tree = "[topology]\nkind = \"fat-tree\"\nk = 4\nhost_queue = \"1000 packets\"\n";
    let dumbbell = "[topology]\nkind = \"dumbbell\"\nhosts = 1\naccess_rate = \"1 Gbit/s\"\n";
    for (topology, host) in [(tree, "host.0"), (dumbbell, "left.0")] {
        let base = format!(
            "name = \"n\"\nduration = \"1 s\"\n{topology}[links]\nrate = \"100 Mbit/s\"\ndelay = \"1 ms\"\n\
             [[traffic]]\nname = \"t\"\npattern = \"permutation\"\n"
        );
        let links = |text: &str| {
            let scenario = Scenario::parse(text, "s.toml").unwrap_or_else(|error| panic!("{error}"));
            let built = scenario.build(1).unwrap_or_else(|error| panic!("{error}"));
            format!("{:?}", built.plan.links)
        };
        let named = |more: &str| links(&format!("{base}[[link]]\nname = \"{host}\"\n{more}"));
        assert_eq!(named(""), links(&base), "{host}");
        assert_eq!(named("back = { delay = \"1 ms\" }\n"), links(&base), "{host}");
        let short = named("queue = \"7 packets\"\n");
        assert_ne!(short, links(&base), "{host}");
        assert_eq!(
            named("queue = \"7 packets\"\nback = { queue = \"7 packets\" }\n"),
            short,
            "{host}: both ways"
        );
    }
}

/// Goodput in Mbit/s of the multipath flow and of the TCPs on its links for every rule, as a readable table.
#[test]
fn a_table_of_rules_on_two_links_with_a_tcp_each() {
    let base = r#"
name = "two"
duration = "60 s"
warm_up = "10 s"
[links]
rate = "10 Mbit/s"
delay = "10 ms"
queue = "1 BDP"
random_drop = true
[[link]]
name = "a"
[[link]]
name = "b"
[[flow]]
name = "M"
paths = ["a", "b"]
rule = "lia"
[[flow]]
name = "A"
paths = ["a"]
rule = "reno"
start_within = "1 s"
[[flow]]
name = "B"
paths = ["b"]
rule = "reno"
start_within = "1 s"
"#;
    let scenario = Scenario::parse(base, "two").unwrap();
    let rules = "flow.M.rule=reno,ewtcp,lia,mptcp,semi-coupled,coupled".parse().unwrap();
    for variant in variants(&scenario, &[rules]).unwrap() {
        let metrics = variant.scenario.run(1).unwrap().metrics;
        let rate = |flow: &str| metrics[&format!("flow.{flow}.goodput_mbit_s")];
        let (multipath, others) = (rate("M"), rate("A") + rate("B"));
        // Uncoupled Reno takes as much as both TCPs. The others take about as much as one of them, a third.
        let (least, most) = if variant.set[0].1 == "reno" { (0.42, 0.58) } else { (0.22, 0.45) };
        let share = multipath / (multipath + others);
        assert!((least..most).contains(&share), "{:?}: {multipath:.2} against {others:.2}", variant.set);
        assert!(multipath + others > 18.0, "{:?}: {:.2} of 20", variant.set, multipath + others);
    }
}

#[test]
fn a_detector_watches_a_single_flow_within_its_bounds() {
    let with = |keys: &str| format!("[[detector]]\nname = \"D\"\n{keys}\n\n[expect]");
    for (keys, told) in [
        ("flow = \"N\"", "detector.D.flow: there is no single flow \"N\""),
        ("flow = \"M\"\ninterval = \"0 s\"", "detector.D.interval: out of range"),
        ("flow = \"M\"\nthreshold = 2", "detector.D.threshold: out of range"),
        ("flow = \"M\"\nzeta = 0", "detector.D.zeta: out of range"),
    ] {
        let error = mistake("[expect]", &with(keys));
        assert!(error.contains(told), "{error}");
    }
    let text = SMALL.replace("[expect]", &with("flow = \"M\"")).replace("10 s", "40 s");
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    assert!(report.metrics["detector.D.events"] >= 1.0, "{report:#?}");
    assert!(!report.metrics.contains_key("detector.D.shared_s"));
    // A flow with one path gives nothing to compare.
    let text = SMALL.replace("[expect]", &with("flow = \"T\""));
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    assert!(report.metrics.keys().all(|name| !name.starts_with("detector")), "{report:#?}");
    let expected = text.clone() + "\n\"detector.D.ratio\" = { min = 0.1 }\n";
    let error = Scenario::parse(&expected, "small.toml").unwrap_err().to_string();
    assert!(error.contains("nothing measured is called \"detector.D.ratio\""), "{error}");
    let several = text.replace("start_within = \"1 s\"", "start_within = \"1 s\"\ncount = 2");
    let error = Scenario::parse(&several, "small.toml").unwrap_err().to_string();
    assert!(error.contains("is several flows"), "{error}");
}

#[test]
fn the_transport_of_the_papers_can_be_named() {
    let with = |line: &str| format!("warm_up = \"2 s\"\n\n[transport]\n{line}");
    let error = mistake("warm_up = \"2 s\"", &with("reports = { alpha = 1.5, b = 0.07 }"));
    assert!(error.starts_with("small.toml:7: transport.reports.alpha: out of range"), "{error}");
    let text =
        SMALL.replace("warm_up = \"2 s\"", &with("acks = \"primary\"\nreports = { alpha = 0.8, b = 0.07 }"));
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    // All acknowledgements and reports return over one link.
    let back = |link: &str| report.metrics[&format!("link.{link}.back.utilisation")];
    assert!(back("wifi").min(back("lte")) < 0.002, "{report:#?}");
}

#[test]
fn acknowledgements_can_cross_no_link() {
    let text = SMALL.replace("warm_up = \"2 s\"", "warm_up = \"2 s\"\n\n[transport]\nacks = \"outside\"");
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    let metric = |name: &str| report.metrics[name];
    assert_eq!(
        metric("link.wifi.back.utilisation") + metric("link.lte.back.utilisation"),
        0.0,
        "{report:#?}"
    );
    assert!(metric("link.lte.utilisation") > 0.5, "{report:#?}");
}

#[test]
fn the_time_in_which_nothing_is_read_is_measured() {
    let cut = "[[event]]\nat = \"5 s\"\nlink = \"wifi\"\ndown = true\n\n[expect]";
    let text = SMALL.replace("[expect]", cut).replace("min = 5, above", "min = 1, below");
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    assert!(report.metrics["flow.T.pause_s"] > 4.0, "{report:#?}");
    assert!(report.metrics["flow.M.pause_s"] < 4.0, "{report:#?}");
}

#[test]
fn a_comma_within_a_list_is_part_of_a_value() {
    let setting: Setting = "flow.M.paths=[\"a\"],[\"a\",\"b\"]".parse().unwrap();
    assert_eq!(setting.values, ["[\"a\"]", "[\"a\",\"b\"]"]);
}

#[test]
fn a_sketch_of_a_large_network_measures_what_all_of_it_does_and_finds_what_is_wrong_elsewhere() {
    let (_, text) = BUILTIN.iter().find(|(name, _)| *name == "nsdi11-fattree-tp1").expect("it comes along");
    let whole = Scenario::parse(text, "tree").unwrap();
    let (sketch, built) = (whole.sketch().unwrap(), whole.build(1).unwrap());
    assert_eq!((sketch.plan.flows.len(), built.plan.flows.len()), (64, 128));
    assert_eq!(measure::names(sketch), measure::names(built));
    let loops =
        format!("{text}\n[[cbr]]\nname = \"c\"\npath = [\"host.0\", \"host.0\"]\nrate = \"1 Mbit/s\"\n");
    let error = Scenario::parse(&loops, "tree").unwrap_err();
    assert!(error.to_string().contains("cbr.c.path: the path has a loop"), "{error}");
}
