//! Handles the requests of clients.

use std::net::{IpAddr, SocketAddr};

use anabranch_secure::{ShareId, TicketSecret};
use anabranch_wire::{PathId, Pid, Time, larger_source};

use super::client::{Client, Share};
use super::flow::{Asked, Consent, Flow};
use super::message::{FlowState, RELAY_VERSION, Refused, Reply, Request, Target};
use super::types::{FlowId, Hop, SessionId};
use super::{Relay, exit};
use crate::grant::{self, GrantError};

/// Most shares that one session may register, also of those that another session of its key hosts now.
const MAX_SHARES: usize = 16;
/// Most flows of one guest's key.
const MAX_GUEST_FLOWS: usize = 8;

/// A request for a flow, [`Request::Allocate`].
struct Wanted {
    via: PathId,
    target: Target,
    out: Pid,
    back: Pid,
    /// The address that the operating system would send to the target from.
    source: Option<IpAddr>,
}

impl Relay {
    /// Handles a request of a session; [`Relay::poll_reply`] returns the answers. `source` is the address from which
    /// the operating system would send to the target of [`Request::Allocate`], if known.
    pub fn handle_request(
        &mut self,
        now: Time,
        session: SessionId,
        request: Request,
        source: Option<IpAddr>,
    ) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if std::mem::replace(&mut client.measures, false) {
            client.unentitled_since = now;
        }
        let number = if let Request::Allocate { request, .. } = &request { *request } else { 0 };
        let outcome = match request {
            Request::Hello { version } => {
                client.greeted = version == RELAY_VERSION;
                self.replies.push_back((session, Reply::Hello { version: RELAY_VERSION }));
                if version == RELAY_VERSION { Ok(()) } else { Err(Refused::Version) }
            }
            _ if !client.greeted => Err(Refused::NoHello),
            Request::Show { grant } => self.show(now, session, &grant),
            Request::Allocate { via, target, out, back, .. } => {
                self.allocate(now, (session, number), &Wanted { via, target, out, back, source })
            }
            Request::Redirect { flow, out, back } => {
                let slot = self.own_flow(session, flow);
                slot.and_then(|slot| self.redirect(now, slot, (out, back)))
            }
            Request::Release { flow } => {
                self.own_flow(session, flow).map(|slot| self.end_flow(slot, FlowState::Released))
            }
            Request::Host { share, hash, flows } => self.host(session, share, (hash, flows)),
            Request::Unhost { share } => {
                self.unhost(session, share);
                Ok(())
            }
        };
        if let Err(why) = outcome {
            self.replies.push_back((session, Reply::Refused { request: number, why }));
        }
    }

    /// Whether a session could be allocated a flow to an address, so that looking for the route is worthwhile.
    pub fn may_allocate(&self, session: SessionId) -> bool {
        let client = self.clients.get(&session);
        client.is_some_and(|client| client.guest_of.is_none() && self.accounts.may_use(client.account))
    }

    fn show(&mut self, now: Time, session: SessionId, bytes: &[u8]) -> Result<(), Refused> {
        let client = &self.clients[&session];
        if client.guest_of.is_some() {
            return Err(Refused::NotGranted);
        }
        let number = client.account;
        let (grant, signer) = grant::open_signed(bytes, &self.config.controllers).map_err(refused)?;
        self.clock.on_signature(now, grant.issued);
        let key = self.accounts.key(number).ok_or(Refused::NotGranted)?;
        let time = (self.clock.at(now), self.clock.tolerance());
        grant::judge(&grant, (&key, &self.config.key), time).map_err(refused)?;
        let id = grant.id;
        self.accounts.show(number, (grant, signer), &mut self.egress)?;
        let limits = self.accounts.at(number).limits().ok_or(Refused::NotGranted)?;
        if let Some(client) = self.clients.get_mut(&session) {
            client.was_entitled = true;
        }
        self.replies.push_back((session, Reply::Granted { id, limits }));
        Ok(())
    }

    fn allocate(
        &mut self,
        now: Time,
        (session, request): (SessionId, u32),
        wanted: &Wanted,
    ) -> Result<(), Refused> {
        let client = &self.clients[&session];
        let (account, guest_of) = (client.account, client.guest_of);
        let from = *client.paths.get(&wanted.via).ok_or(Refused::NoSuchPath)?;
        if wanted.back == Pid::HANDSHAKE {
            return Err(Refused::BadPid);
        }
        if let (Target::Host, Some(share)) = (wanted.target, guest_of) {
            self.make_room_for_guest(session, share)?;
        }
        self.check_room(account)?;
        let (next, consent, agreed_until) = match (wanted.target, guest_of) {
            (Target::Host, Some(share)) => {
                let (hop, host, path) = self.host_of(account, share, from.socket)?;
                (hop, Consent::Host(host, path), Time::NEVER)
            }
            (Target::Host, None) => return Err(Refused::NoHost),
            (Target::Address { .. }, Some(_)) => return Err(Refused::NotGranted),
            (Target::Address { address, key }, None) => {
                self.config.next_hops.check(address)?;
                if wanted.out == Pid::HANDSHAKE && key.is_none() {
                    return Err(Refused::KeyNeeded);
                }
                // Packets from an IPv4-mapped address come from the IPv4 address.
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                let socket = exit::socket_for(&self.config.exits, address.ip(), wanted.source);
                let socket = socket.ok_or(Refused::NoExit)?;
                self.accounts.at(account).ask(now, 1)?;
                let asked = Asked { token: 0, tries: 0, due: now, key };
                (Hop { socket, address }, Consent::Asked(Box::new(asked)), Time::ZERO)
            }
        };
        let own = [self.new_pid(), self.new_pid()];
        let hosted_by = if let Consent::Host(host, _) = &consent { Some(*host) } else { None };
        let (slot, id) = self.table.insert(Flow {
            generation: 0,
            account,
            session,
            via: wanted.via,
            ends: [from, next],
            own,
            out: [wanted.out, wanted.back],
            agreed_until,
            consent,
        });
        self.accounts.at(account).flows.insert(slot);
        if let Some(client) = self.clients.get_mut(&session) {
            client.flows.insert(slot);
            client.was_entitled = true;
        }
        let [forward, back] = own;
        self.replies.push_back((session, Reply::Allocated { request, flow: id, forward, back }));
        if let Some(host) = hosted_by.and_then(|host| self.clients.get_mut(&host)) {
            host.hosted.insert(slot);
            self.replies.push_back((session, Reply::Flow { flow: id, state: FlowState::Ready }));
        } else {
            self.begin_asking(now, slot);
            self.ask_due(now);
        }
        Ok(())
    }

    fn check_room(&mut self, account: u32) -> Result<(), Refused> {
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        let found = self.accounts.at(account);
        let limits = found.limits().ok_or(Refused::NotGranted)?;
        if limits.bytes == 0 {
            return Err(Refused::QuotaUsed);
        } else if !found.has_room() {
            return Err(Refused::TooManyPids);
        }
        let own = found.flows.len();
        if self.table.len() >= self.config.most_flows { self.take_from_the_largest(own) } else { Ok(()) }
    }

    /// Makes room in a full table: the key with the most flows loses its newest, unless the newcomer has as many.
    fn take_from_the_largest(&mut self, own: usize) -> Result<(), Refused> {
        let largest = self.accounts.largest().ok_or(Refused::TableFull)?;
        let flows = &self.accounts.at(largest).flows;
        let newest = flows.iter().max_by_key(|slot| self.table.age(**slot)).copied();
        match newest.filter(|_| flows.len() > own + 1) {
            Some(slot) => self.end_flow(slot, FlowState::Denied),
            None => return Err(Refused::TableFull),
        }
        Ok(())
    }

    /// Makes room for a further flow of a guest. A guest's key has a fixed share. If a host's guests use all flows, the
    /// source with the most loses its newest.
    fn make_room_for_guest(&mut self, session: SessionId, share: ShareId) -> Result<(), Refused> {
        // No one yields to a flow that is refused in any case.
        if self.is_draining() {
            return Err(Refused::Draining);
        }
        let Client { key, account, .. } = self.clients[&session];
        let guests =
            || self.clients.values().filter(|guest| guest.guest_of.is_some() && guest.account == account);
        let of_key: usize = guests().filter(|guest| guest.key == key).map(|guest| guest.flows.len()).sum();
        if of_key >= MAX_GUEST_FLOWS {
            return Err(Refused::TooManyPids);
        }
        let most = self.shares.get(&share).ok_or(Refused::NoHost)?.most as usize;
        let of_share = guests().filter(|guest| guest.guest_of == Some(share));
        let is_full = of_share.map(|guest| guest.flows.len()).sum::<usize>() >= most;
        if !is_full && self.accounts.at(account).has_room() {
            return Ok(());
        }
        let rivals = guests().filter(|guest| !is_full || guest.guest_of == Some(share));
        let newest = self.newest_of_the_largest(rivals, &self.clients[&session]);
        self.end_flow(newest.ok_or(Refused::TooManyPids)?, FlowState::Denied);
        Ok(())
    }

    /// The newest flow of these guests' [larger source](larger_source).
    fn newest_of_the_largest<'a>(
        &self,
        guests: impl Iterator<Item = &'a Client>,
        newcomer: &Client,
    ) -> Option<u32> {
        let flows: Vec<(Option<IpAddr>, u32)> =
            guests.flat_map(|guest| guest.flows.iter().map(move |slot| (guest.source(), *slot))).collect();
        let sources: Vec<Option<IpAddr>> = flows.iter().map(|(source, _)| *source).collect();
        let larger = larger_source(&sources, newcomer.source())?;
        let of_larger = flows.into_iter().filter(|(source, _)| *source == larger).map(|(_, slot)| slot);
        of_larger.max_by_key(|slot| self.table.age(*slot))
    }

    /// The host's path for a guest's next flow. Paths at the socket by which the guest comes are preferred, so that a
    /// guest can avoid a bad address of this relay for both directions; they take turns. The guest's session must have
    /// been opened for this host, because another node may have registered the same share since.
    fn host_of(
        &self,
        account: u32,
        share: ShareId,
        socket: u32,
    ) -> Result<(Hop, SessionId, PathId), Refused> {
        let guests =
            self.clients.values().filter(|guest| guest.guest_of == Some(share) && guest.account == account);
        let flows: usize = guests.map(|guest| guest.flows.len()).sum();
        let share = self.shares.get(&share).ok_or(Refused::NoHost)?;
        if flows >= share.most as usize {
            return Err(Refused::TooManyPids);
        }
        let host = self.clients.get(&share.session).filter(|host| host.account == account);
        let host = host.ok_or(Refused::NoHost)?;
        let is_near = host.paths.values().any(|hop| hop.socket == socket);
        let paths = || host.paths.iter().filter(|(_, hop)| !is_near || hop.socket == socket);
        let turn = flows % paths().count().max(1);
        let (path, hop) = paths().nth(turn).ok_or(Refused::NoHost)?;
        Ok((*hop, share.session, *path))
    }

    /// Changes a flow's outgoing PIDs. The next hop must agree to its new PID before anything is forwarded.
    fn redirect(&mut self, now: Time, slot: u32, (out, back): (Pid, Pid)) -> Result<(), Refused> {
        let Some(flow) = self.table.at(slot) else { return Err(Refused::NoSuchFlow) };
        if back != Pid::HANDSHAKE {
            flow.out[1] = back;
        }
        if out == flow.out[0] {
            return Ok(());
        }
        let id = flow.id(slot);
        match &flow.consent {
            Consent::Host(..) => {
                flow.out[0] = out;
                let session = flow.session;
                self.replies.push_back((session, Reply::Flow { flow: id, state: FlowState::Ready }));
            }
            Consent::Asked(asked) => {
                if out == Pid::HANDSHAKE && asked.key.is_none() {
                    return Err(Refused::KeyNeeded);
                }
                let more = u32::from(flow.agreed_until != Time::ZERO);
                self.accounts.at(flow.account).ask(now, more)?;
                (flow.out[0], flow.agreed_until) = (out, Time::ZERO);
                self.begin_asking(now, slot);
                self.ask_due(now);
            }
        }
        Ok(())
    }

    fn host(
        &mut self,
        session: SessionId,
        share: ShareId,
        (hash, most): (TicketSecret, u32),
    ) -> Result<(), Refused> {
        let client = &self.clients[&session];
        if client.guest_of.is_some() || !self.accounts.may_use(client.account) {
            return Err(Refused::NotGranted);
        }
        let is_known = self.shares.get(&share).is_some_and(|known| known.has(session));
        let others = self.shares.values().filter(|known| known.has(session)).count();
        if !is_known && others >= MAX_SHARES {
            return Err(Refused::TooManyShares);
        }
        match self.shares.get_mut(&share) {
            Some(known) if known.session == session => known.most = most,
            // A host that returns under the same key takes over its share. If it ends first, the one before has it again.
            Some(known)
                if self.clients.get(&known.session).is_none_or(|other| other.account == client.account) =>
            {
                known.earlier.retain(|earlier| *earlier != session);
                known.earlier.push(known.session);
                (known.session, known.hash, known.most) = (session, hash, most);
            }
            Some(_) => return Err(Refused::ShareTaken),
            None => {
                self.shares.insert(share, Share { session, hash, most, earlier: Vec::new() });
            }
        }
        self.replies.push_back((session, Reply::Hosting { share }));
        Ok(())
    }

    /// Ends a session's part in a share, and the flows of its guests.
    fn unhost(&mut self, session: SessionId, share: ShareId) {
        let Some(known) = self.shares.get_mut(&share) else { return };
        let was_host = known.session == session;
        if !known.leave(session) {
            self.shares.remove(&share);
        }
        if !was_host {
            return;
        }
        let guests = self.clients.values().filter(|client| client.guest_of == Some(share));
        let flows: Vec<u32> = guests.flat_map(|guest| guest.flows.iter().copied()).collect();
        for slot in flows {
            self.end_flow(slot, FlowState::Released);
        }
    }

    fn own_flow(&mut self, session: SessionId, flow: FlowId) -> Result<u32, Refused> {
        match self.table.by_id(flow) {
            Some((slot, flow)) if flow.session == session => Ok(slot),
            _ => Err(Refused::NoSuchFlow),
        }
    }
}

fn refused(error: GrantError) -> Refused {
    match error {
        GrantError::Malformed(_) => Refused::GrantMalformed,
        GrantError::Signature => Refused::GrantSignature,
        GrantError::OtherClient => Refused::GrantOtherClient,
        GrantError::OtherRelay => Refused::GrantOtherRelay,
        GrantError::NotYet(_) => Refused::GrantNotYet,
        GrantError::Expired(_) => Refused::GrantExpired,
        GrantError::Revoked => Refused::GrantRevoked,
    }
}
