//! `anabranch capture`: says what a captured file holds.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anabranch_net::CapturedSession;
use clap::{Args, ValueHint};

use crate::capture::read::Reading;
use crate::errors::Failure;
use crate::ui::out;

const EXAMPLES: &str = "\
Examples:
  anabranch receive TICKET --capture bad.pcapng --capture-keys bad.keys    make a capture
  anabranch capture bad.pcapng                                             sizes, times, kinds of packets
  anabranch capture bad.pcapng --keys bad.keys                             and what is in them
  wireshark bad.pcapng                                                     the same file elsewhere";

/// Say what a capture of sealed packets holds
///
/// Reads pcapng as `--capture` writes it, and as `tcpdump -w` and Wireshark do after `editcap -F pcapng`. With the keys of
/// a session, which `--capture-keys` wrote, its packets are opened.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CaptureArgs {
    /// The capture
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The keys of its sessions
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub keys: Option<PathBuf>,
}

/// Prints a line for each packet.
///
/// # Errors
/// When a file cannot be read or is not what it should be.
pub fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let mut sessions = args.keys.as_deref().map_or(Ok(Vec::new()), read_keys)?;
    let file = File::open(&args.file).map_err(|error| Failure::file("read", &args.file, &error))?;
    let broken = |error: pcap_file::PcapError| {
        Failure::local(format!("{} is no capture: {error}", args.file.display()))
            .hint("this reads pcapng; `editcap -F pcapng OLD NEW` turns other captures into it")
    };
    let mut reading = Reading::new(BufReader::new(file)).map_err(broken)?;
    let mut found = false;
    while let Some(line) = reading.next_line(&mut sessions).map_err(broken)? {
        out::print(&format!("{line}\n"))?;
        found = true;
    }
    if found { Ok(()) } else { Err(nothing(&args.file)) }
}

fn nothing(path: &Path) -> Failure {
    Failure::local(format!("{} holds no packets of Anabranch", path.display()))
        .hint("capture where the session's datagrams pass: `--capture` at one of its ends always sees them")
}

fn read_keys(path: &Path) -> Result<Vec<CapturedSession>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(number, line)| {
        CapturedSession::from_line(line).map_err(|error| {
            Failure::local(format!("{}, line {}: {error}", path.display(), number + 1))
                .hint("the file has to be as `--capture-keys` wrote it")
        })
    };
    lines.map(read).collect()
}
