//! Which version of a file a response belongs to: `ETag` and `Last-Modified` (RFC 9110 §8.8, §13.1.5).

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// The version of a file by its server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validator {
    /// The entity tag as sent, weak ones with their `W/`. Some servers leave out the quotes.
    tag: Option<String>,
    /// The time of the last change as sent.
    modified: Option<String>,
    /// The last change was at least a second before the response, so a later change would show.
    is_old: bool,
    /// The host and port that sent it. Tags and times of other hosts say nothing about this one's.
    #[serde(default)]
    host: Option<String>,
}

/// Whether two responses are of the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Same {
    /// They are.
    Yes,
    /// They are not.
    No,
    /// The server does not say.
    Unknown,
}

impl Validator {
    /// The longest tag that is kept.
    const LONGEST: usize = 1024;

    /// Reads the headers of a response that was sent at `date`.
    pub fn new(tag: Option<&str>, modified: Option<&str>, date: Option<SystemTime>) -> Self {
        let usable = |tag: &&str| {
            let is_bare = !tag.is_empty() && !tag.starts_with("W/");
            let is_bare = is_bare && tag.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
            tag.len() <= Self::LONGEST && (is_bare || is_quoted(tag.strip_prefix("W/").unwrap_or(tag)))
        };
        let changed = modified.and_then(|text| httpdate::parse_http_date(text).ok());
        let is_old = changed.zip(date).is_some_and(|(changed, date)| {
            date.duration_since(changed).is_ok_and(|since| since >= Duration::from_secs(1))
        });
        Self {
            tag: tag.filter(usable).map(str::to_owned),
            modified: changed.and(modified).map(str::to_owned),
            is_old,
            host: None,
        }
    }

    /// The same, as sent by this host.
    #[must_use]
    pub fn of_host(self, host: String) -> Self {
        Self { host: Some(host), ..self }
    }

    /// The host that sent it.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The version of an FTP file, by its time of change.
    pub fn of_time(modified: Option<String>) -> Self {
        Self { modified, ..Self::default() }
    }

    /// When the file was last changed.
    pub fn changed(&self) -> Option<SystemTime> {
        self.modified.as_deref().and_then(|text| httpdate::parse_http_date(text).ok())
    }

    fn strong_tag(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }

    /// The tag without its mark of weakness.
    fn opaque_tag(&self) -> Option<&str> {
        self.tag.as_deref().map(|tag| tag.strip_prefix("W/").unwrap_or(tag))
    }

    /// The value for `If-Range` in a request to `host`; weak tags must not be used there, and ones without quotes mean nothing.
    pub fn if_range(&self, host: &str) -> Option<&str> {
        let tag = self.strong_tag().filter(|tag| is_quoted(tag));
        let value = tag.or_else(|| self.modified.as_deref().filter(|_| self.is_old));
        value.filter(|_| self.host.as_ref().is_none_or(|own| own == host))
    }

    /// Whether `other`, from the same address over another route, seems to be of the same version: by a strong tag of the
    /// same host, or by the time of an FTP file.
    pub fn is_same_elsewhere(&self, other: &Self) -> bool {
        let is_ftp = self.host.is_none() && self.tag.is_none();
        let own = self.strong_tag().or_else(|| self.modified.as_deref().filter(|_| is_ftp));
        let others = other.strong_tag().or(other.modified.as_deref().filter(|_| is_ftp));
        self.host == other.host && own.is_some() && own == others
    }

    /// Whether it would show that another answer has other bytes. A weak tag may stay the same when bytes change: parts must
    /// not be joined by it (RFC 9110 §8.8.1).
    pub fn names_version(&self) -> bool {
        self.strong_tag().is_some() || self.modified.is_some()
    }

    /// Whether `other`, from the same HTTP server, has no field that could show other bytes than those of this one.
    pub fn is_lost_in(&self, other: &Self) -> bool {
        let has_tags = self.strong_tag().is_some() && other.strong_tag().is_some();
        let has_times = self.modified.is_some() && other.modified.is_some();
        self.host.is_some() && self.host == other.host && self.names_version() && !has_tags && !has_times
    }

    /// Whether `other` is of the same version.
    pub fn compare(&self, other: &Self) -> Same {
        if self.host.as_ref().zip(other.host.as_ref()).is_some_and(|(one, another)| one != another) {
            return Same::Unknown;
        }
        if let Some((one, another)) = self.strong_tag().zip(other.strong_tag()) {
            return if one == another { Same::Yes } else { Same::No };
        }
        // Weak tags do not prove equal bytes, but different ones belong to different versions.
        if self.opaque_tag().zip(other.opaque_tag()).is_some_and(|(one, another)| one != another) {
            return Same::No;
        }
        match self.modified.as_ref().zip(other.modified.as_ref()) {
            Some((one, another)) if one != another => Same::No,
            Some(_) if self.is_old => Same::Yes,
            _ => Same::Unknown,
        }
    }
}

fn is_quoted(tag: &str) -> bool {
    tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn validator(tag: Option<&str>, modified: Option<&str>, date: &str) -> Validator {
        Validator::new(tag, modified, httpdate::parse_http_date(date).ok())
    }

    #[test]
    fn weak_tags_and_fresh_dates_are_not_used_for_if_range() {
        assert_eq!(validator(Some("\"a\""), Some(EARLY), LATE).if_range("a"), Some("\"a\""));
        assert_eq!(validator(Some("W/\"a\""), None, LATE).if_range("a"), None);
        assert_eq!(validator(Some("W/\"a\""), Some(EARLY), LATE).if_range("a"), Some(EARLY));
        assert_eq!(
            validator(None, Some(EARLY), EARLY).if_range("a"),
            None,
            "it may change within the second"
        );
        for tag in ["", "W/bare", "two words", "a\"b", "\""] {
            assert_eq!(validator(Some(tag), Some("yesterday"), LATE), Validator::default(), "{tag}");
        }
    }

    #[test]
    fn a_tag_without_quotes_names_a_version_and_is_not_used_for_if_range() {
        let bare = validator(Some("5995n"), None, LATE);
        assert!(bare.names_version() && bare.if_range("a").is_none());
        assert_eq!(bare.compare(&bare), Same::Yes);
        assert_eq!(bare.compare(&validator(Some("5996n"), None, LATE)), Same::No);
        assert_eq!(validator(Some("5995n"), Some(EARLY), LATE).if_range("a"), Some(EARLY));
    }

    #[test]
    fn strong_tags_decide_before_dates() {
        let one = validator(Some("\"a\""), Some(EARLY), LATE);
        assert_eq!(one.compare(&validator(Some("\"a\""), Some(LATE), LATE)), Same::Yes);
        assert_eq!(one.compare(&validator(Some("\"b\""), Some(EARLY), LATE)), Same::No);
        assert_eq!(one.compare(&validator(Some("W/\"a\""), Some(EARLY), LATE)), Same::Yes);
        assert_eq!(one.compare(&validator(Some("W/\"b\""), Some(EARLY), LATE)), Same::No);
        assert_eq!(one.compare(&validator(None, Some(LATE), LATE)), Same::No);
        assert_eq!(one.compare(&Validator::default()), Same::Unknown);
    }

    #[test]
    fn weak_tags_show_a_change_but_no_sameness() {
        let [one, same, other] =
            ["W/\"a\"", "W/\"a\"", "W/\"b\""].map(|tag| validator(Some(tag), None, LATE));
        assert_eq!((one.compare(&same), one.compare(&other)), (Same::Unknown, Same::No));
    }

    #[test]
    fn an_answer_without_anything_to_compare_loses_the_version() {
        let of = |tag, modified| validator(tag, modified, LATE).of_host("near".to_owned());
        let (tag, weak, time) = (Some("\"a\""), Some("W/\"a\""), Some(EARLY));
        for (known, answer) in [
            ((tag, None), (None, None)),
            ((tag, None), (None, time)),
            ((None, time), (None, None)),
            ((tag, None), (weak, None)),
        ] {
            assert!(of(known.0, known.1).is_lost_in(&of(answer.0, answer.1)), "{known:?} {answer:?}");
        }
        for (known, answer) in
            [((tag, time), (None, time)), ((weak, None), (weak, None)), ((None, None), (None, None))]
        {
            assert!(!of(known.0, known.1).is_lost_in(&of(answer.0, answer.1)), "{known:?} {answer:?}");
        }
        assert!(!of(tag, None).is_lost_in(&Validator::default().of_host("far".to_owned())));
        assert!(of(tag, None).names_version() && of(weak, time).names_version());
        assert!(!of(weak, None).names_version() && !of(None, None).names_version());
    }

    #[test]
    fn a_strong_tag_of_one_host_and_the_time_of_an_ftp_file_suggest_the_same_file_over_another_route() {
        let tagged = |tag: &str, host: &str| validator(Some(tag), Some(EARLY), LATE).of_host(host.to_owned());
        let is_same = |one: &str, other: &str| tagged(one, "near").is_same_elsewhere(&tagged(other, "near"));
        assert!(is_same("\"a\"", "\"a\"") && !is_same("\"a\"", "\"b\"") && !is_same("W/\"a\"", "W/\"a\""));
        assert!(!tagged("\"a\"", "near").is_same_elsewhere(&tagged("\"a\"", "far")));
        let dated = validator(None, Some(EARLY), LATE).of_host("near".to_owned());
        assert!(!dated.is_same_elsewhere(&dated), "a date proves little");
        let ftp = Validator::of_time(Some(EARLY.to_owned()));
        assert!(
            ftp.is_same_elsewhere(&ftp) && !Validator::default().is_same_elsewhere(&Validator::default())
        );
    }

    #[test]
    fn versions_of_two_hosts_are_not_compared() {
        let [one, other] = ["\"a\"", "\"b\""].map(|tag| validator(Some(tag), Some(EARLY), LATE));
        let (near, far) = (one.of_host("near".into()), other.of_host("far".into()));
        assert_eq!(near.compare(&far), Same::Unknown);
        assert_eq!(near.compare(&far.clone().of_host("near".into())), Same::No);
        assert_eq!((near.if_range("near"), near.if_range("far")), (Some("\"a\""), None));
    }
}
