//! Draws routers, links and routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anabranch_overlay::select::{Candidate, Choice, LinkId, NodeId, Survey, Topology, Verdict};
use anabranch_wire::Span;
use layout::backends::svg::SVGWriter;
use layout::core::base::Orientation;
use layout::core::color::Color;
use layout::core::geometry::Point;
use layout::core::style::{LineStyleKind, StyleAttr};
use layout::std_shapes::shapes::{Arrow, Element, LineEndKind, ShapeKind};
use layout::topo::layout::VisualGraph;

use super::traces::{Trace, difference};

/// Colours of the chosen routes by rank; all further ones use the last colour.
const COLOURS: [u32; 5] = [0x1f77_b4ff, 0xd627_28ff, 0x2ca0_2cff, 0x9467_bdff, 0x8c56_4bff];
const GREY: u32 = 0x9999_99ff;
const BLACK: u32 = 0x0000_00ff;
const WHITE: u32 = 0xffff_ffff;
const FONT: usize = 13;

/// The content of the drawing.
pub struct Map {
    /// Routers by their lowest address, and the links between them.
    pub topology: Topology,
    /// This machine.
    pub here: Option<NodeId>,
    /// The node at the other end.
    pub node: Option<NodeId>,
    /// Segments that were not traced.
    untraced: BTreeSet<LinkId>,
    /// Rank and links of each chosen route.
    chosen: Vec<(usize, Vec<LinkId>)>,
}

/// The routes to draw.
pub struct Routes<'a> {
    pub candidates: &'a [Candidate],
    /// Which of them are used.
    pub choice: &'a Choice,
    /// Segments that were not traced.
    pub untraced: BTreeSet<LinkId>,
}

impl Map {
    /// The survey's graph with the chosen routes.
    pub fn new(survey: &Survey, own: &[Trace], node: IpAddr, routes: Routes<'_>) -> Self {
        let Routes { candidates, choice, untraced } = routes;
        let at = |address: IpAddr| survey.topology.find(&survey.aliases.router_of(address).to_string());
        let ranked = candidates.iter().zip(&choice.explanations).filter_map(|(candidate, explanation)| {
            let Verdict::Used { rank } = explanation.verdict else { return None };
            let links = candidate.links.iter().map(|(link, _)| *link).collect();
            Some((rank, links))
        });
        let mut chosen: Vec<_> = ranked.collect();
        chosen.sort();
        let here = own.first().and_then(|trace| at(trace.from));
        Self { topology: survey.topology.clone(), here, node: at(node), untraced, chosen }
    }

    /// Draws from left to right. Boxes are this machine and the node, circles are routers and relays. Coloured links
    /// belong to chosen routes and are labelled with them; dashed links are untraced.
    pub fn to_svg(&self) -> String {
        let mut drawing = VisualGraph::new(Orientation::LeftToRight);
        let nodes: BTreeMap<NodeId, _> = (0..self.topology.node_count() as u32)
            .map(|index| (NodeId(index), drawing.add_node(self.element(NodeId(index)))))
            .collect();
        for link in (0..self.topology.link_count() as u32).map(LinkId) {
            if let Some((from, to)) = self.topology.ends(link) {
                drawing.add_edge(self.arrow(link), nodes[&from], nodes[&to]);
            }
        }
        let mut svg = SVGWriter::new();
        drawing.do_it(false, false, false, &mut svg);
        svg.finalize()
    }

    fn element(&self, node: NodeId) -> Element {
        let name = self.topology.name(node);
        let (shape, width) = if Some(node) == self.here {
            (ShapeKind::new_box(&format!("here {name}")), 150.0)
        } else if Some(node) == self.node {
            (ShapeKind::new_box(name), 130.0)
        } else {
            (ShapeKind::new_circle(name), 120.0)
        };
        let look = StyleAttr::new(Color::new(BLACK), 1, Some(Color::new(WHITE)), 3, FONT);
        Element::create(shape, look, Orientation::LeftToRight, Point::new(width, 50.0))
    }

    fn arrow(&self, link: LinkId) -> Arrow {
        let users = || self.chosen.iter().filter(|(_, links)| links.contains(&link));
        let best = users().map(|(rank, _)| *rank).min();
        let colour = best.map_or(GREY, |rank| COLOURS[rank.saturating_sub(1).min(COLOURS.len() - 1)]);
        let delay = self.topology.get(link).map_or(Span::ZERO, |link| link.latency);
        let delay = difference(delay.as_millis_f64());
        let delay = self.topology.entry(link).map_or(delay.clone(), |entry| format!("by {entry}, {delay}"));
        let ranks: Vec<String> = users().map(|(rank, _)| rank.to_string()).collect();
        let label = match &ranks[..] {
            [] => delay,
            ranks => format!("{delay}: {}", ranks.join(", ")),
        };
        let line = if self.untraced.contains(&link) { LineStyleKind::Dashed } else { LineStyleKind::Normal };
        let width = if best.is_some() { 2 } else { 1 };
        let look = StyleAttr::new(Color::new(colour), width, None, 0, FONT);
        Arrow::new(LineEndKind::None, LineEndKind::Arrow, line, &label, &look, &None, &None)
    }
}
