//! Large pages for large simulations.
//!
//! A network of hundreds of hosts takes tens of megabytes, all of it visited again and again. In pages of 4 KiB a tenth of a
//! run goes into finding where they are. Linux gives larger pages to programs that ask, and glibc asks for what it allocates if
//! told so by its environment when the program starts. So the program starts once more, as itself.
//!
//! It does not ask for what threads have to themselves. A network that is run alone, the largest most often, gets the program's
//! own memory therefore, though it has a thread of its own; threads that work side by side would wait for each other there.

/// Starts the program once more with large pages for so many simulations at the same time, where the system gives them on
/// request and nobody decided otherwise. Goes on as things are where it does not.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn restart_with(at_once: usize) {
    use std::os::unix::process::CommandExt as _;

    const SETTING: &str = "GLIBC_TUNABLES";
    let given_on_request = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| modes.contains("[madvise]"));
    if !given_on_request || std::env::var_os(SETTING).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into_os_string());
    let setting = if at_once == 1 {
        "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    } else {
        "glibc.malloc.hugetlb=1"
    };
    // It returns only when it fails, and then the run takes a little longer.
    let _ = std::process::Command::new(program).arg0(name).args(arguments).env(SETTING, setting).exec();
}

/// Elsewhere there is nothing to ask for.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn restart_with(_at_once: usize) {}
