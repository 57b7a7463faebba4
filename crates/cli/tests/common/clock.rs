//! A wall clock that a test sets for one program, without touching the machine's clock.
//!
//! The program under test is unchanged. A small preloaded library answers its calls for the time of day, and adds the
//! number of seconds that a file holds at that moment. The steady clock stays the system's, as when somebody sets a real
//! clock.

use std::path::PathBuf;
use std::process::Command;

use super::programs::Scratch;

const SOURCE: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *at) {
    int outcome = (int)syscall(SYS_clock_gettime, id, at);
    if (outcome != 0 || id != CLOCK_REALTIME) return outcome;
    int file = open(getenv("TEST_CLOCK"), O_RDONLY);
    if (file < 0) return outcome;
    char text[32] = {0};
    if (read(file, text, sizeof text - 1) > 0) at->tv_sec += strtol(text, NULL, 10);
    close(file);
    return outcome;
}
"#;

/// The wall clock of the programs started with [`WallClock::command`].
pub struct WallClock {
    library: PathBuf,
    setting: PathBuf,
}

impl WallClock {
    /// A clock that shows the right time.
    ///
    /// # Errors
    /// Why it is unavailable: usually, there is no C compiler.
    pub fn new(scratch: &Scratch) -> Result<Self, String> {
        let (source, library) = (scratch.path("clock.c"), scratch.path("clock.so"));
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        let output = compile.output().map_err(|error| format!("no C compiler: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let clock = Self { library, setting: scratch.path("clock") };
        clock.set_off(0);
        Ok(clock)
    }

    /// Makes a program use this clock.
    pub fn command<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_PRELOAD", &self.library).env("TEST_CLOCK", &self.setting)
    }

    /// Sets the clock to the right time plus `seconds`.
    pub fn set_off(&self, seconds: i64) {
        // Atomically: a program may be reading it.
        let new = self.setting.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("room for a number");
        std::fs::rename(&new, &self.setting).expect("our own directory");
    }
}
