//! Keeps a ticket out of the list of processes.
//!
//! Every user of a machine sees the command lines of all programs, and a ticket opens a share. So a command that was
//! given a ticket as a word starts once more, as itself, with the ticket in its environment, which only its owner can
//! read. It is visible for the moment until then, and in the shell's history.

/// Starts the program once more without `ticket` among its words. Goes on where that fails, and where it would change
/// the meaning of the other words.
#[cfg(unix)]
pub(crate) fn restart_without(ticket: &str) {
    use std::os::unix::process::CommandExt as _;

    use crate::values::TICKET_VARIABLE;

    let mut words: Vec<_> = std::env::args_os().collect();
    let Some(place) = words.iter().skip(1).position(|word| word == ticket) else { return };
    words.remove(place + 1);
    let Ok(program) = std::env::current_exe() else { return };
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_else(|| program.clone().into_os_string());
    // It returns only when it fails; then the ticket stays where it is.
    let _ = std::process::Command::new(program).arg0(name).args(words).env(TICKET_VARIABLE, ticket).exec();
}

/// Elsewhere a program cannot become itself again.
#[cfg(not(unix))]
pub(crate) fn restart_without(_ticket: &str) {}
