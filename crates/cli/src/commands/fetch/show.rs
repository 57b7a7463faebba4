//! Progress of a download: one line for each source.

use std::io;
use std::time::Instant;

use anabranch_fetch::{Progress, Snapshot, SourceStatus};
use anabranch_wire::Span;

use crate::carrier::REDRAW;
use crate::ui::snapshot::{PathLine, PathState, ProgressSnapshot};

/// Draws the progress of one download after the other.
pub(super) struct Display {
    display: crate::ui::progress::Progress,
    begin: Instant,
}

impl Display {
    pub(super) fn new(display: crate::ui::progress::Progress) -> Self {
        Self { display, begin: Instant::now() }
    }

    /// Draws until the display cannot be written.
    pub(super) async fn run(&mut self, progress: &Progress) -> io::Error {
        self.begin = Instant::now();
        let mut tick = tokio::time::interval(REDRAW);
        loop {
            tick.tick().await;
            let snapshot = progress.take();
            if let Err(error) = self.draw(&snapshot, false) {
                return error;
            }
        }
    }

    /// Draws the last state.
    pub(super) fn finish(&mut self, progress: &Progress) -> io::Result<()> {
        self.draw(&progress.take(), true)
    }

    fn draw(&mut self, snapshot: &Snapshot, is_last: bool) -> io::Result<()> {
        for note in &snapshot.notes {
            self.display.note(note)?;
        }
        let total: f64 = snapshot.sources.iter().map(|source| source.rate).sum();
        let shown = ProgressSnapshot {
            elapsed: Span::from_nanos(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            bytes_done: snapshot.bytes,
            bytes_resumed: snapshot.resumed,
            bytes_moved: snapshot.bytes.saturating_sub(snapshot.resumed),
            bytes_total: snapshot.size,
            waiting: false,
            paths: snapshot.sources.iter().map(|source| line(source, total)).collect(),
            receivers: Vec::new(),
        };
        if is_last { self.display.finish(&shown) } else { self.display.update(&shown) }
    }
}

fn line(source: &SourceStatus, total: f64) -> PathLine {
    let state = match (source.is_ready, source.bytes) {
        (true, _) => PathState::Active,
        (false, 0) => PathState::Validating,
        (false, _) => PathState::Failed,
    };
    PathLine {
        label: source.label.clone(),
        rate_mbit_s: source.rate * 8.0 / 1e6,
        rtt_ms: None,
        loss: None,
        share: (total > 0.0).then(|| source.rate / total),
        state,
        why: source.why.clone(),
    }
}
