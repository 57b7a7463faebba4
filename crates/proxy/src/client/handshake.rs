//! Finds out which protocol a client speaks, and what it asks for.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::body::Body;
use crate::message::Outcome;
use crate::target::Target;
use crate::{http, socks4, socks5};

/// How long a client may take for its whole request.
const PATIENCE: Duration = Duration::from_secs(10);
/// First room for a request.
const USUAL: usize = 512;

/// How a client asked, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Socks4,
    Socks5,
    Connect,
    /// Plain HTTP.
    Http,
    /// A local port that leads to one destination.
    Forward,
    /// The firewall led the connection here.
    Redirect,
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Socks4 => "socks4",
            Self::Socks5 => "socks5",
            Self::Connect => "connect",
            Self::Http => "http",
            Self::Forward => "forward",
            Self::Redirect => "redirect",
        }
    }

    /// Whether the program asked a proxy and so understands an answer.
    pub(crate) fn has_answers(self) -> bool {
        !matches!(self, Self::Forward | Self::Redirect)
    }

    /// The answer for an outcome; `None` when the exit is not reached. Empty for success where the server answers itself.
    pub(crate) fn answer(self, outcome: Option<Outcome>) -> Vec<u8> {
        match (self, outcome) {
            (Self::Socks4, _) => socks4::reply(outcome).to_vec(),
            (Self::Socks5, _) => socks5::reply(outcome.into(), None),
            (Self::Connect, Some(Outcome::Open)) => http::ESTABLISHED.to_vec(),
            (Self::Http, Some(Outcome::Open)) | (Self::Forward | Self::Redirect, _) => Vec::new(),
            (Self::Connect | Self::Http, _) => http::failure(outcome),
        }
    }
}

/// A client's request.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A connection.
    Connect {
        protocol: Protocol,
        to: Target,
        /// Bytes to send first.
        first: Bytes,
        /// Which later bytes are sent.
        body: Body,
    },
    /// A SOCKS5 association for datagrams.
    Associate,
    /// Nothing more: it has its answer.
    Answered,
}

/// Reads a client's request. One that cannot be served is answered here.
pub(crate) async fn handshake(connection: &mut TcpStream) -> io::Result<Asked> {
    let mut incoming = Incoming { connection, bytes: BytesMut::with_capacity(USUAL) };
    let read = timeout(PATIENCE, incoming.read()).await;
    match read {
        Ok(asked) => asked,
        Err(_) => {
            if incoming.bytes.first().is_some_and(u8::is_ascii_uppercase) {
                incoming.refuse(&http::too_slow()).await?;
            }
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

/// A client whose request is being read.
struct Incoming<'a> {
    connection: &'a mut TcpStream,
    /// Bytes that are not used yet.
    bytes: BytesMut,
}

impl Incoming<'_> {
    async fn read(&mut self) -> io::Result<Asked> {
        self.more().await?;
        match self.bytes[0] {
            socks4::VERSION => self.socks4().await,
            socks5::VERSION => self.socks5().await,
            _ => self.http().await,
        }
    }

    /// Reads at least one byte more. Parsers refuse requests that are too long, so this has a bound.
    async fn more(&mut self) -> io::Result<()> {
        match self.connection.read_buf(&mut self.bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn refuse(&mut self, answer: &[u8]) -> io::Result<Asked> {
        refuse(self.connection, answer).await?;
        Ok(Asked::Answered)
    }

    fn connect(&mut self, protocol: Protocol, to: Target) -> Asked {
        Asked::Connect { protocol, to, first: self.bytes.split().freeze(), body: Body::EVERYTHING }
    }

    async fn socks4(&mut self) -> io::Result<Asked> {
        loop {
            match socks4::request(&self.bytes) {
                Ok(Some((to, length))) => {
                    self.bytes.advance(length);
                    return Ok(self.connect(Protocol::Socks4, to));
                }
                Ok(None) => self.more().await?,
                Err(_) => return self.refuse(&socks4::reply(None)).await,
            }
        }
    }

    async fn socks5(&mut self) -> io::Result<Asked> {
        let (is_open, length) = loop {
            match socks5::greeting(&self.bytes) {
                Ok(Some(greeting)) => break greeting,
                Ok(None) => self.more().await?,
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        };
        self.bytes.advance(length);
        if !is_open {
            return self.refuse(&socks5::UNWELCOME).await;
        }
        self.connection.write_all(&socks5::WELCOME).await?;
        loop {
            match socks5::request(&self.bytes) {
                Ok(Some((request, length))) => {
                    self.bytes.advance(length);
                    return Ok(match request {
                        socks5::Request::Connect(to) => self.connect(Protocol::Socks5, to),
                        socks5::Request::Associate => Asked::Associate,
                    });
                }
                Ok(None) => self.more().await?,
                Err(error) => return self.refuse(&socks5::reply(error.into(), None)).await,
            }
        }
    }

    async fn http(&mut self) -> io::Result<Asked> {
        loop {
            match http::request(&self.bytes) {
                Ok(Some((request, length))) => {
                    self.bytes.advance(length);
                    return match request {
                        http::Request::Connect(to) => Ok(self.connect(Protocol::Connect, to)),
                        http::Request::Forward { to, head, mut body } => {
                            // The body's first bytes follow the head.
                            let own = body.take(&self.bytes);
                            let first = [&head[..], &self.bytes[..own]].concat().into();
                            Ok(Asked::Connect { protocol: Protocol::Http, to, first, body })
                        }
                        http::Request::Settings => {
                            let at = self.connection.local_addr()?;
                            let answer = http::pac(SocketAddr::new(at.ip().to_canonical(), at.port()));
                            self.refuse(&answer).await
                        }
                    };
                }
                Ok(None) => self.more().await?,
                Err(malformed) => return self.refuse(&http::rejection(malformed)).await,
            }
        }
    }
}

/// How long, and for how many bytes, a client is listened to that has its last answer.
const FAREWELL: Duration = Duration::from_secs(2);
const MOST_UNHEARD: usize = 1 << 20;

/// Sends a last answer, then reads and drops the client's bytes. Closing a connection with unread bytes would reset it, and the client
/// would lose the answer.
pub(crate) async fn refuse(connection: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    connection.write_all(answer).await?;
    connection.shutdown().await?;
    let listen = async {
        let (mut ignored, mut unheard) = ([0; 2048], 0);
        while unheard < MOST_UNHEARD {
            match connection.read(&mut ignored).await {
                Ok(0) | Err(_) => return,
                Ok(length) => unheard += length,
            }
        }
    };
    // One that is still not done is cut off.
    let _ = timeout(FAREWELL, listen).await;
    Ok(())
}
