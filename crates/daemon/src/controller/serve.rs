//! One session of a relay or a client. Requests are answered in order.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{Endpoint, PublicKey, Session, Stream, Time};
use anabranch_overlay::controller::message::{
    Again, CONTROL_VERSION, GrantedRelay, MAX_BODY, Neighbours, Reply, Request,
};
use anabranch_overlay::controller::{
    Approved, Ask, Clocks, ControlError, Controller, Load, SILENT, allocate, confirm, give_back, register,
    renew, taken_back,
};
use anabranch_overlay::grant::GrantId;
use anabranch_overlay::sense::Changes;
use anabranch_wire::close_code;
use data_encoding::BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep_until, timeout};

use super::Shared;
use super::peers::end_unlisted;
use anabranch_node::wall;

/// Most revoked grants in one answer: with more, it would be longer than a message may be, and the relay would end the
/// session.
const MOST_REVOKED: usize = 1_024;
/// How long a peer may leave an answer unread.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// Serves peers for as long as the endpoint accepts sessions.
pub(super) async fn accept(shared: Arc<Shared>, endpoint: Arc<Endpoint>) {
    while let Some(session) = endpoint.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let _admitted = match shared.peers.admit(&session) {
                Ok(admitted) => admitted,
                Err(full) => return session.abort(close_code::BUSY, &full.to_string()),
            };
            // The configuration may have changed since the handshake.
            if !shared.policy().admits(&session.peer()) {
                return end_unlisted(&session);
            }
            let address = session.remote_ip();
            let mut peer = Peer { key: session.peer(), address, greeted: false, relay: None, told: None };
            peer.serve(&shared, &session).await;
            if let Some(relay) = peer.relay {
                shared.directory().forget(&peer.key, relay);
            }
        });
    }
}

struct Peer {
    key: PublicKey,
    /// The address from which it came, if known.
    address: Option<IpAddr>,
    greeted: bool,
    /// If it registered as a relay: the instance of the program, and when it was last heard.
    relay: Option<(u64, Time)>,
    /// Its neighbours, as last sent to it.
    told: Option<Neighbours>,
}

/// `Err` ends the session after the answer.
type Answer = Result<Reply, Reply>;

impl Peer {
    async fn serve(&mut self, shared: &Shared, session: &Session) {
        let talk = async {
            let stream = session.accept_stream().await.map_err(|error| error.to_string())?;
            self.talk(shared, stream).await
        };
        tokio::select! {
            end = talk => match end {
                Ok(()) => {
                    session.close().await;
                }
                Err(why) => session.abort(close_code::PROTOCOL_VIOLATION, &why),
            },
            _ = session.closed() => {}
        }
    }

    /// Answers requests until the peer ends the stream or breaks the rules.
    async fn talk(&mut self, shared: &Shared, stream: Stream) -> Result<(), String> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (mut read, mut write) = (Vec::new(), Vec::new());
        let pace = shared.paces.of(self.key, Instant::now());
        loop {
            while let Some((request, len)) = Request::decode(&read).map_err(|error| error.to_string())? {
                read.drain(..len);
                while let Err(again) = pace.take(1, Instant::now()) {
                    sleep_until(again.into()).await;
                }
                let answer = self.answer(shared, request).await;
                write.clear();
                let (Ok(reply) | Err(reply)) = &answer;
                reply.encode(&mut write);
                let sent = timeout(READ_PATIENCE, writer.write_all(&write)).await;
                let sent = sent.map_err(|_| "the peer does not read its answers".to_owned())?;
                if answer.is_err() {
                    // The peer reads the reason before the stream ends.
                    return writer.shutdown().await.map_err(|error| error.to_string());
                }
                if sent.is_err() {
                    return Ok(());
                }
            }
            debug_assert!(read.len() <= MAX_BODY + 4, "an incomplete message is shorter than the longest");
            if !matches!(reader.read_buf(&mut read).await, Ok(1..)) {
                return Ok(());
            }
        }
    }

    async fn answer(&mut self, shared: &Shared, request: Request) -> Answer {
        if let Request::Hello { version } = request {
            if version != CONTROL_VERSION {
                let why = format!(
                    "the controller speaks version {CONTROL_VERSION} of the control protocol, this node version {version}: update the older one"
                );
                return Err(Reply::Denied { why, again: Again::Never });
            }
            self.greeted = true;
            return Ok(Reply::Hello { version: CONTROL_VERSION });
        }
        if !self.greeted {
            let why = "the first message must be a greeting".to_owned();
            return Err(Reply::Denied { why, again: Again::Never });
        }
        let done = self.carry_out(shared, request).await;
        Ok(done.unwrap_or_else(|error| Reply::denied(&error)))
    }

    async fn carry_out(&mut self, shared: &Shared, request: Request) -> Result<Reply, ControlError> {
        let policy = shared.policy();
        let controller = Controller { store: &shared.store, policy: &policy, directory: &shared.directory };
        match request {
            Request::Register { instance, offer } => {
                policy.may_relay(&self.key)?;
                let now = shared.clock.now();
                shared.directory().begin(now, (self.key, instance), &offer.addresses)?;
                self.relay = Some((instance, now));
                register(&controller, wall(), self.key, &offer).await?;
                Ok(Reply::Registered { signs: shared.signer.public().to_string() })
            }
            Request::Heartbeat { load, confirmed, links } => {
                policy.may_relay(&self.key)?;
                self.heartbeat(shared, load, (&confirmed, links.as_ref())).await
            }
            Request::Figures { relays, to, known } => {
                // The key may have been removed from the configuration since the session was opened.
                if policy.may_relay(&self.key).is_err() {
                    policy.quota(&self.key)?;
                }
                let now = shared.clock.now();
                let asker = (!known).then_some(&self.key);
                let (figures, node) = shared.senses().figures(now, (asker, &relays, to), &shared.directory());
                let directory = shared.directory();
                let heard = |relay: &PublicKey| directory.relay(relay).and_then(|view| view.heard);
                let is_draining = |relay: &&PublicKey| heard(relay).is_some_and(|(_, _, load)| load.draining);
                let is_silent =
                    |relay: &&PublicKey| heard(relay).is_none_or(|(at, ..)| now.since(at) >= SILENT);
                let draining = relays.iter().filter(is_draining).copied().collect();
                let silent = relays.iter().filter(is_silent).copied().collect();
                Ok(Reply::Figures { figures, node, draining, silent })
            }
            Request::Allocate(ask) => {
                if !policy.clients.contains_key(&self.key) {
                    policy.quota(&self.key)?;
                    shared.others.admit(self.key, self.address, Instant::now())?;
                }
                let now = Clocks { local: shared.clock.now(), wall: wall() };
                let approved = allocate(&controller, now, self.key, &checked(ask)).await?;
                Ok(granted(shared, &approved))
            }
            Request::Renew { grant, lifetime } => {
                let approved = renew(&controller, wall(), self.key, grant, lifetime).await?;
                Ok(granted(shared, &approved))
            }
            Request::GiveBack { grant } => {
                give_back(&shared.store, wall(), self.key, grant).await?;
                Ok(Reply::GivenBack)
            }
            // A second greeting is answered above.
            Request::Hello { .. } => Ok(Reply::Hello { version: CONTROL_VERSION }),
        }
    }

    /// Answers a heartbeat. If the store does not answer, the relay gets the last known revocations.
    async fn heartbeat(
        &mut self,
        shared: &Shared,
        load: Load,
        (confirmed, links): (&[GrantId], Option<&Changes>),
    ) -> Result<Reply, ControlError> {
        let Some((instance, last)) = &mut self.relay else {
            let why = "register first".to_owned();
            return Ok(Reply::Denied { why, again: Again::Never });
        };
        let now = shared.clock.now();
        shared.directory().hear(now, (self.key, *instance), load)?;
        *last = now;
        let fresh = async {
            confirm(&shared.store, wall(), self.key, confirmed).await?;
            taken_back(&shared.store, self.key).await.map_err(ControlError::from)
        };
        let revoked = match fresh.await {
            Ok(revoked) => revoked,
            Err(error) => {
                tracing::debug!(%error, "the store does not answer; sending the last known revocations");
                let directory = shared.directory();
                let known = directory.relays().find(|(key, _)| **key == self.key);
                known.map(|(_, view)| view.record.revoked()).unwrap_or_default()
            }
        };
        // There is a heartbeat every two seconds.
        let revoked = some_of(revoked, wall().0 as usize / 2);
        let mut senses = shared.senses();
        let known = senses.hear(shared.clock.now(), &self.key, links);
        let neighbours = Some(senses.neighbours(shared.clock.now(), &self.key, &shared.directory()));
        let is_new = neighbours != self.told;
        self.told.clone_from(&neighbours);
        let neighbours = neighbours.filter(|_| is_new);
        Ok(Reply::Heartbeat { time: wall().0, revoked, known, neighbours })
    }
}

/// As many revoked grants as fit a message: the first ones, and of the others some in each turn.
fn some_of(mut revoked: Vec<GrantId>, turn: usize) -> Vec<GrantId> {
    const HALF: usize = MOST_REVOKED / 2;
    if revoked.len() > MOST_REVOKED {
        let others = &mut revoked[HALF..];
        let shift = turn.wrapping_mul(HALF) % others.len();
        others.rotate_left(shift);
        revoked.truncate(MOST_REVOKED);
    }
    revoked
}

/// A type of service is four bits.
fn checked(mut ask: Ask) -> Ask {
    ask.limits.highest_tos = ask.limits.highest_tos.min(anabranch_wire::Header::MAX_TOS);
    ask
}

fn granted(shared: &Shared, approved: &Approved) -> Reply {
    let Ok(signed) = approved.sign(&shared.signer) else {
        return Reply::Denied { why: "the grant cannot be written".into(), again: Again::Never };
    };
    let directory = shared.directory();
    let address = |relay: &PublicKey| {
        let known = directory.relays().find(|(key, _)| *key == relay);
        let offer = known.and_then(|(_, view)| view.record.offer.as_ref());
        GrantedRelay {
            node: *relay,
            addresses: offer.map(|offer| offer.addresses.clone()).unwrap_or_default(),
        }
    };
    let relays = approved.grant().relays.iter().map(address).collect();
    Reply::Granted { grant: BASE64.encode(&signed), relays }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn however_many_grants_are_revoked_a_heartbeats_answer_fits_and_all_of_them_get_their_turn() {
        let all: Vec<GrantId> = (0..3_000_u128).map(|id| GrantId(id.to_be_bytes())).collect();
        let mut told = BTreeSet::new();
        for turn in 0..20 {
            let revoked = some_of(all.clone(), turn);
            assert_eq!(revoked[..MOST_REVOKED / 2], all[..MOST_REVOKED / 2]);
            told.extend(revoked.iter().copied());
            let mut bytes = Vec::new();
            Reply::Heartbeat { time: u64::MAX, revoked, known: u64::MAX, neighbours: None }
                .encode(&mut bytes);
            assert!(bytes.len() < MAX_BODY / 3 * 2, "{}", bytes.len());
        }
        assert_eq!(told.len(), all.len());
        assert_eq!(some_of(all[..9].to_vec(), 7), all[..9]);
    }
}
