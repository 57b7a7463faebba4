//! Receivers that ask for the beginning of the content together with the list.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::serve::served;
use super::{Memory, connect, directories, directory, names, noise, plain, share, transfer, tree};
use crate::codec::FRAME_HEADER;
use crate::control::ControlLink;
use crate::hash::{BLOCK, FileHasher, hash_block};
use crate::manifest::{Entry, EntryKind, FileMeta};
use crate::message::{Control, Reply, Request, VERSION};
use crate::path::RelPath;
use crate::tests::Gate;
use crate::{
    Conflict, Connection, Progress, ReceiveOptions, Rights, Summary, TransferError, Visitor, Wanted, get,
    receive, send,
};

/// Most bytes that are sent ahead.
const MOST: usize = 16 << 10;

fn eager() -> ReceiveOptions {
    ReceiveOptions { eager: true, ..ReceiveOptions::default() }
}

/// Reads one frame: its kind and body.
async fn frame(stream: &mut (impl AsyncReadExt + Unpin)) -> (u8, Vec<u8>) {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).await.unwrap();
    let len = u32::from_be_bytes(header[1..].try_into().unwrap());
    let mut body = vec![0; len as usize];
    stream.read_exact(&mut body).await.unwrap();
    (header[0], body)
}

async fn reply(stream: &mut (impl AsyncReadExt + Unpin)) -> Reply {
    let (kind, body) = frame(stream).await;
    Reply::decode(kind, body).unwrap()
}

/// A receiver that has greeted and asked for the beginning of the content, and has read nothing.
async fn call(receiver: &Memory) -> (super::Gated, super::Gated) {
    let (mut control, mut bytes) = (receiver.open().await.unwrap(), Vec::new());
    Control::Hello { version: VERSION, asks: false, eager: true, extended: false }.encode(&mut bytes);
    control.write_all(&bytes).await.unwrap();
    let mut data = receiver.open().await.unwrap();
    bytes.clear();
    Request::Begin { most: MOST as u32 }.encode(&mut bytes);
    data.write_all(&bytes).await.unwrap();
    (control, data)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_bytes_of_content_take_one_round_trip() {
    // The receiver sends two messages before it hears anything …
    let (_temp, from, to) = directories(&[("a", &noise(1, BLOCK))]);
    let (sender, receiver) = connect(Gate::after(0, true));
    let target = directory(&to);
    let receiving = tokio::spawn(async move { receive(&receiver, target, &eager(), &Progress::new()).await });
    let hello = frame(&mut sender.accept().await.unwrap()).await;
    let data = tokio::time::timeout(Duration::from_secs(60), sender.accept()).await;
    let begin = frame(&mut data.expect("it waits for an answer").unwrap()).await;
    receiving.abort();
    let hello = Control::decode(hello.0, &hello.1).unwrap();
    assert_eq!(hello, Control::Hello { version: VERSION, asks: false, eager: true, extended: true });
    let begin = Request::decode(begin.0, &begin.1).unwrap();
    assert_eq!(begin, Request::Begin { most: MOST as u32 });
    // … is enough for the sender.
    let (sender, receiver) = plain();
    let share = share(&from.join("a"));
    let sending = tokio::spawn(async move { send(&sender, &share, &Progress::new()).await });
    let (_control, mut data) = call(&receiver).await;
    let Reply::Begun(Some((0, body))) = reply(&mut data).await else { panic!("no content") };
    assert_eq!(body[32..], noise(1, BLOCK)[..MOST]);
    sending.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_all_lengths_arrive_and_no_byte_is_sent_or_counted_twice() {
    let content = noise(2, 3 * BLOCK + 7);
    for len in [0, 1, MOST - 1, MOST, MOST + 1, BLOCK - 1, BLOCK, BLOCK + 1, content.len()] {
        let (_temp, from, to) = directories(&[("d/empty", b""), ("d/f", &content[..len]), ("d/g", b"more")]);
        let (sender, receiver) = plain();
        let (share, ours, theirs) = (share(&from.join("d")), Progress::new(), Progress::new());
        let sending = send(&sender, &share, &ours);
        let options = eager();
        let (sent, received) = tokio::join!(sending, receive(&receiver, directory(&to), &options, &theirs));
        assert_eq!((sent.unwrap().files, received.unwrap().files), (3, 3));
        assert_eq!(tree(&from), tree(&to), "{len}");
        for progress in [ours.snapshot(), theirs.snapshot()] {
            let counted = (progress.bytes_done, progress.bytes_resumed);
            assert_eq!(counted, (len as u64 + 4, 0), "{len}");
        }
        assert!(ours.snapshot().bytes_moved >= len as u64 + 4, "{len}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_ahead_is_not_sent_again() {
    let content = noise(3, BLOCK + 10);
    let (_temp, from, _) = directories(&[("a", &content)]);
    let (sender, receiver) = plain();
    let share = share(&from.join("a"));
    let sending = tokio::spawn(async move { send(&sender, &share, &Progress::new()).await });
    let (_control, mut data) = call(&receiver).await;
    let Reply::Begun(Some((0, body))) = reply(&mut data).await else { panic!("no content") };
    let (mut got, mut bytes) = (body[32..].to_vec(), Vec::new());
    // It is asked for a second time in vain.
    Request::Begin { most: 5 }.encode(&mut bytes);
    Request::Fetch { file: 0, first: 0, count: 2, last: true, held: Vec::new() }.encode(&mut bytes);
    data.write_all(&bytes).await.unwrap();
    assert_eq!(reply(&mut data).await, Reply::Begun(None));
    loop {
        match reply(&mut data).await {
            Reply::Block(body) | Reply::Piece(body) => got.extend_from_slice(&body[32..]),
            Reply::End { len, hash } => {
                assert_eq!((len, hash), (content.len() as u64, blake3::hash(&content).into()));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, content);
    sending.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_there_is_not_touched_by_what_came_ahead() {
    let content = noise(4, 40_000);
    for conflict in [Conflict::Error, Conflict::Skip, Conflict::Rename, Conflict::Overwrite] {
        let (_temp, from, to) = directories(&[("a", &content), ("b", b"b")]);
        fs::write(to.join("a"), "mine").unwrap();
        let share = crate::Share::from_paths(&[from.join("a"), from.join("b")]).unwrap();
        let options = ReceiveOptions { conflict, ..eager() };
        let (_, received) = transfer(&share, directory(&to), &options).await;
        let expected: &[&str] = if conflict == Conflict::Rename { &["a", "a (2)", "b"] } else { &["a", "b"] };
        assert_eq!(received.is_err(), conflict == Conflict::Error, "{conflict:?}: {received:?}");
        assert_eq!(names(&to).len(), expected.len(), "{conflict:?}: {:?}", names(&to));
        let kept = if conflict == Conflict::Overwrite { &content[..] } else { b"mine" };
        assert_eq!(fs::read(to.join("a")).unwrap(), kept, "{conflict:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_file_and_an_equal_one_stay_what_they_are() {
    let content = noise(5, 2 * BLOCK + 5);
    let (_temp, from, to) = directories(&[("a", &content)]);
    fs::write(to.join(".a.anabranch-part"), &content[..BLOCK]).unwrap();
    let share = share(&from.join("a"));
    let (sent, received) = transfer(&share, directory(&to), &eager()).await;
    assert_eq!((sent.unwrap().resumed, received.unwrap().resumed), (BLOCK as u64, BLOCK as u64));
    assert_eq!(tree(&from), tree(&to));
    let (sent, received) = transfer(&share, directory(&to), &eager()).await;
    assert_eq!((sent.unwrap().skipped, received.unwrap().skipped), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_beyond_the_limits_leaves_nothing_on_the_disk() {
    let (_temp, from, to) = directories(&[("d/.hidden", &noise(6, 40_000)), ("d/a", &noise(7, 40_000))]);
    let offers = [
        (share(&from.join("d/a")), ReceiveOptions { max_size: Some(10), ..eager() }),
        (share(&from.join("d/.hidden")), eager()),
    ];
    fs::write(to.join("other"), "").unwrap();
    for (share, options) in offers {
        let (_, received) = transfer(&share, directory(&to), &options).await;
        let refused = matches!(received, Err(TransferError::TooLarge { .. } | TransferError::Hidden { .. }));
        assert!(refused, "{received:?}");
        assert_eq!(names(&to), ["other"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_read_is_missed_once() {
    let (_temp, from, to) = directories(&[("d/a", &noise(8, 40_000)), ("d/b", b"b")]);
    fs::set_permissions(from.join("d/a"), fs::Permissions::from_mode(0o0)).unwrap();
    if fs::read(from.join("d/a")).is_ok() {
        return eprintln!("skipped: this user may read everything");
    }
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &eager()).await;
    assert!(matches!(received, Err(TransferError::Incomplete { count: 1, .. })), "{received:?}");
    assert_eq!(names(&to.join("d")), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_answers_the_next_request_after_one_without_content() {
    let (_temp, folders, folder, here) = served(&[("a", &noise(9, 40_000)), ("b/c", b"c")]);
    fs::create_dir(folder.join("nothing")).unwrap();
    let (server, near) = plain();
    let serving = async {
        let visitor = Visitor { rights: Rights::Read, name: "ab1client".into() };
        while let Some(served) = folders.serve(&server, &visitor, &Progress::new()).await {
            served.outcome.unwrap();
        }
    };
    let asking = async move {
        for wanted in
            [Wanted::contents_of("pub/nothing"), Wanted::paths(&["pub/a"]), Wanted::paths(&["pub/b"])]
        {
            let options = eager();
            get(&near, &wanted.unwrap(), directory(&here), &options, &Progress::new()).await.unwrap();
        }
        names(&here)
    };
    let (names, ()) = tokio::join!(asking, serving);
    assert_eq!(names, ["a", "b"]);
}

/// The outcome at an eager receiver whose sender offers two files of 3 bytes and sends these replies.
async fn face(replies: &[Reply]) -> (Result<Summary, TransferError>, Vec<String>) {
    let (_temp, _, to) = directories(&[]);
    let (sender, receiver) = plain();
    let replies: Vec<u8> = replies.iter().fold(Vec::new(), |mut bytes, reply| {
        reply.encode(&mut bytes);
        bytes
    });
    let sending = async move {
        let mut control = ControlLink::new(sender.accept().await.unwrap());
        control.begin().await.unwrap();
        for name in ["a", "b"] {
            let meta = FileMeta { size: Some(3), mode: 0o644, modified: None, data: None };
            let entry = Entry { path: RelPath::parse(name).unwrap(), kind: EntryKind::File(meta) };
            control.send(&Control::Entry(entry)).await.unwrap();
        }
        control.send(&Control::ListEnd).await.unwrap();
        let mut data = sender.accept().await.unwrap();
        let _ = data.write_all(&replies).await;
        let mut ignored = Vec::new();
        let _ = data.read_to_end(&mut ignored).await;
        while control.recv().await.is_ok() {}
    };
    let target = directory(&to);
    let receiving = async move {
        let outcome = receive(&receiver, target, &eager(), &Progress::new()).await;
        drop(receiver);
        outcome
    };
    let outcome = tokio::join!(sending, receiving).1;
    (outcome, names(&to))
}

/// A beginning of this file.
fn begun(file: u32, data: &[u8]) -> Reply {
    Reply::Begun(Some((file, [&blake3::hash(data).as_bytes()[..], data].concat())))
}

/// The rest of a file of three bytes after those that came ahead, and its end.
fn rest(content: &[u8], ahead: usize) -> [Reply; 2] {
    let hash = hash_block(0, content);
    let mut hasher = FileHasher::default();
    hasher.push(hash);
    let block = [&hash.value[..], &content[ahead..]].concat();
    [Reply::Block(block), Reply::End { len: 3, hash: hasher.finish().into() }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_sends_what_was_asked_for_ahead_or_is_refused() {
    let all = |first: Reply, ahead: [usize; 2]| {
        let [[a, a_end], [b, b_end]] = [rest(b"one", ahead[0]), rest(b"two", ahead[1])];
        [first, a, a_end, b, b_end]
    };
    let good = [
        all(Reply::Begun(None), [0, 0]),
        all(begun(0, b"o"), [1, 0]),
        all(begun(0, b"one"), [3, 0]),
        all(begun(1, b"tw"), [0, 2]),
        // Of a file that is not there.
        all(begun(2, b"one"), [0, 0]),
    ];
    for replies in good {
        let (outcome, names) = face(&replies).await;
        assert_eq!((outcome.unwrap().files, names.len()), (2, 2), "{replies:?}");
    }
    let mut damaged = begun(0, b"one");
    if let Reply::Begun(Some((_, body))) = &mut damaged {
        body[32] ^= 1;
    }
    let bad = [
        all(damaged, [3, 0]),
        all(begun(0, b"two"), [3, 0]),
        all(begun(0, b"more"), [0, 0]),
        all(begun(2, &vec![7; MOST + 1]), [0, 0]),
        // None, although it was asked for, and again later.
        all(Reply::Same, [0, 0]),
    ];
    for replies in bad {
        let (outcome, names) = face(&replies).await;
        assert!(matches!(outcome, Err(TransferError::Protocol(_))), "{outcome:?}");
        assert!(!names.contains(&"a".to_owned()), "{names:?}");
    }
}
