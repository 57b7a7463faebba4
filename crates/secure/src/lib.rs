//! Who is at the other end, and what nobody else can read or forge: node keys, tickets, the handshake,
//! cookies, packet protection, replay windows and reset tokens.
//!
//! A session is set up in four datagrams, the first two of which cost the responder no state and no
//! Diffie-Hellman:
//!
//! ```text
//! client                                            server
//!   INIT (mac1)              ──────────────────────▶  mac1 is right, no cookie      CookieJar::admit
//!                            ◀──────────────────────  COOKIE for this address
//!   INIT (mac1, mac2)        ──────────────────────▶  read_init, caller authorises
//!                            ◀──────────────────────  INIT ACK                      PendingInit::accept
//!   first packet, sealed     ──────────────────────▶  confirmed: authorised
//! ```
//!
//! After that [`Protection`] seals and opens every packet. Nothing here knows a clock, a socket or a source
//! of randomness: times and random bytes come in as values.

mod cookie;
mod handshake;
mod keys;
mod noise;
mod phase;
mod protect;
mod replay;
mod reset;
mod text;
mod ticket;
#[cfg(test)]
mod vectors;

pub use cookie::{Admission, Cookie, CookieError, CookieJar, DropReason};
pub use handshake::{
    ACK_BODY_LEN, Accepted, Dial, HandshakeError, INIT_BODY_LEN, InitId, Initiator, MAX_PARAMS_LEN,
    PendingInit, Refusal, SessionKeys, VERSION, read_init,
};
pub use keys::{NodeKey, PublicKey};
pub use protect::{Envelope, Limits, OpenError, Protection, SealError};
pub use replay::ReplayWindow;
pub use reset::{ResetKey, same_token};
pub use text::TextError;
pub use ticket::{RelayHint, ShareId, Ticket, TicketError, TicketSecret};
