//! Tests of what is said of each kind of mistake in a scenario: with its line, its key and the remedy.

use super::tests::SMALL;
use super::*;

/// What `SMALL` says with one text replaced.
pub(super) fn mistake(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "{old}");
    let text = SMALL.replacen(old, new, 1);
    match Scenario::parse(&text, "small.toml") {
        Err(error) => error.to_string(),
        Ok(scenario) => scenario.run(1).expect_err(new).to_string(),
    }
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
            "small.toml:12: link.lte.rate: nothing slows flow \"M\" down: the link has no rate\n  hint    write one, as `rate = \"1 Gbit/s\"`; or give the flow a `size` or a `rate`, or [transport] a `receive_buffer`",
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
    // Only those count that send.
    assert_eq!(Scenario::parse(&crowd("1 %"), "n").err(), None);
}

#[test]
fn links_that_nothing_joins_are_told_apart_from_those_in_another_order() {
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
