//! Small files that are replaced as a whole, for their owner alone.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Replaces a file. It is written under another name first and flushed, so that whoever reads it, also after a crash, has
/// the one before or this one.
pub fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = file.with_file_name(name);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&fresh).and_then(|mut out| {
        out.write_all(content)?;
        out.sync_all()
    });
    written.and_then(|()| fs::rename(&fresh, file)).inspect_err(|_| {
        // What is half-written is of use to nobody.
        let _ = fs::remove_file(&fresh);
    })
}
