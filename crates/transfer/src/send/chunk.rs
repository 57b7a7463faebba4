//! Replies of one turn.

use super::memory::Buffer;
use crate::message::Reply;

/// Replies to write to the data stream.
pub(crate) struct Chunk {
    pub buffer: Buffer,
    /// File bytes in these replies, and file bytes that the receiver already has.
    pub carried: u64,
    pub held: u64,
}

impl Chunk {
    pub fn len(&self) -> usize {
        self.buffer.bytes.len()
    }

    pub fn reply(&mut self, reply: &Reply) {
        reply.encode(&mut self.buffer.bytes);
    }
}
