//! The request of a client to a server: the message after its greeting (`docs/reference/transfer.md`).
//!
//! After it, the transfer goes on as between `send` and `receive`: the server of a [`Ask::Get`] is the sender, the server
//! of a [`Ask::Put`] the receiver. A list ends with the sender's list.

use anabranch_wire::Reader;

use crate::codec::{put_text, read_text};
use crate::error::TransferError;
use crate::path::RelPath;
use crate::policy::{Conflict, Mirror, Placing};

const LIST: u8 = 1;
const GET: u8 = 2;
const PUT: u8 = 3;

const DEEP: u8 = 1;
const CONTENTS: u8 = 1;
const ATTRIBUTES: u8 = 2;
const MIRROR: u8 = 1;
const DELETE: u8 = 2;
const BY_CONTENT: u8 = 4;

/// Most bytes of all paths of a request together, with two for the length of each.
const LONGEST_PATHS: usize = 15 << 10;
/// Most paths of a request: the server holds a directory open for each of them.
const MOST_PATHS: usize = 256;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The names in a directory, or at the top level; `deep` lists everything below as well.
    List { path: Option<RelPath>, deep: bool },
    /// These files and directories, or all; `contents` asks for what is in the one directory instead of the directory,
    /// `attributes` for extended attributes as well.
    Get { paths: Vec<RelPath>, contents: bool, attributes: bool },
    /// The client sends files for this directory.
    Put { to: Option<RelPath>, placing: Placing },
}

impl Ask {
    /// Checks that the request fits a message.
    pub fn check(&self) -> Result<(), TransferError> {
        let len: usize = self.paths().map(|path| path.as_str().len() + 2).sum();
        if len <= LONGEST_PATHS && self.paths().count() <= MOST_PATHS {
            return Ok(());
        }
        let why = format!(
            "name at most {MOST_PATHS} paths, with {LONGEST_PATHS} bytes together, or their directory"
        );
        Err(TransferError::Refused(why))
    }

    fn paths(&self) -> impl Iterator<Item = &RelPath> {
        let (one, many) = match self {
            Self::List { path, .. } => (path.as_ref(), &[][..]),
            Self::Get { paths, .. } => (None, &paths[..]),
            Self::Put { to, .. } => (to.as_ref(), &[][..]),
        };
        one.into_iter().chain(many)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::List { deep, .. } => out.extend_from_slice(&[LIST, u8::from(*deep) * DEEP]),
            Self::Get { contents, attributes, .. } => {
                let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
                let bits = bit(*contents, CONTENTS) | bit(*attributes, ATTRIBUTES);
                out.extend_from_slice(&[GET, bits]);
            }
            Self::Put { placing: Placing { conflict, mirror }, .. } => {
                let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
                let bits = mirror.map_or(0, |mirror| {
                    MIRROR | bit(mirror.delete, DELETE) | bit(mirror.by_content, BY_CONTENT)
                });
                out.extend_from_slice(&[PUT, bits, conflict_number(*conflict)]);
            }
        }
        out.extend_from_slice(&(self.paths().count() as u16).to_be_bytes());
        self.paths().for_each(|path| put_text(out, path.as_str()));
    }

    pub fn decode(reader: &mut Reader<&[u8]>) -> Result<Self, TransferError> {
        let (verb, bits) = (reader.u8("request")?, reader.u8("options")?);
        let conflict = if verb == PUT { Some(read_conflict(reader.u8("conflict")?)?) } else { None };
        let count = reader.u16("number of paths")?;
        if usize::from(count) > MOST_PATHS {
            return Err(TransferError::protocol("a request with too many paths"));
        }
        let paths = (0..count).map(|_| RelPath::parse(read_text(reader)?));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let one = |mut paths: Vec<RelPath>| match paths.len() {
            0 | 1 => Ok(paths.pop()),
            _ => Err(TransferError::protocol("a request with too many paths")),
        };
        Ok(match (verb, conflict) {
            (LIST, _) => Self::List { path: one(paths)?, deep: bits & DEEP != 0 },
            (GET, _) => {
                Self::Get { paths, contents: bits & CONTENTS != 0, attributes: bits & ATTRIBUTES != 0 }
            }
            (PUT, Some(conflict)) => {
                let mirror = Mirror { delete: bits & DELETE != 0, by_content: bits & BY_CONTENT != 0 };
                let mirror = (bits & MIRROR != 0).then_some(mirror);
                Self::Put { to: one(paths)?, placing: Placing { conflict, mirror } }
            }
            _ => return Err(TransferError::protocol(format!("a request of unknown kind {verb}"))),
        })
    }
}

fn conflict_number(conflict: Conflict) -> u8 {
    match conflict {
        Conflict::Error => 0,
        Conflict::Overwrite => 1,
        Conflict::Rename => 2,
        Conflict::Skip => 3,
    }
}

fn read_conflict(number: u8) -> Result<Conflict, TransferError> {
    Ok(match number {
        0 => Conflict::Error,
        1 => Conflict::Overwrite,
        2 => Conflict::Rename,
        3 => Conflict::Skip,
        _ => {
            return Err(TransferError::protocol(format!(
                "an answer of unknown kind {number} to taken names"
            )));
        }
    })
}
