//! The exit: connects to destinations for the nodes that use it.
//!
//! Nodes come by their key or by a ticket. Each key, and all holders of a ticket together, have one account of connections, rate
//! and bytes. The [`Policy`] decides where they may go: by default to public addresses only.

mod associate;
mod connect;
mod listen;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_net::{PublicKey, ShareId, Stream};
use anabranch_node::{NodeSession, OTHER_COMMAND};
use anabranch_overlay::admission::{Full, Owner, SessionLimits, Sessions};
use anabranch_wire::close_code;
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::account::{Account, Limits};
use crate::control::Control;
use crate::copy::{self, End};
use crate::datagrams::Associations;
use crate::head::read_head;
use crate::message::{Answer, Head, Outcome, Request, VERSION};
use crate::meter::{ConnectionName, Connections};
use crate::policy::{AddressRange, Policy};
use crate::status::{ClientStatus, ExitStatus, MOST_LISTED};
use crate::target::Target;

use associate::{Means, sockets};
use listen::MOST_LISTENERS;

pub use connect::{Connector, Resolver, Resolving, dial};

/// Control streams of one session at the same time; each may hold a line that is not complete.
const MOST_CONTROLS: usize = 32;

/// Settings of an exit.
#[derive(Clone, Debug)]
pub struct ExitOptions {
    /// Destinations besides public ones.
    pub allow: Vec<AddressRange>,
    /// Destinations that are not to be reached.
    pub deny: Vec<AddressRange>,
    /// Where proxies may have the exit accept connections for them.
    pub listen: Vec<AddressRange>,
    /// Bounds for each key or ticket.
    pub limits: Limits,
    /// Bounds of sessions.
    pub sessions: SessionLimits,
}

/// An event, for people and for a log.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Notice {
    /// A node opened a session.
    Joined {
        /// Its key.
        node: String,
    },
    /// A node's session ended.
    Left {
        /// Its key.
        node: String,
        /// Why.
        reason: String,
    },
    /// A connection ended or was not opened.
    Connection(Record),
}

/// A connection in the log: where it went and how much it carried, never what.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The node's key.
    pub node: String,
    /// The caller, if the exit accepted the connection for the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The destination; for a caller, the address that it called.
    pub to: String,
    /// Whether it was opened.
    pub outcome: Outcome,
    /// How it ended, if it was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Bytes from the destination or caller, and to it.
    pub bytes: [u64; 2],
    /// How long it was open.
    pub seconds: f64,
    /// Refused connections before this one that the log leaves out. It has ten a second for each key, and ten for all
    /// holders of a ticket.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

// serde calls it with a reference.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The owner of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Key(PublicKey),
    Ticket(ShareId),
}

/// The exit for all nodes that use it.
pub struct Exit {
    connector: Arc<Connector>,
    listen: Vec<AddressRange>,
    limits: Limits,
    accounts: Mutex<BTreeMap<Holder, Arc<Account>>>,
    clients: Mutex<BTreeMap<u64, NodeSession>>,
    admitted: Mutex<Sessions<u64>>,
    connections: Connections,
}

impl Exit {
    /// An exit without sessions.
    pub fn new(options: &ExitOptions) -> Arc<Self> {
        Arc::new(Self {
            connector: Arc::new(Connector::new(Policy::new(&options.allow, &options.deny))),
            listen: options.listen.clone(),
            limits: options.limits,
            accounts: Mutex::default(),
            clients: Mutex::default(),
            admitted: Mutex::new(Sessions::new(options.sessions)),
            connections: Connections::default(),
        })
    }

    /// Serves the sessions that `accept` gives until it gives none or this future is dropped.
    pub async fn run<A: Future<Output = Option<NodeSession>> + Send>(
        self: Arc<Self>,
        accept: impl Fn() -> A + Send + Sync,
        notice: impl Fn(Notice) + Clone + Send + Sync + 'static,
    ) {
        let mut number = 0;
        while let Some(session) = accept().await {
            number += 1;
            if let Err(full) = self.admit(number, &session) {
                session.session().abort(close_code::BUSY, &full.to_string());
                continue;
            }
            let client = Arc::new(Client {
                node: session.session().peer().to_string(),
                account: self.account(&session),
                exit: self.clone(),
                associations: Associations::new(session.session()),
                listeners: AtomicUsize::new(0),
                controls: Semaphore::new(MOST_CONTROLS),
                is_greeted: AtomicBool::new(false),
                session,
                notice: notice.clone(),
            });
            tokio::spawn(client.serve(number));
        }
    }

    /// The current status.
    pub fn status(&self) -> ExitStatus {
        let clients = self.clients();
        let clients = clients.values().map(|session| {
            let account = self.account(session);
            ClientStatus {
                node: session.session().peer().to_string(),
                by_ticket: session.session().share().is_some(),
                connections: account.connections(),
                used: account.used(),
                paths: session.list(),
            }
        });
        let clients = clients.collect();
        let (connections, totals) = self.connections.status(MOST_LISTED);
        ExitStatus { clients, open: self.connections.count(), connections, totals }
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, NodeSession>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admitted(&self) -> MutexGuard<'_, Sessions<u64>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a session. When the exit is full, the largest consumer loses its oldest.
    ///
    /// # Errors
    /// Which share is used up.
    fn admit(&self, number: u64, session: &NodeSession) -> Result<(), Full> {
        let address = session.session().remote_ip();
        let owner = Owner { key: session.session().peer(), address };
        let candidates = match session.session().share() {
            Some(_) => self.admitted().admit(number, owner),
            None => self.admitted().admit_named(number, owner),
        };
        let oldest = candidates?.first().copied();
        self.clients().insert(number, session.clone());
        if let Some(loser) = oldest.and_then(|oldest| self.forget(oldest)) {
            loser.session().abort(close_code::BUSY, "the exit is full and others have fewer sessions");
        }
        Ok(())
    }

    fn forget(&self, number: u64) -> Option<NodeSession> {
        self.admitted().remove(number);
        self.clients().remove(&number)
    }

    /// There are no more accounts than keys and tickets in the access list.
    fn account(&self, session: &NodeSession) -> Arc<Account> {
        let session = session.session();
        let holder = session.share().map_or(Holder::Key(session.peer()), Holder::Ticket);
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.entry(holder).or_insert_with(|| Account::new(self.limits)).clone()
    }
}

/// A node that uses the exit.
struct Client<N> {
    exit: Arc<Exit>,
    session: NodeSession,
    associations: Arc<Associations>,
    /// Listeners that the node has asked for, over all its control streams.
    listeners: AtomicUsize,
    controls: Semaphore,
    /// Whether the node has greeted as a proxy does.
    is_greeted: AtomicBool,
    account: Arc<Account>,
    node: String,
    notice: N,
}

impl<N: Fn(Notice) + Send + Sync + 'static> Client<N> {
    async fn serve(self: Arc<Self>, number: u64) {
        (self.notice)(Notice::Joined { node: self.node.clone() });
        let associations = self.associations.clone();
        tokio::spawn(async move { associations.run().await });
        let reason = loop {
            match self.session.session().accept_stream().await {
                Ok(stream) => drop(tokio::spawn(self.clone().take(stream))),
                Err(error) => break error.to_string(),
            }
        };
        drop(self.exit.forget(number));
        (self.notice)(Notice::Left { node: self.node.clone(), reason });
    }

    /// Serves one stream until it ends.
    async fn take(self: Arc<Self>, mut stream: Stream) {
        let head = read_head(&mut stream).await;
        if !(matches!(head, Ok(Head::Control)) || self.is_greeted.load(Ordering::Relaxed)) {
            // A proxy waits for the exit's welcome. Other commands' first bytes could pass for a destination.
            self.session.session().abort(OTHER_COMMAND, "this ticket is for `anabranch proxy`");
            return;
        }
        match head {
            Ok(Head::Connect(to)) => self.connect(stream, to).await,
            Ok(Head::Datagrams) => self.associate(stream).await,
            Ok(Head::Control) => {
                if let Ok(_room) = self.controls.try_acquire() {
                    self.control(Control::new(stream)).await;
                }
            }
            // A stream of another kind, or of none, is dropped.
            other => tracing::debug!(node = self.node, ?other, "not served"),
        }
    }

    async fn connect(&self, mut stream: Stream, to: Target) {
        let begin = Instant::now();
        let name = ConnectionName { from: self.node.clone(), to: to.to_string() };
        let mut record = Record::new(&name);
        let opened = async {
            let room = self.account.enter()?;
            let connection = self.exit.connector.connect(&to, &self.account.lookups).await?;
            Ok((room, connection))
        };
        let opened = opened.await;
        record.outcome = opened.as_ref().err().copied().unwrap_or(Outcome::Open);
        let answered = stream.write_all(&[record.outcome.to_byte()]).await.is_ok();
        if let Ok((_room, connection)) = opened
            && answered
        {
            let entered = self.exit.connections.enter(name, Some(self.account.clone()));
            record.end = Some(copy::carry(connection, stream, &entered.meter).await);
            record.bytes = entered.meter.bytes();
        }
        self.report(record, begin);
    }

    async fn associate(&self, mut stream: Stream) {
        let begin = Instant::now();
        let name = ConnectionName { from: self.node.clone(), to: "udp".to_owned() };
        let mut record = Record::new(&name);
        let opened = self.account.enter().and_then(|room| Ok((room, sockets().map_err(|_| Outcome::Busy)?)));
        record.outcome = opened.as_ref().err().copied().unwrap_or(Outcome::Open);
        let answered = stream.write_all(&[record.outcome.to_byte()]).await.is_ok();
        if let Ok((_room, sockets)) = opened
            && answered
        {
            let entered = self.exit.connections.enter(name, Some(self.account.clone()));
            let means = Means {
                connector: self.exit.connector.clone(),
                account: self.account.clone(),
                meter: entered.meter.clone(),
            };
            associate::carry(&self.associations, stream, means, sockets).await;
            record.end = Some(End::Complete);
            record.bytes = entered.meter.bytes();
        }
        self.report(record, begin);
    }

    /// Reports a connection that ended or was refused, unless too many were refused.
    fn report(&self, mut record: Record, begin: Instant) {
        let now = Instant::now();
        record.seconds = (now - begin).as_secs_f64();
        if let Some(left_out) = self.account.report(now, record.outcome != Outcome::Open) {
            record.left_out = left_out;
            (self.notice)(Notice::Connection(record));
        }
    }

    /// Answers on the control stream until it ends.
    async fn control(self: &Arc<Self>, mut control: Control) {
        let may_listen = || self.listeners.fetch_add(1, Ordering::Relaxed) < MOST_LISTENERS;
        let (late, mut later) = mpsc::channel(MOST_LISTENERS);
        loop {
            let asked = tokio::select! {
                asked = control.receive::<Request>() => asked,
                Some(answer) = later.recv() => match control.send(&answer).await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let answer = match asked {
                Ok(Some(Request::Hello { version: VERSION })) => {
                    self.is_greeted.store(true, Ordering::Relaxed);
                    Answer::Welcome { version: VERSION }
                }
                Ok(Some(Request::Hello { version })) => Answer::Refused {
                    reason: format!("this exit speaks version {VERSION}, the proxy version {version}"),
                },
                Ok(Some(Request::Listen { listener, address })) if may_listen() => {
                    self.listen((listener, address), late.clone()).await
                }
                Ok(Some(Request::Listen { listener, .. })) => {
                    Answer::NotListening { listener, reason: format!("it takes {MOST_LISTENERS} at most") }
                }
                Ok(None) | Err(_) => return,
            };
            if control.send(&answer).await.is_err() {
                return;
            }
        }
    }
}

impl Record {
    fn new(name: &ConnectionName) -> Self {
        Self {
            node: name.from.clone(),
            from: None,
            to: name.to.clone(),
            outcome: Outcome::Busy,
            end: None,
            bytes: [0; 2],
            seconds: 0.0,
            left_out: 0,
        }
    }
}
