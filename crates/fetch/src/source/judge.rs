//! Judges an answer: whether it is compressed as its server says, and of the file that the download began with.

use tokio::time::timeout;

use super::{ANSWER, Refusal, Source, Step, Wanted};
use crate::connection::Body;
use crate::hosts::Standing;
use crate::http::head::{Head, Verdict};
use crate::http::unpack;
use crate::http::validator::Validator;

/// Why only one answer with everything is sure to be of one version.
const VERSION_LOST: &str = "does not name the version of its parts";
const SIZES: &str = "names another size in other answers";
impl Source {
    /// Judges a response. A body that begins the file shows whether it is compressed as the server says.
    pub(super) async fn judge(
        &self,
        head: Head,
        body: &mut Body,
        start: u64,
    ) -> Result<(Head, Verdict), Refusal> {
        let verdict = head.judge(start, self.mirror.path());
        let Verdict::Packed { is_whole } = verdict else { return Ok((head, verdict)) };
        let is_plain = match is_whole || start == 0 {
            true => {
                let begin = timeout(ANSWER, body.peek(unpack::BEGINNING.len())).await;
                let begin = begin.map_err(|_| Refusal::failed("the server sends nothing"))?;
                let is_plain = unpack::is_plain(begin.map_err(Refusal::failed)?);
                self.memory().is_mislabelled = is_plain;
                is_plain
            }
            false => self.memory().is_mislabelled,
        };
        if !is_plain {
            body.unpack();
            return Ok((head, verdict));
        }
        let head = head.plain();
        let verdict = head.judge(start, self.mirror.path());
        Ok((head, verdict))
    }

    /// Compares an answer with the file that the download began with; the step if its host is another one.
    pub(super) fn step_elsewhere(
        &self,
        version: &Validator,
        (verdict, start): (&Verdict, u64),
        wanted: &Wanted,
    ) -> Result<Option<Step>, Refusal> {
        if let Verdict::Part(_, size) | Verdict::Whole(size) | Verdict::NoSuchBytes(size) = verdict {
            match self.check(version, *size, wanted) {
                Standing::Fits => {}
                Standing::Changed => {
                    self.note_contradiction((version, verdict), wanted);
                    return Err(Refusal::Changed);
                }
                Standing::Stranger => return Ok(Some(Step::Compare)),
                Standing::Other => {
                    let mut memory = self.memory();
                    memory.hosts.note(version.clone(), false);
                    memory.redirected = None;
                    return Ok(Some(Step::Elsewhere));
                }
            }
        }
        let is_lost = wanted.size.is_some() && self.is_lost(version, (verdict, start));
        if is_lost { Err(Refusal::Changed) } else { Ok(None) }
    }

    /// Compares an answer with the file that the download began with.
    pub(super) fn check(&self, version: &Validator, size: Option<u64>, wanted: &Wanted) -> Standing {
        match wanted.size {
            None => Standing::Fits,
            Some(known) => self.memory().hosts.judge(version, size.is_some_and(|size| size != known)),
        }
    }

    /// Notes if a part of a file of another size calls itself the version that the download began with.
    fn note_contradiction(&self, (version, verdict): (&Validator, &Verdict), wanted: &Wanted) {
        let mut memory = self.memory();
        let is_other_size = matches!(verdict, Verdict::Part(_, size) if *size != wanted.size);
        if is_other_size && memory.hosts.is_own(version) {
            memory.takes_whole.get_or_insert(SIZES);
        }
    }

    /// Whether an answer that brings bytes leaves out the version that its host gave before; it is remembered. RFC 9110
    /// §15.3.7 wants the version in every part: without it, the bytes may be of another one.
    fn is_lost(&self, version: &Validator, (verdict, start): (&Verdict, u64)) -> bool {
        let mut memory = self.memory();
        let brings_bytes = match verdict {
            Verdict::Part(..) => true,
            Verdict::Whole(_) => start == 0 || memory.is_plain(),
            _ => false,
        };
        let is_lost = brings_bytes && memory.hosts.is_version_lost(version);
        if is_lost {
            memory.takes_whole.get_or_insert(VERSION_LOST);
        }
        is_lost
    }
}
