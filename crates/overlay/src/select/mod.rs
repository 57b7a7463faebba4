//! Path selection: which of many possible paths to use, and why (mTCP §3.3 [M9], PSMC §3.B [T5]).
//!
//! Everything works on one [`Topology`]: hosts, relays and the routers between them, joined by directed links with
//! latency, loss and capacity. It is built by hand, from link state, or from traceroutes ([`Survey`]), whose router
//! interfaces are grouped first ([`resolve_aliases`]).
//!
//! | question | answer |
//! |---|---|
//! | which of these paths to use? | [`choose`]: best score first, if disjoint enough from those chosen [M9]; explained |
//! | how much can they carry together? | [`max_flow`]: maximum flow and its paths [T5] |
//! | which paths share least? | [`least_joint`]: k paths of minimum jointness [T5] |
//!
//! Nothing here measures, opens or closes anything.

mod alias;
mod choose;
mod flow;
mod joint;
mod score;
mod survey;
#[cfg(test)]
mod tests;
mod topology;

pub use alias::{Aliases, Conflict, Traceroute, resolve_aliases};
pub use choose::{Choice, ChoiceLimits, Explanation, NOISE, Shared, Verdict, choose, disjoint, overlap};
pub use flow::{FlowPath, MaxFlow, max_flow};
pub use joint::{Joint, least_joint};
pub use score::{Candidate, MIN_LOSS, SCORE_SEGMENT, ron_score};
pub use survey::Survey;
pub use topology::{Link, LinkId, NodeId, Topology};
