//! Converts transfer errors into errors of commands: message, exit code and a separate hint.

use std::io;

use anabranch_transfer::{Summary, TransferError};

use super::{Failure, Kind, SHOWN, describe};
use crate::ui::human;

impl From<TransferError> for Failure {
    /// The library's messages put advice after a semicolon; here it becomes the hint.
    fn from(error: TransferError) -> Self {
        if let TransferError::Incomplete { failures, count, notes, advice, .. } = &error {
            let noun = if *count == 1 { "file was" } else { "files were" };
            let failure = Self::new(Kind::Incomplete, format!("{count} {noun} not transferred"));
            let failure = advice.iter().fold(failure, |failure, advice| failure.hint(*advice));
            let files: Vec<String> = failures.iter().map(|file| without_codes(&file.to_string())).collect();
            let failure = named(failure, *count, &files);
            return notes.iter().fold(failure, |failure, note| failure.detail(without_codes(note)));
        }
        match &error {
            TransferError::Peer(said) => {
                return Self::new(Kind::Refused, "the other end stopped")
                    .said(without_codes(said.raw()).into());
            }
            TransferError::PeerIncomplete { count, files, missing, notes, .. } => {
                let noun = if *count == 1 { "file" } else { "files" };
                let failure = Self::new(Kind::Incomplete, format!("the receiver lacks {count} {noun}"));
                let failure = if missing.is_empty() {
                    failure.said(without_codes(files.raw()).into())
                } else {
                    let files: Vec<String> =
                        missing.iter().map(|file| without_codes(&file.to_string())).collect();
                    named(failure, *count, &files)
                };
                return notes.iter().fold(failure, |failure, note| failure.detail(without_codes(note)));
            }
            TransferError::Io { action, path, source } => {
                let mut failure = Self::file(action, path, source);
                if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
                    failure.hint.iter_mut().for_each(|hint| hint.push_str(": it resumes where it stopped"));
                }
                return failure;
            }
            // The advice depends on the source and target of the data, so the caller adds it.
            TransferError::Lost { path, source } => {
                return Self::local(format!("cannot write {}: {}", path.display(), describe(source)));
            }
            _ => {}
        }
        let text = without_codes(&error.to_string());
        match text.split_once("; ") {
            Some((message, advice)) => Self::new(kind(&error), message).hint(advice),
            None => Self::new(kind(&error), text),
        }
    }
}

/// Logs the files that could not be read here.
pub(crate) fn log_missed(summary: &Summary) {
    summary.missed_files.iter().for_each(|file| tracing::info!("could not be read: {}", without_codes(file)));
}

/// Fails if files could not be read here, so that the other end does not have them.
///
/// # Errors
/// [`Kind::Incomplete`] with their number and names.
pub(crate) fn all_sent(summary: &Summary) -> Result<(), Failure> {
    match summary.missed {
        0 => Ok(()),
        missed => {
            let text = format!("{} could not be read here", human::count(missed, "file"));
            let files: Vec<_> = summary.missed_files.iter().map(|file| without_codes(file)).collect();
            Err(named(Failure::new(Kind::Incomplete, text), missed, &files))
        }
    }
}

/// The failure of `count` files, with these lines about them. Not all may be named.
fn named(failure: Failure, count: u64, files: &[String]) -> Failure {
    let failure = files.iter().fold(failure, |failure, file| failure.detail(file));
    let failure = match count.saturating_sub(files.len() as u64) {
        0 => failure,
        rest => failure.detail(format!("and {rest} more")),
    };
    if files.len() > SHOWN { failure.fold(count) } else { failure }
}

/// The text without the codes that Rust appends to system errors: "(os error 13)".
pub(crate) fn without_codes(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

fn kind(error: &TransferError) -> Kind {
    match error {
        TransferError::Connection(_) => Kind::Unreachable,
        TransferError::Protocol(_) => Kind::Corrupt,
        TransferError::Version { .. }
        | TransferError::UnsafePath { .. }
        | TransferError::Hidden { .. }
        | TransferError::TooLarge { .. }
        | TransferError::Stalled { .. }
        | TransferError::Yielded
        | TransferError::Peer(_) => Kind::Refused,
        TransferError::Declined => Kind::Interrupted,
        _ => Kind::Local,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use anabranch_transfer::{Missing, Reason};

    use super::*;
    use crate::ui::paint::Paint;

    #[test]
    fn a_lost_connection_is_worth_another_try_and_says_so() {
        let lost = TransferError::Connection(io::ErrorKind::TimedOut.into());
        let failure = Failure::from(lost);
        assert_eq!(failure.kind, Kind::Unreachable);
        assert!(failure.message.starts_with("the connection was lost"), "{failure}");
        assert!(failure.hint.unwrap().contains("run the same command again"));
    }

    #[test]
    fn a_full_disk_is_this_machines_and_advice_stands_apart() {
        let failure = Failure::from(TransferError::DiskFull { path: "film.mkv".into() });
        assert_eq!(failure.kind, Kind::Local);
        assert_eq!(failure.message, "the disk is full while writing film.mkv");
        assert!(failure.hint.unwrap().contains("free some space"));
    }

    #[test]
    fn data_that_nobody_reads_is_a_failure() {
        let lost =
            TransferError::Lost { path: "the output".into(), source: io::ErrorKind::BrokenPipe.into() };
        let failure = Failure::from(lost);
        assert_eq!(
            (failure.kind.exit_code(), failure.message.as_str()),
            (1, "cannot write the output: broken pipe")
        );
    }

    #[test]
    fn a_directory_that_may_not_be_written_comes_with_advice() {
        let source = io::Error::from_raw_os_error(13);
        let failure =
            Failure::from(TransferError::Io { action: "write to the directory", path: "to".into(), source });
        assert_eq!(failure.message, "cannot write to the directory to: permission denied");
        assert!(failure.hint.unwrap().contains("ls -ld to"));
    }

    #[test]
    fn the_systems_words_stand_without_their_codes() {
        let text = "cannot open a (os error 13); cannot open b (os error 2), either";
        assert_eq!(without_codes(text), "cannot open a; cannot open b, either");
        assert_eq!(without_codes("cut off (os error 1"), "cut off");
        let peer = Failure::from(TransferError::Peer("cannot open a (os error 13)".into()));
        assert_eq!(peer.said.unwrap().raw(), "cannot open a");
    }

    #[test]
    fn files_that_failed_are_shown_up_to_ten_and_all_are_events() {
        let file = |n: u32| anabranch_transfer::Failure {
            path: format!("f{n}").into(),
            reason: Reason::Here("gone".into()),
        };
        let incomplete = |failures, count| {
            let (notes, advice) = (Vec::new(), (count == 1).then_some("free some space"));
            TransferError::Incomplete { failures, count, here: count, again: 0, notes, advice, unsynced: 0 }
        };
        let failed = incomplete((0..20).map(file).collect(), 25);
        let text = Failure::from(failed).render(Paint::OFF);
        assert!(text.starts_with("error: 25 files were not transferred\n  f0: gone\n"), "{text}");
        assert!(text.ends_with("  f9: gone\n  and 15 more; `-v` names them\n"), "{text}");
        let failure = Failure::from(incomplete((0..20).map(file).collect(), 25));
        let json = serde_json::to_value(&failure).unwrap();
        let named = [19, 20].map(|at| json["details"][at].as_str());
        assert_eq!(named, [Some("f19: gone"), Some("and 5 more")]);

        let one = incomplete(vec![file(0)], 1);
        let text = Failure::from(one).render(Paint::OFF);
        assert_eq!(text, "error: 1 file was not transferred\n  f0: gone\n  hint    free some space\n");
    }

    #[test]
    fn a_sender_names_all_files_that_the_receiver_lacks_in_the_receivers_words() {
        let file = |n: u32| Missing { path: format!("f{n}").into(), reason: "full (os error 28)\n".into() };
        let lacks = |missing: Vec<Missing>| TransferError::PeerIncomplete {
            count: 12,
            there: 12,
            again: Some(0),
            files: "f0: full".into(),
            missing,
            changed: false,
            notes: vec!["the server says: it stores no times".into()],
        };
        let failure = Failure::from(lacks((0..12).map(file).collect()));
        assert_eq!(failure.details.len(), 13);
        let text = failure.render(Paint::OFF);
        let first = "error: the receiver lacks 12 files\n  f0: the receiver says \"full\\u{a}\"\n";
        let last = "\n  and 2 more; `-v` names them\n  the server says: it stores no times\n";
        assert!(text.starts_with(first) && text.ends_with(last), "{text}");
        let older = Failure::from(lacks(Vec::new())).render(Paint::OFF);
        let note = "  the server says: it stores no times\n";
        assert_eq!(older, format!("error: the receiver lacks 12 files\n{note}  it said \"f0: full\"\n"));
    }

    #[test]
    fn files_that_could_not_be_read_are_named() {
        let summary = Summary {
            missed: 2,
            missed_files: vec!["d/a: gone (os error 2)".to_owned()],
            ..Summary::default()
        };
        let text = all_sent(&summary).unwrap_err().render(Paint::OFF);
        assert_eq!(text, "error: 2 files could not be read here\n  d/a: gone\n  and 1 more\n");
    }

    #[test]
    fn what_the_other_end_refuses_and_what_it_garbled_have_codes_of_their_own() {
        assert_eq!(Failure::from(TransferError::Peer("the share is closed".into())).kind.exit_code(), 4);
        assert_eq!(
            Failure::from(TransferError::Protocol("a block does not match".into())).kind.exit_code(),
            5
        );
    }
}
