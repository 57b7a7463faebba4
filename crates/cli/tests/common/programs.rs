//! The program as two people run it: one sends, the other receives.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_secure::Ticket;
use tempfile::TempDir;

/// Longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_anabranch");

/// A command of the program that ignores the key and settings of the user who runs the test.
pub fn program(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words).env_remove("ANABRANCH_KEY").env_remove("ANABRANCH_CONTROLLER").stdin(Stdio::null());
    command
}

/// A temporary directory per test, with one directory to send from and one to receive in.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self::inside(&std::env::temp_dir())
    }

    /// Uses a file system in memory where there is one, so that no slow disk matters.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::inside(memory) } else { Self::new() }
    }

    fn inside(place: &Path) -> Self {
        let scratch = Self(TempDir::with_prefix_in("anabranch-test-", place).expect("a temporary directory"));
        for name in ["from", "to"] {
            std::fs::create_dir(scratch.path(name)).expect("a new directory");
        }
        scratch
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A path in the directory as text, for a command line.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain name").to_owned()
    }

    /// Writes a file of `len` bytes, different for each `seed`, whose blocks are all different.
    pub fn file(&self, name: &str, len: usize, seed: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, noise(len, seed)).expect("room for a test file");
        path
    }

    /// Makes the directory accessible to every user.
    pub fn open_to_all(&self) {
        for path in [self.0.path().to_owned(), self.path("from"), self.path("to")] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(path, mode).expect("our own directory");
        }
    }
}

/// Bytes that look random.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A running program; killed when dropped. Its standard error is recorded.
pub struct Running {
    pub child: Child,
    told: Arc<Mutex<Vec<u8>>>,
    reading: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self::start_into(command, Stdio::piped())
    }

    /// Runs the command with `output` as its standard output.
    pub fn start_into(command: &mut Command, output: impl Into<Stdio>) -> Self {
        let mut child = command.stdout(output).stderr(Stdio::piped()).spawn().expect("the program");
        let mut pipe = child.stderr.take().expect("asked for");
        let told = Arc::<Mutex<Vec<u8>>>::default();
        let heard = told.clone();
        let reading = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(len @ 1..) = pipe.read(&mut part) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&part[..len]);
            }
        });
        Self { child, told, reading: Some(reading) }
    }

    /// Its standard error so far.
    pub fn told(&self) -> String {
        String::from_utf8_lossy(&self.told.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Reads exactly one line of its output.
    pub fn line(&mut self) -> String {
        let output = self.child.stdout.as_mut().expect("a pipe");
        let (mut line, mut byte) = (Vec::new(), [0]);
        while output.read(&mut byte).is_ok_and(|len| len == 1) && byte != *b"\n" {
            line.extend_from_slice(&byte);
        }
        String::from_utf8(line).expect("text").trim().to_owned()
    }

    /// Asks it to stop, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal("-INT");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().expect("the kill command");
        assert!(status.success());
    }

    /// Ends it as a power cut would.
    pub fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Waits for its exit; returns the exit code and its standard error.
    pub fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill().expect("our own child");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.reading.take().expect("taken once").join().expect("no panic");
        (status.code(), self.told())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has usually exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `anabranch send` and its ticket.
pub struct Sender {
    pub running: Running,
    pub ticket: String,
    pub stdin: Option<ChildStdin>,
}

impl Sender {
    /// Starts `anabranch send` with these words.
    pub fn start(words: &[&str]) -> Self {
        Self::start_as(&mut program(&[&["send"], words].concat()))
    }

    /// Runs `command`, an `anabranch send`, and reads its ticket.
    pub fn start_as(command: &mut Command) -> Self {
        let mut running = Running::start(command);
        let mut ticket = String::new();
        let output = running.child.stdout.take().expect("asked for");
        BufReader::new(output).read_line(&mut ticket).expect("a line of text");
        let ticket = ticket.trim().to_owned();
        assert!(ticket.starts_with("anabranch1"), "{ticket:?} {:?}", running.end());
        let stdin = running.child.stdin.take();
        Self { running, ticket, stdin }
    }

    /// Returns the ticket with a change and a valid checksum.
    pub fn ticket_with(&self, change: impl FnOnce(&mut Ticket)) -> String {
        let mut ticket: Ticket = self.ticket.parse().expect("a ticket");
        change(&mut ticket);
        ticket.to_text().to_string()
    }
}

/// Generates a key in this file; returns the public key.
pub fn new_key(file: &str) -> String {
    let made = program(&["keys", "new", "--key", file]).output().expect("the program");
    assert!(made.status.success(), "{}", errors(&made));
    let shown = program(&["keys", "show", "--key", file]).output().expect("the program");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    text.split_whitespace().find(|word| word.starts_with("ab1")).expect("a public key").to_owned()
}

/// Runs `anabranch receive` until it exits.
pub fn receive(words: &[&str]) -> Output {
    program(&[&["receive", "--yes"], words].concat()).output().expect("the program")
}

/// A program's standard error, for assertions.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The last event that `--json` wrote.
pub fn last_event(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default()
}

/// Waits until the unfinished file of a receiver in `directory` has `len` bytes.
pub fn wait_for_part(directory: &Path, len: u64) {
    wait_for("an unfinished file", || has_part(directory, len));
}

/// Whether the unfinished file of a receiver in `directory` has `len` bytes.
pub fn has_part(directory: &Path, len: u64) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let parts = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("anabranch-part"));
    parts.filter_map(|part| part.metadata().ok()).any(|meta| meta.len() >= len)
}

/// A port that is free now, for UDP and for TCP.
///
/// It lies below the range from which the system gives ports to others' sockets and connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let at =
            (std::process::id() as u16).wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let place = (Ipv4Addr::UNSPECIFIED, 12_000 + at % 20_000);
        if UdpSocket::bind(place).is_ok() && TcpListener::bind(place).is_ok() {
            return place.1;
        }
    }
}

/// Waits until `is_so` holds.
pub fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    assert!(comes(is_so), "{what} did not come");
}

/// Whether `is_so` holds within a minute.
pub fn comes(is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}
