//! Questions to name servers and their answers, without I/O (RFC 1035).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest answer that is read.
pub(super) const LONGEST: usize = 4096;
/// Most names in a chain of aliases, and most pointers within a name.
const MOST_STEPS: usize = 32;

/// Kinds of records.
const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const INTERNET: u16 = 1;

/// A question for the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    id: u16,
    name: String,
    kind: u16,
}

impl Question {
    /// A question for the IPv4 or IPv6 addresses of a name.
    pub(super) fn new(id: u16, name: &str, is_v4: bool) -> Self {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        Self { id, name, kind: if is_v4 { A } else { AAAA } }
    }

    /// Its bytes; `None` if the name cannot be asked for.
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = self.id.to_be_bytes().to_vec();
        // One question, and the server shall ask others.
        bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in self.name.split('.') {
            let len = u8::try_from(label.len()).ok().filter(|len| (1..64).contains(len))?;
            bytes.push(len);
            bytes.extend(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend(self.kind.to_be_bytes());
        bytes.extend(INTERNET.to_be_bytes());
        (self.name.len() <= 253).then_some(bytes)
    }

    /// The addresses in an answer; `None` if it is no answer to this question.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<Vec<IpAddr>> {
        let mut reader = Reader { bytes, at: 0 };
        let (id, flags, questions) = (reader.u16()?, reader.u16()?, reader.u16()?);
        let answers = reader.u16()?;
        reader.skip(4)?;
        let is_answer = flags & 0x8000 != 0;
        if !is_answer || id != self.id || questions != 1 {
            return None;
        }
        if reader.name()? != self.name || reader.u16()? != self.kind || reader.u16()? != INTERNET {
            return None;
        }
        let (mut wanted, mut found) = (self.name.clone(), Vec::new());
        for _ in 0..answers {
            let owner = reader.name()?;
            let (kind, class) = (reader.u16()?, reader.u16()?);
            reader.skip(4)?;
            let len = usize::from(reader.u16()?);
            let data = reader.bytes.get(reader.at..reader.at + len)?;
            let mut inside = Reader { bytes: reader.bytes, at: reader.at };
            reader.skip(len)?;
            if class != INTERNET || owner != wanted {
                continue;
            }
            if kind == CNAME {
                wanted = inside.name()?;
            } else if kind == self.kind {
                found.extend(address(data));
            }
        }
        Some(found)
    }
}

fn address(data: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(data).map(|data| Ipv4Addr::from(data).into());
    v4.or_else(|_| <[u8; 16]>::try_from(data).map(|data| Ipv6Addr::from(data).into())).ok()
}

/// Reads an answer from front to back.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn u16(&mut self) -> Option<u16> {
        let bytes = self.bytes.get(self.at..self.at + 2)?;
        self.at += 2;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.at = self.at.checked_add(len).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    /// A name in lower case, with its pointers followed.
    fn name(&mut self) -> Option<String> {
        let (mut name, mut at, mut after) = (String::new(), self.at, None);
        for _ in 0..MOST_STEPS * 4 {
            let len = usize::from(*self.bytes.get(at)?);
            match len {
                0 => {
                    self.at = after.unwrap_or(at + 1);
                    return Some(name);
                }
                1..64 => {
                    let label = self.bytes.get(at + 1..at + 1 + len)?;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.push_str(&String::from_utf8_lossy(label).to_ascii_lowercase());
                    at += 1 + len;
                }
                192.. => {
                    let low = usize::from(*self.bytes.get(at + 1)?);
                    after.get_or_insert(at + 2);
                    at = (len & 63) << 8 | low;
                }
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An answer with an alias and two addresses, names given by pointers.
    pub(crate) fn answer(question: &[u8]) -> Vec<u8> {
        let mut bytes = question.to_vec();
        bytes[2] = 0x81;
        bytes[7] = 3;
        // An alias of the name at 12 to "b" within it.
        bytes.extend([192, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 4, 1, b'B', 192, 12]);
        let alias = u8::try_from(question.len() + 12).unwrap();
        for last in [1, 2] {
            bytes.extend([192, alias, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, last]);
        }
        bytes
    }

    #[test]
    fn an_answer_with_aliases_is_read() {
        let question = Question::new(7, "A.Example.", true);
        let bytes = answer(&question.to_bytes().unwrap());
        let found: Vec<IpAddr> = vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        assert_eq!(question.read(&bytes), Some(found));
        assert_eq!(Question::new(8, "a.example", true).read(&bytes), None, "another question");
        assert_eq!(Question::new(7, "c.example", true).read(&bytes), None);
        assert_eq!(Question::new(7, "a.example", false).read(&bytes), None);
        assert_eq!(Question::new(7, &"a".repeat(64), true).to_bytes(), None);
        assert_eq!(Question::new(7, "a..b", true).to_bytes(), None);
    }

    #[test]
    fn a_name_that_points_to_itself_is_refused() {
        let question = Question::new(7, "a.example", true);
        let mut bytes = question.to_bytes().unwrap();
        let at = u8::try_from(bytes.len()).unwrap();
        (bytes[2], bytes[7]) = (0x81, 1);
        bytes.extend([192, at, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
        assert_eq!(question.read(&bytes), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_fail(
            places in proptest::collection::vec((0_usize..80, any::<u8>()), 0..20),
            len in 0_usize..90,
        ) {
            let question = Question::new(7, "a.example", true);
            let mut bytes = answer(&question.to_bytes().unwrap());
            for (place, byte) in places {
                let place = place % bytes.len();
                bytes[place] = byte;
            }
            bytes.truncate(len);
            let _ = question.read(&bytes);
        }
    }
}
