//! A source: a mirror over a route. Asks it for bytes and checks what it answers.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use tokio::time::timeout;

use crate::checksum::Checksum;
use crate::connection::{Body, Connection};
use crate::ftp::{FtpAnswer, FtpConnection};
use crate::http::head::{Head, Verdict};
use crate::http::validator::{Same, Validator};
use crate::http::{Ask, HttpConnection};
use crate::plan::Trouble;
use crate::route::Route;
use crate::tls::Tls;
use crate::url::{Scheme, Url};

/// How long a server may take to begin its answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Why a source is of no use at the moment.
pub(crate) const PAGE: &str = "a web page came instead of the file: the network may want a login";
/// Most redirects in a row.
const MOST_REDIRECTS: usize = 10;

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
    memory: Mutex<Memory>,
}

/// Facts that a source has learned from answers.
#[derive(Debug, Default)]
struct Memory {
    /// Where the mirror redirects to. Such addresses may expire.
    redirected: Option<Url>,
    /// The server answers `If-Range` with the whole file although nothing changed.
    dislikes_if_range: bool,
    /// The first bytes came as a web page.
    begins_as_page: bool,
    /// The version of the file there.
    version: Validator,
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
    /// The version of the file.
    pub version: Validator,
    /// The hash of the file by the server.
    pub digest: Option<Checksum>,
    /// Whether a web page came where the file's name promises something else.
    pub is_page: bool,
    /// The bytes.
    pub body: Body,
}

/// A request to a source.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Bytes of the file; everything without.
    pub range: Option<Range<u64>>,
    /// The size, once it is known.
    pub size: Option<u64>,
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
    fn failed(why: impl Into<String>) -> Self {
        Self::Trouble(Trouble::Failed(why.into()))
    }

    fn useless(why: impl Into<String>) -> Self {
        Self::Trouble(Trouble::Useless(why.into()))
    }
}

/// A response that is no redirect.
struct Response {
    head: Head,
    body: Incoming,
    /// An address from an earlier redirect was asked.
    was_redirected: bool,
    /// The request had an `If-Range`.
    was_conditional: bool,
}

/// How a response is dealt with.
enum Step {
    Done(Box<Answer>),
    /// Ask again: from the mirror's own address, or without `If-Range`.
    Again,
}

impl Source {
    /// A source that was not asked yet.
    pub fn new(mirror: Url, route: Route, label: String, tls: Tls) -> Self {
        Self { mirror, route, label, tls, memory: Mutex::default() }
    }

    /// A new connection to it, opened when it is needed.
    pub fn connection(&self) -> Connection {
        let (route, tls) = (self.route.clone(), self.tls.clone());
        if self.mirror.scheme().is_http() {
            Connection::Http(HttpConnection::new(route, tls))
        } else {
            Connection::Ftp(FtpConnection::new(route, tls))
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version of the file that later answers must have.
    pub fn set_version(&self, version: Validator) {
        self.memory().version = version;
    }

    /// The version of the file there.
    pub fn version(&self) -> Validator {
        self.memory().version.clone()
    }

    /// Asks for bytes.
    ///
    /// # Errors
    /// Why they do not come.
    pub async fn ask(&self, connection: &mut Connection, wanted: &Wanted) -> Result<Answer, Refusal> {
        let connection = match connection {
            Connection::Http(connection) => connection,
            Connection::Ftp(connection) => return self.ask_ftp(connection, wanted).await,
        };
        // Once from a redirect's target, once from the mirror itself, once without `If-Range`.
        for _ in 0..4 {
            match self.attempt(connection, wanted).await? {
                Step::Done(answer) => return Ok(*answer),
                Step::Again => connection.close(),
            }
        }
        Err(Refusal::failed("the server changes its answer with every request"))
    }

    async fn ask_ftp(&self, connection: &mut FtpConnection, wanted: &Wanted) -> Result<Answer, Refusal> {
        let got = connection.get(&self.mirror, wanted.range.clone()).await;
        let FtpAnswer { start, size, is_part, version, body } = got.map_err(Refusal::Trouble)?;
        self.check(&version, size, wanted)?;
        Ok(Answer { start, size, is_part, version, digest: None, is_page: false, body: Body::Ftp(body) })
    }

    async fn attempt(&self, connection: &mut HttpConnection, wanted: &Wanted) -> Result<Step, Refusal> {
        let start = wanted.range.as_ref().map_or(0, |range| range.start);
        let Response { head, body, was_redirected, was_conditional } =
            self.follow(connection, wanted).await?;
        let is_page = head.is_page(self.mirror.path());
        match wanted.size {
            // Some servers call every file a page.
            None => self.memory().begins_as_page = is_page,
            Some(_) if is_page && !self.memory().begins_as_page => return Err(Refusal::failed(PAGE)),
            Some(_) => {}
        }
        let answer = |start, size, is_part| Answer {
            start,
            size,
            is_part,
            version: head.validator.clone(),
            digest: head.digest.clone(),
            is_page,
            body: Body::Http(body),
        };
        match head.judge(start, self.mirror.path()) {
            Verdict::Part(begin, size) => {
                self.check(&head.validator, size, wanted)?;
                Ok(Step::Done(Box::new(answer(begin, size, true))))
            }
            Verdict::Whole(size) if start == 0 => {
                self.check(&head.validator, size, wanted)?;
                Ok(Step::Done(Box::new(answer(0, size, false))))
            }
            Verdict::Whole(size) => {
                self.check(&head.validator, size, wanted)?;
                if !was_conditional {
                    return Err(Refusal::failed("the server sends the whole file instead of a part"));
                }
                // Nothing changed, so the server does not understand `If-Range`. Answers are compared instead.
                self.memory().dislikes_if_range = true;
                Ok(Step::Again)
            }
            Verdict::NoSuchBytes(size) => Err(match (size, wanted.size) {
                (Some(size), Some(known)) if size != known => Refusal::Changed,
                (size, None) => Refusal::NoSuchBytes(size),
                _ => Refusal::failed("the server denies that it has these bytes"),
            }),
            Verdict::Denied(_) if was_redirected => {
                self.memory().redirected = None;
                Ok(Step::Again)
            }
            Verdict::Denied(status) => Err(Refusal::useless(match status {
                404 => "the server has no such file (404)".to_owned(),
                410 => "the file is gone (410)".to_owned(),
                400 => "the server answers 400".to_owned(),
                status => format!("the server does not allow it ({status})"),
            })),
            Verdict::Busy(pause) => Err(Refusal::Trouble(Trouble::Busy(pause))),
            Verdict::Retry(why) => Err(Refusal::failed(why)),
            Verdict::Useless(why) => Err(Refusal::useless(why)),
            Verdict::Redirect(_) => Err(Refusal::useless("the server redirects without end")),
        }
    }

    /// Compares an answer with the file that the download began with.
    fn check(&self, version: &Validator, size: Option<u64>, wanted: &Wanted) -> Result<(), Refusal> {
        let other_size = size.zip(wanted.size).is_some_and(|(size, known)| size != known);
        let other = wanted.size.is_some() && self.memory().version.compare(version) == Same::No;
        if other_size || other { Err(Refusal::Changed) } else { Ok(()) }
    }

    /// The condition for a request to `host`: that the file is still the one that the download began with.
    fn if_range(&self, wanted: &Wanted, host: &str) -> Option<String> {
        let memory = self.memory();
        let is_late = wanted.size.is_some() && wanted.range.as_ref().is_some_and(|range| range.start > 0);
        let usable = is_late && !memory.dislikes_if_range;
        memory.version.if_range(host).filter(|_| usable).map(str::to_owned)
    }

    /// Sends the request, and again wherever the server redirects to.
    async fn follow(&self, connection: &mut HttpConnection, wanted: &Wanted) -> Result<Response, Refusal> {
        let known = self.memory().redirected.clone();
        let was_redirected = known.is_some();
        let mut url = known.unwrap_or_else(|| self.mirror.clone());
        for _ in 0..=MOST_REDIRECTS {
            let host = url.authority();
            let ask = Ask { range: wanted.range.clone(), if_range: self.if_range(wanted, &host) };
            let response = timeout(ANSWER, connection.get(&url, &ask)).await;
            let response = response.map_err(|_| Refusal::failed("the server does not answer"))?;
            let response = response.map_err(Refusal::Trouble)?;
            let mut head = Head::read(response.status().as_u16(), response.headers(), SystemTime::now());
            head.validator = head.validator.of_host(host);
            let Verdict::Redirect(to) = head.judge(0, "") else {
                if url != self.mirror {
                    self.memory().redirected = Some(url);
                }
                let (body, was_conditional) = (response.into_body(), ask.if_range.is_some());
                return Ok(Response { head, body, was_redirected, was_conditional });
            };
            let next =
                url.join(&to).map_err(|why| Refusal::useless(format!("a redirect leads nowhere: {why}")))?;
            if !next.scheme().is_http() || (url.scheme() == Scheme::Https && next.scheme() == Scheme::Http) {
                let why = format!("the server redirects to {next}, which is not encrypted");
                return Err(Refusal::useless(why));
            }
            url = next;
        }
        Err(Refusal::useless("the server redirects without end"))
    }
}
