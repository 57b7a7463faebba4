//! Identity and protection: node keys, tickets, the handshake, cookies, packet protection, replay windows and reset
//! tokens.
//!
//! A session is set up in four datagrams. The first two cost the responder no state and no Diffie-Hellman exchange:
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
//! ```
//! use anabranch_secure::{Admission, CookieJar, Dial, Envelope, Initiator, Limits, NodeKey, Protection, read_init};
//! use anabranch_wire::{Fsn, Header, Kind, PathId, Pid, TAG_LEN, Time};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ([a, b, c, d, e], now) = ([1, 2, 3, 4, 5].map(|byte| [byte; 32]), Time::ZERO); // random in earnest
//! let (client, server) = (NodeKey::from_random(a), NodeKey::from_random(b));
//! let jar = CookieJar::new(server.public(), c);
//! let address = "192.0.2.1:4000".parse()?;
//!
//! let dial = Dial { remote: server.public(), credential: None };
//! let mut initiator = Initiator::new(&client, &dial, Pid(77), b"client's parameters", d)?;
//! let Admission::Challenge { body, .. } = jar.admit(now, address, &initiator.init_body(None)) else { panic!() };
//! let init = initiator.init_body(Some(&initiator.open_cookie(&body)?));
//!
//! assert_eq!(jar.admit(now, address, &init), Admission::Proceed);
//! let pending = read_init(&server, &init, e)?;
//! assert_eq!(pending.remote, client.public()); // may this node come in?
//! let accepted = pending.accept(None, b"server's parameters")?;
//! let (keys, params) = initiator.handle_ack(&accepted.body)?;
//! assert_eq!(params, b"server's parameters");
//!
//! let mut here = Protection::new(&keys, Limits::default(), now);
//! let mut there = Protection::new(&accepted.keys, Limits::default(), now);
//! let key_phase = here.key_phase(now);
//! let header = Header { kind: Kind::Data, key_phase, tos: 0, hop_limit: 8, pid: Pid(78), fsn: 0 };
//! let envelope = Envelope::new(&header, PathId::FIRST, Fsn(0));
//! let mut packet = [b"frames".as_slice(), &[0; TAG_LEN]].concat();
//! here.seal(&envelope, &mut packet)?;
//! assert!(!there.is_confirmed());
//! assert_eq!(there.open(now, &envelope, &mut packet)?, b"frames");
//! assert!(there.is_confirmed());
//! # Ok(())
//! # }
//! ```
//!
//! After that [`Protection`] seals and opens every packet. This crate has no clock, socket or source of randomness: times
//! and random bytes are arguments.

mod captured;
pub mod consent;
mod cookie;
mod fresh;
mod handshake;
mod keys;
mod noise;
mod phase;
mod protect;
mod replay;
mod reset;
pub mod secret;
#[cfg(test)]
mod tests;
mod text;
mod ticket;

pub use captured::{CapturedSession, Opened};
pub use cookie::{Admission, Cookie, CookieError, CookieJar, DropReason};
pub use fresh::{FreshSecret, UnusableKey};
pub use handshake::{
    ACK_BODY_LEN, Accepted, Dial, HandshakeError, INIT_BODY_LEN, InitId, Initiator, MAX_PARAMS_LEN,
    PendingInit, Refusal, SessionKeys, VERSION, read_init,
};
pub use keys::{NodeKey, PublicKey};
pub use protect::{Envelope, Exchanged, Limits, OpenError, Protection, SealError};
pub use replay::ReplayWindow;
pub use reset::ResetKey;
pub use text::TextError;
pub use ticket::{RelayHint, ShareId, Ticket, TicketError, TicketSecret};
