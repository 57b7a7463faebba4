//! The first bytes of a source: they show the file's size and version, and that all mirrors have the same file.

use std::pin::pin;
use std::time::Duration;

use anabranch_wire::Span;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::PROBE;
use super::open::Opened;
use super::stream::Stream;
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::http::validator::Validator;
use crate::plan::{LONGEST_WAIT, Trouble};
use crate::progress::Progress;
use crate::source::{Answer, Refusal, Source, Wanted};

/// Pauses between attempts to open a source, half a minute in all.
const PAUSES_MS: [u64; 6] = [500, 1000, 2000, 4000, 8000, 16_000];
/// How many of them a source gets where a connection fails, and where answers make no sense. One whose server is busy, or answers
/// over another route, gets all.
const MOST_FAILED: usize = 5;
const MOST_MALFORMED: usize = 2;
/// A source that has failed for so long is not asked again.
const GIVE_UP: Duration = Duration::from_secs(30);
/// How long the first attempt may take. A new connection may help where the first one has stuck.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);
/// A source that does not answer for so long is named.
const SLOW: Duration = Duration::from_secs(3);
/// The first pause of a source whose server limits requests and answers over another route.
const BESIDE_ANOTHER: Duration = Duration::from_secs(8);
/// Why sources are not used.
const OTHER_SIZE: &str = "its file has another size";
pub(super) const OTHER_CONTENT: &str = "its file has another content";
const BREAKS_OFF: &str = "the server breaks off";
/// How long the first bytes may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// A server that sends so many bytes before it breaks off is used.
const LEAST: usize = 4096;

/// The extent of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The first bytes alone.
    Short,
    /// A part from the beginning that may go on to the end.
    Long,
    /// Everything in one answer that is no part.
    Whole,
}

/// The first request of a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) shape: Shape,
    /// Without a version, nothing would show that two answers are of different files: then one has to bring everything.
    pub(super) needs_version: bool,
}

/// The first answer of a source.
pub(super) enum First {
    /// The server sends parts.
    Part(Box<FirstPart>),
    /// The server sends the whole file only.
    Whole(Box<Answer>, Box<Connection>),
}

impl First {
    /// The size of the file, if it is known.
    pub(super) fn size(&self) -> Option<u64> {
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

    pub(super) fn is_part(&self) -> bool {
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
    /// The rest of the answer.
    pub(super) stream: Option<Stream>,
}

/// The pauses of one source.
#[derive(Debug, Default)]
struct Pauses {
    /// The number of the next one.
    next: usize,
}

impl Pauses {
    /// The pause before the next attempt, if there is one. `is_second`: the server answers over another route.
    fn after(&mut self, trouble: &Trouble, is_second: bool) -> Option<Duration> {
        let (most, asked) = match trouble {
            // The user may have to log in first.
            Trouble::Useless(_) | Trouble::Page => return None,
            Trouble::Busy(pause) => (PAUSES_MS.len(), pause.unwrap_or(Span::ZERO)),
            Trouble::Failed(_) => (MOST_FAILED, Span::ZERO),
            Trouble::NoParts(_) => (MOST_MALFORMED, Span::ZERO),
        };
        let most = if is_second { PAUSES_MS.len() } else { most };
        // Of the few requests that the server answers, this would be one less for the other route.
        let is_limited = matches!(trouble, Trouble::Busy(_)) && is_second;
        let least = if is_limited { BESIDE_ANOTHER } else { Duration::ZERO };
        let mut left = PAUSES_MS.iter().map(|ms| Duration::from_millis(*ms)).enumerate().skip(self.next);
        let (number, pause) = left.find(|(_, pause)| *pause >= least).filter(|(number, _)| *number < most)?;
        self.next = number + 1;
        let longest = Duration::from_nanos(LONGEST_WAIT.as_nanos());
        Some(pause.max(Duration::from_nanos(asked.as_nanos()))).filter(|pause| *pause <= longest)
    }
}

/// Asks for the first bytes until they come or there is no hope.
/// Reports each attempt through `serves`, which becomes true when a route to the mirror has an answer.
pub(super) async fn open(
    opened: &Opened,
    progress: &Progress,
    wanted: Begin,
    serves: &watch::Sender<bool>,
) -> Result<First, Trouble> {
    let source = &opened.source;
    let show = |why: String| {
        progress.update(|snapshot| snapshot.sources[opened.index].why = Some(why));
    };
    let begin = Instant::now();
    let mut pauses = Pauses::default();
    let mut patience = FIRST_PATIENCE;
    loop {
        let mut asking = pin!(timeout(patience, first_bytes(source, wanted)));
        let first = match timeout(SLOW, &mut asking).await {
            Ok(first) => first,
            Err(_) => {
                show("no answer so far".to_owned());
                asking.await
            }
        };
        patience = PATIENCE;
        serves.send_modify(|serves| *serves |= matches!(first, Ok(Ok(_))));
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
        if matches!(trouble, Trouble::Failed(_)) {
            source.forget_peer();
        }
        let is_second = *serves.borrow();
        let has_time = is_second || begin.elapsed() < GIVE_UP || !matches!(trouble, Trouble::Failed(_));
        let Some(pause) = pauses.after(&trouble, is_second).filter(|_| has_time) else { return Err(trouble) };
        tracing::debug!(source = source.label, ?trouble, ?pause, "asking again");
        let is_notable = trouble.is_notable();
        let why = trouble.why();
        if is_notable {
            progress.note(format!("{}: {why}", source.label));
        }
        show(why);
        sleep(pause).await;
    }
}

fn failed(why: &str) -> Refusal {
    Refusal::Trouble(Trouble::Failed(why.to_owned()))
}

async fn first_bytes(source: &Source, Begin { shape, needs_version }: Begin) -> Result<First, Refusal> {
    let mut connection = source.connection();
    if source.lacks_version() || shape == Shape::Whole && source.mirror.scheme().is_http() {
        let mut answer = whole(source, &mut connection).await?;
        if answer.size.is_none() && source.mirror.scheme().is_http() && !answer.body.is_packed() {
            answer.size = size(source).await;
        }
        return Ok(looked_at(answer, connection).await);
    }
    let is_long = shape != Shape::Short;
    let wanted = Wanted { range: Some(0..if is_long { u64::MAX } else { PROBE }), size: None };
    let mut answer = match source.ask(&mut connection, &wanted).await {
        // A server that cannot deal with ranges, or calls the file empty, may still have it.
        Err(Refusal::NoSuchBytes(_) | Refusal::Trouble(Trouble::NoParts(_))) => {
            connection.close();
            whole(source, &mut connection).await?
        }
        answer => answer?,
    };
    if answer.is_part && answer.size.is_none() {
        connection.close();
        answer = whole(source, &mut connection).await?;
    }
    let (Some(size), true) = (answer.size, answer.is_part) else {
        return Ok(looked_at(answer, connection).await);
    };
    let is_unsure = needs_version && answer.digest.is_none() && !answer.version.names_version();
    if is_unsure && (size > PROBE || !answer.is_all) {
        source.lack_version();
        if !answer.is_all {
            connection.close();
            answer = whole(source, &mut connection).await?;
            if !answer.body.is_packed() {
                answer.size = answer.size.or(Some(size));
            }
        }
        return Ok(looked_at(answer, connection).await);
    }
    let (version, digest, is_page) = (answer.version.clone(), answer.digest.take(), answer.is_page);
    let len = PROBE.min(size);
    let (bytes, stream) = head(answer, len, is_long && len < size).await?;
    let is_cut = (bytes.len() as u64) < len;
    if is_cut && (is_unsure || matches!(connection, Connection::Ftp(_))) {
        return Err(failed(BREAKS_OFF));
    }
    match &stream {
        Some(_) => {}
        None if is_cut || is_long => connection.close(),
        None => connection.end().await,
    }
    if !begins_anywhere(source, &mut connection, &bytes).await? {
        connection.close();
        let answer = whole(source, &mut connection).await?;
        return Ok(looked_at(answer, connection).await);
    }
    Ok(First::Part(Box::new(FirstPart { size, bytes, version, digest, is_page, connection, stream })))
}

/// The first `len` bytes of an answer, and the rest if it `is_long`. A server that cuts its bodies short sends fewer.
async fn head(mut answer: Answer, len: u64, is_long: bool) -> Result<(Bytes, Option<Stream>), Refusal> {
    // It fits: `len` is at most `PROBE`.
    let len = len as usize;
    let broken = answer.body.peek(len).await.err();
    let mut left = answer.body.next().await.ok().flatten().unwrap_or_default();
    let bytes = left.split_to(left.len().min(len));
    if bytes.len() < len.min(LEAST) {
        return Err(failed(broken.as_deref().unwrap_or(BREAKS_OFF)));
    }
    if is_long && bytes.len() == len {
        return Ok((bytes, Some(Stream::new(answer, len as u64, left))));
    }
    // A body that is read to its end leaves the connection usable.
    if broken.is_none() {
        let _ = timeout(Duration::from_millis(200), answer.body.next()).await;
    }
    Ok((bytes, None))
}

/// The first answer of a server without parts: its first bytes are compared with those of other mirrors.
async fn looked_at(mut answer: Answer, connection: Connection) -> First {
    if let Err(why) = answer.body.peek(PROBE as usize).await {
        tracing::debug!(why, "a file breaks off after {} bytes", answer.body.seen().len());
    }
    First::Whole(Box::new(answer), Box::new(connection))
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
    let answer = source.ask(connection, &Wanted { range: None, size: None }).await?;
    if answer.is_part && !answer.is_all {
        return Err(Refusal::Trouble(Trouble::NoParts(
            "the server sends only a part of the file".to_owned(),
        )));
    }
    Ok(answer)
}

/// The size of the file by a part. A whole answer that does not say it may end early as if everything had come.
async fn size(source: &Source) -> Option<u64> {
    let (mut connection, wanted) = (source.connection(), Wanted { range: Some(0..PROBE), size: None });
    let answer = timeout(SLOW, source.ask(&mut connection, &wanted)).await.ok()?.ok()?;
    answer.size
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_restarts_and_one_that_is_busy_are_waited_for() {
        let total = |trouble: Trouble| -> Duration {
            let mut pauses = Pauses::default();
            std::iter::from_fn(|| pauses.after(&trouble, false)).sum()
        };
        assert_eq!(total(Trouble::Failed(String::new())), Duration::from_millis(15_500));
        assert_eq!(total(Trouble::Busy(None)), Duration::from_millis(31_500));
        assert_eq!(total(Trouble::NoParts(String::new())), Duration::from_millis(1500));
        assert_eq!(Pauses::default().after(&Trouble::Page, true), None);
        let beside = Pauses::default().after(&Trouble::Busy(None), true);
        assert_eq!(beside, Some(BESIDE_ANOTHER));
    }
}
