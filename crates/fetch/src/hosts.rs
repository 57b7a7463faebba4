//! The hosts that answer for one mirror, and the version of the file on each, without I/O.
//!
//! A mirror may redirect to several hosts. Their tags and times cannot be compared with each other, so a further host is used only
//! after some of its bytes have been compared.

use std::collections::BTreeMap;

use crate::http::validator::{Same, Validator};

/// Most hosts that are remembered; answers of further ones are refused.
const MOST: usize = 64;

/// The hosts of one mirror.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    /// The version of the file that the download began with.
    own: Validator,
    /// Further hosts; `None` for one with another file.
    others: BTreeMap<String, Option<Validator>>,
}

/// The file on the host of an answer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is the file that the download began with, as far as the host says.
    Fits,
    /// The file on the first host is another one now.
    Changed,
    /// The host has not been compared.
    Stranger,
    /// The host has another file.
    Other,
}

impl Hosts {
    /// Begins with the version on the first host.
    pub fn begin(own: Validator) -> Self {
        Self { own, others: BTreeMap::new() }
    }

    /// The version on the first host.
    pub fn own(&self) -> &Validator {
        &self.own
    }

    /// Judges an answer with this version, and perhaps another size than the file's.
    pub fn judge(&self, version: &Validator, is_other_size: bool) -> Standing {
        let Some(host) = version.host().filter(|host| self.own.host().is_some_and(|own| own != *host)) else {
            let is_other = is_other_size || self.own.compare(version) == Same::No;
            return if is_other { Standing::Changed } else { Standing::Fits };
        };
        match self.others.get(host) {
            _ if is_other_size => Standing::Other,
            Some(Some(known)) if known.compare(version) != Same::No => Standing::Fits,
            Some(_) => Standing::Other,
            None if self.others.len() >= MOST => Standing::Other,
            None => Standing::Stranger,
        }
    }

    /// Whether an answer leaves out the version that its host, or the first one, gave before.
    pub fn is_version_lost(&self, version: &Validator) -> bool {
        let further = version.host().and_then(|host| self.others.get(host)).and_then(Option::as_ref);
        further.unwrap_or(&self.own).is_lost_in(version)
            || self.own.names_version() && !version.names_version()
    }

    /// Whether an answer may be of the version that the download began with.
    pub fn is_own(&self, version: &Validator) -> bool {
        self.own.host() == version.host() && self.own.compare(version) != Same::No
    }

    /// Notes whether a further host has the file.
    pub fn note(&mut self, version: Validator, has_file: bool) {
        if let Some(host) = version.host().filter(|host| self.own.host() != Some(*host)).map(str::to_owned)
            && (self.others.len() < MOST || self.others.contains_key(&host))
        {
            self.others.insert(host, has_file.then_some(version));
        }
    }

    /// The condition for a request to `host`: that the file there is still this one.
    pub fn if_range(&self, host: &str) -> Option<&str> {
        self.others.get(host).and_then(Option::as_ref).unwrap_or(&self.own).if_range(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(tag: &str, host: &str) -> Validator {
        Validator::new(Some(&format!("\"{tag}\"")), None, None).of_host(host.to_owned())
    }

    #[test]
    fn a_further_host_counts_once_it_was_compared_and_until_its_file_changes() {
        let mut hosts = Hosts::begin(version("a", "one"));
        assert_eq!(hosts.judge(&version("a", "one"), false), Standing::Fits);
        assert_eq!(hosts.judge(&version("b", "one"), false), Standing::Changed);
        assert_eq!(hosts.judge(&version("a", "one"), true), Standing::Changed);
        assert_eq!(
            hosts.judge(&version("a", "two"), false),
            Standing::Stranger,
            "the same tag proves nothing"
        );
        assert_eq!(hosts.judge(&version("a", "two"), true), Standing::Other);
        hosts.note(version("x", "two"), true);
        assert_eq!(hosts.judge(&version("x", "two"), false), Standing::Fits);
        assert_eq!(hosts.if_range("two"), Some("\"x\""));
        assert_eq!(hosts.judge(&version("y", "two"), false), Standing::Other);
        hosts.note(version("y", "two"), false);
        assert_eq!(hosts.judge(&version("x", "two"), false), Standing::Other);
        assert_eq!(hosts.if_range("two"), None);
    }

    #[test]
    fn hosts_without_end_are_refused() {
        let mut hosts = Hosts::begin(version("a", "one"));
        for number in 0..2 * MOST {
            hosts.note(version("a", &number.to_string()), true);
        }
        assert_eq!(hosts.others.len(), MOST);
        assert_eq!(hosts.judge(&version("a", "new"), false), Standing::Other);
    }

    #[test]
    fn a_further_host_that_names_no_version_loses_it() {
        let unnamed = Validator::default().of_host("b".to_owned());
        let mut hosts = Hosts::begin(version("a", "one"));
        hosts.note(unnamed.clone(), true);
        assert!(hosts.is_version_lost(&unnamed) && !hosts.is_version_lost(&version("b", "two")));
        assert!(!Hosts::begin(Validator::default()).is_version_lost(&unnamed));
    }

    #[test]
    fn a_version_without_a_host_is_compared_with_every_answer() {
        let hosts = Hosts::begin(Validator::new(Some("\"a\""), None, None));
        assert_eq!(hosts.judge(&version("a", "one"), false), Standing::Fits);
        assert_eq!(hosts.judge(&version("b", "two"), false), Standing::Changed);
    }
}
