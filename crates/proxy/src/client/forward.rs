//! Local ports that lead to one destination each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::target::Target;

/// A port and the destination of its connections, written `[ADDRESS:]PORT=HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where connections are accepted; on loopback if no address is given.
    pub at: SocketAddr,
    /// Where they go.
    pub to: Target,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no forward; write PORT=HOST:PORT, such as 5432=db.example.org:5432");
        let (at, to) = text.split_once('=').ok_or_else(wrong)?;
        let at = match at.parse::<u16>() {
            Ok(port) => SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), port),
            Err(_) => at.parse().map_err(|_| wrong())?,
        };
        Ok(Self { at, to: to.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_is_a_port_and_a_destination() {
        let forward: Forward = "5432=db.example.org:5432".parse().unwrap();
        assert_eq!(
            (forward.at.to_string(), forward.to.to_string()),
            ("127.0.0.1:5432".into(), "db.example.org:5432".into())
        );
        let forward: Forward = "[::1]:80=[fd00::1]:8080".parse().unwrap();
        assert_eq!(
            (forward.at.to_string(), forward.to.to_string()),
            ("[::1]:80".into(), "[fd00::1]:8080".into())
        );
        for wrong in ["", "80", "80=", "x=a:1", "80=a", "70000=a:1", "80=a:0"] {
            assert!(wrong.parse::<Forward>().is_err(), "{wrong}");
        }
    }
}
