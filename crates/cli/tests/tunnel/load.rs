//! Load for a tunnel from `iperf3`, which measures what arrives.

use super::*;

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
