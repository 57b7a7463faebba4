//! A range of addresses.

use std::net::IpAddr;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Any address in it.
    pub address: IpAddr,
    /// How many leading bits count; 0 matches every address of the family.
    pub bits: u8,
}

impl Prefix {
    /// True when `address` lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits.min(32))).unwrap_or(0);
                (u32::from(own) ^ u32::from(other)) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits.min(128))).unwrap_or(0);
                (u128::from(own) ^ u128::from(other)) & mask == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_every_length_contain_what_they_should() {
        let everything = Prefix { address: "0.0.0.0".parse().unwrap(), bits: 0 };
        let single = Prefix { address: "10.0.0.1".parse().unwrap(), bits: 32 };
        let wide = Prefix { address: "::".parse().unwrap(), bits: 0 };
        assert!(everything.contains("255.1.2.3".parse().unwrap()));
        assert!(
            single.contains("10.0.0.1".parse().unwrap()) && !single.contains("10.0.0.0".parse().unwrap())
        );
        assert!(wide.contains("ff::1".parse().unwrap()) && !wide.contains("1.1.1.1".parse().unwrap()));
    }
}
