//! Load for a tunnel from `iperf3`, which measures what arrives.

use super::*;

/// Whether it is installed; prints that it is not.
pub fn has_iperf(test: &str) -> bool {
    let has = Command::new("iperf3").arg("--version").output().is_ok();
    if !has {
        skip(test, "iperf3 is not installed");
    }
    has
}

/// Starts `iperf3` as a server on the far machine, and waits until it listens.
pub fn iperf_server(machines: &Machines, options: &[&str]) -> Running {
    let mut command = machines.command(Side::Far, "iperf3");
    let mut server = Running::start(command.args(["-s", "--forceflush"]).args(options));
    for _ in 0..5 {
        if server.line().starts_with("Server listening") {
            return server;
        }
    }
    panic!("iperf3 does not listen: {}", server.end().1);
}
