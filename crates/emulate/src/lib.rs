//! The link model between real UDP sockets, in one process and without root.
//!
//! Each path has an address on this machine to which clients send. Their packets pass the path's forward link and go on
//! to the server, from a socket of that client's own. The server's answers to that socket pass the reverse link and go
//! back. Client and server have real datagrams, sockets and time; the paths are the simulator's (`anabranch-link`):
//!
//! ```text
//! client ──> listen address ─ forward link ─> client's socket ──> server
//!        <──               <─ reverse link ─                  <──
//! ```
//!
//! Kernel time stamps give the arrival of packets, and model time their departure, so the rates are exact however busy
//! the machine is. A packet comes out about 0.2 ms late, more when the machine is overloaded.

mod clock;
mod config;
mod datagram;
mod path;
mod port;
mod state;
mod worker;

pub use config::{Direction, EmulatedPath};
pub use path::{CLIENT_IDLE, MAX_CLIENTS, MAX_HELD_BYTES, PathStats};

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anabranch_link::{LossModel, RateModel};
use anabranch_wire::Span;
use mio::{Poll, Waker};

use crate::clock::Clock;
use crate::path::Links;
use crate::port::Port;
use crate::state::State;
use crate::worker::{WAKER, Worker};

/// Running paths. They end when this is dropped.
#[derive(Debug)]
pub struct Emulation {
    addresses: Vec<SocketAddr>,
    state: Arc<State>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Emulation {
    /// Opens the paths' sockets and starts the thread that serves them.
    pub fn start(paths: &[EmulatedPath]) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
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
        let state = Arc::new(State { clock: Clock::start(), stop: AtomicBool::new(false), links });
        let worker = Worker::new(poll, state.clone(), listeners)?;
        let thread = std::thread::Builder::new().name("emulation".into()).spawn(|| worker.run())?;
        Ok(Self { addresses, state, waker, thread: Some(thread) })
    }

    /// Where clients send to reach the server over each path, in the order of the configurations.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Cuts or restores a path in both directions.
    ///
    /// # Panics
    /// When there is no such path, as in all methods with a path.
    pub fn set_down(&self, path: usize, down: bool) {
        self.set_way_down(path, Direction::Forward, down);
        self.set_way_down(path, Direction::Reverse, down);
    }

    /// Cuts or restores one direction of a path.
    pub fn set_way_down(&self, path: usize, direction: Direction, down: bool) {
        self.change(path, |links, now| links.link(direction).set_down(now, down));
    }

    /// Changes the rate of one direction, also for waiting packets.
    pub fn set_rate(&self, path: usize, direction: Direction, rate: RateModel) {
        self.change(path, |links, now| links.link(direction).set_rate(now, rate));
    }

    /// Changes the delay of one direction, for packets that have not left yet.
    pub fn set_delay(&self, path: usize, direction: Direction, delay: Span) {
        self.change(path, |links, now| links.link(direction).set_delay(now, delay));
    }

    /// Changes random loss in one direction.
    pub fn set_loss(&self, path: usize, direction: Direction, loss: LossModel) {
        self.change(path, |links, now| links.link(direction).set_loss(now, loss));
    }

    /// The counts of each path so far.
    pub fn stats(&self) -> Vec<PathStats> {
        self.state.links().iter().map(Links::stats).collect()
    }

    fn change(&self, path: usize, change: impl FnOnce(&mut Links, anabranch_wire::Time)) {
        change(&mut self.state.links()[path], self.state.clock.now());
        self.wake();
    }

    /// Wakes the thread, whose next arrival may have changed.
    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "the emulation's thread could not be woken");
        }
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // This fails only when the thread panicked, which was reported then.
            let _ = thread.join();
        }
    }
}
