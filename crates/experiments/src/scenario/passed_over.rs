//! Tests of what a scenario says that would change nothing: it is told, not passed over.

use super::mistakes::told;
use super::{Scenario, variants};

const LINK: &str = "duration = \"3 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n";

#[test]
fn what_would_be_passed_over_is_told() {
    let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
    let arrivals = "[[arrivals]]\nname = \"a\"\npaths = [\"x\"]\nrate = [\"1 /s\"]\nsize = \"1 kB\"\n";
    let cbr = "[[cbr]]\nname = \"c\"\npath = \"x\"\nrate = \"1 kbit/s\"\n";
    let datagrams =
        |keys: &str| format!("{flow}datagrams = {{ rate = \"8 kbit/s\", size = \"99 B\", {keys} }}\n");
    let tree =
        "[topology]\nkind = \"fat-tree\"\nk = 4\n[links]\nrate = \"1 Mbit/s\"\n[[traffic]]\nname = \"t\"\n";
    let cases = [
        (format!("{arrivals}sizes = \"fixed\"\nshape = 1.5"), "11: arrivals.a.shape: only a Pareto"),
        (format!("{cbr}bursts = \"fixed\""), "9: cbr.c.bursts: without `on` it sends all the time"),
        (datagrams("block = 4"), "8: flow.f.datagrams.block: only protected datagrams have parity"),
        (datagrams("mode = \"protected\", patience = \"9 h\""), "8: flow.f.datagrams.patience: out of range"),
        (
            format!("{tree}pattern = \"random\"\nflows = 16"),
            "10: traffic.t.flows: 16 flows a host\n  hint    a host has only 15 others",
        ),
        (
            format!("{tree}pattern = \"neighbours\"\nflows = 2"),
            "10: traffic.t.flows: 2 flows a host\n  hint    a host has only 1 others",
        ),
        (
            format!("{flow}striping = {{ scheme = \"weighted\", buffer = \"fixed\", packets = 0 }}"),
            "8: flow.f.striping.packets: out of range",
        ),
        (
            format!("{flow}[expect]\n\"flow.f.rtt_ms\" = {{ max = 1 }}"),
            "9: expect.flow.f.rtt_ms: nothing measured is called \"flow.f.rtt_ms\"\n  hint    did you mean \"flow.f.path1.rtt_ms\"?",
        ),
        (
            format!("{flow}[expect]\n\"flow.other.pkt_s\" = {{ max = 1 }}"),
            "9: expect.flow.other.pkt_s: nothing measured is called \"flow.other.pkt_s\"\n  hint    there is no flow \"other\" that is measured; there is \"f\"",
        ),
        (
            format!("{flow}[expect]\njain = {{ above = \"jain\" }}"),
            "9: expect.jain: it is compared with itself",
        ),
        (format!("{cbr}on = \"1 ms\""), "9: cbr.c.on: without `off` it never pauses"),
        (
            format!("{cbr}packet = \"1501 B\"").replace("[[cbr]]", "queue = \"1 packet\"\n[[cbr]]"),
            "10: cbr.c.packet: no packet of 1501 B fits",
        ),
        (
            format!("[[link]]\nname = \"y\"\ndelay = \"1 ms\"\nqueue = \"9 packets\"\n{flow}"),
            "8: link.y.queue: nothing waits",
        ),
        (
            format!("[[link]]\nname = \"y\"\ndelay = \"1 ms\"\nback = {{ queue = \"9 packets\" }}\n{flow}"),
            "8: link.y.back.queue: nothing waits",
        ),
        (format!("back = {{}}\n{flow}"), "5: link.x.back: nothing is said of the way back"),
        (
            datagrams("mode = \"protected\", block = 3, most = \"1 %\""),
            "8: flow.f.datagrams.most: less than the one piece that a block of 3 may always have\n  hint    take it out, or at least \"33.3334 %\"",
        ),
        (datagrams("mode = \"redundant\""), "8: flow.f.datagrams.mode: the session sees one path only"),
        (
            datagrams("mode = \"protected\", outlive_path = true"),
            "8: flow.f.datagrams.outlive_path: the session sees one path only",
        ),
        (
            format!(
                "{flow}striping = {{ scheme = \"round-robin\" }}\n[[detector]]\nname = \"d\"\nflow = \"f\""
            ),
            "11: detector.d.flow: \"f\" sees one path",
        ),
        (
            format!("{flow}[expect]\n\"flow.f.completion_s\" = {{ max = 1 }}"),
            "9: expect.flow.f.completion_s: nothing measured is called \"flow.f.completion_s\"\n  hint    only a flow that ends, with a `size` or a `script`, has it",
        ),
        (
            format!("{arrivals}[expect]\n\"arrivals.a.completion_p95_s\" = {{ max = 1 }}"),
            "11: expect.arrivals.a.completion_p95_s: nothing measured is called \"arrivals.a.completion_p95_s\"\n  hint    did you mean \"arrivals.a.completion_p99_s\"?",
        ),
        (
            format!(
                "{flow}[[event]]\nat = \"1 s\"\nlink = \"x\"\ndown = true\n[[event]]\nat = \"1 s\"\nlink = \"x\"\ndown = false"
            ),
            "13: event.at: another event changes",
        ),
        (format!("{flow}[links]\nrate = \"0 bit/s\""), "9: links.rate: out of range"),
        (format!("{flow}[links]\ndelay = \"2 h\""), "9: links.delay: out of range"),
        (
            format!("{flow}script = [[\"1 s\", \"1 B\"]]\nstart_within = \"2.5 s\""),
            "8: flow.f.script: entry 1 is after the end",
        ),
        (
            format!("[[link]]\nname = \"y\"\nrate = \"1 Mbit/s\"\nbetween = [\"\", \"b\"]\n{flow}"),
            "8: link.y.between: a node without a name",
        ),
        (
            format!("{flow}[transport]\ndetector = \"delays\""),
            "9: transport.detector: no flow asks which of its paths share",
        ),
        (
            format!("{flow}scheduler = \"min-rtt\"\nstriping = {{ scheme = \"round-robin\" }}"),
            "8: flow.f.scheduler: packets that are striped are not scheduled",
        ),
        (
            format!("{flow}striping = {{ scheme = \"weighted\", buffer = \"fixed\" }}"),
            "8: flow.f.striping.packets: how many may wait?",
        ),
        (
            arrivals.replace("[\"1 /s\"]", "[\"1 /s\", \"9 /s\"]\nphase = \"3 s\""),
            "8: arrivals.a.rate: only the first 1 of 2 ever come",
        ),
        (format!("{cbr}on = \"1 ms\"\noff = \"0 s\""), "10: cbr.c.off: no pause: it sends all the time"),
        (
            format!("{flow}[transport.reports]\nalpha = 0.5\nb = -3.0"),
            "10: transport.reports.b: out of range",
        ),
        (
            format!("{flow}[transport]\nleave_out = {{ slower_than = 0.5 }}"),
            "9: transport.leave_out.slower_than: out of range",
        ),
        (
            format!("{flow}[transport.leave_out]\nsharing_beyond = 0"),
            "9: transport.leave_out.sharing_beyond: out of range",
        ),
        (
            format!(
                "{flow}[flow.datagrams]\nrate = \"1 Mbit/s\"\nsize = \"1 kB\"\nmode = \"protected\"\nblock = 99"
            ),
            "12: flow.f.datagrams.block: out of range",
        ),
        (format!("{arrivals}phase = \"1 s\""), "10: arrivals.a.phase: the only rate lasts all the time"),
        (format!("{flow}[transport]\nleave_out = {{}}"), "9: transport.leave_out: leaves nothing out"),
        ("".to_owned(), "4: nothing sends anything"),
        (flow.replace("\"f\"", "\"f\\u001b[1m\""), "6: flow.name: \"f\\u001B[1m\" cannot be a name"),
    ];
    for (text, wanted) in cases {
        let head = if text.starts_with("[topology]") { "duration = \"3 s\"\n" } else { LINK };
        let told = told(&format!("{head}{text}"));
        assert!(told.starts_with(&format!("s.toml:{wanted}")), "{told}");
    }
    let usual =
        "duration = \"3 s\"\n[links]\ndelay = \"1 ms\"\nqueue = \"9 packets\"\n[[link]]\nname = \"x\"\n";
    let told_of_usual = told(&format!("{usual}{flow}size = \"1 kB\"\n"));
    assert!(told_of_usual.starts_with("s.toml:4: links.queue: nothing waits"), "{told_of_usual}");
    let tree = tree
        .replace("rate = \"1 Mbit/s\"", "delay = \"1 ms\"")
        .replace("k = 4", "k = 4\nhost_queue = \"9 packets\"");
    let slowed = "[transport]\nreceive_buffer = \"64 kB\"\n";
    let told_of_hosts = told(&format!("duration = \"3 s\"\n{tree}pattern = \"permutation\"\n{slowed}"));
    assert!(told_of_hosts.starts_with("s.toml:5: topology.host_queue: nothing waits"), "{told_of_hosts}");
    let one_rated = format!(
        "duration = \"3 s\"\n{tree}pattern = \"permutation\"\n{slowed}[[link]]\nname = \"core.0.0\"\nrate = \"1 Mbit/s\"\n"
    );
    assert!(
        told(&one_rated).starts_with("s.toml:5: topology.host_queue: nothing waits"),
        "{}",
        told(&one_rated)
    );
    let later = format!(
        "duration = \"3 s\"\n[links]\nqueue = \"1 BDP\"\ndelay = \"1 ms\"\n[[link]]\nname = \"x\"\n{flow}size = \"1 kB\"\n[[event]]\nat = \"1 s\"\nlink = \"x\"\nrate = \"1 Mbit/s\"\n"
    );
    assert!(
        told(&later).starts_with("s.toml:3: links.queue: a BDP of an unlimited rate"),
        "{}",
        told(&later)
    );
    // A BDP of all links is that of those with a rate.
    let unlimited = "[links]\nqueue = \"1 BDP\"\n[[link]]\nname = \"y\"\ndelay = \"1 ms\"\n";
    assert!(Scenario::parse(&format!("{LINK}delay = \"1 ms\"\n{unlimited}{flow}"), "s").is_ok());
    for keys in ["block = 1", "block = 3, most = \"33.3334 %\""] {
        let two = datagrams(&format!("mode = \"protected\", {keys}"));
        assert!(Scenario::parse(&format!("{LINK}{two}"), "s").is_ok(), "{keys}");
    }
    let base = Scenario::parse(&format!("{LINK}{flow}"), "s").expect("right");
    let told = variants(&base, &["flow.f=1".parse().expect("a setting")]).expect_err("no key").to_string();
    assert!(told.starts_with("--set: flow.f: which of its keys?"), "{told}");
    let both = ["flow.f.rule=lia", "flow.*.rule=olia"].map(|text| text.parse().expect("a setting"));
    let told = variants(&base, &both).expect_err("twice").to_string();
    assert!(told.starts_with("--set: flow.*.rule: sets what `flow.f.rule` sets"), "{told}");
    let idle_keys =
        ["links.rate=1 Mbit/s,2 Mbit/s", "link.x.rate=1 Mbit/s,1000 kbit/s", "flow.f.scheduler=block,ecf"];
    for idle in idle_keys {
        let told = variants(&base, &[idle.parse().expect("a setting")]).expect_err("no change").to_string();
        assert!(told.contains(": no value of it changes anything"), "{told}");
    }
    let together = ["links.rate=1 Mbit/s,2 Mbit/s", "flow.f.rule=lia,olia"];
    let told = variants(&base, &together.map(|text| text.parse().expect("a setting")));
    let told = told.expect_err("no change").to_string();
    assert!(told.starts_with("--set: links.rate: no value of it changes anything"), "{told}");
    assert!("flow.f.rule=lia,\"lia\"".parse::<super::Setting>().is_err());
    let table = "flow.f.datagrams={ rate = \"1 Mbit/s\", size = \"100 B\" }".parse().expect("one value");
    assert_eq!(variants(&base, &[table]).expect("a variant").len(), 1);
    let told = variants(&base, &["seed=1,2".parse().expect("a setting")]).expect_err("no key").to_string();
    assert_eq!(told, "--set: seed: not to be set\n  hint    seeds are given with --seeds, as --seeds 1..3");
}

#[test]
fn what_was_not_measured_of_datagrams_keeps_no_bound() {
    let flow =
        "[[flow]]\nname = \"f\"\npaths = [\"x\"]\ndatagrams = { rate = \"80 kbit/s\", size = \"99 B\" }\n";
    let expect = "[expect]\n\"flow.f.delay_max_ms\" = { max = 100 }\n";
    let run = |seconds: u64| {
        let text = format!("{LINK}{flow}{expect}").replace("\"3 s\"", &format!("\"{seconds} s\""));
        Scenario::parse(&text, "s").expect("right").run(1).expect("a network")
    };
    // All of them were sent in the last second.
    let short = run(1);
    let known: Vec<_> =
        short.metrics.keys().filter(|name| name.contains("delay_") || name.contains("delivered")).collect();
    assert!(known.is_empty() && !short.expect[0].ok, "{known:?}");
    assert!(run(3).expect[0].ok, "{:?}", run(3).expect);
}

#[test]
fn a_key_may_change_something_with_later_values_of_another_only() {
    let text = "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[[link]]\nname = \"a\"\n[[link]]\nname = \"b\"\n\
                [[flow]]\nname = \"f\"\npaths = [\"a\"]\n";
    let base = Scenario::parse(text, "s").expect("right");
    let settings = [r#"flow.f.paths=["a"],["a","b"]"#, "transport.scheduler=block,ecf"];
    let settings = settings.map(|text| text.parse().expect("a setting"));
    assert_eq!(variants(&base, &settings).expect("it does with two paths").len(), 4);
}
