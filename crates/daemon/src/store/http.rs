//! A minimal HTTP client for etcd: JSON requests over connections that are reused.

use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// Longest answer, in bytes.
const MAX_ANSWER: usize = 32 << 20;
/// Connections that are kept.
const KEPT: usize = 16;

type Connection = SendRequest<Full<Bytes>>;

/// One server, `host:port`.
pub(super) struct Server {
    authority: String,
    idle: Mutex<Vec<Connection>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.authority)
    }
}

impl Server {
    pub fn new(authority: &str) -> Self {
        Self { authority: authority.to_owned(), idle: Mutex::default() }
    }

    /// Sends a request. After an error, which is text for people, the request may still have been carried out.
    pub async fn ask<A: DeserializeOwned>(&self, path: &str, question: Bytes) -> Result<A, String> {
        let mut connection = self.connection().await?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(question))
            .map_err(|error| error.to_string())?;
        let answer = connection.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        self.keep(connection);
        if status != StatusCode::OK {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body[..body.len().min(300)])));
        }
        serde_json::from_slice(&body).map_err(|error| format!("its answer makes no sense: {error}"))
    }

    async fn connection(&self) -> Result<Connection, String> {
        loop {
            let kept = self.idle.lock().expect("no panic while held").pop();
            let Some(mut kept) = kept else { break };
            if kept.ready().await.is_ok() {
                return Ok(kept);
            }
        }
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| error.to_string())?;
        // Requests are short; without this option they are only slower.
        drop(stream.set_nodelay(true));
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            // A pending request learns of the end of the connection.
            drop(connection.await);
        });
        Ok(sender)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().expect("no panic while held");
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }
}
