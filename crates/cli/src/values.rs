//! Parses option values: spans of time, sizes, rates, pinned paths.
//!
//! Each parser's error names the expected format with an example, because clap prints that text unchanged.

use std::error::Error;
use std::fmt;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anabranch_net::Ticket;
use anabranch_secure::TicketError;
use anabranch_settings::number_and_unit;
use anabranch_wire::Span;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use zeroize::Zeroizing;

use crate::node_word::begins_ticket;

/// The longest accepted span: several lifetimes, and well within the range of clocks.
const LONGEST_SPAN: Span = Span::from_secs(100_000 * 86_400);

/// Parses a span: `500ms`, `90s`, `10m`, `24h`, `7d`, or a bare number of seconds.
pub fn span(text: &str) -> Result<Span, String> {
    match span_or_zero(text) {
        Ok(span) if span.is_zero() => Err("must be longer than nothing".into()),
        span => span,
    }
}

/// Parses a span as [`span`] does, or 0.
pub fn span_or_zero(text: &str) -> Result<Span, String> {
    let (number, unit) = number_and_unit(text).ok_or_else(|| wanted_span(text))?;
    let seconds = match unit {
        "" | "s" | "sec" => number,
        "ms" => number / 1e3,
        "m" | "min" => number * 60.0,
        "h" => number * 3_600.0,
        "d" => number * 86_400.0,
        _ => return Err(wanted_span(text)),
    };
    if seconds > LONGEST_SPAN.as_secs_f64() {
        return Err("must be at most 100000d".into());
    }
    Ok(Span::from_secs_f64(seconds))
}

fn wanted_span(text: &str) -> String {
    format!("`{text}` is not a length of time; write 500ms, 90s, 10m, 24h or 7d")
}

/// Parses a rate in bits a second: `100Mbit/s`, `1.5 Gbit/s`.
pub fn rate(text: &str) -> Result<NonZeroU64, String> {
    let bits = anabranch_settings::rate(text)?;
    NonZeroU64::new(bits).ok_or_else(|| "must be more than nothing".into())
}

/// Parses a number of bytes: `500MB`, `2GiB`.
pub fn size(text: &str) -> Result<u64, String> {
    anabranch_settings::size(text)
}

/// The environment variable that can hold a ticket.
pub const TICKET_VARIABLE: &str = "ANABRANCH_TICKET";
/// Longer than any ticket.
const LONGEST_TICKET: u64 = 64 << 10;

/// Reads a ticket: its text, `-` for standard input, or `@FILE` for a file that contains it.
///
/// Every user of the machine can see a program's command line, but not its standard input or a private file.
pub fn ticket(text: &str) -> Result<Ticket, String> {
    let read = |from: &mut dyn Read, what: &str, is_typed: bool| {
        let mut from = BufReader::new(from.take(LONGEST_TICKET));
        let mut text = Zeroizing::new(String::new());
        loop {
            let read = from.read_line(&mut text);
            match read.map_err(|error| format!("cannot read the ticket from {what}: {error}"))? {
                // A mail program may have broken it into several lines.
                1.. if !is_typed && ticket_in(&text).is_err() => {}
                _ => return ticket_in(&text),
            }
        }
    };
    match (text, text.strip_prefix('@')) {
        ("-", _) => read(&mut std::io::stdin(), "standard input", std::io::stdin().is_terminal()),
        (_, Some(path)) => {
            let file = std::fs::File::open(path);
            let mut file = file.map_err(|error| format!("cannot read the ticket from {path}: {error}"))?;
            read(&mut file, path, false)
        }
        _ => ticket_in(text),
    }
}

/// The ticket that ends a text: people also copy the whole command that was printed, or the `>` of a quoted mail.
fn ticket_in(text: &str) -> Result<Ticket, String> {
    let separates = |c: char| c.is_whitespace() || c == '>';
    let words: Vec<&str> = text.split(separates).filter(|word| !word.is_empty()).collect();
    let read = |word: &str| word.parse().map_err(|error: TicketError| error.to_string());
    let last = read(words.last().copied().unwrap_or_default());
    // A line may break anywhere.
    let begins = |first: &usize| begins_ticket(&words[*first..words.len().min(first + 2)].concat());
    match (0..words.len()).rev().find(begins) {
        Some(first) if last.is_err() => read(&Zeroizing::new(words[first..].concat())),
        _ => last,
    }
}

/// A parser for whole numbers within a range.
pub fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + fmt::Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("`{text}` is not a whole number from {least} to {most}"))
    }
}

/// A parser for one of `names`, converted to the type that defines them; `--help` lists them.
pub fn one_of<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// A host with an optional port: `203.0.113.9:4433`, `[2001:db8::9]`, `home.example.org:4433`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// `None` means the port on which the program listens.
    pub port: Option<u16>,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(RemoteEnd { ip, port }) = text.parse() {
            return Ok(Self { host: ip.to_string(), port });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port != 0))),
            None => (text, None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() || !host.chars().all(is_name) || port == Some(None) {
            return Err(format!(
                "`{text}` is no address; write 203.0.113.9:4433, [2001:db8::9]:4433 or NAME:4433"
            ));
        }
        Ok(Self { host: host.to_owned(), port: port.flatten() })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The local end of a pinned path: an address or an interface name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalEnd {
    /// A local address.
    Address(IpAddr),
    /// A network interface such as `wlan0`.
    Interface(String),
}

/// A pinned path, written `LOCAL=REMOTE`: `wlan0=203.0.113.9` or `10.0.0.7=[2001:db8::9]:4433`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPin {
    /// The local end.
    pub local: LocalEnd,
    /// The remote end.
    pub remote: RemoteEnd,
}

/// An address of the other machine, with an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEnd {
    /// The address.
    pub ip: IpAddr,
    /// The port; `None` means the port in the ticket.
    pub port: Option<u16>,
}

impl FromStr for RemoteEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The zone of a link-local address is left out: every interface that has such an address tries it.
        let (plain, rest) = text.split_once('%').unwrap_or((text, ""));
        let plain = format!("{plain}{}", rest.find(']').map_or("", |end| &rest[end..]));
        if let Ok(address) = plain.parse::<SocketAddr>() {
            return Ok(Self { ip: address.ip(), port: Some(address.port()) });
        }
        let bare = plain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&plain);
        let ip = bare.parse().map_err(|_| {
            format!("`{text}` is not an address; write 203.0.113.9, 203.0.113.9:4433 or [2001:db8::9]:4433")
        })?;
        Ok(Self { ip, port: None })
    }
}

impl FromStr for PathPin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("`{text}` is not a path; write LOCAL=REMOTE, such as wlan0=203.0.113.9");
        let (local, remote) = text.split_once('=').ok_or_else(wanted)?;
        if local.is_empty() || local.contains(char::is_whitespace) {
            return Err(wanted());
        }
        let local = match local.parse() {
            Ok(ip) => LocalEnd::Address(ip),
            Err(_) => LocalEnd::Interface(local.to_owned()),
        };
        Ok(Self { local, remote: remote.parse()? })
    }
}

impl fmt::Display for RemoteEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_may_have_a_zone() {
        let end = |text: &str| text.parse::<RemoteEnd>().map(|end| (end.ip.to_string(), end.port));
        assert_eq!(end("[fe80::1%eth0]:4433"), Ok(("fe80::1".to_owned(), Some(4433))));
        assert_eq!(end("fe80::1%3"), Ok(("fe80::1".to_owned(), None)));
        assert_eq!("[fe80::1%eth0]:4433".parse::<HostPort>().unwrap().host, "fe80::1");
        assert!("%eth0".parse::<RemoteEnd>().is_err());
    }

    #[test]
    fn spans_are_read_in_every_unit() {
        for (text, nanos) in [
            ("500ms", 500_000_000),
            ("1.5", 1_500_000_000),
            ("90 s", 90_000_000_000),
            ("10m", 600_000_000_000),
            ("24h", 86_400_000_000_000),
            ("7d", 604_800_000_000_000),
        ] {
            assert_eq!(span(text), Ok(Span::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn a_ticket_may_come_from_a_file() {
        let secret = anabranch_net::TicketSecret::from_random([1; 16]);
        let node = anabranch_secure::NodeKey::from_random([2; 32]).public();
        let share = anabranch_net::ShareId(3);
        let told = Ticket { node, addresses: Vec::new(), relays: Vec::new(), share, secret, expires: None };
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = told.to_text();
        let (begin, end) = text.split_at(40);
        let (name, rest) = text.split_at(9);
        let quoted = format!("> {name}\n> {rest}\n");
        for text in [format!("{}\n", *text), format!("{begin}\n{end}\n"), quoted] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(ticket(&format!("@{}", file.path().display())).unwrap().share, share);
        }
        assert_eq!(ticket(&told.to_text()).unwrap().share, share);
        let command = format!("anabranch receive {}", *told.to_text());
        assert_eq!(ticket(&command).unwrap().share, share);
        assert_eq!(ticket(&format!("anabranch receive {begin}\n{end}")).unwrap().share, share);
        assert!(ticket("@/no/such/file").unwrap_err().contains("cannot read the ticket from /no/such/file"));
        assert!(ticket("hello").unwrap_err().contains("not a ticket"));
    }

    #[test]
    fn what_is_not_a_span_is_refused_with_an_example() {
        for text in ["", "soon", "10 fortnights", "-3s", "0s", "1..5s", "ms", "inf", "100001d"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert!(span("soon").unwrap_err().contains("24h"));
    }

    #[test]
    fn a_whole_number_is_within_its_range_or_told_what_that_is() {
        let read = whole(1..=300_u16);
        assert_eq!((read("1"), read("300")), (Ok(1), Ok(300)));
        for text in ["", "a", "1.5", "0", "301", "-1", "99999999999"] {
            assert_eq!(read(text), Err(format!("`{text}` is not a whole number from 1 to 300")));
        }
    }

    #[test]
    fn a_path_is_pinned_by_interface_or_by_address() {
        let pin: PathPin = "wlan0=203.0.113.9".parse().unwrap();
        assert_eq!(pin.local, LocalEnd::Interface("wlan0".into()));
        assert_eq!(pin.remote, RemoteEnd { ip: "203.0.113.9".parse().unwrap(), port: None });

        let pin: PathPin = "fd00::7=[2001:db8::9]:4433".parse().unwrap();
        assert_eq!(pin.local, LocalEnd::Address("fd00::7".parse().unwrap()));
        assert_eq!(pin.remote.to_string(), "[2001:db8::9]:4433");
    }

    #[test]
    fn a_path_without_two_ends_is_refused() {
        for text in
            ["wlan0", "=203.0.113.9", "wlan0=", "wlan0=example", "a b=203.0.113.9", "wlan0=1.2.3.4:99999"]
        {
            assert!(text.parse::<PathPin>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_goes_by_name_or_by_address() {
        for (text, host, port) in [
            ("home.example.org:4433", "home.example.org", Some(4433)),
            ("home", "home", None),
            ("203.0.113.9", "203.0.113.9", None),
            ("[2001:db8::9]:5", "2001:db8::9", Some(5)),
            ("2001:db8::9", "2001:db8::9", None),
        ] {
            assert_eq!(text.parse(), Ok(HostPort { host: host.into(), port }), "{text}");
        }
        for text in ["", ":5", "a:", "a:b", "a:0", "a:70000", "a b", "a/b", "::x"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_may_leave_its_port_out() {
        assert_eq!("[2001:db8::9]".parse::<RemoteEnd>().unwrap().port, None);
        assert_eq!("192.0.2.1:5".parse::<RemoteEnd>().unwrap().port, Some(5));
    }
}
