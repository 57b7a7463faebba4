//! Moves requests and replies between the data stream and the threads, many small ones at a time.

use std::sync::mpsc::Receiver;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::write::POOLED;
use crate::codec::{FRAME_HEADER, parse_header, read_body, read_header};
use crate::error::TransferError;
use crate::message::{LONGEST_REPLY, Reply, Request};
use crate::progress::Progress;

/// Groups of replies that may wait between the stream and the disk thread. A group has one large reply, or small ones
/// that arrived together.
pub(super) const REPLIES: usize = 16;

pub(super) async fn write_requests<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut requests: mpsc::Receiver<Vec<Request>>,
) -> Result<(), TransferError> {
    let mut bytes = Vec::new();
    while let Some(group) = requests.recv().await {
        group.iter().for_each(|request| request.encode(&mut bytes));
        writer.write_all(&bytes).await.map_err(TransferError::Connection)?;
        writer.flush().await.map_err(TransferError::Connection)?;
        bytes.clear();
    }
    writer.shutdown().await.map_err(TransferError::Connection)
}

/// Passes the replies on, before it waits for the next one. Large ones get their buffers from `spare`.
pub(super) async fn read_replies<R: AsyncRead + Unpin>(
    reader: R,
    replies: mpsc::Sender<Vec<Reply>>,
    (mut spare, progress): (Receiver<Vec<u8>>, &Progress),
) -> Result<(), TransferError> {
    let mut reader = BufReader::with_capacity(POOLED, reader);
    while let Some(first) = read_reply(&mut reader, &mut spare, progress).await? {
        let (mut group, mut read) = (vec![first], Ok(()));
        while read.is_ok() && has_frame(reader.buffer()) {
            read = read_reply(&mut reader, &mut spare, progress).await.map(|reply| group.extend(reply));
        }
        // Those before an error are still written.
        let Ok(()) = replies.send(group).await else { break };
        read?;
    }
    Ok(())
}

/// Reads the next reply; `None` if the stream has ended.
async fn read_reply<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    spare: &mut Receiver<Vec<u8>>,
    progress: &Progress,
) -> Result<Option<Reply>, TransferError> {
    let Some((kind, len)) = read_header(reader, LONGEST_REPLY).await? else { return Ok(None) };
    let is_large = len >= POOLED;
    let mut body = if is_large { spare.try_recv().unwrap_or_default() } else { Vec::new() };
    let count = |bytes| progress.add_moved(if is_large { bytes } else { 0 });
    read_body(reader, len, &mut body, count).await?;
    Reply::decode(kind, body).map(Some)
}

/// True if the bytes begin with a whole frame, or one that is not allowed.
fn has_frame(bytes: &[u8]) -> bool {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else { return false };
    parse_header(*header, LONGEST_REPLY).map_or(true, |(_, len)| rest.len() >= len)
}
