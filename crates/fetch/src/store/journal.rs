//! The journal of an unfinished file: a small JSON file that is replaced as a whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::origins::Origins;
use crate::http::validator::Validator;
use crate::ranges::RangeSet;

/// Larger files are no journals.
const LARGEST: u64 = 16 << 20;

/// A file's state between two attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Journal {
    /// The size of the whole file.
    pub size: u64,
    /// The file began as a web page.
    pub is_page: bool,
    /// The mirror's address, and the version of the file there.
    pub versions: Vec<(String, Validator)>,
    /// The addresses of servers that answered.
    pub peers: Vec<(String, u16, IpAddr)>,
    /// Start and end of each range that is there, by its origin.
    origins: Vec<(String, Vec<(u64, u64)>)>,
}

impl Journal {
    /// A journal without ranges.
    pub fn new(size: u64, versions: Vec<(String, Validator)>) -> Self {
        Self { size, versions, ..Self::default() }
    }

    /// Reads a journal; `None` if it is missing or damaged.
    pub fn read(path: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::open(path).ok()?.take(LARGEST).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn each(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.origins.iter().flat_map(|(_, ranges)| ranges.iter().copied())
    }

    /// Whether its ranges fit the size.
    pub fn is_sound(&self) -> bool {
        self.each().all(|(start, end)| start < end && end <= self.size)
    }

    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.is_sound() && self.ranges().covers(&(0..self.size))
    }

    /// The ranges that are there.
    pub fn ranges(&self) -> RangeSet {
        self.each().map(|(start, end)| start..end).collect()
    }

    /// Their origins.
    pub fn origins(&self) -> Origins {
        let mut origins = Origins::default();
        for (mirror, ranges) in &self.origins {
            let mirror = mirror.as_str().into();
            ranges.iter().for_each(|(start, end)| origins.insert(&mirror, *start..*end));
        }
        origins
    }

    /// The same file with these ranges.
    pub fn with(&self, origins: &Origins) -> Self {
        let pairs = |ranges: &RangeSet| ranges.iter().map(|range| (range.start, range.end)).collect();
        let origins = origins.iter().map(|(mirror, ranges)| (mirror.to_string(), pairs(ranges))).collect();
        Self { origins, ..self.clone() }
    }

    /// Replaces the journal at `path`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push("-new");
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // Addresses may contain secrets.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&name)?;
        file.write_all(&text)?;
        file.sync_data()?;
        std::fs::rename(&name, path)
    }
}
