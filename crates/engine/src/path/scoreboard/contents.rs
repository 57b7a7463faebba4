//! What one packet carried.

use smallvec::SmallVec;

use super::Content;
use crate::stream::SentRun;

/// What a packet carried that somebody has to hear of when it is acknowledged or lost: most often one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contents {
    #[default]
    Nothing,
    One(Content),
    Many(Box<SmallVec<[Content; 4]>>),
}

impl Contents {
    pub(crate) fn push(&mut self, content: Content) {
        *self = match std::mem::take(self) {
            Self::Nothing => Self::One(content),
            Self::One(first) => Self::Many(Box::new([first, content].into_iter().collect())),
            Self::Many(mut contents) => {
                contents.push(content);
                Self::Many(contents)
            }
        };
    }

    pub(crate) fn as_slice(&self) -> &[Content] {
        match self {
            Self::Nothing => &[],
            Self::One(content) => std::slice::from_ref(content),
            Self::Many(contents) => contents,
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
