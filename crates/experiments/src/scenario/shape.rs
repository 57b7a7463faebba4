//! Lists in place of tables, and lists that are too long.
//!
//! A list whose values are of the right types can be read as a table, by position, and what is too much at the end of a pair is
//! passed over. Neither is what somebody meant.

use toml::{Table, Value};

use super::error::{ScenarioError, line_of};

/// Keys whose values are tables.
pub(super) const WITHIN: [&str; 5] = ["back", "datagrams", "leave_out", "reports", "striping"];
/// Tables of which a file has one.
pub(super) const ONE: [&str; 4] = ["expect", "links", "topology", "transport"];
/// Tables of which a file has several.
pub(super) const SEVERAL: [&str; 7] = ["arrivals", "cbr", "detector", "event", "flow", "link", "traffic"];

/// Checks a file before it is read: what is no TOML is told then.
pub(super) fn check(text: &str) -> Result<(), ScenarioError> {
    let Ok(file) = text.parse::<Table>() else { return Ok(()) };
    for (name, value) in &file {
        match value {
            Value::Array(items) if SEVERAL.contains(&name.as_str()) => {
                for (index, item) in items.iter().enumerate() {
                    check_table(text, (name, index), item)?;
                }
            }
            Value::Table(bounds) if name == "expect" => {
                let list = bounds.iter().find(|(_, bound)| bound.is_array());
                list.map_or(Ok(()), |(metric, _)| Err(no_table(text, ("expect", 0), metric)))?;
            }
            Value::Table(_) => check_table(text, (name, 0), value)?,
            // Heads in double brackets are told as such when the file is read.
            Value::Array(items) if ONE.contains(&name.as_str()) && !items.iter().all(Value::is_table) => {
                return Err(no_table(text, ("", 0), name));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_table(text: &str, at: (&str, usize), table: &Value) -> Result<(), ScenarioError> {
    let Value::Table(table) = table else { return Err(no_table(text, ("", 0), at.0)) };
    for (key, value) in table {
        let Value::Array(items) = value else { continue };
        if WITHIN.contains(&key.as_str()) {
            return Err(no_table(text, at, key));
        }
        let pairs: &[Value] = match key.as_str() {
            "between" => std::slice::from_ref(value),
            "script" => items,
            _ => continue,
        };
        let odd = pairs.iter().position(|pair| pair.as_array().is_some_and(|pair| pair.len() > 2));
        if let Some(place) = odd {
            let (message, hint) = if key == "between" {
                (format!("{} nodes", items.len()), "a link has two ends, such as `between = [\"a\", \"b\"]`")
            } else {
                (
                    format!("entry {} has more than two parts", place + 1),
                    "a time and a size each, such as `[\"2 s\", \"10 kB\"]`",
                )
            };
            let error = ScenarioError::new(format!("{}.{key}", at.0), message).hint(hint);
            return Err(error.at(line_of(text, at.0, at.1, key)));
        }
    }
    Ok(())
}

fn no_table(text: &str, (table, index): (&str, usize), key: &str) -> ScenarioError {
    let name = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
    ScenarioError::new(name, "found a list: expected a table")
        .hint("write `key = value` in braces or below a head: what a value means is told by its key, not by its place")
        .at(line_of(text, table, index, key))
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    #[test]
    fn lists_are_no_tables_and_pairs_have_two_items() {
        let link = "duration = \"9 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n";
        let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
        let cases = [
            (format!("{link}between = [\"a\", \"b\", \"c\"]\n{flow}"), "s:5: link.between: 3 nodes"),
            (
                format!("{link}{flow}script = [[\"0 s\", \"1 B\"], [\"0 s\", \"1 B\", \"x\"]]"),
                "s:8: flow.script: entry 2 has more than two parts",
            ),
            (format!("{link}back = [\"a\"]\n{flow}"), "s:5: link.back: found a list: expected a table"),
            (
                format!("{link}{flow}[transport]\nreports = [0.5, 0.1]"),
                "s:9: transport.reports: found a list",
            ),
            (
                format!("{link}{flow}[transport]\nleave_out = [10.0, 1]"),
                "s:9: transport.leave_out: found a list",
            ),
            (
                format!("{link}{flow}[expect]\njain = [0.5]"),
                "s:9: expect.jain: found a list: expected a table",
            ),
            (
                format!(
                    "event = [[\"1 s\", \"x\", \"there\", true, \"1 Mbit/s\", \"1 ms\", \"1 %\"]]\n{link}{flow}"
                ),
                "s:1: event: found a list",
            ),
            (
                format!("{link}{flow}[expect]\njain = [0.5, 1, \"a\", \"b\"]"),
                "s:9: expect.jain: found a list",
            ),
        ];
        for (text, wanted) in cases {
            let told = Scenario::parse(&text, "s").expect_err(&text).to_string();
            assert!(told.starts_with(wanted), "{told}\n{wanted}");
        }
        let near = format!("{link}{flow}[expect]\n\"flow.f.goodput_mbit_s\" = {{ mim = 1 }}");
        let told = Scenario::parse(&near, "s").expect_err(&near).to_string();
        assert!(told.contains("did you mean `min`?"), "{told}");
    }
}
