//! The head of an HTTP response: what it says about the bytes behind it, without I/O.
//!
//! A body belongs where its `Content-Range` says, whatever the status is. A status 200 without one is the whole file.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use anabranch_wire::Span;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName};

use super::validator::Validator;
use crate::checksum::Checksum;

/// Names whose content is compressed already. Servers often declare that as an encoding.
const COMPRESSED: [&str; 8] = [".gz", ".tgz", ".svgz", ".emz", ".wmz", ".bz2", ".xz", ".zst"];
/// Content types of files that are compressed themselves, which the same servers send with them.
const ARCHIVES: [&str; 4] =
    ["application/gzip", "application/x-gzip", "application/x-compress", "application/x-tgz"];

/// The largest size of a file.
const LARGEST: u64 = i64::MAX as u64;

/// A `Content-Range` (RFC 9110 §14.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentRange {
    /// These bytes of so many; `None` for `*`.
    Bytes(Range<u64>, Option<u64>),
    /// No bytes: the file has so many.
    Size(u64),
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_once([' ', '='])?;
        let (range, size) = rest.trim().split_once('/')?;
        let size = match size.trim() {
            "*" => None,
            size => Some(number(size)?),
        };
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        if range.trim() == "*" {
            return size.map(Self::Size);
        }
        let (first, last) = range.split_once('-')?;
        let range = number(first.trim())?..number(last.trim())?.checked_add(1)?;
        (range.start < range.end && size.is_none_or(|size| range.end <= size))
            .then_some(Self::Bytes(range, size))
    }
}

/// Whether the file at `path` is compressed itself, by its name.
fn is_compressed(path: &str) -> bool {
    let name = path.split('?').next().unwrap_or_default().to_ascii_lowercase();
    COMPRESSED.iter().any(|end| name.ends_with(end))
}

/// The codings of a body. Stores of Amazon's kind keep `aws-chunked`, the framing of an upload, although they send none.
fn encoding(text: &str) -> Option<String> {
    let is_none = |coding: &str| ["", "identity", "aws-chunked"].contains(&&*coding.to_ascii_lowercase());
    let codings: Vec<_> = text.split(',').map(str::trim).filter(|coding| !is_none(coding)).collect();
    (!codings.is_empty()).then(|| codings.join(", "))
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The parts of a head that matter.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// Which bytes follow. `Err` if the header cannot be read.
    pub content_range: Option<Result<ContentRange, ()>>,
    /// The length of the body.
    pub length: Option<u64>,
    /// Which version of the file it is.
    pub validator: Validator,
    /// The hash of the whole file by the server.
    pub digest: Option<Checksum>,
    /// The target of a redirect.
    pub location: Option<String>,
    /// The server's compression, and whether that is the file's own.
    encoding: Option<String>,
    is_archive: bool,
    is_multipart: bool,
    /// The server sends parts if asked.
    accepts_ranges: bool,
    is_html: bool,
    /// The server does not say what it sends.
    is_untyped: bool,
    retry_after: Option<Span>,
}

/// The meaning of a response for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The body begins at this byte of a file of so many.
    Part(u64, Option<u64>),
    /// The body is the whole file, of so many bytes.
    Whole(Option<u64>),
    /// The body is compressed. Ranges and the length are those of the compressed bytes.
    Packed {
        /// Whether it is the whole file.
        is_whole: bool,
    },
    /// The server has no such bytes; the file has so many.
    NoSuchBytes(Option<u64>),
    /// The file is elsewhere.
    Redirect(String),
    /// The server has no capacity.
    Busy(Option<Span>),
    /// The address is not valid (any more), by this status.
    Denied(u16),
    /// Another attempt may help.
    Retry(String),
    /// The answer contradicts itself or the request. Without a range, it may not.
    Malformed(String),
    /// No attempt helps.
    Useless(String),
}

impl Head {
    /// Reads the headers of a response; `now` is the time of day.
    pub fn read(status: u16, headers: &HeaderMap, now: SystemTime) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let date = text(header::DATE).and_then(|date| httpdate::parse_http_date(date).ok());
        let retry_after = text(header::RETRY_AFTER).and_then(|text| match text.parse::<u32>() {
            Ok(seconds) => Some(Span::from_secs(seconds.into())),
            Err(_) => {
                let at = httpdate::parse_http_date(text).ok()?;
                let pause = at.duration_since(date.unwrap_or(now)).unwrap_or(Duration::ZERO);
                Some(Span::from_secs(pause.as_secs()))
            }
        });
        let is_of_kind = |kind: &str| {
            text(header::CONTENT_TYPE).is_some_and(|has| has.to_ascii_lowercase().starts_with(kind))
        };
        let digest = |name| text(HeaderName::from_static(name)).and_then(Checksum::from_digest_header);
        Self {
            status,
            content_range: text(header::CONTENT_RANGE).map(|text| ContentRange::parse(text).ok_or(())),
            // Chunks have precedence (RFC 9112 §6.3).
            length: text(header::CONTENT_LENGTH)
                .filter(|_| !headers.contains_key(header::TRANSFER_ENCODING))
                .and_then(number),
            validator: Validator::new(text(header::ETAG), text(header::LAST_MODIFIED), date),
            digest: digest("repr-digest").or_else(|| digest("digest")),
            location: text(header::LOCATION).map(str::to_owned),
            encoding: text(header::CONTENT_ENCODING).and_then(encoding),
            is_archive: ARCHIVES.iter().any(|kind| is_of_kind(kind)),
            is_multipart: is_of_kind("multipart/byteranges"),
            accepts_ranges: text(header::ACCEPT_RANGES)
                .is_some_and(|unit| unit.eq_ignore_ascii_case("bytes")),
            is_html: is_of_kind("text/html"),
            is_untyped: !headers.contains_key(header::CONTENT_TYPE),
            retry_after,
        }
    }

    /// Whether the server sends something as the file and calls it a web page.
    pub fn is_page(&self) -> bool {
        self.is_html && (200..=299).contains(&self.status)
    }

    /// Whether the server does not say what it sends.
    pub fn is_untyped(&self) -> bool {
        self.is_untyped
    }

    /// Whether the body has all bytes of the file.
    pub fn is_all(&self) -> bool {
        match &self.content_range {
            Some(Ok(ContentRange::Bytes(range, size))) => Some(range.end - range.start) == *size,
            Some(_) => false,
            None => self.status == 200,
        }
    }

    /// Whether the server says that it sends parts.
    pub fn accepts_ranges(&self) -> bool {
        self.accepts_ranges
    }

    /// The same without the server's compression, which it does not do.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { encoding: None, ..self }
    }

    /// The same for a response from the target of a redirect, which has a name of its own.
    #[must_use]
    pub fn at(self, path: &str) -> Self {
        Self { is_archive: self.is_archive || is_compressed(path), ..self }
    }

    /// Judges the response to a request for bytes from `start` on. `path` is that of the file.
    pub fn judge(&self, start: u64, path: &str) -> Verdict {
        match self.status {
            200..=299 => self.judge_success(start, path),
            301 | 302 | 303 | 307 | 308 => match &self.location {
                Some(location) => Verdict::Redirect(location.clone()),
                None => Verdict::Useless("the server redirects to nowhere".to_owned()),
            },
            // Some stores answer 400 to a signed link that has expired.
            400 | 401 | 403 | 404 | 410 => Verdict::Denied(self.status),
            416 => Verdict::NoSuchBytes(match self.content_range {
                Some(Ok(ContentRange::Size(size))) => Some(size),
                _ => None,
            }),
            429 | 503 => Verdict::Busy(self.retry_after),
            408 | 425 | 500..=599 => Verdict::Retry(format!("the server answers {}", self.status)),
            304 => Verdict::Malformed("the server answers that nothing changed (304)".to_owned()),
            status => Verdict::Useless(format!("the server answers {status}")),
        }
    }

    fn judge_success(&self, start: u64, path: &str) -> Verdict {
        if let Some(encoding) = &self.encoding
            && !self.is_archive
            && !is_compressed(path)
        {
            let is_whole = self.status == 200 && self.content_range.is_none() && !self.is_multipart;
            return match &*encoding.to_ascii_lowercase() {
                "gzip" | "x-gzip" => Verdict::Packed { is_whole },
                _ => Verdict::Useless(format!(
                    "the server compresses the file ({encoding}) although asked not to"
                )),
            };
        }
        match &self.content_range {
            Some(Ok(ContentRange::Bytes(range, _)))
                if self.length.is_some_and(|length| length > range.end - range.start) =>
            {
                Verdict::Malformed("the server sends more bytes than it says".to_owned())
            }
            Some(Ok(ContentRange::Bytes(_, Some(size)))) if *size > LARGEST => {
                Verdict::Useless(format!("the server announces an impossible size ({size} bytes)"))
            }
            Some(Ok(ContentRange::Bytes(range, size))) if range.start <= start && start < range.end => {
                Verdict::Part(range.start, *size)
            }
            Some(_) => Verdict::Malformed("the server sends other bytes than asked for".to_owned()),
            None if self.is_multipart => {
                Verdict::Malformed("the server sends several parts at once".to_owned())
            }
            None if self.status == 206 => {
                Verdict::Malformed("the server does not say which bytes it sends".to_owned())
            }
            None if self.status == 200 => Verdict::Whole(self.length),
            None => Verdict::Useless(format!("the server answers {} without a file", self.status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &str)]) -> Head {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        Head::read(status, &map, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn a_part_longer_than_its_range_is_refused() {
        let judged = |length| {
            let headers = [("content-range", "bytes 1000-1999/5000"), ("content-length", length)];
            head(206, &headers).judge_success(1000, "/file")
        };
        assert!(matches!(judged("1000"), Verdict::Part(1000, _)));
        assert!(matches!(judged("5000"), Verdict::Malformed(_)));
    }

    #[test]
    fn the_content_range_decides_whatever_the_status_is() {
        let range = ("content-range", "bytes 100-199/500");
        assert_eq!(head(206, &[range]).judge(100, "/a"), Verdict::Part(100, Some(500)));
        assert_eq!(head(200, &[range]).judge(100, "/a"), Verdict::Part(100, Some(500)));
        assert_eq!(
            head(206, &[range]).judge(150, "/a"),
            Verdict::Part(100, Some(500)),
            "an earlier start overlaps"
        );
        assert!(matches!(head(206, &[range]).judge(99, "/a"), Verdict::Malformed(_)), "a hole");
        assert!(matches!(head(206, &[range]).judge(200, "/a"), Verdict::Malformed(_)));
        assert!(matches!(head(206, &[]).judge(0, "/a"), Verdict::Malformed(_)));
        assert_eq!(head(200, &[("content-length", "7")]).judge(5, "/a"), Verdict::Whole(Some(7)));
        let both = [("content-length", "7"), ("transfer-encoding", "chunked")];
        assert_eq!(head(200, &both).judge(5, "/a"), Verdict::Whole(None));
        let unknown = ("content-range", "bytes 0-9/*");
        assert_eq!(head(206, &[unknown]).judge(0, "/a"), Verdict::Part(0, None));
    }

    #[test]
    fn a_content_range_that_contradicts_itself_is_refused() {
        for text in [
            "bytes 9-5/10",
            "bytes 0-10/10",
            "bytes -5/10",
            "bytes 0-/10",
            "items 0-5/10",
            "bytes +1-5/10",
            "bytes 1-18446744073709551615/*",
            "bytes 0-5",
        ] {
            assert!(
                matches!(head(206, &[("content-range", text)]).judge(0, "/a"), Verdict::Malformed(_)),
                "{text}"
            );
        }
        let huge = head(206, &[("content-range", "bytes 0-5/18446744073709551615")]).judge(0, "/a");
        assert!(matches!(&huge, Verdict::Useless(why) if why.contains("impossible size")), "{huge:?}");
        let size = head(416, &[("content-range", "bytes */0")]);
        assert_eq!(size.judge(0, "/a"), Verdict::NoSuchBytes(Some(0)));
    }

    #[test]
    fn a_compressed_body_is_a_whole_file_unless_the_file_itself_is_compressed() {
        let gzip = [("content-encoding", "GZIP"), ("content-length", "9")];
        assert_eq!(head(200, &gzip).judge(0, "/a.txt"), Verdict::Packed { is_whole: true });
        let part = [gzip[0], ("content-range", "bytes 0-8/9")];
        assert_eq!(head(206, &part).judge(0, "/a.txt"), Verdict::Packed { is_whole: false });
        assert_eq!(head(200, &part).judge(0, "/a.txt"), Verdict::Packed { is_whole: false });
        assert_eq!(head(200, &gzip).judge(0, "/a.tar.gz?x=.txt"), Verdict::Whole(Some(9)));
        assert_eq!(head(200, &gzip).at("/b.tgz").judge(0, "/latest"), Verdict::Whole(Some(9)));
        let typed = [gzip[0], gzip[1], ("content-type", "application/x-gzip")];
        assert_eq!(head(200, &typed).judge(0, "/latest"), Verdict::Whole(Some(9)));
        for other in ["br", "deflate", "gzip, gzip"] {
            let judged = head(200, &[("content-encoding", other)]).judge(0, "/a");
            assert!(matches!(&judged, Verdict::Useless(why) if why.contains(other)), "{other}");
        }
        for plain in ["identity", "", "aws-chunked", "AWS-Chunked, identity"] {
            let judged = head(200, &[("content-encoding", plain)]).judge(0, "/a");
            assert_eq!(judged, Verdict::Whole(None), "{plain}");
        }
        let stored = head(200, &[("content-encoding", "aws-chunked,gzip")]);
        assert_eq!(stored.judge(0, "/a.txt"), Verdict::Packed { is_whole: true });
    }

    #[test]
    fn a_busy_server_may_name_its_pause_in_seconds_or_as_a_date() {
        assert_eq!(head(429, &[("retry-after", "7")]).judge(0, "/"), Verdict::Busy(Some(Span::from_secs(7))));
        let dated =
            [("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")];
        assert_eq!(head(503, &dated).judge(0, "/"), Verdict::Busy(Some(Span::from_secs(10))));
        assert_eq!(head(503, &[("retry-after", "soon")]).judge(0, "/"), Verdict::Busy(None));
    }
}
