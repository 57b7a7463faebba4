//! Small files, readable by their owner only, that are replaced as a whole.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Replaces a file. The content is written under another name, flushed and then renamed, so that every reader sees the
/// old or the new content, also after a crash.
pub fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = file.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&fresh).and_then(|mut out| {
        out.write_all(content)?;
        out.sync_all()
    });
    written.and_then(|()| fs::rename(&fresh, file)).inspect_err(|_| {
        // A half-written file is useless.
        let _ = fs::remove_file(&fresh);
    })
}
