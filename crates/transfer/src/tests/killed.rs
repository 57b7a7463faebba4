//! Transfers in real processes, which are killed.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{directories, noise, share, transfer_into, tree};
use crate::hash::BLOCK;

/// Not a test: the code of the process to be killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test below, in a process of its own"]
async fn transfers_until_killed() {
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    if let (Some(from), Some(to)) = (path("TRANSFER_FROM"), path("TRANSFER_TO")) {
        transfer_into(&share(&from), &to).await;
    }
}

/// Runs a transfer in another process and kills it after `patience`; true if it finished before.
fn run_and_kill(from: &Path, to: &Path, patience: Duration) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::killed::transfers_until_killed", "--ignored"])
        .env("TRANSFER_FROM", from)
        .env("TRANSFER_TO", to)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(patience);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    status.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_at_any_moment_leaves_no_half_file_under_a_final_name() {
    let (_temp, from, to) = directories(&[]);
    fs::create_dir(from.join("d")).unwrap();
    for at in 0..30 {
        let len = if at % 3 == 0 { 4 * BLOCK + 1000 * at } else { 5000 * at };
        fs::write(from.join(format!("d/{at}")), noise(at as u64, len)).unwrap();
    }
    let sent = tree(&from);
    // On a busy machine, forty short attempts may be too few.
    let moments = (0..40_u64).map(|round| 15 + 13 * round).chain([1_000, 4_000, 15_000, 60_000]);
    let done = moments.map(Duration::from_millis).any(|moment| {
        let done = run_and_kill(&from.join("d"), &to, moment);
        let arrived = tree(&to);
        // A directory is made before it gets its mode.
        for (name, found) in arrived.iter().filter(|(name, _)| name.contains('/') && !name.ends_with("part"))
        {
            assert_eq!(Some(found), sent.get(name), "{name} has its final name and is not whole");
        }
        done
    });
    assert!(done, "all attempts did not add up to one transfer");
    assert_eq!(sent, tree(&to));
}
