//! The sending end: shows the list, then serves blocks as the receiver asks for them.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::codec::{read_body, read_header};
use crate::connection::Connection;
use crate::control::ControlLink;
use crate::error::TransferError;
use crate::hash::BLOCK;
use crate::limit::RateLimit;
use crate::listing::Listing;
use crate::manifest::totals;
use crate::message::{Control, LONGEST_REQUEST, Request};
use crate::progress::Progress;
use crate::report::{Report, Summary};
use crate::share::Share;
use crate::source::{Chunk, Source, SourcePorts};

/// Requests read ahead of the disk thread.
const REQUESTS: usize = 256;
/// Chunks, of a block or two each, between the disk thread and the stream.
const CHUNKS: usize = 4;

/// Sends `share` to the receiver at the other end of `connection`, until it has everything on disk.
///
/// Serve several receivers by calling this once for each, at the same time if you like. Dropping the
/// future stops sending; the receiver keeps what it has and can continue later.
///
/// # Errors
/// [`TransferError`]; what concerns the receiver was told to it.
pub async fn send<C: Connection>(
    connection: &C,
    share: &Share,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let stream = connection.accept().await.map_err(TransferError::Connection)?;
    let mut control = ControlLink::new(stream);
    let report = Report::default();
    let outcome = serve(connection, &mut control, share, (progress, &report)).await;
    let outcome = match outcome {
        Ok(()) => Ok(()),
        Err(error) => Err(control.explain(error).await),
    };
    control.part(&outcome).await;
    outcome?;
    let done = progress.snapshot();
    report.add(|summary| (summary.bytes, summary.resumed) = (done.bytes_done, done.bytes_resumed));
    report.finish()
}

async fn serve<C: Connection>(
    connection: &C,
    control: &mut ControlLink<C::Stream>,
    share: &Share,
    (progress, report): (&Progress, &Report),
) -> Result<(), TransferError> {
    control.greet().await?;
    control.expect_greeting().await?;
    let listed = share.clone();
    let listing = spawn_blocking(move || listed.list())
        .await
        .map_err(|error| TransferError::Connection(error.into()))?;
    let listing = Arc::new(listing?);
    progress.set_totals(totals(&listing.entries));
    listing.left_out.iter().for_each(|what| report.leave_out(what));
    show_list(control, &listing).await?;
    let work = async {
        let stream = connection.accept().await.map_err(TransferError::Connection)?;
        answer(stream, (listing, share.limit()), (progress, report)).await
    };
    // The data stream may end first; what counts is what the receiver says on the control stream.
    let work = async {
        match work.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    tokio::select! {
        biased;
        word = control.recv() => match word? {
            Control::Done => Ok(()),
            Control::Abort(reason) => Err(TransferError::Peer(reason)),
            _ => Err(TransferError::protocol("a control message that only senders send")),
        },
        error = work => Err(error),
    }
}

async fn show_list<S: AsyncRead + AsyncWrite + Unpin>(
    control: &mut ControlLink<S>,
    listing: &Listing,
) -> Result<(), TransferError> {
    let entries = listing.entries.iter().cloned().map(Control::Entry);
    let left_out = listing.left_out.iter().cloned().map(Control::LeftOut);
    let mut bytes = Vec::new();
    for line in entries.chain(left_out) {
        line.encode(&mut bytes);
        if bytes.len() >= 64 << 10 {
            control.send_bytes(&bytes).await?;
            bytes.clear();
        }
    }
    Control::ListEnd.encode(&mut bytes);
    control.send_bytes(&bytes).await
}

/// Moves requests from the stream to the disk thread and chunks back, until the receiver has no more.
async fn answer<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    (listing, limit): (Arc<Listing>, Option<&RateLimit>),
    (progress, report): (&Progress, &Report),
) -> Result<(), TransferError> {
    let (reader, mut writer) = tokio::io::split(stream);
    let (request_sender, requests) = mpsc::channel(REQUESTS);
    let (chunk_sender, mut chunks) = mpsc::channel::<Chunk>(CHUNKS);
    let (spare_sender, spare) = std::sync::mpsc::channel();
    let ports = SourcePorts { requests, chunks: chunk_sender, spare };
    let source = Source::new(listing, progress.clone(), report.clone(), ports);
    let disk = spawn_blocking(move || source.run());

    let read = async {
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        let mut body = Vec::new();
        while let Some((kind, len)) = read_header(&mut reader, LONGEST_REQUEST).await? {
            read_body(&mut reader, len, &mut body).await?;
            if request_sender.send(Request::decode(kind, &body)?).await.is_err() {
                break;
            }
        }
        drop(request_sender);
        Ok(())
    };
    let write = async {
        while let Some(mut chunk) = chunks.recv().await {
            write_within(limit, &mut writer, &chunk.bytes).await.map_err(TransferError::Connection)?;
            if chunks.is_empty() {
                writer.flush().await.map_err(TransferError::Connection)?;
            }
            progress.add_bytes(chunk.carried);
            progress.add_resumed(chunk.held);
            if chunk.bytes.capacity() <= 4 * BLOCK {
                chunk.bytes.clear();
                // The disk thread may have ended already; then nobody needs the buffer.
                let _ = spare_sender.send(chunk.bytes);
            }
        }
        writer.shutdown().await.map_err(TransferError::Connection)
    };
    tokio::try_join!(read, write)?;
    disk.await.map_err(|error| TransferError::Connection(error.into()))
}

/// Writes it all, within the limit where there is one.
async fn write_within<W: AsyncWrite + Unpin>(
    limit: Option<&RateLimit>,
    writer: &mut W,
    bytes: &[u8],
) -> io::Result<()> {
    let Some(limit) = limit else { return writer.write_all(bytes).await };
    for piece in bytes.chunks(limit.piece()) {
        limit.admit(piece.len()).await;
        writer.write_all(piece).await?;
    }
    Ok(())
}
