//! Sends and receives files and directories over a session: verified, resumable, never half-written.
//!
//! A sender offers a [`Share`]; [`send`] serves it to one receiver over a [`Connection`], such as a session. Call it
//! once for each receiver. [`receive`] is the other end.
//!
//! The receiver drives. It reads the list of entries on the *control* stream and checks what its disk already has. Then
//! it requests blocks of files on the *data* stream, many requests ahead of the replies, so that small files cost no
//! round trips. Each block of 1 MiB comes with its BLAKE3 chaining value, and a file's chaining values join to its
//! BLAKE3 hash. So blocks are verified on arrival, and nothing is hashed in advance.
//!
//! An interrupted transfer leaves data on the disk. The next attempt hashes it and offers the hashes to the sender,
//! which sends only the blocks that differ. There is no journal. `docs/reference/transfer.md` describes every message.
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
//! The async code only moves buffers between streams and channels; blocking threads handle disks and hashes. A receiver
//! has one thread that plans, one that writes and a few that sync and rename. A sender has a few threads, which its
//! receivers share. Dropping a future closes the channels, and the threads end.

mod ask;
mod attributes;
mod client;
mod codec;
mod connection;
mod control;
mod error;
mod hash;
mod manifest;
mod message;
mod packed;
mod path;
mod policy;
mod progress;
mod receive;
mod report;
mod send;
mod serve;

pub use client::{Listed, ListedKind, Place, Wanted, get, list, put};
pub use connection::Connection;
pub use error::{Failure, Missing, Reason, TransferError};
pub use manifest::Limits;
#[doc(hidden)]
pub use message::check_message;
pub use policy::{Conflict, Mirror};
pub use progress::{Progress, Snapshot};
pub use receive::{
    Consent, Offer, OfferedName, OutputStream, Quota, ReceiveOptions, Shortage, Target, close_output, receive,
};
pub use report::Summary;
pub use send::{Contents, Share, send};
pub use serve::{Folders, Found, Rights, Served, Task, Visitor};

#[cfg(test)]
mod tests;
