//! Extended attributes, on request.

use std::fs;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::serve::{fetch, pull_with, served, store};
use super::{directories, directory, share, transfer, tree};
use crate::{Place, ReceiveOptions, Rights, TransferError, Wanted};

fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    let set = setxattr(path, name, value, XattrFlags::empty());
    if let Err(error) = &set {
        eprintln!("skipped: this file system has no extended attributes ({error})");
    }
    set.is_ok()
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1000];
    let len = getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn taking(attributes: bool) -> ReceiveOptions {
    ReceiveOptions { attributes, ..ReceiveOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_arrive_if_both_ends_want_them_and_are_named_otherwise() {
    let (_temp, from, to) = directories(&[("d/a", b"a"), ("d/plain", b"p")]);
    if !(set(&from.join("d/a"), "user.tag", b"red\0\xff") && set(&from.join("d"), "user.kind", b"")) {
        return;
    }
    let bare = share(&from.join("d"));
    let note = "the extended attributes of 2 files and directories (d, ...) are left out";
    assert_eq!(bare.contents().attributes.as_deref(), Some(note));
    let with = bare.with_attributes();
    assert_eq!(with.contents().attributes, None);

    let (_, received) = transfer(&share(&from.join("d")), directory(&to.join("none")), &taking(true)).await;
    let told = "the sender sent no extended attributes: its files have none, or it runs without `--xattrs`";
    assert_eq!(received.unwrap().warnings, [told]);

    let (_, received) = transfer(&with, directory(&to.join("bare")), &taking(false)).await;
    assert_eq!(received.unwrap().warnings, [format!("{note}; `--xattrs` keeps them")]);
    assert_eq!(attribute(&to.join("bare/d/a"), "user.tag"), None);

    let (_, received) = transfer(&with, directory(&to.join("all")), &taking(true)).await;
    assert!(received.unwrap().warnings.is_empty());
    assert_eq!(attribute(&to.join("all/d/a"), "user.tag"), Some(b"red\0\xff".to_vec()));
    assert_eq!(attribute(&to.join("all/d"), "user.kind"), Some(Vec::new()));
    assert_eq!(tree(&from), tree(&to.join("all")));

    // Existing files stay as they are, with a note about missing attributes.
    let (_, received) = transfer(&with, directory(&to.join("all")), &taking(true)).await;
    assert!(received.unwrap().warnings.is_empty());
    let (_, received) = transfer(&with, directory(&to.join("bare")), &taking(true)).await;
    let told = "2 files and directories (d, ...) were here and keep their own extended attributes";
    assert_eq!(received.unwrap().warnings, [told]);
    assert_eq!(attribute(&to.join("bare/d/a"), "user.tag"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_attributes_than_can_be_sent_are_left_out_by_name() {
    let (_temp, from, to) = directories(&[("a", b"a")]);
    let file = from.join("a");
    for at in 0..65 {
        if !set(&file, &format!("user.{at}"), b"") {
            return;
        }
    }
    let (sent, received) = transfer(&share(&file).with_attributes(), directory(&to), &taking(true)).await;
    for summary in [sent.unwrap(), received.unwrap()] {
        let told = "the set of extended attributes of a is left out: it is larger than can be sent";
        assert_eq!(summary.warnings[0], told);
    }
    assert_eq!(fs::read(to.join("a")).unwrap(), b"a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_sends_attributes_on_request_and_a_mirror_keeps_them() {
    let (_temp, folders, folder, here) = served(&[("a", b"a"), ("d/b", b"b")]);
    let copy = here.join("copy");
    if !(set(&folder.join("a"), "user.tag", b"red") && set(&folder.join("d"), "user.tag", b"dir")) {
        return;
    }
    let pull = async |attributes| {
        let wanted = Wanted::contents_of("pub").unwrap().with_attributes(attributes);
        let options = ReceiveOptions { attributes, ..Default::default() };
        pull_with(&folders, (&wanted, &copy), options).await.unwrap()
    };
    let told = "the server says: the extended attributes of 2 files and directories (d, ...) are left out; `--xattrs` keeps them";
    assert_eq!(pull(false).await.warnings, [told]);
    assert_eq!(attribute(&copy.join("a"), "user.tag"), None);
    let told = "the server says: the extended attributes of d are left out; `--xattrs` keeps them";
    assert_eq!(
        pull(false).await.warnings,
        [told],
        "of the file that is there already, nothing was to be sent"
    );
    let taken = here.join("taken");
    fs::create_dir_all(taken.join("pub")).unwrap();
    fs::write(taken.join("pub/a"), b"mine").unwrap();
    let outcome = fetch(&folders, Rights::Read, &["pub"], &taken).await;
    let Err(TransferError::Incomplete { count: 1, notes, .. }) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(notes, &[told.replace(" d ", " pub/d ")], "also when a file failed");
    // The file stays as it is and gets them.
    assert_eq!(pull(true).await.files, 0);
    assert_eq!(attribute(&copy.join("a"), "user.tag"), Some(b"red".to_vec()));
    assert_eq!(attribute(&copy.join("d"), "user.tag"), Some(b"dir".to_vec()));

    set(&copy.join("d/b"), "user.tag", b"here");
    let place = Place::in_directory("pub/new", crate::Conflict::Error).unwrap();
    store(&folders, Rights::Write, &place, &share(&copy.join("d")).with_attributes()).await.unwrap();
    assert_eq!(attribute(&folder.join("new/d/b"), "user.tag"), Some(b"here".to_vec()));
    let summary = store(&folders, Rights::Write, &place, &share(&copy.join("a"))).await.unwrap();
    let told = "the extended attributes of a are left out; `--xattrs` keeps them";
    assert_eq!(summary.warnings, [told]);
    // One that is compared first counts once.
    fs::write(copy.join("a"), b"b").unwrap();
    let place = Place::in_directory("pub/new", crate::Conflict::Overwrite).unwrap();
    let summary = store(&folders, Rights::Write, &place, &share(&copy.join("a"))).await.unwrap();
    assert_eq!((summary.files, summary.warnings), (1, vec![told.to_owned()]));
    // A directory counts, even without files.
    fs::create_dir(copy.join("d/e")).unwrap();
    set(&copy.join("d/e"), "user.tag", b"empty");
    let summary = store(&folders, Rights::Write, &place, &share(&copy.join("d/e"))).await.unwrap();
    assert_eq!(summary.warnings, ["the extended attributes of e are left out; `--xattrs` keeps them"]);
}
