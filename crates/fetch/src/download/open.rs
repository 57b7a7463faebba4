//! All sources while they are opened, and the choice of the one that defines the file.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::first::{Begin, First, FirstPart, OTHER_CONTENT, PATIENCE, Shape, open};
use super::{Context, PROBE, PROVES};
use crate::error::{FetchError, Tried};
use crate::plan::Trouble;
use crate::progress::SourceStatus;
use crate::route::Route;
use crate::source::Source;
use crate::url::Url;

/// How long to wait for a better source: one with ranges, and with the file of an earlier attempt.
const BETTER: Duration = Duration::from_secs(2);
/// How long to wait for the mirrors that are named before the one that answered: theirs is the file that is wanted.
const EARLIER: Duration = Duration::from_secs(1);
/// How long the other routes to a mirror wait for the answer over the first one.
const TURN: Duration = Duration::from_millis(300);
/// How long to wait for an answer before sources of higher rank are opened.
const NEEDED: Duration = Duration::from_secs(3);
/// Why sources are not used.
const IN_PARTS: &str = "another source has the file in parts";

/// A source that was opened: its number, and its number of route.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) source: Arc<Source>,
    pub(super) route: usize,
    pub(super) index: usize,
}

/// The purpose of the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A download without bytes. The first answer is used for the whole file.
    Fresh,
    /// A download with bytes of an earlier attempt.
    Resumed,
    /// A comparison with a finished file.
    Compared,
}

/// The first route to a mirror.
#[derive(Clone)]
struct Ahead {
    mirror: usize,
    is_long: bool,
    /// Whether a route to the mirror has an answer; notifies of every attempt.
    serves: watch::Sender<bool>,
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
    purpose: Purpose,
    /// The numbers of sources that were opened again at another address.
    reopened: Vec<usize>,
}

/// The first request of a source. Only HTTP servers are asked for everything in one answer.
fn shape(is_long: bool, takes_whole: bool, is_http: bool) -> Shape {
    match is_long {
        _ if is_http && takes_whole => Shape::Whole,
        true => Shape::Long,
        false => Shape::Short,
    }
}

impl Opening {
    /// Starts with all sources.
    pub(super) fn start(context: &Context, purpose: Purpose) -> Self {
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
            purpose,
            reopened: Vec::new(),
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
        let is_only = now.len() == 1;
        let mut ahead: Vec<Ahead> = Vec::new();
        for opened in now {
            if context.options.left(opened.route) < PROBE {
                self.all_refused = false;
                self.refuse(context, &opened, context.options.used_up(opened.route));
                continue;
            }
            self.unanswered.push(opened.index);
            let progress = context.progress.clone();
            let mirror = context.mirror(opened.index);
            let first = ahead.iter().find(|first| first.mirror == mirror).cloned();
            let is_first = first.is_none();
            let is_http = opened.source.mirror.scheme().is_http();
            // Unread bytes would be wasted: under a cap, and in the queues of an exit if others take the end.
            let has_cap = context.options.routes[opened.route].cap.is_some();
            let is_exit = matches!(opened.source.route, Route::Exit(_));
            let is_short = !is_http || has_cap || is_exit && !is_only;
            let is_long = self.purpose == Purpose::Fresh && is_first && mirror == 0 && !is_short;
            let serves =
                first.as_ref().map_or_else(|| watch::Sender::new(false), |first| first.serves.clone());
            if is_first {
                ahead.push(Ahead { mirror, is_long, serves: serves.clone() });
            }
            let takes_whole = context.takes_whole().is_some();
            let wanted = self.begin(context, shape(is_long, takes_whole, is_http));
            let turn = first.filter(|first| first.is_long).map(|first| first.serves.subscribe());
            self.pending.spawn(async move {
                if let Some(mut turn) = turn {
                    // A server that allows few requests answers the first route.
                    let _ = timeout(TURN, turn.changed()).await;
                }
                let first = open(&opened, &progress, wanted, &serves).await;
                (opened, first)
            });
        }
        true
    }

    fn begin(&self, context: &Context<'_>, shape: Shape) -> Begin {
        let needs_version = self.purpose != Purpose::Compared && context.job.checksums.is_empty();
        Begin { shape, needs_version }
    }

    /// Opens a source again, once, at the address that answers over another route. Returns whether it does.
    pub(super) fn reopen(&mut self, context: &Context<'_>, opened: &Opened) -> bool {
        let source = &opened.source;
        let server = (source.mirror.host(), source.mirror.port());
        if self.reopened.contains(&opened.index) || !context.peers.differ(server, &source.route) {
            return false;
        }
        context.peers.forget(server, &source.route);
        self.reopened.push(opened.index);
        self.unanswered.push(opened.index);
        let (opened, progress) = (opened.clone(), context.progress.clone());
        let wanted = self.begin(context, Shape::Short);
        self.pending.spawn(async move {
            let first = open(&opened, &progress, wanted, &watch::Sender::new(true)).await;
            (opened, first)
        });
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
                let is_only = context.job.mirrors.len() == 1 && answered.0.source.lacks_version();
                let takes_whole = is_only || context.takes_whole().is_some();
                (takes_whole || self.may_fit(answered, held)) && !self.awaits_earlier(context, &answered.0)
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
            let is_too_large = |size| !first.is_part() && size > context.options.left(opened.route);
            if self.purpose != Purpose::Compared && size.is_some_and(is_too_large) {
                self.all_refused = false;
                self.refuse(context, &opened, context.options.used_up(opened.route));
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
        let is_one_mirror = context.mirror(new.0.index) == context.mirror(old.0.index);
        let is_page = [&new, &old].map(|one| one.1.is_page());
        let fits = [&new, &old].map(|one| held.is_some() && self.may_fit(one, held));
        let is_better = match (new.1.is_part(), old.1.is_part()) {
            _ if fits[0] != fits[1] => fits[0],
            // A network may want a login over one route.
            _ if is_page[0] != is_page[1] && is_one_mirror => is_page[1],
            (true, false) => is_earlier || differs.is_none(),
            (false, true) => is_earlier && differs.is_some(),
            _ => is_earlier,
        };
        let (better, (other, first)) = if is_better { (new, old) } else { (old, new) };
        match (better.1.is_part(), differs) {
            (_, Some(_)) if first.is_page() && !better.1.is_page() && is_one_mirror => {
                self.leave_out(context, &other, &Trouble::Page.why());
            }
            (true, _) if first.is_part() => self.passed.push((other, first)),
            (_, Some(why)) => self.leave_out(context, &other, why),
            (true, None) => {
                if context.mirror(other.index) < context.mirror(better.0.index) && !context.is_proven() {
                    let why = match other.source.lacks_version() {
                        true => "names no version of its file",
                        false => "sends no parts",
                    };
                    context.progress.note(format!(
                        "{} {why}: only the first bytes of the mirrors are compared; {PROVES}",
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
        self.whole = Some((opened, First::Part(Box::new(part))));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_servers_are_asked_for_everything_at_first() {
        assert_eq!([true, false].map(|is_http| shape(false, true, is_http)), [Shape::Whole, Shape::Short]);
        assert_eq!([true, false].map(|is_long| shape(is_long, false, true)), [Shape::Long, Shape::Short]);
    }
}
