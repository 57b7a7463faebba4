//! Replays every input in the corpora, and a few thousand mutations of them.

use anabranch_cli::Reading;
use anabranch_fuzz::TARGETS;
use anabranch_overlay::controller::message::{Reply, Request};
use anabranch_overlay::grant::read_own;
use anabranch_secure::CapturedSession;
use anabranch_secure::consent::answer_challenge;

use super::inputs::{REACHED, corpus, inputs};
use super::mutate::Mutator;
use super::watch::{MOST, feed};

#[test]
fn every_target_survives_its_corpus() {
    for (name, target) in TARGETS {
        let known = inputs(name);
        let count = known.len() as u64;
        assert!(count > 0, "{name}");
        assert_eq!(feed(target, known.into_iter(), MOST), Ok(count), "{name}");
    }
}

#[test]
fn every_target_survives_a_thousand_mutations_of_its_corpus() {
    for (name, target) in TARGETS {
        let (known, mut mutator) = (inputs(name), Mutator::new(1));
        let mutations = (0..1000).map(move |_| mutator.next(&known));
        assert_eq!(feed(target, mutations, MOST), Ok(1000), "{name}");
    }
}

#[test]
fn the_messages_of_controllers_that_mutations_begin_with_are_still_valid() {
    for file in std::fs::read_dir(corpus("controller")).unwrap().map(Result::unwrap) {
        if file.file_name() == REACHED {
            continue;
        }
        let bytes = std::fs::read(file.path()).unwrap();
        let valid =
            matches!(Request::decode(&bytes), Ok(Some(_))) || matches!(Reply::decode(&bytes), Ok(Some(_)));
        let name = file.file_name();
        assert!(valid || name.to_string_lossy().starts_with("found-"), "{name:?}");
    }
}

#[test]
fn the_files_questions_and_grants_that_mutations_begin_with_are_still_valid() {
    let keys = String::from_utf8(inputs("keys").swap_remove(0)).unwrap();
    for file in inputs("capture").iter().take(2) {
        let mut sessions = [CapturedSession::from_line(&keys).unwrap()];
        let mut reading = Reading::new(&file[..]).unwrap();
        let lines =
            std::iter::from_fn(|| reading.next_packet(&mut sessions).unwrap().map(|found| found.line()));
        assert_eq!(lines.filter(|line| line.contains("fsn")).count(), 3);
    }
    assert!(answer_challenge(&inputs("consent")[0], |_| true, None).is_some());
    for fields in inputs("signed").iter().take(6) {
        assert!(read_own(&[fields.as_slice(), &[0; 64]].concat()).is_ok());
    }
}
