//! The link model between real UDP sockets, in one process and without root.
//!
//! For each path there is an address on this machine that clients send to. What comes there goes
//! through the path's forward link and on to the server, from a socket that is that client's own; what
//! the server answers to it goes through the reverse link and back. Client and server see real datagrams, real
//! sockets and real time, and the paths are the ones of the simulator (`anabranch-link`):
//!
//! ```text
//! client ──> listen address ─ forward link ─> client's socket ──> server
//!        <──               <─ reverse link ─                  <──
//! ```
//!
//! Kernel time stamps say when packets came, and model time when they leave, so that the rates are exact
//! however busy the machine is; a packet comes out some 0.2 ms late, more when the machine is overloaded.

mod clock;
mod path;
mod port;
mod worker;

pub use path::{CLIENT_IDLE, MAX_CLIENTS, MAX_HELD_BYTES, PathStats};

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anabranch_link::{LinkConfig, LossModel, RateModel};
use anabranch_wire::Span;
use mio::{Poll, Waker};

use crate::clock::Clock;
use crate::path::Links;
use crate::port::Port;
use crate::worker::{BELL, Worker};

/// A path to emulate.
#[derive(Clone, Debug)]
pub struct EmulatedPath {
    /// Where clients are to send; port 0 takes a free one. Any address of 127.0.0.0/8 serves on Linux, so
    /// that paths can differ in their addresses. The server sees clients at the same IP address.
    pub listen: SocketAddr,
    /// Where the server is.
    pub server: SocketAddr,
    /// From client to server.
    pub forward: LinkConfig,
    /// From server to client.
    pub reverse: LinkConfig,
}

impl EmulatedPath {
    /// A path on 127.0.0.1 that is alike in both directions, but for its luck.
    #[must_use]
    pub fn symmetric(server: SocketAddr, link: LinkConfig) -> Self {
        let reverse = LinkConfig { seed: link.seed.wrapping_add(1), ..link.clone() };
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), server, forward: link, reverse }
    }
}

/// One of a path's two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    Forward,
    /// From server to client.
    Reverse,
}

/// Running paths. They end when this is dropped.
#[derive(Debug)]
pub struct Emulation {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    bell: Waker,
    thread: Option<JoinHandle<()>>,
}

/// What the handle and the thread have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    clock: Clock,
    stop: AtomicBool,
    links: Mutex<Vec<Links>>,
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, Vec<Links>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Emulation {
    /// Opens the paths' sockets and starts the thread that serves them.
    ///
    /// # Errors
    /// When a socket cannot be bound, the thread cannot be started, or a path's two addresses are not of one family.
    pub fn start(paths: &[EmulatedPath]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let bell = Waker::new(poll.registry(), BELL)?;
        let mut listeners = Vec::with_capacity(paths.len());
        let mut addresses = Vec::with_capacity(paths.len());
        for path in paths {
            if path.listen.is_ipv4() != path.server.is_ipv4() {
                let text = format!("{} and {} are not of one address family", path.listen, path.server);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let port = Port::bind(path.listen)?;
            addresses.push(port.socket.local_addr()?);
            listeners.push((port, path.server));
        }
        let links = Mutex::new(paths.iter().map(Links::new).collect());
        let shared = Arc::new(Shared { clock: Clock::start(), stop: AtomicBool::new(false), links });
        let worker = Worker::new(poll, shared.clone(), listeners)?;
        let thread = std::thread::Builder::new().name("emulation".into()).spawn(|| worker.run())?;
        Ok(Self { addresses, shared, bell, thread: Some(thread) })
    }

    /// Where clients send to reach the server over each path, in the order of the configurations.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Cuts a path in both directions, or mends it.
    ///
    /// # Panics
    /// When there is no such path, as all that take one.
    pub fn set_down(&self, path: usize, down: bool) {
        self.change(path, |links, now| {
            links.link(Direction::Forward).set_down(now, down);
            links.link(Direction::Reverse).set_down(now, down);
        });
    }

    /// Changes the rate of one direction, also for what waits.
    pub fn set_rate(&self, path: usize, direction: Direction, rate: RateModel) {
        self.change(path, |links, now| links.link(direction).set_rate(now, rate));
    }

    /// Changes the delay of one direction, for what has not left yet.
    pub fn set_delay(&self, path: usize, direction: Direction, delay: Span) {
        self.change(path, |links, now| links.link(direction).set_delay(now, delay));
    }

    /// Changes random loss in one direction.
    pub fn set_loss(&self, path: usize, direction: Direction, loss: LossModel) {
        self.change(path, |links, now| links.link(direction).set_loss(now, loss));
    }

    /// What happened on each path so far.
    #[must_use]
    pub fn stats(&self) -> Vec<PathStats> {
        self.shared.links().iter().map(Links::stats).collect()
    }

    fn change(&self, path: usize, change: impl FnOnce(&mut Links, anabranch_wire::Time)) {
        change(&mut self.shared.links()[path], self.shared.clock.now());
        self.ring();
    }

    /// Wakes the thread, whose next arrival may have changed.
    fn ring(&self) {
        if let Err(error) = self.bell.wake() {
            tracing::warn!(%error, "the emulation's thread could not be woken");
        }
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.ring();
        if let Some(thread) = self.thread.take() {
            // It only fails when the thread panicked, which has been reported then.
            let _ = thread.join();
        }
    }
}
