//! Keeps a ticket out of the process list.
//!
//! Every user of a machine can see the command lines of all programs, and a ticket opens a share. So a command with a
//! ticket among its arguments overwrites the ticket in its own command line. Where the system does not allow that, the
//! command restarts itself with the ticket in its environment, which only its owner can read. The ticket is visible until
//! then, and stays in the shell's history.

use std::io;

use crate::values::TICKET_VARIABLE;

/// Removes `ticket` from the command line of this program. If that fails, it stays visible.
pub(crate) fn hide(ticket: &str) {
    if overwrite(ticket).is_err() {
        restart_without(ticket);
    }
}

/// Replaces the ticket by asterisks in the command line that the system shows, which is this program's memory. Values that
/// were parsed from it are copies.
#[cfg(target_os = "linux")]
fn overwrite(ticket: &str) -> io::Result<()> {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt as _;

    let unknown = || io::Error::from(io::ErrorKind::NotFound);
    let place = place_of(ticket.as_bytes(), &fs::read("/proc/self/cmdline")?).ok_or_else(unknown)?;
    let begin = arguments_begin(&fs::read_to_string("/proc/self/stat")?).ok_or_else(unknown)?;
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut there = vec![0; ticket.len()];
    memory.read_exact_at(&mut there, begin + place)?;
    if there != ticket.as_bytes() {
        return Err(unknown());
    }
    there.fill(b'*');
    memory.write_all_at(&there, begin + place)
}

#[cfg(not(target_os = "linux"))]
fn overwrite(_ticket: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Where the first argument that is `word` begins in a command line, whose words end with a zero byte each. The program's
/// name is no argument.
fn place_of(word: &[u8], line: &[u8]) -> Option<u64> {
    let mut place = 0;
    for (index, each) in line.split(|byte| *byte == 0).enumerate() {
        if index > 0 && each == word {
            return u64::try_from(place).ok();
        }
        place += each.len() + 1;
    }
    None
}

/// The address of the arguments in memory: field 48 of `/proc/self/stat`. Field 2 is the program's name in parentheses.
fn arguments_begin(stat: &str) -> Option<u64> {
    let (_, fields_from_3) = stat.rsplit_once(')')?;
    fields_from_3.split_whitespace().nth(48 - 3)?.parse().ok().filter(|address| *address > 0)
}

/// Restarts the program without `ticket` among its arguments.
fn restart_without(ticket: &str) {
    use std::os::unix::process::CommandExt as _;

    let mut words: Vec<_> = std::env::args_os().collect();
    let Some(place) = words.iter().skip(1).position(|word| word == ticket) else { return };
    words.remove(place + 1);
    let Ok(program) = std::env::current_exe() else { return };
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_else(|| program.clone().into_os_string());
    // Returns only on failure; the ticket then stays visible.
    let _ = std::process::Command::new(program).arg0(name).args(words).env(TICKET_VARIABLE, ticket).exec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticket_is_found_among_the_arguments_and_not_in_the_programs_name() {
        let line = b"ticket\0receive\0ticket2\0ticket\0to\0";
        assert_eq!(place_of(b"ticket", line), Some(23));
        assert_eq!(place_of(b"ticket3", line), None);
        assert_eq!(place_of(b"ticket", b""), None);
    }

    #[test]
    fn the_arguments_are_found_whatever_the_programs_name_is() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        assert_eq!(arguments_begin(&format!("1 (a) b) {}", fields.join(" "))), Some(48));
        assert_eq!(arguments_begin("1 (a) S 1 2"), None);
    }
}
