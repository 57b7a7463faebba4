//! Shared parts of the configuration files of relay and controller.

use std::collections::BTreeMap;

use anabranch_net::PublicKey;
use anabranch_overlay::grant::Limits;
pub(crate) use anabranch_settings::located;
use anabranch_settings::{SettingsError, parsed};
use anabranch_wire::{Header, Rate};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// Default number of paths of one user at a relay.
const USER_PATHS: u32 = 64;

/// Parses and checks a file of settings; `origin` is its name, for errors.
pub(crate) fn parse<F: DeserializeOwned, S>(
    (text, origin): (&str, &str),
    check: impl FnOnce(F, &str) -> Result<S, SettingsError>,
) -> Result<S, SettingsError> {
    let file =
        toml::from_str(text).map_err(|error| with_example(SettingsError::from_toml::<F>(&error, text)));
    file.and_then(|file| check(file, text)).map_err(|error: SettingsError| error.of(origin))
}

/// Examples of valid values, for keys whose errors come from the parser, and for missing tables.
const EXAMPLES: [(&str, &str); 14] = [
    ("address", "`address = \"127.0.0.1:4780\"`, an IP address and a port"),
    ("addresses", "IP addresses without port, `addresses = [\"192.0.2.1\"]`"),
    ("announce", "IP addresses with port, `announce = [\"198.51.100.2:4600\"]`"),
    ("bytes", "a number without unit, `bytes = 1_000_000_000` for 1 GB"),
    ("grants", "a number, `grants = 8`"),
    ("highest_tos", "a number from 0 to 15, `highest_tos = 15`"),
    ("lifetime_s", "seconds as a number, `lifetime_s = 3_600`"),
    ("max_paths", "a number, `max_paths = 50_000`"),
    ("metrics", "an IP address and a port, `metrics = \"127.0.0.1:9600\"`"),
    ("paths", "a number, `paths = 64`"),
    (
        "port",
        "a number up to 65535: usual are `port = 4600` for a relay and `port = 4700` for a controller, 0 is any that is free",
    ),
    ("rate", "a number and its unit as text, `rate = \"100 Mbit/s\"`"),
    ("relays", "a number, `relays = 16`"),
    (
        "store",
        "a table: `[store]`, and in the line below `file = \"/var/lib/anabranch/controller/controller.store\"`",
    ),
];

/// Adds an example for the error's key, where the parser gives none.
fn with_example(error: SettingsError) -> SettingsError {
    let is_terse = error.message.starts_with("invalid ") || error.key == "store";
    match EXAMPLES.iter().find(|(key, _)| is_terse && *key == error.key) {
        Some((_, example)) => error.hint(format!("write {example}")),
        None => error,
    }
}

/// Reads a node's key.
pub(crate) fn node_key<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
    let hint = "`anabranch keys show` on that machine prints it; it begins with ab1";
    parsed(from, |text| text.parse().map_err(|error: anabranch_secure::TextError| format!("{error}\n{hint}")))
}

/// Keys with their names for people; each is listed once.
#[derive(Default)]
pub(crate) struct Names(BTreeMap<PublicKey, String>);

impl Names {
    /// Adds the `index`-th key of a kind; returns its name.
    pub(crate) fn add(
        &mut self,
        key: PublicKey,
        (what, index): (&str, usize),
        name: &str,
    ) -> Result<String, SettingsError> {
        if let Some(other) = self.0.get(&key) {
            let error = SettingsError::new("key", format!("{other} has this key already"));
            return Err(error.hint("a key is listed once; two machines must not share one"));
        }
        let name = if name.is_empty() { format!("{what} {}", index + 1) } else { name.to_owned() };
        self.0.insert(key, name.clone());
        Ok(name)
    }

    /// All keys, in order.
    pub(crate) fn into_keys(self) -> impl Iterator<Item = PublicKey> {
        self.0.into_keys()
    }
}

/// The limits in a table of the file. A path takes two PIDs, one for each direction.
pub(crate) fn limits(
    (paths, highest_tos): (Option<u32>, Option<u8>),
    (rate, bytes): (Option<RateText>, Option<u64>),
) -> Result<Limits, SettingsError> {
    if highest_tos.is_some_and(|tos| tos > Header::MAX_TOS) {
        return Err(SettingsError::new("highest_tos", "a type of service is 0 to 15"));
    }
    let nothing = [("paths", paths == Some(0)), ("bytes", bytes == Some(0))];
    if let Some((name, _)) = nothing.into_iter().find(|(_, is_zero)| *is_zero) {
        let error = SettingsError::new(name, "nothing would be forwarded");
        return Err(error.hint("leave the key out for the default, or the whole entry to forbid use"));
    }
    Ok(Limits {
        pids: paths.unwrap_or(USER_PATHS).saturating_mul(2),
        rate: rate.map_or(Rate::from_bits(u64::MAX), |rate| rate.0),
        bytes: bytes.unwrap_or(u64::MAX),
        highest_tos: highest_tos.unwrap_or(Header::MAX_TOS),
    })
}

/// A rate as text: `"100 Mbit/s"`.
pub(crate) struct RateText(pub(crate) Rate);

impl<'de> Deserialize<'de> for RateText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(from, anabranch_settings::rate).map(|bits| Self(Rate::from_bits(bits)))
    }
}
