//! A sender's offer, and the user's consent.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anabranch_wire::ForeignText;
use tokio::task::spawn_blocking;

use super::ReceiveOptions;
use super::target::TargetTree;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta};
use crate::path::part_name;

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
}

/// One name at the top level of an offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferedName {
    /// The name.
    pub name: ForeignText,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Number of files in it, or 1.
    pub files: u64,
    /// Total size of those with a known length.
    pub bytes: u64,
}

impl OfferedName {
    /// True for names that most programs hide.
    #[must_use]
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

    /// Rejects offers beyond the user's limits.
    pub(crate) fn check(
        &self,
        options: &ReceiveOptions,
        directory: Option<&Path>,
    ) -> Result<(), TransferError> {
        if let Some(most) = options.max_size.filter(|most| self.bytes > *most) {
            return Err(TransferError::TooLarge { most });
        }
        let Some(directory) = directory.filter(|_| !options.allow_hidden) else { return Ok(()) };
        let Some(hidden) = self.names.iter().find(|name| name.is_hidden()) else { return Ok(()) };
        let is_listed = |found: &str| {
            self.names
                .iter()
                .any(|offered| offered.name.raw() == found || part_name(offered.name.raw()) == found)
        };
        if TargetTree::is_fresh(directory, is_listed) {
            return Ok(());
        }
        Err(TransferError::Hidden { name: hidden.name.clone(), target: directory.to_owned() })
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
