//! Shows an offer and asks the user whether to fetch it.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_transfer::{Consent, Offer, Shortage};

use super::args::ReceiveArgs;
use crate::errors::{Failure, Kind};
use crate::report::Event;
use crate::ui::human;
use crate::ui::out::{self, Stream};

/// Most names in the question.
const MOST_SHOWN: usize = 15;

/// The question to the user, asked once for each offer. Clones are the same question.
#[derive(Clone, Debug)]
pub struct Question(Arc<State>);

#[derive(Debug)]
struct State {
    /// The user agreed in advance: with `--yes`, or with standard output as the target.
    is_given: bool,
    events: Option<Stream>,
    is_quiet: bool,
    target: String,
    /// The offer that the user accepted.
    agreed: Mutex<Option<Offer>>,
    /// The user has yet to answer, so nothing else should be drawn.
    is_open: AtomicBool,
    /// There was no terminal to ask on.
    had_no_terminal: AtomicBool,
}

impl Question {
    /// The question for a command with these arguments.
    pub fn new(args: &ReceiveArgs, is_quiet: bool) -> Self {
        let is_given = args.yes || args.to_stdout();
        Self(Arc::new(State {
            is_given,
            events: args.events(),
            is_quiet,
            target: args.target_path().display().to_string(),
            agreed: Mutex::new(None),
            is_open: AtomicBool::new(!is_given),
            had_no_terminal: AtomicBool::new(false),
        }))
    }

    /// The question as a callback for a transfer.
    pub fn consent(&self) -> Consent {
        let state = Arc::clone(&self.0);
        Consent::Ask(Arc::new(move |offer| state.ask(offer)))
    }

    /// True if the user agreed in advance.
    pub fn is_given(&self) -> bool {
        self.0.is_given
    }

    /// True until the user has answered.
    pub fn is_open(&self) -> bool {
        self.0.is_open.load(Ordering::Relaxed)
    }

    /// The failure when the answer was not yes.
    pub fn declined(&self) -> Failure {
        if self.0.had_no_terminal.load(Ordering::Relaxed) {
            return Failure::usage("nothing was received: there is no terminal to ask on")
                .hint("look at the list of what is offered; to fetch it, add `--yes`");
        }
        Failure::new(Kind::Interrupted, "nothing was received: you declined")
    }
}

impl State {
    fn ask(&self, offer: &Offer) -> bool {
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        let offered = without_room(offer);
        if agreed.as_ref() == Some(&offered) {
            return true;
        }
        if let Some(stream) = self.events {
            // If standard output is closed, the next event ends the command.
            let _ = stream.json(&Event::from(offer));
        } else if !self.is_quiet || !self.is_given {
            out::error(&described(offer, &self.target, !self.is_given));
        }
        let consents = self.is_given || self.answer();
        self.is_open.store(false, Ordering::Relaxed);
        if consents {
            *agreed = Some(offered);
        }
        consents
    }

    /// Asks on the terminal.
    fn answer(&self) -> bool {
        let terminal = if io::stderr().is_terminal() { terminal() } else { None };
        let Some(terminal) = terminal else {
            self.had_no_terminal.store(true, Ordering::Relaxed);
            return false;
        };
        self.is_open.store(true, Ordering::Relaxed);
        out::error("fetch it? [y/N] ");
        let _ = io::stderr().flush();
        let mut line = String::new();
        let read = BufReader::new(terminal).read_line(&mut line);
        read.is_ok() && is_yes(&line)
    }
}

/// Accepts any offer, and notes first if not all of it fits, once for each offer.
pub fn noting(events: Option<Stream>, is_quiet: bool) -> Consent {
    let noted = Mutex::new(None);
    Consent::Ask(Arc::new(move |offer| {
        match (news(&noted, offer), events) {
            (None, _) => {}
            // If standard output is closed, the next event ends the command.
            (Some(message), Some(stream)) => _ = stream.json(&Event::Note { message: &message }),
            (Some(message), None) if !is_quiet => out::sentence(&message),
            _ => {}
        }
        true
    }))
}

/// The note that not all of an offer fits, unless it is noted already.
fn news(noted: &Mutex<Option<Offer>>, offer: &Offer) -> Option<String> {
    let message = shortage(offer)?;
    let last = noted.lock().unwrap_or_else(PoisonError::into_inner).replace(without_room(offer));
    (last != Some(without_room(offer))).then_some(message)
}

/// An offer without the room it lacks, which may change from one session to the next.
fn without_room(offer: &Offer) -> Offer {
    Offer { shortage: None, ..offer.clone() }
}

/// Opens the controlling terminal, whatever standard input is.
fn terminal() -> Option<std::fs::File> {
    OpenOptions::new().read(true).open("/dev/tty").ok()
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_lowercase().as_str(), "y" | "yes")
}

/// The offer in one line, or with all its names.
fn described(offer: &Offer, target: &str, in_full: bool) -> String {
    let size = match (offer.bytes, offer.endless) {
        (bytes, 0) => human::bytes(bytes),
        (0, _) => "of unknown length".into(),
        (bytes, endless) => {
            format!("{} and {} of unknown length", human::bytes(bytes), human::count(endless, "file"))
        }
    };
    let mut text = format!("the sender offers {}, {size}", human::count(offer.files, "file"));
    let shortage = shortage(offer).map_or_else(String::new, |shortage| shortage + "\n");
    if !in_full {
        return text + "\n" + &shortage;
    }
    let _ = writeln!(text, ", for {}:", crate::errors::printable(target));
    for name in offer.names.iter().take(MOST_SHOWN) {
        let slash = if name.is_directory { "/" } else { "" };
        let hidden = if name.is_hidden() { "  hidden" } else { "" };
        let files = if name.is_directory { human::count(name.files, "file") + ", " } else { String::new() };
        let _ = writeln!(text, "  {}{slash}  {files}{}{hidden}", name.name, human::bytes(name.bytes));
    }
    let more = offer.names.len().saturating_sub(MOST_SHOWN) as u64 + offer.more_names;
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
    text + &shortage
}

/// When a file fits that is here with the same length, or has holes.
const CONDITION: &str = "unchanged or stored with holes";

/// How many files do not fit, and why, if any do not.
fn shortage(offer: &Offer) -> Option<String> {
    let Shortage { files, needed, free, unsure } = offer.shortage?;
    let (all, needed, free) = (human::count(offer.files, "file"), human::bytes(needed), human::bytes(free));
    let (verb, fits) = (if files == 1 { "does" } else { "do" }, if unsure == 1 { "fits" } else { "fit" });
    let lacking = format!("{files} of {all} {verb} not fit: {needed} needed, {free} free");
    Some(match (files, unsure) {
        (_, 0) => lacking,
        (0, _) => format!("{unsure} of {all} {fits} only if {CONDITION}: {free} free"),
        _ => format!("{lacking}; {unsure} more {fits} only if {CONDITION}"),
    })
}

#[cfg(test)]
mod tests {
    use anabranch_transfer::OfferedName;

    use super::*;
    use crate::commands::test::parse;

    fn offer() -> Offer {
        let name = |name: &str, is_directory, files, bytes| OfferedName {
            name: name.into(),
            is_directory,
            files,
            bytes,
        };
        let names = vec![name(".a\u{1b}", false, 1, 500), name("photos", true, 120, 1_200_000_000)];
        Offer { files: 121, bytes: 1_200_000_500, endless: 0, names, more_names: 3, shortage: None }
    }

    #[test]
    fn the_user_sees_names_count_and_size_with_nothing_that_steers_the_terminal() {
        let shown = described(&offer(), "here", true);
        let expected = "the sender offers 121 files, 1.20 GB, for here:\n  .a\\u{1b}  500 B  hidden\n  \
                        photos/  120 files, 1.20 GB\n  and 3 more\n";
        assert_eq!(shown, expected);
        assert_eq!(described(&offer(), "here", false), "the sender offers 121 files, 1.20 GB\n");
        let shortage = Some(Shortage { files: 12, needed: 1_200_000_000, free: 900_000_000, unsure: 0 });
        let crowded = Offer { shortage, ..offer() };
        let more = "12 of 121 files do not fit: 1.20 GB needed, 900 MB free\n";
        assert_eq!(described(&crowded, "here", true), expected.to_owned() + more);
        assert!(described(&crowded, "here", false).ends_with(more));
        let told = |files, unsure| {
            let shortage = Some(Shortage { files, needed: 3000, free: 2000, unsure });
            super::shortage(&Offer { shortage, ..offer() }).unwrap()
        };
        assert_eq!(told(0, 2), "2 of 121 files fit only if unchanged or stored with holes: 2.00 kB free");
        let both = "1 of 121 files does not fit: 3.00 kB needed, 2.00 kB free; 1 more fits only if unchanged or \
                    stored with holes";
        assert_eq!(told(1, 1), both);
    }

    #[test]
    fn a_shortage_is_noted_once_for_an_offer_also_when_the_room_has_changed() {
        let lacking =
            |free| Offer { shortage: Some(Shortage { files: 1, needed: 2, free, unsure: 0 }), ..offer() };
        let noted = Mutex::new(None);
        assert_eq!(news(&noted, &offer()), None);
        assert!(news(&noted, &lacking(1)).is_some());
        assert_eq!([news(&noted, &lacking(1)), news(&noted, &lacking(0))], [None, None]);
        assert!(news(&noted, &Offer { bytes: 1, ..lacking(0) }).is_some(), "another offer");
    }

    #[test]
    fn only_a_clear_yes_is_one() {
        assert!(is_yes("y\n") && is_yes(" YES ") && !is_yes("\n") && !is_yes("yep") && !is_yes(""));
    }

    #[test]
    fn an_offer_that_was_agreed_to_is_not_asked_about_again_and_another_one_is() {
        let given: ReceiveArgs = parse(&["ticket", "--yes"]).unwrap();
        let question = Question::new(&given, true);
        assert!(!question.is_open() && question.0.ask(&offer()));
        let state = State {
            is_given: false,
            is_open: AtomicBool::new(true),
            agreed: Mutex::new(Some(offer())),
            ..Arc::into_inner(Question::new(&given, true).0).unwrap()
        };
        assert!(state.ask(&offer()));
        let shortage = Some(Shortage { files: 1, needed: 2, free: 1, unsure: 0 });
        assert!(state.ask(&Offer { shortage, ..offer() }), "the room has changed, not the offer");
        let other = Offer { bytes: 1, ..offer() };
        assert!(!state.ask(&other), "the tests' standard error is no terminal");
        assert!(!state.is_open.load(Ordering::Relaxed));
        assert!(state.had_no_terminal.load(Ordering::Relaxed));
    }
}
