//! Rules that another program deletes come back.

use super::*;

#[test]
fn rules_come_back_while_the_server_is_away() {
    let test = "rules_come_back_while_the_server_is_away";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    let tunnel = Tunnel::up(&machines, &[]);
    let rules = || {
        let words = ["rule", "show", "protocol", "187"];
        let output = machines.command(Side::Near, "ip").args(words).output().unwrap();
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        // The kernel's own rules, of priority 0 and from 32766 on, are listed, too.
        let own = |line: &&str| line.split(':').next().is_some_and(|at| at != "0" && !at.starts_with("327"));
        listed.lines().filter(own).collect::<Vec<_>>().join("\n")
    };
    let before = rules();
    assert!(ask(&tunnel, Side::Far, &["down"]).0);
    wait_for("the session to end", || tunnel.status(Side::Near)["peers"][0]["connected"] == false);
    let priority = before.split(':').next().unwrap();
    let words = ["rule", "delete", "priority", priority, "protocol", "187"];
    assert!(machines.command(Side::Near, "ip").args(words).status().unwrap().success());
    assert_ne!(rules(), before);
    wait_for("the rules to come back", || rules() == before);
}
