//! Sockets of a relay for people and programs of the same machine: status and drain over a Unix socket, metrics over
//! HTTP for Prometheus.
//!
//! A line in, a line of JSON out: `status`, or `drain SECONDS`. Who may write to the socket's file may use it: mode 0600.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use anabranch_net::Span;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::{Duration, timeout};

use super::Watch;
use super::status::Status;

/// Longest line or request head.
const MOST: u64 = 4_096;
/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves the Unix socket at `path` until dropped.
///
/// # Errors
/// When another program listens there, or the file cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    // A socket that nobody listens on was left over by a run that was killed.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path).is_err()
    {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers callers of the Unix socket.
pub async fn serve(listener: UnixListener, relay: Watch) {
    while let Ok((stream, _)) = listener.accept().await {
        let relay = relay.clone();
        tokio::spawn(async move {
            // A caller that goes away or takes too long gets no answer.
            let _ = timeout(PATIENCE, answer(stream, &relay)).await;
        });
    }
}

async fn answer(stream: UnixStream, relay: &Watch) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(MOST)).read_line(&mut line).await?;
    let mut words = line.split_whitespace();
    let reply = match (words.next(), words.next().map(str::parse::<u64>)) {
        (Some("status"), None) => serde_json::to_string(&relay.status())?,
        (Some("drain"), Some(Ok(seconds))) => {
            relay.drain(Span::from_secs(seconds));
            serde_json::to_string(&relay.status())?
        }
        _ => "{\"error\":\"say `status` or `drain SECONDS`\"}".to_owned(),
    };
    writer.write_all(format!("{reply}\n").as_bytes()).await
}

/// Asks the relay behind a Unix socket.
///
/// # Errors
/// When no relay answers there.
pub async fn ask(path: &Path, request: &str) -> io::Result<Status> {
    let asked = async {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(format!("{request}\n").as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(serde_json::from_str(&text)?)
    };
    timeout(PATIENCE, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Serves `GET /metrics` at `address`.
///
/// # Errors
/// When the address cannot be used.
pub async fn listen_for_metrics(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers Prometheus.
pub async fn serve_metrics(listener: TcpListener, relay: Watch) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let relay = relay.clone();
        tokio::spawn(async move {
            let answer = async {
                let mut line = String::new();
                let (reader, mut writer) = stream.split();
                BufReader::new(reader.take(MOST)).read_line(&mut line).await?;
                let (code, body) = if line.starts_with("GET /metrics ") {
                    ("200 OK", relay.status().to_prometheus())
                } else {
                    ("404 Not Found", "metrics are at /metrics\n".to_owned())
                };
                let head = format!(
                    "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                writer.write_all(head.as_bytes()).await?;
                writer.write_all(body.as_bytes()).await?;
                writer.shutdown().await
            };
            // As above.
            let _ = timeout(PATIENCE, answer).await;
        });
    }
}
