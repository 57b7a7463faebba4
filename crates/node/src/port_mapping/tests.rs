//! A fake router on loopback.

use std::sync::Mutex;

use anabranch_net::interfaces::InterfaceAddress;
use anabranch_net::socket::SocketStats;

use super::*;

const OUTER: [u8; 4] = [8, 8, 4, 4];

fn owner(seed: u8) -> PortOwner {
    PortOwner::of(&NodeKey::from_random([seed; 32]))
}

/// Where a router listens, and all requests that it got.
struct Router {
    address: SocketAddrV4,
    asked: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Router {
    /// A router that answers each request with the datagrams that `answer` returns.
    async fn start(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else { panic!("an IPv4 address") };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        tokio::spawn(async move {
            let mut bytes = [0; 2000];
            while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
                noted.lock().unwrap().push(bytes[..length].to_vec());
                for datagram in answer(&bytes[..length]) {
                    // The asker may be gone.
                    let _ = socket.send_to(&datagram, from).await;
                }
            }
        });
        Self { address, asked }
    }

    /// A socket behind it.
    fn place(&self) -> Place {
        let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4433);
        Place { socket: 1, local, interface: "".into(), router: self.address }
    }

    /// A keeper for this place, and the sender of its places.
    fn keeper(&self) -> (Keeper, watch::Sender<Vec<Place>>) {
        let (sender, places) = watch::channel(vec![self.place()]);
        (Keeper { owner: owner(1), places, mapped: watch::channel(Vec::new()).0, held: Vec::new() }, sender)
    }

    fn asked(&self) -> Vec<Vec<u8>> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits for the request with this number.
    async fn request(&self, number: usize) -> Vec<u8> {
        let latest = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(request) = self.asked().get(number) {
                return request.clone();
            }
            assert!(Instant::now() < latest, "{number} requests");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A router's answer in PCP that grants the wanted port at this address; none to NAT-PMP.
fn granted(request: &[u8], outer: [u8; 4], lifetime: u32) -> Vec<Vec<u8>> {
    if request.len() != 60 {
        return Vec::new();
    }
    let mut answer = request.to_vec();
    answer[1] |= 0x80;
    answer[2..24].fill(0);
    answer[4..8].copy_from_slice(&lifetime.to_be_bytes());
    answer[56..].copy_from_slice(&outer);
    vec![answer]
}

/// A refusal in either protocol: the user has switched mapping off.
fn refused(request: &[u8]) -> Vec<u8> {
    let mut answer = request.to_vec();
    answer.resize(request.len().max(8), 0);
    answer[1] |= 0x80;
    answer[2..8].copy_from_slice(&[0, 2, 0, 0, 0, 9]);
    answer
}

/// Asks for the only place, even if it is not yet time. Returns its outer address.
async fn ask(keeper: &mut Keeper) -> Option<SocketAddrV4> {
    keeper.held.iter_mut().for_each(|held| held.due = Instant::now());
    keeper.ask_those_due().await;
    keeper.mapped.borrow().first().map(|mapped| mapped.outer)
}

fn outer(port: u16) -> Option<SocketAddrV4> {
    Some(SocketAddrV4::new(OUTER.into(), port))
}

#[tokio::test]
async fn a_mapping_is_renewed_and_ends_with_its_node() {
    let router = Router::start(|request| granted(request, OUTER, 1)).await;
    let (_places, wanted) = watch::channel(vec![router.place()]);
    let mappings = PortMappings::over(wanted, owner(1)).await;
    assert_eq!(mappings.addresses(), [SocketAddr::from((OUTER, 4433))]);
    let (first, renewal) = (router.request(0).await, router.request(1).await);
    drop(mappings);
    let removal = router.request(2).await;
    // The nonce shows that all three are of one owner; the renewal asks for the address that was granted.
    assert!(renewal[8..44] == first[8..44] && removal[24..36] == first[24..36]);
    assert_eq!([&first[4..8], &renewal[4..8]], [120_u32.to_be_bytes(), 1_800_u32.to_be_bytes()]);
    assert_eq!((&first[56..], &renewal[56..]), (&[0; 4][..], &OUTER[..]));
    assert_eq!((&removal[..2], &removal[4..8]), (&first[..2], &[0; 4][..]));
}

#[test]
fn a_node_that_was_killed_comes_back_with_its_nonce() {
    let place = |router: &str| Place {
        socket: 1,
        local: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4433),
        interface: "".into(),
        router: router.parse().unwrap(),
    };
    let nonce = owner(1).nonce(&place("192.168.1.1:5351"));
    assert_eq!(nonce, owner(1).nonce(&place("192.168.1.1:5351")));
    assert_ne!(nonce, owner(2).nonce(&place("192.168.1.1:5351")), "another node");
    assert_ne!(nonce, owner(1).nonce(&place("192.168.2.1:5351")), "another router");
}

#[tokio::test]
async fn a_router_is_asked_again_after_half_the_life_of_a_mapping() {
    let router = Router::start(|request| granted(request, OUTER, 600)).await;
    let (mut keeper, places) = router.keeper();
    for most in [60, 300].map(Duration::from_secs) {
        assert_eq!(ask(&mut keeper).await, outer(4433));
        let pause = keeper.held[0].due - Instant::now();
        assert!(pause > most * 2 / 3 && pause <= most, "{pause:?}");
    }
    keeper.ask_those_due().await;
    assert_eq!(router.asked().len(), 2);
    places.send_replace(Vec::new());
    assert_eq!(ask(&mut keeper).await, None, "the interface is gone");
}

#[tokio::test]
async fn a_router_that_does_not_know_pcp_is_asked_by_nat_pmp() {
    let answer = |request: &[u8]| match request {
        [0, 0] => vec![0, 0x80, 0, 0, 0, 0, 0, 9, 8, 8, 4, 4],
        [0, 1, ..] => {
            [&[0, 0x81, 0, 0, 0, 0, 0, 9][..], &request[4..6], &[0x11, 0x52, 0, 0, 2, 0x58]].concat()
        }
        _ => vec![0, 0x81, 0, 1, 0, 0, 0, 9],
    };
    let router = Router::start(move |request| vec![answer(request)]).await;
    let (_places, wanted) = watch::channel(vec![router.place()]);
    let mappings = PortMappings::over(wanted, owner(1)).await;
    assert_eq!(mappings.addresses(), [SocketAddr::from((OUTER, 4434))]);
    mappings.end();
    assert_eq!(router.request(3).await, [0, 1, 0, 0, 0x11, 0x51, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn a_silent_router_and_one_that_refuses_give_nothing_soon() {
    let silent = Router::start(|_| Vec::new()).await;
    let (mut keeper, _places) = silent.keeper();
    let begin = Instant::now();
    assert_eq!(ask(&mut keeper).await, None);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(silent.asked().len(), 4, "each protocol twice");
    let asked = Instant::now();
    assert!(keeper.held[0].due > begin + LEAST_PAUSE && keeper.held[0].due <= asked + 2 * LEAST_PAUSE);
    keeper.held[0].pause = AGAIN;
    assert!(matches!(silent.place().ask(&keeper.held[0].request).await, Err(Unmapped::Silent)));
    assert_eq!(ask(&mut keeper).await, None);
    let pause = keeper.held[0].due - begin;
    assert!(pause > AGAIN && pause < AGAIN + Duration::from_secs(60), "{pause:?}");
    let refuses = Router::start(|request| vec![refused(request)]).await;
    let why = refuses.place().ask(&keeper.held[0].request).await;
    assert!(matches!(why, Err(Unmapped::Refused(PortRefusal::Forbidden))), "{why:?}");
    assert_eq!(refuses.asked().len(), 2, "each protocol once");
}

#[tokio::test]
async fn a_mapping_outlives_a_failed_renewal_until_its_life_ends() {
    let router = Router::start(|request| match request.get(59) {
        // The first request prefers no address.
        Some(0) => granted(request, OUTER, 600),
        _ => vec![refused(request)],
    })
    .await;
    let (mut keeper, _places) = router.keeper();
    assert_eq!(ask(&mut keeper).await, outer(4433));
    assert_eq!(ask(&mut keeper).await, outer(4433));
    assert!(keeper.held[0].due < keeper.held[0].ends, "there is time for another attempt");
    keeper.held[0].ends = Instant::now();
    assert_eq!(ask(&mut keeper).await, None);
}

#[tokio::test]
async fn an_answer_that_is_forged_or_comes_from_elsewhere_maps_nothing() {
    let router = Router::start(|request| {
        let mut forged = granted(request, OUTER, 600);
        forged.iter_mut().for_each(|answer| answer[24] ^= 1);
        forged.extend([Vec::new(), vec![0xff; 1500], request.to_vec()]);
        forged
    })
    .await;
    let (mut keeper, _places) = router.keeper();
    assert_eq!(ask(&mut keeper).await, None);
    assert!(keeper.held[0].mapped.is_none());

    let [listens, speaks] =
        [tokio::net::UdpSocket::bind("127.0.0.1:0"), tokio::net::UdpSocket::bind("127.0.0.1:0")];
    let (listens, speaks) = (listens.await.unwrap(), speaks.await.unwrap());
    let SocketAddr::V4(address) = listens.local_addr().unwrap() else { panic!("an IPv4 address") };
    tokio::spawn(async move {
        let mut bytes = [0; 60];
        while let Ok((length, from)) = listens.recv_from(&mut bytes).await {
            for answer in granted(&bytes[..length], OUTER, 600) {
                speaks.send_to(&answer, from).await.unwrap();
            }
        }
    });
    let place = Place { router: address, ..router.place() };
    assert!(matches!(place.ask(&keeper.held[0].request).await, Err(Unmapped::Silent)));
}

#[tokio::test]
async fn an_outer_address_that_is_not_public_is_given_back() {
    let router = Router::start(|request| granted(request, [10, 0, 0, 1], 600)).await;
    let (mut keeper, _places) = router.keeper();
    assert_eq!(ask(&mut keeper).await, None);
    assert_eq!(router.request(1).await[4..8], [0; 4]);
    assert_eq!(router.asked().len(), 2);
}

#[tokio::test]
async fn a_mapping_ends_when_the_outer_address_is_no_longer_public() {
    let router = Router::start(|request| {
        // The first request prefers no address.
        let is_first = request.get(59) == Some(&0);
        granted(request, if is_first { OUTER } else { [10, 0, 0, 1] }, 600)
    })
    .await;
    let (mut keeper, _places) = router.keeper();
    assert_eq!(ask(&mut keeper).await, outer(4433));
    assert_eq!(ask(&mut keeper).await, None);
}

#[test]
fn ports_are_mapped_for_private_addresses_behind_a_router() {
    let socket = |id: u32, local: &str| {
        let local: SocketAddr = local.parse().unwrap();
        let place = InterfaceAddress {
            interface: "eth0".into(),
            index: id,
            address: local.ip(),
            prefix: 24,
            mtu: 1500,
            loopback: local.ip().is_loopback(),
            routes: Arc::from([]),
            spare: false,
        };
        let stats = SocketStats::default();
        SocketInfo { id, local, place, bound_to_interface: true, ruled_out: false, stats }
    };
    let hidden = SocketInfo { ruled_out: true, ..socket(5, "192.168.5.2:9") };
    let others = ["8.8.8.8:9", "127.0.0.1:9", "[fd00::1]:9"].map(|local| socket(2, local));
    let sockets = [socket(1, "192.168.1.2:9"), hidden, socket(6, "10.0.0.2:9")];
    let sockets: Vec<SocketInfo> = others.into_iter().chain(sockets).collect();
    let router = Ipv4Addr::new(192, 168, 1, 1);
    let found = places(&sockets, &[(2, router), (5, router), (1, router), (1, Ipv4Addr::LOCALHOST)]);
    let expected = Place {
        socket: 1,
        local: SocketAddrV4::new(Ipv4Addr::new(192, 168, 1, 2), 9),
        interface: "eth0".into(),
        router: SocketAddrV4::new(router, 5351),
    };
    assert_eq!(found, [expected]);
}
