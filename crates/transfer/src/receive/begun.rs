//! The beginning of a file, which an eager receiver asked for together with the list.

use tokio::io::AsyncWriteExt as _;

use crate::connection::Connection;
use crate::error::TransferError;
use crate::hash::block_len;
use crate::manifest::FileMeta;
use crate::message::{Reply, Request};

/// Most bytes to ask for together with the list.
const AHEAD: u32 = 16 << 10;

/// Opens the data stream, and asks for the beginning of the first file.
pub(super) async fn begin<C: Connection>(connection: &C) -> Result<C::Stream, TransferError> {
    let mut stream = connection.open().await.map_err(TransferError::Connection)?;
    let mut bytes = Vec::new();
    Request::Begin { most: AHEAD }.encode(&mut bytes);
    stream.write_all(&bytes).await.map_err(TransferError::Connection)?;
    stream.flush().await.map_err(TransferError::Connection)?;
    Ok(stream)
}

/// The beginning of a file.
pub(crate) enum Begun {
    /// Not asked for, not sent or used.
    None,
    /// It is the next reply.
    Due,
    /// The entry, and its first bytes.
    Here(u32, Vec<u8>),
}

impl Begun {
    /// The reply to the request for the beginning, which must be no other.
    pub fn of(reply: Reply) -> Result<Self, TransferError> {
        let (file, body) = match reply {
            Reply::Begun(None) => return Ok(Self::None),
            Reply::Begun(Some((file, body))) => (file, body),
            _ => return Err(TransferError::protocol("the beginning of a file was not sent")),
        };
        match body.split_first_chunk() {
            Some((stated, data)) if data.len() <= AHEAD as usize && blake3::hash(data) == *stated => {
                Ok(Self::Here(file, data.to_vec()))
            }
            _ => {
                Err(TransferError::protocol("the beginning of a file is too long or does not match its hash"))
            }
        }
    }

    /// Takes the first bytes of entry `file`, if they are here.
    pub fn take(&mut self, file: u32, meta: FileMeta) -> Result<Option<Vec<u8>>, TransferError> {
        match std::mem::replace(self, Self::None) {
            Self::Here(of, data) if of == file => {
                let fits = meta.size.is_some_and(|size| data.len() <= block_len(size, 0));
                let too_long = || TransferError::protocol("the beginning of a file is longer than the file");
                fits.then_some(Some(data)).ok_or_else(too_long)
            }
            other => {
                *self = other;
                Ok(None)
            }
        }
    }
}
