//! What is wrong with a scenario: the line, the key, what was found there, and what is expected instead.
//!
//! Quantities say themselves how they are written ([`units`](super::units)); for all other keys the table below does.

mod unknown;

use anabranch_settings::syntax_error;
pub(crate) use anabranch_settings::{line_of, nearest};
use unknown::unknown_key;

use super::shape::{SEVERAL, WITHIN};

use serde::de::DeserializeOwned;

pub use anabranch_settings::SettingsError as ScenarioError;

const BOOLEAN: &str = "`true` or `false`";

/// What the scenario itself has.
const ABOVE: [&str; 6] = ["name", "about", "seed", "duration", "warm_up", "sample"];

/// What is expected of a key, by its table (any, where none is named). Only keys whose values are no quantities.
const EXPECTED: &[(&str, &str, &str)] = &[
    ("", "name", "text such as `name = \"wifi\"`"),
    ("", "about", "text such as `about = \"two links of different rates\"`"),
    ("", "seed", "a whole number such as `seed = 7`"),
    ("", "profile", "one of `profile = \"tcp\"` and `profile = \"default\"`"),
    ("", "rule", "the name of a window rule such as `rule = \"mptcp\"`"),
    ("", "scheduler", "the name of a scheduler such as `scheduler = \"min-rtt\"`"),
    ("", "ack_every", "a whole number of packets such as `ack_every = 2`"),
    ("", "initial_window", "a whole number of packets such as `initial_window = 10`"),
    ("", "initial_ssthresh", "a whole number of packets such as `initial_ssthresh = 30`"),
    (
        "",
        "acks",
        "one of \"same-path\", \"primary\", \"fastest\" and \"outside\", such as `acks = \"primary\"`",
    ),
    ("", "coupling", "one of `coupling = \"adaptive\"` and `coupling = \"fixed\"`"),
    (
        "transport",
        "detector",
        "one of \"losses\", \"delays\", \"waves\" and \"both\", such as `detector = \"delays\"`",
    ),
    ("", "reports", "a table such as `reports = { alpha = 0.5, b = 0.1 }`"),
    ("", "alpha", "a number such as `alpha = 0.5`"),
    ("", "b", "a number such as `b = 0.1`"),
    ("", "leave_out", "a table such as `leave_out = { slower_than = 10.0 }`"),
    ("", "slower_than", "a number such as `slower_than = 10.0`"),
    ("", "sharing_beyond", "a whole number of paths such as `sharing_beyond = 1`"),
    ("", "random_drop", BOOLEAN),
    ("", "aqm", "one of `aqm = \"none\"` and `aqm = \"codel\"`"),
    ("", "ecn", BOOLEAN),
    ("", "between", "the two nodes at its ends such as `between = [\"a\", \"b\"]`"),
    ("", "back", "a table such as `back = { rate = \"1 Mbit/s\" }`"),
    ("topology", "kind", "one of \"torus\", \"dumbbell\", \"parking-lot\", \"fat-tree\" and \"bcube\""),
    ("topology", "links", "a whole number such as `links = 5`"),
    ("topology", "hosts", "a whole number such as `hosts = 4`"),
    ("topology", "hops", "a whole number such as `hops = 3`"),
    ("topology", "k", "a whole number such as `k = 4`"),
    ("topology", "n", "a whole number such as `n = 5`"),
    ("", "count", "a whole number of flows such as `count = 10`"),
    ("traffic", "paths", "a whole number of paths such as `paths = 8`"),
    ("", "paths", "a list of links, or of lists of links in a row, such as `paths = [\"wifi\", \"lte\"]`"),
    ("", "path", "a link, or a list of links in a row, such as `path = \"wifi\"`"),
    ("", "from", "the name of a node such as `from = \"s0\"`"),
    ("", "to", "the name of a node such as `to = \"r0\"`"),
    (
        "",
        "script",
        "a list of times and sizes such as `script = [[\"0 s\", \"1 MB\"], [\"2 s\", \"10 kB\"]]`",
    ),
    ("", "redundant", BOOLEAN),
    ("", "agent", "a table such as `agent = { relays = 6, at_once = 4 }`"),
    ("", "relays", "a whole number of paths such as `relays = 6`"),
    ("", "at_once", "a whole number of paths such as `at_once = 4`"),
    (
        "",
        "interfaces",
        "a list of changes such as `interfaces = [[\"10 s\", 1, false], [\"20 s\", 1, true]]`",
    ),
    ("", "flow_routing", BOOLEAN),
    ("", "datagrams", "a table such as `datagrams = { rate = \"1 Mbit/s\", size = \"1000 B\" }`"),
    ("", "mode", "one of \"once\", \"redundant\" and \"protected\", such as `mode = \"protected\"`"),
    ("", "block", "a whole number of datagrams such as `block = 16`"),
    ("", "outlive_path", BOOLEAN),
    ("", "striping", "a table such as `striping = { scheme = \"weighted\" }`"),
    ("", "scheme", "one of `scheme = \"round-robin\"` and `scheme = \"weighted\"`"),
    ("", "buffer", "one of \"none\", \"adaptive\" and \"fixed\", such as `buffer = \"adaptive\"`"),
    ("", "packets", "a whole number of packets such as `packets = 100`"),
    ("", "pattern", "one of \"permutation\", \"random\" and \"neighbours\", such as `pattern = \"random\"`"),
    ("", "flows", "a whole number of flows a host such as `flows = 12`"),
    ("", "routing", "one of `routing = \"random\"` and `routing = \"in-order\"`"),
    ("arrivals", "rate", "a list of frequencies such as `rate = [\"10 /s\"]`"),
    ("", "sizes", "one of \"fixed\", \"exponential\" and \"pareto\", such as `sizes = \"pareto\"`"),
    ("", "shape", "a number such as `shape = 1.5`"),
    ("", "bursts", "one of \"fixed\", \"exponential\" and \"uniform\", such as `bursts = \"uniform\"`"),
    ("event", "link", "the name of a link such as `link = \"wifi\"`"),
    ("", "way", "one of `way = \"there\"` and `way = \"back\"`"),
    ("", "down", "`true` to cut the link or `false` to mend it"),
    ("detector", "flow", "the name of a flow such as `flow = \"M\"`"),
    ("", "threshold", "a number such as `threshold = 0.5`"),
    ("", "zeta", "a number such as `zeta = 0.05`"),
    ("", "lag", "one of `lag = \"counted\"` and `lag = \"as-printed\"`"),
    ("", "forgets", BOOLEAN),
    ("", "min", "a number such as `min = 5`"),
    ("", "max", "a number such as `max = 5`"),
    ("", "above", "the name of another metric such as `above = \"link.A.loss\"`; a number goes with `min`"),
    ("", "below", "the name of another metric such as `below = \"link.A.loss\"`; a number goes with `max`"),
    ("", "transport", "one table, headed by [transport]"),
    ("", "links", "one table, headed by [links]"),
    ("", "topology", "one table, headed by [topology]"),
    ("", "expect", "one table, headed by [expect]"),
    ("", "link", "tables, each headed by [[link]]"),
    ("", "flow", "tables, each headed by [[flow]]"),
    ("", "traffic", "tables, each headed by [[traffic]]"),
    ("", "arrivals", "tables, each headed by [[arrivals]]"),
    ("", "cbr", "tables, each headed by [[cbr]]"),
    ("", "event", "tables, each headed by [[event]]"),
    ("", "detector", "tables, each headed by [[detector]]"),
];

/// From what the parser says of a scenario's text, which was to be an `F`.
pub(crate) fn from_toml<F: DeserializeOwned>(error: &toml::de::Error, text: &str) -> ScenarioError {
    if let Some(error) = syntax_error(text) {
        return with_heads(error, text);
    }
    let span = error.span().unwrap_or_default();
    let start = span.start.min(text.len());
    let head = head_at(text, start);
    let mut told = ScenarioError::from_toml::<F>(error, text);
    let alone =
        EXPECTED.iter().find(|(_, key, expected)| *key == head.table && expected.starts_with("one table"));
    if let Some((.., expected)) = alone.filter(|_| head.text.starts_with("[[")) {
        let message = format!("found {}: expected {expected}", head.text);
        let error = ScenarioError::new(head.table, message).at(Some(head.line));
        let is_of_links = head.table == "links";
        return if is_of_links { error.hint("a single link is headed by [[link]]") } else { error };
    }
    if told.message.starts_with("unknown key") {
        told = unknown_key(told, head, text);
    }
    // What depends on the kind of a topology is known once all of it has been read.
    if head.table == "topology" && told.line == line_of(text, head.table, 0, "") {
        told.line = line_of(text, head.table, 0, &told.key).or(told.line);
    }
    wrong_type(told, head, text.get(start..span.end).unwrap_or_default().trim())
}

/// A mistake in the form of a text, where tables are headed as a scenario's are.
fn with_heads(mut error: ScenarioError, text: &str) -> ScenarioError {
    let line = error.line.and_then(|line| text.lines().nth(line - 1)).unwrap_or_default();
    let is_head = line.trim_start().starts_with('[');
    let is_one_of_several = SEVERAL.contains(&error.key.as_str());
    let is_twice = is_one_of_several && error.message.starts_with("there twice");
    if let Some(error) = Some(&error.key).filter(|_| is_twice).and_then(|key| of_none(key, text)) {
        return error;
    }
    if is_head && is_twice {
        error.hint = format!("several of them are headed by [[{0}]] each: take out any other {0}", error.key);
    }
    if is_one_of_several && error.hint == format!("write [{}]", error.key) {
        error.hint = format!("write [[{}]]", error.key);
    }
    error
}

/// The error for a table within one of several, such as `[link.back]`, that stands before any of these.
fn of_none(key: &str, text: &str) -> Option<ScenarioError> {
    let heads = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with('['));
    let mut heads = heads.filter_map(|(number, line)| {
        let name: Vec<&str> =
            line.trim().trim_start_matches('[').split(']').next()?.split('.').map(str::trim).collect();
        (name[0] == key).then_some((number, name))
    });
    let (number, name) =
        heads.next().filter(|(_, name)| name.get(1).is_some_and(|inner| WITHIN.contains(inner)))?;
    let message = format!("[{}] stands before any [[{key}]]", name.join("."));
    let hint = format!("it is part of the [[{key}]] above it: is that headed so?");
    Some(ScenarioError::new(key, message).hint(hint).at(Some(number + 1)))
}

/// What to write in place of a value of another type than the key's, if that is the mistake; `written` is the value as it stands.
fn wrong_type(mut told: ScenarioError, head: Head<'_>, written: &str) -> ScenarioError {
    if told.message.contains("overflow") {
        return told.hint("write a smaller number");
    }
    let message = told.message.clone();
    let wrong_type = match message.strip_prefix("invalid ") {
        Some(rest) => rest.split_once(", expected "),
        None => message.strip_prefix("wanted ").map(|expected| ("another type", expected)),
    };
    let Some((what, expected)) = wrong_type else { return told };
    // Of a head such as `[link.wifi]` the parser means what stands before the dot.
    let in_head = told.line == Some(head.line);
    if told.key.is_empty() || in_head {
        told.key = head.table.to_owned();
    }
    let is_above = head.table == "expect" && ABOVE.contains(&told.key.as_str());
    let of_table = |of: &str| of == head.table || of.is_empty() && !is_above;
    let known = EXPECTED.iter().filter(|(of, key, _)| *key == told.key && of_table(of));
    let expected = match known.max_by_key(|(of, ..)| of.len()) {
        Some((.., expected)) => expected,
        None if head.table == "expect" => "a bound such as `{ min = 0.9 }`",
        None => expected,
    };
    // Of a whole table its head.
    let first = written.lines().next().unwrap_or_default();
    let whole = first.len() == written.len() || (first.starts_with('[') && first.ends_with(']'));
    let found = if in_head {
        head.text.to_owned()
    } else if whole && (1..=40).contains(&first.len()) {
        first.to_owned()
    } else {
        kind_of(what)
    };
    let found = match what.strip_prefix("value: integer `") {
        Some(number) if number.starts_with('-') => format!("{found}, which is below nothing"),
        Some(_) => format!("{found}, which is too large"),
        // More than any integer of the parser's.
        None if written.len() > 18
            && written.trim_start_matches('+').bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') =>
        {
            format!("{found}, which is too large")
        }
        None => found,
    };
    told.message = format!("found {found}: expected {expected}");
    if is_above {
        told.hint = format!("the scenario's own `{}` stands above the first table", told.key);
    }
    told
}

/// What the parser calls a value, in words of TOML.
fn kind_of(what: &str) -> String {
    let kind = what.split_once(": ").map_or(what, |(_, kind)| kind);
    match kind {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        _ => kind.replace('`', ""),
    }
}

/// The head of a table.
#[derive(Clone, Copy, Default)]
struct Head<'a> {
    line: usize,
    text: &'a str,
    /// Its name, up to the first dot.
    table: &'a str,
}

/// Names to choose from: the first of them, where there are many.
pub(crate) fn some_of(names: &[&str]) -> String {
    const SOME: usize = 12;
    let more = if names.len() > SOME { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(SOME)].join(", "))
}

/// The head of the table that a place in the text belongs to: the last before it.
fn head_at(text: &str, start: usize) -> Head<'_> {
    let line_end = text[start..].find('\n').map_or(text.len(), |end| start + end);
    let lines: Vec<&str> = text[..line_end].lines().map(str::trim).collect();
    let heads = lines.iter().enumerate().rev().filter(|(_, line)| line.starts_with('['));
    let heads = heads.map(|(at, line)| {
        let name = line.trim_matches(['[', ']']).split([']', '.', '#']).next().unwrap_or_default();
        Head { line: at + 1, text: line, table: name.trim() }
    });
    // A line of a list that goes over several may begin like a head.
    let is_name = |head: &Head<'_>| head.table.chars().all(|c| c.is_alphanumeric() || c == '_');
    heads.into_iter().find(is_name).unwrap_or_default()
}
