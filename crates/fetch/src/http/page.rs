//! Web pages in place of files, without I/O: networks that want a login send them.

/// Ends of names of files that are never text, so not web pages either.
const NEVER_TEXT: [&str; 48] = [
    "7z", "aac", "apk", "avi", "bin", "bz2", "cab", "deb", "dmg", "docx", "epub", "exe", "flac", "gif", "gz",
    "img", "ipa", "iso", "jar", "jpeg", "jpg", "m4a", "mkv", "mov", "mp3", "mp4", "msi", "ods", "odt", "ogg",
    "opus", "pdf", "pkg", "png", "pptx", "qcow2", "rar", "rpm", "tar", "tgz", "vdi", "vmdk", "webm", "webp",
    "whl", "xz", "zip", "zst",
];
/// How pages begin, in small letters.
const BEGINNINGS: [&str; 6] = ["<!doctype html", "<html", "<head", "<body", "<meta", "<script"];
/// So many bytes show whether a page begins.
pub(crate) const ENOUGH: usize = 512;

/// Whether bytes begin a web page.
pub(crate) fn begins_page(bytes: &[u8]) -> bool {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let begins =
        |with: &&str| text.get(..with.len()).is_some_and(|text| text.eq_ignore_ascii_case(with.as_bytes()));
    BEGINNINGS.iter().any(begins)
}

/// Whether a file at this path is never text.
pub(crate) fn cannot_be_text(path: &str) -> bool {
    end(path).is_some_and(|end| NEVER_TEXT.contains(&&*end))
}

/// The end of the file's name behind its last dot, in small letters.
fn end(path: &str) -> Option<String> {
    let name = path.split('?').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_place_of_an_archive_is_known_by_its_first_bytes() {
        for page in ["<!DOCTYPE HTML>\n<html>", "\u{feff} \r\n<html lang=en>", "<script>location='/login'"] {
            assert!(begins_page(page.as_bytes()), "{page}");
        }
        assert!(!begins_page(b"\0\0\0\0") && !begins_page(b"<ht") && !begins_page(b""));
        assert!(cannot_be_text("/a/file.ISO?x=a.html"));
        assert!(!cannot_be_text("/a/file.html") && !cannot_be_text("/notes.txt"));
    }
}
