//! JSON Schema of scenario files, made from the types that read them, so that it cannot go stale.
//!
//! Editors that know TOML complete and check a scenario by it. It says which keys there are, which of them are
//! needed and how quantities are written; what depends on several keys at once, only [`Scenario::parse`] checks.
//!
//! [`Scenario::parse`]: super::Scenario::parse

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::model::File;
use super::shape::{ONE, SEVERAL};

/// The schema (draft 2020-12) of a scenario file.
#[must_use]
pub fn schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<File>();
    schema.insert("title".to_owned(), "Anabranch scenario".into());
    schema.to_value()
}

/// The tables of a file that have a key, as they are headed.
pub(super) fn tables_with(key: &str) -> Vec<String> {
    let schema = schema();
    let heads = ONE.map(|name| (name, format!("[{name}]"))).into_iter();
    let heads = heads.chain(SEVERAL.map(|name| (name, format!("[[{name}]]"))));
    let has = |name: &str| has_key(&schema, &schema["properties"][name], key);
    heads.filter(|(name, _)| has(name)).map(|(_, head)| head).collect()
}

/// Whether the tables that a part of the schema describes have a key themselves, not in tables within them.
fn has_key(schema: &Value, part: &Value, key: &str) -> bool {
    let meant = part["$ref"].as_str().and_then(|place| schema.pointer(place.trim_start_matches('#')));
    let variants = ["anyOf", "oneOf", "allOf"].iter().filter_map(|of| part[of].as_array()).flatten();
    let mut parts = meant.into_iter().chain(part.get("items")).chain(variants);
    part["properties"].get(key).is_some() || parts.any(|part| has_key(schema, part, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::BUILTIN;

    fn told(text: &str) -> Vec<String> {
        let scenario: toml::Table = text.parse().expect("TOML");
        let scenario = serde_json::to_value(scenario).expect("JSON can say what TOML says");
        let validator = jsonschema::validator_for(&schema()).expect("a schema");
        validator.iter_errors(&scenario).map(|error| error.to_string()).collect()
    }

    #[test]
    fn keys_are_found_in_the_tables_that_have_them() {
        assert_eq!(tables_with("rule"), ["[transport]", "[[arrivals]]", "[[flow]]", "[[traffic]]"]);
        assert_eq!(tables_with("delay"), ["[links]", "[[event]]", "[[link]]"]);
        assert_eq!(tables_with("hops"), ["[topology]"]);
        assert_eq!(tables_with("nothing"), Vec::<String>::new());
    }

    #[test]
    fn every_scenario_that_comes_along_is_valid() {
        for (name, text) in BUILTIN {
            assert_eq!(told(text), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_valid_either() {
        let good = "duration = \"1 s\"\n[[link]]\nname = \"a\"\nrate = \"1 Mbit/s\"\n[[flow]]\nname = \"f\"\n\
                    paths = [\"a\"]\nrule = \"lia\"\n";
        assert!(told(good).is_empty());
        let mistakes = [
            ("\"1 s\"", "1"),
            ("\"1 s\"", "\"1 sec\""),
            ("\"1 s\"", "\"-1 s\""),
            ("rate", "rates"),
            ("\"1 Mbit/s\"", "\"fast\""),
            ("\"lia\"", "\"lya\""),
            ("duration = \"1 s\"", ""),
            ("[[flow]]", "[topology]\nkind = \"ring\"\n[[flow]]"),
            ("[[flow]]", "[topology]\nkind = \"torus\"\nlinks = 5\nk = 3\n[[flow]]"),
        ];
        for (right, wrong) in mistakes {
            assert!(!told(&good.replacen(right, wrong, 1)).is_empty(), "{wrong}");
        }
    }
}
