//! Restricts which files the process can reach, by Landlock, where the kernel supports its second version (Linux 5.19).
//!
//! A fault in the program can then change nothing outside the directories that its job needs. The restriction holds for the
//! calling thread and the threads that it starts later, so it has to be set before the runtime is built, and can never be
//! lifted.

use std::path::{Path, PathBuf};

/// The files that a process may still change.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Directories and files that it may change; missing ones are skipped.
    pub write: Vec<PathBuf>,
    /// Directories below which it may remove empty directories.
    pub tidy: Vec<PathBuf>,
}

/// How far the kernel restricts the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restriction {
    /// As requested.
    Full,
    /// An older kernel: some operations are not restricted.
    Partial,
    /// Not at all: the system has no Landlock.
    None,
}

impl Sandbox {
    /// A process that may change what is below these directories.
    pub fn writing(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { write: paths.into_iter().collect(), tidy: Vec::new() }
    }

    /// Restricts this thread and those that it starts: files can be read everywhere, changed only below
    /// [`Self::write`], and executed nowhere.
    pub fn enter(&self) -> Restriction {
        enter(self)
    }
}

fn enter(sandbox: &Sandbox) -> Restriction {
    use landlock::{
        ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, RestrictionStatus,
        Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    };

    const VERSION: ABI = ABI::V5;
    let reading: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let writing = AccessFs::from_write(VERSION);
    let rule = |path: &Path, access: BitFlags<AccessFs>| {
        let file = PathFd::new(path).ok()?;
        // Rules for files must not name the access rights of directories.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
        Some(PathBeneath::new(file, access))
    };
    let entered: Result<RestrictionStatus, RulesetError> = (|| {
        // Landlock's first version forbids every link between directories, by which a control socket gets its name. Then
        // nothing is restricted.
        let needed = Ruleset::default()
            .set_compatibility(CompatLevel::SoftRequirement)
            .handle_access(AccessFs::Refer)?
            .set_compatibility(CompatLevel::BestEffort);
        let mut rules = needed.handle_access(AccessFs::from_all(VERSION))?.create()?;
        let everywhere = rule(Path::new("/"), reading);
        // Programs write to /dev/null, and terminals are devices. Below /dev are files of others, too, in /dev/shm.
        let devices = ["/dev/null", "/dev/tty", "/dev/pts"]
            .into_iter()
            .filter_map(|path| rule(Path::new(path), AccessFs::WriteFile | AccessFs::IoctlDev | reading));
        let named = sandbox.write.iter().filter_map(|path| rule(path, writing | reading));
        let tidied = sandbox.tidy.iter().filter_map(|path| rule(path, reading | AccessFs::RemoveDir));
        for rule in everywhere.into_iter().chain(devices).chain(named).chain(tidied) {
            rules = rules.add_rule(rule)?;
        }
        rules.restrict_self()
    })();
    match entered.map(|status| status.ruleset) {
        Ok(RulesetStatus::FullyEnforced) => Restriction::Full,
        Ok(RulesetStatus::PartiallyEnforced) => Restriction::Partial,
        Ok(RulesetStatus::NotEnforced) | Err(_) => Restriction::None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Runs `work` in its own thread, so that only this thread is restricted.
    fn inside<T: Send + 'static>(sandbox: Sandbox, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let thread = std::thread::spawn(move || (sandbox.enter() != Restriction::None).then(work));
        thread.join().unwrap()
    }

    #[test]
    fn files_change_only_below_the_named_directory_and_can_be_read_everywhere() {
        let dir = tempfile::tempdir().unwrap();
        let (target, other) = (dir.path().join("target"), dir.path().join("other"));
        [&target, &other].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        fs::write(other.join("kept"), "old").unwrap();
        let (within, outside) = (target.clone(), other.clone());
        let shared = Path::new("/dev/shm").join(format!("anabranch-test-{}", std::process::id()));
        // Where there is no such directory, it cannot be written to either.
        let _ = fs::write(&shared, "old");
        let left = shared.clone();
        let tried = inside(Sandbox::writing([target.clone()]), move || {
            fs::create_dir(within.join("sub")).unwrap();
            fs::write(within.join("sub/file"), "new").unwrap();
            fs::rename(within.join("sub/file"), within.join("file")).unwrap();
            let refused = [
                fs::write(outside.join("file"), "x").is_err(),
                fs::write(outside.join("kept"), "x").is_err(),
                fs::remove_file(outside.join("kept")).is_err(),
                fs::rename(outside.join("kept"), within.join("kept")).is_err(),
                fs::create_dir(outside.join("sub")).is_err(),
                std::os::unix::fs::symlink("/", outside.join("link")).is_err(),
                std::process::Command::new("/bin/true").status().is_err(),
                fs::write(&shared, "x").is_err(),
            ];
            (refused, fs::read_to_string(outside.join("kept")).unwrap(), fs::write("/dev/null", "x").is_ok())
        });
        let Some((refused, kept, has_null)) = tried else {
            eprintln!("this kernel has no Landlock");
            return;
        };
        let _ = fs::remove_file(left);
        assert_eq!(refused, [true; 8]);
        assert!(kept == "old" && has_null && target.join("file").exists());
        fs::write(other.join("file"), "x").expect("other threads are not restricted");
    }
}
