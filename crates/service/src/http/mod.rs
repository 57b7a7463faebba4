//! The HTTP API of services. This module has the shared part: listening, tokens, limits and metrics. Each service adds its
//! routes.
//!
//! On a loopback address reading needs no token, unless one is configured; changes always need
//! `Authorization: Bearer TOKEN`. On an address that other machines reach, a token and TLS are required, except for
//! metrics. A request to a loopback address must name that address as its host, so that a web page in a browser
//! cannot use a name of its own (DNS rebinding).
//!
//! | limit | value |
//! |---|---|
//! | connections | [`MOST_CONNECTIONS`]; others wait |
//! | a TLS handshake, a request's head | each must arrive within [`PATIENCE`], or the connection is closed |
//! | the length of a request's head | [`LONGEST_HEAD`] |
//! | an answer | the caller must keep reading: after [`PATIENCE`] without progress the connection is closed |
//! | a caller without the token | one answer, then the connection is closed |

pub mod files;
mod host;
mod patient;
mod tls;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anabranch_settings::SettingsError;
use anabranch_wire::{site, source};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use host::Hosts;
use patient::Patient;
pub use tls::TlsFiles;

/// Most connections at the same time.
pub const MOST_CONNECTIONS: usize = 256;
/// How long a request's head may take to arrive, and how long an answer waits for a caller that does not read.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a request's head, so that heads without an end do not fill the memory of a small machine.
pub const LONGEST_HEAD: usize = 16 << 10;
/// Shortest token, in characters.
const SHORTEST_TOKEN: usize = 16;

/// The address of the API, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// An address and port. If other machines can reach it, everything but metrics needs a token and TLS.
    pub address: SocketAddr,
    /// The file with the token.
    pub token: Option<PathBuf>,
    /// The files for TLS.
    pub tls: Option<TlsFiles>,
}

/// The settings as written in a configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpEntry {
    address: SocketAddr,
    token: Option<PathBuf>,
    certificate: Option<PathBuf>,
    private_key: Option<PathBuf>,
}

impl HttpEntry {
    /// # Errors
    /// When the address is open to other machines without a token or without TLS, or TLS lacks a file.
    pub fn check(self) -> Result<HttpSettings, SettingsError> {
        let Self { address, token, certificate, private_key } = self;
        let tls = match (certificate, private_key) {
            (Some(certificate), Some(private_key)) => Some(TlsFiles { certificate, private_key }),
            (None, None) => None,
            _ => {
                return Err(SettingsError::new("certificate", "TLS takes a certificate and its private key")
                    .hint("name both files, `certificate = \"…\"` and `private_key = \"…\"`, in PEM"));
            }
        };
        if address.ip().is_loopback() || (tls.is_some() && token.is_some()) {
            return Ok(HttpSettings { address, token, tls });
        }
        let lacking = if tls.is_none() { "in clear" } else { "without a token" };
        let error =
            SettingsError::new("address", format!("{address} can be reached from other machines, {lacking}"));
        Err(error.hint(
            "give it `token`, `certificate` and `private_key`, or write 127.0.0.1 or [::1] and come by `ssh -L`",
        ))
    }
}

/// The checks that every request must pass.
#[derive(Clone)]
struct Guard {
    /// Hash of the token, compared in constant time.
    token: Option<blake3::Hash>,
    /// Only this machine can reach the port.
    is_local: bool,
}

/// A refusal, as JSON.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Problem {
    /// The reason.
    pub error: String,
}

/// An error as a response.
pub fn problem(status: StatusCode, why: impl Into<String>) -> Response {
    (status, axum::Json(Problem { error: why.into() })).into_response()
}

/// Limits for callers; by default [`MOST_CONNECTIONS`] and [`PATIENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at the same time; others wait until one ends.
    pub connections: usize,
    /// How long a TLS handshake or a request's head may take to arrive, and an answer may wait for its caller.
    pub patience: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { connections: MOST_CONNECTIONS, patience: PATIENCE }
    }
}

/// A bound port, and the token that callers must send.
pub struct Door {
    listener: TcpListener,
    token: Option<blake3::Hash>,
    tls: Option<TlsAcceptor>,
    limits: HttpLimits,
}

impl Door {
    /// Binds the address and reads the token and the files of TLS.
    ///
    /// # Errors
    /// When the port is taken, the token is unreadable or too short, or the TLS files are invalid; the message says
    /// what to do.
    pub async fn open(settings: &HttpSettings) -> io::Result<Self> {
        let token = settings.token.as_deref().map(read_token).transpose()?;
        let tls = settings.tls.as_ref().map(TlsFiles::acceptor).transpose()?;
        let listener = TcpListener::bind(settings.address).await;
        let listener = listener.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot serve HTTP at {}: {error}", settings.address))
        })?;
        Ok(Self { listener, token, tls, limits: HttpLimits::default() })
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn limits(self, limits: HttpLimits) -> Self {
        Self { limits, ..self }
    }

    /// The address on which it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until dropped.
    pub async fn serve(self, routes: Router) {
        let is_local = self.address().is_ok_and(|address| address.ip().is_loopback());
        let guard = Guard { token: self.token, is_local };
        let routes = routes
            .method_not_allowed_fallback(|| async {
                problem(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "nothing is done here by this method; GET /api/v1/openapi.json tells what is",
                )
            })
            .fallback(|| async {
                problem(
                    StatusCode::NOT_FOUND,
                    "there is nothing here; GET /api/v1/openapi.json tells what there is",
                )
            })
            .layer(middleware::from_fn_with_state(guard, check));
        let all = self.limits.connections;
        self.attend(move |_| routes.clone(), [all, all]).await;
    }

    /// Serves the routes for each source without any check. Connections beyond `most` of a source and of a [`site`] are
    /// closed.
    async fn attend(self, routes: impl Fn(IpAddr) -> Router, most: [usize; 2]) {
        let HttpLimits { connections, patience } = self.limits;
        let slots = Arc::new(Semaphore::new(connections));
        let [mut sources, mut sites] = most.map(|most| Shares { most, taken: BTreeMap::new() });
        let mut tasks = JoinSet::new();
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let Ok((stream, from)) = self.listener.accept().await else {
                // Probably out of file descriptors; that passes.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            while tasks.try_join_next().is_some() {}
            let caller = source(from.ip().to_canonical());
            let Some(place) = sources.take(caller).zip(sites.take(site(caller))) else { continue };
            let (routes, tls) = (routes(caller), self.tls.clone());
            tasks.spawn(async move {
                match tls {
                    None => converse(stream, routes, patience).await,
                    Some(tls) => {
                        if let Ok(Ok(stream)) = timeout(patience, tls.accept(stream)).await {
                            converse(stream, routes, patience).await;
                        }
                    }
                }
                drop((place, slot));
            });
        }
    }
}

/// The connections of each source, or of each site.
struct Shares {
    most: usize,
    taken: BTreeMap<IpAddr, Arc<Semaphore>>,
}

impl Shares {
    /// A place for one more connection, if there is any left.
    fn take(&mut self, owner: IpAddr) -> Option<OwnedSemaphorePermit> {
        self.taken.retain(|_, places| Arc::strong_count(places) > 1);
        let places = self.taken.entry(owner).or_insert_with(|| Arc::new(Semaphore::new(self.most)));
        Arc::clone(places).try_acquire_owned().ok()
    }
}

/// Serves one connection to its end.
async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, routes: Router, patience: Duration) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(LONGEST_HEAD);
    let stream = Patient::new(stream, patience);
    // The caller may disconnect.
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await;
}

/// `GET /metrics` for Prometheus (text format 0.0.4).
pub fn metrics(text: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let answer = move || {
        let text = text.clone();
        async move { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text()) }
    };
    Router::new().route("/metrics", get(answer))
}

fn read_token(file: &Path) -> io::Result<blake3::Hash> {
    let text = std::fs::read_to_string(file).map(Zeroizing::new).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read the token in {}: {error}", file.display()))
    })?;
    let token = text.trim();
    if token.len() < SHORTEST_TOKEN {
        let why = format!(
            "the token in {} has fewer than {SHORTEST_TOKEN} characters; `openssl rand -hex 16` makes a good one",
            file.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(blake3::hash(token.as_bytes()))
}

async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    if guard.is_local && !Hosts::Loopback.are_named(request.headers()) {
        return problem(
            StatusCode::FORBIDDEN,
            "this API is asked by a loopback address, such as http://127.0.0.1",
        );
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    match guard.token {
        Some(token) if !shows(request.headers(), token) => {
            let refused = problem(StatusCode::UNAUTHORIZED, "show the token: `Authorization: Bearer TOKEN`");
            // Callers without the token do not keep a connection.
            ([(header::WWW_AUTHENTICATE, "Bearer"), (header::CONNECTION, "close")], refused).into_response()
        }
        None if changes => problem(
            StatusCode::FORBIDDEN,
            "what changes something wants a token: name a file with one in the configuration, `token = \"…\"`",
        ),
        _ => next.run(request).await,
    }
}

fn shows(headers: &HeaderMap, token: blake3::Hash) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' '));
    // A scheme's name may have any case (RFC 9110 §11.1); hashes are compared in constant time.
    shown.is_some_and(|(scheme, shown)| {
        scheme.eq_ignore_ascii_case("bearer") && blake3::hash(shown.trim().as_bytes()) == token
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_connection_ends() {
        let mut shares = Shares { most: 1, taken: BTreeMap::new() };
        let [one, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let place = shares.take(one);
        assert!(place.is_some() && shares.take(one).is_none() && shares.take(other).is_some());
        drop(place);
        assert!(shares.take(one).is_some() && shares.taken.len() == 1);
    }

    #[test]
    fn an_address_that_others_reach_takes_a_token_and_tls() {
        let check = |address: &str, token: bool, certificate: bool, private_key: bool| {
            let file = |named: bool| named.then(|| PathBuf::from("file"));
            let (token, certificate) = (file(token), file(certificate));
            let address = address.parse().unwrap();
            HttpEntry { address, token, certificate, private_key: file(private_key) }.check()
        };
        assert!(check("[::1]:80", false, false, false).is_ok());
        assert!(check("0.0.0.0:4780", true, true, true).is_ok());
        let refused = |token, certificate, private_key| {
            check("0.0.0.0:4780", token, certificate, private_key).unwrap_err().to_string()
        };
        assert!(refused(true, false, false).contains("in clear"));
        assert!(refused(false, true, true).contains("without a token"));
        assert!(refused(true, true, false).contains("private_key"));
        assert!(refused(false, false, false).contains("ssh -L"));
    }
}
