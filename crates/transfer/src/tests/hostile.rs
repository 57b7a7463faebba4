//! A hostile sender, and one with another version.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{FULL, SMALL, directories, directory, names, noise, plain, share, transfer, transfer_into};
use crate::attributes::Attribute;
use crate::codec::put_text;
use crate::hash::{BLOCK, FileHasher, MOST_COMPARED, hash_block};
use crate::manifest::{Entry, EntryKind, FileMeta, ModifiedTime};
use crate::message::{Control, MOST_ZEROS, Reply};
use crate::path::RelPath;
use crate::{
    Conflict, Connection, Limits, Missing, Progress, Quota, ReceiveOptions, Summary, Target, TransferError,
    receive, send,
};

/// The outcome at a receiver whose sender sends `control`, then `data` whatever is requested.
async fn face(
    control: Vec<u8>,
    data: Vec<u8>,
    target: Target,
    options: &ReceiveOptions,
) -> Result<Summary, TransferError> {
    let (sender, receiver) = plain();
    let sending = async move {
        let mut stream = sender.accept().await.unwrap();
        let _ = stream.write_all(&control).await;
        if !data.is_empty()
            && let Ok(mut replies) = sender.accept().await
        {
            let _ = replies.write_all(&data).await;
            let mut ignored = Vec::new();
            let _ = replies.read_to_end(&mut ignored).await;
        }
        let mut ignored = Vec::new();
        let _ = stream.read_to_end(&mut ignored).await;
    };
    let receiving = async move {
        let outcome = receive(&receiver, target, options, &Progress::new()).await;
        drop(receiver);
        outcome
    };
    tokio::join!(sending, receiving).1
}

fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    Control::Hello { version: 4, asks: false, eager: false, extended: false }.encode(&mut bytes);
    bytes
}

/// An entry as a careless sender would encode it.
fn raw_entry(out: &mut Vec<u8>, path: &str, link: Option<&str>) {
    let mut body = vec![if link.is_some() { 2 } else { 0 }];
    put_text(&mut body, path);
    match link {
        Some(text) => put_text(&mut body, text),
        None => body.extend_from_slice(&[0o6, 0o44, 0]),
    }
    out.push(2);
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(&body);
}

fn entry(path: &str, kind: EntryKind) -> Control {
    Control::Entry(Entry { path: RelPath::parse(path).unwrap(), kind })
}

fn list(entries: &[Control]) -> Vec<u8> {
    let mut bytes = hello();
    entries.iter().for_each(|entry| entry.encode(&mut bytes));
    Control::ListEnd.encode(&mut bytes);
    bytes
}

fn file(size: u64) -> EntryKind {
    EntryKind::File(FileMeta { size: Some(size), mode: 0o644, modified: None, data: None })
}

fn replies(replies: &[Reply]) -> Vec<u8> {
    let mut bytes = Vec::new();
    replies.iter().for_each(|reply| reply.encode(&mut bytes));
    bytes
}

fn block(index: u64, data: &[u8]) -> Reply {
    Reply::Block([&hash_block(index, data).value[..], data].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_out_of_the_target_are_refused_and_nothing_is_written() {
    let (temp, _, to) = directories(&[]);
    let bad = [
        ("../x", None),
        ("/tmp/x", None),
        ("a/../../x", None),
        ("a\0b", None),
        ("", None),
        ("l", Some("/etc")),
        ("l", Some("../x")),
    ];
    for (path, link) in bad {
        let mut control = hello();
        raw_entry(&mut control, "innocent", None);
        raw_entry(&mut control, path, link);
        Control::ListEnd.encode(&mut control);
        let outcome = face(control, Vec::new(), directory(&to), &ReceiveOptions::default()).await;
        assert!(matches!(outcome, Err(TransferError::UnsafePath { .. })), "{path:?}: {outcome:?}");
        assert!(names(&to).is_empty(), "{path:?}");
    }
    assert_eq!(names(temp.path()), ["from", "to"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_cannot_write_through_a_link_it_made() {
    let (_temp, _, to) = directories(&[]);
    let control = list(&[entry("l", EntryKind::Link { text: "d".into() }), entry("l/x", file(0))]);
    let outcome = face(control, Vec::new(), directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(outcome, Err(TransferError::UnsafePath { .. })), "{outcome:?}");
    assert!(names(&to).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_was_there_before_is_not_followed() {
    let (temp, from, to) = directories(&[("d/x", b"new"), ("y", b"new")]);
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("y"), b"old").unwrap();
    symlink(&outside, to.join("d")).unwrap();
    symlink(outside.join("y"), to.join("y")).unwrap();
    symlink(outside.join("part"), to.join(".z.anabranch-part")).unwrap();
    fs::write(from.join("z"), b"new").unwrap();
    let options = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
    for name in ["d", "z"] {
        let (_, received) = transfer(&share(&from.join(name)), directory(&to), &options).await;
        assert!(matches!(received, Err(TransferError::Incomplete { .. })), "{name}: {received:?}");
    }
    let (_, received) = transfer(&share(&from.join("y")), directory(&to), &options).await;
    received.unwrap();
    assert_eq!(names(&outside), ["y"]);
    assert_eq!(fs::read(outside.join("y")).unwrap(), b"old");
    assert!(fs::symlink_metadata(to.join("y")).unwrap().is_file(), "the link itself is replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_end_is_cut_off() {
    let (_temp, _, to) = directories(&[]);
    let entries: Vec<Control> = (0..1000).map(|at| entry(&format!("f{at}"), file(1))).collect();
    let limits = Limits { entries: 900, ..Limits::default() };
    let options = ReceiveOptions { limits, ..ReceiveOptions::default() };
    let outcome = face(list(&entries), Vec::new(), directory(&to), &options).await;
    assert!(matches!(outcome, Err(TransferError::TooMuch { what: "entries", most: 900 })), "{outcome:?}");

    let mut control = hello();
    control.extend_from_slice(&[2, 0xff, 0xff, 0xff, 0xff]);
    let outcome = face(control, Vec::new(), directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(outcome, Err(TransferError::Protocol(_))), "{outcome:?}");
    assert!(names(&to).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_does_not_match_its_hash_never_gets_a_final_name() {
    let good = noise(1, BLOCK);
    let other = noise(2, 100);
    let whole = |second: &[u8]| {
        let mut hasher = FileHasher::default();
        hasher.push(hash_block(0, &good));
        hasher.push(hash_block(1, second));
        Reply::End { len: (BLOCK + second.len()) as u64, hash: hasher.finish().into() }
    };
    let forged = Reply::Block([&hash_block(1, &good[..100]).value[..], &other].concat());
    let short_end = Reply::End { len: BLOCK as u64, hash: blake3::hash(&other).into() };
    let cases = [
        (
            "wrong block hash",
            "block 1 of a does not match",
            vec![block(0, &good), forged, whole(&good[..100])],
        ),
        (
            "wrong file hash",
            "a does not match its hash",
            vec![block(0, &good), block(1, &other), whole(&good[..100])],
        ),
        (
            "wrong length",
            "a does not match its hash",
            vec![block(0, &good), block(1, &other[..99]), whole(&other)],
        ),
        ("a short block first", "block 1 of a has a wrong length", vec![block(0, &other), block(1, &good)]),
        ("ends early", "a does not match its hash", vec![block(0, &good), short_end]),
        ("zeros after the end", "not asked for", vec![block(0, &other), Reply::Zeros { len: 1 }]),
        ("one block too many", "not asked for", vec![block(0, &good), block(1, &other), block(2, &other)]),
        ("never offered", "never offered", vec![block(0, &good), Reply::Same, whole(&other)]),
        ("no zeros", "not asked for", vec![block(0, &good), Reply::Zeros { len: 0 }]),
        ("zeros past the end", "not asked for", vec![block(0, &good), Reply::Zeros { len: 101 }]),
        (
            "data after zeros",
            "wrong length",
            vec![block(0, &good), Reply::Zeros { len: 50 }, block(1, &other)],
        ),
        ("other zeros", "does not match", vec![Reply::Zeros { len: BLOCK as u32 + 100 }, whole(&other)]),
        ("a hash", "does not match", vec![Reply::End { len: 0, hash: [0; 32] }]),
    ];
    for (case, expected, sent) in cases {
        let (_temp, _, to) = directories(&[]);
        let control = list(&[entry("a", file(BLOCK as u64 + 100))]);
        let outcome = face(control, replies(&sent), directory(&to), &ReceiveOptions::default()).await;
        assert!(
            matches!(&outcome, Err(TransferError::Protocol(why)) if why.contains(expected)),
            "{case}: {outcome:?}"
        );
        assert!(!to.join("a").exists(), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reply_stands_for_a_bounded_number_of_zeros() {
    let (_temp, _, to) = directories(&[]);
    let endless = EntryKind::File(FileMeta { size: None, mode: 0o644, modified: None, data: None });
    for (kind, len) in [(file(1 << 40), MOST_ZEROS + 1), (endless, 5)] {
        let sent = replies(&[Reply::Zeros { len }]);
        let mut sparse = kind.clone();
        if let EntryKind::File(meta) = &mut sparse {
            meta.data = Some(0);
        }
        let outcome =
            face(list(&[entry("a", sparse)]), sent, directory(&to), &ReceiveOptions::default()).await;
        assert!(
            matches!(&outcome, Err(TransferError::Protocol(why)) if why.contains("not asked for")),
            "{outcome:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_have_an_entry_a_name_for_users_and_a_limit() {
    let attribute =
        |name: &str, len| Control::Attribute(Attribute { name: name.into(), value: vec![7; len] });
    let many = (0..65).map(|at| attribute(&format!("user.{at}"), 1));
    let link = entry("l", EntryKind::Link { text: "a".into() });
    let long = format!("user.{}", "x".repeat(251));
    let cases = [
        ("of no entry", vec![attribute("user.a", 1), entry("a", file(1))]),
        ("of a link", vec![link, attribute("user.a", 1)]),
        ("for the system", vec![entry("a", file(1)), attribute("security.capability", 20)]),
        ("a long name", vec![entry("a", file(1)), attribute(&long, 1)]),
        ("too many", [entry("a", file(1))].into_iter().chain(many).collect()),
        ("too large", vec![entry("a", file(1)), attribute("user.a", 8 << 10), attribute("user.b", 8 << 10)]),
    ];
    for (case, controls) in cases {
        let (_temp, _, to) = directories(&[]);
        let options = ReceiveOptions { attributes: true, ..ReceiveOptions::default() };
        let outcome = face(list(&controls), Vec::new(), directory(&to), &options).await;
        assert!(
            matches!(&outcome, Err(TransferError::Protocol(why)) if why.contains("extended attribute")),
            "{case}: {outcome:?}"
        );
        assert!(names(&to).is_empty(), "{case}");
    }
    let (_temp, _, to) = directories(&[]);
    let all = (0..100).flat_map(|at| [entry(&format!("f{at}"), file(1)), attribute("user.a", 10_000)]);
    let all: Vec<_> = all.collect();
    let limits = Limits { names: 500_000, ..Limits::default() };
    let options = ReceiveOptions { limits, ..ReceiveOptions::default() };
    let outcome = face(list(&all), Vec::new(), directory(&to), &options).await;
    assert!(matches!(outcome, Err(TransferError::TooMuch { .. })), "all together: {outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_quota_counts_no_directory_is_closed_or_out_of_reach() {
    let closed = EntryKind::Directory { mode: 0, modified: None };
    let with = |quota| ReceiveOptions { quota, ..ReceiveOptions::default() };
    let (_temp, _, to) = directories(&[]);
    for (name, quota, mode) in [("a", None, 0), ("b", Some(Quota::new(1 << 20, Vec::new())), 0o500)] {
        let control = list(&[entry(name, closed.clone())]);
        face(control, Vec::new(), directory(&to), &with(quota)).await.unwrap();
        let meta = fs::metadata(to.join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
        fs::set_permissions(to.join(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let names: Vec<String> = (1..=16).map(|depth| vec!["n".repeat(250); depth].join("/")).collect();
    let control: Vec<Control> = names.iter().map(|name| entry(name, closed.clone())).collect();
    let quota = Some(Quota::new(1 << 20, Vec::new()));
    let outcome = face(list(&control), Vec::new(), directory(&to), &with(quota)).await;
    assert!(matches!(outcome, Err(TransferError::UnsafePath { .. })), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hard_link_is_one_of_an_earlier_file_of_the_list_with_the_same_length() {
    let link = Control::HardLink;
    let endless = EntryKind::File(FileMeta { size: None, mode: 0o644, modified: None, data: None });
    let directory_kind = EntryKind::Directory { mode: 0o755, modified: None };
    let cases = [
        ("of no entry", vec![link(0), entry("a", file(1))]),
        ("of itself", vec![entry("a", file(1)), link(0)]),
        ("of a later one", vec![entry("a", file(1)), link(1), entry("b", file(1))]),
        ("of no number", vec![entry("a", file(1)), entry("b", file(1)), link(u32::MAX)]),
        ("of a directory", vec![entry("d", directory_kind.clone()), entry("b", file(1)), link(0)]),
        ("a directory", vec![entry("a", file(1)), entry("d", directory_kind), link(0)]),
        ("another length", vec![entry("a", file(1)), entry("b", file(2)), link(0)]),
        ("no length", vec![entry("a", endless.clone()), entry("b", endless), link(0)]),
        ("twice", vec![entry("a", file(1)), entry("b", file(1)), link(0), link(0)]),
        ("a chain", vec![entry("a", file(1)), entry("b", file(1)), link(0), entry("c", file(1)), link(1)]),
    ];
    for (case, controls) in cases {
        for hard_links in [false, true] {
            let (_temp, _, to) = directories(&[]);
            let options = ReceiveOptions { hard_links, ..ReceiveOptions::default() };
            let outcome = face(list(&controls), Vec::new(), directory(&to), &options).await;
            assert!(
                matches!(&outcome, Err(TransferError::Protocol(why)) if why.contains("hard link")),
                "{case}: {outcome:?}"
            );
            assert!(names(&to).is_empty(), "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_without_a_length_keep_to_the_most_bytes_all_together() {
    let (_temp, _, to) = directories(&[]);
    let endless = EntryKind::File(FileMeta { size: None, mode: 0o644, modified: None, data: None });
    let control = list(&[entry("a", endless.clone()), entry("b", endless.clone()), entry("c", endless)]);
    let data = noise(4, 2 * BLOCK);
    let mut hasher = FileHasher::default();
    (0..).zip(data.chunks(BLOCK)).for_each(|(index, data)| hasher.push(hash_block(index, data)));
    let hash = hasher.finish().into();
    let one = |hash| {
        let end = Reply::End { len: data.len() as u64, hash };
        replies(&[block(0, &data[..BLOCK]), block(1, &data[BLOCK..]), end])
    };
    // The last one would end the transfer, too, but later.
    let all = [one(hash), one(hash), one([0; 32])].concat();
    let options = ReceiveOptions { max_size: Some(5 * BLOCK as u64), ..ReceiveOptions::default() };
    let outcome = face(control, all, directory(&to), &options).await;
    assert!(matches!(outcome, Err(TransferError::TooLarge { .. })), "{outcome:?}");
    assert!(!to.join("c").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_too_long_for_a_comparison_is_replaced_by_one_of_unknown_length() {
    let (_temp, _, to) = directories(&[]);
    fs::File::create(to.join("a")).unwrap().set_len(MOST_COMPARED + 1).unwrap();
    let modified = Some(ModifiedTime { seconds: 1, nanoseconds: 0 });
    let kind = EntryKind::File(FileMeta { size: None, mode: 0o644, modified, data: None });
    let mut control = Vec::new();
    Control::Hello { version: 4, asks: false, eager: false, extended: true }.encode(&mut control);
    control.extend_from_slice(&list(&[entry("a", kind)])[hello().len()..]);
    // Only the first request is answered.
    let end = Reply::End { len: 0, hash: FileHasher::default().finish().into() };
    let data = replies(&[end, Reply::Failed("asked twice".into())]);
    let options = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
    let summary = face(control, data, directory(&to), &options).await.unwrap();
    assert_eq!((summary.files, fs::metadata(to.join("a")).unwrap().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_longer_than_a_block_is_refused() {
    let (_temp, _, to) = directories(&[]);
    let control = list(&[entry("a", file(5))]);
    let outcome = face(control, vec![0x20, 0x7f, 0, 0, 0], directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(outcome, Err(TransferError::Protocol(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_named_as_such() {
    let (_temp, _, to) = directories(&[]);
    let mut control = Vec::new();
    Control::Hello { version: 7, asks: false, eager: false, extended: false }.encode(&mut control);
    let outcome = face(control, Vec::new(), directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(outcome, Err(TransferError::Version { ours: 4, theirs: 7 })), "{outcome:?}");
    let outcome =
        face(b"HTTP/1.1 400 Bad Request".to_vec(), Vec::new(), directory(&to), &ReceiveOptions::default())
            .await;
    assert!(matches!(outcome, Err(TransferError::Protocol(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_for_nonsense_gets_an_answer_and_no_harm_is_done() {
    use crate::message::Request;
    let (_temp, from, to) = directories(&[("a", b"content")]);
    let share = share(&from.join("a"));
    let (sender, receiver) = plain();
    let sending = tokio::spawn({
        let share = share.clone();
        async move { crate::send(&sender, &share, &Progress::new()).await }
    });
    let mut control = receiver.open().await.unwrap();
    control.write_all(&hello()).await.unwrap();
    let mut first = [0; 64];
    control.read_exact(&mut first[..11]).await.unwrap();
    let mut data = receiver.open().await.unwrap();
    let mut bytes = Vec::new();
    let fetch = |file, first, count| Request::Fetch { file, first, count, last: true, held: Vec::new() };
    for request in [fetch(99, 0, 1), fetch(0, 5, 1), fetch(0, u64::MAX, u64::MAX), fetch(0, 0, u64::MAX)] {
        request.encode(&mut bytes);
    }
    Request::Hash { file: u32::MAX }.encode(&mut bytes);
    data.write_all(&bytes).await.unwrap();
    data.shutdown().await.unwrap();
    let mut answers = Vec::new();
    data.read_to_end(&mut answers).await.unwrap();
    let failed = answers.iter().filter(|byte| **byte == 0x23).count();
    assert!(failed >= 5, "{answers:?}");
    drop((control, data, receiver));
    assert!(matches!(sending.await.unwrap(), Err(TransferError::Connection(_))));
    transfer_into(&share, &to).await;
}

/// The outcome at a sender of `from` whose receiver sends these control messages.
async fn send_to(from: &std::path::Path, control: &[Control]) -> Result<Summary, TransferError> {
    let (sender, receiver) = plain();
    let mut bytes = Vec::new();
    control.iter().for_each(|message| message.encode(&mut bytes));
    let receiving = async {
        let mut stream = receiver.open().await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let (share, progress) = (share(from), Progress::new());
    let sending = send(&sender, &share, &progress);
    tokio::join!(sending, receiving).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_may_name_a_megabyte_of_failed_files_and_no_more_and_an_older_one_none() {
    let (_temp, from, _) = directories(&[("a", b"a")]);
    let hello = Control::Hello { version: 4, asks: false, eager: false, extended: true };
    let name =
        || Control::Missing(Missing { path: "p".repeat(1000).into(), reason: "r".repeat(1000).into() });
    let verdict = |again| Control::Incomplete { count: 9, failed_here: 9, files: "p: r".into(), again };
    let with = |names, again| {
        let names = (0..names).map(|_| name());
        [hello.clone()].into_iter().chain(names).chain([verdict(again)]).collect::<Vec<_>>()
    };
    let sent = send_to(&from, &with(490, Some(3))).await;
    let Err(TransferError::PeerIncomplete { count: 9, again: Some(3), missing, .. }) = &sent else {
        panic!("{sent:?}")
    };
    assert_eq!(missing.len(), 490);
    let sent = send_to(&from, &with(500, Some(3))).await;
    assert!(matches!(sent, Err(TransferError::Protocol(_))), "{sent:?}");
    let sent = send_to(&from, &with(0, None)).await;
    let Err(TransferError::PeerIncomplete { again: None, missing, files, .. }) = &sent else {
        panic!("{sent:?}")
    };
    assert_eq!((missing.len(), files.raw()), (0, "p: r"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_sender_gets_the_verdict_that_it_knows() {
    let (_temp, _, to) = directories(&[]);
    fs::write(to.join("a"), "old").unwrap();
    // A later sender would be asked for its hash.
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(5);
    fs::File::open(to.join("a")).unwrap().set_modified(time).unwrap();
    let (sender, receiver) = plain();
    let modified = Some(ModifiedTime { seconds: 5, nanoseconds: 0 });
    let meta = FileMeta { size: Some(9), mode: 0o644, modified, data: None };
    let control = list(&[entry("a", EntryKind::File(meta))]);
    let sending = async move {
        let mut stream = sender.accept().await.unwrap();
        stream.write_all(&control).await.unwrap();
        let _data = sender.accept().await.unwrap();
        let mut words = Vec::new();
        stream.read_to_end(&mut words).await.unwrap();
        words
    };
    let (target, options, progress) = (directory(&to), ReceiveOptions::default(), Progress::new());
    let receiving = async {
        let outcome = receive(&receiver, target, &options, &progress).await;
        drop(receiver);
        outcome
    };
    let (words, received) = tokio::join!(sending, receiving);
    let error = received.unwrap_err();
    let mut expected = Vec::new();
    Control::Hello { version: 4, asks: false, eager: false, extended: true }.encode(&mut expected);
    let files = error.to_line().into();
    Control::Incomplete { count: 1, failed_here: 1, files, again: None }.encode(&mut expected);
    assert_eq!(words, expected);
}

/// Sends two files to a receiver with little room: `endless`, without a length, and `b`. Goes on with the first for so many
/// blocks whatever comes, then until the receiver skips it.
async fn send_endless(to: &std::path::Path, blocks: u64) -> Result<Summary, TransferError> {
    fs::write(to.join(SMALL), b"").unwrap();
    let (sender, receiver) = plain();
    let modified = Some(ModifiedTime { seconds: 5, nanoseconds: 0 });
    let endless = EntryKind::File(FileMeta { size: None, mode: 0o644, modified, data: None });
    let mut control = Vec::new();
    Control::Hello { version: 4, asks: false, eager: false, extended: true }.encode(&mut control);
    control.extend_from_slice(&list(&[entry("a", endless), entry("b", file(1))])[hello().len()..]);
    let sending = async move {
        let mut stream = sender.accept().await.unwrap();
        stream.write_all(&control).await.unwrap();
        let mut replies = sender.accept().await.unwrap();
        let data = vec![7; BLOCK];
        for index in 0..blocks {
            if replies.write_all(&super::hostile::replies(&[block(index, &data)])).await.is_err() {
                return;
            }
        }
        // A greeting comes first.
        let mut words = vec![0; 12 + 9];
        stream.read_exact(&mut words).await.unwrap();
        assert_eq!(words[12..], [0x0d, 0, 0, 0, 4, 0, 0, 0, 0]);
        let mut hasher = FileHasher::default();
        hasher.push(hash_block(0, b"b"));
        let end = Reply::End { len: 1, hash: hasher.finish().into() };
        let rest = [Reply::Failed("skipped".into()), block(0, b"b"), end];
        replies.write_all(&super::hostile::replies(&rest)).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let (target, options, progress) = (directory(to), ReceiveOptions::default(), Progress::new());
    let receiving = async {
        let outcome = receive(&receiver, target, &options, &progress).await;
        drop(receiver);
        outcome
    };
    tokio::join!(sending, receiving).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_unknown_length_fails_alone_near_a_full_disk() {
    let (_temp, _, to) = directories(&[]);
    let received = send_endless(&to, 1).await;
    let Err(TransferError::Incomplete { failures, count: 1, here: 1, again: 1, advice, .. }) = &received
    else {
        panic!("{received:?}")
    };
    let why = "a: 1048576 bytes are free, and no file of unknown length may fill the disk";
    assert_eq!(failures[0].to_string(), why);
    assert!(advice.is_some());
    assert_eq!(
        (names(&to), fs::read(to.join("b")).unwrap()),
        (vec!["b".into(), SMALL.into()], b"b".to_vec())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_does_not_skip_what_failed_is_left() {
    let (_temp, _, to) = directories(&[]);
    let received = send_endless(&to, 100).await;
    let Err(TransferError::Protocol(why)) = &received else { panic!("{received:?}") };
    assert_eq!(why, "it does not skip a");
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_that_are_under_way_when_a_file_finds_no_room_are_no_fault() {
    let (_temp, _, to) = directories(&[]);
    fs::write(to.join(FULL), b"").unwrap();
    let mut control = Vec::new();
    Control::Hello { version: 4, asks: false, eager: false, extended: true }.encode(&mut control);
    let size = 2 * u64::from(MOST_ZEROS);
    let sparse = FileMeta { size: Some(size), mode: 0o644, modified: None, data: Some(0) };
    control.extend_from_slice(&list(&[entry("a", EntryKind::File(sparse))])[hello().len()..]);
    let zeros = |less| Reply::Zeros { len: MOST_ZEROS - less };
    let piece = Reply::Piece([&blake3::hash(b"data").as_bytes()[..], b"data"].concat());
    // The receiver does not hash the bytes that it drops.
    let data = replies(&[zeros(0), zeros(4), piece, Reply::End { len: size, hash: [0; 32] }]);
    let received = face(control, data, directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, count: 1, .. }) = &received else { panic!("{received:?}") };
    assert_eq!(failures[0].to_string(), "a: the disk is full");
}
