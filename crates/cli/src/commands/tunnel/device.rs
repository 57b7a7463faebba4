//! The device of a tunnel: its name, its socket, and what goes wrong with it.

use std::path::{Path, PathBuf};

use anabranch_service::control::Socket;
use anabranch_tunnel_io::TunnelError;
use clap::Args;

use super::running::Running;
use crate::commands::service;
use crate::errors::{Failure, Kind};

/// The device's name, if no other is given.
const INTERFACE: &str = "anabranch0";
/// Longest name of a device.
const LONGEST_NAME: usize = 15;

/// Which tunnel.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Network device [default: anabranch0]
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub interface: Option<String>,
}

impl DeviceArgs {
    /// Its name.
    pub fn name(&self) -> &str {
        self.interface.as_deref().unwrap_or(INTERFACE)
    }
}

/// The control socket of a running tunnel.
pub(super) fn socket(interface: &str) -> PathBuf {
    Path::new("/run").join(format!("anabranch-tunnel-{interface}.sock"))
}

/// Answers requests at the control socket. It is made where only root may make files, and a tunnel takes root anyway.
pub(super) fn answer(interface: &str, running: Running) -> Result<Option<Socket>, Failure> {
    service::answer_at(Some(&socket(interface)), running).map_err(|failure| {
        if rustix::process::geteuid().is_root() {
            return failure;
        }
        Failure::local("a tunnel needs root, for its network device").hint("run it with `sudo`")
    })
}

/// The command line of the own program for the guard.
pub(super) fn guard_command(interface: &str) -> Vec<std::ffi::OsString> {
    ["tunnel", "guard", "--interface", interface].map(Into::into).into()
}

pub(super) fn interface(text: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'));
    if text.is_empty() || text.len() > LONGEST_NAME || !is_plain {
        return Err(format!("a device's name has 1 to {LONGEST_NAME} letters, digits, `-` and `_`"));
    }
    Ok(text.to_owned())
}

/// A failure of the tunnel with its cause and with advice.
pub(super) fn failure(error: &TunnelError) -> Failure {
    let kind = match error {
        TunnelError::Unreachable(_) | TunnelError::Session(_) => Kind::Unreachable,
        TunnelError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => Kind::Unreachable,
        TunnelError::Refused(_) | TunnelError::Protocol(_) => Kind::Refused,
        _ => Kind::Local,
    };
    let failure = Failure::new(kind, error.to_string());
    match error {
        TunnelError::Device { .. } => failure.hint(
            "run it as root (`sudo`); in a container, give it the device /dev/net/tun and the capability NET_ADMIN; \
             a device of this name may belong to another program (`ip link`)",
        ),
        TunnelError::File { error, .. } if error.kind() == std::io::ErrorKind::PermissionDenied => {
            failure.hint("run it as root (`sudo`)")
        }
        TunnelError::Command { .. } => failure.hint("the packages iproute2 and nftables have these commands"),
        TunnelError::Running(_) => failure.hint("end it, or give this one another name with `--interface NAME`"),
        TunnelError::Unreachable(_) => failure.hint(
            "is `anabranch tunnel serve` running there with this ticket, and is its UDP port open in every firewall?",
        ),
        TunnelError::Refused(_) => failure.hint("ask the server's operator"),
        TunnelError::Protocol(_) => failure.hint("is the ticket the one that `anabranch tunnel serve` printed?"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_exit_code_of_its_cause() {
        let code = |error| failure(&error).kind.exit_code();
        assert_eq!(code(TunnelError::Unreachable("no answer".into())), 3);
        assert_eq!(code(TunnelError::Refused("no address is left".into())), 4);
        assert_eq!(code(TunnelError::TooMany), 1);
    }

    #[test]
    fn names_of_devices_are_plain() {
        assert!(interface("anabranch0").is_ok());
        for wrong in ["", "a b", "x/../y", "a-name-that-is-too-long", "x;reboot"] {
            assert!(interface(wrong).is_err(), "{wrong}");
        }
    }
}
