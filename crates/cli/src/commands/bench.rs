//! `anabranch bench`: measures what a session carries, like iperf3.

use std::net::IpAddr;

use anabranch_engine::cc::RuleKind;
use anabranch_engine::{Config, SchedulerKind};
use anabranch_wire::Span;
use clap::{Args, Subcommand};

use super::keys::KeyOption;
use crate::args::OUTPUT;
use crate::report::{BenchEnd, Interval};
use crate::ui::human;
use crate::values::{self, PathPin, RemoteEnd};

const EXAMPLES: &str = "\
Examples:
  anabranch bench server                              prints how to reach it
  anabranch bench client TICKET                       all paths, ten seconds
  anabranch bench client TICKET --reverse --json      the other way, for a program
  anabranch bench client TICKET --path wlan0=203.0.113.9 --path eth0=203.0.113.9";

/// Shortest interval: below it the report costs more than it tells.
const INTERVAL_MIN: Span = Span::from_millis(10);

/// Measure throughput between two machines, like iperf3
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct BenchArgs {
    /// Which end this is.
    #[command(subcommand)]
    pub end: BenchCommand,
}

/// The two ends of a test.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Wait for clients and print how to reach this machine
    Server(ServerArgs),
    /// Run one test against a server
    Client(ClientArgs),
}

/// Options of the server.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Local address to listen on; may be given again [default: all]
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    pub bind: Vec<IpAddr>,
    /// UDP port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 4433, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Network")]
    pub port: u16,
    /// Serve one test, then stop
    #[arg(long)]
    pub once: bool,
    /// The node's key.
    #[command(flatten)]
    pub key: KeyOption,
}

/// Options of the client.
#[derive(Args, Debug)]
pub struct ClientArgs {
    /// The ticket that the server printed, or its public key
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Addresses of the server, beside those in the ticket
    #[arg(value_name = "ADDRESS")]
    pub addresses: Vec<RemoteEnd>,
    /// How long to measure
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = values::span)]
    pub time: Span,
    /// Time between reports
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Span,
    /// The server sends, the client receives
    #[arg(short = 'R', long)]
    pub reverse: bool,
    /// Streams side by side
    #[arg(short = 'P', long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub streams: u32,
    /// Use this path only: interface or local address, then the server's; may be given again [default: all there are]
    #[arg(long = "path", value_name = "LOCAL=REMOTE", help_heading = "Network")]
    pub pins: Vec<PathPin>,
    /// How the path of each packet is chosen
    #[arg(long, value_name = "NAME", default_value_t = Config::default().scheduler, help_heading = "Network")]
    #[arg(value_parser = values::one_of::<SchedulerKind>(SchedulerKind::ALL.map(|(_, name)| name)))]
    pub scheduler: SchedulerKind,
    /// How fast each path may send
    #[arg(long, value_name = "NAME", default_value_t = Config::default().cc.rule, help_heading = "Network")]
    #[arg(value_parser = values::one_of::<RuleKind>(RuleKind::ALL.map(RuleKind::name)))]
    pub cc: RuleKind,
    /// The result as one JSON document instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

fn interval(text: &str) -> Result<Span, String> {
    let span = values::span(text)?;
    if span < INTERVAL_MIN { Err("must be at least 10ms".into()) } else { Ok(span) }
}

impl ClientArgs {
    /// The settings of the session: the usual ones, with the scheduler and the congestion control asked for.
    #[must_use]
    pub fn config(&self) -> Config {
        let mut config = Config { scheduler: self.scheduler, ..Config::default() };
        config.cc.rule = self.cc;
        config
    }
}

/// The headings over [`interval_row`]s.
#[must_use]
pub fn heading() -> String {
    format!("  {:>15}  {:>10}  {:>14}\n", "time", "received", "rate")
}

/// One interval for people.
#[must_use]
pub fn interval_row(interval: &Interval) -> String {
    let from = interval.t_s - interval.seconds;
    row(from, interval.t_s, interval.bytes, interval.goodput_mbit_s)
}

/// The whole test for people.
#[must_use]
pub fn end_row(end: &BenchEnd) -> String {
    let total = row(0.0, end.seconds, end.bytes, end.goodput_mbit_s);
    format!("  {}\n{total}  longest silence {:.0} ms\n", "─".repeat(43), end.longest_gap_ms)
}

fn row(from_s: f64, to_s: f64, bytes: u64, mbit_s: f64) -> String {
    let time = format!("{from_s:.2} – {to_s:.2} s");
    let rate = anabranch_wire::Rate::from_mbit(mbit_s).to_string();
    format!("  {time:>15}  {:>10}  {rate:>14}\n", human::bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    fn client(words: &[&str]) -> Result<ClientArgs, clap::Error> {
        parse(words)
    }

    #[test]
    fn a_test_runs_ten_seconds_on_all_paths_when_nothing_is_said() {
        let args = client(&["node"]).unwrap();
        assert_eq!((args.time, args.interval), (Span::from_secs(10), Span::from_secs(1)));
        assert!(args.pins.is_empty() && args.addresses.is_empty());
        assert_eq!((args.scheduler, args.cc), (Config::default().scheduler, Config::default().cc.rule));
        assert_eq!(args.streams, 1);
    }

    #[test]
    fn paths_are_pinned_one_option_each() {
        let args =
            client(&["node", "192.0.2.1:5", "--path", "a=192.0.2.1", "--path", "b=192.0.2.2"]).unwrap();
        assert_eq!(args.pins.len(), 2);
        assert_eq!(args.addresses[0].port, Some(5));
    }

    #[test]
    fn schedulers_and_rules_go_by_their_names() {
        let args = client(&["node", "--scheduler", "least-filled", "--cc", "lia"]).unwrap();
        let config = args.config();
        assert_eq!((config.scheduler, config.cc.rule), (SchedulerKind::LeastFilled, RuleKind::Lia));
        assert!(client(&["node", "--cc", "vegas"]).is_err());
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for words in [["--interval", "1ms"], ["--time", "0"], ["--streams", "0"], ["--path", "wlan0"]] {
            assert!(client(&["node", words[0], words[1]]).is_err(), "{words:?}");
        }
    }

    #[test]
    fn the_server_listens_everywhere_unless_told_where() {
        let args: ServerArgs = parse(&[]).unwrap();
        assert!(args.bind.is_empty());
        assert_eq!(args.port, 4433);
        let args: ServerArgs = parse(&["--bind", "10.0.0.1", "--bind", "fd00::1", "--key", "/k"]).unwrap();
        assert_eq!(args.bind.len(), 2);
        assert_eq!(args.key.path().unwrap(), std::path::PathBuf::from("/k"));
    }

    #[test]
    fn rows_stand_in_columns_under_their_headings() {
        let interval =
            Interval { t_s: 2.0, seconds: 1.0, bytes: 11_800_000, goodput_mbit_s: 94.4, paths: Vec::new() };
        let end = BenchEnd {
            seconds: 10.0,
            bytes: 118_000_000,
            goodput_mbit_s: 94.4,
            longest_gap_ms: 12.3,
            paths: Vec::new(),
        };
        let text = heading() + &interval_row(&interval) + &end_row(&end);
        let expected = "             time    received            rate
    1.00 – 2.00 s     11.8 MB     94.4 Mbit/s
  ───────────────────────────────────────────
   0.00 – 10.00 s      118 MB     94.4 Mbit/s
  longest silence 12 ms
";
        assert_eq!(text, expected);
    }
}
