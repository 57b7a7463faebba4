//! From traces to candidates, and to the choice among them (mTCP §3.3 [M9]).

use std::net::IpAddr;

use anabranch_overlay::select::{Candidate, ChoiceLimits, Explanation, Survey, choose};
use anabranch_wire::Span;
use serde::Serialize;

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
    /// Its score, what it shares, and what becomes of it.
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// Puts all traces on one graph, and chooses.
pub fn report(
    args: &PathsArgs,
    (own, elsewhere): (&[Trace], &[(IpAddr, Trace)]),
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
    for chain in std::iter::once(&direct).chain(&args.relays) {
        let mut stretches = Vec::new();
        let mut unknown = Vec::new();
        let mut at = None;
        for to in chain.0.iter().copied().chain([args.node.0]) {
            match (find(at, to), at) {
                (Some(index), _) => stretches.push(index),
                (None, Some(from)) => unknown.push([from, to]),
                (None, None) => {}
            }
            at = Some(to);
        }
        let known = stretches.iter().fold(Span::ZERO, |sum, index| sum + all[*index].rtt());
        let rtt = known + direct_rtt * unknown.len() as u64;
        let Some(candidate) = survey.candidate(&name(chain), &stretches, (rtt, 0.0, None)) else { continue };
        candidates.push(Candidate { silent_hops: candidate.silent_hops + unknown.len() as u32, ..candidate });
        let address = |index: &usize| all[*index].hops.iter().map(|hop| hop.as_ref().map(|hop| hop.address));
        parts.push((stretches.iter().flat_map(address).collect(), unknown));
    }
    let choice = choose(&survey.topology, &candidates, limits);
    let ways = parts.into_iter().zip(choice.explanations);
    let routers = survey.aliases.routers().into_values().filter(|addresses| addresses.len() > 1);
    Report {
        node: args.node.0,
        ways: ways.map(|((hops, unknown), explanation)| Way { hops, unknown, explanation }).collect(),
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
