//! Caps that last: what paths have used since a day of the month, over all runs and programs of a user.
//!
//! A rule such as `wwan*=metered:5GB/15` starts anew on the 15th. Its use is in `$XDG_STATE_HOME/anabranch/caps`, one line
//! for each period: pattern, first day, bytes. A machine without a battery may begin in 1970 and learn the date later, so
//! the lines of other periods stay for a while. Every program adds its own use and learns that of others ten times a
//! second, under the lock of the file. It also adds what it will use until the next time, if its rate stays the same.
//! Bytes that a path has reserved count as used until it closes, so a program that crashes uses too much of a cap rather
//! than too little.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anabranch_net::{Meter, PathRule, PathRules, Terms};

use crate::error::Error;

/// How often the file is read and written.
const PERIOD: Duration = Duration::from_millis(100);
/// Largest file that is read, in bytes.
const MOST: u64 = 1 << 20;
/// Most periods that are kept of a pattern, the ones that were begun last.
const MOST_PERIODS: usize = 12;

/// The caps of this process.
static STORE: LazyLock<Mutex<Store>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Store {
    file: Option<File>,
    kept: Vec<Kept>,
}

/// A cap in use, and what it has in common with the file.
struct Kept {
    pattern: String,
    meter: Meter,
    day: u8,
    /// The first day of the period, in days since 1970.
    since: u64,
    /// This process's use that is in the file, with what was expected then.
    told: u64,
    /// Its use at that time.
    own: u64,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    pattern: String,
    since: u64,
    used: u64,
}

/// The directory of the file: of a service's state, or the user's.
pub fn caps_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    variable("STATE_DIRECTORY").or_else(|| state.map(|state| state.join("anabranch")))
}

/// True if a rule has a cap that lasts.
pub fn has_lasting_cap(rules: &[PathRule]) -> bool {
    rules.iter().any(|rule| rule.terms.meter.as_ref().is_some_and(|meter| meter.resets_on().is_some()))
}

/// The same rules; caps that last count what they have used already, from now on in the file as well.
pub fn keep_caps(rules: PathRules) -> Result<PathRules, Error> {
    let all: Vec<PathRule> = rules.iter().cloned().collect();
    if !has_lasting_cap(&all) {
        return Ok(rules);
    }
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    if store.file.is_none() {
        store.file = Some(open()?);
        let sync = || loop {
            std::thread::sleep(PERIOD);
            drop(Store::sync_all(true));
        };
        std::thread::Builder::new()
            .name("caps".to_owned())
            .spawn(sync)
            .map_err(|error| Error::local(format!("cannot start a thread: {error}")))?;
    }
    let all = all.into_iter().map(|rule| store.keep(rule)).collect();
    store
        .sync(today(), false)
        .map_err(|error| Error::local(format!("cannot use the record of caps: {error}")))?;
    Ok(PathRules::new(all).suppressing(rules.suppression))
}

/// A cap that lasts, and the rest of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingCap {
    /// The paths that it is for.
    pub pattern: String,
    /// The cap in bytes.
    pub bytes: u64,
    /// Its unused bytes.
    pub left: u64,
    /// The day of the month on which it starts anew.
    pub day: u8,
}

/// Writes this process's use to the file, and returns its caps.
pub fn settle_caps() -> Vec<LastingCap> {
    let store = Store::sync_all(false);
    let cap = |kept: &Kept| LastingCap {
        pattern: kept.pattern.clone(),
        bytes: kept.meter.cap(),
        left: kept.meter.left(),
        day: kept.day,
    };
    store.kept.iter().map(cap).collect()
}

fn open() -> Result<File, Error> {
    let directory = caps_directory().ok_or_else(|| {
        Error::local("cannot tell where the record of caps is: HOME is not set").hint("set XDG_STATE_HOME")
    })?;
    std::fs::create_dir_all(&directory).map_err(|error| Error::file("create", &directory, &error))?;
    let path = directory.join("caps");
    open_at(&path).map_err(|error| Error::file("open", &path, &error))
}

fn open_at(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl Store {
    /// The rule, with the meter that is known for it already if there is one.
    fn keep(&mut self, rule: PathRule) -> PathRule {
        let Some(meter) = rule.terms.meter.clone() else { return rule };
        let Some(day) = meter.resets_on() else { return rule };
        let pattern = rule.pattern.to_string();
        let same = |kept: &&Kept| (&kept.pattern, kept.meter.cap(), kept.day) == (&pattern, meter.cap(), day);
        if let Some(known) = self.kept.iter().find(same) {
            let terms = Terms { meter: Some(known.meter.clone()), ..rule.terms };
            return PathRule { terms, ..rule };
        }
        self.kept.push(Kept { pattern, meter, day, since: 0, told: 0, own: 0 });
        rule
    }

    /// Exchanges the use of this process; `ahead` adds what it is expected to use until the next time.
    fn sync_all(ahead: bool) -> MutexGuard<'static, Self> {
        let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = store.sync(today(), ahead) {
            tracing::debug!(%error, "the record of caps is not up to date");
        }
        store
    }

    fn sync(&mut self, today: u64, ahead: bool) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.lock()?;
        let result = exchange(file, &mut self.kept, (today, ahead));
        file.unlock()?;
        result
    }
}

/// Adds this process's use to the file, and that of others to the meters.
fn exchange(file: &mut File, kept: &mut [Kept], (today, ahead): (u64, bool)) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    Read::by_ref(file).take(MOST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut records: Vec<Record> = text.lines().filter_map(read_record).collect();
    if records.len() < text.lines().count() {
        tracing::warn!("the record of caps has damaged lines: what they counted is forgotten");
    }
    for cap in kept {
        let since = period_start(today, cap.day);
        let found = records.iter().position(|record| record.pattern == cap.pattern && record.since == since);
        let new = Record { pattern: cap.pattern.clone(), since, used: 0 };
        let at = found.unwrap_or_else(|| begin(&mut records, new));
        if cap.since != since {
            if cap.since != 0 {
                cap.meter.begin_anew();
            }
            (cap.since, cap.told, cap.own) = (since, 0, 0);
        }
        cap.exchange(&mut records[at].used, ahead);
    }
    let text: String = records.iter().map(Record::line).collect();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

/// Adds the record of a period that begins, and returns its index.
fn begin(records: &mut Vec<Record>, new: Record) -> usize {
    let alike = |record: &Record| record.pattern == new.pattern;
    if records.iter().filter(|record| alike(record)).count() >= MOST_PERIODS
        && let Some(first) = records.iter().position(alike)
    {
        records.remove(first);
    }
    records.push(new);
    records.len() - 1
}

impl Kept {
    fn exchange(&mut self, used: &mut u64, ahead: bool) {
        // Others may have returned what they had reserved.
        let of_others = used.saturating_sub(self.told);
        self.meter.set_elsewhere(of_others);
        let own = self.meter.taken();
        let expected = if ahead { own.saturating_sub(self.own).min(self.meter.left()) } else { 0 };
        (self.told, self.own) = (own + expected, own);
        *used = of_others + self.told;
    }
}

impl Record {
    fn line(&self) -> String {
        format!("{}\t{}\t{}\n", self.pattern, self.since, self.used)
    }
}

fn read_record(line: &str) -> Option<Record> {
    let mut words = line.split('\t');
    let pattern = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    Some(Record { pattern, since: number()?, used: number()? })
}

/// Days since 1970, in UTC.
fn today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400
}

/// The last day that is the `day`-th of a month, up to `today`; both in days since 1970. Before the first such day it is 0.
fn period_start(today: u64, day: u8) -> u64 {
    let of_month = day_of_month(today);
    let day = u64::from(day);
    if of_month >= day {
        return today - (of_month - day);
    }
    let last_of_previous = today.saturating_sub(of_month);
    last_of_previous.saturating_sub(day_of_month(last_of_previous).saturating_sub(day))
}

/// Day of the month, from 1 (Hinnant, chrono-compatible low-level date algorithms, `civil_from_days`).
fn day_of_month(days: u64) -> u64 {
    let day_of_era = (days + 719_468) % 146_097;
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    of_year - (153 * month + 2) / 5 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    /// 2026-11-28, in days since 1970.
    const TODAY: u64 = 20_785;

    fn program(path: &Path) -> Store {
        let mut store = Store { file: Some(open_at(path).unwrap()), kept: Vec::new() };
        let rule = crate::parse_rule("wwan*=metered:100MB/15").unwrap();
        let kept = store.keep(rule.clone());
        assert_eq!(kept.terms.meter, rule.terms.meter);
        store
    }

    /// Has the store's program use so many bytes in all.
    fn spend(store: &Store, bytes: u64) {
        store.kept[0].meter.begin_anew();
        assert!(store.kept[0].meter.charge(bytes));
    }

    fn left(store: &Store) -> u64 {
        store.kept[0].meter.left().div_ceil(MB)
    }

    #[test]
    fn a_period_begins_on_the_day_of_this_month_or_of_the_last() {
        assert_eq!(day_of_month(TODAY), 28);
        assert_eq!(period_start(TODAY, 28), TODAY);
        assert_eq!(period_start(TODAY, 15), TODAY - 13);
        // On 2026-03-03 the period of the 28th began in February.
        assert_eq!((day_of_month(20_515), day_of_month(period_start(20_515, 28))), (3, 28));
        assert_eq!(20_515 - period_start(20_515, 28), 3);
        assert_eq!([0, 13, 14, 30, 31].map(|today| period_start(today, 15)), [0, 0, 14, 14, 14]);
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_while_forgets_no_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caps");
        let mut first = program(&path);
        first.sync(TODAY, false).unwrap();
        spend(&first, 30 * MB);
        first.sync(TODAY, false).unwrap();
        drop(first);
        let mut second = program(&path);
        for (today, expected) in [(0, 100), (TODAY, 70), (TODAY + 400, 100), (TODAY, 70)] {
            second.sync(today, false).unwrap();
            assert_eq!(left(&second), expected, "on day {today}");
        }
        for month in 1..=40 {
            second.sync(TODAY + 31 * month, false).unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert_eq!(lines, MOST_PERIODS);
    }

    #[test]
    fn use_lasts_over_runs_and_is_shared_until_the_day_of_the_month() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caps");
        let mut first = program(&path);
        first.sync(TODAY, false).unwrap();
        spend(&first, 30 * MB);
        first.sync(TODAY, false).unwrap();
        let mut second = program(&path);
        second.sync(TODAY, false).unwrap();
        assert_eq!(left(&second), 70);
        spend(&second, 20 * MB);
        second.sync(TODAY, false).unwrap();
        first.sync(TODAY, false).unwrap();
        assert_eq!((left(&first), left(&second)), (50, 50));
        spend(&first, 25 * MB);
        first.sync(TODAY, false).unwrap();
        second.sync(TODAY, false).unwrap();
        assert_eq!((left(&first), left(&second)), (55, 55), "what was reserved and not spent returns");
        drop((first, second));
        let mut later = program(&path);
        later.sync(TODAY, false).unwrap();
        assert_eq!(left(&later), 55);
        later.sync(TODAY + 17, false).unwrap();
        assert_eq!(left(&later), 100, "the 15th of December");
    }

    #[test]
    fn others_leave_room_for_what_a_program_uses_until_the_next_exchange() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caps");
        let (mut first, mut second) = (program(&path), program(&path));
        first.sync(TODAY, true).unwrap();
        spend(&first, 30 * MB);
        first.sync(TODAY, true).unwrap();
        second.sync(TODAY, true).unwrap();
        assert_eq!(left(&second), 40, "as much is expected again");
        first.sync(TODAY, true).unwrap();
        second.sync(TODAY, true).unwrap();
        assert_eq!(left(&second), 70, "it was not used");
    }

    #[test]
    fn a_damaged_file_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caps");
        std::fs::write(&path, b"wwan*\tx\t5\nnonsense\n\xff\n").unwrap();
        let mut store = program(&path);
        store.sync(TODAY, false).unwrap();
        assert_eq!(left(&store), 100);
        let other = Record { pattern: "eth0".into(), since: 2, used: 3 };
        assert_eq!(read_record(other.line().trim_end()), Some(other));
    }
}
