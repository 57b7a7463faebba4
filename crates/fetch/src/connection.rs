//! A connection to a mirror, over HTTP or FTP.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::ftp::{FtpBody, FtpConnection};
use crate::http::unpack::Unpacking;
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

    /// Whether it takes another request without connecting again, as far as is known.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Http(connection) => connection.is_open(),
            Self::Ftp(connection) => connection.is_open(),
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
    Http(HttpBody),
    /// Of an FTP transfer.
    Ftp(FtpBody),
}

/// The body of an HTTP response, without the server's compression.
#[derive(Debug)]
pub struct HttpBody {
    incoming: Incoming,
    /// Bytes that were looked at.
    seen: BytesMut,
    unpacking: Option<Box<Unpacking>>,
}

impl Body {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        match self {
            Self::Ftp(body) => body.next().await,
            Self::Http(body) if !body.seen.is_empty() => Ok(Some(body.seen.split().freeze())),
            Self::Http(body) => body.next().await,
        }
    }

    /// Looks at the first bytes of an HTTP response, at least so many unless it has fewer. They come again with
    /// [`Self::next`].
    pub async fn peek(&mut self, least: usize) -> Result<&[u8], String> {
        let Self::Http(body) = self else { return Ok(&[]) };
        while body.seen.len() < least
            && let Some(bytes) = body.next().await?
        {
            body.seen.extend_from_slice(&bytes);
        }
        Ok(&body.seen)
    }

    /// Whether the server compressed it.
    pub fn is_packed(&self) -> bool {
        matches!(self, Self::Http(HttpBody { unpacking: Some(_), .. }))
    }

    /// How many bytes the network carried for the last `len` bytes of [`Self::next`].
    pub fn take_carried(&mut self, len: u64) -> u64 {
        match self {
            Self::Http(HttpBody { unpacking: Some(unpacking), .. }) => unpacking.take_received(),
            _ => len,
        }
    }
}

impl HttpBody {
    /// A body, which the server compressed if it `is_packed`.
    pub fn new(incoming: Incoming, is_packed: bool) -> Self {
        let unpacking = is_packed.then(|| Box::new(Unpacking::new()));
        Self { incoming, seen: BytesMut::new(), unpacking }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        let Some(unpacking) = &mut self.unpacking else { return next(&mut self.incoming).await };
        loop {
            if let Some(bytes) = unpacking.next()? {
                return Ok(Some(bytes));
            }
            match next(&mut self.incoming).await? {
                Some(packed) => unpacking.handle_bytes(packed),
                None => return unpacking.end(),
            }
        }
    }
}

/// The next bytes of an HTTP response as they come; `None` at the end.
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
