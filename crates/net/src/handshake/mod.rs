//! The handshake's datagrams: INIT at a server; COOKIE and INIT ACK at a client.
//!
//! For an address that has not returned a cookie, a server stores nothing and computes no Diffie-Hellman. Copies of one
//! INIT over several routes belong to one session. They are recognised by [`InitId`], which is kept while the session
//! lives.

mod porter;

use std::collections::hash_map::Entry;
use std::sync::Arc;

use anabranch_agent::Direct;
use anabranch_engine::{Arrival, Ecn, Init, Route, Session as Engine};
use anabranch_secure::{
    Admission, CookieError, HandshakeError, InitId, PendingInit, Protection, Refusal, read_init,
};
use anabranch_wire::{Kind, Message, Params, Pid, Time, close_code, decode_params, encode_params};

use crate::authorize::Verdict;
use crate::connect::used_up_cap;
use crate::door::Knock;
use crate::endpoint::inner::{EndpointInner, count};
use crate::endpoint::sessions::InitState;
use crate::pids::random;
use crate::session::core::Core;
use crate::session::greeting::Handshake;
use crate::session::inner::{Identity, SessionInner};
use crate::session::outbox::plain_datagram;
use crate::socket::Batch;

pub(crate) use porter::attend;

/// Copies of an INIT kept while its session is being set up.
const MOST_COPIES: usize = 8;

/// The cost of an answer to an INIT under a used-up cap, with its headers. Bytes that no path could reserve pay for it.
const ANSWER_COST: u64 = 256;

/// Handles an INIT at a server.
pub(crate) fn handle_init(endpoint: &Arc<EndpointInner>, now: Time, arrival: Arrival, body: &[u8]) {
    count(&endpoint.counters.inits);
    let is_over_cap = !endpoint.allows(arrival.route);
    if endpoint.is_closing() || is_over_cap && endpoint.cap_over(arrival.route).is_none() {
        return count(&endpoint.counters.inits_dropped);
    }
    let admission = endpoint.cookies.admit(now, arrival.route.remote, body);
    // Only a client that knows this node's key may use up the rest of a cap.
    let is_answered = !matches!(admission, Admission::Drop(_));
    if is_over_cap && is_answered && !pays_for_answer(endpoint, arrival.route) {
        return count(&endpoint.counters.inits_dropped);
    }
    match admission {
        Admission::Proceed if is_over_cap => return deny(endpoint, now, &arrival, body),
        Admission::Proceed => {}
        Admission::Challenge { pid, body } => {
            count(&endpoint.counters.cookies_sent);
            return answer(endpoint, arrival.route, &plain_datagram(Kind::Cookie, pid, &body));
        }
        Admission::Drop(_) => return count(&endpoint.counters.inits_dropped),
    }
    let Some(id) = InitId::of(body) else { return count(&endpoint.counters.inits_dropped) };
    let known = match endpoint.sessions.inits().entry(id) {
        Entry::Vacant(entry) => {
            entry.insert(InitState::Pending(Vec::new()));
            None
        }
        Entry::Occupied(mut entry) => match entry.get_mut() {
            InitState::Pending(copies) if copies.len() < MOST_COPIES => return copies.push(arrival),
            InitState::Pending(_) => return,
            InitState::Answered(session) => Some(session.clone()),
        },
    };
    if let Some(session) = known {
        return greet_again(&session, now, &[arrival]);
    }
    // Computed by another task: the receiver has packets of sessions to handle.
    if let Some(dropped) = endpoint.door.knock(Knock { id, arrival, body: body.into() }) {
        endpoint.sessions.inits().remove(&dropped.id);
        count(&endpoint.counters.inits_dropped);
    }
}

/// Answers an INIT from a proven address.
pub(crate) fn open(endpoint: &Arc<EndpointInner>, knock: Knock) {
    let Knock { id, arrival, body } = knock;
    if endpoint.is_closing() {
        // It came before the end. Nothing would close its session.
        endpoint.sessions.inits().remove(&id);
        return count(&endpoint.counters.inits_dropped);
    }
    let now = endpoint.clock.now();
    let session = open_session(endpoint, now, arrival, (id, &body));
    let mut inits = endpoint.sessions.inits();
    let state = match &session {
        Some(session) => inits.insert(id, InitState::Answered(session.clone())),
        None => inits.remove(&id),
    };
    drop(inits);
    if let Some(session) = session {
        if let Some(InitState::Pending(copies)) = state {
            greet_again(&session, now, &copies);
        }
        tokio::spawn(session.clone().drive());
        session.pump();
    }
}

/// Handles copies of an answered INIT.
fn greet_again(session: &Arc<SessionInner>, now: Time, arrivals: &[Arrival]) {
    let mut core = session.core();
    let Handshake::Answered { params, .. } = &core.handshake else { return };
    let params = params.clone();
    for arrival in arrivals {
        core.engine.handle_message(now, arrival, Message::Init(params.clone()));
    }
    drop(core);
    session.pump();
}

/// Pays for an answer over a route whose cap is used up; false if the rules forbid the route, or nothing is left.
fn pays_for_answer(endpoint: &EndpointInner, route: Route) -> bool {
    endpoint.cap_over(route).is_some_and(|(_, meter)| meter.charge(ANSWER_COST))
}

/// Tells a client that a cap leaves nothing for a session over this route, unless another route opened one.
fn deny(endpoint: &EndpointInner, now: Time, arrival: &Arrival, body: &[u8]) {
    let is_known = InitId::of(body).is_some_and(|id| endpoint.sessions.inits().contains_key(&id));
    let Some((rule, meter)) = endpoint.cap_over(arrival.route).filter(|_| !is_known) else { return };
    endpoint.sessions.on_cap(Some(&used_up_cap(rule, meter)));
    let (pid, body) = endpoint.cookies.deny(now, arrival.route.remote, body);
    count(&endpoint.counters.refused);
    answer(endpoint, arrival.route, &plain_datagram(Kind::Cookie, pid, &body));
}

fn open_session(
    endpoint: &Arc<EndpointInner>,
    now: Time,
    arrival: Arrival,
    (id, body): (InitId, &[u8]),
) -> Option<Arc<SessionInner>> {
    let Ok(pending) = read_init(&endpoint.key, body, random()) else {
        count(&endpoint.counters.unauthentic);
        return None;
    };
    let Ok(params) = decode_params(&pending.params) else {
        count(&endpoint.counters.malformed);
        return None;
    };
    let refuse = |pending: PendingInit, why: Refusal| {
        if let Ok(body) = pending.refuse(why) {
            answer(endpoint, arrival.route, &plain_datagram(Kind::InitAck, params.pid, &body));
        }
    };
    if endpoint.is_full() {
        count(&endpoint.counters.busy);
        refuse(pending, Refusal::Busy);
        return None;
    }
    let secret = match endpoint.authorize.authorize(&pending.remote, pending.share) {
        Verdict::Accept { secret } => secret,
        Verdict::Refuse(why) => {
            count(&endpoint.counters.refused);
            refuse(pending, why);
            return None;
        }
        Verdict::Ignore => {
            count(&endpoint.counters.refused);
            return None;
        }
    };
    // Only an accepted peer may cost another session its place.
    let Some((hold, loser)) = endpoint.sessions.half_open.take(arrival.route.remote.ip()) else {
        count(&endpoint.counters.busy);
        return None;
    };
    if let Some(loser) = loser {
        count(&endpoint.counters.busy);
        loser.give_way();
    }
    let engine = Engine::accept(
        Arc::clone(&endpoint.config),
        Init { params: params.clone(), route: arrival.route },
        endpoint.new_pids(),
        endpoint.budget.clone(),
        now,
    );
    let Ok(mut engine) = engine else {
        count(&endpoint.counters.malformed);
        return None;
    };
    endpoint.describe_sockets(now, &mut engine);
    let identity = Identity { peer: pending.remote, share: pending.share };
    let accepted = pending.accept(secret.as_ref(), &encoded(engine.local_params()));
    let accepted = accepted.inspect_err(|error| tracing::warn!(%error, "cannot answer a handshake")).ok()?;
    endpoint.taps.tell_keys(|| accepted.keys.to_line());
    let keys = Protection::new(&accepted.keys, endpoint.limits.keys, now);
    let handshake = Handshake::Answered { body: accepted.body, params, init: id };
    let core = Core::new(engine, handshake, Direct::server());
    let session = SessionInner::new(endpoint.clone(), identity, core, Some(keys));
    hold.belongs_to(&session);
    endpoint.sessions.on_cap(None);
    session.core().half_open = Some(hold);
    Some(session)
}

/// Handles a cookie at a client.
pub(crate) fn handle_cookie(session: &Arc<SessionInner>, now: Time, route: Route, body: &[u8]) {
    let mut core = session.core();
    // A cookie can be opened from any address, so copies from other addresses are ignored.
    if !core.engine.is_candidate(route) {
        return;
    }
    let Handshake::Client(dialing) = &mut core.handshake else { return };
    match dialing.initiator.open_cookie(body) {
        Ok(cookie) if cookie.is_denial() => core.trouble.over_cap = true,
        Ok(cookie) => {
            dialing.cookies.retain(|(known, _)| *known != route);
            dialing.cookies.push((route, cookie));
            core.engine.handle_cookie(now, route);
        }
        Err(CookieError::Version(version)) => {
            core.trouble.version = Some(version);
            core.engine.abort(now, close_code::PROTOCOL_VIOLATION, "the remote node speaks another version");
        }
        Err(CookieError::NotAuthentic) => return count(&session.endpoint.counters.unauthentic),
    }
    drop(core);
    session.pump();
}

/// Handles an INIT-ACK at a client.
pub(crate) fn handle_init_ack(session: &Arc<SessionInner>, now: Time, arrival: Arrival, body: &[u8]) {
    let mut core = session.core();
    // Anyone on the path can repeat an answer from another address, which would be that of path 0 then.
    if matches!(core.handshake, Handshake::Client(_)) && !core.engine.is_candidate(arrival.route) {
        return;
    }
    let dialing = match &mut core.handshake {
        Handshake::Client(dialing) => dialing,
        // The same answer over another route shows that this route works.
        Handshake::Greeted { body: known, params } if **known == *body => {
            let again = Message::InitAck(params.clone());
            core.engine.handle_message(now, &arrival, again);
            drop(core);
            return session.pump();
        }
        _ => return,
    };
    let result = dialing.initiator.handle_ack(body);
    match result.map(|(keys, params)| (keys, decode_params(&params))) {
        Ok((keys, Ok(params))) => {
            core.handshake = Handshake::Greeted { body: body.into(), params: params.clone() };
            session.endpoint.taps.tell_keys(|| keys.to_line());
            session.set_keys(Protection::new(&keys, session.endpoint.limits.keys, now));
            core.engine.handle_message(now, &arrival, Message::InitAck(params));
        }
        Ok((_, Err(error))) => core.engine.abort(now, close_code::PARAMS, &error.to_string()),
        Err(HandshakeError::Refused(refusal)) => {
            core.trouble.refused = Some(refusal);
            core.engine.abort(now, close_code::NOT_ALLOWED, &refusal.to_string());
        }
        Err(_) => {
            core.trouble.unauthentic = true;
            return count(&session.endpoint.counters.unauthentic);
        }
    }
    drop(core);
    session.pump();
}

/// Answers a packet for an unknown session by a reset, without storing anything.
pub(crate) fn reset(endpoint: &EndpointInner, now: Time, arrival: Arrival, pid: Pid) {
    count(&endpoint.counters.unknown_pid);
    let reset = plain_datagram(Kind::Reset, pid, &endpoint.reset_key.token(pid).0);
    let to = arrival.route.remote.ip();
    if reset.len() < arrival.size
        && !endpoint.sessions.pids.is_retired(pid)
        && endpoint.sessions.resets.may_send(now, to)
    {
        count(&endpoint.counters.resets_sent);
        answer(endpoint, arrival.route, &reset);
    }
}

/// Sends a datagram from the socket at which the question arrived.
pub(crate) fn answer(endpoint: &EndpointInner, route: Route, datagram: &[u8]) {
    if let Some(socket) = endpoint.sockets.get(route.socket) {
        let batch =
            Batch { remote: route.remote, contents: datagram, segment: datagram.len(), ecn: Ecn::NotEct };
        // If the socket's buffer is full, the datagram is lost, and the peer asks again.
        let _ = socket.udp.send(&batch);
    }
}

/// Parameters encoded for the handshake.
pub(crate) fn encoded(params: &Params) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    encode_params(params, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
