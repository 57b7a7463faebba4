//! The options of `anabranch fetch`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use anabranch_fetch::{Checksum, Url};
use clap::Args;

use crate::context::OUTPUT;
use crate::node_word::NodeWord;
use crate::path_rules::PathOptions;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  anabranch fetch https://example.org/disk.iso         over every interface with a route
  anabranch fetch https://example.org/disk.iso --via eth0,wlan0
  anabranch fetch https://a.example/disk.iso https://b.example/disk.iso
                                                       one file from two mirrors
  anabranch fetch https://example.org/disk.iso --exit TICKET
                                                       through an exit, over all paths to it
  anabranch fetch -i list.txt -o downloads/            one file a line";

/// Download a file over all links at once, from any server
///
/// The file is fetched in parts, over every interface with a route to the server. Several URLs are mirrors of one file.
/// Interrupted downloads go on where they stopped. Servers need nothing special; one without byte ranges sends the file over
/// one connection.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct FetchArgs {
    /// Where the file is: http, https, ftp or ftps; several are mirrors of the same file
    #[arg(value_name = "URL", required_unless_present = "input", conflicts_with = "input")]
    pub urls: Vec<Url>,
    /// A file with one download a line, mirrors separated by blanks, or a Metalink; `-` for standard input
    #[arg(short, long, value_name = "LIST", value_hint = clap::ValueHint::FilePath)]
    pub input: Option<PathBuf>,
    /// Name of the file, or an existing directory for it
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    pub output: Option<PathBuf>,
    /// Replace a file of this name
    #[arg(long)]
    pub force: bool,
    /// The hash that the file must have, such as sha-256=HEX; may be repeated
    #[arg(long = "checksum", value_name = "NAME=HEX", conflicts_with = "input")]
    pub checksums: Vec<Checksum>,
    /// Most bits a second in all, such as 20Mbit/s
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub limit: Option<NonZeroU64>,
    /// Most connections to a server over one link; more than one are opened while that helps
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = values::whole(1..=16_usize))]
    pub connections: usize,
    /// Interfaces or local addresses to use [default: every interface with a route]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Network")]
    pub via: Vec<String>,
    /// An exit to fetch through instead: its ticket or KEY@ADDRESS:PORT; may be repeated; with `--via` both are used
    #[arg(long = "exit", value_name = "EXIT", help_heading = "Network")]
    pub exits: Vec<NodeWord>,
    /// Key file [default: ~/.config/anabranch/key, created if missing]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    #[arg(help_heading = "Network")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub paths_wanted: PathOptions,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}
