//! Errors of scenario files, made from those of the TOML parser.

use serde::de::DeserializeOwned;

pub use anabranch_settings::SettingsError as ScenarioError;
pub(crate) use anabranch_settings::{line_of, nearest};

/// From the parser's error for `text`, which was read as an `F`.
pub(crate) fn from_toml<F: DeserializeOwned>(error: &toml::de::Error, text: &str) -> ScenarioError {
    let found = ScenarioError::from_toml::<F>(error, text);
    if found.message == "invalid type: map, expected a sequence" {
        return found
            .hint("a file may have several of these tables: write [[flow]], not [flow] or [flow.NAME]");
    }
    if found.hint.ends_with("min, max, above, below") && found.hint.starts_with("possible") {
        let quoted = "\"flow.M.goodput_mbit_s\" = { min = 5 }";
        return found
            .hint(format!("a bound has min, max, above and below; quote the name of its metric: {quoted}"));
    }
    found
}

/// The error of a value that is out of range, unless it is not.
pub(crate) fn in_range(
    is_in_range: bool,
    key: impl Into<String>,
    bounds: impl Into<String>,
) -> Result<(), ScenarioError> {
    if is_in_range { Ok(()) } else { Err(ScenarioError::new(key, "out of range").hint(bounds)) }
}

/// The first names of a list, for hints.
pub(crate) fn some_of(names: &[&str]) -> String {
    const SOME: usize = 12;
    let more = if names.len() > SOME { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(SOME)].join(", "))
}
