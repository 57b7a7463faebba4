//! Recognises files that a program provides (FUSE): their reported length may be wrong.

use std::io;

use cap_std::fs::File;

/// The number of FUSE in `statfs(2)`.
const FUSE: u64 = 0x6573_5546;

/// True if a program provides the open file.
pub(super) fn provides(file: &File) -> bool {
    file_system(file).is_ok_and(is_fuse)
}

/// The number of the file system of an open file.
fn file_system(file: &File) -> io::Result<u64> {
    #[cfg(test)]
    if crate::tests::is_doubled(&file.metadata()?) {
        return Ok(FUSE);
    }
    Ok(rustix::fs::fstatfs(file)?.f_type as u64)
}

/// True for the number of FUSE. Its lower half counts: on some machines the number is signed.
fn is_fuse(system: u64) -> bool {
    system & 0xffff_ffff == FUSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fuse_is_fuse() {
        assert!(is_fuse(FUSE) && is_fuse(FUSE | 0xffff_ffff_0000_0000));
        // ext4, tmpfs, btrfs (signed), NFS, overlayfs
        let others = [0xef53, 0x0102_1994, 0xffff_ffff_9123_683e, 0x6969, 0x794c_7630, 0];
        assert!(others.into_iter().all(|other| !is_fuse(other)));
        let file = tempfile::tempfile().unwrap();
        assert_ne!(file_system(&File::from_std(file)).unwrap(), 0);
    }
}
