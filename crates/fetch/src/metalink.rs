//! Lists of mirrors, sizes and hashes: Metalink 4 (RFC 5854).

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};

use crate::checksum::Checksum;
use crate::url::Url;

/// Most files of a list; longer ones are refused.
const MOST_FILES: usize = 10_000;
/// Most mirrors of a file that are used.
const MOST_MIRRORS: usize = 5;

/// A file in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetalinkFile {
    /// Its name, as the list gives it.
    pub name: String,
    /// Where it is, the best mirrors first.
    pub mirrors: Vec<Url>,
    /// Its hashes.
    pub checksums: Vec<Checksum>,
    pub size: Option<u64>,
}

/// An element whose text is read.
enum Field {
    Size,
    Hash(String),
    Url(u32),
}

/// The state of reading.
#[derive(Default)]
struct Parser {
    /// Names of the open elements.
    path: Vec<Vec<u8>>,
    files: Vec<MetalinkFile>,
    /// Mirrors of the last file, with their priorities.
    urls: Vec<(u32, Url)>,
    field: Option<Field>,
    text: String,
    /// A size or hash that cannot be read: without it, a wrong file would pass.
    unreadable: Option<String>,
}

impl Parser {
    fn start(&mut self, start: &BytesStart<'_>) {
        self.path.push(start.local_name().as_ref().to_vec());
        self.text.clear();
        let names: Vec<&[u8]> = self.path.iter().map(Vec::as_slice).collect();
        self.field = match names[..] {
            [b"metalink", b"file"] => {
                let name = attribute(start, "name").unwrap_or_default();
                self.files.push(MetalinkFile { name, ..MetalinkFile::default() });
                None
            }
            [b"metalink", b"file", b"size"] => Some(Field::Size),
            [b"metalink", b"file", b"hash"] => attribute(start, "type").map(Field::Hash),
            [b"metalink", b"file", b"url"] => {
                let priority = attribute(start, "priority").and_then(|text| text.parse().ok());
                Some(Field::Url(priority.unwrap_or(u32::MAX)))
            }
            _ => None,
        };
    }

    fn end(&mut self) {
        self.path.pop();
        let Some(file) = self.files.last_mut() else { return };
        match self.field.take() {
            Some(Field::Size) => match self.text.trim().parse() {
                Ok(size) => file.size = Some(size),
                Err(_) => self.unreadable = Some(format!("the size of the file {:?}", file.name)),
            },
            Some(Field::Hash(name)) => match Checksum::from_hex(&name, &self.text) {
                Some(checksum) => file.checksums.push(checksum),
                None if Checksum::knows(&name) => {
                    self.unreadable = Some(format!("the {} of the file {:?}", name.trim(), file.name));
                }
                None => {}
            },
            Some(Field::Url(priority)) => {
                self.urls.extend(self.text.trim().parse().ok().map(|url| (priority, url)));
            }
            None if self.path.len() == 1 => {
                self.urls.sort_by_key(|(priority, _)| *priority);
                file.mirrors.extend(self.urls.drain(..).map(|(_, url)| url).take(MOST_MIRRORS));
            }
            None => {}
        }
    }
}

/// Reads a list. Mirrors of unknown protocols and hashes of unknown functions are left out.
pub fn read_metalink(text: &str) -> Result<Vec<MetalinkFile>, String> {
    let (mut reader, mut parser) = (Reader::from_str(text), Parser::default());
    reader.config_mut().trim_text(true);
    loop {
        match reader.read_event().map_err(|error| format!("it is no Metalink: {error}"))? {
            Event::Eof => break,
            Event::Start(start) => parser.start(&start),
            _ if parser.files.len() > MOST_FILES => {
                return Err(format!("it names more than {MOST_FILES} files; split it"));
            }
            Event::Text(text) => parser.text.push_str(&text.decode().map_err(|error| error.to_string())?),
            Event::GeneralRef(entity) => parser.text.push_str(&resolved(&entity)?),
            Event::End(_) => parser.end(),
            _ => {}
        }
    }
    if parser.files.is_empty() {
        return Err("it is no Metalink: it names no file".to_owned());
    }
    if let Some(what) = parser.unreadable {
        return Err(format!("{what} cannot be read"));
    }
    match parser.files.iter().find(|file| file.mirrors.is_empty()) {
        Some(file) => Err(format!("the file {:?} has no address to fetch", file.name)),
        None => Ok(parser.files),
    }
}

/// The text that a reference such as `&amp;` or `&#38;` stands for.
fn resolved(entity: &BytesRef<'_>) -> Result<String, String> {
    let wrong = |error: String| format!("it is no Metalink: {error}");
    if let Some(letter) = entity.resolve_char_ref().map_err(|error| wrong(error.to_string()))? {
        return Ok(letter.into());
    }
    let name = entity.decode().map_err(|error| wrong(error.to_string()))?;
    let known = resolve_predefined_entity(&name).map(str::to_owned);
    known.ok_or_else(|| wrong(format!("an unknown reference, &{name};")))
}

fn attribute(start: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = start.try_get_attribute(name).ok()??;
    found.unescape_value().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<metalink xmlns="urn:ietf:params:xml:ns:metalink">
  <file name="example.ext">
    <size>3</size>
    <hash type="md5">900150983cd24fb0d6963f7d28e17f72</hash>
    <hash type="sha-256">ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad</hash>
    <pieces length="1" type="sha-256"><hash>00</hash></pieces>
    <url location="de" priority="2">ftp://ftp.example.com/example.ext</url>
    <url location="fr" priority="1">https://example.com/example.ext?a=1&amp;b=2</url>
    <url>gopher://example.com/example.ext</url>
    <metaurl mediatype="torrent">http://example.com/example.ext.torrent</metaurl>
  </file>
</metalink>"#;

    #[test]
    fn a_list_is_read_with_its_best_mirrors_first() {
        let files = read_metalink(LIST).unwrap();
        assert_eq!((files.len(), files[0].size, &*files[0].name), (1, Some(3), "example.ext"));
        let mirrors: Vec<_> = files[0].mirrors.iter().map(ToString::to_string).collect();
        assert_eq!(mirrors, ["https://example.com/example.ext?a=1&b=2", "ftp://ftp.example.com/example.ext"]);
        assert_eq!(files[0].checksums.len(), 1);
        assert!(files[0].checksums[0].fits(&b"abc"[..]).unwrap());
    }

    #[test]
    fn references_in_addresses_are_resolved() {
        for and in ["&amp;", "&#38;", "&#x26;"] {
            let files = read_metalink(&LIST.replace("&amp;", and)).unwrap();
            assert_eq!(files[0].mirrors[0].to_string(), "https://example.com/example.ext?a=1&b=2", "{and}");
        }
        for wrong in ["&none;", "&#xfffffff;"] {
            assert!(read_metalink(&LIST.replace("&amp;", wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_with_the_limit() {
        let list = |count: usize| {
            let file = |at| format!("<file name='{at}'><url>http://a/{at}</url></file>");
            format!("<metalink>{}</metalink>", (0..count).map(file).collect::<String>())
        };
        assert_eq!(read_metalink(&list(MOST_FILES)).unwrap().len(), MOST_FILES);
        assert_eq!(
            read_metalink(&list(MOST_FILES + 1)).unwrap_err(),
            "it names more than 10000 files; split it"
        );
    }

    #[test]
    fn a_size_or_a_hash_that_cannot_be_read_is_not_passed_over() {
        for (right, wrong) in [("f20015ad", "f20015"), ("f20015ad", "f20015ax"), ("<size>3", "<size>3e0")] {
            let refused = read_metalink(&LIST.replace(right, wrong)).unwrap_err();
            assert!(refused.ends_with("cannot be read"), "{refused}");
        }
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        for wrong in [
            "",
            "http://a/",
            "<html></html>",
            "<metalink><file name='a'></file></metalink>",
            "<metalink><file>",
        ] {
            assert!(read_metalink(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fail(cut in 0..LIST.len(), place in 0..LIST.len(), letter in any::<char>()) {
            let mut text: Vec<char> = LIST.chars().collect();
            text[place] = letter;
            text.truncate(cut);
            let _ = read_metalink(&text.into_iter().collect::<String>());
        }
    }
}
