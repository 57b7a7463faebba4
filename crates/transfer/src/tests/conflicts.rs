//! Files whose names are taken.

use std::fs;
use std::time::{Duration, SystemTime};

use super::{directories, directory, names, share, transfer, transfer_into};
use crate::{Conflict, Mirror, ReceiveOptions, Summary, TransferError};

/// Receives d/{same, other, longer, new}; the first three already exist, but only `same` is identical.
async fn into_taken(
    conflict: Conflict,
) -> (Result<Summary, TransferError>, impl Fn(&str) -> String, Vec<String>, tempfile::TempDir) {
    let (temp, from, to) = directories(&[
        ("d/same", b"same"),
        ("d/other", b"new"),
        ("d/longer", b"new content"),
        ("d/new", b"new"),
    ]);
    fs::create_dir(to.join("d")).unwrap();
    for (name, content) in [("same", "same"), ("other", "old"), ("longer", "old")] {
        fs::write(to.join("d").join(name), content).unwrap();
    }
    let options = ReceiveOptions { conflict, ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    let found = names(&to.join("d"));
    (received, move |name: &str| fs::read_to_string(to.join("d").join(name)).unwrap(), found, temp)
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_different_file_stays_and_is_named_while_the_rest_arrives() {
    let (received, read, found, _temp) = into_taken(Conflict::Error).await;
    let Err(TransferError::Incomplete { failures, count: 2, .. }) = received else { panic!("{received:?}") };
    let mut failed: Vec<_> = failures.iter().map(|failure| failure.path.raw()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["d/longer", "d/other"]);
    assert_eq!(
        (read("same"), read("other"), read("longer"), read("new")),
        ("same".into(), "old".into(), "old".into(), "new".into())
    );
    assert_eq!(found, ["longer", "new", "other", "same"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn overwriting_replaces_what_differs() {
    let (received, read, found, _temp) = into_taken(Conflict::Overwrite).await;
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.skipped, summary.unchecked), (3, 1, 0));
    assert_eq!((read("other"), read("longer")), ("new".into(), "new content".into()));
    assert_eq!(found, ["longer", "new", "other", "same"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn renaming_keeps_both() {
    let (received, read, found, _temp) = into_taken(Conflict::Rename).await;
    assert_eq!(received.unwrap().files, 3);
    assert_eq!(
        (read("other"), read("other (1)"), read("longer (1)")),
        ("old".into(), "new".into(), "new content".into())
    );
    assert_eq!(found, ["longer", "longer (1)", "new", "other", "other (1)", "same"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_name_is_none_that_the_share_itself_has() {
    let (_temp, from, to) =
        directories(&[("d/a.txt", b"new"), ("d/a (1).txt", b"its own"), ("d/l (1)", b"file")]);
    std::os::unix::fs::symlink("a.txt", from.join("d/l")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d/a.txt"), b"old").unwrap();
    fs::write(to.join("d/l"), b"old").unwrap();
    let options = ReceiveOptions { conflict: Conflict::Rename, ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    received.unwrap();
    let read = |name: &str| fs::read_to_string(to.join("d").join(name)).unwrap();
    assert_eq!(
        (read("a.txt"), read("a (1).txt"), read("a (2).txt")),
        ("old".into(), "its own".into(), "new".into())
    );
    assert_eq!(names(&to.join("d")), ["a (1).txt", "a (2).txt", "a.txt", "l", "l (1)", "l (2)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn renaming_again_finds_the_renamed_one_identical() {
    let (_temp, from, to) = directories(&[("a.txt", b"new")]);
    fs::write(to.join("a.txt"), b"old").unwrap();
    let options = ReceiveOptions { conflict: Conflict::Rename, ..ReceiveOptions::default() };
    for (files, skipped) in [(1, 0), (0, 1)] {
        let (_, received) = transfer(&share(&from.join("a.txt")), directory(&to), &options).await;
        let summary = received.unwrap();
        assert_eq!((summary.files, summary.skipped), (files, skipped));
        assert_eq!(names(&to), ["a (1).txt", "a.txt"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn skipping_leaves_everything_that_is_there() {
    let (received, read, found, _temp) = into_taken(Conflict::Skip).await;
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.skipped, summary.unchecked), (1, 3, 3));
    assert_eq!((summary.bytes, summary.resumed), (3, 0), "only the new file was received");
    assert_eq!((read("other"), read("longer")), ("old".into(), "old".into()));
    assert_eq!(found, ["longer", "new", "other", "same"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_never_replaced_by_a_file_nor_a_file_by_a_directory() {
    let (_temp, from, to) = directories(&[("a", b"file"), ("b/x", b"x")]);
    fs::create_dir(to.join("a")).unwrap();
    fs::write(to.join("b"), b"file").unwrap();
    let options = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
    for name in ["a", "b"] {
        let (_, received) = transfer(&share(&from.join(name)), directory(&to), &options).await;
        assert!(matches!(received, Err(TransferError::Incomplete { .. })), "{name}: {received:?}");
    }
    assert!(to.join("a").is_dir() && to.join("b").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_cannot_be_made_is_missed_at_both_ends() {
    let (_temp, from, to) = directories(&[("d/a", b"a")]);
    std::os::unix::fs::symlink("a", from.join("d/link")).unwrap();
    fs::create_dir_all(to.join("d/link")).unwrap();
    let options = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
    let (sent, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    let Err(TransferError::Incomplete { failures, count: 1, here: 1, .. }) = &received else {
        panic!("{received:?}")
    };
    assert_eq!(failures[0].path.raw(), "d/link");
    let Err(TransferError::PeerIncomplete { count: 1, there: 1, again: Some(1), missing, .. }) = &sent else {
        panic!("{sent:?}")
    };
    assert_eq!(missing[0].path.raw(), "d/link");
    assert!(missing[0].reason.raw().starts_with("it cannot be replaced by the link"), "{missing:?}");
    assert_eq!(fs::read(to.join("d/a")).unwrap(), b"a");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sender_learns_all_files_that_failed_and_how_many_another_command_may_take() {
    let (_temp, from, to) = directories(&[]);
    fs::create_dir_all(from.join("d")).unwrap();
    fs::create_dir_all(to.join("d")).unwrap();
    for at in 0..500 {
        fs::write(from.join(format!("d/{at}")), "new").unwrap();
        fs::write(to.join(format!("d/{at}")), "old").unwrap();
    }
    let (sent, received) =
        transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, again: 500, .. }) = &received else {
        panic!("{received:?}")
    };
    let Err(TransferError::PeerIncomplete {
        count: 500, there: 500, again: Some(500), files, missing, ..
    }) = &sent
    else {
        panic!("{sent:?}")
    };
    assert!(files.raw().ends_with("and 490 more"), "{files}");
    assert_eq!(missing.len(), 500);
    for (failure, file) in failures.iter().zip(missing) {
        assert_eq!((failure.path.raw(), &*failure.reason.text()), (file.path.raw(), file.reason.raw()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_directories_keep_their_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_temp, from, to) = directories(&[("d/x", b"x")]);
    fs::create_dir(to.join("d")).unwrap();
    fs::set_permissions(to.join("d"), fs::Permissions::from_mode(0o710)).unwrap();
    transfer_into(&share(&from.join("d")), &to).await;
    assert_eq!(fs::metadata(to.join("d")).unwrap().permissions().mode() & 0o777, 0o710);

    // Even if the sender's mode would lock out the owner: the user or an earlier attempt made the directory.
    fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(to.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    transfer_into(&share(&from.join("d")), &to).await;
    assert_eq!(fs::metadata(to.join("d")).unwrap().permissions().mode() & 0o777, 0o755);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_compares_files_whose_times_have_lost_the_fraction_of_a_second() {
    let (_temp, from, to) = directories(&[("d/edited", b"new"), ("d/same", b"same")]);
    fs::create_dir(to.join("d")).unwrap();
    let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1_400_000_000);
    for (name, old) in [("edited", "old"), ("same", "same")] {
        let copy = to.join("d").join(name);
        fs::write(&copy, old).unwrap();
        for (path, time) in [(from.join("d").join(name), second + Duration::from_millis(500)), (copy, second)]
        {
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
    }
    let mirror = Some(Mirror { delete: false, by_content: false });
    let options = ReceiveOptions { mirror, ..ReceiveOptions::default() };
    let run = async || transfer(&share(&from.join("d")), directory(&to), &options).await.1.unwrap();
    let summary = run().await;
    assert_eq!((summary.files, summary.skipped, summary.unchecked, summary.updated), (1, 1, 0, 0));
    assert_eq!(fs::read(to.join("d/edited")).unwrap(), b"new");
    // With the fraction, which this file system stores, there is nothing to compare.
    let summary = run().await;
    assert_eq!((summary.files, summary.skipped, summary.unchecked), (0, 2, 2));
}
