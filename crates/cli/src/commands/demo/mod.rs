//! `anabranch demo`: a transfer between two nodes over three slow paths, all inside this process.
//!
//! `stage` sets up the two nodes and the modelled paths, `act` runs one transfer, and `recording` notes what
//! the receiver gets.
//!
//! The *steady state* of a transfer lasts from 25 % to 95 % of the file. It leaves out slow start and the
//! end, when too little data is left for all paths. All rates count bytes of the file, without headers.

mod act;
mod overlay;
mod recording;
pub(super) mod stage;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anabranch_wire::{Rate, Span};
use clap::Args;
use tempfile::TempDir;

use crate::context::{Context, OUTPUT};
use crate::errors::{Failure, Kind};
use crate::interrupt;
use crate::report::DemoReport;
use crate::ui::human;
use crate::ui::out::{self, Stream};
use crate::ui::paint::Paint;
use act::{Errand, Outcome};
use overlay::Overlay;
use stage::{Model, Scene, Stage};

/// The smallest file whose steady state lasts long enough to be measured.
const SIZE_MIN: u64 = 4 << 20;

/// The largest file with which the demo takes less than a minute: its bytes cross two and a half times,
/// partly without the fastest path.
const SIZE_MAX: u64 = 160 << 20;

/// Longest silence after a cut; slow paths may take three round trips.
const FAILOVER: Span = Span::from_millis(200);

/// Start and end of the steady state, as shares of the file.
const STEADY: (f64, f64) = (0.25, 0.95);

const EXAMPLES: &str = "\
Examples:
  anabranch demo                  no root, and nothing leaves this machine
  anabranch demo --relays         three relays beside a slow direct path, one of them killed
  anabranch demo --size 128MiB    a longer look
  anabranch demo --json | jq .failover_gap_ms";

/// Send a file over three paths at once while one of them is cut
///
/// Two nodes in this process talk over UDP, through modelled links of 50, 30 and 20 Mbit/s with round trips of 10, 30 and
/// 60 ms. Half a file crosses the fastest alone, then a file all three, then another while the fastest falls silent.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Size of the file
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = demo_size)]
    pub size: u64,
    /// Use relays next to a slow direct path; the fastest relay is killed
    #[arg(long)]
    pub relays: bool,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn demo_size(text: &str) -> Result<u64, String> {
    let size = anabranch_settings::size(text)?;
    match size {
        ..SIZE_MIN => Err("must be at least 4MiB, or there is nothing to see".into()),
        SIZE_MIN..=SIZE_MAX => Ok(size),
        _ => Err("must be at most 160MiB, or it takes longer than a minute".into()),
    }
}

/// Plays the demo.
pub fn run(args: &DemoArgs, context: &Context) -> Result<(), Failure> {
    let runtime = anabranch_node::Threads::start()?;
    let report = runtime.block_on(async {
        tokio::select! {
            biased;
            () = interrupt::requested() => Err(Failure::new(Kind::Interrupted, "the demo is over")),
            report = set_up(args, context) => report,
        }
    });
    // A thread may still write a file that is not needed any more.
    runtime.shutdown_background();
    let report = report?;
    if args.json {
        Stream::Stdout.json(&report)?;
    } else {
        out::page(&format!("\n{}", summary(&report, context.paint)))?;
    }
    if report.verified {
        Ok(())
    } else {
        Err(Failure::new(Kind::Corrupt, "what arrived is not what was sent"))
    }
}

/// Sets up nodes and paths, with or without relays, and plays the demo on them.
async fn set_up(args: &DemoArgs, context: &Context) -> Result<DemoReport, Failure> {
    if args.relays {
        let models = overlay::models();
        play(args, (&Overlay::new(&models).await?, &models), context).await
    } else {
        let models = stage::models();
        play(args, (&Stage::new(&models).await?, &models), context).await
    }
}

/// Plays the acts one after the other.
async fn play<S: Scene>(
    args: &DemoArgs,
    (stage, models): (&S, &[Model]),
    context: &Context,
) -> Result<DemoReport, Failure> {
    let props = Props::new(args.size).await?;
    let say = |text: &str| {
        if !args.json && !context.quiet {
            out::error(&format!("{text}\n"));
        }
    };
    let hush = Context { quiet: context.quiet || args.json, ..*context };
    let act = async |title: &str, errand: Errand<'_>| {
        say(title);
        let mut display = hush.progress(false, Stream::Stdout);
        act::play(stage, &errand, &mut display).await
    };
    let all = models.len();
    let alone =
        act("\nHalf a file over the fastest path alone", props.errand(&props.half, 1, false)?).await?;
    let together =
        act(&format!("\nA file over all {all} paths"), props.errand(&props.whole, all, false)?).await?;
    let cut = act("\nAnother, while a path is cut", props.errand(&props.whole, all, true)?).await?;
    let silence = cut.cut_at.map(|(at, rtt)| (cut.recording.longest_silence(at, cut.whole_at), rtt));
    let (silence, rtt) =
        silence.ok_or_else(|| Failure::local("the file was there before a path could be cut"))?;
    let sum = models.iter().map(|model| model.payload_rate().as_mbit()).sum();
    Ok(DemoReport {
        bytes: args.size,
        paths: models.iter().map(stage::Model::report).collect(),
        best_single_mbit_s: steady(&alone).as_mbit(),
        multipath_mbit_s: steady(&together).as_mbit(),
        sum_mbit_s: sum,
        failover_gap_ms: silence.as_millis_f64(),
        failover_bound_ms: (rtt * 3).max(FAILOVER).as_millis_f64(),
        verified: props.verify(all).await?,
    })
}

fn steady(outcome: &Outcome) -> Rate {
    outcome.recording.rate_between(STEADY.0, STEADY.1)
}

/// The original files and the directory for their copies.
struct Props {
    dir: TempDir,
    whole: Original,
    half: Original,
}

/// A file that is sent.
struct Original {
    path: PathBuf,
    bytes: u64,
    hash: blake3::Hash,
}

impl Props {
    async fn new(size: u64) -> Result<Self, Failure> {
        blocking(move || {
            let dir = tempfile::Builder::new().prefix("anabranch-demo-").tempdir()?;
            let whole = Original::write(dir.path().join("whole"), size)?;
            let half = Original::write(dir.path().join("half"), size / 2)?;
            Ok(Self { dir, whole, half })
        })
        .await
    }

    /// The task to carry a file to a directory of its own.
    fn errand<'a>(&self, original: &'a Original, paths: usize, cut: bool) -> Result<Errand<'a>, Failure> {
        let to = self.dir.path().join(format!("over-{paths}{}", if cut { "-cut" } else { "" }));
        std::fs::create_dir(&to).map_err(|error| Failure::file("create the directory", &to, &error))?;
        Ok(Errand { file: &original.path, bytes: original.bytes, to, paths, cut })
    }

    /// True if every copy equals its original. The first act used one path, the others `all`.
    async fn verify(&self, all: usize) -> Result<bool, Failure> {
        let copy = |to: String, original: &Original| (self.dir.path().join(to), original.hash);
        let copies = [
            copy("over-1/half".into(), &self.half),
            copy(format!("over-{all}/whole"), &self.whole),
            copy(format!("over-{all}-cut/whole"), &self.whole),
        ];
        blocking(move || {
            let mut all = true;
            for (path, hash) in copies {
                all &= hash_of(&path)? == hash;
            }
            Ok(all)
        })
        .await
    }
}

impl Original {
    /// Writes a file of pseudo-random bytes, the same every time.
    fn write(path: PathBuf, bytes: u64) -> io::Result<Self> {
        let mut source = blake3::Hasher::new().finalize_xof();
        let (mut file, mut hasher) = (File::create(&path)?, blake3::Hasher::new());
        let (mut block, mut left) = (vec![0; 1 << 20], bytes);
        while left > 0 {
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
            source.fill(&mut block[..len]);
            hasher.update(&block[..len]);
            file.write_all(&block[..len])?;
            left -= len as u64;
        }
        Ok(Self { path, bytes, hash: hasher.finalize() })
    }
}

fn hash_of(path: &Path) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

/// Runs blocking disk work on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.into()))
        .map_err(|error| Failure::file("use files in", &std::env::temp_dir(), &error))
}

/// The result as text.
pub fn summary(report: &DemoReport, paint: Paint) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String, note: String| {
        let _ = writeln!(text, "  {name:<20}{:>14}   {}", value, paint.dim(&note));
    };
    row("best path alone", mbit(report.best_single_mbit_s), String::new());
    let share =
        format!("{:.0} % of the paths' sum, {}", report.share_of_sum() * 100.0, mbit(report.sum_mbit_s));
    row("all paths together", mbit(report.multipath_mbit_s), share);
    row(
        "longest silence",
        format!("{:.0} ms", report.failover_gap_ms),
        "when the fastest path was cut half-way".into(),
    );
    let verdict = if report.verified {
        paint.green("every byte arrived as it was sent")
    } else {
        paint.red("what arrived is not what was sent")
    };
    let _ = writeln!(text, "  files of up to {}: {verdict}", human::bytes(report.bytes));
    text
}

fn mbit(rate: f64) -> String {
    format!("{rate:.1} Mbit/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn the_file_is_as_large_as_asked_but_neither_too_small_to_measure_nor_too_large_to_wait_for() {
        assert_eq!(parse::<DemoArgs>(&[]).unwrap().size, 64 << 20);
        assert_eq!(parse::<DemoArgs>(&["--size", "100MB"]).unwrap().size, 100_000_000);
        for size in ["1kB", "161MiB", "9TB"] {
            assert!(parse::<DemoArgs>(&["--size", size]).is_err(), "{size}");
        }
    }

    #[test]
    fn the_summary_tells_the_sum_the_gap_and_the_verdict() {
        let report = DemoReport {
            bytes: 33_554_432,
            paths: Vec::new(),
            best_single_mbit_s: 47.6,
            multipath_mbit_s: 93.1,
            sum_mbit_s: 95.0,
            failover_gap_ms: 83.4,
            failover_bound_ms: 200.0,
            verified: true,
        };
        let expected = "  \
  best path alone        47.6 Mbit/s   
  all paths together     93.1 Mbit/s   98 % of the paths' sum, 95.0 Mbit/s
  longest silence              83 ms   when the fastest path was cut half-way
  files of up to 33.6 MB: every byte arrived as it was sent
";
        assert_eq!(summary(&report, Paint::OFF), expected);
        assert!(
            summary(&DemoReport { verified: false, ..report }, Paint::OFF).contains("is not what was sent")
        );
    }
}
