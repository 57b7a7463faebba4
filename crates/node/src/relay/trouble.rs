//! Failures of relays that do not pass by themselves. Each is logged once, with advice.

use anabranch_net::{ConnectError, PathError, PublicKey, Refusal};
use anabranch_overlay::relay::Refused;

use super::RelayError;

/// A failure that lasts until someone acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It refuses the request.
    Refused(Refused),
    /// It does not admit this node's key.
    NotLetIn,
    /// It cannot be reached.
    NotReached,
    /// It does not reach the next hop.
    Unanswered,
    /// The session has as many paths as it may.
    TooManyPaths,
}

impl Trouble {
    /// `None` for failures that pass by themselves.
    pub(crate) fn of(error: &RelayError) -> Option<Self> {
        match error {
            RelayError::Refused(Refused::Draining) => None,
            RelayError::Refused(why) | RelayError::NextHop { why, .. } => Some(Self::Refused(*why)),
            RelayError::Connect(ConnectError::Refused(Refusal::NotAuthorised)) => Some(Self::NotLetIn),
            // It is full, or a guest's host is not registered yet.
            RelayError::Connect(ConnectError::Refused(_) | ConnectError::Closed(_)) => None,
            RelayError::Connect(_) | RelayError::Unresolved(_) | RelayError::Silent(_) => {
                Some(Self::NotReached)
            }
            RelayError::Unanswered(_) => Some(Self::Unanswered),
            RelayError::Path(PathError::TooMany(_)) => Some(Self::TooManyPaths),
            _ => None,
        }
    }

    /// Advice in addition to the error's own text; `own` is this node's key.
    pub(crate) fn advice(self, own: &PublicKey) -> String {
        match self {
            Self::NotLetIn => format!(
                "; have the relay's operator add this node's key to its configuration, `[[user]]` with `key = \"{own}\"`, or use a controller that it names"
            ),
            Self::Unanswered => {
                "; is that address reached from there? Where a router or a firewall is before it, let its UDP port in, or choose a relay on this side of it".to_owned()
            }
            Self::TooManyPaths => {
                "; it is opened once another path of the session ends: name fewer relays, or remove a path, with `path remove` where the program is controlled".to_owned()
            }
            Self::Refused(_) | Self::NotReached => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_does_not_let_a_key_in_is_told_with_the_key_to_list() {
        let own = anabranch_net::NodeKey::from_random([5; 32]).public();
        let refused = |why| RelayError::Connect(ConnectError::Refused(why));
        let trouble = Trouble::of(&refused(Refusal::NotAuthorised)).unwrap();
        assert_eq!(trouble, Trouble::NotLetIn);
        assert!(trouble.advice(&own).contains(&format!("key = \"{own}\"")));
        assert_eq!(Trouble::of(&refused(Refusal::Busy)), None);
    }

    #[test]
    fn silence_and_refusals_are_told_and_a_relay_that_goes_down_is_not() {
        assert_eq!(Trouble::of(&RelayError::Silent("greeting")), Some(Trouble::NotReached));
        let unanswered = Trouble::of(&RelayError::Unanswered("192.0.2.7:4433".parse().unwrap())).unwrap();
        let own = anabranch_net::NodeKey::from_random([5; 32]).public();
        assert!(unanswered.advice(&own).contains("firewall"), "{unanswered:?}");
        let quota = Refused::QuotaUsed;
        assert_eq!(Trouble::of(&RelayError::Refused(quota)), Some(Trouble::Refused(quota)));
        let full = RelayError::Path(PathError::TooMany(8));
        assert_eq!(Trouble::of(&full), Some(Trouble::TooManyPaths));
        for passing in [RelayError::Gone, RelayError::Refused(Refused::Draining)] {
            assert_eq!(Trouble::of(&passing), None);
        }
    }
}
