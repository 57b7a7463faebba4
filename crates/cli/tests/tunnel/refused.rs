//! A server refuses clients without a good ticket, and destinations that are its own.

use super::*;

#[test]
fn a_client_with_an_old_ticket_ends_with_the_code_of_a_refusal() {
    let test = "a_client_with_an_old_ticket_ends_with_the_code_of_a_refusal";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let mut tunnel = Tunnel::served(&machines, first(), &[]);
    let old = tunnel.ticket.clone();
    tunnel.server.take().unwrap().kill();
    tunnel.start_server_with(&["--ticket", "newer"]);
    tunnel.ticket = old;
    let (code, told) = tunnel.spawn_client(&[]).end();
    assert_eq!(code, Some(4), "{told}");
}

#[test]
fn clients_do_not_reach_the_servers_own_services() {
    let test = "clients_do_not_reach_the_servers_own_services";
    let Some((machines, _turn)) = machines(test, &["python3"]) else { return };
    let _service = Running::start(machines.command(Side::Far, "python3").args(["-c", SERVICE]));
    let words = ["address", "add", "1.2.3.5/32", "dev", "lo"];
    assert!(machines.command(Side::Far, "ip").args(words).status().unwrap().success());
    for options in [&["--path-rule", "*=primary"][..], &["--no-streams"]] {
        let tunnel = Tunnel::up(&machines, options);
        wait_for("the service at an allowed address", || tunnel.connects(PUBLIC, 5400));
        // Its address in the tunnel is for its clients.
        wait_for("the service inside the tunnel", || tunnel.connects(INSIDE, 5400));
        for denied in ["1.2.3.5", "10.99.0.1"] {
            assert!(!tunnel.connects(denied, 5400), "{denied} {options:?}");
            assert_eq!(tunnel.ping_to(&[denied]), 0, "{denied}");
        }
    }
}
