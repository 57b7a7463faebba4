//! Many, idle, slow and hostile receivers, and their cost to the sender and to each other.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::{Gated, Memory, directories, noise, plain, share, transfer_into, tree};
use crate::codec::FRAME_HEADER;
use crate::control::ControlLink;
use crate::hash::BLOCK;
use crate::message::{Control, Request};
use crate::{Connection, Missing, Progress, Share, TransferError, send};

/// A receiver that greets and sends these requests.
async fn ask(receiver: &Memory, requests: &[Request]) -> (Gated, Gated) {
    let mut control = receiver.open().await.unwrap();
    let mut hello = Vec::new();
    Control::Hello { version: 4, asks: false, eager: false, extended: false }.encode(&mut hello);
    control.write_all(&hello).await.unwrap();
    let mut data = receiver.open().await.unwrap();
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    data.write_all(&bytes).await.unwrap();
    (control, data)
}

fn fetch(file: u32, count: u64) -> Request {
    Request::Fetch { file, first: 0, count, last: true, held: Vec::new() }
}

/// Serves a receiver that sends these requests and reads none of the replies.
async fn stall(
    sends: &mut JoinSet<Result<crate::Summary, TransferError>>,
    share: &Share,
    requests: &[Request],
) -> (Memory, Gated, Gated) {
    let (sender, receiver) = plain();
    let share = share.clone();
    sends.spawn(async move { send(&sender, &share, &Progress::new()).await });
    let (control, data) = ask(&receiver, requests).await;
    (receiver, control, data)
}

#[cfg(target_os = "linux")]
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_hundred_idle_receivers_cost_no_thread_and_an_honest_one_gets_its_file() {
    let (_temp, from, to) = directories(&[("a", &noise(1, 20 * BLOCK))]);
    let share = share(&from.join("a"));
    let before = threads();
    let (mut sends, mut idle) = (JoinSet::new(), Vec::new());
    for at in 0..600 {
        // A third request nothing; the others request everything and read nothing.
        let requests = if at % 3 == 0 { vec![fetch(0, 20)] } else { Vec::new() };
        idle.push(stall(&mut sends, &share, &requests).await);
    }
    let start = Instant::now();
    tokio::time::timeout(Duration::from_secs(60), transfer_into(&share, &to)).await.expect("it is served");
    assert_eq!(tree(&from), tree(&to));
    // The honest receiver has its own threads, the runtime keeps some for a while, and other tests have some.
    let more = || threads().saturating_sub(before);
    while more() >= 60 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} threads for 600 idle receivers", more());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(share.memory().used() < (64 << 20) + 200 * 3 * (24 << 10), "{}", share.memory().used());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_two_hundred_stalled_receivers_is_bounded_and_comes_back() {
    let (_temp, from, to) = directories(&[("a", &noise(1, 20 * BLOCK))]);
    let share = share(&from.join("a")).within_memory(8 << 20);
    let (mut sends, mut stalled) = (JoinSet::new(), Vec::new());
    for _ in 0..200 {
        stalled.push(stall(&mut sends, &share, &[fetch(0, 20)]).await);
    }
    let (mut most, mut looks) = (0, 0);
    let begin = Instant::now();
    while looks < 50 || (most <= 4 << 20 && begin.elapsed() < Duration::from_secs(60)) {
        most = most.max(share.memory().used());
        looks += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A receiver has up to three chunks at a time: being written, waiting, and being read.
    assert!(most > 4 << 20 && most < (8 << 20) + 200 * 3 * (24 << 10), "{most}");
    transfer_into(&share, &to).await;
    assert_eq!(tree(&from), tree(&to));
    drop(stalled);
    while sends.join_next().await.is_some() {}
    assert_eq!(share.memory().used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_takes_nothing_is_dropped_with_a_reason() {
    let (_temp, from, _) = directories(&[("a", &noise(1, 4 * BLOCK))]);
    let share = share(&from.join("a"));
    let mut sends = JoinSet::new();
    let (_receiver, mut control, _data) = stall(&mut sends, &share, &[fetch(0, 4)]).await;
    let outcome = sends.join_next().await.unwrap().unwrap();
    assert!(matches!(outcome, Err(TransferError::Stalled { .. })), "{outcome:?}");
    let mut told = Vec::new();
    let _ = control.read_to_end(&mut told).await;
    assert!(String::from_utf8_lossy(&told).contains("took nothing for 120 s"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_is_closed_ends_what_is_under_way_with_its_reason() {
    let (_temp, from, _) = directories(&[("a", &noise(1, 4 * BLOCK))]);
    let share = share(&from.join("a"));
    let mut sends = JoinSet::new();
    let (_receiver, mut control, _data) = stall(&mut sends, &share, &[fetch(0, 4)]).await;
    share.close("the ticket has expired");
    let mut told = Vec::new();
    let _ = control.read_to_end(&mut told).await;
    drop(control);
    let outcome = sends.join_next().await.unwrap().unwrap();
    assert!(matches!(&outcome, Err(TransferError::Closed(why)) if why.contains("expired")), "{outcome:?}");
    assert!(String::from_utf8_lossy(&told).contains("the ticket has expired"));
    let (sender, _receiver) = plain();
    let late = tokio::spawn(async move { send(&sender, &share, &Progress::new()).await });
    assert!(!late.is_finished() || late.await.unwrap().is_err(), "a closed share serves no one");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hash_of_a_file_is_computed_once_for_a_receiver_and_no_file_is_compared_twice() {
    let (_temp, from, _) = directories(&[("a", &noise(1, 2 * BLOCK))]);
    let share = share(&from.join("a"));
    let mut sends = JoinSet::new();
    let held = |value| Request::Fetch { file: 0, first: 0, count: 2, last: true, held: vec![[value; 32]; 2] };
    let requests = [Request::Hash { file: 0 }, Request::Hash { file: 0 }, held(1), held(2)];
    let (_receiver, _control, mut data) = stall(&mut sends, &share, &requests).await;
    let mut kinds = Vec::new();
    while kinds.len() < 6 {
        let mut header = [0; FRAME_HEADER];
        data.read_exact(&mut header).await.unwrap();
        let mut body = vec![0; u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize];
        data.read_exact(&mut body).await.unwrap();
        kinds.push(header[0]);
    }
    // The hash, a refusal, both blocks and the end, a refusal.
    assert_eq!(kinds, [0x22, 0x23, 0x20, 0x20, 0x22, 0x23]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_sends_no_hash_of_a_file_that_is_there() {
    let (_temp, from, to) = directories(&[("secret", b"1234")]);
    fs::write(to.join("secret"), b"4321").unwrap();
    let (sender, receiver) = plain();
    let (options, progress) = (crate::ReceiveOptions::default(), Progress::new());
    let hostile = async {
        let mut control = crate::control::ControlLink::new(sender.accept().await.unwrap());
        control.begin().await.unwrap();
        let meta = crate::manifest::FileMeta { size: Some(4), mode: 0o600, modified: None, data: None };
        let path = crate::path::RelPath::parse("secret").unwrap();
        let kind = crate::manifest::EntryKind::File(meta);
        control.send(&Control::Entry(crate::manifest::Entry { path, kind })).await.unwrap();
        control.send(&Control::ListEnd).await.unwrap();
        let mut data = sender.accept().await.unwrap();
        let mut request = [0; FRAME_HEADER + 4];
        data.read_exact(&mut request).await.unwrap();
        // A request of nine bytes that reveals nothing about the file.
        assert_eq!(request, [0x12, 0, 0, 0, 4, 0, 0, 0, 0]);
        let mut reply = Vec::new();
        crate::message::Reply::End { len: 4, hash: [7; 32] }.encode(&mut reply);
        data.write_all(&reply).await.unwrap();
        data.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = data.read_to_end(&mut rest).await;
        rest
    };
    let receiving = crate::receive(&receiver, super::directory(&to), &options, &progress);
    let (rest, received) = tokio::join!(hostile, receiving);
    assert!(rest.is_empty(), "{rest:?}");
    assert!(received.is_err(), "{received:?}");
    drop(from);
}

/// The kinds of the first `count` requests of a receiver that is offered `big`, a file of this size.
async fn first_requests(sender: &Memory, size: u64, count: usize) -> Vec<u8> {
    let mut control = crate::control::ControlLink::new(sender.accept().await.unwrap());
    control.begin().await.unwrap();
    let meta = crate::manifest::FileMeta { size: Some(size), mode: 0o600, modified: None, data: None };
    let path = crate::path::RelPath::parse("big").unwrap();
    let kind = crate::manifest::EntryKind::File(meta);
    control.send(&Control::Entry(crate::manifest::Entry { path, kind })).await.unwrap();
    control.send(&Control::ListEnd).await.unwrap();
    let mut data = sender.accept().await.unwrap();
    let mut kinds = Vec::new();
    while kinds.len() < count {
        let mut header = [0; FRAME_HEADER];
        data.read_exact(&mut header).await.unwrap();
        let mut body = vec![0; u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize];
        data.read_exact(&mut body).await.unwrap();
        kinds.push(header[0]);
    }
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_asks_before_it_hashes_a_large_file_and_gives_signs_of_life_meanwhile() {
    let (_temp, _, to) = directories(&[]);
    // Sparse: it takes minutes to read, and no room.
    let size = 1 << 40;
    fs::File::create(to.join("big")).unwrap().set_len(size).unwrap();
    let (sender, receiver) = plain();
    let (options, progress) = (crate::ReceiveOptions::default(), Progress::new());
    let asked = async {
        let kinds = tokio::time::timeout(Duration::from_secs(60), first_requests(&sender, size, 3)).await;
        drop(sender);
        kinds
    };
    let (kinds, received) =
        tokio::join!(asked, crate::receive(&receiver, super::directory(&to), &options, &progress));
    assert_eq!(kinds.expect("it asks at once"), [0x12, 0x13, 0x13]);
    assert!(received.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_busy_for_hours_and_says_so_is_served() {
    let (_temp, from, _) = directories(&[("a", b"content")]);
    let share = share(&from.join("a"));
    let mut sends = JoinSet::new();
    let (_receiver, _control, mut data) = stall(&mut sends, &share, &[]).await;
    let mut wait = Vec::new();
    Request::Wait.encode(&mut wait);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(20 * 60)).await;
        data.write_all(&wait).await.unwrap();
    }
    assert!(sends.try_join_next().is_none(), "it was dropped");
    let outcome = sends.join_next().await.unwrap().unwrap();
    assert!(matches!(outcome, Err(TransferError::Stalled { .. })), "{outcome:?}");
}

/// A pipe that the test writes to.
pub(super) struct Pipe(pub(super) std::sync::mpsc::Receiver<Vec<u8>>);

impl io::Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Ok(bytes) = self.0.recv() else { return Ok(0) };
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// A writer that reports its input.
struct Reports(std::sync::mpsc::Sender<Vec<u8>>);

impl io::Write for Reports {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let _ = self.0.send(data.to_vec());
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl crate::OutputStream for Reports {}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_slowly_from_a_pipe_arrives_at_once() {
    let (pipe, bytes) = std::sync::mpsc::channel();
    let (reports, arrived) = std::sync::mpsc::channel();
    let share = Share::from_reader("log", Pipe(bytes)).unwrap();
    let target = crate::Target::Writer(Box::new(Reports(reports)));
    let options = crate::ReceiveOptions::default();
    let whole = super::transfer(&share, target, &options);
    let arrived = tokio::task::spawn_blocking(move || {
        let mut took = Vec::new();
        for line in 0..20 {
            let start = Instant::now();
            pipe.send(format!("line {line}\n").into_bytes()).unwrap();
            assert_eq!(
                arrived.recv_timeout(Duration::from_secs(60)).unwrap(),
                format!("line {line}\n").as_bytes()
            );
            took.push(start.elapsed());
        }
        took.sort();
        took
    });
    let ((sent, received), took) = tokio::join!(whole, arrived);
    let took = took.unwrap();
    // Gathering takes 20 ms. On a busy machine, some lines take longer.
    assert!(took[5] < Duration::from_millis(50) && took[10] < Duration::from_millis(500), "{took:?}");
    assert_eq!((sent.unwrap().bytes, received.unwrap().bytes), (150, 150));
}

#[tokio::test(start_paused = true)]
async fn a_receiver_whose_data_stream_broke_has_time_to_name_what_it_lacks_but_not_without_end() {
    let (_temp, from, _) = directories(&[("a", b"a")]);
    let share = share(&from);
    for (count, is_heard) in [(4_u64, true), (40, false)] {
        let (sender, receiver) = plain();
        let receiving = async {
            let mut control = ControlLink::new(receiver.open().await.unwrap());
            control.begin().await.unwrap();
            while control.recv().await.unwrap() != Control::ListEnd {}
            // A request that is cut off.
            receiver.open().await.unwrap().write_all(&[0x10]).await.unwrap();
            for _ in 0..count {
                tokio::time::sleep(Duration::from_secs(8)).await;
                let file = Missing { path: "a".into(), reason: "no".into() };
                let _ = control.send(&Control::Missing(file)).await;
            }
            let verdict = Control::Incomplete { count, failed_here: count, files: "a".into(), again: None };
            let _ = control.send(&verdict).await;
            while control.recv().await.is_ok() {}
        };
        let progress = Progress::new();
        let (sent, ()) = tokio::join!(send(&sender, &share, &progress), receiving);
        let was_heard =
            matches!(&sent, Err(TransferError::PeerIncomplete { missing, .. }) if missing.len() == 4);
        assert_eq!(was_heard, is_heard, "{sent:?}");
        assert!(was_heard || matches!(sent, Err(TransferError::Connection(_))), "{sent:?}");
    }
}
