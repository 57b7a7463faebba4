//! The settings file of a tunnel.
//!
//! ```toml
//! peer = "@/etc/anabranch/ticket"        # the client's file: the ticket of the server, or its KEY@ADDRESS:PORT
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

use anabranch_engine::cc::RuleKind;
use anabranch_net::{PathRules, PublicKey};
use anabranch_node::{ControllerHint, LeaveOutTable, RelayRoute, RuleTable, read_tables};
use anabranch_settings::{SettingsError, each_parsed, parsed};
use anabranch_tunnel::entry::Lane;
use anabranch_tunnel::policy::{Class, LONGEST_NAME, MOST_CLASSES, MOST_ENTRIES, PortRange};
use ipnet::IpNet;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::device;
use crate::commands::service;
use crate::errors::Failure;
use crate::node_word::NodeWord;
use crate::values::HostPort;

/// Settings of both ends.
#[derive(Debug, Default)]
pub struct Shared {
    pub interface: Option<String>,
    pub key: Option<PathBuf>,
    pub relays: Vec<RelayRoute>,
    pub controllers: Vec<ControllerHint>,
    pub metrics: Option<SocketAddr>,
    pub streams: bool,
    pub cc: Option<RuleKind>,
    pub map_port: bool,
    pub rules: PathRules,
}

/// Settings of one end, with those of both in `shared`.
macro_rules! settings {
    ($(#[$doc:meta])* $name:ident { $($own:tt)* }) => {
        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own)*
            #[serde(skip)]
            pub shared: Shared,
            #[serde(default, deserialize_with = "interface")]
            interface: Option<String>,
            key: Option<PathBuf>,
            #[serde(default, deserialize_with = "each_parsed")]
            relays: Vec<RelayRoute>,
            #[serde(default, deserialize_with = "each_parsed")]
            controllers: Vec<ControllerHint>,
            metrics: Option<SocketAddr>,
            #[serde(default = "yes")]
            streams: bool,
            #[serde(default, deserialize_with = "cc")]
            cc: Option<RuleKind>,
            #[serde(default)]
            map_port: bool,
            #[serde(default, rename = "path")]
            paths: Vec<RuleTable>,
            leave_out: Option<LeaveOutTable>,
        }

        impl $name {
            /// Reads the file; without one, everything has its default.
            pub fn read(file: Option<&Path>, command: &str) -> Result<Self, Failure> {
                match file {
                    Some(file) => service::read(file, command, Self::parse),
                    None => Self::parse("", "").map_err(|error| Failure::local(error.to_string())),
                }
            }

            fn parse(text: &str, origin: &str) -> Result<Self, SettingsError> {
                let read = from_toml::<Self>(text).and_then(|mut file| {
                    let rules = read_tables(&file.paths, file.leave_out.as_ref(), text)?;
                    let map_port = file.map_port;
                    let Self { interface, key, relays, controllers, metrics, streams, cc, .. } = &mut file;
                    let (relays, controllers) = (std::mem::take(relays), std::mem::take(controllers));
                    let (interface, key) = (interface.take(), key.take());
                    let (metrics, streams, cc) = (*metrics, *streams, *cc);
                    file.shared =
                        Shared { interface, key, relays, controllers, metrics, streams, cc, map_port, rules };
                    Ok(file)
                });
                read.map_err(|error| error.of(origin))
            }
        }
    };
}

settings! {
    /// The client's settings.
    UpSettings {
        #[serde(default, deserialize_with = "node")]
        pub peer: Option<NodeWord>,
        #[serde(default)]
        pub to: Vec<IpNet>,
        pub lane: Option<Lane>,
        #[serde(default = "yes")]
        pub dns: bool,
        #[serde(default)]
        pub kill_switch: bool,
        #[serde(default)]
        pub networks: Vec<IpNet>,
        #[serde(default, rename = "class", deserialize_with = "classes")]
        pub classes: Vec<Class>,
    }
}

settings! {
    /// The server's settings.
    ServeSettings {
        pub port: Option<u16>,
        #[serde(default, deserialize_with = "each_parsed")]
        pub addresses: Vec<HostPort>,
        #[serde(default, rename = "address_inside")]
        pub inside: Vec<IpNet>,
        #[serde(default = "yes")]
        pub exit: bool,
        #[serde(default)]
        pub allow: Vec<IpNet>,
        #[serde(default, rename = "name_servers")]
        pub dns: Vec<IpAddr>,
        pub ticket: Option<String>,
        #[serde(default, rename = "client")]
        pub clients: Vec<ClientTable>,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientTable {
    #[serde(deserialize_with = "public_key")]
    pub key: PublicKey,
    #[serde(default)]
    pub networks: Vec<IpNet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    #[serde(default, deserialize_with = "class_name")]
    name: String,
    lane: Lane,
    #[serde(default, deserialize_with = "protocol")]
    protocol: Option<u8>,
    #[serde(default, deserialize_with = "few")]
    ports: Vec<Ports>,
    #[serde(default, deserialize_with = "few")]
    dscp: Vec<CodePoint>,
    #[serde(default, deserialize_with = "few")]
    networks: Vec<IpNet>,
}

impl From<ClassTable> for Class {
    fn from(table: ClassTable) -> Self {
        Self {
            name: table.name,
            lane: table.lane,
            protocol: table.protocol,
            ports: table.ports.into_iter().map(|ports| ports.0).collect(),
            dscp: table.dscp.into_iter().map(|mark| mark.0).collect(),
            networks: table.networks,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u16),
    Text(String),
}

impl NumberOrText {
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

#[derive(Deserialize)]
#[serde(try_from = "NumberOrText")]
struct Ports(PortRange);

impl TryFrom<NumberOrText> for Ports {
    type Error = String;

    fn try_from(from: NumberOrText) -> Result<Self, String> {
        let text = from.text();
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        let range = first.trim().parse().ok().zip(last.trim().parse().ok());
        let range = range.map(|(first, last)| PortRange { first, last });
        let range = range.filter(|range| range.first <= range.last);
        range.map(Self).ok_or_else(|| format!("`{text}` is not a port\nwrite 443 or \"27000-27050\""))
    }
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
struct CodePoint(u8);

impl TryFrom<NumberOrText> for CodePoint {
    type Error = String;

    fn try_from(from: NumberOrText) -> Result<Self, String> {
        let text = from.text();
        code_point(&text).map(Self).ok_or_else(|| {
            format!("`{text}` is not a code point\na number up to 63, \"EF\", \"CS5\" or \"AF41\"")
        })
    }
}

/// A code point by number or name (RFC 2474, RFC 2597, RFC 3246).
fn code_point(text: &str) -> Option<u8> {
    match text.to_ascii_uppercase().as_bytes() {
        b"EF" => Some(46),
        [b'C', b'S', class @ b'0'..=b'7'] => Some((class - b'0') * 8),
        [b'A', b'F', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => Some((class - b'0') * 8 + (drop - b'0') * 2),
        _ => text.parse().ok().filter(|number| *number < 64),
    }
}

fn yes() -> bool {
    true
}

fn from_toml<F: DeserializeOwned>(text: &str) -> Result<F, SettingsError> {
    toml::from_str(text).map_err(|error| SettingsError::from_toml::<F>(&error, text))
}

fn interface<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    parsed(from, device::interface).map(Some)
}

fn cc<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RuleKind>, D::Error> {
    let known = || RuleKind::ALL.map(RuleKind::name).join(", ");
    parsed(from, |text| {
        text.parse().map_err(|_| format!("`{text}` is no congestion control\nthere are {}", known()))
    })
    .map(Some)
}

fn node<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NodeWord>, D::Error> {
    parsed(from, str::parse::<NodeWord>).map(Some)
}

fn public_key<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
    let hint = "`anabranch keys show` on the client prints one";
    parsed(from, |text| text.parse().map_err(|_| format!("`{text}` is not a key\n{hint}")))
}

fn protocol<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let known = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("esp", 50)];
    let number = |text: &str| {
        let named = known.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        named.or_else(|| text.parse().ok()).ok_or_else(|| {
            format!("`{text}` is not a protocol\ntcp, udp, icmp, icmpv6, esp, or a number up to 255")
        })
    };
    parsed(from, number).map(Some)
}

fn class_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    parsed(from, |text| match text.len() <= LONGEST_NAME {
        true => Ok(text.to_owned()),
        false => Err(format!("the name of a class has at most {LONGEST_NAME} bytes")),
    })
}

fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::deserialize(from)?;
    let is_few = all.len() <= MOST_ENTRIES;
    is_few.then_some(all).ok_or_else(|| D::Error::custom(format!("has more than {MOST_ENTRIES} entries")))
}

fn classes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Class>, D::Error> {
    let tables = Vec::<ClassTable>::deserialize(from)?;
    if tables.len() > MOST_CLASSES {
        let hint = "one class may have several ports and networks";
        return Err(D::Error::custom(format!("there are more than {MOST_CLASSES} classes\n{hint}")));
    }
    Ok(tables.into_iter().map(Class::from).collect())
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel::policy::Policy;

    use super::*;

    fn error(text: &str) -> String {
        UpSettings::parse(text, "tunnel.toml").err().unwrap().to_string()
    }

    #[test]
    fn a_clients_file_has_classes_and_path_rules() {
        let text = "to = [\"10.20.0.0/16\"]\nlane = \"striped\"\nkill_switch = true\ncc = \"bbr\"\n\
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
        assert_eq!(settings.shared.cc, Some(RuleKind::Bbr));
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_a_remedy() {
        for (text, wanted) in [
            ("dsn = false\n", "tunnel.toml:1: dsn"),
            ("\nlane = \"stripped\"\n", "tunnel.toml:2: lane: unknown value `stripped`"),
            ("[[class]]\nlane = \"auto\"\nports = [\"9-8\"]\n", "tunnel.toml:3: ports"),
            ("[[class]]\nlane = \"auto\"\n[[class]]\nlane = \"x\"\n", "tunnel.toml:4: lane"),
            ("[[class]]\nlane = \"auto\"\ndscp = [64]\n", "tunnel.toml:3: dscp"),
            ("[[path]]\nmatch = \"*\"\nuse = \"metred\"\n", "tunnel.toml:3: use"),
            ("interface = \"a b\"\n", "tunnel.toml:1: interface"),
            ("cc = \"cubik\"\n", "tunnel.toml:1: cc"),
            ("peer = \"hello\"\n", "tunnel.toml:1: peer"),
        ] {
            let error = error(text);
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!(error("lane = \"stripped\"\n").contains("did you mean `striped`?"));
        assert!(error("dsn = false\n").contains("did you mean `dns`?"));
    }

    #[test]
    fn a_class_has_no_longer_name_than_a_server_accepts() {
        let class = |name: &str| format!("[[class]]\nlane = \"auto\"\nname = \"{name}\"\n");
        let longest = "ж".repeat(32);
        let settings = UpSettings::parse(&class(&longest), "tunnel.toml").unwrap();
        assert!(Policy { classes: settings.classes, ..Policy::default() }.is_bounded());
        let told = error(&class(&(longest + "x")));
        assert!(told.starts_with("tunnel.toml:3: name"), "{told}");
    }

    #[test]
    fn a_servers_file_lists_clients() {
        let key = anabranch_net::NodeKey::from_random([1; 32]).public();
        let text =
            format!("port = 4500\nexit = false\n[[client]]\nkey = \"{key}\"\nnetworks = [\"10.9.0.0/16\"]\n");
        let settings = ServeSettings::parse(&text, "tunnel.toml").unwrap();
        assert_eq!(
            (settings.port, settings.exit, settings.clients[0].networks.len()),
            (Some(4500), false, 1)
        );
        let error = ServeSettings::parse("[[client]]\nkey = \"x\"\n", "t.toml").err().unwrap().to_string();
        assert!(error.starts_with("t.toml:2: key") && error.contains("keys show"), "{error}");
    }

    #[test]
    fn code_points_have_numbers_and_names() {
        for (text, number) in [("EF", 46), ("cs5", 40), ("AF41", 34), ("0", 0), ("63", 63)] {
            assert_eq!(code_point(text), Some(number));
        }
        for wrong in ["AF44", "CS8", "AF4", "64", "x"] {
            assert_eq!(code_point(wrong), None, "{wrong}");
        }
    }
}
