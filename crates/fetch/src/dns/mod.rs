//! Addresses of a server by the name servers of an interface: content networks answer with a server near the one who asks.
//!
//! Names in `/etc/hosts`, names without a dot, and names that the interface's servers do not know go to the system's resolver.

mod message;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{UdpSocket, lookup_host};
use tokio::time::timeout;

use crate::route::Outlet;
use message::Question;

/// How long a name server may take, and how many are asked.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_ASKED: usize = 3;
/// How long the system's resolver may take.
const SYSTEM: Duration = Duration::from_secs(10);

/// The addresses of a host, as seen from `outlet`.
pub(crate) async fn resolve(host: &str, port: u16, outlet: Option<&Outlet>) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    #[cfg(test)]
    if host == "two.test" {
        return Ok([1, 2].map(|last| ([127, 0, 0, last], port).into()).to_vec());
    }
    if let Some(outlet) = outlet
        && host.contains('.')
        && !is_in_hosts(host)
    {
        for server in servers(outlet).into_iter().take(MOST_ASKED) {
            let found = ask(server, host, outlet).await;
            if !found.is_empty() {
                return Ok(found.into_iter().map(|ip| (ip, port).into()).collect());
            }
        }
    }
    let found = timeout(SYSTEM, lookup_host((host, port))).await;
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no name server knows {host} in time"));
    found.map_err(|_| late())?.map(Iterator::collect)
}

fn is_in_hosts(host: &str) -> bool {
    let text = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split_whitespace().skip(1)).any(|name| name.eq_ignore_ascii_case(host))
}

/// The name servers of an interface: its own, or the system's that are not on this machine.
fn servers(outlet: &Outlet) -> Vec<SocketAddr> {
    let own = outlet.interface.as_ref().map(|name| of_interface(name)).unwrap_or_default();
    let servers = if own.is_empty() {
        let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
        lines.filter_map(|line| line.trim().parse().ok()).collect()
    } else {
        own
    };
    let reachable =
        |ip: &IpAddr| !ip.is_loopback() && outlet.addresses.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
    servers.into_iter().filter(reachable).map(|ip| (ip, 53).into()).collect()
}

/// The name servers of an interface by systemd's notes.
fn of_interface(name: &str) -> Vec<IpAddr> {
    let number = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap_or_default();
    let number = number.trim();
    let notes = [("/run/systemd/resolve/netif", "SERVERS="), ("/run/systemd/netif/links", "DNS=")];
    let found = notes.iter().map(|(folder, key)| {
        let text = std::fs::read_to_string(format!("{folder}/{number}")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<IpAddr>>()
    });
    found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// The addresses by one name server, of the outlet's families; none if it does not know them in time.
async fn ask(server: SocketAddr, host: &str, outlet: &Outlet) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for is_v4 in [false, true] {
        if !outlet.addresses.iter().any(|own| own.is_ipv4() == is_v4) {
            continue;
        }
        match timeout(PATIENCE, exchange(server, (host, is_v4), outlet)).await {
            Ok(Ok(addresses)) => found.extend(addresses),
            failed => {
                tracing::debug!(%server, host, ?failed, "a name server did not answer");
                break;
            }
        }
    }
    found
}

async fn exchange(
    server: SocketAddr,
    (host, is_v4): (&str, bool),
    outlet: &Outlet,
) -> io::Result<Vec<IpAddr>> {
    let own = outlet.addresses.iter().find(|own| own.is_ipv4() == server.is_ipv4());
    let own = own.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    let socket = UdpSocket::bind((*own, 0)).await?;
    if let Some(name) = &outlet.interface
        && let Err(error) = socket.bind_device(Some(name.as_bytes()))
    {
        tracing::debug!(interface = %name, %error, "cannot bind to the interface; routes decide where questions leave");
    }
    // Others cannot guess the port and this number, so they cannot answer.
    let mut id = [0; 2];
    aws_lc_rs::rand::fill(&mut id).map_err(io::Error::other)?;
    let question = Question::new(u16::from_be_bytes(id), host, is_v4);
    let bytes = question.to_bytes().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; message::LONGEST];
    loop {
        let len = socket.recv(&mut buffer).await?;
        if let Some(found) = question.read(&buffer[..len]) {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_server_is_asked_from_the_outlets_address() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = server.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let mut buffer = [0; 512];
            let (len, from) = server.recv_from(&mut buffer).await.unwrap();
            let mut answer = buffer[..len].to_vec();
            (answer[2], answer[7]) = (0x81, 1);
            answer.extend([192, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
            // Another question's answer comes first.
            let mut other = answer.clone();
            other[0] ^= 1;
            server.send_to(&other, from).await.unwrap();
            server.send_to(&answer, from).await.unwrap();
            from.ip()
        });
        let outlet = Outlet { interface: None, addresses: vec![[127, 0, 0, 2].into()] };
        assert_eq!(ask(at, "a.example", &outlet).await, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(answering.await.unwrap(), IpAddr::from([127, 0, 0, 2]));
    }

    #[tokio::test]
    async fn addresses_and_local_names_need_no_server() {
        let outlet = Outlet { interface: None, addresses: vec![[127, 0, 0, 1].into()] };
        let found = resolve("192.0.2.7", 80, Some(&outlet)).await.unwrap();
        assert_eq!(found, ["192.0.2.7:80".parse().unwrap()]);
        assert!(!resolve("localhost", 80, Some(&outlet)).await.unwrap().is_empty());
    }
}
