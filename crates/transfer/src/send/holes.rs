//! Finds the holes of sparse files, which cost neither reads nor bytes on the wire, and wrong lengths.

use std::io::{self, Read, Seek as _, SeekFrom};

use cap_std::fs::{File, Metadata};

use crate::manifest::{FileMeta, ModifiedTime};

/// Searches a file for holes while it is read.
pub(super) struct Holes {
    /// No hole begins before this position; 0 until it is looked up.
    data_end: u64,
}

impl Holes {
    /// Files that have no holes are not searched.
    pub fn of(meta: &FileMeta) -> Self {
        Self { data_end: if meta.data.is_some() { 0 } else { u64::MAX } }
    }

    /// The length of the hole at this position in a file of `size` bytes; 0 if there is data. Leaves the file there.
    pub fn at(&mut self, position: u64, (file, size): (&mut File, u64)) -> io::Result<u64> {
        if position < self.data_end {
            return Ok(0);
        }
        let data = next_data(file, position, size).unwrap_or(position);
        if data == position {
            self.data_end = next_hole(file, position, size).filter(|end| *end > position).unwrap_or(u64::MAX);
        }
        // The search has moved the position.
        file.seek(SeekFrom::Start(position))?;
        Ok(data - position)
    }

    /// The bytes from this position to the next hole, after [`Self::at`] found data there.
    pub fn run(&self, position: u64) -> u64 {
        self.data_end.saturating_sub(position)
    }
}

/// Most pieces of data that are counted before a file is sent.
const MOST_PIECES: usize = 1 << 12;

/// Corrects the metadata of a file that may have holes, or another length than its system reports (`/proc`, `/sys`,
/// FUSE). Most files take as many bytes on the disk as they report, and are not opened for this.
pub(super) fn examine(meta: FileMeta, found: &Metadata, open: impl FnOnce() -> io::Result<File>) -> FileMeta {
    let size = found.len();
    let stored = stored_bytes(found).unwrap_or(size);
    if size > 0 && stored >= size {
        return meta;
    }
    // An unreadable file is reported when it is requested.
    let Ok(mut file) = open() else { return meta };
    match ends_at(&mut file, size) {
        Ok(true) => FileMeta { data: data_bytes(&file, size, stored), ..meta },
        Ok(false) => {
            // The time distinguishes it from a stream, which has none.
            let modified = meta.modified.or(Some(ModifiedTime { seconds: 0, nanoseconds: 0 }));
            FileMeta { size: None, modified, ..meta }
        }
        Err(_) => meta,
    }
}

/// True if the file has exactly `size` bytes.
fn ends_at(file: &mut File, size: u64) -> io::Result<bool> {
    let last = size.min(1);
    file.seek(SeekFrom::Start(size - last))?;
    Ok(read_full(file, &mut [0; 2])? as u64 == last)
}

/// The bytes outside the holes of a file; `None` if it has no holes. If there are too many holes to count them, the bytes
/// that are `stored`.
fn data_bytes(file: &File, size: u64, stored: u64) -> Option<u64> {
    let (mut data, mut at) = (0, 0);
    for _ in 0..MOST_PIECES {
        let start = next_data(file, at, size)?;
        at = next_hole(file, start, size)?;
        data += at - start;
        if at == size {
            return Some(data).filter(|data| *data < size);
        }
    }
    Some(stored)
}

/// Where the first data at or after `from` begins, or `size`. `None` if the system cannot find it.
fn next_data(file: &File, from: u64, size: u64) -> Option<u64> {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(from)) {
        Err(rustix::io::Errno::NXIO) => Some(size),
        found => found.ok().map(|at| at.clamp(from, size.max(from))),
    }
}

/// Where the first hole at or after `from` begins; the end of a file counts as one.
fn next_hole(file: &File, from: u64, size: u64) -> Option<u64> {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Hole(from)) {
        Err(rustix::io::Errno::NXIO) => Some(size),
        found => found.ok().map(|at| at.clamp(from, size.max(from))),
    }
}

/// The bytes that a file takes on its disk, if the system reports them.
fn stored_bytes(found: &Metadata) -> Option<u64> {
    use cap_std::fs::MetadataExt as _;
    Some(found.blocks().saturating_mul(512))
}

/// Fills `buffer`, or reads to the end of the file.
pub(crate) fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
