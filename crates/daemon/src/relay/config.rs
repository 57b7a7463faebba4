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
//!
//! [[controller]]                         # the two lines that `anabranch controller` prints
//! at    = "ab1…@198.51.100.2:4700"        # or a name, "ab1…@controller.example.net:4700"
//! signs = "abs1…"
//! ```
//! An unknown key is an error that names the line and the nearest key there is.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anabranch_net::PublicKey;
use anabranch_overlay::grant::{ControllerKey, Limits};
use anabranch_overlay::relay::{NextHopPolicy, RelayConfig};
use anabranch_settings::{SettingsError, line_of, parsed};
use anabranch_wire::Rate;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use crate::settings::{self, Names, RateText};
use anabranch_node::ControllerHint;
use anabranch_node::USUAL_PATHS;

/// The default port of a relay.
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
    /// Rate of all forwarded packets together; `None` without a limit.
    pub rate: Option<Rate>,
    /// Most paths of all users.
    pub most_flows: usize,
    /// Networks that it forwards to in addition to the public Internet.
    pub allow: Vec<IpNet>,
    /// Networks that it never forwards to.
    pub deny: Vec<IpNet>,
    /// The Unix socket for `anabranch relay status` and `drain`.
    pub control: Option<PathBuf>,
    /// Where Prometheus fetches metrics from.
    pub metrics: Option<SocketAddr>,
    /// The file that keeps usage of grants and users over a restart.
    pub usage: Option<PathBuf>,
    pub users: Vec<User>,
    /// Its location, in its operator's words. Controllers grant relays of different locations together.
    pub place: String,
    /// The addresses at which others reach it; empty for those of its sockets.
    pub announce: Vec<SocketAddr>,
    /// The controllers whose grants count.
    pub controllers: Vec<Controller>,
}

/// A controller that a relay registers with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Its key and addresses.
    #[serde(deserialize_with = "controller_at")]
    pub at: ControllerHint,
    /// The key that it signs grants with.
    #[serde(deserialize_with = "controller_key")]
    pub signs: ControllerKey,
}

/// A user of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// A name for people.
    pub name: String,
    /// The key of the user's node.
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
    next_hops: Vec<Networks>,
    #[serde(default)]
    deny: Vec<Networks>,
    control: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    usage: Option<PathBuf>,
    #[serde(default, rename = "user")]
    users: Vec<UserEntry>,
    #[serde(default)]
    place: String,
    #[serde(default)]
    announce: Vec<SocketAddr>,
    #[serde(default, rename = "controller")]
    controllers: Vec<Controller>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    #[serde(default)]
    name: String,
    #[serde(deserialize_with = "settings::node_key")]
    key: PublicKey,
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

/// Longest location, in bytes.
const MAX_PLACE: usize = 64;
/// Most addresses that are announced.
const MAX_ANNOUNCED: usize = 16;
/// Most controllers of one relay.
const MAX_CONTROLLERS: usize = 16;

impl RelaySettings {
    /// Reads and checks a configuration; `origin` is the file's name, for errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SettingsError> {
        settings::parse((text, origin), check)
    }

    /// A relay with a key of this file's, on one address, that lists these users; for tests and demonstrations.
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
            usage: None,
            users,
            place: String::new(),
            announce: Vec::new(),
            controllers: Vec::new(),
        }
    }

    /// The core's part of the configuration.
    pub fn core(&self, node: PublicKey) -> RelayConfig {
        RelayConfig {
            controllers: self.controllers.iter().map(|controller| controller.signs).collect(),
            listed: self.users.iter().map(|user| (user.key, user.limits)).collect(),
            next_hops: NextHopPolicy {
                allow: self.allow.clone(),
                deny: self.deny.clone(),
                public: self.announce.iter().map(SocketAddr::ip).collect(),
                ..NextHopPolicy::default()
            },
            rate: self.rate,
            most_flows: self.most_flows,
            ..RelayConfig::new(node)
        }
    }
}

impl RelaySettings {
    /// Settings that the operator probably did not intend, for the log.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.users.is_empty() && self.controllers.is_empty() {
            let what = "this relay has no users: its configuration has no `[[user]]` and no `[[controller]]`; add one and send SIGHUP";
            warnings.push(what.to_owned());
        }
        if !self.controllers.is_empty() && self.most_flows < USUAL_PATHS as usize {
            let most = self.most_flows;
            warnings.push(format!(
                "controllers prefer other relays: programs ask for {USUAL_PATHS} paths at each relay, and `max_paths` is {most}"
            ));
        }
        warnings
    }
}

impl User {
    /// A user with the default limits.
    pub fn new(name: &str, key: PublicKey) -> Self {
        let limits = settings::limits((None, None), (None, None)).expect("the default limits are valid");
        Self { name: name.to_owned(), key, limits }
    }
}

fn check(file: File, text: &str) -> Result<RelaySettings, SettingsError> {
    let top = |key: &str| line_of(text, "", 0, key);
    if file.rate.as_ref().is_some_and(|rate| rate.0 == Rate::ZERO) {
        let error = SettingsError::new("rate", "the relay would forward nothing");
        return Err(error.hint("leave the key out for no limit").at(top("rate")));
    }
    if file.max_paths == 0 {
        let error = SettingsError::new("max_paths", "the relay would forward nothing");
        return Err(error.hint("leave the key out for 50,000").at(top("max_paths")));
    }
    check_announcement(&file).map_err(|error| settings::located(error, text, ("", 0)))?;
    let (mut names, mut users) = (Names::default(), Vec::new());
    for (index, entry) in file.users.into_iter().enumerate() {
        let user = user(entry, (&mut names, index));
        users.push(user.map_err(|error| settings::located(error, text, ("user", index)))?);
    }
    let all = |words: Vec<Networks>| words.into_iter().flat_map(|word| word.0).collect();
    Ok(RelaySettings {
        key: file.key,
        port: file.port,
        addresses: file.addresses,
        rate: file.rate.map(|rate| rate.0),
        most_flows: file.max_paths,
        allow: all(file.next_hops),
        deny: all(file.deny),
        control: file.control,
        metrics: file.metrics,
        usage: file.usage,
        users,
        place: file.place,
        announce: file.announce,
        controllers: file.controllers,
    })
}

/// Checks the announcement against the limits of controllers.
fn check_announcement(file: &File) -> Result<(), SettingsError> {
    if file.place.len() > MAX_PLACE {
        return Err(SettingsError::new("place", format!("a place has at most {MAX_PLACE} bytes")));
    }
    if file.announce.len() > MAX_ANNOUNCED {
        return Err(SettingsError::new(
            "announce",
            format!("at most {MAX_ANNOUNCED} addresses are announced"),
        ));
    }
    if file.controllers.len() > MAX_CONTROLLERS {
        return Err(SettingsError::new("controller", format!("at most {MAX_CONTROLLERS} of them")));
    }
    if file.controllers.is_empty() && (!file.place.is_empty() || !file.announce.is_empty()) {
        let key = if file.place.is_empty() { "announce" } else { "place" };
        let error = SettingsError::new(key, "only controllers use it, and the file names none");
        return Err(error.hint("add a `[[controller]]`, or leave the key out"));
    }
    Ok(())
}

fn user(entry: UserEntry, (names, index): (&mut Names, usize)) -> Result<User, SettingsError> {
    let limits = settings::limits((entry.paths, entry.highest_tos), (entry.rate, entry.bytes))?;
    let name = names.add(entry.key, ("user", index), &entry.name)?;
    Ok(User { name, key: entry.key, limits })
}

fn controller_at<'de, D: Deserializer<'de>>(from: D) -> Result<ControllerHint, D::Error> {
    parsed(from, str::parse)
}

fn controller_key<'de, D: Deserializer<'de>>(from: D) -> Result<ControllerKey, D::Error> {
    let hint = "it is the second line that `anabranch controller` prints; it begins with abs1";
    parsed(from, |text| text.parse().map_err(|_| format!("\"{text}\" is no signing key\n{hint}")))
}

/// The networks that a word stands for.
struct Networks(Vec<IpNet>);

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let hint = "write \"private\", \"loopback\", \"link-local\" or a network such as \"10.1.0.0/16\"";
        let net = |word: &str| word.parse::<IpNet>().or_else(|_| word.parse::<IpAddr>().map(IpNet::from));
        let all = |word: &str| class(word).or_else(|| Some(vec![net(word).ok()?])).map(Self);
        parsed(from, |word| all(word).ok_or_else(|| format!("\"{word}\" is no network\n{hint}")))
    }
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
    fn controllers_are_named_by_where_they_are_and_what_they_sign_with() {
        let signs = anabranch_overlay::grant::GrantSigner::from_random([4; 32]).public();
        let at = format!("{}@192.0.2.1:4700,[2001:db8::1]:4700", key());
        let table = format!("[[controller]]\nat = \"{at}\"\nsigns = \"{signs}\"\n");
        let with = |head: &str| format!("{head}{}\n{table}", text());
        let settings = RelaySettings::parse(&with("place = \"fra\"\n"), "relay.toml").unwrap();
        assert_eq!(settings.controllers[0].at.to_string(), at);
        assert_eq!((settings.core(key()).controllers, settings.place.as_str()), (vec![signs], "fra"));
        for (from, to, says) in [
            ("abs1", "ab1", "relay.toml:15: signs"),
            ("@192.0.2.1:4700", "", "relay.toml:14: at"),
            ("signs", "sings", "`signs`"),
        ] {
            let told = mistake(&with("\n").replacen(from, to, 1));
            assert!(told.contains(says), "{from}: {told}");
        }
        let nobody = mistake(&format!("place = \"fra\"\n{}", text()));
        assert!(nobody.starts_with("relay.toml:1: place") && nobody.contains("[[controller]]"), "{nobody}");
    }

    #[test]
    fn a_relay_without_users_or_with_few_paths_is_warned_about() {
        let parse = |text: &str| RelaySettings::parse(text, "relay.toml").unwrap();
        assert_eq!(parse(&text()).warnings(), Vec::<String>::new());
        let nobody = parse("key = \"relay.key\"\n").warnings();
        assert!(nobody.len() == 1 && nobody[0].contains("`[[user]]`"), "{nobody:?}");
        let signs = anabranch_overlay::grant::GrantSigner::from_random([4; 32]).public();
        let with = |paths: u32| {
            let head = format!("key = \"relay.key\"\nmax_paths = {paths}\n");
            parse(&format!("{head}[[controller]]\nat = \"{}@192.0.2.1:4700\"\nsigns = \"{signs}\"\n", key()))
        };
        assert_eq!(with(16).warnings(), Vec::<String>::new());
        let few = with(15).warnings();
        assert!(few.len() == 1 && few[0].contains("`max_paths` is 15"), "{few:?}");
        let none = mistake(&format!("max_paths = 0\n{}", text()));
        assert!(none.starts_with("relay.toml:1: max_paths: the relay would forward nothing"), "{none}");
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
        for (from, to, says) in [
            ("\"20 Mbit/s\"", "100", "relay.toml:3: rate: invalid type: integer `100`"),
            ("4601", "70000", "relay.toml:2: port: invalid value: integer `70000`"),
            ("port = 4601", "metrics = \"9600\"", "relay.toml:2: metrics: invalid socket address"),
            ("port = 4601", "announce = [\"9600\"]", "relay.toml:2: announce: invalid socket address"),
            ("paths = 3", "bytes = \"1 MB\"", "relay.toml:9: bytes: invalid type: string \"1 MB\""),
        ] {
            let told = mistake(&text().replacen(from, to, 1));
            let (what, hint) = told.split_once("\n  hint    write ").unwrap_or((&told, ""));
            let key = to.split(' ').next().filter(|_| to.contains('=')).unwrap_or_default();
            assert!(what.starts_with(says) && hint.contains(&format!("{key} = ")), "{told}");
        }
        let missing = mistake("port = 1\n");
        assert!(missing.contains("`key` is missing"), "{missing}");
    }
}
