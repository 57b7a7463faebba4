//! A reader without a session finds files and directories in the folders, and nothing outside them.

use std::fs;
use std::io::Read as _;
use std::num::NonZeroU64;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::serve::served;
use crate::{Folders, Found, ListedKind, TransferError};

async fn entries(folders: &Folders, path: &str) -> Vec<String> {
    match folders.find(path).await.unwrap() {
        Found::Directory { entries, left_out: 0 } => {
            entries.iter().map(|entry| entry.path.to_string()).collect()
        }
        found => panic!("{found:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_directories_are_found_and_hidden_ones_as_by_clients() {
    let (_temp, folders, folder, _) = served(&[("d/x", b"content"), (".hidden", b"")]);
    symlink("d", folder.join("within")).unwrap();
    assert_eq!(entries(&folders, "").await, ["pub"]);
    assert_eq!(entries(&folders, "pub").await, [".hidden", "d", "within"]);
    let Found::File(mut file) = folders.find("pub/d/x").await.unwrap() else { panic!("no file") };
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    let Found::Directory { entries, .. } = folders.find("pub/d").await.unwrap() else {
        panic!("no directory")
    };
    assert!(matches!(entries[0].kind, ListedKind::File { size: Some(7), modified: Some(_) }));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_and_no_link_is_found_that_leads_out_of_the_folders() {
    let (temp, folders, folder, _) = served(&[("a", b"a"), ("d/x", b"x")]);
    fs::write(temp.path().join("secret"), "secret").unwrap();
    fs::write(folder.join(".a.anabranch-part"), "half").unwrap();
    symlink(temp.path(), folder.join("up")).unwrap();
    symlink("../secret", folder.join("file")).unwrap();
    symlink("d", folder.join("within")).unwrap();
    assert_eq!(entries(&folders, "pub").await, ["a", "d", "within"]);
    for path in
        ["secret", "pub/up", "pub/up/secret", "pub/file", "pub/within", "pub/within/x", "pub/a/x", "pub/none"]
    {
        let found = folders.find(path).await;
        assert!(matches!(found, Err(TransferError::Refused(_))), "{path}: {found:?}");
    }
    for path in
        ["..", "../secret", "pub/../../secret", "/etc/passwd", "pub//a", "pub/./a", "pub/.a.anabranch-part"]
    {
        let found = folders.find(path).await;
        assert!(matches!(found, Err(TransferError::UnsafePath { .. })), "{path}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_read_is_not_shown_as_empty() {
    if rustix::process::geteuid().is_root() {
        return eprintln!("skipped: root reads every directory");
    }
    let (_temp, folders, folder, _) = served(&[("closed/x", b"x")]);
    let set_mode = |mode| fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(mode));
    set_mode(0o300).unwrap();
    let found = folders.find("pub/closed").await;
    set_mode(0o755).unwrap();
    assert!(matches!(found, Err(TransferError::Refused(_))), "{found:?}");
}

#[tokio::test]
async fn a_reader_without_a_session_gets_no_larger_part_of_the_rate_at_once_than_a_session() {
    let (_temp, folders, ..) = served(&[("a", b"a")]);
    assert_eq!(folders.admit(1 << 17).await, 1 << 17);
    let limited = folders.with(|share| share.at_most(NonZeroU64::new(8_000_000).unwrap()));
    assert_eq!(limited.admit(1 << 17).await, 50_000);
    assert_eq!(limited.admit(10).await, 10);
}
