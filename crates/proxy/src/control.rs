//! A control stream: lines of JSON with a bound.

use std::io;

use anabranch_net::Stream;
use anabranch_tunnel::message::{self, LONGEST, MessageError};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A stream that carries messages.
#[derive(Debug)]
pub struct Control {
    stream: Stream,
    /// Bytes behind the last line.
    read: Vec<u8>,
}

impl Control {
    /// Messages over this stream.
    pub fn new(stream: Stream) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub async fn send<M: Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.stream.write_all(&message::write(message)).await
    }

    /// The next message; `None` at the end of the stream. Nothing is lost when this future is dropped.
    ///
    /// # Errors
    /// `InvalidData` when the peer sends something else, any other kind when the stream is over.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let wrong = |error: MessageError| io::Error::new(io::ErrorKind::InvalidData, error);
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return message::read(&line).map(Some).map_err(wrong);
            }
            if self.read.len() > LONGEST {
                return Err(wrong(MessageError::TooLong));
            }
            let mut chunk = [0; 2048];
            match self.stream.read(&mut chunk).await? {
                0 => return Ok(None),
                length => self.read.extend_from_slice(&chunk[..length]),
            }
        }
    }
}
