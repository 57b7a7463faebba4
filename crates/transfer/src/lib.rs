//! Sends and receives files and directories over a session: verified, resumable, never half-written.
//!
//! A [`Share`] is what one side offers; [`send`] serves it to one receiver, over anything that is a
//! [`Connection`] (a session opens and accepts streams). [`receive`] is the other end. Several receivers
//! of one share are several calls of [`send`].
//!
//! The receiver drives. It reads the list of entries on the *control* stream, looks at what its disk
//! already has, and asks for blocks of files on the *data* stream, many requests ahead of the replies, so
//! that a small file costs no round trip of its own. Each block of 1 MiB comes with its BLAKE3 chaining
//! value, and the chaining values of a file join to its ordinary BLAKE3 hash, so blocks are verified as
//! they come and nothing is hashed in advance. The data that an interrupted transfer left on disk is hashed and
//! offered to the sender, which sends only what differs: there is no journal to trust or to lose.
//! `docs/reference/transfer.md` describes every message.
//!
//! ```no_run
//! # use anabranch_transfer::{Connection, Progress, ReceiveOptions, Share, Target, TransferError, receive, send};
//! # async fn one_end(session: &impl Connection) -> Result<(), TransferError> {
//! let share = Share::from_paths(&["photos", "notes.txt"])?;
//! let summary = send(session, &share, &Progress::new()).await?;
//! # Ok(()) }
//! # async fn the_other(session: &impl Connection) -> Result<(), TransferError> {
//! let target = Target::Directory("from-alice".into());
//! let summary = receive(session, target, &ReceiveOptions::default(), &Progress::new()).await?;
//! println!("{} files, {} bytes, {} of them resumed", summary.files, summary.bytes, summary.resumed);
//! # Ok(()) }
//! ```
//!
//! Where the work happens: the async side only moves buffers between streams and channels; disks and
//! hashes belong to blocking threads. A receiver has one that plans, one that writes and a few that sync and rename.
//! A sender has a few for all its receivers, who take turns. Dropping a future closes the channels, and the threads
//! end by themselves.

mod codec;
mod connection;
mod control;
mod error;
mod hash;
mod manifest;
mod message;
mod path;
mod progress;
mod receive;
mod report;
mod send;

pub use connection::Connection;
pub use error::{Failure, Reason, TransferError};
pub use manifest::Limits;
#[doc(hidden)]
pub use message::check_message;
pub use progress::{Progress, Snapshot};
pub use receive::{Conflict, Consent, Offer, OfferedName, ReceiveOptions, Target, receive};
pub use report::Summary;
pub use send::{Contents, Share, send};

#[cfg(all(test, unix))]
mod tests;
