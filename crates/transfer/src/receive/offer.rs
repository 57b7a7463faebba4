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

/// Most names of an offer that are listed one by one.
const MOST_NAMES: usize = 1000;

/// A sender's offer, shown before anything of it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Files in it.
    pub files: u64,
    /// The bytes of the files whose length is known.
    pub bytes: u64,
    /// How many files have no known length.
    pub endless: u64,
    /// The names at the top level, the first thousand in alphabetical order.
    pub names: Vec<OfferedName>,
    /// How many more there are.
    pub more_names: u64,
}

/// One name at the top level of an offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferedName {
    /// The name.
    pub name: ForeignText,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Files in it, or 1.
    pub files: u64,
    /// The bytes of those whose length is known.
    pub bytes: u64,
}

impl OfferedName {
    /// True for names that most programs do not list.
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
        // Hidden names are what a user has to see.
        let (hidden, plain): (Vec<_>, Vec<_>) = names.into_values().partition(OfferedName::is_hidden);
        offer.names = hidden.into_iter().chain(plain).take(MOST_NAMES).collect();
        offer
    }

    /// Refuses what the user does not take in any case.
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

/// Whether the user wants what is offered.
#[derive(Clone, Default)]
pub enum Consent {
    /// Whatever it is, within the limits.
    #[default]
    Given,
    /// If this says so; it may block.
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
