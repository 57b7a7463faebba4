//! The emulation's thread: receives packets, offers them to the links, sends those that have arrived.
//!
//! Each round receives everything from the sockets, in order of the kernel's time stamps, then sends everything due. The
//! links count in model time, so a late round delays packets but costs no rate. Without packets in transit the thread
//! sleeps until a socket wakes it. Otherwise it sleeps until the next arrival, precisely (the poll's own timeout has steps
//! of a millisecond), but at least [`PAUSE`], which gathers packets into batches and leaves the processor to the programs
//! under test.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_wire::Time;
use mio::{Events, Interest, Poll, Token};

use crate::config::Direction;
use crate::datagram::{Datagram, Received};
use crate::path::{Clients, Links};
use crate::port::{Buffers, Port};
use crate::state::State;

/// The shortest sleep while packets are in transit, and so the granularity of arrivals.
const PAUSE: Duration = Duration::from_micros(200);
/// Longer sleeps happen in the poll, so that a packet ends them.
const PRECISE: Duration = Duration::from_millis(2);
/// The token of the handle's waker.
pub(crate) const WAKER: Token = Token(usize::MAX);
/// Batches received from one socket before the others have their turn.
const BATCHES_A_ROUND: usize = 8;

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    poll: Poll,
    state: Arc<State>,
    paths: Vec<Path>,
    /// Sockets by token: the first tokens are those of `paths`, in order; later ones are those of clients. No token is
    /// used twice.
    ports: BTreeMap<Token, Open>,
    next_token: usize,
    buffers: Buffers,
    inbox: Vec<(Incoming, Received)>,
    outbox: Vec<Datagram>,
    joined: Vec<u8>,
}

/// A path's addresses and clients.
#[derive(Debug)]
struct Path {
    server: SocketAddr,
    listen: SocketAddr,
    clients: Clients,
}

#[derive(Debug)]
struct Open {
    port: Port,
    path: usize,
    /// The client of a socket towards the server; `None` for the socket that clients send to.
    client: Option<SocketAddr>,
    readable: bool,
}

/// The socket at which a datagram arrived.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    token: Token,
    path: usize,
    direction: Direction,
}

impl Worker {
    /// Takes over the sockets that clients send to; `listeners` pairs each with its path's server.
    pub(crate) fn new(poll: Poll, state: Arc<State>, listeners: Vec<(Port, SocketAddr)>) -> io::Result<Self> {
        let mut worker = Self {
            poll,
            state,
            paths: Vec::new(),
            ports: BTreeMap::new(),
            next_token: 0,
            buffers: Buffers::new(),
            inbox: Vec::new(),
            outbox: Vec::new(),
            joined: Vec::new(),
        };
        for (port, server) in listeners {
            let listen = port.socket.local_addr()?;
            let path = worker.paths.len();
            worker.paths.push(Path { server, listen, clients: Clients::default() });
            worker.open(port, path, None)?;
        }
        Ok(worker)
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut due = None;
        while !self.state.stop.load(Ordering::Acquire) {
            if let Err(error) = self.wait(&mut events, due) {
                tracing::error!(%error, "the emulation cannot wait for packets and ends");
                return;
            }
            for event in &events {
                if let Some(open) = self.ports.get_mut(&event.token()) {
                    open.readable = true;
                }
            }
            self.receive();
            self.enqueue();
            due = self.deliver();
        }
    }

    /// Sleeps until a packet comes, or until `due` while packets are in transit.
    fn wait(&mut self, events: &mut Events, due: Option<Time>) -> io::Result<()> {
        let busy = self.ports.values().any(|open| open.readable);
        let left = due.map(|due| Duration::from_nanos(due.since(self.state.clock.now()).as_nanos()));
        let timeout = match left {
            _ if busy => Some(Duration::ZERO),
            None => None,
            // The poll rounds up to a whole millisecond.
            Some(left) if left > PRECISE => Some(left - Duration::from_millis(1)),
            Some(left) => {
                std::thread::sleep(left.max(PAUSE));
                Some(Duration::ZERO)
            }
        };
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    /// Empties the sockets into the inbox.
    fn receive(&mut self) {
        for (token, open) in self.ports.iter_mut().filter(|(_, open)| open.readable) {
            let direction = if open.client.is_some() { Direction::Reverse } else { Direction::Forward };
            let incoming = Incoming { token: *token, path: open.path, direction };
            for _ in 0..BATCHES_A_ROUND {
                let take = |received| self.inbox.push((incoming, received));
                // An error means that one packet could not be received: a loss like any other.
                open.readable =
                    !matches!(open.port.receive(&self.state.clock, &mut self.buffers, take), Ok(false));
                if !open.readable {
                    break;
                }
            }
        }
        self.inbox.sort_by_key(|(_, received)| received.at);
    }

    /// Offers the inbox to the links.
    fn enqueue(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let state = self.state.clone();
        let mut links = state.links();
        for (incoming, received) in inbox.drain(..) {
            let client = match incoming.direction {
                // Only the server may send to a client's socket.
                Direction::Reverse => {
                    Some(incoming.token).filter(|_| received.from == self.paths[incoming.path].server)
                }
                Direction::Forward => self.client(incoming.path, received.from, received.at),
            };
            let links = &mut links[incoming.path];
            match client {
                Some(client) => links.enqueue(incoming.direction, client, received),
                None => links.counts.refused += 1,
            }
        }
        for (links, side) in links.iter_mut().zip(&self.paths) {
            links.counts.clients = side.clients.len();
        }
        self.inbox = inbox;
    }

    /// Sends everything that has arrived; returns when the next packet arrives.
    fn deliver(&mut self) -> Option<Time> {
        let state = self.state.clone();
        let mut links = state.links();
        let now = state.clock.now();
        let mut outbox = std::mem::take(&mut self.outbox);
        for (path, links) in links.iter_mut().enumerate() {
            for direction in [Direction::Forward, Direction::Reverse] {
                outbox.extend(std::iter::from_fn(|| links.pop(direction, now)));
                links.counts.unsent += self.send(path, direction, &outbox);
                outbox.clear();
            }
        }
        self.outbox = outbox;
        links.iter().filter_map(Links::next_arrival).min()
    }

    /// Sends datagrams from the path's far end, joined where possible; returns how many could not be sent.
    fn send(&mut self, path: usize, direction: Direction, datagrams: &[Datagram]) -> u64 {
        let mut joined = std::mem::take(&mut self.joined);
        let (mut rest, mut unsent) = (datagrams, 0);
        while let Some(first) = rest.first() {
            // A client that was replaced is gone, and so are the packets in transit to it.
            let Some((port, to)) = self.far_end(path, direction, first.client) else {
                rest = &rest[1..];
                unsent += 1;
                continue;
            };
            let (run, after) = rest.split_at(port.joinable(rest));
            unsent += port.send(to, run, &mut joined);
            rest = after;
        }
        self.joined = joined;
        unsent
    }

    /// The socket from which a client's packets leave, and their destination.
    fn far_end(&self, path: usize, direction: Direction, client: Token) -> Option<(&Port, SocketAddr)> {
        let open = self.ports.get(&client)?;
        match direction {
            Direction::Forward => Some((&open.port, self.paths[path].server)),
            Direction::Reverse => Some((&self.ports.get(&Token(path))?.port, open.client?)),
        }
    }

    /// The socket of a source towards the server, opened if the source is new; `None` without room.
    fn client(&mut self, path: usize, source: SocketAddr, now: Time) -> Option<Token> {
        let side = &mut self.paths[path];
        if let Some(token) = side.clients.hear(source, now) {
            return Some(token);
        }
        if let Some(silent) = side.clients.make_room(now).ok()? {
            self.ports.remove(&silent);
        }
        let port = Port::bind(SocketAddr::new(side.listen.ip(), 0)).ok()?;
        let token = self.open(port, path, Some(source)).ok()?;
        self.paths[path].clients.insert(source, token, now);
        Some(token)
    }

    fn open(&mut self, mut port: Port, path: usize, client: Option<SocketAddr>) -> io::Result<Token> {
        let token = Token(self.next_token);
        self.poll.registry().register(&mut port.socket, token, Interest::READABLE)?;
        self.next_token += 1;
        self.ports.insert(token, Open { port, path, client, readable: true });
        Ok(token)
    }
}
