//! The version of a file, and what a request wants of it: conditions and ranges (RFC 9110 §13, §14).

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

/// For so long after a change, another one may leave the same times.
const COARSEST_CLOCK: Duration = Duration::from_secs(2);
/// Seconds since 1970 at which HTTP's dates end, with the year 9999.
const LAST_DATE: u64 = 253_402_300_800;

/// A version of a file.
pub(super) struct Version {
    /// The entity tag, without the mark of weak ones.
    tag: String,
    /// The last change, in whole seconds.
    modified: Option<SystemTime>,
    /// Every later change shows in the tag, so parts of equal versions fit together.
    is_settled: bool,
}

impl Version {
    pub fn of(meta: &Metadata, now: SystemTime) -> Self {
        let age = date(meta.ctime()).and_then(|changed| now.duration_since(changed).ok());
        let is_settled = age.is_some_and(|age| age >= COARSEST_CLOCK);
        // Programs can set the time of modification, but not that of the last change. A settled version has another tag, so
        // that what was read before a last change within the same times is not taken for it.
        let (number, len, seconds) = (meta.ino(), meta.len(), meta.ctime());
        let seen = format!("{number} {len} {seconds}.{} {is_settled}", meta.ctime_nsec());
        let tag = format!("\"{}\"", &blake3::hash(seen.as_bytes()).to_hex()[..32]);
        let modified = date(meta.mtime()).filter(|modified| *modified <= now);
        Self { tag, modified, is_settled }
    }

    /// `ETag`, weak while another change could leave the same tag.
    pub fn tag(&self) -> String {
        if self.is_settled { self.tag.clone() } else { format!("W/{}", self.tag) }
    }

    /// `Last-Modified`.
    pub fn modified(&self) -> Option<String> {
        self.modified.map(httpdate::fmt_http_date)
    }

    /// The status if the conditions of the request do not hold.
    pub fn check(&self, headers: &HeaderMap) -> Option<StatusCode> {
        let since = |name| text(headers, name).and_then(|text| httpdate::parse_http_date(text).ok());
        let is_other = if headers.contains_key(header::IF_MATCH) {
            !self.is_listed(headers, header::IF_MATCH, |tag| self.is_settled && tag == self.tag)
        } else {
            let limit = since(header::IF_UNMODIFIED_SINCE);
            limit.zip(self.modified).is_some_and(|(limit, modified)| modified > limit)
        };
        if is_other {
            return Some(StatusCode::PRECONDITION_FAILED);
        }
        let is_known = if headers.contains_key(header::IF_NONE_MATCH) {
            self.is_listed(headers, header::IF_NONE_MATCH, |tag| {
                tag.strip_prefix("W/").unwrap_or(tag) == self.tag
            })
        } else {
            let limit = since(header::IF_MODIFIED_SINCE);
            limit.zip(self.modified).is_some_and(|(limit, modified)| modified <= limit)
        };
        is_known.then_some(StatusCode::NOT_MODIFIED)
    }

    fn is_listed(&self, headers: &HeaderMap, name: HeaderName, is_same: impl Fn(&str) -> bool) -> bool {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| tag == "*" || is_same(tag))
    }

    /// Whether a part fits the parts that the client has (`If-Range`). Clients have the tag; a date does not do, because
    /// several versions may have one time of modification (RFC 9110 §8.8.2.2).
    pub fn is_wanted_in_part(&self, headers: &HeaderMap) -> bool {
        headers.get(header::IF_RANGE).is_none_or(|value| self.is_settled && value == self.tag.as_str())
    }
}

/// The bytes that a request wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    Part(Range<u64>),
    /// None that the file has.
    Nothing,
}

/// The range that a request wants of a file of this length. Several ranges, and those that break the rules, get the whole
/// file, as RFC 9110 §14.2 allows.
pub(super) fn wanted(headers: &HeaderMap, len: u64) -> Wanted {
    let range = text(headers, header::RANGE).and_then(|text| text.split_once('='));
    let range = range.filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = range.and_then(|(_, range)| range.trim().split_once('-')) else {
        return Wanted::All;
    };
    let (first, last) = match (first, number(first), last, number(last)) {
        ("", _, _, Some(count)) => (len.saturating_sub(count), if count == 0 { 0 } else { len }),
        (_, Some(first), "", _) => (first, len),
        (_, Some(first), _, Some(last)) if first <= last => (first, last.saturating_add(1).min(len)),
        _ => return Wanted::All,
    };
    if first < last { Wanted::Part(first..last) } else { Wanted::Nothing }
}

/// A number of decimal digits alone; one that is too large is past the end of every file.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The time of these seconds since 1970, if HTTP has a date for it.
pub(super) fn date(seconds: i64) -> Option<SystemTime> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds < LAST_DATE)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
