//! The options for path rules, for every command that opens or accepts sessions.

use std::path::PathBuf;

use anabranch_net::{PathRule, PathRules};
use anabranch_node::{parse_rule, read_rules};
use clap::Args;

use crate::errors::Failure;

/// Options that set path rules.
#[derive(Args, Clone, Debug, Default)]
pub struct PathOptions {
    /// How to use paths that fit: PATTERN=USE or PATTERN=USE:CAP, such as wwan*=backup; of several, the first that fits
    /// decides
    ///
    /// PATTERN is an interface (wwan0, wlan*), an address at either end (10.0.0.0/8), from:ADDRESS, to:ADDRESS,
    /// relay:KEY, relay:* or *. USE is primary, backup (while no primary path works), metered (while no other works) or
    /// never. CAP limits the bytes of all such paths together, both ways, such as 500MB.
    #[arg(long = "path-rule", value_name = "RULE", value_parser = parse_rule, help_heading = "Network")]
    pub rules: Vec<PathRule>,
    /// A file of rules, which follow those of `--path-rule`
    #[arg(long = "path-rules", value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "Network")]
    pub file: Option<PathBuf>,
}

impl PathOptions {
    /// All rules, in the order in which they are checked.
    ///
    /// # Errors
    /// When the file cannot be read or has a mistake.
    pub fn rules(&self) -> Result<PathRules, Failure> {
        Ok(read_rules(&self.rules, self.file.as_deref())?)
    }
}
