//! Hard links on request, the times of directories, and what changes its kind in a copy.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::serve::{mirror, pull, pull_with, served, store};
use super::{BROKEN, FULL, LINKLESS, directories, directory, noise, share, transfer, transfer_into, tree};
use crate::hash::BLOCK;
use crate::{Conflict, Mirror, Place, ReceiveOptions, Rights, TransferError, Wanted};

fn keeping(conflict: Conflict) -> ReceiveOptions {
    ReceiveOptions { hard_links: true, conflict, ..ReceiveOptions::default() }
}

/// Which of the files are one: a letter each, the same for the same file.
fn groups(at: &Path, names: &[&str]) -> String {
    let ids: Vec<u64> = names.iter().map(|name| fs::metadata(at.join(name)).unwrap().ino()).collect();
    let first = |id: &u64| ids.iter().position(|other| other == id).unwrap_or_default();
    ids.iter().map(|id| char::from(b'a' + first(id) as u8)).collect()
}

const NAMES: [&str; 5] = ["d/a", "d/e/b", "d/one", "d/x", "d/z"];

/// Files of which the first two are one, and the last two.
fn linked() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let (temp, from, to) =
        directories(&[("d/a", b"a"), ("d/e/in", b""), ("d/one", b"1"), ("d/x", &noise(1, 3 * BLOCK))]);
    fs::hard_link(from.join("d/a"), from.join("d/e/b")).unwrap();
    fs::hard_link(from.join("d/x"), from.join("d/z")).unwrap();
    (temp, from, to)
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_one_file_stay_so_if_both_ends_want_it_and_are_counted_otherwise() {
    let (_temp, from, to) = linked();
    let plain = share(&from.join("d"));
    let note = "2 hard links are copied as files of their own; `--hard-links` keeps them";
    let (sent, received) = transfer(&plain, directory(&to.join("0")), &keeping(Conflict::Error)).await;
    assert_eq!((sent.unwrap().warnings, received.unwrap().warnings), (vec![note.to_owned()], Vec::new()));
    let with = plain.with_links();
    let (sent, received) = transfer(&with, directory(&to.join("1")), &ReceiveOptions::default()).await;
    assert_eq!((sent.unwrap().warnings, received.unwrap().warnings), (Vec::new(), vec![note.to_owned()]));
    let (_, received) = transfer(&with, directory(&to.join("2")), &keeping(Conflict::Error)).await;
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.hard_links, summary.bytes), (6, 2, 2 + 3 * BLOCK as u64));
    for (copy, expected) in [("0", "abcde"), ("1", "abcde"), ("2", "aacdd")] {
        assert_eq!(tree(&to.join(copy)), tree(&from), "{copy}");
        assert_eq!(groups(&to.join(copy), &NAMES), expected, "{copy}");
    }
    // Once more: all is there.
    let (_, received) = transfer(&with, directory(&to.join("2")), &keeping(Conflict::Error)).await;
    let summary = received.unwrap();
    assert_eq!((summary.files, groups(&to.join("2"), &NAMES)), (0, "aacdd".into()));
    assert!(summary.warnings.is_empty(), "{summary:?}");
    // Copies that are there stay copies.
    let (_, received) = transfer(&with, directory(&to.join("1")), &keeping(Conflict::Error)).await;
    let note = "2 hard links (d/e/b, ...) are copies now, because of what was here";
    assert_eq!(received.unwrap().warnings, [note]);
    assert_eq!(groups(&to.join("1"), &NAMES), "abcde");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_link_leads_to_a_file_that_was_there_before() {
    let (_temp, from, to) = linked();
    fs::hard_link(from.join("d/x"), from.join("d/zz")).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    fs::copy(from.join("d/x"), to.join("d/x")).unwrap();
    let with = share(&from.join("d")).with_links();
    let (_, received) = transfer(&with, directory(&to), &keeping(Conflict::Error)).await;
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.skipped, summary.hard_links), (6, 1, 2), "{summary:?}");
    assert_eq!(summary.warnings, ["the hard link d/z is a copy now, because of what was here"]);
    // The first that arrived is the one to which the others lead.
    assert_eq!(groups(&to, &["d/a", "d/e/b", "d/x", "d/z", "d/zz"]), "aacdd");

    let renamed = to.join("renamed");
    fs::create_dir_all(renamed.join("d")).unwrap();
    for name in ["a", "z", "zz"] {
        fs::write(renamed.join("d").join(name), "other").unwrap();
    }
    let (_, received) = transfer(&with, directory(&renamed), &keeping(Conflict::Rename)).await;
    let note = "2 hard links (d/z, ...) are copies now, because of what was here";
    assert_eq!(received.unwrap().warnings, [note]);

    // Taken names stay, or give way, as those of other files do.
    for (conflict, expected) in
        [(Conflict::Error, "other"), (Conflict::Skip, "other"), (Conflict::Overwrite, "a")]
    {
        let to = to.join(format!("{conflict:?}"));
        fs::create_dir_all(to.join("d/e")).unwrap();
        fs::write(to.join("d/e/b"), "other").unwrap();
        let (_, received) = transfer(&with, directory(&to), &keeping(conflict)).await;
        assert_eq!(received.is_err(), conflict == Conflict::Error, "{received:?}");
        assert_eq!(fs::read_to_string(to.join("d/e/b")).unwrap(), expected, "{conflict:?}");
        assert_eq!(groups(&to, &["d/x", "d/z"]), "aa", "{conflict:?}");
        assert_eq!(fs::read_dir(to.join("d/e")).unwrap().count(), 2, "nothing is left behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_a_file_that_did_not_arrive_is_missed() {
    let (_temp, from, to) = linked();
    fs::create_dir_all(to.join("d/.a.anabranch-part")).unwrap();
    let with = share(&from.join("d")).with_links();
    let (_, received) = transfer(&with, directory(&to), &keeping(Conflict::Error)).await;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let named: Vec<_> = failures.iter().map(|failure| failure.path.raw()).collect();
    assert_eq!(named, ["d/a", "d/e/b"], "{failures:?}");
    assert!(failures[1].reason.text().contains("hard link of a file that did not arrive"), "{failures:?}");
    assert_eq!(groups(&to, &["d/x", "d/z"]), "aa");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_cannot_become_a_link_becomes_a_copy() {
    let (_temp, from, to) = linked();
    fs::create_dir_all(to.join("d/e")).unwrap();
    fs::write(to.join("d/e").join(LINKLESS), "").unwrap();
    let with = share(&from.join("d")).with_links();
    let (sent, received) = transfer(&with, directory(&to), &keeping(Conflict::Error)).await;
    assert!(sent.is_ok(), "{sent:?}");
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.hard_links), (6, 1), "{summary:?}");
    assert!(summary.warnings.iter().any(|note| note.contains("make a hard link of d/e/b")), "{summary:?}");
    fs::remove_file(to.join("d/e").join(LINKLESS)).unwrap();
    assert_eq!(tree(&to.join("d/e")), tree(&from.join("d/e")));
    assert_eq!(groups(&to, &["d/a", "d/e/b", "d/x", "d/z"]), "abcc");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_the_links_of_its_source_whichever_way_it_goes() {
    let (_temp, folders, folder, here) = served(&[("a", b"a"), ("b", b"a"), ("c", b"c")]);
    let names = ["a", "b", "c"];
    let pull = async |hard_links| {
        let wanted = Wanted::contents_of("pub").unwrap();
        let options = ReceiveOptions { hard_links, ..Default::default() };
        pull_with(&folders, (&wanted, &here), options).await.unwrap()
    };
    pull(true).await;
    assert_eq!(groups(&here, &names), "abc");
    // The files are the same, and become one.
    fs::remove_file(folder.join("b")).unwrap();
    fs::hard_link(folder.join("a"), folder.join("b")).unwrap();
    assert_eq!(pull(false).await.warnings.len(), 1);
    assert_eq!(groups(&here, &names), "abc");
    // A copy that was cut off was to make it a directory.
    fs::create_dir(here.join(".b.anabranch-part")).unwrap();
    assert_eq!(pull(true).await.hard_links, 1);
    assert_eq!(groups(&here, &names), "aac");
    assert_eq!(fs::read_dir(&here).unwrap().count(), 3);
    assert_eq!(pull(true).await.files, 0);
    // With other content they are still one, and at last two.
    fs::write(folder.join("a"), "longer").unwrap();
    assert_eq!(pull(true).await.hard_links, 1);
    assert_eq!((groups(&here, &names), tree(&here)), ("aac".into(), tree(&folder)));
    fs::remove_file(folder.join("b")).unwrap();
    fs::write(folder.join("b"), "another").unwrap();
    pull(true).await;
    assert_eq!((groups(&here, &names), tree(&here)), ("abc".into(), tree(&folder)));

    fs::hard_link(here.join("c"), here.join("d")).unwrap();
    let share = crate::Share::from_paths(&[&here]).unwrap().contents_only();
    let place = Place::mirror("pub", mirror(true)).unwrap();
    assert_eq!(store(&folders, Rights::Write, &place, &share).await.unwrap().warnings.len(), 1);
    assert_eq!(groups(&folder, &["c", "d"]), "ab");
    store(&folders, Rights::Write, &place, &share.with_links()).await.unwrap();
    assert_eq!(groups(&folder, &["c", "d"]), "aa");
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_have_their_times_when_everything_below_them_is_written_and_removed() {
    let (_temp, folders, folder, here) = served(&[("d/e/f", b"f"), ("d/locked/g", b"g"), ("d/old/h", b"h")]);
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
    fs::set_permissions(folder.join("d/locked"), fs::Permissions::from_mode(0o555)).unwrap();
    let set = |at: &Path| fs::File::open(at).unwrap().set_modified(time).unwrap();
    ["d/e", "d/locked", "d/old", "d"].iter().for_each(|name| set(&folder.join(name)));
    let copy = here.join("copy");
    let pull = async || pull(&folders, &copy).await.unwrap();
    pull().await;
    assert_eq!(tree(&copy), tree(&folder));
    assert_eq!(fs::metadata(copy.join("d/e")).unwrap().modified().unwrap(), time);
    fs::remove_dir_all(folder.join("d/old")).unwrap();
    set(&folder.join("d"));
    assert_eq!(pull().await.removed, 2);
    assert_eq!(tree(&copy), tree(&folder));
    // An attempt that was cut off has left directories with other times.
    fs::remove_file(copy.join("d/e/f")).unwrap();
    transfer_into(&share(&folder.join("d")), &copy).await;
    assert_eq!(tree(&copy), tree(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_cut_off_stands_in_the_way_of_nothing_and_a_directory_stays_until_its_link_may_come()
{
    let (_temp, folders, folder, here) = served(&[("e", b"old"), ("k", b"k"), ("l/m", b"m"), ("z", b"z")]);
    let copy = here.join("copy");
    let pull = async || pull(&folders, &copy).await;
    pull().await.unwrap();
    for name in ["e", "k"] {
        fs::remove_file(folder.join(name)).unwrap();
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("y"), "y").unwrap();
    }
    fs::remove_dir_all(folder.join("l")).unwrap();
    symlink("z", folder.join("l")).unwrap();
    fs::write(folder.join("z"), noise(1, 12 * BLOCK)).unwrap();
    fs::write(copy.join(BROKEN), "").unwrap();
    let outcome = pull().await;
    assert!(matches!(outcome, Err(TransferError::Io { .. })), "{outcome:?}");
    assert_eq!(fs::read(copy.join("l/m")).unwrap(), b"m");
    for name in ["e", "k"] {
        // It depends on the threads whether they have come this far.
        let left = copy.join(format!(".{name}.anabranch-part"));
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("y"), "y").unwrap();
    }
    // They are a file again, and a link.
    fs::remove_file(copy.join(BROKEN)).unwrap();
    ["e", "k"].iter().for_each(|name| fs::remove_dir_all(folder.join(name)).unwrap());
    fs::write(folder.join("e"), "new content").unwrap();
    symlink("z", folder.join("k")).unwrap();
    pull().await.unwrap();
    assert_eq!(tree(&copy), tree(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_stays_until_all_else_than_the_file_for_its_place_has_arrived() {
    let (_temp, folders, folder, here) = served(&[("e/old", b"old")]);
    let copy = here.join("copy");
    let pull = async || pull(&folders, &copy).await;
    pull().await.unwrap();
    fs::remove_dir_all(folder.join("e")).unwrap();
    fs::write(folder.join("e"), noise(1, BLOCK)).unwrap();
    // It fails later.
    fs::write(folder.join("z"), noise(2, 12 * BLOCK)).unwrap();
    fs::write(copy.join(FULL), "").unwrap();
    let outcome = pull().await;
    assert!(matches!(outcome, Err(TransferError::Incomplete { count: 2, .. })), "{outcome:?}");
    assert_eq!(fs::read(copy.join("e/old")).unwrap(), b"old");
    fs::remove_file(copy.join(FULL)).unwrap();
    let summary = pull().await.unwrap();
    assert_eq!((summary.files, summary.resumed, summary.removed), (2, 11 * BLOCK as u64, 2));
    assert_eq!(tree(&copy), tree(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_could_not_take_the_place_of_a_file_stays_writable_for_the_next_attempt() {
    let (_temp, folders, folder, here) = served(&[("e", b"old")]);
    let copy = here.join("copy");
    let pull = async || pull(&folders, &copy).await;
    pull().await.unwrap();
    fs::remove_file(folder.join("e")).unwrap();
    fs::create_dir(folder.join("e")).unwrap();
    fs::set_permissions(folder.join("e"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::write(folder.join("z"), "z").unwrap();
    symlink("nowhere", copy.join(".z.anabranch-part")).unwrap();
    let outcome = pull().await;
    assert!(matches!(outcome, Err(TransferError::Incomplete { count: 2, .. })), "{outcome:?}");
    assert_eq!(fs::metadata(copy.join(".e.anabranch-part")).unwrap().mode() & 0o700, 0o700);
    fs::remove_file(copy.join(".z.anabranch-part")).unwrap();
    pull().await.unwrap();
    assert!(copy.join("e").is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_killed_while_it_replaced_a_directory_leaves_nothing_for_ever() {
    use crate::path::aside_name;
    let long = "long ".repeat(40);
    for name in ["e", &long] {
        let (_temp, folders, folder, here) = served(&[("d/x", b"x")]);
        let copy = here.join("copy");
        let (at, aside) = (copy.join("d").join(name), copy.join("d").join(aside_name(name)));
        let cut_off = || {
            fs::create_dir_all(&aside).unwrap();
            fs::write(aside.join("old"), "old").unwrap();
        };
        let pull = async |delete| {
            let wanted = Wanted::contents_of("pub").unwrap();
            let mirror = Some(Mirror { delete, by_content: false });
            pull_with(&folders, (&wanted, &copy), ReceiveOptions { mirror, ..Default::default() }).await
        };
        pull(false).await.unwrap();
        // Before the file had its name: where that fits into the other, the directory is back.
        cut_off();
        let summary = pull(false).await.unwrap();
        let is_named =
            summary.warnings.iter().any(|note| note.contains("d/....") && note.contains("--delete"));
        assert_eq!((at.join("old").exists(), is_named), (name == "e", name != "e"), "{summary:?}");
        fs::write(folder.join("d").join(name), "new").unwrap();
        pull(true).await.unwrap();
        assert_eq!(tree(&copy), tree(&folder));
        // Afterwards.
        cut_off();
        let summary = pull(false).await.unwrap();
        assert!(summary.warnings.iter().any(|note| note.contains("d/....")), "{summary:?}");
        assert_eq!(pull(true).await.unwrap().removed, 2);
        assert_eq!(tree(&copy), tree(&folder));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_stays_also_for_a_hard_link_until_all_else_has_arrived() {
    let (_temp, folders, folder, here) = served(&[("e/old", b"old")]);
    let copy = here.join("copy");
    let pull = async || {
        let wanted = Wanted::contents_of("pub").unwrap();
        let options = ReceiveOptions { hard_links: true, ..Default::default() };
        pull_with(&folders, (&wanted, &copy), options).await
    };
    pull().await.unwrap();
    fs::remove_dir_all(folder.join("e")).unwrap();
    fs::write(folder.join("e"), "new").unwrap();
    fs::hard_link(folder.join("e"), folder.join("f")).unwrap();
    // It fails later.
    fs::write(folder.join("z"), noise(2, 12 * BLOCK)).unwrap();
    fs::write(copy.join(FULL), "").unwrap();
    let outcome = pull().await;
    assert!(matches!(outcome, Err(TransferError::Incomplete { count: 3, .. })), "{outcome:?}");
    assert_eq!(fs::read(copy.join("e/old")).unwrap(), b"old");
    fs::remove_file(copy.join(FULL)).unwrap();
    let summary = pull().await.unwrap();
    assert_eq!((summary.files, summary.hard_links), (3, 1));
    assert_eq!((groups(&copy, &["e", "f", "z"]), tree(&copy)), ("aac".into(), tree(&folder)));
}
