//! Makes traces, writes them to files, and reads files from other machines.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use anabranch_node::trace;
use anabranch_overlay::select::{NOISE, Traceroute};
use anabranch_wire::Span;
use serde::{Deserialize, Serialize};

use super::args::{Elsewhere, TraceArgs};
use crate::errors::Failure;

/// Version of the file format; other versions are rejected.
const VERSION: u32 = 1;
/// The most hops per trace and traces per file.
const MOST: usize = 1_024;

/// A difference of two measured times, in milliseconds.
pub(super) fn difference(ms: f64) -> String {
    if ms < NOISE.as_millis_f64() { "under 1 ms (noise)".to_owned() } else { format!("{ms:.1} ms") }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    traces: Vec<Trace>,
}

/// A traceroute in the file format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The machine that traced.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The routers that answered; `None` for silence.
    pub hops: Vec<Option<Hop>>,
}

/// A router, or the destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    pub address: IpAddr,
    /// Its round-trip time.
    pub rtt_ms: f64,
}

impl Trace {
    fn new(trace: &Traceroute) -> Self {
        let hop = |(address, rtt): (IpAddr, Span)| Hop { address, rtt_ms: rtt.as_millis_f64() };
        Self { from: trace.from, to: trace.to, hops: trace.hops.iter().map(|known| known.map(hop)).collect() }
    }

    /// Converts it for the survey.
    pub fn route(&self) -> Traceroute {
        let hop = |hop: &Hop| (hop.address, Span::from_secs_f64(hop.rtt_ms / 1e3));
        Traceroute {
            from: self.from,
            to: self.to,
            hops: self.hops.iter().map(|known| known.as_ref().map(hop)).collect(),
        }
    }

    /// Whether the destination answered.
    pub fn is_complete(&self) -> bool {
        self.hops.last().is_some_and(|hop| hop.as_ref().is_some_and(|hop| hop.address == self.to))
    }

    /// The round-trip time to the last hop that answered.
    pub fn rtt(&self) -> Span {
        let last = self.hops.iter().rev().flatten().next();
        last.map_or(Span::ZERO, |hop| Span::from_secs_f64(hop.rtt_ms / 1e3))
    }
}

/// Traces the routes to the node, to the first relay of each chain and to each granted relay, all at once.
pub async fn measure(args: &TraceArgs, granted: impl Iterator<Item = IpAddr>) -> Result<Vec<Trace>, Failure> {
    let first = args.relays.iter().filter_map(|chain| chain.0.first());
    let targets: BTreeSet<IpAddr> = first.copied().chain(granted).chain([args.node.0]).collect();
    let tracing: Vec<_> = targets.into_iter().map(|to| (to, tokio::spawn(trace(None, to)))).collect();
    let mut traces = Vec::new();
    for (to, tracing) in tracing {
        let traced = tracing.await.map_err(std::io::Error::other).flatten();
        let traced = traced.map_err(|error| {
            Failure::local(format!("cannot trace the way to {to}: {error}"))
                .hint("`ip route get ADDRESS` shows whether there is a route")
        })?;
        traces.push(Trace::new(&traced));
    }
    Ok(traces)
}

/// Writes traces to a file, for use on another machine.
pub fn save(file: &Path, traces: &[Trace]) -> Result<(), Failure> {
    let content = File { version: VERSION, traces: traces.to_vec() };
    let text = serde_json::to_vec_pretty(&content).map_err(|error| Failure::local(error.to_string()))?;
    std::fs::write(file, text).map_err(|error| Failure::file("write", file, &error))
}

/// Reads traces made on other machines, each with the address of its machine.
pub fn load(files: &[Elsewhere]) -> Result<Vec<(IpAddr, Trace)>, Failure> {
    let mut traces = Vec::new();
    for Elsewhere { at, file } in files {
        let text = std::fs::read(file).map_err(|error| Failure::file("read", file, &error))?;
        let read = read(&text).map_err(|why| {
            Failure::usage(format!("{}: {why}", file.display()))
                .hint("make it with `anabranch trace NODE --save FILE` on the other machine")
        })?;
        traces.extend(read.into_iter().map(|trace| (*at, trace)));
    }
    Ok(traces)
}

fn read(text: &[u8]) -> Result<Vec<Trace>, String> {
    let File { version, traces } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it has version {version}, and this program reads {VERSION}"));
    }
    let is_sane = |hop: &Hop| hop.rtt_ms.is_finite() && (0.0..=600_000.0).contains(&hop.rtt_ms);
    let sane = |trace: &Trace| trace.hops.len() <= MOST && trace.hops.iter().flatten().all(is_sane);
    if traces.len() > MOST || !traces.iter().all(sane) {
        return Err("these are no traces: too many, too long, or with times that cannot be".into());
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_traces_comes_back_and_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("traces.json");
        let hop = |last: u8, rtt_ms| Some(Hop { address: [192, 0, 2, last].into(), rtt_ms });
        let trace = Trace {
            from: [192, 0, 2, 1].into(),
            to: [192, 0, 2, 9].into(),
            hops: vec![hop(2, 0.5), None, hop(9, 12.25)],
        };
        save(&file, std::slice::from_ref(&trace)).unwrap();
        let at = [198, 51, 100, 1].into();
        let known = load(&[Elsewhere { at, file: file.clone() }]).unwrap();
        assert_eq!(known, [(at, trace.clone())]);
        assert_eq!(trace.rtt(), Span::from_micros(12_250));
        let silent = Trace { hops: vec![None], ..trace.clone() };
        assert!(trace.is_complete() && !silent.is_complete());
        assert!(!Trace { hops: Vec::new(), ..trace.clone() }.is_complete());
        for wrong in [
            "",
            "{}",
            r#"{"version":2,"traces":[]}"#,
            r#"{"version":1,"traces":[{"from":"1.2.3.4","to":"1.2.3.5","hops":[{"address":"1.2.3.5","rtt_ms":-1}]}]}"#,
            r#"{"version":1,"traces":[],"more":1}"#,
        ] {
            std::fs::write(&file, wrong).unwrap();
            assert!(load(&[Elsewhere { at, file: file.clone() }]).is_err(), "{wrong}");
        }
    }
}
