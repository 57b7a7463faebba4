//! The core under its lock, and the delivery of its output.
//!
//! After each change of the core its output is delivered: replies and dismissals go to the client's task, datagrams to
//! the socket that they name. Only the pump watches the time. It sleeps until the core's deadline, and is woken when
//! the deadline moves forward.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anabranch_engine::{Ecn, Route};
use anabranch_net::{
    Clock, Endpoint, Foreign, ForeignRun, Outlet, PathId, Permission, Pid, PublicKey, Refusal, Session, Span,
    Time, Verdict,
};
use anabranch_overlay::admission::Owner;
use anabranch_overlay::relay::{
    Admission, Dismissal, FlowState, Forward, Hop, Newcomer, Outgoing, Relay, RelayConfig, RelayStats, Reply,
    Run, SessionId,
};
use anabranch_overlay::sense::{LinkTold, SensorStats};
use anabranch_secure::ShareId;
use bytes::BytesMut;
use tokio::sync::{Notify, mpsc};

use super::clients;
use super::config::User;
use super::status::Status;
use crate::controller::registration::Standing;
use crate::pace::{OF_A_RELAY, Paces, SharedPace};
use anabranch_node::ControllerHint;

/// Shortest pause of the pump.
const SHORTEST: Span = Span::from_micros(200);
/// Its pause when the core has no deadline.
const FAR: Duration = Duration::from_secs(60);

/// See the module's documentation.
pub(super) struct State {
    core: Mutex<Core>,
    paces: Paces,
    clock: OnceLock<Clock>,
    wake: Notify,
    started: Instant,
    /// The names of the listed users, by their keys.
    names: Mutex<BTreeMap<String, String>>,
}

struct Core {
    relay: Relay,
    clients: BTreeMap<SessionId, Client>,
    next_session: u64,
    /// When the pump will wake by itself.
    armed: Time,
}

/// The channels to a client's task. Only that task uses the session, so a panic in it leaves the core intact.
pub(super) struct Client {
    pub key: PublicKey,
    pub replies: mpsc::UnboundedSender<Reply>,
    /// The reason to end the session; sent once.
    pub dismissal: mpsc::UnboundedSender<Dismissal>,
}

impl State {
    pub(super) fn new(relay: Relay) -> Self {
        let core = Core { relay, clients: BTreeMap::new(), next_session: 0, armed: Time::NEVER };
        Self {
            core: Mutex::new(core),
            paces: Paces::new(OF_A_RELAY),
            clock: OnceLock::new(),
            wake: Notify::new(),
            started: Instant::now(),
            names: Mutex::default(),
        }
    }

    pub(super) fn pace(&self, client: PublicKey) -> SharedPace {
        self.paces.of(client, Instant::now())
    }

    /// As [`Relay::pass_own`].
    pub(super) fn pass_own(&self, bytes: u64) -> Result<(), Time> {
        self.core().relay.pass_own(self.now(), bytes)
    }

    pub(super) fn set_clock(&self, clock: Clock) {
        // It is set once, at the start.
        let _ = self.clock.set(clock);
    }

    fn now(&self) -> Time {
        self.clock.get().map_or(Time::ZERO, Clock::now)
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no panic while held")
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.names.lock().expect("no panic while held")
    }

    /// Replaces the names of the listed users.
    pub(super) fn name_users(&self, users: &[User]) {
        *self.names() = users.iter().map(|user| (user.key.to_string(), user.name.clone())).collect();
    }

    /// True once an internal error may have left the state half changed; every access panics from then on.
    pub(super) fn is_torn(&self) -> bool {
        self.core.is_poisoned()
    }

    pub(super) fn authorize(&self, peer: &PublicKey, share: Option<ShareId>) -> Verdict {
        match self.core().relay.authorize(peer, share) {
            Admission::ByKey => Verdict::Accept { secret: None },
            Admission::Guest(secret) => Verdict::Accept { secret: Some(secret) },
            Admission::Busy => Verdict::Refuse(Refusal::Busy),
            Admission::Refused if share.is_some() => Verdict::Refuse(Refusal::TicketNotValid),
            Admission::Refused => Verdict::Refuse(Refusal::NotAuthorised),
        }
    }

    /// Whether the relay's own session with a client may try an address that the client announced.
    pub(super) fn judge_address(&self, peer: &PublicKey, address: SocketAddr) -> Permission {
        if self.core().relay.may_probe(peer, address) { Permission::Granted } else { Permission::Denied }
    }

    /// As [`Relay::may_allocate`].
    pub(super) fn may_allocate(&self, id: SessionId) -> bool {
        self.core().relay.may_allocate(id)
    }

    pub(super) fn reconfigure(&self, config: RelayConfig) {
        let now = self.now();
        self.change(|relay| relay.reconfigure(now, config));
    }

    pub(super) fn drain(&self, patience: Span) {
        let now = self.now();
        self.change(|relay| relay.drain(now, now + patience));
    }

    pub(super) fn is_drained(&self) -> bool {
        self.core().relay.is_drained()
    }

    /// Its counters, and whether it is draining.
    pub(super) fn stats(&self) -> (RelayStats, bool) {
        let core = self.core();
        (core.relay.stats(), core.relay.is_draining())
    }

    pub(super) fn status(
        &self,
        endpoint: &Endpoint,
        standings: &[(ControllerHint, Standing)],
        links: &(Vec<LinkTold>, SensorStats),
    ) -> Status {
        let keys = self.core().relay.keys();
        let (stats, draining) = self.stats();
        let status = Status::new(endpoint, (&stats, &keys), (self.started.elapsed(), draining));
        status.with(standings, links).named(&self.names())
    }

    /// Adds a client's session. Returns its addresses proven so far as well, which the core knows now.
    pub(super) fn open(
        &self,
        session: &Session,
        client: Client,
        measures: bool,
    ) -> (SessionId, BTreeMap<PathId, Hop>) {
        let now = self.now();
        let proven = clients::proven(session);
        let address = session.remote_ip();
        let owner = Owner { key: session.peer(), address };
        let newcomer = Newcomer { owner, share: session.share(), measures };
        let mut core = self.core();
        let id = SessionId(core.next_session);
        core.next_session += 1;
        core.clients.insert(id, client);
        drop(core);
        self.change(|relay| {
            relay.handle_session_opened(now, id, newcomer);
            proven.iter().for_each(|(path, hop)| relay.handle_session_path(id, *path, Some(*hop)));
        });
        (id, proven)
    }

    /// Removes a client's session.
    pub(super) fn close(&self, id: SessionId) {
        self.change(|relay| relay.handle_session_closed(id));
        self.core().clients.remove(&id);
    }

    /// Changes the core, and wakes the pump for the output.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Relay) -> T) -> T {
        let mut core = self.core();
        let result = change(&mut core.relay);
        core.deliver_replies();
        drop(core);
        self.wake.notify_one();
        result
    }

    /// Changes the core at the current time.
    pub(super) fn change_now<T>(&self, change: impl FnOnce(&mut Relay, Time) -> T) -> T {
        let now = self.now();
        self.change(|relay| change(relay, now))
    }
}

impl Core {
    fn deliver_replies(&mut self) {
        while let Some((to, reply)) = self.relay.poll_reply() {
            if let Some(client) = self.clients.get(&to) {
                log_ended_path(&client.key, &reply);
                // The client's task may be ending.
                let _ = client.replies.send(reply);
            }
        }
        while let Some((id, why)) = self.relay.poll_close() {
            if let Some(client) = self.clients.get(&id) {
                let _ = client.dismissal.send(why);
            }
        }
    }

    /// Handles passed deadlines; returns the next one.
    fn turn(&mut self, now: Time, due: &mut Vec<Outgoing>) -> Time {
        if self.relay.poll_timeout().is_some_and(|at| at <= now) {
            self.relay.handle_timeout(now);
        }
        self.take_due(now, due);
        self.deliver_replies();
        self.armed = self.relay.poll_timeout().map_or(Time::NEVER, |at| at.max(now + SHORTEST));
        self.armed
    }

    /// Takes the datagrams that may leave now.
    fn take_due(&mut self, now: Time, due: &mut Vec<Outgoing>) {
        while let Some(outgoing) = self.relay.poll_transmit(now) {
            due.push(outgoing);
        }
    }
}

/// Logs a path that ends because its client lost the right to it.
fn log_ended_path(client: &PublicKey, reply: &Reply) {
    if let Reply::Flow { state, .. } = reply {
        match state {
            FlowState::GrantEnded => {
                tracing::info!(%client, "path ended: no grant of the client allows it any more");
            }
            FlowState::Denied => {
                // Guests cause this for each other as often as they ask, and their keys are free.
                tracing::debug!(%client, "path ended: the relay's configuration or limits no longer allow it");
            }
            _ => {}
        }
    }
}

impl Foreign for State {
    fn knows(&self, pid: Pid) -> bool {
        self.core().relay.knows(pid)
    }

    fn look_ahead(&self, pids: &[Pid]) {
        self.core().relay.look_ahead(pids);
    }

    fn handle(&self, now: Time, runs: &[ForeignRun], buffers: &mut [BytesMut], outlet: &Outlet<'_>) {
        let (mut due, mut forwards, mut sends) = (Vec::new(), Vec::new(), Vec::with_capacity(runs.len()));
        let mut core = self.core();
        for ForeignRun { place: (buffer, range), from, stride, ecn } in runs {
            let from = Hop { socket: from.socket, address: from.remote };
            let run = Run { from, stride: *stride, ecn: *ecn as u8 };
            core.relay.handle_run(now, run, &mut buffers[*buffer][range.clone()], &mut forwards);
            sends.extend(forwards.drain(..).map(|forward| (*buffer, range.start, forward)));
        }
        core.take_due(now, &mut due);
        core.deliver_replies();
        let earlier = core.relay.poll_timeout().is_some_and(|at| at < core.armed);
        drop(core);
        if earlier {
            self.wake.notify_one();
        }
        for (buffer, start, Forward { range, stride, to, ecn }) in sends {
            outlet.send(route(to), (&buffers[buffer][start..][range], stride), ecn_of(ecn));
        }
        send_all(&due, outlet);
    }
}

/// Handles the core's deadlines, and sends datagrams that had to wait.
pub(super) async fn pump(state: Arc<State>, endpoint: Arc<Endpoint>) {
    let clock = endpoint.clock();
    let mut due = Vec::new();
    loop {
        let next = state.core().turn(clock.now(), &mut due);
        send_all(&due, &endpoint.outlet());
        due.clear();
        let far = Instant::now() + FAR;
        let until = clock.instant(next).min(far);
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            () = state.wake.notified() => {}
        }
    }
}

/// Sends datagrams; consecutive ones of the same destination and size leave together.
fn send_all(datagrams: &[Outgoing], outlet: &Outlet<'_>) {
    const MOST: usize = 64;
    let alike =
        |a: &Outgoing, b: &Outgoing| a.to == b.to && a.ecn == b.ecn && a.datagram.len() == b.datagram.len();
    let mut batch = Vec::new();
    for run in datagrams.chunk_by(alike) {
        for part in run.chunks(MOST) {
            batch.clear();
            part.iter().for_each(|outgoing| batch.extend_from_slice(&outgoing.datagram));
            outlet.send(route(part[0].to), (&batch, part[0].datagram.len()), ecn_of(part[0].ecn));
        }
    }
}

fn route(hop: Hop) -> Route {
    Route { socket: hop.socket, remote: hop.address }
}

/// The core stores ECN marks as the discriminants of [`Ecn`].
fn ecn_of(mark: u8) -> Ecn {
    [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce]
        .into_iter()
        .find(|ecn| *ecn as u8 == mark)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Wake, Waker};

    use anabranch_net::{Addresses, Config, EndpointConfig, NodeKey, Target};
    use anabranch_overlay::relay::{RELAY_VERSION, Refused, Request};

    use super::super::RelayService;
    use super::super::config::RelaySettings;
    use super::*;

    async fn relay() -> RelayService {
        let settings =
            RelaySettings::parse("key = \"k\"\nport = 0\naddresses = [\"127.0.0.1\"]\n", "relay.toml")
                .expect("settings");
        RelayService::start(NodeKey::from_random([7; 32]), &settings).await.expect("it starts")
    }

    async fn endpoint(seed: u8) -> Endpoint {
        let config = EndpointConfig::new(NodeKey::from_random([seed; 32]))
            .addresses(Addresses::Exactly(vec![[127, 0, 0, 1].into()]))
            .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None });
        Endpoint::bind(config).await.expect("it binds")
    }

    #[tokio::test]
    async fn a_path_that_closes_before_it_is_followed_is_forgotten() {
        let (service, near, far) = (relay().await, endpoint(1).await, endpoint(2).await);
        let target = Target::new(near.node(), near.local_addresses());
        let (_there, session) = tokio::join!(far.connect(&target, Config::default()), near.accept());
        let session = session.expect("it is accepted");
        let (replies, mut answers) = mpsc::unbounded_channel();
        let client = Client { key: session.peer(), replies, dismissal: mpsc::unbounded_channel().0 };
        let (id, mut known) = service.state.open(&session, client, false);
        let (closed, hop) = (PathId(8), *known.values().next().expect("a path"));
        known.insert(closed, hop);
        service.state.change(|relay| relay.handle_session_path(id, closed, Some(hop)));

        let follow = clients::follow(&service.state, &session, (id, known));
        assert!(tokio::time::timeout(Duration::from_millis(100), follow).await.is_err());
        let target = anabranch_overlay::relay::Target::Host;
        let allocate = Request::Allocate { request: 1, via: closed, target, out: Pid(3), back: Pid(4) };
        for request in [Request::Hello { version: RELAY_VERSION }, allocate] {
            service.state.change_now(|relay, now| relay.handle_request(now, id, request, None));
        }
        let refused = Reply::Refused { request: 1, why: Refused::NoSuchPath };
        let answers: Vec<Reply> = std::iter::from_fn(|| answers.try_recv().ok()).collect();
        assert_eq!(answers, [Reply::Hello { version: RELAY_VERSION }, refused]);
    }

    struct Faulty;

    impl Wake for Faulty {
        fn wake(self: Arc<Self>) {
            panic!("on purpose, in the task that ends the session");
        }
    }

    #[tokio::test]
    async fn a_fault_in_a_dismissed_session_leaves_the_relay_whole() {
        let service = relay().await;
        let (near, far) = (endpoint(1).await, endpoint(2).await);
        let target = Target::new(near.node(), near.local_addresses());
        let (_there, session) = tokio::join!(far.connect(&target, Config::default()), near.accept());
        let session = session.expect("it is accepted");
        let client = tokio::spawn(clients::serve(service.state.clone(), session.clone(), false));
        while service.state.core().clients.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let waker = Waker::from(Arc::new(Faulty));
        let mut closed = pin!(session.closed());
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // A session without a right to use the relay ends after some seconds.
        let late = service.endpoint.clock().now() + Span::from_secs(60);
        service.state.core().turn(late, &mut Vec::new());
        assert!(client.await.is_err_and(|error| error.is_panic()), "the fault happened");
        assert!(service.state.core().clients.is_empty(), "the client is forgotten");
        assert!(!service.is_torn());
    }

    #[tokio::test]
    async fn a_relay_reports_that_one_of_its_tasks_has_ended() {
        for task in 0.. {
            let service = relay().await;
            let Some(ended) = service.tasks.get(task) else { return };
            assert!(!service.is_torn());
            ended.abort();
            let told = tokio::time::timeout(Duration::from_secs(10), service.torn());
            assert!(told.await.is_ok(), "task {task}");
        }
    }

    #[tokio::test]
    async fn a_relay_reports_corrupted_state_and_can_still_be_ended() {
        let service = relay().await;
        let torn = tokio::time::timeout(Duration::from_millis(600), service.torn());
        assert!(torn.await.is_err(), "nothing has happened to it");
        let state = service.state.clone();
        let fault = std::thread::spawn(move || {
            let _core = state.core();
            panic!("on purpose");
        });
        assert!(fault.join().is_err());
        assert!(tokio::time::timeout(Duration::from_secs(10), service.torn()).await.is_ok());
        drop(service);
    }
}
