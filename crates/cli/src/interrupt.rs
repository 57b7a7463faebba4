//! Waits for the user to stop the command.

use std::sync::LazyLock;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::errors::Kind;

/// Waits for Ctrl-C, SIGTERM or SIGHUP. They count from this call on, also before the first poll. After that, a second one
/// ends the program at once, without notifying the other end. Until the future is polled nothing ends the program, so
/// commands call this when they are ready, not before they resolve names or call relays.
pub fn requested() -> impl Future<Output = ()> {
    let mut signals = Signals::register();
    async move {
        signals.next().await;
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(Kind::Interrupted.exit_code().into());
        });
    }
}

/// The signals that end a command. Without a handler, the system's default applies, which ends the program.
struct Signals(Vec<Signal>);

impl Signals {
    /// SIGHUP reports that the terminal is gone. Under `nohup` it stays ignored.
    fn register() -> Self {
        let hang_up = (!ignores_hang_up()).then_some(SignalKind::hangup());
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()].into_iter().chain(hang_up);
        Self(kinds.filter_map(|kind| signal(kind).ok()).collect())
    }

    async fn next(&mut self) {
        std::future::poll_fn(|context| {
            let comes = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if comes { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// True if this program was started with SIGHUP ignored. Linux lists ignored signals in a mask whose lowest bit is
/// SIGHUP.
fn ignores_hang_up() -> bool {
    static IGNORES: LazyLock<bool> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
    });
    *IGNORES
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail instead of ending the program.
pub fn survive_file_size_limit() {
    /// SIGXFSZ, the same number on all supported systems.
    const FILE_SIZE: i32 = 25;
    // The handler stays when its receiver is dropped. If it cannot be installed, the system's default remains.
    drop(signal(SignalKind::from_raw(FILE_SIZE)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_counts_before_anyone_waits_for_it() {
        let stop = requested();
        let own = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &own]).status().unwrap().success());
        tokio::time::timeout(std::time::Duration::from_secs(60), stop).await.unwrap();
    }
}
