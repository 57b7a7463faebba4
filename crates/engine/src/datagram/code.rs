//! The erasure code over a block: of k datagrams and m pieces of parity, any k restore the rest.
//!
//! The code covers the head of a datagram (flow, length, position) and its data, padded with zeros to the longest of the
//! block and to an even length. One piece of parity is the exclusive or of all. Several are the recovery shards of the
//! Reed–Solomon code over GF(2^16) of `reed-solomon-simd` (Lin, Han and Chung 2016; the code of Leopard-RS). The parity of a
//! datagram alone in its block is a copy of it.
//!
//! In the simulator, where data are bare lengths, only heads are coded.

use anabranch_wire::{CODED_HEAD, DatagramFrame, Payload};
use reed_solomon_simd::{Error, ReedSolomonDecoder, ReedSolomonEncoder};

/// The coded part of a datagram in front of its data.
pub(super) type Head = [u8; CODED_HEAD];

/// One datagram of a block, or one piece of parity.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shard<P> {
    pub head: Head,
    pub data: P,
}

impl<P: Payload> Shard<P> {
    /// The coded form of a datagram and its position.
    pub(super) fn new(datagram: &DatagramFrame<P>, place: Option<u64>) -> Self {
        let mut head = [0; CODED_HEAD];
        head[..4].copy_from_slice(&datagram.flow.to_be_bytes());
        head[4..6].copy_from_slice(&(datagram.data.len() as u16).to_be_bytes());
        let place = place.map_or(0, |place| place + 1);
        head[6..].copy_from_slice(&place.to_be_bytes()[2..]);
        Self { head, data: datagram.data.clone() }
    }

    /// The datagram and its position; `None` when its length exceeds its data.
    pub(super) fn datagram(&self, class: u8) -> Option<(DatagramFrame<P>, Option<u64>)> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let (flow, len, place) = (number(&self.head[..4]), number(&self.head[4..6]), number(&self.head[6..]));
        let len = len as usize;
        if len > self.data.len() {
            return None;
        }
        let data = P::copied(self.data.bytes(), len);
        Some((DatagramFrame { class, flow: flow as u32, data }, place.checked_sub(1)))
    }

    /// Writes head and data into a shard of zeros.
    fn fill(&self, shard: &mut [u8]) {
        let (head, data) = shard.split_at_mut(CODED_HEAD);
        head.copy_from_slice(&self.head);
        data[..self.data.bytes().len()].copy_from_slice(self.data.bytes());
    }

    /// Reads head and data from a shard whose data have this length.
    fn from_shard(shard: &[u8], len: usize) -> Self {
        let (head, data) = shard.split_at(CODED_HEAD);
        let mut own = [0; CODED_HEAD];
        own.copy_from_slice(head);
        Self { head: own, data: P::copied(data, len) }
    }
}

/// Makes parity and restores datagrams. The decoder is kept because a new one costs more than a repair.
#[derive(Default)]
pub(super) struct Code {
    encoder: Option<ReedSolomonEncoder>,
    decoder: Option<ReedSolomonDecoder>,
    shard: Vec<u8>,
}

impl Code {
    /// Makes `parities` pieces of parity for these datagrams.
    pub(super) fn encode<P: Payload>(&mut self, block: &[Shard<P>], parities: usize) -> Vec<Shard<P>> {
        let longest = block.iter().map(|shard| shard.data.len()).max().unwrap_or(0).next_multiple_of(2);
        if parities == 1 {
            return vec![self.exclusive_or(block.iter(), longest)];
        }
        if let [alone] = block {
            let whole = self.exclusive_or(std::iter::once(alone), longest);
            return vec![whole; parities];
        }
        self.encode_many(block, parities, longest).unwrap_or_default()
    }

    fn encode_many<P: Payload>(
        &mut self,
        block: &[Shard<P>],
        parities: usize,
        longest: usize,
    ) -> Result<Vec<Shard<P>>, Error> {
        let size = shard_size::<P>(longest);
        if let Some(encoder) = &mut self.encoder {
            encoder.reset(block.len(), parities, size)?;
        } else {
            self.encoder = Some(ReedSolomonEncoder::new(block.len(), parities, size)?);
        }
        let Some(encoder) = &mut self.encoder else { return Ok(Vec::new()) };
        for shard in block {
            clear(&mut self.shard, size);
            shard.fill(&mut self.shard);
            encoder.add_original_shard(&self.shard)?;
        }
        let result = encoder.encode()?;
        Ok(result.recovery_iter().map(|piece| Shard::from_shard(piece, longest)).collect())
    }

    /// Restores the datagrams of a block that are `None`, given some of `parities` pieces, each with its index. Returns nothing
    /// if there are too few, or if they contradict each other.
    pub(super) fn decode<P: Payload>(
        &mut self,
        block: &[Option<&Shard<P>>],
        parities: usize,
        pieces: &[(u8, Shard<P>)],
    ) -> Vec<(usize, Shard<P>)> {
        let missing = block.iter().filter(|shard| shard.is_none()).count();
        let Some((_, first)) = pieces.first() else { return Vec::new() };
        let longest = first.data.len();
        let fits = |shard: &Shard<P>| shard.data.len() <= longest;
        if missing > pieces.len() || !block.iter().flatten().all(|shard| fits(shard)) {
            return Vec::new();
        }
        if block.len() == 1 {
            return vec![(0, first.clone())];
        }
        if parities == 1 {
            let index = block.iter().position(Option::is_none).unwrap_or(0);
            let others = block.iter().flatten().copied().chain([first]);
            return vec![(index, self.exclusive_or(others, longest))];
        }
        self.decode_many(block, parities, (pieces, longest)).unwrap_or_default()
    }

    fn decode_many<P: Payload>(
        &mut self,
        block: &[Option<&Shard<P>>],
        parities: usize,
        (pieces, longest): (&[(u8, Shard<P>)], usize),
    ) -> Result<Vec<(usize, Shard<P>)>, Error> {
        let size = shard_size::<P>(longest);
        if let Some(decoder) = &mut self.decoder {
            decoder.reset(block.len(), parities, size)?;
        } else {
            self.decoder = Some(ReedSolomonDecoder::new(block.len(), parities, size)?);
        }
        let Some(decoder) = &mut self.decoder else { return Ok(Vec::new()) };
        for (index, shard) in block.iter().enumerate() {
            let Some(shard) = shard else { continue };
            clear(&mut self.shard, size);
            shard.fill(&mut self.shard);
            decoder.add_original_shard(index, &self.shard)?;
        }
        for (index, piece) in pieces {
            clear(&mut self.shard, size);
            piece.fill(&mut self.shard);
            decoder.add_recovery_shard(usize::from(*index), &self.shard)?;
        }
        let result = decoder.decode()?;
        let restored = result.restored_original_iter();
        Ok(restored.map(|(index, shard)| (index, Shard::from_shard(shard, longest))).collect())
    }

    fn exclusive_or<'a, P: Payload + 'a>(
        &mut self,
        shards: impl Iterator<Item = &'a Shard<P>>,
        longest: usize,
    ) -> Shard<P> {
        let size = shard_size::<P>(longest);
        clear(&mut self.shard, size);
        let sum = &mut self.shard;
        for shard in shards {
            let bytes = shard.head.iter().chain(shard.data.bytes());
            sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        }
        Shard::from_shard(sum, longest)
    }
}

/// Bytes of a shard whose data have this length.
fn shard_size<P: Payload>(longest: usize) -> usize {
    CODED_HEAD + if P::HAS_BYTES { longest } else { 0 }
}

fn clear(shard: &mut Vec<u8>, size: usize) {
    shard.clear();
    shard.resize(size, 0);
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Length;
    use bytes::Bytes;

    use super::*;

    fn block(count: usize) -> Vec<Shard<Bytes>> {
        let datagram = |index: usize| DatagramFrame {
            class: 3,
            flow: index as u32 * 77,
            data: Bytes::from(
                (0..(index * 37) % 90).map(|byte| (byte * 7 + index) as u8).collect::<Vec<_>>(),
            ),
        };
        (0..count)
            .map(|index| Shard::new(&datagram(index), (index % 2 == 0).then_some(index as u64)))
            .collect()
    }

    /// Loses these datagrams and keeps these pieces of parity; returns the restored datagrams.
    fn mended<P: Payload>(
        block: &[Shard<P>],
        parities: usize,
        (lost, kept): (&[usize], &[usize]),
    ) -> Vec<(usize, Shard<P>)> {
        let mut code = Code::default();
        let parity = code.encode(block, parities);
        let here: Vec<_> = block
            .iter()
            .enumerate()
            .map(|(index, shard)| (!lost.contains(&index)).then_some(shard))
            .collect();
        let pieces: Vec<_> = kept.iter().map(|index| (*index as u8, parity[*index].clone())).collect();
        code.decode(&here, parities, &pieces)
    }

    #[test]
    fn as_many_pieces_as_datagrams_were_lost_restore_all_of_them() {
        for (count, parities, lost, kept) in [
            (16, 4, &[0, 3, 7, 15][..], &[0, 1, 2, 3][..]),
            (16, 4, &[15], &[2]),
            (7, 3, &[2, 6], &[0, 2]),
            (3, 32, &[0, 1, 2], &[5, 30, 31]),
            (32, 1, &[31], &[0]),
            (1, 4, &[0], &[3]),
        ] {
            let block = block(count);
            let found = mended(&block, parities, (lost, kept));
            assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), lost);
            for (index, shard) in found {
                assert_eq!(shard.datagram(3), block[index].datagram(3), "{index} of {count}");
                assert_eq!(shard.datagram(3).unwrap().0.data, block[index].data);
            }
        }
    }

    #[test]
    fn parity_is_as_published() {
        let all: serde_json::Value =
            serde_json::from_str(include_str!("../../../../docs/reference/vectors/wire.json")).unwrap();
        let vectors = all["parity"].as_array().unwrap();
        assert_eq!(vectors.len(), 3);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let pieces = |vector: &serde_json::Value| {
            let block = vector["datagrams"].as_array().unwrap().iter().map(|of| {
                let data = Bytes::from(of["data"].as_str().unwrap().to_owned());
                let datagram = DatagramFrame { class: 0, flow: of["flow"].as_u64().unwrap() as u32, data };
                Shard::new(&datagram, of["place"].as_u64())
            });
            let block: Vec<_> = block.collect();
            let pieces = Code::default().encode(&block, vector["pieces"].as_array().unwrap().len());
            pieces.iter().map(|piece| hex(&piece.head) + " " + &hex(&piece.data)).collect::<Vec<_>>()
        };
        let published = |vector: &serde_json::Value| {
            let pieces = vector["pieces"].as_array().unwrap().iter();
            pieces.map(|piece| piece.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (made, said): (Vec<_>, Vec<_>) =
            vectors.iter().map(|vector| (pieces(vector), published(vector))).unzip();
        assert_eq!(made, said);
    }

    #[test]
    fn too_few_pieces_restore_nothing() {
        assert!(mended(&block(16), 4, (&[0, 1, 2], &[1, 3])).is_empty());
        assert!(mended(&block(16), 4, (&[0], &[])).is_empty());
    }

    #[test]
    fn lengths_are_restored_where_there_are_no_bytes() {
        let datagram = |len: usize| DatagramFrame { class: 0, flow: len as u32 + 1, data: Length(len) };
        let block: Vec<_> = [700, 1200, 3].iter().map(|len| Shard::new(&datagram(*len), None)).collect();
        for parities in [1, 2] {
            let found = mended(&block, parities, (&[0], &[parities - 1]));
            assert_eq!(found[0].1.datagram(0), Some((datagram(700), None)));
        }
    }

    #[test]
    fn parity_shorter_than_a_datagram_or_with_a_false_length_is_useless() {
        let block = block(3);
        let mut code = Code::default();
        let short = Shard { head: [0xff; CODED_HEAD], data: Bytes::from_static(b"ab") };
        let here = [None, Some(&block[1]), Some(&block[2])];
        assert!(code.decode(&here, 1, &[(0, short.clone())]).is_empty());
        assert_eq!(code.decode(&[None], 1, &[(0, short)])[0].1.datagram(0), None);
    }
}
