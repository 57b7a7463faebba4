//! The options for path rules, for every command that opens or accepts sessions.

use std::path::PathBuf;

use anabranch_net::{PathRule, PathRules};
use anabranch_node::{caps_directory, has_lasting_cap, keep_caps, parse_rule, read_rules};
use clap::Args;

use crate::errors::Failure;

/// Options that set path rules.
#[derive(Args, Clone, Debug, Default)]
pub struct PathOptions {
    /// Use of the paths that fit: PATTERN=USE[:CAP][@RATE], such as wwan*=backup; of several rules, the first that
    /// fits decides
    ///
    /// PATTERN is an interface, an address or network at either end, from:ADDRESS, to:ADDRESS, relay:KEY or *. USE is
    /// primary, overflow, backup, metered or never. CAP limits the bytes of all such paths together, such as 500MB, or
    /// 5GB/15 for each month from the 15th on. RATE, such as 5Mbit/s, limits each path in each direction.
    #[arg(long = "path-rule", value_name = "RULE", value_parser = parse_rule, help_heading = "Network")]
    pub rules: Vec<PathRule>,
    /// A file of rules, which follow those of `--path-rule`
    #[arg(long = "path-rules", value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "Network")]
    pub file: Option<PathBuf>,
}

impl PathOptions {
    /// All rules, in the order in which they are checked.
    pub fn rules(&self) -> Result<PathRules, Failure> {
        Ok(keep_caps(self.read()?)?)
    }

    /// All rules, without what their caps have used before.
    pub fn read(&self) -> Result<PathRules, Failure> {
        Ok(read_rules(&self.rules, self.file.as_deref())?)
    }

    /// The directory that [`Self::rules`] writes to, made if it is missing; `None` without a cap that lasts.
    pub fn caps_directory(&self) -> Result<Option<PathBuf>, Failure> {
        let rules: Vec<PathRule> = self.read()?.iter().cloned().collect();
        let directory = caps_directory().filter(|_| has_lasting_cap(&rules));
        if let Some(directory) = &directory {
            std::fs::create_dir_all(directory).map_err(|error| Failure::file("create", directory, &error))?;
        }
        Ok(directory)
    }
}
