//! Lists of downloads: one a line, or Metalinks.

use std::io::Read as _;
use std::path::Path;

use anabranch_fetch::{Checksum, MetalinkFile, Url, read_metalink};

use crate::errors::Failure;

/// Larger lists are refused.
const LARGEST: u64 = 16 << 20;

/// A file to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where it is.
    pub(super) mirrors: Vec<Url>,
    /// Its name, if the mirrors' addresses do not give it.
    pub(super) name: Option<String>,
    /// Hashes that it must have.
    pub(super) checksums: Vec<Checksum>,
    /// The size that it must have.
    pub(super) size: Option<u64>,
}

/// Reads a list; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text))
    };
    read.map_err(|error| Failure::file("read", path, &error))?;
    if text.len() as u64 > LARGEST {
        return Err(Failure::usage(format!("{}: a list has 16 MiB at most", path.display())));
    }
    let is_metalink = without_mark(&text).trim_start().starts_with('<');
    let entries = if is_metalink { metalink(&text) } else { parse(&text) };
    entries.map_err(|why| Failure::usage(format!("{}: {why}", path.display())))
}

/// Text without the byte order mark that some editors put first.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn metalink(text: &str) -> Result<Vec<Entry>, String> {
    let entry = |file: MetalinkFile| {
        let MetalinkFile { name, mirrors, checksums, size } = file;
        Entry { mirrors, name: Some(name), checksums, size }
    };
    Ok(read_metalink(text)?.into_iter().map(entry).collect())
}

/// One download a line: mirrors, and checksums as `sha-256=HEX`, separated by blanks. Empty lines and those that begin with
/// `#` are left out.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let lines = without_mark(text).lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(entry).collect()
}

fn entry((number, line): (usize, &str)) -> Result<Entry, String> {
    let mut entry = Entry::default();
    for word in line.split_whitespace() {
        let wrong = |why: String| format!("line {number}: {why}");
        if word.contains("://") {
            entry.mirrors.push(word.parse().map_err(wrong)?);
        } else {
            entry.checksums.push(word.parse().map_err(wrong)?);
        }
    }
    if entry.mirrors.is_empty() { Err(format!("line {number} has no address")) } else { Ok(entry) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_mirrors_and_checksums_by_line() {
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let text = format!("# two files\nhttp://a/1 https://b/1\tsha-256={hash}\n\n ftp://c/2\n");
        let entries = parse(&text).unwrap();
        assert_eq!((entries.len(), entries[0].mirrors.len(), entries[0].checksums.len()), (2, 2, 1));
        assert_eq!(parse("\u{feff}http://a/1").unwrap(), parse("http://a/1").unwrap());
        assert!(parse("http://a/1\nb/2").unwrap_err().starts_with("line 2: "));
        assert!(parse(&format!("sha-256={hash}")).unwrap_err().contains("no address"));
    }
}
