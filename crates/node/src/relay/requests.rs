//! The requests to one relay: the grant shown there and the allocated flows.
//!
//! One task owns the stream of requests. It sends requests, delivers replies, and publishes the progress of each flow to
//! its owner. All flows end with the session.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{PathId, Pid, PublicKey, Route, ShareId, Span, Stream, TicketSecret};
use anabranch_overlay::grant::GrantId;
use anabranch_overlay::relay::{FlowId, FlowState, RELAY_VERSION, Refused, Reply, Request, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::RelayError;
use crate::grants::Grants;

/// Requests that may wait for the task.
const BACKLOG: usize = 64;
/// How long a relay may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A flow to request.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its destination.
    pub target: Target,
    /// The next hop's PID; [`Pid::HANDSHAKE`] before one is assigned.
    pub out: Pid,
    /// This end's PID for the return packets.
    pub back: Pid,
}

/// Sends requests to the task.
pub(super) struct Requests(mpsc::Sender<Ask>);

/// A flow at a relay, released when dropped.
pub struct Flow {
    id: FlowId,
    /// The PID for packets to the relay.
    pub forward: Pid,
    /// The PID that the next hop uses for packets to the relay.
    pub back: Pid,
    /// The socket and the address of the relay.
    pub entry: Route,
    progress: watch::Receiver<Progress>,
    asks: mpsc::Sender<Ask>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        // If the task has ended or its queue is full, the flow ends with the session.
        let _ = self.asks.try_send(Ask::Say(Request::Release { flow: self.id }));
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// How many PIDs the next hop has accepted so far.
    ready: u32,
    /// Why it ended.
    over: Option<FlowState>,
}

enum Ask {
    Allocate(Allocation),
    Host(ShareId, TicketSecret, oneshot::Sender<Result<(), RelayError>>),
    Say(Request),
}

/// A request for a flow, over a path of the session with the relay.
struct Allocation {
    wanted: Wanted,
    via: PathId,
    entry: Route,
    answer: oneshot::Sender<Result<Flow, RelayError>>,
}

impl Requests {
    /// Greets the relay over a new stream, and shows the grant for it if there is one.
    pub async fn begin(stream: Stream, relay: PublicKey, grants: Grants) -> Result<Self, RelayError> {
        let (asks, inbox) = mpsc::channel(BACKLOG);
        let (greeted, greeting) = oneshot::channel();
        tokio::spawn(Task::new(relay, grants, (greeted, asks.downgrade())).run(stream, inbox));
        answer("greeting", greeting).await?;
        Ok(Self(asks))
    }

    /// Allocates a flow for packets over a path of the session with the relay.
    pub async fn allocate(&self, wanted: Wanted, via: PathId, entry: Route) -> Result<Flow, RelayError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::Allocate(Allocation { wanted, via, entry, answer })).await?;
        let allocated = self::answer("request for a path", answered).await;
        allocated.map_err(|error| about_target(error, wanted.target))
    }

    /// Makes this node reachable for holders of the secret behind `hash`.
    pub async fn host(&self, share: ShareId, hash: TicketSecret) -> Result<(), RelayError> {
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::Host(share, hash, answer)).await?;
        self::answer("request for a place", answered).await
    }

    async fn ask(&self, ask: Ask) -> Result<(), RelayError> {
        self.0.send(ask).await.map_err(|_| RelayError::Gone)
    }
}

impl Flow {
    /// Waits until the next hop has agreed to the first PID.
    ///
    /// # Errors
    /// When it does not agree, or the relay is gone or does not report either in time.
    pub async fn ready(&mut self) -> Result<(), RelayError> {
        self.agreed(1).await
    }

    /// Changes the PIDs of the flow; a `back` of 0 leaves the return PID. Waits until the next hop has accepted a new
    /// PID.
    pub async fn redirect(&mut self, out: Pid, back: Pid, is_new: bool) -> Result<(), RelayError> {
        let agreed = self.progress.borrow().ready;
        let say = Ask::Say(Request::Redirect { flow: self.id, out, back });
        self.asks.send(say).await.map_err(|_| RelayError::Gone)?;
        if is_new { self.agreed(agreed + 1).await } else { Ok(()) }
    }

    /// Waits for the end of the flow and returns the reason.
    pub async fn over(&mut self) -> RelayError {
        let over = self.progress.wait_for(|progress| progress.over.is_some()).await;
        over.map_or(RelayError::Gone, |progress| progress.over.map_or(RelayError::Gone, RelayError::Over))
    }

    async fn agreed(&mut self, times: u32) -> Result<(), RelayError> {
        let far = |progress: &Progress| progress.ready >= times || progress.over.is_some();
        let late = |_| RelayError::Silent("question whether the next hop agrees");
        let waited = timeout(PATIENCE, self.progress.wait_for(far)).await.map_err(late)?;
        let progress = *waited.map_err(|_| RelayError::Gone)?;
        progress.over.map_or(Ok(()), |state| Err(RelayError::Over(state)))
    }
}

/// Waits for the relay's answer, for as long as it may take.
async fn answer<T>(
    to: &'static str,
    answered: oneshot::Receiver<Result<T, RelayError>>,
) -> Result<T, RelayError> {
    match timeout(PATIENCE, answered).await {
        Ok(answered) => answered.map_err(|_| RelayError::Gone)?,
        Err(_) => Err(RelayError::Silent(to)),
    }
}

/// Adds the address of the next hop to a refusal about it.
fn about_target(error: RelayError, target: Target) -> RelayError {
    match (error, target) {
        (RelayError::Refused(why), Target::Address { address, .. }) if why.is_of_a_next_hop() => {
            RelayError::NextHop { to: address, why }
        }
        (error, _) => error,
    }
}

/// The owner of the stream.
struct Task {
    relay: PublicKey,
    grants: Grants,
    /// Grants that were shown and not yet answered, in order.
    showing: VecDeque<GrantId>,
    greeted: Option<oneshot::Sender<Result<(), RelayError>>>,
    next_request: u32,
    allocating: BTreeMap<u32, Allocation>,
    hosting: BTreeMap<ShareId, oneshot::Sender<Result<(), RelayError>>>,
    flows: BTreeMap<FlowId, Arc<watch::Sender<Progress>>>,
    /// For the flows, which release themselves. It does not keep the task running.
    asks: mpsc::WeakSender<Ask>,
}

impl Task {
    fn new(
        relay: PublicKey,
        grants: Grants,
        (greeted, asks): (oneshot::Sender<Result<(), RelayError>>, mpsc::WeakSender<Ask>),
    ) -> Self {
        Self {
            relay,
            grants,
            showing: VecDeque::new(),
            greeted: Some(greeted),
            next_request: 0,
            allocating: BTreeMap::new(),
            hosting: BTreeMap::new(),
            flows: BTreeMap::new(),
            asks,
        }
    }

    async fn run(mut self, stream: Stream, mut asks: mpsc::Receiver<Ask>) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut write = Vec::new();
        let mut read = Vec::new();
        let (grants, mut seen) = (self.grants.clone(), self.grants.watch());
        Request::Hello { version: RELAY_VERSION }.encode(&mut write);
        self.show(&mut write);
        loop {
            if !write.is_empty() && writer.write_all(&write).await.is_err() {
                return;
            }
            write.clear();
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.take(ask, &mut write),
                    None => return,
                },
                () = grants.changed(&mut seen) => self.show(&mut write),
                more = reader.read_buf(&mut read) => {
                    if !matches!(more, Ok(1..)) || self.read(&mut read).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Shows the grant for this relay, at the start and after each renewal.
    fn show(&mut self, write: &mut Vec<u8>) {
        if let Some((id, grant)) = self.grants.for_relay(&self.relay) {
            self.showing.push_back(id);
            Request::Show { grant }.encode(write);
        }
    }

    fn take(&mut self, ask: Ask, write: &mut Vec<u8>) {
        match ask {
            Ask::Allocate(allocation) => {
                self.next_request = self.next_request.wrapping_add(1).max(1);
                let (request, via) = (self.next_request, allocation.via);
                let Wanted { target, out, back } = allocation.wanted;
                self.allocating.insert(request, allocation);
                Request::Allocate { request, via, target, out, back }.encode(write);
            }
            Ask::Host(share, hash, answer) => {
                self.hosting.insert(share, answer);
                Request::Host { share, hash, flows: u32::MAX }.encode(write);
            }
            Ask::Say(request) => {
                if let Request::Release { flow } = request {
                    self.flows.remove(&flow);
                }
                request.encode(write);
            }
        }
    }

    /// Handles complete replies at the front.
    fn read(&mut self, read: &mut Vec<u8>) -> Result<(), anabranch_overlay::MessageError> {
        let mut taken = 0;
        while let Some((reply, len)) = Reply::decode(&read[taken..])? {
            taken += len;
            self.on_reply(&reply);
        }
        read.drain(..taken);
        Ok(())
    }

    /// Delivers an answer; its requester may be gone.
    fn on_reply(&mut self, reply: &Reply) {
        match *reply {
            Reply::Hello { version } if version != RELAY_VERSION => {
                self.on_greeted(Err(RelayError::Refused(Refused::Version)));
            }
            // With a grant to show, its answer completes the greeting.
            Reply::Hello { .. } if self.showing.is_empty() => self.on_greeted(Ok(())),
            Reply::Hello { .. } => {}
            Reply::Allocated { request, flow: id, forward, back } => {
                let (Some(Allocation { entry, answer, .. }), Some(asks)) =
                    (self.allocating.remove(&request), self.asks.upgrade())
                else {
                    return;
                };
                let (sender, progress) = watch::channel(Progress::default());
                self.flows.insert(id, Arc::new(sender));
                // If the requester has given up, the flow is dropped here, and so released.
                let _ = answer.send(Ok(Flow { id, forward, back, entry, progress, asks }));
            }
            Reply::Refused { request, why } => self.on_refused(request, why),
            Reply::Flow { flow, state } => {
                let Some(progress) = self.flows.get(&flow) else { return };
                progress.send_modify(|progress| match state {
                    FlowState::Ready => progress.ready += 1,
                    over => progress.over = Some(over),
                });
                if state != FlowState::Ready {
                    self.flows.remove(&flow);
                }
            }
            Reply::Hosting { share } => {
                let _ = self.hosting.remove(&share).map(|answer| answer.send(Ok(())));
            }
            Reply::Draining { seconds } => tracing::info!(
                "the relay is drained: its paths end in {}, and it takes no others until it is restarted",
                Span::from_secs(seconds.into()).in_words()
            ),
            Reply::Granted { .. } => {
                self.showing.pop_front();
                self.on_greeted(Ok(()));
            }
        }
    }

    fn on_greeted(&mut self, outcome: Result<(), RelayError>) {
        // The requester may be gone.
        let _ = self.greeted.take().map(|greeted| greeted.send(outcome));
    }

    /// Handles a refusal. One without a number refuses the greeting or a hosting request, which have none.
    fn on_refused(&mut self, request: u32, why: Refused) {
        if let Some(allocation) = self.allocating.remove(&request) {
            let _ = allocation.answer.send(Err(RelayError::Refused(why)));
        } else if why.is_of_a_grant()
            && let Some(grant) = self.showing.pop_front()
        {
            tracing::warn!(relay = %self.relay, "{why}");
            self.grants.on_refused(grant, why);
            self.on_greeted(Err(RelayError::Refused(why)));
        } else if self.greeted.is_some() {
            self.on_greeted(Err(RelayError::Refused(why)));
        } else {
            for (_, answer) in std::mem::take(&mut self.hosting) {
                let _ = answer.send(Err(RelayError::Refused(why)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_net::NodeKey;

    #[tokio::test]
    async fn a_relay_of_another_version_is_told_as_that_and_one_of_this_version_is_greeted() {
        for (version, is_refused) in [(RELAY_VERSION, false), (RELAY_VERSION + 1, true)] {
            let (greeted, greeting) = oneshot::channel();
            let relay = NodeKey::from_random([1; 32]).public();
            let asks = mpsc::channel(BACKLOG).0.downgrade();
            let mut task = Task::new(relay, Grants::default(), (greeted, asks));
            task.on_reply(&Reply::Hello { version });
            let told = answer("greeting", greeting).await;
            let expected = if is_refused { Err(RelayError::Refused(Refused::Version)) } else { Ok(()) };
            assert_eq!(told, expected);
        }
        let told = RelayError::Refused(Refused::Version).to_string();
        assert!(told.contains("version"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_never_reports_whether_the_next_hop_agrees_is_not_waited_for_without_end() {
        let (asks, _inbox) = mpsc::channel(BACKLOG);
        let (_sender, progress) = watch::channel(Progress::default());
        let entry = Route { socket: 0, remote: "192.0.2.1:4600".parse().unwrap() };
        let (forward, back) = (Pid(2), Pid(3));
        let mut flow = Flow { id: FlowId(1), forward, back, entry, progress, asks };
        assert!(matches!(flow.ready().await, Err(RelayError::Silent(_))));
    }

    #[tokio::test]
    async fn a_flow_whose_requester_gave_up_is_released_when_the_relay_has_allocated_it() {
        let (asks, mut inbox) = mpsc::channel(BACKLOG);
        let relay = NodeKey::from_random([1; 32]).public();
        let mut task = Task::new(relay, Grants::default(), (oneshot::channel().0, asks.downgrade()));
        let (answer, answered) = oneshot::channel();
        let wanted = Wanted { target: Target::Host, out: Pid(7), back: Pid(8) };
        let entry = Route { socket: 0, remote: "192.0.2.1:4600".parse().unwrap() };
        let mut write = Vec::new();
        task.take(Ask::Allocate(Allocation { wanted, via: PathId::FIRST, entry, answer }), &mut write);
        drop(answered);
        let flow = FlowId(5);
        task.on_reply(&Reply::Allocated { request: 1, flow, forward: Pid(9), back: Pid(10) });
        let Ok(Ask::Say(request)) = inbox.try_recv() else { panic!("nothing is released") };
        assert_eq!(request, Request::Release { flow });
        task.take(Ask::Say(request), &mut write);
        assert!(task.flows.is_empty(), "it is forgotten here as well");
    }
}
