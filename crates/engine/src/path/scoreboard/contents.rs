//! The contents of one packet.

use smallvec::SmallVec;

use super::Content;
use crate::stream::SentRun;

/// The contents of a packet that matter when it is acknowledged or lost: usually one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contents {
    #[default]
    Nothing,
    One(Content),
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Many {
    list: SmallVec<[Content; 4]>,
    /// The next spare one, while this is spare.
    next: Option<Box<Many>>,
}

/// Spare boxes for packets with several contents, kept to avoid allocation.
#[derive(Debug, Default)]
pub(super) struct Spare(Option<Box<Many>>);

impl Spare {
    /// Adds to the contents of a packet.
    pub(super) fn add(&mut self, contents: &mut Contents, content: Content) {
        *contents = match std::mem::take(contents) {
            Contents::Nothing => Contents::One(content),
            Contents::One(first) => {
                let mut many = self.0.take().unwrap_or_default();
                self.0 = many.next.take();
                many.list.clear();
                many.list.extend([first, content]);
                Contents::Many(many)
            }
            Contents::Many(mut many) => {
                many.list.push(content);
                Contents::Many(many)
            }
        };
    }

    /// Keeps the box of contents that are no longer needed.
    #[inline]
    pub(super) fn keep(&mut self, contents: Contents) {
        if let Contents::Many(mut many) = contents {
            many.next = self.0.take();
            self.0 = Some(many);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // One by one, so that drops do not nest.
        while let Some(mut many) = self.0.take() {
            self.0 = many.next.take();
        }
    }
}

impl Contents {
    pub(crate) fn as_slice(&self) -> &[Content] {
        match self {
            Self::Nothing => &[],
            Self::One(content) => std::slice::from_ref(content),
            Self::Many(many) => &many.list,
        }
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Content> {
        self.as_slice().iter()
    }

    /// The runs of streams among them.
    pub(super) fn runs(&self) -> impl Iterator<Item = &SentRun> {
        self.iter().filter_map(|content| match content {
            Content::Run(run) => Some(run),
            _ => None,
        })
    }

    /// True when the packet did nothing but probe the path MTU.
    pub(crate) fn is_mtu_probe(&self) -> bool {
        matches!(self, Self::One(Content::MtuProbe(_)))
    }
}

impl<'a> IntoIterator for &'a Contents {
    type Item = &'a Content;
    type IntoIter = std::slice::Iter<'a, Content>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
