//! The control stream: lines of JSON with a bound.

use anabranch_net::Stream;
use anabranch_tunnel::message::{self, LONGEST};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::error::TunnelError;

/// A stream that carries messages.
pub(crate) struct Control {
    stream: Stream,
    /// Bytes behind the last line.
    read: Vec<u8>,
}

impl Control {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn send<M: Serialize>(&mut self, message: &M) -> Result<(), TunnelError> {
        self.stream.write_all(&message::write(message)).await?;
        Ok(())
    }

    /// The next message; `None` at the end of the stream.
    pub(crate) async fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, TunnelError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let message =
                    message::read(&line).map_err(|error| TunnelError::Protocol(error.to_string()))?;
                return Ok(Some(message));
            }
            if self.read.len() > LONGEST {
                return Err(TunnelError::Protocol(message::MessageError::TooLong.to_string()));
            }
            let mut chunk = [0; 2048];
            match self.stream.read(&mut chunk).await? {
                0 => return Ok(None),
                length => self.read.extend_from_slice(&chunk[..length]),
            }
        }
    }
}
