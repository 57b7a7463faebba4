//! Routes that another program deletes come back.

use super::*;

#[test]
fn routes_come_back_when_another_program_shut_the_device_down() {
    let test = "routes_come_back_when_another_program_shut_the_device_down";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let tunnel = Tunnel::up(&machines, &[]);
    let routes = || {
        let words = ["route", "show", "table", "all", "dev", tunnel.plan.near, "proto", "187"];
        let output = machines.command(Side::Near, "ip").args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let before = routes();
    assert!(before.contains("default"), "{before}");
    let words = ["link", "set", tunnel.plan.near, "down"];
    assert!(machines.command(Side::Near, "ip").args(words).status().unwrap().success());
    wait_for("the routes to come back", || routes() == before);
}
