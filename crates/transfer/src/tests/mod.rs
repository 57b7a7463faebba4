//! Whole transfers over streams in memory.

mod attributes;
mod conflicts;
mod consent;
mod crowd;
mod eager;
mod file_systems;
mod find;
mod hostile;
mod killed;
mod links;
mod resume;
mod round_trip;
mod serve;
mod sources;
mod trouble;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use cap_std::fs::{Dir, MetadataExt as _};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{Mutex, Notify, mpsc};

use crate::{Connection, Progress, ReceiveOptions, Share, Summary, Target, TransferError, receive, send};

/// One end of a connection in memory.
pub struct Memory {
    to_peer: mpsc::UnboundedSender<DuplexStream>,
    from_peer: Mutex<mpsc::UnboundedReceiver<DuplexStream>>,
    gate: Arc<Gate>,
}

/// Lets a number of bytes through to an end of a connection, signals that, and then lets no more through if it is shut.
pub struct Gate {
    left: AtomicU64,
    shuts: bool,
    reached: Notify,
}

impl Gate {
    fn after(bytes: u64, shuts: bool) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(bytes), shuts, reached: Notify::new() })
    }
}

/// Both ends of a connection; the second reads through `gate`.
pub fn connect(gate: Arc<Gate>) -> (Memory, Memory) {
    let (to_second, from_first) = mpsc::unbounded_channel();
    let (to_first, from_second) = mpsc::unbounded_channel();
    let end = |to_peer, from_peer, gate| Memory { to_peer, from_peer: Mutex::new(from_peer), gate };
    (end(to_second, from_second, Gate::after(u64::MAX, false)), end(to_first, from_first, gate))
}

pub struct Gated(DuplexStream, Arc<Gate>);

impl Connection for Memory {
    type Stream = Gated;

    async fn open(&self) -> io::Result<Gated> {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        self.to_peer.send(theirs).map_err(|_| io::ErrorKind::ConnectionReset)?;
        Ok(Gated(ours, Arc::clone(&self.gate)))
    }

    async fn accept(&self) -> io::Result<Gated> {
        let stream = self.from_peer.lock().await.recv().await.ok_or(io::ErrorKind::ConnectionReset)?;
        Ok(Gated(stream, Arc::clone(&self.gate)))
    }
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let gate = Arc::clone(&self.1);
        if gate.shuts && gate.left.load(Ordering::SeqCst) == 0 {
            gate.reached.notify_one();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, buf))?;
        let read = (buf.filled().len() - before) as u64;
        let left = gate.left.load(Ordering::SeqCst);
        gate.left.store(left.saturating_sub(read), Ordering::SeqCst);
        if left > 0 && left <= read {
            gate.reached.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A connection without a gate.
pub fn plain() -> (Memory, Memory) {
    connect(Gate::after(u64::MAX, false))
}

type Outcome = Result<Summary, TransferError>;

/// Sends `share` into `target`; returns both outcomes, the sender's first.
pub async fn transfer(share: &Share, target: Target, options: &ReceiveOptions) -> (Outcome, Outcome) {
    let (sender, receiver) = plain();
    let (ours, theirs) = (Progress::new(), Progress::new());
    let sending = async {
        let outcome = send(&sender, share, &ours).await;
        drop(sender);
        outcome
    };
    let receiving = async {
        let outcome = receive(&receiver, target, options, &theirs).await;
        drop(receiver);
        outcome
    };
    tokio::join!(sending, receiving)
}

/// Sends `share` into the directory `to` as for a user who is not asked; both ends must succeed.
pub async fn transfer_into(share: &Share, to: &Path) -> Summary {
    let options = ReceiveOptions { eager: true, ..ReceiveOptions::default() };
    let (sent, received) = transfer(share, directory(to), &options).await;
    sent.unwrap();
    received.unwrap()
}

pub fn directory(path: &Path) -> Target {
    Target::Directory(path.to_owned())
}

pub fn share(path: &Path) -> Share {
    Share::from_paths(&[path]).unwrap()
}

/// Pseudo-random bytes, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new_derive_key("noise").update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Two directories, the first containing `files`.
pub fn directories(files: &[(&str, &[u8])]) -> (TempDir, PathBuf, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let (from, to) = (temp.path().join("from"), temp.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    for (name, content) in files {
        let path = from.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    (temp, from, to)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    File { mode: u32, modified: Option<std::time::SystemTime>, content: blake3::Hash },
    Directory { mode: u32, modified: Option<std::time::SystemTime> },
    Link(PathBuf),
}

/// Everything below `path`, by relative path.
pub fn tree(path: &Path) -> BTreeMap<String, Found> {
    fn walk(path: &Path, prefix: &str, found: &mut BTreeMap<String, Found>) {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            // The threads of an aborted receiver may be renaming it.
            let Ok(meta) = entry.metadata() else { continue };
            let mode = meta.permissions().mode() & 0o7777;
            let what = if meta.is_dir() {
                walk(&entry.path(), &format!("{name}/"), found);
                Found::Directory { mode, modified: meta.modified().ok() }
            } else if meta.is_symlink() {
                Found::Link(fs::read_link(entry.path()).unwrap())
            } else {
                let Ok(content) = fs::read(entry.path()) else { continue };
                Found::File { mode, modified: meta.modified().ok(), content: blake3::hash(&content) }
            };
            found.insert(name, what);
        }
    }
    let mut found = BTreeMap::new();
    walk(path, "", &mut found);
    found
}

/// Names of the entries in `path`, sorted.
pub fn names(path: &Path) -> Vec<String> {
    tree(path).into_keys().filter(|name| !name.contains('/')).collect()
}

/// A file of this name in a directory simulates a disk with room for ten blocks of each file.
pub const FULL: &str = "this disk is full";

/// A file of this name in a directory simulates a disk that breaks after ten blocks of a file.
pub const BROKEN: &str = "this disk is broken";

pub fn fail_if_full(directory: &Dir, block: u64) -> io::Result<()> {
    match block >= 10 {
        true if directory.exists(FULL) => Err(io::ErrorKind::StorageFull.into()),
        true if directory.exists(BROKEN) => Err(io::Error::other("broken")),
        _ => Ok(()),
    }
}

/// A file of this name in a directory simulates a quota of twelve blocks and a half for its files. A write stores the bytes that fit.
pub const TIGHT: &str = "the quota is small";

pub fn fail_if_over_quota(
    directory: &Dir,
    (name, file): (&str, &fs::File),
    (offset, data): (u64, &[u8]),
) -> io::Result<()> {
    if !directory.exists(TIGHT) {
        return Ok(());
    }
    let others = directory.entries()?.flatten().filter(|entry| entry.file_name() != name);
    let used: u64 = others.map(|entry| entry.metadata().map_or(0, |found| found.len())).sum();
    let most = (25 * crate::hash::BLOCK as u64 / 2).saturating_sub(used + offset);
    let Some(fits) = usize::try_from(most).ok().and_then(|most| data.get(..most)) else { return Ok(()) };
    if fits.len() == data.len() {
        return Ok(());
    }
    std::os::unix::fs::FileExt::write_all_at(file, fits, offset)?;
    Err(io::ErrorKind::QuotaExceeded.into())
}

/// A file of this time, in seconds, simulates one in FUSE, which reports twice its length.
pub const DOUBLED: u64 = 77_777;

pub fn is_doubled(found: &cap_std::fs::Metadata) -> bool {
    found.mtime() == DOUBLED.cast_signed()
}

pub fn reported(size: u64, found: &cap_std::fs::Metadata) -> u64 {
    if is_doubled(found) { 2 * size } else { size }
}

/// A file of this name in the target simulates a disk with one free megabyte.
pub const SMALL: &str = "this disk is small";

/// A file of this name in a small target has the type of its file system, in hexadecimal.
pub const TYPE: &str = "type";

pub fn holes(directory: &Dir) -> crate::receive::Holes {
    let text = directory.read_to_string(TYPE).unwrap_or_else(|_| "ef53".into());
    crate::receive::Holes::on(u32::from_str_radix(&text, 16).unwrap())
}

/// A file of this name in a directory simulates a file system that stores no times.
pub const TIMELESS: &str = "no times here";

pub fn fail_if_timeless(directory: &Dir) -> io::Result<()> {
    if directory.exists(TIMELESS) { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

/// A file of this name in a directory simulates a file system without hard links.
pub const LINKLESS: &str = "no links here";

pub fn fail_if_linkless(directory: &Dir) -> io::Result<()> {
    if directory.exists(LINKLESS) { Err(io::ErrorKind::TooManyLinks.into()) } else { Ok(()) }
}

/// A file of this name in a directory simulates a file system that reports lost data when a file is closed.
pub const LOSSY: &str = "lost at the end";

pub fn fail_if_lossy(directory: &Dir) -> io::Result<()> {
    if directory.exists(LOSSY) { Err(io::Error::other("lost")) } else { Ok(()) }
}

/// A file of this name in a directory simulates a file system that cannot sync.
pub const SYNCLESS: &str = "no syncs here";

pub fn fail_if_syncless(directory: &Dir) -> io::Result<()> {
    if directory.exists(SYNCLESS) { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

/// A file of this name in a directory simulates a disk without room to sync the directory.
pub const CROWDED: &str = "no room for syncs";

pub fn fail_if_crowded(directory: &Dir) -> io::Result<()> {
    if directory.exists(CROWDED) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}
