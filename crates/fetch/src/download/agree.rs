//! Compares what several sources sent, when all bytes are there.
//!
//! Files of the same size may begin alike, so the first 64 KiB of each source prove little. The mirror that is named first, of those
//! that answer, decides, over the route that answered first. Equal hashes prove that another source has the same file.
//! Equal tags of two mirrors prove nothing: nginx makes them of size and time only. Those of one address over two routes prove little,
//! because several machines may answer there: one sample is enough, and a server that limits requests or parts gives none.
//! Otherwise the source that decides is asked for the ends of the ranges that others sent, in this attempt or an earlier one: there
//! its own bytes go on. If they differ, only bytes of sources that agree with it are kept.

use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::compare::{PAUSES, sample};
use super::lane::Active;
use super::parts::Run;
use super::{Context, PROVES, TICK};
use crate::checksum::Checksum;
use crate::connection::Connection;
use crate::http::validator::Validator;
use crate::plan::Standing;
use crate::ranges::RangeSet;
use crate::store::{Origins, mirror_and_route, origin};
use crate::url::Url;

/// The size of a sample, and most samples of what one mirror sent. An FTP server sends the rest of the file with each.
const SAMPLE: u64 = 16 << 10;
const MOST_SAMPLES: usize = 8;
const MOST_FTP_SAMPLES: usize = 1;
/// How long one sample may take, and all of them.
const ONE: Duration = Duration::from_secs(5);
const ALL: Duration = Duration::from_secs(10);

/// The version of the file at an origin.
pub(super) struct Fact {
    /// Without a route if it is from an earlier attempt.
    pub(super) origin: Arc<str>,
    pub(super) version: Validator,
    pub(super) digest: Option<Checksum>,
}

impl Fact {
    fn proves_same(&self, other: &Self) -> bool {
        let digests = self.digest.as_ref().zip(other.digest.as_ref());
        digests.is_some_and(|(one, other)| one.differs(other) == Some(false))
    }

    fn suggests_same(&self, other: &Self) -> bool {
        let is_one_mirror = mirror_of(&self.origin) == mirror_of(&other.origin);
        is_one_mirror && self.version.is_same_elsewhere(&other.version)
    }
}

fn mirror_of(origin: &str) -> &str {
    mirror_and_route(origin).0
}

/// Origins by the outcome of a comparison.
#[derive(Default)]
pub(super) struct Compared {
    /// The origin that decides.
    decider: Option<Arc<str>>,
    pub(super) differing: Vec<Arc<str>>,
    /// Equal as far as the samples show.
    sampled: Vec<Arc<str>>,
    /// No sample came.
    unsure: Vec<Arc<str>>,
    /// Origins of mirrors that are named before the one that decides, and sent no sample.
    silent: Vec<Arc<str>>,
}

impl Compared {
    /// Reports for people.
    pub(super) fn notes(&self, context: &Context) -> Vec<String> {
        let mut notes = Vec::new();
        let own = self.decider.as_deref().map(mirror_of);
        let sampled: Vec<_> =
            self.sampled.iter().filter(|origin| Some(mirror_of(origin)) != own).cloned().collect();
        if !sampled.is_empty() {
            let names = context.names(&sampled);
            notes.push(format!(
                "only samples of the bytes from {names} were compared with another mirror; {PROVES}"
            ));
        }
        if !self.unsure.is_empty() {
            let names = context.names(&self.unsure);
            notes.push(format!("bytes from {names} could not be compared with the other sources; {PROVES}"));
        }
        if let Some(decider) = self.decider.as_ref().filter(|_| !self.silent.is_empty()) {
            let (taken, names) = (context.names(std::slice::from_ref(decider)), context.names(&self.silent));
            notes.push(format!(
                "the file is that of {taken}: {names}, named before it, sends no samples; {PROVES}"
            ));
        }
        notes
    }

    /// The numbers of the sources with another file: a mirror over all routes, and the mirror that decides over some.
    pub(super) fn sources(&self, context: &Context) -> Vec<usize> {
        let own = self.decider.as_deref().map(mirror_of);
        let differs = |known: &str| {
            let is_same = |other: &Arc<str>| {
                **other == *known || (mirror_of(other) == mirror_of(known) && Some(mirror_of(known)) != own)
            };
            self.differing.iter().any(is_same)
        };
        let all = context.sources().into_iter().enumerate();
        let all = all.map(|(index, (source, route))| {
            (index, origin(&source.mirror.to_string(), &context.options.routes[route].name))
        });
        all.filter(|(_, known)| differs(known)).map(|(index, _)| index).collect()
    }
}

impl Context<'_> {
    /// The hosts of origins, for people, and the routes if there are several.
    pub(super) fn names(&self, origins: &[Arc<str>]) -> String {
        let name = |origin: &Arc<str>| {
            let (mirror, route) = mirror_and_route(origin);
            let host = mirror.parse::<Url>().map_or(mirror.to_owned(), |url| url.authority());
            let is_one = self.options.routes.len() == 1 || route.is_empty();
            if is_one { host } else { format!("{host} over {route}") }
        };
        origins.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

impl Run<'_> {
    /// Compares what came from other sources than the one that decides.
    pub(super) async fn compare_mirrors(&self) -> Compared {
        let Some(origins) = self.written().await else { return Compared::default() };
        let mut deciders = self.active.clone();
        // Sources of one mirror stay in the order of their answers.
        deciders.sort_by_key(|active| self.context.mirror(active.index));
        let begin = Instant::now();
        let (mut unsure, mut silent): (Option<Vec<Arc<str>>>, Vec<Arc<str>>) = (None, Vec::new());
        for decider in deciders {
            let own = &decider.origin;
            let others = origins.iter().filter(|(origin, _)| *origin != own && !self.is_same(own, origin));
            let others: Vec<_> = others.collect();
            let compared = match others.is_empty() {
                true => Some(Compared::default()),
                false if begin.elapsed() > ALL => break,
                false => self.compare_with(&decider, &others).await,
            };
            if let Some(compared) = compared {
                let is_open =
                    |silent: &Arc<str>| mirror_of(silent) != mirror_of(own) && !self.is_same(own, silent);
                silent.retain(is_open);
                return Compared { decider: Some(own.clone()), silent, ..compared };
            }
            silent.push(own.clone());
            unsure.get_or_insert_with(|| others.iter().map(|(origin, _)| (*origin).clone()).collect());
        }
        Compared { unsure: unsure.unwrap_or_default(), ..Compared::default() }
    }

    /// Whether the mirror of a source has refused a request, over any route.
    fn is_limited(&self, known: &Active) -> bool {
        let mut same = self.active.iter().filter(|active| active.source.mirror == known.source.mirror);
        same.any(|active| active.source.was_refused())
    }

    /// Whether another origin is known to have the same file as a source.
    fn is_same(&self, own: &str, other: &str) -> bool {
        self.any_facts((own, other), Fact::proves_same)
    }

    fn any_facts(&self, (own, other): (&str, &str), agree: impl Fn(&Fact, &Fact) -> bool) -> bool {
        let of_own = self.facts.iter().filter(|fact| *fact.origin == *own);
        let is_other = |fact: &&Fact| *fact.origin == *other || *fact.origin == *mirror_of(other);
        let mut pairs =
            of_own.flat_map(|fact| self.facts.iter().filter(is_other).map(move |other| (fact, other)));
        pairs.any(|(one, other)| agree(one, other))
    }

    /// Compares what others sent with samples from the source that decides; `None` if that one sends none.
    async fn compare_with(
        &self,
        decider: &Arc<Active>,
        others: &[(&Arc<str>, &RangeSet)],
    ) -> Option<Compared> {
        let is_out = matches!(self.shared.planner().standing(decider.id), Standing::Out(_));
        let is_http = decider.source.mirror.scheme().is_http();
        let most = if is_http { MOST_SAMPLES } else { MOST_FTP_SAMPLES };
        let sources = if is_out { Vec::new() } else { vec![decider.clone()] };
        let mut sampler = Sampler { run: self, sources, open: None };
        let (mut compared, begin) = (Compared::default(), Instant::now());
        for (origin, ranges) in others {
            let seems_same = self.any_facts((&decider.origin, origin), Fact::suggests_same);
            let mut outcome = if seems_same { &mut compared.sampled } else { &mut compared.unsure };
            let (most, pauses) = match seems_same {
                // A server that allows few requests or parts is not asked for that.
                true if self.is_limited(decider) => (0, &PAUSES[..0]),
                true => (1, &[Duration::ZERO][..]),
                false => (most, &PAUSES[..]),
            };
            for range in ends(ranges, most) {
                if begin.elapsed() > ALL {
                    break;
                }
                let Some(bytes) = sampler.ask(range.clone(), pauses).await else { break };
                outcome = &mut compared.sampled;
                if self.shared.store.read(range).is_ok_and(|on_disk| on_disk != bytes) {
                    outcome = &mut compared.differing;
                    break;
                }
            }
            outcome.push((*origin).clone());
        }
        sampler.end();
        (compared.unsure.len() < others.len()).then_some(compared)
    }

    /// The origins of the file, as soon as everything is written; `None` if that fails, which is reported later.
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
    async fn ask(&mut self, range: Range<u64>, pauses: &[Duration]) -> Option<Bytes> {
        loop {
            let active = self.sources.last()?.clone();
            if self.has_room(&active, range.end - range.start) {
                let spare = || active.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
                // An FTP server may refuse another login.
                let is_http = active.source.mirror.scheme().is_http();
                let new = || is_http.then(|| active.source.connection());
                if let Some(mut connection) = self.open.take().or_else(spare).or_else(new) {
                    let wanted = (range.clone(), self.run.shared.size);
                    let asking = sample((&active.source, &mut connection), wanted, pauses);
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
