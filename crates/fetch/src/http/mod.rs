//! HTTP/1.1 and HTTP/2 for downloads: one connection with one request at a time.

pub(crate) mod head;
pub(crate) mod page;
pub(crate) mod unpack;
pub(crate) mod validator;

use std::net::IpAddr;
use std::ops::Range;

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{self, HeaderName};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;

use crate::peers::Peers;
use crate::plan::Trouble;
use crate::route::{Route, Wire};
use crate::tls::{Tls, trouble};
use crate::url::Url;

/// Bytes that a server may send ahead over HTTP/2.
const WINDOW: u32 = 8 << 20;

const AGENT: &str = concat!("anabranch/", env!("CARGO_PKG_VERSION"));

/// An open connection to a server.
struct Open {
    server: Url,
    sender: Sender,
    driver: JoinHandle<()>,
}

enum Sender {
    One(http1::SendRequest<Empty<Bytes>>),
    Two(http2::SendRequest<Empty<Bytes>>),
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection over a route, opened when it is needed.
pub struct HttpConnection {
    route: Route,
    tls: Tls,
    peers: Peers,
    open: Option<Open>,
    /// The last server, and its address unless an exit chose it.
    last: Option<(Url, IpAddr)>,
}

/// The variable parts of a request.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Bytes of the file, to its end if the end is [`u64::MAX`]; everything without.
    pub range: Option<Range<u64>>,
    /// Only if the file is still this one.
    pub if_range: Option<String>,
}

impl HttpConnection {
    /// A connection that is not open yet.
    pub fn new(route: Route, tls: Tls, peers: Peers) -> Self {
        Self { route, tls, peers, open: None, last: None }
    }

    /// Notes that the server answers: later connections to it go to the same address.
    pub fn keep_peer(&self) {
        if let Some((server, ip)) = &self.last {
            self.peers.note((server.host(), server.port()), &self.route, *ip);
        }
    }

    /// Notes that the server gives no answer: the next connection to it may go to another address.
    pub fn forget_peer(&self) {
        if let Some((server, _)) = &self.last {
            self.peers.forget((server.host(), server.port()), &self.route);
        }
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Whether a connection is there.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Sends a request and waits for the head of the response.
    pub async fn get(&mut self, url: &Url, ask: &Ask) -> Result<Response<Incoming>, Trouble> {
        if let Some(open) = self.open.take().filter(|open| open.server.same_server(url))
            && let Some(response) = self.send(open, url, ask).await.ok().flatten()
        {
            return Ok(response);
        }
        // The server may have closed a connection that was idle: one failure there is normal.
        let open = self.connect(url).await.map_err(|error| trouble(&error))?;
        let sent = self.send(open, url, ask).await;
        if !matches!(sent, Ok(Some(_))) {
            self.forget_peer();
        }
        let sent = sent.map_err(|error| unanswered(&error))?;
        sent.ok_or_else(|| Trouble::Failed("the server closed the connection".to_owned()))
    }

    async fn send(
        &mut self,
        mut open: Open,
        url: &Url,
        ask: &Ask,
    ) -> hyper::Result<Option<Response<Incoming>>> {
        let ready = match &mut open.sender {
            Sender::One(sender) => sender.ready().await,
            Sender::Two(sender) => sender.ready().await,
        };
        if ready.is_err() {
            return Ok(None);
        }
        let Ok(request) = request(url, ask, matches!(open.sender, Sender::Two(_))) else { return Ok(None) };
        let response = match &mut open.sender {
            Sender::One(sender) => sender.send_request(request).await?,
            Sender::Two(sender) => sender.send_request(request).await?,
        };
        self.open = Some(open);
        Ok(Some(response))
    }

    async fn connect(&mut self, url: &Url) -> std::io::Result<Open> {
        self.last = None;
        let (wire, ip) = self.route.connect_known((url.host(), url.port()), &self.peers).await?;
        self.last = ip.map(|ip| (url.clone(), ip));
        let (wire, is_h2): (Wire, bool) = if url.scheme().is_encrypted() {
            let (stream, is_h2) = self.tls.http(wire, url.host()).await?;
            (Box::new(stream), is_h2)
        } else {
            (wire, false)
        };
        let failed = |error: hyper::Error| std::io::Error::other(error);
        let io = TokioIo::new(wire);
        let (sender, driver) = if is_h2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .handshake(io)
                .await
                .map_err(failed)?;
            (Sender::Two(sender), tokio::spawn(async move { drop(connection.await) }))
        } else {
            let (sender, connection) = http1::handshake(io).await.map_err(failed)?;
            (Sender::One(sender), tokio::spawn(async move { drop(connection.await) }))
        };
        Ok(Open { server: url.clone(), sender, driver })
    }
}

/// Why there is no response. One that cannot be read will probably come again.
fn unanswered(error: &hyper::Error) -> Trouble {
    match error.is_parse() {
        true => Trouble::NoParts(format!("the server's answer cannot be read: {}", describe(error))),
        false => Trouble::Failed(describe(error)),
    }
}

fn request(url: &Url, ask: &Ask, is_h2: bool) -> hyper::http::Result<Request<Empty<Bytes>>> {
    let mut request = Request::get(if is_h2 { url.to_string() } else { url.path().to_owned() });
    if !is_h2 {
        request = request.version(Version::HTTP_11).header(header::HOST, url.authority());
    }
    request = request
        .header(header::USER_AGENT, AGENT)
        .header(header::ACCEPT, "*/*")
        .header(header::ACCEPT_ENCODING, "identity")
        .header(HeaderName::from_static("want-repr-digest"), "sha-256=9, sha-512=5");
    if let Some((name, password)) = url.user() {
        let login = BASE64.encode(format!("{name}:{password}").as_bytes());
        request = request.header(header::AUTHORIZATION, format!("Basic {login}"));
    }
    if let Some(range) = &ask.range {
        let last = if range.end == u64::MAX { String::new() } else { (range.end - 1).to_string() };
        request = request.header(header::RANGE, format!("bytes={}-{last}", range.start));
    }
    if let Some(validator) = &ask.if_range {
        request = request.header(header::IF_RANGE, validator);
    }
    request.body(Empty::new())
}

/// An error with its causes.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

impl std::fmt::Debug for HttpConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HttpConnection over {:?}", self.route)
    }
}
