//! The sender's side of redundant and protected datagrams: numbers, blocks, and the copies and parity that wait for a
//! path.

use std::collections::{BTreeMap, VecDeque};

use anabranch_wire::{
    DatagramFrame, DatagramNumber, Frame, MAX_BLOCK, MarkedFrame, PACKET_OVERHEAD, ParityFrame, PathId,
    Payload, Span, Time, order_lane,
};
use smallvec::SmallVec;

use super::code::{Code, Shard};
use super::loss::{FLOOR, Losses, parity_for};
use super::{DatagramMode, Protection};
use crate::schedule::PathView;

/// Most copies and pieces of parity that wait at the same time; the oldest make room.
const MAX_SPARES: usize = 256;
/// Paths whose loss is remembered before those that are gone are forgotten.
const MANY_PATHS: usize = 64;
/// Longest wait of a copy or a piece of parity; later it is useless.
const SPARE_LIFE: Span = Span::from_millis(250);

/// How many datagrams and pieces of parity of a block each path carried.
type Carried = SmallVec<[(PathId, u32); 4]>;

/// A path on which a datagram may be sent. Its totals are packets sent, and packets lost for good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carrier {
    pub path: PathId,
    pub totals: (u64, u64),
}

/// The sender's state of redundant and protected datagrams.
pub(crate) struct Sending<P> {
    protection: Protection,
    classes: BTreeMap<u8, Class<P>>,
    spares: VecDeque<Spare<P>>,
    losses: Losses,
    code: Code,
    /// The classes that the peer wants in order, one bit each, and the next position of each of their lanes.
    ordered: u16,
    places: BTreeMap<(u8, u8), u64>,
}

struct Class<P> {
    next: u64,
    block: Option<Block<P>>,
}

impl<P> Default for Class<P> {
    fn default() -> Self {
        Self { next: 0, block: None }
    }
}

/// An open block.
struct Block<P> {
    first: u64,
    opened_at: Time,
    shards: Vec<Shard<P>>,
    carried: Carried,
}

/// A waiting copy or piece of parity.
struct Spare<P> {
    frame: Frame<P>,
    since: Time,
    wants: Wants,
}

/// Which waiting spares may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spares {
    /// Only parity.
    Parity,
    /// Copies, too.
    All,
}

enum Wants {
    /// A copy for this path.
    Path(PathId),
    /// Parity, for a path that carried little of its block.
    LeastUsed(Carried),
}

impl<P: Payload> Sending<P> {
    /// Takes the configured block size, limited by the peer's, and the classes in which the peer wants order.
    pub(crate) fn new(protection: Protection, (largest, ordered): (u8, u16)) -> Self {
        let block = protection.block.clamp(1, largest.clamp(1, MAX_BLOCK));
        Self {
            protection: Protection { block, ..protection },
            classes: BTreeMap::new(),
            spares: VecDeque::new(),
            losses: Losses::default(),
            code: Code::default(),
            ordered,
            places: BTreeMap::new(),
        }
    }

    /// The frame in which a datagram is sent on this path now.
    pub(crate) fn mark(
        &mut self,
        mode: DatagramMode,
        carrier: Carrier,
        datagram: DatagramFrame<P>,
    ) -> Frame<P> {
        let class = datagram.class;
        let place = self.place(&datagram);
        let is_coded = mode == DatagramMode::Protected && self.joins_block(class, carrier);
        if !is_coded && mode != DatagramMode::Redundant {
            return match place {
                None => Frame::Datagram(datagram),
                place => Frame::Marked(MarkedFrame { datagram, number: None, place }),
            };
        }
        let value = self.classes.entry(class).or_default().next;
        let number = Some(DatagramNumber { value, is_coded });
        Frame::Marked(MarkedFrame { datagram, number, place })
    }

    /// The position of a datagram in its lane, if the peer wants it.
    fn place(&self, datagram: &DatagramFrame<P>) -> Option<u64> {
        let lane = (datagram.class, order_lane(datagram.flow));
        let next = || self.places.get(&lane).copied().unwrap_or(0);
        (self.ordered >> datagram.class.min(15) & 1 == 1).then(next)
    }

    /// Whether a protected datagram on this path joins a block.
    fn joins_block(&mut self, class: u8, carrier: Carrier) -> bool {
        let share = self.losses.update(carrier.path, carrier.totals);
        let is_open = self.classes.get(&class).is_some_and(|class| class.block.is_some());
        is_open || share >= FLOOR || self.protection.outlive_path
    }

    /// Records that a marked datagram was sent on `path`. `others` are the other paths that carry data.
    pub(crate) fn on_sent(
        &mut self,
        now: Time,
        path: PathId,
        frame: &MarkedFrame<P>,
        others: impl Iterator<Item = PathId>,
    ) {
        let class = frame.datagram.class;
        if let Some(place) = frame.place {
            self.places.insert((class, order_lane(frame.datagram.flow)), place + 1);
        }
        let Some(number) = frame.number else { return };
        let known = self.classes.entry(class).or_default();
        known.next = number.value + 1;
        if !number.is_coded {
            // The numbers of a block are consecutive.
            self.close(now, class);
            for other in others {
                let frame = Frame::Marked(frame.clone());
                self.wait(Spare { frame, since: now, wants: Wants::Path(other) });
            }
            return;
        }
        let new =
            || Block { first: number.value, opened_at: now, shards: Vec::new(), carried: Carried::new() };
        let block = known.block.get_or_insert_with(new);
        block.shards.push(Shard::new(&frame.datagram, frame.place));
        count(&mut block.carried, path);
        if block.shards.len() >= usize::from(self.protection.block) {
            self.close(now, class);
        }
    }

    /// Closes a block: queues as much parity as its paths' loss requires.
    fn close(&mut self, now: Time, class: u8) {
        let Some(block) = self.classes.get_mut(&class).and_then(|known| known.block.take()) else { return };
        let datagrams = block.shards.len();
        let lost: f64 = block.carried.iter().map(|(path, n)| f64::from(*n) * self.losses.share(*path)).sum();
        let most = ((datagrams as f64 * self.protection.most.clamp(0.0, 1.0)) as usize).max(1);
        let mut parities = parity_for(datagrams, lost / datagrams as f64, most);
        if self.protection.outlive_path {
            let busiest = block.carried.iter().map(|(_, n)| *n as usize).max().unwrap_or(0);
            parities = parities.max(busiest).min(most);
        }
        if parities == 0 {
            return;
        }
        for (index, piece) in self.code.encode(&block.shards, parities).into_iter().enumerate() {
            let frame = Frame::Parity(ParityFrame {
                class,
                first: block.first,
                count: datagrams as u8,
                parities: parities as u8,
                index: index as u8,
                head: piece.head,
                data: piece.data,
            });
            self.wait(Spare { frame, since: now, wants: Wants::LeastUsed(block.carried.clone()) });
        }
    }

    fn wait(&mut self, spare: Spare<P>) {
        if self.spares.len() >= MAX_SPARES {
            self.spares.pop_front();
        }
        self.spares.push_back(spare);
    }

    /// True while copies or parity wait.
    pub(crate) fn has_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// The first copy or piece of parity that can be sent now, and its path.
    pub(crate) fn next_spare(
        &mut self,
        now: Time,
        views: &[PathView],
        which: Spares,
    ) -> Option<(PathId, Frame<P>)> {
        while self.spares.front().is_some_and(|spare| now.since(spare.since) >= SPARE_LIFE) {
            self.spares.pop_front();
        }
        let open = || views.iter().filter(|view| view.budget > 0);
        let path_for = |spare: &Spare<P>| match &spare.wants {
            Wants::Path(_) if which == Spares::Parity => None,
            Wants::Path(path) => open().find(|view| view.id == *path).map(|view| view.id),
            Wants::LeastUsed(carried) => {
                let size = (PACKET_OVERHEAD + spare.frame.encoded_len_last()) as u64;
                let wide = open().filter(|view| view.mtu >= size);
                let best = wide.min_by_key(|view| (carried_by(carried, view.id), view.rtt, view.id));
                best.map(|view| view.id)
            }
        };
        let (index, path) =
            self.spares.iter().enumerate().find_map(|(index, spare)| Some((index, path_for(spare)?)))?;
        let spare = self.spares.remove(index)?;
        if let Frame::Parity(sent) = &spare.frame {
            for other in &mut self.spares {
                if let (Frame::Parity(piece), Wants::LeastUsed(carried)) = (&other.frame, &mut other.wants)
                    && (piece.class, piece.first) == (sent.class, sent.first)
                {
                    count(carried, path);
                }
            }
        }
        Some((path, spare.frame))
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) fn next_timeout(&self) -> Time {
        let opened = self.classes.values().filter_map(|class| Some(class.block.as_ref()?.opened_at));
        opened.min().map_or(Time::NEVER, |at| at + self.protection.patience)
    }

    /// Closes the blocks that are due. `totals` lists all current paths.
    pub(crate) fn handle_timeout(&mut self, now: Time, totals: impl Iterator<Item = Carrier> + Clone) {
        let has_due = self.next_timeout() <= now;
        if has_due || self.losses.count() > MANY_PATHS {
            self.losses.retain(|path| totals.clone().any(|carrier| carrier.path == path));
        }
        if !has_due {
            return;
        }
        for carrier in totals {
            self.losses.update(carrier.path, carrier.totals);
        }
        let patience = self.protection.patience;
        let is_due =
            |class: &Class<P>| class.block.as_ref().is_some_and(|block| block.opened_at + patience <= now);
        let due: SmallVec<[u8; 4]> =
            self.classes.iter().filter(|(_, class)| is_due(class)).map(|(class, _)| *class).collect();
        due.into_iter().for_each(|class| self.close(now, class));
    }
}

fn carried_by(carried: &Carried, path: PathId) -> u32 {
    carried.iter().find(|(known, _)| *known == path).map_or(0, |(_, count)| *count)
}

fn count(carried: &mut Carried, path: PathId) {
    match carried.iter_mut().find(|(known, _)| *known == path) {
        Some((_, count)) => *count += 1,
        None => carried.push((path, 1)),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Length;

    use super::*;
    use crate::schedule::tests_support::view;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn sending(protection: Protection) -> Sending<Length> {
        Sending::new(protection, (32, 1 << 4))
    }

    fn carrier(path: u32, lost: u64) -> Carrier {
        Carrier { path: PathId(path), totals: (1000, lost) }
    }

    /// Sends a protected datagram on a path that lost `lost` of its thousand packets; returns its number, if it has one.
    fn send(sending: &mut Sending<Length>, now: Time, (path, lost): (u32, u64)) -> Option<u64> {
        let datagram = DatagramFrame { class: 3, flow: 0, data: Length(1000) };
        match sending.mark(DatagramMode::Protected, carrier(path, lost), datagram) {
            Frame::Marked(frame) => {
                sending.on_sent(now, PathId(path), &frame, std::iter::empty());
                frame.number.map(|number| number.value)
            }
            _ => None,
        }
    }

    /// The paths on which the waiting parity is sent, one after the other.
    fn spares(sending: &mut Sending<Length>, now: Time, paths: u32) -> Vec<u32> {
        let views: Vec<_> = (0..paths).map(|path| view(path, 10_000)).collect();
        std::iter::from_fn(|| sending.next_spare(now, &views, Spares::All)).map(|(path, _)| path.0).collect()
    }

    #[test]
    fn without_loss_protected_datagrams_are_like_any_other() {
        let mut sending = sending(Protection::default());
        assert!((0..40).all(|_| send(&mut sending, at(0), (0, 0)).is_none()));
        assert_eq!((sending.next_timeout(), sending.has_spares()), (Time::NEVER, false));
    }

    #[test]
    fn a_full_block_is_followed_by_parity_on_paths_that_carried_little_of_it() {
        let mut sending = sending(Protection::default());
        let numbers: Vec<_> = (0..15).map(|_| send(&mut sending, at(0), (0, 50))).collect();
        assert_eq!(numbers, (0..15).map(Some).collect::<Vec<_>>());
        assert!(!sending.has_spares());
        assert_eq!(send(&mut sending, at(1), (1, 50)), Some(15));
        assert_eq!(spares(&mut sending, at(1), 3), [2, 1, 2, 1], "5 % require four pieces");
        assert_eq!(send(&mut sending, at(2), (0, 50)), Some(16), "another block");
    }

    #[test]
    fn parity_takes_no_path_whose_packets_are_too_small_for_it() {
        let mut sending = sending(Protection::default());
        for _ in 0..16 {
            send(&mut sending, at(0), (0, 50));
        }
        let mut views = [view(0, 10_000), view(1, 10_000)];
        // It carried nothing of the block.
        views[1].mtu = 1000;
        let paths: Vec<PathId> = std::iter::from_fn(|| sending.next_spare(at(0), &views, Spares::All))
            .map(|(path, _)| path)
            .collect();
        assert_eq!(paths, [PathId(0); 4]);
    }

    #[test]
    fn a_block_that_does_not_fill_is_closed_in_time() {
        let mut sending = sending(Protection::default());
        send(&mut sending, at(0), (0, 50));
        send(&mut sending, at(9), (0, 50));
        assert_eq!(sending.next_timeout(), at(20));
        sending.handle_timeout(at(19), [carrier(0, 50)].into_iter());
        assert!(!sending.has_spares());
        sending.handle_timeout(at(20), [carrier(0, 50)].into_iter());
        assert_eq!((spares(&mut sending, at(20), 2), sending.next_timeout()), (vec![1], Time::NEVER));
    }

    #[test]
    fn parity_to_outlive_a_path_covers_its_share_of_the_block_without_any_loss() {
        let mut sending = sending(Protection { outlive_path: true, ..Protection::default() });
        for index in 0..16 {
            send(&mut sending, at(0), (index % 4 % 3, 0));
        }
        // Path 0 carried half of the block, which is the most parity allowed.
        let paths = spares(&mut sending, at(0), 3);
        assert_eq!(paths, [1, 2, 1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn copies_wait_for_their_own_path_and_not_for_long() {
        let mut sending = sending(Protection::default());
        let datagram = DatagramFrame { class: 1, flow: 0, data: Length(10) };
        let Frame::Marked(frame) = sending.mark(DatagramMode::Redundant, carrier(0, 0), datagram) else {
            panic!("no number");
        };
        sending.on_sent(at(0), PathId(0), &frame, [PathId(1), PathId(2)].into_iter());
        assert_eq!(spares(&mut sending, at(10), 2), [1]);
        assert!(spares(&mut sending, at(249), 2).is_empty() && sending.has_spares());
        assert!(spares(&mut sending, at(250), 3).is_empty() && !sending.has_spares());
    }

    #[test]
    fn datagrams_of_ordered_classes_have_positions_by_lane_in_every_mode() {
        let mut sending = sending(Protection::default());
        let mut place = |class, flow, mode| {
            let datagram = DatagramFrame { class, flow, data: Length(10) };
            let Frame::Marked(frame) = sending.mark(mode, carrier(0, 0), datagram) else { return None };
            sending.on_sent(at(0), PathId(0), &frame, std::iter::empty());
            frame.place
        };
        let modes = [DatagramMode::Once, DatagramMode::Redundant, DatagramMode::Protected];
        assert_eq!(modes.map(|mode| place(4, 9, mode)), [Some(0), Some(1), Some(2)]);
        assert_eq!((place(4, 8, modes[0]), place(4, 9 + 64, modes[0])), (Some(0), Some(3)));
        assert_eq!(modes.map(|mode| place(3, 9, mode)), [None; 3]);
    }

    #[test]
    fn the_spares_that_wait_are_bounded() {
        let mut sending = sending(Protection { most: 1.0, outlive_path: true, ..Protection::default() });
        assert!((0..10_000).all(|_| send(&mut sending, at(0), (0, 0)).is_some()));
        assert_eq!(sending.spares.len(), MAX_SPARES);
    }
}
