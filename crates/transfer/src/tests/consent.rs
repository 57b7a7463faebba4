//! A receiver's consent and limits, and its treatment of modes, metadata and odd files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{TIMELESS, directories, directory, names, noise, share, transfer, transfer_into, tree};
use crate::{Consent, Offer, Progress, ReceiveOptions, Share, TransferError};

#[tokio::test(flavor = "multi_thread")]
async fn the_user_sees_names_and_sizes_first_and_nothing_is_written_without_consent() {
    let (_temp, from, to) = directories(&[("d/a", b"12345"), ("d/b/c", b"678"), (".e", b"9")]);
    let share = Share::from_paths(&[from.join("d"), from.join(".e")]).unwrap();
    let seen = Arc::new(Mutex::new(None));
    for consents in [false, true] {
        let seen = Arc::clone(&seen);
        let asks = move |offer: &Offer| {
            *seen.lock().unwrap() = Some(offer.clone());
            consents
        };
        let options = ReceiveOptions { consent: Consent::Ask(Arc::new(asks)), ..ReceiveOptions::default() };
        let (sent, received) = transfer(&share, directory(&to), &options).await;
        if consents {
            received.unwrap();
            assert_eq!(tree(&from), tree(&to));
        } else {
            assert!(matches!(received, Err(TransferError::Declined)), "{received:?}");
            assert!(
                matches!(&sent, Err(TransferError::Peer(why)) if why.raw().contains("declined")),
                "{sent:?}"
            );
            assert!(names(&to).is_empty());
        }
    }
    let offer = seen.lock().unwrap().take().unwrap();
    assert_eq!((offer.files, offer.bytes, offer.endless), (3, 9, 0));
    let listed: Vec<_> = offer.names.iter().map(|name| (name.name.raw(), name.files, name.bytes)).collect();
    assert_eq!(listed, [(".e", 1, 1), ("d", 2, 8)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_transfer_begins_when_the_user_has_agreed() {
    let (_temp, from, to) = directories(&[("a", b"a")]);
    let answered = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&answered);
    let asks = move |_: &Offer| {
        std::thread::sleep(Duration::from_millis(20));
        *noted.lock().unwrap() = Some(Instant::now());
        true
    };
    let options = ReceiveOptions { consent: Consent::Ask(Arc::new(asks)), ..ReceiveOptions::default() };
    let (sender, receiver) = super::plain();
    let (share, sending, receiving) = (share(&from.join("a")), Progress::new(), Progress::new());
    let (sent, received) = tokio::join!(
        crate::send(&sender, &share, &sending),
        crate::receive(&receiver, directory(&to), &options, &receiving)
    );
    assert_eq!((sent.unwrap().files, received.unwrap().files), (1, 1));
    let answered = answered.lock().unwrap();
    assert!(answered.is_some() && sending.began() >= *answered && receiving.began() >= *answered);
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_names_go_into_a_directory_of_their_own_unless_allowed() {
    let (_temp, from, to) = directories(&[(".bashrc", b"evil"), (".profile", b"evil")]);
    let share = Share::from_paths(&[from.join(".bashrc"), from.join(".profile")]).unwrap();
    fs::write(to.join("mine"), b"here before").unwrap();
    let (_, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(&received, Err(TransferError::Hidden { .. })), "{received:?}");
    assert_eq!(names(&to), ["mine"]);
    // A new directory, and again after an earlier attempt made it.
    transfer_into(&share, &to.join("new")).await;
    fs::remove_file(to.join("new/.profile")).unwrap();
    transfer_into(&share, &to.join("new")).await;
    assert_eq!(names(&to.join("new")), [".bashrc", ".profile"]);

    let options = ReceiveOptions { allow_hidden: true, ..ReceiveOptions::default() };
    transfer(&share, directory(&to), &options).await.1.unwrap();
    assert_eq!(names(&to), [".bashrc", ".profile", "mine", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_with_hidden_names_goes_on_where_no_times_can_be_stored() {
    let (_temp, from, to) = directories(&[(TIMELESS, b""), (".a", b"one"), (".b", b"two")]);
    let share = Share::from_paths(&[TIMELESS, ".a", ".b"].map(|name| from.join(name))).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for name in [".a", ".b"] {
        fs::File::options().write(true).open(from.join(name)).unwrap().set_modified(old).unwrap();
    }
    fs::write(to.join(TIMELESS), b"").unwrap();
    let options = ReceiveOptions { allow_hidden: true, ..ReceiveOptions::default() };
    transfer(&share, directory(&to), &options).await.1.unwrap();
    fs::remove_file(to.join(".b")).unwrap();
    transfer_into(&share, &to).await;
    assert_eq!(names(&to), [".a", ".b", TIMELESS]);
    // A file of another length is no trace of an earlier attempt.
    fs::write(to.join(".a"), b"mine, and longer").unwrap();
    let (_, received) = transfer(&share, directory(&to), &ReceiveOptions::default()).await;
    assert!(matches!(&received, Err(TransferError::Hidden { .. })), "{received:?}");
}

/// A sender that guesses what is in a home directory, and one that aims at a repository in the target.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_names_come_neither_to_guessed_names_nor_into_directories_that_are_there() {
    let (_temp, from, to) = directories(&[
        (".bashrc", b"evil"),
        (".ssh/rc", b"evil"),
        ("project/.git/hooks/post-checkout", b"evil"),
    ]);
    let (home, work) = (to.join("home"), to.join("work"));
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::create_dir_all(work.join("project/.git/hooks")).unwrap();
    fs::write(home.join(".bashrc"), b"mine").unwrap();
    fs::write(home.join(".ssh/known_hosts"), b"mine").unwrap();
    fs::write(work.join("project/.git/HEAD"), b"mine").unwrap();
    for (offered, target) in
        [(vec![".bashrc", ".ssh"], &home), (vec![".ssh"], &home), (vec!["project"], &work)]
    {
        let paths: Vec<_> = offered.iter().map(|name| from.join(name)).collect();
        let share = Share::from_paths(&paths).unwrap();
        let before = tree(target);
        let (_, received) = transfer(&share, directory(target), &ReceiveOptions::default()).await;
        assert!(matches!(&received, Err(TransferError::Hidden { .. })), "{offered:?}: {received:?}");
        assert_eq!(tree(target), before, "{offered:?}");
    }
    // A new directory, and again after an earlier attempt made a part of it.
    let share = Share::from_paths(&[from.join("project")]).unwrap();
    for _ in 0..2 {
        transfer_into(&share, &to.join("new")).await;
        fs::remove_file(to.join("new/project/.git/hooks/post-checkout")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_user_takes_is_refused_also_of_a_stream() {
    let (_temp, from, to) = directories(&[("a", &noise(1, 1000))]);
    let options = |most| ReceiveOptions { max_size: Some(most), ..ReceiveOptions::default() };
    let (_, received) = transfer(&share(&from.join("a")), directory(&to), &options(999)).await;
    assert!(matches!(received, Err(TransferError::TooLarge { most: 999 })), "{received:?}");
    transfer(&share(&from.join("a")), directory(&to), &options(1000)).await.1.unwrap();

    let endless = Share::from_reader("zero", std::io::repeat(7)).unwrap();
    let (_, received) = transfer(&endless, directory(&to), &options(3 << 20)).await;
    assert!(matches!(received, Err(TransferError::TooLarge { .. })), "{received:?}");
    assert_eq!(names(&to), ["a"], "nothing of it is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_umask_here_applies_unless_all_modes_are_wanted() {
    let (_temp, from, to) = directories(&[("d/open", b"x"), ("d/sub/x", b"x")]);
    fs::set_permissions(from.join("d/open"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(from.join("d/sub"), fs::Permissions::from_mode(0o777)).unwrap();
    // A new file of this process shows its umask.
    fs::write(to.join("probe"), b"").unwrap();
    let mask = fs::metadata(to.join("probe")).unwrap().permissions().mode() & 0o666;
    let mode = |path: &str| fs::metadata(to.join(path)).unwrap().permissions().mode() & 0o777;
    transfer_into(&share(&from.join("d")), &to).await;
    assert_eq!(mode("d/open"), mask);
    assert_eq!(mode("d/sub") & 0o666, mask);
    let options = ReceiveOptions { all_modes: true, ..ReceiveOptions::default() };
    transfer(&share(&from.join("d")), directory(&to.join("exact")), &options).await.1.unwrap();
    assert_eq!((mode("exact/d/open"), mode("exact/d/sub")), (0o666, 0o777));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_there_keeps_its_mode_whatever_the_sender_has() {
    let (_temp, from, to) = directories(&[("d/x", b"x")]);
    fs::create_dir(to.join("d")).unwrap();
    fs::set_permissions(to.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o055)).unwrap();
    let (_, received) = transfer(&share(&from.join("d")), directory(&to), &ReceiveOptions::default()).await;
    // Only the superuser can read such a directory.
    drop(received);
    fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::metadata(to.join("d")).unwrap().permissions().mode() & 0o777, 0o755);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_looks_at_a_stream_and_declines_leaves_it_to_others() {
    let (_temp, _, to) = directories(&[]);
    let share = Share::from_reader("log", std::io::Cursor::new(noise(3, 5000))).unwrap();
    let looks = ReceiveOptions { consent: Consent::Ask(Arc::new(|_| false)), ..ReceiveOptions::default() };
    let (sent, received) = transfer(&share, directory(&to), &looks).await;
    assert!(matches!(received, Err(TransferError::Declined)), "{received:?}");
    assert!(sent.is_err() && !share.is_spent());
    transfer_into(&share, &to).await;
    assert_eq!(fs::read(to.join("log")).unwrap(), noise(3, 5000));
    let (_, late) = transfer(&share, directory(&to), &looks).await;
    assert!(matches!(&late, Err(TransferError::Peer(why)) if why.raw().contains("once")), "{late:?}");
}
