//! A server of folders and its clients.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::crowd::Pipe;
use super::{
    BROKEN, Memory, SMALL, TIMELESS, directories, directory, names, noise, plain, share, transfer, tree,
};
use crate::ask::Ask;
use crate::control::ControlLink;
use crate::hash::BLOCK;
use crate::{
    Conflict, Connection, Folders, ListedKind, Mirror, Place, Progress, ReceiveOptions, Rights, Share,
    Summary, TransferError, Visitor, Wanted, get, list, put,
};

type Outcome = Result<Summary, TransferError>;

fn visitor(rights: Rights) -> Visitor {
    Visitor { rights, name: "ab1client".into() }
}

/// Runs a client against a server; returns the client's outcome and those of its requests at the server.
async fn visit<T>(
    folders: &Folders,
    rights: Rights,
    client: impl AsyncFnOnce(Memory) -> T,
) -> (T, Vec<Outcome>) {
    let (server, near) = plain();
    let serving = async {
        let mut outcomes = Vec::new();
        while let Some(served) = folders.serve(&server, &visitor(rights), &Progress::new()).await {
            outcomes.push(served.outcome);
        }
        outcomes
    };
    tokio::join!(client(near), serving)
}

pub(super) async fn fetch(folders: &Folders, rights: Rights, paths: &[&str], to: &Path) -> Outcome {
    let wanted = Wanted::paths(paths)?;
    let options = ReceiveOptions::default();
    let run = async |near: Memory| get(&near, &wanted, directory(to), &options, &Progress::new()).await;
    visit(folders, rights, run).await.0
}

/// Makes the directory `copy` one of the folder "pub".
pub(super) async fn pull(folders: &Folders, copy: &Path) -> Outcome {
    pull_with(folders, (&Wanted::contents_of("pub")?, copy), ReceiveOptions::default()).await
}

/// The same for chosen files, with options.
pub(super) async fn pull_with(
    folders: &Folders,
    (wanted, copy): (&Wanted, &Path),
    options: ReceiveOptions,
) -> Outcome {
    let options = ReceiveOptions { mirror: options.mirror.or(Some(mirror(true))), ..options };
    let run = async |near: Memory| get(&near, wanted, directory(copy), &options, &Progress::new()).await;
    visit(folders, Rights::Read, run).await.0
}

pub(super) async fn store(folders: &Folders, rights: Rights, place: &Place, share: &Share) -> Outcome {
    visit(folders, rights, async |near: Memory| put(&near, place, share, &Progress::new()).await).await.0
}

fn to(path: &str) -> Place {
    Place::in_directory(path, Conflict::Error).unwrap()
}

/// A directory "pub" with these files, and one for the client.
pub(super) fn served(files: &[(&str, &[u8])]) -> (TempDir, Folders, std::path::PathBuf, std::path::PathBuf) {
    let (temp, from, here) = directories(files);
    let folder = temp.path().join("pub");
    fs::rename(from, &folder).unwrap();
    let folders = Folders::open(&[&folder]).unwrap();
    (temp, folders, folder, here)
}

fn refused(outcome: &Outcome) -> String {
    match outcome {
        Err(TransferError::Peer(why)) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_folder_are_listed_and_fetched_in_one_session() {
    let (_temp, folders, folder, here) =
        served(&[("a/b/x", &noise(1, 3 * BLOCK)), ("a/y", b"y"), ("z", b"")]);
    let client = async |near: Memory| {
        let paths = |entries: Vec<crate::Listed>| -> Vec<String> {
            entries.iter().map(|entry| entry.path.to_string()).collect()
        };
        assert_eq!(paths(list(&near, "", false).await.unwrap().0), ["pub"]);
        assert_eq!(paths(list(&near, "pub/a", false).await.unwrap().0), ["b", "y"]);
        assert_eq!(paths(list(&near, "/pub/", true).await.unwrap().0), ["a", "a/b", "a/b/x", "a/y", "z"]);
        let (file, _) = list(&near, "pub/a/y", false).await.unwrap();
        assert!(matches!(&file[..], [one] if matches!(one.kind, ListedKind::File { size: Some(1), .. })));
        let wanted = Wanted::paths(&["pub/a/b", "pub/z"]).unwrap();
        let options = ReceiveOptions::default();
        get(&near, &wanted, directory(&here), &options, &Progress::new()).await.unwrap();
        let wanted = Wanted::contents_of("pub/a").unwrap();
        get(&near, &wanted, directory(&here.join("copy")), &options, &Progress::new()).await.unwrap();
    };
    let ((), outcomes) = visit(&folders, Rights::Read, client).await;
    assert!(outcomes.len() == 6 && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(fs::read(here.join("b/x")).unwrap(), fs::read(folder.join("a/b/x")).unwrap());
    assert_eq!(names(&here), ["b", "copy", "z"]);
    assert_eq!(tree(&here.join("copy")), tree(&folder.join("a")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_what_can_be_read_although_something_cannot() {
    use std::os::unix::ffi::OsStrExt as _;
    let (_temp, folders, folder, _) = served(&[("a", b"a")]);
    fs::write(folder.join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    let client = async |near: Memory| list(&near, "pub", false).await;
    let (entries, outcome) = visit(&folders, Rights::Read, client).await.0.unwrap();
    assert!(
        entries.len() == 1 && matches!(outcome, Err(TransferError::Incomplete { count: 1, .. })),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leads_out_of_the_folders_whatever_a_client_sends() {
    let (temp, folders, folder, here) = served(&[("a", b"a"), ("d/x", b"x")]);
    fs::write(temp.path().join("secret"), "secret").unwrap();
    symlink(temp.path(), folder.join("up")).unwrap();
    symlink("d", folder.join("within")).unwrap();
    for path in ["secret", "pub/up/secret", "pub/up", "pub/within/x", "pub/a/x"] {
        assert!(fetch(&folders, Rights::Read, &[path], &here).await.is_err(), "{path}");
        assert!(store(&folders, Rights::Write, &to(path), &share(&here)).await.is_err());
        let listed =
            visit(&folders, Rights::Read, async |near: Memory| list(&near, path, true).await).await.0;
        assert!(listed.is_err(), "{path}");
    }
    for path in ["../secret", "pub/../../secret", "pub/./../x", "pub//a", "pub/\0"] {
        assert!(matches!(Wanted::paths(&[path]), Err(TransferError::UnsafePath { .. })), "{path}");
    }
    assert!(names(&here).is_empty());
    assert_eq!(names(temp.path()), ["pub", "secret", "to"]);
    // The same from a client that checks nothing.
    let raw = [&[0x08, 0, 0, 0, 16, 2, 0, 0, 1, 0, 10][..], b"pub/../../"].concat();
    let hello = [&[1, 0, 0, 0, 7][..], b"ANBT", &[0, 4, 1]].concat();
    let client = async |near: Memory| {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = near.open().await.unwrap();
        stream.write_all(&[hello, raw].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let (answer, outcomes) = visit(&folders, Rights::Write, client).await;
    assert!(answer.contains("refused the path"), "{answer:?}");
    assert!(matches!(outcomes[..], [Err(TransferError::UnsafePath { .. })]), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_may_do_what_its_rights_say_and_nothing_else() {
    let (_temp, folders, folder, here) = served(&[("a", b"a")]);
    fs::write(here.join("new"), "new").unwrap();
    let new = share(&here.join("new"));
    let reason = refused(&store(&folders, Rights::Read, &to("pub"), &new).await);
    assert!(reason.contains("may list and get, but not put"), "{reason}");
    let reason = refused(&fetch(&folders, Rights::Drop, &["pub"], &here.join("x")).await);
    assert!(reason.contains("drop box"), "{reason}");
    let listed = visit(&folders, Rights::Drop, async |near: Memory| list(&near, "", false).await).await.0;
    assert!(matches!(listed, Err(TransferError::Peer(_))), "{listed:?}");
    for place in [
        Place::in_directory("", Conflict::Overwrite).unwrap(),
        Place::mirror("", Mirror { delete: true, by_content: false }).unwrap(),
    ] {
        assert!(refused(&store(&folders, Rights::Drop, &place, &new).await).contains("cannot be changed"));
    }
    store(&folders, Rights::Drop, &to(""), &new).await.unwrap();
    store(&folders, Rights::Write, &to("pub/b/c"), &new).await.unwrap();
    assert_eq!(fs::read(folder.join("ab1client/new")).unwrap(), b"new");
    assert_eq!(fs::read(folder.join("b/c/new")).unwrap(), b"new");
    assert_eq!(names(&folder), ["a", "ab1client", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_put_into_a_drop_box_cannot_be_named() {
    let (_temp, folders, folder, here) = served(&[("ab1other/new", b"theirs")]);
    fs::write(here.join("new"), "mine").unwrap();
    let new = share(&here.join("new"));
    store(&folders, Rights::Drop, &to("pub/ab1other"), &new).await.unwrap();
    assert!(store(&folders, Rights::Drop, &to("ab1other"), &new).await.is_err());
    assert_eq!(fs::read(folder.join("ab1other/new")).unwrap(), b"theirs");
    assert_eq!(fs::read(folder.join("ab1client/ab1other/new")).unwrap(), b"mine");
    assert_eq!(names(&folder), ["ab1client", "ab1other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn put_files_that_are_there_are_kept_and_others_in_their_place_only_replaced_on_request() {
    let (_temp, folders, folder, here) = served(&[("a", b"old"), ("same", b"same")]);
    fs::write(here.join("a"), "new").unwrap();
    fs::write(here.join("same"), "same").unwrap();
    let both = Share::from_paths(&[here.join("a"), here.join("same")]).unwrap();
    let outcome = store(&folders, Rights::Write, &to("pub"), &both).await;
    assert!(matches!(outcome, Err(TransferError::PeerIncomplete { count: 1, .. })), "{outcome:?}");
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"old");
    let over = Place::in_directory("pub", Conflict::Overwrite).unwrap();
    store(&folders, Rights::Write, &over, &both).await.unwrap();
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_checked_before_anything_is_written_and_counts_names() {
    let (_temp, folders, folder, here) = served(&[("held", &[1; 50_000])]);
    let folders = folders.hold_at_most(200_000);
    fs::create_dir(here.join("many")).unwrap();
    (0..40).for_each(|at| fs::write(here.join(format!("many/{at}")), "").unwrap());
    fs::write(here.join("large"), noise(1, 160_000)).unwrap();
    fs::write(here.join("small"), noise(2, 90_000)).unwrap();
    for name in ["large", "many"] {
        let reason = refused(&store(&folders, Rights::Write, &to(""), &share(&here.join(name))).await);
        assert!(reason.contains("the quota leaves"), "{reason}");
        assert_eq!(names(&folder), ["held"], "nothing was written");
    }
    store(&folders, Rights::Write, &to(""), &share(&here.join("small"))).await.unwrap();
    // It is counted although the folder is not walked again for ten seconds.
    let reason = refused(&store(&folders, Rights::Write, &to("pub/x"), &share(&here.join("small"))).await);
    assert!(reason.contains("the quota leaves"), "{reason}");
    let endless = Share::from_reader("stream", std::io::repeat(7)).unwrap();
    let reason = refused(&store(&folders, Rights::Write, &to(""), &endless).await);
    assert!(reason.contains("more than the"), "{reason}");
    assert!(!folder.join("stream").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_put_files_at_once_do_not_exceed_the_quota_together() {
    let (_temp, folders, folder, here) = served(&[]);
    let folders = folders.hold_at_most(200_000);
    fs::write(here.join("new"), noise(1, 50_000)).unwrap();
    let (new, places) = (share(&here.join("new")), [to("pub/a"), to("pub/b")]);
    let (pipe, bytes) = std::sync::mpsc::channel();
    pipe.send(vec![7; 1_000]).unwrap();
    let stream = Share::from_reader("stream", Pipe(bytes)).unwrap();
    let first = store(&folders, Rights::Write, &places[0], &stream);
    let second = async {
        // By then, the stream has reserved all that is free.
        while !folder.join("a").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let outcome = store(&folders, Rights::Write, &places[1], &new).await;
        drop(pipe);
        outcome
    };
    let (first, second) = tokio::join!(first, second);
    assert!(refused(&second).contains("the quota leaves"));
    first.unwrap();
    store(&folders, Rights::Write, &places[1], &new).await.unwrap();
    assert_eq!(fs::read(folder.join("a/stream")).unwrap(), vec![7; 1_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_for_files_beside_others_of_the_same_length_and_a_refused_client_makes_no_directory() {
    let (_temp, folders, folder, here) = served(&[("held", &noise(1, 50_000))]);
    let folders = folders.hold_at_most(100_000);
    fs::write(here.join("held"), noise(2, 50_000)).unwrap();
    for conflict in [Conflict::Rename, Conflict::Overwrite] {
        let place = Place::in_directory("pub", conflict).unwrap();
        let outcome = store(&folders, Rights::Write, &place, &share(&here.join("held"))).await;
        assert!(matches!(outcome, Err(TransferError::PeerIncomplete { count: 1, .. })), "{outcome:?}");
        assert_eq!(fs::read(folder.join("held")).unwrap(), noise(1, 50_000));
    }
    let reason = refused(&store(&folders, Rights::Write, &to("pub/x/y"), &share(&here.join("held"))).await);
    assert!(reason.contains("the quota leaves"), "{reason}");
    assert_eq!(names(&folder), ["held"]);
}

pub(super) fn mirror(delete: bool) -> Mirror {
    Mirror { delete, by_content: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_moves_only_what_changed_and_removes_on_request() {
    let (_temp, folders, folder, here) =
        served(&[("a", b"a"), ("d/x", &noise(1, 5000)), ("e/y", b"y"), ("k/v", b"")]);
    symlink("a", folder.join("link")).unwrap();
    let copy = here.join("copy");
    let pull = async |delete| {
        let options =
            ReceiveOptions { mirror: Some(mirror(delete)), allow_hidden: true, ..Default::default() };
        let wanted = Wanted::contents_of("pub").unwrap();
        let progress = Progress::new();
        let run = async |near: Memory| get(&near, &wanted, directory(&copy), &options, &progress).await;
        let (outcome, _) = visit(&folders, Rights::Read, run).await;
        (outcome, progress.snapshot())
    };
    pull(false).await.0.unwrap();
    assert_eq!(tree(&copy), tree(&folder));
    // Nothing changed: nothing moves.
    let (outcome, counters) = pull(true).await;
    assert_eq!((outcome.unwrap().files, counters.bytes_done - counters.bytes_resumed), (0, 0));

    // A changed file, one of another kind each way, and entries only here.
    fs::write(folder.join("a"), "other").unwrap();
    fs::remove_dir_all(folder.join("e")).unwrap();
    fs::write(folder.join("e"), "now a file").unwrap();
    fs::remove_dir_all(folder.join("k")).unwrap();
    symlink("a", folder.join("k")).unwrap();
    fs::remove_file(folder.join("link")).unwrap();
    fs::create_dir(folder.join("link")).unwrap();
    fs::create_dir_all(copy.join("old/deep")).unwrap();
    fs::write(copy.join("old/deep/.f"), "f").unwrap();
    symlink("/", copy.join("old/root")).unwrap();
    let outcome = pull(false).await.0;
    assert!(matches!(outcome, Err(TransferError::Incomplete { .. })), "kinds differ: {outcome:?}");
    assert!(copy.join("old/deep/.f").exists(), "nothing is removed without being asked");
    let summary = pull(true).await.0.unwrap();
    assert_eq!(tree(&copy), tree(&folder));
    assert_eq!(summary.removed, 2 + 2 + 1 + 4, "{summary:?}");
    assert!(Path::new("/bin").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_goes_only_when_the_file_in_its_place_has_arrived() {
    let (_temp, folders, folder, here) = served(&[("e/y", b"y")]);
    let copy = here.join("copy");
    let pull = async || pull(&folders, &copy).await;
    pull().await.unwrap();
    fs::remove_dir_all(folder.join("e")).unwrap();
    fs::write(folder.join("e"), noise(1, 12 * BLOCK)).unwrap();
    fs::write(copy.join(BROKEN), "").unwrap();
    let outcome = pull().await;
    assert!(matches!(outcome, Err(TransferError::Io { .. })), "{outcome:?}");
    assert!(copy.join("e/y").exists());
    fs::remove_file(copy.join(BROKEN)).unwrap();
    assert_eq!(pull().await.unwrap().removed, 2);
    assert_eq!(tree(&copy), tree(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_only_when_all_else_has_arrived_if_a_directory_takes_its_place() {
    let (_temp, folders, folder, here) = served(&[("e", b"old"), ("z", b"z")]);
    let copy = here.join("copy");
    let pull = async || pull(&folders, &copy).await;
    pull().await.unwrap();
    fs::remove_file(folder.join("e")).unwrap();
    fs::create_dir_all(folder.join("e/sub")).unwrap();
    fs::write(folder.join("e/sub/y"), "y").unwrap();
    fs::write(folder.join("z"), noise(1, 12 * BLOCK)).unwrap();
    // It stops for a broken disk, then because one file cannot be put in its place.
    fs::write(copy.join(BROKEN), "").unwrap();
    let outcome = pull().await;
    assert!(matches!(outcome, Err(TransferError::Io { .. })), "{outcome:?}");
    assert_eq!(fs::read(copy.join("e")).unwrap(), b"old");
    fs::remove_file(copy.join(BROKEN)).unwrap();
    fs::remove_file(copy.join(".z.anabranch-part")).unwrap();
    fs::write(copy.join(".z.anabranch-part"), "").unwrap();
    fs::hard_link(copy.join(".z.anabranch-part"), here.join("its other name")).unwrap();
    let outcome = pull().await;
    let Err(TransferError::Incomplete { failures, .. }) = &outcome else { panic!("{outcome:?}") };
    let named: Vec<_> = failures.iter().map(|failure| failure.path.raw()).collect();
    assert_eq!(named, ["z", "e"], "{failures:?}");
    assert_eq!(fs::read(copy.join("e")).unwrap(), b"old");
    fs::remove_file(copy.join(".z.anabranch-part")).unwrap();
    let summary = pull().await.unwrap();
    // The content of the directory was on the disk.
    assert_eq!((summary.removed, summary.files), (1, 1), "{summary:?}");
    assert_eq!(tree(&copy), tree(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_of_a_file_is_refused_and_removes_nothing() {
    let (_temp, folders, _, here) = served(&[("a", b"a")]);
    fs::write(here.join("mine"), "mine").unwrap();
    let wanted = (&Wanted::contents_of("pub/a").unwrap(), &*here);
    let reason = refused(&pull_with(&folders, wanted, ReceiveOptions::default()).await);
    assert!(reason.contains("a is a file here"), "{reason}");
    assert_eq!(names(&here), ["mine"]);
}

#[test]
fn a_directory_that_the_operator_shut_stays_shut_for_clients_who_may_write() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let (temp, folders, folder, here) = served(&[
        ("shut/old", b"old"),
        ("gone/deep/f", b"f"),
        ("keep/x/f", b"f"),
        ("keep/y", b"y"),
        ("theirs/z/f", b"f"),
    ]);
    super::resume::open_to_all(temp.path(), &folder);
    chown(folder.join("keep/x"), Some(65_534), None).unwrap();
    for name in ["shut", "gone", "gone/deep", "keep"] {
        chown(folder.join(name), Some(65_534), None).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o555)).unwrap();
    }
    for name in ["new/shut", "empty/keep", "empty/theirs"] {
        fs::create_dir_all(here.join(name)).unwrap();
    }
    fs::write(here.join("new/shut/new"), "new").unwrap();
    fs::create_dir(here.join("new/shut/sub")).unwrap();
    std::os::unix::fs::symlink("new", here.join("new/shut/to new")).unwrap();
    let at = |place, command| {
        format!(
            "the server may not write into {place}; its operator runs `chmod {command}` in the shared folder"
        )
    };
    let into = || at("its directory", "u+rwX shut");
    let stays = |why: &str| format!("it cannot be removed: {why}");
    let beside = || stays(&at("its directory", "u+rwX keep"));
    let reasons = [
        vec![("shut/new", into()), ("shut/sub", into()), ("shut/to new", into())],
        vec![
            ("gone", stays(&at("a directory there", "-R u+rwX gone"))),
            ("keep/x", beside()),
            ("keep/y", beside()),
            ("shut", stays(&at("a directory there", "-R u+rwX shut"))),
            // It is another user's: no command of the operator's would help.
            ("theirs/z", stays("Permission denied (os error 13)")),
        ],
    ];
    let shares = ["new", "empty"].map(|name| share(&here.join(name)).contents_only());
    let places = [Place::in_directory("pub", Conflict::Overwrite), Place::mirror("pub", mirror(true))];
    super::resume::without_root().block_on(async {
        // On a thread of the runtime.
        let run = async move {
            for ((place, share), reasons) in places.into_iter().zip(&shares).zip(reasons) {
                let outcome = store(&folders, Rights::Write, &place.unwrap(), share).await;
                let Err(TransferError::PeerIncomplete { mut missing, .. }) = outcome else {
                    panic!("{outcome:?}")
                };
                missing.sort_by(|one, other| one.path.raw().cmp(other.path.raw()));
                assert_eq!(missing.len(), reasons.len(), "{missing:?}");
                for (file, (path, reason)) in missing.iter().zip(reasons) {
                    assert_eq!(file.path.raw(), path);
                    assert_eq!(file.reason.raw(), reason, "{missing:?}");
                }
            }
        };
        tokio::spawn(run).await.unwrap();
    });
    let mode = |name| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["shut", "gone", "gone/deep"].map(mode), [0o555; 3]);
    assert_eq!(
        (names(&folder.join("shut")), names(&folder.join("gone/deep"))),
        (vec!["old".into()], vec!["f".into()])
    );
}

#[test]
fn a_client_updates_its_copy_of_a_directory_that_is_read_only_at_its_end() {
    use std::os::unix::fs::PermissionsExt as _;
    let (temp, folders, folder, here) = served(&[("beside", b"stays")]);
    super::resume::open_to_all(temp.path(), &folder);
    let locked = here.join("src/locked");
    fs::create_dir_all(&locked).unwrap();
    fs::write(locked.join("a"), "a").unwrap();
    let lock = |mode| fs::set_permissions(&locked, fs::Permissions::from_mode(mode)).unwrap();
    super::resume::without_root().block_on(async {
        for round in ["first", "second"] {
            lock(0o755);
            fs::write(locked.join(round), round).unwrap();
            lock(0o555);
            let (folders, share) = (folders.clone(), share(&here.join("src")).contents_only());
            let run = async move {
                let place = Place::mirror("pub/copy", mirror(true)).unwrap();
                store(&folders, Rights::Write, &place, &share).await.unwrap();
            };
            tokio::spawn(run).await.unwrap();
            assert_eq!(names(&folder.join("copy/locked")), names(&locked), "{round}");
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_is_kept_at_the_server_too_and_times_and_modes_follow() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_temp, folders, folder, here) = served(&[("copy/old", b"old"), ("beside", b"stays")]);
    fs::create_dir(here.join("src")).unwrap();
    fs::write(here.join("src/a"), "a").unwrap();
    fs::create_dir(here.join("src/.hidden")).unwrap();
    let push = async || {
        let place = Place::mirror("pub/copy", mirror(true)).unwrap();
        store(&folders, Rights::Write, &place, &share(&here.join("src")).contents_only()).await
    };
    assert_eq!(push().await.unwrap().removed, 1);
    assert_eq!(tree(&folder.join("copy")), tree(&here.join("src")));
    let file = fs::File::options().write(true).open(here.join("src/a")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    fs::set_permissions(here.join("src/a"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("a", here.join("src/link")).unwrap();
    let summary = push().await.unwrap();
    assert_eq!((summary.files, summary.updated), (0, 2), "the content is the same");
    assert_eq!(tree(&folder.join("copy")), tree(&here.join("src")));
    assert_eq!(names(&folder), ["beside", "copy"]);
    // The server does not ask about files with the listed length and time.
    let summary = push().await.unwrap();
    assert_eq!((summary.updated, summary.skipped, summary.unchecked), (0, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_source_cannot_read_is_not_removed_from_the_copy() {
    use std::os::unix::fs::PermissionsExt as _;
    if rustix::process::geteuid().is_root() {
        // Root reads every directory; a name that cannot be sent takes its place.
        return unsendable_names_keep_the_copy().await;
    }
    let (_temp, folders, folder, here) = served(&[("closed/x", b"x")]);
    let copy = here.join("copy");
    pull(&folders, &copy).await.unwrap();
    fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let outcome = pull(&folders, &copy).await;
    fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(outcome, Err(TransferError::Incomplete { .. })), "{outcome:?}");
    assert!(copy.join("closed/x").exists());
}

async fn unsendable_names_keep_the_copy() {
    use std::os::unix::ffi::OsStrExt as _;
    let (_temp, folders, folder, here) = served(&[("x", b"x")]);
    let copy = here.join("copy");
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("only here"), "kept").unwrap();
    fs::write(folder.join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    let outcome = pull(&folders, &copy).await;
    assert!(matches!(outcome, Err(TransferError::Incomplete { .. })), "{outcome:?}");
    assert_eq!(names(&copy), ["only here", "x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_a_sender_for_a_part_learns_the_right_command() {
    let (_temp, from, here) = directories(&[("a", b"a")]);
    let (sender, near) = plain();
    let (share, wanted) = (share(&from), Wanted::paths(&["from/a"]).unwrap());
    let options = ReceiveOptions::default();
    let asking = async {
        let outcome = get(&near, &wanted, directory(&here), &options, &Progress::new()).await;
        drop(near);
        outcome
    };
    let progress = Progress::new();
    let (sent, asked) = tokio::join!(crate::send(&sender, &share, &progress), asking);
    assert!(matches!(sent, Err(TransferError::Refused(_))), "{sent:?}");
    assert!(refused(&asked).contains("anabranch receive"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_for_nothing_is_let_go() {
    let (_temp, folders, _, _) = served(&[]);
    let (server, near) = plain();
    let (visitor, progress) = (visitor(Rights::Read), Progress::new());
    assert!(folders.serve(&server, &visitor, &progress).await.is_none());
    let asked = Ask::List { path: None, deep: false };
    let mut control = ControlLink::new(near.open().await.unwrap()).asking(asked);
    let served = folders.serve(&server, &visitor, &progress);
    // It greets, and then does not say what it wants.
    let half = async {
        use tokio::io::AsyncWriteExt as _;
        let mut stream = near.open().await.unwrap();
        stream.write_all(&[&[1, 0, 0, 0, 7][..], b"ANBT", &[0, 4, 1]].concat()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let begin = control.begin();
    let (served, begun) = tokio::join!(served, begin);
    assert!(begun.is_ok() && served.is_some());
    let served = folders.serve(&server, &visitor, &progress);
    tokio::select! {
        () = half => {}
        served = served => assert!(matches!(served.unwrap().outcome, Err(TransferError::Stalled { .. }))),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_its_list_is_let_go() {
    let files: Vec<(String, &[u8])> = (0..3_000).map(|at| (format!("{at:0>200}"), &b""[..])).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (&**name, *content)).collect();
    let (_temp, folders, _, _) = served(&files);
    let (server, near) = plain();
    let asked = Ask::List { path: None, deep: true };
    let mut control = ControlLink::new(near.open().await.unwrap()).asking(asked);
    let (visitor, progress) = (visitor(Rights::Read), Progress::new());
    let served = folders.serve(&server, &visitor, &progress);
    let (served, begun) = tokio::join!(served, control.begin());
    begun.unwrap();
    let outcome = served.unwrap().outcome;
    assert!(matches!(outcome, Err(TransferError::Stalled { .. })), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_that_take_no_list_and_send_no_files_leave_room_for_an_honest_one() {
    let files: Vec<(String, Vec<u8>)> = (0..500).map(|at| (format!("d/{at}"), vec![1; 100])).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (&**name, &**content)).collect();
    let (_temp, folders, folder, here) = served(&files);
    let mut held = Vec::new();
    for at in 0..1000 {
        let (server, near) = plain();
        let (folders, visitor) = (folders.clone(), visitor(Rights::Write));
        tokio::spawn(async move { folders.serve(&server, &visitor, &Progress::new()).await });
        let control = ControlLink::new(near.open().await.unwrap());
        let path = (at % 2 == 0).then(|| crate::path::RelPath::parse("pub").unwrap());
        let placing = crate::policy::Placing { conflict: Conflict::Error, mirror: None };
        let ask = if at % 50 == 49 { Ask::Put { to: None, placing } } else { Ask::List { path, deep: true } };
        let mut control = control.asking(ask);
        control.begin().await.unwrap();
        held.push((near, control));
    }
    let outcome =
        tokio::time::timeout(Duration::from_secs(60), fetch(&folders, Rights::Write, &["pub"], &here));
    outcome.await.expect("in time").unwrap();
    assert_eq!(tree(&here.join("pub")), tree(&folder));
    // Of the twenty that put, sixteen have a place. They lose it in ten seconds, because they send nothing.
    fs::write(here.join("new"), "new").unwrap();
    let place = to("pub");
    let new = share(&here.join("new"));
    let outcome =
        tokio::time::timeout(Duration::from_secs(100), store(&folders, Rights::Write, &place, &new));
    outcome.await.expect("in time").unwrap();
    drop(held);
}

#[test]
fn a_server_answers_in_a_task_of_its_own() {
    fn is_send<T: Send>(_: T) {}
    let (server, _near) = plain();
    let (_temp, folders, _, _) = served(&[]);
    is_send(folders.serve(&server, &visitor(Rights::Write), &Progress::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_what_the_server_notes_about_its_files_and_no_other_sender_does() {
    let (_temp, folders, folder, here) = served(&[]);
    fs::write(folder.join(TIMELESS), b"").unwrap();
    fs::write(here.join("a"), b"a").unwrap();
    // Both ends note it, and the client hears of it once.
    let _socket = std::os::unix::net::UnixListener::bind(here.join("socket")).unwrap();
    let all = Share::from_paths(&[here.as_path()]).unwrap();
    fs::create_dir(folder.join("to")).unwrap();
    fs::write(folder.join("to").join(TIMELESS), b"").unwrap();
    let client = async |near: Memory| put(&near, &to("pub"), &all, &Progress::new()).await;
    let (put, served) = visit(&folders, Rights::Write, client).await;
    let notes = put.unwrap().warnings;
    let [left_out, note] = &notes[..] else { panic!("{notes:?}") };
    assert!(left_out.contains("socket"), "{notes:?}");
    let told = "this file system cannot store the time of to/a: ";
    assert!(note.starts_with(&format!("the server says: {told}")), "{notes:?}");
    let Ok(summary) = &served[0] else { panic!("{served:?}") };
    assert!(summary.warnings.iter().any(|note| note.starts_with(told)), "{summary:?}");

    let (sent, received) = transfer(&all, directory(&folder), &ReceiveOptions::default()).await;
    received.unwrap();
    assert_eq!(sent.unwrap().warnings.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_of_a_server_and_its_client_are_kept_when_a_file_fails() {
    let (_temp, folders, folder, here) = served(&[(TIMELESS, b""), ("a", b"one")]);
    fs::write(here.join("a"), b"another").unwrap();
    fs::write(here.join("c"), b"c").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(here.join("socket")).unwrap();
    let all = Share::from_paths(&[here.as_path()]).unwrap().contents_only();
    let client = async |near: Memory| put(&near, &to("pub"), &all, &Progress::new()).await;
    let (put, served) = visit(&folders, Rights::Write, client).await;
    let Err(TransferError::PeerIncomplete { count: 1, notes, .. }) = &put else { panic!("{put:?}") };
    let [left_out, note] = &notes[..] else { panic!("{notes:?}") };
    assert!(left_out.starts_with("socket is left out: "), "{notes:?}");
    let told = "this file system cannot store the time of c: ";
    assert!(note.starts_with(&format!("the server says: {told}")), "{notes:?}");
    let Err(TransferError::Incomplete { notes, .. }) = &served[0] else { panic!("{served:?}") };
    assert!(notes.iter().any(|note| note.starts_with(told)), "{notes:?}");

    // The user of another sender has seen its own.
    let (sent, _) = transfer(&all, directory(&folder), &ReceiveOptions::default()).await;
    assert!(
        matches!(&sent, Err(TransferError::PeerIncomplete { notes, .. }) if notes.is_empty()),
        "{sent:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_puts_more_than_there_is_room_for_learns_no_path_of_the_server() {
    let (_temp, folders, folder, here) = served(&[]);
    fs::write(folder.join(SMALL), b"").unwrap();
    fs::write(here.join("a"), noise(1, 2 * BLOCK)).unwrap();
    let why = refused(&store(&folders, Rights::Write, &to("pub"), &share(&here.join("a"))).await);
    assert!(why.starts_with("not enough space: 2097152 bytes needed"), "{why}");
}
