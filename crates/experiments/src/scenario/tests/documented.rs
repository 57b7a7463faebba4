//! Checks that `docs/reference/scenarios.md` names every key and value of a scenario.

use anabranch_engine::SchedulerKind;
use anabranch_engine::cc::RuleKind;
use serde_json::Value;

use crate::scenario::schema;

const PAGE: &str = include_str!("../../../../../docs/reference/scenarios.md");

/// Whether the page has a word in backticks or in an example.
fn is_named(word: &str) -> bool {
    let parts = |code: &str| {
        code.split(|c: char| !(c.is_alphanumeric() || "_-".contains(c))).any(|part| part == word)
    };
    PAGE.split("```").enumerate().any(|(index, text)| match index % 2 {
        0 => text.split('`').skip(1).step_by(2).any(parts),
        _ => text.lines().any(parts),
    })
}

/// The keys of a table, with their schemas, through references and alternatives.
fn keys(schema: &Value, root: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    if let Some(name) = schema["$ref"].as_str() {
        let of = root.pointer(name.trim_start_matches('#')).expect("references lead somewhere");
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

/// The only values that a schema allows for a key.
fn choices(schema: &Value, found: &mut Vec<String>) {
    let listed = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    found.extend(listed.filter_map(|choice| choice.as_str().map(str::to_owned)));
    match schema {
        Value::Object(parts) => parts.values().for_each(|part| choices(part, found)),
        Value::Array(parts) => parts.iter().for_each(|part| choices(part, found)),
        _ => {}
    }
}

#[test]
fn every_rule_scheduler_key_and_choice_is_named_on_the_page() {
    let root = schema();
    let mut words: Vec<String> = RuleKind::ALL.map(|rule| rule.name().to_owned()).to_vec();
    words.extend(SchedulerKind::ALL.map(|(_, name)| name.to_owned()));
    for (table, schema) in keys(&root, &root) {
        words.push(table);
        for (key, inner) in keys(&schema, &root) {
            words.push(key);
            words.extend(keys(&inner, &root).into_iter().map(|(part, _)| part));
        }
    }
    choices(&root, &mut words);
    words.sort_unstable();
    words.dedup();
    let missing: Vec<&String> = words.iter().filter(|word| !is_named(word)).collect();
    assert!(words.len() > 120 && missing.is_empty(), "{} words, not on the page: {missing:?}", words.len());
}
