//! The receiving end: reads the list, asks for consent, sends requests and takes replies; threads do the disk work.

mod ahead;
mod alike;
mod aside;
mod begun;
mod commit;
mod further;
mod groups;
mod incoming;
mod job;
mod leftovers;
mod links;
mod list;
mod mirror;
mod offer;
mod part;
mod place;
mod plan;
mod pump;
mod queue;
mod quota;
mod remove;
mod room;
mod shut;
mod space;
mod spelling;
mod staged;
mod symlink;
mod target;
mod write;

pub use offer::{Consent, Offer, OfferedName};
pub use quota::Quota;
pub use room::Shortage;
#[cfg(test)]
pub(crate) use target::Holes;
pub use target::{OutputStream, Target, close_output};

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;

use crate::attributes::{Attribute, Attributes};
use crate::connection::Connection;
use crate::control::ControlLink;
use crate::error::TransferError;
use crate::hash::block_count;
use crate::manifest::{Entry, EntryKind, Limits, List, totals};
use crate::message::{Control, Request};
use crate::path::RelPath;
use crate::policy::{Conflict, Mirror, Placing};
use crate::progress::Progress;
use crate::report::{Report, Summary, Watch, hear};
use ahead::{Asker, Fetch, InFlight};
use begun::{Begun, begin};
use commit::Committer;
use job::{FileJob, Keeping};
use links::Links;
pub(crate) use list::read_list;
use list::{drop_unwanted, is_stream};
use plan::{PlanPorts, Planner};
use pump::{REPLIES, read_replies, write_requests};
use target::TargetTree;
use write::{Output, WritePorts, Writer};

/// How long received data may take to be written after the transfer fails.
const DRAIN: Duration = Duration::from_secs(10);
/// Options of a receiver.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// The policy for taken names.
    pub conflict: Conflict,
    /// Makes the target a copy of the share; then taken names are overwritten.
    pub mirror: Option<Mirror>,
    /// Most bytes that the target may hold.
    pub quota: Option<Quota>,
    /// Limits for the sender's list.
    pub limits: Limits,
    /// Whether the user accepts the offer.
    pub consent: Consent,
    /// Whether to ask for the beginning of the first file together with the list, which saves a round trip. For users who
    /// are not asked: it is sent whether or not it is needed.
    pub eager: bool,
    /// Most bytes of all files together; `None` means no limit but the disk.
    pub max_size: Option<u64>,
    /// Whether hidden names may go into a directory that has anything else in it.
    pub allow_hidden: bool,
    /// Whether files and directories get exactly the sender's modes; otherwise the umask applies.
    pub all_modes: bool,
    /// Whether files and directories get the extended attributes that the sender sends.
    pub attributes: bool,
    /// Whether further names of a file are made as hard links.
    pub hard_links: bool,
}

/// Receives the share at the other end of `connection` into `target`.
///
/// Returns when every file is verified, synced and under its final name. An error or a dropped future leaves unfinished
/// files next to their final names; the same call continues from them.
///
/// # Errors
/// [`TransferError`]; the sender receives a reason that concerns it.
pub async fn receive<C: Connection>(
    connection: &C,
    target: Target,
    options: &ReceiveOptions,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let stream = connection.open().await.map_err(TransferError::Connection)?;
    let (control, misses_attributes) = (ControlLink::new(stream), options.attributes);
    receive_over(connection, control, Intake { target, options, misses_attributes }, progress).await
}

/// The target of a transfer, and the user's choices.
pub(crate) struct Intake<'a> {
    pub target: Target,
    pub options: &'a ReceiveOptions,
    /// Whether to note that the sender sends no extended attributes. A server sends them on request.
    pub misses_attributes: bool,
}

/// Receives over this control stream.
pub(crate) async fn receive_over<C: Connection>(
    connection: &C,
    control: ControlLink<C::Stream>,
    intake: Intake<'_>,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    receive_until(connection, control, intake, progress, std::future::pending()).await
}

/// Receives until `stop` completes.
pub(crate) async fn receive_until<C: Connection>(
    connection: &C,
    mut control: ControlLink<C::Stream>,
    intake: Intake<'_>,
    progress: &Progress,
    stop: impl Future<Output = TransferError>,
) -> Result<Summary, TransferError> {
    let watch = Watch { report: Report::default(), progress: progress.clone() };
    let received = async {
        control.greet(intake.options.eager).await?;
        let eager = if intake.options.eager { Some(begin(connection).await?) } else { None };
        control.begin().await?;
        run(connection, (&mut control, eager), intake, &watch).await
    };
    let outcome = tokio::select! {
        outcome = received => outcome,
        error = stop => Err(error),
    };
    let mut outcome = match outcome {
        Ok(()) => watch.report.finish(),
        Err(error) => Err(control.explain(error).await),
    };
    let notes = control.part(&outcome).await;
    let done = progress.snapshot();
    hear(&mut outcome, &notes);
    outcome.map(|summary| {
        let but_unchecked = |bytes: u64| bytes.saturating_sub(summary.unchecked_bytes);
        let (bytes, resumed) = (but_unchecked(done.bytes_done), but_unchecked(done.bytes_resumed));
        Summary { bytes, resumed, moved: done.bytes_moved, ..summary }
    })
}

async fn run<C: Connection>(
    connection: &C,
    (control, eager): (&mut ControlLink<C::Stream>, Option<C::Stream>),
    Intake { target, options, misses_attributes }: Intake<'_>,
    watch: &Watch,
) -> Result<(), TransferError> {
    let mut list = read_list(control, &options.limits, &watch.report).await?;
    if misses_attributes && list.attributes.is_empty() {
        watch.report.miss_attributes();
    }
    drop_unwanted(&mut list, options, &watch.report);
    let List { entries, left_out, attributes, links } = list;
    watch.progress.set_totals(totals(&entries));
    watch.progress.set_stream(is_stream(&entries));
    let removes = options.mirror.is_some_and(|mirror| mirror.delete);
    if entries.is_empty() && (!removes || watch.report.has_failed()) {
        // The sender can send nothing, and has reported why.
        return Ok(());
    }
    let (place, entries) = settle_target(target, entries)?;
    let removal = removes.then_some(left_out);
    let mut offer = Offer::of(&entries);
    offer.check(options, (place.directory(), &entries))?;
    let compares_all = control.is_peer_extended();
    let ((entries, links), shortage) = offer::survey(&place, (entries, links), options, compares_all).await?;
    offer.shortage = shortage;
    let (skips, mut to_skip) = mpsc::unbounded_channel();
    let skips = compares_all.then_some(skips);
    let stop = async {
        loop {
            tokio::select! {
                biased;
                word = control.recv() => return match word {
                    Ok(Control::Abort(reason)) => TransferError::Peer(reason),
                    Ok(_) => TransferError::protocol("a control message in the middle of the transfer"),
                    Err(error) => error,
                },
                Some(file) = to_skip.recv() => {
                    if let Err(error) = control.send(&Control::Skip(file)).await {
                        return error;
                    }
                }
            }
        }
    };
    tokio::pin!(stop);
    tokio::select! {
        biased;
        error = &mut stop => return Err(error),
        consents = options.consent.ask(offer) => if !consents { return Err(TransferError::Declined) },
    }
    let (begun, stream) = match eager {
        Some(stream) => (Begun::Due, stream),
        None => (Begun::None, connection.open().await.map_err(TransferError::Connection)?),
    };
    watch.progress.begin();
    let list = List { entries, left_out: Vec::new(), attributes, links };
    let order = Order { place, begun, skips, content: Content { list, removal, options, compares_all } };
    work(stream, order, watch.clone(), stop).await
}

/// A target that fits the share.
#[derive(Clone)]
enum Destination {
    Directory(Spot),
    Stream(Outlet),
}

/// An output stream, which one writer takes.
type Outlet = Arc<Mutex<Option<Box<dyn OutputStream>>>>;

/// A target directory.
#[derive(Clone)]
enum Spot {
    At(PathBuf),
    Below { root: PathBuf, path: String },
}

impl Spot {
    fn open(&self, all_modes: bool) -> Result<TargetTree, TransferError> {
        match self {
            Self::At(path) => TargetTree::open(path, all_modes),
            Self::Below { root, path } => TargetTree::open_below(root, path),
        }
    }

    fn path_len(&self) -> usize {
        match self {
            Self::At(path) => path.as_os_str().len(),
            Self::Below { root, path } => root.as_os_str().len() + 1 + path.len(),
        }
    }

    /// The directory in which the missing directories are to be made.
    fn ground(&self) -> Option<TargetTree> {
        match self {
            Self::At(path) => TargetTree::ground_of(path),
            Self::Below { root, path } => TargetTree::ground_of(&root.join(path)),
        }
    }

    /// The directory if it exists, and how many directories of its path are missing.
    fn look(&self) -> (Option<TargetTree>, u64) {
        match self {
            Self::At(path) => TargetTree::look_below(TargetTree::named(path), ""),
            Self::Below { root, path } => TargetTree::look_below(root, path),
        }
    }
}

impl Destination {
    /// The path of the target directory that the user named.
    fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(Spot::At(path)) => Some(path),
            _ => None,
        }
    }
}

fn settle_target(
    target: Target,
    mut entries: Vec<Entry>,
) -> Result<(Destination, Vec<Entry>), TransferError> {
    let only_file = |target: &str| match entries.as_slice() {
        [Entry { kind: EntryKind::File(_), .. }] => Ok(()),
        _ => {
            let found = format!("{} entries", entries.len());
            Err(TransferError::OneFileOnly { found, target: target.to_owned() })
        }
    };
    match target {
        Target::Directory(path) => Ok((Destination::Directory(Spot::At(path)), entries)),
        Target::Below { root, path } => Ok((Destination::Directory(Spot::Below { root, path }), entries)),
        Target::Writer(writer) => {
            only_file("an output stream")?;
            Ok((Destination::Stream(Arc::new(Mutex::new(Some(writer)))), entries))
        }
        Target::File(path) => {
            only_file(&path.to_string_lossy())?;
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            entries[0].path = RelPath::parse(name)?;
            let parent = path.parent().unwrap_or(Path::new("")).to_owned();
            Ok((Destination::Directory(Spot::At(parent)), entries))
        }
    }
}

/// A destination and what it gets.
struct Order<'a> {
    place: Destination,
    begun: Begun,
    /// For the files that the sender is to skip, if it can.
    skips: Option<mpsc::UnboundedSender<u32>>,
    content: Content<'a>,
}

/// The entries to receive, and the options.
struct Content<'a> {
    list: List,
    /// If others are to be removed: the paths that stay, because the sender has them and does not send them.
    removal: Option<Vec<String>>,
    options: &'a ReceiveOptions,
    /// Whether the sender hashes files of another length than it lists, too.
    compares_all: bool,
}

/// Runs the threads and the data stream until all files have their final names, or `stop` completes.
async fn work<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    order: Order<'_>,
    watch: Watch,
    stop: impl Future<Output = TransferError>,
) -> Result<(), TransferError> {
    let Order { place, begun, skips, content } = order;
    let (asker, requests, in_flight) = ahead::channels();
    let (reply_sender, replies) = mpsc::channel(REPLIES);
    let (compared_sender, compared) = channel();
    let (spare_sender, spare) = channel();
    let plan_ports = PlanPorts { asker, compared };
    let write_ports =
        WritePorts { in_flight, replies, compared: compared_sender, spare: spare_sender, begun, skips };

    let progress = watch.progress.clone();
    let threads = async move {
        match place {
            Destination::Directory(spot) => fill(spot, content, plan_ports, write_ports, watch).await,
            Destination::Stream(stream) => {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
                let output = Output::Stream(stream.unwrap_or_else(|| Box::new(io::sink())));
                let entries = content.list.entries;
                let most = content.options.max_size.unwrap_or(u64::MAX);
                let writer = Writer::new(output, write_ports, watch, (most, totals(&entries).1));
                let run = move || {
                    ask_for_only_file(plan_ports.asker, &entries[0]);
                    writer.run()
                };
                spawn_blocking(run).await.map_err(panicked)?.map(|_| ())
            }
        }
    };
    let (reader, writer) = tokio::io::split(stream);
    let pump = async {
        let read = read_replies(reader, reply_sender, (spare, &progress));
        let written = write_requests(writer, requests);
        match tokio::try_join!(read, written) {
            // The stream is done; the threads' outcome decides.
            Ok(_) => std::future::pending().await,
            Err(error) => error,
        }
    };
    tokio::pin!(threads);
    let error = tokio::select! {
        biased;
        outcome = &mut threads => return outcome,
        error = pump => error,
        error = stop => error,
    };
    // Received data is still written, so that it need not be sent again.
    let _ = timeout(DRAIN, threads).await;
    Err(error)
}

/// Receives into a directory.
async fn fill(
    spot: Spot,
    content: Content<'_>,
    plan_ports: PlanPorts,
    write_ports: WritePorts,
    watch: Watch,
) -> Result<(), TransferError> {
    let Content { list, removal, options, compares_all } = content;
    let (entries, attributes) = (Arc::new(list.entries), Arc::new(list.attributes));
    let (most, listed) = (options.max_size.unwrap_or(u64::MAX), totals(&entries).1);
    let placing = Placing { conflict: options.conflict, mirror: options.mirror };
    let (all_modes, quota) = (options.all_modes, options.quota.clone());
    let (seen, entries_of, progress) = (spot.clone(), Arc::clone(&entries), watch.progress.clone());
    let attribute_bytes: usize = attributes.values().flatten().map(Attribute::len).sum();
    // Before any directory is made.
    let reserved = spawn_blocking(move || {
        let reserve = |quota: Quota| {
            quota::check_paths(seen.path_len(), &entries_of)?;
            let (tree, missing) = seen.look();
            let more = missing.saturating_mul(quota::NAME).saturating_add(attribute_bytes as u64);
            quota.reserve((tree, more), &entries_of, placing, progress)
        };
        quota.map(reserve).transpose()
    });
    let reserved = reserved.await.map_err(panicked)??.map(Arc::new);
    let opened = spawn_blocking(move || spot.open(all_modes)).await;
    let mut tree = match opened.map_err(panicked)? {
        Ok(tree) => tree,
        Err(error) => return lack_all(&entries, error, &watch.report),
    };
    let most = reserved.as_ref().map_or(most, |reserved| most.min(reserved.most(listed)));
    let links = settle_links(list.links, (&entries, &attributes), &tree, &watch).await?;
    let (mode_mask, kept) = (tree.mode_mask(), Arc::clone(&attributes));
    let keeping = Keeping { mode_mask, attributes: kept };
    let committer = Committer::start(&tree, watch.clone(), keeping, links.clone())?;
    let output = Output::Tree(tree.another(), committer);
    let writer = Writer::new(output, write_ports, watch.clone(), (most, listed));
    let (tree_of, room, watch_of) = (tree.another(), reserved.clone(), watch.clone());
    let planner = Planner::new(tree_of, placing, watch_of, plan_ports).within(room);
    let planner = planner.keeping(attributes, links.clone()).comparing_all(compares_all);
    let planned = Arc::clone(&entries);
    let plan = spawn_blocking(move || planner.run(&planned));
    let mut renamed = spawn_blocking(move || writer.run()).await.map_err(panicked)??;
    let ends = plan.await.map_err(panicked)?;
    renamed.extend(links.iter().flat_map(|links| links.take_changed()));
    let finished = spawn_blocking(move || {
        tree.finish(&renamed, links.as_deref(), &watch)?;
        let removed = removal.map_or(Ok(()), |left_out| {
            mirror::remove_others(&mut tree, (&entries, &left_out), &watch.report)
        });
        tree.settle(&ends, &watch.report);
        removed
    })
    .await;
    drop(reserved);
    finished.map_err(panicked)?
}

/// Fails all entries by name, if the target directory could not be made because there is no room for it.
fn lack_all(entries: &[Entry], error: TransferError, report: &Report) -> Result<(), TransferError> {
    let why = io::Error::from(match error {
        TransferError::DiskFull { .. } => io::ErrorKind::StorageFull,
        TransferError::OverQuota { .. } => io::ErrorKind::QuotaExceeded,
        _ => return Err(error),
    });
    entries.iter().for_each(|entry| report.fail_io(&entry.path, &why, io::Error::to_string));
    Ok(())
}

/// The links to make. Where files cannot have several names, there are none.
async fn settle_links(
    first: crate::manifest::Links,
    (entries, attributes): (&Arc<Vec<Entry>>, &Arc<Attributes>),
    tree: &TargetTree,
    watch: &Watch,
) -> Result<Option<Arc<Links>>, TransferError> {
    if first.is_empty() {
        return Ok(None);
    }
    let (tree, tried) = (tree.another(), tree.another());
    if spawn_blocking(move || tried.takes_links()).await.map_err(panicked)? {
        let all = (Arc::clone(entries), Arc::clone(attributes));
        return Ok(Some(Arc::new(Links::new(first, all, tree, watch.clone()))));
    }
    let copies = first.len();
    let note = format!("this file system has no hard links; further names that became copies: {copies}");
    watch.report.warn(&note);
    Ok(None)
}

/// Requests the share's only file from its start.
fn ask_for_only_file(mut asker: Asker, entry: &Entry) {
    let EntryKind::File(meta) = entry.kind else { return };
    let count = meta.size.map_or(u64::MAX, block_count);
    let job = Arc::new(FileJob::new(0, entry.path.clone(), meta));
    let fetch = Fetch { job, part: None, held: Vec::new(), first: 0, count, last: true };
    let request = Request::Fetch { file: 0, first: 0, count, last: true, held: Vec::new() };
    // The channels are empty and open: this cannot fail or wait.
    let _ = asker.ask(request, InFlight::Fetch(fetch));
}

fn panicked(error: JoinError) -> TransferError {
    TransferError::Connection(error.into())
}
