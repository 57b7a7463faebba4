//! The relay's configuration file.
//!
//! ```toml
//! key  = "/etc/anabranch/relay.key"      # `anabranch keys new --key FILE` makes one
//! port = 4600
//! rate = "100 Mbit/s"                    # what it forwards in all; without it, as much as it can
//!
//! [[user]]
//! name = "laptop"
//! key  = "ab1…"                          # `anabranch keys show` there
//! ```
//! An unknown key is an error that names the line and the nearest key there is.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anabranch_net::PublicKey;
use anabranch_overlay::grant::Limits;
use anabranch_overlay::relay::{NextHopPolicy, RelayConfig};
use anabranch_settings::{SettingsError, line_of};
use anabranch_wire::{Header, Rate};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

/// Where a relay listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 4600;

/// A relay's configuration, checked.
#[derive(Clone, Debug)]
pub struct RelaySettings {
    /// The file with its key.
    pub key: PathBuf,
    /// The UDP port, the same on every address; 0 for any free one.
    pub port: u16,
    /// The local addresses to use; empty for all there are.
    pub addresses: Vec<IpAddr>,
    /// What it forwards in all; `None` for as much as it can.
    pub rate: Option<Rate>,
    /// Most paths of all users.
    pub most_flows: usize,
    /// Networks beside the public Internet that it forwards to.
    pub allow: Vec<IpNet>,
    /// Networks that it never forwards to.
    pub deny: Vec<IpNet>,
    /// The Unix socket for `anabranch relay status` and `drain`.
    pub control: Option<PathBuf>,
    /// Where Prometheus fetches metrics from.
    pub metrics: Option<SocketAddr>,
    /// Who may use it.
    pub users: Vec<User>,
}

/// Somebody who may use a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// For people.
    pub name: String,
    /// Their node's key: being listed is the grant.
    pub key: PublicKey,
    /// How much they may use.
    pub limits: Limits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key: PathBuf,
    #[serde(default = "default_port")]
    port: u16,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    rate: Option<RateText>,
    #[serde(default = "default_paths")]
    max_paths: usize,
    #[serde(default)]
    next_hops: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
    control: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    #[serde(default, rename = "user")]
    users: Vec<UserEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    #[serde(default)]
    name: String,
    key: String,
    paths: Option<u32>,
    rate: Option<RateText>,
    bytes: Option<u64>,
    highest_tos: Option<u8>,
}

fn default_port() -> u16 {
    DEFAULT_PORT
}

fn default_paths() -> usize {
    50_000
}

/// Paths of one user unless the file says otherwise.
const USER_PATHS: u32 = 64;

impl RelaySettings {
    /// Reads and checks a configuration; `origin` is the file's name, for errors.
    ///
    /// # Errors
    /// The first mistake, with its line, key and remedy.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SettingsError> {
        let file = toml::from_str(text).map_err(|error| SettingsError::from_toml(&error, text));
        file.and_then(|file| check(file, text)).map_err(|error: SettingsError| error.of(origin))
    }

    /// A relay with a key of this file's, on one address, that lists these users; for tests and demonstrations.
    #[must_use]
    pub fn local(address: IpAddr, users: Vec<User>) -> Self {
        Self {
            key: PathBuf::new(),
            port: 0,
            addresses: vec![address],
            rate: None,
            most_flows: default_paths(),
            allow: class("loopback").unwrap_or_default(),
            deny: Vec::new(),
            control: None,
            metrics: None,
            users,
        }
    }

    /// What the core wants to know.
    #[must_use]
    pub fn core(&self, node: PublicKey) -> RelayConfig {
        RelayConfig {
            listed: self.users.iter().map(|user| (user.key, user.limits)).collect(),
            next_hops: NextHopPolicy { allow: self.allow.clone(), deny: self.deny.clone(), own: Vec::new() },
            rate: self.rate,
            most_flows: self.most_flows,
            ..RelayConfig::new(node)
        }
    }
}

impl User {
    /// A user without limits but those that every user has.
    #[must_use]
    pub fn new(name: &str, key: PublicKey) -> Self {
        Self { name: name.to_owned(), key, limits: limits(None, None, None, None) }
    }
}

/// A path takes two PIDs, one for each direction.
fn limits(paths: Option<u32>, rate: Option<Rate>, bytes: Option<u64>, tos: Option<u8>) -> Limits {
    Limits {
        pids: paths.unwrap_or(USER_PATHS).saturating_mul(2),
        rate: rate.unwrap_or(Rate::from_bits(u64::MAX)),
        bytes: bytes.unwrap_or(u64::MAX),
        highest_tos: tos.unwrap_or(Header::MAX_TOS),
    }
}

fn check(file: File, text: &str) -> Result<RelaySettings, SettingsError> {
    let top = |key: &str| line_of(text, "", 0, key);
    let nets = |key: &str, words: &[String]| -> Result<Vec<IpNet>, SettingsError> {
        let read = words.iter().map(|word| networks(key, word).map_err(|error| error.at(top(key))));
        Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
    };
    let (allow, deny) = (nets("next_hops", &file.next_hops)?, nets("deny", &file.deny)?);
    if file.rate.as_ref().is_some_and(|rate| rate.0 == Rate::ZERO) {
        let error = SettingsError::new("rate", "the relay would forward nothing");
        return Err(error.hint("leave the key out for no limit").at(top("rate")));
    }
    let mut users: Vec<User> = Vec::new();
    for (index, entry) in file.users.into_iter().enumerate() {
        let at = |key: &str| line_of(text, "user", index, key);
        let user = user(entry, index).map_err(|error| {
            let key = error.key.clone();
            error.at(at(&key))
        })?;
        if let Some(other) = users.iter().find(|other| other.key == user.key) {
            let error = SettingsError::new("key", format!("{} has this key already", other.name));
            return Err(error.hint("a key is listed once; its limits go there").at(at("key")));
        }
        users.push(user);
    }
    Ok(RelaySettings {
        key: file.key,
        port: file.port,
        addresses: file.addresses,
        rate: file.rate.map(|rate| rate.0),
        most_flows: file.max_paths,
        allow,
        deny,
        control: file.control,
        metrics: file.metrics,
        users,
    })
}

fn user(entry: UserEntry, index: usize) -> Result<User, SettingsError> {
    let key = entry.key.parse::<PublicKey>().map_err(|error| {
        let hint = "`anabranch keys show` on the user's machine prints it; it begins with ab1";
        SettingsError::new("key", error.to_string()).hint(hint)
    })?;
    if entry.highest_tos.is_some_and(|tos| tos > Header::MAX_TOS) {
        return Err(SettingsError::new("highest_tos", "a type of service is 0 to 15"));
    }
    let name = if entry.name.is_empty() { format!("user {}", index + 1) } else { entry.name };
    let rate = entry.rate.map(|rate| rate.0);
    Ok(User { name, key, limits: limits(entry.paths, rate, entry.bytes, entry.highest_tos) })
}

/// The networks that a word stands for.
fn networks(key: &str, word: &str) -> Result<Vec<IpNet>, SettingsError> {
    if let Some(nets) = class(word) {
        return Ok(nets);
    }
    let address = || word.parse::<IpAddr>().map(IpNet::from);
    let net = word.parse::<IpNet>().or_else(|_| address());
    net.map(|net| vec![net]).map_err(|_| {
        let hint = "write \"private\", \"loopback\", \"link-local\" or a network such as \"10.1.0.0/16\"";
        SettingsError::new(key, format!("\"{word}\" is no network")).hint(hint)
    })
}

/// Networks by name.
fn class(word: &str) -> Option<Vec<IpNet>> {
    let nets: &[&str] = match word {
        "private" => {
            &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7"]
        }
        "loopback" => &["127.0.0.0/8", "::1/128"],
        "link-local" => &["169.254.0.0/16", "fe80::/10"],
        _ => return None,
    };
    nets.iter().map(|net| net.parse().ok()).collect()
}

/// A rate as text: `"100 Mbit/s"`.
pub(crate) struct RateText(pub(crate) Rate);

impl<'de> Deserialize<'de> for RateText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wanted = || {
            let text =
                format!("\"{text}\" is no rate: write one such as \"100 Mbit/s\" (kbit/s, Mbit/s, Gbit/s)");
            de::Error::custom(text)
        };
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..end].parse().map_err(|_| wanted())?;
        let factor = match text[end..].trim() {
            "bit/s" => 1.0,
            "kbit/s" => 1e3,
            "Mbit/s" => 1e6,
            "Gbit/s" => 1e9,
            _ => return Err(wanted()),
        };
        Ok(Self(Rate::from_bits((number * factor) as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ab1";

    fn key() -> PublicKey {
        anabranch_net::NodeKey::from_random([3; 32]).public()
    }

    fn text() -> String {
        format!(
            "key = \"relay.key\"\nport = 4601\nrate = \"20 Mbit/s\"\nnext_hops = [\"private\", \"127.0.0.1\"]\n\n[[user]]\n\
             name = \"laptop\"\nkey = \"{}\"\npaths = 3\nrate = \"5 Mbit/s\"\n",
            key()
        )
    }

    fn mistake(text: &str) -> String {
        RelaySettings::parse(text, "relay.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_file_says_who_may_use_the_relay_and_where_it_forwards_to() {
        let settings = RelaySettings::parse(&text(), "relay.toml").unwrap();
        assert_eq!((settings.port, settings.rate), (4601, Some(Rate::from_mbit(20.0))));
        assert_eq!(settings.users[0].limits.pids, 6);
        let core = settings.core(key());
        for (address, allowed) in
            [("10.1.2.3:4", true), ("127.0.0.1:4", true), ("127.0.0.2:4", false), ("8.8.8.8:4", true)]
        {
            assert_eq!(core.next_hops.allows(address.parse().unwrap()), allowed, "{address}");
        }
        assert_eq!(core.listed[&key()].rate, Rate::from_mbit(5.0));
    }

    #[test]
    fn a_mistake_is_named_with_its_line_and_what_to_do() {
        let unknown = mistake(&text().replace("port", "prot"));
        assert!(
            unknown.starts_with("relay.toml:2: prot: unknown key `prot`")
                && unknown.contains("did you mean `port`?"),
            "{unknown}"
        );
        let unknown = mistake(&text().replace("paths", "path"));
        assert!(unknown.starts_with("relay.toml:9: path") && unknown.contains("`paths`"), "{unknown}");
        let rate = mistake(&text().replace("20 Mbit/s", "20"));
        assert!(rate.starts_with("relay.toml:3: rate") && rate.contains("100 Mbit/s"), "{rate}");
        let net = mistake(&text().replace("private", "privat"));
        assert!(net.starts_with("relay.toml:4: next_hops") && net.contains("10.1.0.0/16"), "{net}");
        let bad = mistake(&text().replace(&key().to_string(), KEY));
        assert!(bad.starts_with("relay.toml:8: key") && bad.contains("anabranch keys show"), "{bad}");
        let twice = mistake(&format!("{}[[user]]\nkey = \"{}\"\n", text(), key()));
        assert!(twice.starts_with("relay.toml:12: key: laptop has this key"), "{twice}");
        let missing = mistake("port = 1\n");
        assert!(missing.contains("`key` is missing"), "{missing}");
    }
}
