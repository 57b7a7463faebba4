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

/// A body that is being received, without the server's compression.
#[derive(Debug)]
pub struct Body {
    /// Bytes that were looked at.
    seen: BytesMut,
    /// Why no more came then.
    broken: Option<String>,
    wire: WireBody,
}

#[derive(Debug)]
enum WireBody {
    /// Of an HTTP response.
    Http(HttpBody),
    /// Of an FTP transfer.
    Ftp(FtpBody),
}

#[derive(Debug)]
struct HttpBody {
    incoming: Incoming,
    unpacking: Option<Box<Unpacking>>,
}

impl Body {
    /// The body of an HTTP response, as it is.
    pub fn of_http(incoming: Incoming) -> Self {
        Self::new(WireBody::Http(HttpBody { incoming, unpacking: None }))
    }

    /// From now on, bytes come unpacked: the server compressed them.
    pub fn unpack(&mut self) {
        if let WireBody::Http(body) = &mut self.wire {
            let unpacking = body.unpacking.insert(Box::new(Unpacking::new()));
            unpacking.handle_bytes(self.seen.split().freeze());
        }
    }

    /// The body of an FTP transfer.
    pub fn of_ftp(body: FtpBody) -> Self {
        Self::new(WireBody::Ftp(body))
    }

    fn new(wire: WireBody) -> Self {
        Self { seen: BytesMut::new(), broken: None, wire }
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        if !self.seen.is_empty() {
            return Ok(Some(self.seen.split().freeze()));
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, String> {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        match &mut self.wire {
            WireBody::Ftp(body) => body.next().await,
            WireBody::Http(body) => body.next().await,
        }
    }

    /// Looks at the first bytes, at least so many unless there are fewer. They come again with [`Self::next`].
    pub async fn peek(&mut self, least: usize) -> Result<&[u8], String> {
        while self.seen.len() < least {
            match self.receive().await {
                Ok(Some(bytes)) => self.seen.extend_from_slice(&bytes),
                Ok(None) => break,
                Err(why) => {
                    self.broken = Some(why.clone());
                    return Err(why);
                }
            }
        }
        Ok(&self.seen)
    }

    /// The bytes that were looked at and have not come by [`Self::next`].
    pub fn seen(&self) -> &[u8] {
        &self.seen
    }

    /// Whether the server compressed it.
    pub fn is_packed(&self) -> bool {
        matches!(&self.wire, WireBody::Http(HttpBody { unpacking: Some(_), .. }))
    }

    /// How many bytes the network carried for the last `len` bytes of [`Self::next`].
    pub fn take_carried(&mut self, len: u64) -> u64 {
        match &mut self.wire {
            WireBody::Http(HttpBody { unpacking: Some(unpacking), .. }) => unpacking.take_received(),
            _ => len,
        }
    }
}

impl HttpBody {
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
