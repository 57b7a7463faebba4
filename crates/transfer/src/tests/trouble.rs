//! Trouble that honest ends meet: changing files, full disks, lost connections.

use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::{
    FULL, Gate, SMALL, TIGHT, TYPE, connect, directories, directory, names, noise, share, transfer,
    transfer_into, tree,
};
use crate::hash::BLOCK;
use crate::{
    Conflict, Consent, Offer, OutputStream, Progress, ReceiveOptions, Share, Shortage, Target, TransferError,
    receive, send,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_sent_fails_by_name_at_both_ends_and_the_others_arrive() {
    for shrinks in [false, true] {
        let (_temp, from, to) = directories(&[("d/log", &noise(1, 40 * BLOCK)), ("d/other", b"other")]);
        let share = share(&from.join("d"));
        let gate = Gate::after(1 << 20, false);
        let (sender, receiver) = connect(Arc::clone(&gate));
        let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
        let change = async {
            gate.reached.notified().await;
            let mut log = fs::OpenOptions::new().append(true).open(from.join("d/log")).unwrap();
            if shrinks { log.set_len(39 << 20).unwrap() } else { log.write_all(b"more").unwrap() }
        };
        let (sent, received, ()) = tokio::join!(
            send(&sender, &share, &ours),
            receive(&receiver, directory(&to), &options, &theirs),
            change
        );
        let Err(TransferError::Incomplete { failures, count: 1, .. }) = &received else {
            panic!("{received:?}")
        };
        assert_eq!(failures[0].path.raw(), "d/log");
        assert!(failures[0].reason.text().contains("changed"), "{failures:?}");
        let Err(TransferError::PeerIncomplete { count: 1, there: 0, files, changed: true, .. }) = &sent
        else {
            panic!("{sent:?}")
        };
        assert!(files.raw().contains("d/log"), "{files}");
        assert_eq!(names(&to.join("d")), [".log.anabranch-part", "other"]);

        let summary = transfer_into(&share, &to).await;
        assert!(summary.resumed > 30 << 20, "{summary:?}");
        assert_eq!(tree(&from), tree(&to));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_name_of_a_file_that_changes_while_it_is_sent_did_not_fail_at_the_receiver() {
    let (_temp, from, to) = directories(&[("d/log", &noise(1, 40 * BLOCK))]);
    fs::hard_link(from.join("d/log"), from.join("d/name")).unwrap();
    let share = share(&from.join("d")).with_links();
    let gate = Gate::after(1 << 20, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let options = ReceiveOptions { hard_links: true, ..ReceiveOptions::default() };
    let (ours, theirs) = (Progress::new(), Progress::new());
    let change = async {
        gate.reached.notified().await;
        let mut log = fs::OpenOptions::new().append(true).open(from.join("d/log")).unwrap();
        log.write_all(b"more").unwrap();
    };
    let (sent, received, ()) = tokio::join!(
        send(&sender, &share, &ours),
        receive(&receiver, directory(&to), &options, &theirs),
        change
    );
    assert!(matches!(received, Err(TransferError::Incomplete { count: 2, .. })), "{received:?}");
    assert!(matches!(sent, Err(TransferError::PeerIncomplete { count: 2, there: 0, .. })), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_into_while_it_is_sent_is_not_whole_even_if_its_time_is_set_back() {
    let (_temp, from, to) = directories(&[("log", &noise(1, 40 * BLOCK))]);
    let share = share(&from.join("log"));
    let gate = Gate::after(1 << 20, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let change = async {
        gate.reached.notified().await;
        let mut log = fs::OpenOptions::new().write(true).open(from.join("log")).unwrap();
        let time = log.metadata().unwrap().modified().unwrap();
        // Changes the start, which was already sent, and the end, which was not.
        log.write_all(b"new start").unwrap();
        log.seek(SeekFrom::End(-9)).unwrap();
        log.write_all(b"its other").unwrap();
        log.set_modified(time).unwrap();
    };
    let (_, received, ()) = tokio::join!(
        send(&sender, &share, &ours),
        receive(&receiver, directory(&to), &options, &theirs),
        change
    );
    let Err(TransferError::Incomplete { failures, count: 1, .. }) = &received else { panic!("{received:?}") };
    assert!(failures[0].reason.text().contains("changed"), "{failures:?}");
    assert_eq!(names(&to), [".log.anabranch-part"]);
    transfer_into(&share, &to).await;
    assert_eq!(tree(&from), tree(&to));
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_of_a_kind_to_be_sent_and_has_no_name_for_it_is_missed() {
    let (_temp, from, to) = directories(&[("d/a", b"a"), ("e/x", b"x")]);
    let odd = |name: &[u8]| std::ffi::OsStr::from_bytes(name).to_owned();
    fs::write(from.join("d").join(odd(b"file\xff")), b"content").unwrap();
    fs::create_dir(from.join("d").join(odd(b"dir\xff"))).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("d").join(odd(b"socket\xff"))).unwrap();
    let share = share(&from.join("d"));
    assert!(!share.contents().all_missed);
    let (_, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, count: 2, .. }) = &received else { panic!("{received:?}") };
    let paths: Vec<_> = failures.iter().map(|failure| failure.path.raw()).collect();
    assert_eq!(paths, ["d/dir\u{fffd}", "d/file\u{fffd}"]);
    assert!(failures[0].reason.text().starts_with("its name is not UTF-8; rename it"), "{failures:?}");
    assert_eq!(names(&to.join("d")), ["a"]);

    fs::remove_file(from.join("d/a")).unwrap();
    assert!(share.contents().all_missed);
    let both = Share::from_paths(&[from.join("d"), from.join("e")]).unwrap();
    assert!(!both.contents().all_missed);
    fs::remove_file(from.join("e/x")).unwrap();
    assert!(!super::share(&from.join("e")).contents().all_missed, "an empty directory is all there is of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_written_is_not_counted_as_arrived_and_what_is_in_the_way_is_named() {
    let (_temp, from, to) = directories(&[("a", &noise(1, BLOCK))]);
    fs::create_dir(to.join(".a.anabranch-part")).unwrap();
    let share = share(&from.join("a"));
    let (sender, receiver) = connect(Gate::after(u64::MAX, false));
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let receiving = receive(&receiver, directory(&to), &options, &theirs);
    let (_, received) = tokio::join!(send(&sender, &share, &ours), receiving);
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let why =
        ".a.anabranch-part in the same directory is in the way and is not a file; remove it and try again";
    assert_eq!(failures[0].reason.text(), why);
    assert_eq!(theirs.snapshot().bytes_done, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_vanishes_or_shuts_is_named() {
    let (_temp, from, to) = directories(&[("d/a", &noise(1, 40 * BLOCK)), ("d/b", b"b")]);
    let share = share(&from.join("d"));
    let gate = Gate::after(1 << 20, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let vanish = async {
        gate.reached.notified().await;
        fs::remove_file(from.join("d/b")).unwrap();
    };
    let (sent, received, ()) = tokio::join!(
        send(&sender, &share, &ours),
        receive(&receiver, directory(&to), &options, &theirs),
        vanish
    );
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    assert_eq!(failures[0].path.raw(), "d/b");
    let sent = sent.unwrap();
    let told = "d/b: No such file or directory (os error 2)";
    assert_eq!((sent.missed, sent.missed_files), (1, vec![told.to_owned()]));
    assert_eq!(names(&to.join("d")), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_fails_only_its_file_and_keeps_what_arrived() {
    let (_temp, from, to) = directories(&[("d/a", &noise(2, 40 * BLOCK)), ("d/b", b"b")]);
    let share = share(&from.join("d"));
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d").join(FULL), b"").unwrap();
    let (sent, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, count: 1, here: 1, advice, .. }) = &received else {
        panic!("{received:?}")
    };
    assert_eq!(failures[0].to_string(), "d/a: the disk is full");
    assert!(advice.unwrap().starts_with("free some space, or inodes"), "{advice:?}");
    let Err(TransferError::PeerIncomplete { files, .. }) = &sent else { panic!("{sent:?}") };
    assert!(files.raw().contains("disk is full"), "{files}");
    assert_eq!(names(&to.join("d")), [".a.anabranch-part", "b", FULL]);
    fs::remove_file(to.join("d").join(FULL)).unwrap();
    let summary = transfer_into(&share, &to).await;
    assert_eq!((summary.skipped, summary.resumed), (1, 10 * BLOCK as u64 + 1));
    assert_eq!(tree(&from), tree(&to));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_file_that_found_no_room_does_not_cross_the_network() {
    let (_temp, from, to) = directories(&[("d/a", &noise(2, 200 * BLOCK)), ("d/b", b"b")]);
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d").join(FULL), b"").unwrap();
    let gate = Gate::after(u64::MAX, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (share, options) = (share(&from.join("d")), ReceiveOptions::default());
    let (ours, theirs) = (Progress::new(), Progress::new());
    let receiving = receive(&receiver, directory(&to), &options, &theirs);
    let (sent, received) = tokio::join!(send(&sender, &share, &ours), receiving);
    assert!(matches!(received, Err(TransferError::Incomplete { count: 1, here: 1, .. })), "{received:?}");
    assert!(matches!(sent, Err(TransferError::PeerIncomplete { there: 1, again: Some(1), .. })), "{sent:?}");
    assert_eq!(names(&to.join("d")), [".a.anabranch-part", "b", FULL]);
    let moved = (u64::MAX - gate.left.load(Ordering::SeqCst)) / BLOCK as u64;
    assert!(moved < 150, "{moved} MiB of 200");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_file_gives_up_the_room_that_later_files_need_and_no_more() {
    let blocks = |blocks| noise(2, blocks * BLOCK);
    let (_temp, from, to) =
        directories(&[("d/a", &blocks(20)), ("d/b", &blocks(3)), ("d/c", &blocks(1)), ("d/e", &blocks(13))]);
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d").join(TIGHT), b"").unwrap();
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, count: 2, advice, .. }) = &received else {
        panic!("{received:?}")
    };
    let named = failures.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(named, ["d/a: a disk quota is used up", "d/e: a disk quota is used up"]);
    assert!(advice.unwrap().contains("raise the quota"), "{advice:?}");
    assert_eq!(names(&to.join("d")), [".a.anabranch-part", "b", "c", TIGHT]);
    assert_eq!(fs::metadata(to.join("d/.a.anabranch-part")).unwrap().len(), 17 * BLOCK as u64 / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_file_that_finds_no_room_again_gives_up_its_own_for_others() {
    let (_temp, from, to) =
        directories(&[("d/a", &noise(1, 4 * BLOCK)), ("d/b", &noise(2, 3 * BLOCK / 2)), ("d/c", b"c")]);
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    let part = to.join("d/.a.anabranch-part");
    fs::write(&part, noise(1, 2 * BLOCK)).unwrap();
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let named = failures.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(named, ["d/a: it does not fit: 2097152 bytes needed, 1048576 left"]);
    // This disk has room, so the unfinished file need not become shorter.
    assert_eq!(names(&to.join("d")), [".a.anabranch-part", "b", "c"]);
    assert_eq!(fs::metadata(&part).unwrap().len(), 2 * BLOCK as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reserve_for_the_system_keeps_no_unfinished_file_from_its_end() {
    let a = noise(1, 2 * BLOCK);
    let (_temp, from, to) = directories(&[("d/a", &a), ("d/b", b"b"), ("d/z", &noise(2, 3 * BLOCK))]);
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    fs::write(to.join("d/.a.anabranch-part"), &a[..BLOCK + 1000]).unwrap();
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let named = failures.iter().map(ToString::to_string).collect::<Vec<_>>();
    let lacks = |name, needed| format!("d/{name}: it does not fit: {needed} bytes needed, 0 left");
    assert_eq!(named, [lacks("b", 1), lacks("z", 3 * BLOCK)]);
    assert_eq!(names(&to.join("d")), ["a"]);
}

impl OutputStream for fs::File {}

/// An output that reports only at the end that it lost data.
struct LostAtTheEnd;

impl io::Write for LostAtTheEnd {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl OutputStream for LostAtTheEnd {
    fn finish(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_learn_what_an_output_loses_at_its_end() {
    let (_temp, from, _) = directories(&[("a", b"content")]);
    let target = Target::Writer(Box::new(LostAtTheEnd));
    let (sent, received) = transfer(&share(&from.join("a")), target, &ReceiveOptions::default()).await;
    assert!(matches!(received, Err(TransferError::Lost { .. })), "{received:?}");
    assert!(sent.is_err(), "{sent:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_behind_standard_output_is_named() {
    let (_temp, from, _) = directories(&[("a", b"content")]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (_, received) =
        transfer(&share(&from.join("a")), Target::Writer(Box::new(full)), &ReceiveOptions::default()).await;
    let Err(error @ TransferError::Lost { .. }) = received else { panic!("{received:?}") };
    assert!(error.to_string().ends_with("nothing of it is kept"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fills_the_disk_is_not_said_to_be_kept() {
    let (_temp, _, to) = directories(&[]);
    fs::write(to.join(FULL), b"").unwrap();
    let share = Share::from_reader("stdin", std::io::Cursor::new(noise(4, 20 * BLOCK))).unwrap();
    let (sent, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(received, Err(TransferError::Lost { .. })), "{received:?}");
    assert!(
        matches!(&sent, Err(TransferError::Peer(why)) if why.raw().contains("nothing of it is kept")),
        "{sent:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_which_no_file_fits_is_refused_before_anything_is_written_or_asked() {
    let (_temp, from, to) = directories(&[("d/large", &noise(5, 2 * BLOCK))]);
    fs::write(to.join(SMALL), b"").unwrap();
    let consent = Consent::Ask(Arc::new(|_| panic!("the user was asked")));
    for consent in [consent, Consent::Given] {
        let options = ReceiveOptions { consent, ..ReceiveOptions::default() };
        let (sent, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
        let Err(TransferError::NoSpace { path, needed, free }) = received else { panic!("{received:?}") };
        assert_eq!((path, needed, free), (to.clone(), 2 * BLOCK as u64, BLOCK as u64));
        assert!(
            matches!(&sent, Err(TransferError::Peer(why)) if why.raw().contains("not enough space")),
            "{sent:?}"
        );
        assert_eq!(names(&to), [SMALL]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_share_that_does_not_fit_those_files_arrive_that_do_and_the_user_is_told_before() {
    let files = [("d/b", noise(1, BLOCK / 2)), ("d/c", noise(2, 20 * BLOCK)), ("d/e", noise(3, BLOCK / 4))];
    let (_temp, from, to) = directories(&files.each_ref().map(|(name, content)| (*name, &content[..])));
    fs::write(from.join("d/f"), noise(4, BLOCK / 2)).unwrap();
    fs::write(from.join("d/g"), b"small").unwrap();
    // Holes need no space, nor does a file that is there.
    fs::File::create(from.join("d/sparse")).unwrap().set_len(4 << 20).unwrap();
    fs::write(from.join("d/a"), noise(5, BLOCK)).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    fs::copy(from.join("d/a"), to.join("d/a")).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    let seen = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&seen);
    let target = to.clone();
    let asks = move |offer: &Offer| {
        *noted.lock().unwrap() = offer.shortage;
        names(&target).contains(&"agreed".to_owned())
    };
    let options = ReceiveOptions { consent: Consent::Ask(Arc::new(asks)), ..ReceiveOptions::default() };
    let needed = (BLOCK / 2 + 20 * BLOCK + BLOCK / 4 + BLOCK / 2 + 5) as u64;
    // The files would not be there already in a directory that is still to be made.
    let missing = to.join("new/target");
    let (_, received) = transfer(&share(&from.join("d")), directory(&missing), &options).await;
    assert!(received.is_err() && !to.join("new").exists(), "{received:?}");
    let all = needed + BLOCK as u64;
    assert_eq!(
        seen.lock().unwrap().take(),
        Some(Shortage { files: 3, needed: all, free: BLOCK as u64, unsure: 0 })
    );
    fs::write(to.join("agreed"), b"").unwrap();
    let gate = Gate::after(u64::MAX, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (share, ours, theirs) = (share(&from.join("d")), Progress::new(), Progress::new());
    let receiving = receive(&receiver, directory(&to), &options, &theirs);
    let (sent, received) = tokio::join!(send(&sender, &share, &ours), receiving);
    assert_eq!(*seen.lock().unwrap(), Some(Shortage { files: 2, needed, free: BLOCK as u64, unsure: 0 }));
    let Err(TransferError::Incomplete { failures, count: 2, here: 2, again: 2, advice, .. }) = &received
    else {
        panic!("{received:?}")
    };
    let named = failures.iter().map(ToString::to_string).collect::<Vec<_>>();
    let lacks = |name, needed, left| format!("d/{name}: it does not fit: {needed} bytes needed, {left} left");
    // A hundredth stays for the system.
    assert_eq!(named, [lacks("c", 20 * BLOCK, 513_803), lacks("f", BLOCK / 2, 251_659)]);
    assert!(advice.unwrap().starts_with("free some space"), "{advice:?}");
    let Err(TransferError::PeerIncomplete { there: 2, again: Some(2), missing, .. }) = &sent else {
        panic!("{sent:?}")
    };
    assert_eq!(missing.iter().map(|file| file.path.raw()).collect::<Vec<_>>(), ["d/c", "d/f"]);
    assert_eq!(names(&to.join("d")), ["a", "b", "e", "g", "sparse"]);
    let moved = u64::MAX - gate.left.load(Ordering::SeqCst);
    assert!(moved < 2 * BLOCK as u64, "{moved} bytes, although two files are not taken");
    let progress = theirs.snapshot();
    assert_eq!((progress.files_done, progress.bytes_done), (progress.files_total, progress.bytes_total));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_name_of_a_file_that_does_not_fit_does_not_fit_either() {
    let (_temp, from, to) = directories(&[("d/a", &noise(1, 2 * BLOCK)), ("d/c", b"c")]);
    fs::hard_link(from.join("d/a"), from.join("d/b")).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    let options = ReceiveOptions { hard_links: true, ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("d")).with_links(), directory(&to), &options).await;
    let Err(TransferError::Incomplete { failures, .. }) = &received else { panic!("{received:?}") };
    let named = failures.iter().map(ToString::to_string).collect::<Vec<_>>();
    let lacks = |name| format!("d/{name}: it does not fit: 2097152 bytes needed, 1038091 left");
    assert_eq!(named, ["a", "b"].map(lacks));
    assert_eq!(names(&to.join("d")), ["c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_no_directory_is_named() {
    let (_temp, from, to) = directories(&[("a", b"a")]);
    fs::write(to.join("file"), b"").unwrap();
    let (_, received) =
        transfer(&share(&from.join("a")), directory(&to.join("file")), &ReceiveOptions::default()).await;
    assert!(
        matches!(&received, Err(TransferError::NotADirectory { path }) if path.ends_with("file")),
        "{received:?}"
    );
    let below = directory(&to.join("file/below/it"));
    assert!(matches!(below.check(), Err(TransferError::NotADirectory { path }) if path.ends_with("file")));
    let new = to.join("new/directory");
    assert!(directory(&new).check().is_ok() && !to.join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_gone_are_named_as_in_the_share_and_the_rest_arrives() {
    let (_temp, from, to) = directories(&[("a", b"a"), ("d/x", b"x"), ("e/y", b"y")]);
    let share = Share::from_paths(&[from.join("a"), from.join("d"), from.join("e")]).unwrap();
    fs::remove_file(from.join("a")).unwrap();
    fs::remove_dir_all(from.join("d")).unwrap();
    let (sent, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, count: 2, .. }) = &received else { panic!("{received:?}") };
    assert_eq!(failures.iter().map(|failure| failure.path.raw()).collect::<Vec<_>>(), ["a", "d"]);
    for failure in failures {
        assert!(failure.reason.text().starts_with("it is no longer there on the sender; "), "{failures:?}");
    }
    assert_eq!(sent.unwrap().missed, 2, "whoever sent one file for all is done");
    assert_eq!(names(&to), ["e"]);
    assert_eq!(fs::read(to.join("e/y")).unwrap(), b"y");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_which_all_is_gone_says_so_on_any_target() {
    let (_temp, from, to) = directories(&[("a", b"a")]);
    let share = share(&from.join("a"));
    fs::remove_file(from.join("a")).unwrap();
    for target in [directory(&to), Target::Writer(Box::new(std::io::sink()))] {
        let (_, received) = transfer(&share, target, &ReceiveOptions::default()).await;
        assert!(matches!(&received, Err(TransferError::Incomplete { count: 1, .. })), "{received:?}");
    }
}

#[test]
fn links_that_lead_to_the_same_files_again_and_again_are_not_followed_without_end() {
    let (_temp, from, _) = directories(&[("few/x", b"x")]);
    fs::create_dir(from.join("leaf")).unwrap();
    for at in 0..10 {
        fs::write(from.join(format!("leaf/{at}")), b"x").unwrap();
    }
    // Each directory links ten times to the next: a hundred thousand files.
    for level in 0..4 {
        fs::create_dir(from.join(format!("d{level}"))).unwrap();
        let next = if level == 3 { "../leaf".into() } else { format!("../d{}", level + 1) };
        for at in 0..10 {
            std::os::unix::fs::symlink(&next, from.join(format!("d{level}/{at}"))).unwrap();
        }
    }
    let contents = share(&from.join("d0")).following_links().contents();
    assert!(contents.too_many && contents.files < 30_000, "{contents:?}");
    assert!(!share(&from.join("few")).following_links().contents().too_many);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_leaves_ends_the_sender() {
    let (_temp, from, to) = directories(&[("a", &noise(3, 8 * BLOCK))]);
    let share: Share = share(&from.join("a"));
    let gate = Gate::after(2 << 20, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let receiving = async {
        tokio::select! {
            _ = receive(&receiver, directory(&to), &options, &theirs) => {}
            () = gate.reached.notified() => {}
        }
        drop(receiver);
    };
    let (sent, ()) = tokio::join!(send(&sender, &share, &ours), receiving);
    assert!(matches!(sent, Err(TransferError::Connection(_))), "{sent:?}");
}

/// What the user learns of the room that the files `from` lack in `to`.
async fn told(from: &Path, to: &Path) -> Option<Shortage> {
    let seen = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&seen);
    let asks = move |offer: &Offer| {
        *noted.lock().unwrap() = offer.shortage;
        false
    };
    let options = ReceiveOptions {
        consent: Consent::Ask(Arc::new(asks)),
        conflict: Conflict::Overwrite,
        ..ReceiveOptions::default()
    };
    let (_, received) = transfer(&share(from), directory(to), &options).await;
    assert!(received.is_err());
    seen.lock().unwrap().take()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_learns_before_that_a_file_fits_beside_the_one_of_its_length_only_if_it_is_the_same() {
    let (_temp, from, to) = directories(&[("d/a", &noise(1, 2 * BLOCK)), ("d/b", b"b")]);
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d/a"), noise(2, 2 * BLOCK)).unwrap();
    // Otherwise both may get the time of one tick.
    let other = fs::File::options().write(true).open(to.join("d/a")).unwrap();
    other.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    let shortage = Shortage { files: 0, needed: 1, free: BLOCK as u64, unsure: 1 };
    assert_eq!(told(&from.join("d"), &to).await, Some(shortage));
    let time = fs::metadata(from.join("d/a")).unwrap().modified().unwrap();
    fs::File::options().write(true).open(to.join("d/a")).unwrap().set_modified(time).unwrap();
    assert_eq!(told(&from.join("d"), &to).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sparse_file_needs_its_whole_length_where_files_surely_have_no_holes_and_nothing_is_tried() {
    let (_temp, from, to) = directories(&[("d/b", b"b"), ("d/whole", &noise(1, BLOCK / 2))]);
    for name in ["d/sparse", "d/very sparse"] {
        fs::File::create(from.join(name)).unwrap().set_len(400 << 10).unwrap();
    }
    fs::File::options().write(true).open(from.join("d/very sparse")).unwrap().set_len(4 << 20).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    // Writing into the target would change its time.
    let changed = || fs::metadata(&to).unwrap().modified().unwrap();
    let (free, whole) = (BLOCK as u64, BLOCK as u64 / 2 + 1);
    let lacks = Shortage { files: 1, needed: (4 << 20) + (400 << 10) + whole, free, unsure: 0 };
    let may_lack = Shortage { files: 0, needed: whole, free, unsure: 1 };
    for (magics, expected) in [
        // ext4, ZFS, CephFS.
        (&["ef53", "2fc12fc1", "c36400"][..], None),
        // exFAT, FAT.
        (&["2011bab0", "4d44"], Some(lacks)),
        // FUSE, NFS, SMB, and what does not exist.
        (&["65735546", "6969", "fe534d42", "1"], Some(may_lack)),
    ] {
        for magic in magics {
            fs::write(to.join(TYPE), magic).unwrap();
            let before = changed();
            assert_eq!((told(&from.join("d"), &to).await, changed()), (expected, before), "{magic}");
        }
    }
    // After consent, the disk decides.
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    assert_eq!(received.unwrap().files, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_on_a_full_disk_says_what_takes_the_room_of_a_renamed_file() {
    let (_temp, from, to) = directories(&[("d/new", &noise(1, 2 * BLOCK)), ("d/b", b"b")]);
    fs::create_dir_all(to.join("d/old")).unwrap();
    fs::write(to.join("d/old/name"), noise(1, 2 * BLOCK)).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    let mirror = Some(crate::Mirror { delete: true, by_content: false });
    let options = ReceiveOptions { mirror, ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    let Err(TransferError::Incomplete { count: 1, notes, .. }) = &received else { panic!("{received:?}") };
    let why = "nothing else was removed, because not everything has arrived";
    let what =
        "what the source does not have takes 2097152 bytes: remove it yourself to make room, such as d/old";
    assert!(notes.contains(&format!("{why}; {what}")), "{notes:?}");
    assert!(to.join("d/old/name").exists());
}
