//! BLAKE3 hashes of files, block by block.
//!
//! A BLAKE3 hash is the root of a binary tree over 1 KiB chunks. A block of 1 MiB at a multiple of 1 MiB is a complete
//! subtree, so its *chaining value* depends on the block alone. The chaining values of all blocks join to the hash that
//! `b3sum` prints for the file. So blocks are verified one by one and skipped when both ends have them. The only state
//! is a stack of at most 64 values.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{Hash, Hasher};

/// Bytes in a block. Only the last block of a file is shorter.
pub(crate) const BLOCK: usize = 1 << 20;

/// Most bytes that are hashed for a comparison of a file of unknown length, which may have no end.
pub(crate) const MOST_COMPARED: u64 = if cfg!(test) { 32 << 20 } else { 4 << 30 };

pub(crate) static ZERO_BLOCK: [u8; BLOCK] = [0; BLOCK];

/// The hash of a block at its position in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockHash {
    /// Chaining value of the block as a subtree.
    pub value: ChainingValue,
    /// The file's hash if the file has only this block; set for the first block only.
    pub alone: Option<Hash>,
}

/// Hashes the block number `index`.
pub(crate) fn hash_block(index: u64, data: &[u8]) -> BlockHash {
    let mut hasher = BlockHasher::new(index);
    hasher.update(data);
    hasher.finish()
}

pub(crate) fn is_zero(data: &[u8]) -> bool {
    let (words, rest) = data.as_chunks::<16>();
    words.iter().all(|word| *word == [0; 16]) && rest.iter().all(|byte| *byte == 0)
}

/// Hashes one block that arrives in pieces.
#[derive(Debug)]
pub(crate) struct BlockHasher {
    hasher: Hasher,
    index: u64,
    len: usize,
}

impl BlockHasher {
    /// Starts block number `index`.
    pub fn new(index: u64) -> Self {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(index * BLOCK as u64);
        Self { hasher, index, len: 0 }
    }

    /// Adds the next bytes; a block has at most [`BLOCK`] in total.
    pub fn update(&mut self, data: &[u8]) {
        self.hasher.update(data);
        self.len += data.len();
    }

    /// Bytes added so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The hash of the block, which has at least one byte.
    pub fn finish(&self) -> BlockHash {
        let alone = (self.index == 0).then(|| self.hasher.finalize());
        BlockHash { value: self.hasher.finalize_non_root(), alone }
    }
}

/// How many blocks a file of `size` bytes has.
pub(crate) fn block_count(size: u64) -> u64 {
    size.div_ceil(BLOCK as u64)
}

/// Length of block `index` in a file of `size` bytes; 0 past its end.
pub(crate) fn block_len(size: u64, index: u64) -> usize {
    let start = index.saturating_mul(BLOCK as u64);
    usize::try_from(size.saturating_sub(start).min(BLOCK as u64)).unwrap_or(BLOCK)
}

/// Joins the hashes of a file's blocks, pushed in order, into the hash of the file.
#[derive(Debug, Default)]
pub(crate) struct FileHasher {
    stack: Vec<ChainingValue>,
    blocks: u64,
    alone: Option<Hash>,
}

impl FileHasher {
    /// How many blocks were pushed.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds the next block's hash.
    pub fn push(&mut self, block: BlockHash) {
        // Complete subtrees merge only when more input follows: the last merge makes the root.
        while self.stack.len() > self.blocks.count_ones() as usize {
            self.merge_top();
        }
        self.stack.push(block.value);
        if self.blocks == 0 {
            self.alone = block.alone;
        }
        self.blocks += 1;
    }

    /// Adds `len` zeros of a file of `size` bytes, from within `block` on.
    pub fn add_zeros(&mut self, block: &mut BlockHasher, mut len: usize, size: u64) {
        while len > 0 {
            let want = block_len(size, self.blocks) - block.len();
            let zeros = len.min(want);
            block.update(&ZERO_BLOCK[..zeros]);
            if zeros == want {
                self.push(block.finish());
                *block = BlockHasher::new(self.blocks);
            }
            len -= zeros;
        }
    }

    /// The file's hash.
    pub fn finish(mut self) -> Hash {
        match (self.blocks, self.alone) {
            (0, _) => return blake3::hash(b""),
            (1, Some(alone)) => return alone,
            _ => {}
        }
        while self.stack.len() > 2 {
            self.merge_top();
        }
        merge_subtrees_root(&self.stack[0], &self.stack[1], Mode::Hash)
    }

    fn merge_top(&mut self) {
        if let (Some(right), Some(left)) = (self.stack.pop(), self.stack.pop()) {
            self.stack.push(merge_subtrees_non_root(&left, &right, Mode::Hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_blocks(data: &[u8]) -> Hash {
        let mut hasher = FileHasher::default();
        for (index, block) in (0..).zip(data.chunks(BLOCK)) {
            hasher.push(hash_block(index, block));
        }
        hasher.finish()
    }

    #[test]
    fn a_block_in_pieces_has_the_hash_of_the_whole() {
        let data: Vec<u8> = (0..300_000).map(|at| (at * 7 + at / 1000) as u8).collect();
        for index in [0, 3] {
            let mut pieces = BlockHasher::new(index);
            data.chunks(77_777).for_each(|piece| pieces.update(piece));
            let (whole, pieces) = (hash_block(index, &data), pieces.finish());
            assert_eq!((pieces.value, pieces.alone), (whole.value, whole.alone));
        }
    }

    #[test]
    fn blocks_join_to_the_ordinary_hash_of_the_file() {
        let data: Vec<u8> = (0..9 * BLOCK + 5000).map(|at| (at * 7 + at / 1000) as u8).collect();
        let edges =
            (0..10).flat_map(|blocks| [0, 1, 1023, 1024, 1025, 4999].map(|more| blocks * BLOCK + more));
        for len in edges {
            assert_eq!(by_blocks(&data[..len]), blake3::hash(&data[..len]), "length {len}");
        }
    }
}
