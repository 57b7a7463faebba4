//! Tickets: one line of text that leads to a node and opens one share on it.
//!
//! ```text
//! anabranch1 base32( node 32 | share 8 | secret 16 | expires 8, Unix seconds, 0 for never
//!                  | count 1, addresses | count 1, relays (node 32 | count 1, addresses) | checksum 4 )
//! address:  4, IPv4 4, port 2   or   6, IPv6 16, port 2        numbers are big-endian
//! ```
//! The digit after the name is the format's version. Base32 has no 1, and a later version takes another character, which
//! is checked before anything else is read.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use anabranch_wire::{Reader, put_address};
use zeroize::Zeroizing;

use crate::PublicKey;
use crate::secret;
use crate::text::{self, TextError};

const NAME: &str = "anabranch";
const PREFIX: &str = "anabranch1";
const CHECKSUM_LEN: usize = 4;
/// Most addresses of one node in a ticket.
const MAX_ADDRESSES: usize = 16;
/// Most relays in a ticket (design §6: at most four in a chain; a ticket may offer several chains).
const MAX_RELAYS: usize = 8;
/// Bytes of the largest ticket, allocated at once: a buffer that grows leaves copies of its contents behind.
const MAX_LEN: usize = 32 + 8 + 16 + 8 + (1 + MAX_RELAYS) * (33 + MAX_ADDRESSES * 19) + 1;
/// Longest text accepted, in bytes; the largest ticket has about 4,900 characters.
const MAX_TEXT_LEN: usize = 8192;

/// Names one share of a node. Not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareId(pub u64);

/// The secret of a share: 128 random bits. Compared in constant time, wiped when dropped, never printed.
#[derive(Clone)]
pub struct TicketSecret(Zeroizing<[u8; 16]>);

impl TicketSecret {
    /// The secret made of these random bytes; the caller's copy is wiped.
    pub fn from_random(random: [u8; 16]) -> Self {
        Self(secret::take(random))
    }

    /// Its bytes, for a share's own storage.
    pub fn expose(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret(not shown)")
    }
}

impl PartialEq for TicketSecret {
    fn eq(&self, other: &Self) -> bool {
        secret::is_same(self.0.as_slice(), other.0.as_slice())
    }
}

impl Eq for TicketSecret {}

/// A relay through which the node may be reachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayHint {
    /// The relay's identity.
    pub node: PublicKey,
    /// Where it listens; at most 16 are written.
    pub addresses: Vec<SocketAddr>,
}

/// The address of a share, and the secret that opens it (design §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The node that has the share.
    pub node: PublicKey,
    /// Where the node listens, best first; at most 16 are written. Flow labels and scopes of IPv6 addresses are left out
    /// because they mean nothing on another machine.
    pub addresses: Vec<SocketAddr>,
    /// Relays that lead to it; at most 8 are written.
    pub relays: Vec<RelayHint>,
    pub share: ShareId,
    /// The secret that opens it.
    pub secret: TicketSecret,
    /// When it expires, in seconds since 1970, if ever. For the user's information: the node decides by its own record.
    pub expires: Option<u64>,
}

/// Why a text is not a ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    #[error("this is not a ticket: a ticket begins with `{NAME}`")]
    NotATicket,
    /// Written by a later version.
    #[error(
        "this ticket has format `{0}`, which this version does not know: update anabranch on this machine"
    )]
    UnknownVersion(char),
    /// Damaged in transit.
    #[error("this ticket {0}")]
    Damaged(#[source] TextError),
    /// The checksum is right but the contents are not a ticket.
    #[error("this ticket's contents are malformed: ask for a new one")]
    Malformed,
}

impl Ticket {
    /// Most addresses of one node that are written.
    pub const MAX_ADDRESSES: usize = MAX_ADDRESSES;

    /// The ticket as one line of text. It holds the secret: show it only to its intended recipient.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_LEN));
        out.extend_from_slice(self.node.as_bytes());
        out.extend_from_slice(&self.share.0.to_be_bytes());
        out.extend_from_slice(self.secret.expose());
        out.extend_from_slice(&self.expires.unwrap_or(0).to_be_bytes());
        put_addresses(&mut out, &self.addresses);
        let relays = &self.relays[..self.relays.len().min(MAX_RELAYS)];
        out.push(relays.len() as u8);
        for relay in relays {
            out.extend_from_slice(relay.node.as_bytes());
            put_addresses(&mut out, &relay.addresses);
        }
        text::encode::<CHECKSUM_LEN>(PREFIX, &out)
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        let name = text.get(..NAME.len()).filter(|name| name.eq_ignore_ascii_case(NAME));
        let rest = name.and_then(|_| text.get(NAME.len()..)).ok_or(TicketError::NotATicket)?;
        match rest.chars().next() {
            Some('1') => {}
            Some(version) if version.is_ascii_alphanumeric() => {
                return Err(TicketError::UnknownVersion(version));
            }
            _ => return Err(TicketError::NotATicket),
        }
        if text.len() > MAX_TEXT_LEN {
            return Err(TicketError::Damaged(TextError::Length));
        }
        let bytes = text::decode::<CHECKSUM_LEN>(PREFIX, text).map_err(TicketError::Damaged)?;
        read_ticket(&bytes).ok_or(TicketError::Malformed)
    }
}

fn put_addresses(out: &mut Vec<u8>, addresses: &[SocketAddr]) {
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    out.push(addresses.len() as u8);
    addresses.iter().for_each(|address| put_address(*address, out));
}

/// The ticket in these bytes, or `None` when they are malformed.
fn read_ticket(bytes: &[u8]) -> Option<Ticket> {
    let mut reader = Reader::new(bytes);
    let node = PublicKey::from_bytes(reader.array("node").ok()?);
    let share = ShareId(reader.u64("share").ok()?);
    let secret = TicketSecret::from_random(reader.array("secret").ok()?);
    let expires = Some(reader.u64("expiry").ok()?).filter(|seconds| *seconds != 0);
    let addresses = read_addresses(&mut reader)?;
    let count = read_count(&mut reader, MAX_RELAYS)?;
    let relays = (0..count).map(|_| read_relay(&mut reader)).collect::<Option<_>>()?;
    reader.end().ok()?;
    Some(Ticket { node, addresses, relays, share, secret, expires })
}

fn read_relay(reader: &mut Reader<&[u8]>) -> Option<RelayHint> {
    let node = PublicKey::from_bytes(reader.array("relay").ok()?);
    Some(RelayHint { node, addresses: read_addresses(reader)? })
}

fn read_addresses(reader: &mut Reader<&[u8]>) -> Option<Vec<SocketAddr>> {
    (0..read_count(reader, MAX_ADDRESSES)?).map(|_| reader.address().ok()).collect()
}

fn read_count(reader: &mut Reader<&[u8]>, most: usize) -> Option<usize> {
    reader.u8("count").ok().map(usize::from).filter(|count| *count <= most)
}

#[cfg(test)]
mod tests;
