//! Addresses of files: `http`, `https`, `ftp` and `ftps` URLs (RFC 3986, without fragments).

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP without encryption.
    Http,
    /// HTTP over TLS.
    Https,
    /// FTP without encryption.
    Ftp,
    /// FTP over TLS, which begins encrypted (`ftps://`).
    Ftps,
}

impl Scheme {
    const ALL: [(Self, &str, u16); 4] = [
        (Self::Http, "http", 80),
        (Self::Https, "https", 443),
        (Self::Ftp, "ftp", 21),
        (Self::Ftps, "ftps", 990),
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn port(self) -> u16 {
        Self::ALL[self as usize].2
    }

    /// True for HTTP and HTTPS.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    /// True when the connection begins with TLS.
    pub fn is_encrypted(self) -> bool {
        matches!(self, Self::Https | Self::Ftps)
    }
}

/// Where a file is.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    /// User name and password as written, percent-encoded.
    user: Option<String>,
    host: String,
    port: u16,
    /// Path and query; begins with a slash.
    path: String,
}

impl Url {
    /// The protocol.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host: a name, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of a file on an FTP server, decoded (RFC 1738 §3.2.2); `None` if it names no file.
    pub fn file_path(&self) -> Option<String> {
        let path = self.path.trim_start_matches('/').split(";type=").next().unwrap_or_default();
        let path = percent_decode_str(path).decode_utf8().ok()?.into_owned();
        (!path.is_empty() && !path.ends_with('/') && !path.contains(['\r', '\n', '\0'])).then_some(path)
    }

    /// The host, with the port unless it is the usual one.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.port() { host } else { format!("{host}:{}", self.port) }
    }

    /// User name and password, decoded.
    pub fn user(&self) -> Option<(String, String)> {
        let (name, password) = self.user.as_ref()?.split_once(':').unwrap_or((self.user.as_ref()?, ""));
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Some((decoded(name), decoded(password)))
    }

    /// Whether both lead to the same server.
    pub fn same_server(&self, other: &Self) -> bool {
        (self.scheme, &self.host, self.port) == (other.scheme, &other.host, other.port)
    }

    /// The name for a file from there: the last part of the path, decoded, without anything a file system or a terminal
    /// could misread.
    pub fn file_name(&self) -> Option<String> {
        let path = self.path.split('?').next().unwrap_or_default();
        let last =
            percent_decode_str(path.rsplit('/').next().unwrap_or_default()).decode_utf8_lossy().into_owned();
        safe_name(&last)
    }

    /// The address that a redirect from here leads to (RFC 3986 §5.2); user and password stay with their server.
    pub fn join(&self, to: &str) -> Result<Self, String> {
        let to = to.split('#').next().unwrap_or_default().trim();
        let absolute = to.split_once("://").is_some_and(|(scheme, _)| {
            scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        });
        let mut joined: Self = if absolute {
            to.parse()?
        } else if let Some(rest) = to.strip_prefix("//") {
            format!("{}://{rest}", self.scheme.as_str()).parse()?
        } else {
            let here = self.path.split('?').next().unwrap_or("/");
            let path = match to.as_bytes().first() {
                Some(b'/') => to.to_owned(),
                Some(b'?') => format!("{here}{to}"),
                None => self.path.clone(),
                Some(_) => format!("{}/{to}", here.rsplit_once('/').map_or("", |(folder, _)| folder)),
            };
            Self { path: normal(&encoded(&path)?), ..self.clone() }
        };
        if joined.user.is_none() && joined.same_server(self) {
            joined.user.clone_from(&self.user);
        }
        Ok(joined)
    }
}

/// The longest name for a file, in bytes: file systems take 255, and the unfinished file has a longer name.
const LONGEST_NAME: usize = 200;
/// The longest end of a name that is kept when the name is cut, such as `.tar.gz`.
const LONGEST_END: usize = 32;

/// A name that is safe to create: no folder, nothing hidden, no control characters. A long one keeps its extension.
pub fn safe_name(name: &str) -> Option<String> {
    let plain: String =
        name.chars().map(|c| if c == '/' || c == '\\' || c.is_control() { '_' } else { c }).collect();
    let plain = plain.trim().trim_start_matches('.');
    if plain.len() <= LONGEST_NAME {
        return (!plain.is_empty()).then(|| plain.to_owned());
    }
    let extension = extension(plain);
    let mut end = LONGEST_NAME - extension.len();
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    Some(format!("{}{extension}", &plain[..end]))
}

/// The end of a name from its last dot on, or from the one before in `.tar.gz`; empty without one or if it is long.
fn extension(name: &str) -> &str {
    let Some((stem, _)) = name.rsplit_once('.') else { return "" };
    let is_tar = stem.len() > 4 && stem.as_bytes()[stem.len() - 4..].eq_ignore_ascii_case(b".tar");
    let end = &name[if is_tar { stem.len() - 4 } else { stem.len() }..];
    if end.len() <= LONGEST_END { end } else { "" }
}

/// Resolves `.` and `..` (RFC 3986 §5.2.4).
fn normal(path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let mut parts: Vec<&str> = Vec::new();
    let last = path.rsplit('/').next().unwrap_or_default();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut text = format!("/{}", parts.join("/"));
    if matches!(last, "." | "..") && !text.ends_with('/') {
        text.push('/');
    }
    if let Some(query) = query {
        text = format!("{text}?{query}");
    }
    text
}

/// Percent-encodes what a request line cannot carry.
fn encoded(path: &str) -> Result<String, String> {
    if path.len() > 8192 {
        return Err("the address is too long".to_owned());
    }
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'!'..=b'~' if !b"\"<>\\^`{|}".contains(&byte) => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(text)
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("`{text}` is no address to fetch: {why}");
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("write https://HOST/FILE"))?;
        let scheme = Scheme::ALL.iter().find(|(_, name, _)| scheme.eq_ignore_ascii_case(name));
        let (scheme, ..) = *scheme.ok_or_else(|| wrong("it must begin with https, http, ftp or ftps"))?;
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (server, path) = rest.split_at(end);
        let (user, server) = server.rsplit_once('@').map_or((None, server), |(user, at)| (Some(user), at));
        let (host, port) = match server.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(|| wrong("a `]` is missing"))?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong("the brackets hold no IPv6 address"))?;
                (host, port.strip_prefix(':').unwrap_or(port))
            }
            None => server.split_once(':').unwrap_or((server, "")),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if host.is_empty() || host.len() > 253 || !host.chars().all(is_name) {
            return Err(wrong("the host's name has letters that names cannot have; write its `xn--` form"));
        }
        let port = match port {
            "" => scheme.port(),
            port => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?,
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let path = normal(&encoded(&path).map_err(|why| wrong(&why))?);
        let (user, host) = (user.map(str::to_owned), host.to_ascii_lowercase());
        Ok(Self { scheme, user, host, port, path })
    }
}

/// Without user name and password, for people and logs.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.authority(), self.path)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_read_in_parts() {
        let read = url("HTTPS://Me:p%40ss@Example.org:8443/a%20b/c d?x=1#part");
        assert_eq!((read.scheme(), read.host(), read.port()), (Scheme::Https, "example.org", 8443));
        assert_eq!(read.path(), "/a%20b/c%20d?x=1");
        assert_eq!(read.user(), Some(("Me".to_owned(), "p@ss".to_owned())));
        assert_eq!(read.file_name().unwrap(), "c d");
        assert_eq!(read.to_string(), "https://example.org:8443/a%20b/c%20d?x=1", "no password is shown");
        assert_eq!(url("ftp://[2001:db8::1]").authority(), "[2001:db8::1]");
        for wrong in [
            "example.org/a",
            "gopher://a/",
            "http://",
            "http://a:0/",
            "http://a:x/",
            "http://[::1/",
            "http://é/",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn redirects_are_resolved_and_a_password_stays_with_its_server() {
        let from = url("https://me:pw@a.example/x/y/z?q");
        for (to, leads) in [
            ("http://b.example/1", "http://b.example/1"),
            ("//c.example/2", "https://c.example/2"),
            ("/3", "https://a.example/3"),
            ("4", "https://a.example/x/y/4"),
            ("../5?r", "https://a.example/x/5?r"),
            ("?6", "https://a.example/x/y/z?6"),
            ("../../../../7", "https://a.example/7"),
            ("/go?to=http://b.example/", "https://a.example/go?to=http://b.example/"),
        ] {
            assert_eq!(from.join(to).unwrap().to_string(), leads, "{to}");
        }
        assert!(from.join("/3").unwrap().user().is_some());
        assert!(from.join("https://b.example/").unwrap().user().is_none());
        assert!(from.join("https://a.example:444/").unwrap().user().is_none());
    }

    #[test]
    fn a_file_name_cannot_leave_its_folder_or_hide() {
        for (path, name) in [
            ("a/b.iso", Some("b.iso")),
            ("a/..%2f..%2fetc", Some("_.._etc")),
            ("a/", None),
            ("...", None),
            ("%2ebashrc", Some("bashrc")),
            ("a%0ab", Some("a_b")),
            ("a/b?name=c", Some("b")),
        ] {
            assert_eq!(url(&format!("http://a/{path}")).file_name().as_deref(), name, "{path}");
        }
    }

    #[test]
    fn a_long_name_is_cut_and_keeps_its_extension() {
        let (long, letters) = ("x".repeat(300), "é".repeat(150));
        for (name, end, len) in [
            (format!("{long}.iso"), "x.iso", 200),
            (format!("{long}.tar.gz"), "x.tar.gz", 200),
            (format!("{letters}.TAR.xz"), "é.TAR.xz", 199),
            (format!("{letters}.é"), "é.é", 199),
            (format!("a.{long}"), "x", 200),
            (long.clone(), "x", 200),
            (format!("{}.iso", "x".repeat(196)), "x.iso", 200),
        ] {
            let safe = safe_name(&name).unwrap();
            assert!(safe.ends_with(end) && safe.len() == len, "{name}: {safe}, {} bytes", safe.len());
            assert_eq!(safe[..100], name[..100]);
        }
    }

    proptest! {
        #[test]
        fn names_stay_short(name in ".{0,300}") {
            prop_assert!(safe_name(&name).is_none_or(|safe| !safe.is_empty() && safe.len() <= LONGEST_NAME));
        }

        #[test]
        fn no_text_makes_the_parser_fail(text in ".{0,80}", to in ".{0,40}") {
            let _ = text.parse::<Url>();
            if let Ok(joined) = url("http://a/b/c").join(&to) {
                prop_assert!(joined.path().starts_with('/') && joined.path().is_ascii());
                prop_assert!(joined.file_name().is_none_or(|name| !name.contains('/')));
            }
        }
    }
}
