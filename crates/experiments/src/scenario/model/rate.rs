//! The rate of a link: a fixed one, or a trace of what a link carried.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, IntoDeserializer, MapAccess, Visitor};

use super::super::units::RateText;

/// A fixed rate, or a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum RateSpec {
    /// `"20 Mbit/s"`
    Fixed(RateText),
    /// `{ trace = "FILE" }`
    Trace(TraceSpec),
}

/// Times at which a link may send, in mahimahi's format.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct TraceSpec {
    /// The file, relative to the scenario: a line for each packet of 1,500 bytes that the link can send, in milliseconds.
    pub trace: String,
    /// Start again after the last line. Default: true.
    pub repeat: Option<bool>,
}

impl<'de> Deserialize<'de> for RateSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RateVisitor)
    }
}

struct RateVisitor;

impl<'de> Visitor<'de> for RateVisitor {
    type Value = RateSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rate such as \"100 Mbit/s\", or { trace = \"FILE\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RateSpec, E> {
        RateText::deserialize(text.into_deserializer()).map(RateSpec::Fixed)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<RateSpec, E> {
        RateText::deserialize(number.into_deserializer()).map(RateSpec::Fixed)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<RateSpec, E> {
        RateText::deserialize(number.into_deserializer()).map(RateSpec::Fixed)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RateSpec, A::Error> {
        TraceSpec::deserialize(MapAccessDeserializer::new(map)).map(RateSpec::Trace)
    }
}

impl JsonSchema for RateSpec {
    fn schema_name() -> Cow<'static, str> {
        "LinkRate".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (fixed, trace) = (generator.subschema_for::<RateText>(), generator.subschema_for::<TraceSpec>());
        json_schema!({ "anyOf": [fixed, trace] })
    }
}
