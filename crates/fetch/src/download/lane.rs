//! A lane: a connection that fetches one range after the other, as the planner says.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_wire::{Span, Time};
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::now;
use super::stream::Stream;
use crate::connection::Connection;
use crate::limit::Limit;
use crate::plan::{LaneId, Next, Planner, SourceId, Standing, Taken, Trouble};
use crate::source::{Refusal, Source, Wanted};
use crate::store::{Piece, Store};

/// A lane without bytes for this long is given up.
const SILENT: Span = Span::from_secs(15);
/// How often a waiting lane looks whether others have its bytes.
const LOOK: Duration = Duration::from_millis(500);

/// The common state of all lanes.
pub(super) struct Shared {
    pub(super) planner: Mutex<Planner>,
    pub(super) store: Store,
    pub(super) limit: Option<Mutex<Limit>>,
    /// Notified when a request ends.
    pub(super) news: Notify,
    pub(super) begin: Instant,
    pub(super) size: u64,
    /// News of the lanes for people.
    pub(super) notes: Mutex<Vec<String>>,
    /// Lanes that gave up a source because its file changed, and whose end is not dealt with.
    pub(super) changes: AtomicUsize,
}

impl Shared {
    pub(super) fn planner(&self) -> MutexGuard<'_, Planner> {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Time {
        now(self.begin)
    }

    /// Ends a request whose answer goes on at this byte.
    fn on_part(&self, lane: LaneId, at: u64) {
        let mut planner = self.planner();
        planner.on_end(lane, None, self.now());
        planner.go_on(lane, at);
    }

    /// Ends a request, and notes a long pause that the server asks for.
    fn on_end(&self, (active, lane): (&Active, LaneId), trouble: Option<Trouble>) {
        let is_notable = trouble.as_ref().is_some_and(Trouble::is_notable);
        let mut planner = self.planner();
        let before = planner.standing(active.id).clone();
        planner.on_end(lane, trouble, self.now());
        let standing = planner.standing(active.id);
        if let Standing::Resting(why) | Standing::Out(why) = standing
            && is_notable
            && *standing != before
        {
            let note = format!("{}: {why}", active.source.label);
            self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        }
    }
}

/// A source that takes part.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) source: Arc<Source>,
    pub(super) id: SourceId,
    /// Its number among all sources.
    pub(super) index: usize,
    /// The index of its route in the options.
    pub(super) route: usize,
    /// A connection without a lane.
    pub(super) spare: Mutex<Option<Connection>>,
    /// The answer that it still sends.
    pub(super) stream: Mutex<Option<Stream>>,
    /// The origin of its bytes.
    pub(super) origin: Arc<str>,
    /// Bytes that came over it.
    pub(super) bytes: std::sync::atomic::AtomicU64,
}

impl Active {
    /// Where its first answer goes on.
    pub(super) fn goes_on(&self) -> Option<u64> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Stream::at)
    }
}

/// Why a lane ends the whole download.
#[derive(Debug)]
pub(super) enum Halt {
    /// The file of this source is another one now.
    Changed(Arc<Source>),
    /// The disk does not take it.
    Disk(std::io::Error),
}

/// Fetches ranges until there is no more to do.
pub(super) async fn run(shared: &Shared, active: &Active, lane: LaneId) -> Result<(), Halt> {
    let spare = active.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut connection = spare.unwrap_or_else(|| active.source.connection());
    let mut stream = active.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
    loop {
        let news = shared.news.notified();
        let (next, now) = {
            let now = shared.now();
            (shared.planner().next(lane, now), now)
        };
        match next {
            Next::Leave => {
                if stream.is_some() {
                    connection.close();
                }
                let mut planner = shared.planner();
                planner.close_lane(lane);
                if planner.is_complete() && connection.is_open() {
                    *active.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
                }
                return Ok(());
            }
            Next::Wait(at) => {
                let wait = Duration::from_nanos(at.since(now).as_nanos());
                let _ = timeout(wait, news).await;
            }
            Next::Fetch(range) => {
                let going = stream.take();
                if going.as_ref().is_some_and(|going| going.at() != range.start) {
                    connection.close();
                }
                let going = going.filter(|going| going.at() == range.start);
                let request = Request { shared, active, lane, goes_on: going.is_some() };
                let ended = request.run(range, &mut connection, going).await?;
                if matches!(ended, RequestEnd::Changed) {
                    return leave(shared, active, lane);
                }
                let trouble = match ended {
                    RequestEnd::GoesOn(going) => {
                        shared.on_part(lane, going.at());
                        stream = Some(*going);
                        continue;
                    }
                    RequestEnd::Whole => {
                        connection.end().await;
                        None
                    }
                    RequestEnd::Trouble(trouble) => {
                        connection.close();
                        Some(trouble)
                    }
                    RequestEnd::Cut | RequestEnd::Changed => {
                        connection.close();
                        None
                    }
                };
                if let Some(trouble) = &trouble {
                    tracing::debug!(source = active.source.label, ?trouble, "a request ended early");
                }
                shared.on_end((active, lane), trouble);
                shared.news.notify_waiters();
            }
        }
    }
}

/// Gives up a source whose file has changed; the first of its lanes reports that.
fn leave(shared: &Shared, active: &Active, lane: LaneId) -> Result<(), Halt> {
    let mut planner = shared.planner();
    let was_out = matches!(planner.standing(active.id), Standing::Out(_));
    if !was_out {
        shared.changes.fetch_add(1, Ordering::SeqCst);
    }
    let why = "its file is another one now".to_owned();
    planner.on_end(lane, None, shared.now());
    planner.leave(active.id, why);
    planner.close_lane(lane);
    drop(planner);
    shared.news.notify_waiters();
    if was_out { Ok(()) } else { Err(Halt::Changed(active.source.clone())) }
}

/// How a request ends.
enum RequestEnd {
    /// All its bytes came, and the answer is over.
    Whole,
    /// The rest is not needed.
    Cut,
    /// All its bytes came, and the answer goes on.
    GoesOn(Box<Stream>),
    Trouble(Trouble),
    /// The file is another one now.
    Changed,
}

struct Request<'a> {
    shared: &'a Shared,
    active: &'a Active,
    lane: LaneId,
    /// An earlier answer goes on.
    goes_on: bool,
}

impl Request<'_> {
    async fn run(
        &self,
        range: Range<u64>,
        connection: &mut Connection,
        going: Option<Stream>,
    ) -> Result<RequestEnd, Halt> {
        if let Some(going) = going {
            return self.receive(going, range).await;
        }
        let wanted = Wanted { range: Some(range.clone()), size: Some(self.shared.size) };
        let asking = self.active.source.ask(connection, &wanted);
        let answer = tokio::select! {
            answer = asking => answer,
            end = self.hopeless() => {
                if matches!(end, RequestEnd::Trouble(_)) {
                    self.active.source.forget_peer();
                    self.active.source.forget_redirect();
                }
                return Ok(end);
            }
        };
        match answer {
            Ok(answer) => {
                let at = answer.start;
                self.receive(Stream::new(answer, at, Bytes::new()), range).await
            }
            Err(Refusal::Trouble(trouble)) => Ok(RequestEnd::Trouble(trouble)),
            Err(Refusal::Changed) => Ok(RequestEnd::Changed),
            Err(Refusal::NoSuchBytes(_)) => Ok(trouble("the server denies that it has these bytes")),
        }
    }

    async fn receive(&self, mut stream: Stream, range: Range<u64>) -> Result<RequestEnd, Halt> {
        let mut skip = range.start - stream.at();
        if skip > 0 && !stream.is_part() && !self.shared.planner().on_whole(self.lane, skip) {
            let why = "the server sends the file only from its beginning, for which the cap has no room";
            return Ok(RequestEnd::Trouble(Trouble::Useless(why.to_owned())));
        }
        let mut came = 0;
        loop {
            let piece = tokio::select! {
                piece = stream.next() => piece,
                end = self.hopeless() => return Ok(end),
            };
            let bytes = match piece {
                Ok(Some(bytes)) => bytes,
                // A short answer is allowed; one without bytes is not.
                Ok(None) if came > 0 => return Ok(RequestEnd::Cut),
                // It may have been idle for long.
                Ok(None) | Err(_) if came == 0 && self.goes_on => return Ok(RequestEnd::Cut),
                Ok(None) => return Ok(trouble("the server sends nothing")),
                Err(why) => return Ok(RequestEnd::Trouble(Trouble::Failed(why))),
            };
            let skipped = skip.min(bytes.len() as u64);
            skip -= skipped;
            stream.skip(skipped);
            if skipped > 0 {
                self.shared.planner().on_skipped(self.lane, skipped, self.shared.now());
            }
            // It fits: `skipped` is at most the length of a piece.
            let bytes = bytes.slice(skipped as usize..);
            if bytes.is_empty() {
                continue;
            }
            let taken = self.take(&mut stream, bytes).await?;
            came += taken.len;
            if !taken.more {
                return Ok(self.rest(stream, came == range.end - range.start).await);
            }
        }
    }

    /// Whether the connection can be used again: its answer must be over.
    async fn rest(&self, mut stream: Stream, is_whole: bool) -> RequestEnd {
        if self.goes_on && stream.at() < self.shared.size {
            return RequestEnd::GoesOn(Box::new(stream));
        }
        if is_whole && matches!(timeout(Duration::from_millis(20), stream.next()).await, Ok(Ok(None))) {
            return RequestEnd::Whole;
        }
        RequestEnd::Cut
    }

    /// Takes bytes of an answer.
    async fn take(&self, stream: &mut Stream, bytes: Bytes) -> Result<Taken, Halt> {
        let shared = self.shared;
        let len = bytes.len() as u64;
        let taken = shared.planner().on_bytes(self.lane, len, shared.now());
        // It fits: at most the length of the piece is taken.
        let wanted = bytes.slice(..taken.len as usize);
        stream.take(taken.len, bytes.slice(taken.len as usize..));
        self.active.bytes.fetch_add(taken.len, Ordering::Relaxed);
        if !wanted.is_empty() {
            let piece = Piece { origin: self.active.origin.clone(), at: taken.at, bytes: wanted };
            shared.store.write(piece).await.map_err(Halt::Disk)?;
        }
        if let Some(limit) = &shared.limit {
            let wait = limit.lock().unwrap_or_else(PoisonError::into_inner).spend(len, shared.now());
            shared.planner().pause(self.lane, true, shared.now());
            sleep(Duration::from_nanos(wait.as_nanos())).await;
            shared.planner().pause(self.lane, false, shared.now());
        }
        Ok(taken)
    }

    /// Waits until the bytes of the request are there by another lane, or the server has been silent for too long.
    async fn hopeless(&self) -> RequestEnd {
        loop {
            let news = self.shared.news.notified();
            let (silent, is_done) = self.shared.planner().silence(self.lane, self.shared.now());
            if is_done {
                return RequestEnd::Cut;
            }
            if silent > SILENT {
                return trouble("the server is silent");
            }
            let _ = timeout(LOOK, news).await;
        }
    }
}

fn trouble(why: &str) -> RequestEnd {
    RequestEnd::Trouble(Trouble::Failed(why.to_owned()))
}
