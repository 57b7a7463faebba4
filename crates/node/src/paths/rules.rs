//! Rules for paths as people write them: one in a word, or many in a file.
//!
//! ```text
//! wwan*=metered:500MB      relay:*=backup      10.0.0.0/8=never      eth1=primary@20Mbit/s
//! ```
//! ```toml
//! [[path]]
//! match = "wwan*"
//! use = "metered"
//! cap = "500 MB"
//! rate = "5 Mbit/s"      # of each path, in each direction
//!
//! [leave_out]
//! slower_than = 10       # a path that is slower than the fastest by this factor
//! sharing_beyond = 1     # of paths that share a bottleneck, all but so many
//! ```

use std::path::Path;

use anabranch_net::{
    Endpoint, Meter, PathOrigin, PathRule, PathRules, Pattern, Priority, Rate, SuppressionLimits, Terms,
};
use anabranch_settings::{SettingsError, located, nearest, rate, size};
use serde::Deserialize;

use crate::error::Error;

/// Parses a rule in one word: `PATTERN=USE`, `PATTERN=USE:CAP`, or `PATTERN=USE:CAP/DAY`, each with or without `@RATE`
/// behind it.
pub fn parse_rule(text: &str) -> Result<PathRule, String> {
    let (pattern, terms) = text.rsplit_once('=').ok_or_else(|| {
        format!("`{text}` is no rule; write PATTERN=USE, such as wwan*=backup or wwan*=metered:500MB")
    })?;
    Ok(PathRule { pattern: pattern.parse()?, terms: parse_terms(terms)? })
}

/// Parses the use of paths: `USE`, `USE:CAP`, or `USE:CAP/DAY`, each with or without `@RATE` behind it.
pub fn parse_terms(text: &str) -> Result<Terms, String> {
    let (text, limit) = text.split_once('@').map_or((text, None), |(text, rate)| (text, Some(rate)));
    let (usage, cap) = text.split_once(':').map_or((text, None), |(usage, cap)| (usage, Some(cap)));
    let priority = priority(usage)?;
    let rate = limit.map(|text| rate_limit(priority, text)).transpose()?;
    let Some(cap) = cap else { return Ok(Terms { priority, meter: None, rate }) };
    let (cap, day) = cap.split_once('/').map_or((cap, None), |(cap, day)| (cap, Some(day)));
    let day = day.map(|day| day.parse().map_err(|_| NO_DAY.to_owned())).transpose()?;
    Ok(Terms { priority, meter: Some(resetting(meter(priority, cap)?, day)?), rate })
}

/// The error for a reset day that some months do not have.
const NO_DAY: &str = "a cap starts anew on a day of the month from 1 to 28";

fn resetting(meter: Meter, day: Option<u8>) -> Result<Meter, String> {
    match day {
        None => Ok(meter),
        Some(day @ 1..=28) => Ok(meter.resetting_on(day)),
        Some(_) => Err(NO_DAY.to_owned()),
    }
}

fn priority(name: &str) -> Result<Priority, String> {
    name.parse().map_err(|error| match nearest(name, &Priority::ALL.map(|(_, name)| name)) {
        Some(near) => format!("{error}; did you mean `{near}`?"),
        None => error,
    })
}

fn meter(priority: Priority, cap: &str) -> Result<Meter, String> {
    let bytes = size(cap)?;
    if priority == Priority::Never {
        return Err("a path that is never used has no cap".to_owned());
    }
    if bytes < Meter::SMALLEST {
        return Err(format!(
            "a cap is at least {} KiB: opening a path takes some of it",
            Meter::SMALLEST >> 10
        ));
    }
    Ok(Meter::new(bytes))
}

/// The lowest rate of a rule.
const LEAST_RATE: Rate = Rate::from_bits(64_000);

fn rate_limit(priority: Priority, text: &str) -> Result<Rate, String> {
    let limit = Rate::from_bits(rate(text)?);
    if priority == Priority::Never {
        return Err("a path that is never used has no rate".to_owned());
    }
    if limit < LEAST_RATE {
        return Err(format!("a rate is at least {} kbit/s", LEAST_RATE.as_bits() / 1000));
    }
    Ok(limit)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    path: Vec<RuleTable>,
    leave_out: Option<LeaveOutTable>,
}

/// A `[[path]]` table, in a file of rules or another one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleTable {
    #[serde(rename = "match")]
    pattern: String,
    #[serde(rename = "use")]
    usage: String,
    cap: Option<String>,
    resets_on: Option<u8>,
    rate: Option<String>,
}

/// The table `[leave_out]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveOutTable {
    slower_than: Option<f64>,
    sharing_beyond: Option<usize>,
}

/// Reads a file of rules; `origin` is its name, for errors.
pub fn parse_rules(text: &str, origin: &str) -> Result<PathRules, SettingsError> {
    let file = toml::from_str::<File>(text).map_err(|error| SettingsError::from_toml::<File>(&error, text));
    file.and_then(|file| read_tables(&file.path, file.leave_out.as_ref(), text))
        .map_err(|error| error.of(origin))
}

/// Rules given one by one, then those of a file. The first rule that matches a path decides.
pub fn read_rules(first: &[PathRule], file: Option<&Path>) -> Result<PathRules, Error> {
    let Some(file) = file else { return Ok(PathRules::new(first.to_vec())) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| Error::file("read the rules for paths", file, &error).hint(EXAMPLE))?;
    let more = parse_rules(&text, &file.display().to_string())?;
    let all = first.iter().chain(more.iter()).cloned().collect();
    Ok(PathRules::new(all).suppressing(more.suppression))
}

/// A file of rules in one line.
const EXAMPLE: &str = "it has a table for each rule: [[path]], match = \"wwan*\", use = \"backup\"";

/// The rules of these tables, which are in the file `text`.
pub fn read_tables(
    paths: &[RuleTable],
    leave_out: Option<&LeaveOutTable>,
    text: &str,
) -> Result<PathRules, SettingsError> {
    let rules = paths
        .iter()
        .enumerate()
        .map(|(index, rule)| read_rule(rule).map_err(|error| located(error, text, ("path", index))));
    let rules = PathRules::new(rules.collect::<Result<_, _>>()?);
    let limits = leave_out.map(read_limits).transpose();
    let limits = limits.map_err(|error| located(error, text, ("leave_out", 0)))?;
    Ok(rules.suppressing(limits))
}

fn read_rule(rule: &RuleTable) -> Result<PathRule, SettingsError> {
    let pattern: Pattern = rule.pattern.parse().map_err(|why: String| SettingsError::new("match", why))?;
    let priority = priority(&rule.usage).map_err(|why| SettingsError::new("use", why))?;
    let meter = rule.cap.as_deref().map(|cap| meter(priority, cap)).transpose();
    let meter = meter.map_err(|why| SettingsError::new("cap", why))?;
    if meter.is_none() && rule.resets_on.is_some() {
        return Err(SettingsError::new("resets_on", "without a cap, nothing starts anew").hint("add `cap`"));
    }
    let meter = meter.map(|meter| resetting(meter, rule.resets_on)).transpose();
    let meter = meter.map_err(|why| SettingsError::new("resets_on", why))?;
    let rate = rule.rate.as_deref().map(|rate| rate_limit(priority, rate)).transpose();
    let rate = rate.map_err(|why| SettingsError::new("rate", why))?;
    Ok(PathRule { pattern, terms: Terms { priority, meter, rate } })
}

fn read_limits(limits: &LeaveOutTable) -> Result<SuppressionLimits, SettingsError> {
    let omega = limits.slower_than.unwrap_or(f64::INFINITY);
    if omega.is_nan() || omega <= 1.0 {
        let error = SettingsError::new(
            "slower_than",
            "must be more than 1: a path is left out when it is that much slower",
        );
        return Err(error.hint("10 leaves out a path that carries less than a tenth of the fastest"));
    }
    let d = limits.sharing_beyond.unwrap_or(usize::MAX);
    if d == 0 {
        let error = SettingsError::new("sharing_beyond", "must be at least 1: one path has to be left");
        return Err(error);
    }
    Ok(SuppressionLimits { omega, d })
}

/// Warns of rules for interfaces that this machine does not have now: the name may be mistyped.
pub fn warn_of_idle_rules(endpoint: &Endpoint, rules: &PathRules, device: Option<&str>) {
    let here: Vec<_> = endpoint.sockets().iter().map(|socket| socket.place.interface.to_string()).collect();
    warn_of_rules_beyond(&here, rules, device);
}

/// Warns of rules for other interfaces than these.
pub fn warn_of_rules_beyond(here: &[String], rules: &PathRules, device: Option<&str>) {
    let fits = |rule: &PathRule, name: &String| {
        let place = PathOrigin { interface: name.clone(), ..PathOrigin::default() };
        // Such a pattern does not look at addresses.
        rule.pattern.fits(&place, ([0, 0, 0, 0], 0).into())
    };
    let is_of_device = |rule: &PathRule| device.is_some_and(|name| rule.pattern.to_string() == name);
    let by_interface = |rule: &&PathRule| matches!(rule.pattern, Pattern::Interface(_));
    for rule in rules.iter().filter(by_interface).filter(|rule| !is_of_device(rule)) {
        if !here.iter().any(|name| fits(rule, name)) {
            tracing::warn!(
                "no interface fits the rule `{}={}` now: `ip link` lists the interfaces",
                rule.pattern,
                rule.terms.priority
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_pattern_and_a_use_with_or_without_a_cap() {
        let rule = parse_rule("wwan*=metered:500MB").unwrap();
        assert_eq!((rule.pattern.to_string(), rule.terms.priority), ("wwan*".into(), Priority::Metered));
        assert_eq!(rule.terms.meter.unwrap().cap(), 500_000_000);
        let rule = parse_rule("wwan*=metered:500MB/15@1.5Mbit/s").unwrap().terms;
        assert_eq!(
            (rule.meter.unwrap().resets_on(), rule.rate),
            (Some(15), Some(Rate::from_bits(1_500_000)))
        );
        let rule = parse_rule("eth1=primary@20Mbit/s").unwrap().terms;
        assert_eq!((rule.meter, rule.rate), (None, Some(Rate::from_bits(20_000_000))));
        let rule = parse_rule("to:2001:db8::/32=never").unwrap();
        assert_eq!((rule.pattern.to_string(), rule.terms.meter), ("to:2001:db8::/32".into(), None));
    }

    #[test]
    fn what_is_no_rule_is_refused_with_what_to_write() {
        for (text, hint) in [
            ("wwan0", "write PATTERN=USE"),
            ("wwan0=bakcup", "did you mean `backup`?"),
            ("wwan0=metered:lots", "not a size"),
            ("wwan0=metered:10k", "at least 256 KiB"),
            ("wwan0=never:10MB", "has no cap"),
            ("wwan0=never@10Mbit/s", "has no rate"),
            ("wwan0=backup@10", "not a rate"),
            ("wwan0=backup@10kbit/s", "at least 64 kbit/s"),
            ("=backup", "write an interface"),
        ] {
            let error = parse_rule(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_has_rules_in_order_and_says_what_is_left_out() {
        let text = "[[path]]\nmatch = \"wwan*\"\nuse = \"metered\"\ncap = \"2 GB\"\nrate = \"5 Mbit/s\"\n\n[[path]]\nmatch = \"relay:*\"\nuse = \"backup\"\n\n[leave_out]\nslower_than = 10\n";
        let rules = parse_rules(text, "paths.toml").unwrap();
        let uses: Vec<Priority> = rules.iter().map(|rule| rule.terms.priority).collect();
        assert_eq!(uses, [Priority::Metered, Priority::Backup]);
        let rates: Vec<Option<Rate>> = rules.iter().map(|rule| rule.terms.rate).collect();
        assert_eq!(rates, [Some(Rate::from_bits(5_000_000)), None]);
        assert_eq!(rules.suppression, Some(SuppressionLimits { omega: 10.0, d: usize::MAX }));
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_key() {
        for (text, told) in [
            ("[[path]]\nmatch = \"a b\"\nuse = \"backup\"", "paths.toml:2: match: `a b`"),
            ("[[path]]\nmatch = \"eth0\"\nuse = \"sometimes\"", "paths.toml:3: use: `sometimes`"),
            (
                "[[path]]\nmatch = \"eth0\"\nuse = \"backup\"\ncap = \"1\"",
                "paths.toml:4: cap: a cap is at least",
            ),
            ("[[path]]\nmatch = \"eth0\"\nusage = \"backup\"", "unknown key `usage`"),
            ("[leave_out]\nslower_than = 0.5", "paths.toml:2: slower_than"),
        ] {
            let error = parse_rules(text, "paths.toml").unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn rules_given_one_by_one_come_before_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("paths.toml");
        std::fs::write(&file, "[[path]]\nmatch = \"*\"\nuse = \"never\"\n").unwrap();
        let first = [parse_rule("eth0=primary").unwrap()];
        let read = || read_rules(&first, Some(&file));
        let patterns: Vec<String> = read().unwrap().iter().map(|rule| rule.pattern.to_string()).collect();
        assert_eq!(patterns, ["eth0", "*"]);
        std::fs::write(&file, "[[path]]\nmatch = \"*\"\nuse = \"nevr\"\n").unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains("paths.toml:3") && error.contains("did you mean `never`"), "{error}");
        std::fs::remove_file(&file).unwrap();
        assert!(read().is_err());
    }
}
