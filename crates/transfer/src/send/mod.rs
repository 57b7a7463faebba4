//! The sending end: sends the list, then answers requests.

mod ahead;
mod answer;
mod attributed;
mod bits;
mod chunk;
mod current;
mod fuse;
mod holes;
mod input;
mod listing;
mod memory;
mod rate;
mod requests;
mod root;
mod share;
mod skipped;
mod source;
mod trouble;
mod turns;

pub(crate) use holes::read_full;
pub(crate) use share::Selection;
pub use share::{Contents, Share};

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connection::Connection;
use crate::control::{ControlLink, LONGEST_FAREWELL, Verdict};
use crate::error::TransferError;
use crate::manifest::totals;
use crate::message::Control;
use crate::packed::pack;
use crate::progress::Progress;
use crate::report::{Report, Summary, hear};
use answer::{Service, answer};
use listing::Listing;
use memory::SILENCE;
use skipped::Skipped;

/// How long the first stream, the greeting and each part of the list may take.
const GREETING: Duration = Duration::from_secs(120);
/// How long the receiver may take to say how the transfer ended after the data stream broke, and after each file that it
/// names: longer than it takes to write received data.
const VERDICT: Duration = Duration::from_secs(12);
/// Bytes of the list in one write.
const LIST_PIECE: usize = 32 << 10;
/// Bytes of the list that a receiver has to take in a second, after [`GREETING`].
const LIST_RATE: u64 = 16 << 10;

/// Sends `share` to the receiver at the other end of `connection`, until it has everything on disk.
///
/// Call this once for each receiver; calls may run in parallel. Dropping the future stops sending; the receiver keeps
/// its data and can continue later. [`Share::close`] ends it with a reason.
///
/// # Errors
/// [`TransferError`]; the receiver gets a reason that concerns it.
pub async fn send<C: Connection>(
    connection: &C,
    share: &Share,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let accepted = timeout(GREETING, connection.accept()).await;
    let stream = accepted.map_err(|_| stalled(GREETING))?.map_err(TransferError::Connection)?;
    send_over(connection, ControlLink::new(stream), share, progress).await
}

/// Sends over this control stream.
pub(crate) async fn send_over<C: Connection>(
    connection: &C,
    mut control: ControlLink<C::Stream>,
    share: &Share,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let report = Report::default();
    let outcome = tokio::select! {
        outcome = serve(connection, &mut control, share, (progress, &report)) => outcome,
        reason = share.closed() => Err(TransferError::Closed(reason)),
    };
    // The list names the other things to note.
    let told: Vec<String> = report.bare().into_iter().collect();
    let outcome = match outcome {
        Ok(()) => Ok(Summary { warnings: told, ..Summary::default() }),
        Err(error) => Err(control.explain(error).await.with_notes(told)),
    };
    let notes = control.part(&outcome).await;
    let mut outcome = match outcome {
        Ok(_) => {
            report.count_kept();
            let done = progress.snapshot();
            report.add(|summary| {
                (summary.bytes, summary.resumed, summary.moved) =
                    (done.bytes_done, done.bytes_resumed, done.bytes_moved);
            });
            report.finish()
        }
        Err(error) if control.is_with_server() => {
            let own = report.finish().map_or_else(|_| Vec::new(), |summary| summary.warnings);
            Err(error.with_notes(own))
        }
        // The user has seen them together with the ticket.
        Err(error) => Err(error.with_notes(Vec::new())),
    };
    hear(&mut outcome, &notes);
    outcome
}

fn stalled(after: Duration) -> TransferError {
    TransferError::Stalled { after }
}

async fn serve<C: Connection>(
    connection: &C,
    control: &mut ControlLink<C::Stream>,
    share: &Share,
    (progress, report): (&Progress, &Report),
) -> Result<(), TransferError> {
    let asks_for_copy = control.asks_for_copy();
    timeout(GREETING, control.begin()).await.map_err(|_| stalled(GREETING))??;
    let listing = list(share).await?;
    progress.set_totals(totals(&listing.entries));
    report.expect(listing.count_files(), listing.entries.len() as u64);
    listing.left_out.iter().for_each(|what| report.leave_out(what));
    if !listing.has_links() {
        report.copy_links(listing.links.len());
    }
    let (noted, shown) =
        tokio::join!(note_directories(share, &listing, report), show_list(control, &listing));
    noted.and(shown)?;
    // It must not be taken for the stream of another request.
    let eager = match control.is_peer_eager() {
        true => Some(timeout(GREETING, connection.accept()).await.map_err(|_| stalled(GREETING))?),
        false => None,
    };
    let (skipped, named) = (Skipped::default(), Notify::new());
    let service = Service {
        listing,
        share: share.clone(),
        progress: progress.clone(),
        report: report.clone(),
        skipped: skipped.clone(),
        takes_short: control.is_peer_extended(),
    };
    let work = async {
        let accepted = match eager {
            Some(accepted) => accepted,
            None => timeout(SILENCE, connection.accept()).await.map_err(|_| stalled(SILENCE))?,
        };
        let stream = accepted.map_err(TransferError::Connection)?;
        progress.begin();
        Box::pin(answer(stream, service, || connection.unacknowledged())).await
    };
    // The data stream may end first, but the control stream decides the outcome.
    let work = async {
        match work.await {
            Ok(()) => {
                sleep(SILENCE).await;
                stalled(SILENCE)
            }
            Err(error) => {
                if matches!(error, TransferError::Connection(_)) {
                    wait_for_verdict(&named).await;
                }
                error
            }
        }
    };
    let verdict = control.verdict(|file| skipped.set(file), || named.notify_one());
    tokio::select! {
        biased;
        verdict = verdict => conclude(verdict?, asks_for_copy, report),
        error = work => Err(error),
    }
}

/// Waits until the receiver has had the time for its verdict, anew with each file that it names.
async fn wait_for_verdict(named: &Notify) {
    let _ =
        timeout(LONGEST_FAREWELL, async { while timeout(VERDICT, named.notified()).await.is_ok() {} }).await;
}

/// The outcome for this verdict.
fn conclude(verdict: Verdict, asks_for_copy: bool, report: &Report) -> Result<(), TransferError> {
    let Verdict { word, missing, unsynced } = verdict;
    report.add(|summary| summary.unsynced = unsynced);
    match word {
        Control::Done { removed, updated } => {
            if asks_for_copy {
                report.add(|summary| (summary.removed, summary.updated) = (removed, updated));
            }
            Ok(())
        }
        Control::Incomplete { failed_here: 0, count, .. } if !report.has_changed() => {
            // It has every file that the sender can read.
            report.count_missed(count);
            Ok(())
        }
        Control::Incomplete { count, failed_here: there, files, again } => {
            let changed = report.has_changed();
            let notes = Vec::new();
            Err(TransferError::PeerIncomplete { count, there, again, files, missing, changed, notes })
        }
        Control::Abort(reason) => Err(TransferError::Peer(reason)),
        _ => Err(TransferError::protocol("a control message that only senders send")),
    }
}

/// The share's list for one receiver.
pub(crate) async fn list(share: &Share) -> Result<Arc<Listing>, TransferError> {
    let turn = share.turns().next(false).await;
    let share = share.clone();
    let listed = spawn_blocking(move || {
        let listed = share.list();
        drop(turn);
        listed
    });
    listed.await.map_err(|error| TransferError::Connection(error.into()))?
}

/// Notes the directories whose extended attributes the receiver does not get.
async fn note_directories(
    share: &Share,
    listing: &Arc<Listing>,
    report: &Report,
) -> Result<(), TransferError> {
    let turn = share.turns().next(false).await;
    let (listing, report) = (Arc::clone(listing), report.clone());
    let noted = spawn_blocking(move || {
        listing.note_directories(&report);
        drop(turn);
    });
    noted.await.map_err(|error| TransferError::Connection(error.into()))
}

/// Sends a list.
pub(crate) async fn show_list<S: AsyncRead + AsyncWrite + Unpin>(
    control: &mut ControlLink<S>,
    listing: &Listing,
) -> Result<(), TransferError> {
    let entries = (0..).zip(&listing.entries).flat_map(|(index, entry)| {
        let attributes = listing.attributes.get(&index).into_iter().flatten();
        let first = listing.links.get(&index).filter(|_| listing.has_links()).copied().map(Control::HardLink);
        let attributes = attributes.cloned().map(Control::Attribute);
        [Control::Entry(entry.clone())].into_iter().chain(first).chain(attributes)
    });
    let left_out = listing.left_out.iter().cloned().map(Control::LeftOut);
    let (begin, mut sent) = (Instant::now(), 0);
    let mut bytes = Vec::new();
    for line in entries.chain(left_out).chain([Control::ListEnd]) {
        let is_last = line == Control::ListEnd;
        if !is_last {
            line.encode(&mut bytes);
        }
        if bytes.len() >= LIST_PIECE || is_last {
            bytes = pack(bytes);
            if is_last {
                line.encode(&mut bytes);
            }
            let deadline = begin + GREETING + Duration::from_secs(sent / LIST_RATE);
            let written = timeout_at(deadline, control.send_bytes(&bytes)).await;
            written.map_err(|_| stalled(GREETING))??;
            sent += bytes.len() as u64;
            bytes.clear();
        }
    }
    Ok(())
}
