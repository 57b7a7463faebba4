//! `anabranch sim merge`: the parts of a sweep, put together.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::output::{Run, Writer};
use super::{MergeArgs, columns};
use crate::errors::Failure;
use crate::ui::out;

/// Reads all parts and writes the whole, as one sweep would have.
pub(super) fn run(args: &MergeArgs) -> Result<(), Failure> {
    let runs = read(&args.files)?;
    if !args.metrics.is_empty() {
        return out::print(&columns::table(&runs, &args.metrics)?);
    }
    let mut writer = Writer::new(args.format.format());
    runs.into_iter().try_for_each(|run| writer.add(run))?;
    writer.finish()
}

/// The runs of all parts, each once, in the order that one sweep has them in.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<Run>, Failure> {
    let mut runs: Vec<Run> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
        for (index, line) in text.lines().enumerate() {
            let run = serde_json::from_str(line).map_err(|error| {
                Failure::local(format!("{}:{}: {error}", file.display(), index + 1))
                    .hint("it takes what `anabranch sim run … --json` or `sim sweep … --json` wrote")
            })?;
            runs.push(run);
        }
    }
    runs.sort_by(|a, b| (&a.scenario, a.run, &a.set, a.seed).cmp(&(&b.scenario, b.run, &b.set, b.seed)));
    let mut known = BTreeSet::new();
    runs.retain(|run| known.insert((run.scenario.clone(), run.set.clone(), run.seed)));
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ui::out::json_line;

    #[test]
    fn parts_are_put_together_to_what_one_sweep_would_have_written() {
        // Numbers with as many digits as a double has, and values that text would put into another order.
        let mut state = 1_u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / 1e13
        };
        let variants = ["100 ms", "30 ms", "5 ms"];
        let runs = (0..30).map(|run| Run {
            scenario: "x".into(),
            seed: 1 + run as u64 % 10,
            run,
            set: BTreeMap::from([("link.a.delay".to_owned(), variants[run / 10].to_owned())]),
            metrics: (0..20).map(|metric| (format!("m{metric}"), number())).collect(),
            expect: vec![],
        });
        let lines: Vec<String> = runs.map(|run| json_line(&run)).collect();
        let folder = tempfile::tempdir().unwrap();
        let part = |shard: usize| {
            let path = folder.path().join(format!("part{shard}"));
            let its: String = lines.iter().skip(shard).step_by(4).cloned().collect();
            std::fs::write(&path, its).unwrap();
            path
        };
        // One part is there twice.
        let parts: Vec<PathBuf> = [3, 1, 0, 2, 1].map(part).to_vec();
        let merged: String = read(&parts).unwrap().iter().map(json_line).collect();
        assert_eq!(merged, lines.concat());
    }
}
