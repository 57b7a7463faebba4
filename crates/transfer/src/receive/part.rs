//! An unfinished file.
//!
//! It is next to its final name, so that a rename within one directory finishes it. A receiver locks it while working
//! on it. A later attempt needs nothing else: it hashes the content instead of trusting it.

use std::fs::{File, FileTimes};
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use cap_fs_ext::{FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, Metadata, OpenOptions};

use super::aside::{Clearing, replace};
use super::job::{FileJob, Keeping};
use crate::attributes::{self, Attributes};
#[cfg(test)]
use crate::hash::BLOCK;
use crate::hash::is_zero;
use crate::manifest::ModifiedTime;
use crate::path::{RelPath, part_name};
use crate::report::Report;

/// How often, and how far apart, to try a lock that another receiver holds: an aborted one needs a moment.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Aligned zeros of this length become a hole.
const PAGE: usize = 4 << 10;
/// For a note.
pub(super) const STORE_ATTRIBUTES: &str = "store the extended attributes";

/// An open, locked, unfinished file.
#[derive(Debug)]
pub(crate) struct PartFile {
    directory: Arc<Dir>,
    name: String,
    file: File,
    position: u64,
    len: u64,
}

/// The identity of a file on this machine: no other has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    number: u64,
}

impl FileId {
    pub fn of(meta: &Metadata) -> Self {
        use cap_std::fs::MetadataExt as _;
        Self { device: meta.dev(), number: meta.ino() }
    }
}

impl PartFile {
    /// Length of the unfinished file for `final_name`; 0 without one.
    pub fn held(directory: &Dir, final_name: &str) -> u64 {
        let meta = directory.symlink_metadata(part_name(final_name));
        meta.ok().filter(cap_std::fs::Metadata::is_file).map_or(0, |meta| meta.len())
    }

    /// Identity and length of the unfinished file for `final_name`.
    pub fn found(directory: &Dir, final_name: &str) -> Option<(FileId, u64)> {
        let meta = directory.symlink_metadata(part_name(final_name)).ok()?;
        meta.is_file().then(|| (FileId::of(&meta), meta.len()))
    }

    /// Opens the unfinished file for `final_name`, or creates it; cuts it to at most `size`.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::ResourceBusy`] when another receiver holds it.
    pub fn open(directory: Arc<Dir>, final_name: &str, size: Option<u64>) -> io::Result<Self> {
        let name = part_name(final_name);
        let (file, len) =
            open_locked(&directory, &name).map_err(|error| unless_removed(&directory, error))?;
        let most = size.unwrap_or(0);
        if len > most {
            file.set_len(most)?;
        }
        Ok(Self { directory, name, file, position: 0, len: len.min(most) })
    }

    /// Opens the unfinished file for `final_name` again; `None` unless it has this identity and length.
    pub fn reopen(directory: Arc<Dir>, final_name: &str, found: (FileId, u64)) -> io::Result<Option<Self>> {
        if Self::found(&directory, final_name) != Some(found) {
            return Ok(None);
        }
        let part = Self::open(directory, final_name, Some(u64::MAX))?;
        Ok(((part.id()?, part.len) == found).then_some(part))
    }

    /// Removes the unfinished file for `final_name`, unless another receiver uses it.
    pub fn discard(directory: &Dir, final_name: &str) -> io::Result<()> {
        let name = part_name(final_name);
        if !directory.symlink_metadata(&name).is_ok_and(|meta| meta.is_file()) {
            return Ok(());
        }
        let _locked = open_locked(directory, &name)?;
        directory.remove_file(&name)
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The directory of the file.
    pub fn directory(&self) -> Arc<Dir> {
        Arc::clone(&self.directory)
    }

    /// Its identity.
    pub fn id(&self) -> io::Result<FileId> {
        use std::os::unix::fs::MetadataExt as _;
        self.file.metadata().map(|meta| FileId { device: meta.dev(), number: meta.ino() })
    }

    /// Another handle to the same file, with its own position, for reading.
    pub fn reader(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).follow(FollowSymlinks::No);
        Ok(self.directory.open_with(&self.name, &options)?.into_std())
    }

    /// Writes `data` at `offset`. Zeros beyond the end of the file become holes.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let written = self.write_all(offset, data);
        self.len = match &written {
            Ok(()) => self.len.max(offset + data.len() as u64),
            // A disk that fills up may have taken a part.
            Err(_) => self.file.metadata().map_or(self.len, |found| found.len()),
        };
        written
    }

    fn write_all(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        crate::tests::fail_if_full(&self.directory, offset / BLOCK as u64)?;
        #[cfg(test)]
        crate::tests::fail_if_over_quota(&self.directory, (&self.name, &self.file), (offset, data))?;
        if offset < self.len { self.write_at(offset, data) } else { self.write_sparse(offset, data) }
    }

    /// Writes the non-zero pages. Sets the length if the last page is zero.
    fn write_sparse(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = 0;
        for (at, page) in data.chunks(PAGE).enumerate() {
            let start = at * PAGE;
            if page.len() == PAGE && is_zero(page) {
                if written < start {
                    self.write_at(offset + written as u64, &data[written..start])?;
                }
                written = start + PAGE;
            }
        }
        if written < data.len() {
            return self.write_at(offset + written as u64, &data[written..]);
        }
        let end = offset + data.len() as u64;
        // Some file systems only grow files by writing.
        self.file.set_len(end).or_else(|_| self.write_at(end - 1, &[0]))
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.position != offset {
            self.file.seek(SeekFrom::Start(offset))?;
        }
        self.position = u64::MAX; // Unknown until the write is through.
        self.file.write_all(data)?;
        self.position = offset + data.len() as u64;
        Ok(())
    }

    /// Cuts off what an earlier attempt has left after the end of the complete file.
    pub fn end_at(&mut self, len: u64) -> io::Result<()> {
        if self.len > len {
            self.file.set_len(len)?;
            self.len = len;
        }
        Ok(())
    }

    /// Stamps, syncs and renames the complete file.
    pub fn commit(self, job: &FileJob, keeping: &Keeping, report: &Report) -> io::Result<()> {
        self.stamp(job, keeping, report);
        self.sync(job, report)?;
        self.place(job, report)
    }

    /// Sets attributes, mode and time of the complete file. Adds a note to `report` for metadata that the file system
    /// refuses. Returns the file's device.
    pub fn stamp(&self, job: &FileJob, keeping: &Keeping, report: &Report) -> Option<u64> {
        use std::os::unix::fs::MetadataExt as _;
        set_attributes(&self.file, &keeping.attributes, (job.index, &job.path), report);
        let (mode, time) = (job.meta.mode & keeping.mode_mask, job.meta.modified.and_then(system_time));
        let moded = change_mode(&self.file, mode);
        let timed = time.map(|time| change_time(&self.directory, &self.file, time).map(|()| time));
        let stored = self.file.metadata();
        if let Err(error) = moded.and_then(|()| check_mode(&stored, mode)) {
            report.note("store the mode", &job.path, &error);
        }
        if let Some(Err(error)) = timed.map(|timed| timed.and_then(|time| check_time(&stored, time))) {
            report.note("store the time", &job.path, &error);
        }
        stored.ok().map(|stored| stored.dev())
    }

    /// Syncs the file.
    pub fn sync(&self, job: &FileJob, report: &Report) -> io::Result<()> {
        match sync(&self.directory, &self.file) {
            Err(error) if cannot_sync(&error) => report.note("confirm the writing", &job.path, &error),
            synced => synced?,
        }
        close_one(&self.directory, &self.file)
    }

    /// Renames the synced file.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name is taken and must not be replaced.
    pub fn place(self, job: &FileJob, report: &Report) -> io::Result<()> {
        if let Some(shut) = job.clears {
            let clearing = Clearing { report, path: &job.path, shut, why_unsafe: report.why_unsafe() };
            replace(&self.directory, (&self.name, &job.name), clearing)
        } else if job.replace {
            self.directory.rename(&self.name, &self.directory, &job.name)
        } else {
            rename_new(&self.directory, &self.name, &job.name)
        }
    }
}

/// Sets the extended attributes of entry `index` at `path`, if it has any.
pub(super) fn set_attributes(file: &File, all: &Attributes, (index, path): (u32, &RelPath), report: &Report) {
    let attributes = all.get(&index).map_or(&[][..], Vec::as_slice);
    if let Err(error) = attributes::write(file, attributes) {
        report.note(STORE_ATTRIBUTES, path, &error);
    }
}

/// Sets the time of a file in `directory`.
#[cfg_attr(not(test), allow(unused_variables))]
fn change_time(directory: &Dir, file: &File, time: SystemTime) -> io::Result<()> {
    #[cfg(test)]
    crate::tests::fail_if_timeless(directory)?;
    file.set_times(times(time))
}

/// Syncs a file in `directory`.
#[cfg_attr(not(test), allow(unused_variables))]
fn sync(directory: &Dir, file: &File) -> io::Result<()> {
    #[cfg(test)]
    crate::tests::fail_if_syncless(directory)?;
    file.sync_all()
}

/// Closes one handle of a file in `directory`: file systems without syncs (some by FUSE, such as `rclone mount`) report
/// only then that data could not be stored.
#[cfg_attr(not(test), allow(unused_variables))]
fn close_one(directory: &Dir, file: &File) -> io::Result<()> {
    #[cfg(test)]
    crate::tests::fail_if_lossy(directory)?;
    Ok(nix::unistd::close(file.try_clone()?)?)
}

/// True if files in `directory` keep the time that they are given. Tries it with a file, and removes that again; true if it
/// cannot try.
pub(super) fn stores_times(directory: &Dir) -> bool {
    let (name, time) = (part_name("time"), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    owner_only(&mut options);
    let Ok(file) = directory.open_with(&name, &options).map(cap_std::fs::File::into_std) else { return true };
    let stored = change_time(directory, &file, time).and_then(|()| check_time(&file.metadata(), time));
    // If it stays, it is an unfinished file like any other.
    let _ = directory.remove_file(&name);
    stored.is_ok()
}

/// True for times at most two seconds apart: some file systems store even seconds only.
pub(super) fn is_near(one: SystemTime, other: SystemTime) -> bool {
    let apart = one.duration_since(other).or_else(|_| other.duration_since(one));
    apart.is_ok_and(|apart| apart <= Duration::from_secs(2))
}

/// Why an entry could not be made in a directory that exists.
pub(super) fn cannot_make(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
            format!("this file system does not take its name ({error}); rename it on the sender")
        }
        _ => error.to_string(),
    }
}

/// The error of a file that could not be made, unless its directory no longer exists.
pub(super) fn unless_removed(directory: &Dir, error: io::Error) -> io::Error {
    use cap_std::fs::MetadataExt as _;
    let is_removed = error.kind() == io::ErrorKind::NotFound
        && directory.dir_metadata().is_ok_and(|found| found.nlink() == 0);
    if is_removed { io::Error::other("its directory was removed; run the same command again") } else { error }
}

/// True if the file system cannot sync at all, rather than failed to.
pub(super) fn cannot_sync(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}

/// Opens the unfinished file and locks it; returns its length, too.
fn open_locked(directory: &Dir, name: &str) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).follow(FollowSymlinks::No);
    owner_only(&mut options);
    let mut is_allowed = false;
    for _ in 0..LOCK_TRIES {
        let file = match directory.open_with(name, &options) {
            Ok(file) => file,
            Err(_) if is_taken(directory, name) => return Err(in_the_way(name)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && directory.exists(name) => {
                if is_allowed || allow(directory, name).is_err() {
                    return Err(not_ours(name, &error));
                }
                is_allowed = true;
                continue;
            }
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(in_the_way(name));
        }
        let is_locked = lock(&file)?;
        // The previous holder may have finished and renamed the file: then the name is of another file now.
        if is_locked && let Some(len) = len_if_still(directory, name, &meta)? {
            return Ok((file.into_std(), len));
        }
        if !is_locked {
            sleep(LOCK_PAUSE);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "another program is receiving this file here; let it finish",
    ))
}

/// Lets this user write into a file of their own: it may have got its final mode already.
fn allow(directory: &Dir, name: &str) -> io::Result<()> {
    use cap_std::fs::{MetadataExt as _, OpenOptionsExt as _};
    let mut options = OpenOptions::new();
    // A pipe in its place must not hold this up.
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    options.read(true).follow(FollowSymlinks::No);
    let file = directory.open_with(name, &options)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() > 1 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    set_mode(&file.into_std(), 0o600)
}

fn not_ours(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{name} in the same directory is of another user; remove it ({error})"),
    )
}

/// True when a directory or a link has this name; links are not followed.
fn is_taken(directory: &Dir, name: &str) -> bool {
    directory.symlink_metadata(name).is_ok_and(|meta| !meta.is_file())
}

fn in_the_way(name: &str) -> io::Error {
    io::Error::other(format!(
        "{name} in the same directory is in the way and is not a file; remove it and try again"
    ))
}

pub(super) fn system_time(time: ModifiedTime) -> Option<SystemTime> {
    let epoch = SystemTime::UNIX_EPOCH;
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    second?.checked_add(Duration::from_nanos(time.nanoseconds.into()))
}

pub(super) fn owner_only(options: &mut OpenOptions) {
    use cap_std::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

/// Sets the time of the last change.
///
/// # Errors
/// Those of the system, and one if it stores another time.
pub(super) fn set_modified(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_times(times(time))?;
    check_time(&file.metadata(), time)
}

/// The time of the last change, and now as that of the last access: libraries for FUSE file systems ignore calls that set
/// only one of the two, and report success.
fn times(time: SystemTime) -> FileTimes {
    FileTimes::new().set_modified(time).set_accessed(SystemTime::now())
}

/// An error if the file system has stored another time.
fn check_time(stored: &io::Result<std::fs::Metadata>, time: SystemTime) -> io::Result<()> {
    let stored = stored.as_ref().map_err(again)?.modified()?;
    if is_near(stored, time) { Ok(()) } else { Err(another()) }
}

/// Sets the permission bits.
///
/// # Errors
/// Those of the system, and one if it stores others.
pub(super) fn set_mode(file: &File, mode: u16) -> io::Result<()> {
    change_mode(file, mode)?;
    check_mode(&file.metadata(), mode)
}

fn change_mode(file: &File, mode: u16) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(mode.into()))
}

/// An error if the file system has stored another mode: NTFS mounted without permissions ignores the call.
fn check_mode(stored: &io::Result<std::fs::Metadata>, mode: u16) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let stored = stored.as_ref().map_err(again)?.permissions().mode() & 0o777;
    if stored == u32::from(mode) { Ok(()) } else { Err(another()) }
}

fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

fn another() -> io::Error {
    io::Error::other("it stores another one")
}

/// Locks the open file; false if another process holds the lock.
fn lock(file: &cap_std::fs::File) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        // Some network file systems do not support locks; then work without one.
        Ok(()) | Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The length of the file described by `meta` while `name` is its only name.
fn len_if_still(directory: &Dir, name: &str, meta: &Metadata) -> io::Result<Option<u64>> {
    use cap_std::fs::MetadataExt as _;
    let now = match directory.symlink_metadata(name) {
        Ok(now) => now,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if (now.dev(), now.ino()) != (meta.dev(), meta.ino()) {
        return Ok(None);
    }
    if now.nlink() > 1 {
        return Err(io::Error::other(format!("{name} has another name too; remove it and try again")));
    }
    Ok(Some(now.len()))
}

/// Renames without replacing, atomically if the system supports it.
fn rename_new(directory: &Dir, from: &str, to: &str) -> io::Result<()> {
    use rustix::fs::{RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => rename_checked(directory, from, to),
        other => Ok(other?),
    }
}

/// One thread at a time: two names may be one on such a file system.
fn rename_checked(directory: &Dir, from: &str, to: &str) -> io::Result<()> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if directory.symlink_metadata(to).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    directory.rename(from, directory, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_directory_was_removed_does_not_blame_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("d");
        std::fs::create_dir(&path).unwrap();
        let directory = Dir::open_ambient_dir(&path, cap_std::ambient_authority()).unwrap();
        std::fs::remove_dir(&path).unwrap();
        let Err(error) = PartFile::open(Arc::new(directory), "x", None) else { panic!("it was made") };
        assert_eq!(cannot_make(&error), "its directory was removed; run the same command again");
    }

    #[test]
    fn an_unfinished_file_of_another_user_is_named_and_an_own_one_without_write_permission_goes_on() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let temp = tempfile::tempdir().unwrap();
        let set = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(temp.path(), 0o755);
        let [theirs, ours] = ["theirs", "ours"].map(|name| {
            let path = temp.path().join(name);
            std::fs::create_dir(&path).unwrap();
            set(&path, 0o777);
            Arc::new(Dir::open_ambient_dir(&path, cap_std::ambient_authority()).unwrap())
        });
        let open = |place: &Arc<Dir>| PartFile::open(Arc::clone(place), "x", Some(10));
        let others = open(&theirs).unwrap();
        // Root may write into every file, but not this thread from here on.
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
        let Err(error) = open(&theirs) else {
            return eprintln!("skipped: only root can make files of another user");
        };
        let error = error.to_string();
        assert!(error.starts_with(".x.anabranch-part in the same directory is of another user"), "{error}");
        drop(others);

        let mut own = open(&ours).unwrap();
        own.write(0, b"ours").unwrap();
        set_mode(&own.file, 0o444).unwrap();
        drop(own);
        assert_eq!(open(&ours).unwrap().len, 4);

        // A file with a second name is no unfinished file, and keeps its mode.
        ours.write("mine", "x").unwrap();
        set(&temp.path().join("ours/mine"), 0o444);
        ours.hard_link("mine", &ours, part_name("y")).unwrap();
        assert!(PartFile::open(Arc::clone(&ours), "y", Some(10)).is_err());
        assert_eq!(std::fs::metadata(temp.path().join("ours/mine")).unwrap().mode() & 0o777, 0o444);
    }
}
