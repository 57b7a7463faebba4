//! Log lines on standard error: warnings by default, more with `-v`.

use tracing::level_filters::LevelFilter;

use super::screen::AboveProgress;
use crate::context::Context;

/// Starts logging for this process. A second call changes nothing.
pub fn start(context: &Context) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level(context.verbose, context.quiet))
        .with_ansi(context.paint.is_on())
        .with_writer(|| AboveProgress)
        .with_target(context.verbose > 1);
    let _ = subscriber.try_init();
}

/// The least severe level shown: warnings, then one step more for each `-v`; errors alone with `--quiet`.
fn level(verbose: u8, quiet: bool) -> LevelFilter {
    match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_v_shows_one_level_more() {
        let levels = [0, 1, 2, 3, 9].map(|verbose| level(verbose, false));
        use LevelFilter as L;
        assert_eq!(levels, [L::WARN, L::INFO, L::DEBUG, L::TRACE, L::TRACE]);
        assert_eq!(level(0, true), L::ERROR);
    }
}
