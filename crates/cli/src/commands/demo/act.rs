//! One transfer of the demo: the giver sends a file to the taker, and half-way a path may be cut.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_transfer::{Progress as Counters, ReceiveOptions, Share, Target, receive, send};
use anabranch_wire::Span;

use super::recording::{Recorded, Recording};
use super::stage::{Pair, Scene};
use crate::carrier::{Carrier, REDRAW};
use crate::errors::Failure;
use crate::ui::paths::{Direction, PathMeter};
use crate::ui::progress::Progress;
use crate::ui::snapshot::ProgressSnapshot;

/// How often the progress is checked, so that the cut comes at the right moment.
const LOOK: Duration = Duration::from_millis(2);
/// Index of the path that is cut: the fastest.
const VICTIM: usize = 0;

/// One file and the directory for its copy.
pub struct Errand<'a> {
    /// The file.
    pub file: &'a Path,
    /// Its length.
    pub bytes: u64,
    /// Directory for the copy.
    pub to: PathBuf,
    /// Number of paths to use, the fastest first.
    pub paths: usize,
    /// Whether to cut the fastest path half-way.
    pub cut: bool,
}

/// The recorded result of a transfer.
pub struct Outcome {
    /// When bytes arrived.
    pub recording: Recording,
    /// When the path was cut, and the longest smoothed round-trip time of all paths at that moment.
    pub cut_at: Option<(Duration, Span)>,
    /// When all bytes were verified and written. The flush to the disk and the farewell come later.
    pub whole_at: Duration,
}

/// Transfers the file and shows the progress on `display`.
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

/// Watches a running transfer.
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
    /// Redraws, and cuts the path at its time, until the display cannot be written.
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

    /// Checks the progress; true if this call cut the path.
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
            // Stream data other than the file is negligible.
            bytes_done: self.recording.bytes().min(self.errand.bytes),
            bytes_resumed: 0,
            bytes_moved: self.recording.bytes().min(self.errand.bytes),
            bytes_total: Some(self.errand.bytes),
            waiting: false,
            paths: self.meter.lines(elapsed, &self.stage.named_paths(self.pair)),
            receivers: Vec::new(),
        }
    }
}
