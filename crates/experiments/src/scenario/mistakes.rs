//! Tests of what is said of values of the wrong type: of every key that the schema knows, and of those that people meet.

use serde_json::Value;

use super::{Scenario, schema, variants};

pub(super) fn told(text: &str) -> String {
    Scenario::parse(text, "s.toml").expect_err(text).to_string()
}

/// The keys of a table, with their schemas, through references and alternatives.
pub(super) fn keys(schema: &Value, root: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    if let Some(name) = schema["$ref"].as_str() {
        let of = root.pointer(name.trim_start_matches('#')).expect("references lead somewhere");
        // What is a quantity has no keys.
        return keys(of, root);
    }
    if let Some(properties) = schema["properties"].as_object() {
        found.extend(properties.iter().map(|(key, schema)| (key.clone(), schema.clone())));
    }
    for several in ["anyOf", "oneOf"] {
        found.extend(schema[several].as_array().into_iter().flatten().flat_map(|one| keys(one, root)));
    }
    if schema["items"].is_object() {
        found.extend(keys(&schema["items"], root));
    }
    found
}

/// A value that the key cannot have.
fn wrong(schema: &Value) -> &'static str {
    if schema.to_string().contains("\"boolean\"") { "7" } else { "true" }
}

#[test]
fn every_key_says_what_it_expects_instead_of_a_value_of_the_wrong_type() {
    let root = schema();
    let mut asked = 0;
    let mut check = |text: String, line: usize, key: &str, wrong: &str| {
        let told = told(&text);
        let start = format!("s.toml:{line}: {key}: found {wrong}: expected ");
        assert!(told.starts_with(&start) && told.contains(['`', '"', '[']), "{text}\n{told}");
        asked += 1;
    };
    for (table, schema) in keys(&root, &root) {
        check(format!("{table} = {}", wrong(&schema)), 1, &table, wrong(&schema));
        let head = if schema["type"] == "array" { format!("[[{table}]]") } else { format!("[{table}]") };
        for (key, inner) in keys(&schema, &root) {
            let value = wrong(&inner);
            let kind = if table == "topology" && key != "kind" { "kind = \"torus\"\n" } else { "" };
            check(format!("{head}\n{kind}{key} = {value}"), 2 + usize::from(!kind.is_empty()), &key, value);
            for (part, inner) in keys(&inner, &root) {
                let value = wrong(&inner);
                check(format!("{head}\n{key} = {{ {part} = {value} }}"), 2, &part, value);
            }
        }
    }
    for bound in ["min", "max", "above", "below"] {
        check(format!("[expect]\njain = {{ {bound} = true }}"), 2, bound, "true");
    }
    assert!(asked > 120, "{asked} keys");
}

#[test]
fn mistakes_that_people_make_are_told_with_what_was_found_and_an_example() {
    let cases = [
        (
            "[[flow]]\nname = \"M\"\npaths = \"dsl\"",
            "s.toml:3: paths: found \"dsl\": expected a list of links, or of lists of links in a row, such as `paths = [\"wifi\", \"lte\"]`",
        ),
        (
            "[[flow]]\nname = \"M\"\npaths = [\n  [\"dsl\"],\n  3,\n]",
            "s.toml:5: paths: found 3: expected a list of links, or of lists of links in a row, such as `paths = [\"wifi\", \"lte\"]`",
        ),
        (
            "[[arrivals]]\nrate = \"2/s\"",
            "s.toml:2: rate: found \"2/s\": expected a list of frequencies such as `rate = [\"10 /s\"]`",
        ),
        ("[[arrivals]]\nrate = [2]", "s.toml:2: rate: 2 has no unit: expected a frequency such as \"10 /s\""),
        (
            "[expect]\njain = { min = 0.1, below = 0.5 }",
            "s.toml:2: below: found 0.5: expected the name of another metric such as `below = \"link.A.loss\"`; a number goes with `max`",
        ),
        ("[expect]\njain = 0.5", "s.toml:2: jain: found 0.5: expected a bound such as `{ min = 0.9 }`"),
        (
            "[expect]\nflow.M.goodput_mbit_s = { min = 5 }",
            "s.toml:2: M: unknown key `M`\n  hint    the name of a metric has dots, so it is quoted: \"flow.M.goodput_mbit_s\" = { min = 5 }",
        ),
        (
            "[topology]\nkind = \"fat-tree\"\nk = \"8\"",
            "s.toml:3: k: found \"8\": expected a whole number such as `k = 4`",
        ),
        (
            "[topology]\nkind = \"fat-tree\"\nk = -8",
            "s.toml:3: k: found -8, which is below nothing: expected a whole number such as `k = 4`",
        ),
        (
            "[topology]\nkind = \"fat-tree\"\nk = 4\nhosts = 5",
            "s.toml:4: hosts: unknown key `hosts`\n  hint    possible: kind, k, host_queue",
        ),
        (
            "[topology]\nkind = \"torus\"\nlink = 5",
            "s.toml:3: link: unknown key `link`\n  hint    did you mean `links`? Possible: kind, links",
        ),
        (
            "[topology]\nkind = \"parking-lot\"\nhops = 3\nhost_queu = 5",
            "s.toml:4: host_queu: unknown key `host_queu`\n  hint    possible: kind, hops",
        ),
        (
            "[[flow]]\nname = \"M\"\n[flow.stripping]\nscheme = \"weighted\"",
            "s.toml:3: stripping: unknown key `stripping`\n  hint    did you mean `striping`? Possible: name, count, paths, from, to, size, rate, script, redundant, datagrams, start, start_within, paths_within, stop, profile, rule, scheduler, striping, flow_routing",
        ),
        (
            "[[flow]]\nname = \"M\"\n[flow.M]\nrule = \"reno\"",
            "s.toml:3: flow: found [flow.M]: expected tables, each headed by [[flow]]",
        ),
        (
            "[topology]\nkind = \"dumbbell\"\nhosts = 5",
            "s.toml:1: access_rate: `access_rate` is missing\n  hint    add `access_rate = …` to this table",
        ),
        (
            "[topology]\nkind = \"dumbell\"",
            "s.toml:2: kind: unknown value `dumbell`\n  hint    did you mean `dumbbell`? Possible: torus, dumbbell, parking-lot, fat-tree, bcube",
        ),
        (
            "[[link]]\nbetween = [\"a\"]",
            "s.toml:2: between: found [\"a\"]: expected the two nodes at its ends such as `between = [\"a\", \"b\"]`",
        ),
        (
            "[[flow]\nname = \"M\"",
            "s.toml:1: flow: the head of a table is not closed\n  hint    write [[flow]]",
        ),
        (
            "[flow\nname = \"M\"",
            "s.toml:1: flow: the head of a table is not closed\n  hint    write [[flow]]",
        ),
        (
            "[links]\nname = \"a\"",
            "s.toml:2: name: unknown key `name`\n  hint    [links] says what all links have that do not say otherwise; each link is headed by [[link]]",
        ),
        (
            "[expect]\njain = { min = 0.5 }\nseed = 5",
            "s.toml:3: seed: found 5: expected a bound such as `{ min = 0.9 }`\n  hint    the scenario's own `seed` stands above the first table",
        ),
        (
            "flow = []\n[[flow]]\nname = \"f\"",
            "s.toml:2: flow: there twice\n  hint    several of them are headed by [[flow]] each: take out any other flow",
        ),
        (
            "[[link]]\nname = \"a\"\ndelay = 5 ms",
            "s.toml:3: delay: found 5 ms, which is no value\n  hint    text and quantities stand in quotes: delay = \"5 ms\"",
        ),
        (
            "[[link]]\nname = \"a",
            "s.toml:2: name: text without an end\n  hint    end it with the quote that it began with: name = \"a\"",
        ),
        (
            "[expect]\n\"flow.M.pkt_s\" = { equals = 1 }",
            "s.toml:2: equals: unknown key `equals`\n  hint    possible: min, max, above, below",
        ),
        (
            "[[flow]]\nname = \"f\"\ndatagrams = { name = \"x\" }",
            "s.toml:3: name: unknown key `name`\n  hint    possible: rate, size, mode, block, patience, most, outlive_path",
        ),
        (
            "[link]\nname = \"a\"\n[link]\nname = \"b\"",
            "s.toml:3: link: there twice, first on line 1\n  hint    several of them are headed by [[link]] each: take out any other link",
        ),
        ("[link]\nname = \"a\"", "s.toml:1: link: found [link]: expected tables, each headed by [[link]]"),
        (
            "seed = 1\n[link.wifi]",
            "s.toml:2: link: found [link.wifi]: expected tables, each headed by [[link]]",
        ),
        (
            "[[topology]]\nkind = \"torus\"",
            "s.toml:1: topology: found [[topology]]: expected one table, headed by [topology]",
        ),
        (
            "[[transport]]\nprofile = \"tcp\"",
            "s.toml:1: transport: found [[transport]]: expected one table, headed by [transport]",
        ),
        (
            "[[links]]\nrate = \"1 Mbit/s\"",
            "s.toml:1: links: found [[links]]: expected one table, headed by [links]\n  hint    a single link is headed by [[link]]",
        ),
        (
            "rule = \"lia\"",
            "s.toml:1: rule: unknown key `rule`\n  hint    `rule` is a key of [transport], [[arrivals]], [[flow]], [[traffic]]; possible here: name, about, seed, duration, warm_up, sample, transport, links, topology, link, flow, traffic, arrivals, cbr, event, detector, expect",
        ),
        (
            "[[cbr]]\nsize = \"1 kB\"",
            "s.toml:2: size: unknown key `size`\n  hint    `size` is a key of [[arrivals]], [[flow]]; possible here: name, path, rate, packet, on, off, bursts, start, stop",
        ),
        (
            "[[flows]]\nname = \"x\"",
            "s.toml:1: flows: unknown key `flows`\n  hint    did you mean `flow`? Possible: name, about, seed, duration, warm_up, sample, transport, links, topology, link, flow, traffic, arrivals, cbr, event, detector, expect",
        ),
        (
            "[[FLOW]]\nname = \"x\"",
            "s.toml:1: FLOW: unknown key `FLOW`\n  hint    did you mean `flow`? Possible: name, about, seed, duration, warm_up, sample, transport, links, topology, link, flow, traffic, arrivals, cbr, event, detector, expect",
        ),
        (
            "[[event]]\nflow = \"f\"",
            "s.toml:2: flow: unknown key `flow`\n  hint    `flow` is a key of [[detector]]; possible here: at, link, way, down, rate, delay, loss",
        ),
        (
            "[[flow]]\nname = \"f\"\ncount = -1",
            "s.toml:3: count: found -1, which is below nothing: expected a whole number of flows such as `count = 10`",
        ),
        (
            "[transport]\nack_every = 99999999999999",
            "s.toml:2: ack_every: found 99999999999999, which is too large: expected a whole number of packets such as `ack_every = 2`",
        ),
        (
            "[transport]\nack_every = 99999999999999999999999",
            "s.toml:2: ack_every: found 99999999999999999999999, which is too large: expected a whole number of packets such as `ack_every = 2`",
        ),
        (
            "[[linkx]]\nname = \"a\"\n[link.back]\ndelay = \"7 ms\"\n[[link]]\nname = \"b\"",
            "s.toml:3: link: [link.back] stands before any [[link]]\n  hint    it is part of the [[link]] above it: is that headed so?",
        ),
        (
            "[[crb]]\nname = \"x\"",
            "s.toml:1: crb: unknown key `crb`\n  hint    did you mean `cbr`? Possible: name, about, seed, duration, warm_up, sample, transport, links, topology, link, flow, traffic, arrivals, cbr, event, detector, expect",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(told(text), wanted);
    }
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
        let told = told(&text(setting));
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
fn what_all_links_or_flows_have_is_mended_where_it_stands() {
    let links = "[[link]]\nname = \"a\"\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n";
    let flow = "[[flow]]\nname = \"f\"\npaths = [\"a\"]\n";
    let dumbbell = "[topology]\nkind = \"dumbbell\"\nhosts = 1\naccess_rate = \"0 bit/s\"\n";
    let tree = "[topology]\nkind = \"fat-tree\"\nk = 4\nhost_queue = \"0 packets\"\n";
    let pair = "[[traffic]]\nname = \"t\"\npattern = \"permutation\"\n";
    let arrivals = "[[arrivals]]\nname = \"f\"\npaths = [\"a\"]\nrate = [\"1 /s\"]\nsize = \"0 B\"\n";
    let cases = [
        (
            format!("[links]\nqueue = \"0 packets\"\n{links}{flow}"),
            "s.toml:3: links.queue: no packet of 1500 B fits",
        ),
        (
            format!("[links]\nqueue = \"0 packets\"\n{links}queue = \"9 packets\"\n{flow}"),
            "s.toml:3: links.queue: no packet of 1500 B fits",
        ),
        (
            format!("[links]\nqueue = \"0 BDP\"\n{links}{flow}"),
            "s.toml:3: links.queue: no packet of 1500 B fits",
        ),
        (format!("[transport]\nack_every = 0\n{links}{flow}"), "s.toml:3: transport.ack_every: out of range"),
        (
            format!("{links}{flow}[transport]\nrule = \"mtcp\"\n"),
            "s.toml:10: transport.rule: there is no window",
        ),
        (
            format!("{links}back = {{ delay = \"2000 s\" }}\n{flow}"),
            "s.toml:6: link.a.back.delay: out of range",
        ),
        (
            format!("{links}{flow}datagrams = {{ rate = \"1 kbit/s\", size = \"0 B\" }}\n"),
            "s.toml:9: flow.f.datagrams.size: out of range",
        ),
        (format!("{links}{arrivals}"), "s.toml:10: arrivals.f.size: an empty file"),
        (
            format!("[links]\nrate = \"1 Mbit/s\"\n{dumbbell}{pair}"),
            "s.toml:7: topology.access_rate: out of range",
        ),
        (
            format!("[links]\nqueue = \"9 packets\"\nrate = \"1 Mbit/s\"\n{tree}{pair}"),
            "s.toml:8: topology.host_queue: no packet of 1500 B fits",
        ),
    ];
    // What looks the same elsewhere and is right is left alone.
    let right = "[transport]\nrule = \"mptcp\"\n";
    let wrong = "[[flow]]\nname = \"f\"\npaths = [\n  [\"a\"],\n]\nrule = \"mtcp\"\n";
    let back = "[link.back]\ndelay = \"2000 s\"\n";
    let others = [
        (format!("{right}{links}{wrong}"), "s.toml:13: flow.f.rule: there is no window rule"),
        (
            format!("[links]\ndelay = \"1 ms\"\n{links}{back}{flow}"),
            "s.toml:9: link.a.back.delay: out of range",
        ),
    ];
    for (text, wanted) in cases.into_iter().chain(others) {
        let told = told(&format!("duration = \"1 s\"\n{text}"));
        assert!(told.starts_with(wanted), "{told}");
    }
}

const LINK: &str = "duration = \"3 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n";

#[test]
fn tables_within_braces_have_their_lines_too() {
    let flows = "flow = [\n  { name = \"a\", paths = [\"x\"] },\n  { name = \"b\", paths = [\"zz\"] },\n]\n";
    let text = LINK.replacen("[[link]]", &format!("{flows}[[link]]"), 1);
    assert!(told(&text).starts_with("s.toml:4: flow.b.paths: there is no link \"zz\""), "{}", told(&text));
}

#[test]
fn a_rate_out_of_range_is_told_with_what_to_do_about_that_one() {
    let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
    let cases = [
        ("[[cbr]]\nname = \"c\"\npath = \"x\"\nrate = \"0 bit/s\"\n", "s.toml:8: cbr.c.rate"),
        ("[[flow]]\nname = \"f\"\npaths = [\"x\"]\nrate = \"0 bit/s\"\n", "s.toml:8: flow.f.rate"),
    ];
    let hint = "out of range\n  hint    from 1 bit/s to 10000 Gbit/s";
    for (text, place) in cases {
        assert_eq!(told(&format!("{LINK}{text}")), format!("{place}: {hint}"));
    }
    let fast = LINK.replacen("1 Mbit/s", "20000 Gbit/s", 1);
    assert_eq!(told(&format!("{fast}{flow}")), format!("s.toml:4: link.x.rate: {hint}"));
    let long = format!("{LINK}queue = \"99999999999 packets\"\n{flow}");
    let wanted = "s.toml:5: link.x.queue: more than any memory holds\n  hint    at most \"1000 GB\"";
    assert_eq!(told(&long), wanted);
}

#[test]
fn a_link_that_no_generator_makes_and_nothing_crosses_is_told() {
    let torus = |name: &str, path: &str| {
        format!(
            "duration = \"1 s\"\n[topology]\nkind = \"torus\"\nlinks = 3\n[links]\nrate = \"1 Mbit/s\"\n\
             [[link]]\nname = \"{name}\"\n[[flow]]\nname = \"f\"\npaths = [[\"A\", \"{path}\"]]\n"
        )
    };
    let tree = "duration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n[links]\nrate = \"1 Mbit/s\"\n\
                [[link]]\nname = \"core.01\"\n[[traffic]]\nname = \"t\"\npattern = \"permutation\"\n";
    let told_of = told(tree);
    let wanted = "s.toml:8: link.name: the topology makes no link \"core.01\", and no path crosses it\n  hint    did you mean \"core.0";
    assert!(told_of.starts_with(wanted), "{told_of}");
    assert!(told(&torus("Z", "B")).starts_with("s.toml:8: link.name: the topology makes no link \"Z\""));
    for (name, path) in [("Z", "Z"), ("C", "B")] {
        assert!(Scenario::parse(&torus(name, path), "s.toml").is_ok(), "{name}");
    }
}

#[test]
fn links_of_a_generated_network_without_a_rate_are_told_where_all_of_them_are_described() {
    let text = |links: &str| {
        format!(
            "duration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n{links}[[traffic]]\nname = \"t\"\n\
             pattern = \"permutation\"\n"
        )
    };
    let wanted = "links.rate: neither a rate nor a delay\n  hint    say in [links] what all of them have, as `rate = \"100 Mbit/s\"`";
    assert_eq!(told(&text("")), format!("s.toml:2: {wanted}"));
    assert_eq!(told(&text("[links]\nqueue = \"9 packets\"\n")), format!("s.toml:5: {wanted}"));
}

#[test]
fn a_metric_whose_unit_was_left_out_is_answered_with_the_whole_name() {
    let text = format!(
        "{LINK}[[flow]]\nname = \"M\"\npaths = [\"x\"]\n[expect]\n\"flow.M.goodput\" = {{ min = 1 }}\n"
    );
    let wanted = "s.toml:9: expect.flow.M.goodput: nothing measured is called \"flow.M.goodput\"\n  hint    did you mean \"flow.M.goodput_mbit_s\"?";
    assert_eq!(told(&text), wanted);
}

#[test]
fn who_may_start_after_the_end_is_told() {
    let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
    let hint = "beyond the end: it may never start\n  hint    start and start_within together are at most `duration`";
    let late = format!("{LINK}{flow}start_within = \"4 s\"\n");
    assert_eq!(told(&late), format!("s.toml:8: flow.f.start_within: {hint}"));
    let together = format!("{LINK}{flow}start = \"2 s\"\nstart_within = \"2 s\"\n");
    assert_eq!(told(&together), format!("s.toml:9: flow.f.start_within: {hint}"));
    assert!(Scenario::parse(&together.replace("= \"2 s\"", "= \"1.5 s\""), "s").is_ok());
    let two = format!(
        "{LINK}[[link]]\nname = \"y\"\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n{flow}paths_within = \"2 s\"\n"
    );
    let two = two.replace("[\"x\"]", "[\"x\", \"y\"]");
    assert!(Scenario::parse(&two, "s").is_ok());
    let beyond = "s.toml:12: flow.f.paths_within: beyond the end: a path may never open\n  hint    all paths may open by `duration`, and by `stop`: a shorter `paths_within`, or an earlier start";
    assert_eq!(told(&format!("{two}start = \"1.5 s\"\n")), beyond);
    assert_eq!(told(&format!("{two}stop = \"1.5 s\"\n")), beyond);
    assert!(told(&format!("{two}flow_routing = true\n")).contains("its sessions see one path each"));
    assert_eq!(
        told(&format!("{LINK}{flow}paths_within = \"2 s\"\n")),
        "s.toml:8: flow.f.paths_within: there is one path, which is there from the start\n  hint    take it out, or give the flow more paths"
    );
    let tree = "duration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n[links]\nrate = \"1 Mbit/s\"\n[[traffic]]\nname = \"t\"\n\
                pattern = \"permutation\"\npaths_within = \"9 ms\"\n";
    assert_eq!(
        told(tree),
        "s.toml:10: traffic.t.paths_within: there is one path, which is there from the start\n  hint    take it out, or give the flow more paths"
    );
    let paths = "traffic.t.paths=1,2".parse().unwrap();
    let swept = Scenario::parse(&format!("{tree}paths = 2\n"), "s").unwrap();
    assert_eq!(variants(&swept, &[paths]).map(|variants| variants.len()), Ok(2));
}

#[test]
fn a_sweep_that_says_something_twice_is_refused() {
    let base = Scenario::parse(&format!("{LINK}[[flow]]\nname = \"f\"\npaths = [\"x\"]\n"), "s").unwrap();
    let twice = "flow.f.rule=lia,reno,lia".parse::<super::Setting>();
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
fn more_packets_than_there_is_memory_for_are_told_where_they_are() {
    let told = |links: usize, rate: &str| {
        let mut text = "duration = \"60 s\"\n[links]\nrate = \"1 kbit/s\"\nqueue = \"1 GB\"\n".to_owned();
        for link in 0..links {
            text += &format!(
                "[[link]]\nname = \"l{link}\"\n[[cbr]]\nname = \"c{link}\"\npath = [\"l{link}\"]\nrate = \"{rate}\"\n"
            );
        }
        Scenario::parse(&text, "s").unwrap().run(1).unwrap_err().to_string()
    };
    let one = told(1, "100000 pkt/s");
    assert!(
        one.starts_with("s:5: link.l0: more than 100000 packets wait") && one.contains("most of them here"),
        "{one}"
    );
    let many = told(20, "5000 pkt/s");
    assert!(
        many.starts_with("s:2: links: more than 100000 packets wait") && many.contains("on one link"),
        "{many}"
    );
}
