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
start_within = "1 s"

[expect]
"flow.M.goodput_mbit_s" = { min = 5, above = "flow.M.path1.goodput_mbit_s" }
"#;

fn small() -> Scenario {
    Scenario::parse(SMALL, "small.toml").unwrap()
}

/// What `SMALL` says with one text replaced.
fn mistake(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "{old}");
    let text = SMALL.replacen(old, new, 1);
    match Scenario::parse(&text, "small.toml") {
        Err(error) => error.to_string(),
        Ok(scenario) => scenario.run(1).expect_err(new).to_string(),
    }
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
fn each_kind_of_mistake_is_told_with_its_line_its_key_and_the_remedy() {
    let cases = [
        (
            "delay = \"5 ms\"",
            "dealy = \"5 ms\"",
            "small.toml:9: dealy: unknown key `dealy`\n  hint    did you mean `delay`? Possible: \
             name, between, rate, delay, queue, loss, random_drop, aqm, back",
        ),
        (
            "delay = \"5 ms\"",
            "delay = 5",
            "small.toml:9: delay: 5 has no unit: expected a time such as \"10 ms\" (ns, us, ms, s, min, h)",
        ),
        (
            "rate = \"10 Mbit/s\"",
            "rate = \"-1 Mbit/s\"",
            "small.toml:8: rate: \"-1 Mbit/s\" is negative: expected a rate such as \"100 Mbit/s\" \
             (bit/s, kbit/s, Mbit/s, Gbit/s, pkt/s)",
        ),
        (
            "rate = \"10 Mbit/s\"",
            "rate = \"0 Mbit/s\"",
            "small.toml:8: link.wifi.rate: out of range\n  hint    more than nothing, at most 10000 Gbit/s; \
             cut a link with an [[event]] and `down = true`",
        ),
        (
            "queue = \"20 packets\"",
            "queue = \"0 packets\"",
            "small.toml:10: link.wifi.queue: no packet fits\n  \
             hint    at least \"1 packet\": the one being sent counts too",
        ),
        (
            "paths = [\"wifi\"]",
            "paths = [\"wifo\"]",
            "small.toml:25: flow.T.paths: there is no link \"wifo\"\n  hint    did you mean \"wifi\"?",
        ),
        (
            "paths = [\"wifi\"]",
            "paths = [[\"wifi\", \"wifi\"]]",
            "small.toml:25: flow.T.paths: the path has a loop: it crosses link \"wifi\" twice\n  \
             hint    a path visits each node and link once",
        ),
        (
            "paths = [\"wifi\"]",
            "paths = [\"wifi\"]\ncount = 1_000_000_000",
            "small.toml:26: flow.T.count: 1000000000 flows\n  hint    a scenario has from 1 to 100000 flows",
        ),
        (
            "paths = [\"wifi\"]",
            "from = \"a\"\nto = \"b\"",
            "small.toml:25: flow.T.from: there is no node \"a\"\n  hint    the scenario has no nodes: give its links ends, \
             as `between = [\"a\", \"b\"]`, or name links with `paths`",
        ),
        (
            "rule = \"reno\"",
            "rule = \"renno\"",
            "small.toml:26: flow.T.rule: there is no window rule \"renno\"\n  \
             hint    did you mean \"reno\"? There are reno, combined, cubic, lia, mptcp, ewtcp, ewtcp-printed, coupled, semi-coupled, csd, \
             residual, olia, balia, bbr",
        ),
        (
            "duration = \"10 s\"\n",
            "",
            "small.toml:1: duration: `duration` is missing\n  hint    add `duration = …` to this table",
        ),
        (
            "warm_up = \"2 s\"",
            "warm_up = \"20 s\"",
            "small.toml:4: warm_up: nothing is left to measure\n  hint    warm_up has to be less than duration",
        ),
        (
            "\"flow.M.goodput_mbit_s\" =",
            "\"flow.M.goodputs_mbit_s\" =",
            "small.toml:30: expect.flow.M.goodputs_mbit_s: nothing measured is called \"flow.M.goodputs_mbit_s\"\n  \
             hint    did you mean \"flow.M.goodput_mbit_s\"?",
        ),
    ];
    for (old, new, told) in cases {
        assert_eq!(mistake(old, new), told);
    }
}

#[test]
fn mistakes_that_only_show_when_it_is_put_together_are_told_before_anything_runs() {
    let event = |text: &str| format!("[[event]]\n{text}\n\n[expect]");
    let cases = [
        (
            "name = \"T\"",
            "name = \"M\"",
            "small.toml:24: flow.name: there are two flows \"M\"\n  hint    give each a name of its own",
        ),
        (
            "name = \"lte\"",
            "name = \"wifi\"",
            "small.toml:13: link.name: there are two links \"wifi\"\n  hint    give each a name of its own",
        ),
        (
            "name = \"T\"",
            "name = \"a.b\"",
            "small.toml:24: flow.name: \"a.b\" cannot be a name\n  hint    names are parts of the keys of results: not empty, without \".\", \"*\" and control characters",
        ),
        (
            "[expect]",
            &event("at = \"3 s\"\nlink = \"wify\"\ndown = true"),
            "small.toml:31: event.link: there is no link \"wify\"\n  hint    did you mean \"wifi\"?",
        ),
        (
            "[expect]",
            &event("at = \"30 s\"\nlink = \"wifi\"\ndown = true"),
            "small.toml:30: event.at: after the end: it never happens\n  hint    let it happen before `duration` is over",
        ),
        (
            "[expect]",
            &event("at = \"3 s\"\nlink = \"wifi\""),
            "small.toml:29: event: nothing happens\n  hint    say `down`, `rate`, `delay` or `loss`",
        ),
        (
            "start_within = \"1 s\"",
            "start = \"11 s\"",
            "small.toml:27: flow.T.start: after the end: it never starts\n  hint    let it start before `duration` is over",
        ),
        (
            "start_within = \"1 s\"",
            "start = \"4 s\"\nstop = \"3 s\"",
            "small.toml:28: flow.T.stop: it stops before it starts\n  hint    stop has to be later than start",
        ),
        (
            "duration = \"10 s\"",
            "duration = \"1000000 h\"",
            "small.toml:3: duration: out of range\n  hint    more than nothing, at most 24 h",
        ),
        (
            "duration = \"10 s\"",
            "duration = \"10 s\"\nsample = \"1 ns\"",
            "small.toml:4: sample: too short\n  hint    at most a million samples fit in a run",
        ),
        (
            "queue = \"1 BDP\"",
            "queue = \"1 BDP\"\nloss = nan",
            "small.toml:17: loss: NaN is no quantity: expected a share such as \"1 %\" or 0.01, at most 1",
        ),
        (
            "rate = \"5 Mbit/s\"\n",
            "",
            "small.toml:15: link.lte.queue: a BDP of an unlimited rate\n  hint    give the link a rate, or its queue in packets",
        ),
        (
            "min = 5,",
            "min = nan,",
            "small.toml:30: expect.flow.M.goodput_mbit_s: a bound that is no number\n  hint    give `min` and `max` as plain numbers",
        ),
        (
            "rule = \"reno\"",
            "rule = 7",
            "small.toml:26: rule: found 7: expected the name of a window rule such as `rule = \"mptcp\"`",
        ),
        (
            "rate = \"5 Mbit/s\"\ndelay = \"20 ms\"\nqueue = \"1 BDP\"",
            "",
            "small.toml:12: link.lte: neither a rate nor a delay\n  hint    without a rate it is unlimited, without a delay it has none: give it one of them",
        ),
        (
            "paths = [\"wifi\"]",
            "paths = []",
            "small.toml:25: flow.T.paths: no paths\n  hint    name at least one link",
        ),
        (
            "paths = [\"wifi\"]",
            "rate = \"1 Mbit/s\"",
            "small.toml:23: flow.T.paths: where does it go?\n  hint    give either `paths`, as lists of links, or `from` and `to`, as nodes",
        ),
    ];
    for (old, new, told) in cases {
        assert_eq!(mistake(old, new), told);
    }
    let nothing = Scenario::parse("", "x.toml").unwrap_err().to_string();
    assert!(nothing.starts_with("x.toml:1: duration: `duration` is missing"), "{nothing}");
    let binary = Scenario::parse("\u{0}\u{1}\u{7f}ELF", "x.toml").unwrap_err();
    assert!(binary.line == Some(1) && !binary.message.is_empty(), "{binary}");
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
    let mut progress = |share: f64| shares.push(share);
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
fn a_node_that_cannot_be_reached_and_a_path_that_returns_are_mistakes() {
    let network = "
duration = \"1 s\"
[links]
rate = \"1 Mbit/s\"
[[link]]
name = \"x\"
between = [\"a\", \"b\"]
[[link]]
name = \"y\"
between = [\"b\", \"c\"]
[[link]]
name = \"z\"
between = [\"c\", \"a\"]
[[link]]
name = \"far\"
between = [\"d\", \"e\"]
[[flow]]
name = \"f\"
";
    let told = |flow: &str| Scenario::parse(&format!("{network}{flow}"), "n").unwrap_err().to_string();
    let unreachable = told("from = \"a\"\nto = \"d\"");
    assert!(
        unreachable.starts_with("n:20: flow.f.to: node \"d\" cannot be reached from \"a\""),
        "{unreachable}"
    );
    for (flow, line) in
        [("from = \"q\"\nto = \"b\"", "n:19: flow.f.from"), ("from = \"a\"\nto = \"q\"", "n:20: flow.f.to")]
    {
        let unknown = told(flow);
        assert!(unknown.starts_with(&format!("{line}: there is no node \"q\"")), "{unknown}");
    }
    let returns = told("paths = [[\"x\", \"y\", \"z\"]]");
    assert!(
        returns.starts_with("n:19: flow.f.paths: the path has a loop: it comes back to a node"),
        "{returns}"
    );
    let gap = told("paths = [[\"x\", \"far\"]]");
    assert!(gap.contains("link \"far\" does not begin where \"x\" ends"), "{gap}");
    assert!(Scenario::parse(&format!("{network}from = \"b\"\nto = \"c\""), "n").is_ok());
}

#[test]
fn absurd_sizes_are_answered_at_once() {
    for topology in
        ["kind = \"fat-tree\"\nk = 1000000", "kind = \"bcube\"\nn = 64\nk = 8", "kind = \"fat-tree\"\nk = 7"]
    {
        let text = format!(
            "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\n{topology}\n[[traffic]]\nname = \"t\"\npattern = \"permutation\"\n"
        );
        let error = Scenario::parse(&text, "n").unwrap_err();
        assert!(error.key.starts_with("topology.") && !error.hint.is_empty(), "{error}");
    }
    let text = "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\nkind = \"bcube\"\nn = 10\nk = 3\n[[traffic]]\nname = \"t\"\n\
                pattern = \"random\"\nflows = 9000\n";
    assert!(Scenario::parse(text, "n").unwrap_err().message.contains("9000 flows a host"));
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
        // A cable has a link each way; there are 125 cables a level. A hop is a link to a switch and one from it.
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

/// Naming a link that a generator made, to see what it counts, leaves it what it was.
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
        assert_ne!(named("queue = \"7 packets\"\n"), links(&base), "{host}");
    }
}

/// Goodput in Mbit/s of the multipath flow and of the TCPs on its links, for every rule: a table to read.
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
        // Reno on both takes as much as both TCPs; the others about as much as one of them: a third.
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
        ("flow = \"N\"", "detector.D.flow: there is no flow \"N\""),
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
    // A flow with one path has nothing to compare.
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
    assert!(error.contains("alpha and b from 0 to below 1"), "{error}");
    let text =
        SMALL.replace("warm_up = \"2 s\"", &with("acks = \"primary\"\nreports = { alpha = 0.8, b = 0.07 }"));
    let report = Scenario::parse(&text, "small.toml").unwrap().run(1).unwrap();
    // All acknowledgements return over one link, reports too.
    let back = |link: &str| report.metrics[&format!("link.{link}.back.utilisation")];
    assert!(back("wifi").min(back("lte")) < 0.002, "{report:#?}");
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
