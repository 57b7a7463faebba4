//! Runs every experiment of the papers with its seeds.
//!
//! Results are kept in `target/papers/`, one file per experiment; an experiment with results is not run again. The
//! results become the tables of `docs/notebook/figures/index.md` and the drawings next to it. Sections of experiments
//! without results stay unchanged.

mod plan;

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::{cargo, command};
use plan::{Experiment, Networks, Plan};

/// Where tables and drawings go.
const FIGURES: &str = "docs/notebook/figures";
const RESULTS: &str = "target/papers";

const HEAD: &str = "\
# Tables and drawings

Made by `cargo xtask papers`, which runs each experiment with its seeds. What the papers print, and why we differ, is in
the [lab notebook](../index.md). Means over the seeds with 95 % intervals (Student's t).
";

/// Runs the named experiments, or all, that have no results yet. Then writes tables and drawings of all that have results,
/// and keeps the existing sections of the others.
pub fn run(names: &[String]) -> Result<(), String> {
    let plan = Plan::read()?;
    let networks = plan.networks.iter().map(|one| one.name.as_str());
    let known: Vec<&str> = plan.experiments().map(|one| one.name.as_str()).chain(networks).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("there is no experiment `{unknown}`; there are {}", known.join(", ")));
    }
    cargo(&["build", "--quiet", "--release", "--package", "anabranch"])?;
    fs::create_dir_all(RESULTS).map_err(|error| format!("cannot create {RESULTS}: {error}"))?;
    let wanted = |name: &str| names.is_empty() || names.iter().any(|known| known == name);
    for experiment in plan.experiments().filter(|one| wanted(&one.name)) {
        let json = ["--json".to_owned()];
        make(&experiment.name, "json", &[&words(experiment)[..], &json].concat())?;
    }
    for networks in plan.networks.iter().filter(|one| wanted(&one.name)) {
        let drawings = drawings(&networks.name);
        if !results(&networks.name, "txt").exists() {
            let _ = fs::remove_dir_all(&drawings);
        }
        let plot = ["--plot".to_owned(), drawings.to_string_lossy().into_owned()];
        make(&networks.name, "txt", &[&words_of(networks)[..], &plot].concat())?;
    }
    let file = Path::new(FIGURES).join("index.md");
    let before = fs::read_to_string(&file).unwrap_or_default();
    let mut page = HEAD.to_owned();
    for paper in plan.papers() {
        page.push_str(&format!("\n# {}\n", paper.name));
        for experiment in &paper.experiments {
            let made = results(&experiment.name, "json").exists();
            page.push_str(&if made { section(experiment)? } else { kept(&before, &experiment.name) });
        }
    }
    page.push_str("\n# Random networks\n");
    for networks in &plan.networks {
        let made = results(&networks.name, "txt").exists();
        page.push_str(&if made { section_of(networks)? } else { kept(&before, &networks.name) });
    }
    write(&file, &page)
}

/// The existing section of the page that ends with this experiment's drawing; empty without one.
fn kept(page: &str, name: &str) -> String {
    let drawing = format!("]({name}.svg)\n");
    let Some(end) = page.find(&drawing).map(|at| at + drawing.len()) else { return String::new() };
    let start = page[..end].rfind("\n## ").unwrap_or(end);
    page[start..end].to_owned()
}

/// Runs an experiment that has no results yet.
fn make(name: &str, form: &str, words: &[String]) -> Result<(), String> {
    let file = results(name, form);
    if file.exists() {
        return Ok(());
    }
    eprintln!("xtask: papers: {}", typed(words));
    write(&file, &anabranch(words)?)
}

fn results(name: &str, form: &str) -> PathBuf {
    Path::new(RESULTS).join(format!("{name}.{form}"))
}

fn drawings(name: &str) -> PathBuf {
    Path::new(RESULTS).join(name)
}

/// The arguments of `anabranch` that run an experiment.
fn words(experiment: &Experiment) -> Vec<String> {
    let command = if experiment.set.is_empty() { "run" } else { "sweep" };
    let mut words =
        ["sim", command, &experiment.scenario, "--seeds", &experiment.seeds].map(str::to_owned).to_vec();
    for set in &experiment.set {
        words.extend(["--set".to_owned(), set.clone()]);
    }
    words
}

/// The arguments of `anabranch` that run a grid of networks.
fn words_of(networks: &Networks) -> Vec<String> {
    ["sim", "run"].map(str::to_owned).into_iter().chain(networks.words.iter().cloned()).collect()
}

/// The command line that a user would type.
fn typed(words: &[String]) -> String {
    let quoted =
        |word: &String| if word.contains([' ', '"', '*']) { format!("'{word}'") } else { word.clone() };
    let words: Vec<String> = words.iter().map(quoted).collect();
    format!("anabranch {}", words.join(" "))
}

/// Heading, command, drawing and table of an experiment with results.
fn section(experiment: &Experiment) -> Result<String, String> {
    let file = results(&experiment.name, "json").to_string_lossy().into_owned();
    let pick = |patterns: &[String]| -> Vec<String> {
        patterns.iter().flat_map(|pattern| ["--metric".to_owned(), pattern.clone()]).collect()
    };
    let merge = ["sim", "merge", &file].map(str::to_owned).into_iter().chain(pick(&experiment.metrics));
    let table = anabranch(&merge.collect::<Vec<_>>())?;
    let drawings = drawings(&experiment.name);
    // An earlier version may have left drawings under another name.
    let _ = fs::remove_dir_all(&drawings);
    let into = drawings.to_string_lossy().into_owned();
    let plot = ["sim", "plot", &file, "--into", &into].map(str::to_owned).into_iter();
    anabranch(&plot.chain(pick(&experiment.metrics[..1])).collect::<Vec<_>>())?;
    keep_drawing(&experiment.name)?;
    let Experiment { name, about, .. } = experiment;
    let command = typed(&words(experiment));
    Ok(format!("\n## {about}\n\n```sh\n{command}\n```\n\n{table}\n![{about}]({name}.svg)\n"))
}

/// The section of a grid of networks, with its figures as printed.
fn section_of(networks: &Networks) -> Result<String, String> {
    let Networks { name, about, .. } = networks;
    let file = results(name, "txt");
    let table = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    keep_drawing(name)?;
    let command = typed(&words_of(networks));
    Ok(format!("\n## {about}\n\n```sh\n{command}\n```\n\n```text\n{table}```\n\n![{about}]({name}.svg)\n"))
}

/// Copies the one drawing of an experiment to the page's folder.
fn keep_drawing(name: &str) -> Result<(), String> {
    let drawn = fs::read_dir(drawings(name)).ok().and_then(|mut files| files.next()?.ok());
    let drawn = drawn.ok_or_else(|| format!("{name}: nothing was drawn"))?.path();
    let svg = fs::read_to_string(&drawn).map_err(|error| format!("{}: {error}", drawn.display()))?;
    write(&Path::new(FIGURES).join(format!("{name}.svg")), &svg)
}

fn anabranch(words: &[String]) -> Result<String, String> {
    let mut all = vec!["run", "--quiet", "--release", "--package", "anabranch", "--"];
    all.extend(words.iter().map(String::as_str));
    let output = command(&all).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // A sweep may break its scenario's expectations, for example with one path where eight are expected. Its results still count.
    let only_unexpected = output.status.code() == Some(1) && !text.is_empty();
    if output.status.success() || only_unexpected {
        return Ok(text);
    }
    Err(format!("`cargo {}`: {}", all.join(" "), String::from_utf8_lossy(&output.stderr)))
}

/// Writes a file atomically.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let part = path.with_extension("part");
    let told = |error| format!("cannot write {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(told)?;
    }
    fs::write(&part, text).and_then(|()| fs::rename(&part, path)).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_a_name_of_its_own_a_scenario_that_is_there_and_something_to_tell() {
        let plan = Plan::read().unwrap();
        for (index, one) in plan.experiments().enumerate() {
            assert!(plan.experiments().take(index).all(|other| other.name != one.name), "{}", one.name);
            let scenario = format!("{}/../scenarios/{}.toml", env!("CARGO_MANIFEST_DIR"), one.scenario);
            assert!(Path::new(&scenario).exists() && !one.metrics.is_empty(), "{}", one.name);
        }
    }

    #[test]
    fn a_section_without_results_stays_as_it_is() {
        let one = "\n## One\n\n```sh\nrun one\n```\n\n| 1 |\n\n![One](one.svg)\n";
        let two = "\n## Two\n\n| 2 |\n\n![Two](two.svg)\n";
        let page = format!("{HEAD}\n# A paper\n{one}{two}\n# Another\n");
        assert_eq!([kept(&page, "one"), kept(&page, "two")], [one, two]);
        assert_eq!(kept(&page, "three"), "");
    }

    #[test]
    fn a_command_can_be_copied_into_a_shell() {
        let plan = Plan::read().unwrap();
        let all: Vec<String> = plan.experiments().map(|one| typed(&words(one))).collect();
        assert!(all.contains(&"anabranch sim run nsdi11-fig14 --seeds 1..12".to_owned()), "{all:#?}");
        assert!(all.iter().any(|line| line.contains("--set 'warm_up=3 s'")), "{all:#?}");
    }
}
