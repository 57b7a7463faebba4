//! A small process that cleans up when the tunnel's process is killed.
//!
//! Rules, firewall tables and the resolver's file outlive a killed process. So the tunnel starts its own program a
//! second time as a guard, with a pipe from the tunnel as its standard input. When the tunnel's process ends for any
//! reason, the pipe closes, and the guard cleans up ([`system::clean`]) and ends. After an orderly end nothing is left
//! to clean up.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::system;

/// The tunnel's side of the guard: dropping it lets the guard clean up.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard with these arguments of this program, which must then call [`watch`].
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(arguments: &[OsString]) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal must not reach the guard.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pipe = None;
        // It ends within moments; nothing of the tunnel may be left when this process ends.
        let _ = self.child.wait();
    }
}

/// The guard's work: waits for the end of standard input, then cleans up after this device.
///
/// # Errors
/// When standard input cannot be read.
pub fn watch(interface: &str) -> io::Result<()> {
    let mut ignored = [0; 64];
    while io::stdin().read(&mut ignored)? > 0 {}
    system::clean(interface);
    Ok(())
}
