//! JSON Schema of scenario files, derived from the types that read them.
//!
//! Editors complete and check scenarios with it: keys, required keys, and the form of quantities. Rules about several keys
//! are checked by [`Scenario::parse`] alone.
//!
//! [`Scenario::parse`]: super::Scenario::parse

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::model::File;

/// The schema (draft 2020-12) of a scenario file.
pub fn schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<File>();
    schema.insert("title".to_owned(), "Anabranch scenario".into());
    schema.to_value()
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
