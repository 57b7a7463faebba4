//! The HTTP API of services, for people and programs: this module has what all of them share (listening, tokens, limits, metrics), each service its routes.
//!
//! It listens on loopback addresses only: from elsewhere one comes by `ssh -L`, or a proxy that speaks TLS. Without a token it only tells;
//! what changes something wants `Authorization: Bearer TOKEN`, and with a token configured everything does. A request must name a loopback host,
//! so that a web page in somebody's browser cannot ask by a name of its own (DNS rebinding). Metrics alone may be served to other machines.
//!
//! | limit | value |
//! |---|---|
//! | connections | [`MOST_CONNECTIONS`] |
//! | a request's head | [`PATIENCE`] to come |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anabranch_settings::SettingsError;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most connections at the same time.
pub const MOST_CONNECTIONS: usize = 256;
/// How long a request's head may take to come.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A token is at least so long, in characters.
const SHORTEST_TOKEN: usize = 16;

/// Where the API is served, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// A loopback address and port, but for metrics alone.
    pub address: SocketAddr,
    /// The file with the token.
    pub token: Option<PathBuf>,
}

/// As a configuration file says it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpEntry {
    address: SocketAddr,
    token: Option<PathBuf>,
}

impl HttpEntry {
    /// # Errors
    /// When the address is open to other machines.
    pub(crate) fn check(self) -> Result<HttpSettings, SettingsError> {
        let Self { address, token } = self;
        if address.ip().is_loopback() {
            return Ok(HttpSettings { address, token });
        }
        let error =
            SettingsError::new("address", format!("{address} can be reached from other machines, in clear"));
        Err(error.hint("write 127.0.0.1 or [::1]; from elsewhere come by `ssh -L`, or put a proxy that speaks TLS before it"))
    }
}

/// What keeps strangers out.
#[derive(Clone)]
struct Guard {
    /// Of the token: compared in constant time.
    token: Option<blake3::Hash>,
    /// Only this machine reaches the port.
    is_local: bool,
}

/// A refusal, as JSON.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Problem {
    /// Why.
    pub error: String,
}

/// An answer that says why there is no other.
#[must_use]
pub fn problem(status: StatusCode, why: impl Into<String>) -> Response {
    (status, axum::Json(Problem { error: why.into() })).into_response()
}

/// A port that is bound, and the token that callers show.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    token: Option<blake3::Hash>,
}

impl Door {
    /// Binds the address and reads the token.
    ///
    /// # Errors
    /// When the port is taken, or the token cannot be read or is too short; the message says what to do.
    pub async fn open(settings: &HttpSettings) -> io::Result<Self> {
        let token = settings.token.as_deref().map(read_token).transpose()?;
        let listener = TcpListener::bind(settings.address).await;
        let listener = listener.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot serve HTTP at {}: {error}", settings.address))
        })?;
        Ok(Self { listener, token })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until dropped.
    pub async fn serve(self, routes: Router) {
        let is_local = self.address().is_ok_and(|address| address.ip().is_loopback());
        let guard = Guard { token: self.token, is_local };
        let routes = routes
            .fallback(|| async {
                problem(
                    StatusCode::NOT_FOUND,
                    "there is nothing here; GET /api/v1/openapi.json tells what there is",
                )
            })
            .layer(middleware::from_fn_with_state(guard, check));
        let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Out of files, most likely; that passes.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let routes = TowerToHyperService::new(routes.clone());
            tokio::spawn(async move {
                let mut http = hyper::server::conn::http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
                // A caller that breaks off has its reasons.
                let _ = http.serve_connection(TokioIo::new(stream), routes).await;
                drop(slot);
            });
        }
    }
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
    let text = std::fs::read_to_string(file).map_err(|error| {
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
    if guard.is_local && !names_loopback(request.headers()) {
        return problem(
            StatusCode::FORBIDDEN,
            "this API is asked by a loopback address, such as http://127.0.0.1",
        );
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    match guard.token {
        Some(token) if !shows(request.headers(), token) => {
            let refused = problem(StatusCode::UNAUTHORIZED, "show the token: `Authorization: Bearer TOKEN`");
            ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
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
    let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
    // Hashes compare in constant time.
    shown.is_some_and(|shown| blake3::hash(shown.trim().as_bytes()) == token)
}

/// Whether the request was meant for this machine by address or as `localhost`; HTTP/1.0 need not say.
fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let ip = |text: &str| text.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let bare = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(ip, _)| ip);
    let name = bare.unwrap_or_else(|| host.rsplit_once(':').map_or(host, |(name, _)| name));
    name.eq_ignore_ascii_case("localhost") || ip(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_under_a_name_of_its_own_is_not_answered() {
        let asked = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            names_loopback(&headers)
        };
        for host in ["127.0.0.1", "127.0.0.1:4780", "[::1]:4780", "[::1]", "localhost:1", "LOCALHOST"] {
            assert!(asked(host), "{host}");
        }
        for host in ["evil.example", "evil.example:4780", "192.0.2.1", "localhost.evil.example", "", "::1x"] {
            assert!(!asked(host), "{host}");
        }
    }

    #[test]
    fn an_address_that_others_reach_is_refused_with_another_way() {
        let entry = |address: &str| HttpEntry { address: address.parse().unwrap(), token: None };
        assert!(entry("[::1]:80").check().is_ok());
        let error = entry("0.0.0.0:4780").check().unwrap_err().to_string();
        assert!(error.contains("ssh -L"), "{error}");
    }
}
