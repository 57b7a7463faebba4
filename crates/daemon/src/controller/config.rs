//! The controller's configuration file.
//!
//! ```toml
//! key  = "/etc/anabranch/controller.key"             # who it is, and what it signs with; made when it is missing
//! port = 4700
//!
//! [store]
//! file = "/var/lib/anabranch/controller/controller.store"       # or: etcd = ["http://127.0.0.1:2379"]
//!
//! [http]                                             # if wanted
//! address = "127.0.0.1:4780"
//! token   = "/etc/anabranch/http.token"              # without one it only tells
//!
//! [[relay]]
//! name = "fra-1"
//! key  = "ab1…"
//!
//! [[client]]
//! name   = "laptop"
//! key    = "ab1…"
//! rate   = "50 Mbit/s"
//! ```
//! An unknown key is an error that names the line and the nearest key there is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use anabranch_net::PublicKey;
use anabranch_overlay::controller::{Policy, Quota};
use anabranch_overlay::grant::{MAX_GRANT_RELAYS, MAX_VALIDITY};
use anabranch_settings::SettingsError;
use serde::{Deserialize, Deserializer};

use crate::settings::{self, Names, RateText, located, node_key};
use crate::store::{Etcd, EtcdSettings};
use anabranch_service::http::{HttpEntry, HttpSettings};

/// The default port of a controller.
pub const DEFAULT_PORT: u16 = 4700;

/// A controller's configuration, checked.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// The file with its key.
    pub key: PathBuf,
    /// The UDP port, the same on every address; 0 for any free one.
    pub port: u16,
    /// The local addresses to use; empty for all there are.
    pub addresses: Vec<IpAddr>,
    pub store: StoreSettings,
    /// The Unix socket for `anabranch controller status`, `grants` and `revoke`.
    pub control: Option<PathBuf>,
    /// Its HTTP API, if it has one.
    pub http: Option<HttpSettings>,
    /// Relays, clients and quotas.
    pub policy: Policy,
}

/// A controller's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSettings {
    /// In memory, for trials.
    Memory,
    /// In a file, for one controller.
    File(PathBuf),
    /// In etcd, for several.
    Etcd(EtcdSettings),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key: PathBuf,
    #[serde(default = "default_port")]
    port: u16,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    store: StoreEntry,
    control: Option<PathBuf>,
    http: Option<HttpEntry>,
    #[serde(default, rename = "relay")]
    relays: Vec<RelayEntry>,
    #[serde(default, rename = "client")]
    clients: Vec<QuotaEntry>,
    others: Option<QuotaEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreEntry {
    file: Option<PathBuf>,
    etcd: Option<Vec<String>>,
    prefix: Option<String>,
    #[serde(default)]
    memory: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayEntry {
    #[serde(default)]
    name: String,
    #[serde(deserialize_with = "node_key")]
    key: PublicKey,
}

/// A client; without name and key, all others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaEntry {
    name: Option<String>,
    #[serde(default, deserialize_with = "some_node_key")]
    key: Option<PublicKey>,
    grants: Option<u32>,
    relays: Option<u8>,
    paths: Option<u32>,
    rate: Option<RateText>,
    bytes: Option<u64>,
    highest_tos: Option<u8>,
    lifetime_s: Option<u64>,
}

fn default_port() -> u16 {
    DEFAULT_PORT
}

fn some_node_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PublicKey>, D::Error> {
    node_key(from).map(Some)
}

impl ControllerSettings {
    /// Reads and checks a configuration; `origin` is the file's name, for errors.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SettingsError> {
        settings::parse((text, origin), check)
    }

    /// A controller on one address without a persistent store; for tests and demonstrations.
    pub fn local(address: IpAddr, policy: Policy) -> Self {
        let store = StoreSettings::Memory;
        let (control, http) = (None, None);
        Self { key: PathBuf::new(), port: 0, addresses: vec![address], store, control, http, policy }
    }
}

fn check(file: File, text: &str) -> Result<ControllerSettings, SettingsError> {
    let File { key, port, addresses, store, control, http, relays, clients, others } = file;
    let http = http.map(HttpEntry::check).transpose().map_err(|error| located(error, text, ("http", 0)))?;
    let store = checked_store(store).map_err(|error| located(error, text, ("store", 0)))?;
    let mut policy = Policy { relays: checked_relays(relays, text)?, ..Policy::default() };
    policy.clients = checked_clients(clients, text)?;
    policy.others =
        others.map(quota_of_others).transpose().map_err(|error| located(error, text, ("others", 0)))?;
    Ok(ControllerSettings { key, port, addresses, store, control, http, policy })
}

fn checked_store(entry: StoreEntry) -> Result<StoreSettings, SettingsError> {
    let one = "write one of `file = \"…\"`, `etcd = [\"http://…\"]` and `memory = true`";
    match (entry.file, entry.etcd, entry.memory) {
        (Some(file), None, false) => match entry.prefix {
            None => Ok(StoreSettings::File(file)),
            Some(_) => Err(SettingsError::new("prefix", "only keys in etcd have a prefix")),
        },
        (None, Some(endpoints), false) => {
            let prefix = entry.prefix.unwrap_or_else(|| "anabranch/".to_owned());
            let settings = EtcdSettings { endpoints, prefix };
            Etcd::new(&settings).map_err(|why| SettingsError::new("etcd", why))?;
            Ok(StoreSettings::Etcd(settings))
        }
        (None, None, true) => Ok(StoreSettings::Memory),
        (None, None, false) => Err(SettingsError::new("store", "it is kept nowhere").hint(one)),
        _ => Err(SettingsError::new("store", "it is kept in several places").hint(one)),
    }
}

fn checked_relays(entries: Vec<RelayEntry>, text: &str) -> Result<BTreeSet<PublicKey>, SettingsError> {
    let mut names = Names::default();
    for (index, entry) in entries.into_iter().enumerate() {
        let known = names.add(entry.key, ("relay", index), &entry.name);
        known.map_err(|error| located(error, text, ("relay", index)))?;
    }
    Ok(names.into_keys().collect())
}

fn checked_clients(
    entries: Vec<QuotaEntry>,
    text: &str,
) -> Result<BTreeMap<PublicKey, Quota>, SettingsError> {
    let (mut names, mut quotas) = (Names::default(), BTreeMap::new());
    for (index, entry) in entries.into_iter().enumerate() {
        let read = || {
            let missing =
                || SettingsError::new("key", "`key` is missing").hint("add `key = …` to this table");
            let key = entry.key.ok_or_else(missing)?;
            names.add(key, ("client", index), entry.name.as_deref().unwrap_or_default())?;
            Ok((key, quota(entry)?))
        };
        let (key, quota) = read().map_err(|error| located(error, text, ("client", index)))?;
        quotas.insert(key, quota);
    }
    Ok(quotas)
}

fn quota_of_others(entry: QuotaEntry) -> Result<Quota, SettingsError> {
    if entry.key.is_some() || entry.name.is_some() {
        let error = SettingsError::new("key", "`others` is every key that is not listed");
        return Err(error.hint("write a `[[client]]` for one key"));
    }
    quota(entry)
}

fn quota(entry: QuotaEntry) -> Result<Quota, SettingsError> {
    let relays = entry.relays.unwrap_or(MAX_GRANT_RELAYS as u8);
    if !(1..=MAX_GRANT_RELAYS as u8).contains(&relays) {
        return Err(SettingsError::new("relays", format!("a grant names 1 to {MAX_GRANT_RELAYS} relays")));
    }
    let lifetime = entry.lifetime_s.unwrap_or(3_600);
    if !(1..=MAX_VALIDITY).contains(&lifetime) {
        let why = format!("a grant lives 1 to {MAX_VALIDITY} seconds");
        return Err(SettingsError::new("lifetime_s", why));
    }
    let limits = settings::limits((entry.paths, entry.highest_tos), (entry.rate, entry.bytes))?;
    Ok(Quota { grants: entry.grants.unwrap_or(8), relays, limits, lifetime })
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Rate;

    use super::*;

    fn public(seed: u8) -> String {
        anabranch_net::NodeKey::from_random([seed; 32]).public().to_string()
    }

    fn text() -> String {
        format!(
            "key = \"c.key\"\nport = 4700\n\n[store]\nfile = \"c.store\"\n\n[[relay]]\nname = \"fra\"\nkey = \"{}\"\n\n\
             [[client]]\nkey = \"{}\"\npaths = 4\nrate = \"20 Mbit/s\"\n\n[others]\ngrants = 1\npaths = 1\n",
            public(1),
            public(2)
        )
    }

    fn mistake(text: &str) -> String {
        ControllerSettings::parse(text, "c.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_file_says_who_may_have_what() {
        let settings = ControllerSettings::parse(&text(), "c.toml").unwrap();
        assert_eq!((settings.port, settings.store), (DEFAULT_PORT, StoreSettings::File("c.store".into())));
        let key: PublicKey = public(2).parse().unwrap();
        let quota = settings.policy.quota(&key).unwrap();
        assert_eq!((quota.limits.pids, quota.limits.rate, quota.grants), (8, Rate::from_mbit(20.0), 8));
        let other: PublicKey = public(3).parse().unwrap();
        assert_eq!(settings.policy.quota(&other).unwrap().grants, 1);
        assert!(settings.policy.may_relay(&public(1).parse().unwrap()).is_ok());
        assert!(settings.policy.may_relay(&key).is_err());
        let several = text().replace("file = \"c.store\"", "etcd = [\"http://127.0.0.1:2379\"]");
        let settings = ControllerSettings::parse(&several, "c.toml").unwrap();
        let StoreSettings::Etcd(etcd) = settings.store else { panic!("not etcd") };
        assert_eq!((etcd.endpoints.len(), etcd.prefix.as_str()), (1, "anabranch/"));
    }

    #[test]
    fn without_others_an_unlisted_key_has_no_quota() {
        let text = text();
        let settings = ControllerSettings::parse(&text[..text.find("[others]").unwrap()], "c.toml").unwrap();
        assert!(settings.policy.quota(&public(3).parse().unwrap()).is_err());
    }

    #[test]
    fn a_mistake_is_named_with_its_line_and_what_to_do() {
        for (from, to, line, says) in [
            ("port", "prot", "c.toml:2: prot", "did you mean `port`?"),
            ("4700", "70000", "c.toml:2: port", "`port = 4700`"),
            ("file = ", "fil = ", "c.toml:5: fil", "did you mean `file`?"),
            ("paths = 4", "path = 4", "c.toml:13: path", "did you mean `paths`?"),
            ("20 Mbit/s", "20", "c.toml:14", "100 Mbit/s"),
            ("paths = 4", "bytes = 0", "c.toml:13: bytes: nothing would be forwarded", "leave the key out"),
            ("paths = 4", "paths = 0", "c.toml:13: paths: nothing would be forwarded", "leave the key out"),
            ("paths = 4", "relays = 17", "c.toml:13: relays", "1 to 16"),
            ("paths = 4", "lifetime_s = 0", "c.toml:13: lifetime_s", "1 to"),
            ("file = \"c.store\"", "", "c.toml:4: store", "etcd ="),
            ("file = \"c.store\"", "etcd = [\"https://a:1\"]", "c.toml:5: etcd", "tunnel"),
            (&public(1), "ab1", "c.toml:9: key", "anabranch keys show"),
        ] {
            let told = mistake(&text().replacen(from, to, 1));
            assert!(told.starts_with(line) && told.contains(says), "{from} -> {to}: {told}");
        }
        let twice =
            mistake(&text().replace("[others]", &format!("[[relay]]\nkey = \"{}\"\n[others]", public(1))));
        assert!(
            twice.starts_with("c.toml:17: key: fra has this key") && twice.contains("two machines"),
            "{twice}"
        );
        assert!(mistake("[store]\nmemory = true\n").contains("`key` is missing"));
        let homeless = mistake("key = \"c.key\"\n");
        assert!(homeless.contains("`store` is missing\n  hint    write a table: `[store]`"), "{homeless}");
    }
}
