//! Lists the addresses that this machine can send from, and reports changes.
//!
//! The kernel reports changes over netlink. Without netlink, as in some sandboxes, `/proc` is read every
//! [`POLL_INTERVAL`]. The list leaves out interfaces that are down, Anabranch's own tunnels, bridges of containers and
//! virtual machines, and members of a bridge. A veth outside a bridge counts as an ordinary link. Link-local addresses
//! count where an interface has no others, as on a direct cable. Elsewhere they are spare.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_engine::Prefix;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::lasting::Lasting;

mod netlink;
mod proc;

/// How often the list is read where the system does not report changes.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Changes come in bursts (an interface, its address, its routes). The list is read this long after the first.
const SETTLE: Duration = Duration::from_millis(50);
/// The list is read this long after the first change at the latest, as routes may change all the time.
const LONGEST_SETTLE: Duration = Duration::from_secs(2);

/// Interfaces with this prefix are our own tunnels. A path through one would lead back into itself.
const OWN_TUNNEL: &str = "anabranch";

/// Prefixes of the interfaces that container and virtual machine managers create.
const CONTAINER_NAMES: [&str; 12] = [
    "docker", "br-", "virbr", "lxcbr", "lxdbr", "incusbr", "cni", "podman", "cali", "flannel", "cilium",
    "ve-",
];

/// An address of this machine, with its interface and the interface's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name.
    pub interface: Arc<str>,
    /// The interface's number.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Length in bits of its subnet's prefix.
    pub prefix: u8,
    /// Largest IP packet in bytes; 0 if unknown.
    pub mtu: u32,
    /// True for the loopback interface.
    pub loopback: bool,
    /// Destinations of routes over this interface, in any routing table.
    pub routes: Arc<[Prefix]>,
    /// True for a link-local address beside others of its interface. Peers are not told it. It is used by a peer that
    /// dials it, and for a peer's link-local address that the user names.
    pub spare: bool,
}

impl InterfaceAddress {
    /// True if a default route of the address's family leads over the interface.
    pub fn has_default_route(&self) -> bool {
        self.routes.iter().any(|route| route.bits == 0 && route.address.is_ipv4() == self.address.is_ipv4())
    }
}

/// The properties of an interface that decide whether it is used.
#[derive(Clone, Debug, Default)]
struct Link {
    name: String,
    mtu: u32,
    running: bool,
    loopback: bool,
    bridge: bool,
    /// True for an end of a veth pair and for a tap, by which containers and virtual machines are connected.
    virtual_port: bool,
    /// The number of the bridge that it is a member of.
    bridge_above: Option<u32>,
}

/// True if addresses of this interface lead out of the machine, or are loopback.
fn is_usable(link: &Link, ports: &[&Link]) -> bool {
    if !link.running || link.name.starts_with(OWN_TUNNEL) || link.bridge_above.is_some() {
        return false;
    }
    let named_for_containers = CONTAINER_NAMES.iter().any(|start| link.name.starts_with(start));
    // Many hosts reach their network through a bridge with a real card. One with only virtual ports leads to guests.
    let leads_out = link.bridge && ports.iter().any(|port| !port.virtual_port);
    if link.bridge { leads_out } else { !named_for_containers }
}

/// Most interfaces whose link-local addresses are used: a host of containers has hundreds.
const MOST_LOCAL: usize = 4;

/// True for an address of an interface that packets can be sent from.
fn is_unicast(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_multicast())
}

/// True for addresses without meaning beyond their link.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Marks the link-local addresses of interfaces that have others as spare. Leaves out the spare ones if more
/// than [`MOST_LOCAL`] interfaces have link-local addresses, and all if more than that have no others.
fn sort_out_link_locals(list: &mut Vec<InterfaceAddress>) {
    let indices = |is_local: bool| -> BTreeSet<u32> {
        list.iter().filter(|at| is_link_local(at.address) == is_local).map(|at| at.index).collect()
    };
    let (local, other) = (indices(true), indices(false));
    let (few, few_bare) = (local.len() <= MOST_LOCAL, (&local - &other).len() <= MOST_LOCAL);
    for at in list.iter_mut() {
        at.spare = is_link_local(at.address) && other.contains(&at.index);
    }
    list.retain(|at| !is_link_local(at.address) || if at.spare { few } else { few_bare });
}

/// The current addresses of this machine, without spare ones.
pub async fn local_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list = first_addresses().await?;
    list.retain(|at| !at.spare);
    Ok(list)
}

/// The same with spare ones. Waits for the only address while the kernel checks it for duplicates.
async fn first_addresses() -> io::Result<Vec<InterfaceAddress>> {
    all_addresses(true).await
}

/// The addresses of this moment, with spare ones: changes must not wait, least of all the loss of the last address.
async fn addresses_now() -> io::Result<Vec<InterfaceAddress>> {
    all_addresses(false).await
}

async fn all_addresses(waits: bool) -> io::Result<Vec<InterfaceAddress>> {
    let mut list = netlink::list(waits).await?;
    sort_out_link_locals(&mut list);
    list.sort_by_key(|entry| (entry.index, entry.address));
    Ok(list)
}

/// The routers of the IPv4 default routes, each with the number of its interface.
pub async fn routers() -> io::Result<Vec<(u32, Ipv4Addr)>> {
    netlink::routers().await
}

/// Follows a list of the system until it is dropped.
#[derive(Debug)]
pub struct Watch<T> {
    current: watch::Receiver<Arc<[T]>>,
    task: JoinHandle<()>,
}

/// Follows the addresses of this machine.
pub type InterfaceWatch = Watch<InterfaceAddress>;

/// Follows the destinations of all routes, also of routes to containers.
pub type RouteWatch = Watch<Prefix>;

impl InterfaceWatch {
    pub async fn start() -> io::Result<Self> {
        Self::over(first_addresses(), addresses_now).await
    }
}

impl RouteWatch {
    pub async fn start() -> io::Result<Self> {
        Self::over(netlink::routes(), netlink::routes).await
    }
}

impl<T> Watch<T> {
    /// Takes the `first` list, and reads another after each change of the network.
    async fn over<F, L>(first: impl Future<Output = io::Result<Vec<T>>>, list: L) -> io::Result<Self>
    where
        T: PartialEq + Send + Sync + 'static,
        F: Future<Output = io::Result<Vec<T>>> + Send + 'static,
        L: Fn() -> F + Copy + Send + Sync + 'static,
    {
        let changes = netlink::Changes::subscribe()?;
        let first: Arc<[T]> = first.await?.into();
        let (sender, current) = watch::channel(first);
        Ok(Self { current, task: tokio::spawn(follow(sender, changes, list)) })
    }

    /// The list as last seen.
    pub fn current(&self) -> Arc<[T]> {
        self.current.borrow().clone()
    }

    /// A receiver for new lists.
    pub fn subscribe(&self) -> watch::Receiver<Arc<[T]>> {
        self.current.clone()
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow<T, F, L>(sender: watch::Sender<Arc<[T]>>, mut changes: netlink::Changes, list: L)
where
    T: PartialEq,
    F: Future<Output = io::Result<Vec<T>>>,
    L: Fn() -> F + Copy,
{
    let mut trouble = Lasting::default();
    loop {
        changes.next().await;
        let list: Arc<[T]> = listed(list, &mut trouble).await.into();
        sender.send_if_modified(|current| {
            let changed = *current != list;
            *current = list;
            changed
        });
    }
}

/// Reads the list. After an error it tries again, without another change.
async fn listed<T, F>(list: impl Fn() -> F, trouble: &mut Lasting) -> Vec<T>
where
    F: Future<Output = io::Result<Vec<T>>>,
{
    loop {
        match list().await {
            Ok(list) => {
                if trouble.is_news(None) {
                    tracing::warn!("interfaces can be listed again");
                }
                return list;
            }
            Err(error) => {
                if trouble.is_news(Some(&error.to_string())) {
                    tracing::warn!(%error, "cannot list interfaces; trying again");
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str) -> Link {
        Link { name: name.into(), running: true, ..Link::default() }
    }

    #[test]
    fn a_plain_veth_is_a_real_link_and_one_in_a_bridge_is_not() {
        let veth = Link { virtual_port: true, ..link("veth0") };
        assert!(is_usable(&veth, &[]));
        assert!(!is_usable(&Link { bridge_above: Some(4), ..veth }, &[]));
    }

    #[test]
    fn a_bridge_counts_when_a_real_card_is_in_it() {
        let bridge = Link { bridge: true, ..link("br0") };
        let card = link("eth0");
        let guest = Link { virtual_port: true, ..link("vnet3") };
        assert!(is_usable(&bridge, &[&guest, &card]));
        assert!(!is_usable(&bridge, &[&guest]));
        assert!(!is_usable(&bridge, &[]));
    }

    #[test]
    fn tunnels_of_our_own_container_names_and_dead_interfaces_are_left_out() {
        assert!(!is_usable(&link("anabranch0"), &[]));
        assert!(!is_usable(&link("docker0"), &[]));
        assert!(!is_usable(&Link { running: false, ..link("eth0") }, &[]));
        assert!(is_usable(&link("wg0"), &[]));
        assert!(is_usable(&link("wlan0"), &[]));
    }

    #[tokio::test]
    async fn the_loopback_address_is_listed_and_marked() {
        let list = local_addresses().await.unwrap();
        let loopback = list.iter().find(|entry| entry.address == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(loopback.loopback && loopback.prefix == 8, "{loopback:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_caller_is_woken_once_for_the_list_and_not_for_each_answer() {
        let (mut list, mut looks) = (std::pin::pin!(local_addresses()), 0);
        let listed = std::future::poll_fn(|context| {
            looks += 1;
            list.as_mut().poll(context)
        });
        assert!(listed.await.is_ok_and(|list| !list.is_empty()));
        assert!(looks <= 2, "{looks}");
    }

    #[test]
    fn link_local_addresses_are_spare_where_an_interface_has_others() {
        let at = |index, address: &str| InterfaceAddress {
            interface: format!("if{index}").into(),
            index,
            address: address.parse().unwrap(),
            prefix: 64,
            mtu: 1500,
            loopback: false,
            routes: Arc::from([]),
            spare: false,
        };
        let mut list = vec![at(1, "192.0.2.1"), at(1, "fe80::1"), at(2, "fe80::2"), at(3, "169.254.3.4")];
        sort_out_link_locals(&mut list);
        let spare = |at: &InterfaceAddress| (at.address.to_string(), at.spare);
        let wanted = [("192.0.2.1", false), ("fe80::1", true), ("fe80::2", false), ("169.254.3.4", false)];
        assert_eq!(
            list.iter().map(spare).collect::<Vec<_>>(),
            wanted.map(|(ip, spare)| (ip.to_owned(), spare))
        );
        let mut pods: Vec<_> = (1..=20).map(|index| at(index, "fe80::9")).collect();
        pods.extend([at(1, "192.0.2.1"), at(30, "192.0.2.2")]);
        sort_out_link_locals(&mut pods);
        assert!(pods.iter().all(|at| !is_link_local(at.address)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_cannot_be_read_is_read_again_without_another_change() {
        let attempts = std::cell::Cell::new(0);
        let list = || {
            attempts.set(attempts.get() + 1);
            let refused = attempts.get() < 3;
            std::future::ready(if refused { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(Vec::new()) })
        };
        let found: Vec<InterfaceAddress> = listed(list, &mut Lasting::default()).await;
        assert!(found.is_empty());
        assert_eq!(attempts.get(), 3);
    }

    #[tokio::test]
    async fn a_watch_begins_with_the_list_of_now() {
        let watch = InterfaceWatch::start().await.unwrap();
        assert!(watch.current().iter().any(|entry| entry.loopback));
    }
}
