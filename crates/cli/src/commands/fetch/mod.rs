//! `anabranch fetch`: downloads from any server over all links of this machine, or through exits.

mod args;
mod list;
mod routes;
mod show;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_fetch::{FetchError, Job, Options, Progress, Report, Tls, Url, fetch, kept, safe_name};
use anabranch_node::Threads;
use tokio::sync::Notify;

use crate::context::Context;
use crate::errors::{Failure, Kind, describe};
use crate::interrupt;
use crate::report::{Event, TransferReport};
use crate::ui::human;
use crate::ui::out::{self, Stream};

pub use args::FetchArgs;
use list::Entry;
use routes::Routes;
use show::Display;

/// The name of a file whose address has none.
const NAMELESS: &str = "index.html";

/// Fetches the files.
pub fn run(args: &FetchArgs, context: &Context) -> Result<(), Failure> {
    let entries = match &args.input {
        Some(list) => list::read(list)?,
        None => {
            vec![Entry { mirrors: args.urls.clone(), checksums: args.checksums.clone(), ..Entry::default() }]
        }
    };
    let jobs = entries.into_iter().map(|entry| job(args, entry)).collect::<Result<Vec<_>, _>>()?;
    let mut targets = HashSet::new();
    if let Some(twice) = jobs.iter().find(|job| !targets.insert(&job.target)) {
        return Err(Failure::usage(format!(
            "two files of the list would be named {}",
            twice.target.display()
        ))
        .hint("fetch one of them alone, with `-o FILE`"));
    }
    Threads::start()?.block_on(fetch_all(args, &jobs, context))
}

/// The download for an entry, with its final name.
fn job(args: &FetchArgs, entry: Entry) -> Result<Job, Failure> {
    let name = entry.name.as_deref().and_then(safe_name);
    let name = name
        .or_else(|| entry.mirrors.first().and_then(Url::file_name))
        .unwrap_or_else(|| NAMELESS.to_owned());
    let target = match &args.output {
        Some(output) if output.is_dir() => output.join(name),
        Some(output) if output.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            let what = if output.exists() { "is not a directory" } else { "does not exist" };
            return Err(Failure::usage(format!("{} {what}", output.display()))
                .hint(format!("create the directory first: `mkdir -p {}`", output.display())));
        }
        Some(output) if args.input.is_some() => {
            return Err(Failure::usage(format!("{} is not a directory", output.display()))
                .hint("with a list, `-o` names the directory for all files"));
        }
        Some(output) if output == Path::new("-") => {
            return Err(Failure::usage("parts come in any order, so they cannot go to standard output")
                .hint("`-o FILE` names a file; `-o ./-` one that is called `-`"));
        }
        Some(output) => output.clone(),
        None => PathBuf::from(name),
    };
    if entry.mirrors.is_empty() {
        return Err(Failure::usage("no address is given").hint("write `anabranch fetch https://HOST/FILE`"));
    }
    Ok(Job {
        mirrors: entry.mirrors,
        target,
        replace: args.force,
        keep_finished: args.input.is_some(),
        checksums: entry.checksums,
        size: entry.size,
    })
}

async fn fetch_all(args: &FetchArgs, jobs: &[Job], context: &Context) -> Result<(), Failure> {
    interrupt::survive_file_size_limit();
    let routes = Routes::new(args, jobs).await?;
    let fetched = fetch_over(&routes, args, jobs, context).await;
    routes.close().await;
    fetched
}

async fn fetch_over(
    routes: &Routes,
    args: &FetchArgs,
    jobs: &[Job],
    context: &Context,
) -> Result<(), Failure> {
    let options = Options {
        routes: routes.routes.clone(),
        caps: routes.caps.clone(),
        connections: args.connections,
        limit: args.limit,
        tls: Tls::new().map_err(|error| Failure::local(format!("cannot set up TLS: {error}")))?,
    };
    let mut display = Display::new(context.progress(args.json, Stream::Stdout));
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    let mut stopped = std::pin::pin!(interrupt::requested());
    let mut is_stopped = false;
    for job in jobs {
        if is_stopped {
            // The file before this one was complete already.
            return Err(stopped_early(job));
        }
        let (progress, stop) = (Progress::default(), Notify::new());
        let mut fetching = std::pin::pin!(fetch(job, &options, &progress, &stop));
        let outcome = tokio::select! {
            outcome = &mut fetching => outcome,
            shown = display.run(&progress) => return Err(Failure::unheard(&shown)),
            () = &mut stopped => {
                is_stopped = true;
                display.freeze();
                stop.notify_one();
                fetching.await
            }
            lost = routes.lost() => return Err(lost),
            never = routes.keep_counting() => match never {},
        };
        routes.count();
        display.finish(&progress).map_err(|error| Failure::unheard(&error))?;
        match outcome {
            Ok(report) => done.push(report),
            Err(FetchError::Stopped) => return Err(stopped_early(job)),
            Err(error) if jobs.len() == 1 => return Err(failure(error, job)),
            Err(error) => failed.push((job.target.clone(), failure(error, job))),
        }
    }
    summary(args, (&done, failed), begin.elapsed(), context)
}

/// Reports what was fetched.
fn summary(
    args: &FetchArgs,
    (done, failed): (&[Report], Vec<(PathBuf, Failure)>),
    took: Duration,
    context: &Context,
) -> Result<(), Failure> {
    let seconds = took.as_secs_f64();
    let (bytes, resumed) = done.iter().fold((0, 0), |sum, one| (sum.0 + one.bytes, sum.1 + one.resumed));
    let moved = bytes.saturating_sub(resumed);
    if args.json && failed.is_empty() {
        let skipped = done.iter().filter(|report| report.was_there).count() as u64;
        let report = TransferReport {
            files: done.len() as u64 - skipped,
            skipped,
            bytes,
            bytes_resumed: resumed,
            hard_links: 0,
            left_out: 0,
            removed: 0,
            updated: 0,
            missed: 0,
            seconds,
            goodput_mbit_s: moved as f64 * 8.0 / seconds.max(1e-9) / 1e6,
            verified: done.iter().all(|report| report.verified),
        };
        return Stream::Stdout.json(&Event::Done(report));
    }
    if !args.json && !context.quiet {
        let rate = moved as f64 * 8.0 / seconds.max(1e-9) / 1e6;
        for report in done {
            let checked = if report.verified { ", checksum fits" } else { "" };
            let there = if report.was_there { ", there already" } else { "" };
            let size = human::bytes(report.bytes);
            out::sentence(&format!("{}: {size}{there}{checked}", report.path.display()));
        }
        out::sentence(&format!("{} in {}, {rate:.1} Mbit/s", human::bytes(moved), human::seconds(seconds)));
    }
    if failed.is_empty() {
        return Ok(());
    }
    let all =
        Failure::new(Kind::Incomplete, format!("{} not fetched", human::count(failed.len() as u64, "file")));
    Err(failed.iter().fold(all, |all, (path, failure)| all.detail(format!("{}: {failure}", path.display()))))
}

fn stopped_early(job: &Job) -> Failure {
    let failure = Failure::new(Kind::Interrupted, format!("{} is not complete", job.target.display()));
    with_hint_to_resume(failure, job)
}

fn with_hint_to_resume(failure: Failure, job: &Job) -> Failure {
    match kept(&job.target) {
        0 => failure,
        _ => failure.hint("what has arrived is kept: run the same command again to go on from there"),
    }
}

fn failure(error: FetchError, job: &Job) -> Failure {
    let message = error.to_string();
    match error {
        FetchError::Exists(_) => {
            Failure::local(message).hint("`--force` replaces it, `-o FILE` names another file")
        }
        FetchError::File { action, path, error } => file_failure(action, &path, &error),
        FetchError::Unreachable(tried) => {
            with_hint_to_resume(with_causes(Failure::new(Kind::Unreachable, message), &tried), job)
        }
        FetchError::Refused(tried) => {
            with_causes(Failure::new(Kind::Refused, message), &tried).hint("is the address right?")
        }
        FetchError::Outranked(_) | FetchError::Mixed(_) => {
            Failure::new(Kind::Unreachable, message).hint("fetch from one mirror alone")
        }
        FetchError::Changed | FetchError::Unsure(_) => {
            Failure::new(Kind::Unreachable, message).hint("try again when it is not written to")
        }
        FetchError::Corrupt(_) => {
            let failure = Failure::new(Kind::Corrupt, message);
            match &*job.mirrors {
                [_, _, ..] => job
                    .mirrors
                    .iter()
                    .fold(failure, |failure, mirror| failure.detail(format!("mirror: {mirror}")))
                    .hint("nothing is kept: fetch from each mirror alone to find the one with another file"),
                _ => failure.hint("nothing is kept: is the checksum that of this file? Try other mirrors"),
            }
        }
        FetchError::Short { .. } => Failure::new(Kind::Corrupt, message).hint("nothing is kept: try again"),
        FetchError::Stopped => Failure::new(Kind::Interrupted, message),
    }
}

fn file_failure(action: &'static str, path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            Failure::local(format!("cannot {action} {}: {}", path.display(), describe(error)))
        }
        std::io::ErrorKind::InvalidFilename | std::io::ErrorKind::InvalidInput => {
            Failure::file(action, path, error).hint("`-o FILE` names another file")
        }
        _ => Failure::file(action, path, error),
    }
}

fn with_causes(failure: Failure, tried: &[anabranch_fetch::Tried]) -> Failure {
    tried.iter().fold(failure, |failure, tried| failure.detail(format!("{}: {}", tried.label, tried.why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    fn target(words: &[&str]) -> Result<PathBuf, Failure> {
        let args: FetchArgs = parse(words).unwrap();
        let entry = Entry { mirrors: args.urls.clone(), ..Entry::default() };
        job(&args, entry).map(|job| job.target)
    }

    #[test]
    fn a_file_is_named_by_its_address_or_by_the_user() {
        assert_eq!(target(&["https://a.example/b/c.iso?x=/y"]).unwrap(), Path::new("c.iso"));
        assert_eq!(target(&["https://a.example/"]).unwrap(), Path::new(NAMELESS));
        assert_eq!(target(&["https://a.example/c.iso", "-o", "d"]).unwrap(), Path::new("d"));
        let folder = std::env::temp_dir();
        let words = ["https://a.example/c.iso", "-o", folder.to_str().unwrap()];
        assert_eq!(target(&words).unwrap(), folder.join("c.iso"));
        let failure = target(&["https://a.example/c.iso", "-o", "no-such-folder/"]).unwrap_err();
        assert_eq!(failure.hint.unwrap(), "create the directory first: `mkdir -p no-such-folder/`");
        assert!(target(&["https://a.example/c.iso", "-o", "-"]).is_err());
        assert_eq!(target(&["https://a.example/c.iso", "-o", "./-"]).unwrap(), Path::new("./-"));
    }

    #[test]
    fn only_what_is_kept_is_said_to_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        let args: FetchArgs = parse(&["https://a.example/c.iso"]).unwrap();
        let entry = Entry { mirrors: args.urls.clone(), ..Entry::default() };
        let job = Job { target: folder.path().join("c.iso"), ..job(&args, entry).unwrap() };
        assert_eq!(stopped_early(&job).hint, None);
        assert_eq!(failure(FetchError::Unreachable(Vec::new()), &job).hint, None);
        std::fs::write(folder.path().join(".c.iso.anabranch-fetch-part"), "abc").unwrap();
        assert_eq!(stopped_early(&job).hint, None, "no one knows what of it is there");
        std::fs::write(
            folder.path().join(".c.iso.anabranch-fetch"),
            r#"{"size":3,"origins":[["",[[0,2]]]]}"#,
        )
        .unwrap();
        assert!(stopped_early(&job).hint.unwrap().starts_with("what has arrived is kept"));
    }

    #[test]
    fn an_address_a_list_or_nothing_is_told_apart() {
        assert!(parse::<FetchArgs>(&[]).is_err());
        assert!(parse::<FetchArgs>(&["example.org/file"]).is_err());
        assert!(parse::<FetchArgs>(&["-i", "list", "https://a.example/"]).is_err());
        let args: FetchArgs = parse(&["-i", "list", "--via", "eth0,wlan0", "--json"]).unwrap();
        assert_eq!(args.via, ["eth0", "wlan0"]);
    }
}
