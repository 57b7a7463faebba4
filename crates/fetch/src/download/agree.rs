//! Compares what several mirrors sent, when all bytes are there.
//!
//! Files of the same size may begin alike, so the first 64 KiB of each mirror prove little. The mirror that is named first, of those
//! that answer, decides. Equal hashes or strong tags prove that another one has the same file. Otherwise the mirror that decides is
//! asked for the ends of the ranges that others sent, in this attempt or an earlier one: there its own bytes go on. If they
//! differ, only bytes of mirrors that agree with it are kept.

use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::compare::sample;
use super::lane::Active;
use super::parts::Run;
use super::{PROVES, TICK};
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::http::validator::Validator;
use crate::plan::Standing;
use crate::ranges::RangeSet;
use crate::store::Origins;
use crate::url::Url;

/// The size of a sample, and most samples of what one mirror sent. An FTP server sends the rest of the file with each.
const SAMPLE: u64 = 16 << 10;
const MOST_SAMPLES: usize = 8;
const MOST_FTP_SAMPLES: usize = 1;
/// How long one sample may take, and all of them.
const ONE: Duration = Duration::from_secs(5);
const ALL: Duration = Duration::from_secs(10);

/// The version of the file on a mirror.
pub(super) struct Fact {
    pub(super) mirror: Arc<str>,
    pub(super) version: Validator,
    pub(super) digest: Option<Checksum>,
}

impl Fact {
    fn proves_same(&self, other: &Self) -> bool {
        let digests = self.digest.as_ref().zip(other.digest.as_ref());
        let has_same_hash = digests.is_some_and(|(one, other)| one.differs(other) == Some(false));
        has_same_hash || self.version.is_shared_with(&other.version)
    }
}

/// Mirrors by the outcome of a comparison.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) differing: Vec<Arc<str>>,
    /// Equal as far as the samples show.
    sampled: Vec<Arc<str>>,
    /// No sample came.
    unsure: Vec<Arc<str>>,
}

impl Compared {
    /// Reports for people.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.sampled.is_empty() {
            let names = names(&self.sampled);
            notes.push(format!(
                "only samples of the bytes from {names} were compared with another mirror; {PROVES}"
            ));
        }
        if !self.unsure.is_empty() {
            let names = names(&self.unsure);
            notes.push(format!("bytes from {names} could not be compared with the other mirrors; {PROVES}"));
        }
        notes
    }
}

/// The hosts of mirrors, for people.
pub(super) fn names(mirrors: &[Arc<str>]) -> String {
    let name = |mirror: &Arc<str>| mirror.parse::<Url>().map_or(mirror.to_string(), |url| url.authority());
    mirrors.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl Run<'_> {
    /// Compares what came from other mirrors than the one that decides.
    pub(super) async fn compare_mirrors(&self) -> Compared {
        let Some(origins) = self.written().await else { return Compared::default() };
        let mut deciders: Vec<_> = self.active.iter().map(|one| self.context.mirror(one.index)).collect();
        deciders.sort_unstable();
        deciders.dedup();
        let mut unsure: Option<Vec<Arc<str>>> = None;
        for decider in deciders {
            let own = self.context.job.mirrors[decider].to_string();
            let others =
                origins.iter().filter(|(mirror, _)| ***mirror != *own && !self.is_same(&own, mirror));
            let others: Vec<_> = others.collect();
            if others.is_empty() {
                return Compared::default();
            }
            if let Some(compared) = self.compare_with(decider, &others).await {
                return compared;
            }
            unsure.get_or_insert_with(|| others.iter().map(|(mirror, _)| (*mirror).clone()).collect());
        }
        Compared { unsure: unsure.unwrap_or_default(), ..Compared::default() }
    }

    /// Whether two mirrors are known to have the same file.
    fn is_same(&self, one: &str, other: &str) -> bool {
        let mut pairs = self.facts.iter().flat_map(|fact| self.facts.iter().map(move |other| (fact, other)));
        pairs.any(|(a, b)| *a.mirror == *one && *b.mirror == *other && a.proves_same(b))
    }

    /// Compares what these mirrors sent with samples from the one that decides; `None` if that one sends none.
    async fn compare_with(&self, decider: usize, others: &[(&Arc<str>, &RangeSet)]) -> Option<Compared> {
        let sources = self.active.iter().filter(|active| self.context.mirror(active.index) == decider);
        let is_in =
            |active: &&Arc<Active>| !matches!(self.shared.planner().standing(active.id), Standing::Out(_));
        let is_http = self.context.job.mirrors[decider].scheme().is_http();
        let most = if is_http { MOST_SAMPLES } else { MOST_FTP_SAMPLES };
        let mut sampler =
            Sampler { run: self, sources: sources.filter(is_in).cloned().collect(), open: None };
        let (mut compared, begin) = (Compared::default(), Instant::now());
        for (mirror, ranges) in others {
            let mut outcome = &mut compared.unsure;
            for range in ends(ranges, most) {
                if begin.elapsed() > ALL {
                    break;
                }
                let Some(bytes) = sampler.ask(range.clone()).await else { break };
                outcome = &mut compared.sampled;
                if self.shared.store.read(range).is_ok_and(|on_disk| on_disk != bytes) {
                    outcome = &mut compared.differing;
                    break;
                }
            }
            outcome.push((*mirror).clone());
        }
        sampler.end();
        (compared.unsure.len() < others.len()).then_some(compared)
    }

    /// The mirrors that sent the file, as soon as everything is written; `None` if that fails, which is reported later.
    async fn written(&self) -> Option<Origins> {
        let store = &self.shared.store;
        let waiting = async {
            while !store.written().covers(&(0..self.shared.size)) {
                sleep(TICK).await;
            }
        };
        timeout(ALL, waiting).await.ok()?;
        Some(store.origins())
    }
}

/// The ends of ranges: of the last one, after which a change earlier in the file still shows, and of the longest others.
fn ends(ranges: &RangeSet, most: usize) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = ranges.iter().collect();
    let Some(last) = ranges.pop() else { return Vec::new() };
    ranges.sort_by_key(|range| std::cmp::Reverse(range.end - range.start));
    ranges.insert(0, last);
    ranges.truncate(most);
    ranges.into_iter().map(|range| range.end.saturating_sub(SAMPLE).max(range.start)..range.end).collect()
}

/// Asks a mirror for samples, over one route after the other.
struct Sampler<'a, 'b> {
    run: &'a Run<'b>,
    sources: Vec<Arc<Active>>,
    /// A connection of the last source.
    open: Option<Connection>,
}

impl Sampler<'_, '_> {
    async fn ask(&mut self, range: Range<u64>) -> Option<Bytes> {
        loop {
            let active = self.sources.last()?.clone();
            if self.has_room(&active, range.end - range.start) {
                let spare = || active.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
                // An FTP server may refuse another login.
                let is_http = active.source.mirror.scheme().is_http();
                let new = || is_http.then(|| active.source.connection());
                if let Some(mut connection) = self.open.take().or_else(spare).or_else(new) {
                    let asking =
                        sample((&active.source, &mut connection), range.clone(), self.run.shared.size);
                    let came = timeout(ONE, asking).await;
                    self.open = Some(connection);
                    if let Ok(Ok(Some(bytes))) = came {
                        return Some(bytes);
                    }
                }
            }
            self.end();
            self.sources.pop();
        }
    }

    /// Gives the connection back.
    fn end(&mut self) {
        if let Some((connection, active)) = self.open.take().zip(self.sources.last())
            && connection.is_open()
        {
            *active.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        }
    }

    /// Whether a cap leaves bytes for a sample; takes them.
    fn has_room(&self, active: &Active, bytes: u64) -> bool {
        let mut planner = self.run.shared.planner();
        let cap = self.run.context.options.routes[active.route].cap;
        let has_room = cap.is_none_or(|cap| planner.caps()[cap] >= bytes);
        if has_room {
            planner.spend(active.id, bytes);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_end_the_last_range_and_the_longest_others() {
        let ranges: RangeSet = [0..100, 200..300_000, 400_000..450_000].into_iter().collect();
        assert_eq!(ends(&ranges, 2), [450_000 - SAMPLE..450_000, 300_000 - SAMPLE..300_000]);
        assert_eq!(ends(&ranges, 8).last(), Some(&(0..100)));
        assert!(ends(&RangeSet::default(), 8).is_empty());
    }
}
