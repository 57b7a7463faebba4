//! What the sessions of a flow carry: a stream without end, of a size, at a rate or by a script, or datagrams.

use anabranch_engine::{Config, DatagramMode, Protection};
use anabranch_wire::{MAX_BLOCK, Span, Time};

use super::links::{positive, spaced};
use crate::scenario::error::ScenarioError;
use crate::scenario::model::{DatagramModeSpec, DatagramSpec, FlowSpec, ScriptEntry};
use anabranch_sim::network::Supply;

/// Bytes of the largest datagrams: with their parity they fit every path.
const MAX_DATAGRAM: u64 = 1100;
/// Longest that a block of datagrams stays open.
const MAX_PATIENCE: Span = Span::from_secs(1000);
/// Most entries of a script, and most bytes of all together.
const MAX_ENTRIES: usize = 10_000;
pub(super) const MAX_BYTES: u64 = 1_000_000_000_000_000;
/// What is said of more, and what to do about it.
pub(super) const TOO_MANY_BYTES: (&str, &str) = ("more bytes than can be sent", "at most \"1000000 GB\"");

/// What to do about what needs several paths.
const TWO_PATHS: &str = "name two paths, without `striping` and `flow_routing`, or take it out";

/// What a flow carries whose session sees so many paths, up to the end; what is done for datagrams goes into its settings.
pub(super) fn supply(
    key: &impl Fn(&str) -> String,
    spec: &FlowSpec,
    (visible, end): (usize, Time),
    config: &mut Config,
) -> Result<Supply, ScenarioError> {
    let streams =
        [spec.size.map(|_| "size"), spec.rate.map(|_| "rate"), spec.script.as_ref().map(|_| "script")];
    let given: Vec<&str> = streams.into_iter().flatten().collect();
    let copies = spec.datagrams.is_some_and(|datagrams| datagrams.mode == DatagramModeSpec::Redundant);
    if copies && visible == 1 {
        return Err(
            ScenarioError::new(key("datagrams.mode"), "the session sees one path only").hint(TWO_PATHS)
        );
    }
    let outlives = spec.datagrams.is_some_and(|datagrams| datagrams.outlive_path == Some(true));
    if outlives && visible == 1 {
        let none = "the session sees one path only, and no parity outlives that";
        return Err(ScenarioError::new(key("datagrams.outlive_path"), none).hint(TWO_PATHS));
    }
    if let (Some(_), Some(why)) = (&spec.scheduler, unscheduled(spec)) {
        return Err(ScenarioError::new(key("scheduler"), format!("{why} not scheduled")).hint("take it out"));
    }
    if spec.redundant == Some(true) && spec.scheduler.is_some() {
        return Err(ScenarioError::new(
            key("scheduler"),
            "a stream that is sent on every path is not scheduled",
        )
        .hint("take `scheduler` or `redundant` out"));
    }
    if spec.redundant == Some(true) {
        if spec.datagrams.is_some() {
            return Err(ScenarioError::new(key("redundant"), "the flow has no stream")
                .hint("datagrams are sent on every path with `mode = \"redundant\"`"));
        }
        if visible == 1 {
            return Err(
                ScenarioError::new(key("redundant"), "the session sees one path only").hint(TWO_PATHS)
            );
        }
    }
    match (given[..].last(), spec.datagrams) {
        (Some(_), Some(_)) => {
            Err(ScenarioError::new(key("datagrams"), "a flow has datagrams or a stream, not both").hint(
                "take `size`, `rate` and `script` of the flow out; datagrams have their own rate and size",
            ))
        }
        (Some(last), None) if given.len() > 1 => {
            Err(ScenarioError::new(key(last), format!("a flow has one of {}, not both", given.join(" and ")))
                .hint("take all but one of them out"))
        }
        (_, Some(datagrams)) => datagram_supply(key, datagrams, config),
        (_, None) => stream_supply(key, spec, end),
    }
}

/// Why no scheduler is asked where a packet of this flow goes.
fn unscheduled(spec: &FlowSpec) -> Option<&'static str> {
    let is_copied = |datagrams: DatagramSpec| datagrams.mode == DatagramModeSpec::Redundant;
    if spec.striping.is_some() {
        Some("packets that are striped are")
    } else if spec.flow_routing == Some(true) {
        Some("the packets of a flow that is routed as a whole are")
    } else if spec.datagrams.is_some_and(is_copied) {
        Some("datagrams that are sent on every path are")
    } else {
        None
    }
}

fn stream_supply(key: &impl Fn(&str) -> String, spec: &FlowSpec, end: Time) -> Result<Supply, ScenarioError> {
    if let Some(size) = spec.size {
        if size.0 == 0 {
            return Err(ScenarioError::new(key("size"), "an empty file").hint("at least \"1 B\""));
        }
        if size.0 > MAX_BYTES {
            return Err(ScenarioError::new(key("size"), TOO_MANY_BYTES.0).hint(TOO_MANY_BYTES.1));
        }
        return Ok(Supply::File(size.0));
    }
    if let Some(rate) = spec.rate {
        let rate = positive(&key("rate"), rate.0)?;
        return Ok(Supply::Steady { rate, chunk: (rate.bytes_in(Span::from_millis(10))).max(1000) });
    }
    let Some(script) = &spec.script else { return Ok(Supply::Bulk) };
    let within = spec.start_within.map_or(Span::ZERO, |within| within.0);
    let start = spec.start.map_or(Span::ZERO, |start| start.0) + within;
    let stop = spec.stop.map_or(end, |stop| end.min(Time::ZERO + stop.0));
    check_script(script, stop.since(Time::ZERO + start))
        .map_err(|(message, hint)| ScenarioError::new(key("script"), message).hint(hint))?;
    Ok(Supply::Script(script.iter().map(|ScriptEntry(after, bytes)| (after.0, bytes.0)).collect()))
}

/// What is wrong with a script that has so much time, and what to do.
fn check_script(script: &[ScriptEntry], time: Span) -> Result<(), (String, String)> {
    if script.is_empty() || script.len() > MAX_ENTRIES {
        return Err((format!("{} entries", script.len()), format!("a script has from 1 to {MAX_ENTRIES}")));
    }
    let mut last = Span::ZERO;
    for (index, ScriptEntry(after, bytes)) in script.iter().enumerate() {
        let number = index + 1;
        if after.0 < last {
            return Err((
                format!("entry {number} is before entry {index}"),
                "list them in order of time".to_owned(),
            ));
        }
        if after.0 >= time {
            let hint = "times count from the flow's start; let it happen before `stop`, and before `duration` is over";
            return Err((format!("entry {number} is after the end: it never happens"), hint.to_owned()));
        }
        if bytes.0 == 0 {
            return Err((format!("entry {number} has no bytes"), "at least \"1 B\"".to_owned()));
        }
        last = after.0;
    }
    let sum = script.iter().try_fold(0_u64, |sum, entry| sum.checked_add(entry.1.0));
    if sum.is_none_or(|sum| sum > MAX_BYTES) {
        return Err(("more bytes than can be sent".to_owned(), "at most 1000000 GB in all".to_owned()));
    }
    Ok(())
}

/// The datagrams of a flow; what is done for them goes into its settings.
fn datagram_supply(
    key: &impl Fn(&str) -> String,
    spec: DatagramSpec,
    config: &mut Config,
) -> Result<Supply, ScenarioError> {
    let DatagramSpec { rate, size, mode, block, patience, most, outlive_path } = spec;
    let rate = positive(&key("datagrams.rate"), rate.0)?;
    if !(1..=MAX_DATAGRAM).contains(&size.0) {
        return Err(ScenarioError::new(key("datagrams.size"), "out of range")
            .hint(format!("1 to {MAX_DATAGRAM} bytes, so that each fits a packet")));
    }
    config.datagrams[0] = match mode {
        DatagramModeSpec::Once => DatagramMode::Once,
        DatagramModeSpec::Redundant => DatagramMode::Redundant,
        DatagramModeSpec::Protected => DatagramMode::Protected,
    };
    check_protection(key, &spec)?;
    let usual = config.protection;
    let block = block.unwrap_or(usual.block);
    let most = most.map_or(usual.most, |most| most.0);
    if !(1..=MAX_BLOCK).contains(&block) {
        return Err(
            ScenarioError::new(key("datagrams.block"), "out of range").hint(format!("1 to {MAX_BLOCK}"))
        );
    }
    if most <= 0.0 {
        return Err(ScenarioError::new(key("datagrams.most"), "out of range").hint("more than 0 %"));
    }
    let patience = patience.map_or(usual.patience, |patience| patience.0);
    let outlive_path = outlive_path.unwrap_or(usual.outlive_path);
    config.protection = Protection { block, patience, most, outlive_path };
    Ok(Supply::Datagrams { pause: spaced(&key("datagrams.rate"), rate, size.0)?, size: size.0 as usize })
}

/// Tells a share of parity that is less than the piece that a block may always have.
pub(super) fn idle_share(key: &impl Fn(&str) -> String, spec: &FlowSpec, block: u8) -> Option<ScenarioError> {
    let most = spec.datagrams?.most?.0;
    let message = format!("less than the one piece that a block of {block} may always have");
    // Rounded up, so that it is no less again.
    let least = (1e6 / f64::from(block)).ceil() / 1e4;
    let hint = format!("take it out, or at least \"{least} %\", or a larger `block`, of at most {MAX_BLOCK}");
    (most * f64::from(block) < 1.0).then(|| ScenarioError::new(key("datagrams.most"), message).hint(hint))
}

/// Checks that what is said of parity is said of protected datagrams, and that it does not wait for ever.
fn check_protection(key: &impl Fn(&str) -> String, spec: &DatagramSpec) -> Result<(), ScenarioError> {
    let of_parity = [
        ("block", spec.block.is_some()),
        ("patience", spec.patience.is_some()),
        ("most", spec.most.is_some()),
        ("outlive_path", spec.outlive_path.is_some()),
    ];
    let given = of_parity.iter().find(|(_, given)| *given);
    if let Some((name, _)) = given.filter(|_| spec.mode != DatagramModeSpec::Protected) {
        return Err(ScenarioError::new(
            key(&format!("datagrams.{name}")),
            "only protected datagrams have parity",
        )
        .hint("write `mode = \"protected\"`, or take it out"));
    }
    if spec.patience.is_some_and(|patience| patience.0 > MAX_PATIENCE) {
        return Err(ScenarioError::new(key("datagrams.patience"), "out of range").hint("at most 1000 s"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    #[test]
    fn a_script_is_bounded_and_its_mistakes_are_told_with_their_entry() {
        let text = |keys: &str| {
            format!(
                "duration = \"10 s\"\n[[link]]\nname = \"a\"\nrate = \"1 Mbit/s\"\n[[flow]]\nname = \"f\"\n\
                 paths = [\"a\"]\nstart = \"2 s\"\n{keys}\n"
            )
        };
        assert!(Scenario::parse(&text("script = [[\"0 s\", \"1 MB\"], [\"2 s\", \"10 kB\"]]"), "s").is_ok());
        let many = format!("script = [{}]", "[\"0 s\", \"1 B\"],".repeat(10_001));
        let cases = [
            ("script = []", "0 entries\n  hint    a script has from 1 to 10000"),
            (&many, "10001 entries\n  hint    a script has from 1 to 10000"),
            (
                "script = [[\"2 s\", \"1 B\"], [\"1 s\", \"1 B\"]]",
                "entry 2 is before entry 1\n  hint    list them in order of time",
            ),
            (
                "script = [[\"8 s\", \"1 B\"]]",
                "entry 1 is after the end: it never happens\n  hint    times count from the flow's start; let it happen before `stop`, and before `duration` is over",
            ),
            ("script = [[\"0 s\", \"0 B\"]]", "entry 1 has no bytes\n  hint    at least \"1 B\""),
            (
                "script = [[\"0 s\", \"900000 GB\"], [\"1 s\", \"900000 GB\"]]",
                "more bytes than can be sent\n  hint    at most 1000000 GB in all",
            ),
            (
                "script = [[\"0 s\", \"1 B\"]]\nsize = \"1 MB\"",
                "a flow has one of size and script, not both\n  hint    take all but one of them out",
            ),
        ];
        for (keys, told) in cases {
            let error = Scenario::parse(&text(keys), "s").expect_err(keys).to_string();
            assert_eq!(error, format!("s:9: flow.f.script: {told}"));
        }
        let short = Scenario::parse(&text("script = [[\"0 s\"]]"), "s").expect_err("no size").to_string();
        assert!(
            short.contains("script: found [\"0 s\"]: expected a list of times and sizes such as"),
            "{short}"
        );
    }
}
