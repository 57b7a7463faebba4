//! The greedy choice among candidates, with its reasons (mTCP §3.3 [M9]).
//!
//! The candidate with the best score is chosen. Each further one, in order of score, is chosen if it is disjoint enough
//! from all chosen so far (`Disjoint > β`), until there are `k`. The first also carries acknowledgements, if a session
//! uses one path for them. Each candidate gets an explanation, whether it is used or not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use anabranch_wire::Span;
use serde::Serialize;

use super::score::Candidate;
use super::topology::{LinkId, Topology};

/// How many paths to choose, and how disjoint they must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChoiceLimits {
    /// A candidate is chosen if it is more disjoint than this from all chosen ones; 0 to 1.
    pub beta: f64,
    /// Most paths.
    pub k: usize,
}

impl Default for ChoiceLimits {
    /// β = 0.5, k = 5 (mTCP §3.3 [M9]).
    fn default() -> Self {
        Self { beta: 0.5, k: 5 }
    }
}

/// The chosen candidates, with reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Indices of the candidates to use, best first.
    pub used: Vec<usize>,
    /// One for each candidate, in the order they were given.
    pub explanations: Vec<Explanation>,
}

/// Measured delays that differ by less say nothing: hosts and routers answer with this much delay of their own.
pub const NOISE: Span = Span::from_millis(1);

/// Why a candidate is used or not; plain data, for people and for `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The candidate.
    pub name: String,
    /// The rate that its score predicts, in Mbit/s.
    pub score_mbit: f64,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Fraction of packets lost.
    pub loss: f64,
    /// Known capacity in Mbit/s.
    pub capacity_mbit: Option<f64>,
    /// Number of hops that did not answer; sharing there is unknown.
    pub silent_hops: u32,
    /// The candidate with the next better score, if only noise sets them apart.
    pub like: Option<String>,
    /// Overlap with candidates of better or equal score, the largest first.
    pub shares: Vec<Shared>,
    /// The decision.
    pub verdict: Verdict,
}

/// The overlap of two candidates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shared {
    /// The other candidate.
    pub with: String,
    /// Delay of the shared links, in milliseconds.
    pub overlap_ms: f64,
    /// Whether this delay is noise.
    pub noise: bool,
    /// 1 if nothing is shared, 0 if all of the shorter path is.
    pub disjoint: f64,
    /// The shared links, as `from → to`.
    pub links: Vec<String>,
}

/// The decision about a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Verdict {
    Used {
        /// 1 for the best, which is also the path for acknowledgements.
        rank: usize,
    },
    /// It shares too much with a better path in use.
    TooSimilar {
        /// That path.
        to: String,
        /// Their disjointness.
        disjoint: f64,
        /// The required disjointness.
        beta: f64,
    },
    /// Enough better paths were found.
    Enough {
        /// Their number.
        k: usize,
    },
    /// It carries nothing: all packets are lost.
    Dead,
}

/// Delay of the links that two candidates share (mTCP §3.3 [M9]).
pub fn overlap(a: &Candidate, b: &Candidate) -> Span {
    common(a, b).into_iter().fold(Span::ZERO, |sum, (_, latency)| sum + latency)
}

/// `1 − Overlap / min(latency)` (mTCP §3.3 [M9]), for the candidate that shares the larger part of itself. Each is
/// weighed by its own measurements of the links' delays; if all of them together are [noise](NOISE), the links are
/// counted instead. Candidates with unknown links count as disjoint.
pub fn disjoint(a: &Candidate, b: &Candidate) -> f64 {
    1.0 - shared_part(a, b).max(shared_part(b, a))
}

/// The part of a candidate's delay on links of the other one, 0 to 1.
fn shared_part(candidate: &Candidate, other: &Candidate) -> f64 {
    let of_other: BTreeSet<LinkId> = other.links.iter().map(|(link, _)| *link).collect();
    let shared = candidate.links.iter().filter(|(link, _)| of_other.contains(link));
    if candidate.links.is_empty() {
        return 0.0;
    }
    let latency = candidate.latency();
    if latency < NOISE {
        // Without delays to weigh links by, count them.
        return shared.count() as f64 / candidate.links.len() as f64;
    }
    let overlap = shared.fold(Span::ZERO, |sum, (_, latency)| sum + *latency);
    overlap.as_secs_f64() / latency.as_secs_f64()
}

/// Links of both, each with the smaller of its two delays.
fn common(a: &Candidate, b: &Candidate) -> Vec<(LinkId, Span)> {
    let of_a: BTreeMap<LinkId, Span> = a.links.iter().copied().collect();
    let of_b: BTreeMap<LinkId, Span> = b.links.iter().copied().collect();
    of_b.into_iter().filter_map(|(link, latency)| Some((link, latency.min(*of_a.get(&link)?)))).collect()
}

/// Chooses among candidates. Ties go to the shorter round trip, then to the earlier one.
pub fn choose(topology: &Topology, candidates: &[Candidate], limits: &ChoiceLimits) -> Choice {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|&at| (Reverse(candidates[at].score()), candidates[at].rtt, at));
    let mut used: Vec<usize> = Vec::new();
    let mut explanations: Vec<(usize, Explanation)> = Vec::new();
    for (place, &at) in order.iter().enumerate() {
        let candidate = &candidates[at];
        let verdict = judge(candidate, &used, (candidates, limits));
        if matches!(verdict, Verdict::Used { .. }) {
            used.push(at);
        }
        let better: Vec<&Candidate> = order[..place].iter().map(|&other| &candidates[other]).collect();
        explanations.push((at, explain(topology, candidate, &better, verdict)));
    }
    explanations.sort_by_key(|(at, _)| *at);
    Choice { used, explanations: explanations.into_iter().map(|(_, explanation)| explanation).collect() }
}

fn judge(candidate: &Candidate, used: &[usize], (all, limits): (&[Candidate], &ChoiceLimits)) -> Verdict {
    if candidate.loss >= 1.0 || candidate.loss.is_nan() {
        return Verdict::Dead;
    }
    if used.len() >= limits.k {
        return Verdict::Enough { k: limits.k };
    }
    let most_similar =
        used.iter().map(|&at| (disjoint(candidate, &all[at]), at)).min_by(|a, b| a.0.total_cmp(&b.0));
    match most_similar {
        Some((disjoint, at)) if disjoint <= limits.beta => {
            Verdict::TooSimilar { to: all[at].name.clone(), disjoint, beta: limits.beta }
        }
        _ => Verdict::Used { rank: used.len() + 1 },
    }
}

/// Whether only noise sets two candidates apart.
fn is_like(a: &Candidate, b: &Candidate) -> bool {
    a.rtt.max(b.rtt).saturating_sub(a.rtt.min(b.rtt)) < NOISE && (a.loss, a.capacity) == (b.loss, b.capacity)
}

fn explain(
    topology: &Topology,
    candidate: &Candidate,
    better: &[&Candidate],
    verdict: Verdict,
) -> Explanation {
    let like = better.last().filter(|other| is_like(candidate, other)).map(|other| other.name.clone());
    let mut shares: Vec<Shared> = better
        .iter()
        .filter_map(|other| {
            let links = common(candidate, other);
            let overlap = overlap(candidate, other);
            (!links.is_empty()).then(|| Shared {
                with: other.name.clone(),
                overlap_ms: overlap.as_millis_f64(),
                noise: overlap < NOISE,
                disjoint: disjoint(candidate, other),
                links: links.iter().map(|(link, _)| topology.link_name(*link)).collect(),
            })
        })
        .collect();
    shares.sort_by(|a, b| a.disjoint.total_cmp(&b.disjoint).then_with(|| a.with.cmp(&b.with)));
    Explanation {
        name: candidate.name.clone(),
        score_mbit: candidate.score().as_mbit(),
        rtt_ms: candidate.rtt.as_millis_f64(),
        loss: candidate.loss,
        capacity_mbit: candidate.capacity.map(|capacity| capacity.as_mbit()),
        silent_hops: candidate.silent_hops,
        like,
        shares,
        verdict,
    }
}
