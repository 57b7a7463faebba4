//! Name servers: for the device only with systemd-resolved, which forgets them with the device; otherwise by rewriting
//! `/etc/resolv.conf`.

use std::fs;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Step;
use super::registry;
use crate::error::TunnelError;

const FILE: &str = "/etc/resolv.conf";
const MANAGED: &str = "# written by anabranch tunnel; the original is restored when the tunnel ends\n";

/// The resolver's file as it was, and what tunnels have written instead. The last one counts.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Overwritten {
    before: String,
    by: Vec<(String, Vec<IpAddr>)>,
}

impl Overwritten {
    /// Takes back what all but these tunnels wrote. True when nothing is left to take back.
    pub(super) fn keep(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        // A process that was killed while it wrote leaves an empty file. Another program's file stays, and so does this
        // record: it may be about the file of another mount namespace.
        let is_ours = fs::read_to_string(FILE).is_ok_and(|now| now.is_empty() || now.starts_with(MANAGED));
        if is_ours && self.forget(is_kept) {
            let _ = fs::write(FILE, self.text());
        }
        self.by.is_empty()
    }

    /// Forgets all but these tunnels. True if there were others.
    fn forget(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.by.len();
        self.by.retain(|(name, _)| is_kept(name));
        self.by.len() < before
    }

    fn text(&self) -> String {
        let Some((_, servers)) = self.by.last() else { return self.before.clone() };
        let lines = servers.iter().map(|server| format!("nameserver {server}\n"));
        lines.fold(MANAGED.to_owned(), |text, line| text + &line)
    }
}

/// Sends the system's name queries to these servers.
///
/// # Errors
/// When systemd-resolved does not answer and the file cannot be written.
pub(super) fn set(interface: &str, servers: &[IpAddr]) -> Result<(), TunnelError> {
    let list: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let resolved = [
        Step::new(&format!("resolvectl dns {interface} {}", list.join(" "))),
        Step::new(&format!("resolvectl domain {interface} ~.")),
        Step::new(&format!("resolvectl default-route {interface} yes")),
    ];
    if resolved.iter().try_for_each(|step| step.run().map(drop)).is_ok() {
        return Ok(());
    }
    let failed = |error| TunnelError::File { file: FILE.to_owned(), error };
    registry::update(|registry| {
        let now = fs::read_to_string(FILE).map_err(failed)?;
        let is_managed = now.starts_with(MANAGED);
        // Another program has written the file since: that is what comes back.
        registry.resolver.take_if(|_| !is_managed);
        let before = if is_managed { String::new() } else { now };
        let resolver = registry.resolver.get_or_insert(Overwritten { before, by: Vec::new() });
        resolver.by.retain(|(name, _)| name != interface);
        resolver.by.push((interface.to_owned(), servers.to_vec()));
        let text = resolver.text();
        registry.save()?;
        // The file itself is written, not replaced: it may be a mount or a link.
        fs::write(FILE, text).map_err(failed)
    })
}

/// Sends the system's name queries where they went before.
///
/// # Errors
/// When the record of the file cannot be written.
pub(super) fn unset(interface: &str) -> Result<(), TunnelError> {
    // Without systemd-resolved, only the file has been written.
    let _ = Step::new(&format!("resolvectl revert {interface}")).run();
    registry::update(|registry| {
        registry.resolver.take_if(|file| file.keep(|name| name != interface));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tunnel_gives_the_name_servers_and_the_original_comes_back() {
        let mut file = Overwritten { before: "nameserver 192.0.2.1\n".into(), by: Vec::new() };
        file.by.push(("a".into(), vec!["10.0.0.1".parse().unwrap()]));
        file.by.push(("b".into(), vec!["10.0.0.2".parse().unwrap()]));
        assert!(file.text().ends_with("nameserver 10.0.0.2\n"));
        file.by.pop();
        assert!(file.text().starts_with(MANAGED) && file.text().ends_with("nameserver 10.0.0.1\n"));
        file.by.pop();
        assert_eq!(file.text(), "nameserver 192.0.2.1\n");
    }

    #[test]
    fn tunnels_without_an_entry_are_forgotten() {
        let servers = |last| vec![IpAddr::from([10, 0, 0, last])];
        let by = vec![("a".into(), servers(1)), ("b".into(), servers(2))];
        let mut file = Overwritten { before: String::new(), by };
        assert!(file.forget(|name| name == "a") && !file.forget(|name| name == "a"));
        assert_eq!(file.by, [("a".to_owned(), servers(1))]);
    }
}
