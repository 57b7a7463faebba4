//! Who measures whom, and what is known of links: this controller's own memory.

use std::net::IpAddr;

use anabranch_net::{PublicKey, Span, Time};
use anabranch_overlay::controller::Directory;
use anabranch_overlay::controller::message::{FiguresTold, GrantedRelay, Neighbours};
use anabranch_overlay::sense::{Changes, LinkMap, Mesh};

/// Neighbours of each relay.
const NEIGHBOURS: usize = 8;
/// A relay that was silent for so long is measured no more: a restart is over by then.
const GONE: Span = Span::from_secs(30);
/// Most nodes whose figures are told at once.
const MOST: usize = 16;

/// See the module's documentation.
pub(super) struct Senses {
    mesh: Mesh,
    map: LinkMap,
}

impl Senses {
    pub(super) fn new(seed: u64) -> Self {
        Self { mesh: Mesh::new(NEIGHBOURS, seed), map: LinkMap::default() }
    }

    /// A relay said that it is alive, and perhaps what changed; gives up to which version it is known.
    pub(super) fn hear(&mut self, now: Time, relay: &PublicKey, changes: Option<&Changes>) -> u64 {
        self.map.join(*relay);
        self.mesh.join(*relay);
        self.map.hear(now, relay);
        match changes {
            Some(changes) => self.map.take(now, relay, changes),
            None => self.map.known(relay),
        }
    }

    /// Relays that have been silent for long are measured no more.
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

    /// The relays that one should measure, and those that measure it.
    pub(super) fn neighbours(&self, relay: &PublicKey, directory: &Directory) -> Neighbours {
        let reached = self.mesh.measures(relay).into_iter().filter_map(|node| {
            let offer = directory.relay(&node)?.record.offer.as_ref()?;
            Some(GrantedRelay { node, addresses: offer.addresses.clone() })
        });
        Neighbours { measure: reached.collect(), measured_by: self.mesh.measured_by(relay) }
    }

    /// Links that a relay measures, and how many of those are down.
    pub(super) fn links(&self, relay: &PublicKey) -> [usize; 2] {
        let node = self.map.find(relay).and_then(|at| self.map.node(at));
        node.map_or([0; 2], |node| node.links)
    }

    /// Figures from each of some relays to each other one, and to the relay at an address, if there is one.
    pub(super) fn figures(
        &self,
        now: Time,
        (relays, to): (&[PublicKey], Option<IpAddr>),
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
