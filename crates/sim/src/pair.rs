//! Two sessions joined by cables, in virtual time.
//!
//! Each cable has a link in each direction and joins a local socket of the client to one of the server. The loop
//! delivers the packets that are due, lets both ends send, and advances to the next event.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anabranch_engine::{
    Arrival, Config, Ecn, Init, MemoryBudget, PathError, PathOrigin, PathState, PidSource, Route, Session,
};
use anabranch_link::{Ecn as LinkEcn, Link, LinkConfig};
use anabranch_wire::{Message, Params, Payload, Pid, Rate, ResetToken, Span, Time};

use crate::app::App;
use crate::spent::Spent;

/// Index of the end that connects.
pub const CLIENT: usize = 0;
/// Index of the end that accepts.
pub const SERVER: usize = 1;

/// Consecutive PIDs from a start; sources with distant starts never collide.
#[derive(Clone, Debug)]
pub struct CountedPids(pub u64);

impl PidSource for CountedPids {
    fn next_pid(&mut self) -> (Pid, ResetToken) {
        self.0 += 1;
        let mut token = [0xa5; 16];
        token[..8].copy_from_slice(&self.0.to_be_bytes());
        (Pid(self.0), ResetToken(token))
    }
}

/// Both directions of a cable.
#[derive(Clone, Debug)]
pub struct CableConfig {
    /// From the client to the server, and from the server to the client.
    pub links: [LinkConfig; 2],
}

impl CableConfig {
    /// The same rate both ways, half the round-trip time each way, and queues of `bdp` bandwidth-delay products.
    pub fn new(mbit: f64, rtt: Span, bdp: f64) -> Self {
        let rate = Rate::from_mbit(mbit);
        let queue = (rate.bytes_in(rtt) as f64 * bdp) as u64;
        let link = LinkConfig { overhead: OVERHEAD, ..LinkConfig::fixed(rate, rtt / 2, queue.max(4 * 1500)) };
        Self { links: [link.clone(), link] }
    }
}

/// Bytes of IPv4 and UDP headers on each packet.
const OVERHEAD: u32 = 28;

struct Cable<P> {
    links: [Link<Flying<P>>; 2],
    /// The client's port on this cable; a NAT rebinding changes it.
    client_port: u16,
}

#[derive(Clone)]
struct Flying<P> {
    from: SocketAddr,
    to: SocketAddr,
    ecn: bool,
    message: Message<P>,
}

/// One end: its session, if it has one, and its application.
pub struct End<P> {
    /// The session; the server has none before INIT arrives.
    pub session: Option<Session<P>>,
    config: Config,
    /// Until then its process does not run, and arrivals wait in their sockets.
    paused_until: Time,
    waiting: Vec<Waiting<P>>,
}

/// A packet in the socket of a process that does not run.
struct Waiting<P> {
    since: Time,
    cable: usize,
    size: u32,
    ce: bool,
    flying: Flying<P>,
}

impl<P: Payload> End<P> {
    fn next_moment(&self, now: Time) -> Option<Time> {
        if self.paused_until > now {
            return Some(self.paused_until);
        }
        if !self.waiting.is_empty() {
            return Some(now);
        }
        self.session.as_ref()?.poll_timeout()
    }
}

/// Two sessions and the cables between them.
pub struct Pair<P> {
    pub now: Time,
    /// Client and server.
    pub ends: [End<P>; 2],
    cables: Vec<Cable<P>>,
    seed: u64,
    /// Number of steps since time last passed.
    steps_now: u32,
}

/// After this many steps at one time, an end must be asking to be called without end.
const MOST_STEPS: u32 = 100_000;

fn address(cable: usize, end: usize, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, (cable >> 8) as u8, cable as u8, end as u8 + 1)), port)
}

impl<P: Payload> Pair<P> {
    /// Two ends before their session; `seed` seeds the links.
    pub fn new(configs: [Config; 2], cables: &[CableConfig], seed: u64) -> Self {
        let cables = cables.iter().enumerate().map(|(index, cable)| {
            let link = |direction: usize| {
                let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index * 2 + direction) as u64;
                Link::new(LinkConfig { seed, ..cable.links[direction].clone() })
            };
            Cable { links: [link(0), link(1)], client_port: 1000 }
        });
        let ends = configs.map(|config| End {
            session: None,
            config,
            paused_until: Time::ZERO,
            waiting: Vec::new(),
        });
        Self { now: Time::ZERO, ends, cables: cables.collect(), seed, steps_now: 0 }
    }

    /// The route of an end over a cable.
    pub fn route(&self, end: usize, cable: usize) -> Route {
        let port = if end == SERVER { self.cables[cable].client_port } else { 443 };
        Route { socket: cable as u32, remote: address(cable, 1 - end, port) }
    }

    /// An end's socket on a cable, for path rules: its interface is `cable0` and so on.
    pub fn place(&self, end: usize, cable: usize) -> PathOrigin {
        let local = Some(address(cable, end, 0).ip());
        PathOrigin { interface: format!("cable{cable}"), local, ..PathOrigin::default() }
    }

    /// Connects the client, with every cable that its rules allow as a candidate.
    pub fn connect(&mut self) {
        let config = self.ends[CLIENT].config.clone();
        let routes = (0..self.cables.len()).map(|cable| self.route(CLIENT, cable));
        let allowed = |route: &Route| {
            config.rules.terms(&self.place(CLIENT, route.socket as usize), route.remote).allow()
        };
        let routes: Vec<_> = routes.filter(allowed).collect();
        let pids = Box::new(CountedPids((self.seed << 40) | 1 << 32));
        let session = Session::connect(config, &routes, pids, MemoryBudget::new(1 << 40), self.now);
        self.ends[CLIENT].session = Some(session);
        self.describe(CLIENT);
    }

    fn describe(&mut self, end: usize) {
        for cable in 0..self.cables.len() {
            let (now, place) = (self.now, self.place(end, cable));
            if let Some(session) = &mut self.ends[end].session {
                session.describe_socket(now, cable as u32, place);
            }
        }
    }

    /// Connects and opens a path over every cable, as a driver would; gives up after ten seconds.
    pub fn establish(&mut self, apps: &mut [&mut dyn App<P>; 2]) {
        self.connect();
        let mut left: Vec<usize> = (0..self.cables.len()).collect();
        let deadline = self.now + Span::from_secs(10);
        while !left.is_empty() && self.now < deadline {
            self.run(self.now + Span::from_millis(1), apps);
            let now = self.now;
            left.retain(|cable| {
                let route = self.route(CLIENT, *cable);
                let opened = self.session(CLIENT).open_path(now, route);
                !matches!(opened, Ok(_) | Err(PathError::Exists | PathError::RuledOut))
            });
        }
    }

    /// Opens a path at the client over every cable without one, if currently possible, as a driver does.
    pub fn open_missing(&mut self) {
        for cable in 0..self.cables.len() {
            let (now, route) = (self.now, self.route(CLIENT, cable));
            let session = self.session(CLIENT);
            if !session.paths().iter().any(|path| path.route == route && path.state != PathState::Closing) {
                // Not ready yet, or over: the next call tries again.
                let _ = session.open_path(now, route);
            }
        }
    }

    /// The session of an end.
    ///
    /// # Panics
    /// If it has none yet.
    pub fn session(&mut self, end: usize) -> &mut Session<P> {
        self.ends[end].session.as_mut().expect("the end has a session")
    }

    /// Bytes that the client has sent to the server, with those that were not needed.
    pub fn spent(&mut self) -> Spent {
        let client = self.session(CLIENT);
        let (stats, sending) = (client.stats(), client.paths());
        Spent::of((stats, &sending), &self.session(SERVER).paths())
    }

    /// One direction of a cable, to change it or to read its counters.
    pub fn link(&mut self, cable: usize, direction: usize) -> LinkHandle<'_, P> {
        LinkHandle { link: &mut self.cables[cable].links[direction], now: self.now }
    }

    /// Cuts a cable in both directions, or repairs it.
    pub fn set_down(&mut self, cable: usize, down: bool) {
        for direction in 0..2 {
            self.link(cable, direction).set_down(down);
        }
    }

    /// Stops the process of an end for a time: its timers are late, and packets wait in its sockets.
    pub fn pause(&mut self, end: usize, length: Span) {
        self.ends[end].paused_until = self.now + length;
    }

    /// Has the client's NAT on a cable assign another port.
    pub fn rebind(&mut self, cable: usize) {
        self.cables[cable].client_port += 1;
    }

    /// Runs both ends and their applications until `until`.
    ///
    /// # Panics
    /// If time stops, because an end always asks to be called at once.
    pub fn run(&mut self, until: Time, apps: &mut [&mut dyn App<P>; 2]) {
        loop {
            for (end, app) in apps.iter_mut().enumerate() {
                if self.ends[end].paused_until > self.now {
                    continue;
                }
                if let Some(session) = &mut self.ends[end].session {
                    app.poll(self.now, session);
                    while session.poll_pid_change().is_some() {}
                }
                self.transmit(end);
            }
            let next = self.next_moment();
            if next > until {
                self.now = until;
                return;
            }
            self.steps_now = if next > self.now { 0 } else { self.steps_now + 1 };
            assert!(self.steps_now < MOST_STEPS, "the moment {:.9} s does not end", self.now.as_secs_f64());
            self.now = self.now.max(next);
            self.step();
        }
    }

    fn next_moment(&self) -> Time {
        let sessions = self.ends.iter().filter_map(|end| end.next_moment(self.now));
        let links = self.cables.iter().flat_map(|cable| &cable.links).filter_map(Link::next_arrival);
        sessions.chain(links).min().unwrap_or(Time::NEVER)
    }

    fn step(&mut self) {
        for end in [CLIENT, SERVER] {
            self.read_waiting(end);
            self.handle_timeout(end);
        }
        for cable in 0..self.cables.len() {
            for direction in 0..2 {
                while let Some(arrival) = self.cables[cable].links[direction].pop(self.now) {
                    if arrival.corrupt {
                        continue;
                    }
                    let (to, since, flying) = (&mut self.ends[1 - direction], self.now, arrival.item);
                    let waiting = Waiting { since, cable, size: arrival.size, ce: arrival.ce, flying };
                    if to.paused_until > self.now {
                        to.waiting.push(waiting);
                    } else {
                        self.deliver(1 - direction, waiting);
                    }
                }
            }
        }
    }

    fn handle_timeout(&mut self, end: usize) {
        let End { session, paused_until, .. } = &mut self.ends[end];
        if let Some(session) = session.as_mut().filter(|_| *paused_until <= self.now)
            && session.poll_timeout().is_some_and(|at| at <= self.now)
        {
            session.handle_timeout(self.now);
        }
    }

    /// Delivers what arrived while an end's process did not run, socket by socket. After each, a driver calls its
    /// session.
    fn read_waiting(&mut self, end: usize) {
        if self.ends[end].paused_until > self.now || self.ends[end].waiting.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.ends[end].waiting);
        waiting.sort_by_key(|packet| packet.cable);
        let mut last = None;
        for packet in waiting {
            if last.replace(packet.cable).is_some_and(|last| last != packet.cable) {
                self.handle_timeout(end);
            }
            self.deliver(end, packet);
        }
    }

    /// Delivers a packet to the end at `to`; a packet for an old address is lost.
    fn deliver(&mut self, to: usize, Waiting { since, cable, size, ce, flying }: Waiting<P>) {
        let port = if to == CLIENT { self.cables[cable].client_port } else { 443 };
        if flying.to != address(cable, to, port) {
            return;
        }
        let route = Route { socket: cable as u32, remote: flying.from };
        let ecn = match (ce, flying.ecn) {
            (true, _) => Ecn::Ce,
            (false, true) => Ecn::Ect0,
            (false, false) => Ecn::NotEct,
        };
        let arrival = Arrival { route, size: size as usize, ecn, waited: self.now.since(since) };
        if to == SERVER && self.ends[SERVER].session.is_none() {
            if let Message::Init(params) = flying.message {
                self.accept(params, route);
            }
        } else if let Some(session) = &mut self.ends[to].session {
            session.handle_message(self.now, &arrival, flying.message);
        }
    }

    fn accept(&mut self, params: Params, route: Route) {
        let place = self.place(SERVER, route.socket as usize);
        if !self.ends[SERVER].config.rules.terms(&place, route.remote).allow() {
            return;
        }
        let pids = Box::new(CountedPids((self.seed << 40) | 2 << 32));
        let config = self.ends[SERVER].config.clone();
        let budget = MemoryBudget::new(1 << 40);
        self.ends[SERVER].session =
            Session::accept(config, Init { params, route }, pids, budget, self.now).ok();
        self.describe(SERVER);
    }

    fn transmit(&mut self, end: usize) {
        let Some(session) = &mut self.ends[end].session else { return };
        while let Some(transmit) = session.poll_transmit(self.now) {
            let index = transmit.route.socket as usize;
            let Some(cable) = self.cables.get_mut(index) else { continue };
            let port = if end == CLIENT { cable.client_port } else { 443 };
            let (from, to) = (address(index, end, port), transmit.route.remote);
            let flying = Flying { from, to, ecn: transmit.ecn, message: transmit.message };
            let ecn = if transmit.ecn { LinkEcn::Capable } else { LinkEcn::NotCapable };
            // A packet that the link refuses is lost; the other end will notice.
            let _ = cable.links[end].enqueue(self.now, transmit.size as u32, flying, ecn);
        }
    }
}

/// A link and the time of the access.
pub struct LinkHandle<'a, P> {
    link: &'a mut Link<Flying<P>>,
    now: Time,
}

impl<P: Payload> LinkHandle<'_, P> {
    /// Cuts the link, or repairs it.
    pub fn set_down(&mut self, down: bool) {
        self.link.set_down(self.now, down);
    }

    /// Sets the rate.
    pub fn set_rate(&mut self, mbit: f64) {
        self.link.set_rate(self.now, anabranch_link::RateModel::Fixed(Rate::from_mbit(mbit)));
    }

    /// Sets the delay of packets that have not left yet.
    pub fn set_delay(&mut self, delay: Span) {
        self.link.set_delay(self.now, delay);
    }

    pub fn set_loss(&mut self, loss: anabranch_link::LossModel) {
        self.link.set_loss(self.now, loss);
    }

    /// Sets the largest packet, in bytes of UDP payload; `None` for any size.
    pub fn set_mtu(&mut self, mtu: Option<u32>) {
        self.link.set_mtu(mtu);
    }

    /// Packets in the queue, including the one being sent, and their bytes on the wire.
    pub fn backlog(&mut self) -> (usize, u64) {
        self.link.backlog(self.now)
    }

    /// Its counters.
    pub fn stats(&self) -> &anabranch_link::LinkStats {
        self.link.stats()
    }
}
