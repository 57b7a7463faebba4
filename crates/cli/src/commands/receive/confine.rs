//! Restricts `receive` to its target: a fault in the code that reads a stranger's bytes can then change no other file.
//!
//! A restriction names directories that exist, and must begin before there are threads. So a missing target is made
//! first, and removed in the end if nothing came.

use std::fs;
use std::path::{Path, PathBuf};

use anabranch_service::process::sandbox::Sandbox;

use crate::commands::service;
use crate::errors::Failure;

/// The directories that were made for the target, parents first. Those without contents are removed when it is dropped.
pub struct Target(Vec<PathBuf>);

impl Target {
    /// Makes the target directory where it is missing.
    fn make(target: &Path) -> Result<Self, Failure> {
        if target.is_relative() && std::env::current_dir().is_err() {
            return Err(Failure::local("the current directory was deleted")
                .hint("change to another one, or name a directory in full"));
        }
        let missing = target.ancestors().filter(|path| !path.as_os_str().is_empty());
        let mut missing: Vec<_> = missing.take_while(|path| !path.exists()).map(Path::to_owned).collect();
        missing.reverse();
        let mut made = Self(Vec::new());
        for directory in missing {
            fs::create_dir(&directory).map_err(|error| Failure::file("create", &directory, &error))?;
            made.0.push(directory);
        }
        Ok(made)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for directory in self.0.iter().rev() {
            // One that has contents stays.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Makes the target, if there is one, and restricts this thread and those that it starts to changing what is below it and
/// below the `other` directories.
pub fn to(target: Option<&Path>, other: Vec<PathBuf>) -> Result<Target, Failure> {
    let made = target.map_or_else(|| Ok(Target(Vec::new())), Target::make)?;
    let tidy = made.0.first().map(|directory| service::directory_of(directory));
    let sandbox = Sandbox::writing(target.map(Path::to_owned).into_iter().chain(other));
    service::enter(&Sandbox { tidy: tidy.into_iter().collect(), ..sandbox });
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `work` in a thread that is confined as `receive` with this target.
    fn confined(target: &Path, work: impl FnOnce() + Send + 'static) {
        let target = target.to_owned();
        let thread = std::thread::spawn(move || {
            let made = to(Some(&target), Vec::new()).unwrap();
            work();
            drop(made);
        });
        thread.join().unwrap();
    }

    fn has_landlock() -> bool {
        let probe = || Sandbox::default().enter() != anabranch_service::process::sandbox::Restriction::None;
        std::thread::spawn(probe).join().unwrap()
    }

    #[test]
    fn receive_changes_files_below_its_target_only() {
        let dir = tempfile::tempdir().unwrap();
        let (target, other) = (dir.path().join("new/target"), dir.path().join("other"));
        fs::write(&other, "old").unwrap();
        let (within, beside, outside) = (target.clone(), dir.path().join("new/file"), other.clone());
        confined(&target, move || {
            fs::create_dir(within.join("sub")).unwrap();
            fs::write(within.join(".part"), "new").unwrap();
            fs::rename(within.join(".part"), within.join("sub/file")).unwrap();
            if has_landlock() {
                assert!(fs::write(&beside, "x").is_err() && fs::write(&outside, "x").is_err());
                assert!(
                    fs::rename(within.join("sub/file"), &beside).is_err()
                        && fs::remove_file(&outside).is_err()
                );
            }
        });
        assert_eq!(fs::read_to_string(target.join("sub/file")).unwrap(), "new");
        assert_eq!(fs::read_to_string(other).unwrap(), "old");
    }

    #[test]
    fn a_target_that_stays_empty_is_removed_and_one_that_was_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        confined(&dir.path().join("a/b/c"), || {});
        assert!(!dir.path().join("a").exists());
        fs::create_dir(dir.path().join("a")).unwrap();
        confined(&dir.path().join("a"), || {});
        assert!(dir.path().join("a").exists());
    }
}
