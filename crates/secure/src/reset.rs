//! Stateless resets (RFC 9000 §10.3): an endpoint that lost its sessions can still report that. The token it gave with a
//! PID is a keyed hash of that PID, under a key that outlives the sessions.

use anabranch_wire::{Pid, ResetToken};
use zeroize::Zeroizing;

use crate::secret;

/// The key of reset tokens: 32 random bytes that outlive the process.
#[derive(Clone)]
pub struct ResetKey(Zeroizing<[u8; 32]>);

impl ResetKey {
    /// The key made of these random bytes; the caller's copy is wiped.
    pub fn from_random(random: [u8; 32]) -> Self {
        let random = secret::take(random);
        Self(secret::derive("anabranch 2026 reset token", &[random.as_slice()]))
    }

    /// The token of a PID. It can end the session that uses the PID, so it is sent only to the peer, under the seal. A PID is
    /// never used again after a reset for it was sent.
    pub fn token(&self, pid: Pid) -> ResetToken {
        let hash = blake3::keyed_hash(&self.0, &pid.0.to_be_bytes());
        let (token, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        ResetToken(*token)
    }
}

impl std::fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResetKey(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_depends_on_key_and_pid_and_on_nothing_else() {
        let key = ResetKey::from_random([1; 32]);
        assert_eq!(key.token(Pid(5)), ResetKey::from_random([1; 32]).token(Pid(5)));
        assert_ne!(key.token(Pid(5)), key.token(Pid(6)));
        assert_ne!(key.token(Pid(5)), ResetKey::from_random([2; 32]).token(Pid(5)));
    }
}
