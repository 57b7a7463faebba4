//! The session: what ties paths, streams, scheduling and congestion control together.
//!
//! The application's calls are in this file; the rest of the work is in its parts:
//!
//! | file | what |
//! |---|---|
//! | `handshake` | INIT on every candidate, INIT-ACK, parameters |
//! | `receive` | packets in: numbers, frames |
//! | `acks` | acknowledgements in: losses, windows, round-trip times |
//! | `reinject` | copies for the tail and for a window that is held up |
//! | `transmit` | what to send next |
//! | `place` | on which path data goes |
//! | `build` | one packet: which frames go in |
//! | `room` | lists that few packets need, kept from one to the next |
//! | `draft` | a packet in the making: what fits, and what of it is remembered |
//! | `paths` | opening, proving, moving, abandoning paths; PIDs; addresses |
//! | `race` | other routes for path 0, which the handshake tried |
//! | `relayed` | paths through relays |
//! | `alarms` | the clock: probe timeouts, failures, keep-alive, idle |
//! | `management` | what a user wants of paths: priorities, caps; why a path is idle |
//! | `doubt` | paths that are no use, and when they are well again |
//! | `closing` | shutdown, abort, the last words |
//! | `early` | buffers of paths, where data is bound early |
//! | `copies` | what leaves on every path at once |
//! | `datagrams` | datagrams, copies of them, and parity |
//! | `reports` | receiver reports |
//! | `sharing` | evidence of shared bottlenecks, and the groups that follow from it |

mod abandon;
mod acks;
mod addresses;
mod alarms;
mod build;
mod closing;
mod copies;
mod datagrams;
mod doubt;
mod draft;
mod early;
mod handshake;
mod management;
mod path_ids;
mod paths;
mod place;
mod race;
mod receive;
mod reinject;
mod relayed;
mod reports;
mod rest;
mod room;
mod sharing;
mod transmit;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use anabranch_cc::Controller;
use anabranch_wire::{Params, PathId, PathUse, Payload, Pid, ResetToken, Side, Span, StreamId, Time};

pub use datagrams::DatagramError;
pub use paths::PathError;
pub use relayed::ReservedPath;

use crate::config::{Config, Coupling};
use crate::control::{Control, ControlQueue};
use crate::datagram::DatagramMode;
use crate::event::{CloseReason, Event, PidChange, PidSource, ProtocolError};
use crate::inbox::Inbox;
use crate::path::{Churn, Path, Paths, SentPacket};
use crate::route::Route;
use crate::schedule::{PathView, Scheduler};
use crate::seldom::Seldom;
use crate::state::State;
use crate::stats::{PathInfo, PathStats, PathWindow, SessionStats};
use crate::stream::{Carried, MemoryBudget, Read, Reservation, StreamError, Streams};

use addresses::Addresses;
use closing::Ending;
use datagrams::Datagrams;
use handshake::Candidate;
use management::Manager;
use race::Race;
use reports::Reporter;
use room::Room;
use sharing::Sharing;

/// Header and tag of a sealed packet, in bytes.
const OVERHEAD: usize = anabranch_wire::PACKET_OVERHEAD;

/// Types of service of datagrams.
const CLASSES: usize = 16;

/// Events that may wait when one comes that a peer can cause at will.
const MAX_EVENTS: usize = 1024;

/// One flow over every path between two machines. See the crate's documentation.
///
/// Who has thousands of sessions finds each of them far away in memory. So the fields lie by what asks for them: every packet, what
/// is sent and acknowledged, what arrives, and last what few packets ask for.
#[repr(C, align(64))]
pub struct Session<P> {
    state: State,
    side: Side,
    /// Who says which paths' windows are coupled, as things are.
    coupling: Coupling,
    /// The scheduler has sent data on several paths at once.
    duplicates: bool,
    /// Those who have many sessions give all of them the same settings, and find them at hand.
    config: Arc<Config>,
    /// When pacing or the scheduler wants to be asked again.
    wake_at: Time,
    /// What [`Session::poll_timeout`] found, until something changes.
    next_timeout: Cell<Option<Option<Time>>>,
    last_heard: Time,
    last_sent: Time,
    /// Packets that had come and gone when it came to rest last.
    rested_at: Option<u64>,
    /// The controller's revision that what is kept of the paths is true of.
    windows_as_of: Option<u64>,
    /// The path that the peer wants acknowledgements on, with the number of the wish.
    ack_path: (Option<PathId>, u64),
    /// What a user wants of paths, if anything.
    manager: Option<Box<Manager>>,
    /// Kept once a datagram was queued, or one with a number came.
    datagrams: Option<Box<Datagrams<P>>>,
    /// Kept where reports are wanted.
    reporter: Option<Box<Reporter>>,
    pid_changes: Seldom<PidChange>,
    /// Routes over which INIT-ACK is owed.
    greetings: Seldom<Route>,
    control: ControlQueue,
    events: VecDeque<Event>,
    peer: Option<Params>,
    paths: Paths,
    // Up to here what every packet asks for, from here on what is sent and acknowledged.
    run: Option<Run>,
    scheduler: Box<dyn Scheduler>,
    scratch: Scratch,
    cc: Controller,
    streams: Streams<P>,
    // And for this few packets ask.
    stats: SessionStats,
    /// PIDs given to the peer, for paths open and to come.
    local_pids: BTreeMap<PathId, (Pid, ResetToken)>,
    /// PIDs that the peer gave, for paths to come.
    remote_pids: BTreeMap<PathId, (Pid, ResetToken)>,
    local: Params,
    pids: Box<dyn PidSource + Send>,
    /// Path ids set aside for paths through relays.
    reserved: BTreeSet<PathId>,
    /// Of paths through relays: the PID at the last relay, for what the peer sends.
    reply_pids: BTreeMap<PathId, Pid>,
    /// What the peer wants of paths that it has not opened yet.
    early_wishes: BTreeMap<PathId, EarlyWish>,
    /// Paths given up here, with the reason, until the peer knows.
    abandoned: BTreeMap<PathId, u64>,
    /// Next path id to give a PID for: of the client's and of the server's.
    next_pid_path: [u32; 2],
    /// Next path id to open here.
    next_path: u32,
    /// How often the peer may open paths.
    churn: Churn,
    /// What is reserved for the paths that it has opened.
    reserved_paths: Reservation,
    incoming: Inbox<P>,
    /// What is done so that the datagrams of each class arrive.
    modes: [DatagramMode; CLASSES],
    budget: MemoryBudget,
    addresses: Addresses,
    /// The path that we want acknowledgements on.
    primary: (Option<PathId>, u64),
    /// The path on which data came again that the peer does not know to be here.
    repeat_on: Option<PathId>,
    /// Runs that were bound to a path and never left, while they are in line again.
    given_back: Carried,
    candidates: Vec<Candidate>,
    /// Other routes for path 0 while it is the only one.
    race: Race,
    started_at: Time,
    /// Kept once there were several paths.
    sharing: Option<Box<Sharing>>,
    ending: Option<Ending>,
    room: Room<P>,
}

/// A scheduler's choice that still has bytes to go.
#[derive(Clone, Copy, Debug)]
struct Run {
    path: PathId,
    left: u64,
    resend: bool,
}

/// What a peer wants of a path that it has not opened yet.
#[derive(Clone, Copy, Debug, Default)]
struct EarlyWish {
    /// How it is to be used, with the number of the wish.
    usage: (PathUse, u64),
    /// Most bytes that may be sent there.
    limit: Option<u64>,
}

/// Buffers kept to avoid allocating them for every packet.
#[derive(Default)]
struct Scratch {
    packets: Vec<SentPacket>,
    views: Vec<PathView>,
}

impl<P: Payload> Session<P> {
    fn new(
        config: Arc<Config>,
        side: Side,
        mut pids: Box<dyn PidSource + Send>,
        (budget, now): (MemoryBudget, Time),
    ) -> Self {
        let (pid, reset_token) = pids.next_pid();
        let incoming = Inbox::new(budget.clone(), config.memory.datagrams);
        let streams = handshake::new_streams(side, &config, budget.clone());
        let local = handshake::local_params(&config, (pid, reset_token), streams.initial_window());
        let reporter = Reporter::new(&config);
        let manager = Manager::new(&config.rules);
        let mut session = Self {
            side,
            state: State::Closed,
            local,
            peer: None,
            pids,
            pid_changes: Seldom::default(),
            local_pids: BTreeMap::new(),
            remote_pids: BTreeMap::new(),
            reserved: BTreeSet::new(),
            reply_pids: BTreeMap::new(),
            early_wishes: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            next_pid_path: [2, 1],
            next_path: if side == Side::Client { 2 } else { 1 },
            churn: Churn::new(now),
            reserved_paths: Reservation::new(budget.clone()),
            paths: Paths::default(),
            cc: Controller::new(config.cc),
            windows_as_of: None,
            scheduler: config.scheduler.build(),
            streams,
            incoming,
            modes: config.datagrams,
            datagrams: None,
            budget,
            control: ControlQueue::default(),
            addresses: Addresses::default(),
            events: VecDeque::new(),
            ack_path: (None, 0),
            primary: (None, 0),
            repeat_on: None,
            run: None,
            duplicates: false,
            given_back: Carried::default(),
            candidates: Vec::new(),
            race: Race::default(),
            greetings: Seldom::default(),
            started_at: now,
            last_heard: now,
            last_sent: now,
            rested_at: None,
            wake_at: Time::NEVER,
            next_timeout: Cell::new(None),
            reporter,
            manager,
            coupling: config.coupling,
            sharing: None,
            ending: None,
            stats: SessionStats::default(),
            scratch: Scratch::default(),
            room: Room::default(),
            config,
        };
        session.register_pid(PathId::FIRST, pid, reset_token);
        session
    }

    /// Replaces the scheduler by one of the caller's.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.scheduler = scheduler;
        self.run = None;
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Where the session is in its life.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// What this end announces in INIT or INIT-ACK.
    #[must_use]
    pub fn local_params(&self) -> &Params {
        &self.local
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next change of the PIDs that belong to this session; to be carried out before anything is sent.
    pub fn poll_pid_change(&mut self) -> Option<PidChange> {
        self.pid_changes.pop_oldest()
    }

    /// Opens a stream; `None` while the peer admits no more, until [`Event::StreamsAvailable`].
    pub fn open_stream(&mut self) -> Option<StreamId> {
        self.streams.open()
    }

    /// How many bytes of a range of a stream have not arrived yet: what handling them would keep. A driver asks that keeps bytes where
    /// they were received, and more than these with them.
    #[must_use]
    pub fn not_arrived(&self, stream: StreamId, range: Range<u64>) -> u64 {
        self.streams.not_arrived(stream, range)
    }

    /// The next stream that the peer opened.
    pub fn accept_stream(&mut self) -> Option<StreamId> {
        self.streams.accept()
    }

    /// Takes bytes from the front of `data`; returns how many. Fewer than all means full: wait for
    /// [`Event::StreamWritable`].
    ///
    /// # Errors
    /// [`StreamError`] when the stream takes no bytes any more.
    pub fn write(&mut self, stream: StreamId, data: &mut P) -> Result<usize, StreamError> {
        let taken = self.streams.write(stream, data)?;
        self.stats.bytes_written += taken as u64;
        Ok(taken)
    }

    /// Ends the sending half of a stream after what was written.
    ///
    /// # Errors
    /// [`StreamError`] when it has ended already.
    pub fn finish(&mut self, stream: StreamId) -> Result<(), StreamError> {
        self.streams.finish(stream)
    }

    /// Gives up the sending half of a stream; the peer is told `code`.
    ///
    /// # Errors
    /// [`StreamError::Unknown`] when there is no such stream.
    pub fn reset(&mut self, stream: StreamId, code: u64) -> Result<(), StreamError> {
        self.streams.reset(stream, code, (&mut self.events, &mut self.control))
    }

    /// Wants no more of the receiving half; the peer is told `code`.
    ///
    /// # Errors
    /// [`StreamError::Unknown`] when there is no such stream.
    pub fn stop(&mut self, stream: StreamId, code: u64) -> Result<(), StreamError> {
        self.streams.stop(stream, code, &mut self.control)
    }

    /// Takes up to `most` bytes from a stream.
    ///
    /// # Errors
    /// [`StreamError::Unknown`] when there is no such stream, or its end was read already.
    pub fn read(&mut self, stream: StreamId, most: usize) -> Result<Read<P>, StreamError> {
        self.streams.read(stream, most, &mut self.control)
    }

    /// All paths as they stand, those that are being opened included.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        self.paths.iter().map(|path| self.info(path)).collect()
    }

    /// Window and round-trip time of all paths, for those who look often.
    pub fn path_windows(&self) -> impl Iterator<Item = PathWindow> {
        self.paths.iter().map(|path| {
            let rtt = path.rtt();
            PathWindow {
                route: path.route,
                window: self.cc.window(path.id),
                mtu: path.mtu.current(),
                rtt: if rtt.has_sample() { rtt.smoothed() } else { Span::ZERO },
                reductions: path.stats.congestion_events,
            }
        })
    }

    fn info(&self, path: &Path) -> PathInfo {
        let rtt = path.rtt();
        let sampled = rtt.has_sample();
        PathInfo {
            id: path.id,
            route: path.route,
            state: path.state,
            usage: path.effective_use(),
            standing: path.standing,
            meter: path.meter.as_ref().map(|meter| meter.meter().clone()),
            rtt: if sampled { rtt.smoothed() } else { Span::ZERO },
            min_rtt: if sampled { rtt.min() } else { Span::ZERO },
            rtt_variance: if sampled { rtt.variance() } else { Span::ZERO },
            window: self.cc.window(path.id),
            in_flight: path.board.pipe(),
            delivery_rate: path.delivery_rate,
            mtu: path.mtu.current(),
            group: self.cc.group(path.id),
            reliability: path.reliability,
            stats: PathStats {
                packets_received: path.receipt.packets,
                bytes_received: path.receipt.bytes,
                packets_missing: path.receipt.missing(),
                ..path.stats
            },
        }
    }

    /// Stream bytes that wait for earlier ones: as [`SessionStats::bytes_reassembling`].
    #[must_use]
    pub fn bytes_reassembling(&self) -> u64 {
        self.streams.waiting_bytes()
    }

    /// Counters of the session.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        let ordering = self.datagrams.as_ref().and_then(|datagrams| datagrams.ordering.as_ref());
        let order = ordering.map(|ordering| ordering.counts).unwrap_or_default();
        SessionStats {
            datagrams_reordered: order.waited,
            gaps_overflowed: order.overflowed,
            gaps_timed_out: order.timed_out,
            datagrams_repeated: self.stats.datagrams_repeated + order.repeated,
            bytes_read: self.streams.bytes_read(),
            bytes_reassembling: self.streams.waiting_bytes(),
            bytes_unacknowledged: self.streams.buffered(),
            ..self.stats
        }
    }

    fn path_index(&self, id: PathId) -> Option<usize> {
        self.paths.place_of(id)
    }

    fn path(&self, id: PathId) -> Option<&Path> {
        self.path_index(id).map(|index| &self.paths[index])
    }

    /// Brings up to date what is kept of the paths.
    fn look_at_paths(&mut self) {
        let revision = self.cc.revision();
        let known = revision.is_some() && revision == self.windows_as_of;
        if !known || !self.paths.are_fresh(|path| self.cc.window(path)) {
            self.look_again(known, revision);
        }
    }

    /// Looks at those paths that may have changed, or at all where not even the windows are known to be as they were. Kept apart,
    /// for nothing has changed when most packets leave.
    #[inline(never)]
    fn look_again(&mut self, known: bool, revision: Option<u64>) {
        if !known {
            self.windows_as_of = revision;
            self.paths.forget_all();
        }
        let cc = &self.cc;
        self.paths.refresh(|path| cc.window(path));
    }

    fn fail(&mut self, now: Time, error: ProtocolError) {
        self.end(now, CloseReason::Protocol(error));
    }

    /// A number that nobody can guess: from the source of PIDs, which are as hard to guess.
    fn next_token(&mut self) -> u64 {
        self.pids.next_pid().0.0
    }

    /// Adds an event that a peer can cause as often as it likes, unless very many wait already: then nobody
    /// looks. True when it was added.
    fn announce(&mut self, event: Event) -> bool {
        let room = self.events.len() < MAX_EVENTS;
        if room {
            self.events.push_back(event);
        }
        room
    }

    fn push_control(&mut self, control: Control) {
        self.control.push(control);
    }
}
