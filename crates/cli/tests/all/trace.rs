//! `anabranch trace` on routers made of namespaces: real traces, without privileges, from every side.
//!
//! ```text
//!  a ─ 1,2 ─ r1 ─ 5,6 ── r2 ─ 9,10 ─ b        the numbers end 10.9.0.x; /30 and /31
//!  │          └ 12,13 ─ r3 ─ 20,21 ┘(r2)  │
//!  │                    └ 17,18 ─ x        │      x: a relay behind the same first and last router
//!  └──── 25,26 ──── y ──── 29,30 ──────────┘      y: a relay with links of its own
//! ```
//! Linux routers do not answer as Ally and Mercator expect, so these tests identify routers by the links' subnets.

#![cfg(target_os = "linux")]

use crate::common;

use std::collections::BTreeSet;

use common::netns::{Namespace, run};
use common::programs::{PROGRAM, Scratch, errors};
use serde_json::Value;

const NAMES: [&str; 7] = ["a", "b", "x", "y", "r1", "r2", "r3"];
/// Each link: two machines, the last number of each one's address, and the prefix length.
const LINKS: [(&str, u8, &str, u8, u8); 8] = [
    ("a", 1, "r1", 2, 30),
    ("r1", 5, "r2", 6, 30),
    ("r2", 9, "b", 10, 30),
    ("r1", 12, "r3", 13, 31),
    ("r3", 17, "x", 18, 30),
    ("r3", 20, "r2", 21, 31),
    ("a", 25, "y", 26, 30),
    ("y", 29, "b", 30, 30),
];
/// Each route: machine, destination, neighbour.
const ROUTES: [(&str, &str, u8); 11] = [
    ("a", "default", 2),
    ("b", "default", 9),
    ("x", "default", 17),
    ("y", "10.9.0.8/30", 30),
    ("r1", "10.9.0.8/30", 6),
    ("r1", "10.9.0.16/30", 13),
    ("r2", "10.9.0.0/30", 5),
    ("r2", "10.9.0.16/30", 20),
    ("r3", "10.9.0.0/30", 12),
    ("r3", "10.9.0.8/30", 21),
    ("y", "10.9.0.0/30", 25),
];

struct Routers {
    machines: Vec<Namespace>,
    scratch: Scratch,
}

impl Routers {
    fn new() -> Result<Self, String> {
        let machines = NAMES.iter().map(|_| Namespace::new()).collect::<Result<Vec<_>, _>>()?;
        let routers = Self { machines, scratch: Scratch::new() };
        routers.scratch.open_to_all();
        for machine in &routers.machines {
            for setting in ["ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0"] {
                run("ip", &format!("netns exec {} sysctl -qw net.ipv4.{setting}", machine.name()))?;
            }
        }
        for (index, (one, own, other, theirs, prefix)) in LINKS.iter().enumerate() {
            let (one, other) = (routers.at(one).name(), routers.at(other).name());
            run("ip", &format!("-n {one} link add l{index} type veth peer name l{index} netns {other}"))?;
            for (namespace, last) in [(one, own), (other, theirs)] {
                run("ip", &format!("-n {namespace} address add 10.9.0.{last}/{prefix} dev l{index}"))?;
                run("ip", &format!("-n {namespace} link set l{index} up"))?;
            }
        }
        for (at, to, via) in ROUTES {
            run("ip", &format!("-n {} route add {to} via 10.9.0.{via}", routers.at(at).name()))?;
        }
        Ok(routers)
    }

    fn at(&self, name: &str) -> &Namespace {
        &self.machines[NAMES.iter().position(|known| *known == name).expect("a machine")]
    }

    /// Runs `anabranch trace` on a machine, without privileges, and returns its JSON.
    fn paths(&self, at: &str, words: &[String]) -> Value {
        let mut command = self.at(at).command("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--no-new-privs",
            PROGRAM,
            "trace",
        ]);
        let output = command.args(words).arg("--json").output().unwrap();
        assert!(output.status.success(), "{at}: {}", errors(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn file(&self, name: &str) -> String {
        self.scratch.text(name)
    }
}

fn address(last: u8) -> String {
    format!("10.9.0.{last}")
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn set(value: &Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The ends of the links that one route shares with another.
fn shared(way: &Value, with: &str) -> BTreeSet<String> {
    let all = way["shares"].as_array().unwrap();
    all.iter().filter(|shared| shared["with"] == with).flat_map(|shared| set(&shared["links"])).collect()
}

#[test]
fn ways_that_share_routers_are_found_by_traces_from_all_ends_without_privileges() {
    let routers = match Routers::new() {
        Ok(routers) => routers,
        Err(why) => return common::skip("ways_that_share_routers", &why),
    };
    let (a, b, x, y) = (address(1), address(10), address(18), address(26));

    // One side alone cannot group the addresses of a router, and the output reports that.
    let alone = routers.paths("a", &words(&[&b, "--relay", &x, "--relay", &y]));
    let unresolved = set(&alone["unresolved"]);
    assert!(unresolved.is_superset(&BTreeSet::from([address(6), address(13)])), "{unresolved:?}");
    assert_eq!(alone["ways"][1]["unknown"][0], serde_json::json!([x, b]), "who traced from the relay?");

    let [from_x, from_y, from_b] = ["x.json", "y.json", "b.json"].map(|name| routers.file(name));
    routers.paths("x", &words(&[&b, "--relay", &a, "--save", &from_x]));
    routers.paths("y", &words(&[&b, "--save", &from_y]));
    routers.paths("b", &words(&[&a, "--relay", &x, "--save", &from_b]));
    let traces = [format!("{x}={from_x}"), format!("{y}={from_y}"), format!("{b}={from_b}")];
    let mut line = words(&[&b, "--relay", &x, "--relay", &y]);
    line.extend(traces.into_iter().flat_map(|file| ["--traces".to_owned(), file]));
    let drawing = routers.file("ways.svg");
    line.extend(["--graph".to_owned(), drawing.clone()]);
    let known = routers.paths("a", &line);

    let found: BTreeSet<BTreeSet<String>> = known["routers"].as_array().unwrap().iter().map(set).collect();
    let truth = [[2, 5, 12], [6, 9, 21], [13, 17, 20]].map(|router| router.map(address).into());
    assert_eq!(found, BTreeSet::from(truth), "{known:#}");
    assert_eq!(known["conflicts"], serde_json::json!([]));

    let [direct, past_x, past_y] = [0, 1, 2].map(|at| &known["ways"][at]);
    let hops = |way: &Value| set(&way["hops"]);
    assert_eq!(hops(direct), [2, 6, 10].map(address).into());
    assert_eq!(hops(past_x), [2, 13, 18, 17, 21, 10].map(address).into());
    assert_eq!(hops(past_y), [26, 10].map(address).into());
    // The router after `a` and the one before `b` are the same, although the second shows another address. The route that
    // was judged later reports both.
    let common: BTreeSet<String> = [format!("{a} → {}", address(2)), format!("{} → {b}", address(21))]
        .into_iter()
        .map(|link| link.replace(&address(21), &address(6)))
        .collect();
    let both: BTreeSet<String> = &shared(direct, &x) | &shared(past_x, "direct");
    assert_eq!(both, common, "{known:#}");
    assert_eq!(past_y["shares"], serde_json::json!([]));
    assert_eq!(past_y["verdict"]["kind"], "used");

    // The direct route and the one past `y` have nothing in common; any third route would share the first link.
    let joint = &known["sets"]["least_joint"];
    let ways: Vec<BTreeSet<String>> = joint["ways"].as_array().unwrap().iter().map(set).collect();
    assert!(ways.iter().any(|way| way.contains(&y)), "{joint:#}");
    assert!(known["sets"]["max_flow"].is_null(), "nobody knows what anything carries");
    let svg = std::fs::read_to_string(drawing).unwrap();
    let drawn = [format!("here {a}"), b, address(2)].iter().all(|name| svg.contains(name.as_str()));
    assert!(svg.trim_start().starts_with("<?xml") && svg.contains("</svg>") && drawn, "{svg}");
}
