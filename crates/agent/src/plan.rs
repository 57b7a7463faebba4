//! Chooses which pairs of local address and peer address to try as paths.
//!
//! With n interfaces here and m addresses there, most of the n × m paths would share links. So not every pair is tried:
//!
//! 1. Every pair gets a rank. Best is a shared subnet, then a route from the interface to the address. Worst is a
//!    private address behind only a default route, because it rarely works.
//! 2. Pairs are taken in order of rank, while both the interface and the peer's address are unused.
//! 3. Each interface still unused takes the best and least used address that it can reach.
//! 4. Each address of the peer still unused takes the best and least used interface that reaches it.
//! 5. The chosen pairs are sorted by rank, because a peer admits few paths at a time.
//!
//! So three cables between two machines become three paths, and a phone on two networks gets two paths to a server's
//! only address. Pairs without a route are never chosen.

use std::net::{IpAddr, SocketAddr};

use anabranch_engine::{Prefix, Route};
use anabranch_wire::Reach;

/// A local address that a socket is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The socket, as in [`Route::socket`].
    pub socket: u32,
    /// The address.
    pub address: IpAddr,
    /// Length in bits of its subnet's prefix.
    pub prefix: u8,
    /// The interface that has it; addresses with the same number share a link.
    pub interface: u32,
    /// Destinations of routes over this interface; a prefix of 0 bits is a default route.
    pub routes: Vec<Prefix>,
}

/// How likely a pair is to work, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Both are on one subnet.
    OnLink,
    /// A route names the address, or a default route leads to a public one.
    Routed,
    /// A default route leads to a private address, which is often behind another NAT.
    Doubtful,
}

/// A pair that could become a path, by index.
#[derive(Clone, Copy)]
struct Candidate {
    rank: Rank,
    local: usize,
    remote: usize,
}

impl LocalAddress {
    /// How likely `remote` is reachable from here; `None` if it is not.
    fn rank(&self, remote: IpAddr) -> Option<Rank> {
        if self.address.is_ipv4() != remote.is_ipv4() || self.address.is_loopback() != remote.is_loopback() {
            return None;
        }
        if self.address == remote && !remote.is_loopback() {
            return None;
        }
        let subnet = Prefix { address: self.address, bits: self.prefix };
        if remote.is_loopback() || subnet.contains(remote) {
            return Some(Rank::OnLink);
        }
        let best = self.routes.iter().filter(|route| route.contains(remote)).map(|route| route.bits).max()?;
        Some(if best > 0 || Reach::of(remote) == Reach::Public { Rank::Routed } else { Rank::Doubtful })
    }
}

/// The routes worth opening between these local addresses and the peer's, best first.
///
/// The result depends only on the arguments, so the driver opens those routes that it does not have yet. Duplicate
/// remotes count once.
pub fn plan_routes(locals: &[LocalAddress], remotes: &[SocketAddr]) -> Vec<Route> {
    let mut plan = Plan::new(locals, remotes);
    plan.take_fresh_pairs();
    plan.take_unused_interfaces();
    plan.take_unused_remotes();
    plan.taken.sort_by_key(|(rank, _)| *rank);
    plan.taken.into_iter().map(|(_, route)| route).collect()
}

struct Plan<'a> {
    locals: &'a [LocalAddress],
    remotes: &'a [SocketAddr],
    /// Best rank first; among equals in the order given.
    candidates: Vec<Candidate>,
    /// How many routes each remote has, by index.
    remote_uses: Vec<usize>,
    /// How many routes each local address's interface has, by index of the address.
    interface_uses: Vec<usize>,
    taken: Vec<(Rank, Route)>,
}

impl<'a> Plan<'a> {
    fn new(locals: &'a [LocalAddress], remotes: &'a [SocketAddr]) -> Self {
        let mut candidates = Vec::new();
        for (l, local) in locals.iter().enumerate() {
            for (r, remote) in remotes.iter().enumerate() {
                if remotes[..r].contains(remote) {
                    continue;
                }
                candidates.extend(local.rank(remote.ip()).map(|rank| Candidate {
                    rank,
                    local: l,
                    remote: r,
                }));
            }
        }
        candidates.sort_by_key(|candidate| candidate.rank);
        Self {
            locals,
            remotes,
            candidates,
            remote_uses: vec![0; remotes.len()],
            interface_uses: vec![0; locals.len()],
            taken: Vec::new(),
        }
    }

    /// Step 2: pairs whose two ends are both unused. A doubtful pair must not use up an interface here.
    fn take_fresh_pairs(&mut self) {
        for candidate in self.candidates.clone() {
            let fresh = self.remote_uses[candidate.remote] == 0 && self.interface_uses[candidate.local] == 0;
            if fresh && candidate.rank < Rank::Doubtful {
                self.take(candidate);
            }
        }
    }

    /// Step 3.
    fn take_unused_interfaces(&mut self) {
        for local in 0..self.locals.len() {
            if self.interface_uses[local] > 0 {
                continue;
            }
            let interface = self.locals[local].interface;
            let own = self.candidates.iter().filter(|c| self.locals[c.local].interface == interface);
            let best = own.min_by_key(|c| (c.rank, self.remote_uses[c.remote])).copied();
            best.into_iter().for_each(|candidate| self.take(candidate));
        }
    }

    /// Step 4.
    fn take_unused_remotes(&mut self) {
        for remote in 0..self.remotes.len() {
            if self.remote_uses[remote] > 0 {
                continue;
            }
            let own = self.candidates.iter().filter(|c| c.remote == remote);
            let best = own.min_by_key(|c| (c.rank, self.interface_uses[c.local])).copied();
            best.into_iter().for_each(|candidate| self.take(candidate));
        }
    }

    fn take(&mut self, candidate: Candidate) {
        let local = &self.locals[candidate.local];
        self.remote_uses[candidate.remote] += 1;
        for (other, uses) in self.locals.iter().zip(&mut self.interface_uses) {
            *uses += usize::from(other.interface == local.interface);
        }
        let route = Route { socket: local.socket, remote: self.remotes[candidate.remote] };
        self.taken.push((candidate.rank, route));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A local address on its own interface; `default` adds a default route of its family.
    fn local(socket: u32, address: &str, prefix: u8, default: bool) -> LocalAddress {
        let address: IpAddr = address.parse().unwrap();
        let routes = if default { vec![Prefix { address, bits: 0 }] } else { Vec::new() };
        LocalAddress { socket, address, prefix, interface: socket, routes }
    }

    fn pairs(locals: &[LocalAddress], remotes: &[&str]) -> Vec<(u32, String)> {
        let remotes: Vec<SocketAddr> = remotes.iter().map(|remote| remote.parse().unwrap()).collect();
        let routes = plan_routes(locals, &remotes);
        routes.iter().map(|route| (route.socket, route.remote.to_string())).collect()
    }

    fn expect(found: &[(u32, String)], wanted: &[(u32, &str)]) {
        let found: Vec<(u32, &str)> =
            found.iter().map(|(socket, remote)| (*socket, remote.as_str())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn three_cables_become_three_paths_and_no_cross_pairs() {
        let locals = [
            local(0, "10.0.1.1", 24, false),
            local(1, "10.0.2.1", 24, false),
            local(2, "10.0.3.1", 24, false),
        ];
        let found = pairs(&locals, &["10.0.3.2:4433", "10.0.1.2:4433", "10.0.2.2:4433"]);
        expect(&found, &[(0, "10.0.1.2:4433"), (1, "10.0.2.2:4433"), (2, "10.0.3.2:4433")]);
    }

    #[test]
    fn default_routes_do_not_add_cross_pairs_to_three_cables() {
        let locals =
            [local(0, "10.0.1.1", 24, true), local(1, "10.0.2.1", 24, true), local(2, "10.0.3.1", 24, false)];
        let found = pairs(&locals, &["10.0.1.2:4433", "10.0.2.2:4433", "10.0.3.2:4433"]);
        expect(&found, &[(0, "10.0.1.2:4433"), (1, "10.0.2.2:4433"), (2, "10.0.3.2:4433")]);
    }

    #[test]
    fn two_networks_reach_a_server_with_one_address_twice() {
        let locals = [local(0, "192.168.1.20", 24, true), local(1, "100.70.0.3", 30, true)];
        expect(&pairs(&locals, &["203.0.113.9:1"]), &[(0, "203.0.113.9:1"), (1, "203.0.113.9:1")]);
    }

    #[test]
    fn one_network_reaches_every_address_of_the_server() {
        let locals = [local(0, "192.168.1.20", 24, true)];
        let found = pairs(&locals, &["203.0.113.9:1", "198.51.100.7:1"]);
        expect(&found, &[(0, "203.0.113.9:1"), (0, "198.51.100.7:1")]);
    }

    #[test]
    fn two_networks_and_two_addresses_make_two_paths() {
        let locals = [local(0, "192.168.1.20", 24, true), local(1, "192.168.9.3", 24, true)];
        let found = pairs(&locals, &["203.0.113.9:1", "198.51.100.7:1"]);
        expect(&found, &[(0, "203.0.113.9:1"), (1, "198.51.100.7:1")]);
    }

    #[test]
    fn a_private_address_behind_another_nat_takes_no_interface_from_a_public_one() {
        let locals = [local(0, "192.168.1.20", 24, true), local(1, "100.70.0.3", 30, true)];
        let found = pairs(&locals, &["10.9.9.9:1", "9.9.9.9:1"]);
        expect(&found, &[(0, "9.9.9.9:1"), (1, "9.9.9.9:1"), (0, "10.9.9.9:1")]);
    }

    #[test]
    fn addresses_that_rarely_work_come_last_also_when_the_peer_names_them_first() {
        let locals = [local(0, "192.168.1.20", 24, true)];
        let found =
            pairs(&locals, &["172.17.0.1:1", "9.9.9.9:1", "10.9.9.9:1", "8.8.8.8:1", "192.168.1.7:1"]);
        let wanted = ["192.168.1.7:1", "9.9.9.9:1", "8.8.8.8:1", "172.17.0.1:1", "10.9.9.9:1"];
        expect(&found, &wanted.map(|remote| (0, remote)));
    }

    #[test]
    fn two_cards_on_one_subnet_are_paired_one_to_one() {
        let locals = [local(0, "192.168.1.1", 24, true), local(1, "192.168.1.2", 24, true)];
        let found = pairs(&locals, &["192.168.1.3:1", "192.168.1.4:1"]);
        expect(&found, &[(0, "192.168.1.3:1"), (1, "192.168.1.4:1")]);
    }

    #[test]
    fn a_second_address_on_the_same_interface_adds_no_path() {
        let mut locals = [local(0, "192.168.1.1", 24, true), local(1, "192.168.1.2", 24, true)];
        locals[1].interface = locals[0].interface;
        expect(&pairs(&locals, &["203.0.113.9:1"]), &[(0, "203.0.113.9:1")]);
    }

    #[test]
    fn families_and_loopback_are_never_mixed() {
        let locals = [local(0, "127.0.0.1", 8, false), local(1, "2001:db8::1", 64, true)];
        expect(&pairs(&locals, &["203.0.113.9:1"]), &[]);
        expect(&pairs(&locals, &["127.0.0.1:1"]), &[(0, "127.0.0.1:1")]);
        expect(&pairs(&locals, &["[2001:db8:1::1]:1"]), &[(1, "[2001:db8:1::1]:1")]);
    }

    #[test]
    fn a_static_route_reaches_what_no_default_route_does() {
        let mut routed = local(0, "10.0.1.1", 24, false);
        routed.routes.push(Prefix { address: "10.8.0.0".parse().unwrap(), bits: 16 });
        expect(&pairs(&[routed.clone()], &["10.8.3.3:1"]), &[(0, "10.8.3.3:1")]);
        expect(&pairs(&[routed], &["10.9.3.3:1"]), &[]);
    }

    #[test]
    fn our_own_address_and_duplicates_are_left_out() {
        let locals = [local(0, "10.0.1.1", 24, true)];
        expect(&pairs(&locals, &["10.0.1.1:1"]), &[]);
        expect(&pairs(&locals, &["10.0.1.2:1", "10.0.1.2:1"]), &[(0, "10.0.1.2:1")]);
    }
}
