//! A connection to a mirror, over HTTP or FTP.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::ftp::{FtpBody, FtpConnection};
use crate::http::{HttpConnection, describe};

/// A connection to a mirror, opened when it is needed.
#[derive(Debug)]
pub enum Connection {
    Http(HttpConnection),
    Ftp(FtpConnection),
}

impl Connection {
    pub fn close(&mut self) {
        match self {
            Self::Http(connection) => connection.close(),
            Self::Ftp(connection) => connection.close(),
        }
    }

    /// Ends a request whose bytes have all come, so that the connection can be used again.
    pub async fn end(&mut self) {
        if let Self::Ftp(connection) = self {
            connection.end().await;
        }
    }

    /// Whether the server says that the transfer is complete, where the protocol has such a reply.
    pub async fn confirms_end(&mut self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Ftp(connection) => {
                connection.end().await;
                connection.is_open()
            }
        }
    }
}

/// A body that is being received.
#[derive(Debug)]
pub enum Body {
    /// Of an HTTP response, and bytes of it that were looked at.
    Http(Incoming, BytesMut),
    /// Of an FTP transfer.
    Ftp(FtpBody),
}

impl Body {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        match self {
            Self::Ftp(body) => body.next().await,
            Self::Http(_, seen) if !seen.is_empty() => Ok(Some(seen.split().freeze())),
            Self::Http(body, _) => next(body).await,
        }
    }

    /// Looks at the first bytes of an HTTP response, at least so many unless it has fewer. They come again with
    /// [`Self::next`].
    pub async fn peek(&mut self, least: usize) -> Result<&[u8], String> {
        let Self::Http(body, seen) = self else { return Ok(&[]) };
        while seen.len() < least
            && let Some(bytes) = next(body).await?
        {
            seen.extend_from_slice(&bytes);
        }
        Ok(seen)
    }
}

/// The next bytes of an HTTP response; `None` at the end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, String> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => return Err(describe(&error)),
        }
    }
}
