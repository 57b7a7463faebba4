//! `anabranch sim merge`: the parts of a sweep, put together.

use std::path::PathBuf;

use super::output::{Run, Writer};
use super::{MergeArgs, columns};
use crate::errors::Failure;
use crate::ui::out;

/// Reads all parts and writes the whole, in order of what was set and of the seeds.
pub(super) fn run(args: &MergeArgs) -> Result<(), Failure> {
    let runs = read(&args.files)?;
    if !args.metrics.is_empty() {
        return out::print(&columns::table(&runs, &args.metrics)?);
    }
    let mut writer = Writer::new(args.format.format());
    runs.into_iter().try_for_each(|run| writer.add(run))?;
    writer.finish()
}

/// The runs of all parts, each once, in order of what was set and of the seeds.
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
    runs.sort_by(|a, b| (&a.scenario, &a.set, a.seed).cmp(&(&b.scenario, &b.set, b.seed)));
    runs.dedup_by(|a, b| (&a.scenario, &a.set, a.seed) == (&b.scenario, &b.set, b.seed));
    Ok(runs)
}
