//! `anabranch sim compare`: a scenario in virtual time and again over real sockets, side by side.
//!
//! Both use the same engine, settings and link model. Over sockets, packets are sealed datagrams on loopback, time is real,
//! and each link of the scenario is an emulated path. So the difference is what the simulator leaves out: the operating
//! system, encryption, and the driver. The result over sockets is compared with the mean of several simulated runs. The
//! scenario may have only bulk flows whose paths are one link each. The relays of a path agent are real too, and its
//! decisions are compared.

mod relays;
mod sockets;

use std::sync::atomic::Ordering;

use anabranch_experiments::scenario::{
    Built, Extras, Metrics, Report, Scenario, ScenarioError, Setting, Summary, variants,
};
use anabranch_sim::network::{FlowPlan, Supply};
use anabranch_wire::{Span, Time};
use clap::Args;
use serde::Serialize;

use self::relays::DecisionRow;
use self::sockets::Measured;
use super::args::Seeds;
use super::jobs::{Crew, in_order};
use super::load::{load, mistake, wrong_setting};
use super::stop::stop_on_interrupt;
use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, Kind};
use crate::ui::out::{self, Stream};

/// Arguments of `sim compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A file or a built-in scenario
    #[arg(value_name = "SCENARIO")]
    pub scenario: String,
    /// A key and its value, as duration=20s; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Seeds of the simulator; sockets use the first [default: eight, from the scenario's own on]
    #[arg(long, value_name = "SEEDS")]
    pub seeds: Option<Seeds>,
    /// By how many per cent goodputs may differ from the simulator's
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = per_cent, allow_negative_numbers = true)]
    pub within: f64,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// Longest comparison: it runs in real time.
const MAX_DURATION: Span = Span::from_secs(300);
/// Default number of simulated runs.
const RUNS: u64 = 8;
/// Most flows and links.
const MAX_FLOWS: usize = 16;

/// Reads a percentage above zero: the results are never exactly equal.
fn per_cent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse();
    let number = number.ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number of per cent above 0; write 5 or 2.5"))
}

/// The result.
#[derive(Debug, Serialize)]
struct Comparison {
    scenario: String,
    seeds: Vec<u64>,
    within_percent: f64,
    flows: Vec<Row>,
    /// Those of path agents on relays.
    decisions: Vec<DecisionRow>,
    ok: bool,
}

/// A flow's goodput in both, in Mbit/s.
#[derive(Debug, Serialize)]
struct Row {
    flow: String,
    /// The mean of its runs.
    simulator_mbit_s: f64,
    /// Half the width of the mean's 95 % interval; `None` for one run.
    simulator_ci95: Option<f64>,
    sockets_mbit_s: f64,
    difference_percent: f64,
    ok: bool,
}

/// Runs both and compares.
pub(super) fn run(args: &CompareArgs, context: &Context) -> Result<(), Failure> {
    let base = load(&args.scenario)?;
    let mut variants = variants(&base, &args.set).map_err(|error| wrong_setting(&error))?;
    if variants.len() > 1 {
        return Err(Failure::usage("a comparison of several variants").hint("give each key one value"));
    }
    let scenario = variants.remove(0).scenario;
    let own = scenario.seed();
    let in_a_row = || (0..RUNS).map(|next| own.wrapping_add(next)).collect();
    let seeds = args.seeds.clone().map_or_else(in_a_row, |seeds| seeds.0);
    let built = scenario.build(seeds.first().copied().unwrap_or(own)).map_err(|error| mistake(&error))?;
    check(&built)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut crew = Crew { stop: stop_on_interrupt(), ..Crew::new(processors, !context.quiet) };
    let runs = in_virtual_time(&scenario, &seeds, &crew)?;
    crew.threads = 1;
    let Measured { goodputs: measured, decisions } = in_real_time(&built, &crew)?;
    let runs = Summary::of(&runs.iter().collect::<Vec<_>>()).metrics;
    let row = |name: &str, metric: &str, measured: f64| {
        let simulated = &runs[metric];
        Row::new(name, (simulated.mean, (seeds.len() > 1).then_some(simulated.ci95)), measured, args.within)
    };
    let mut flows = Vec::new();
    let mut first = 0;
    for group in &built.groups {
        let sum: f64 = measured[first..first + group.count].iter().sum();
        let metric = format!("flow.{}.goodput_mbit_s", group.name);
        flows.push(row(&group.name, &metric, sum / group.count as f64));
        first += group.count;
    }
    if measured.len() > 1 {
        flows.push(row("all together", "total.goodput_mbit_s", measured.iter().sum()));
    }
    let decisions = relays::decisions(&runs, &decisions, seeds.len());
    let (same_rates, same_choices) =
        (flows.iter().all(|row| row.ok), decisions.iter().all(|decision| decision.ok));
    let ok = same_rates && same_choices;
    let within_percent = args.within;
    show(&Comparison { scenario: scenario.name, seeds, within_percent, flows, decisions, ok }, args.json)?;
    if ok {
        return Ok(());
    }
    let what = if same_rates {
        "the path agent decided otherwise than in the simulator".to_owned()
    } else {
        format!("goodputs differ by more than {} %", args.within)
    };
    Err(Failure::local(what).hint("run it longer if the simulator's ± is large; or the machine is too busy"))
}

/// The metrics of the simulated runs.
fn in_virtual_time(scenario: &Scenario, seeds: &[u64], crew: &Crew) -> Result<Vec<Metrics>, Failure> {
    let scenario = scenario.clone();
    let mut runs: Vec<Metrics> = Vec::new();
    let done = in_order(
        seeds.to_vec(),
        crew,
        move |seed, tell: &dyn Fn(f64)| {
            let mut progress = |share: f64| {
                tell(share);
                true
            };
            let extras = Extras { progress: Some(&mut progress), ..Extras::default() };
            scenario.run_with(*seed, extras).map(|(report, _)| report)
        },
        &mut |_, report: Result<Report, ScenarioError>| {
            runs.push(report.map_err(|error| mistake(&error))?.metrics);
            Ok(())
        },
    )?;
    complete(done, seeds.len(), crew)?;
    Ok(runs)
}

/// The results over sockets.
fn in_real_time(built: &Built, crew: &Crew) -> Result<Measured, Failure> {
    let mut all = Measured::default();
    let work = |built: &Built, tell: &dyn Fn(f64)| -> Result<Measured, Failure> {
        let runtime = anabranch_node::Threads::start()?;
        let measured = runtime.block_on(sockets::over_sockets(built, tell));
        runtime.shutdown_background();
        measured
    };
    let done = in_order(vec![built.clone()], crew, work, &mut |_, measured| {
        all = measured?;
        Ok(())
    })?;
    complete(done, 1, crew)?;
    Ok(all)
}

/// Checks that all runs are complete.
fn complete(done: usize, all: usize, crew: &Crew) -> Result<(), Failure> {
    let kind = if crew.stop.load(Ordering::Relaxed) { Kind::Interrupted } else { Kind::Local };
    if done == all { Ok(()) } else { Err(Failure::new(kind, "the comparison is incomplete")) }
}

impl Row {
    fn new(flow: &str, (simulated, ci95): (f64, Option<f64>), measured: f64, within: f64) -> Self {
        // Both may be zero.
        let ratio = if measured == simulated { 1.0 } else { measured / simulated };
        let difference_percent = 100.0 * (ratio - 1.0);
        Self {
            flow: flow.to_owned(),
            simulator_mbit_s: simulated,
            simulator_ci95: ci95,
            sockets_mbit_s: measured,
            difference_percent,
            ok: difference_percent.abs() <= within,
        }
    }
}

fn show(comparison: &Comparison, json: bool) -> Result<(), Failure> {
    if json {
        return Stream::Stdout.json(comparison);
    }
    let seeds = Seeds(comparison.seeds.clone());
    let mut text = format!("{} (seeds {seeds}): goodput in Mbit/s\n", comparison.scenario);
    text.push_str(&format!("  {:<24}{:>18}{:>12}{:>12}\n", "flow", "simulator", "sockets", "difference"));
    for row in &comparison.flows {
        let Row { flow, simulator_mbit_s, simulator_ci95, sockets_mbit_s, difference_percent, .. } = row;
        let ci95 = simulator_ci95.map_or_else(String::new, |ci95| format!(" ± {ci95:.3}"));
        let simulated = format!("{simulator_mbit_s:.3}{ci95}");
        text.push_str(&format!(
            "  {flow:<24}{simulated:>18}{sockets_mbit_s:>12.3}{difference_percent:>+10.1} %\n"
        ));
    }
    if !comparison.decisions.is_empty() {
        text.push_str("decisions of the path agent, in seconds after the flow's start\n");
    }
    let seconds = |moment: Option<f64>| moment.map_or_else(|| "never".to_owned(), |s| format!("{s:.1}"));
    for DecisionRow { decision, simulator_s, sockets_s, ok } in &comparison.decisions {
        let [simulated, measured] = [simulator_s, sockets_s].map(|moment| seconds(*moment));
        let differs = if *ok { "" } else { "     differs" };
        text.push_str(&format!("  {decision:<24}{simulated:>18}{measured:>12}{differs}\n"));
    }
    out::print(&text)
}

/// Checks that the scenario can run over sockets.
fn check(built: &Built) -> Result<(), Failure> {
    let plan = &built.plan;
    let whole = built.end.since(Time::ZERO);
    let refuse = |message: &str, hint: &str| Err(Failure::local(message.to_owned()).hint(hint));
    let kinds = [("[[arrivals]]", plan.arrivals.is_empty()), ("[[cbr]]", plan.bursts.is_empty())];
    if let Some((kind, _)) = kinds.iter().find(|(_, is_empty)| !is_empty) {
        let message = format!("{kind} cannot be run over sockets: only flows are");
        return refuse(&message, "remove them from the scenario");
    }
    if whole > MAX_DURATION {
        let hint = "shorten it: --set duration=20s --set warm_up=5s";
        return refuse("over sockets it would take more than five minutes", hint);
    }
    if plan.flows.is_empty() {
        return refuse("nothing sends, so there is nothing to compare", "give it a [[flow]]");
    }
    if plan.flows.len() > MAX_FLOWS || built.cables.len() > MAX_FLOWS {
        return refuse("too many flows or links for sockets", "at most 16 of each");
    }
    if plan.flows.iter().flat_map(|flow| &flow.paths).any(|path| path.back.is_empty()) {
        let message = "over sockets, acknowledgements always cross a link";
        return refuse(message, "remove `acks = \"outside\"`");
    }
    if plan.flows.iter().flat_map(|flow| &flow.agent).any(|agent| !agent.interfaces.is_empty()) {
        return refuse("over sockets interfaces do not come and go", "remove `interfaces` from `agent`");
    }
    if plan.flows.iter().any(|flow| !flow.openings.is_empty()) {
        return refuse("over sockets paths open at once", "remove `paths_within`");
    }
    let simple = |flow: &FlowPlan| {
        flow.supply == Supply::Bulk
            && flow.stop == Time::NEVER
            && flow.paths.iter().all(|path| path.forward.len() == 1 && path.forward[0] % 2 == 0)
    };
    if !plan.flows.iter().all(simple) {
        return refuse(
            "over sockets a flow is bulk, does not stop, and each of its paths is one link",
            "remove `size`, `rate` and `stop`, and name a single link for each path",
        );
    }
    relays::check(built)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_experiments::scenario::Scenario;

    fn built(change: impl Fn(&str) -> String) -> Built {
        let text = change(include_str!("../test.toml"));
        Scenario::parse(&text, "test").unwrap().build(1).unwrap()
    }

    #[test]
    fn a_scenario_that_sockets_cannot_do_is_refused_with_the_reason() {
        assert_eq!(check(&built(str::to_owned)), Ok(()));
        let told = |change: &dyn Fn(&str) -> String| check(&built(change)).unwrap_err().message;
        assert!(told(&|text| text.replace("\"2 s\"", "\"1 h\"")).contains("five minutes"));
        assert!(told(&|text| format!("{text}size = \"1 MB\"\n")).contains("is bulk"));
        assert!(told(&|text| text.replace("[\"a\", \"b\"]", "[[\"a\", \"b\"]]")).contains("one link"));
        assert!(told(&|text| format!("{text}count = 17\n")).contains("too many"));
        let agent = |text: &str, what: &str| format!("{text}agent = {{ relays = 1, {what} }}\n");
        assert!(told(&|text| agent(text, "interfaces = [[\"1 s\", 1, false]]")).contains("interfaces"));
        let other = "[[flow]]\nname = \"N\"\npaths = [\"b\"]\n";
        assert!(told(&|text| agent(text, "at_once = 1") + other).contains("\"b\""));
    }

    #[test]
    fn rows_that_differ_too_much_are_not_ok() {
        let row = |measured| Row::new("M", (10.0, Some(0.1)), measured, 5.0);
        assert!(row(10.4).ok && row(9.6).ok && !row(9.4).ok && !row(f64::NAN).ok);
        assert!(Row::new("M", (0.0, None), 0.0, 5.0).ok && !Row::new("M", (0.0, None), 1.0, 5.0).ok);
    }

    #[test]
    fn how_much_goodputs_may_differ_is_a_number_above_nothing() {
        for (text, wanted) in [("5", 5.0), ("0.1", 0.1), ("12.5 %", 12.5), ("400", 400.0)] {
            assert_eq!(per_cent(text), Ok(wanted));
        }
        for text in ["nan", "NaN", "inf", "-inf", "-5", "0", "-0", "", "x", "1e999"] {
            assert_eq!(
                per_cent(text),
                Err(format!("`{text}` is not a number of per cent above 0; write 5 or 2.5"))
            );
        }
    }
}
