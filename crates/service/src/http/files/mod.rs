//! Files and directories for browsers, `curl` and `anabranch fetch`: GET and HEAD with ranges and conditions (RFC 9110).
//!
//! [`Files`] opens the file or directory at a path and refuses bad paths. Everyone who reaches the address may read
//! everything, without a token. Requests must name an address or a private name as their host, or a web page with a name
//! of its own could read the files (DNS rebinding). Browsers get scripts and pages as downloads: shown, a hostile file
//! could read the others.
//!
//! | limit | value |
//! |---|---|
//! | connections | 128, others wait; 32 of a source, 64 of a site, further ones are closed |
//! | pages of directories that are being sent | 32 MiB, 8 MiB for a source, 16 MiB for a site; further ones get 503 |
//! | a request's head, an answer that is not read | 30 s |
//! | the length of a request's head | [`LONGEST_HEAD`](super::LONGEST_HEAD) |

mod body;
mod condition;
mod kind;
mod page;
mod pages;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use super::host::Hosts;
use super::{Door, HttpLimits};
use body::FileBody;
use condition::{Version, Wanted, wanted};
use pages::Pages;

const LIMITS: HttpLimits = HttpLimits { connections: 128, patience: Duration::from_secs(30) };
/// Connections of a source at the same time. All local programs, such as a reverse proxy, are one source.
const OF_A_SOURCE: usize = 32;
/// Connections of a site, which may have very many sources.
const OF_A_SITE: usize = 64;

/// A file or directory at a path.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open for reading.
    File(File),
    /// A directory.
    Directory {
        /// Its entries, sorted.
        rows: Vec<Row>,
        /// How many entries are left out.
        left_out: usize,
    },
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name, as it is on the disk.
    pub name: String,
    /// Its kind.
    pub kind: RowKind,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A file.
    File {
        /// Its length in bytes, if known.
        size: Option<u64>,
        /// Seconds since 1970 of its last change, if known.
        modified: Option<i64>,
    },
    /// A directory.
    Directory,
    /// A link, which is not followed.
    Link,
}

/// Files to read.
pub trait Files: Clone + Send + Sync + 'static {
    /// Opens what is at the path that a client sent; "" is the top. The path is not checked.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] also for paths that must not be read.
    fn find(&self, path: &str) -> impl Future<Output = io::Result<Found>> + Send;

    /// Waits until some of `most` bytes may be sent; returns how many.
    fn admit(&self, most: usize) -> impl Future<Output = usize> + Send;
}

/// Serves the files until dropped.
pub async fn serve<F: Files>(door: Door, files: F) {
    let hosts = door.address().map_or(Hosts::Loopback, |address| Hosts::of(address.ip()));
    let pages = Arc::new(Pages::default());
    let routes = move |source: IpAddr| {
        let caller = Caller { files: files.clone(), hosts: hosts.clone(), pages: pages.clone(), source };
        let handler = move |request: Request| caller.answer(request);
        Router::new().route("/", any(handler.clone())).route("/{*path}", any(handler))
    };
    door.limits(LIMITS).attend(routes, [OF_A_SOURCE, OF_A_SITE]).await;
}

/// The other end of a connection, and what it may read.
#[derive(Clone)]
struct Caller<F> {
    files: F,
    hosts: Hosts,
    pages: Arc<Pages>,
    source: IpAddr,
}

impl<F: Files> Caller<F> {
    async fn answer(self, request: Request) -> Response {
        let head = request.into_parts().0;
        let mut response = if self.hosts.are_named(&head.headers) {
            self.respond(&head).await.unwrap_or_else(refusal)
        } else {
            (StatusCode::MISDIRECTED_REQUEST, self.hosts.advice()).into_response()
        };
        let always = [
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-cache"),
            // Pages of other servers cannot show or run the files.
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ];
        for (name, value) in always {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }

    async fn respond(&self, head: &Parts) -> Result<Response, StatusCode> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let (path, is_directory) = decode(head.uri.path()).ok_or(StatusCode::NOT_FOUND)?;
        let found = self.files.find(&path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        })?;
        let name = path.rsplit('/').next().unwrap_or_default();
        match found {
            Found::File(file) if !is_directory => {
                send(self.files.clone(), file, (name, head)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
            }
            Found::File(_) => Err(StatusCode::NOT_FOUND),
            Found::Directory { rows, left_out } if is_directory => {
                let headers = [
                    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                    (header::CONTENT_SECURITY_POLICY, page::POLICY),
                ];
                let page = self.pages.admit(self.source, page::page(&path, &rows, left_out));
                let page = page.ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
                Ok((headers, Body::new(page)).into_response())
            }
            // The entries' links are relative to the directory.
            Found::Directory { .. } => {
                let to = format!("./{}/", encode(name));
                Ok((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response())
            }
        }
    }
}

/// Sends a file, a part of it, or the news that the client's conditions do not hold.
fn send<F: Files>(files: F, file: File, (name, head): (&str, &Parts)) -> io::Result<Response> {
    let meta = file.metadata()?;
    let (len, version) = (meta.len(), Version::of(&meta, SystemTime::now()));
    let asked = if head.method == Method::GET && version.is_wanted_in_part(&head.headers) {
        wanted(&head.headers, len)
    } else {
        Wanted::All
    };
    let (kind, is_shown) = kind::of(name);
    let mut headers = vec![(header::ACCEPT_RANGES, "bytes".to_owned()), (header::ETAG, version.tag())];
    headers.extend(version.modified().map(|date| (header::LAST_MODIFIED, date)));
    let (status, range) = match (version.check(&head.headers), asked) {
        (Some(status), _) => (status, 0..0),
        (None, Wanted::Nothing) => {
            headers.push((header::CONTENT_RANGE, format!("bytes */{len}")));
            (StatusCode::RANGE_NOT_SATISFIABLE, 0..0)
        }
        (None, Wanted::Part(range)) => {
            let part = format!("bytes {}-{}/{len}", range.start, range.end - 1);
            headers.push((header::CONTENT_RANGE, part));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        (None, Wanted::All) => (StatusCode::OK, 0..len),
    };
    if status.is_success() {
        headers.push((header::CONTENT_TYPE, kind.to_owned()));
        if !is_shown {
            let disposition = format!("attachment; filename*=UTF-8''{}", encode(name));
            headers.push((header::CONTENT_DISPOSITION, disposition));
            headers.push((header::CONTENT_SECURITY_POLICY, "sandbox".to_owned()));
        }
    }
    let mut response = (status, Body::new(FileBody::new(files, (file, meta), range))).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::try_from(value).map_err(io::Error::other)?);
    }
    Ok(response)
}

fn refusal(status: StatusCode) -> Response {
    let mut response = (status, format!("{status}\n")).into_response();
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        // By then, other pages are sent or their readers are cut off.
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
    }
    response
}

/// The names in a request's path, joined by `/`, and whether a slash follows. `None` if a name has a slash or a zero byte in
/// it, or is not UTF-8.
fn decode(path: &str) -> Option<(String, bool)> {
    let path = path.strip_prefix('/')?;
    let (path, is_directory) =
        path.strip_suffix('/').map_or((path, path.is_empty()), |directory| (directory, true));
    let names = path.split('/').map(decode_name).collect::<Option<Vec<String>>>()?;
    Some((names.join("/"), is_directory))
}

fn decode_name(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        bytes.push(if byte == b'%' { u8::try_from(digit()? * 16 + digit()?).ok()? } else { byte });
    }
    String::from_utf8(bytes).ok().filter(|name| !name.contains(['/', '\0']))
}

/// A name for a link or a header; everything but unreserved characters is percent-encoded (RFC 3986 §2.3).
fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(byte.into());
        } else {
            text += &format!("%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests;
