//! Large pages for large simulations.
//!
//! A network of hundreds of hosts uses tens of megabytes, all of them visited repeatedly. With pages of 4 KiB,
//! page-table walks take a tenth of a run. Linux gives larger pages to programs that ask for them. glibc asks if an
//! environment variable is set when the program starts, so the program restarts itself with that variable.
//!
//! glibc asks only for its main arena. So a single network runs in that arena, although it has its own thread. Several
//! networks at once keep an arena per thread, so that they do not wait for each other.

/// Restarts the program with large pages, for this many simulations at a time. Does nothing if the system does not
/// offer them, or if the user has set `GLIBC_TUNABLES`.
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
    // Returns only on failure; the run is then a little slower.
    let _ = std::process::Command::new(program).arg0(name).args(arguments).env(SETTING, setting).exec();
}

/// Other systems have no such setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn restart_with(_at_once: usize) {}
