//! One transfer of the demo: a file from the giver to the taker, watched, and perhaps a path cut on the way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_transfer::{Progress as Counters, ReceiveOptions, Share, Target, receive, send};
use anabranch_wire::Span;

use super::recording::{Recorded, Recording};
use super::stage::{Pair, Scene};
use crate::carrier::{Carrier, REDRAW};
use crate::errors::Failure;
use crate::ui::paths::{Direction, PathMeter};
use crate::ui::progress::{Progress, ProgressSnapshot};

/// Time between two looks at how far the file is, to cut the path at the right moment.
const LOOK: Duration = Duration::from_millis(2);
/// The path that is cut: the fastest.
const VICTIM: usize = 0;

/// A file and where a copy goes.
pub struct Errand<'a> {
    /// The file.
    pub file: &'a Path,
    /// Its length.
    pub bytes: u64,
    /// Directory for the copy.
    pub to: PathBuf,
    /// The first so many paths are used.
    pub paths: usize,
    /// Cut the fastest when half of the file has come.
    pub cut: bool,
}

/// The recorded result of a transfer.
pub struct Outcome {
    /// When bytes came.
    pub recording: Recording,
    /// When the path was cut, on the recording's clock, and the longest smoothed round-trip time of all paths then.
    pub cut_at: Option<(Duration, Span)>,
    /// When all bytes were checked and written, on the recording's clock. The receiver then has the disk keep them, and tells the giver, which answers.
    pub whole_at: Duration,
}

/// Carries the file over, and shows it on `display`.
///
/// # Errors
/// When it does not arrive, or the display cannot be written.
pub async fn play<S: Scene>(
    stage: &S,
    errand: &Errand<'_>,
    display: &mut Progress,
) -> Result<Outcome, Failure> {
    let share = Share::from_paths(&[errand.file])?;
    let pair = stage.connect(errand.paths).await?;
    let recording = Recording::new();
    let (giver, taker) = (Carrier::new(pair.giver.clone()), Carrier::new(pair.taker.clone()));
    let recorded = Recorded::new(taker.clone(), recording.clone());
    let (sent, received) = (Counters::new(), Counters::new());
    let (options, target) = (ReceiveOptions::default(), Target::Directory(errand.to.clone()));
    let transfer = async {
        match tokio::try_join!(send(&giver, &share, &sent), receive(&recorded, target, &options, &received)) {
            Ok(summaries) => Ok(summaries),
            Err(error) => Err(taker.explain(error).await),
        }
    };
    let meter = PathMeter::new(Direction::Out);
    let mut watch = Watch {
        stage,
        pair: &pair,
        errand,
        recording: &recording,
        received: &received,
        meter,
        cut_at: None,
        whole_at: None,
    };
    tokio::select! {
        biased;
        outcome = transfer => outcome.map(drop)?,
        gone = watch.show(display) => return Err(gone),
    }
    let (cut_at, whole_at) = (watch.cut_at, watch.whole_at.unwrap_or_else(|| recording.now()));
    display.finish(&watch.snapshot()).map_err(|error| Failure::output(&error))?;
    tokio::join!(taker.close(), giver.close());
    Ok(Outcome { recording, cut_at, whole_at })
}

/// Looks at a running transfer.
struct Watch<'a, S> {
    stage: &'a S,
    pair: &'a Pair,
    errand: &'a Errand<'a>,
    recording: &'a Recording,
    received: &'a Counters,
    meter: PathMeter,
    cut_at: Option<(Duration, Span)>,
    whole_at: Option<Duration>,
}

impl<S: Scene> Watch<'_, S> {
    /// Redraws, and cuts the path when it is time, until the display cannot be written any more.
    async fn show(&mut self, display: &mut Progress) -> Failure {
        let mut redraw = tokio::time::interval(REDRAW);
        loop {
            let shown = tokio::select! {
                () = tokio::time::sleep(LOOK), if self.whole_at.is_none() => {
                    if self.look() {
                        display.note("half of it is here: the fastest path falls silent")
                    } else {
                        continue;
                    }
                }
                _ = redraw.tick() => display.update(&self.snapshot()),
            };
            if let Err(error) = shown {
                return Failure::output(&error);
            }
        }
    }

    /// Sees how far the file is; true when the path was cut now.
    fn look(&mut self) -> bool {
        if self.received.snapshot().bytes_done >= self.errand.bytes {
            self.whole_at = Some(self.recording.now());
        }
        let is_time =
            self.errand.cut && self.cut_at.is_none() && self.recording.bytes() >= self.errand.bytes / 2;
        if is_time {
            let rtt = self.pair.giver.paths().iter().map(|path| path.rtt).max();
            self.cut_at = Some((self.recording.now(), rtt.unwrap_or(Span::ZERO)));
            self.stage.cut(VICTIM);
        }
        is_time
    }

    fn snapshot(&mut self) -> ProgressSnapshot {
        let elapsed = Span::from_secs_f64(self.recording.now().as_secs_f64());
        ProgressSnapshot {
            elapsed,
            // Other stream data is negligible.
            bytes_done: self.recording.bytes().min(self.errand.bytes),
            bytes_resumed: 0,
            bytes_total: Some(self.errand.bytes),
            waiting: false,
            paths: self.meter.lines(elapsed, &self.stage.named_paths(self.pair)),
        }
    }
}
