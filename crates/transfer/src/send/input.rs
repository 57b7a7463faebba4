//! A stream that is sent as it arrives, such as standard input.
//!
//! It has its own reading thread, because a read may wait for hours. Bytes leave within [`GATHER`] as a block or a
//! piece of one; a fast stream fills a block sooner.

use std::io::{self, Read};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// How long bytes wait for more.
const GATHER: Duration = Duration::from_millis(20);
/// Bytes per read, and the number of reads that may wait.
const READ: usize = 64 << 10;
const READS: usize = 4;

/// The receiving end of the reading thread.
pub(crate) struct Input {
    reads: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Bytes read but not taken.
    bytes: Vec<u8>,
    end: Option<io::Result<()>>,
}

impl Input {
    pub fn start(mut reader: Box<dyn Read + Send>) -> io::Result<Self> {
        let (sender, reads) = mpsc::channel(READS);
        let read = move || loop {
            let mut bytes = vec![0; READ];
            let sent = match reader.read(&mut bytes) {
                Ok(0) => return,
                Ok(read) => {
                    bytes.truncate(read);
                    sender.blocking_send(Ok(bytes))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) => {
                    // If the receiver is gone, the error does not matter.
                    let _ = sender.blocking_send(Err(error));
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        };
        std::thread::Builder::new().name("transfer-input".into()).spawn(read)?;
        Ok(Self { reads, bytes: Vec::new(), end: None })
    }

    /// Waits for bytes, then until there are `want` of them or [`GATHER`] has passed.
    pub async fn gather(&mut self, want: usize) {
        if self.bytes.is_empty() && self.end.is_none() {
            let read = self.reads.recv().await;
            self.add(read);
        }
        let deadline = Instant::now() + GATHER;
        while self.bytes.len() < want && self.end.is_none() {
            let Ok(read) = timeout_at(deadline, self.reads.recv()).await else { return };
            self.add(read);
        }
    }

    fn add(&mut self, read: Option<io::Result<Vec<u8>>>) {
        match read {
            Some(Ok(mut bytes)) if self.bytes.is_empty() => std::mem::swap(&mut self.bytes, &mut bytes),
            Some(Ok(bytes)) => self.bytes.extend_from_slice(&bytes),
            Some(Err(error)) => self.end = Some(Err(error)),
            None => self.end = Some(Ok(())),
        }
    }

    /// True when [`Self::take`] returns something: bytes, the end, or an error.
    pub fn is_ready(&self) -> bool {
        !self.bytes.is_empty() || self.end.is_some()
    }

    /// Moves up to `most` bytes to the end of `out`; returns how many.
    ///
    /// # Errors
    /// The error of the reader, after all bytes that it read.
    pub fn take(&mut self, out: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        if self.bytes.is_empty()
            && let Some(end) = &mut self.end
        {
            return std::mem::replace(end, Ok(())).map(|()| 0);
        }
        let taken = self.bytes.len().min(most);
        out.extend(self.bytes.drain(..taken));
        Ok(taken)
    }

    /// True after the last byte.
    pub fn has_ended(&self) -> bool {
        self.bytes.is_empty() && matches!(self.end, Some(Ok(())))
    }
}
