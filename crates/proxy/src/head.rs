//! Heads and outcomes over streams.

use std::io;
use std::time::Duration;

use anabranch_net::Stream;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::message::{Head, Outcome};

/// How long the head of a stream may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the head of a stream that the other end opened, and nothing behind it.
pub async fn read_head(stream: &mut Stream) -> io::Result<Head> {
    let read = async {
        let mut bytes = Vec::new();
        loop {
            let length = Head::length(&bytes).map_err(invalid)?;
            let have = bytes.len();
            if have == length {
                return Head::read(&bytes).map_err(invalid);
            }
            bytes.resize(length, 0);
            stream.read_exact(&mut bytes[have..]).await?;
        }
    };
    timeout(PATIENCE, read).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads the answer to a head.
pub async fn read_outcome(stream: &mut Stream) -> io::Result<Outcome> {
    Outcome::read(stream.read_u8().await?).ok_or_else(|| invalid("an unknown outcome"))
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
