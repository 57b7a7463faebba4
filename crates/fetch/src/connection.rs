//! A connection of a source, by its protocol.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::ftp::{FtpBody, FtpConnection};
use crate::http::{HttpConnection, describe};

/// A connection to a mirror, opened when it is needed.
#[derive(Debug)]
pub enum Connection {
    /// HTTP or HTTPS.
    Http(HttpConnection),
    /// FTP or FTPS.
    Ftp(FtpConnection),
}

impl Connection {
    /// Closes it.
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
    /// Of an HTTP response.
    Http(Incoming),
    /// Of an FTP transfer.
    Ftp(FtpBody),
}

impl Body {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// Why the rest does not come.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        let body = match self {
            Self::Ftp(body) => return body.next().await,
            Self::Http(body) => body,
        };
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
}
