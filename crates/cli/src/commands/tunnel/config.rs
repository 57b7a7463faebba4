//! The settings file of a tunnel.
//!
//! ```toml
//! peer = "@/etc/anabranch/ticket"        # the client's file: the ticket of the server
//! to = ["10.20.0.0/16"]
//!
//! [[class]]
//! name = "game"
//! protocol = "udp"
//! ports = ["27000-27050"]
//! lane = "low-latency"
//!
//! [[path]]
//! match = "wwan*"
//! use = "metered"
//! cap = "5 GB"
//! ```
//! An unknown key is an error that names the line and the nearest key there is.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anabranch_net::{PathRules, PublicKey, Ticket};
use anabranch_node::{ControllerHint, LeaveOutTable, RelayRoute, RuleTable, read_tables};
use anabranch_settings::{SettingsError, located, nearest};
use anabranch_tunnel::policy::{Class, MOST_CLASSES, MOST_ENTRIES, PortRange};
use clap::ValueEnum;
use ipnet::IpNet;
use serde::Deserialize;

use super::device;
use super::lane::LaneName;
use crate::commands::service;
use crate::errors::Failure;
use crate::values::{self, HostPort};

/// Settings of both ends.
#[derive(Debug)]
pub struct Shared {
    pub interface: Option<String>,
    pub key: Option<PathBuf>,
    pub relays: Vec<RelayRoute>,
    pub controllers: Vec<ControllerHint>,
    pub metrics: Option<SocketAddr>,
    pub streams: bool,
    pub rules: PathRules,
}

/// The client's settings.
pub struct UpSettings {
    pub shared: Shared,
    pub peer: Option<Ticket>,
    pub to: Vec<IpNet>,
    pub lane: Option<LaneName>,
    pub dns: bool,
    pub kill_switch: bool,
    pub networks: Vec<IpNet>,
    pub classes: Vec<Class>,
}

/// The server's settings.
pub struct ServeSettings {
    pub shared: Shared,
    pub port: Option<u16>,
    pub addresses: Vec<HostPort>,
    pub inside: Vec<IpNet>,
    pub exit: bool,
    pub allow: Vec<IpNet>,
    pub dns: Vec<IpAddr>,
    pub ticket: Option<String>,
    pub clients: Vec<(PublicKey, Vec<IpNet>)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpFile {
    interface: Option<String>,
    key: Option<PathBuf>,
    #[serde(default)]
    relays: Vec<String>,
    #[serde(default)]
    controllers: Vec<String>,
    metrics: Option<SocketAddr>,
    #[serde(default = "yes")]
    streams: bool,
    peer: Option<String>,
    #[serde(default)]
    to: Vec<IpNet>,
    lane: Option<String>,
    #[serde(default = "yes")]
    dns: bool,
    #[serde(default)]
    kill_switch: bool,
    #[serde(default)]
    networks: Vec<IpNet>,
    #[serde(default, rename = "class")]
    classes: Vec<ClassTable>,
    #[serde(default, rename = "path")]
    paths: Vec<RuleTable>,
    leave_out: Option<LeaveOutTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServeFile {
    interface: Option<String>,
    key: Option<PathBuf>,
    #[serde(default)]
    relays: Vec<String>,
    #[serde(default)]
    controllers: Vec<String>,
    metrics: Option<SocketAddr>,
    #[serde(default = "yes")]
    streams: bool,
    port: Option<u16>,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    address_inside: Vec<IpNet>,
    #[serde(default = "yes")]
    exit: bool,
    #[serde(default)]
    allow: Vec<IpNet>,
    #[serde(default)]
    name_servers: Vec<IpAddr>,
    ticket: Option<String>,
    #[serde(default, rename = "client")]
    clients: Vec<ClientTable>,
    #[serde(default, rename = "path")]
    paths: Vec<RuleTable>,
    leave_out: Option<LeaveOutTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    #[serde(default)]
    name: String,
    lane: String,
    protocol: Option<String>,
    #[serde(default)]
    ports: Vec<NumberOrText>,
    #[serde(default)]
    dscp: Vec<NumberOrText>,
    #[serde(default)]
    networks: Vec<IpNet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientTable {
    key: String,
    #[serde(default)]
    networks: Vec<IpNet>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u16),
    Text(String),
}

impl NumberOrText {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

fn yes() -> bool {
    true
}

impl UpSettings {
    /// Reads the file; without one, everything has its default.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn read(file: Option<&Path>) -> Result<Self, Failure> {
        read(file, "tunnel up", Self::parse)
    }

    fn parse(text: &str, origin: &str) -> Result<Self, SettingsError> {
        let file =
            toml::from_str::<UpFile>(text).map_err(|error| SettingsError::from_toml::<UpFile>(&error, text));
        file.and_then(|file| Self::check(file, text)).map_err(|error| error.of(origin))
    }

    fn check(file: UpFile, text: &str) -> Result<Self, SettingsError> {
        let at_top = |error| located(error, text, ("", 0));
        if file.classes.len() > MOST_CLASSES {
            let error = SettingsError::new("class", format!("there are more than {MOST_CLASSES} classes"));
            return Err(at_top(error).hint("one class may have several ports and networks"));
        }
        let classes = file.classes.iter().enumerate();
        let classes = classes
            .map(|(index, table)| class(table).map_err(|error| located(error, text, ("class", index))));
        let peer = file
            .peer
            .as_deref()
            .map(|peer| values::ticket(peer).map_err(|why| at_top(SettingsError::new("peer", why))));
        Ok(Self {
            peer: peer.transpose()?,
            lane: file.lane.as_deref().map(lane).transpose().map_err(at_top)?,
            classes: classes.collect::<Result<_, _>>()?,
            to: file.to,
            dns: file.dns,
            kill_switch: file.kill_switch,
            networks: file.networks,
            shared: Shared {
                interface: interface(file.interface).map_err(at_top)?,
                key: file.key,
                relays: each("relays", &file.relays).map_err(at_top)?,
                controllers: each("controllers", &file.controllers).map_err(at_top)?,
                metrics: file.metrics,
                streams: file.streams,
                rules: read_tables(&file.paths, file.leave_out.as_ref(), text)?,
            },
        })
    }
}

impl ServeSettings {
    /// Reads the file; without one, everything has its default.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn read(file: Option<&Path>) -> Result<Self, Failure> {
        read(file, "tunnel serve", Self::parse)
    }

    fn parse(text: &str, origin: &str) -> Result<Self, SettingsError> {
        let file = toml::from_str::<ServeFile>(text)
            .map_err(|error| SettingsError::from_toml::<ServeFile>(&error, text));
        file.and_then(|file| Self::check(file, text)).map_err(|error| error.of(origin))
    }

    fn check(file: ServeFile, text: &str) -> Result<Self, SettingsError> {
        let at_top = |error| located(error, text, ("", 0));
        let client = |(index, table): (usize, &ClientTable)| {
            let why = |_| {
                let error = SettingsError::new("key", format!("`{}` is not a key", table.key));
                located(error.hint("`anabranch keys show` on the client prints one"), text, ("client", index))
            };
            Ok((table.key.parse().map_err(why)?, table.networks.clone()))
        };
        Ok(Self {
            port: file.port,
            addresses: each("addresses", &file.addresses).map_err(at_top)?,
            inside: file.address_inside,
            exit: file.exit,
            allow: file.allow,
            dns: file.name_servers,
            ticket: file.ticket,
            clients: file.clients.iter().enumerate().map(client).collect::<Result<_, SettingsError>>()?,
            shared: Shared {
                interface: interface(file.interface).map_err(at_top)?,
                key: file.key,
                relays: each("relays", &file.relays).map_err(at_top)?,
                controllers: each("controllers", &file.controllers).map_err(at_top)?,
                metrics: file.metrics,
                streams: file.streams,
                rules: read_tables(&file.paths, file.leave_out.as_ref(), text)?,
            },
        })
    }
}

/// Reads a file, or the defaults without one.
fn read<S>(
    file: Option<&Path>,
    command: &str,
    parse: fn(&str, &str) -> Result<S, SettingsError>,
) -> Result<S, Failure> {
    match file {
        Some(file) => service::read(file, command, parse),
        None => parse("", "").map_err(|error| Failure::local(error.to_string())),
    }
}

fn interface(name: Option<String>) -> Result<Option<String>, SettingsError> {
    let name = name.map(|name| device::interface(&name)).transpose();
    name.map_err(|why| SettingsError::new("interface", why))
}

fn each<T: std::str::FromStr>(key: &str, texts: &[String]) -> Result<Vec<T>, SettingsError>
where
    T::Err: std::fmt::Display,
{
    let parsed = texts.iter().map(|text| text.parse());
    parsed.collect::<Result<_, T::Err>>().map_err(|why| SettingsError::new(key, why.to_string()))
}

/// The lane of this name.
///
/// # Errors
/// The mistake, and the nearest name.
pub fn lane(name: &str) -> Result<LaneName, SettingsError> {
    let known: Vec<String> = LaneName::value_variants()
        .iter()
        .filter_map(|lane| Some(lane.to_possible_value()?.get_name().to_owned()))
        .collect();
    LaneName::from_str(name, false).map_err(|_| {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let error = SettingsError::new("lane", format!("`{name}` is not a lane"));
        match nearest(name, &known) {
            Some(near) => error.hint(format!("did you mean `{near}`? Possible: {}", known.join(", "))),
            None => error.hint(format!("possible: {}", known.join(", "))),
        }
    })
}

fn class(table: &ClassTable) -> Result<Class, SettingsError> {
    for (key, length) in
        [("ports", table.ports.len()), ("dscp", table.dscp.len()), ("networks", table.networks.len())]
    {
        if length > MOST_ENTRIES {
            return Err(SettingsError::new(key, format!("has more than {MOST_ENTRIES} entries")));
        }
    }
    let ports = table.ports.iter().map(|ports| port_range(&ports.text()));
    let marks = table.dscp.iter().map(|mark| code_point(&mark.text()));
    Ok(Class {
        name: table.name.chars().take(64).collect(),
        lane: lane(&table.lane)?.into(),
        protocol: table.protocol.as_deref().map(protocol).transpose()?,
        ports: ports.collect::<Result<_, _>>()?,
        dscp: marks.collect::<Result<_, _>>()?,
        networks: table.networks.clone(),
    })
}

fn protocol(name: &str) -> Result<u8, SettingsError> {
    let known = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("esp", 50)];
    let found = known.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    found.or_else(|| name.parse().ok()).ok_or_else(|| {
        SettingsError::new("protocol", format!("`{name}` is not a protocol"))
            .hint("tcp, udp, icmp, icmpv6, esp, or a number up to 255")
    })
}

fn port_range(text: &str) -> Result<PortRange, SettingsError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.trim().parse().ok().zip(last.trim().parse().ok());
    let range = range.map(|(first, last)| PortRange { first, last });
    range.filter(|range| range.first <= range.last).ok_or_else(|| {
        SettingsError::new("ports", format!("`{text}` is not a port")).hint("write 443 or \"27000-27050\"")
    })
}

/// A code point by number or name (RFC 2474, RFC 2597, RFC 3246).
fn code_point(text: &str) -> Result<u8, SettingsError> {
    let name = text.to_ascii_uppercase();
    let digits =
        |prefix: &str| name.strip_prefix(prefix).map(|rest| rest.chars().filter_map(|c| c.to_digit(10)));
    let found = match name.as_str() {
        "EF" => Some(46),
        _ => match (
            digits("CS").map(Iterator::collect::<Vec<_>>),
            digits("AF").map(Iterator::collect::<Vec<_>>),
        ) {
            (Some(class), _) if name.len() == 3 => {
                class.first().filter(|class| **class < 8).map(|class| class * 8)
            }
            (_, Some(both)) if name.len() == 4 => match both[..] {
                [class @ 1..=4, drop @ 1..=3] => Some(class * 8 + drop * 2),
                _ => None,
            },
            _ => text.parse().ok().filter(|number| *number < 64),
        },
    };
    found.map(|number| number as u8).ok_or_else(|| {
        SettingsError::new("dscp", format!("`{text}` is not a code point"))
            .hint("a number up to 63, \"EF\", \"CS5\" or \"AF41\"")
    })
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel::entry::Lane;

    use super::*;

    fn error(text: &str) -> String {
        UpSettings::parse(text, "tunnel.toml").err().unwrap().to_string()
    }

    #[test]
    fn a_clients_file_has_classes_and_path_rules() {
        let text = "to = [\"10.20.0.0/16\"]\nlane = \"striped\"\nkill_switch = true\n\
            [[class]]\nname = \"game\"\nprotocol = \"udp\"\nports = [53, \"27000-27050\"]\ndscp = [\"EF\", 40]\n\
            lane = \"low-latency\"\n\
            [[path]]\nmatch = \"wwan*\"\nuse = \"metered\"\ncap = \"5 GB\"\n";
        let settings = UpSettings::parse(text, "tunnel.toml").unwrap();
        assert_eq!((settings.to.len(), settings.kill_switch, settings.dns), (1, true, true));
        let class = &settings.classes[0];
        assert_eq!(
            (class.lane, class.protocol, &class.dscp[..]),
            (Lane::LowLatency, Some(17), &[46, 40][..])
        );
        assert_eq!(class.ports[1], PortRange { first: 27000, last: 27050 });
        assert_eq!(settings.shared.rules.iter().count(), 1);
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_a_remedy() {
        for (text, wanted) in [
            ("dsn = false\n", "tunnel.toml:1: dsn"),
            ("\nlane = \"stripped\"\n", "tunnel.toml:2: lane: `stripped` is not a lane"),
            ("[[class]]\nlane = \"auto\"\nports = [\"9-8\"]\n", "tunnel.toml:3: ports"),
            ("[[class]]\nlane = \"auto\"\n[[class]]\nlane = \"x\"\n", "tunnel.toml:4: lane"),
            ("[[class]]\nlane = \"auto\"\ndscp = [64]\n", "tunnel.toml:3: dscp"),
            ("[[path]]\nmatch = \"*\"\nuse = \"metred\"\n", "tunnel.toml:3: use"),
            ("interface = \"a b\"\n", "tunnel.toml:1: interface"),
            ("peer = \"hello\"\n", "tunnel.toml:1: peer"),
        ] {
            let error = error(text);
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!(error("lane = \"stripped\"\n").contains("did you mean `striped`?"));
        assert!(error("dsn = false\n").contains("did you mean `dns`?"));
    }

    #[test]
    fn a_servers_file_lists_clients() {
        let key = anabranch_net::NodeKey::from_random([1; 32]).public();
        let text =
            format!("port = 4500\nexit = false\n[[client]]\nkey = \"{key}\"\nnetworks = [\"10.9.0.0/16\"]\n");
        let settings = ServeSettings::parse(&text, "tunnel.toml").unwrap();
        assert_eq!((settings.port, settings.exit, settings.clients[0].1.len()), (Some(4500), false, 1));
        let error = ServeSettings::parse("[[client]]\nkey = \"x\"\n", "t.toml").err().unwrap().to_string();
        assert!(error.starts_with("t.toml:2: key") && error.contains("keys show"), "{error}");
    }

    #[test]
    fn code_points_have_numbers_and_names() {
        for (text, number) in [("EF", 46), ("cs5", 40), ("AF41", 34), ("0", 0), ("63", 63)] {
            assert_eq!(code_point(text).unwrap(), number);
        }
        for wrong in ["AF44", "CS8", "AF4", "64", "x"] {
            assert!(code_point(wrong).is_err(), "{wrong}");
        }
    }
}
