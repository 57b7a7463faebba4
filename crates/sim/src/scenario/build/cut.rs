//! What can never arrive, as links are cut, lose everything or take too long all the time.

use anabranch_link::LossModel;
use anabranch_wire::Time;

use super::Builder;
use super::limits::LinkState;
use crate::network::PathPlan;
use crate::scenario::error::ScenarioError;

impl Builder<'_> {
    /// Notes flows and sources of which nothing can arrive. A pattern has to have a flow that can.
    pub(super) fn note_cut(&mut self) {
        let run = self.built.end.since(Time::ZERO);
        let loses_all = |loss: &LossModel| matches!(loss, LossModel::Bernoulli(share) if *share >= 1.0);
        let passes =
            self.ever(|LinkState { loss, delay, down, .. }| !down && !loses_all(loss) && *delay < run);
        if passes.iter().all(|passes| *passes) {
            return;
        }
        let barrier = |links: &[u32]| links.iter().copied().find(|link| !passes[*link as usize]);
        let of_path = |path: &PathPlan| barrier(&path.forward).or_else(|| barrier(&path.back));
        // One of them, if each path has one.
        let of_paths = |paths: &[PathPlan]| paths.iter().map(of_path).reduce(Option::and).flatten();
        let mut flows = self.built.plan.flows.iter();
        let groups = self.built.groups.iter().map(|group| {
            let of_group = flows.by_ref().take(group.count);
            (&group.name, of_group.map(|flow| of_paths(&flow.paths)).reduce(Option::and).flatten())
        });
        let mut barriers: Vec<_> = groups.collect();
        // What is declared one by one comes before patterns.
        let of_patterns = barriers.split_off(self.file.flow.len().min(self.built.groups.len()));
        let arrivals = self.built.arrivals.iter().zip(&self.built.plan.arrivals);
        let bursts = self.built.bursts.iter().zip(&self.built.plan.bursts);
        let of_arrivals = arrivals.map(|(name, source)| (name, of_paths(&source.paths))).collect();
        let of_bursts = bursts.map(|(name, source)| (name, barrier(&source.links))).collect();
        let mut told = Vec::new();
        for (table, barriers) in
            [("flow", barriers), ("traffic", of_patterns), ("arrivals", of_arrivals), ("cbr", of_bursts)]
        {
            for (index, (name, link)) in barriers.into_iter().enumerate() {
                told.extend(
                    link.map(|link| (table, index, self.nothing_passes(format!("{table}.{name}"), link))),
                );
            }
        }
        told.into_iter().for_each(|(table, index, error)| self.note_of(table, index, error));
    }

    /// The error for what nothing can arrive of, for a link that nothing gets through.
    fn nothing_passes(&self, key: String, link: u32) -> ScenarioError {
        let name = &self.graph.cables[link as usize / 2].name;
        let way = if link.is_multiple_of(2) { "over" } else { "back over" };
        ScenarioError::new(key, format!("nothing arrives: nothing ever gets {way} link \"{name}\"")).hint(
            "all the time it is cut, loses everything or takes as long as the run: let it be otherwise, or give another path",
        )
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

    #[test]
    fn what_nothing_ever_arrives_of_is_told() {
        let lost = "loss = \"100 %\"\n";
        is_told(&[lost, FLOW], "n:6: flow.f: nothing arrives: nothing ever gets over link \"x\"\n");
        is_told(&["delay = \"1 s\"\n", FLOW], "n:6: flow.f: nothing arrives");
        is_told(&[FLOW, CUT], "n:5: flow.f: nothing arrives");
        is_told(
            &["back = { loss = \"100 %\" }\n", FLOW],
            "n:6: flow.f: nothing arrives: nothing ever gets back",
        );
        is_told(&[CBR, CUT], "n:5: cbr.c: nothing arrives");
        let arrivals = "[[arrivals]]\nname = \"a\"\npaths = [\"x\"]\nsize = \"1 kB\"\nrate = [\"1 /s\"]\n";
        is_told(&[arrivals, CUT], "n:5: arrivals.a: nothing arrives");
    }

    #[test]
    fn what_gets_through_at_some_time_or_over_another_path_is_right() {
        let two = "[[link]]\nname = \"y\"\ndelay = \"1 ms\"\nrate = \"1 Mbit/s\"\n[[flow]]\nname = \"f\"\npaths = [\"x\", \"y\"]\n";
        assert_eq!(told(&[FLOW, CUT, MENDED]), None);
        assert_eq!(told(&[two, CUT]), None);
        assert_eq!(told(&["loss = \"99 %\"\n", FLOW]), None);
        let base = Scenario::parse_base(&format!("{START}{FLOW}"), "n").expect("right");
        let of =
            |setting: &str| variants(&base, &[setting.parse().expect("a setting")]).map(|found| found.len());
        assert_eq!(of("link.x.loss=0 %,50 %,100 %"), Ok(3));
        assert!(of("link.x.loss=100 %").is_err());
    }

    #[test]
    fn of_a_pattern_one_flow_has_to_arrive() {
        let bell = |cut: &str| {
            let text = format!(
                "duration = \"1 s\"\n[links]\nrate = \"1 Mbit/s\"\n[topology]\nkind = \"dumbbell\"\nhosts = 2\naccess_rate = \"1 Mbit/s\"\n\
                 [[traffic]]\nname = \"t\"\npattern = \"permutation\"\n[[event]]\nat = \"0 s\"\nlink = \"{cut}\"\ndown = true\n"
            );
            Scenario::parse(&text, "n").map_err(|error| error.to_string()).err()
        };
        assert_eq!(bell("left.0"), None);
    }
}
