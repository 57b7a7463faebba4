//! A file of grants, for programs that start while no controller answers.
//!
//! The file is JSON and readable by its owner only. Others could not use a grant, but it reveals the relays and
//! controllers of its owner. Expired grants are dropped.

use std::fs;
use std::io;
use std::path::Path;

use anabranch_net::PublicKey;
use anabranch_overlay::controller::message::GrantedRelay;
use anabranch_overlay::grant::{GrantId, UnixTime};
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::Held;
use crate::controllers::Granted;

/// Version of the file; others are not read.
const VERSION: u32 = 1;
/// Most grants in the file; those that expire last are stored.
const MOST: usize = 16;

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    grants: Vec<Kept>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    from: String,
    grant: String,
    asked: u8,
    relays: Vec<GrantedRelay>,
}

/// Reads the grants. An unreadable file counts as empty, since grants can be requested again.
pub(crate) fn load(file: &Path) -> Vec<Held> {
    match read(file) {
        Ok(held) => held,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            tracing::warn!("{}: {error}; asking for new grants", file.display());
            Vec::new()
        }
    }
}

/// Stores a grant, replacing an earlier version of it.
pub(crate) fn store(file: &Path, held: &Held, now: UnixTime) -> io::Result<()> {
    let mut all = load(file);
    all.retain(|other| other.grant.id != held.grant.id);
    all.push(held.clone());
    write(file, all, now)
}

pub(crate) fn remove(file: &Path, grant: GrantId, now: UnixTime) -> io::Result<()> {
    let mut all = load(file);
    all.retain(|other| other.grant.id != grant);
    write(file, all, now)
}

fn read(file: &Path) -> io::Result<Vec<Held>> {
    let File { version, grants } = serde_json::from_slice(&fs::read(file)?)?;
    if version != VERSION {
        return Err(io::Error::other(format!("it has version {version}, and this program reads {VERSION}")));
    }
    let held = grants.into_iter().map(|Kept { from, grant, asked, relays }| {
        let from = from.parse::<PublicKey>().map_err(io::Error::other)?;
        let bytes = BASE64.decode(grant.as_bytes()).map_err(io::Error::other)?;
        Held::read(Granted { from, bytes, relays }, asked).map_err(io::Error::other)
    });
    held.collect()
}

fn write(file: &Path, mut all: Vec<Held>, now: UnixTime) -> io::Result<()> {
    all.retain(|held| held.grant.not_after >= now);
    all.sort_by_key(|held| std::cmp::Reverse(held.grant.not_after));
    let kept = |held: Held| Kept {
        from: held.granted.from.to_string(),
        grant: BASE64.encode(&held.granted.bytes),
        asked: held.asked,
        relays: held.granted.relays,
    };
    let content = File { version: VERSION, grants: all.into_iter().take(MOST).map(kept).collect() };
    crate::file::replace(file, &serde_json::to_vec_pretty(&content)?)
}

#[cfg(test)]
mod tests {
    use anabranch_net::{NodeKey, Rate};
    use anabranch_overlay::grant::{Grant, GrantSigner, Limits};

    use super::*;

    fn held(id: u8, until: u64) -> Held {
        let key = |seed| NodeKey::from_random([seed; 32]).public();
        let limits = Limits { pids: 2, rate: Rate::from_bits(9), bytes: 9, highest_tos: 3 };
        let (issued, not_before) = (UnixTime(1_000), UnixTime(1_000));
        let (relays, not_after) = (vec![key(2)], UnixTime(until));
        let grant =
            Grant { id: GrantId([id; 16]), client: key(1), relays, limits, issued, not_before, not_after };
        let bytes = GrantSigner::from_random([9; 32]).sign(&grant).unwrap();
        let relays = vec![GrantedRelay { node: key(2), addresses: vec!["192.0.2.1:4600".parse().unwrap()] }];
        Held { grant, granted: Granted { from: key(3), bytes, relays }, asked: 1 }
    }

    #[test]
    fn a_grant_is_renewed_after_half_of_its_lifetime_even_if_the_clock_here_is_far_behind() {
        let held = held(1, 2_000);
        let wait = [0, 1_000, 1_200, 1_500, 3_000].map(|now| held.until_half(UnixTime(now)));
        assert_eq!(wait, [500, 500, 300, 0, 0]);
    }

    #[test]
    fn a_grant_is_kept_to_its_end_and_a_renewed_one_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("grants");
        assert_eq!(load(&file), []);
        for (one, now) in [(held(1, 2_000), 1_000), (held(2, 3_000), 1_000), (held(1, 2_500), 1_000)] {
            store(&file, &one, UnixTime(now)).unwrap();
        }
        assert_eq!(load(&file), [held(2, 3_000), held(1, 2_500)]);
        store(&file, &held(3, 4_000), UnixTime(2_501)).unwrap();
        remove(&file, GrantId([2; 16]), UnixTime(2_501)).unwrap();
        assert_eq!(load(&file), [held(3, 4_000)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_controller_has_no_more_relays_called_than_were_asked_for_and_few_addresses_of_each() {
        let mut granted = held(1, 2_000).granted;
        let relay = &mut granted.relays[0];
        let address = |port: u16| std::net::SocketAddr::from(([192, 0, 2, 1], port));
        relay.addresses = (1..=3_000).map(address).collect();
        let more = vec![relay.clone(); 99];
        granted.relays.extend(more);
        let kept = Held::read(granted, 2).unwrap().granted.relays;
        assert_eq!(kept.iter().map(|relay| relay.addresses.len()).collect::<Vec<_>>(), [16, 16]);
    }

    #[test]
    fn a_file_that_is_damaged_or_of_another_version_counts_as_empty_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("grants");
        for text in [
            "",
            "{",
            r#"{"version":2,"grants":[]}"#,
            r#"{"version":1,"grants":[{"from":"x","grant":"","asked":1,"relays":[]}]}"#,
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(load(&file), [], "{text}");
            store(&file, &held(1, 2_000), UnixTime(1_000)).unwrap();
            assert_eq!(load(&file), [held(1, 2_000)]);
        }
    }
}
