//! This machine as a node: what every command that talks to another one begins with.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_net::{Endpoint, Route, Session};
use anabranch_service::process::memory;
use tokio::runtime::{Builder, Runtime};

use crate::errors::Failure;

/// How long a program that ends waits for what the system has not finished: a name server that is silent is asked for up to 10 s, and
/// nobody waits for the answer any more.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// The threads that sessions run on.
#[derive(Debug)]
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Runs to its end.
    ///
    /// # Panics
    /// What it panics with.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let Self(Some(runtime)) = self else { unreachable!("it is there until this is dropped") };
        runtime.block_on(future)
    }

    /// Ends them without any wait.
    pub fn shutdown_background(mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(LAST_PATIENCE);
        }
    }
}

/// Address space that a program with sessions reserves at least: most of it for threads, and never used.
const LEAST_ADDRESS_SPACE: u64 = 512 << 20;

/// Starts the threads that sessions run on.
///
/// # Errors
/// When the system gives no threads, or so little address space that an allocation would fail later.
pub fn runtime() -> Result<Threads, Failure> {
    check_address_space(memory::address_space())?;
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map(|runtime| Threads(Some(runtime)))
        .map_err(|error| Failure::local(format!("cannot start the network threads: {error}")))
}

fn check_address_space(limit: Option<u64>) -> Result<(), Failure> {
    match limit {
        Some(limit) if limit < LEAST_ADDRESS_SPACE => Err(Failure::local(format!(
            "the address space is limited to {} MiB (`ulimit -v`), and threads reserve up to {} MiB of it",
            limit >> 20,
            LEAST_ADDRESS_SPACE >> 20
        ))
        .hint("limit the memory in use instead: `systemd-run --user --scope -p MemoryMax=64M anabranch …`")),
        _ => Ok(()),
    }
}

/// The addresses to tell others, best first: those that a default route leads to, then other addresses of this
/// machine. Loopback is for a machine that has nothing else; who connects from this very machine finds it anyway.
#[must_use]
pub fn addresses_to_tell(endpoint: &Endpoint) -> Vec<SocketAddr> {
    let mut sockets = endpoint.sockets();
    if sockets.iter().any(|socket| !socket.place.loopback) {
        sockets.retain(|socket| !socket.place.loopback);
    }
    sockets.retain(|socket| !socket.ruled_out);
    sockets.sort_by_key(|socket| !socket.place.has_default_route());
    sockets.iter().map(|socket| socket.local).collect()
}

/// True when these addresses lead to this very machine only.
#[must_use]
pub fn only_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().is_loopback())
}

/// What is said when [`only_here`] is so.
pub const ONLY_HERE: &str = "no network is up: only programs on this very machine can use the ticket; connect to a network and start again";

/// What people call this end of a path: its interface, or its address where that has no name.
#[must_use]
pub fn local_name(session: &Session, route: &Route) -> Option<String> {
    let interface = session.interface(route).filter(|name| !name.is_empty());
    interface.or_else(|| Some(session.local_address(route)?.ip().to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn too_little_address_space_is_an_error_with_advice_and_not_an_abort_later() {
        assert!(check_address_space(None).is_ok() && check_address_space(Some(1 << 30)).is_ok());
        let failure = check_address_space(Some(200 << 20)).unwrap_err();
        assert!(failure.message.contains("200 MiB") && failure.hint.is_some(), "{failure}");
    }

    #[test]
    fn nobody_waits_for_what_the_system_does_not_finish() {
        let threads = runtime().unwrap();
        let (wait, end) = std::sync::mpsc::channel::<()>();
        // As the system's resolver does while a name server is silent.
        let resolving = move || end.recv_timeout(Duration::from_secs(20)).is_err();
        threads.block_on(async { drop(tokio::task::spawn_blocking(resolving)) });
        let begin = Instant::now();
        drop(threads);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        drop(wait);
    }
}
