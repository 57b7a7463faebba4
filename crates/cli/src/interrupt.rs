//! The user's wish to stop.

use crate::errors::Kind;

/// Waits for Ctrl-C or, where there is such a thing, SIGTERM. From then on a second Ctrl-C ends the program at
/// once, so that nobody has to wait for a farewell.
pub async fn requested() {
    first().await;
    tokio::spawn(async {
        first().await;
        std::process::exit(Kind::Interrupted.exit_code().into());
    });
}

#[cfg(unix)]
async fn first() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut polite) = signal(SignalKind::terminate()) else { return ctrl_c().await };
    tokio::select! {
        () = ctrl_c() => {}
        _ = polite.recv() => {}
    }
}

#[cfg(not(unix))]
async fn first() {
    ctrl_c().await;
}

async fn ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler the system's default remains, which ends the program.
        std::future::pending::<()>().await;
    }
}
