//! A sender's offer, and the user's consent.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anabranch_wire::ForeignText;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use tokio::task::spawn_blocking;

use super::part::{is_near, stores_times, system_time};
use super::room::{Demand, Shortage};
use super::target::TargetTree;
use super::{Destination, ReceiveOptions, panicked};
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, Links};
use crate::path::is_part_name;
use crate::policy::Conflict;

/// Most listed names of an offer.
const MOST_NAMES: usize = 1000;

/// A sender's offer, shown before any file is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Number of files.
    pub files: u64,
    /// Total size of the files with a known length.
    pub bytes: u64,
    /// Number of files without a known length.
    pub endless: u64,
    /// The names at the top level: at most a thousand, hidden ones first, otherwise in alphabetical order.
    pub names: Vec<OfferedName>,
    /// Number of names left out.
    pub more_names: u64,
    /// The room that its files lack, if not all fit. The others are received.
    pub shortage: Option<Shortage>,
}

/// One name at the top level of an offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferedName {
    /// The name.
    pub name: ForeignText,
    pub is_directory: bool,
    /// Number of files in it, or 1.
    pub files: u64,
    /// Total size of those with a known length.
    pub bytes: u64,
}

impl OfferedName {
    /// True for names that most programs hide.
    pub fn is_hidden(&self) -> bool {
        self.name.raw().starts_with('.')
    }
}

impl Offer {
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut offer = Self::default();
        let mut names: BTreeMap<&str, OfferedName> = BTreeMap::new();
        for entry in entries {
            let top = entry.path.as_str().split('/').next().unwrap_or_default();
            let found = names.entry(top);
            let found = found.or_insert_with(|| OfferedName { name: top.into(), ..OfferedName::default() });
            match &entry.kind {
                EntryKind::File(FileMeta { size, .. }) => {
                    offer.files += 1;
                    offer.bytes = offer.bytes.saturating_add(size.unwrap_or(0));
                    offer.endless += u64::from(size.is_none());
                    found.files += 1;
                    found.bytes = found.bytes.saturating_add(size.unwrap_or(0));
                }
                EntryKind::Directory { .. } => found.is_directory = true,
                EntryKind::Link { .. } => {}
            }
        }
        offer.more_names = names.len().saturating_sub(MOST_NAMES) as u64;
        // The user has to see hidden names.
        let (hidden, plain): (Vec<_>, Vec<_>) = names.into_values().partition(OfferedName::is_hidden);
        offer.names = hidden.into_iter().chain(plain).take(MOST_NAMES).collect();
        offer
    }

    /// Rejects offers of these entries beyond the user's limits.
    pub(crate) fn check(
        &self,
        options: &ReceiveOptions,
        (directory, entries): (Option<&Path>, &[Entry]),
    ) -> Result<(), TransferError> {
        if let Some(most) = options.max_size.filter(|most| self.bytes > *most) {
            return Err(TransferError::TooLarge { most });
        }
        let Some(target) = directory.filter(|_| !options.allow_hidden) else { return Ok(()) };
        let kinds = entries.iter().map(|entry| (entry.path.as_str(), &entry.kind)).collect();
        let listed = Listed { kinds, target, times: OnceCell::new() };
        let mut fresh = HashMap::new();
        for path in entries.iter().map(|entry| entry.path.as_str()) {
            let Some((parent, name)) = first_hidden(path) else { continue };
            if !*fresh.entry(parent).or_insert_with(|| listed.is_fresh(parent)) {
                return Err(TransferError::Hidden { name: name.into(), target: target.join(parent) });
            }
        }
        Ok(())
    }
}

/// The first hidden name in a path, and the directory that it is in.
fn first_hidden(path: &str) -> Option<(&str, &str)> {
    let mut start = 0;
    for name in path.split('/') {
        if name.starts_with('.') {
            return Some((path[..start].trim_end_matches('/'), name));
        }
        start += name.len() + 1;
    }
    None
}

/// The entries of an offer, for a comparison with what is in the target.
struct Listed<'a> {
    kinds: HashMap<&'a str, &'a EntryKind>,
    target: &'a Path,
    /// Whether files in the target keep a time; tried when it matters.
    times: OnceCell<bool>,
}

impl Listed<'_> {
    /// True if everything in a directory, which may be missing, is what an earlier attempt at this offer would have made.
    /// Names alone do not show that: a sender can guess them.
    fn is_fresh(&self, directory: &str) -> bool {
        let here = if directory.is_empty() { self.target.to_owned() } else { self.target.join(directory) };
        let Ok(entries) = std::fs::read_dir(TargetTree::named(&here)) else { return !here.exists() };
        let within =
            |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        entries.flatten().all(|entry| {
            let name = entry.file_name();
            let (Some(name), Ok(found)) = (name.to_str(), entry.metadata()) else { return false };
            let path = within(name);
            match self.kinds.get(path.as_str()) {
                Some(EntryKind::Directory { .. }) => found.is_dir() && self.is_fresh(&path),
                Some(EntryKind::File(meta)) => found.is_file() && self.is_as_listed(&found, meta),
                Some(EntryKind::Link { text }) => {
                    std::fs::read_link(entry.path()).is_ok_and(|held| held.as_os_str() == text.as_str())
                }
                None => found.is_file() && is_part_name(name),
            }
        })
    }

    /// Whether a file has the length that it would have been given, and the time, unless none can be stored.
    fn is_as_listed(&self, found: &std::fs::Metadata, meta: &FileMeta) -> bool {
        let times = found.modified().ok().zip(meta.modified.and_then(system_time));
        let is_same_time = times.is_some_and(|(found, listed)| is_near(found, listed));
        meta.size == Some(found.len()) && (is_same_time || !self.stores_times())
    }

    fn stores_times(&self) -> bool {
        *self.times.get_or_init(|| {
            let target = Dir::open_ambient_dir(TargetTree::named(self.target), ambient_authority());
            target.map_or(true, |target| stores_times(&target))
        })
    }
}

/// A list's entries, and its hard links.
type Offered = (Vec<Entry>, Links);

/// The room that an offer lacks, for a user who is asked; gives the offer back.
///
/// # Errors
/// [`TransferError::NoSpace`] if there is room for no file of it.
pub(super) async fn survey(
    place: &Destination,
    (entries, links): Offered,
    options: &ReceiveOptions,
    compares_all: bool,
) -> Result<(Offered, Option<Shortage>), TransferError> {
    let Destination::Directory(spot) = place else { return Ok(((entries, links), None)) };
    if !options.consent.asks() {
        return Ok(((entries, links), None));
    }
    let conflict = if options.mirror.is_some() { Conflict::Overwrite } else { options.conflict };
    let (spot, path) = (spot.clone(), place.directory().unwrap_or(Path::new("")));
    let looked = spawn_blocking(move || {
        let demand = Demand { entries: &entries, links: &links, conflict, compares_all };
        let mut tree = spot.look().0;
        let ground = tree.as_ref().map(TargetTree::another).or_else(|| spot.ground());
        let crowd = ground.and_then(|ground| demand.crowd(&ground, tree.as_mut()));
        ((entries, links), crowd)
    });
    let (offered, crowd) = looked.await.map_err(panicked)?;
    match crowd {
        Some(crowd) if crowd.is_all => Err(crowd.refusal(path)),
        crowd => Ok((offered, crowd.map(|crowd| crowd.shortage))),
    }
}

/// Whether the user accepts an offer.
#[derive(Clone, Default)]
pub enum Consent {
    /// Accepts any offer within the limits.
    #[default]
    Given,
    /// Calls this function, which may block.
    Ask(Arc<dyn Fn(&Offer) -> bool + Send + Sync>),
}

impl Consent {
    pub(crate) fn asks(&self) -> bool {
        matches!(self, Self::Ask(_))
    }

    pub(crate) async fn ask(&self, offer: Offer) -> bool {
        match self {
            Self::Given => true,
            Self::Ask(asks) => {
                let asks = Arc::clone(asks);
                spawn_blocking(move || asks(&offer)).await.unwrap_or(false)
            }
        }
    }
}

impl fmt::Debug for Consent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "Given",
            Self::Ask(_) => "Ask",
        })
    }
}
