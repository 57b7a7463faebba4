//! The receiver's blocks: coded datagrams and parity are kept until nothing is missing, and lost datagrams are restored.
//!
//! A coded datagram is delivered at once, and a copy is kept for at least [`HOLD`] and less than twice as long. Parity is
//! kept as long, or until there are as many pieces as missing datagrams; these are then restored. No peer can exceed the
//! memory limit. The memory comes from the endpoint's budget, and so do wide windows of numbers. Restoring takes a fifth
//! of a millisecond, far more than receiving, so each time takes a [turn](super::turns).

use std::collections::{BTreeMap, VecDeque};

use anabranch_wire::{DatagramFrame, MarkedFrame, ParityFrame, Payload, Span, Time};
use smallvec::{SmallVec, smallvec};

use super::code::{Code, Shard};
use super::seen::{Seen, WIDE_COST};
use super::turns::Turns;
use crate::stream::{MemoryBudget, Reservation};

/// How long datagrams and parity are kept.
const HOLD: Span = Span::from_secs(1);
/// Most datagrams kept of a class; the lowest numbers make room.
const MAX_KEPT: usize = 1024;
/// Most blocks of a class that have parity and miss datagrams; the oldest make room.
const MAX_GATHERED: usize = 32;
/// Memory of a datagram or a piece of parity in addition to its bytes.
const COST: u64 = 96;
/// Steps in which bytes are reserved from the budget.
const STEP: u64 = 16 << 10;

/// Datagrams to deliver, each with its position in its lane.
pub(super) type Delivered<P> = SmallVec<[(DatagramFrame<P>, Option<u64>); 1]>;

/// The blocks of all classes.
pub(crate) struct Mending<P> {
    classes: BTreeMap<u8, Class<P>>,
    code: Code,
    /// Bytes of copies, parity and wide windows.
    bytes: u64,
    reservation: Reservation,
    turns: Turns,
    /// When what is too old is dropped; `None` while nothing is kept. Arrivals do not move it: a peer that goes on
    /// sending a little would have everything kept.
    sweep_at: Option<Time>,
}

struct Class<P> {
    seen: Seen,
    /// The last arrival while the window was wide.
    last_wide: Time,
    /// Coded datagrams by number.
    kept: BTreeMap<u64, (Time, Shard<P>)>,
    gathered: VecDeque<Gathered<P>>,
}

/// A block with some of its parity.
struct Gathered<P> {
    first: u64,
    count: u8,
    parities: u8,
    since: Time,
    pieces: Vec<(u8, Shard<P>)>,
}

impl<P> Gathered<P> {
    fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + u64::from(self.count)
    }
}

impl<P: Payload> Mending<P> {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        Self {
            classes: BTreeMap::new(),
            code: Code::default(),
            bytes: 0,
            turns: Turns::new(budget.clone()),
            reservation: Reservation::new(budget),
            sweep_at: None,
        }
    }

    /// Handles a marked datagram. Returns the datagram itself first, then restored ones; nothing if it was received before.
    pub(crate) fn on_datagram(&mut self, now: Time, frame: MarkedFrame<P>) -> Delivered<P> {
        let MarkedFrame { datagram, number, place } = frame;
        let Some(number) = number else { return smallvec![(datagram, place)] };
        let class = datagram.class;
        self.widen_window(now, class, number.value);
        if !self.class(class).seen.insert(number.value) {
            return Delivered::new();
        }
        if !number.is_coded {
            return smallvec![(datagram, place)];
        }
        let shard = Shard::new(&datagram, place);
        let shard = Shard { data: P::copied(shard.data.bytes(), shard.data.len()), ..shard };
        self.keep(now, class, number.value, shard);
        let mut delivered = smallvec![(datagram, place)];
        let block =
            self.class(class).gathered.iter().position(|block| block.numbers().contains(&number.value));
        if let Some(index) = block {
            self.mend(now, class, index, &mut delivered);
        }
        delivered
    }

    /// Handles a piece of parity; returns the datagrams that it restores.
    pub(crate) fn on_parity(&mut self, now: Time, frame: ParityFrame<P>) -> Delivered<P> {
        let ParityFrame { class, first, count, parities, index, head, data } = frame;
        let known = self.class(class);
        let mut delivered = Delivered::new();
        if (first..first + u64::from(count)).all(|number| known.seen.contains(number)) {
            return delivered;
        }
        let known_block = known.gathered.iter().position(|block| block.first == first);
        if let Some(block_index) = known_block {
            let block = &known.gathered[block_index];
            let same_size = block.pieces.first().is_none_or(|(_, piece)| piece.data.len() == data.len());
            let is_new = block.pieces.iter().all(|(known, _)| *known != index);
            if (block.count, block.parities) != (count, parities) || !same_size || !is_new {
                return delivered;
            }
        }
        if !self.reserve(data.len()) {
            return delivered;
        }
        let piece = (index, Shard { head, data: P::copied(data.bytes(), data.len()) });
        let block = if let Some(block) = known_block {
            self.class(class).gathered[block].pieces.push(piece);
            block
        } else {
            self.gather(class, Gathered { first, count, parities, since: now, pieces: vec![piece] })
        };
        self.sweep_at.get_or_insert(now + HOLD);
        self.mend(now, class, block, &mut delivered);
        delivered
    }

    /// Starts to gather parity for a block; returns its index.
    fn gather(&mut self, class: u8, block: Gathered<P>) -> usize {
        while self.class(class).gathered.len() >= MAX_GATHERED {
            self.drop_gathered(class, 0);
        }
        let gathered = &mut self.class(class).gathered;
        gathered.push_back(block);
        gathered.len() - 1
    }

    /// Widens the window of a class when its numbers require it and there is memory; otherwise it stays narrow.
    fn widen_window(&mut self, now: Time, class: u8, number: u64) {
        if self.class(class).seen.wants_more(number) && self.reservation.reserve_all(WIDE_COST) {
            self.bytes += WIDE_COST;
            self.class(class).seen.widen();
        }
        let known = self.class(class);
        if known.seen.is_wide() {
            known.last_wide = now;
            self.sweep_at.get_or_insert(now + HOLD);
        }
    }

    fn class(&mut self, class: u8) -> &mut Class<P> {
        let new = || Class {
            seen: Seen::default(),
            last_wide: Time::ZERO,
            kept: BTreeMap::new(),
            gathered: VecDeque::new(),
        };
        self.classes.entry(class).or_insert_with(new)
    }

    /// Reserves memory for `len` bytes; false if the budget has no room.
    fn reserve(&mut self, len: usize) -> bool {
        let cost = cost(len);
        if self.bytes + cost > self.reservation.held() {
            self.reservation.reserve_more(cost.max(STEP));
        }
        let fits = self.bytes + cost <= self.reservation.held();
        self.bytes += if fits { cost } else { 0 };
        fits
    }

    fn keep(&mut self, now: Time, class: u8, number: u64, shard: Shard<P>) {
        self.sweep_at.get_or_insert(now + HOLD);
        let mut freed = 0;
        let known = self.class(class);
        let is_old = |came: Time| now.since(came) >= HOLD;
        while known.kept.first_key_value().is_some_and(|(_, (came, _))| is_old(*came))
            || known.kept.len() >= MAX_KEPT
        {
            freed += known.kept.pop_first().map_or(0, |(_, (_, shard))| cost(shard.data.len()));
        }
        self.bytes -= freed;
        while self.class(class).gathered.front().is_some_and(|block| is_old(block.since)) {
            self.drop_gathered(class, 0);
        }
        if self.reserve(shard.data.len()) {
            self.class(class).kept.insert(number, (now, shard));
        }
    }

    fn drop_gathered(&mut self, class: u8, index: usize) {
        let block = self.class(class).gathered.remove(index);
        let pieces = block.into_iter().flat_map(|block| block.pieces);
        self.bytes -= pieces.map(|(_, piece)| cost(piece.data.len())).sum::<u64>();
    }

    /// Restores the missing datagrams of a block if enough of it is here; drops the block when nothing is missing.
    fn mend(&mut self, now: Time, class: u8, index: usize, delivered: &mut Delivered<P>) {
        let Some(known) = self.classes.get_mut(&class) else { return };
        let Some(block) = known.gathered.get(index) else { return };
        let missing = block.numbers().filter(|number| !known.seen.contains(*number)).count();
        if missing > block.pieces.len() {
            return;
        }
        if missing > 0 {
            let here: Vec<_> =
                block.numbers().map(|number| known.kept.get(&number).map(|(_, shard)| shard)).collect();
            if here.iter().filter(|shard| shard.is_none()).count() > block.pieces.len() {
                return;
            }
            if !self.turns.take(now) {
                return;
            }
            let found = self.code.decode(&here, usize::from(block.parities), &block.pieces);
            for (offset, shard) in found {
                let is_new = known.seen.insert(block.first + offset as u64);
                delivered.extend(shard.datagram(class).filter(|_| is_new));
            }
        }
        self.drop_gathered(class, index);
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) fn next_timeout(&self) -> Time {
        self.sweep_at.unwrap_or(Time::NEVER)
    }

    /// Frees what is too old. After a silence, only narrow windows of the latest numbers are left.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.next_timeout() > now {
            return;
        }
        self.bytes -= self.classes.values_mut().map(|class| class.sweep(now)).sum::<u64>();
        self.reservation.give_back(self.reservation.held() - self.bytes);
        self.code = Code::default();
        self.sweep_at = (self.bytes > 0).then(|| now + HOLD);
    }
}

impl<P: Payload> Class<P> {
    /// Drops what is too old; returns its bytes.
    fn sweep(&mut self, now: Time) -> u64 {
        let is_old = |came: Time| now.since(came) >= HOLD;
        let mut freed = 0;
        self.kept.retain(|_, (came, shard)| {
            freed += if is_old(*came) { cost(shard.data.len()) } else { 0 };
            !is_old(*came)
        });
        self.gathered.retain(|block| {
            let bytes = block.pieces.iter().map(|(_, piece)| cost(piece.data.len())).sum::<u64>();
            freed += if is_old(block.since) { bytes } else { 0 };
            !is_old(block.since)
        });
        // Empty ones may still hold memory.
        if self.kept.is_empty() {
            self.kept = BTreeMap::new();
        }
        if self.gathered.is_empty() {
            self.gathered = VecDeque::new();
        }
        if self.seen.is_wide() && is_old(self.last_wide) {
            self.seen.narrow();
            freed += WIDE_COST;
        }
        freed
    }
}

fn cost(len: usize) -> u64 {
    len as u64 + COST
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{CODED_HEAD, DatagramNumber, MAX_BLOCK};
    use bytes::Bytes;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn mending(budget: u64) -> (Mending<Bytes>, MemoryBudget) {
        let budget = MemoryBudget::new(budget);
        (Mending::new(budget.clone()), budget)
    }

    fn coded(number: u64) -> MarkedFrame<Bytes> {
        let data = Bytes::from(vec![number as u8; 500 + number as usize % 9]);
        let datagram = DatagramFrame { class: 2, flow: 5, data };
        let number = Some(DatagramNumber { value: number, is_coded: true });
        MarkedFrame { datagram, number, place: None }
    }

    fn parity(first: u64, count: u8, parities: u8) -> Vec<ParityFrame<Bytes>> {
        let numbers = first..first + u64::from(count);
        let block: Vec<_> = numbers.map(|number| Shard::new(&coded(number).datagram, None)).collect();
        let pieces = Code::default().encode(&block, usize::from(parities)).into_iter().enumerate();
        pieces
            .map(|(index, piece)| ParityFrame {
                class: 2,
                first,
                count,
                parities,
                index: index as u8,
                head: piece.head,
                data: piece.data,
            })
            .collect()
    }

    fn data(delivered: &Delivered<Bytes>) -> Vec<Bytes> {
        delivered.iter().map(|(datagram, _)| datagram.data.clone()).collect()
    }

    #[test]
    fn missing_datagrams_are_restored_whether_parity_or_datagrams_come_last() {
        let (mut mending, _) = mending(1 << 20);
        let pieces = parity(10, 4, 2);
        assert!(mending.on_parity(at(0), pieces[0].clone()).is_empty());
        assert_eq!(mending.on_datagram(at(0), coded(10)).len(), 1);
        assert_eq!(mending.on_datagram(at(0), coded(13)).len(), 1);
        assert_eq!(
            data(&mending.on_parity(at(0), pieces[1].clone())),
            [11, 12].map(|n| coded(n).datagram.data)
        );
        assert!(mending.on_datagram(at(1), coded(11)).is_empty(), "delivered before");
        // Now in the other order.
        let pieces = parity(14, 4, 2);
        for number in [14, 15] {
            mending.on_datagram(at(0), coded(number));
        }
        assert!(mending.on_parity(at(2), pieces[1].clone()).is_empty());
        assert_eq!(data(&mending.on_datagram(at(2), coded(17))), [17, 16].map(|n| coded(n).datagram.data));
        assert!(mending.class(2).gathered.is_empty());
    }

    #[test]
    fn parity_of_a_complete_block_leaves_nothing_behind() {
        let (mut mending, budget) = mending(1 << 20);
        (0..4).for_each(|number| drop(mending.on_datagram(at(0), coded(number))));
        assert!(parity(0, 4, 3).into_iter().all(|piece| mending.on_parity(at(0), piece).is_empty()));
        assert!(mending.class(2).gathered.is_empty());
        mending.handle_timeout(at(999));
        assert!(budget.left() < 1 << 20);
        mending.handle_timeout(at(1000));
        assert_eq!((budget.left(), mending.next_timeout()), (1 << 20, Time::NEVER));
        assert!(mending.on_datagram(at(1001), coded(3)).is_empty(), "the numbers are still known");
    }

    #[test]
    fn kept_datagrams_are_bounded_by_number_and_by_the_budget() {
        for (budget, most) in [(1 << 30, 1024), (100_000, 160)] {
            let (mut mending, left) = mending(budget);
            for number in 0..20_000 {
                assert_eq!(mending.on_datagram(at(number / 100), coded(number)).len(), 1);
                // Parity for blocks whose datagrams never arrived.
                let mut piece = parity(1 << 40, 16, 1).remove(0);
                piece.first += number * 16;
                mending.on_parity(at(number / 100), piece);
            }
            let class = mending.class(2);
            assert!(class.kept.len() <= most && class.gathered.len() <= 32);
            let kept: u64 = class.kept.values().map(|(_, shard)| cost(shard.data.len())).sum();
            let gathered = class.gathered.iter().flat_map(|block| &block.pieces);
            let pieces: u64 = gathered.map(|(_, piece)| cost(piece.data.len())).sum();
            let window = if class.seen.is_wide() { WIDE_COST } else { 0 };
            assert_eq!(mending.bytes, kept + pieces + window);
            assert!(mending.bytes <= mending.reservation.held() && left.left() < budget);
        }
    }

    #[test]
    fn a_peer_that_goes_on_sending_a_little_has_nothing_kept_for_two_seconds() {
        let (mut mending, budget) = mending(1 << 30);
        let in_class = |class, frame: MarkedFrame<Bytes>| {
            let datagram = DatagramFrame { class, ..frame.datagram.clone() };
            MarkedFrame { datagram, ..frame }
        };
        for number in 1_000..2_000 {
            mending.on_datagram(at(0), coded(number));
            mending.on_datagram(at(0), in_class(3, coded(number)));
        }
        mending.on_parity(at(0), parity(1 << 40, 16, 1).remove(0));
        assert!((1 << 30) - budget.left() > 1_000_000);
        // Each has the lowest number so far, and the other class gets none.
        for step in 0..40 {
            mending.handle_timeout(at(step * 100));
            mending.on_datagram(at(step * 100), coded(999 - step));
        }
        assert!(mending.class(2).kept.len() <= 20 && mending.class(2).gathered.is_empty());
        assert!(mending.class(3).kept.is_empty() && !mending.class(3).seen.is_wide());
        assert!((1 << 30) - budget.left() < 40_000, "{}", budget.left());
    }

    #[test]
    fn without_memory_the_window_stays_narrow_and_nothing_is_kept() {
        let (mut mending, budget) = mending(0);
        for number in 0..1_000 {
            assert_eq!(mending.on_datagram(at(0), coded(number)).len(), 1);
            assert!(mending.on_datagram(at(0), coded(number)).is_empty());
            assert!(mending.on_parity(at(0), parity(5_000 + number * 4, 4, 1).remove(0)).is_empty());
        }
        assert_eq!((mending.bytes, mending.reservation.held(), budget.left()), (0, 0, 0));
        let class = mending.class(2);
        assert!(class.kept.is_empty() && class.gathered.is_empty() && !class.seen.is_wide());
    }

    #[test]
    fn at_rest_the_memory_of_wide_windows_is_returned() {
        let (mut mending, budget) = mending(1 << 20);
        let plain = |value| {
            let number = Some(DatagramNumber { value, is_coded: false });
            MarkedFrame { number, ..coded(value) }
        };
        assert!((0..300).all(|number| mending.on_datagram(at(0), plain(number)).len() == 1));
        assert_eq!((budget.left(), mending.next_timeout()), ((1 << 20) - 2048, at(1_000)));
        mending.handle_timeout(at(1_000));
        assert_eq!((budget.left(), mending.next_timeout()), (1 << 20, Time::NEVER));
        assert!((0..300).all(|number| mending.on_datagram(at(2_000), plain(number)).is_empty()));
        assert!((300..400).all(|number| mending.on_datagram(at(2_000), plain(number)).len() == 1));
    }

    #[test]
    fn a_peer_that_causes_repair_after_repair_gets_a_limited_number_in_a_second() {
        let (mut mending, _) = mending(1 << 30);
        let mut mended = 0;
        for block in 0..5_000_u64 {
            let first = block * 2;
            mending.on_datagram(at(block / 5), coded(first));
            mended += mending.on_parity(at(block / 5), parity(first, 2, 1).remove(0)).len();
        }
        assert!((1_095..=1_105).contains(&mended), "{mended} in a second, including the hundred at once");
        let later = 1_000_000;
        let mut at_once = 0;
        for first in (later..later + 400).step_by(2) {
            mending.on_datagram(at(9_000), coded(first));
            at_once += mending.on_parity(at(9_000), parity(first, 2, 1).remove(0)).len();
        }
        assert_eq!(at_once, 100, "after a rest of any length");
    }

    #[test]
    fn parity_that_contradicts_itself_is_ignored() {
        let (mut mending, _) = mending(1 << 20);
        let pieces = parity(0, 4, 3);
        mending.on_parity(at(0), pieces[0].clone());
        let liars = [
            ParityFrame { count: 5, ..pieces[1].clone() },
            ParityFrame { parities: 4, ..pieces[1].clone() },
            ParityFrame { data: Bytes::from_static(b"1234"), ..pieces[1].clone() },
            pieces[0].clone(),
        ];
        liars.into_iter().for_each(|liar| drop(mending.on_parity(at(0), liar)));
        assert_eq!(mending.class(2).gathered[0].pieces.len(), 1);
        // Parity that claims datagrams longer than itself.
        let liar =
            ParityFrame { head: [0xff; CODED_HEAD], first: 100, count: 1, parities: 1, ..pieces[0].clone() };
        assert!(mending.on_parity(at(0), liar).is_empty());
        assert!(usize::from(MAX_BLOCK) < MAX_KEPT);
    }
}
