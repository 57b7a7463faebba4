//! Replays every input in the corpora, and a few thousand mutations of them.

use anabranch_fuzz::{Mutator, TARGETS, corpus};
use anabranch_overlay::controller::message::{Reply, Request};

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(corpus(target)).expect("every target has a corpus");
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn every_input_in_the_corpora_is_borne() {
    for (name, target) in TARGETS {
        let known = inputs(name);
        assert!(!known.is_empty(), "{name}");
        known.iter().for_each(|input| target(input));
    }
}

#[test]
fn a_thousand_mutations_of_each_corpus_are_borne() {
    for (name, target) in TARGETS {
        let (known, mut mutator) = (inputs(name), Mutator::new(1));
        (0..1000).for_each(|_| target(&mutator.next(&known)));
    }
}

#[test]
fn the_messages_of_controllers_that_mutations_begin_with_are_still_valid() {
    for file in std::fs::read_dir(corpus("controller")).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(file.path()).unwrap();
        let valid =
            matches!(Request::decode(&bytes), Ok(Some(_))) || matches!(Reply::decode(&bytes), Ok(Some(_)));
        let name = file.file_name();
        assert!(valid || name.to_string_lossy().starts_with("found-"), "{name:?}");
    }
}
