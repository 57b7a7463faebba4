//! `anabranch capture`: shows the content of a capture file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_net::CapturedSession;
use anabranch_wire::Kind;
use clap::{Args, ValueHint};

use crate::capture::qlog::{EXTENSION, End, QlogFiles, Role, Said, Seen};
use crate::capture::read::{Found, Inside, Reading};
use crate::errors::Failure;
use crate::ui::out;

const EXAMPLES: &str = "\
Examples:
  anabranch receive TICKET --capture bad.pcapng --capture-keys bad.keys    make a capture
  anabranch capture bad.pcapng                                             sizes, times, kinds of packets
  anabranch capture bad.pcapng --keys bad.keys                             and what is in them
  anabranch capture bad.pcapng --keys bad.keys --qlog bad.sqlog            the same as qlog, for qvis
  wireshark bad.pcapng                                                     the same file elsewhere";

/// List the packets of a capture, opened with their keys
///
/// Reads pcapng as `--capture` writes it, and as `tcpdump -w` and Wireshark do after `editcap -F pcapng`. Keys come from
/// `--capture-keys`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CaptureArgs {
    /// The capture
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The keys of its sessions
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub keys: Option<PathBuf>,
    /// Write qlog for qvis instead: a file for each path, whose names begin like this one
    #[arg(long, value_name = "FILE", requires = "keys", value_hint = ValueHint::FilePath)]
    pub qlog: Option<PathBuf>,
}

/// Prints a line for each packet, or writes them as qlog.
pub fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let mut sessions = args.keys.as_deref().map_or(Ok(Vec::new()), read_keys)?;
    if let Some(to) = &args.qlog {
        return write_qlog(&args.file, &mut sessions, to);
    }
    let mut any = false;
    each(&args.file, &mut sessions, |found| {
        any = true;
        out::print(&format!("{}\n", found.line()))
    })?;
    if any { Ok(()) } else { Err(nothing(&args.file)) }
}

/// Calls `tell` with every datagram of a capture, in order, until it fails.
fn each(
    path: &Path,
    sessions: &mut [CapturedSession],
    mut tell: impl FnMut(Found) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let file = File::open(path).map_err(|error| Failure::file("read", path, &error))?;
    let broken = |error: pcap_file::PcapError| {
        Failure::local(format!("{} is no capture: {error}", path.display()))
            .hint("this reads pcapng; `editcap -F pcapng OLD NEW` turns other captures into it")
    };
    let mut reading = Reading::new(BufReader::new(file)).map_err(broken)?;
    while let Some(found) = reading.next_packet(sessions).map_err(broken)? {
        tell(found)?;
    }
    Ok(())
}

fn nothing(path: &Path) -> Failure {
    Failure::local(format!("{} holds no packets of Anabranch", path.display()))
        .hint("capture where the session's datagrams pass: `--capture` at one of its ends always sees them")
}

fn read_keys(path: &Path) -> Result<Vec<CapturedSession>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    CapturedSession::read_all(&text).map_err(|(line, error)| {
        Failure::local(format!("{}, line {line}: {error}", path.display()))
            .hint("the file has to be as `--capture-keys` wrote it")
    })
}

/// Writes decrypted packets as qlog, from the view of the end that wrote the keys. Leaves out packets without
/// a key, such as handshakes.
fn write_qlog(capture: &Path, sessions: &mut [CapturedSession], to: &Path) -> Result<(), Failure> {
    if to.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(Failure::usage(format!("{} does not end in .{EXTENSION}", to.display()))
            .hint("qlog's tools know JSON text sequences by that ending"));
    }
    let names: Vec<String> = (1..=sessions.len()).map(|number| format!("session {number}")).collect();
    // The first packet decides: a session keeps its role when its addresses change.
    let mut roles = vec![None; sessions.len()];
    let (mut files, mut calls, mut packets) =
        (QlogFiles::new(to, "anabranch capture"), Calls::default(), 0_u64);
    each(capture, sessions, |found| {
        calls.note(&found);
        let Inside::Opened { session, sent, packet } = &found.inside else { return Ok(()) };
        let role = *roles[*session].get_or_insert_with(|| calls.role(&found, *sent));
        let end = End { flow: *session, session: 0, path: packet.path.0 as usize, role };
        // A damaged capture may contain any time.
        let at = Duration::try_from_secs_f64(found.at).unwrap_or_default();
        packets += 1;
        files.add(
            end,
            &names[*session],
            &Seen { at, sent: *sent, size: found.size, said: Said::Packet(packet) },
        )
    })?;
    if packets == 0 {
        return Err(Failure::local(format!("{} holds no packet that these keys open", capture.display()))
            .hint("the keys must be of a session in this capture, from its beginning"));
    }
    let count = files.finish()?;
    out::print(&format!("{packets} packets in {count} files beside {}\n", to.display()))
}

/// Pairs of addresses, caller first, as seen in handshakes.
#[derive(Default)]
struct Calls(BTreeSet<(SocketAddr, SocketAddr)>);

impl Calls {
    /// Most pairs: a capture file is untrusted.
    const MOST: usize = 10_000;

    fn note(&mut self, found: &Found) {
        if found.header.kind == Kind::Init && self.0.len() < Self::MOST {
            self.0.insert((found.from, found.to));
        }
    }

    /// The role of the end that sent or received a packet.
    fn role(&self, found: &Found, sent: bool) -> Role {
        let (here, there) = if sent { (found.from, found.to) } else { (found.to, found.from) };
        if self.0.contains(&(here, there)) {
            Role::Client
        } else if self.0.contains(&(there, here)) {
            Role::Server
        } else {
            Role::Unknown
        }
    }
}
