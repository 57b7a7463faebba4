//! Scenario files: TOML in, a [`Report`] out.
//!
//! ```text
//! text -> model (serde: unknown keys and units are errors) -> build (names, defaults, bounds) -> Plan
//!      -> Network -> measure -> Report, held against [expect]
//! ```
//! An error names the file, the line, the key and what to do.

mod build;
mod builtin;
mod error;
mod generate;
mod graph;
mod measure;
mod model;
mod report;
mod sweep;
mod units;

pub use build::{Built, CableName, Group, MAX_FLOWS, MAX_PATHS};
pub use builtin::BUILTIN;
pub use error::ScenarioError;
pub use measure::Metrics;
pub use report::{Outcome, Report, Spread, Summary};
pub use sweep::{Setting, Variant, variants};

use model::File;

/// A scenario that has been checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name: what the file says, or the file's own.
    pub name: String,
    file: File,
    text: String,
}

impl Scenario {
    /// Reads and checks a scenario; `origin` is the file's name, for errors.
    ///
    /// # Errors
    /// The first mistake, with its line, key and remedy.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let checked = || {
            let file: File = toml::from_str(text).map_err(|error| ScenarioError::from_toml(&error, text))?;
            build::build(&file, text, file.seed)?;
            Ok(file)
        };
        let file = checked().map_err(|error: ScenarioError| error.of(origin))?;
        let stem = origin.rsplit('/').next().unwrap_or(origin).trim_end_matches(".toml");
        let name = if file.name.is_empty() { stem.to_owned() } else { file.name.clone() };
        Ok(Self { name, file, text: text.to_owned() })
    }

    /// The seed that the file names, 1 if it names none.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.file.seed
    }

    /// What it shows, for people.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.file.about
    }

    /// The network and what goes on in it, for a seed.
    ///
    /// # Errors
    /// When the seed leads to a network that cannot be.
    pub fn build(&self, seed: u64) -> Result<Built, ScenarioError> {
        build::build(&self.file, &self.text, seed).map_err(|error| error.of(&self.name))
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`Self::build`], and when `[expect]` names a metric that there is not.
    pub fn run(&self, seed: u64) -> Result<Report, ScenarioError> {
        let built = self.build(seed)?;
        let metrics = measure::run(built);
        let expect = report::judge(&self.file.expect, &metrics).map_err(|error| {
            let key = error.key.trim_start_matches("expect.").to_owned();
            error.at(error::line_of(&self.text, "expect", 0, &key)).of(&self.name)
        })?;
        Ok(Report { scenario: self.name.clone(), seed, metrics, expect })
    }
}

#[cfg(test)]
mod tests;
