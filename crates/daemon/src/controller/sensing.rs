//! Which relays measure each other, and the links that they report. Each controller has its own view.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anabranch_net::{PublicKey, Span, Time};
use anabranch_overlay::controller::Directory;
use anabranch_overlay::controller::message::{FiguresTold, GrantedRelay, Neighbours};
use anabranch_overlay::sense::{Changes, LinkMap, Mesh};

const NEIGHBOURS: usize = 8;
/// A relay that is silent for this long is no longer measured; a restart takes less.
const GONE: Span = Span::from_secs(30);
/// Most nodes in one answer.
const MOST: usize = 16;
/// How long a requested link is measured. Then the limits of requested links: per relay (its budget has room for
/// these), per client, and in total.
const WANTED_FOR: Span = Span::from_secs(60);
const MOST_WANTED_OF_ONE: usize = 4;
const MOST_WANTED_BY_ONE: usize = 128;
const MOST_WANTED: usize = 1_024;

/// See the module's documentation.
pub(super) struct Senses {
    mesh: Mesh,
    map: LinkMap,
    /// Requested links, from and to: until when, and the client that asked.
    wanted: BTreeMap<(PublicKey, PublicKey), (Time, PublicKey)>,
}

impl Senses {
    pub(super) fn new(seed: u64) -> Self {
        Self { mesh: Mesh::new(NEIGHBOURS, seed), map: LinkMap::default(), wanted: BTreeMap::new() }
    }

    /// Handles a relay's heartbeat and changes; returns the known version of its links.
    pub(super) fn hear(&mut self, now: Time, relay: &PublicKey, changes: Option<&Changes>) -> u64 {
        self.map.join(*relay);
        self.mesh.join(*relay);
        self.map.hear(now, relay);
        match changes {
            Some(changes) => self.map.take(now, relay, changes),
            None => self.map.known(relay),
        }
    }

    /// Stops the measurement of relays that are silent for long.
    pub(super) fn forget_silent(&mut self, now: Time, directory: &Directory) {
        let is_gone = |relay: &&PublicKey| {
            let heard = directory.relay(relay).and_then(|view| view.heard);
            heard.is_none_or(|(at, ..)| now.since(at) >= GONE)
        };
        let gone: Vec<PublicKey> = self.mesh.nodes().filter(is_gone).copied().collect();
        for relay in gone {
            self.mesh.leave(&relay);
        }
    }

    /// The relays that a relay should measure, and those that measure it.
    pub(super) fn neighbours(&self, now: Time, relay: &PublicKey, directory: &Directory) -> Neighbours {
        let reach = |node: PublicKey| {
            let offer = directory.relay(&node)?.record.offer.as_ref()?;
            Some(GrantedRelay { node, addresses: offer.addresses.clone() })
        };
        let wanted = || self.wanted.iter().filter(|(_, (until, _))| now < *until).map(|(ends, _)| *ends);
        let of_this = wanted().filter(|(from, _)| from == relay).map(|(_, to)| to);
        let by_others = wanted().filter(|(_, to)| to == relay).map(|(from, _)| from);
        Neighbours {
            measure: self.mesh.measures(relay).into_iter().filter_map(reach).collect(),
            measured_by: self.mesh.measured_by(relay).into_iter().chain(by_others).collect(),
            wanted: of_this.filter_map(reach).collect(),
        }
    }

    /// Requests the measurement of links for a client, within the budgets of both ends.
    fn want(&mut self, now: Time, asker: &PublicKey, pairs: impl Iterator<Item = (PublicKey, PublicKey)>) {
        self.wanted.retain(|_, (until, _)| now < *until);
        for (from, to) in pairs {
            let count = |is_such: &dyn Fn(&PublicKey, &PublicKey, &PublicKey) -> bool| {
                self.wanted.iter().filter(|((from, to), (_, by))| is_such(from, to, by)).count()
            };
            let has_room = (from == *asker || count(&|other, _, _| *other == from) < MOST_WANTED_OF_ONE)
                && count(&|_, other, _| *other == to) < MOST_WANTED_OF_ONE
                && count(&|_, _, by| by == asker) < MOST_WANTED_BY_ONE
                && self.wanted.len() < MOST_WANTED;
            if has_room || self.wanted.contains_key(&(from, to)) {
                self.wanted.insert((from, to), (now + WANTED_FOR, *asker));
            }
        }
    }

    /// Number of links that a relay measures, and how many of them are down.
    pub(super) fn links(&self, relay: &PublicKey) -> [usize; 2] {
        let node = self.map.find(relay).and_then(|at| self.map.node(at));
        node.map_or([0; 2], |node| node.links)
    }

    /// Figures between these relays, and to the relay at an address, if there is one. If `asker` is given, links that are not
    /// measured yet are measured for the next minute, those from the asker too.
    pub(super) fn figures(
        &mut self,
        now: Time,
        (asker, relays, to): (Option<&PublicKey>, &[PublicKey], Option<IpAddr>),
        directory: &Directory,
    ) -> (Vec<FiguresTold>, Vec<PublicKey>) {
        let is_there = |address: IpAddr| {
            let mut known =
                directory.relays().filter_map(|(key, view)| Some((key, view.record.offer.as_ref()?)));
            known.find(|(_, offer)| offer.addresses.iter().any(|at| at.ip() == address)).map(|(key, _)| *key)
        };
        let end = to.and_then(is_there);
        let mut nodes: Vec<PublicKey> = relays.iter().take(MOST).chain(&end).copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let known: Vec<(usize, PublicKey)> =
            nodes.iter().filter_map(|node| Some((self.map.find(node)?, *node))).collect();
        let ends = || known.iter().map(|(_, node)| *node);
        if let Some(asker) = asker {
            let begins = std::iter::once(*asker).chain(ends());
            let pairs: Vec<_> = begins.flat_map(|from| ends().map(move |to| (from, to))).collect();
            self.want(now, asker, pairs.into_iter().filter(|(from, to)| from != to));
        }
        let mut told = Vec::new();
        for (a, from) in &known {
            for (b, to) in known.iter().filter(|(b, _)| b != a) {
                let figures = self.map.figures(now, *a, *b);
                told.extend(figures.map(|figures| FiguresTold::new((*from, *to), &figures)));
            }
        }
        (told, end.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use anabranch_overlay::controller::{Location, Offer, RelayRecord};

    use super::*;

    fn key(index: u8) -> PublicKey {
        PublicKey::from_bytes([index; 32])
    }

    /// Relays that are all alive at time zero.
    fn relays(count: u8) -> (Senses, Directory) {
        let (mut senses, mut directory) = (Senses::new(1), Directory::default());
        for index in 1..=count {
            let addresses = vec![([192, 0, 2, index], 4600).into()];
            let offer = Offer { place: Location::default(), addresses, pids: 1, rate: None };
            let mut record = RelayRecord::default();
            record.offer = Some(offer);
            directory.note(key(index), record);
            senses.hear(Time::ZERO, &key(index), None);
        }
        (senses, directory)
    }

    #[test]
    fn requested_links_are_measured_for_a_minute_by_relays_and_by_the_asker() {
        let (mut senses, directory) = relays(40);
        let before = senses.neighbours(Time::ZERO, &key(1), &directory);
        let far = (2..=40).map(key).find(|node| !before.measure.iter().any(|relay| relay.node == *node));
        let (far, asker) = (far.expect("eight of them are measured"), key(99));
        senses.figures(Time::ZERO, (None, &[key(1), far], None), &directory);
        assert_eq!(senses.neighbours(Time::ZERO, &key(1), &directory), before, "asked for what is known");
        senses.figures(Time::ZERO, (Some(&asker), &[key(1), far], None), &directory);
        let soon = Time::ZERO + Span::from_secs(59);
        let wanted = |senses: &Senses, now| senses.neighbours(now, &key(1), &directory).wanted;
        assert_eq!(wanted(&senses, soon).iter().map(|relay| relay.node).collect::<Vec<_>>(), [far]);
        let by = senses.neighbours(soon, &far, &directory).measured_by;
        assert!(by.contains(&key(1)) && by.contains(&asker));
        assert_eq!(wanted(&senses, Time::ZERO + Span::from_secs(61)), []);
    }

    #[test]
    fn however_much_is_asked_for_a_relay_measures_a_bounded_number() {
        let (mut senses, directory) = relays(60);
        for first in 1..=44 {
            let nodes: Vec<_> = (first..first + 16).map(key).collect();
            senses.figures(Time::ZERO, (Some(&key(99)), &nodes, None), &directory);
        }
        let all = || (1..=60).map(|index| senses.neighbours(Time::ZERO, &key(index), &directory));
        assert_eq!(all().map(|told| told.wanted.len()).max(), Some(MOST_WANTED_OF_ONE));
        let by = all().map(|told| told.measured_by.len()).max();
        assert!(by.is_some_and(|by| by <= NEIGHBOURS + MOST_WANTED_OF_ONE), "{by:?}");
        let links: usize = all().map(|told| told.wanted.len()).sum();
        assert!(links <= MOST_WANTED_BY_ONE, "{links} for one who asks");
    }
}
