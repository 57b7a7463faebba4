//! The arguments of `anabranch trace`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anabranch_secure::Ticket;
use clap::Args;

use crate::context::OUTPUT;
use crate::errors::{Failure, Kind};
use crate::relays::ControllerOptions;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  anabranch trace 203.0.113.9                         the routers on the way there
  anabranch trace 203.0.113.9 --relay 198.51.100.7    and past a relay: what do both share?
  anabranch trace 203.0.113.9 --controller ab1...@192.0.2.1:4700    over the relays that it grants

What is behind a relay only the relay can see, and routers are told apart best from both ends. There:
  anabranch trace 203.0.113.9 --save relay.json       on the relay
  anabranch trace 192.0.2.1 --save node.json          on the node, towards this machine
Then here:
  anabranch trace 203.0.113.9 --relay 198.51.100.7 --traces 198.51.100.7=relay.json --traces 203.0.113.9=node.json";

/// Show what the routes to a node share, and which to use
///
/// Traces the direct route and the route over each relay, and chooses routes that are fast and fail independently, each
/// with a reason. A controller reports the links between relays, measured or estimated.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct TraceArgs {
    /// The node: a ticket, or its address
    #[arg(value_name = "NODE")]
    pub node: Place,
    /// A relay that could be used: an address, a host name or the line it printed; `+` joins relays to a chain
    #[arg(long = "relay", value_name = "RELAY")]
    pub named: Vec<Named>,
    /// The relays of `--relay` by their addresses, once these are resolved.
    #[arg(skip)]
    pub relays: Vec<Chain>,
    #[command(flatten)]
    pub granted: ControllerOptions,
    /// Measure the capacity of routes to granted relays, by 200 to 400 kB each
    #[arg(long, requires = "controllers")]
    pub capacity: bool,
    /// Key file [default: ~/.config/anabranch/key, created if missing]
    #[arg(long, value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true, value_hint = clap::ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// Traces saved on another machine, at this address
    #[arg(long, value_name = "ADDRESS=FILE")]
    pub traces: Vec<Elsewhere>,
    /// Save the traces made here, for another machine
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub save: Option<PathBuf>,
    /// Draw routers, links and chosen routes
    #[arg(long, value_name = "FILE.svg", value_parser = svg, value_hint = clap::ValueHint::FilePath)]
    pub graph: Option<PathBuf>,
    /// How disjoint a route must be from better ones, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub beta: f64,
    /// Most routes to use
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = values::whole(1..=1000_usize))]
    pub most: usize,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// The node's address, read from a ticket or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub IpAddr);

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ticket) = text.parse::<Ticket>() {
            let address = ticket.addresses.first().map(|address| Self(address.ip()));
            return address.ok_or_else(|| "the ticket names no address: give the node's own".to_owned());
        }
        address(text).map(Self).ok_or_else(|| format!("`{text}` is neither a ticket nor an address"))
    }
}

/// Relays in series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(pub Vec<IpAddr>);

/// Relays in series, by address or host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named(pub Vec<anabranch_node::Place>);

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let relay = |text: &str| match address(text) {
            Some(ip) => Some(anabranch_node::Place::Address((ip, 0).into())),
            None => first_place(text)?.parse().ok(),
        };
        let relays = text.split('+').map(relay).collect::<Option<Vec<_>>>();
        relays.map(Self).ok_or_else(|| {
            format!(
                "`{text}` is no relay; write its address, or KEY@ADDRESS:PORT as `anabranch relay` prints it, or a host's name instead of the address"
            )
        })
    }
}

impl Named {
    /// Resolves host names; prefers addresses of the node's family.
    pub(super) async fn chain(&self, node: IpAddr) -> Result<Chain, Failure> {
        let mut chain = Vec::new();
        for relay in &self.0 {
            let found = relay.addresses().await;
            let found = found.map_err(|why| Failure::new(Kind::Unreachable, why.to_string()))?;
            let best = found.iter().find(|at| at.is_ipv4() == node.is_ipv4()).or(found.first());
            chain.extend(best.map(|at| at.ip()));
        }
        Ok(Chain(chain))
    }
}

/// Traces made at another machine's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Where.
    pub at: IpAddr,
    /// The file that was saved there.
    pub file: PathBuf,
}

impl FromStr for Elsewhere {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(at, file)| Some((address(at)?, file)));
        let (at, file) = parts
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("`{text}` does not say where the traces were made; write ADDRESS=FILE"))?;
        Ok(Self { at, file: file.into() })
    }
}

/// The first address in `ADDRESS`, `ADDRESS:PORT` or `KEY@ADDRESS:PORT,ADDRESS:PORT`.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let place = first_place(text)?;
    let with_port = || place.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    place.parse().ok().or_else(with_port)
}

/// The first location in `KEY@PLACE,PLACE`.
fn first_place(text: &str) -> Option<&str> {
    Some(text.rsplit('@').next()?.split(',').next()?.trim())
}

fn svg(text: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(text);
    let is_svg = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    if is_svg {
        Ok(file)
    } else {
        Err(format!("`{text}` would be an SVG drawing; write a name that ends in .svg"))
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("`{text}` is no share; write a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn nodes_and_relays_are_addresses_or_what_programs_print() {
        let args: TraceArgs = parse(&[
            "203.0.113.9:4433",
            "--relay",
            "ab1x@198.51.100.7:4600,[2001:db8::1]:4600+198.51.100.8",
            "--traces",
            "[2001:db8::7]:1=far.json",
        ])
        .unwrap();
        assert_eq!(args.node.0.to_string(), "203.0.113.9");
        let chain =
            anabranch_node::Threads::start().unwrap().block_on(args.named[0].chain(args.node.0)).unwrap();
        assert_eq!(
            chain.0.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["198.51.100.7", "198.51.100.8"]
        );
        assert_eq!(
            (args.traces[0].at.to_string(), args.traces[0].file.clone()),
            ("2001:db8::7".into(), "far.json".into())
        );
    }

    #[test]
    fn relays_are_named_by_host_too_and_taken_by_the_kind_of_address_that_the_node_has() {
        let args: TraceArgs = parse(&["127.0.0.5", "--relay", "ab1x@localhost:4600+127.0.0.9"]).unwrap();
        let chain =
            anabranch_node::Threads::start().unwrap().block_on(args.named[0].chain(args.node.0)).unwrap();
        assert_eq!(chain.0, [[127, 0, 0, 1], [127, 0, 0, 9]].map(IpAddr::from));
        let nowhere: TraceArgs = parse(&["127.0.0.5", "--relay", "relay.invalid:4600"]).unwrap();
        let told = anabranch_node::Threads::start()
            .unwrap()
            .block_on(nowhere.named[0].chain(nowhere.node.0))
            .unwrap_err();
        assert!(told.message.contains("relay.invalid"), "{told:?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_word_about_what_would() {
        for wrong in [
            &["host"][..],
            &["1.2.3.4", "--relay", "x"],
            &["1.2.3.4", "--traces", "f.json"],
            &["1.2.3.4", "--beta", "2"],
            &["1.2.3.4", "--graph", "ways.png"],
        ] {
            let error = parse::<TraceArgs>(wrong).unwrap_err().to_string();
            assert!(error.contains("write") || error.contains("neither"), "{error}");
        }
    }
}
