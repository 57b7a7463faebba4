//! A source, which is a mirror over a route, and its history of failures and rates.

use anabranch_wire::{Span, Time};

use super::rate::Pace;

/// A source is given up after this many failures in a row.
const MOST_FAILURES: u32 = 8;
/// A source is given up after so many web pages in a row, within about eight seconds: a login takes longer.
const MOST_PAGES: u32 = 5;
/// A source is given up after so many refusals of parts in a row, within about four seconds.
const MOST_DENIALS: u32 = 4;
/// A server that refused so many parts in a row is asked for the whole file.
const PLAIN: u32 = 2;
/// A source is given up after its server was busy so often in a row, within about a minute and a half.
const MOST_BUSY: u32 = 12;
/// A source with this many failures in a row does not count as working.
const WORKING: u32 = 2;
/// Pauses after failures: the first, which doubles, and the longest. Those of a busy server grow by half: nothing is fetched until it is
/// asked again.
const FIRST_PAUSE: Span = Span::from_millis(500);
const LONGEST_PAUSE: Span = Span::from_secs(30);
/// The pause after a failed request that brought at least so many bytes.
const BRIEF_PAUSE: Span = Span::from_millis(20);
const WORTH_GOING_ON: u64 = 4096;
/// A download ends when every server asks for a longer pause.
pub const LONGEST_WAIT: Span = Span::from_secs(120);
/// Shorter pauses are not worth a word.
const NOTABLE: Span = Span::from_secs(10);
const NANOS: u64 = 1_000_000_000;
/// How long the rate with one more connection is measured, and the growth that justifies it.
const TRIAL: Span = Span::from_secs(2);
const WORTHWHILE: f64 = 1.1;

/// The fixed properties of a source.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceTerms {
    /// Sources with a larger number are used only while none with a smaller number works.
    pub rank: u8,
    /// Sources over the same interface or exit have the same number.
    pub route: usize,
    /// Sources of the same mirror have the same number.
    pub server: usize,
    /// The cap that its bytes count toward.
    pub cap: Option<usize>,
    /// Most connections at the same time.
    pub most_lanes: usize,
}

/// Why a request ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The server has no capacity (429, 503, 421); it may have named a pause.
    Busy(Option<Span>),
    /// The connection failed or was silent, or the answer was too short.
    Failed(String),
    /// A web page came instead of the file.
    Page,
    /// The server sends no part from there.
    NoParts(String),
    /// The source is of no use for this file.
    Useless(String),
}

impl Trouble {
    /// Whether a web page came, or a server asks for a pause of more than some seconds.
    pub fn is_notable(&self) -> bool {
        match self {
            Self::Page => true,
            Self::Busy(Some(pause)) => *pause > NOTABLE,
            _ => false,
        }
    }

    /// The same for a host to which the server redirects.
    #[must_use]
    pub fn at_redirect(self, host: &str) -> Self {
        let named = |why: String| format!("{host}, to which the server redirects: {why}");
        match self {
            Self::Failed(why) => Self::Failed(named(why)),
            Self::NoParts(why) => Self::NoParts(named(why)),
            Self::Useless(why) => Self::Useless(named(why)),
            other => other,
        }
    }

    /// The reason in words, for people.
    pub fn why(self) -> String {
        match self {
            Self::Failed(why) | Self::NoParts(why) | Self::Useless(why) => why,
            Self::Page => "a web page came instead of the file: the network may want a login".to_owned(),
            Self::Busy(Some(pause)) if pause > NOTABLE => {
                let then = if pause > LONGEST_WAIT { ": try again after that" } else { "" };
                format!("the server is busy and asks to wait {} s{then}", pause.as_nanos().div_ceil(NANOS))
            }
            Self::Busy(_) => "the server is busy or limits connections".to_owned(),
        }
    }
}

/// Whether a source is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may be asked.
    Ready,
    /// It rests after a failure.
    Resting(String),
    /// It is not asked again.
    Out(String),
}

/// A source and its history.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) terms: SourceTerms,
    pub(super) standing: Standing,
    /// The pace of its last connection.
    pub(super) pace: Option<Pace>,
    failures: u32,
    /// Parts that its server refused in a row.
    denials: u32,
    /// Its server limits connections, requests or parts, so each request takes as much as possible.
    is_limited: bool,
    /// Its server sends the file only from the beginning.
    is_whole: bool,
    rests_until: Time,
    /// Connections that it may have now.
    lanes: usize,
    /// No more connections are tried.
    settled: bool,
    /// The start of the current measurement, bytes of its route then, and the rate before the last connection was added.
    since: Time,
    bytes_then: u64,
    rate_before: f64,
}

impl Source {
    pub(super) fn new(terms: SourceTerms, now: Time) -> Self {
        Self {
            terms,
            standing: Standing::Ready,
            pace: None,
            failures: 0,
            denials: 0,
            is_limited: false,
            is_whole: false,
            rests_until: Time::ZERO,
            lanes: 1,
            settled: false,
            since: now,
            bytes_then: 0,
            rate_before: 0.0,
        }
    }

    pub(super) fn is_out(&self) -> bool {
        matches!(self.standing, Standing::Out(_))
    }

    /// Whether its last request succeeded.
    pub(super) fn is_sound(&self) -> bool {
        self.failures == 0
    }

    /// Whether its server refused a request because there were too many.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether its server sends the file only from the beginning.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole || self.denials >= PLAIN
    }

    /// Gives it up.
    pub(super) fn leave(&mut self, why: String) {
        self.standing = Standing::Out(why);
    }

    /// Notes that its server limits requests.
    pub(super) fn on_limit(&mut self) {
        (self.is_limited, self.lanes, self.settled) = (true, 1, true);
    }

    /// Notes that its server sends the file only from the beginning: one connection is enough.
    pub(super) fn on_whole(&mut self) {
        self.is_whole = true;
        (self.lanes, self.settled) = (1, true);
    }

    pub(super) fn works(&self) -> bool {
        !self.is_out() && self.failures < WORKING
    }

    /// Whether its server asks for a pause that is too long to wait for.
    pub(super) fn is_away(&self, now: Time) -> bool {
        self.rests_until.since(now) > LONGEST_WAIT
    }

    /// When it may be asked; `None` if never again.
    pub(super) fn ready_at(&self) -> Option<Time> {
        (!self.is_out()).then_some(self.rests_until)
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    pub(super) fn on_success(&mut self) {
        (self.failures, self.denials) = (0, 0);
        if !self.is_out() {
            self.standing = Standing::Ready;
        }
    }

    /// Notes trouble of one lane after `came` bytes; `others` of its lanes are receiving.
    pub(super) fn on_trouble(&mut self, trouble: Trouble, (came, others): (u64, usize), now: Time) {
        if self.is_out() {
            return;
        }
        let most = match trouble {
            Trouble::Page => MOST_PAGES,
            Trouble::NoParts(_) => MOST_DENIALS,
            Trouble::Busy(_) => MOST_BUSY,
            _ => MOST_FAILURES,
        };
        let is_busy = matches!(trouble, Trouble::Busy(_));
        let (why, asked) = match trouble {
            // It may refuse further requests while it sends the file.
            Trouble::Useless(_) if others > 0 => return self.on_limit(),
            Trouble::Useless(why) => return self.leave(why),
            Trouble::Failed(why) => (why, Span::ZERO),
            Trouble::Page => (Trouble::Page.why(), Span::ZERO),
            Trouble::NoParts(why) => {
                // An answer that goes on may bring everything.
                self.on_limit();
                self.denials += 1;
                (why, Span::ZERO)
            }
            Trouble::Busy(pause) => {
                self.is_limited = true;
                (self.lanes, self.settled) = ((self.lanes / 2).min(others).max(1), true);
                if others > 0 {
                    return;
                }
                (Trouble::Busy(pause).why(), pause.unwrap_or(Span::ZERO))
            }
        };
        if asked > LONGEST_WAIT {
            self.failures = self.failures.max(WORKING);
        }
        let asked = now + asked;
        // Lanes that fail together count once.
        if now >= self.rests_until {
            self.failures += 1;
            let times = self.failures - 1;
            let nanos = match is_busy {
                true => FIRST_PAUSE.as_nanos() * 3_u64.pow(times) / 2_u64.pow(times),
                false => FIRST_PAUSE.as_nanos() << times,
            };
            let grown = Span::from_nanos(nanos).min(LONGEST_PAUSE);
            // A server that cuts its bodies short gets on by many requests.
            let is_getting_on = came >= WORTH_GOING_ON && asked == now;
            self.rests_until = now + if is_getting_on { BRIEF_PAUSE } else { grown };
        }
        self.rests_until = self.rests_until.max(asked);
        let is_last = self.failures >= most;
        self.standing = if is_last { Standing::Out(why) } else { Standing::Resting(why) };
    }

    /// Adds a connection while that makes the route faster and enough is missing to measure it. `bytes` is what the route has
    /// received so far; `missing` is 0 if no work is free or some lanes have none.
    pub(super) fn adapt(&mut self, bytes: u64, missing: u64, now: Time) {
        if missing == 0 || self.is_out() {
            (self.since, self.bytes_then) = (now, bytes);
            return;
        }
        let lasted = now.since(self.since);
        if self.settled || lasted < TRIAL {
            return;
        }
        let rate = (bytes - self.bytes_then) as f64 / lasted.as_secs_f64();
        (self.since, self.bytes_then) = (now, bytes);
        if rate < self.rate_before * WORTHWHILE {
            (self.lanes, self.settled) = ((self.lanes - 1).max(1), true);
        } else if self.lanes >= self.terms.most_lanes {
            self.settled = true;
        } else if missing as f64 >= rate * TRIAL.as_secs_f64() {
            (self.lanes, self.rate_before) = (self.lanes + 1, rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_busy_for_a_while_is_asked_again_soon_after() {
        for busy_s in 1..80 {
            let (mut source, mut now) = (Source::new(SourceTerms::default(), Time::ZERO), Time::ZERO);
            let free = Time::ZERO + Span::from_secs(busy_s);
            while now < free {
                source.on_trouble(Trouble::Busy(None), (0, 0), now);
                now = source.ready_at().expect("it is not given up");
            }
            let late = now.since(free).as_secs_f64();
            assert!(late <= busy_s as f64 / 2.0 + 0.5, "{late} s after {busy_s} s");
        }
    }
}
