//! A small process that cleans up when the tunnel's process is killed.
//!
//! Rules, firewall tables and the resolver's file outlive a killed process. So the tunnel starts its own program once
//! more, as a guard whose standard input is a pipe from the tunnel. When the tunnel's process ends, however it ends,
//! the pipe closes, and the guard cleans up ([`system::clean`]) and ends. After an orderly end there is nothing left
//! for it to do, and a new tunnel of the same name is left alone.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, parent_id};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::TunnelError;
use crate::system::{self, Slot};

/// How long a process that has closed its pipe may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// When a killed process is cleaned up after again. A command that it had just started may still change settings.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];

/// The tunnel's side of the guard. Dropping it cleans up.
#[derive(Debug)]
pub struct Guard {
    interface: String,
    slot: Slot,
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Gives the tunnel its slot, and starts the guard by this command line of the own program, which has to call
    /// [`watch`].
    pub fn start(interface: &str, arguments: &[OsString]) -> Result<Self, TunnelError> {
        let (interface, slot) = (interface.to_owned(), Slot::claim(interface)?);
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal must not reach the guard.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { interface, slot, child, pipe })
    }

    /// The tunnel's slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        system::clean(&self.interface);
        if let Some(mut pipe) = self.pipe.take() {
            // Tells the guard that this is an orderly end. It may have been killed.
            let _ = pipe.write_all(b".");
        }
        // It ends within moments; nothing of the tunnel may be left when this process ends.
        let _ = self.child.wait();
    }
}

/// The guard's work: waits for the end of standard input, then cleans up after this device.
pub fn watch(interface: &str) -> io::Result<()> {
    let tunnel = parent_id();
    let (mut word, mut is_orderly) = ([0; 64], false);
    while io::stdin().read(&mut word)? > 0 {
        is_orderly = true;
    }
    let closed = Instant::now();
    // A process closes its files a moment before it has ended.
    while system::is_running(interface) && closed.elapsed() < ENDING {
        std::thread::sleep(Duration::from_millis(10));
    }
    // A tunnel that has closed its pipe and not taken back its settings could not, without descriptors for instance. It
    // may wait for this process.
    system::clean_after(interface, tunnel);
    for pause in AGAIN.into_iter().filter(|_| !is_orderly) {
        std::thread::sleep(pause);
        system::clean(interface);
    }
    Ok(())
}
