//! A source: a mirror over a route. Asks it for bytes and checks what it answers.

mod compare;
mod follow;
mod judge;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use crate::checksum::Checksum;
use crate::connection::{Body, Connection};
use crate::ftp::{FtpAnswer, FtpConnection};
use crate::hosts::{Hosts, Standing};
use crate::http::head::{Head, Verdict};
use crate::http::validator::{Same, Validator};
use crate::http::{HttpConnection, page};
use crate::peers::Peers;
use crate::plan::Trouble;
use crate::route::Route;
use crate::store::WrittenPart;
use crate::tls::Tls;
use crate::url::Url;
use follow::Response;

/// How long a server may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Why a source rests when a redirect leads to hosts with other files.
const OTHER: &str = "the hosts to which the server redirects have different files";
/// Why parts of a file cannot be fetched.
const PACKED: &str = "compresses parts of the file (gzip) although asked not to";
/// Most requests for one answer: from a redirect's target, from the mirror itself, without `If-Range`, and from further hosts.
const MOST_STEPS: usize = 8;
/// Pauses after failed questions whether a file has changed.
const CONFIRM_PAUSES: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5), Duration::ZERO];
/// Another address of a server is used after it answered so often in a row that it failed.
const MOST_ERRORS: u32 = 2;
/// A server is asked for the whole file after it refused so many parts in a row.
const MOST_DENIALS: u32 = 2;

/// A mirror over a route.
#[derive(Debug)]
pub struct Source {
    /// The mirror's address as given.
    pub mirror: Url,
    /// The route to it.
    pub route: Route,
    /// Its name for people.
    pub label: String,
    tls: Tls,
    /// The addresses of servers that answered.
    pub peers: Peers,
    memory: Mutex<Memory>,
}

/// Facts that a source has learned from answers.
#[derive(Debug, Default)]
struct Memory {
    /// Where the mirror redirects to. Such addresses may expire.
    redirected: Option<Url>,
    /// The server answers `If-Range` with the whole file although nothing changed.
    dislikes_if_range: bool,
    /// The server refused a request because there were too many.
    was_busy: bool,
    /// How often in a row the server refused a part that does not begin the file.
    denials: u32,
    /// The server calls the file compressed, and sends it plain.
    is_mislabelled: bool,
    /// The first bytes came as a web page.
    begins_as_page: bool,
    /// The hosts that answered, and the version of the file there.
    hosts: Hosts,
    /// Bytes of the file to compare further hosts with.
    begin: Option<FileBegin>,
    /// The server names no version of the file, so bytes of several answers are not joined.
    lacks_version: bool,
    /// Why one answer has to bring everything: parts do not show that they belong together.
    takes_whole: Option<&'static str>,
    /// The last server that was asked, and how often in a row it answered that it failed.
    asked: Option<Url>,
    errors: u32,
}

impl Memory {
    /// Whether the server is asked for the whole file instead of parts, and its beginning is skipped.
    fn is_plain(&self) -> bool {
        self.denials >= MOST_DENIALS
    }

    /// Notes that a part from `start` came.
    fn on_part(&mut self, start: u64) {
        if start > 0 && !self.is_plain() {
            self.denials = 0;
        }
    }
}

/// Bytes of the file that have come.
#[derive(Clone, Debug)]
pub struct FileBegin {
    pub first: Bytes,
    /// All that are written.
    pub written: WrittenPart,
}

/// Bytes that a source sends.
#[derive(Debug)]
pub struct Answer {
    /// Where in the file they begin.
    pub start: u64,
    /// The size of the file, if the server says so.
    pub size: Option<u64>,
    /// Whether the server sends parts.
    pub is_part: bool,
    /// Whether it announces all bytes of the file.
    pub is_all: bool,
    /// The version of the file.
    pub version: Validator,
    /// The hash of the file by the server.
    pub digest: Option<Checksum>,
    /// Whether the server calls it a web page.
    pub is_page: bool,
    /// The bytes.
    pub body: Body,
}

/// A request to a source.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Bytes of the file, to its end if the end is [`u64::MAX`]; everything without.
    pub range: Option<Range<u64>>,
    /// The size, once it is known.
    pub size: Option<u64>,
}

impl Wanted {
    /// Whether it asks for all bytes as one part. Some servers answer that with the file, though they send parts.
    fn is_all(&self) -> bool {
        self.range.as_ref().is_some_and(|range| range.start == 0 && range.end == u64::MAX)
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Trouble with this source.
    Trouble(Trouble),
    /// The file is not the one that the download began with.
    Changed,
    /// The server has no such bytes; the file has so many.
    NoSuchBytes(Option<u64>),
}

impl Refusal {
    const PAGE: Self = Self::Trouble(Trouble::Page);

    fn failed(why: impl Into<String>) -> Self {
        Self::Trouble(Trouble::Failed(why.into()))
    }

    fn no_parts(why: &str) -> Self {
        Self::Trouble(Trouble::NoParts(why.to_owned()))
    }

    fn useless(why: impl Into<String>) -> Self {
        Self::Trouble(Trouble::Useless(why.into()))
    }
}

/// How a response is dealt with.
enum Step {
    Done(Box<Answer>),
    /// Ask again: from the mirror's own address, or without `If-Range`.
    Again,
    /// Ask again, since this host has another file.
    Elsewhere,
    /// Compare the host before its bytes are used.
    Compare,
}

impl Source {
    /// A source that was not asked yet.
    pub fn new(mirror: Url, route: Route, label: String, tls: Tls, peers: Peers) -> Self {
        Self { mirror, route, label, tls, peers, memory: Mutex::default() }
    }

    /// A new connection to it, opened when it is needed.
    pub fn connection(&self) -> Connection {
        let (route, tls, peers) = (self.route.clone(), self.tls.clone(), self.peers.clone());
        if self.mirror.scheme().is_http() {
            Connection::Http(HttpConnection::new(route, tls, peers))
        } else {
            Connection::Ftp(FtpConnection::new(route, tls, peers))
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a download: later answers must have this version, and further hosts these bytes.
    pub fn begin(&self, version: Validator, begin: FileBegin) {
        let mut memory = self.memory();
        memory.hosts = Hosts::begin(version);
        memory.begin = Some(begin);
    }

    /// The version of the file there.
    pub fn version(&self) -> Validator {
        self.memory().hosts.own().clone()
    }

    /// Why one answer has to bring everything, as far as answers have shown.
    pub fn takes_whole(&self) -> Option<&'static str> {
        self.memory().takes_whole
    }

    /// Whether the server names no version of the file.
    pub fn lacks_version(&self) -> bool {
        self.memory().lacks_version
    }

    /// Notes that the server names no version of the file.
    pub fn lack_version(&self) {
        self.memory().lacks_version = true;
    }

    /// Whether the server calls the file compressed, and sends it plain.
    pub fn is_mislabelled(&self) -> bool {
        self.memory().is_mislabelled
    }

    /// Whether the server refused a request or a part.
    pub fn was_refused(&self) -> bool {
        let memory = self.memory();
        memory.was_busy || memory.denials > 0
    }

    /// Whether the server refused a request because there were too many.
    pub fn was_busy(&self) -> bool {
        self.memory().was_busy
    }

    /// Asks for bytes.
    pub async fn ask(&self, connection: &mut Connection, wanted: &Wanted) -> Result<Answer, Refusal> {
        let answer = match connection {
            Connection::Http(connection) => self.ask_http(connection, wanted).await,
            Connection::Ftp(connection) => return self.ask_ftp(connection, wanted).await,
        };
        if answer.is_err() {
            self.forget_redirect();
        }
        answer
    }

    /// Uses another address of the server that was asked last, if it has one: this one gives no answer.
    pub fn forget_peer(&self) {
        let asked = self.memory().asked.clone();
        let server = asked.as_ref().unwrap_or(&self.mirror);
        self.peers.forget((server.host(), server.port()), &self.route);
    }

    /// Asks the mirror itself next time: the host to which it redirected gives no answer, and it may name another one.
    pub fn forget_redirect(&self) {
        self.memory().redirected = None;
    }

    async fn ask_http(&self, connection: &mut HttpConnection, wanted: &Wanted) -> Result<Answer, Refusal> {
        let mut why = "the server changes its answer with every request";
        for _ in 0..MOST_STEPS {
            match self.attempt(connection, wanted).await? {
                Step::Done(answer) => return Ok(*answer),
                Step::Again => {}
                Step::Elsewhere => why = OTHER,
                Step::Compare => {
                    connection.close();
                    self.compare(connection).await?;
                }
            }
            connection.close();
        }
        Err(Refusal::failed(why))
    }

    /// Whether the file is still the one that came, where a server does not say that with the bytes themselves. `Err` if it
    /// gives no answer.
    pub async fn still_has(
        &self,
        connection: &mut Connection,
        (version, size): (&Validator, Option<u64>),
    ) -> Result<bool, String> {
        let Connection::Ftp(connection) = connection else { return Ok(true) };
        for pause in CONFIRM_PAUSES {
            if let Ok(Ok(state)) = timeout(ANSWER, connection.state(&self.mirror)).await {
                let is_other_size = state.size.zip(size).is_some_and(|(one, other)| one != other);
                return Ok(!is_other_size && version.compare(&state.version) != Same::No);
            }
            connection.close();
            sleep(pause).await;
        }
        Err("the server does not say whether the file changed while it was fetched".to_owned())
    }

    async fn ask_ftp(&self, connection: &mut FtpConnection, wanted: &Wanted) -> Result<Answer, Refusal> {
        let got = connection.get(&self.mirror, wanted.range.clone()).await;
        let FtpAnswer { start, size, is_part, version, body } = got.map_err(Refusal::Trouble)?;
        match self.check(&version, size, wanted) {
            Standing::Fits => {}
            _ => return Err(Refusal::Changed),
        }
        let (body, is_all) = (Body::of_ftp(body), wanted.range.is_none());
        Ok(Answer { start, size, is_part, is_all, version, digest: None, is_page: false, body })
    }

    async fn attempt(&self, connection: &mut HttpConnection, wanted: &Wanted) -> Result<Step, Refusal> {
        let start = wanted.range.as_ref().map_or(0, |range| range.start);
        let Response { head, body, was_redirected, is_redirect, was_conditional } =
            self.follow(connection, wanted).await?;
        let mut body = Body::of_http(body);
        let (head, verdict) = self.judge(head, &mut body, start).await?;
        let begins_file =
            matches!(verdict, Verdict::Part(0, _) | Verdict::Whole(_) | Verdict::Packed { is_whole: true });
        let is_packed = matches!(verdict, Verdict::Packed { .. });
        let is_page = begins_file && self.begins_as_page(&head, &mut body).await? || head.is_page();
        match wanted.size {
            // Some servers call every file a page.
            None => self.memory().begins_as_page = is_page,
            Some(_) if is_page && !self.memory().begins_as_page => return Err(Refusal::PAGE),
            Some(_) => {}
        }
        if let Some(step) = self.step_elsewhere(&head.validator, (&verdict, start), wanted)? {
            return Ok(step);
        }
        let answer = |start, size, is_part| Answer {
            start,
            size,
            is_part,
            is_all: head.is_all(),
            version: head.validator.clone(),
            // A server's hash is that of the bytes it sends (RFC 9530 §3).
            digest: head.digest.clone().filter(|_| !is_packed),
            is_page,
            body,
        };
        match verdict {
            Verdict::Part(begin, size) => {
                self.memory().on_part(start);
                Ok(Step::Done(Box::new(answer(begin, size, true))))
            }
            Verdict::Whole(size) if start == 0 => {
                let is_part = wanted.is_all() && size.is_some() && head.accepts_ranges();
                Ok(Step::Done(Box::new(answer(0, size, is_part))))
            }
            Verdict::Whole(size) if wanted.size.is_some() && self.memory().is_plain() => {
                let mut answer = answer(0, size, false);
                self.begins_as_before(&mut answer.body).await?;
                Ok(Step::Done(Box::new(answer)))
            }
            Verdict::Whole(_) if !was_conditional => {
                self.memory().denials += 1;
                Err(Refusal::no_parts("the server sends the whole file instead of a part"))
            }
            Verdict::Whole(_) => {
                // Nothing changed, so the server does not understand `If-Range`. Answers are compared instead.
                self.memory().dislikes_if_range = true;
                Ok(Step::Again)
            }
            Verdict::Packed { .. } if wanted.size.is_some() => {
                self.memory().takes_whole.get_or_insert(PACKED);
                Err(Refusal::Changed)
            }
            Verdict::Packed { is_whole: true } => Ok(Step::Done(Box::new(answer(0, None, false)))),
            // Parts of compressed bytes are of no use: without a size, everything is asked for instead.
            Verdict::Packed { .. } if wanted.range.is_some() => {
                Ok(Step::Done(Box::new(answer(start, None, true))))
            }
            Verdict::Packed { .. } => Err(Refusal::useless(format!("the server {PACKED}"))),
            Verdict::Malformed(_) if head.status == 304 && was_conditional => {
                self.memory().dislikes_if_range = true;
                Ok(Step::Again)
            }
            verdict => {
                self.refused(verdict, wanted, was_redirected || (is_redirect && wanted.size.is_some()))
            }
        }
    }

    /// How a response without bytes is dealt with. `was_link`: it came from a link that the mirror may replace.
    fn refused(&self, verdict: Verdict, wanted: &Wanted, was_link: bool) -> Result<Step, Refusal> {
        match verdict {
            Verdict::NoSuchBytes(size) if wanted.size.is_none() => Err(Refusal::NoSuchBytes(size)),
            Verdict::NoSuchBytes(_) => {
                self.memory().denials += 1;
                Err(Refusal::no_parts("the server denies that it has these bytes"))
            }
            // The link has expired, or leads to a further host that lacks the file.
            Verdict::Denied(_) if was_link => {
                self.memory().redirected = None;
                Ok(Step::Again)
            }
            Verdict::Denied(status) => Err(Refusal::useless(match status {
                404 => "the server has no such file (404)".to_owned(),
                410 => "the file is gone (410)".to_owned(),
                400 => "the server answers 400".to_owned(),
                status => format!("the server does not allow it ({status})"),
            })),
            Verdict::Busy(pause) => {
                self.memory().was_busy = true;
                Err(Refusal::Trouble(Trouble::Busy(pause)))
            }
            Verdict::Retry(why) => Err(Refusal::failed(why)),
            Verdict::Malformed(why) => {
                self.memory().denials += u32::from(wanted.size.is_some());
                Err(Refusal::no_parts(&why))
            }
            Verdict::Useless(why) => Err(Refusal::useless(why)),
            _ => Err(Refusal::useless("the server redirects without end")),
        }
    }

    /// Whether a web page comes that its server does not call one.
    ///
    /// # Errors
    /// The page is refused if no file of this name can be one.
    async fn begins_as_page(&self, head: &Head, body: &mut Body) -> Result<bool, Refusal> {
        let cannot_be_text = page::cannot_be_text(self.mirror.path());
        if !cannot_be_text && !head.is_untyped() {
            return Ok(false);
        }
        match timeout(ANSWER, body.peek(page::ENOUGH)).await {
            Ok(Ok(begin)) if cannot_be_text && page::begins_page(begin) => Err(Refusal::PAGE),
            Ok(Ok(begin)) => Ok(page::begins_page(begin)),
            // It is noticed again when the body is read.
            _ if !cannot_be_text => Ok(false),
            Ok(Err(why)) => Err(Refusal::failed(why)),
            Err(_) => Err(Refusal::failed("the server sends nothing")),
        }
    }
}
