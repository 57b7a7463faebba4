//! Bounds on how much goes on: flows in all, sessions that arrive, and senders that nothing would slow down.

use std::collections::BTreeMap;

use anabranch_engine::Coupling;
use anabranch_engine::cc::RuleKind;
use anabranch_link::{LinkConfig, LossModel, RateModel};
use anabranch_wire::{Span, Time};

use super::{Builder, MAX_FLOWS};
use crate::scenario::error::{ScenarioError, line_of};
use crate::scenario::model::ArrivalSpec;
use anabranch_sim::network::{FlowPlan, LinkChange, PathPlan, Supply};

/// Most sessions that arrive in a run, as expected of the rates of all sources.
const MAX_ARRIVALS: f64 = 1e7;
/// Bytes that a full packet carries.
pub(super) const PAYLOAD: u64 = 1400;
/// A smaller loss holds no window up: at this one that of a TCP is 1,400 packets.
const LEAST_LOSS: f64 = 1e-6;
/// Most packets in a run of all that send at a rate of their own and nothing slows down.
const MAX_PACKETS: f64 = 1e10;
/// Most links of the paths of all flows together.
const MAX_CROSSED: usize = 50_000_000;

impl Builder<'_> {
    /// Checks how many flows are declared; of too many the most numerous are told.
    pub(super) fn counts(&self) -> Result<(), ScenarioError> {
        let counts = self.file.flow.iter().map(|flow| flow.count.unwrap_or(1));
        let sum = counts.clone().fold(0, u64::saturating_add);
        // Of several as numerous, the one that goes beyond is the last.
        let most = counts.clone().enumerate().max_by_key(|(_, count)| *count);
        let none = counts.enumerate().find(|(_, count)| *count == 0);
        let Some((index, count)) = none.or(most.filter(|_| sum > MAX_FLOWS)) else { return Ok(()) };
        let in_all = if (1..=MAX_FLOWS).contains(&count) { format!(", {sum} in all") } else { String::new() };
        let key = format!("flow.{}.count", self.file.flow[index].name);
        let error = ScenarioError::new(key, format!("{count} flows{in_all}"))
            .hint(format!("a scenario has from 1 to {MAX_FLOWS} flows"));
        Err(self.locate(error, "flow", index))
    }

    /// Counts the sessions that are expected of a source beside those of others; what is wrong with it, and what to do.
    pub(super) fn expect_arrivals(
        &mut self,
        spec: &ArrivalSpec,
        phase: Span,
    ) -> Result<(), (String, String)> {
        let start = spec.start.map_or(Time::ZERO, |start| Time::ZERO + start.0);
        let stop = spec.stop.map_or(Time::NEVER, |stop| Time::ZERO + stop.0).min(self.built.end);
        let time = stop.since(start).as_secs_f64();
        let phase = phase.as_secs_f64();
        let round = phase * spec.rate.len() as f64;
        let rounds = (time / round).floor();
        // How long the source is in each phase: in whole rounds, and in the one that the end cuts off.
        let lasts =
            |index: usize| rounds * phase + (time - rounds * round - index as f64 * phase).clamp(0.0, phase);
        let expected: f64 = spec.rate.iter().enumerate().map(|(index, rate)| rate.0 * lasts(index)).sum();
        self.arriving += expected;
        if self.arriving <= MAX_ARRIVALS {
            return Ok(());
        }
        let left = (MAX_ARRIVALS - (self.arriving - expected)).max(0.0);
        let most = (left / time).floor();
        Err((
            format!("about {expected:.0} sessions"),
            format!("at most {MAX_ARRIVALS:.0} in all: \"{most:.0} /s\" on average over {time} s"),
        ))
    }

    /// Counts the packets that a source sends at most beside those of others.
    pub(super) fn bound_packets(&mut self, key: String, most: f64, what: &str) -> Result<(), ScenarioError> {
        self.offered += most;
        if self.offered <= MAX_PACKETS {
            return Ok(());
        }
        let fewer =
            if what == "bursts" { "longer bursts and pauses" } else { "a lower rate, larger packets" };
        Err(ScenarioError::new(key, format!("up to {most:.0} {what}"))
            .hint(format!("{MAX_PACKETS:.0} in all are enough: {fewer}, or less time")))
    }

    /// Counts the links that the paths of so many flows cross, beside those of others.
    pub(super) fn bound_routes(
        &mut self,
        key: String,
        (paths, count): (&[PathPlan], usize),
    ) -> Result<(), ScenarioError> {
        let hops: usize = paths.iter().map(|path| path.forward.len() + path.back.len()).sum();
        self.crossed = self.crossed.saturating_add(hops.saturating_mul(count));
        if self.crossed <= MAX_CROSSED {
            return Ok(());
        }
        Err(ScenarioError::new(key, format!("{count} flows of {hops} links there and back"))
            .hint(format!("{MAX_CROSSED} links of all flows are enough: fewer flows, or shorter paths")))
    }

    /// Checks that each flow without an end is slowed down by something: else its window, and the work with it, grows and grows.
    pub(super) fn limits(&mut self) -> Result<(), ScenarioError> {
        // BBR sees a bandwidth that grows and grows, whatever is lost.
        let [free, unrated] = [self.free_links(true), self.free_links(false)];
        let over = |free: &[bool], path: &PathPlan| path.forward.iter().all(|index| free[*index as usize]);
        self.bound_rates(&|path: &PathPlan| over(&free, path))?;
        if self.file.transport.receive_buffer.is_some() {
            return Ok(());
        }
        for (flow, name) in self.named_flows() {
            let free = if flow.config.cc.rule == RuleKind::Bbr { &unrated } else { &free };
            let Some(path) = flow.paths.iter().find(|path| over(free, path)) else { continue };
            if let (Supply::Bulk, Some(first)) = (&flow.supply, path.forward.first()) {
                return Err(self.unlimited(name, &self.graph.cables[*first as usize / 2].name));
            }
        }
        Ok(())
    }

    /// Checks that what is said of detecting shared bottlenecks is asked for by somebody.
    pub(super) fn detection(&self) -> Result<(), ScenarioError> {
        if self.file.transport.detector.is_none() {
            return Ok(());
        }
        let plan = &self.built.plan;
        let flows = plan.flows.iter().map(|flow| &flow.config);
        let mut configs = flows.chain(plan.arrivals.iter().map(|arrivals| &arrivals.config));
        if configs.any(|config| config.coupling == Coupling::Adaptive) {
            return Ok(());
        }
        Err(ScenarioError::new("transport.detector", "no flow asks which of its paths share a bottleneck")
            .hint("write `coupling = \"adaptive\"` or `profile = \"default\"`, or take it out")
            .at(line_of(self.text, "transport", 0, "detector")))
    }

    /// Bounds the packets of flows with a rate of their own or a size that no link slows down.
    fn bound_rates(&mut self, crosses_free: &impl Fn(&PathPlan) -> bool) -> Result<(), ScenarioError> {
        let of_flow = |(flow, name): (&FlowPlan, &String)| match &flow.supply {
            Supply::Steady { rate, .. } if flow.paths.iter().any(crosses_free) => {
                let time = flow.stop.min(self.built.end).since(flow.start);
                Some((name.clone(), "rate", time.as_secs_f64() / rate.time_for(PAYLOAD).as_secs_f64()))
            }
            Supply::File(bytes) if flow.paths.iter().any(crosses_free) => {
                Some((name.clone(), "size", *bytes as f64 / PAYLOAD as f64))
            }
            _ => None,
        };
        let flows: Vec<_> = self.named_flows().filter_map(of_flow).collect();
        for (name, key, packets) in flows {
            self.bound_packets(format!("flow.{name}.{key}"), packets, "packets").map_err(|error| {
                let index = self.file.flow.iter().position(|declared| declared.name == name);
                self.locate(error, "flow", index.unwrap_or(0))
            })?;
        }
        Ok(())
    }

    /// All flows that are there from the beginning, with the names of those that declare them.
    pub(super) fn named_flows(&self) -> impl Iterator<Item = (&FlowPlan, &String)> {
        let groups = self.built.groups.iter();
        let names = groups.flat_map(|group| std::iter::repeat_n(&group.name, group.count));
        self.built.plan.flows.iter().zip(names)
    }

    /// Of each link whether packets cross it at any rate, and hardly one is lost if that counts, at some time of the run.
    fn free_links(&self, loss_counts: bool) -> Vec<bool> {
        self.ever(|state| !(state.rated || loss_counts && loses(state.loss)))
    }

    /// Of each link whether this holds of it at some time of the run.
    pub(super) fn ever(&self, holds: impl Fn(&LinkState<'_>) -> bool) -> Vec<bool> {
        let mut changes = BTreeMap::<u32, Vec<_>>::new();
        for change in &self.built.plan.script {
            changes.entry(change.link).or_default().push(change);
        }
        changes.values_mut().for_each(|changes| changes.sort_by_key(|change| change.at));
        let held = |(index, link): (u32, &LinkConfig)| {
            let rated = !matches!(link.rate, RateModel::Unlimited);
            let mut state = LinkState { rated, loss: &link.loss, down: false };
            // What happens at one moment counts together.
            let (mut since, mut has_held) = (Time::ZERO, false);
            for change in changes.get(&index).into_iter().flatten() {
                has_held |= change.at > since && holds(&state);
                since = change.at;
                match &change.what {
                    LinkChange::Rate(rate) => state.rated = !matches!(rate, RateModel::Unlimited),
                    LinkChange::Loss(loss) => state.loss = loss,
                    LinkChange::Down(down) => state.down = *down,
                    LinkChange::Delay(_) => {}
                }
            }
            has_held || holds(&state)
        };
        let links = self.graph.cables.iter().flat_map(|cable| &cable.links);
        (0..).zip(links).map(held).collect()
    }

    /// The error for a flow that nothing slows down, at a link that it crosses.
    fn unlimited(&self, flow: &str, link: &str) -> ScenarioError {
        let message = format!("nothing slows flow \"{flow}\" down: the link has no rate");
        let error = ScenarioError::new(format!("link.{link}.rate"), message).hint(
            "write one, as `rate = \"1 Gbit/s\"`; or give the flow a `size` or a `rate`, or [transport] a `receive_buffer`",
        );
        if let Some(index) = self.file.link.iter().position(|declared| declared.name == link) {
            return self.locate(error, "link", index);
        }
        let line = |table: &str| line_of(self.text, table, 0, "");
        ScenarioError { key: "links.rate".to_owned(), ..error }.at(line("links").or_else(|| line("topology")))
    }
}

/// What a link is like for a time.
pub(super) struct LinkState<'a> {
    rated: bool,
    pub(super) loss: &'a LossModel,
    pub(super) down: bool,
}

/// Whether a link loses enough for a window to end somewhere.
fn loses(loss: &LossModel) -> bool {
    match loss {
        LossModel::None => false,
        LossModel::Bernoulli(share) => *share >= LEAST_LOSS,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    const LINK: &str = "duration = \"1000 s\"\n[[link]]\nname = \"x\"\nrate = \"100 Mbit/s\"\n";

    fn told(text: &str) -> String {
        Scenario::parse(text, "s.toml").err().map_or("right".to_owned(), |error| error.to_string())
    }

    #[test]
    fn sessions_that_arrive_are_bounded_by_how_many_are_expected() {
        let source = |name: &str, keys: &str| {
            format!("[[arrivals]]\nname = \"{name}\"\npaths = [\"x\"]\nsize = \"1 B\"\n{keys}\n")
        };
        let of = |keys: &str| told(&format!("{LINK}{}", source("a", keys)));
        let many = "s.toml:9: arrivals.a.rate: about 1000000000 sessions\n  hint    at most 10000000 in all: \"10000 /s\" on average over 1000 s";
        assert_eq!(of("rate = [\"1000000 /s\"]"), many);
        assert_eq!(of("rate = [\"10000 /s\"]"), "right");
        assert_eq!(of("rate = [\"1000000 /s\"]\nstop = \"9 s\""), "right", "only so long as it lasts");
        let phases = "rate = [\"1000000 /s\", \"1 /s\"]";
        assert_eq!(of(&format!("{phases}\nphase = \"9 s\"\nstart = \"990 s\"")), "right");
        let cut = of(&format!("{phases}\nphase = \"400 s\""));
        assert!(cut.contains("about 600000400 sessions"), "the last round is cut off: {cut}");
        let half = "rate = [\"6000 /s\"]";
        let both = told(&format!("{LINK}{}{}", source("a", half), source("b", half)));
        let rest = "s.toml:14: arrivals.b.rate: about 6000000 sessions\n  hint    at most 10000000 in all: \"4000 /s\" on average over 1000 s";
        assert_eq!(both, rest);
    }

    #[test]
    fn packets_that_nothing_slows_down_are_bounded() {
        let of = |keys: &str| told(&format!("{LINK}[[cbr]]\nname = \"c\"\npath = [\"x\"]\n{keys}\n"));
        let many = "s.toml:8: cbr.c.rate: up to 12500000000 packets\n  hint    10000000000 in all are enough: a lower rate, larger packets, or less time";
        assert_eq!(of("rate = \"10 Gbit/s\"\npacket = \"100 B\""), many);
        assert_eq!(of("rate = \"8 Gbit/s\"\npacket = \"100 B\""), "right");
        assert_eq!(of("rate = \"10 Gbit/s\"\npacket = \"100 B\"\nstop = \"500 s\""), "right");
        let short =
            of("rate = \"1 kbit/s\"\non = \"1 us\"\noff = \"1 us\"\nstart = \"1 s\"\nbursts = \"fixed\"");
        assert_eq!(short, "right");
        let day = "duration = \"24 h\"\n[[link]]\nname = \"x\"\ndelay = \"1 ms\"\n[[cbr]]\nname = \"c\"\npath = [\"x\"]\nrate = \"1 kbit/s\"\non = \"1 us\"\noff = \"0 s\"\n";
        let wanted = "s.toml:9: cbr.c.on: up to 86400000000 bursts\n  hint    10000000000 in all are enough: longer bursts and pauses, or less time";
        assert_eq!(told(day), wanted);
        let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\ncount = 10\n";
        let datagrams = |size: u64| {
            told(&format!("{LINK}{flow}datagrams = {{ rate = \"100 Mbit/s\", size = \"{size} B\" }}\n"))
        };
        assert!(datagrams(1).starts_with("s.toml:9: flow.f.datagrams.rate: up to 125000000000 packets"));
        assert_eq!(datagrams(100), "right");
        let steady = "duration = \"1000 s\"\n[[link]]\nname = \"x\"\ndelay = \"1 ms\"\n[[flow]]\nname = \"f\"\npaths = [\"x\"]\nrate = ";
        let of = |rate: &str| told(&format!("{steady}\"{rate} Gbit/s\"\n"));
        assert!(of("1000").starts_with("s.toml:8: flow.f.rate: up to 83333333333 packets"), "{}", of("1000"));
        assert_eq!(of("100"), "right");
    }

    #[test]
    fn more_packets_at_once_than_fit_in_memory_end_the_run() {
        let of = |keys: &str, source: &str| {
            let text = format!(
                "duration = \"1000 s\"\n[[link]]\nname = \"x\"\nrate = \"1 Gbit/s\"\n[[link]]\nname = \"y\"\n{keys}\n{source}\n"
            );
            let scenario = Scenario::parse(&text, "s.toml").unwrap();
            scenario.run(1).map_or_else(|error| error.to_string(), |_| "right".to_owned())
        };
        let cbr = "[[cbr]]\nname = \"c\"\npath = [\"x\", \"y\"]\nrate = \"500 Mbit/s\"";
        let flows = "[[flow]]\nname = \"f\"\npaths = [\"y\"]\ncount = 1000\nsize = \"1 GB\"\n[transport]\ninitial_window = 1000";
        let far = "delay = \"499 s\"";
        for (keys, source) in [(far, cbr), ("rate = \"1 kbit/s\"\nqueue = \"1000 GB\"", cbr), (far, flows)] {
            let told = of(keys, source);
            assert!(told.starts_with("s.toml:5: link.y: more than 100000 packets wait or are"), "{told}");
        }
        assert_eq!(of("delay = \"1 s\"", &format!("{cbr}\nstop = \"3 s\"")), "right");
    }

    #[test]
    fn a_link_counts_as_free_when_it_is_so_at_some_time() {
        let of = |link: &str, events: &str| {
            told(&format!(
                "duration = \"60 s\"\n[[link]]\nname = \"a\"\ndelay = \"1 us\"\n{link}\n[[flow]]\nname = \"f\"\npaths = [\"a\"]\n{events}"
            ))
        };
        let event = |at: &str, what: &str| format!("[[event]]\nat = \"{at}\"\nlink = \"a\"\n{what}\n");
        let is_free = |told: String| told.contains("nothing slows flow \"f\" down");
        assert!(is_free(of("", &event("59 s", "rate = \"1 Mbit/s\""))));
        assert!(is_free(of("", &event("0 s", "loss = \"0 %\""))));
        assert!(is_free(of("loss = \"0.000000001 %\"", "")));
        assert!(is_free(of("loss = \"1 %\"", &event("5 s", "loss = \"0 %\""))));
        assert_eq!(of("", &event("0 s", "rate = \"1 Mbit/s\"")), "right");
        assert_eq!(of("loss = \"1 %\"", &event("5 s", "loss = \"0 %\"\nrate = \"1 Mbit/s\"")), "right");
        let bbr = |loss: &str| of(loss, "rule = \"bbr\"\n");
        assert!(is_free(bbr("loss = \"1 %\"")));
        assert_eq!(bbr("rate = \"1 Gbit/s\""), "right");
        let file = told(
            "duration = \"60 s\"\n[[link]]\nname = \"a\"\ndelay = \"1 us\"\n[[flow]]\nname = \"f\"\npaths = [\"a\"]\nsize = \"100000 GB\"\n",
        );
        assert!(file.starts_with("s.toml:8: flow.f.size: up to 71428571429 packets"), "{file}");
    }

    #[test]
    fn what_would_not_be_kept_is_refused() {
        let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
        let cbr = "[[cbr]]\nname = \"c\"\npath = [\"x\"]\n";
        let cases = [
            (
                format!("{cbr}rate = \"1000 Gbit/s\"\npacket = \"40 B\"\nstop = \"1 ms\""),
                "s.toml:8: cbr.c.rate: 40 B every ",
            ),
            (format!("{cbr}rate = \"1 Mbit/s\"\noff = \"1 s\""), "s.toml:9: cbr.c.off: without `on`"),
            (
                format!("{flow}stop = \"1 s\"\nscript = [[\"2 s\", \"1 B\"]]"),
                "s.toml:9: flow.f.script: entry 1 is after the end",
            ),
            (format!("{flow}size = \"1000001 GB\""), "s.toml:8: flow.f.size: more bytes"),
            (format!("[transport]\nrto_min = \"0 s\"\n{flow}"), "s.toml:6: transport.rto_min: out of range"),
            (
                format!("{cbr}rate = \"1 Mbit/s\"\n[transport]\nack_every = 0"),
                "s.toml:10: transport.ack_every: out of range",
            ),
            (
                format!("{flow}rule = \"bbr\"\n[transport]\ninitial_ssthresh = 9"),
                "s.toml:10: transport.initial_ssthresh: flow.f has the rule \"bbr\"",
            ),
        ];
        for (keys, wanted) in cases {
            let told = told(&format!("{LINK}{keys}\n"));
            assert!(told.starts_with(wanted), "{told}\n{wanted}");
        }
    }

    #[test]
    fn rates_that_change_all_the_time_are_too_many() {
        let of = |phase: &str| {
            told(&format!(
                "{LINK}[[arrivals]]\nname = \"a\"\npaths = [\"x\"]\nsize = \"1 B\"\nrate = [\"1 /s\", \"2 /s\"]\n\
                 phase = \"{phase}\"\n"
            ))
        };
        let wanted = "s.toml:10: arrivals.a.phase: too short\n  hint    at most a million phases fit in a run: \"1000000 ns\" or more";
        assert_eq!(of("1 ns"), wanted);
        assert_eq!(of("1000000 ns"), "right");
        assert!(of("0 s").contains("how long does each rate last?"));
    }

    #[test]
    fn of_too_many_flows_the_most_numerous_are_told() {
        let many = "[[flow]]\nname = \"a\"\npaths = [\"x\"]\ncount = 100000\n";
        let one = "[[flow]]\nname = \"b\"\npaths = [\"x\"]\n";
        let wanted =
            "flow.a.count: 100000 flows, 100001 in all\n  hint    a scenario has from 1 to 100000 flows";
        assert_eq!(told(&format!("{LINK}{many}{one}")), format!("s.toml:8: {wanted}"));
        assert_eq!(told(&format!("{LINK}{one}{many}")), format!("s.toml:11: {wanted}"));
        let none = many.replace("100000", "0");
        assert!(told(&format!("{LINK}{one}{none}")).starts_with("s.toml:11: flow.a.count: 0 flows\n"));
    }

    #[test]
    fn what_nothing_slows_down_is_told_with_the_link_that_lets_it() {
        let text = |more: &str| {
            format!(
                "duration = \"1 s\"\n{more}[[link]]\nname = \"x\"\ndelay = \"1 ms\"\n[[link]]\nname = \"y\"\nrate = \"1 Mbit/s\"\n\
                 [[flow]]\nname = \"f\"\n"
            )
        };
        let of = |more: &str, flow: &str| told(&format!("{}{flow}\n", text(more)));
        let hint = "\n  hint    write one, as `rate = \"1 Gbit/s\"`; or give the flow a `size` or a `rate`, or [transport] a `receive_buffer`";
        let wanted =
            format!("s.toml:2: link.x.rate: nothing slows flow \"f\" down: the link has no rate{hint}");
        assert_eq!(of("", "paths = [\"y\", \"x\"]"), wanted);
        for flow in [
            "paths = [[\"x\", \"y\"]]",
            "paths = [\"x\"]\nsize = \"1 MB\"",
            "paths = [\"x\"]\nrate = \"1 Mbit/s\"",
        ] {
            assert_eq!(of("", flow), "right", "{flow}");
        }
        for limit in [
            "[transport]\nreceive_buffer = \"1 MB\"\n",
            "[links]\nloss = \"1 %\"\n",
            "[[event]]\nat = \"0 s\"\nlink = \"x\"\nrate = \"1 Mbit/s\"\n",
        ] {
            assert_eq!(of(limit, "paths = [\"x\"]"), "right", "{limit}");
        }
        let tree = "duration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n[links]\ndelay = \"1 ms\"\n\
                    [[traffic]]\nname = \"t\"\npattern = \"permutation\"\n";
        assert!(
            told(tree).starts_with("s.toml:5: links.rate: nothing slows flow \"t\" down: "),
            "{}",
            told(tree)
        );
    }
}
