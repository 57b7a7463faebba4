//! Compares what a server sends with bytes that have come: of a further host, and of a whole file in place of a part.

use tokio::time::timeout;

use super::follow::Response;
use super::{ANSWER, FileBegin, MOST_STEPS, Refusal, Source, Wanted};
use crate::connection::Body;
use crate::http::HttpConnection;
use crate::http::head::Verdict;
use crate::http::validator::Validator;
use crate::plan::Trouble;

impl Source {
    /// Fails unless a whole file begins as the one that the download began with.
    pub(super) async fn begins_as_before(&self, body: &mut Body) -> Result<(), Refusal> {
        let Some(FileBegin { first, .. }) = self.memory().begin.clone() else { return Ok(()) };
        let begin = timeout(ANSWER, body.peek(first.len())).await;
        let begin = begin.map_err(|_| Refusal::failed("the server is silent"))?;
        let is_same = begin.map_err(Refusal::failed)?.starts_with(&first);
        if is_same { Ok(()) } else { Err(Refusal::Changed) }
    }

    /// Compares the host to which the mirror redirects with the first and the last received bytes, and notes the result.
    /// There must be bytes behind the first ones, and the same host must answer both times. Otherwise the host stays unknown.
    pub(super) async fn compare(&self, connection: &mut HttpConnection) -> Result<(), Refusal> {
        let Some(FileBegin { first, written }) = self.memory().begin.clone() else { return Ok(()) };
        let len = first.len() as u64;
        let last = written.last(len).filter(|(at, bytes)| at + bytes.len() as u64 > len);
        let mut has_file = false;
        if let Some((at, bytes)) = last {
            let (version, holds) = self.holds(connection, (0, &first)).await?;
            let (other, also) = match holds {
                true => self.holds(connection, (at, &bytes)).await?,
                false => (version.clone(), false),
            };
            if other.host() == version.host() {
                has_file = also;
                tracing::debug!(
                    source = self.label,
                    host = version.host(),
                    has_file,
                    "a redirect was compared"
                );
                self.memory().hosts.note(version, has_file);
            }
        }
        if !has_file {
            self.memory().redirected = None;
        }
        Ok(())
    }

    /// Asks for bytes that are known; returns the version of the host that answers, and whether it has the same.
    async fn holds(
        &self,
        connection: &mut HttpConnection,
        (at, known): (u64, &[u8]),
    ) -> Result<(Validator, bool), Refusal> {
        let wanted = Wanted { range: Some(at..at + known.len() as u64), size: None };
        for _ in 0..MOST_STEPS {
            let Response { head, body, is_redirect, .. } = self.follow(connection, &wanted).await?;
            let begin = match head.judge(at, self.mirror.path()) {
                Verdict::Part(begin, _) => begin,
                Verdict::Busy(pause) => return Err(Refusal::Trouble(Trouble::Busy(pause))),
                Verdict::Denied(_) if is_redirect => {
                    self.memory().redirected = None;
                    connection.close();
                    continue;
                }
                _ => return Err(Refusal::failed("a redirect leads to a host that cannot be compared")),
            };
            // An answer may begin earlier. More bytes than this are not worth the comparison.
            let skip = usize::try_from(at - begin).ok().filter(|skip| *skip <= known.len());
            let skip = skip.ok_or_else(|| Refusal::failed("the server sends other bytes than asked for"))?;
            let mut body = Body::of_http(body);
            let bytes = timeout(ANSWER, body.peek(skip + known.len())).await;
            let bytes = bytes.map_err(|_| Refusal::failed("the server is silent"))?;
            let has_same = bytes.map_err(Refusal::failed)?.get(skip..skip + known.len()) == Some(known);
            connection.close();
            return Ok((head.validator, has_same));
        }
        Err(Refusal::failed("no link to which the server redirects is good"))
    }
}
