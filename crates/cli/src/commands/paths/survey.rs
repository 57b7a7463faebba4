//! From traces to candidates, and to the choice among them (mTCP §3.3 [M9]).

use std::net::IpAddr;

use anabranch_overlay::select::{Candidate, ChoiceLimits, Explanation, Survey, choose};
use anabranch_overlay::sense::Figures;
use anabranch_wire::Span;
use serde::Serialize;

use super::known::Known;
use super::traces::Trace;
use super::{Chain, PathsArgs};

/// What is known of all ways.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The node.
    pub node: IpAddr,
    /// The ways, in the order in which they were named.
    pub ways: Vec<Way>,
    /// Addresses that were found to be of one router.
    pub routers: Vec<Vec<IpAddr>>,
    /// Routers of which no second address was found; they may be one with another.
    pub unresolved: Vec<IpAddr>,
    /// Pairs that looked like one router, and cannot be: a trace has both.
    pub conflicts: Vec<[IpAddr; 2]>,
}

/// One way.
#[derive(Debug, Serialize)]
pub struct Way {
    /// The hops, stretch after stretch.
    pub hops: Vec<Option<IpAddr>>,
    /// Stretches that nobody has traced: from where to where. Each is taken to be as long as the direct way.
    pub unknown: Vec<[IpAddr; 2]>,
    /// Stretches that relays have measured, or whose length was estimated from what they measured.
    pub told: Vec<Told>,
    /// Its score, what it shares, and what becomes of it.
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// A stretch of which a controller told.
#[derive(Debug, Serialize)]
pub struct Told {
    /// From where.
    pub from: IpAddr,
    /// To where.
    pub to: IpAddr,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Lost on the way there, 0 to 1.
    pub loss: f64,
    /// How wrong the time is likely to be, as a share of it, if it was estimated; nothing when it was measured.
    pub estimated: Option<f64>,
}

impl Told {
    fn new((from, to): (IpAddr, IpAddr), figures: &Figures) -> Self {
        let Figures { rtt, loss, estimated, .. } = *figures;
        Self { from, to, rtt_ms: rtt.as_millis_f64(), loss, estimated }
    }
}

/// Puts all traces on one graph, and chooses.
pub fn report(
    args: &PathsArgs,
    (own, elsewhere, known): (&[Trace], &[(IpAddr, Trace)], &Known),
    limits: &ChoiceLimits,
) -> Report {
    let all: Vec<&Trace> = own.iter().chain(elsewhere.iter().map(|(_, trace)| trace)).collect();
    let routes: Vec<_> = all.iter().map(|trace| trace.route()).collect();
    let survey = Survey::new(&routes);
    let find = |at: Option<IpAddr>, to: IpAddr| match at {
        None => own.iter().position(|trace| trace.to == to),
        Some(at) => {
            let found = elsewhere.iter().position(|(made_at, trace)| *made_at == at && trace.to == to);
            found.map(|index| own.len() + index)
        }
    };
    let direct = Chain(Vec::new());
    let direct_rtt = find(None, args.node.0).map_or(Span::ZERO, |index| all[index].rtt());
    let mut parts = Vec::new();
    let mut candidates = Vec::new();
    let granted = known.chains(args.node.0, own);
    let granted = granted.iter().filter(|chain| !args.relays.contains(chain));
    for chain in std::iter::once(&direct).chain(&args.relays).chain(granted) {
        let (mut stretches, mut told, mut survives) = (Vec::new(), Vec::new(), 1.0);
        let mut unknown = Vec::new();
        let mut at = None;
        for to in chain.0.iter().copied().chain([args.node.0]) {
            match (find(at, to), at) {
                (Some(index), _) => stretches.push(index),
                (None, Some(from)) => match known.figures(from, to) {
                    Some(figures) => {
                        survives *= 1.0 - figures.loss;
                        told.push((Told::new((from, to), &figures), figures.rtt));
                    }
                    None => unknown.push([from, to]),
                },
                (None, None) => {}
            }
            at = Some(to);
        }
        let traced = stretches.iter().fold(Span::ZERO, |sum, index| sum + all[*index].rtt());
        let sensed = told.iter().fold(Span::ZERO, |sum, (_, rtt)| sum + *rtt);
        let figures = (traced + sensed + direct_rtt * unknown.len() as u64, 1.0 - survives, None);
        let Some(candidate) = survey.candidate(&name(chain), &stretches, figures) else { continue };
        let unseen = (unknown.len() + told.len()) as u32;
        candidates.push(Candidate { silent_hops: candidate.silent_hops + unseen, ..candidate });
        let address = |index: &usize| all[*index].hops.iter().map(|hop| hop.as_ref().map(|hop| hop.address));
        let told: Vec<Told> = told.into_iter().map(|(told, _)| told).collect();
        parts.push((stretches.iter().flat_map(address).collect(), unknown, told));
    }
    let choice = choose(&survey.topology, &candidates, limits);
    let ways = parts.into_iter().zip(choice.explanations);
    let routers = survey.aliases.routers().into_values().filter(|addresses| addresses.len() > 1);
    Report {
        node: args.node.0,
        ways: ways
            .map(|((hops, unknown, told), explanation)| Way { hops, unknown, told, explanation })
            .collect(),
        routers: routers.map(|addresses| addresses.into_iter().collect()).collect(),
        unresolved: survey.aliases.unresolved.clone(),
        conflicts: survey.aliases.conflicts.iter().map(|conflict| [conflict.a, conflict.b]).collect(),
    }
}

fn name(chain: &Chain) -> String {
    if chain.0.is_empty() {
        return "direct".to_owned();
    }
    chain.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
}
