//! Records what tunnels have changed on this machine, in one file for all of them, so that each takes back only its own
//! changes.
//!
//! A tunnel has a *slot*: a number from which its routing table and the priorities of its rules follow. A setting that
//! two tunnels need, such as forwarding, goes back to its old value with the last of them. An entry names the process
//! that made it. When that process is gone, the next tunnel of any name takes the entry's changes back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::dns;
use crate::error::TunnelError;

/// The file's directory, which survives a power cut.
const DIRECTORY: &str = "/var/lib/anabranch";
/// Tunnels on one machine at the same time.
pub(super) const MOST_TUNNELS: u32 = 64;

/// The contents of the file.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Registry {
    /// The kernel's id of this boot. Of all changes, only that of the resolver's file outlives a reboot.
    boot: String,
    /// By the device's name.
    pub(super) tunnels: BTreeMap<String, Claim>,
    settings: Vec<Changed>,
    pub(super) resolver: Option<dns::Overwritten>,
    closed: Vec<KillSwitch>,
    /// The file had an entry about the resolver when it was read: its removal must reach the disk, too.
    #[serde(skip)]
    had_resolver: bool,
}

/// A tunnel's kill switch, which may outlast the tunnel. Devices of two network namespaces may have the same name.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KillSwitch {
    /// The tunnel's device.
    interface: String,
    /// The UDP port that it lets out.
    port: u16,
    /// The network namespace.
    network: u64,
}

/// A tunnel's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) slot: u32,
    process: Process,
    /// The network namespace: only a process in it can take changes back.
    #[serde(default)]
    network: Option<u64>,
}

/// A process. Its number alone may later belong to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    id: u32,
    /// When it started, in the kernel's ticks.
    started: u64,
}

/// A kernel setting that was changed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Changed {
    /// The network namespace.
    network: u64,
    /// Below `/proc/sys`.
    setting: String,
    before: String,
    /// The devices of the tunnels that need it.
    users: BTreeSet<String>,
}

impl Process {
    fn current() -> Self {
        let id = std::process::id();
        Self { id, started: started(id).unwrap_or(0) }
    }

    fn is_alive(self) -> bool {
        started(self.id) == Some(self.started)
    }
}

/// When the process started; `None` once it has ended, even if its parent has not noticed yet.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before it may contain anything, even parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

/// The network namespace of this process.
fn network() -> u64 {
    fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino())
}

/// The network namespaces in which a process runs, or which have a name (`ip netns`).
fn networks() -> BTreeSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_processes =
        processes.filter_map(|process| Some(fs::metadata(process.path().join("ns/net")).ok()?.ino()));
    // Mounted namespaces are listed as `net:[4026531840]`.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let named = mounts.lines().filter_map(|line| line.split_once("net:[")?.1.split_once(']')?.0.parse().ok());
    of_processes.chain(named).collect()
}

impl Registry {
    /// Gives this process's tunnel a slot.
    pub(super) fn claim(&mut self, interface: &str) -> Result<u32, TunnelError> {
        if self.is_running(interface) {
            return Err(TunnelError::Running(interface.to_owned()));
        }
        self.forget_ended_elsewhere(&networks());
        let free = |tunnels: &BTreeMap<String, Claim>| {
            (0..MOST_TUNNELS).find(|slot| !tunnels.values().any(|claim| claim.slot == *slot))
        };
        if free(&self.tunnels).is_none() {
            // Those of namespaces that are gone, with settings.
            self.tunnels.retain(|_, claim| claim.process.is_alive());
        }
        let slot = free(&self.tunnels).ok_or(TunnelError::TooMany)?;
        let claim = Claim { slot, process: Process::current(), network: Some(network()) };
        self.tunnels.insert(interface.to_owned(), claim);
        self.forget_strays();
        Ok(slot)
    }

    /// The tunnels of this network namespace, by their devices.
    pub(super) fn here(&self) -> impl Iterator<Item = (&String, &Claim)> {
        let network = network();
        self.tunnels.iter().filter(move |(_, claim)| claim.network.is_none_or(|other| other == network))
    }

    /// Forgets ended tunnels of other network namespaces. Their leftovers carry a tag; only changed settings need the
    /// record, while the namespace is there: the kernel gives its number to a new one, which must not be changed.
    fn forget_ended_elsewhere(&mut self, there: &BTreeSet<u64>) {
        let (own, settings) = (network(), &self.settings);
        self.tunnels.retain(|name, claim| {
            let has_settings = || settings.iter().any(|changed| changed.users.contains(name));
            claim.process.is_alive()
                || claim.network.is_none_or(|other| other == own || there.contains(&other) && has_settings())
        });
    }

    /// Forgets settings of network namespaces whose tunnels have lost their entry: the entry of an ended process gives way
    /// to a tunnel of the same name in another namespace. The kernel gives the number of a namespace that is gone to a new
    /// one, where such a setting would never be restored.
    fn forget_strays(&mut self) {
        for changed in &mut self.settings {
            let network = Some(changed.network);
            changed.users.retain(|user| self.tunnels.get(user).is_some_and(|claim| claim.network == network));
        }
        self.settings.retain(|changed| !changed.users.is_empty());
    }

    /// Forgets kill switches of other network namespaces that are gone: the kernel may give their numbers to new ones.
    fn forget_kill_switches(&mut self, there: &BTreeSet<u64>) {
        let own = network();
        self.closed.retain(|closed| closed.network == own || there.contains(&closed.network));
    }

    /// Takes back the changes of the tunnel with this name, and of all tunnels whose process is gone. A tunnel that
    /// another process runs is left alone, unless `even_running`.
    pub(super) fn release(&mut self, interface: &str, even_running: bool) {
        let (own, network) = (Process::current(), network());
        let ends = |name: &String, claim: &Claim| {
            let is_named = name == interface && (even_running || claim.process == own);
            let is_here = claim.network.is_none_or(|other| other == network);
            is_here && (is_named || !claim.process.is_alive())
        };
        let ended: Vec<String> = self
            .tunnels
            .iter()
            .filter(|(name, claim)| ends(name, claim))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &ended {
            self.tunnels.remove(name);
            self.restore_settings(name);
        }
        // Also for tunnels of an earlier boot or of a network that is gone: the resolver's file outlives them.
        let tunnels = &self.tunnels;
        let is_kept = |name: &str| tunnels.get(name).is_some_and(|claim| claim.process.is_alive());
        if self.resolver.as_mut().is_some_and(|file| file.keep(is_kept)) {
            self.resolver = None;
        }
    }

    /// Whether this process runs a tunnel of this name.
    fn is_own(&self, interface: &str) -> bool {
        self.tunnels.get(interface).is_some_and(|claim| claim.process == Process::current())
    }

    /// Whether another process runs a tunnel of this name.
    pub(super) fn is_running(&self, interface: &str) -> bool {
        let claim = self.tunnels.get(interface);
        claim.is_some_and(|claim| claim.process.is_alive() && claim.process != Process::current())
    }

    /// The same for the tunnels of this network namespace.
    pub(super) fn is_running_here(&self, interface: &str) -> bool {
        self.is_running(interface) && self.here().any(|(name, _)| name == interface)
    }

    /// Notes that this tunnel has a kill switch, which lets this UDP port out.
    pub(super) fn close(&mut self, interface: &str, port: u16) {
        self.forget_kill_switches(&networks());
        self.open(interface);
        self.closed.push(KillSwitch { interface: interface.to_owned(), port, network: network() });
    }

    /// Notes that this tunnel has no kill switch.
    pub(super) fn open(&mut self, interface: &str) {
        let network = network();
        self.closed.retain(|closed| closed.network != network || closed.interface != interface);
    }

    /// The UDP ports that kill switches of this network namespace let out, by the device's name.
    pub(super) fn closed(&self) -> BTreeMap<String, u16> {
        let network = network();
        let here = self.closed.iter().filter(|closed| closed.network == network);
        here.map(|closed| (closed.interface.clone(), closed.port)).collect()
    }

    /// Sets the kernel setting below `/proc/sys` for this tunnel.
    pub(super) fn set(&mut self, interface: &str, setting: &str, value: &str) -> Result<(), TunnelError> {
        let file = Path::new("/proc/sys").join(setting);
        let failed = |error| TunnelError::File { file: file.display().to_string(), error };
        let now = fs::read_to_string(&file).map_err(failed)?;
        let network = network();
        let known = |changed: &&mut Changed| changed.setting == setting && changed.network == network;
        if let Some(changed) = self.settings.iter_mut().find(known) {
            changed.users.insert(interface.to_owned());
        } else if now.trim() != value {
            self.settings.push(Changed {
                network,
                setting: setting.to_owned(),
                before: now.trim().to_owned(),
                users: BTreeSet::from([interface.to_owned()]),
            });
        }
        // Written before the kernel's setting changes: this process may be killed between the two.
        self.save()?;
        if now.trim() == value { Ok(()) } else { fs::write(&file, value).map_err(failed) }
    }

    /// Notes that this tunnel needs such settings, too, if another one has changed them.
    pub(super) fn share(&mut self, interface: &str, is_such: impl Fn(&str) -> bool) {
        let network = network();
        let here = self.settings.iter_mut().filter(|changed| changed.network == network);
        for changed in here.filter(|changed| is_such(&changed.setting)) {
            changed.users.insert(interface.to_owned());
        }
    }

    /// Takes back this tunnel's kernel settings, the last change first.
    fn restore_settings(&mut self, interface: &str) {
        let network = network();
        for changed in self.settings.iter_mut().rev().filter(|changed| changed.network == network) {
            let was_used = changed.users.remove(interface);
            if was_used && changed.users.is_empty() {
                // The interface that a setting is about may be gone.
                let _ = fs::write(Path::new("/proc/sys").join(&changed.setting), &changed.before);
            }
        }
        self.settings.retain(|changed| !changed.users.is_empty());
    }

    /// Whether tunnels of this network namespace changed the kernel setting below `/proc/sys`.
    fn has_changed(&self, setting: &str) -> bool {
        let network = network();
        self.settings.iter().any(|changed| changed.setting == setting && changed.network == network)
    }

    fn is_empty(&self) -> bool {
        self.tunnels.is_empty()
            && self.settings.is_empty()
            && self.resolver.is_none()
            && self.closed.is_empty()
    }

    fn load() -> Self {
        let text = fs::read_to_string(path()).unwrap_or_default();
        let mut registry: Self = serde_json::from_str(&text).unwrap_or_default();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        if registry.boot != boot {
            let resolver = registry.resolver.take();
            registry = Self { boot, resolver, ..Self::default() };
        }
        registry.forget_strays();
        registry.had_resolver = registry.resolver.is_some();
        registry
    }

    pub(super) fn save(&self) -> Result<(), TunnelError> {
        let file = path();
        let failed = |error| TunnelError::File { file: file.display().to_string(), error };
        if self.is_empty() {
            return match fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let part = file.with_extension("part");
        let write = || {
            let mut written = File::create(&part)?;
            written.write_all(&serde_json::to_vec(self).unwrap_or_default())?;
            // It is on disk before the resolver's file changes: after a power cut, that one comes back from it. No other
            // change outlives a power cut, and a wait for the disk would delay the tunnel.
            if self.resolver.is_some() || self.had_resolver {
                written.sync_all()?;
            }
            fs::rename(&part, &file)
        };
        write().map_err(failed)
    }
}

fn path() -> PathBuf {
    Path::new(DIRECTORY).join("tunnels.json")
}

/// Locks the file, changes it and writes it, even if `work` fails.
pub(super) fn update<T>(
    work: impl FnOnce(&mut Registry) -> Result<T, TunnelError>,
) -> Result<T, TunnelError> {
    let failed = |error| TunnelError::File { file: DIRECTORY.to_owned(), error };
    fs::create_dir_all(DIRECTORY).map_err(failed)?;
    let directory = File::open(DIRECTORY).map_err(failed)?;
    let _lock = Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))?;
    let mut registry = Registry::load();
    let result = work(&mut registry);
    registry.save()?;
    result
}

/// Does `work` while this process's tunnel of this name has not ended: nothing is set up once it was taken back. False if
/// it has ended.
pub(super) fn while_running(interface: &str, work: impl FnOnce(&mut Registry)) -> bool {
    let done = update(|registry| {
        let is_own = registry.is_own(interface);
        if is_own {
            work(registry);
        }
        Ok(is_own)
    });
    done.unwrap_or(false)
}

/// Whether another process runs a tunnel of this name.
pub fn is_running(interface: &str) -> bool {
    Registry::load().is_running(interface)
}

/// The same for the tunnels of this network namespace.
pub fn is_running_here(interface: &str) -> bool {
    Registry::load().is_running_here(interface)
}

/// Whether tunnels of this network namespace changed the kernel setting below `/proc/sys`.
pub(super) fn has_changed(setting: &str) -> bool {
    Registry::load().has_changed(setting)
}

/// The devices of tunnels that have a kill switch.
pub(super) fn kill_switches() -> Vec<String> {
    Registry::load().closed().into_keys().collect()
}

/// Whether the process with this number runs a tunnel of this name.
pub(super) fn runs_in(interface: &str, process: u32) -> bool {
    Registry::load().tunnels.get(interface).is_some_and(|claim| claim.process.id == process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(registry: &mut Registry, name: &str, process: Process) -> u32 {
        let slot = registry.claim(name).unwrap();
        registry.tunnels.get_mut(name).unwrap().process = process;
        slot
    }

    #[test]
    fn tunnels_have_slots_of_their_own_and_take_back_their_own() {
        let init = Process { id: 1, started: started(1).unwrap() };
        let mut registry = Registry::default();
        assert_eq!(claim(&mut registry, "a", Process::current()), 0);
        assert_eq!(claim(&mut registry, "b", init), 1);
        assert_eq!(claim(&mut registry, "gone", Process { started: init.started + 1, ..init }), 2);
        registry.release("a", false);
        assert_eq!(registry.tunnels.keys().collect::<Vec<_>>(), ["b"], "the ended process's is gone as well");
        assert_eq!(registry.claim("a").unwrap(), 0);
        registry.release("b", false);
        assert!(registry.tunnels.contains_key("b"), "another process runs it");
        let gone = claim(&mut registry, "elsewhere", Process { started: init.started + 1, ..init });
        registry.tunnels.get_mut("elsewhere").unwrap().network = Some(1);
        registry.release("a", false);
        assert_eq!(registry.tunnels["elsewhere"].slot, gone, "a process in its namespace has to do that");
        registry.tunnels.remove("elsewhere");
        registry.claim("a").unwrap();
        registry.release("b", true);
        assert_eq!(registry.tunnels.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn a_machine_has_a_bounded_number_of_tunnels() {
        let mut registry = Registry::default();
        for number in 0..MOST_TUNNELS {
            registry.claim(&number.to_string()).unwrap();
        }
        assert!(registry.claim("one more").is_err());
        registry.tunnels.get_mut("7").unwrap().process.started += 1;
        assert_eq!(registry.claim("one more").unwrap(), 7, "in the place of one that has ended");
    }

    #[test]
    fn an_ended_tunnel_of_another_namespace_gives_its_slot_back_unless_it_changed_a_setting() {
        let init = Process { id: 1, started: started(1).unwrap() };
        let ended = Process { started: init.started + 1, ..init };
        let mut registry = Registry::default();
        let names = ["client", "server"];
        for name in names {
            claim(&mut registry, name, ended);
        }
        registry.tunnels.values_mut().for_each(|claim| claim.network = Some(1));
        registry.settings = vec![Changed {
            network: 1,
            setting: "net/ipv4/ip_forward".to_owned(),
            before: "0".to_owned(),
            users: names.iter().map(|&name| name.to_owned()).collect(),
        }];
        assert_eq!(registry.here().count(), 0, "neither is here");
        registry.settings[0].users.remove("client");
        registry.forget_ended_elsewhere(&BTreeSet::from([1]));
        assert_eq!(registry.tunnels.keys().collect::<Vec<_>>(), ["server"]);
        // Its namespace is gone as well.
        assert_eq!(registry.claim("a").unwrap(), 0);
        assert!(registry.tunnels.keys().eq(["a"]) && registry.settings.is_empty());
    }

    #[test]
    fn a_setting_goes_with_the_entry_of_its_tunnel() {
        let init = Process { id: 1, started: started(1).unwrap() };
        let mut registry = Registry::default();
        let changed = |network: u64, users: &[&str]| Changed {
            network,
            setting: "net/ipv4/ip_forward".to_owned(),
            before: "0".to_owned(),
            users: users.iter().map(|&user| user.to_owned()).collect(),
        };
        claim(&mut registry, "a", Process { started: init.started + 1, ..init });
        claim(&mut registry, "b", init);
        registry.tunnels.get_mut("a").unwrap().network = Some(1);
        registry.settings = vec![changed(1, &["a"]), changed(network(), &["a", "b"])];
        registry.forget_strays();
        assert_eq!(registry.settings, [changed(1, &["a"]), changed(network(), &["b"])]);
        // A tunnel of the same name here.
        registry.claim("a").unwrap();
        assert_eq!(registry.settings, [changed(network(), &["b"])]);
    }

    #[test]
    fn a_shared_setting_stays_until_its_last_tunnel_ends() {
        let changed = |network: u64, setting: &str, users: &[&str]| Changed {
            network,
            setting: setting.to_owned(),
            before: "1".to_owned(),
            users: users.iter().map(|&user| user.to_owned()).collect(),
        };
        let (first, other) = ("net/ipv6/conf/eth0/accept_ra", "net/ipv4/ip_forward");
        let settings = vec![changed(network(), first, &["a"]), changed(1, first, &["c"])];
        let mut registry = Registry { settings, ..Registry::default() };
        registry.settings.push(changed(network(), other, &["a", "d"]));
        registry.share("b", |setting| setting.ends_with("/accept_ra"));
        registry.restore_settings("a");
        assert!(registry.has_changed(other) && !registry.has_changed("net/ipv6/conf/all/forwarding"));
        let left =
            [changed(network(), first, &["b"]), changed(1, first, &["c"]), changed(network(), other, &["d"])];
        assert_eq!(registry.settings, left);
    }

    #[test]
    fn a_kill_switch_counts_in_its_network_namespace() {
        let mut registry = Registry::default();
        registry.close("a", 4001);
        registry.close("b", 4002);
        // A device of the same name in another namespace.
        registry.closed.push(KillSwitch { interface: "b".to_owned(), port: 4003, network: 1 });
        assert_eq!(registry.closed(), BTreeMap::from([("a".to_owned(), 4001), ("b".to_owned(), 4002)]));
        ["a", "b"].iter().for_each(|interface| registry.open(interface));
        assert!(registry.closed().is_empty() && !registry.is_empty());
        claim(&mut registry, "b", Process { id: 1, started: started(1).unwrap() });
        assert!(registry.is_running_here("b"));
        registry.tunnels.get_mut("b").unwrap().network = Some(1);
        assert!(registry.is_running("b") && !registry.is_running_here("b"));
    }

    #[test]
    fn a_kill_switch_is_forgotten_with_its_network_namespace() {
        let mut registry = Registry::default();
        for (name, network) in [("gone", 1), ("elsewhere", 2), ("here", network())] {
            registry.closed.push(KillSwitch { interface: name.to_owned(), port: 4001, network });
        }
        registry.forget_kill_switches(&BTreeSet::from([2]));
        let left = registry.closed.iter().map(|closed| closed.interface.as_str());
        assert_eq!(left.collect::<Vec<_>>(), ["elsewhere", "here"]);
        assert!(networks().contains(&network()));
    }

    #[test]
    fn a_process_that_ended_is_not_alive() {
        let own = Process::current();
        assert!(own.is_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        while started(id).is_some() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // It has ended, and its parent has not looked yet.
        assert!(Path::new(&format!("/proc/{id}")).exists());
        child.wait().unwrap();
    }
}
