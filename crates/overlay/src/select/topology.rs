//! The graph that path selection works on: named nodes and directed links.

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

/// Nodes and links; at most one link in each direction between two nodes.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(super) graph: DiGraph<String, Link>,
    by_name: BTreeMap<String, NodeId>,
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

    /// Adds a link, or updates an existing one.
    ///
    /// # Panics
    /// When a node is not of this topology.
    pub fn link(&mut self, from: NodeId, to: NodeId, link: Link) -> LinkId {
        LinkId(self.graph.update_edge(index(from), index(to), link).index() as u32)
    }

    /// Adds the same link in both directions.
    ///
    /// # Panics
    /// When a node is not of this topology.
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

    /// `from → to`, for people.
    pub fn link_name(&self, link: LinkId) -> String {
        let Some((from, to)) = self.ends(link) else { return String::new() };
        format!("{} → {}", self.name(from), self.name(to))
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
