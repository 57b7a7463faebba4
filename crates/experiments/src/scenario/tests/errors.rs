//! Tests of errors: each names its line, its key and the remedy.

use super::SMALL;
use crate::scenario::{Extras, Scenario, Setting, variants};

/// The error of `SMALL` with one text replaced.
pub(super) fn mistake(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "{old}");
    let text = SMALL.replacen(old, new, 1);
    match Scenario::parse(&text, "small.toml") {
        Err(error) => error.to_string(),
        Ok(scenario) => scenario.run(1).expect_err(new).to_string(),
    }
}

#[test]
fn each_kind_of_mistake_has_its_line_its_key_and_the_remedy() {
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
            "small.toml:8: link.wifi.rate: out of range\n  hint    from 1 bit/s to 10000 Gbit/s; \
             cut a link with an [[event]] and `down = true`",
        ),
        (
            "queue = \"20 packets\"",
            "queue = \"0 packets\"",
            "small.toml:10: link.wifi.queue: no packet of 1500 B fits\n  \
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
            "small.toml:26: flow.T.count: 1000000000 flows\n  hint    a scenario has from 1 to 100000 flows in all",
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
             hint    did you mean \"reno\"? There are reno, combined, cubic, auto, lia, mptcp, ewtcp, ewtcp-printed, coupled, semi-coupled, csd, \
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
            "small.toml:4: warm_up: not less than `duration`\n  hint    leave time to measure",
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
fn mistakes_between_tables_are_reported_before_anything_runs() {
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
            "small.toml:30: event.at: after the end of the run\n  hint    `at` is less than `duration`",
        ),
        (
            "[expect]",
            &event("at = \"3 s\"\nlink = \"wifi\""),
            "small.toml:29: event: nothing happens\n  hint    say `down`, `rate`, `delay` or `loss`",
        ),
        (
            "start_within = \"1 s\"",
            "start = \"11 s\"",
            "small.toml:27: flow.T.start: after the end of the run\n  hint    start before `duration` is over",
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
            "small.toml:4: sample: out of range\n  hint    one sample to a million fit into what is measured: `duration` without `warm_up`",
        ),
        (
            "queue = \"1 BDP\"",
            "queue = \"1 BDP\"\nloss = nan",
            "small.toml:17: loss: NaN is no quantity: expected a share such as \"1 %\" or 0.01, at most 1",
        ),
        (
            "min = 5,",
            "min = nan,",
            "small.toml:30: expect.flow.M.goodput_mbit_s: a bound that is no number\n  hint    give `min` and `max` as plain numbers",
        ),
        ("rule = \"reno\"", "rule = 7", "small.toml:26: rule: invalid type: integer `7`, expected a string"),
        (
            "rate = \"5 Mbit/s\"\ndelay = \"20 ms\"\nqueue = \"1 BDP\"",
            "",
            "small.toml:12: link.lte: neither a rate nor a delay\n  hint    give it at least one of them",
        ),
        (
            "paths = [\"wifi\"]",
            "paths = []",
            "small.toml:25: flow.T.paths: no paths\n  hint    name at least one link",
        ),
        (
            "paths = [\"wifi\"]",
            "rate = \"1 Mbit/s\"",
            "small.toml:23: flow.T.paths: no route\n  hint    give either `paths` (lists of links), or `from` and `to` (nodes)",
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
fn absurd_sizes_are_refused_at_once() {
    for topology in [
        "kind = \"fat-tree\"\nk = 1000000",
        "kind = \"bcube\"\nn = 64\nk = 8",
        "kind = \"bcube\"\nn = 2\nk = 18446744073709551615",
        "kind = \"fat-tree\"\nk = 7",
    ] {
        let text = format!(
            "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\n{topology}\n[[traffic]]\nname = \"t\"\npattern = \"permutation\"\n"
        );
        let error = Scenario::parse(&text, "n").unwrap_err();
        assert!(error.key.starts_with("topology.") && !error.hint.is_empty(), "{error}");
    }
    let text = "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\nkind = \"bcube\"\nn = 10\nk = 3\n[[traffic]]\nname = \"t\"\n\
                pattern = \"random\"\nflows = 9000\n";
    assert!(Scenario::parse(text, "n").unwrap_err().message.contains("9000 flows a host"));
    let crowd = |share: &str| {
        format!(
            "duration = \"2 ms\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\nkind = \"dumbbell\"\nhosts = 60000\naccess_rate = \"1 Mbit/s\"\naccess_delay = \"1 ms\"\n[[traffic]]\nname = \"t\"\n\
             pattern = \"permutation\"\nshare = \"{share}\"\n"
        )
    };
    let error = Scenario::parse(&crowd("100 %"), "n").unwrap_err().to_string();
    assert!(error.starts_with("n:11: traffic.t.pattern: 1 flows a host from 120000 hosts\n"), "{error}");
    let others = "[[flow]]\nname = \"f\"\nfrom = \"s0\"\nto = \"r0\"\ncount = 99000\n";
    let error = Scenario::parse(&(crowd("1 %") + others), "n").unwrap_err().to_string();
    assert!(error.starts_with("n:11: traffic.t.pattern: 1200 flows, 100200 with those before\n"), "{error}");
    // Only hosts that send count.
    assert_eq!(Scenario::parse(&crowd("1 %"), "n").err(), None);
}

#[test]
fn a_gap_in_a_path_and_a_wrong_order_have_different_remedies() {
    let hint = |between: [&str; 3], path: &str| {
        let link = |(name, between): (&str, &str)| {
            format!("[[link]]\nname = \"{name}\"\nrate = \"1 Mbit/s\"\nbetween = [{between}]\n")
        };
        let links: String = ["a", "b", "c"].into_iter().zip(between).map(link).collect();
        let text = format!("duration = \"1 s\"\n{links}[[flow]]\nname = \"f\"\npaths = [[{path}]]\n");
        Scenario::parse(&text, "n").unwrap_err().hint
    };
    let chain = ["\"x\", \"y\"", "\"y\", \"z\"", "\"z\", \"w\""];
    assert!(hint(chain, "\"a\", \"c\", \"b\"").starts_with("list the links in order"));
    assert_eq!(
        hint(chain, "\"a\", \"c\""),
        "it joins \"z\" and \"w\", which no other link of the path does: name the links between"
    );
}

#[test]
fn an_unknown_key_suggests_the_nearest_one_and_lists_the_others() {
    let error = |text: &str| Scenario::parse(text, "s").expect_err(text).to_string();
    for (text, wanted) in [
        ("[topology]\nkind = \"torus\"\nhop = 5", "hop: unknown key `hop`\n  hint    did you mean `hops`?"),
        (
            "[topology]\nkind = \"dumbell\"",
            "s:2: kind: unknown value `dumbell`\n  hint    did you mean `dumbbell`?",
        ),
        ("[[flows]]\nname = \"x\"", "s:1: flows: unknown key `flows`\n  hint    did you mean `flow`?"),
        ("[expect]\njain = { mim = 1 }", "s:2: mim: unknown key `mim`\n  hint    did you mean `min`?"),
        ("[expect]\nflow.M.goodput_mbit_s = { min = 5 }", "quote the name of its metric"),
        ("seed = 1\n[link.wifi]", "write [[flow]], not [flow] or [flow.NAME]"),
        ("[[link]]\nname = \"a\"\ndelay = 5 ms", "s:3: delay: "),
        ("[[arrivals]]\nrate = [2]", "s:2: rate: 2 has no unit: expected a frequency such as \"10 /s\""),
    ] {
        assert!(error(text).contains(wanted), "{}", error(text));
    }
}

#[test]
fn a_value_of_the_wrong_type_has_the_line_of_its_key() {
    for (text, line, key) in [
        ("[[flow]]\nname = \"M\"\npaths = [\n  [\"dsl\"],\n  3,\n]", 5, "paths"),
        ("[topology]\nkind = \"fat-tree\"\nk = \"8\"", 3, "k"),
        ("[[flow]]\nname = \"f\"\ncount = -1", 3, "count"),
        ("[expect]\njain = { min = 0.1, below = 0.5 }", 2, "below"),
        ("[[link]]\nbetween = [\"a\"]", 2, "between"),
    ] {
        let error = Scenario::parse(text, "s").expect_err(text);
        assert_eq!((error.line, error.key.as_str()), (Some(line), key), "{error}");
    }
}

#[test]
fn values_out_of_range_are_refused_with_their_bounds() {
    let link = "duration = \"3 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n";
    let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
    let arrivals = "[[arrivals]]\nname = \"a\"\npaths = [\"x\"]\nrate = [\"1 /s\"]\nsize = \"1 kB\"\n";
    let cbr = "[[cbr]]\nname = \"c\"\npath = \"x\"\nrate = \"1 kbit/s\"\n";
    let datagrams =
        |keys: &str| format!("{flow}datagrams = {{ rate = \"8 kbit/s\", size = \"99 B\", {keys} }}\n");
    for (text, wanted) in [
        (datagrams("mode = \"protected\", patience = \"9 h\""), "8: flow.f.datagrams.patience"),
        (datagrams("mode = \"protected\", block = 99"), "8: flow.f.datagrams.block"),
        (format!("{flow}[links]\nrate = \"0 bit/s\""), "9: links.rate"),
        (format!("{flow}[links]\ndelay = \"2 h\""), "9: links.delay"),
        (format!("{flow}[transport.reports]\nalpha = 0.5\nb = -3.0"), "10: transport.reports.b"),
        (
            format!("{flow}[transport]\nleave_out = {{ slower_than = 0.5 }}"),
            "9: transport.leave_out.slower_than",
        ),
        (format!("{flow}[transport]\nack_every = 65"), "9: transport.ack_every"),
        (arrivals.replace("1 kB", "0 B"), "9: arrivals.a.size"),
        (format!("{arrivals}sizes = \"pareto\"\nshape = 1.0"), "11: arrivals.a.shape"),
        (format!("{cbr}packet = \"9 B\""), "9: cbr.c.packet"),
    ] {
        let error = Scenario::parse(&format!("{link}{text}"), "s").expect_err(&text).to_string();
        assert!(error.starts_with(&format!("s:{wanted}: out of range\n  hint    ")), "{error}");
    }
    let error = Scenario::parse(&format!("{link}{cbr}on = \"1 ms\""), "s").expect_err("no pause").to_string();
    assert!(error.starts_with("s:9: cbr.c.on: `on` and `off` belong together"), "{error}");
}

#[test]
fn settings_without_effect_are_accepted() {
    let text =
        SMALL.replace("paths = [\"wifi\"]", "paths = [\"wifi\"]\npaths_within = \"9 ms\"\nstop = \"1 h\"");
    assert!(Scenario::parse(&text, "s").is_ok());
    let base = Scenario::parse(SMALL, "s").unwrap();
    let same = ["flow.T.scheduler=block,ecf".parse().unwrap()];
    assert_eq!(variants(&base, &same).map(|variants| variants.len()), Ok(2));
}

#[test]
fn a_run_that_exceeds_a_limit_ends_with_an_error() {
    let base = "duration = \"1000 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Gbit/s\"\n[[link]]\nname = \"y\"\n";
    let run = |keys: &str, source: &str| {
        let scenario = Scenario::parse(&format!("{base}{keys}\n{source}\n"), "s.toml").unwrap();
        scenario.run(1).map_or_else(|error| error.to_string(), |_| "done".to_owned())
    };
    let cbr = "[[cbr]]\nname = \"c\"\npath = [\"x\", \"y\"]\nrate = \"500 Mbit/s\"";
    let far = "delay = \"499 s\"";
    for (keys, source) in [(far, cbr), ("rate = \"1 kbit/s\"\nqueue = \"1000 GB\"", cbr)] {
        let error = run(keys, source);
        assert!(error.starts_with("s.toml:5: link.y: more than 100000 packets wait or are"), "{error}");
    }
    let short = format!("{cbr}\nstop = \"3 s\"");
    assert_eq!(run("delay = \"1 s\"", &short), "done");
    let error = run("delay = \"1 ms\"", cbr);
    assert!(error.starts_with("s.toml:1: duration: more than 20000000 events after "), "{error}");
    // No link limits this flow.
    let bulk = "[[flow]]\nname = \"f\"\npaths = [\"y\"]\n[transport]\nreceive_buffer = \"10 GB\"";
    assert!(run("delay = \"100 ms\"", bulk).starts_with("s.toml:5: link.y: more than 100000 packets"));
}

#[test]
fn a_run_ends_when_its_caller_wants_no_more() {
    let scenario = Scenario::parse(SMALL, "small.toml").unwrap();
    let mut progress = |share: f64| share < 0.5;
    let extras = Extras { progress: Some(&mut progress), ..Extras::default() };
    let error = scenario.run_with(1, extras).unwrap_err().to_string();
    assert!(error.starts_with("small.toml:3: duration: stopped after 5.0"), "{error}");
}

const LINK: &str = "duration = \"3 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n";

fn error_of(text: &str) -> String {
    Scenario::parse(text, "s.toml").expect_err(text).to_string()
}

#[test]
fn a_rule_that_is_nearly_right_is_answered_with_the_right_one() {
    let text = |setting: &str| {
        format!(
            "duration = \"1 s\"\n[[link]]\nname = \"a\"\nrate = \"1 Mbit/s\"\n[[flow]]\nname = \"f\"\npaths = [\"a\"]\n{setting}\n"
        )
    };
    let cases = [
        ("rule = \"semicoupled\"", "did you mean \"semi-coupled\"? There are reno, "),
        ("rule = \"mtpcp\"", "did you mean \"mptcp\"? There are reno, "),
        ("scheduler = \"minrtt\"", "did you mean \"min-rtt\"? There are "),
        ("scheduler = \"whatever else\"", "there are "),
    ];
    for (setting, hint) in cases {
        let told = error_of(&text(setting));
        assert!(
            told.starts_with("s.toml:8: flow.f.") && told.contains(&format!("\n  hint    {hint}")),
            "{told}"
        );
    }
}

#[test]
fn links_that_a_generator_makes_can_be_set_and_names_that_nothing_has_are_told() {
    let text = "duration = \"1 s\"\n[links]\nrate = \"10 Mbit/s\"\n[topology]\nkind = \"dumbbell\"\nhosts = 1\n\
                access_rate = \"100 Mbit/s\"\n[[flow]]\nname = \"f\"\nfrom = \"s0\"\nto = \"r0\"\n";
    let base = Scenario::parse(text, "d").unwrap();
    let set = |setting: &str| variants(&base, &[setting.parse().unwrap()]);
    let sweep = set("link.core.rate=1 Mbit/s,2 Mbit/s").unwrap();
    let rates = sweep.iter().map(|variant| variant.scenario.build(1).unwrap().cables[0].rates[0]);
    assert_eq!(rates.collect::<Vec<_>>(), [1_000_000, 2_000_000]);
    let of_host = set("link.left.0.delay=9 ms").unwrap()[0].scenario.build(1).unwrap();
    let delay = |name: &str| {
        let place = of_host.cables.iter().position(|cable| cable.name == name).expect("a cable");
        of_host.plan.links[place * 2].delay
    };
    assert_eq!((delay("left.0").as_millis_f64(), delay("right.0").as_millis_f64()), (9.0, 0.0));
    assert_eq!(set("flow.f.agent.relays=0,1").map(|variants| variants.len()), Ok(2));
    let told = |setting: &str| set(setting).unwrap_err().to_string();
    let both = ["link.*.delay=1 ms", "link.left.0.delay=9 ms"].map(|text| text.parse().unwrap());
    let told_of_both = variants(&base, &both).unwrap_err().to_string();
    assert!(told_of_both.contains("link.left.0.delay: sets what `link.*.delay` sets"), "{told_of_both}");
    assert!(told("link.*.rate=1 Mbit/s").contains("the file has no [[link]]; links.rate and its like"));
    assert!(told("link.cor.rate=1 Mbit/s").starts_with("--set: link.cor.rate: there is no link \"cor\""));
    assert!(told("flow.g.rule=lia").contains("flow.g.rule: there is no flow \"g\"; there are f"));
    assert!(told("flow.F.rule=lia").contains("flow.F.rule: there is no flow \"F\"; did you mean \"f\"?"));
    assert!(told("flow.f.rule.x=1").starts_with("--set: flow.f.rule.x: rule has no parts"));
    assert!(
        told("link.left.0.back.rate.x=1").starts_with("--set: link.left.0.back.rate.x: rate has no parts")
    );
    assert_eq!(
        told("flows.f.rule=lia"),
        "--set: flows.f.rule: there is no such table\n  hint    did you mean `flow`?"
    );
    assert!(told("flow.f.name=g").starts_with("--set: flow.f.name: not to be set"));
    assert!(told("cbr.x.rate=1 Mbit/s").starts_with("--set: cbr.x.rate: there is no cbr \"x\""));
}

#[test]
fn a_sweep_that_says_something_twice_is_refused() {
    let base = Scenario::parse(&format!("{LINK}[[flow]]\nname = \"f\"\npaths = [\"x\"]\n"), "s").unwrap();
    let twice = "flow.f.rule=lia,reno,lia".parse::<Setting>();
    assert_eq!(twice, Err("`lia` is there twice: give each value once".to_owned()));
    let settings = ["flow.f.rule=lia", "flow.f.rule=reno"].map(|text| text.parse().unwrap());
    let wanted =
        "--set: flow.f.rule: set twice\n  hint    give all its values at once: --set 'flow.f.rule=…,…'";
    assert_eq!(variants(&base, &settings).unwrap_err().to_string(), wanted);
    let seeds: Vec<String> = (0..400).map(|seed| seed.to_string()).collect();
    let many = ["seed", "link.x.delay"].map(|key| format!("{key}={}", seeds.join(",")).parse().unwrap());
    let told = variants(&base, &many).unwrap_err().to_string();
    assert!(told.starts_with("--set: too many combinations\n  hint    at most 100000: "), "{told}");
}

#[test]
fn a_flow_in_a_tunnel_has_a_lane_and_no_paths() {
    let links = "duration = \"3 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n[[tunnel]]\nname = \"t\"\npaths = [\"x\"]\n";
    for (keys, wanted) in [
        ("tunnel = \"t\"\npaths = [\"x\"]", "11: flow.f.paths: a flow in a tunnel has no paths of its own"),
        ("tunnel = \"t\"\nscheduler = \"min-rtt\"", "11: flow.f.scheduler: a flow in a tunnel has no paths"),
        ("tunnel = \"u\"", "10: flow.f.tunnel: there is no tunnel \"u\""),
        ("paths = [\"x\"]\nlane = \"routed\"", "11: flow.f.lane: the flow is in no tunnel"),
        (
            "tunnel = \"t\"\nrate = \"1 kbit/s\"",
            "8: flow.f.lane: the stream lane carries endless data and files",
        ),
        (
            "tunnel = \"t\"\nlane = \"stream\"\nrule = \"reno\"",
            "12: flow.f.rule: the stream lane has the tunnel's window rule",
        ),
        ("tunnel = \"t\"\nredundant = true", "11: flow.f.redundant: the session sees one path only"),
    ] {
        let text = format!("{links}[[flow]]\nname = \"f\"\n{keys}\n");
        let error = Scenario::parse(&text, "s").expect_err(keys).to_string();
        assert!(error.starts_with(&format!("s:{wanted}")), "{error}");
    }
}
