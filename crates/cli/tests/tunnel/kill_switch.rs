//! The kill switch stays when a tunnel ends, and the tunnel says so.

use super::*;

#[test]
fn a_kill_switch_that_another_program_deletes_comes_back() {
    let test = "a_kill_switch_that_another_program_deletes_comes_back";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let tunnel = Tunnel::up(&machines, &["--kill-switch"]);
    let is_closed = || state(&machines, Side::Near).contains("anabranch_kill_switch");
    assert!(is_closed());
    let flush = ["flush", "ruleset"];
    assert!(machines.command(Side::Near, "nft").args(flush).status().unwrap().success());
    wait_for("the kill switch to come back", is_closed);
    for words in ["down", "cleanup"] {
        assert!(ask(&tunnel, Side::Near, &[words]).0, "{words}");
    }
}

#[test]
fn a_tunnel_that_does_not_start_says_that_its_kill_switch_stays() {
    let test = "a_tunnel_that_does_not_start_says_that_its_kill_switch_stays";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let before = state(&machines, Side::Near);
    let mut tunnel = Tunnel::served(&machines, first(), &[]);
    let old = tunnel.ticket.clone();
    tunnel.server.take().unwrap().kill();
    tunnel.start_server_with(&["--ticket", "newer"]);
    tunnel.ticket = old;
    let (code, told) = tunnel.spawn_client(&["--kill-switch"]).end();
    assert!(code != Some(0) && told.contains("tunnel cleanup"), "{told}");
    assert!(state(&machines, Side::Near).contains("anabranch_kill_switch"));
    assert!(ask(&tunnel, Side::Near, &["cleanup"]).0);
    wait_for_state(&machines, Side::Near, &before);
}

#[test]
fn a_cleanup_after_one_tunnel_leaves_the_kill_switch_of_another() {
    let test = "a_cleanup_after_one_tunnel_leaves_the_kill_switch_of_another";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let tunnel = Tunnel::up(&machines, &["--kill-switch"]);
    let words = ["tunnel", "cleanup", "--interface", second().near];
    let output = tunnel.command(Side::Near, "to", &words).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains(&format!("--interface {}", tunnel.plan.near)), "{told}");
    assert!(state(&machines, Side::Near).contains("anabranch_kill_switch"));
    assert!(ask(&tunnel, Side::Near, &["down"]).0);
    assert!(ask(&tunnel, Side::Near, &["cleanup"]).0);
    assert!(!state(&machines, Side::Near).contains("anabranch_kill_switch"));
}

#[test]
fn a_neighbour_of_a_client_with_a_kill_switch_is_answered() {
    let test = "a_neighbour_of_a_client_with_a_kill_switch_is_answered";
    let Some((machines, _turn)) = machines(test, &["python3"]) else { return };
    let lan = behind(&machines);
    let _service = Running::start(machines.command(Side::Far, "python3").args(["-c", SERVICE]));
    let tunnel = Tunnel::up(&machines, &["--kill-switch"]);
    wait_for("an answer to the neighbour", || {
        let script = format!("read -n 1 < /dev/tcp/{PUBLIC}/5400");
        let words = ["3", "bash", "-c", &script];
        lan.command("timeout").args(words).stderr(Stdio::null()).status().unwrap().success()
    });
    for words in ["down", "cleanup"] {
        assert!(ask(&tunnel, Side::Near, &[words]).0, "{words}");
    }
}
