//! A bound on how long a run takes: how often packets cross links in it, at most.

use anabranch_link::{LinkConfig, LossModel, RateModel};
use anabranch_wire::{Span, Time};

use super::Builder;
use super::limits::PAYLOAD;
use crate::network::{FlowPlan, LinkChange, PathPlan, Sizes, Supply};
use crate::scenario::error::{ScenarioError, line_of};
use crate::scenario::units::PACKET;

/// Most crossings of a run: hours of work.
const MAX_CROSSINGS: f64 = 1e11;
/// Most looks at things: half a minute.
const MAX_LOOKS: f64 = 1e9;

impl Builder<'_> {
    /// Bounds the crossings of all links, by their rates and by what is sent over them.
    pub(super) fn bound_work(&self) -> Result<(), ScenarioError> {
        let room = self.room();
        let mut sent = vec![0.0; room.len()];
        let mut send = |links: &[u32], packets: f64| {
            links.iter().for_each(|link| sent[*link as usize] += packets);
        };
        let duration = self.built.end.since(Time::ZERO).as_secs_f64();
        for flow in &self.built.plan.flows {
            let share = flow.stop.min(self.built.end).since(flow.start).as_secs_f64() / duration;
            for path in &flow.paths {
                let packets = self.offered(flow, path).min(narrowest(&room, path) * share);
                send(&path.forward, packets);
                send(&path.back, packets);
            }
        }
        for (arrivals, spec) in self.built.plan.arrivals.iter().zip(&self.file.arrivals) {
            let mean = match arrivals.sizes {
                Sizes::Fixed(bytes) => bytes as f64,
                Sizes::Exponential(mean) | Sizes::Pareto { mean, .. } => mean,
            };
            let often = spec.rate.iter().map(|rate| rate.0).fold(0.0, f64::max);
            let time = arrivals.stop.min(self.built.end).since(arrivals.start).as_secs_f64();
            for path in &arrivals.paths {
                let packets = (often * time * (mean / PAYLOAD as f64 + 1.0)).min(narrowest(&room, path));
                send(&path.forward, packets);
                send(&path.back, packets);
            }
        }
        for burst in &self.built.plan.bursts {
            let time = burst.stop.min(self.built.end).since(burst.start).as_secs_f64();
            send(&burst.links, time / burst.every.as_secs_f64());
        }
        let crossings = || sent.iter().zip(&room).map(|(sent, room)| sent.min(*room));
        let sum: f64 = crossings().sum();
        if sum <= MAX_CROSSINGS {
            return Ok(());
        }
        let busiest = crossings().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let name = busiest.map_or("", |(index, _)| self.graph.cables[index / 2].name.as_str());
        let message = format!(
            "packets would cross links up to {sum:.1e} times, link \"{name}\" most often: days of work"
        );
        Err(ScenarioError::new("duration", message)
            .hint(format!("at most {MAX_CROSSINGS:.0e} times: less time, lower rates, or fewer flows"))
            .at(line_of(self.text, "", 0, "duration")))
    }

    /// Bounds how often flows, links and detectors are looked at.
    pub(super) fn bound_looks(&self) -> Result<(), ScenarioError> {
        let looks =
            (self.built.end.since(self.built.warm_up).as_nanos() / self.built.sample.as_nanos()) as f64;
        let built = &self.built;
        // A detector takes as long as four others.
        let seen = built.plan.flows.len() + self.graph.cables.len() * 2 + built.detectors.len() * 4;
        if looks * seen as f64 <= MAX_LOOKS {
            return Ok(());
        }
        let least = built.sample.mul_f64(looks * seen as f64 / MAX_LOOKS);
        let line = |key: &str| line_of(self.text, "", 0, key);
        let message = format!("{looks:.0} looks at {seen} flows, links and detectors");
        Err(ScenarioError::new("sample", message)
            .hint(format!("look less often: `sample = \"{:.0} ms\"` or more", least.as_millis_f64().ceil()))
            .at(line("sample").or_else(|| line("duration"))))
    }

    /// Full packets that each link can carry in the run, at the fastest rate that it ever has.
    fn room(&self) -> Vec<f64> {
        let seconds = self.built.end.since(Time::ZERO).as_secs_f64();
        let in_all = |rate: &RateModel| match rate {
            RateModel::Fixed(rate) => rate.as_bytes_f64() * seconds / PACKET as f64,
            _ => f64::INFINITY,
        };
        let links = self.graph.cables.iter().flat_map(|cable| &cable.links);
        let mut room: Vec<f64> = links.map(|link| in_all(&link.rate)).collect();
        for change in &self.built.plan.script {
            if let LinkChange::Rate(rate) = &change.what {
                let known = &mut room[change.link as usize];
                let before = if change.at == Time::ZERO { 0.0 } else { *known };
                *known = before.max(in_all(rate));
            }
        }
        room
    }

    /// Packets that a flow has to send over a path, whatever the path takes.
    fn offered(&self, flow: &FlowPlan, path: &PathPlan) -> f64 {
        let time = flow.stop.min(self.built.end).since(flow.start);
        let bytes = match &flow.supply {
            Supply::File(bytes) => *bytes as f64,
            Supply::Steady { rate, .. } => rate.as_bytes_f64() * time.as_secs_f64(),
            Supply::Script(entries) => entries.iter().map(|(_, bytes)| *bytes as f64).sum(),
            Supply::Datagrams { pause, .. } => return time.as_secs_f64() / pause.as_secs_f64(),
            Supply::Bulk => return self.windows(time, flow, path),
        };
        bytes / PAYLOAD as f64 + 1.0
    }

    /// Packets of all windows that follow each other on a path, where a receive buffer or losses bound these.
    fn windows(&self, time: Span, flow: &FlowPlan, path: &PathPlan) -> f64 {
        let link = |index: &u32| &self.graph.cables[*index as usize / 2].links[*index as usize % 2];
        let links = path.forward.iter().chain(&path.back).map(link);
        let round_trip = links.fold(Span::ZERO, |sum, link| sum + link.delay).as_secs_f64();
        let buffer = flow.config.memory.max_window as f64 / PAYLOAD as f64;
        let loss = path.forward.iter().map(link).map(loss_of).fold(0.0, f64::max);
        // No rule keeps a larger window at this loss: CUBIC's goes with p^-3/4 (RFC 9438 section 5).
        let window = buffer.min(4.0 / loss.powf(0.75));
        window * time.as_secs_f64() / round_trip
    }
}

/// What the narrowest link of a path can carry.
fn narrowest(room: &[f64], path: &PathPlan) -> f64 {
    path.forward.iter().map(|link| room[*link as usize]).fold(f64::INFINITY, f64::min)
}

fn loss_of(link: &LinkConfig) -> f64 {
    if let LossModel::Bernoulli(loss) = link.loss { loss } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    fn told(time: &str, link: &str, rest: &str) -> String {
        let flow = "[[flow]]\nname = \"f\"\npaths = [\"x\"]\n";
        let text = format!("duration = \"{time}\"\n[[link]]\nname = \"x\"\n{link}\n{flow}{rest}\n");
        Scenario::parse(&text, "s").err().map_or("right".to_owned(), |error| error.to_string())
    }

    #[test]
    fn what_would_run_for_days_is_refused() {
        let fast = "rate = \"10000 Gbit/s\"";
        let wanted = "s:1: duration: packets would cross links up to 6.0e12 times, link \"x\" most often: days of work\n  hint    at most 1e11 times: less time, lower rates, or fewer flows";
        assert_eq!(told("1 h", fast, ""), wanted);
        assert_eq!(told("1 s", fast, ""), "right");
        assert_eq!(told("24 h", "rate = \"1 Gbit/s\"", ""), "right");
        assert_eq!(told("1 h", fast, "size = \"1 GB\""), "right", "it ends with the file");
        assert_eq!(told("1 h", fast, "stop = \"1 s\""), "right", "it stops soon");
        let event = "[[event]]\nat = \"1 s\"\nlink = \"x\"\nrate = \"10000 Gbit/s\"";
        assert_eq!(told("1 h", "rate = \"1 Mbit/s\"", event), wanted);
    }

    #[test]
    fn looks_are_bounded_by_what_is_looked_at() {
        let rest = "count = 100000\nrate = \"1 bit/s\"";
        let text = |sample: &str| {
            format!(
                "duration = \"2 s\"\nsample = \"{sample}\"\n[[link]]\nname = \"x\"\nrate = \"10 Mbit/s\"\n\
                 [[flow]]\nname = \"f\"\npaths = [\"x\"]\n{rest}\n"
            )
        };
        let wanted = "s:2: sample: 1000000 looks at 100002 flows, links and detectors\n  hint    look less often: `sample = \"1 ms\"` or more";
        assert_eq!(Scenario::parse(&text("2 us"), "s").expect_err("often").to_string(), wanted);
        assert!(Scenario::parse(&text("1 ms"), "s").is_ok());
    }

    #[test]
    fn windows_bound_the_work_where_no_rate_does() {
        let buffer = "[transport]\nreceive_buffer = \"1 GB\"";
        assert!(told("1 h", "delay = \"1 us\"", buffer).contains("days of work"));
        assert_eq!(told("1 h", "delay = \"100 ms\"", buffer), "right");
        assert!(told("24 h", "delay = \"1 us\"\nloss = \"0.01 %\"", "").contains("days of work"));
        assert_eq!(told("24 h", "delay = \"1 ms\"\nloss = \"1 %\"", ""), "right");
    }
}
