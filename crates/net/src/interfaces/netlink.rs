//! Interfaces, addresses and routes from the Linux kernel: by netlink or, where its sockets are forbidden, from `/proc`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_engine::Prefix;
use futures_util::{Stream, StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkMessage;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder, new_connection, new_multicast_connection};
use tokio::task::{JoinHandle, JoinSet};

use super::{InterfaceAddress, LONGEST_SETTLE, Link, SETTLE, is_unicast, is_usable, proc};

/// Most routes kept for one interface, so that a router's full table does not fill our memory.
const MAX_ROUTES: usize = 64;

/// How long the kernel may take to answer: long for a router with a full table of routes. It can lose an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long, and at which intervals, the kernel is asked again while the only address is being checked for duplicates. That
/// takes it one to two seconds.
const LONGEST_CHECK: Duration = Duration::from_secs(3);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The kernel's table of local addresses, whose entries lead nowhere.
const TABLE_LOCAL: u8 = 255;

type Messages = Box<dyn Stream<Item = NetlinkMessage<RouteNetlinkMessage>> + Send + Unpin>;

/// Reports changes of interfaces, addresses and routes.
pub(super) struct Changes {
    /// `None` without netlink: then the list is read at intervals.
    connection: Option<(Messages, JoinHandle<()>)>,
}

impl Changes {
    pub(super) fn subscribe() -> io::Result<Self> {
        let opened = new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ]);
        let connection = match opened {
            Ok((connection, _handle, messages)) => {
                let messages: Messages = Box::new(messages.map(|(message, _)| message));
                Some((messages, tokio::spawn(connection)))
            }
            Err(error) if proc::is_there() => {
                tracing::warn!(
                    "cannot open a netlink socket ({error}): changes of the network are noticed within {} s; \
                     let this program open sockets of AF_NETLINK",
                    super::POLL_INTERVAL.as_secs()
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { connection })
    }

    /// Waits for a change, and for those that follow immediately.
    pub(super) async fn next(&mut self) {
        let Some((messages, _)) = &mut self.connection else {
            return tokio::time::sleep(super::POLL_INTERVAL).await;
        };
        if messages.next().await.is_none() {
            // The connection is gone: no further changes are reported.
            return tokio::time::sleep(super::POLL_INTERVAL).await;
        }
        let latest = tokio::time::Instant::now() + LONGEST_SETTLE;
        while tokio::time::Instant::now() < latest
            && let Ok(Some(_)) = tokio::time::timeout(SETTLE, messages.next()).await
        {}
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if let Some((_, connection)) = &self.connection {
            connection.abort();
        }
    }
}

/// All usable addresses. If `waits`, this waits for the only one while it is being checked for duplicates.
pub(super) async fn list(waits: bool) -> io::Result<Vec<InterfaceAddress>> {
    let patience = if waits { LONGEST_CHECK } else { Duration::ZERO };
    let ask = move |handle: Handle| async move { until_ready(|| look(&handle), patience).await };
    asked(ask, proc::list).await
}

/// Destinations of the routes over all interfaces.
pub(super) async fn routes() -> io::Result<Vec<Prefix>> {
    let ask = |handle: Handle| async move {
        ask_routes(&handle).await.map(|routes| routes.into_values().flatten().collect())
    };
    asked(ask, proc::routes).await
}

/// The routers of the IPv4 default routes, with the numbers of their interfaces.
pub(super) async fn routers() -> io::Result<Vec<(u32, Ipv4Addr)>> {
    asked(ask_routers, proc::routers).await
}

/// The kernel's answer, or what `read` finds in `/proc` where netlink sockets are forbidden.
///
/// One task asks and reads the socket, so that the caller's thread is woken once and not after each answer.
async fn asked<T, F>(
    ask: impl FnOnce(Handle) -> F + Send + 'static,
    read: fn() -> io::Result<T>,
) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, rtnetlink::Error>> + Send,
{
    let opened = new_connection();
    let (connection, handle, _messages) = match opened {
        Ok(opened) => opened,
        Err(_) if proc::is_there() => return read(),
        Err(error) => return Err(error),
    };
    // The set ends its task when the caller does not wait any more.
    let mut task = JoinSet::new();
    task.spawn(async move {
        let answer = answered(ask(handle));
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            () = connection => answer.await,
        }
    });
    let answer = task.join_next().await.ok_or(io::ErrorKind::NotConnected)?;
    answer.map_err(io::Error::other)?
}

/// Waits for the kernel's answer.
async fn answered<T>(asked: impl Future<Output = Result<T, rtnetlink::Error>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer over netlink");
    tokio::time::timeout(PATIENCE, asked).await.map_err(late)?.map_err(io::Error::other)
}

/// The usable addresses. Looks again while the list has none yet and one is being checked, for so long.
async fn until_ready<F>(
    look: impl Fn() -> F,
    patience: Duration,
) -> Result<Vec<InterfaceAddress>, rtnetlink::Error>
where
    F: Future<Output = Result<(Vec<InterfaceAddress>, bool), rtnetlink::Error>>,
{
    let until = tokio::time::Instant::now() + patience;
    loop {
        let (list, may_come) = look().await?;
        if !may_come || tokio::time::Instant::now() >= until {
            return Ok(list);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// The usable addresses, and whether the first one is still being checked for duplicates, as after a cable is plugged in.
async fn look(handle: &Handle) -> Result<(Vec<InterfaceAddress>, bool), rtnetlink::Error> {
    let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
    let list = combine(&links, &addresses, &ask_routes(handle).await?);
    let may_come = list.iter().all(|address| address.loopback)
        && addresses.iter().any(|address| will_be_ready(address, &links));
    Ok((list, may_come))
}

/// True while an address is being checked for duplicates. Without a carrier, the check waits.
fn will_be_ready(address: &AddressMessage, links: &[LinkMessage]) -> bool {
    let (flags, index) = (address.header.flags, address.header.index);
    flags.contains(AddressHeaderFlags::Tentative)
        && !flags.contains(AddressHeaderFlags::Dadfailed)
        && links.iter().any(|link| link.header.index == index && is_usable(&read_link(link), &[]))
}

/// Destinations of routes, by interface.
async fn ask_routes(handle: &Handle) -> Result<BTreeMap<u32, Vec<Prefix>>, rtnetlink::Error> {
    let mut routes: BTreeMap<u32, Vec<Prefix>> = BTreeMap::new();
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for request in [v4, v6] {
        let mut stream = Box::pin(handle.route().get(request).execute());
        while let Some(route) = stream.try_next().await? {
            note_route(&route, &mut routes);
        }
    }
    Ok(routes)
}

async fn ask_routers(handle: Handle) -> Result<Vec<(u32, Ipv4Addr)>, rtnetlink::Error> {
    let routes = handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
    let (mut stream, mut routers) = (Box::pin(routes), Vec::new());
    while let Some(route) = stream.try_next().await? {
        note_routers(&route, &mut routers);
    }
    Ok(routers)
}

fn combine(
    links: &[LinkMessage],
    addresses: &[AddressMessage],
    routes: &BTreeMap<u32, Vec<Prefix>>,
) -> Vec<InterfaceAddress> {
    let links: BTreeMap<u32, Link> = links.iter().map(|link| (link.header.index, read_link(link))).collect();
    let mut list = Vec::new();
    for address in addresses {
        let index = address.header.index;
        let (Some(link), Some(ip)) = (links.get(&index), read_address(address)) else { continue };
        let ports: Vec<&Link> = links.values().filter(|port| port.bridge_above == Some(index)).collect();
        if !is_unicast(ip) || !is_usable(link, &ports) {
            continue;
        }
        list.push(InterfaceAddress {
            interface: link.name.as_str().into(),
            index,
            address: ip,
            prefix: address.header.prefix_len,
            mtu: link.mtu,
            loopback: link.loopback,
            routes: routes.get(&index).map_or_else(|| Arc::from([]), |list| list.as_slice().into()),
            spare: false,
        });
    }
    list
}

fn read_link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        // "Running" follows the carrier by up to a second; the carrier itself is reported at once.
        running: flags.contains(LinkFlags::Up) && flags.intersects(LinkFlags::Running | LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Link::default()
    };
    let (mut above, mut plugged_into_bridge) = (None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => above = Some(*index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(InfoKind::Bridge) => link.bridge = true,
                        LinkInfo::Kind(InfoKind::Veth | InfoKind::Tun) => link.virtual_port = true,
                        LinkInfo::PortKind(kind) => plugged_into_bridge = *kind == InfoPortKind::Bridge,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    link.bridge_above = above.filter(|_| plugged_into_bridge);
    link
}

/// The address, unless it is not ready yet or about to go.
fn read_address(message: &AddressMessage) -> Option<IpAddr> {
    let unfit =
        AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed | AddressHeaderFlags::Deprecated;
    if message.header.flags.intersects(unfit) {
        return None;
    }
    // On a point-to-point link `Address` is the far end.
    let find = |pick: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(pick);
    find(|attribute| if let AddressAttribute::Local(ip) = attribute { Some(*ip) } else { None })
        .or_else(|| find(|a| if let AddressAttribute::Address(ip) = a { Some(*ip) } else { None }))
}

fn note_route(message: &RouteMessage, routes: &mut BTreeMap<u32, Vec<Prefix>>) {
    if message.header.kind != RouteType::Unicast || message.header.table == TABLE_LOCAL {
        return;
    }
    let mut address = match message.header.address_family {
        rtnetlink::packet_route::AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        rtnetlink::packet_route::AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return,
    };
    let mut interfaces = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => address = IpAddr::V4(*v4),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => address = IpAddr::V6(*v6),
            RouteAttribute::Oif(index) => interfaces.push(*index),
            RouteAttribute::MultiPath(hops) => {
                interfaces.extend(hops.iter().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
    let prefix = Prefix { address, bits: message.header.destination_prefix_length };
    for index in interfaces {
        let list = routes.entry(index).or_default();
        // The default route of IPv6 comes last.
        if (list.len() < MAX_ROUTES || prefix.bits == 0) && !list.contains(&prefix) {
            list.push(prefix);
        }
    }
}

/// Notes the routers of a default route.
fn note_routers(message: &RouteMessage, routers: &mut Vec<(u32, Ipv4Addr)>) {
    if message.header.kind != RouteType::Unicast || message.header.destination_prefix_length != 0 {
        return;
    }
    let (mut interface, mut router) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(hops) => routers.extend(
                hops.iter()
                    .filter_map(|hop| Some((hop.interface_index, hop.attributes.iter().find_map(gateway)?))),
            ),
            other => router = router.or(gateway(other)),
        }
    }
    routers.extend(interface.zip(router));
}

fn gateway(attribute: &RouteAttribute) -> Option<Ipv4Addr> {
    if let RouteAttribute::Gateway(RouteAddress::Inet(v4)) = attribute { Some(*v4) } else { None }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::route::RouteNextHop;

    use super::*;

    #[test]
    fn routers_of_default_routes_are_noted_also_of_several_hops() {
        let via = |v4: [u8; 4]| RouteAttribute::Gateway(RouteAddress::Inet(v4.into()));
        let mut message = RouteMessage::default();
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![via([192, 168, 1, 1]), RouteAttribute::Oif(2)];
        let mut routers = Vec::new();
        note_routers(&message, &mut routers);
        let mut hop = RouteNextHop::default();
        (hop.interface_index, hop.attributes) = (3, vec![via([10, 0, 0, 1])]);
        message.attributes = vec![RouteAttribute::MultiPath(vec![hop])];
        note_routers(&message, &mut routers);
        message.header.destination_prefix_length = 8;
        note_routers(&message, &mut routers);
        assert_eq!(routers, [(2, Ipv4Addr::new(192, 168, 1, 1)), (3, Ipv4Addr::new(10, 0, 0, 1))]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_being_checked_is_awaited_for_the_first_list_only_and_not_for_ever() {
        for (patience, ready_after, waited) in
            [(LONGEST_CHECK, 1, 1), (LONGEST_CHECK, 60, 3), (Duration::ZERO, 60, 0)]
        {
            let began = tokio::time::Instant::now();
            let look = || async { Ok((Vec::new(), began.elapsed().as_secs() < ready_after)) };
            assert!(until_ready(look, patience).await.unwrap().is_empty());
            assert_eq!(began.elapsed().as_secs(), waited, "{patience:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_does_not_answer_is_reported() {
        let silent = std::future::pending::<Result<(), rtnetlink::Error>>();
        assert_eq!(answered(silent).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
