//! What is wrong with a scenario: the line, the key, and what to do about it.

pub(crate) use anabranch_settings::{line_of, nearest};

pub use anabranch_settings::SettingsError as ScenarioError;
