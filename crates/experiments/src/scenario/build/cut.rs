//! What can never arrive, as links are cut or lose everything all the time, or take as long as the run.

use anabranch_link::LossModel;
use anabranch_wire::{Span, Time};

use super::Builder;
use super::limits::LinkState;
use crate::scenario::error::ScenarioError;
use crate::scenario::graph::Graph;
use anabranch_sim::network::{LinkChange, PathPlan};

/// What is wrong with a path, and what to do.
type Fault = Option<(String, &'static str)>;

impl Builder<'_> {
    /// Notes flows and sources of which nothing can arrive, whatever the seed.
    pub(super) fn note_cut(&mut self) {
        let links = self.links_at_best();
        let (file, plan) = (self.file, &self.built.plan);
        let mut told = Vec::new();
        let mut flows = plan.flows.iter();
        for ((index, spec), group) in file.flow.iter().enumerate().zip(&self.built.groups) {
            let sessions: Vec<_> = flows.by_ref().take(group.count).collect();
            let faults = sessions
                .iter()
                .map(|flow| links.of_session(&flow.paths, (flow.striping.is_some(), flow.agent.is_some())));
            let fault = faults.reduce(Option::and).flatten();
            let paths = sessions.first().map_or(&[][..], |flow| &flow.paths);
            told.extend(self.cut_session(
                ("flow", index, &spec.name),
                (&spec.from, &spec.to),
                (paths, fault),
            ));
        }
        for ((index, spec), source) in file.arrivals.iter().enumerate().zip(&plan.arrivals) {
            let found = (&source.paths[..], links.of_session(&source.paths, (false, false)));
            told.extend(self.cut_session(("arrivals", index, &spec.name), (&spec.from, &spec.to), found));
        }
        for ((index, spec), source) in file.cbr.iter().enumerate().zip(&plan.bursts) {
            let Some((message, hint)) = links.fault(&source.links) else { continue };
            told.push((
                "cbr",
                index,
                nothing_arrives(format!("cbr.{}.path", spec.name), &message).hint(hint),
            ));
        }
        told.into_iter().for_each(|(table, index, error)| self.note_of(table, index, error));
    }

    /// The error for a session with this fault, unless another seed may find another way.
    fn cut_session(
        &self,
        (table, index, name): (&'static str, usize, &str),
        (from, to): (&Option<String>, &Option<String>),
        (paths, fault): (&[PathPlan], Fault),
    ) -> Option<(&'static str, usize, ScenarioError)> {
        let (message, hint) = fault?;
        let node = |name: &Option<String>| self.graph.find_node(name.as_ref()?);
        if let (Some(from), Some(to)) = (node(from), node(to))
            && self.graph.links_between(from, to).len() > paths.first()?.forward.len()
        {
            return None;
        }
        let said = if to.is_some() { "to" } else { "paths" };
        let error = nothing_arrives(format!("{table}.{name}.{said}"), &message);
        Some((table, index, error.hint(format!("{hint}; a session opens over its first path"))))
    }

    /// Links as they are when most gets over them.
    fn links_at_best(&self) -> Links<'_> {
        let loses_all = |loss: &LossModel| matches!(loss, LossModel::Bernoulli(share) if *share >= 1.0);
        let passes = self.ever(|LinkState { loss, down, .. }| !down && !loses_all(loss));
        let links = self.graph.cables.iter().flat_map(|cable| &cable.links);
        let mut delays: Vec<Span> = links.map(|link| link.delay).collect();
        for change in &self.built.plan.script {
            if let LinkChange::Delay(delay) = change.what {
                let least = &mut delays[change.link as usize];
                *least = (*least).min(delay);
            }
        }
        Links { graph: &self.graph, passes, delays, run: self.built.end.since(Time::ZERO) }
    }
}

fn nothing_arrives(key: String, message: &str) -> ScenarioError {
    ScenarioError::new(key, format!("nothing arrives: {message}"))
}

/// Links, with what decides whether anything arrives.
struct Links<'a> {
    graph: &'a Graph,
    /// Of each whether packets get over it at some time of the run.
    passes: Vec<bool>,
    /// The shortest delay of each.
    delays: Vec<Span>,
    run: Span,
}

impl Links<'_> {
    /// Why nothing arrives over these.
    fn fault(&self, links: &[u32]) -> Fault {
        if let Some(link) = links.iter().find(|link| !self.passes[**link as usize]) {
            let name = &self.graph.cables[*link as usize / 2].name;
            let message = format!("nothing ever gets over link \"{name}\"");
            return Some((message, "mend it before the end, or let less than 100 % be lost there"));
        }
        let takes = links.iter().fold(Span::ZERO, |sum, link| sum + self.delays[*link as usize]);
        (takes >= self.run).then(|| {
            let message = format!("the delays on its way are {takes} together, the run {}", self.run);
            (message, "less delay, or a longer `duration`")
        })
    }

    /// Why nothing arrives of a session. It opens over its first path, there and back; with a path agent, over any. What is
    /// striped goes there over all, and comes back over the first.
    fn of_session(&self, paths: &[PathPlan], (is_striped, has_agent): (bool, bool)) -> Fault {
        let first = paths.first()?;
        if has_agent {
            let of_path = |path: &PathPlan| self.fault(&[&path.forward[..], &path.back].concat());
            return paths.iter().map(of_path).reduce(Option::and).flatten();
        }
        if is_striped {
            let there = paths.iter().map(|path| self.fault(&path.forward)).reduce(Option::and).flatten();
            return there.or_else(|| self.fault(&first.back));
        }
        self.fault(&[&first.forward[..], &first.back].concat())
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::{Scenario, variants};

    const START: &str = "duration = \"1 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\n";
    const FLOW: &str = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
    const CBR: &str = "[[cbr]]\nname = \"c\"\npath = [\"x\"]\nrate = \"1 kbit/s\"\n";
    const CUT: &str = "[[event]]\nat = \"0 s\"\nlink = \"x\"\ndown = true\n";
    const MENDED: &str = "[[event]]\nat = \"900 ms\"\nlink = \"x\"\ndown = false\n";

    fn told(parts: &[&str]) -> Option<String> {
        let text = format!("{START}{}", parts.concat());
        Scenario::parse(&text, "n").map_err(|error| error.to_string()).err()
    }

    #[track_caller]
    fn is_told(parts: &[&str], start: &str) {
        let told = told(parts);
        assert!(told.as_ref().is_some_and(|told| told.starts_with(start)), "{told:?}");
    }

    const TWO: &str = "[[link]]\nname = \"y\"\ndelay = \"1 ms\"\nrate = \"1 Mbit/s\"\n";
    const OVER_BOTH: &str = "[[flow]]\nname = \"f\"\npaths = [\"x\", \"y\"]\n";
    const STRIPED: &str = "striping = { scheme = \"round-robin\" }\n";

    #[test]
    fn what_nothing_ever_arrives_of_is_told() {
        let over = "nothing arrives: nothing ever gets over link \"x\"\n";
        is_told(&["loss = \"100 %\"\n", FLOW], &format!("n:8: flow.f.paths: {over}"));
        is_told(&[FLOW, CUT], &format!("n:7: flow.f.paths: {over}"));
        is_told(&["back = { loss = \"100 %\" }\n", FLOW], &format!("n:8: flow.f.paths: {over}"));
        is_told(&[CBR, CUT], &format!("n:7: cbr.c.path: {over}"));
        let arrivals = "[[arrivals]]\nname = \"a\"\npaths = [\"x\"]\nsize = \"1 kB\"\nrate = [\"1 /s\"]\n";
        is_told(&[arrivals, CUT], &format!("n:7: arrivals.a.paths: {over}"));
        let long =
            "n:8: flow.f.paths: nothing arrives: the delays on its way are 1.00 s together, the run 1.00 s\n";
        is_told(&["delay = \"500 ms\"\n", FLOW], long);
        // A name may be that of a key.
        is_told(&[&FLOW.replace("\"f\"", "\"name\""), CUT], &format!("n:7: flow.name.paths: {over}"));
    }

    #[test]
    fn a_session_opens_over_its_first_path_and_what_is_striped_comes_back_over_it() {
        is_told(&[TWO, OVER_BOTH, CUT], "n:11: flow.f.paths: nothing arrives");
        is_told(&[TWO, OVER_BOTH, STRIPED, CUT], "n:11: flow.f.paths: nothing arrives");
        let there = CUT.to_owned() + "way = \"there\"\n";
        assert_eq!(told(&[TWO, OVER_BOTH, STRIPED, &there]), None);
        assert_eq!(told(&[TWO, OVER_BOTH, &CUT.replace('x', "y")]), None);
    }

    #[test]
    fn what_gets_through_at_some_time_is_right() {
        assert_eq!(told(&[FLOW, CUT, MENDED]), None);
        assert_eq!(told(&["loss = \"99 %\"\n", FLOW]), None);
        assert_eq!(told(&["delay = \"499 ms\"\n", FLOW]), None);
        let quicker = "[[event]]\nat = \"0 s\"\nlink = \"x\"\ndelay = \"1 ms\"\n";
        assert_eq!(told(&["delay = \"5 s\"\n", FLOW, quicker]), None);
        let base = Scenario::parse_base(&format!("{START}{FLOW}"), "n").expect("right");
        let of =
            |setting: &str| variants(&base, &[setting.parse().expect("a setting")]).map(|found| found.len());
        assert_eq!(of("link.x.loss=0 %,50 %,100 %"), Ok(3));
        assert!(of("link.x.loss=100 %").is_err());
    }

    #[test]
    fn another_seed_may_find_another_way() {
        let tree = |to: &str, link: &str| {
            let text = format!(
                "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
                 [[flow]]\nname = \"f\"\nfrom = \"h0\"\nto = \"{to}\"\n{}",
                CUT.replace("\"x\"", &format!("\"{link}\""))
            );
            Scenario::parse(&text, "n").map_err(|error| error.to_string()).err()
        };
        for up in ["edge.0.0", "edge.0.1"] {
            assert_eq!(tree("h15", up), None);
        }
        let only = tree("h1", "host.1").unwrap_or_default();
        assert!(
            only.starts_with("n:10: flow.f.to: nothing arrives: nothing ever gets over link \"host.1\""),
            "{only}"
        );
    }
}
