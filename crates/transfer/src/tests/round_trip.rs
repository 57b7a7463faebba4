//! Transfers that succeed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Found, connect, directories, directory, names, noise, share, transfer, transfer_into, tree};
use crate::codec::read_header;
use crate::control::ControlLink;
use crate::hash::BLOCK;
use crate::manifest::{Entry, EntryKind, FileMeta};
use crate::message::{Control, LONGEST_REQUEST, Reply, Request};
use crate::path::RelPath;
use crate::tests::Gate;
use crate::{
    Connection, OutputStream, Progress, ReceiveOptions, Share, Target, TransferError, receive, send,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_arrives_with_names_modes_times_and_links() {
    let big = noise(1, 3 * BLOCK + 12345);
    let (_temp, from, to) = directories(&[
        ("tree/big", &big),
        ("tree/exact", &big[..2 * BLOCK]),
        ("tree/empty", b""),
        ("tree/deep/er/and deeper/x", b"x"),
        ("tree/ünï/日本語/🙂.txt", b"names"),
        ("tree/new\nline", b"odd"),
        ("tree/locked/inside", b"shut in"),
    ]);
    fs::create_dir(from.join("tree/nothing in here")).unwrap();
    for (name, mode) in
        [("tree/big", 0o640), ("tree/empty", 0o400), ("tree/deep/er", 0o750), ("tree/locked", 0o555)]
    {
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
    fs::File::open(from.join("tree/exact")).unwrap().set_modified(before_1970).unwrap();
    symlink("deep/er", from.join("tree/inside")).unwrap();
    symlink("../../big", from.join("tree/deep/er/up")).unwrap();
    symlink("missing", from.join("tree/dangling")).unwrap();

    let summary = transfer_into(&share(&from.join("tree")), &to).await;
    assert_eq!(tree(&from), tree(&to));
    assert_eq!((summary.files, summary.skipped, summary.resumed), (7, 0, 0));
    assert!(matches!(tree(&to)["tree/locked"], Found::Directory { mode: 0o555, .. }));

    let again = transfer_into(&share(&from.join("tree")), &to).await;
    assert_eq!((again.files, again.skipped), (0, 7), "identical files are kept");
    assert_eq!(tree(&from), tree(&to));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_small_files_and_a_larger_one_arrive() {
    let (_temp, from, to) = directories(&[]);
    fs::create_dir(from.join("many")).unwrap();
    for at in 0..2000 {
        let len = if at == 0 { 200_000 } else { at * 7 % 3000 };
        fs::write(from.join(format!("many/{at}")), noise(at, len as usize)).unwrap();
    }
    let progress = Progress::new();
    let (sender, receiver) = super::plain();
    let (share, options, sending) = (share(&from.join("many")), ReceiveOptions::default(), Progress::new());
    let (sent, received) = tokio::join!(
        send(&sender, &share, &sending),
        receive(&receiver, directory(&to), &options, &progress)
    );
    assert_eq!((sent.unwrap().files, received.unwrap().files), (2000, 2000));
    assert_eq!(tree(&from), tree(&to));
    let shown = progress.snapshot();
    assert_eq!((shown.files_done, shown.files_total), (2000, 2000));
    assert_eq!((shown.bytes_done, shown.bytes_resumed), (shown.bytes_total, 0));
    assert_eq!(sending.snapshot().bytes_done, shown.bytes_total);
    let headers = 32;
    assert_eq!(
        shown.bytes_moved,
        shown.bytes_total + headers,
        "those of a large block are counted as they come"
    );
    assert_eq!(sending.snapshot().bytes_moved, shown.bytes_total);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_are_asked_for_without_waiting_for_each_other() {
    const FILES: u32 = 1000;
    let (_temp, _, to) = directories(&[]);
    let (sender, receiver) = super::plain();
    let sending = async {
        let mut control = ControlLink::new(sender.accept().await.unwrap());
        control.begin().await.unwrap();
        for at in 0..FILES {
            let meta = FileMeta { size: Some(0), mode: 0o644, modified: None, data: None };
            let path = RelPath::parse(&format!("{at}")).unwrap();
            control.send(&Control::Entry(Entry { path, kind: EntryKind::File(meta) })).await.unwrap();
        }
        control.send(&Control::ListEnd).await.unwrap();
        let mut data = sender.accept().await.unwrap();
        let mut replies = Vec::new();
        for at in 0..FILES {
            let (kind, len) = read_header(&mut data, LONGEST_REQUEST).await.unwrap().unwrap();
            let mut body = vec![0; len];
            data.read_exact(&mut body).await.unwrap();
            let request = Request::decode(kind, &body).unwrap();
            assert!(
                matches!(request, Request::Fetch { file, count: 0, last: true, .. } if file == at),
                "{request:?}"
            );
            Reply::End { len: 0, hash: blake3::hash(b"").into() }.encode(&mut replies);
        }
        // No reply was sent before the last request.
        data.write_all(&replies).await.unwrap();
        data.shutdown().await.unwrap();
        assert_eq!(control.recv().await.unwrap(), Control::Done { removed: 0, updated: 0 });
    };
    let (options, progress) = (ReceiveOptions::default(), Progress::new());
    let receiving = receive(&receiver, directory(&to), &options, &progress);
    let ((), received) = tokio::join!(sending, receiving);
    assert_eq!(received.unwrap().files, u64::from(FILES));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_makes_no_copy_for_the_sender_cannot_claim_to_have_removed_anything() {
    let (_temp, from, _) = directories(&[("a", b"a")]);
    let (sender, receiver) = super::plain();
    let (share, progress) = (share(&from), Progress::new());
    let receiving = async {
        let mut control = ControlLink::new(receiver.open().await.unwrap());
        control.begin().await.unwrap();
        while control.recv().await.unwrap() != Control::ListEnd {}
        control.send(&Control::Done { removed: 7, updated: 8 }).await.unwrap();
        while control.recv().await.is_ok() {}
    };
    let (sent, ()) = tokio::join!(crate::send(&sender, &share, &progress), receiving);
    let sent = sent.unwrap();
    assert_eq!((sent.removed, sent.updated), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn links_out_of_the_share_and_special_files_are_left_out_with_a_warning() {
    let (_temp, from, to) = directories(&[("tree/a", b"a"), ("tree/.b.anabranch-part", b"unfinished")]);
    symlink("/etc/passwd", from.join("tree/absolute")).unwrap();
    symlink("../../..", from.join("tree/climbs")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("tree/socket")).unwrap();
    let share = share(&from.join("tree"));
    assert_eq!(share.contents().left_out.len(), 4);
    let (sent, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    for summary in [sent.unwrap(), received.unwrap()] {
        assert_eq!((summary.left_out, summary.warnings.len()), (4, 4));
        let told = "tree/socket is left out: it is neither a file, a directory nor a link";
        assert!(summary.warnings.iter().any(|warning| warning == told), "{summary:?}");
    }
    assert_eq!(names(&to.join("tree")), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_followed_on_request_and_hard_links_are_counted() {
    let files: [(&str, &[u8]); 4] =
        [("tree/a", b"a"), ("tree/z", b"z"), ("out/deep/x", b"x"), ("out/y", b"y")];
    let (_temp, from, to) = directories(&files);
    symlink("../out", from.join("tree/dir")).unwrap();
    symlink("../out/y", from.join("tree/file")).unwrap();
    symlink("../../tree", from.join("out/deep/back")).unwrap();
    fs::hard_link(from.join("tree/a"), from.join("tree/b")).unwrap();
    let share = Share::from_paths(&[from.join("tree")]).unwrap().following_links();
    let contents = share.contents();
    assert_eq!((contents.files, contents.hard_links), (6, 1));
    let told = "tree/dir/deep/back is left out: it is a link to a directory that it is in";
    assert_eq!(contents.left_out, [told]);
    transfer_into(&share, &to).await;
    let read = |name: &str| fs::read(to.join("tree").join(name)).unwrap();
    for (name, content) in
        [("a", "a"), ("b", "a"), ("dir/deep/x", "x"), ("dir/y", "y"), ("file", "y"), ("z", "z")]
    {
        assert_eq!(read(name), content.as_bytes(), "{name}");
    }
    assert!(!fs::symlink_metadata(to.join("tree/file")).unwrap().is_symlink());
}

#[tokio::test(flavor = "multi_thread")]
async fn special_mode_bits_are_dropped() {
    let (_temp, from, to) = directories(&[("file", b"#!/bin/sh")]);
    fs::set_permissions(from.join("file"), fs::Permissions::from_mode(0o6755)).unwrap();
    transfer_into(&share(&from.join("file")), &to).await;
    assert_eq!(fs::metadata(to.join("file")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_receivers_take_one_share_at_once() {
    let (_temp, from, to) = directories(&[("d/a", &noise(1, 5 * BLOCK)), ("d/b", b"b")]);
    let share = share(&from.join("d"));
    let one = |name: &str| {
        let (share, to) = (share.clone(), to.join(name));
        async move { transfer_into(&share, &to).await }
    };
    tokio::join!(one("first"), one("second"), one("third"));
    for name in ["first", "second", "third"] {
        assert_eq!(tree(&to.join(name)), tree(&from));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_file_goes_to_the_name_the_user_gives() {
    let (_temp, from, to) = directories(&[("a", b"content"), ("b", b"")]);
    let target = Target::File(to.join("new/name"));
    let (sent, received) = transfer(&share(&from.join("a")), target, &ReceiveOptions::default()).await;
    sent.unwrap();
    received.unwrap();
    assert_eq!(fs::read(to.join("new/name")).unwrap(), b"content");

    let both = Share::from_paths(&[from.join("a"), from.join("b")]).unwrap();
    let (sent, received) = transfer(&both, Target::File(to.join("x")), &ReceiveOptions::default()).await;
    assert!(matches!(received, Err(TransferError::OneFileOnly { .. })), "{received:?}");
    assert!(matches!(sent, Err(TransferError::Peer(_))), "{sent:?}");
}

/// A writer whose content the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Write::write(&mut *self.0.lock().unwrap(), data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl OutputStream for Shared {}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_any_length_goes_from_standard_input_to_standard_output() {
    for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK, 4 * BLOCK + 77] {
        let content = noise(len as u64, len);
        let input = Share::from_reader("stdin", io::Cursor::new(content.clone())).unwrap();
        let output = Shared::default();
        let target = Target::Writer(Box::new(output.clone()));
        let (sent, received) = transfer(&input, target, &ReceiveOptions::default()).await;
        sent.unwrap();
        assert_eq!(received.unwrap().bytes, len as u64);
        assert!(*output.0.lock().unwrap() == content, "length {len}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_becomes_a_file_and_cannot_be_had_twice() {
    let (_temp, _, to) = directories(&[]);
    let content = noise(1, 2 * BLOCK + 9);
    let input = Share::from_reader("dump", io::Cursor::new(content.clone())).unwrap();
    fs::write(to.join(".dump.anabranch-part"), noise(2, 3 * BLOCK)).unwrap();
    transfer_into(&input, &to).await;
    assert_eq!(names(&to), ["dump"]);
    assert!(fs::read(to.join("dump")).unwrap() == content);

    let (sent, received) = transfer(&input, directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(sent, Err(TransferError::Consumed)), "{sent:?}");
    assert!(matches!(&received, Err(TransferError::Peer(why)) if why.raw().contains("once")), "{received:?}");
}

/// Returns its bytes and then fails.
struct Breaks(io::Cursor<Vec<u8>>);

impl io::Read for Breaks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match io::Read::read(&mut self.0, buffer)? {
            0 => Err(io::Error::other("the pipe broke")),
            some => Ok(some),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_stream_that_broke() {
    let (_temp, _, to) = directories(&[]);
    let input = Share::from_reader("dump", Breaks(io::Cursor::new(noise(1, 4 * BLOCK)))).unwrap();
    let (sent, received) = transfer(&input, directory(&to), &ReceiveOptions::default()).await;
    assert!(sent.is_err() && received.is_err(), "{sent:?} {received:?}");
    assert!(names(&to).is_empty(), "{:?}", names(&to));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hash_of_a_file_is_the_one_that_other_tools_print() {
    let (_temp, from, to) = directories(&[("a", &noise(3, 2 * BLOCK + 1))]);
    transfer_into(&share(&from.join("a")), &to).await;
    assert_eq!(blake3::hash(&fs::read(to.join("a")).unwrap()), blake3::hash(&noise(3, 2 * BLOCK + 1)));
}

#[test]
fn two_paths_of_one_name_cannot_be_shared_together() {
    let (_temp, from, _) = directories(&[("a/x", b"1"), ("b/x", b"2")]);
    let refused = Share::from_paths(&[from.join("a/x"), from.join("b/x")]);
    assert!(matches!(refused, Err(TransferError::Share { .. })), "{refused:?}");
    let missing = Share::from_paths(&[from.join("nothing")]);
    let told = missing.as_ref().err().map(ToString::to_string).unwrap_or_default();
    assert!(matches!(missing, Err(TransferError::Share { .. })), "{missing:?}");
    assert!(told.contains("; check the name"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_can_be_read_on_the_way() {
    let (_temp, from, to) = directories(&[("a", &noise(4, 16 * BLOCK))]);
    let gate = Gate::after(8 << 20, true);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (share, options, progress) = (share(&from.join("a")), ReceiveOptions::default(), Progress::new());
    let sending = Progress::new();
    tokio::select! {
        _ = async { tokio::join!(send(&sender, &share, &sending), receive(&receiver, directory(&to), &options, &progress)) } => {
            panic!("the gate is shut");
        }
        () = gate.reached.notified() => {}
    }
    let shown = progress.snapshot();
    assert!(shown.bytes_done < 9 << 20 && shown.bytes_total == 16 << 20 && shown.current == "a", "{shown:?}");
}
