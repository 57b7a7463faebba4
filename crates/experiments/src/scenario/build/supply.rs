//! The data of a flow: an endless stream, a file, a stream at a rate or by a script, or datagrams.

use anabranch_engine::{Config, DatagramMode, Protection};
use anabranch_wire::{MAX_BLOCK, Span};

use super::links::{positive, spaced};
use crate::scenario::error::{ScenarioError, in_range};
use crate::scenario::model::{DatagramModeSpec, DatagramSpec, FlowSpec, ScriptEntry};
use anabranch_sim::network::Supply;

/// Bytes of the largest datagrams: with their parity they fit every path.
const MAX_DATAGRAM: u64 = 1100;
/// Longest that a block of datagrams stays open.
const MAX_PATIENCE: Span = Span::from_secs(1000);
/// Most entries of a script, and most bytes of all together.
const MAX_ENTRIES: usize = 10_000;
const MAX_BYTES: u64 = 1_000_000_000_000_000;

/// The data of a flow; `visible` is how many paths its session sees. Settings for datagrams go into its config.
pub(super) fn supply(
    key: &impl Fn(&str) -> String,
    spec: &FlowSpec,
    visible: usize,
    config: &mut Config,
) -> Result<Supply, ScenarioError> {
    let given = [
        ("size", spec.size.is_some()),
        ("rate", spec.rate.is_some()),
        ("script", spec.script.is_some()),
        ("datagrams", spec.datagrams.is_some()),
    ];
    let given: Vec<&str> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    if let [.., last] = given[..]
        && given.len() > 1
    {
        let message = format!("a flow has one of {}, not both", given.join(" and "));
        return Err(ScenarioError::new(key(last), message).hint("remove all but one of them"));
    }
    if spec.redundant == Some(true) && spec.datagrams.is_some() {
        return Err(ScenarioError::new(key("redundant"), "the flow has no stream")
            .hint("datagrams are sent on every path with `mode = \"redundant\"`"));
    }
    if spec.redundant == Some(true) && visible == 1 {
        return Err(ScenarioError::new(key("redundant"), "the session sees one path only")
            .hint("name two paths, without `tunnel`"));
    }
    match spec.datagrams {
        Some(datagrams) => datagram_supply(key, datagrams, config),
        None => stream_supply(key, spec),
    }
}

pub(super) fn check_size(key: &str, bytes: u64) -> Result<u64, ScenarioError> {
    in_range((1..=MAX_BYTES).contains(&bytes), key, "from \"1 B\" to \"1000000 GB\"").map(|()| bytes)
}

fn stream_supply(key: &impl Fn(&str) -> String, spec: &FlowSpec) -> Result<Supply, ScenarioError> {
    if let Some(size) = spec.size {
        return check_size(&key("size"), size.0).map(Supply::File);
    }
    if let Some(rate) = spec.rate {
        let rate = positive(&key("rate"), rate.0)?;
        return Ok(Supply::Steady { rate, chunk: (rate.bytes_in(Span::from_millis(10))).max(1000) });
    }
    let Some(script) = &spec.script else { return Ok(Supply::Bulk) };
    check_script(script).map_err(|(message, hint)| ScenarioError::new(key("script"), message).hint(hint))?;
    Ok(Supply::Script(script.iter().map(|ScriptEntry(after, bytes)| (after.0, bytes.0)).collect()))
}

/// The mistake in a script, and its remedy.
fn check_script(script: &[ScriptEntry]) -> Result<(), (String, String)> {
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

/// The datagrams of a flow; their protection goes into the config.
fn datagram_supply(
    key: &impl Fn(&str) -> String,
    spec: DatagramSpec,
    config: &mut Config,
) -> Result<Supply, ScenarioError> {
    let DatagramSpec { rate, size, mode, block, patience, most, outlive_path } = spec;
    let rate = positive(&key("datagrams.rate"), rate.0)?;
    let bounds = format!("1 to {MAX_DATAGRAM} bytes, so that each fits a packet");
    in_range((1..=MAX_DATAGRAM).contains(&size.0), key("datagrams.size"), bounds)?;
    config.datagrams.modes[0] = match mode {
        DatagramModeSpec::Once => DatagramMode::Once,
        DatagramModeSpec::Redundant => DatagramMode::Redundant,
        DatagramModeSpec::Protected => DatagramMode::Protected,
    };
    let usual = config.datagrams.protection;
    let block = block.unwrap_or(usual.block);
    let most = most.map_or(usual.most, |most| most.0);
    in_range((1..=MAX_BLOCK).contains(&block), key("datagrams.block"), format!("1 to {MAX_BLOCK}"))?;
    in_range(most > 0.0, key("datagrams.most"), "more than 0 %")?;
    let patience = patience.map_or(usual.patience, |patience| patience.0);
    in_range(patience <= MAX_PATIENCE, key("datagrams.patience"), "at most 1000 s")?;
    let outlive_path = outlive_path.unwrap_or(usual.outlive_path);
    config.datagrams.protection = Protection { block, patience, most, outlive_path };
    Ok(Supply::Datagrams { pause: spaced(&key("datagrams.rate"), rate, size.0)?, size: size.0 as usize })
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
            ("script = [[\"0 s\", \"0 B\"]]", "entry 1 has no bytes\n  hint    at least \"1 B\""),
            (
                "script = [[\"0 s\", \"900000 GB\"], [\"1 s\", \"900000 GB\"]]",
                "more bytes than can be sent\n  hint    at most 1000000 GB in all",
            ),
            (
                "script = [[\"0 s\", \"1 B\"]]\nsize = \"1 MB\"",
                "a flow has one of size and script, not both\n  hint    remove all but one of them",
            ),
        ];
        for (keys, told) in cases {
            let error = Scenario::parse(&text(keys), "s").expect_err(keys).to_string();
            assert_eq!(error, format!("s:9: flow.f.script: {told}"));
        }
    }
}
