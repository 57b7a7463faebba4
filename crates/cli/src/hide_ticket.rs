//! Keeps a ticket out of the process list.
//!
//! Every user of a machine can see the command lines of all programs, and a ticket opens a share. So a command with a
//! ticket among its arguments restarts itself with the ticket in its environment, which only its owner can read. The
//! ticket is still visible until then, and stays in the shell's history.

/// Restarts the program without `ticket` among its arguments. Continues without a restart if that fails or would
/// change the meaning of the other arguments.
pub(crate) fn restart_without(ticket: &str) {
    use std::os::unix::process::CommandExt as _;

    use crate::values::TICKET_VARIABLE;

    let mut words: Vec<_> = std::env::args_os().collect();
    let Some(place) = words.iter().skip(1).position(|word| word == ticket) else { return };
    words.remove(place + 1);
    let Ok(program) = std::env::current_exe() else { return };
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_else(|| program.clone().into_os_string());
    // Returns only on failure; the ticket then stays visible.
    let _ = std::process::Command::new(program).arg0(name).args(words).env(TICKET_VARIABLE, ticket).exec();
}
