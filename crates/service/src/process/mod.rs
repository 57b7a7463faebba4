//! Protects the process: no core dumps, no writes outside named directories, and limits that fit the available memory.
//!
//! | file | what |
//! |---|---|
//! | `memory` | how much memory the process may use, and giving back what it no longer needs |
//! | `sandbox` | which files it can reach |

pub mod memory;
pub mod sandbox;

/// Keeps secrets out of core dumps and away from debuggers: the process is not dumpable, and its core limit is 0. Call it
/// before reading a key or a ticket. Returns false if the system refuses.
///
/// Processes of the same user can then neither attach to this one nor read its memory. Programs that it starts are dumpable
/// again, but keep the core limit.
pub fn protect_secrets() -> bool {
    let no_core = no_core_dumps();
    not_dumpable() && no_core
}

fn no_core_dumps() -> bool {
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_CORE, 0, 0).is_ok()
}

fn not_dumpable() -> bool {
    nix::sys::prctl::set_dumpable(false).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_secrets_is_not_dumpable_and_leaves_no_core() {
        assert!(protect_secrets());
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
        let core = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_CORE).unwrap();
        assert_eq!(core, (0, 0));
    }
}
