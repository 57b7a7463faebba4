//! A bound on how long a run takes: how often packets cross links in it, at most.

use anabranch_link::{LossModel, RateModel};
use anabranch_wire::{Span, Time};

use super::Builder;
use super::limits::PAYLOAD;
use crate::scenario::error::{ScenarioError, line_of};
use crate::scenario::units::PACKET;
use anabranch_sim::network::{Change, FlowPlan, LinkChange, PathPlan, Sizes, Supply};

/// Most crossings of a run: hours of work.
const MAX_CROSSINGS: f64 = 1e11;
/// Most looks at things: half a minute.
const MAX_LOOKS: f64 = 1e9;

impl Builder<'_> {
    /// Bounds the crossings of all links, by their rates and by what is sent over them.
    pub(super) fn bound_work(&self) -> Result<(), ScenarioError> {
        let (room, best) = (self.room(), self.at_best());
        let mut sent = vec![0.0; room.len()];
        let mut send = |links: &[u32], packets: f64| {
            links.iter().for_each(|link| sent[*link as usize] += packets);
        };
        let duration = self.built.end.since(Time::ZERO).as_secs_f64();
        for flow in &self.built.plan.flows {
            let share = flow.stop.min(self.built.end).since(flow.start).as_secs_f64() / duration;
            for path in &flow.paths {
                let packets = self.offered(flow, path, &best).min(narrowest(&room, path) * share);
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
        let how_often =
            if sum.is_finite() { format!("up to {sum:.1e} times") } else { "without end".to_owned() };
        let message =
            format!("packets would cross links {how_often}, link \"{name}\" most often: days of work");
        Err(ScenarioError::new("duration", message)
            .hint(format!(
                "at most {MAX_CROSSINGS:.0e} times: less time, lower rates, longer delays, or fewer flows"
            ))
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
        let in_all = |rate: &RateModel| rate_of(rate) * seconds;
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
    fn offered(&self, flow: &FlowPlan, path: &PathPlan, best: &[AtBest]) -> f64 {
        let time = flow.stop.min(self.built.end).since(flow.start);
        let bytes = match &flow.supply {
            Supply::File(bytes) => *bytes as f64,
            Supply::Steady { rate, .. } => rate.as_bytes_f64() * time.as_secs_f64(),
            Supply::Script(entries) => entries.iter().map(|(_, bytes)| *bytes as f64).sum(),
            Supply::Datagrams { pause, .. } => return time.as_secs_f64() / pause.as_secs_f64(),
            Supply::Bulk => return Self::windows(time, (flow, path), best),
        };
        bytes / PAYLOAD as f64 + 1.0
    }

    /// Packets of all windows that follow each other on a path, where a receive buffer or losses bound these.
    fn windows(time: Span, (flow, path): (&FlowPlan, &PathPlan), best: &[AtBest]) -> f64 {
        let link = |link: &u32| best[*link as usize];
        let delays = path.forward.iter().chain(&path.back).map(|index| link(index).least().0);
        let round_trip = delays.fold(Span::ZERO, |sum, delay| sum + delay).as_secs_f64();
        let buffer = flow.config.memory.max_window as f64 / PAYLOAD as f64;
        let loss = path.forward.iter().map(|index| link(index).least().1).fold(0.0, f64::max);
        // No rule keeps a larger window at this loss: CUBIC's goes with p^-3/4 (RFC 9438 section 5).
        let window = buffer.min(4.0 / loss.powf(0.75));
        // And what goes over those links when they have a rate.
        let rated = path.forward.iter().map(link).filter(|link| link.free.is_some());
        let rated = rated.map(|link| link.rate).fold(0.0, f64::max);
        (window / round_trip + rated) * time.as_secs_f64()
    }

    /// What each link is at best, when nothing but losses and delays slow it down.
    fn at_best(&self) -> Vec<AtBest> {
        let links = || self.graph.cables.iter().flat_map(|cable| &cable.links);
        let mut now: Vec<_> =
            links().map(|link| (rate_of(&link.rate), link.delay, loss_of(&link.loss))).collect();
        let mut changes: Vec<&Change> = self.built.plan.script.iter().collect();
        changes.sort_by_key(|change| change.at);
        let at_once = changes.iter().take_while(|change| change.at == Time::ZERO).count();
        let (first, later) = changes.split_at(at_once);
        first.iter().for_each(|change| apply(&mut now[change.link as usize], &change.what));
        let mut best: Vec<AtBest> = now.iter().map(|state| AtBest::of(*state).or(*state)).collect();
        for moment in later.chunk_by(|a, b| a.at == b.at) {
            moment.iter().for_each(|change| apply(&mut now[change.link as usize], &change.what));
            for change in moment {
                let link = change.link as usize;
                best[link] = best[link].or(now[link]);
            }
        }
        best
    }
}

/// Full packets that a link can carry a second, its delay and its loss.
type State = (f64, Span, f64);

fn apply((rate, delay, loss): &mut State, change: &LinkChange) {
    match change {
        LinkChange::Rate(other) => *rate = rate_of(other),
        LinkChange::Delay(other) => *delay = *other,
        LinkChange::Loss(other) => *loss = loss_of(other),
        LinkChange::Down(_) => {}
    }
}

/// A link at its best.
#[derive(Clone, Copy, Debug)]
struct AtBest {
    /// Its highest rate, where it has one.
    rate: f64,
    /// The shortest delay and the least loss while it has no rate.
    free: Option<(Span, f64)>,
    /// And at all times.
    always: (Span, f64),
}

impl AtBest {
    fn of((_, delay, loss): State) -> Self {
        Self { rate: 0.0, free: None, always: (delay, loss) }
    }

    fn or(self, (rate, delay, loss): State) -> Self {
        let least = |known: (Span, f64)| (known.0.min(delay), known.1.min(loss));
        let always = least(self.always);
        if rate.is_finite() {
            return Self { rate: self.rate.max(rate), always, ..self };
        }
        Self { free: Some(self.free.map_or((delay, loss), least)), always, ..self }
    }

    /// Delay and loss where nothing but they slow anybody down.
    fn least(self) -> (Span, f64) {
        self.free.unwrap_or(self.always)
    }
}

/// Full packets a second.
fn rate_of(rate: &RateModel) -> f64 {
    if let RateModel::Fixed(rate) = rate { rate.as_bytes_f64() / PACKET as f64 } else { f64::INFINITY }
}

fn loss_of(loss: &LossModel) -> f64 {
    if let LossModel::Bernoulli(loss) = loss { *loss } else { 0.0 }
}

/// What the narrowest link of a path can carry.
fn narrowest(room: &[f64], path: &PathPlan) -> f64 {
    path.forward.iter().map(|link| room[*link as usize]).fold(f64::INFINITY, f64::min)
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
        let wanted = "s:1: duration: packets would cross links up to 6.0e12 times, link \"x\" most often: days of work\n  hint    at most 1e11 times: less time, lower rates, longer delays, or fewer flows";
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
        let event = |what: &str| format!("{buffer}\n[[event]]\nat = \"1 s\"\nlink = \"x\"\n{what}\n");
        assert!(told("1 h", "delay = \"100 ms\"", &event("delay = \"0 s\"")).contains("days of work"));
        let event = event("loss = \"0.0001 %\"").replace(buffer, "");
        assert!(told("24 h", "delay = \"1 ms\"\nloss = \"1 %\"", &event).contains("days of work"));
        let fast = "rate = \"10000 Gbit/s\"\ndelay = \"1 ms\"\nloss = \"1 %\"";
        assert_eq!(told("24 h", fast, ""), "right");
        let event = event.replace("loss = \"0.0001 %\"", "rate = \"10000 Gbit/s\"");
        assert!(told("24 h", "delay = \"1 ms\"\nloss = \"1 %\"", &event).contains("days of work"));
    }
}
