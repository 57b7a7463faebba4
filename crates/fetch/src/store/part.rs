//! Names and system calls of an unfinished file.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;

/// Longest name of which those of the unfinished file and the journal are made; others are replaced by a hash. Some
/// encrypted file systems, such as eCryptfs, take no names of more than 143 bytes.
const LONGEST_NAME: usize = 143 - "..anabranch-fetch-part".len();

/// A file's names: the final one, and those of the unfinished file and its journal in the same folder.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) target: PathBuf,
    pub(super) part: PathBuf,
    pub(super) journal: PathBuf,
}

impl Names {
    pub(super) fn new(target: &Path) -> io::Result<Self> {
        let name = target.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it has no file name"))?;
        let hash = || HEXLOWER.encode(digest::digest(&digest::SHA256, name.as_bytes()).as_ref());
        let name = if name.len() > LONGEST_NAME { hash() } else { name.to_owned() };
        Ok(Self {
            target: target.to_owned(),
            part: target.with_file_name(format!(".{name}.anabranch-fetch-part")),
            journal: target.with_file_name(format!(".{name}.anabranch-fetch")),
        })
    }
}

/// The file that has the final name, if there is one. Looking it up also shows whether the file system takes the name.
pub(super) fn metadata(target: &Path) -> io::Result<Option<Metadata>> {
    let found = match target.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    // A link may lead to a device; one that leads nowhere is a name like others.
    if target.metadata().is_ok_and(|meta| !meta.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(Some(found))
}

/// How often the unfinished file is opened again when another program renames it meanwhile.
const OPEN_TRIES: usize = 5;

/// Opens or creates an unfinished file that no other program uses.
pub(super) fn open_locked(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, no_follow);
    for _ in 0..OPEN_TRIES {
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is in the way and is not a file", path.display())));
        }
        if matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) {
            break;
        }
        // Some network file systems do not support locks; then work without one. The previous holder may have finished and
        // renamed the file: then it must not be touched.
        if is_still(path, &file)? {
            return Ok(file);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "another program is fetching this file; let it finish"))
}

/// Whether `path` is a name of the open file.
fn is_still(path: &Path, file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let held = file.metadata()?;
    match path.symlink_metadata() {
        Ok(now) => Ok((now.dev(), now.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the size and reserves the blocks where the file system can.
pub(super) fn reserve(file: &File, size: u64) -> io::Result<()> {
    if size > 0 {
        use rustix::fs::{FallocateFlags, fallocate};
        if let Err(rustix::io::Errno::NOSPC) = fallocate(file, FallocateFlags::empty(), 0, size) {
            return Err(io::ErrorKind::StorageFull.into());
        }
    }
    file.set_len(size)
}

pub(super) fn write_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

/// Reads a range through a separate handle.
pub fn read_at(path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Gives the unfinished file its final name. Only with `replace` may it replace another file.
pub(super) fn rename(names: &Names, replace: bool) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    if replace {
        return std::fs::rename(&names.part, &names.target);
    }
    match renameat_with(CWD, &names.part, CWD, &names.target, RenameFlags::NOREPLACE) {
        // The file system does not know this flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
        other => return Ok(other?),
    }
    if names.target.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    std::fs::rename(&names.part, &names.target)
}

/// Syncs the folder of a file, so that its new name survives a power cut.
pub(super) fn sync_folder(target: &Path) {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Not every system can sync a folder; the file itself is synced.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
