//! Options that say what is wanted of paths, for every command that opens or accepts sessions.

use std::path::PathBuf;

use anabranch_net::{PathRule, PathRules};
use anabranch_node::{parse_rule, parse_rules};
use clap::Args;

use crate::errors::Failure;

/// What is wanted of paths.
#[derive(Args, Clone, Debug, Default)]
pub struct PathOptions {
    /// How to use paths that fit: PATTERN=USE or PATTERN=USE:CAP, such as wwan*=backup; may be given again, the first that fits decides
    ///
    /// PATTERN is an interface (wwan0, wlan*), an address at either end (10.0.0.0/8), from:ADDRESS, to:ADDRESS, relay:KEY, relay:*
    /// or *. USE is primary, backup (while no primary path works), metered (while no other works) or never. CAP is how many
    /// bytes such paths may carry together, both ways and headers included, such as 500MB.
    #[arg(long = "path-rule", value_name = "RULE", value_parser = parse_rule, help_heading = "Network")]
    pub rules: Vec<PathRule>,
    /// More rules, in a file; those of `--path-rule` are asked first
    #[arg(long = "path-rules", value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "Network")]
    pub file: Option<PathBuf>,
}

impl PathOptions {
    /// All rules, in the order in which they are asked.
    ///
    /// # Errors
    /// When the file cannot be read or has a mistake.
    pub fn rules(&self) -> Result<PathRules, Failure> {
        let Some(file) = &self.file else { return Ok(PathRules::new(self.rules.clone())) };
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::file("read the rules for paths", file, &error).hint(HINT))?;
        let more = parse_rules(&text, &file.display().to_string()).map_err(|mut error| {
            let hint = std::mem::take(&mut error.hint);
            let failure = Failure::local(error.to_string());
            if hint.is_empty() { failure } else { failure.hint(hint) }
        })?;
        let all = self.rules.iter().chain(more.iter()).cloned().collect();
        Ok(PathRules::new(all).suppressing(more.suppression))
    }
}

const HINT: &str = "it has a table for each rule: [[path]], match = \"wwan*\", use = \"backup\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_the_command_line_come_before_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("paths.toml");
        std::fs::write(&file, "[[path]]\nmatch = \"*\"\nuse = \"never\"\n").unwrap();
        let options =
            PathOptions { rules: vec![parse_rule("eth0=primary").unwrap()], file: Some(file.clone()) };
        let patterns: Vec<String> =
            options.rules().unwrap().iter().map(|rule| rule.pattern.to_string()).collect();
        assert_eq!(patterns, ["eth0", "*"]);
        std::fs::write(&file, "[[path]]\nmatch = \"*\"\nuse = \"nevr\"\n").unwrap();
        let told = options.rules().unwrap_err().to_string();
        assert!(told.contains("paths.toml:3") && told.contains("did you mean `never`"), "{told}");
        std::fs::remove_file(&file).unwrap();
        assert!(options.rules().is_err());
    }
}
