//! `anabranch sim merge`: merges the parts of a sweep.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anabranch_experiments::results::RunRecord;
use anabranch_experiments::results::merge::{Conflict, Found, merge};
use serde::Deserialize;

use super::args::{MAX_RUNS, MergeArgs};
use super::load::text_in;
use super::named::NAMED;
use super::output::Writer;
use crate::context::Context;
use crate::errors::{Failure, printable};
use crate::ui::out;

/// Reads all parts and writes the results as one sweep would have.
pub(super) fn run(args: &MergeArgs, context: &Context) -> Result<(), Failure> {
    let runs = read(&args.files, context)?;
    let mut writer = Writer::new(args.format.format(), "").of_metrics(&args.metrics);
    runs.into_iter().try_for_each(|run| writer.add(run))?;
    writer.finish()
}

/// The runs of all parts, each once, in the order of one sweep. Warns of missing runs.
pub(super) fn read(files: &[PathBuf], context: &Context) -> Result<Vec<RunRecord>, Failure> {
    let (runs, warnings) = put_together(files)?;
    for warning in warnings.iter().filter(|_| !context.quiet) {
        out::error(&format!("{} {}\n", context.paint.yellow("warning:"), printable(warning)));
    }
    Ok(runs)
}

/// The runs of all parts, and warnings.
fn put_together(files: &[PathBuf]) -> Result<(Vec<RunRecord>, Vec<String>), Failure> {
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    for file in files {
        let before = all.len();
        read_part(file, &mut all)?;
        if all.len() == before {
            let why = "did what was to write it fail, or had it no runs to do?";
            warnings.push(format!("{} is empty: {why}", file.display()));
        }
    }
    let (runs, gaps) = merge(all).map_err(|Conflict { message, detail }| {
        let failure = Failure::local(message).detail(detail);
        failure.hint("merge what one version of the scenario and of anabranch gave")
    })?;
    warnings.extend(gaps);
    Ok((runs, warnings))
}

/// Longest line in bytes: results of a run have some kilobytes, with ten thousand flows about 15 MB.
const MAX_LINE: u64 = 64 << 20;
/// Bytes that a line of results may begin with.
const FIRST: &[u8] = b"{ \t\r\n";

/// The key that results of grids share with those of scenarios.
#[derive(Deserialize)]
struct Drawn {
    scenario: String,
}

/// Adds the runs of a file, a line each. Stops at the first line that cannot be a result, even if the file is endless.
fn read_part(file: &Path, all: &mut Vec<Found>) -> Result<(), Failure> {
    let unreadable = |error: &std::io::Error| Failure::file("read", file, error);
    let is_other = |failure: Failure| {
        failure.hint("it takes what `anabranch sim run … --json` or `sim sweep … --json` wrote")
    };
    let mut reader = BufReader::new(File::open(file).map_err(|error| unreadable(&error))?);
    let mut bytes = Vec::new();
    for number in 1.. {
        let place = format!("{}:{number}", file.display());
        let Some(first) = reader.fill_buf().map_err(|error| unreadable(&error))?.first() else { break };
        if number > MAX_RUNS {
            return Err(is_other(Failure::local(format!("{place}: more than {MAX_RUNS} lines"))));
        }
        if !FIRST.contains(first) {
            return Err(is_other(Failure::local(format!("{place}: not an object in JSON"))));
        }
        bytes.clear();
        let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| unreadable(&error))?;
        if read as u64 > MAX_LINE {
            let message = format!("{place}: a line of more than {} MiB", MAX_LINE >> 20);
            return Err(is_other(Failure::local(message)));
        }
        let line = text_in(&bytes, (file, number))?.trim();
        if line.is_empty() {
            continue;
        }
        let run = serde_json::from_str(line).map_err(|error| {
            let failure = is_other(Failure::local(format!("{place}: {error}")));
            let drawn = serde_json::from_str(line)
                .ok()
                .and_then(|Drawn { scenario }| NAMED.iter().find(|(name, _)| *name == scenario));
            match drawn {
                Some((name, _)) => {
                    failure.hint(format!("`{name}` runs in one command: there is nothing to merge"))
                }
                None => failure,
            }
        })?;
        all.push(Found { run, place });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;

    use super::*;
    use crate::commands::test::parse;
    use crate::context::Global;
    use crate::ui::out::json_line;
    use anabranch_experiments::scenario::Outcome;

    #[test]
    fn parts_are_put_together_to_what_one_sweep_would_have_written() {
        // Numbers with all digits of a double, and values whose order as text differs.
        let mut state = 1_u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / 1e13
        };
        let variants = ["100 ms", "30 ms", "5 ms"];
        let runs = (0..30).map(|run| RunRecord {
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
        // One part occurs twice.
        let parts: Vec<PathBuf> = [3, 1, 0, 2, 1].map(part).to_vec();
        let (runs, warnings) = put_together(&parts).unwrap();
        let merged: String = runs.iter().map(json_line).collect();
        assert_eq!((merged, warnings), (lines.concat(), vec![]));
        let (runs, warnings) = put_together(&parts[..2]).unwrap();
        let missing =
            "15 runs are missing of x, the first with \"run\":0; is a part left out, or was it stopped?";
        assert_eq!((runs.len(), warnings), (15, vec![missing.to_owned()]));
    }

    #[test]
    fn runs_that_are_there_twice_have_to_agree_but_for_what_they_cost() {
        let run = |goodput: f64, cost: f64| RunRecord {
            scenario: "x".into(),
            seed: 7,
            run: 0,
            set: BTreeMap::new(),
            metrics: BTreeMap::from([("jain".to_owned(), goodput), ("run.cpu_s".to_owned(), cost)]),
            expect: vec![],
        };
        let folder = tempfile::tempdir().unwrap();
        let part = |name: &str, runs: &[RunRecord]| {
            let path = folder.path().join(name);
            std::fs::write(&path, runs.iter().map(json_line).collect::<String>()).unwrap();
            path
        };
        let (a, b) = (part("a", &[run(0.5, 1.0)]), part("b", &[run(0.5, 2.0), run(0.75, 1.0)]));
        let failure = put_together(&[a.clone(), b.clone()]).unwrap_err();
        let places = [
            format!("{}:2: ", b.display()),
            format!("seed 7 of x has other results than at {}:1", b.display()),
        ];
        assert_eq!(failure.message, places.concat());
        assert_eq!(failure.details, ["jain is 0.5 there and 0.75 here"]);
        let c = part("c", &[run(0.5, 3.0)]);
        assert_eq!(put_together(&[a.clone(), c]).unwrap().0.len(), 1);
        // Records that differ in a bound, too.
        let kept = Outcome { name: "jain".to_owned(), value: Some(0.5), bound: "≥ 0".to_owned(), ok: true };
        let bound = |goodput| RunRecord { expect: vec![kept.clone()], ..run(goodput, 1.0) };
        let failure = put_together(&[part("d", &[bound(0.5)]), part("e", &[bound(0.75)])]).unwrap_err();
        assert_eq!(failure.details, ["jain is 0.5 there and 0.75 here"]);
        let empty = part("empty", &[]);
        let told = "is empty: did what was to write it fail, or had it no runs to do?";
        let told = format!("{} {told}", empty.display());
        assert_eq!(put_together(&[a, empty]).unwrap().1, [told]);
        let broken = folder.path().join("broken");
        std::fs::write(&broken, b"{}\n\xff").unwrap();
        let told = put_together(std::slice::from_ref(&broken)).unwrap_err().message;
        assert_eq!(told, format!("{}:1: missing field `scenario` at line 1 column 2", broken.display()));
        std::fs::write(&broken, [json_line(&run(0.5, 1.0)).as_bytes(), b"\n{\xff"].concat()).unwrap();
        let told = put_together(std::slice::from_ref(&broken)).unwrap_err().message;
        assert_eq!(told, format!("cannot read {}:3: the byte 0xff is not UTF-8", broken.display()));
    }

    #[test]
    fn what_has_no_end_is_given_up_with_its_name_and_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let told = |path: &Path| {
            let failure = put_together(&[path.to_owned()]).unwrap_err();
            assert!(failure.hint.as_deref().is_some_and(|hint| hint.contains("sim sweep … --json")));
            failure.message
        };
        let zeros = folder.path().join("zeros");
        File::create(&zeros).unwrap().set_len(1 << 32).unwrap();
        assert_eq!(told(&zeros), format!("{}:1: not an object in JSON", zeros.display()));
        let mut begun = File::options().write(true).open(&zeros).unwrap();
        begun.write_all(b"{").unwrap();
        let wanted = format!("{}:1: a line of more than 64 MiB", zeros.display());
        assert_eq!(told(&zeros), wanted);
        std::fs::write(folder.path().join("grid"), r#"{"scenario":"grid","metrics":{},"worst":[]}"#).unwrap();
        let failure = put_together(&[folder.path().join("grid")]).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.starts_with("`grid` runs in one command")));
        let blank = folder.path().join("blank");
        std::fs::write(&blank, "\n".repeat(MAX_RUNS)).unwrap();
        assert_eq!(put_together(std::slice::from_ref(&blank)).unwrap().1.len(), 1);
        std::fs::write(&blank, "\n".repeat(MAX_RUNS + 1)).unwrap();
        assert_eq!(told(&blank), format!("{}:1000001: more than 1000000 lines", blank.display()));
    }

    #[test]
    fn a_table_of_metrics_fails_where_the_whole_does() {
        let bound = Outcome { name: "jain".into(), value: Some(0.5), bound: "≥ 0.9".into(), ok: false };
        let run = RunRecord {
            scenario: "x".into(),
            seed: 7,
            run: 0,
            set: BTreeMap::new(),
            metrics: BTreeMap::from([("jain".to_owned(), 0.5)]),
            expect: vec![bound],
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("part");
        std::fs::write(&file, json_line(&run)).unwrap();
        let outcome = |metrics: &[&str]| {
            let words = [&["part"], metrics].concat();
            let args: MergeArgs = parse(&words).unwrap();
            super::run(&MergeArgs { files: vec![file.clone()], ..args }, &Context::new(&Global::default()))
        };
        let whole = outcome(&[]).unwrap_err();
        assert_eq!(whole.message, "1 of 1 expectations were not met");
        assert_eq!(outcome(&["--metric", "jain"]).unwrap_err(), whole);
    }
}
