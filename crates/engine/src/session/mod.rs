//! The session: one flow over all paths between two machines.
//!
//! A [`Session`] is a composition. Each component owns its fields, its deadline and its control frames:
//!
//! | file | component | owns |
//! |---|---|---|
//! | `flight` | `Flight` | paths, streams, congestion control, and packets in flight |
//! | `lifecycle` | `Lifecycle` | the session's state, and its closing messages |
//! | `clock` | `Clock` | silence, keep-alive, rest |
//! | `lateness` | `Lateness` | time in which this process or the peer did not run |
//! | `outbox` | `Outbox` | control frames, events and PID changes that wait to be drained |
//! | `ack_routes` | `AckRoutes` | which path acknowledgements travel on |
//! | `handshake` | `Handshake` | INIT on every candidate route, INIT-ACK, parameters |
//! | `path_control` | `PathControl` | opening, proving, moving and abandoning paths |
//! | `path_ids` | `PathIds` | path ids and their PIDs, paths through relays |
//! | `race` | `Race` | other routes for path 0, which the handshake tried |
//! | `unproven` | `Credit`, `Proofs` | limits for addresses where the peer has not answered |
//! | `rules` | `Rules` | the user's rules for paths: priorities, caps, paths left out |
//! | `liveness` | `Liveness` | when a path is suspected, failed and readmitted |
//! | `lulls` | `Lulls` | a probe when data stops arriving |
//! | `sending` | `Sending` | data and acknowledgements out: scheduler, packets, copies, early binding |
//! | `datagrams` | `Datagrams` | datagrams, copies of them, and parity |
//! | `reports` | `Reports` | receiver reports |
//! | `addresses` | `Addresses` | further addresses of both ends |
//! | `exchanges` | `Exchanges` | halves of key exchanges, for the driver |
//!
//! Most components act on the `Flight`, which they get as an argument. The application's calls are in this file. Three
//! files only decide the order of work: `incoming` handles messages, `outgoing` produces them, `timing` does what is due.

mod ack_routes;
mod addresses;
mod clock;
mod coupling;
mod datagrams;
mod exchanges;
mod flight;
mod handshake;
mod incoming;
mod inspect;
mod lateness;
mod lifecycle;
mod liveness;
mod lulls;
mod outbox;
mod outgoing;
mod path_control;
mod path_error;
mod path_ids;
mod prefetching;
mod race;
mod reports;
mod rules;
mod sending;
mod timing;
mod unproven;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use anabranch_wire::{
    DatagramFrame, KeyExchange, MAX_REASON_LEN, Message, Params, PathId, PathUse, Payload, Pid, Side,
    StreamId, Time,
};

pub use datagrams::DatagramError;
pub use path_error::PathError;
pub use path_ids::ReservedPath;

use crate::config::Config;
use crate::control::Control;
use crate::datagram::{DatagramMode, DatagramSource};
use crate::event::{AbandonReason, CloseReason, Event, PidChange, PidSource, ProtocolError};
use crate::manager::{PathOrigin, PathRules};
use crate::route::{Init, Route};
use crate::schedule::Scheduler;
use crate::state::{State, Trigger};
use crate::stream::{MemoryBudget, Read, StreamError};

use addresses::Addresses;
use datagrams::Datagrams;
use exchanges::Exchanges;
use flight::Flight;
use handshake::Handshake;
use lulls::Lulls;
use path_control::PathControl;
use reports::Reports;
use sending::Sending;

/// One flow over every path between two machines. See the crate's documentation.
///
/// With thousands of sessions, each one is cold in the cache, so fields are ordered by access: fields for
/// sending, fields that every packet needs (down into [`Flight`]), then rare ones.
#[repr(C, align(64))]
pub struct Session<P> {
    sending: Sending<P>,
    reports: Reports,
    lulls: Lulls,
    datagrams: Datagrams<P>,
    /// The path on which data arrived again that the peer does not know to have arrived.
    repeat_on: Option<PathId>,
    flight: Flight<P>,
    control: PathControl,
    handshake: Handshake,
    addresses: Addresses,
    exchanges: Exchanges,
}

impl<P: Payload> Session<P> {
    fn new(
        config: Arc<Config>,
        side: Side,
        mut pids: Box<dyn PidSource + Send>,
        budget: MemoryBudget,
        now: Time,
    ) -> Self {
        let (pid, reset_token) = pids.next_pid();
        let streams = handshake::new_streams(side, &config, budget.clone());
        let local = handshake::local_params(&config, (pid, reset_token), streams.initial_window());
        let mut session = Self {
            sending: Sending::new(config.scheduler.build()),
            reports: Reports::new(&config),
            lulls: Lulls::default(),
            datagrams: Datagrams::new(config.datagrams.modes, budget.clone()),
            repeat_on: None,
            control: PathControl::new(&config, side, budget, now),
            handshake: Handshake::new(local, now),
            addresses: Addresses::default(),
            exchanges: Exchanges::default(),
            flight: Flight::new(config, side, pids, streams, now),
        };
        let (flight, control) = (&mut session.flight, &mut session.control);
        control.note_interests(flight);
        control.ids.register(&mut flight.out, PathId::FIRST, pid, reset_token);
        session
    }

    /// Opens a session by sending INIT over every route.
    pub fn connect(
        config: impl Into<Arc<Config>>,
        routes: &[Route],
        pids: Box<dyn PidSource + Send>,
        budget: MemoryBudget,
        now: Time,
    ) -> Self {
        let mut session = Self::new(config.into(), Side::Client, pids, budget, now);
        session.flight.life.trigger(Trigger::Connect);
        for route in routes {
            session.add_candidate(now, *route);
        }
        session
    }

    /// Accepts the session of a peer's INIT; INIT-ACK is sent over the INIT's route.
    ///
    /// # Errors
    /// [`ProtocolError::Params`] when the peer's parameters are out of range.
    pub fn accept(
        config: impl Into<Arc<Config>>,
        init: Init,
        pids: Box<dyn PidSource + Send>,
        budget: MemoryBudget,
        now: Time,
    ) -> Result<Self, ProtocolError> {
        let mut session = Self::new(config.into(), Side::Server, pids, budget, now);
        Handshake::accept(now, &mut session.flight, &mut session.control, init)?;
        Ok(session)
    }

    /// Tries one more route while the handshake runs.
    pub fn add_candidate(&mut self, now: Time, route: Route) {
        self.flight.clock.forget_timeout();
        if self.flight.state() == State::InitSent {
            self.handshake.add_candidate(now, route);
        }
    }

    /// Whether INIT is sent over this route.
    pub fn is_candidate(&self, route: Route) -> bool {
        self.handshake.is_candidate(route)
    }

    /// Sends INIT over a route again at once, since the driver got a cookie for it.
    pub fn handle_cookie(&mut self, now: Time, route: Route) {
        self.flight.clock.forget_timeout();
        self.handshake.handle_cookie(now, route);
    }

    /// Replaces the scheduler.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.sending.set_scheduler(scheduler);
        self.flight.choice = None;
    }

    /// Which end this is.
    pub fn side(&self) -> Side {
        self.flight.life.side()
    }

    /// The state of the session.
    pub fn state(&self) -> State {
        self.flight.state()
    }

    /// The parameters that this end announces in INIT or INIT-ACK.
    pub fn local_params(&self) -> &Params {
        self.handshake.local()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.flight.out.events.pop_front()
    }

    /// The next change of the PIDs that belong to this session. Drivers apply it before they send anything.
    pub fn poll_pid_change(&mut self) -> Option<PidChange> {
        self.flight.out.pid_changes.pop_oldest()
    }

    /// Sends this end's half of a key exchange to the peer, until it is acknowledged or another follows.
    pub fn send_key_exchange(&mut self, half: KeyExchange) {
        self.flight.clock.forget_timeout();
        self.exchanges.send(&mut self.flight.out, half);
    }

    /// The peer's half of a key exchange, if another has come.
    pub fn poll_key_exchange(&mut self) -> Option<KeyExchange> {
        self.exchanges.poll()
    }

    /// Opens a stream; `None` until [`Event::StreamsAvailable`] if the peer allows no more.
    pub fn open_stream(&mut self) -> Option<StreamId> {
        self.flight.streams.open()
    }

    /// Bytes of a range of a stream that have not arrived yet. Drivers use this to decide whether to copy
    /// bytes or keep the buffer that they arrived in.
    pub fn not_arrived(&self, stream: StreamId, range: Range<u64>) -> u64 {
        self.flight.streams.not_arrived(stream, range)
    }

    /// The next stream that the peer opened.
    pub fn accept_stream(&mut self) -> Option<StreamId> {
        self.flight.streams.accept()
    }

    /// Writes bytes from the front of `data`; returns how many. If these are not all, the stream is full: wait for
    /// [`Event::StreamWritable`].
    pub fn write(&mut self, stream: StreamId, data: &mut P) -> Result<usize, StreamError> {
        let taken = self.flight.streams.write(stream, data)?;
        self.flight.stats.bytes_written += taken as u64;
        Ok(taken)
    }

    /// Ends the sending half of a stream after the data written so far.
    pub fn finish(&mut self, stream: StreamId) -> Result<(), StreamError> {
        self.flight.streams.finish(stream)
    }

    /// Resets the sending half of a stream, and sends the peer `code`.
    pub fn reset(&mut self, stream: StreamId, code: u64) -> Result<(), StreamError> {
        let out = &mut self.flight.out;
        self.flight.streams.reset(stream, code, (&mut out.events, &mut out.control))
    }

    /// Stops reading the receiving half, and sends the peer `code`.
    pub fn stop(&mut self, stream: StreamId, code: u64) -> Result<(), StreamError> {
        self.flight.streams.stop(stream, code, &mut self.flight.out.control)
    }

    /// Reads up to `most` bytes from a stream.
    ///
    /// # Errors
    /// [`StreamError::Unknown`] when there is no such stream, or its end was read already.
    pub fn read(&mut self, stream: StreamId, most: usize) -> Result<Read<P>, StreamError> {
        self.flight.streams.read(stream, most, &mut self.flight.out.control)
    }

    /// True when the peer has reset the stream and the application has not read that yet.
    pub fn is_reset(&self, stream: StreamId) -> bool {
        self.flight.streams.is_reset(stream)
    }

    /// True while the application may write to the stream: it has not ended it, and the peer has not stopped reading.
    pub fn is_writable(&self, stream: StreamId) -> bool {
        self.flight.streams.is_writable(stream)
    }

    /// Sends a stream on every path at once, or on one path again. This gives the lowest latency, and no pause when a
    /// path dies, as long as each path can carry the whole stream. The peer decides about its own half.
    ///
    /// # Errors
    /// [`StreamError`] if there is no such stream, or all of it was delivered or reset.
    pub fn set_redundant(&mut self, stream: StreamId, redundant: bool) -> Result<(), StreamError> {
        self.flight.choice = None;
        self.flight.streams.set_redundant(stream, redundant)
    }

    /// Queues a datagram; when the queue is full, the oldest of the lowest class makes room.
    ///
    /// # Errors
    /// [`DatagramError`] when it can never be sent.
    pub fn send_datagram(&mut self, datagram: DatagramFrame<P>) -> Result<(), DatagramError> {
        self.datagrams.send(&mut self.flight, datagram)
    }

    /// Takes datagrams from `source` whenever a path has room and none wait in the session.
    pub fn set_datagram_source(&mut self, source: Box<dyn DatagramSource<P>>) {
        self.datagrams.set_source(source);
    }

    /// Removes the oldest received datagram; returns it with its time of arrival.
    pub fn recv_datagram(&mut self) -> Option<(Time, DatagramFrame<P>)> {
        self.datagrams.receive()
    }

    /// Sets the protection of the datagrams of a class, 0 to 15. [`Config::datagrams`] has the initial setting.
    pub fn set_datagram_mode(&mut self, class: u8, mode: DatagramMode) {
        self.datagrams.set_mode(class, mode);
    }

    /// Returns the lists of a message that is no longer needed for reuse.
    #[inline]
    pub fn reclaim(&mut self, message: &mut Message<P>) {
        self.sending.packets.spare.reclaim(message);
    }

    /// Opens a path over `route`. It carries data after the peer has answered on it. While the peer is silent, the last
    /// id is kept for [`Self::reserve_path`]: the peer provides no new ids then, and a path through a relay may still
    /// work.
    pub fn open_path(&mut self, now: Time, route: Route) -> Result<PathId, PathError> {
        self.control.open(now, &mut self.flight, route)
    }

    /// Stops using a path; its data in flight leaves on other paths.
    pub fn close_path(&mut self, now: Time, path: PathId, reason: AbandonReason) {
        self.control.close(now, &mut self.flight, path, reason);
    }

    /// True if the peer has answered at this address, in the handshake or on a path.
    pub fn is_proven(&self, address: SocketAddr) -> bool {
        self.control.is_proven(&self.flight, address)
    }

    /// Reserves the next path id for a path through relays.
    pub fn reserve_path(&mut self) -> Result<ReservedPath, PathError> {
        self.control.ids.reserve(&mut self.flight)
    }

    /// Opens a reserved path over `route`; the peer must send with the PID `reply`, at the last relay.
    ///
    /// # Errors
    /// [`PathError`] if it cannot be opened; the id is then spent.
    pub fn open_reserved(
        &mut self,
        now: Time,
        id: PathId,
        (route, reply): (Route, Pid),
    ) -> Result<(), PathError> {
        self.control.open_reserved(now, &mut self.flight, id, (route, reply))
    }

    /// Releases a reserved path id that will not be opened.
    pub fn release_path(&mut self, id: PathId) {
        self.flight.clock.forget_timeout();
        self.control.ids.release(&mut self.flight.out, id);
    }

    /// Sets, before the handshake of a client that reaches the peer through relays, the PID `reply` at the last relay.
    /// The peer must send with it until further paths are open.
    pub fn set_first_reply_pid(&mut self, reply: Pid) {
        self.handshake.set_local_pid(reply);
        self.control.ids.set_first_reply(reply);
    }

    /// Sets how a path should be used, and informs the peer.
    pub fn set_path_use(&mut self, path: PathId, usage: PathUse) -> Result<(), PathError> {
        let index = self.flight.paths.place_of(path).ok_or(PathError::Unknown)?;
        self.control.live.rules.set_use(&mut self.flight, index, usage);
        Ok(())
    }

    /// Limits the UDP payload on a path to that of its local interface, which may change.
    pub fn set_path_mtu_limit(&mut self, path: PathId, most: u16) -> Result<(), PathError> {
        let flight = &mut self.flight;
        let index = flight.paths.place_of(path).ok_or(PathError::Unknown)?;
        flight.paths.edit(index).mtu_mut().limit_here(most);
        flight.cc.set_mss(path, flight.paths[index].size() as u64);
        Ok(())
    }

    /// Describes the local end of a socket, so that rules can refer to it. Call it before paths start there; the rules
    /// are then applied to existing paths too.
    pub fn describe_socket(&mut self, now: Time, socket: u32, place: PathOrigin) {
        self.control.describe_socket(now, &mut self.flight, socket, place);
    }

    /// True when the rules let a path over `route` be opened.
    pub fn allows(&self, route: Route) -> bool {
        self.control.live.rules.allow(route)
    }

    /// True when this session has path rules.
    pub fn has_path_rules(&self) -> bool {
        self.control.live.rules.are_there()
    }

    /// The rules for this session's paths.
    pub fn path_rules(&self) -> PathRules {
        self.control.live.rules.get()
    }

    /// Replaces the rules. Paths that they exclude are closed; they apply to the others. If there were no rules before,
    /// also pass the `places` of all sockets.
    ///
    /// # Errors
    /// [`PathError::NoneLeft`] if no path would remain; then nothing changes.
    pub fn set_path_rules(
        &mut self,
        now: Time,
        rules: PathRules,
        places: impl IntoIterator<Item = (u32, PathOrigin)>,
    ) -> Result<(), PathError> {
        self.control.set_rules(now, &mut self.flight, rules, places)
    }

    /// Announces an address at which this end can be reached.
    pub fn advertise_address(&mut self, id: u64, address: SocketAddr) {
        self.addresses.advertise(&mut self.flight.out, id, address);
    }

    /// Reports to the peer the address from which its packets come on path 0, as for every further path.
    pub fn report_address(&mut self) {
        self.flight.out.want(Control::ObservedAddress(PathId::FIRST));
    }

    /// Announces that an address is gone.
    pub fn withdraw_address(&mut self, id: u64) {
        self.addresses.withdraw(&mut self.flight.out, id);
    }

    /// Closes the session after all written data has been delivered; the peer may still send its remaining data.
    pub fn close(&mut self, now: Time) {
        self.flight.clock.forget_timeout();
        match self.flight.state() {
            State::InitSent | State::InitRecv => {
                self.abort(now, 0, "closed before it was established");
            }
            _ => {
                self.flight.life.trigger(Trigger::CloseRequested);
                self.advance_shutdown();
            }
        }
    }

    /// Ends the session at once; undelivered data is lost. `reason` is cut to 255 bytes.
    pub fn abort(&mut self, now: Time, code: u64, reason: &str) {
        self.flight.clock.forget_timeout();
        let mut end = reason.len().min(MAX_REASON_LEN);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.flight.end(now, CloseReason::Local { code, reason: reason[..end].to_owned() });
        self.handshake.stop_if_over(self.flight.state());
    }

    /// True if nothing is left to do for a closed session.
    pub fn is_closed(&self) -> bool {
        self.flight.life.is_over()
    }
}
