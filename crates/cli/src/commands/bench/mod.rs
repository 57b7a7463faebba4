//! `anabranch bench`: measures what a session carries, like iperf3.
//!
//! The client and the server exchange the messages of `protocol`. `traffic` moves and counts the data,
//! `recorder` divides the counts into intervals, and `text` prints them.

mod client;
mod protocol;
mod recorder;
mod server;
mod text;
mod traffic;
mod watch;

use std::net::IpAddr;
use std::path::PathBuf;

use anabranch_engine::cc::RuleKind;
use anabranch_engine::{Config, SchedulerKind};
use anabranch_secure::Ticket;
use anabranch_wire::Span;
use clap::{Args, Subcommand};

use self::protocol::{LONGEST_TEST, MOST_STREAMS, SHORTEST_INTERVAL};
use crate::capture::CaptureOptions;
use crate::context::{Context, OUTPUT};
use crate::control::ControlOption;
use crate::errors::Failure;
use crate::path_rules::PathOptions;
use crate::qr::QrOption;
use crate::relays::{KEY_IF_KNOWN, MapPortOption, NodeOptions};
use crate::values::{self, PathPin, RemoteEnd};

const EXAMPLES: &str = "\
Examples:
  anabranch bench server                              prints the line to paste on the other machine
  anabranch bench client TICKET                       all paths, ten seconds
  anabranch bench client TICKET --reverse --json      the other way, for a program
  anabranch bench client TICKET --path wlan0=203.0.113.9 --path eth0=203.0.113.9
  anabranch bench client TICKET --path-rule wwan*=backup
  anabranch bench client TICKET --relay ab1...@198.51.100.7:4600";

/// Measure throughput between two machines, like iperf3
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub end: BenchCommand,
}

/// The two ends of a test.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Wait for clients and print how to reach this machine
    Server(ServerArgs),
    /// Run one test against a server
    ///
    /// The result has a row for each pair of addresses, with the bytes of all paths between the two and the state of the
    /// newest.
    Client(Box<ClientArgs>),
}

/// Options of the server.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Local address to listen on; may be repeated [default: all]
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    pub bind: Vec<IpAddr>,
    /// UDP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 4433, help_heading = "Network")]
    #[arg(value_parser = values::whole(0..=u16::MAX))]
    pub port: u16,
    /// Serve one test, then stop
    #[arg(long)]
    pub once: bool,
    /// Key file [default: a new key]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub paths_wanted: PathOptions,
    #[command(flatten)]
    pub mapping: MapPortOption,
    #[command(flatten)]
    pub capture: CaptureOptions,
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub drawing: QrOption,
}

/// How the end that sends the data sends it.
#[derive(Args, Clone, Copy, Debug)]
pub struct Tuning {
    /// Scheduler of what this end sends
    #[arg(long, value_name = "NAME", default_value_t = Config::default().scheduler, help_heading = "Network")]
    #[arg(value_parser = values::one_of::<SchedulerKind>(SchedulerKind::ALL.map(|(_, name)| name)))]
    pub scheduler: SchedulerKind,
    /// Congestion control of what this end sends
    #[arg(long, value_name = "NAME", default_value_t = Config::default().cc.rule, help_heading = "Network")]
    #[arg(value_parser = values::one_of::<RuleKind>(RuleKind::ALL.map(RuleKind::name)))]
    pub cc: RuleKind,
}

impl Tuning {
    /// The default session settings with this scheduler and congestion control.
    pub fn config(&self) -> Config {
        let mut config = Config { scheduler: self.scheduler, ..Config::default() };
        config.cc.rule = self.cc;
        // These commands read no datagrams: one that comes only shows that the peer is there.
        (config.datagrams.largest, config.memory.datagrams) = (64, 16);
        config
    }
}

/// Options of the client.
#[derive(Args, Debug)]
#[command(mut_arg("key", |key| key.help(KEY_IF_KNOWN)))]
pub struct ClientArgs {
    /// The server's ticket; `-` for standard input, `@FILE` for a file
    #[arg(value_name = "TICKET", value_parser = values::ticket, env = values::TICKET_VARIABLE, hide_env_values = true)]
    pub ticket: Ticket,
    /// Further addresses of the server
    #[arg(value_name = "ADDRESS")]
    pub addresses: Vec<RemoteEnd>,
    /// How long to measure
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = length)]
    pub time: Span,
    /// Time between reports
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Span,
    /// The server sends, with its own scheduler and congestion control
    #[arg(short = 'R', long, conflicts_with_all = ["scheduler", "cc"])]
    pub reverse: bool,
    /// Number of streams
    #[arg(short = 'P', long, value_name = "COUNT", default_value_t = 1, value_parser = values::whole(1..=MOST_STREAMS))]
    pub streams: u32,
    /// Use only this path, from an interface or local address to the server's; may be repeated [default: all]
    #[arg(long = "path", value_name = "LOCAL=REMOTE", help_heading = "Network")]
    pub pins: Vec<PathPin>,
    /// Use only so many of the relays at a time, the first ones; a bad one is replaced
    #[arg(long, value_name = "COUNT", help_heading = "Network", requires = "relays")]
    #[arg(value_parser = values::whole(1..=u8::MAX))]
    pub at_once: Option<u8>,
    #[command(flatten)]
    pub running: ControlOption,
    #[command(flatten)]
    pub node: NodeOptions,
    #[command(flatten)]
    pub capture: CaptureOptions,
    #[command(flatten)]
    pub tuning: Tuning,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn interval(text: &str) -> Result<Span, String> {
    let span = values::span(text)?;
    if span < SHORTEST_INTERVAL { Err(format!("must be at least {SHORTEST_INTERVAL}")) } else { Ok(span) }
}

fn length(text: &str) -> Result<Span, String> {
    let span = values::span(text)?;
    if span > LONGEST_TEST { Err("must be a day at most".into()) } else { Ok(span) }
}

/// Runs one end of a test.
pub fn run(args: &BenchArgs, context: &Context) -> Result<(), Failure> {
    match &args.end {
        BenchCommand::Server(args) => server::run(args, context),
        BenchCommand::Client(args) => client::run(args, context),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_secure::{NodeKey, ShareId, TicketSecret};

    use super::*;
    use crate::commands::test::parse;

    fn ticket() -> String {
        let (node, addresses) = (NodeKey::from_random([7; 32]).public(), Vec::new());
        let (share, secret) = (ShareId(1), TicketSecret::from_random([1; 16]));
        let ticket = Ticket { node, addresses, relays: Vec::new(), share, secret, expires: None };
        ticket.to_text().to_string()
    }

    fn client(words: &[&str]) -> Result<ClientArgs, clap::Error> {
        let ticket = ticket();
        parse(&[&[ticket.as_str()], words].concat())
    }

    #[test]
    fn a_test_runs_ten_seconds_on_all_paths_when_nothing_is_said() {
        let args = client(&[]).unwrap();
        assert_eq!((args.time, args.interval), (Span::from_secs(10), Span::from_secs(1)));
        assert!(args.pins.is_empty() && args.addresses.is_empty());
        assert_eq!(
            (args.tuning.scheduler, args.tuning.cc),
            (Config::default().scheduler, Config::default().cc.rule)
        );
        assert_eq!(args.streams, 1);
    }

    #[test]
    fn paths_are_pinned_one_option_each() {
        let args = client(&["192.0.2.1:5", "--path", "a=192.0.2.1", "--path", "b=192.0.2.2"]).unwrap();
        assert_eq!(args.pins.len(), 2);
        assert_eq!(args.addresses[0].port, Some(5));
    }

    #[test]
    fn schedulers_and_rules_go_by_their_names() {
        let args = client(&["--scheduler", "least-filled", "--cc", "lia"]).unwrap();
        let config = args.tuning.config();
        assert_eq!((config.scheduler, config.cc.rule), (SchedulerKind::LeastFilled, RuleKind::Lia));
        assert!(client(&["--cc", "vegas"]).is_err());
    }

    #[test]
    fn a_setting_that_would_change_nothing_is_refused() {
        assert!(client(&["--reverse"]).is_ok());
        assert!(client(&["--reverse", "--cc", "lia"]).is_err());
        assert!(client(&["--reverse", "--scheduler", "redundant"]).is_err());
        let server: ServerArgs = parse(&["--cc", "lia"]).unwrap();
        assert_eq!(server.tuning.config().cc.rule, RuleKind::Lia);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for words in [["--interval", "1ms"], ["--time", "0"], ["--streams", "0"], ["--path", "wlan0"]] {
            assert!(client(&[words[0], words[1]]).is_err(), "{words:?}");
        }
    }

    #[test]
    fn the_server_listens_everywhere_unless_told_where() {
        let args: ServerArgs = parse(&[]).unwrap();
        assert!(args.bind.is_empty());
        assert_eq!(args.port, 4433);
        let args: ServerArgs = parse(&["--bind", "10.0.0.1", "--bind", "fd00::1", "--key", "/k"]).unwrap();
        assert_eq!(args.bind.len(), 2);
        assert_eq!(args.key, Some("/k".into()));
    }
}
