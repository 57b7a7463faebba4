//! Extended attributes of files and directories, as far as they are transferred: those that any user may set (`user.*`).

use std::collections::HashMap;
use std::io;
use std::path::Path;

use cap_std::fs::File;

use crate::error::TransferError;

/// Most attributes of an entry, and most bytes of their names and values together.
pub(crate) const MOST: usize = 64;
pub(crate) const LARGEST: usize = 15 << 10;
/// Longest name, in bytes.
const LONGEST_NAME: usize = 255;
const PREFIX: &str = "user.";

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub name: String,
    pub value: Vec<u8>,
}

/// Attributes of entries, by the entry's number.
pub(crate) type Attributes = HashMap<u32, Vec<Attribute>>;

impl Attribute {
    pub fn len(&self) -> usize {
        self.name.len() + self.value.len()
    }

    /// Accepts an attribute from the other end.
    ///
    /// # Errors
    /// [`TransferError::Protocol`] for a name that is too long, has a zero byte, or is not for users.
    pub fn checked(name: &str, value: &[u8]) -> Result<Self, TransferError> {
        let is_good = name.starts_with(PREFIX) && name.len() <= LONGEST_NAME && !name.contains('\0');
        if !is_good {
            return Err(TransferError::protocol("an extended attribute that is not for users"));
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

/// True if one entry may have these attributes.
pub(crate) fn are_few(attributes: &[Attribute]) -> bool {
    attributes.len() <= MOST && attributes.iter().map(Attribute::len).sum::<usize>() <= LARGEST
}

/// True if the file has attributes that could be sent.
pub(crate) fn exist(file: &File) -> bool {
    names(file).is_ok_and(|names| !names.is_empty())
}

/// Bytes of the attributes of the file or directory at `path`; links are not followed. Attributes that cannot be read
/// count as the most that an entry may have.
pub(crate) fn held(path: &Path) -> u64 {
    use rustix::fs::{lgetxattr_query, llistxattr, llistxattr_query};
    if llistxattr_query(path).unwrap_or(0) == 0 {
        return 0;
    }
    let mut list = vec![0; 64 << 10];
    let len = llistxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(PREFIX.as_bytes()));
    let lengths = names.map(|name| lgetxattr_query(path, name).map(|len| name.len() + len));
    lengths.sum::<Result<usize, _>>().unwrap_or(LARGEST) as u64
}

/// The attributes of a file.
///
/// # Errors
/// Those of the system, and another if there are more than can be sent.
pub(crate) fn read(file: &File) -> io::Result<Vec<Attribute>> {
    let names = names(file)?;
    let mut attributes = Vec::new();
    for name in names {
        let value = value(file, &name)?;
        attributes.push(Attribute { name, value });
    }
    if are_few(&attributes) { Ok(attributes) } else { Err(too_many()) }
}

/// Gives a file these attributes. Those that it has already are not touched.
pub(crate) fn write(file: &std::fs::File, attributes: &[Attribute]) -> io::Result<()> {
    attributes.iter().try_for_each(|attribute| set(file, attribute))
}

fn too_many() -> io::Error {
    io::Error::other("it is larger than can be sent")
}

fn names(file: &File) -> io::Result<Vec<String>> {
    use rustix::io::Errno;
    // Most files have none, and many file systems.
    match rustix::fs::flistxattr_query(file) {
        Ok(0) | Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        found => found?,
    };
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::flistxattr(file, &mut list[..])?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(PREFIX.as_bytes()));
    let names = names.map(|name| String::from_utf8(name.to_owned()).map_err(|_| too_many()));
    names.collect()
}

fn value(file: &File, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0; LARGEST];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(value)
        }
        Err(rustix::io::Errno::RANGE) => Err(too_many()),
        Err(error) => Err(error.into()),
    }
}

/// True if a file has all of these attributes.
pub(crate) fn are_on(file: &std::fs::File, attributes: &[Attribute]) -> bool {
    attributes.iter().all(|attribute| is_on(file, attribute))
}

fn is_on(file: &std::fs::File, Attribute { name, value }: &Attribute) -> bool {
    let mut held = vec![0; LARGEST];
    rustix::fs::fgetxattr(file, name.as_str(), &mut held[..]).is_ok_and(|len| held[..len] == value[..])
}

fn set(file: &std::fs::File, attribute: &Attribute) -> io::Result<()> {
    use rustix::fs::{XattrFlags, fsetxattr};
    if is_on(file, attribute) {
        return Ok(());
    }
    Ok(fsetxattr(file, attribute.name.as_str(), &attribute.value, XattrFlags::empty())?)
}
