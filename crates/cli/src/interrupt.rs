//! Waits for the user to stop the command.

use std::sync::LazyLock;

use tokio::signal::unix::{SignalKind, signal};

use crate::errors::Kind;

/// Waits for Ctrl-C, SIGTERM or SIGHUP. After that, a second one ends the program at once, without
/// notifying the other end.
pub async fn requested() {
    first().await;
    tokio::spawn(async {
        first().await;
        std::process::exit(Kind::Interrupted.exit_code().into());
    });
}

async fn first() {
    let Ok(mut polite) = signal(SignalKind::terminate()) else { return ctrl_c().await };
    tokio::select! {
        () = ctrl_c() => {}
        _ = polite.recv() => {}
        () = hang_up() => {}
    }
}

/// Waits for SIGHUP, which reports that the terminal is gone. Under `nohup` it stays ignored.
async fn hang_up() {
    if !ignores_hang_up()
        && let Ok(mut gone) = signal(SignalKind::hangup())
    {
        gone.recv().await;
    } else {
        std::future::pending::<()>().await;
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

async fn ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler the system's default applies, which ends the program.
        std::future::pending::<()>().await;
    }
}
