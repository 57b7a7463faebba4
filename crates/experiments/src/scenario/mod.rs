//! Scenario files: TOML in, a [`Report`] out.
//!
//! ```text
//! text -> model (serde: unknown keys and units are errors) -> build (names, defaults, checks) -> Plan
//!      -> Network -> measure -> Report, compared with [expect]
//! ```
//! An error names the file, the line, the key and the remedy. A network that outgrows its [`Limits`] stops with an error.
//!
//! [`Limits`]: anabranch_sim::network::Limits

mod build;
mod builtin;
mod course;
mod error;
mod extras;
mod generate;
mod graph;
mod measure;
mod model;
mod report;
mod schema;
mod sweep;
mod traces;
mod units;

pub use build::{Built, CableName, Group, MAX_FLOWS, MAX_PATHS};
pub use builtin::BUILTIN;
pub use course::{Course, Distribution, Event, Line, MAX_POINTS, Quantity};
pub use error::ScenarioError;
pub use extras::Extras;
pub use measure::Metrics;
pub use report::{Outcome, Report, Spread, Summary};
pub use schema::schema;
pub use sweep::{Setting, Variant, variants};
pub use traces::{MAX_TRACE_FILE, Traces};

use std::collections::BTreeSet;

pub use anabranch_sim::network::{Captured, PathMetrics};
use anabranch_wire::Time;
use build::Source;
use measure::{Exceeded, Limit};
use model::File;

/// A scenario that has been checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name that the file gives, or else the file's name.
    pub name: String,
    file: File,
    text: String,
    /// Where it was read, for errors.
    origin: String,
    traces: Traces,
}

impl Scenario {
    /// Reads and checks a scenario; `origin` is the file's name, for errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        Self::with_traces(text, origin, &Traces::default())
    }

    /// As [`Self::parse`], for a scenario that may name trace files.
    pub fn with_traces(text: &str, origin: &str, traces: &Traces) -> Result<Self, ScenarioError> {
        let file = Self::checked(text, traces).map_err(|error| error.of(origin))?;
        let stem = origin.rsplit('/').next().unwrap_or(origin).trim_end_matches(".toml");
        let name = if file.name.is_empty() { stem.to_owned() } else { file.name.clone() };
        let (text, origin) = (text.to_owned(), origin.to_owned());
        Ok(Self { name, file, text, origin, traces: traces.clone() })
    }

    fn checked(text: &str, traces: &Traces) -> Result<File, ScenarioError> {
        let file: File = toml::from_str(text).map_err(|error| error::from_toml::<File>(&error, text))?;
        let sketch = build::sketch(Source { file: &file, text, traces })?;
        if file.expect.is_empty() || report::check(&file.expect, &measure::names(sketch)).is_ok() {
            return Ok(file);
        }
        // Some metrics exist only for the whole network.
        let whole = build::build(Source { file: &file, text, traces }, file.seed)?;
        report::check(&file.expect, &measure::names(whole)).map_err(|error| Self::in_expect(error, text))?;
        Ok(file)
    }

    /// Adds the line of a bound.
    fn in_expect(error: ScenarioError, text: &str) -> ScenarioError {
        let line = error::line_of(text, "expect", 0, error.key.trim_start_matches("expect."));
        error.at(line)
    }

    /// The file's seed; 1 by default.
    pub fn seed(&self) -> u64 {
        self.file.seed
    }

    /// Its description.
    pub fn about(&self) -> &str {
        &self.file.about
    }

    /// The network and its traffic, for a seed.
    pub fn build(&self, seed: u64) -> Result<Built, ScenarioError> {
        build::build(self.source(), seed).map_err(|error| error.of(&self.origin))
    }

    /// The names of all metrics that a run with the file's seed can have.
    pub fn metric_names(&self) -> Result<BTreeSet<String>, ScenarioError> {
        self.build(self.seed()).map(measure::names)
    }

    /// The network with a few flows of each traffic pattern.
    fn sketch(&self) -> Result<Built, ScenarioError> {
        build::sketch(self.source())
    }

    fn source(&self) -> Source<'_> {
        Source { file: &self.file, text: &self.text, traces: &self.traces }
    }

    pub fn run(&self, seed: u64) -> Result<Report, ScenarioError> {
        self.run_with(seed, Extras::default()).map(|(report, _)| report)
    }

    /// Runs it with extras. The course is empty unless asked for.
    pub fn run_with(&self, seed: u64, extras: Extras<'_>) -> Result<(Report, Course), ScenarioError> {
        let (metrics, course) =
            measure::run(self.build(seed)?, extras).map_err(|exceeded| self.exceeded(exceeded))?;
        let expect = report::judge(&self.file.expect, &metrics);
        Ok((Report { scenario: self.name.clone(), seed, metrics, expect }, course))
    }

    /// The error for a run that exceeded a limit.
    fn exceeded(&self, Exceeded { at, limit }: Exceeded) -> ScenarioError {
        let after = format!("after {:.3} s of {}", at.since(Time::ZERO).as_secs_f64(), self.file.duration.0);
        let line = |table: &str, index: usize| error::line_of(&self.text, table, index, "");
        let error = match limit {
            Limit::Packets { most, link, there } if there * 2 >= most as u64 => {
                let own = self.file.link.iter().position(|declared| declared.name == link);
                let line = own.map_or_else(|| line("topology", 0), |index| line("link", index));
                let message =
                    format!("more than {most} packets wait or are under way {after}, most of them here");
                ScenarioError::new(format!("link.{link}"), message)
                    .hint("a rate, a shorter queue, less delay, or less traffic")
                    .at(line)
            }
            Limit::Packets { most, there, .. } => {
                let message = format!(
                    "more than {most} packets wait or are under way {after}, at most {there} on one link"
                );
                ScenarioError::new("links", message)
                    .hint("fewer flows or hosts, shorter queues, less delay, or a smaller `transport.receive_buffer`")
                    .at(line("links", 0).or(line("topology", 0)).or(line("link", 0)))
            }
            Limit::Events { most } => {
                ScenarioError::new("duration", format!("more than {most} events {after}"))
                    .hint("less time, lower rates, longer delays, or fewer flows")
                    .at(error::line_of(&self.text, "", 0, "duration"))
            }
            Limit::Caller => {
                ScenarioError::new("duration", format!("stopped {after}: the time limit is over"))
                    .hint("less time, lower rates, longer delays, fewer flows, or a longer limit")
                    .at(error::line_of(&self.text, "", 0, "duration"))
            }
        };
        error.of(&self.origin)
    }
}

#[cfg(test)]
mod tests;
