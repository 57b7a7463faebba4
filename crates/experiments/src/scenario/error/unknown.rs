//! Keys that are none, or that are keys of another table: what was meant, and where it belongs.

use super::{Head, ScenarioError, nearest};
use crate::scenario::model::keys_of;
use crate::scenario::schema::tables_with;
use crate::scenario::shape::{ONE, SEVERAL, WITHIN};

/// With what to do about a key that the table below this head does not have.
pub(super) fn unknown_key(told: ScenarioError, head: Head<'_>, text: &str) -> ScenarioError {
    let key = told.key.clone();
    match head.table {
        "expect" => {
            let line = told.line.and_then(|line| text.lines().nth(line - 1)).unwrap_or_default();
            told.hint(hint_in_expect(&key, line))
        }
        "links" if ["name", "between", "back"].contains(&key.as_str()) => told.hint(
            "[links] says what all links have that do not say otherwise; each link is headed by [[link]]",
        ),
        "topology" => match topology_keys(text) {
            Some(own) => in_topology(told, own, head),
            None => of_another_table(told, head),
        },
        table if SEVERAL.contains(&table) && heads_one(&told, head) => {
            let message = format!("found {}: expected tables, each headed by [[{table}]]", head.text);
            ScenarioError::new(table, message).at(Some(head.line))
        }
        _ => of_another_table(told, head),
    }
}

/// What to do about a key of a bound, or about a metric without quotes.
fn hint_in_expect(key: &str, line: &str) -> String {
    const BOUNDS: [&str; 4] = ["min", "max", "above", "below"];
    if let Some(near) = nearest(key, &BOUNDS) {
        return format!("did you mean `{near}`?");
    }
    let metric = line.split('=').next().unwrap_or_default().trim();
    if metric.starts_with(['"', '\'']) || !metric.contains('.') {
        return format!("possible: {}", BOUNDS.join(", "));
    }
    "the name of a metric has dots, so it is quoted: \"flow.M.goodput_mbit_s\" = { min = 5 }".to_owned()
}

/// With the keys that a topology of its kind has.
fn in_topology(told: ScenarioError, own: &[&str], head: Head<'_>) -> ScenarioError {
    let possible = [&["kind"], own].concat();
    let all = possible.join(", ");
    match nearest(&told.key.clone(), &possible) {
        Some(near) => told.hint(format!("did you mean `{near}`? Possible: {all}")),
        None => of_another_table(told.hint(format!("possible: {all}")), head),
    }
}

/// The keys that the topology of a file has, by its kind.
fn topology_keys(text: &str) -> Option<&'static [&'static str]> {
    let file: toml::Table = text.parse().ok()?;
    keys_of(file.get("topology")?.get("kind")?.as_str()?)
}

/// Whether the mistake is a head such as `[flow.M]`, below one in double brackets, which is meant for one of several tables.
fn heads_one(told: &ScenarioError, head: Head<'_>) -> bool {
    let inner = head.text.strip_prefix('[').and_then(|rest| rest.trim_start().strip_prefix(head.table));
    inner.is_some_and(|rest| rest.trim_start().starts_with('.'))
        && told.line == Some(head.line)
        && nearest(&told.key, &WITHIN).is_none()
}

/// With the tables that have the key, if others do.
fn of_another_table(mut told: ScenarioError, head: Head<'_>) -> ScenarioError {
    // A table that is misplaced in a table is not meant for the file.
    let is_table = ONE.contains(&told.key.as_str()) || SEVERAL.contains(&told.key.as_str());
    let within = told.hint.split_once("possible here: ").map(|(_, possible)| format!("possible: {possible}"));
    if let Some(possible) = within.filter(|_| is_table) {
        told.hint = possible;
    }
    // One letter too many is likelier than a key of a table in place of the table.
    let is_misspelt = head.line == told.line.unwrap_or_default()
        && nearest(&told.key, &SEVERAL).is_some_and(|near| near.len().abs_diff(told.key.len()) < 2);
    if !told.hint.contains(" belongs above ") && !is_misspelt {
        let mut tables = tables_with(&told.key);
        tables.retain(|table| table.trim_matches(['[', ']']) != head.table);
        if let (false, Some((_, possible))) = (tables.is_empty(), told.hint.split_once("ossible: ")) {
            let tables = tables.join(", ");
            told.hint = format!("`{}` is a key of {tables}; possible here: {possible}", told.key);
        }
    }
    // Many tables have a name: one too many is not meant for them.
    if let Some((_, possible)) = told.hint.split_once("possible here: ").filter(|_| told.key == "name") {
        told.hint = format!("possible: {possible}");
    }
    told
}
