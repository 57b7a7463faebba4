//! Targets on file systems that refuse some metadata, names or lengths.
//!
//! They are mounted for the test, which needs root and the file system. Without them a test skips, with the reason.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::{
    CROWDED, LOSSY, SYNCLESS, TIMELESS, directories, directory, names, noise, share, transfer, transfer_into,
    tree,
};
use crate::hash::BLOCK;
use crate::{Conflict, Mirror, ReceiveOptions, TransferError};

/// A mounted file system, unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // The threads of a receiver that failed may hold a directory for a moment.
        let is_over = || {
            let ended = Command::new("umount").arg(&self.0).status();
            let is_over = ended.is_ok_and(|status| status.success());
            std::thread::sleep(Duration::from_millis(if is_over { 0 } else { 100 }));
            is_over
        };
        assert!((0..50).any(|_| is_over()), "{} stays mounted", self.0.display());
    }
}

/// Runs these commands, the last of which mounts a file system at `at`. `None`, with the reason, if one of them fails.
fn mount(at: &Path, commands: &[&[&str]]) -> Option<Mounted> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can mount file systems");
        return None;
    }
    for command in commands {
        let [program, words @ ..] = command else { continue };
        let ended = Command::new(program).args(words).output();
        let (is_done, why) = match ended {
            Ok(output) => (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => (false, error.to_string()),
        };
        if !is_done {
            eprintln!("skipped: {program} fails: {why}");
            return None;
        }
    }
    Some(Mounted(at.to_owned()))
}

/// Mounts the image file with a new file system, which `make` makes; tries these types of mount.
fn mount_image(at: &Path, make: &[&str], types: &[&str]) -> Option<Mounted> {
    let image = at.with_extension("img");
    let file = fs::File::create(&image).ok()?;
    file.set_len(64 << 20).ok()?;
    fs::create_dir(at).ok()?;
    let (image, target) = (image.to_str()?, at.to_str()?);
    let make = [make, &[image]].concat();
    // A type may have options of its own after a comma.
    let options = |kind: &str| format!("loop,umask=000{}", kind.find(',').map_or("", |at| &kind[at..]));
    let options: Vec<_> = types.iter().map(|kind| options(kind)).collect();
    let kinds = types.iter().map(|kind| kind.split(',').next().unwrap_or_default());
    let ways: Vec<_> = kinds
        .zip(&options)
        .map(|(kind, options)| ["mount", "-t", kind, "-o", options, image, target])
        .collect();
    ways.iter().find_map(|way| mount(at, &[&make, way]))
}

/// Names that some file systems do not allow, or do not tell apart.
const NAMES: [&str; 7] = ["Case", "a:b", "case", "caf\u{e9}", "cafe\u{301}", "plain", "q?"];

/// A directory with [`NAMES`], a link, a sparse file, and a directory.
fn varied(from: &Path) {
    for name in NAMES {
        fs::write(from.join("d").join(name), name).unwrap();
    }
    fs::create_dir(from.join("d/sub")).unwrap();
    fs::write(from.join("d/sub/in"), "in").unwrap();
    symlink("plain", from.join("d/link")).unwrap();
    let sparse = fs::File::create(from.join("d/sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (8 << 20) - 3).unwrap();
    for name in ["plain", "sub", "sub/in"] {
        fs::File::open(from.join("d").join(name)).unwrap().set_modified(old()).unwrap();
    }
}

fn old() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_400_000_000)
}

/// Sends [`varied`] to a file system. Returns the names of what failed; everything else must have arrived whole.
async fn failures_on(mounted: &Mounted, from: &Path) -> Vec<(String, String)> {
    let to = mounted.0.join("to");
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let failures = match received {
        Ok(_) => Vec::new(),
        Err(TransferError::Incomplete { failures, .. }) => failures,
        Err(error) => panic!("{error}"),
    };
    let failed: Vec<_> =
        failures.iter().map(|failure| (failure.path.raw().to_owned(), failure.reason.text())).collect();
    let expected: Vec<_> =
        tree(from).into_keys().filter(|name| failed.iter().all(|(other, _)| other != name)).collect();
    let arrived = tree(&to);
    assert_eq!(arrived.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>(), "{failed:?}");
    for name in expected.iter().filter(|name| from.join(name).is_file()) {
        assert!(fs::read(from.join(name)).unwrap() == fs::read(to.join(name)).unwrap(), "{name}");
    }
    for name in ["plain", "sub", "sub/in"] {
        assert_eq!(fs::metadata(to.join("d").join(name)).unwrap().modified().unwrap(), old(), "{name}");
    }
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exfat_can_hold_arrives_and_the_rest_is_named_with_the_reason() {
    let (temp, from, _) = directories(&[("d/x", b"x")]);
    let types = ["exfat", "exfat-fuse"];
    let Some(exfat) = mount_image(&temp.path().join("exfat"), &["mkfs.exfat"], &types) else { return };
    varied(&from);
    let mut failed = failures_on(&exfat, &from).await;
    failed.sort();
    let names: Vec<_> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["d/a:b", "d/case", "d/link", "d/q?"], "{failed:?}");
    let reasons: Vec<_> = failed.iter().map(|(_, reason)| reason.as_str()).collect();
    assert!(reasons[0].starts_with("this file system does not take its name"), "{reasons:?}");
    assert!(reasons[1].starts_with("the file system here does not tell its name"), "{reasons:?}");
    assert!(reasons[2].starts_with("the link cannot be made"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_exfat_no_file_replaces_another_of_the_share_and_a_copy_keeps_one_with_other_letters() {
    let (temp, from, _) = directories(&[("d/Case", b"Case"), ("d/case", b"case")]);
    let types = ["exfat", "exfat-fuse"];
    let Some(exfat) = mount_image(&temp.path().join("exfat"), &["mkfs.exfat"], &types) else { return };
    let to = exfat.0.join("to");
    fs::create_dir_all(to.join("d")).unwrap();
    let run =
        async |options: ReceiveOptions| transfer(&share(&from.join("d")), directory(&to), &options).await.1;
    for conflict in [Conflict::Error, Conflict::Overwrite] {
        for old in ["Case", "longer", "case"] {
            fs::write(to.join("d/Case"), old).unwrap();
            let received = run(ReceiveOptions { conflict, ..Default::default() }).await;
            let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
            let second = failures.iter().find(|failure| failure.path.raw() == "d/case").expect("it fails");
            assert!(second.reason.text().contains("does not tell its name"), "{failures:?}");
            let kept = if conflict == Conflict::Error { old } else { "Case" };
            assert_eq!(fs::read_to_string(to.join("d/Case")).unwrap(), kept, "{conflict:?}");
        }
    }
    // Now the share has only the other spelling, and the copy its content.
    fs::rename(from.join("d/Case"), from.join("d/case")).unwrap();
    fs::write(to.join("d/old"), "old").unwrap();
    // FUSE caches lengths for a second.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let mirror = Some(Mirror { delete: true, by_content: true });
    let summary = run(ReceiveOptions { mirror, ..Default::default() }).await.unwrap();
    assert_eq!(summary.removed, 1, "{summary:?}");
    assert_eq!((summary.files, names(&to.join("d"))), (0, vec!["Case".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_exfat_directories_that_are_one_there_fail_with_what_is_in_them_and_a_copy_removes_nothing() {
    let (temp, from, _) = directories(&[
        ("d/Dir/one", b"1"),
        ("d/Dir/sub/two", b"2"),
        ("d/dir/sub/three", b"3"),
        ("d/dir/four", b"4"),
        ("d/other", b"o"),
    ]);
    symlink("four", from.join("d/dir/link")).unwrap();
    let types = ["exfat", "exfat-fuse"];
    let Some(exfat) = mount_image(&temp.path().join("exfat"), &["mkfs.exfat"], &types) else { return };
    let to = exfat.0.join("to");
    let run =
        async |options: ReceiveOptions| transfer(&share(&from.join("d")), directory(&to), &options).await.1;
    let mirror = Some(Mirror { delete: true, by_content: false });
    for mirror in [None, mirror] {
        for _ in 0..2 {
            let received = run(ReceiveOptions { mirror, ..Default::default() }).await;
            let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
            let mut failed: Vec<_> = failures.iter().map(|failure| failure.path.raw()).collect();
            failed.sort_unstable();
            assert_eq!(failed, ["d/dir", "d/dir/four", "d/dir/link", "d/dir/sub", "d/dir/sub/three"]);
            for failure in failures {
                assert!(failure.reason.text().contains("does not tell its"), "{failures:?}");
            }
            assert_eq!(fs::read(to.join("d/Dir/one")).unwrap(), b"1");
            assert_eq!(fs::read(to.join("d/Dir/sub/two")).unwrap(), b"2");
        }
    }
    // Where names give way, all files arrive in one directory, with a note.
    fs::remove_file(from.join("d/dir/link")).unwrap();
    let summary = run(ReceiveOptions { conflict: Conflict::Rename, ..Default::default() }).await.unwrap();
    let is_told = |note: &String| note.starts_with("d/dir, as another directory of the share: ");
    assert_eq!(summary.warnings.iter().filter(|note| is_told(note)).count(), 1, "{summary:?}");
    assert_eq!(fs::read(to.join("d/Dir/four")).unwrap(), b"4");
    // Now the share has only the other spelling, and the copy keeps all of it.
    fs::rename(from.join("d/Dir/one"), from.join("d/dir/one")).unwrap();
    fs::rename(from.join("d/Dir/sub/two"), from.join("d/dir/sub/two")).unwrap();
    fs::remove_dir_all(from.join("d/Dir")).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let summary = run(ReceiveOptions { mirror, ..Default::default() }).await.unwrap();
    assert_eq!(summary.removed, 0, "{summary:?}");
    assert_eq!(names(&to.join("d/Dir")), ["four", "one", "sub"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_hard_links_further_names_are_copies_and_counted() {
    let (temp, from, _) = directories(&[("d/a", b"a")]);
    let types = ["exfat", "exfat-fuse"];
    let Some(exfat) = mount_image(&temp.path().join("exfat"), &["mkfs.exfat"], &types) else { return };
    fs::hard_link(from.join("d/a"), from.join("d/b")).unwrap();
    let (to, with) = (exfat.0.join("to"), share(&from.join("d")).with_links());
    let options = ReceiveOptions { hard_links: true, ..Default::default() };
    let summary = transfer(&with, directory(&to), &options).await.1.unwrap();
    let note = "this file system has no hard links; further names that became copies: 1";
    assert!(summary.warnings.iter().any(|warning| warning == note), "{summary:?}");
    assert_eq!((names(&to.join("d")), summary.hard_links), (vec!["a".to_owned(), "b".to_owned()], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_within_the_second_of_the_last_copy_arrives_on_exfat_and_nothing_else_is_fetched() {
    let (temp, from, _) = directories(&[("d/edited", b"old"), ("d/same", b"same")]);
    let types = ["exfat", "exfat-fuse"];
    let Some(exfat) = mount_image(&temp.path().join("exfat"), &["mkfs.exfat"], &types) else { return };
    let to = exfat.0.join("to");
    let options = ReceiveOptions {
        mirror: Some(Mirror { delete: true, by_content: false }),
        ..ReceiveOptions::default()
    };
    let edit = |name, content, milliseconds| {
        let path = from.join("d").join(name);
        fs::write(&path, content).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(old() + Duration::from_millis(milliseconds)).unwrap();
    };
    edit("same", "same", 200);
    for (content, arrived) in [("old", 2), ("new", 1), ("new", 0)] {
        edit("edited", content, if content == "old" { 200 } else { 700 });
        let (_, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
        let summary = received.unwrap();
        assert_eq!(summary.files, arrived, "{summary:?}");
        assert_eq!(fs::read_to_string(to.join("d/edited")).unwrap(), content);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ntfs_holds_everything() {
    let (temp, from, _) = directories(&[("d/x", b"x")]);
    let make = ["mkfs.ntfs", "-F", "-Q", "-q"];
    let types = ["ntfs-3g", "ntfs3"];
    let Some(ntfs) = mount_image(&temp.path().join("ntfs"), &make, &types) else { return };
    varied(&from);
    assert_eq!(failures_on(&ntfs, &from).await, []);
    let stored = fs::metadata(ntfs.0.join("to/d/sparse")).unwrap().blocks() * 512;
    assert!(stored < 1 << 20, "{stored} bytes for a hole");

    // Without permissions, NTFS ignores modes without an error.
    let plain = from.join("d/plain");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o600)).unwrap();
    let to = ntfs.0.join("mode");
    let notes = transfer_into(&share(&plain), &to).await.warnings;
    let told = "this file system cannot store the mode of plain";
    let is_told = notes.iter().any(|note| note.starts_with(told));
    let mode = fs::metadata(to.join("plain")).unwrap().mode() & 0o777;
    assert_eq!(is_told, mode != 0o600, "{mode:o}: {notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn squashed_owners_cost_metadata_and_no_file() {
    let (temp, from, _) = directories(&[("d/x", b"x")]);
    let [behind, at] = ["behind", "squashed"].map(|name| temp.path().join(name));
    fs::create_dir(&behind).unwrap();
    fs::create_dir(&at).unwrap();
    let (from_text, at_text) = (behind.to_str().unwrap(), at.to_str().unwrap());
    let bindfs = [
        "bindfs",
        "--force-user=nobody",
        "--perms=a+rwX",
        "--chmod-deny",
        "--chown-deny",
        from_text,
        at_text,
    ];
    let Some(squashed) = mount(&at, &[&bindfs]) else { return };
    varied(&from);
    fs::set_permissions(from.join("d/plain"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(failures_on(&squashed, &from).await, []);
    let again = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
    fs::write(from.join("d/plain"), "changed").unwrap();
    let (_, received) = transfer(&share(&from.join("d")), directory(&squashed.0.join("to")), &again).await;
    let notes = received.unwrap().warnings;
    assert!(notes.len() == 1 && notes[0].starts_with("this file system cannot store the mode"), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_compared_with_what_a_sparse_file_stores() {
    let (temp, from, _) = directories(&[("d/x", b"x")]);
    let at = temp.path().join("small");
    fs::create_dir(&at).unwrap();
    let tmpfs = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", at.to_str().unwrap()];
    let Some(small) = mount(&at, &[&tmpfs]) else { return };
    varied(&from);
    if fs::metadata(from.join("d/sparse")).unwrap().blocks() * 512 > 1 << 20 {
        return eprintln!("skipped: the source has no holes");
    }
    assert_eq!(failures_on(&small, &from).await, []);
    fs::write(from.join("d/large"), noise(1, 2 * BLOCK)).unwrap();
    let (_, received) =
        transfer(&share(&from.join("d")), directory(&small.0.join("other")), &ReceiveOptions::default())
            .await;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let named = failures.iter().map(|failure| failure.path.raw()).collect::<Vec<_>>();
    assert_eq!(named, ["d/large"]);
    assert!(!names(&small.0.join("other/d")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_and_empty_files_for_which_there_are_no_inodes_are_named_and_others_arrive() {
    let (temp, from, _) = directories(&[("d/a", b""), ("d/e/f", b"f"), ("d/g/h", b"h"), ("d/i/k", b"k")]);
    let at = temp.path().join("few");
    fs::create_dir(&at).unwrap();
    // For the target, `d`, and two more.
    let tmpfs = ["mount", "-t", "tmpfs", "-o", "size=1M,nr_inodes=4", "tmpfs", at.to_str().unwrap()];
    let Some(few) = mount(&at, &[&tmpfs]) else { return };
    let (_, received) =
        transfer(&share(&from.join("d")), directory(&few.0), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, advice, .. }) = &received else { panic!("{received:?}") };
    let is_named = |name: &&str| {
        failures.iter().any(|failure| failure.to_string() == format!("{name}: the disk is full"))
    };
    assert!(["d/e", "d/g", "d/i"].iter().any(is_named) && advice.is_some(), "{received:?}");
    assert_eq!((tree(&few.0).len(), failures.len()), (3, 5), "{received:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_data_are_lost_when_it_is_closed_has_not_arrived() {
    let (_temp, from, to) = directories(&[("a", b"a")]);
    fs::write(to.join(LOSSY), b"").unwrap();
    let (sent, received) =
        transfer(&share(&from.join("a")), directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(sent, Err(TransferError::PeerIncomplete { count: 1, .. })), "{sent:?}");
    assert!(matches!(received, Err(TransferError::Incomplete { count: 1, .. })), "{received:?}");
    assert_eq!(names(&to), [".a.anabranch-part", LOSSY]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_arrives_with_notes_where_neither_times_nor_syncs_are_possible() {
    let (_temp, from, to) = directories(&[("a", b"a")]);
    for name in [SYNCLESS, TIMELESS] {
        fs::write(to.join(name), b"").unwrap();
    }
    let (sent, received) =
        transfer(&share(&from.join("a")), directory(&to), &ReceiveOptions::default()).await;
    sent.unwrap();
    let notes = received.unwrap().warnings;
    let told = ["confirm the writing", "store the time"];
    let told = told.map(|what| format!("this file system cannot {what} of a: "));
    assert!(
        notes.len() == 2 && notes.iter().zip(&told).all(|(note, told)| note.starts_with(told)),
        "{notes:?}"
    );
    assert_eq!(names(&to), ["a", SYNCLESS, TIMELESS]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_to_sync_a_directory_its_files_arrive_with_a_note_and_a_copy_removes_nothing() {
    let (_temp, from, to) = directories(&[("d/a", b"a"), ("d/e/b", b"b")]);
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d").join(CROWDED), b"").unwrap();
    let mirror = Some(Mirror { delete: true, by_content: false });
    let options = ReceiveOptions { mirror, ..ReceiveOptions::default() };
    let (sent, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    let summary = received.unwrap();
    assert_eq!((summary.files, summary.removed), (2, 0));
    assert_eq!((sent.unwrap().unsynced, summary.unsynced), (1, 1));
    let [kept, note] = &summary.warnings[..] else { panic!("{summary:?}") };
    assert_eq!(kept, "nothing else was removed, because the names of what arrived may be lost");
    assert!(note.starts_with("a crash may undo the new names in d: "), "{note}");
    assert_eq!(names(&to.join("d")), ["a", "e", CROWDED]);
    // Another attempt with room is a copy again.
    fs::remove_file(to.join("d").join(CROWDED)).unwrap();
    fs::write(to.join("d/old"), b"").unwrap();
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    assert_eq!(received.unwrap().removed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_to_sync_a_directory_nothing_takes_the_place_of_another_kind() {
    let (_temp, from, to) = directories(&[("d/a", b"a"), ("d/file/b", b"b"), ("d/new", b"new")]);
    symlink("a", from.join("d/link")).unwrap();
    ["link", "new"].iter().for_each(|name| fs::create_dir_all(to.join("d").join(name)).unwrap());
    for name in ["file", "link/old", "new/old", CROWDED] {
        fs::write(to.join("d").join(name), b"old").unwrap();
    }
    let mirror = Some(Mirror { delete: true, by_content: false });
    let options = ReceiveOptions { mirror, ..ReceiveOptions::default() };
    let run = async || transfer(&share(&from.join("d")), directory(&to), &options).await.1;
    let received = run().await;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let lines: Vec<_> = failures.iter().map(ToString::to_string).collect();
    let why = "stays there, because the names of what arrived may be lost";
    assert_eq!(lines[0], format!("d/new: it cannot be put in place: a directory {why}"));
    let why = "because not everything has arrived";
    let link =
        format!("d/link: the link cannot take the place of a directory: a directory stays there, {why}");
    assert_eq!(lines[1..], [link, format!("d/file: a file of this name stays, {why}")]);
    ["link", "new"].iter().for_each(|name| assert_eq!(names(&to.join("d").join(name)), ["old"]));
    assert_eq!(fs::read(to.join("d/file")).unwrap(), b"old");
    fs::remove_file(to.join("d").join(CROWDED)).unwrap();
    run().await.unwrap();
    assert_eq!(tree(&to), tree(&from));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_removed_keeps_nothing_else_from_its_place() {
    let (_temp, from, to) = directories(&[("d/a", b"a"), ("d/file/b", b"b")]);
    for name in ["held", "link"] {
        symlink("a", from.join("d").join(name)).unwrap();
        fs::create_dir_all(to.join("d").join(name)).unwrap();
    }
    fs::write(to.join("d/held").join(OsStr::from_bytes(b"\xff")), "").unwrap();
    fs::write(to.join("d/file"), "old").unwrap();
    let mirror = Some(Mirror { delete: true, by_content: false });
    let options = ReceiveOptions { mirror, ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    let Err(TransferError::Incomplete { failures, count: 1, .. }) = &received else { panic!("{received:?}") };
    assert_eq!(failures[0].path.raw(), "d/held");
    assert_eq!(fs::read_link(to.join("d/link")).unwrap(), Path::new("a"));
    assert_eq!(fs::read(to.join("d/file/b")).unwrap(), b"b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_name_is_refused_in_the_end_leaves_nothing_behind() {
    let (temp, from, _) = directories(&[("d/CON", b"c"), ("d/plain", b"p")]);
    let make = ["mkfs.ntfs", "-F", "-Q", "-q"];
    let types = ["ntfs-3g,windows_names", "ntfs3,windows_names"];
    let Some(ntfs) = mount_image(&temp.path().join("ntfs"), &make, &types) else { return };
    let to = ntfs.0.join("to");
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, again: 0, .. }) = &received else { panic!("{received:?}") };
    assert!(failures[0].reason.text().contains("does not take its name"), "{failures:?}");
    assert_eq!((failures.len(), names(&to.join("d"))), (1, vec!["plain".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_directory_that_could_not_be_made_fails_for_that() {
    let (_temp, from, to) = directories(&[("d/e/x", b"x")]);
    let at = to.join("d");
    fs::create_dir(&at).unwrap();
    let tmpfs = ["mount", "-t", "tmpfs", "-o", "size=1M,ro", "tmpfs", at.to_str().unwrap()];
    let Some(_fixed) = mount(&at, &[&tmpfs]) else { return };
    let received = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await.1;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let told: Vec<_> = failures.iter().map(ToString::to_string).collect();
    let expected = ["d/e: Read-only file system (os error 30)", "d/e/x: its directory could not be made"];
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_the_place_of_a_directory_is_not_followed_wherever_it_leads() {
    for text in ["missing", "/", ".."] {
        let (_temp, from, to) = directories(&[("d/e/x", b"x")]);
        fs::create_dir(to.join("d")).unwrap();
        symlink(text, to.join("d/e")).unwrap();
        let received = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await.1;
        let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
        let told = failures[0].to_string();
        assert!(
            told.starts_with("d/e: its directory cannot be used (links are not followed): "),
            "{text}: {told}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_exfat_a_sparse_file_that_needs_more_than_there_is_fails_and_the_rest_arrives() {
    let (temp, from, _) = directories(&[("d/x", b"x")]);
    fs::File::create(from.join("d/sparse")).unwrap().set_len(200 << 20).unwrap();
    let types = ["exfat", "exfat-fuse"];
    let Some(exfat) = mount_image(&temp.path().join("exfat"), &["mkfs.exfat"], &types) else { return };
    let (to, options) = (exfat.0.join("to"), ReceiveOptions::default());
    let received = transfer(&share(&from.join("d")), directory(&to), &options).await.1;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let reasons: Vec<_> = failures.iter().map(|failure| failure.reason.text()).collect();
    // `exfat-fuse` is a file system in user space like any other: only the write decides.
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(reason.starts_with("it does not fit: 209715200 bytes") || reason.contains("full"), "{reason}");
    assert!(to.join("d/x").exists() && !to.join("d/sparse").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_for_which_there_is_no_inode_lacks_every_file_by_name_at_both_ends() {
    use super::serve::{mirror, store};
    use crate::{Folders, Place, Rights};
    let (temp, from, _) = directories(&[("a", b"a"), ("d/c", b"c")]);
    let at = temp.path().join("pub");
    fs::create_dir(&at).unwrap();
    let tmpfs = ["mount", "-t", "tmpfs", "-o", "size=1M,nr_inodes=2", "tmpfs", at.to_str().unwrap()];
    let Some(few) = mount(&at, &[&tmpfs]) else { return };
    let folders = Folders::open(&[&few.0]).unwrap();
    let share = crate::Share::from_paths(&[&from]).unwrap().contents_only();
    let places = [Place::mirror("pub/new/deep", mirror(true)), Place::in_directory("pub/b", Conflict::Error)];
    for place in places {
        let outcome = store(&folders, Rights::Write, &place.unwrap(), &share).await;
        let Err(TransferError::PeerIncomplete { missing, .. }) = &outcome else { panic!("{outcome:?}") };
        let named: Vec<_> = missing.iter().map(|file| (file.path.raw(), file.reason.raw())).collect();
        assert_eq!(named, ["a", "d", "d/c"].map(|path| (path, "the disk is full")));
    }
}
