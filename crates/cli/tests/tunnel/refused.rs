//! A server that does not let a client in.

use super::*;

#[test]
fn a_client_with_an_old_ticket_ends_with_the_code_of_a_refusal() {
    let test = "a_client_with_an_old_ticket_ends_with_the_code_of_a_refusal";
    let Some((machines, _turn)) = three_links_shared(test).filter(|_| has_tun(test)) else { return };
    let mut tunnel = Tunnel::served(&machines, first(), &[]);
    let old = tunnel.ticket.clone();
    tunnel.server.take().unwrap().kill();
    tunnel.start_server_with(&["--ticket", "newer"]);
    tunnel.ticket = old;
    let (code, told) = tunnel.spawn_client(&[]).end();
    assert_eq!(code, Some(4), "{told}");
}
