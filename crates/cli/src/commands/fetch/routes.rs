//! The routes of a download: interfaces of this machine, and exits.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_fetch::{Cap, Job, Outlet, Route, RouteUse};
use anabranch_net::interfaces::{InterfaceAddress, local_addresses};
use anabranch_net::{Meter, PathOrigin, PathRules, Priority};
use anabranch_node::{Node, keyfile, warn_of_rules_beyond};
use anabranch_proxy::{ExitDialer, ProxyNotice, session_config};
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::FetchArgs;
use crate::carrier::cap_used_up;
use crate::errors::{Failure, Kind};

/// A cap counts headers and both directions: of so many bytes on the wire, so many are content.
const ON_WIRE: u64 = 16;
const CONTENT: u64 = 15;

/// Routes, and what they need to stay open.
pub(super) struct Routes {
    pub(super) routes: Vec<RouteUse>,
    pub(super) caps: Vec<Cap>,
    /// For each cap, its meter, and its rest as the meter knows it.
    counted: Vec<(Meter, AtomicU64)>,
    node: Option<Node>,
    /// Hold the sessions with exits.
    holders: Vec<JoinHandle<()>>,
    /// Why an exit is not dialed any more.
    lost: tokio::sync::Mutex<mpsc::Receiver<Failure>>,
    /// Exits that are still dialed.
    _lost_sender: mpsc::Sender<Failure>,
}

/// Interfaces of this machine with the rules for them.
struct Outlets {
    rules: PathRules,
    /// Whether to warn of rules for other interfaces; a node for exits does so, too.
    warns: bool,
    /// Each cap's meter, and for what the cap is.
    meters: Vec<(Meter, String)>,
    remote: Vec<SocketAddr>,
}

impl Routes {
    /// Finds the routes for these downloads.
    pub(super) async fn new(args: &FetchArgs, jobs: &[Job]) -> Result<Self, Failure> {
        let rules = args.paths_wanted.rules()?;
        let (sender, lost) = mpsc::channel(args.exits.len().max(1));
        let mut found = Self {
            routes: Vec::new(),
            caps: Vec::new(),
            counted: Vec::new(),
            node: None,
            holders: Vec::new(),
            lost: lost.into(),
            _lost_sender: sender,
        };
        if args.exits.is_empty() || !args.via.is_empty() {
            let (rules, remote) = (rules.clone(), servers(jobs).await);
            let mut outlets = Outlets { rules, warns: args.exits.is_empty(), meters: Vec::new(), remote };
            found.routes = outlets.find(&args.via).await?;
            for (meter, place) in outlets.meters {
                let left = meter.left() / ON_WIRE * CONTENT;
                let used_up = cap_used_up(meter.cap(), &place, meter.resets_on());
                found.caps.push(Cap { left: Arc::new(left.into()), used_up });
                found.counted.push((meter, left.into()));
            }
        }
        if !args.exits.is_empty()
            && let Err(failure) = found.add_exits(args, rules).await
        {
            found.close().await;
            return Err(failure);
        }
        if found.routes.is_empty() {
            return Err(Failure::usage("the path rules leave no interface to fetch over"));
        }
        Ok(found)
    }

    async fn add_exits(&mut self, args: &FetchArgs, rules: PathRules) -> Result<(), Failure> {
        let key = keyfile::named_or_usual(args.key.as_deref())?;
        let node = Node::builder().key(key).session(session_config()).path_rules(rules).start().await?;
        self.node = Some(node.clone());
        for (number, word) in (1..).zip(&args.exits) {
            let name = if args.exits.len() == 1 { "exit".to_owned() } else { format!("exit {number}") };
            let dialer = ExitDialer::new(name.clone());
            let (held, follower) = (node.hold(word.dial().await?, None), dialer.clone());
            let sender = self._lost_sender.clone();
            self.holders.push(tokio::spawn(async move {
                let error = follower
                    .follow(held, |notice| {
                        if let ProxyNotice::Lost(why) = notice {
                            tracing::info!(
                                exit = follower.name(),
                                why,
                                "no session with the exit; dialing again"
                            );
                        }
                    })
                    .await;
                let failure = Failure::new(Kind::Unreachable, format!("{}: {error}", follower.name()));
                // The command may be over.
                let _ = sender.send(failure).await;
            }));
            self.routes.push(RouteUse { route: Route::Exit(dialer), name, rank: 0, cap: None });
        }
        Ok(())
    }

    /// Counts what was fetched toward the meters, which other sessions and programs see.
    pub(super) fn count(&self) {
        for (cap, (meter, told)) in self.caps.iter().zip(&self.counted) {
            let left = cap.left.load(Ordering::Relaxed);
            // A request reserves bytes before it uses them, and gives unused ones back.
            let used = told.load(Ordering::Relaxed).saturating_sub(left);
            if used > 0 {
                told.store(left, Ordering::Relaxed);
                if !meter.charge(used.div_ceil(CONTENT) * ON_WIRE) {
                    let _ = meter.charge(meter.left());
                }
            }
        }
    }

    /// Counts twice a second.
    pub(super) async fn keep_counting(&self) -> Infallible {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.count();
        }
    }

    /// Waits until an exit cannot be used although there is no other route.
    pub(super) async fn lost(&self) -> Failure {
        let mut lost = self.lost.lock().await;
        let mut last = None;
        for _ in &self.routes {
            last = lost.recv().await;
        }
        last.unwrap_or_else(|| Failure::local("there is no route"))
    }

    /// Ends the sessions with exits. Nothing holds them any more then: a holder would dial a new one.
    pub(super) async fn close(self) {
        for holder in self.holders {
            holder.abort();
            let _ = holder.await;
        }
        if let Some(node) = self.node {
            node.close().await;
        }
    }
}

/// The addresses of all servers, as far as the system knows them.
async fn servers(jobs: &[Job]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for url in jobs.iter().flat_map(|job| &job.mirrors).take(64) {
        match lookup_host((url.host(), url.port())).await {
            Ok(addresses) => found.extend(addresses),
            Err(error) => tracing::debug!(%url, %error, "the system does not know the server"),
        }
    }
    found
}

impl Outlets {
    async fn find(&mut self, via: &[String]) -> Result<Vec<RouteUse>, Failure> {
        let local = local_addresses().await.map_err(|error| Failure::local(error.to_string()))?;
        if self.warns {
            let here: Vec<_> = local.iter().map(|entry| entry.interface.to_string()).collect();
            warn_of_rules_beyond(&here, &self.rules, None);
        }
        if !via.is_empty() {
            let named = via.iter().map(|name| self.named(name, &local)).collect::<Result<Vec<_>, _>>()?;
            return Ok(named.into_iter().flatten().collect());
        }
        let is_here = !self.remote.is_empty() && self.remote.iter().all(|at| at.ip().is_loopback());
        let leads = |entry: &InterfaceAddress| {
            !entry.loopback
                && !is_here
                && (entry.has_default_route() || self.remote.iter().any(|to| reaches(entry, to.ip())))
        };
        let usable: Vec<_> = local.iter().filter(|entry| leads(entry)).collect();
        if usable.is_empty() {
            return Ok(vec![RouteUse {
                route: Route::System,
                name: "direct".to_owned(),
                rank: 0,
                cap: None,
            }]);
        }
        let mut names: Vec<_> = usable.iter().map(|entry| entry.interface.clone()).collect();
        names.dedup();
        let routes = names.iter().filter_map(|name| self.interface(name, &usable));
        Ok(routes.collect())
    }

    /// A route over what the user named; `None` if the rules forbid it.
    fn named(&mut self, name: &str, local: &[InterfaceAddress]) -> Result<Option<RouteUse>, Failure> {
        if let Ok(address) = name.parse::<IpAddr>() {
            let known = local.iter().find(|entry| entry.address == address);
            let outlet =
                Outlet { interface: known.map(|entry| entry.interface.clone()), addresses: vec![address] };
            return Ok(self.with_rules(name.to_owned(), outlet));
        }
        let all: Vec<_> = local.iter().filter(|entry| &*entry.interface == name).collect();
        if all.is_empty() {
            let mut known: Vec<_> = local.iter().map(|entry| entry.interface.to_string()).collect();
            known.dedup();
            return Err(Failure::usage(format!("there is no interface {name} with an address"))
                .hint(format!("there are {}", known.join(", "))));
        }
        Ok(self.interface(name, &all))
    }

    fn interface(&mut self, name: &str, among: &[&InterfaceAddress]) -> Option<RouteUse> {
        let mut outlet = Outlet { interface: Some(Arc::from(name)), addresses: Vec::new() };
        for entry in among.iter().filter(|entry| &*entry.interface == name) {
            if !outlet.addresses.iter().any(|other| other.is_ipv4() == entry.address.is_ipv4()) {
                outlet.addresses.push(entry.address);
            }
        }
        self.with_rules(name.to_owned(), outlet)
    }

    /// Applies the user's rules.
    fn with_rules(&mut self, name: String, mut outlet: Outlet) -> Option<RouteUse> {
        let interface = outlet.interface.as_deref().unwrap_or_default().to_owned();
        let remote = self.remote.first().copied().unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
        let terms_of = |local: &IpAddr| {
            let place =
                PathOrigin { interface: interface.clone(), local: Some(*local), ..PathOrigin::default() };
            self.rules.terms(&place, remote)
        };
        // A rule may be for one address of the interface; of those that are left, the strictest terms count.
        outlet.addresses.retain(|local| terms_of(local).priority != Priority::Never);
        let terms = outlet.addresses.iter().map(terms_of);
        let terms = terms.max_by_key(|terms| (terms.priority, terms.meter.is_some()))?;
        let rank = match terms.priority {
            Priority::Primary => 0,
            Priority::Overflow => 1,
            Priority::Backup => 2,
            Priority::Metered => 3,
            Priority::Never => return None,
        };
        let cap = terms.meter.map(|meter| {
            let known = self.meters.iter().position(|(other, _)| other.is_same(&meter));
            known.unwrap_or_else(|| {
                let is_of_rule = |known: &Meter| known.is_same(&meter);
                let rule = self.rules.iter().find(|rule| rule.terms.meter.as_ref().is_some_and(is_of_rule));
                let place = rule.map_or_else(|| name.clone(), |rule| rule.pattern.to_string());
                self.meters.push((meter, place));
                self.meters.len() - 1
            })
        });
        Some(RouteUse { route: Route::Outlet(outlet), name, rank, cap })
    }
}

/// Whether a route of the interface leads to an address.
fn reaches(entry: &InterfaceAddress, to: IpAddr) -> bool {
    entry.address.is_ipv4() == to.is_ipv4() && entry.routes.iter().any(|route| route.contains(to))
}
