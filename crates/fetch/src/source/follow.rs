//! Sends a request, and again wherever the server redirects to.

use std::time::SystemTime;

use hyper::StatusCode;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{ANSWER, MOST_ERRORS, Refusal, Source, Wanted};
use crate::http::head::{Head, Verdict};
use crate::http::{Ask, HttpConnection};
use crate::plan::Trouble;
use crate::url::{Scheme, Url};

/// Most redirects in a row.
const MOST_REDIRECTS: usize = 10;

/// A response that is no redirect.
pub(super) struct Response {
    pub(super) head: Head,
    pub(super) body: Incoming,
    /// An address from an earlier redirect was asked.
    pub(super) was_redirected: bool,
    /// A redirect led to this host.
    pub(super) is_redirect: bool,
    /// The request had an `If-Range`.
    pub(super) was_conditional: bool,
}

impl Source {
    /// The condition for a request to `host`: that the file is still the one that the download began with.
    fn if_range(&self, wanted: &Wanted, host: &str) -> Option<String> {
        let memory = self.memory();
        let is_late = wanted.size.is_some() && wanted.range.as_ref().is_some_and(|range| range.start > 0);
        let usable = is_late && !memory.dislikes_if_range && !memory.is_plain();
        memory.hosts.if_range(host).filter(|_| usable).map(str::to_owned)
    }

    /// Why there is no response. A host to which the mirror redirects is named.
    fn unanswered(&self, trouble: Trouble, (url, wanted): (&Url, &Wanted)) -> Refusal {
        if matches!(trouble, Trouble::NoParts(_)) && wanted.size.is_some() {
            self.memory().denials += 1;
        }
        let is_own = url.same_server(&self.mirror);
        Refusal::Trouble(if is_own { trouble } else { trouble.at_redirect(&url.authority()) })
    }

    /// Whether the server answers again and again that it fails. One that sends the file may just refuse further requests.
    fn has_failed(&self, status: StatusCode, wanted: &Wanted) -> bool {
        let mut memory = self.memory();
        let is_refusal = status == StatusCode::SERVICE_UNAVAILABLE && wanted.size.is_some();
        memory.errors = if status.is_server_error() && !is_refusal { memory.errors + 1 } else { 0 };
        let has_failed = memory.errors >= MOST_ERRORS;
        if has_failed {
            memory.errors = 0;
        }
        has_failed
    }

    /// Sends the request, and again wherever the server redirects to.
    pub(super) async fn follow(
        &self,
        connection: &mut HttpConnection,
        wanted: &Wanted,
    ) -> Result<Response, Refusal> {
        let known = self.memory().redirected.clone();
        let was_redirected = known.is_some();
        let mut url = known.unwrap_or_else(|| self.mirror.clone());
        for _ in 0..=MOST_REDIRECTS {
            let host = url.authority();
            let range = wanted.range.clone().filter(|_| wanted.size.is_none() || !self.memory().is_plain());
            let ask = Ask { range, if_range: self.if_range(wanted, &host) };
            self.memory().asked = Some(url.clone());
            let response = timeout(ANSWER, connection.get(&url, &ask)).await.unwrap_or_else(|_| {
                connection.forget_peer();
                Err(Trouble::Failed("the server does not answer".to_owned()))
            });
            let response = response.map_err(|trouble| self.unanswered(trouble, (&url, wanted)))?;
            let mut head = Head::read(response.status().as_u16(), response.headers(), SystemTime::now());
            head = head.at(url.path());
            head.validator = head.validator.of_host(host);
            let Verdict::Redirect(to) = head.judge(0, "") else {
                if response.status().is_success() {
                    connection.keep_peer();
                }
                if self.has_failed(response.status(), wanted) {
                    connection.forget_peer();
                }
                let is_redirect = url != self.mirror;
                if is_redirect {
                    self.memory().redirected = Some(url);
                }
                let (body, was_conditional) = (response.into_body(), ask.if_range.is_some());
                return Ok(Response { head, body, was_redirected, is_redirect, was_conditional });
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
