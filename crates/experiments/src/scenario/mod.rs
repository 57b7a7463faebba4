//! Scenario files: TOML in, a [`Report`] out.
//!
//! ```text
//! text -> model (serde: unknown keys and units are errors) -> build (names, defaults, bounds) -> Plan
//!      -> Network -> measure -> Report, held against [expect]
//! ```
//! An error names the file, the line, the key and what to do.

mod build;
mod builtin;
mod course;
mod error;
mod generate;
mod graph;
mod measure;
mod model;
mod report;
mod schema;
mod shape;
mod sweep;
mod units;

use build::Idle;
pub use build::{Built, CableName, Group, MAX_FLOWS, MAX_PATHS};
pub use builtin::BUILTIN;
pub use course::{Course, Distribution, Line, MAX_POINTS, Quantity};
pub use error::ScenarioError;
pub use measure::Metrics;
pub use report::{Outcome, Report, Spread, Summary};
pub use schema::schema;
pub use sweep::{Setting, Variant, variants};

pub use anabranch_sim::network::{Captured, PathMetrics};
use anabranch_wire::Time;
use measure::Overfull;
use model::File;

/// A scenario that has been checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name: what the file says, or the file's own.
    pub name: String,
    file: File,
    text: String,
    /// Where it was read, for errors.
    origin: String,
    /// What it says that changes nothing.
    idle: Vec<Idle>,
}

impl Scenario {
    /// Reads and checks a scenario; `origin` is the file's name, for errors.
    ///
    /// # Errors
    /// The first mistake, with its line, key and remedy.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let scenario = Self::parse_base(text, origin)?;
        let told = scenario.idle.first().map(|idle| scenario.told(idle));
        told.map_or(Ok(scenario), Err)
    }

    /// The error for what it says that changes nothing.
    fn told(&self, idle: &Idle) -> ScenarioError {
        idle.told(&self.text).of(&self.origin)
    }

    /// Reads and checks a scenario of which variants are to be made: what it says may change something in one of these only.
    ///
    /// # Errors
    /// As [`Self::parse`], but for what changes nothing, of which [`variants`] tells.
    pub fn parse_base(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let checked = || {
            let file = Self::read(text)?;
            let sketch = (!file.traffic.is_empty()).then(|| build::sketch(&file, text)).transpose()?;
            let (built, idle) = build::check(&file, text)?;
            // What the sketch of a pattern measures, all of it does; for the rest all of it is asked.
            let sketch = sketch.filter(|_| file.traffic.len() == 1);
            let holds = |built: Built| report::check(&file.expect, &measure::names(built)).is_ok();
            if !file.expect.is_empty() && !sketch.is_some_and(holds) {
                report::check(&file.expect, &measure::names(built))
                    .map_err(|error| Self::in_expect(error, text))?;
            }
            Ok((file, idle))
        };
        let (file, idle) = checked().map_err(|error: ScenarioError| error.of(origin))?;
        let stem = origin.rsplit('/').next().unwrap_or(origin).trim_end_matches(".toml");
        let name = if file.name.is_empty() { stem.to_owned() } else { file.name.clone() };
        Ok(Self { name, file, text: text.to_owned(), origin: origin.to_owned(), idle })
    }

    /// Reads what a file says, each value by itself.
    fn read(text: &str) -> Result<File, ScenarioError> {
        shape::check(text)?;
        toml::from_str(text).map_err(|error| error::from_toml::<File>(&error, text))
    }

    /// Adds the line of a bound.
    fn in_expect(error: ScenarioError, text: &str) -> ScenarioError {
        let line = error::line_of(text, "expect", 0, error.key.trim_start_matches("expect."));
        error.at(line)
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
        build::build(&self.file, &self.text, seed).map_err(|error| error.of(&self.origin))
    }

    /// What its parts are called, with a few flows of each pattern only.
    fn sketch(&self) -> Result<Built, ScenarioError> {
        build::sketch(&self.file, &self.text)
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`Self::build`], and when `[expect]` names a metric that there is not.
    pub fn run(&self, seed: u64) -> Result<Report, ScenarioError> {
        self.run_with(seed, Extras::default()).map(|(report, _)| report)
    }

    /// Runs it and looks on; the report is the same whatever is looked at. The course is empty unless asked for.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_with(&self, seed: u64, extras: Extras<'_>) -> Result<(Report, Course), ScenarioError> {
        let (metrics, course) =
            measure::run(self.build(seed)?, extras).map_err(|overfull| self.overfull(&overfull))?;
        let expect = report::judge(&self.file.expect, &metrics);
        Ok((Report { scenario: self.name.clone(), seed, metrics, expect }, course))
    }

    /// The error for a run that had too many packets at once.
    fn overfull(&self, Overfull { at, link, there, most }: &Overfull) -> ScenarioError {
        let seconds = at.since(Time::ZERO).as_secs_f64();
        let message = format!("more than {most} packets wait or are on their way after {seconds:.3} s");
        let line = |table: &str, index: usize| error::line_of(&self.text, table, index, "");
        if there * 2 < *most as u64 {
            return ScenarioError::new("links", format!("{message}, at most {there} of them on one link"))
                .hint("let the network hold fewer: fewer flows or hosts, shorter queues, less delay, or a smaller `transport.receive_buffer`")
                .at(line("links", 0).or(line("topology", 0)).or(line("link", 0)))
                .of(&self.origin);
        }
        let error = ScenarioError::new(format!("link.{link}"), format!("{message}, most of them here"))
            .hint("let it hold fewer: a shorter queue, less delay, or less that is sent at once");
        let own = self.file.link.iter().position(|declared| declared.name == *link);
        let line = own.map_or_else(|| line("topology", 0), |index| line("link", index));
        error.at(line).of(&self.origin)
    }
}

/// What is wanted of a run beside its metrics.
#[derive(Default)]
pub struct Extras<'a> {
    /// How it goes over time, and how it is distributed.
    pub course: bool,
    /// Told every packet as it is sent and as it is received.
    pub trace: Option<&'a mut dyn FnMut(&Captured)>,
    /// Told now and then which share of the simulated time is over.
    pub progress: Option<&'a mut dyn FnMut(f64)>,
}

#[cfg(test)]
mod bottlenecks;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod passed_over;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
