//! The bottom of the terminal, where progress is drawn.

use std::io::{self, Write};
use std::sync::LazyLock;

use indicatif::{MultiProgress, ProgressDrawTarget};

/// The bottom of the terminal, shared by the drawing and by everything that writes above it.
pub(super) static SCREEN: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(target()));

fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

/// Leaves everything drawn as it stands, and goes to the next line.
pub(super) fn keep_drawing() {
    // A new target has drawn nothing, so it replaces no line.
    SCREEN.set_draw_target(target());
    // There is nowhere to report an error.
    let _ = io::stderr().write_all(b"\n");
}

/// Standard error for text written while progress is drawn; the drawing moves out of the way.
pub struct AboveProgress;

impl Write for AboveProgress {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SCREEN.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
