//! The lanes that a user can choose, by name.

use anabranch_settings::nearest;
use anabranch_tunnel::entry::Lane;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as Unknown;

/// Each lane's name and description.
const LANES: [(&str, &str); 6] = [
    ("auto", "Each flow on one path, striped over all while that is faster"),
    ("routed", "Each flow on one path"),
    ("striped", "Each packet where it arrives first, put in order at the far end"),
    ("low-latency", "The path with the lowest round-trip time"),
    ("redundant", "A copy on every path"),
    ("protected", "Parity for what is lost"),
];

/// The lane of this name. The error names the most similar lane, or lists all of them.
pub fn lane(name: &str) -> Result<Lane, String> {
    let known = LANES.map(|(known, _)| known);
    Lane::deserialize(name.into_deserializer()).map_err(|error: Unknown| match nearest(name, &known) {
        Some(near) => format!("`{name}` is no lane: did you mean `{near}`?"),
        None => error.to_string(),
    })
}

/// Parses the name of a lane; `--help` lists and describes them.
pub fn parser() -> impl TypedValueParser<Value = Lane> {
    let names = LANES.map(|(name, about)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(names).try_map(|name| lane(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_lane() {
        let mut lanes: Vec<Lane> = LANES.iter().map(|(name, _)| lane(name).unwrap()).collect();
        lanes.dedup();
        assert_eq!(lanes.len(), LANES.len());
        assert!(lane("stripped").unwrap_err().contains("did you mean `striped`?"));
        assert!(lane("x").unwrap_err().contains("`striped`"));
    }
}
