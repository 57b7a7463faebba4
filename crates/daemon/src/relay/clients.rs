//! A client's session: its requests go to the core, the core's replies to it, its proven addresses are followed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anabranch_net::{Endpoint, Event, PathId, PathState, Session, SessionError, Stream};
use anabranch_overlay::relay::{Dismissal, Hop, Reply, Request, SessionId};
use anabranch_wire::close_code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::pace::Pace;
use super::source;
use super::state::{Client, State};
use crate::sensing::Sensing;

/// Lets clients in for as long as the endpoint does.
pub(super) async fn accept((state, sensing): (Arc<State>, Arc<Sensing>), endpoint: Arc<Endpoint>) {
    while let Some(session) = endpoint.accept().await {
        let (state, sensing) = (state.clone(), sensing.clone());
        tokio::spawn(async move {
            let served = async {
                // Who measures this relay is a client only once it asks for something; of one that is not known yet as a measurer
                // the core closes the session soon.
                let measures = sensing.is_measurer(&session.peer());
                let first = if measures { Some(session.accept_stream().await?) } else { None };
                serve(state, session.clone(), first).await;
                Ok::<(), SessionError>(())
            };
            // Without a request to the end of the session, nothing was to be served.
            let _ = tokio::join!(served, sensing.answer(&session));
        });
    }
}

/// Serves one client to the end of its session; its requests come over one stream, the first, which may be there already.
pub(super) async fn serve(state: Arc<State>, session: Session, first: Option<Stream>) {
    let (replies, outbox) = mpsc::unbounded_channel();
    let (dismissal, mut dismissed) = mpsc::unbounded_channel();
    let id = state.open(&session, Client { replies, dismissal });
    let _leave = Leave(&state, id);
    tracing::debug!(client = %session.peer(), "a session was opened");
    let follow = follow(&state, &session, id);
    let talk = async {
        let first = match first {
            Some(stream) => Ok(stream),
            None => session.accept_stream().await,
        };
        if let Ok(stream) = first
            && let Err(why) = talk(&state, stream, (id, outbox)).await
        {
            session.abort(close_code::PROTOCOL_VIOLATION, &why);
        }
        session.closed().await;
    };
    tokio::select! {
        () = follow => {}
        () = talk => {}
        Some(why) = dismissed.recv() => dismiss(&session, why),
    }
    tracing::debug!(client = %session.peer(), "a session is over");
}

fn dismiss(session: &Session, why: Dismissal) {
    let (code, why) = match why {
        Dismissal::NoBusiness => (close_code::NOT_ALLOWED, "nothing was asked for that is allowed"),
        Dismissal::GaveWay => (close_code::BUSY, "others need the place: come again later"),
    };
    session.abort(code, why);
}

/// Takes a client out of the core when its task ends, be it by a fault.
struct Leave<'a>(&'a State, SessionId);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if !self.0.is_torn() {
            self.0.close(self.1);
        }
    }
}

/// Tells the core which addresses of the client are proven.
async fn follow(state: &State, session: &Session, id: SessionId) {
    let mut events = session.events();
    let mut known: BTreeMap<PathId, Hop> = BTreeMap::new();
    loop {
        let proven = proven(session);
        state.change(|relay| {
            for path in known.keys().filter(|path| !proven.contains_key(path)) {
                relay.handle_session_path(id, *path, None);
            }
            for (path, hop) in proven.iter().filter(|(path, hop)| known.get(path) != Some(hop)) {
                relay.handle_session_path(id, *path, Some(*hop));
            }
        });
        known = proven;
        // Each event is a reason to look; if some were lost, those after them are as good.
        loop {
            match events.next().await {
                Some(Event::Path { .. }) => break,
                Some(Event::Closed(_)) | None => return,
                Some(_) => {}
            }
        }
    }
}

/// By which paths a client is reached.
pub(super) fn proven(session: &Session) -> BTreeMap<PathId, Hop> {
    let is_proven = |state| matches!(state, PathState::Active | PathState::Suspect | PathState::Failed);
    let paths = session.paths().into_iter().filter(|path| is_proven(path.state));
    paths.map(|path| (path.id, Hop { socket: path.route.socket, address: path.route.remote })).collect()
}

/// Passes messages both ways until one side has no more; an error says how the client broke the rules.
async fn talk(
    state: &State,
    stream: Stream,
    (id, mut outbox): (SessionId, mpsc::UnboundedReceiver<Reply>),
) -> Result<(), String> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut read = Vec::new();
    let mut write = Vec::new();
    let mut pace = Pace::new(Instant::now());
    // When the next request may be taken, if one has to wait.
    let mut waits = None;
    loop {
        let again = waits.unwrap_or_else(Instant::now);
        tokio::select! {
            reply = outbox.recv() => {
                let Some(reply) = reply else { return Ok(()) };
                write.clear();
                reply.encode(&mut write);
                while let Ok(reply) = outbox.try_recv() {
                    reply.encode(&mut write);
                }
                if writer.write_all(&write).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            more = reader.read_buf(&mut read), if waits.is_none() => {
                if !matches!(more, Ok(1..)) {
                    return Ok(());
                }
            }
            () = sleep_until(again.into()), if waits.is_some() => {}
        }
        waits = take_requests((state, id), &mut read, &mut pace)?;
    }
}

/// Takes complete requests off the front; gives when to go on if that is too fast.
fn take_requests(
    (state, id): (&State, SessionId),
    read: &mut Vec<u8>,
    pace: &mut Pace,
) -> Result<Option<Instant>, String> {
    let (mut taken, mut waits) = (0, None);
    while let Some((request, len)) = Request::decode(&read[taken..]).map_err(|error| error.to_string())? {
        waits = pace.take(&request, Instant::now()).err();
        if waits.is_some() {
            break;
        }
        taken += len;
        let source = source::of_request(&request);
        state.change_now(|relay, now| relay.handle_request(now, id, request, source));
    }
    read.drain(..taken);
    Ok(waits)
}
