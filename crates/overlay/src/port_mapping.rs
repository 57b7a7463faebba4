//! Asks a router to let in packets to a UDP port over IPv4: by PCP (RFC 6887) or its forerunner NAT-PMP (RFC 6886).
//!
//! The router of a foreign network may lie. An answer counts only if it fits the request; the driver checks that it came
//! from the router. Only public outer addresses are believed, and no life is longer than the one requested. The router's
//! epoch is of no use here: all mappings are renewed at the same time, which is what a router that restarted needs.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use anabranch_wire::Reach;

/// UDP port of routers.
pub const PORT: u16 = 5351;
/// Seconds that a mapping is requested for. A router that restarts forgets it, so it is renewed often.
pub const LIFETIME: u32 = 30 * 60;
/// Most bytes of an answer (RFC 6887 §7).
pub const LONGEST: usize = 1100;
/// The NAT-PMP request for the router's outer address.
pub const NAT_PMP_ADDRESS: [u8; 2] = [NAT_PMP, 0];

/// Versions, with which every message begins.
const PCP: u8 = 2;
const NAT_PMP: u8 = 0;
/// Both protocols' opcode for mapping UDP ports, and the bit that marks answers.
const MAP: u8 = 1;
const ANSWER: u8 = 0x80;
/// The result code for a version that the router does not know.
const UNKNOWN_VERSION: u8 = 1;
/// UDP's number among the protocols of IP.
const UDP: u8 = 17;

/// A mapping to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRequest {
    /// Where the router passes packets on to.
    pub inner: SocketAddrV4,
    /// The preferred outer address, such as the one before. Any if unspecified; the port alone is a preference, too.
    pub outer: SocketAddrV4,
    /// By this, a PCP router knows who made the mapping.
    pub nonce: [u8; 12],
    /// In seconds; 0 removes the mapping.
    pub lifetime: u32,
}

/// A mapping that a router granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGranted {
    /// The address at which the router lets packets in; public.
    pub outer: SocketAddrV4,
    /// In seconds, at most as many as requested.
    pub lifetime: u32,
}

/// Why a router granted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortRefusal {
    #[error("it does not know the protocol")]
    Unknown,
    #[error("it may not, by its settings")]
    Forbidden,
    /// Another router lies between it and the Internet.
    #[error("its own address, {0}, is not public: another router is in front of it")]
    NotPublic(Ipv4Addr),
    #[error("it refused with code {0}")]
    Other(u16),
}

impl PortRefusal {
    /// The refusal with this result code, other than 0; the common ones are the same in both protocols.
    fn of(code: u16) -> Self {
        match code {
            1 => Self::Unknown,
            2 => Self::Forbidden,
            other => Self::Other(other),
        }
    }
}

impl PortRequest {
    /// The request that removes this mapping.
    #[must_use]
    pub fn removal(self) -> Self {
        Self { outer: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), lifetime: 0, ..self }
    }

    /// The request in PCP: a MAP request without options (RFC 6887 §7.1 and §11.1).
    pub fn pcp(&self) -> [u8; 60] {
        let mut out = [0; 60];
        out[..2].copy_from_slice(&[PCP, MAP]);
        out[4..8].copy_from_slice(&self.lifetime.to_be_bytes());
        out[8..24].copy_from_slice(&self.inner.ip().to_ipv6_mapped().octets());
        out[24..36].copy_from_slice(&self.nonce);
        out[36] = UDP;
        out[40..42].copy_from_slice(&self.inner.port().to_be_bytes());
        out[42..44].copy_from_slice(&self.outer.port().to_be_bytes());
        out[44..].copy_from_slice(&self.outer.ip().to_ipv6_mapped().octets());
        out
    }

    /// The request in NAT-PMP (RFC 6886 §3.3).
    pub fn nat_pmp(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..2].copy_from_slice(&[NAT_PMP, MAP]);
        out[4..6].copy_from_slice(&self.inner.port().to_be_bytes());
        out[6..8].copy_from_slice(&self.outer.port().to_be_bytes());
        out[8..].copy_from_slice(&self.lifetime.to_be_bytes());
        out
    }

    /// Reads what may be the answer to [`Self::pcp`]. `None` for anything else, which is to be ignored.
    pub fn read_pcp(&self, bytes: &[u8]) -> Option<Result<PortGranted, PortRefusal>> {
        let &[version, opcode, _, code, ..] = bytes else { return None };
        // Routers answer unknown versions in their own, NAT-PMP among them (RFC 6886 §3.5).
        if code == UNKNOWN_VERSION && opcode & ANSWER != 0 {
            return Some(Err(PortRefusal::Unknown));
        }
        let whole: &[u8; 60] = bytes.first_chunk()?;
        let fits = version == PCP && opcode == MAP | ANSWER && whole[24..36] == self.nonce;
        if !fits || whole[36] != UDP || whole[40..42] != self.inner.port().to_be_bytes() {
            return None;
        }
        if code != 0 {
            return Some(Err(PortRefusal::of(code.into())));
        }
        let outer = Ipv6Addr::from(*whole.last_chunk::<16>()?).to_ipv4_mapped()?;
        let port = u16::from_be_bytes([whole[42], whole[43]]);
        self.granted(SocketAddrV4::new(outer, port), u32::from_be_bytes(*whole[4..].first_chunk()?))
    }

    /// Reads what may be the answer to [`Self::nat_pmp`] from a router with the outer address `outer`.
    pub fn read_nat_pmp(&self, bytes: &[u8], outer: Ipv4Addr) -> Option<Result<PortGranted, PortRefusal>> {
        let rest = match nat_pmp_answer(bytes, MAP)? {
            Ok(rest) => rest,
            Err(refusal) => return Some(Err(refusal)),
        };
        let &[i0, i1, o0, o1, l0, l1, l2, l3] = rest.first_chunk::<8>()?;
        if [i0, i1] != self.inner.port().to_be_bytes() {
            return None;
        }
        let outer = SocketAddrV4::new(outer, u16::from_be_bytes([o0, o1]));
        self.granted(outer, u32::from_be_bytes([l0, l1, l2, l3]))
    }

    /// Checks what a router says it granted.
    fn granted(&self, outer: SocketAddrV4, lifetime: u32) -> Option<Result<PortGranted, PortRefusal>> {
        let lifetime = lifetime.min(self.lifetime);
        if self.lifetime > 0 {
            if let Err(refusal) = public(*outer.ip()) {
                return Some(Err(refusal));
            }
            if outer.port() == 0 || lifetime == 0 {
                return None;
            }
        }
        Some(Ok(PortGranted { outer, lifetime }))
    }
}

/// Reads what may be the answer to [`NAT_PMP_ADDRESS`].
pub fn read_nat_pmp_address(bytes: &[u8]) -> Option<Result<Ipv4Addr, PortRefusal>> {
    match nat_pmp_answer(bytes, NAT_PMP_ADDRESS[1])? {
        Ok(rest) => Some(public(Ipv4Addr::from(*rest.first_chunk::<4>()?))),
        Err(refusal) => Some(Err(refusal)),
    }
}

/// The result of a NAT-PMP answer to `opcode`: what follows the epoch, or the refusal.
fn nat_pmp_answer(bytes: &[u8], opcode: u8) -> Option<Result<&[u8], PortRefusal>> {
    let (&[version, answered, c0, c1, ..], rest) = bytes.split_first_chunk::<8>()?;
    if version != NAT_PMP || answered != opcode | ANSWER {
        return None;
    }
    Some(match u16::from_be_bytes([c0, c1]) {
        0 => Ok(rest),
        code => Err(PortRefusal::of(code)),
    })
}

/// Refuses an address that is not public: tickets would lead others to a machine of their own network.
fn public(outer: Ipv4Addr) -> Result<Ipv4Addr, PortRefusal> {
    if Reach::of(outer.into()) == Reach::Public { Ok(outer) } else { Err(PortRefusal::NotPublic(outer)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    const OUTER: Ipv4Addr = Ipv4Addr::new(8, 8, 4, 4);

    fn request() -> PortRequest {
        PortRequest {
            inner: "192.168.1.2:4433".parse().unwrap(),
            outer: "0.0.0.0:4433".parse().unwrap(),
            nonce: NONCE,
            lifetime: LIFETIME,
        }
    }

    /// The answer to [`request`] in PCP, as RFC 6887 §7.2 and §11.1 draw it.
    fn pcp() -> Vec<u8> {
        [
            &[2, 0x81, 0, 0][..],
            &[0, 0, 0x02, 0x58],
            &[0, 0, 0x30, 0x39],
            &[0; 12],
            &NONCE,
            &[17, 0, 0, 0],
            &[0x11, 0x51, 0x11, 0x52],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 8, 8, 4, 4],
        ]
        .concat()
    }

    /// The same in NAT-PMP, as RFC 6886 §3.3 draws it.
    fn nat_pmp() -> Vec<u8> {
        [&[0, 0x81, 0, 0][..], &[0, 0, 0x30, 0x39], &[0x11, 0x51, 0x11, 0x52], &[0, 0, 0x02, 0x58]].concat()
    }

    #[test]
    fn requests_are_laid_out_as_the_rfcs_draw_them() {
        let pcp = [
            &[2, 1, 0, 0][..],
            &[0, 0, 0x07, 0x08],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 1, 2],
            &NONCE,
            &[17, 0, 0, 0],
            &[0x11, 0x51, 0x11, 0x51],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0],
        ];
        assert_eq!(request().pcp()[..], pcp.concat());
        assert_eq!(request().nat_pmp(), [0, 1, 0, 0, 0x11, 0x51, 0x11, 0x51, 0, 0, 0x07, 0x08]);
        // Both RFCs want neither a life nor a preference in a removal.
        assert_eq!(request().removal().nat_pmp(), [0, 1, 0, 0, 0x11, 0x51, 0, 0, 0, 0, 0, 0]);
        let removal = request().removal().pcp();
        assert_eq!(
            (&removal[4..8], &removal[24..36], &removal[42..44]),
            (&[0; 4][..], &NONCE[..], &[0; 2][..])
        );
    }

    #[test]
    fn answers_give_the_outer_address_and_its_life() {
        let granted = PortGranted { outer: SocketAddrV4::new(OUTER, 4434), lifetime: 600 };
        assert_eq!(request().read_pcp(&pcp()), Some(Ok(granted)));
        assert_eq!(request().read_nat_pmp(&nat_pmp(), OUTER), Some(Ok(granted)));
        assert_eq!(read_nat_pmp_address(&[0, 0x80, 0, 0, 0, 0, 0, 9, 8, 8, 4, 4]), Some(Ok(OUTER)));
    }

    #[test]
    fn a_removal_is_answered_without_a_life() {
        let (mut pcp, mut nat_pmp) = (pcp(), nat_pmp());
        pcp[4..8].fill(0);
        nat_pmp[10..].fill(0);
        assert!(matches!(request().removal().read_pcp(&pcp), Some(Ok(_))));
        assert!(matches!(request().removal().read_nat_pmp(&nat_pmp, OUTER), Some(Ok(_))));
        assert_eq!(request().read_pcp(&pcp), None);
        assert_eq!(request().read_nat_pmp(&nat_pmp, OUTER), None);
    }

    #[test]
    fn refusals_are_told_from_each_other() {
        let mut quota = pcp();
        quota[3] = 10;
        assert_eq!(request().read_pcp(&quota), Some(Err(PortRefusal::Other(10))));
        quota[3] = 2;
        assert_eq!(request().read_pcp(&quota), Some(Err(PortRefusal::Forbidden)));
        // A router that knows NAT-PMP alone, and one that knows another version of PCP.
        for old in [&[0, 0x81, 0, 1, 0, 0, 0, 9][..], &[1, 0x81, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]] {
            assert_eq!(request().read_pcp(old), Some(Err(PortRefusal::Unknown)));
        }
        let full = [0, 0x81, 0, 4, 0, 0, 0, 9];
        assert_eq!(request().read_nat_pmp(&full, OUTER), Some(Err(PortRefusal::Other(4))));
        assert_eq!(read_nat_pmp_address(&[0, 0x80, 0, 3, 0, 0, 0, 9]), Some(Err(PortRefusal::Other(3))));
    }

    #[test]
    fn answers_that_do_not_fit_the_request_are_ignored() {
        let with = |mut bytes: Vec<u8>, at: usize, value: u8| {
            bytes[at] = value;
            bytes
        };
        // Version, opcode, a request, nonce, protocol, inner port, outer port 0 and an IPv6 address.
        for (at, value) in [(0, 1), (1, 0x82), (1, 1), (24, 9), (35, 9), (36, 6), (41, 9), (54, 0)] {
            assert_eq!(request().read_pcp(&with(pcp(), at, value)), None, "{at}");
        }
        // A refusal of what someone else asked for.
        assert_eq!(request().read_pcp(&with(with(pcp(), 3, 2), 30, 99)), None);
        for (at, value) in [(0, 2), (1, 0x82), (1, 0x80), (9, 9)] {
            assert_eq!(request().read_nat_pmp(&with(nat_pmp(), at, value), OUTER), None, "{at}");
        }
        for short in 0..60 {
            assert_eq!(request().read_pcp(&pcp()[..short]), None, "{short}");
        }
        for short in 0..16 {
            assert_eq!(request().read_nat_pmp(&nat_pmp()[..short], OUTER), None, "{short}");
        }
        let address: [u8; 12] = [0, 0x80, 0, 0, 0, 0, 0, 9, 8, 8, 4, 4];
        for short in 0..12 {
            assert_eq!(read_nat_pmp_address(&address[..short]), None, "{short}");
        }
        let mut closed = pcp();
        closed[42..44].fill(0);
        assert_eq!(request().read_pcp(&closed), None);
    }

    #[test]
    fn an_outer_address_that_is_not_public_and_a_longer_life_are_not_believed() {
        for address in [[10, 0, 0, 1], [127, 0, 0, 1], [100, 64, 0, 9], [169, 254, 169, 254], [224, 0, 0, 1]]
        {
            let refused = PortRefusal::NotPublic(address.into());
            let mut answer = pcp();
            answer[56..].copy_from_slice(&address);
            assert_eq!(request().read_pcp(&answer), Some(Err(refused)));
            let mut answer = vec![0, 0x80, 0, 0, 0, 0, 0, 9];
            answer.extend(address);
            assert_eq!(read_nat_pmp_address(&answer), Some(Err(refused)));
        }
        let mut long = pcp();
        long[4..8].fill(0xff);
        assert_eq!(request().read_pcp(&long).unwrap().unwrap().lifetime, LIFETIME);
    }
}
