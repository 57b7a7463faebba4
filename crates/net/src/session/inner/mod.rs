//! A session's engine with its locks, and the pump that sends the engine's output.
//!
//! Three locks, always taken in this order. None is held while another session's lock is taken:
//!
//! | lock | held by | for |
//! |---|---|---|
//! | `outbox` | the pumping task | sending in the engine's order |
//! | `core` | any task, briefly | the engine, and the waiting tasks |
//! | `protection` | pump and receivers | sealing and opening a batch |
//!
//! The pump runs in the task that has just changed something. A task that finds it running sets a flag, and the running
//! pump, or the driver task, starts another round. So no task waits, and packets leave in the order of their numbers.

mod lingering;
mod opening;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use anabranch_engine::{AbandonReason, Arrival, CloseReason, PathInfo, Reservation};
use anabranch_secure::{Exchanged, Protection, PublicKey, ShareId};
use anabranch_wire::{KeyExchange, Message, Packet, Side, Time, close_code};
use bytes::Bytes;
use tokio::sync::Notify;

use super::core::{Core, Outcome};
use super::outbox::{Outbox, Scratch, Sent, lock_keys};
use super::wakers::{Changes, Woken};
use crate::buffers::thriftier;
use crate::endpoint::inner::{EndpointInner, count};
use crate::endpoint::sockets::BoundSocket;
use crate::fault::{contained, lock, try_lock};
use crate::relayed::is_chain;
use crate::turns::give_way;

/// Most packets taken from the engine under one lock.
const BATCH: usize = 128;
/// Batches sent before other tasks may run.
const ROUNDS: usize = 4;

thread_local! {
    /// In use while a session is pumped. A session pumped within that uses a new one.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One session, shared by its handles, its driver task and the receivers.
pub(crate) struct SessionInner {
    pub(crate) endpoint: Arc<EndpointInner>,
    /// Unique within the endpoint.
    pub(crate) serial: u64,
    pub(crate) peer: PublicKey,
    pub(crate) share: Option<ShareId>,
    core: Mutex<Core>,
    protection: Mutex<Option<Protection>>,
    /// The share of its replay windows in the budget of all sessions.
    windows: Mutex<Reservation>,
    outbox: Mutex<Outbox>,
    /// Something may need to be sent.
    wanted: AtomicBool,
    /// Wakes the driver task.
    wake: Notify,
    /// Wakes the tasks that wait for the end of the handshake or of the session.
    pub(crate) changes: Changes,
    /// When the engine must be called again, and when the driver task will wake by itself.
    deadline: AtomicU64,
    armed: AtomicU64,
    /// It has ended, and its place is needed for another that has.
    must_leave: AtomicBool,
}

/// Closes the session when the application has dropped all its handles.
pub(crate) struct Handle {
    pub(crate) inner: Arc<SessionInner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// A packet ready for its session's engine.
pub(crate) struct Decoded {
    /// Its session, as an index among those of the batch.
    pub(crate) session: usize,
    /// Its buffer, as an index among those of the batch.
    pub(crate) buffer: usize,
    pub(crate) arrival: Arrival,
    /// Taken out when the engine gets it.
    pub(crate) packet: Option<Packet<Bytes>>,
}

/// The peer of a session.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) peer: PublicKey,
    pub(crate) share: Option<ShareId>,
}

impl SessionInner {
    pub(crate) fn new(
        endpoint: Arc<EndpointInner>,
        identity: Identity,
        core: Core,
        keys: Option<Protection>,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            serial: endpoint.sessions.next_serial(),
            peer: identity.peer,
            share: identity.share,
            core: Mutex::new(core),
            protection: Mutex::new(keys),
            windows: Mutex::new(Reservation::new(endpoint.budget.clone())),
            outbox: Mutex::default(),
            wanted: AtomicBool::new(false),
            wake: Notify::new(),
            changes: Changes::default(),
            deadline: AtomicU64::new(0),
            armed: AtomicU64::new(u64::MAX),
            must_leave: AtomicBool::new(false),
            endpoint,
        });
        inner.endpoint.sessions.add(inner.serial, &inner);
        inner
    }

    /// Locks the engine and its companions. Must not be held during slow work.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core, |core| {
            core.fail(&self.endpoint);
            self.wake_driver();
        })
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.outbox, Outbox::clear)
    }

    pub(crate) fn set_keys(&self, keys: Protection) {
        *lock_keys(&self.protection) = Some(keys);
    }

    /// Wakes the driver task, which pumps.
    pub(crate) fn wake_driver(&self) {
        self.wake.notify_one();
    }

    /// Reserves room for replay windows in the budget of all sessions. Without room they forget the missing numbers.
    fn reserve_windows(&self, keys: &mut Protection) {
        let mut reserved = self.windows.lock().expect("no panic while held");
        if !reserved.hold(keys.window_memory() as u64) {
            keys.rest();
            reserved.hold(keys.window_memory() as u64);
        }
    }

    /// Hands this session's packets of a batch to the engine, buffer by buffer. The caller pumps afterwards.
    pub(crate) fn deliver(&self, now: Time, number: usize, batch: &mut [Decoded]) {
        let mut core = self.core();
        let engine = &mut core.engine;
        for buffer in batch.chunk_by_mut(|a, b| a.buffer == b.buffer) {
            let own = buffer.iter_mut().filter(|decoded| decoded.session == number);
            let packets = own.filter_map(|decoded| decoded.packet.as_mut());
            thriftier(packets, |stream, range| engine.not_arrived(stream, range));
            for decoded in buffer.iter_mut().filter(|decoded| decoded.session == number) {
                let Some(packet) = decoded.packet.take() else { continue };
                engine.handle_message(now, &decoded.arrival, Message::Packet(packet));
            }
        }
    }

    /// The frames of an authentic packet could not be read.
    pub(crate) fn fail_decoding(&self, now: Time, error: &anabranch_wire::DecodeError) {
        self.core().engine.abort(now, close_code::FRAME_ENCODING, &error.to_string());
    }

    /// Sends the engine's output, and wakes waiting tasks.
    pub(crate) fn pump(self: &Arc<Self>) {
        self.wanted.store(true, Ordering::SeqCst);
        let mut turns = 0..ROUNDS;
        while self.wanted.load(Ordering::SeqCst) {
            if turns.next().is_none() {
                // A receiver has its socket to empty, however often others want something sent.
                return self.wake_driver();
            }
            let Some(mut outbox) = try_lock(&self.outbox, Outbox::clear) else { return };
            self.wanted.store(false, Ordering::SeqCst);
            let mut scratch = SCRATCH.take();
            self.drain(&mut outbox, &mut scratch);
            SCRATCH.set(scratch);
        }
    }

    fn drain(self: &Arc<Self>, outbox: &mut Outbox, scratch: &mut Scratch) {
        outbox.retry();
        for _ in 0..ROUNDS {
            let now = self.endpoint.clock.now();
            let mut woken = Woken::new();
            let mut core = self.core();
            let outcome = core.poll(self, now, &mut scratch.queue, (BATCH, &mut woken));
            let deadline = core.deadline(now);
            outbox.note_acked(core.engine.highest_acked());
            drop(core);
            self.set_deadline(deadline);
            woken.into_iter().for_each(std::task::Waker::wake);
            if outcome.established || outcome.finished {
                self.changes.tell();
            }
            if let Some(half) = &outcome.half {
                self.exchange_keys(now, Some(half));
            }
            self.carry_out(outcome, outbox);
            if scratch.queue.is_empty() {
                return;
            }
            let waited_for = outbox.blocked_count();
            let sent = outbox.send(&self.endpoint.sockets, &self.protection, (now, scratch));
            if outbox.blocked_count() > waited_for {
                // The driver task does not yet wait for the newly blocked socket.
                self.wake_driver();
            }
            match sent {
                Ok(Sent { peers, wants_exchange }) => {
                    if !peers.used.is_empty() {
                        self.endpoint.sessions.resets.forget(self, &peers.in_place_of);
                        self.endpoint.sessions.resets.watch(self, &peers.used);
                    }
                    if wants_exchange {
                        self.exchange_keys(now, None);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "session cannot seal any more");
                    self.core().engine.abort(now, close_code::KEYS_EXHAUSTED, &error.to_string());
                }
            }
        }
        self.wake_driver();
    }

    fn carry_out(self: &Arc<Self>, outcome: Outcome, outbox: &Outbox) {
        if let Some(retention) = outcome.retention
            && let Some(keys) = lock_keys(&self.protection).as_mut()
        {
            keys.set_retention(retention);
        }
        if outcome.rests
            && let Some(keys) = lock_keys(&self.protection).as_mut()
        {
            keys.rest();
            self.reserve_windows(keys);
        }
        for path in outcome.retired_paths {
            if let Some(keys) = lock_keys(&self.protection).as_mut() {
                keys.close_path(path);
            }
        }
        if outcome.accepted {
            count(&self.endpoint.counters.accepted);
            if let Err(refused) = self.endpoint.incoming.try_send(Handle { inner: self.clone() }) {
                let reason = "the application takes no more sessions now";
                refused.into_inner().inner.abort(close_code::BUSY, reason);
            }
        }
        if outcome.finished {
            self.endpoint.sessions.resets.forget(self, outbox.peers());
            self.linger();
            // A session that was never established has no deadline left to end its task.
            self.wake_driver();
        }
    }

    /// Takes the peer's half of a fresh key exchange, if one has come, and has this end's sent if it is due.
    fn exchange_keys(&self, now: Time, half: Option<&KeyExchange>) {
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the operating system has random bytes");
        let mut guard = lock_keys(&self.protection);
        let Some(keys) = guard.as_mut() else { return };
        let exchanged = keys.exchange(now, half, random);
        if let Ok(Exchanged { fresh: Some(fresh), .. }) = &exchanged {
            self.endpoint.taps.tell_keys(|| keys.line_of(fresh));
        }
        drop(guard);
        match exchanged {
            Ok(Exchanged { half: Some(half), .. }) => self.core().engine.send_key_exchange(half),
            Ok(_) => return,
            Err(error) => {
                self.core().engine.abort(now, close_code::PROTOCOL_VIOLATION, &error.to_string());
            }
        }
        self.wanted.store(true, Ordering::SeqCst);
    }

    fn set_deadline(&self, deadline: Time) {
        let deadline = deadline.as_nanos();
        self.deadline.store(deadline, Ordering::SeqCst);
        if deadline < self.armed.load(Ordering::SeqCst) {
            self.wake_driver();
        }
    }

    /// Announces addresses and plans paths again, after this machine's addresses have changed.
    pub(crate) fn addresses_changed(self: &Arc<Self>) {
        self.core().addresses_changed();
        self.pump();
    }

    /// Closes the paths of a removed socket.
    pub(crate) fn socket_gone(self: &Arc<Self>, socket: u32) {
        self.outbox().forget_gone();
        let now = self.endpoint.clock.now();
        let mut core = self.core();
        let is_there =
            |path: &&PathInfo| self.endpoint.sockets.relayed.real_socket(path.route.socket) == Some(socket);
        for path in core.engine.paths().iter().filter(is_there) {
            core.engine.close_path(now, path.id, AbandonReason::AddressGone);
        }
        drop(core);
        self.addresses_changed();
    }

    /// True if relays may forward for it: it has a path through relays, or was accepted here, perhaps as a host at relays.
    pub(crate) fn may_be_relayed(&self) -> bool {
        let engine = &self.core().engine;
        engine.side() == Side::Server || engine.paths().iter().any(|path| is_chain(path.route.socket))
    }

    /// Closes after all written data has been delivered.
    pub(crate) fn close(self: &Arc<Self>) {
        self.core().engine.close(self.endpoint.clock.now());
        self.pump();
    }

    /// Ends at once.
    pub(crate) fn abort(self: &Arc<Self>, code: u64, reason: &str) {
        self.core().engine.abort(self.endpoint.clock.now(), code, reason);
        self.pump();
    }

    /// Ends an unconfirmed session in favour of another; does nothing once it is confirmed.
    pub(crate) fn give_way(self: &Arc<Self>) {
        let mut core = self.core();
        if core.half_open.take().is_some() {
            core.engine.abort(
                self.endpoint.clock.now(),
                close_code::BUSY,
                "too many sessions wait to be confirmed",
            );
        }
        drop(core);
        self.pump();
    }

    /// Why it ended; `None` while it lives.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.core().closed.clone()
    }

    /// Waits until it has ended.
    pub(crate) async fn closed(&self) -> CloseReason {
        self.changes.until(|| self.close_reason()).await
    }

    /// Pumps. A panic ends the session, and a second round wakes the waiting tasks.
    fn pump_contained(self: &Arc<Self>) {
        if contained(|| self.pump()).is_none() {
            self.pump();
        }
    }

    /// The task of one session: sleeps until the engine's next deadline or until woken, and pumps.
    pub(crate) fn drive(self: Arc<Self>) -> impl Future<Output = ()> + Send {
        // A runtime that shuts down may drop the task before its first poll.
        let leave = Leave(self);
        async move { leave.0.run().await }
    }

    async fn run(self: &Arc<Self>) {
        let sleep = tokio::time::sleep_until(tokio::time::Instant::now());
        tokio::pin!(sleep);
        loop {
            let deadline = self.arm();
            sleep.as_mut().reset(self.endpoint.clock.instant(Time::from_nanos(deadline)).into());
            let blocked = self.outbox().blocked_on();
            // Otherwise a task has left the pumping to this one.
            if !self.wanted.load(Ordering::SeqCst) {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = &mut sleep => {}
                    () = writable(&blocked) => {}
                }
            }
            self.armed.store(0, Ordering::SeqCst);
            self.pump_contained();
            if self.core().engine.is_closed() || self.must_leave.load(Ordering::SeqCst) {
                break;
            }
            // If there is more to send, it is woken again at once.
            give_way().await;
        }
    }

    /// Fixes how long the driver task sleeps, without missing an earlier deadline.
    fn arm(&self) -> u64 {
        loop {
            let deadline = self.deadline.load(Ordering::SeqCst);
            self.armed.store(deadline, Ordering::SeqCst);
            if self.deadline.load(Ordering::SeqCst) == deadline {
                return deadline;
            }
        }
    }

    /// Removes the session from all tables.
    fn leave(self: &Arc<Self>) {
        let (mut core, mut woken) = (self.core(), Woken::new());
        core.end_unheard(&mut woken);
        let (pids, init) = core.forget();
        drop(core);
        woken.into_iter().for_each(std::task::Waker::wake);
        self.changes.tell();
        for pid in &pids {
            self.endpoint.sockets.relayed.remove(*pid);
        }
        self.endpoint.sessions.pids.remove_all(pids);
        if let Some(init) = init {
            self.endpoint.sessions.inits().remove(&init);
        }
        let outbox = self.outbox();
        self.endpoint.sessions.resets.forget(self, outbox.peers());
        self.endpoint.sessions.remove(self.serial);
    }
}

/// Removes a session from all tables when its task ends, also when the runtime shuts down.
struct Leave(Arc<SessionInner>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Waits until one of the sockets has room.
async fn writable(sockets: &[Arc<BoundSocket>]) {
    // An error means that the runtime, and this task with it, is shutting down.
    match sockets {
        [] => std::future::pending().await,
        [socket] => drop(socket.udp.writable().await),
        several => {
            let waits = several.iter().map(|socket| Box::pin(socket.udp.writable()));
            drop(futures_util::future::select_all(waits).await);
        }
    }
}

#[cfg(test)]
mod tests;
