//! The graph that path selection works on: named nodes and directed links. Methods panic for a node of another graph.

use std::collections::BTreeMap;

use anabranch_wire::{Rate, Span};
use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;

/// A node of a [`Topology`]: host, relay or router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A directed link of a [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Figures of a link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// One-way delay.
    pub latency: Span,
    /// Fraction of packets lost, 0 to 1.
    pub loss: f64,
    /// Its capacity, if known.
    pub capacity: Option<Rate>,
}

/// Nodes and links. Links between the same nodes differ in the interface by which they enter the second one.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(super) graph: DiGraph<String, Link>,
    by_name: BTreeMap<String, NodeId>,
    /// The interfaces by which links enter, where known.
    entries: BTreeMap<LinkId, String>,
}

impl Topology {
    /// The node of this name; added if it is new.
    pub fn node(&mut self, name: &str) -> NodeId {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let id = NodeId(self.graph.add_node(name.to_owned()).index() as u32);
        self.by_name.insert(name.to_owned(), id);
        id
    }

    /// The node of this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Adds a link, or updates an existing one between these nodes.
    pub fn link(&mut self, from: NodeId, to: NodeId, link: Link) -> LinkId {
        LinkId(self.graph.update_edge(index(from), index(to), link).index() as u32)
    }

    /// Adds a link that enters its second node by an interface, or updates it.
    pub fn link_by(&mut self, (from, to): (NodeId, NodeId), entry: &str, link: Link) -> LinkId {
        if let Some(known) = self.by_entry((from, to), entry) {
            self.graph[EdgeIndex::new(known.0 as usize)] = link;
            return known;
        }
        let new = LinkId(self.graph.add_edge(index(from), index(to), link).index() as u32);
        self.entries.insert(new, entry.to_owned());
        new
    }

    /// The link that enters its second node by this interface.
    pub fn by_entry(&self, (from, to): (NodeId, NodeId), entry: &str) -> Option<LinkId> {
        self.parallel(from, to).find(|link| self.entries.get(link).is_some_and(|known| known == entry))
    }

    /// All links between two nodes, in this direction.
    fn parallel(&self, from: NodeId, to: NodeId) -> impl Iterator<Item = LinkId> {
        self.graph.edges_connecting(index(from), index(to)).map(|edge| LinkId(edge.id().index() as u32))
    }

    /// Adds the same link in both directions.
    pub fn link_both(&mut self, a: NodeId, b: NodeId, link: Link) -> [LinkId; 2] {
        [self.link(a, b, link), self.link(b, a, link)]
    }

    /// The link between two nodes, in this direction.
    pub fn between(&self, from: NodeId, to: NodeId) -> Option<LinkId> {
        self.graph.find_edge(index(from), index(to)).map(|edge| LinkId(edge.index() as u32))
    }

    /// The figures of a link.
    pub fn get(&self, link: LinkId) -> Option<&Link> {
        self.graph.edge_weight(EdgeIndex::new(link.0 as usize))
    }

    /// The ends of a link.
    pub fn ends(&self, link: LinkId) -> Option<(NodeId, NodeId)> {
        let (from, to) = self.graph.edge_endpoints(EdgeIndex::new(link.0 as usize))?;
        Some((NodeId(from.index() as u32), NodeId(to.index() as u32)))
    }

    /// A node's name; empty for a node of another topology.
    pub fn name(&self, node: NodeId) -> &str {
        self.graph.node_weight(index(node)).map_or("", String::as_str)
    }

    /// The interface by which a link enters its second node, if that distinguishes it from another link.
    pub fn entry(&self, link: LinkId) -> Option<&str> {
        let (from, to) = self.ends(link)?;
        let is_one_of_several = self.parallel(from, to).nth(1).is_some();
        self.entries.get(&link).filter(|_| is_one_of_several).map(String::as_str)
    }

    /// The node that a link enters, for people: `b`, or `b by 192.0.2.6` if several links lead there.
    pub fn stop(&self, link: LinkId) -> String {
        let to = self.ends(link).map_or("", |(_, to)| self.name(to));
        self.entry(link).map_or_else(|| to.to_owned(), |entry| format!("{to} by {entry}"))
    }

    /// `from → to`, for people.
    pub fn link_name(&self, link: LinkId) -> String {
        let from = self.ends(link).map_or("", |(from, _)| self.name(from));
        format!("{from} → {}", self.stop(link))
    }

    /// Number of nodes; their ids count from 0.
    pub fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    /// Number of links; their ids count from 0.
    pub fn link_count(&self) -> usize {
        self.graph.edge_count()
    }

    /// Links that leave a node, in the order of their ids.
    pub fn leaving(&self, node: NodeId) -> Vec<(LinkId, NodeId)> {
        if self.graph.node_weight(index(node)).is_none() {
            return Vec::new();
        }
        let edges = self.graph.edges(index(node));
        let mut links: Vec<_> = edges
            .map(|edge| (LinkId(edge.id().index() as u32), NodeId(edge.target().index() as u32)))
            .collect();
        links.sort_unstable();
        links
    }
}

pub(super) fn index(node: NodeId) -> NodeIndex {
    NodeIndex::new(node.0 as usize)
}
