//! Sources whose length, holes or depth are unusual.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    DOUBLED, Gate, SMALL, connect, directories, directory, names, noise, plain, share, transfer,
    transfer_into, tree,
};
use crate::hash::BLOCK;
use crate::message::{Control, Request};
use crate::{Conflict, Connection as _, Progress, ReceiveOptions, Share, TransferError, receive, send};

/// Sends `share` to the directory `to`; returns the bytes that reach the receiver.
async fn bytes_on_the_wire(share: &Share, to: &Path) -> u64 {
    let gate = Gate::after(u64::MAX, false);
    let (sender, receiver) = connect(gate.clone());
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let receiving = receive(&receiver, directory(to), &options, &theirs);
    let (sent, received) = tokio::join!(send(&sender, share, &ours), receiving);
    let (sent, received) = (sent.unwrap(), received.unwrap());
    assert_eq!(sent.bytes, received.bytes);
    assert!(sent.moved.max(received.moved) < 100_000, "holes are not moved: {sent:?} {received:?}");
    u64::MAX - gate.left.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_cost_no_bytes_on_the_wire_and_stay_holes() {
    const LEN: u64 = (1 << 30) + 5;
    let (_temp, from, to) = directories(&[]);
    let file = fs::File::create(from.join("disk.img")).unwrap();
    file.set_len(LEN).unwrap();
    // Within a block, over a boundary of blocks, a block of written zeros, and the last bytes.
    let mib = BLOCK as u64;
    file.write_all_at(&noise(1, 5000), 77 * mib + 300_123).unwrap();
    file.write_all_at(&noise(2, 8192), 150 * mib - 4096).unwrap();
    file.write_all_at(&vec![0; BLOCK], 200 * mib).unwrap();
    file.write_all_at(b"end", LEN - 3).unwrap();
    if file.metadata().unwrap().blocks() * 512 > 4 * mib {
        return eprintln!("skipped: this file system has no holes");
    }
    let wire = bytes_on_the_wire(&share(&from.join("disk.img")), &to).await;
    println!("{wire} bytes on the wire for 1 GiB");
    assert!(wire < 40_000, "{wire} bytes on the wire");
    assert!(tree(&from) == tree(&to));
    let stored = fs::metadata(to.join("disk.img")).unwrap().blocks() * 512;
    assert!(stored < 100_000, "{stored} bytes on the disk");

    // An attempt that was cut off goes on, with holes in what it has.
    fs::rename(to.join("disk.img"), to.join(".disk.img.anabranch-part")).unwrap();
    let part = fs::File::options().write(true).open(to.join(".disk.img.anabranch-part")).unwrap();
    part.set_len(160 * mib).unwrap();
    part.write_all_at(b"other", 3 * mib).unwrap();
    let wire = bytes_on_the_wire(&share(&from.join("disk.img")), &to).await;
    assert!(wire < 60_000, "{wire} bytes on the wire");
    assert!(tree(&from) == tree(&to));
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn files_with_another_length_than_their_system_reports_are_read_to_their_end() {
    let (_temp, _, to) = directories(&[]);
    // `/proc` reports no bytes, `/sys` a page.
    let odd = ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/uevent_seqnum"];
    for path in odd.iter().map(Path::new).filter(|path| path.exists()) {
        transfer_into(&share(path), &to).await;
        let name = path.file_name().unwrap();
        assert_eq!(fs::read(to.join(name)).unwrap(), fs::read(path).unwrap(), "{path:?}");
        // Their times change, too.
        fs::File::open(to.join(name)).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let again = transfer_into(&share(path), &to).await;
        assert_eq!((again.files, again.skipped, again.unchecked), (0, 1, 0), "{path:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_there_and_shorter_than_its_system_reports_needs_no_room() {
    let (_temp, from, to) = directories(&[("file", &noise(1, 2 * BLOCK))]);
    fs::copy(from.join("file"), to.join("file")).unwrap();
    fs::write(to.join(SMALL), b"").unwrap();
    for at in [&from, &to] {
        let doubled = SystemTime::UNIX_EPOCH + Duration::from_secs(DOUBLED);
        fs::File::open(at.join("file")).unwrap().set_modified(doubled).unwrap();
    }
    let options = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("file")), directory(&to), &options).await;
    assert_eq!(received.unwrap().skipped, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_shorter_than_their_system_reports_arrive_with_what_can_be_read() {
    let noisy = [(1, 0), (1000, 0), (1000, 1800), (BLOCK + 1000, 0), (BLOCK + 1000, 2 * BLOCK)];
    let noisy = noisy.map(|(len, held)| (noise(1, len), held));
    let zeros = [vec![0; 1000], [noise(1, BLOCK), vec![0; 1000]].concat()].map(|content| (content, 0));
    for (content, held) in noisy.into_iter().chain(zeros) {
        let len = content.len();
        let (_temp, from, to) = directories(&[("file", &content)]);
        fs::File::open(from.join("file"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(DOUBLED))
            .unwrap();
        if held > 0 {
            fs::write(to.join(".file.anabranch-part"), [&content[..], &noise(2, BLOCK)].concat()).unwrap();
            fs::File::options()
                .write(true)
                .open(to.join(".file.anabranch-part"))
                .unwrap()
                .set_len(held as u64)
                .unwrap();
        }
        let summary = transfer_into(&share(&from.join("file")), &to).await;
        assert_eq!(summary.resumed, if held > BLOCK { BLOCK as u64 } else { 0 });
        assert!(fs::read(to.join("file")).unwrap() == content, "{len} bytes, {held} held");

        // Again, it stays.
        let summary = transfer_into(&share(&from.join("file")), &to).await;
        assert_eq!((summary.files, summary.skipped, summary.moved), (0, 1, 0), "{len} bytes");
        // Another one of that length and time does not.
        fs::write(to.join("file"), noise(9, len)).unwrap();
        let doubled = SystemTime::UNIX_EPOCH + Duration::from_secs(DOUBLED);
        fs::File::open(to.join("file")).unwrap().set_modified(doubled).unwrap();
        let (_, received) =
            transfer(&share(&from.join("file")), directory(&to), &ReceiveOptions::default()).await;
        assert!(matches!(received, Err(TransferError::Incomplete { here: 1, .. })), "{received:?}");
        let options = ReceiveOptions { conflict: Conflict::Overwrite, ..ReceiveOptions::default() };
        let (sent, received) = transfer(&share(&from.join("file")), directory(&to), &options).await;
        assert_eq!((sent.unwrap().skipped, received.unwrap().files), (0, 1));
        assert!(fs::read(to.join("file")).unwrap() == content, "{len} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_receiver_gets_no_file_shorter_than_listed() {
    let (_temp, from, _) = directories(&[("file", b"short")]);
    let doubled = SystemTime::UNIX_EPOCH + Duration::from_secs(DOUBLED);
    fs::File::open(from.join("file")).unwrap().set_modified(doubled).unwrap();
    for (extended, expected) in [(true, 0x20), (false, 0x23)] {
        let (sender, receiver) = plain();
        let receiving = async {
            let mut bytes = Vec::new();
            Control::Hello { version: 4, asks: false, eager: false, extended }.encode(&mut bytes);
            let mut control = receiver.open().await.unwrap();
            control.write_all(&bytes).await.unwrap();
            bytes.clear();
            let fetch = Request::Fetch { file: 0, first: 0, count: 1, last: true, held: Vec::new() };
            fetch.encode(&mut bytes);
            let mut data = receiver.open().await.unwrap();
            data.write_all(&bytes).await.unwrap();
            let kind = data.read_u8().await.unwrap();
            drop(control);
            kind
        };
        let (share, progress) = (share(&from.join("file")), Progress::new());
        let (_, kind) = tokio::join!(send(&sender, &share, &progress), receiving);
        assert_eq!(kind, expected, "{extended}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_unknown_length_that_was_received_before_stays() {
    let (_temp, _, to) = directories(&[]);
    // While it is open, the system keeps its times.
    let Ok(_open) = fs::File::open("/proc/version") else {
        return eprintln!("skipped: there is no /proc/version");
    };
    let share = share(Path::new("/proc/version"));
    for (files, skipped) in [(1, 0), (0, 1)] {
        let summary = transfer_into(&share, &to).await;
        assert_eq!((summary.files, summary.skipped), (files, skipped));
        assert_eq!(fs::read(to.join("version")).unwrap(), fs::read("/proc/version").unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_deep_is_named_with_the_reason_and_the_rest_arrives() {
    let (_temp, from, to) = directories(&[]);
    let deepest = from.join("d").join(vec!["d"; 127].join("/"));
    fs::create_dir_all(deepest.join("d")).unwrap();
    fs::write(deepest.join("too deep"), "x").unwrap();
    fs::write(deepest.parent().unwrap().join("file"), "x").unwrap();
    let (sent, received) =
        transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    let Err(TransferError::Incomplete { failures, count: 2, .. }) = &received else { panic!("{received:?}") };
    for failure in failures {
        assert_eq!(failure.reason.text(), "it is more than 128 levels deep");
    }
    let sent = sent.unwrap();
    assert_eq!((sent.files, sent.missed, sent.left_out), (1, 2, 0));
    let options = ReceiveOptions { conflict: Conflict::Skip, ..ReceiveOptions::default() };
    let (sent, _) = transfer(&share(&from.join("d")), directory(&to), &options).await;
    let sent = sent.unwrap();
    assert_eq!((sent.files, sent.skipped, sent.missed), (0, 1, 2));
    let arrived = to.join(deepest.strip_prefix(&from).unwrap());
    assert_eq!(names(arrived.parent().unwrap()), ["d", "file"]);
}
