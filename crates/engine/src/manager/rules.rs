//! A user's rules for paths, in order: the first that fits a path decides.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use anabranch_wire::{PathUse, Rate};

use super::{Meter, PathOrigin, Pattern, SuppressionLimits};

/// When a path may carry data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Always.
    #[default]
    Primary,
    /// Only while the primary paths are full, or none works.
    Overflow,
    /// Only while no primary path works.
    Backup,
    /// Only while neither a primary nor a backup path works, because its bytes cost money.
    Metered,
    /// Never: the path is not opened.
    Never,
}

impl Priority {
    /// Every priority with its name, most common first.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Primary, "primary"),
        (Self::Overflow, "overflow"),
        (Self::Backup, "backup"),
        (Self::Metered, "metered"),
        (Self::Never, "never"),
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The use to request from the peer.
    pub(crate) fn usage(self) -> PathUse {
        match self {
            Self::Primary => PathUse::Normal,
            Self::Overflow => PathUse::Overflow,
            Self::Backup => PathUse::Backup,
            Self::Metered => PathUse::Metered,
            Self::Never => PathUse::Standby,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        let known = || Self::ALL.map(|(_, name)| name).join(", ");
        found
            .map(|(priority, _)| *priority)
            .ok_or_else(|| format!("`{name}` is no use of a path; there are {}", known()))
    }
}

/// The terms for one path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// When it may carry data.
    pub priority: Priority,
    /// The byte cap, for both directions and all paths under the rule together.
    pub meter: Option<Meter>,
    /// The highest rate on each path, in each direction (PSMC [T8]).
    pub rate: Option<Rate>,
}

impl Terms {
    /// True when such a path may be opened.
    pub fn allow(&self) -> bool {
        self.priority != Priority::Never && !self.meter.as_ref().is_some_and(Meter::is_used_up)
    }
}

/// A rule for the paths that fit a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct PathRule {
    pub pattern: Pattern,
    /// The terms for these paths.
    pub terms: Terms,
}

/// A user's rules for all paths. Clones share their caps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathRules {
    rules: Arc<[PathRule]>,
    /// Limits for leaving out paths that work; `None` leaves none out (mTCP §3.4.1 [M10]).
    pub suppression: Option<SuppressionLimits>,
}

impl PathRules {
    /// Makes a set of rules, tried in this order.
    pub fn new(rules: Vec<PathRule>) -> Self {
        Self { rules: rules.into(), suppression: None }
    }

    /// Enables leaving out paths that gain nothing.
    #[must_use]
    pub fn suppressing(mut self, limits: Option<SuppressionLimits>) -> Self {
        self.suppression = limits;
        self
    }

    /// True when there are no rules and no suppression.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.suppression.is_none()
    }

    /// True when paths that share a bottleneck are left out.
    pub fn leave_out_sharers(&self) -> bool {
        self.suppression.is_some_and(|limits| limits.d < usize::MAX)
    }

    /// The rules, in order.
    pub fn iter(&self) -> impl Iterator<Item = &PathRule> {
        self.rules.iter()
    }

    /// Adds a rule, tried before all others. It replaces a rule with the same pattern.
    pub fn with(&self, rule: &PathRule) -> Self {
        let others = self.rules.iter().filter(|known| known.pattern != rule.pattern).cloned();
        let rules: Vec<PathRule> = std::iter::once(rule.clone()).chain(others).collect();
        Self { rules: rules.into(), ..self.clone() }
    }

    /// The terms for a path from `place` to `remote`; primary without a cap if no rule fits.
    pub fn terms(&self, place: &PathOrigin, remote: SocketAddr) -> Terms {
        self.rule_for(place, remote).map(|rule| rule.terms.clone()).unwrap_or_default()
    }

    /// The rule that decides on a path from `place` to `remote`.
    pub fn rule_for(&self, place: &PathOrigin, remote: SocketAddr) -> Option<&PathRule> {
        self.rules.iter().find(|rule| rule.pattern.fits(place, remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, priority: Priority) -> PathRule {
        PathRule { pattern: pattern.parse().unwrap(), terms: Terms { priority, ..Terms::default() } }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = PathRules::new(vec![
            rule("wwan0", Priority::Backup),
            rule("wwan*", Priority::Never),
            rule("*", Priority::Primary),
        ]);
        let of = |interface: &str| {
            let place = PathOrigin { interface: interface.into(), ..PathOrigin::default() };
            rules.terms(&place, "192.0.2.1:1".parse().unwrap()).priority
        };
        assert_eq!(
            (of("wwan0"), of("wwan1"), of("eth0")),
            (Priority::Backup, Priority::Never, Priority::Primary)
        );
    }

    #[test]
    fn a_rule_that_comes_later_is_asked_first_and_replaces_its_like() {
        let rules = PathRules::new(vec![rule("wwan*", Priority::Never)]);
        let rules = rules.with(&rule("wwan0", Priority::Backup)).with(&rule("wwan0", Priority::Metered));
        let names: Vec<String> =
            rules.iter().map(|rule| format!("{}={}", rule.pattern, rule.terms.priority)).collect();
        assert_eq!(names, ["wwan0=metered", "wwan*=never"]);
    }

    #[test]
    fn priorities_go_by_their_names() {
        for (priority, name) in Priority::ALL {
            assert_eq!((name.parse(), priority.as_str()), (Ok(priority), name));
        }
        assert!(
            "often".parse::<Priority>().unwrap_err().contains("primary, overflow, backup, metered, never")
        );
    }

    #[test]
    fn a_path_is_not_opened_under_a_cap_that_is_used_up() {
        let meter = Meter::new(Meter::SMALLEST);
        let terms = Terms { priority: Priority::Metered, meter: Some(meter.clone()), rate: None };
        assert!(terms.allow());
        let mut paths = Vec::new();
        while !meter.is_used_up() {
            paths.push(super::super::PathMeter::new(meter.clone(), (0, 0)));
        }
        assert!(!terms.allow());
    }
}
