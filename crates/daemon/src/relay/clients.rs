//! One client's session: passes its requests to the core and the core's replies back, and reports its proven addresses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{Endpoint, Event, PathId, PathState, Session, Stream};
use anabranch_overlay::relay::{Dismissal, Hop, Reply, Request, SessionId};
use anabranch_wire::close_code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};

use super::source;
use super::state::{Client, State};
use crate::pace::SharedPace;
use crate::sensing::Sensing;

/// Number of requests that showing a grant counts for: its signature is checked.
const COST_OF_A_GRANT: u32 = 8;
/// How long a client may leave replies unread.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// Serves clients for as long as the endpoint accepts sessions.
pub(super) async fn accept((state, sensing): (Arc<State>, Arc<Sensing>), endpoint: Arc<Endpoint>) {
    while let Some(session) = endpoint.accept().await {
        let (state, sensing) = (state.clone(), sensing.clone());
        tokio::spawn(async move {
            let measures = sensing.is_measurer(&session.peer());
            tokio::join!(serve(state, session.clone(), measures), sensing.answer(&session));
        });
    }
}

/// Serves one client until its session ends. All requests come over its first stream.
pub(super) async fn serve(state: Arc<State>, session: Session, measures: bool) {
    let (replies, outbox) = mpsc::unbounded_channel();
    let (dismissal, mut dismissed) = mpsc::unbounded_channel();
    let client = Client { key: session.peer(), replies, dismissal };
    let (id, known) = state.open(&session, client, measures);
    let _leave = Leave(&state, id);
    tracing::debug!(client = %session.peer(), "session opened");
    // A client behind a NAT announces it to its peers, which may then reach it without the relay.
    session.report_address();
    let follow = follow(&state, &session, (id, known));
    let talk = async {
        if let Ok(stream) = session.accept_stream().await
            && let Err(why) = talk(&state, &session, stream, (id, outbox)).await
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
    tracing::debug!(client = %session.peer(), "session over");
}

/// Closes a session for the core's reason, which the client gets and the log names.
fn dismiss(session: &Session, why: Dismissal) {
    let (code, words) = match why {
        Dismissal::NoBusiness => {
            (close_code::NOT_ALLOWED, "the client has neither shown a grant nor used the relay".to_owned())
        }
        Dismissal::GaveWay => {
            (close_code::BUSY, "the relay is full and other clients have fewer sessions".to_owned())
        }
        Dismissal::Full(full) => (close_code::BUSY, full.to_string()),
        Dismissal::Ended(ended) => (close_code::NOT_ALLOWED, ended.to_string()),
    };
    let client = session.peer();
    if let Dismissal::Ended(_) = why {
        tracing::info!(%client, "session ended: {words}");
    } else {
        tracing::debug!(%client, "session ended: {words}");
    }
    session.abort(code, &words);
}

/// Removes a client from the core when its task ends, even by a panic.
struct Leave<'a>(&'a State, SessionId);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if !self.0.is_torn() {
            self.0.close(self.1);
        }
    }
}

/// Reports to the core which addresses of the client are proven, beginning with those that it knows.
pub(super) async fn follow(
    state: &State,
    session: &Session,
    (id, mut known): (SessionId, BTreeMap<PathId, Hop>),
) {
    let mut events = session.events();
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
        // Every event only prompts another look, so a lost one does no harm.
        loop {
            match events.next().await {
                Some(Event::Path { .. }) => break,
                Some(Event::Closed(_)) | None => return,
                Some(_) => {}
            }
        }
    }
}

/// The client's proven addresses, by path.
pub(super) fn proven(session: &Session) -> BTreeMap<PathId, Hop> {
    let is_proven = |state| matches!(state, PathState::Active | PathState::Suspect | PathState::Failed);
    let paths = session.paths().into_iter().filter(|path| is_proven(path.state));
    paths.map(|path| (path.id, Hop { socket: path.route.socket, address: path.route.remote })).collect()
}

/// Passes messages in both directions until one side ends.
async fn talk(
    state: &State,
    session: &Session,
    stream: Stream,
    (id, mut outbox): (SessionId, mpsc::UnboundedReceiver<Reply>),
) -> Result<(), String> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut read = Vec::new();
    let mut write = Vec::new();
    let pace = state.pace(session.peer());
    // When to take the next request, if it has to wait.
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
                match timeout(READ_PATIENCE, writer.write_all(&write)).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => return Ok(()),
                    Err(_) => return Err(format!("the client has read no reply for {} s", READ_PATIENCE.as_secs())),
                }
            }
            more = reader.read_buf(&mut read), if waits.is_none() => {
                if !matches!(more, Ok(1..)) {
                    return Ok(());
                }
            }
            () = sleep_until(again.into()), if waits.is_some() => {}
        }
        waits = take_requests((state, id), &mut read, &pace)?;
    }
}

/// Handles complete requests at the front. Returns the time to continue if they come too fast.
fn take_requests(
    (state, id): (&State, SessionId),
    read: &mut Vec<u8>,
    pace: &SharedPace,
) -> Result<Option<Instant>, String> {
    let (mut taken, mut waits) = (0, None);
    while let Some((request, len)) = Request::decode(&read[taken..]).map_err(|error| error.to_string())? {
        let cost = if matches!(request, Request::Show { .. }) { COST_OF_A_GRANT } else { 1 };
        waits = pace.take(cost, Instant::now()).err();
        if waits.is_some() {
            break;
        }
        taken += len;
        // The system is not asked for strangers: their requests are refused in any case, and new keys are free.
        let source = if state.may_allocate(id) { source::of_request(&request) } else { None };
        state.change_now(|relay, now| relay.handle_request(now, id, request, source));
    }
    read.drain(..taken);
    Ok(waits)
}
