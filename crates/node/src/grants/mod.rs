//! A node's grants: requested from controllers, stored in a file, renewed while they are used.
//!
//! A program starts with the stored grant if more than a quarter of its lifetime is left, so that successive programs
//! share it. It renews an older grant. It requests a new one if none is stored, if the stored one was revoked, or if
//! that was requested for fewer relays. If no controller answers, or a quota has no room for another grant, the stored
//! one is used until it expires. A task renews the grant after half of its lifetime. Sessions to relays then show the
//! renewed grant, which relays treat as the same grant with a later end.
//!
//! A relay that cannot be reached may have moved or be gone. Then controllers are asked for its addresses, and for a
//! grant with more live relays; likewise if fewer relays were granted than requested ([`Lost`] decides when). The
//! previous grant stays valid until it expires, since other programs may use it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_net::{Endpoint, Lasting, PublicKey, Rate, Ticket};
use anabranch_overlay::controller::message::{Again, GrantedRelay};
use anabranch_overlay::controller::{Ask, RequestId};
use anabranch_overlay::grant::{Grant, GrantId, Limits, UnixTime, read_own};
use anabranch_overlay::relay::Refused;
use anabranch_secure::RelayHint;
use anabranch_wire::Header;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

mod cache;
mod lost;

use crate::controllers::Controllers;
use crate::controllers::{ControllerHint, Granted, LinkError};
use crate::wall;
use lost::Lost;

/// How long a program waits at its start for more relays than the stored grant has.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after a failed renewal.
const AGAIN: Duration = Duration::from_secs(5);
/// Shortest time between renewals of a grant that only a relay's clock calls expired.
const EXPIRED_AGAIN: Duration = Duration::from_secs(60);
/// Grants are requested for as long as the controller allows.
const LONGEST: u64 = u32::MAX as u64;

/// Paths at each relay that programs ask controllers for.
pub const USUAL_PATHS: u32 = 16;

/// The size of the grant to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantWanted {
    /// Most and least number of relays.
    pub relays: (u8, u8),
    /// Number of paths at each relay.
    pub paths: u32,
}

/// A grant with its relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its decoded content.
    pub grant: Grant,
    /// The signed bytes, the controller, and the addresses of the relays.
    pub granted: Granted,
    /// How many relays were requested; fewer may have been granted.
    pub asked: u8,
}

impl Held {
    /// Takes a grant from a controller, or from the file. Of the relays and addresses that a controller names, as many are
    /// called as were requested: otherwise it could have packets sent to thousands of others.
    pub(crate) fn read(mut granted: Granted, asked: u8) -> Result<Self, LinkError> {
        let grant = read_own(&granted.bytes).map_err(|_| LinkError::Malformed)?;
        granted.relays.truncate(asked.into());
        granted.relays.iter_mut().for_each(|relay| relay.addresses.truncate(Ticket::MAX_ADDRESSES));
        Ok(Self { grant, granted, asked })
    }

    fn left(&self, now: UnixTime) -> u64 {
        self.grant.not_after.0.saturating_sub(now.0)
    }

    fn life(&self) -> u64 {
        self.grant.not_after.0.saturating_sub(self.grant.not_before.0)
    }

    /// Seconds until half of its lifetime is over; at most that half, because the clock here may be far behind.
    fn until_half(&self, now: UnixTime) -> u64 {
        self.left(now).min(self.life()).saturating_sub(self.life() / 2)
    }
}

/// The grants of a node; clones share them. Empty without controllers.
#[derive(Clone, Debug, Default)]
pub struct Grants(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    held: watch::Receiver<Option<Held>>,
    told: Arc<Told>,
    task: JoinHandle<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reports from the users of the grants.
#[derive(Debug, Default)]
struct Told {
    /// A refused grant, and the reason.
    refused: Mutex<Option<(GrantId, Refused)>>,
    /// Relays that were tried, and whether they answered.
    tried: Mutex<BTreeMap<PublicKey, bool>>,
    wake: Notify,
}

impl Grants {
    /// Gets a grant as described in the module's documentation, and renews it while a handle exists. It is stored in
    /// `file`, if there is one.
    ///
    /// # Errors
    /// Why no controller granted anything, if no grant is stored either.
    pub async fn obtain(
        endpoint: &Arc<Endpoint>,
        controllers: &[ControllerHint],
        wanted: GrantWanted,
        file: Option<PathBuf>,
    ) -> Result<Self, LinkError> {
        let (grants, problem) = Self::seek(endpoint, controllers, wanted, file).await;
        problem.map_or(Ok(grants), Err)
    }

    /// As [`Self::obtain`]. Without a grant, controllers are asked again while a handle exists; the error says why there is
    /// none yet.
    pub(crate) async fn seek(
        endpoint: &Arc<Endpoint>,
        controllers: &[ControllerHint],
        wanted: GrantWanted,
        file: Option<PathBuf>,
    ) -> (Self, Option<LinkError>) {
        let mut keeper = Keeper {
            own: endpoint.node(),
            nodes: controllers.iter().map(ControllerHint::node).collect(),
            controllers: Controllers::new(endpoint.clone(), controllers.to_vec()),
            wanted,
            file,
            held: watch::Sender::new(None),
        };
        let problem = keeper.begin().await.err();
        let (held, told) = (keeper.held.subscribe(), Arc::<Told>::default());
        let mut trouble = Lasting::default();
        // The caller reports it.
        trouble.is_news(problem.as_ref().map(ToString::to_string).as_deref());
        let task = tokio::spawn(keeper.keep(told.clone(), trouble));
        (Self(Some(Arc::new(Inner { held, told, task }))), problem)
    }

    /// The relays that may be used now.
    pub fn relays(&self) -> Vec<RelayHint> {
        let Some(inner) = &self.0 else { return Vec::new() };
        let held = inner.held.borrow();
        let relays = held.iter().flat_map(|held| &held.granted.relays);
        let hint = |relay: &GrantedRelay| RelayHint { node: relay.node, addresses: relay.addresses.clone() };
        relays.filter(|relay| !relay.addresses.is_empty()).map(hint).collect()
    }

    /// The end of the grant, in seconds since 1970; `None` without one.
    pub fn until(&self) -> Option<u64> {
        let inner = self.0.as_ref()?;
        inner.held.borrow().as_ref().map(|held| held.grant.not_after.0)
    }

    /// Waits until the grant is replaced or renewed; never returns without controllers.
    pub(crate) async fn changed(&self, seen: &mut Option<watch::Receiver<Option<Held>>>) {
        let changed = match seen {
            Some(seen) => seen.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }

    /// The hosts of these relays.
    pub fn hosts(&self) -> BTreeSet<IpAddr> {
        self.relays().iter().flat_map(|relay| &relay.addresses).map(|at| at.ip().to_canonical()).collect()
    }

    /// Waits until [`Self::hosts`] differ from `known`, and returns them.
    pub async fn hosts_changed(&self, known: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let mut seen = self.watch();
        loop {
            let now = self.hosts();
            if now != *known {
                return now;
            }
            self.changed(&mut seen).await;
        }
    }

    /// A watcher for [`Self::changed`]; it reports changes from now on.
    pub(crate) fn watch(&self) -> Option<watch::Receiver<Option<Held>>> {
        self.0.as_ref().map(|inner| {
            let mut seen = inner.held.clone();
            seen.mark_unchanged();
            seen
        })
    }

    /// The grant to show to a relay.
    pub fn for_relay(&self, relay: &PublicKey) -> Option<(GrantId, Vec<u8>)> {
        let inner = self.0.as_ref()?;
        let held = inner.held.borrow();
        let held = held.as_ref().filter(|held| {
            let relays = &held.grant.relays;
            relays.is_empty() || relays.contains(relay)
        })?;
        Some((held.grant.id, held.granted.bytes.clone()))
    }

    /// Reports that a relay refused the grant. A revoked grant is replaced. A grant that is expired by the relay's
    /// clock is renewed, because a controller's clock may have jumped.
    pub fn on_refused(&self, grant: GrantId, why: Refused) {
        if let Some(inner) = &self.0 {
            *inner.told.refused.lock().expect("no panic while held") = Some((grant, why));
            inner.told.wake.notify_one();
        }
    }

    /// Reports whether relays were reached; controllers are asked about granted ones that were not.
    pub(crate) fn on_tried(&self, relays: impl IntoIterator<Item = PublicKey>, reached: bool) {
        let Some(inner) = &self.0 else { return };
        let granted: Vec<PublicKey> = self.relays().iter().map(|relay| relay.node).collect();
        let tried = relays.into_iter().filter(|node| granted.contains(node));
        inner.told.tried.lock().expect("no panic while held").extend(tried.map(|node| (node, reached)));
        inner.told.wake.notify_one();
    }

    /// Relays with the addresses to try. The configured addresses come first, because they determine the route. After
    /// they have failed, or if there are none, the controllers' latest addresses come first.
    pub(crate) fn known(&self, relays: &[RelayHint], was_lost: bool) -> Vec<RelayHint> {
        let granted = self.relays();
        let known = |relay: &RelayHint| {
            let told = granted.iter().find(|other| other.node == relay.node);
            let Some(told) = told.filter(|_| was_lost || relay.addresses.is_empty()) else {
                return relay.clone();
            };
            let named = relay.addresses.iter().filter(|named| !told.addresses.contains(named));
            RelayHint { node: relay.node, addresses: told.addresses.iter().chain(named).copied().collect() }
        };
        relays.iter().map(known).collect()
    }

    /// Waits until [`Self::known`] differs from `known` for these relays.
    pub(crate) async fn moved(&self, relays: &[RelayHint], (known, was_lost): (&[RelayHint], bool)) {
        let mut seen = self.watch();
        while self.known(relays, was_lost) == known {
            self.changed(&mut seen).await;
        }
    }
}

struct Keeper {
    own: PublicKey,
    nodes: Vec<PublicKey>,
    controllers: Controllers,
    wanted: GrantWanted,
    file: Option<PathBuf>,
    held: watch::Sender<Option<Held>>,
}

impl Keeper {
    async fn begin(&mut self) -> Result<(), LinkError> {
        let (now, kept) = (wall(), self.kept());
        let (most, _) = self.wanted.relays;
        let is_enough = kept.as_ref().is_some_and(|held| held.asked >= most);
        let is_fresh = kept.as_ref().is_some_and(|held| held.left(now) > held.life() / 4);
        self.held.send_replace(kept);
        if is_enough && is_fresh {
            if self.are_few() {
                // There may be more relays by now. A controller that answers too late is asked again later.
                let _ = timeout(PATIENCE, self.ask_for_more(&BTreeSet::new())).await;
            }
            return Ok(());
        }
        let refreshed = if is_enough { self.refresh().await } else { self.replace().await };
        match refreshed {
            // A quota may have no room for a larger grant next to a fresh one.
            Err(error) if is_fresh || self.held.borrow().is_some() && error.is_worth_another() => {
                tracing::warn!("{error}; using the grant that was kept");
                Ok(())
            }
            done => done,
        }
    }

    /// The stored grant that expires last.
    fn kept(&self) -> Option<Held> {
        let now = wall();
        let is_good = |held: &Held| {
            held.grant.client == self.own
                && self.nodes.contains(&held.granted.from)
                && held.left(now) > 0
                && held.grant.relays.len() >= usize::from(self.wanted.relays.1)
        };
        let kept = self.file.as_deref().map(cache::load).unwrap_or_default();
        kept.into_iter().filter(is_good).max_by_key(|held| held.grant.not_after)
    }

    /// The relays of the grant, with their addresses.
    fn relays(&self) -> Vec<GrantedRelay> {
        self.held.borrow().as_ref().map(|held| held.granted.relays.clone()).unwrap_or_default()
    }

    /// Whether fewer relays were granted than requested. A grant without a list is valid at every relay.
    fn are_few(&self) -> bool {
        (1..usize::from(self.wanted.relays.0)).contains(&self.relays().len())
    }

    /// Asks for the relays' current addresses and, if `replace`, for other relays instead of those that are gone.
    async fn look(&self, replace: bool) -> Result<(), LinkError> {
        let before = self.relays();
        self.refresh().await?;
        let now = self.relays();
        if now != before || !replace || now.is_empty() {
            return Ok(());
        }
        let gone = self.controllers.gone(now.iter().map(|relay| relay.node).collect()).await?;
        self.ask_for_more(&gone.into_iter().collect()).await
    }

    /// Gets a grant with more live relays than the current one has, if possible.
    async fn ask_for_more(&self, gone: &BTreeSet<PublicKey>) -> Result<(), LinkError> {
        let alive =
            |relays: &[GrantedRelay]| relays.iter().filter(|relay| !gone.contains(&relay.node)).count();
        let (now, (most, least)) = (alive(&self.relays()), self.wanted.relays);
        // Another program of this node may have stored one.
        if let Some(kept) = self.kept().filter(|kept| alive(&kept.granted.relays) > now) {
            self.held.send_replace(Some(kept));
            return Ok(());
        }
        if now >= usize::from(most) {
            return Ok(());
        }
        let granted = self.ask((most, least.max(now as u8 + 1))).await?;
        tracing::info!(
            relays = granted.relays.len(),
            "another grant instead of one of which fewer can be reached"
        );
        self.take(granted, most)
    }

    /// Renews the grant, or gets a new one.
    async fn refresh(&self) -> Result<(), LinkError> {
        let known = self.held.borrow().as_ref().map(|held| (held.grant.id, held.asked));
        let Some((id, asked)) = known else { return self.replace().await };
        match self.controllers.renew(id, LONGEST).await {
            // It expired or was revoked, or the quota has changed.
            Err(LinkError::Denied { again: Again::Never, .. }) => self.replace().await,
            renewed => self.take(renewed?, asked),
        }
    }

    /// Gets a new grant.
    async fn replace(&self) -> Result<(), LinkError> {
        self.take(self.ask(self.wanted.relays).await?, self.wanted.relays.0)
    }

    fn take(&self, granted: Granted, asked: u8) -> Result<(), LinkError> {
        let held = Held::read(granted, asked)?;
        if let Some(file) = &self.file
            && let Err(error) = cache::store(file, &held, wall())
        {
            tracing::warn!("the grant cannot be kept in {}: {error}", file.display());
        }
        // Watchers are woken only if something changed.
        self.held.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&held);
            *known = Some(held);
            is_new
        });
        Ok(())
    }

    async fn ask(&self, (relays, least): (u8, u8)) -> Result<Granted, LinkError> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| LinkError::Malformed)?;
        let limits = Limits {
            pids: self.wanted.paths.saturating_mul(2),
            rate: Rate::from_bits(u64::MAX),
            bytes: u64::MAX,
            highest_tos: Header::MAX_TOS,
        };
        let request = RequestId { made: wall(), random };
        self.controllers.allocate(&Ask { request, relays, least, limits, lifetime: LONGEST }).await
    }

    /// Gets a missing grant, renews it in time, replaces it after a revocation, and looks for lost relays.
    async fn keep(self, told: Arc<Told>, mut trouble: Lasting) {
        let (mut failed, mut next_expired) = (None, Instant::now());
        let mut lost = Lost::new(Instant::now());
        loop {
            let renewal = failed.unwrap_or_else(|| Instant::now() + self.until_renewal());
            let look = lost.due(self.are_few());
            tokio::select! {
                () = sleep_until(renewal) => {}
                () = sleep_until(look.unwrap_or(renewal)), if look.is_some() => {
                    let replace = lost.on_asked(Instant::now(), self.are_few());
                    if let Err(error) = self.look(replace).await {
                        tracing::debug!(%error, "relays are not better known, or not more");
                    }
                    continue;
                }
                () = told.wake.notified() => {
                    let tried = std::mem::take(&mut *told.tried.lock().expect("no panic while held"));
                    for (node, reached) in tried {
                        lost.on_tried(Instant::now(), node, reached);
                    }
                    let refused = told.refused.lock().expect("no panic while held").take();
                    let held = self.held.borrow().as_ref().map(|held| held.grant.id);
                    match refused.filter(|(grant, _)| held == Some(*grant)) {
                        Some((_, Refused::GrantRevoked)) => self.forget(),
                        Some((_, Refused::GrantExpired)) if Instant::now() >= next_expired => {
                            next_expired = Instant::now() + EXPIRED_AGAIN;
                        }
                        _ => continue,
                    }
                }
            }
            let outcome = self.refresh().await;
            let problem = outcome.as_ref().err().map(ToString::to_string);
            match &problem {
                _ if !trouble.is_news(problem.as_deref()) => {}
                Some(error) => tracing::warn!("the grant cannot be renewed: {error}; trying again"),
                None => tracing::warn!("the grant is renewed again"),
            }
            failed = outcome.is_err().then(|| Instant::now() + AGAIN);
        }
    }

    fn forget(&self) {
        if let (Some(held), Some(file)) = (self.held.send_replace(None), &self.file)
            && let Err(error) = cache::remove(file, held.grant.id, wall())
        {
            tracing::warn!("{}: {error}", file.display());
        }
    }

    fn until_renewal(&self) -> Duration {
        let held = self.held.borrow();
        let seconds = held.as_ref().map(|held| held.until_half(wall()));
        seconds.map_or(AGAIN, |seconds| Duration::from_secs(seconds).max(Duration::from_secs(1)))
    }
}
