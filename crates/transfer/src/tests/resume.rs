//! Interrupted transfers: data on the disk is kept, and everything is verified.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{
    BROKEN, Found, Gate, connect, directories, directory, names, noise, share, transfer, transfer_into, tree,
};
use crate::hash::BLOCK;
use crate::{Mirror, Progress, ReceiveOptions, Share, TransferError, receive, send};

const PART: &str = ".a.anabranch-part";

/// Transfers until `bytes` have reached the receiver, then stops both ends where they are.
async fn transfer_some(share: &Share, to: &Path, bytes: u64) {
    let gate = Gate::after(bytes, true);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let both = async {
        tokio::join!(send(&sender, share, &ours), receive(&receiver, directory(to), &options, &theirs))
    };
    tokio::select! {
        _ = both => {}
        () = gate.reached.notified() => {}
    }
}

/// Waits until the threads of an aborted receiver have written all but two blocks of `bytes`.
async fn settled(to: &Path, bytes: u64) -> u64 {
    for _ in 0..3_000 {
        let kept = fs::metadata(to.join(PART)).map_or(0, |meta| meta.len());
        if kept + 2 * BLOCK as u64 > bytes || to.join("a").exists() {
            return kept;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("of {bytes} bytes that arrived, too many were not kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_stopped_at_any_byte_continues_with_what_is_on_the_disk() {
    let content = noise(5, 6 * BLOCK + 333);
    for round in 0..20_u64 {
        let (_temp, from, to) = directories(&[("a", &content)]);
        let share = share(&from.join("a"));
        let cut = (round * 0x9e37_79b9 + 12_345) % (content.len() as u64 + 2000);
        transfer_some(&share, &to, cut).await;
        let kept = settled(&to, cut).await;
        let summary = transfer_into(&share, &to).await;
        assert_eq!(tree(&from), tree(&to), "stopped after {cut} bytes");
        if summary.skipped == 0 {
            assert!(
                summary.resumed >= kept / BLOCK as u64 * BLOCK as u64,
                "{summary:?}, {kept} kept of {cut}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_stopped_again_and_again_gets_there() {
    let (_temp, from, to) = directories(&[]);
    fs::create_dir(from.join("d")).unwrap();
    for at in 0..60 {
        fs::write(from.join(format!("d/{at}")), noise(at, (at as usize * 37_777) % (3 * BLOCK))).unwrap();
    }
    let share = share(&from.join("d"));
    for round in 0..10 {
        transfer_some(&share, &to, 700_000 * (round + 1)).await;
        let (sent, arrived) = (tree(&from), tree(&to));
        let finished: Vec<_> =
            arrived.iter().filter(|(_, found)| matches!(found, Found::File { .. })).collect();
        let finished: Vec<_> = finished.into_iter().filter(|(name, _)| !name.ends_with("part")).collect();
        assert!(round < 9 || finished.len() > 2, "hardly anything had arrived: {finished:?}");
        for (name, found) in finished {
            assert_eq!(Some(found), sent.get(name), "{name} has its final name and is not whole");
        }
    }
    transfer_into(&share, &to).await;
    assert_eq!(tree(&from), tree(&to));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_dies_leaves_what_arrived() {
    let (_temp, from, to) = directories(&[("a", &noise(6, 8 * BLOCK))]);
    let share = share(&from.join("a"));
    let gate = Gate::after(4 << 20, false);
    let (sender, receiver) = connect(Arc::clone(&gate));
    let (options, ours, theirs) = (ReceiveOptions::default(), Progress::new(), Progress::new());
    let sending = async {
        tokio::select! {
            _ = send(&sender, &share, &ours) => {}
            () = gate.reached.notified() => {}
        }
        drop(sender);
    };
    let ((), received) = tokio::join!(sending, receive(&receiver, directory(&to), &options, &theirs));
    assert!(matches!(received, Err(TransferError::Connection(_))), "{received:?}");
    assert_eq!(names(&to), [PART]);
    let summary = transfer_into(&share, &to).await;
    assert!(summary.resumed >= 3 << 20, "{summary:?}");
    assert_eq!(tree(&from), tree(&to));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_the_disk_is_not_trusted() {
    let content = noise(7, 132 * BLOCK + 5);
    let (_temp, from, to) = directories(&[("a", &content)]);
    let mut spoilt = content.clone();
    spoilt[3 * BLOCK + 17] ^= 1;
    spoilt[130 * BLOCK..131 * BLOCK].fill(0);
    spoilt.extend_from_slice(&noise(8, 5 * BLOCK));
    fs::write(to.join(PART), &spoilt).unwrap();
    let summary = transfer_into(&share(&from.join("a")), &to).await;
    assert_eq!(summary.resumed, content.len() as u64 - 2 * BLOCK as u64);
    assert_eq!(tree(&from), tree(&to));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_left_over_of_another_file_does_no_harm() {
    for (size, len) in
        [(2, 0), (2, 1), (2, BLOCK - 1), (2, BLOCK), (2, 3 * BLOCK), (65, 64 * BLOCK), (64, 70 * BLOCK)]
    {
        let (_temp, from, to) = directories(&[("a", &noise(9, size * BLOCK + 1))]);
        fs::write(to.join(PART), noise(10, len)).unwrap();
        let summary = transfer_into(&share(&from.join("a")), &to).await;
        assert_eq!(summary.resumed, 0);
        assert_eq!(tree(&from), tree(&to));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_receivers_in_one_directory_do_not_mix() {
    let (_temp, from, to) = directories(&[("a", &noise(11, 20 * BLOCK))]);
    let share = share(&from.join("a"));
    let options = ReceiveOptions::default();
    let one = || super::transfer(&share, directory(&to), &options);
    let ((_, first), (_, second)) = tokio::join!(one(), one());
    assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
    for outcome in [first, second] {
        assert!(matches!(outcome, Ok(_) | Err(TransferError::Incomplete { .. })), "{outcome:?}");
    }
    assert_eq!(tree(&from)["a"], tree(&to)["a"]);
    assert_eq!(transfer_into(&share, &to).await.skipped, 1);
    assert_eq!(names(&to), ["a"], "nothing is left of the attempt that lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_an_attempt_that_was_cut_off_gets_its_mode_from_the_next() {
    let (_temp, from, to) = directories(&[("d/e/in", b"in"), ("d/z", &noise(1, 12 * BLOCK))]);
    fs::set_permissions(from.join("d/e"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::create_dir(to.join("d")).unwrap();
    fs::write(to.join("d").join(BROKEN), "").unwrap();
    let share = share(&from.join("d"));
    let (_, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(received, Err(TransferError::Io { .. })), "{received:?}");
    let mode = || fs::metadata(to.join("d/e")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o700);
    fs::remove_file(to.join("d").join(BROKEN)).unwrap();
    transfer_into(&share, &to).await;
    assert_eq!((mode(), names(&to.join("d/e"))), (0o500, vec!["in".to_owned()]));
    // One that is complete is the user's.
    fs::set_permissions(to.join("d/e"), fs::Permissions::from_mode(0o700)).unwrap();
    transfer_into(&share, &to).await;
    assert_eq!(mode(), 0o700);
}

/// Threads without the rights of root: root may write into every directory.
pub(super) fn without_root() -> tokio::runtime::Runtime {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let leave_root = || _ = nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
    threads.enable_all().on_thread_start(leave_root).build().unwrap()
}

/// Lets every user look for paths below the directory, and write into `to`.
pub(super) fn open_to_all(temp: &Path, to: &Path) {
    fs::set_permissions(temp, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn a_directory_that_arrived_read_only_is_completed_and_updated_and_is_read_only_again() {
    let (temp, from, to) =
        directories(&[("d/e/old/f", b"f"), ("d/e/in", b"in"), ("d/z", &noise(1, 12 * BLOCK))]);
    open_to_all(temp.path(), &to);
    for name in ["d/e/old", "d/e"] {
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(0o555)).unwrap();
    }
    let run = |mirror| {
        let options = ReceiveOptions { mirror, ..ReceiveOptions::default() };
        without_root().block_on(async {
            // On a thread of the runtime.
            let (share, to) = (share(&from.join("d")), directory(&to));
            tokio::spawn(async move { transfer(&share, to, &options).await.1 }).await.unwrap()
        })
    };
    let mode = || fs::metadata(to.join("d/e")).unwrap().permissions().mode() & 0o777;
    run(None).unwrap();
    assert_eq!(mode(), 0o555);

    // An attempt that is cut off, and the next.
    fs::write(from.join("d/e/later"), b"later").unwrap();
    fs::remove_file(to.join("d/z")).unwrap();
    fs::write(to.join("d").join(BROKEN), "").unwrap();
    let received = run(None);
    assert!(matches!(received, Err(TransferError::Io { .. })), "{received:?}");
    assert_eq!(mode(), 0o755);
    fs::remove_file(to.join("d").join(BROKEN)).unwrap();
    run(None).unwrap();
    assert_eq!((mode(), tree(&from)), (0o555, tree(&to)));

    // A mirror, which removes a directory too.
    fs::write(from.join("d/e/in"), b"other").unwrap();
    fs::remove_dir_all(from.join("d/e/old")).unwrap();
    run(Some(Mirror { delete: true, by_content: false })).unwrap();
    assert_eq!((mode(), tree(&from)), (0o555, tree(&to)));
}
