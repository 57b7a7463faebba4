//! Writes a command's datagrams to a file for Wireshark and, if requested, the sessions' keys to another.
//!
//! The file holds datagrams as they are on the wire, with reconstructed IP and UDP headers. The keys go to a separate
//! file that only its owner may read, one line per session; `anabranch capture` decrypts packets with them.

pub mod file;
pub mod headers;
pub mod qlog;
pub mod read;
pub mod told;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use anabranch_net::{Seen, Tap};
use clap::{Args, ValueHint};

use self::file::{Packet, PacketFile};
use self::headers::{fill_checksum, headers};
use crate::errors::Failure;

/// How long captured packets may stay in memory.
const FLUSH: Duration = Duration::from_millis(250);

/// The heading of these options in `--help`.
const HEADING: &str = "Looking for a fault";

/// The first line of the key file.
const WARNING: &str = "# Whoever has this file and a capture can read all of these sessions. Delete it when the fault is found.\n";

/// The options that make a capture.
#[derive(Args, Clone, Debug, Default)]
pub struct CaptureOptions {
    /// Write every datagram, sealed, to this file, as pcapng for Wireshark
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = HEADING)]
    pub capture: Option<PathBuf>,
    /// Write the sessions' keys to this file; with it, the capture reveals everything that was sent
    #[arg(long, value_name = "FILE", requires = "capture", value_hint = ValueHint::FilePath, help_heading = HEADING)]
    pub capture_keys: Option<PathBuf>,
}

impl CaptureOptions {
    /// Starts the capture, if one was requested.
    pub fn start(&self) -> Result<Capture, Failure> {
        let Some(path) = &self.capture else { return Ok(Capture(None)) };
        if self.capture_keys.as_ref() == Some(path) {
            return Err(Failure::usage("the capture and its keys cannot be in one file")
                .hint("give `--capture-keys` another name"));
        }
        let keys = self.capture_keys.as_deref().map(keys_file).transpose()?;
        let packets = PacketFile::create(path)?;
        let written = Written { packets, interfaces: BTreeMap::new(), flushed: Instant::now() };
        Ok(Capture(Some(Arc::new(Recorder { written: Mutex::new(written), keys: keys.map(Mutex::new) }))))
    }
}

fn keys_file(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::local(format!("{} is there already", path.display()))
            .hint("keys go to a new file only: delete this one, or give `--capture-keys` another name"),
        _ => Failure::file("create", path, &error),
    })?;
    file.write_all(WARNING.as_bytes()).map_err(|error| Failure::file("write", path, &error))?;
    Ok(file)
}

/// A running capture, or none.
pub struct Capture(Option<Arc<Recorder>>);

impl Capture {
    /// The tap that records the datagrams of an endpoint.
    pub fn tap(&self) -> Option<Arc<dyn Tap>> {
        self.0.clone().map(|recorder| recorder as Arc<dyn Tap>)
    }

    /// Completes the capture.
    pub fn finish(self) -> Result<(), Failure> {
        let Some(recorder) = self.0 else { return Ok(()) };
        recorder.written.lock().expect("no panic while held").packets.finish()
    }
}

struct Recorder {
    written: Mutex<Written>,
    keys: Option<Mutex<File>>,
}

struct Written {
    packets: PacketFile,
    /// The interface number of each local address.
    interfaces: BTreeMap<SocketAddr, u32>,
    flushed: Instant,
}

impl Tap for Recorder {
    fn datagrams(&self, seen: &Seen<'_>) {
        let mut written = self.written.lock().expect("no panic while held");
        // The time is read under the lock, so that packets are in order of time.
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Written { packets, interfaces, flushed } = &mut *written;
        let interface =
            *interfaces.entry(seen.local).or_insert_with(|| packets.interface(seen.local.to_string()));
        let (from, to) = if seen.sent { (seen.local, seen.remote) } else { (seen.remote, seen.local) };
        for datagram in seen.contents.chunks(seen.stride.max(1)) {
            let mut data = headers(from, to, seen.ecn, datagram.len());
            data.extend_from_slice(datagram);
            fill_checksum(&mut data);
            let whole = data.len();
            packets.packet(Packet { interface, at, sent: seen.sent, data: &data, whole, comment: None });
        }
        if flushed.elapsed() >= FLUSH {
            packets.flush();
            *flushed = Instant::now();
        }
    }

    fn wants_keys(&self) -> bool {
        self.keys.is_some()
    }

    fn session_keys(&self, line: &str) {
        let Some(keys) = &self.keys else { return };
        let mut keys = keys.lock().expect("no panic while held");
        if let Err(error) = writeln!(keys, "{line}") {
            tracing::warn!(%error, "cannot write the session's keys");
        }
    }
}
