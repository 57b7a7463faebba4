//! HTTP as a proxy sees it, without I/O: CONNECT, and requests that name a whole URL.
//!
//! The head of a plain request is written anew: the URL becomes a path, headers for the proxy go, and `Connection: close` makes the
//! server end the connection with its response. Each request gets a connection: of the bytes behind the head, only its body is sent.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::body::{Body, ENDS_BODY};
use crate::message::Outcome;
use crate::target::Target;

/// Most headers of a request or an answer.
pub(crate) const MOST_HEADERS: usize = 100;
/// Longest head of a request, in bytes.
pub const LONGEST_HEAD: usize = 16 << 10;
/// The path at which a browser finds its settings.
const PAC_PATH: &str = "/proxy.pac";
/// Headers between a client and its proxy (RFC 9110 §7.6.1 and what browsers send).
const FOR_THE_PROXY: [&str; 6] =
    ["connection", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"];

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A connection, to be answered with [`ESTABLISHED`].
    Connect(Target),
    /// A connection for one plain request.
    Forward {
        /// The server.
        to: Target,
        /// The head to send there.
        head: Vec<u8>,
        /// The body that follows the head.
        body: Body,
    },
    /// The browser's settings, see [`pac`].
    Settings,
}

/// The answer when a CONNECT is open.
pub const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not HTTP.
    #[error("this is not an HTTP request")]
    Syntax,
    /// The head is too long.
    #[error("the request's head is longer than {LONGEST_HEAD} bytes or has more than {MOST_HEADERS} headers")]
    TooLong,
    /// The request names no URL with a host, as requests to a proxy do.
    #[error("this is a proxy: configure it as one, or fetch {PAC_PATH} from it")]
    NoUrl,
    /// The URL's scheme is not http.
    #[error("only http URLs are fetched by a proxy; for others, use CONNECT or SOCKS")]
    Scheme,
    /// Its length is not a number, it has both a length and chunks, or two lengths, or chunks in HTTP/1.0.
    #[error("the request does not say clearly where its body ends")]
    Length,
    /// The destination is not a host with a port.
    #[error("the destination is not understood")]
    Destination,
}

/// Reads a request's head and its length; `None` while bytes are missing.
pub fn request(bytes: &[u8]) -> Result<Option<(Request, usize)>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= LONGEST_HEAD => length,
        Ok(httparse::Status::Partial) if bytes.len() < LONGEST_HEAD => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Malformed::TooLong),
        Err(_) => return Err(Malformed::Syntax),
    };
    let (Some(method), Some(target)) = (parsed.method, parsed.path) else { return Err(Malformed::Syntax) };
    if method.eq_ignore_ascii_case("CONNECT") {
        let to = authority(target, None).ok_or(Malformed::Destination)?;
        return Ok(Some((Request::Connect(to), length)));
    }
    if target.starts_with('/') {
        let is_settings = target == PAC_PATH && method == "GET";
        return if is_settings { Ok(Some((Request::Settings, length))) } else { Err(Malformed::NoUrl) };
    }
    let (scheme, rest) = target.split_once("://").ok_or(Malformed::NoUrl)?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Malformed::Scheme);
    }
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_credentials, host)| host);
    let to = authority(host, Some(80)).ok_or(Malformed::Destination)?;
    let minor = parsed.version.unwrap_or(1);
    let (head, upgrades) = forwarded((method, path, host), minor, parsed.headers);
    let body = Body::announced(parsed.headers, (minor, upgrades)).ok_or(Malformed::Length)?;
    Ok(Some((Request::Forward { to, head, body }, length)))
}

/// Reads `HOST:PORT`; the port may be missing if there is a usual one.
fn authority(text: &str, usual_port: Option<u16>) -> Option<Target> {
    let colon = text.rfind(':').filter(|colon| !text[*colon..].contains(']'));
    let (host, port) = match colon {
        Some(colon) => (&text[..colon], text[colon + 1..].parse().ok()?),
        None => (text, usual_port?),
    };
    Target::from_host(host, port).filter(|_| !host.contains(':') || host.starts_with('['))
}

/// The head for the server, and whether the connection may change to another protocol.
fn forwarded(
    (method, path, host): (&str, &str, &str),
    minor: u8,
    headers: &[httparse::Header<'_>],
) -> (Vec<u8>, bool) {
    let value_of = |name: &str| {
        let found = headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        found
            .map(|header| String::from_utf8_lossy(header.value).to_ascii_lowercase())
            .collect::<Vec<_>>()
            .join(",")
    };
    // A connection may name further headers that are meant for the proxy.
    let connection = value_of("connection");
    let named: Vec<&str> = connection.split(',').map(str::trim).collect();
    // HTTP/2 would need the settings, which are meant for the proxy.
    let is_http2 = value_of("upgrade").split(',').any(|protocol| protocol.trim() == "h2c");
    let upgrades = named.contains(&"upgrade") && !is_http2;
    let path = path.split('#').next().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut start = String::new();
    let _ = write!(start, "{method} {slash}{path} HTTP/1.{minor}\r\nHost: {host}\r\n");
    let mut head = start.into_bytes();
    for header in headers {
        let name = header.name.to_ascii_lowercase();
        let is_upgrade = upgrades && name == "upgrade";
        // Without them, the server would take the body for another request.
        let ends_body = ENDS_BODY.contains(&&*name);
        if !is_upgrade && !ends_body && (FOR_THE_PROXY.contains(&&*name) || named.contains(&&*name)) {
            continue;
        }
        for part in [header.name.as_bytes(), b": ", header.value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    let last: &[u8] = if upgrades { b"Connection: Upgrade\r\n\r\n" } else { b"Connection: close\r\n\r\n" };
    head.extend_from_slice(last);
    (head, upgrades)
}

/// The response to a request that failed; `None` when the exit is not reached.
pub fn failure(outcome: Option<Outcome>) -> Vec<u8> {
    let status = match outcome {
        None | Some(Outcome::Busy) => "503 Service Unavailable",
        Some(Outcome::Denied | Outcome::UsedUp) => "403 Forbidden",
        Some(Outcome::Silent) => "504 Gateway Timeout",
        Some(_) => "502 Bad Gateway",
    };
    response(
        status,
        "text/plain",
        outcome.map_or("the exit does not answer; it is dialed again", Outcome::text),
    )
}

/// The response to a malformed request.
pub fn rejection(malformed: Malformed) -> Vec<u8> {
    let status = match malformed {
        Malformed::TooLong => "431 Request Header Fields Too Large",
        Malformed::Scheme => "501 Not Implemented",
        _ => "400 Bad Request",
    };
    response(status, "text/plain", &malformed.to_string())
}

/// The response to a client that takes too long.
pub fn too_slow() -> Vec<u8> {
    response("408 Request Timeout", "text/plain", "the request was not complete in time")
}

/// The response with a browser's settings: names without a dot and this machine are reached directly, all else through the proxy.
pub fn pac(proxy: SocketAddr) -> Vec<u8> {
    let script = format!(
        "function FindProxyForURL(url, host) {{\n  \
         if (isPlainHostName(host) || host === \"127.0.0.1\" || host === \"[::1]\") return \"DIRECT\";\n  \
         return \"SOCKS5 {proxy}; PROXY {proxy}\";\n}}"
    );
    response("200 OK", "application/x-ns-proxy-autoconfig", &script)
}

fn response(status: &str, kind: &str, text: &str) -> Vec<u8> {
    let length = text.len() + 1;
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn forward(text: &str) -> (String, String) {
        match request(text.as_bytes()) {
            Ok(Some((Request::Forward { to, head, .. }, _))) => {
                (to.to_string(), String::from_utf8(head).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn connect_names_a_host_and_a_port() {
        let connect = |to: &str| request(format!("CONNECT {to} HTTP/1.1\r\nHost: x\r\n\r\nmore").as_bytes());
        for to in ["example.org:443", "[2001:db8::1]:443", "192.0.2.1:22"] {
            let (request, length) = connect(to).unwrap().unwrap();
            assert_eq!(request, Request::Connect(to.parse().unwrap()));
            assert_eq!(length, format!("CONNECT {to} HTTP/1.1\r\nHost: x\r\n\r\n").len());
        }
        for to in ["example.org", "2001:db8::1:443", "a:99999", "http://a:1/"] {
            assert_eq!(connect(to), Err(Malformed::Destination), "{to}");
        }
    }

    #[test]
    fn a_url_becomes_a_path_and_headers_for_the_proxy_go() {
        let (to, head) = forward(
            "GET http://user:secret@Example.org:8080/a?b#c HTTP/1.1\r\nHost: other\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic eDp5\r\nConnection: keep-alive, X-Own\r\nX-Own: 1\r\nAccept: */*\r\n\r\n",
        );
        assert_eq!(to, "example.org:8080");
        assert_eq!(
            head,
            "GET /a?b HTTP/1.1\r\nHost: Example.org:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(forward("GET http://a.example HTTP/1.0\r\n\r\n").0, "a.example:80");
        assert!(
            forward("GET http://[::1]?x HTTP/1.1\r\n\r\n")
                .1
                .starts_with("GET /?x HTTP/1.1\r\nHost: [::1]\r\n")
        );
    }

    #[test]
    fn a_request_with_a_length_and_chunks_is_refused() {
        let both =
            "POST http://a.example/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(request(both.as_bytes()), Err(Malformed::Length));
        assert!(rejection(Malformed::Length).starts_with(b"HTTP/1.1 400 "));
    }

    #[test]
    fn a_connection_that_names_the_end_of_the_body_does_not_take_it_away() {
        for end in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
            let (_, head) = forward(&format!(
                "POST http://a.example/ HTTP/1.1\r\nConnection: content-length, transfer-encoding, X\r\nX: 1\r\n{end}\r\n\r\n"
            ));
            let rest = format!("Host: a.example\r\n{end}\r\nConnection: close\r\n\r\n");
            assert!(head.ends_with(&rest), "{head}");
        }
    }

    #[test]
    fn an_upgrade_is_kept() {
        let (_, head) =
            forward("GET http://a.example/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        assert!(head.ends_with("Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"), "{head}");
        let (_, head) = forward(
            "GET http://a.example/ HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n",
        );
        assert!(head.ends_with("Host: a.example\r\nConnection: close\r\n\r\n"), "{head}");
    }

    #[test]
    fn other_requests_are_told_what_is_wrong() {
        let error = |text: &str| request(text.as_bytes()).unwrap_err();
        assert_eq!(error("GET / HTTP/1.1\r\n\r\n"), Malformed::NoUrl);
        assert_eq!(error("GET https://a.example/ HTTP/1.1\r\n\r\n"), Malformed::Scheme);
        assert_eq!(error("\x16\x03\x01"), Malformed::Syntax);
        assert_eq!(error(&format!("GET http://a.example/{} ", "x".repeat(LONGEST_HEAD))), Malformed::TooLong);
        assert_eq!(error(&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101))), Malformed::TooLong);
        assert!(request(b"GET http://a.example/ HTTP/1.1\r\nHost: a").unwrap().is_none());
        let settings = request(b"GET /proxy.pac HTTP/1.1\r\n\r\n").unwrap().unwrap().0;
        assert_eq!(settings, Request::Settings);
    }

    #[test]
    fn failures_have_their_status() {
        let status = |outcome| String::from_utf8(failure(outcome)).unwrap()[9..12].to_owned();
        let all = Outcome::ALL[1..].iter().map(|outcome| status(Some(*outcome))).collect::<Vec<_>>();
        assert_eq!(all, ["502", "502", "403", "503", "502", "504", "403"]);
        assert_eq!(status(None), "503");
        let settings = String::from_utf8(pac("127.0.0.1:1080".parse().unwrap())).unwrap();
        assert!(settings.contains("return \"SOCKS5 127.0.0.1:1080; PROXY 127.0.0.1:1080\";"), "{settings}");
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(
            method in "(GET|CONNECT|POST|[ -~]{0,5})",
            target in "(http://)?[ -~]{0,40}",
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
            bytes.extend(rest);
            bytes.extend(b"\r\n\r\n");
            if let Ok(Some((_, length))) = request(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }

        #[test]
        fn a_forwarded_head_is_a_request_and_adds_no_line(path in "[!-~]{0,40}", value in "[ -~]{0,40}") {
            let text = format!("GET http://a.example/{path} HTTP/1.1\r\nX: {value}\r\n\r\n");
            if let Ok(Some((Request::Forward { head, .. }, _))) = request(text.as_bytes()) {
                prop_assert_eq!(head.windows(2).filter(|pair| *pair == b"\r\n").count(), 5);
            }
        }
    }
}
