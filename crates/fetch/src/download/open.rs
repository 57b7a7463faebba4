//! The first bytes of every source: they show the file's size and version, and that all mirrors have the same file.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Context, PROBE, PROVES};
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::error::{FetchError, Tried};
use crate::http::validator::Validator;
use crate::plan::{LONGEST_WAIT, Trouble};
use crate::progress::{Progress, SourceStatus};
use crate::source::{Answer, Refusal, Source, Wanted};
use crate::url::Url;

/// Pauses between attempts to open a source.
const PAUSES_MS: [u64; 6] = [500, 1000, 2000, 4000, 8000, 16_000];
/// How long to wait for a better source: one with ranges, and with the file of an earlier attempt.
const BETTER: Duration = Duration::from_secs(2);
/// How long to wait for the mirrors that are named before the one that answered: theirs is the file that is wanted.
const EARLIER: Duration = Duration::from_secs(1);
/// How long to wait for an answer before sources of higher rank are opened.
const NEEDED: Duration = Duration::from_secs(3);
/// Why sources are not used.
const OTHER_SIZE: &str = "its file has another size";
pub(super) const OTHER_CONTENT: &str = "its file has another content";
const IN_PARTS: &str = "another source has the file in parts";
/// How long the first bytes may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A source that was opened: its number, and its number of route.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) source: Arc<Source>,
    pub(super) route: usize,
    pub(super) index: usize,
}

/// The first answer of a source.
pub(super) enum First {
    /// The server sends parts.
    Part(FirstPart),
    /// The server sends the whole file only.
    Whole(Box<Answer>, Connection),
}

impl First {
    /// The size of the file, if it is known.
    fn size(&self) -> Option<u64> {
        match self {
            Self::Part(part) => Some(part.size),
            Self::Whole(answer, _) => answer.size,
        }
    }

    /// The first bytes: [`PROBE`], unless the file is shorter.
    pub(super) fn head(&self) -> &[u8] {
        match self {
            Self::Part(part) => &part.bytes,
            Self::Whole(answer, _) => answer.body.seen(),
        }
    }

    /// Whether the server calls it a web page.
    pub(super) fn is_page(&self) -> bool {
        match self {
            Self::Part(part) => part.is_page,
            Self::Whole(answer, _) => answer.is_page,
        }
    }

    fn is_part(&self) -> bool {
        matches!(self, Self::Part(_))
    }

    /// Why this is not the file of another source, as far as the first answers show.
    pub(super) fn differs(&self, (size, head): (Option<u64>, &[u8])) -> Option<&'static str> {
        if self.size().zip(size).is_some_and(|(one, other)| one != other) {
            return Some(OTHER_SIZE);
        }
        let own = self.head();
        let len = own.len().min(head.len()).min(PROBE as usize);
        (own[..len] != head[..len]).then_some(OTHER_CONTENT)
    }
}

/// The first bytes of a file.
pub(super) struct FirstPart {
    pub(super) size: u64,
    pub(super) bytes: Bytes,
    pub(super) version: Validator,
    pub(super) digest: Option<Checksum>,
    pub(super) is_page: bool,
    pub(super) connection: Connection,
}

/// All sources that are being opened.
pub(super) struct Opening {
    pending: JoinSet<(Opened, Result<First, Trouble>)>,
    /// The numbers of their sources.
    unanswered: Vec<usize>,
    /// Sources of higher rank, which are opened only when they are needed.
    waiting: Vec<Opened>,
    /// Sources that cannot be used.
    pub(super) failed: Vec<Tried>,
    /// Whether each of them refused, rather than failed.
    all_refused: bool,
    /// The source that is used unless a better one answers.
    whole: Option<(Opened, First)>,
    /// Others that answered before the download began.
    passed: Vec<(Opened, First)>,
    /// Mirrors that do not have the file of an earlier attempt.
    changed: Vec<Url>,
}

impl Opening {
    /// Starts with all sources at once.
    pub(super) fn start(context: &Context) -> Self {
        let sources = context.sources();
        context.progress.update(|snapshot| {
            let status = |(source, _): &(Arc<Source>, usize)| SourceStatus {
                label: source.label.clone(),
                why: Some("connecting".to_owned()),
                ..SourceStatus::default()
            };
            snapshot.sources = sources.iter().map(status).collect();
        });
        let all = sources.into_iter().enumerate();
        let waiting = all.map(|(index, (source, route))| Opened { source, route, index }).collect();
        let mut opening = Self {
            pending: JoinSet::new(),
            unanswered: Vec::new(),
            waiting,
            failed: Vec::new(),
            all_refused: true,
            whole: None,
            passed: Vec::new(),
            changed: Vec::new(),
        };
        opening.widen(context);
        opening
    }

    /// Opens the waiting sources of the lowest rank; returns whether there are any.
    pub(super) fn widen(&mut self, context: &Context) -> bool {
        let rank = |opened: &Opened| context.options.routes[opened.route].rank;
        let Some(lowest) = self.waiting.iter().map(rank).min() else { return false };
        let (now, later) = std::mem::take(&mut self.waiting).into_iter().partition(|one| rank(one) == lowest);
        self.waiting = later;
        let now: Vec<Opened> = now;
        for opened in now {
            if context.options.left(opened.route) < PROBE {
                self.all_refused = false;
                self.refuse(context, &opened, context.options.used_up(opened.route));
                continue;
            }
            self.unanswered.push(opened.index);
            let progress = context.progress.clone();
            self.pending.spawn(async move {
                let first = open(&opened, &progress).await;
                (opened, first)
            });
        }
        true
    }

    /// Closes the connections of sources that do not take part.
    pub(super) async fn close(&mut self) {
        self.pending.shutdown().await;
        self.passed.clear();
    }

    /// Whether every source has answered or failed.
    pub(super) fn is_over(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty() && self.passed.is_empty()
    }

    /// The next further source for a download that has begun; `None` when there is no more.
    pub(super) async fn next(&mut self, context: &Context<'_>) -> Option<(Opened, First)> {
        match self.passed.pop() {
            Some(passed) => Some(passed),
            None => self.answered(context).await,
        }
    }

    /// The next source that answers; `None` when there is no more.
    async fn answered(&mut self, context: &Context<'_>) -> Option<(Opened, First)> {
        loop {
            if let Some(answered) = self.one(context).await? {
                return Some(answered);
            }
        }
    }

    /// Waits for one source; `Some(None)` if it cannot be used, `None` when there is no more.
    async fn one(&mut self, context: &Context<'_>) -> Option<Option<(Opened, First)>> {
        let (opened, first) = match self.pending.join_next().await? {
            Ok(ended) => ended,
            Err(error) => {
                tracing::debug!(%error, "a source was not opened");
                return Some(None);
            }
        };
        self.unanswered.retain(|index| *index != opened.index);
        let excluded = context.excluded.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if excluded.contains(&opened.index) {
            self.leave_out(context, &opened, OTHER_CONTENT);
            return Some(None);
        }
        let trouble = match first {
            Ok(first) => return Some(Some((opened, first))),
            Err(trouble) => trouble,
        };
        self.all_refused &= matches!(trouble, Trouble::Useless(_));
        self.refuse(context, &opened, trouble.why());
        Some(None)
    }

    /// Notes that a source is not used.
    pub(super) fn refuse(&mut self, context: &Context<'_>, opened: &Opened, why: impl Into<String>) {
        let (why, label) = (why.into(), opened.source.label.clone());
        context.progress.update(|snapshot| snapshot.sources[opened.index].why = Some(why.clone()));
        self.failed.push(Tried { label, why });
    }

    /// Notes that a source has another file, and reports that.
    pub(super) fn leave_out(&mut self, context: &Context<'_>, opened: &Opened, why: &str) {
        context.progress.note(format!("{} is left out: {why}", opened.source.label));
        self.refuse(context, opened, why);
    }

    /// Whether a mirror that is named before that of `opened` may still answer.
    fn awaits_earlier(&self, context: &Context<'_>, opened: &Opened) -> bool {
        let own = context.mirror(opened.index);
        self.unanswered.iter().any(|index| context.mirror(*index) < own)
    }

    /// The source that defines the file: the first that sends parts of the file that an earlier attempt `held`, else one
    /// that sends parts, of the mirror that is named first among those that answer soon.
    pub(super) async fn first(
        &mut self,
        context: &Context<'_>,
        held: Option<u64>,
    ) -> Result<(Opened, First), FetchError> {
        let mut since = None;
        loop {
            let is_sure = |answered: &(Opened, First)| {
                self.may_fit(answered, held) && !self.awaits_earlier(context, &answered.0)
            };
            if self.whole.as_ref().is_some_and(is_sure)
                && let Some(whole) = self.whole.take()
            {
                return Ok(whole);
            }
            let wait = match &self.whole {
                Some(answered) => {
                    let most = match self.may_fit(answered, held) {
                        _ if context.is_patient.load(Ordering::Relaxed) => PATIENCE,
                        true => EARLIER,
                        false => BETTER,
                    };
                    most.saturating_sub(since.get_or_insert_with(Instant::now).elapsed())
                }
                None if self.waiting.is_empty() => Duration::MAX,
                None => NEEDED,
            };
            let (opened, first) = match timeout(wait, self.one(context)).await {
                Ok(Some(Some(answered))) => answered,
                Ok(Some(None)) => continue,
                Ok(None) | Err(_) => {
                    if self.whole.is_none() && self.widen(context) {
                        continue;
                    }
                    return self.whole.take().ok_or_else(|| self.failure());
                }
            };
            let size = first.size();
            if first.is_page() && context.is_no_page() && (!first.is_part() || size != held) {
                // The download began with something else.
                self.all_refused = false;
                self.refuse(context, &opened, Trouble::Page.why());
                continue;
            }
            if let Some(known) = context.job.size
                && size.is_some_and(|size| size != known)
            {
                self.leave_out(context, &opened, "its file has another size than announced");
                continue;
            }
            self.keep(context, (opened, first), held);
        }
    }

    /// Whether a source sends parts, and perhaps of the file that an earlier attempt `held`.
    fn may_fit(&self, (opened, first): &(Opened, First), held: Option<u64>) -> bool {
        let is_held = held.is_none() || (first.size() == held && !self.has_changed(&opened.source.mirror));
        first.is_part() && is_held
    }

    /// Keeps the better of the source that is used so far and another one.
    fn keep(&mut self, context: &Context<'_>, new: (Opened, First), held: Option<u64>) {
        let Some(old) = self.whole.take() else { return self.whole = Some(new) };
        let is_earlier = context.mirror(new.0.index) < context.mirror(old.0.index);
        let differs = new.1.differs((old.1.size(), old.1.head()));
        let fits = [&new, &old].map(|one| held.is_some() && self.may_fit(one, held));
        let is_better = match (new.1.is_part(), old.1.is_part()) {
            _ if fits[0] != fits[1] => fits[0],
            (true, false) => is_earlier || differs.is_none(),
            (false, true) => is_earlier && differs.is_some(),
            _ => is_earlier,
        };
        let (better, (other, first)) = if is_better { (new, old) } else { (old, new) };
        match (better.1.is_part(), differs) {
            (true, _) if first.is_part() => self.passed.push((other, first)),
            (_, Some(why)) => self.leave_out(context, &other, why),
            (true, None) => {
                if context.mirror(other.index) < context.mirror(better.0.index) && !context.is_proven() {
                    context.progress.note(format!(
                        "{} sends no parts: only the first bytes of the mirrors are compared; {PROVES}",
                        other.source.label
                    ));
                }
                self.refuse(context, &other, IN_PARTS);
            }
            (false, None) => self.refuse(context, &other, "one source sends the whole file"),
        }
        self.whole = Some(better);
    }

    /// Keeps a source that does not have the file of an earlier attempt, in case that no other has it.
    pub(super) fn defer(&mut self, opened: Opened, part: FirstPart) {
        self.changed.push(opened.source.mirror.clone());
        self.whole = Some((opened, First::Part(part)));
    }

    /// Takes mirrors without the file of an earlier attempt, which is dropped.
    pub(super) fn begin_again(&mut self) {
        self.changed.clear();
    }

    /// Whether a mirror does not have the file of an earlier attempt, with which the download goes on.
    pub(super) fn has_changed(&self, mirror: &Url) -> bool {
        self.changed.contains(mirror)
    }

    /// Why there is no file when no source is left.
    pub(super) fn failure(&mut self) -> FetchError {
        let tried = std::mem::take(&mut self.failed);
        if self.all_refused && !tried.is_empty() {
            FetchError::Refused(tried)
        } else {
            FetchError::Unreachable(tried)
        }
    }
}

/// Asks for the first bytes until they come or there is no hope.
async fn open(opened: &Opened, progress: &Progress) -> Result<First, Trouble> {
    let source = &opened.source;
    let mut pauses = PAUSES_MS.iter().map(|ms| Duration::from_millis(*ms));
    loop {
        let first = timeout(PATIENCE, first_bytes(source)).await;
        let refusal = match first.unwrap_or_else(|_| Err(failed("the first bytes do not come"))) {
            Ok(first) => return Ok(first),
            Err(refusal) => refusal,
        };
        let trouble = match refusal {
            Refusal::Trouble(trouble) => trouble,
            Refusal::Changed | Refusal::NoSuchBytes(_) => {
                Trouble::Failed("the file changed meanwhile".to_owned())
            }
        };
        let asked = match &trouble {
            // The user may have to log in first.
            Trouble::Useless(_) | Trouble::Page => return Err(trouble),
            Trouble::Busy(pause) => {
                pause.map_or(Duration::ZERO, |pause| Duration::from_nanos(pause.as_nanos()))
            }
            Trouble::Failed(_) | Trouble::NoParts(_) => Duration::ZERO,
        };
        let longest = Duration::from_nanos(LONGEST_WAIT.as_nanos());
        let Some(pause) = pauses.next().map(|pause| pause.max(asked)).filter(|pause| *pause <= longest)
        else {
            return Err(trouble);
        };
        tracing::debug!(source = source.label, ?trouble, ?pause, "asking again");
        if trouble.is_notable() {
            let why = trouble.why();
            progress.note(format!("{}: {why}", source.label));
            progress.update(|snapshot| snapshot.sources[opened.index].why = Some(why));
        }
        sleep(pause).await;
    }
}

fn failed(why: &str) -> Refusal {
    Refusal::Trouble(Trouble::Failed(why.to_owned()))
}

async fn first_bytes(source: &Source) -> Result<First, Refusal> {
    let mut connection = source.connection();
    let wanted = Wanted { range: Some(0..PROBE), size: None };
    let mut answer = match source.ask(&mut connection, &wanted).await {
        Err(Refusal::NoSuchBytes(Some(0))) => {
            let (bytes, version) = (Bytes::new(), Validator::default());
            return Ok(First::Part(FirstPart {
                size: 0,
                bytes,
                version,
                digest: None,
                is_page: false,
                connection,
            }));
        }
        // A server that cannot deal with ranges may still have the file.
        Err(Refusal::NoSuchBytes(_)) => whole(source, &mut connection).await?,
        answer => answer?,
    };
    if answer.is_part && answer.size.is_none() {
        connection.close();
        answer = whole(source, &mut connection).await?;
    }
    let (Some(size), true) = (answer.size, answer.is_part) else {
        return Ok(looked_at(answer, connection).await);
    };
    let bytes = read(&mut answer, 0..PROBE.min(size)).await?;
    if bytes.len() as u64 != PROBE.min(size) {
        return Err(failed("the server breaks off"));
    }
    let (version, digest, is_page) = (answer.version.clone(), answer.digest.take(), answer.is_page);
    drop(answer);
    connection.end().await;
    if !begins_anywhere(source, &mut connection, &bytes).await? {
        connection.close();
        let answer = whole(source, &mut connection).await?;
        return Ok(looked_at(answer, connection).await);
    }
    Ok(First::Part(FirstPart { size, bytes, version, digest, is_page, connection }))
}

/// The first answer of a server without parts: its first bytes are compared with those of other mirrors.
async fn looked_at(mut answer: Answer, connection: Connection) -> First {
    if let Err(why) = answer.body.peek(PROBE as usize).await {
        tracing::debug!(why, "a file breaks off after {} bytes", answer.body.seen().len());
    }
    First::Whole(Box::new(answer), connection)
}

/// Whether an FTP server obeys `REST`. Some accept it and send the file from its beginning.
async fn begins_anywhere(
    source: &Source,
    connection: &mut Connection,
    first: &Bytes,
) -> Result<bool, Refusal> {
    let (len, half) = (first.len(), first.len() / 2);
    if matches!(connection, Connection::Http(_)) || half == 0 {
        return Ok(true);
    }
    let wanted = Wanted { range: Some(half as u64..len as u64), size: None };
    let mut answer = source.ask(connection, &wanted).await?;
    let again = read(&mut answer, half as u64..len as u64).await?;
    drop(answer);
    connection.end().await;
    // If both places hold the same bytes, they prove nothing: the file is fetched whole.
    Ok(again == first[half..] && first[..len - half] != first[half..])
}

async fn whole(source: &Source, connection: &mut Connection) -> Result<Answer, Refusal> {
    source.ask(connection, &Wanted { range: None, size: None }).await
}

/// Reads a short range of the file, as much of it as comes.
pub(super) async fn read(answer: &mut Answer, range: std::ops::Range<u64>) -> Result<Bytes, Refusal> {
    let (mut bytes, mut skip) = (Vec::new(), range.start - answer.start);
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    while bytes.len() < len {
        let Some(mut piece) = answer.body.next().await.map_err(|why| failed(&why))? else { break };
        let skipped = skip.min(piece.len() as u64);
        skip -= skipped;
        // Both fit: `skipped` is at most the length of a piece.
        piece = piece.split_off(skipped as usize);
        piece.truncate(len - bytes.len());
        bytes.extend_from_slice(&piece);
    }
    // A body that is read to its end leaves the connection usable.
    if answer.size.is_some_and(|size| size >= range.end) {
        let _ = timeout(Duration::from_millis(200), answer.body.next()).await;
    }
    Ok(bytes.into())
}
