//! Just enough HTTP to put questions to etcd: JSON out, JSON back, connections kept for the next one.

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

    /// Puts a question; an error is a sentence for people, and the question may have been answered all the same.
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
        // Questions are short; when it fails they are just slower.
        drop(stream.set_nodelay(true));
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            // Whoever waits for an answer learns of its end.
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
