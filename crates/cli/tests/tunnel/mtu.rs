//! Paths of different widths: nothing hangs, and packets that fit nowhere are answered.

use super::*;

/// Sets the width of each link at both ends.
fn set_widths(machines: &Machines, widths: [u32; 3]) {
    for (link, width) in widths.into_iter().enumerate() {
        for side in [Side::Near, Side::Far] {
            let words = format!("link set {} mtu {width}", Machines::interface(link));
            let status = machines.command(side, "ip").args(words.split_whitespace()).status();
            assert!(status.unwrap().success());
        }
    }
}

/// Drops packets of more than this many bytes on a link, without a word.
fn swallow_large(machines: &Machines, link: usize, most: u32) {
    for side in [Side::Near, Side::Far] {
        let rules = format!(
            "add table inet narrow; \
             add chain inet narrow input {{ type filter hook input priority 0; }}; \
             add rule inet narrow input iifname {} meta length > {most} drop",
            Machines::interface(link)
        );
        assert!(machines.command(side, "nft").arg(rules).status().unwrap().success());
    }
}

/// The output of a ping of this many bytes, headers and all, that may not be fragmented.
fn whole_ping(tunnel: &Tunnel<'_>, to: &str, size: usize) -> String {
    let headers = if to.contains(':') { 48 } else { 28 };
    let size = (size - headers).to_string();
    let words = ["-c", "2", "-i", "0.3", "-W", "1", "-M", "do", "-s", &size, to];
    let output = tunnel.machines.command(Side::Near, "ping").args(words).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    text.concat()
}

fn mtu(tunnel: &Tunnel<'_>) -> usize {
    tunnel.status(Side::Near)["peers"][0]["mtu"].as_u64().unwrap() as usize
}

/// Pings of all sizes up to the largest pass, and TCP carries data both ways.
fn check(tunnel: &Tunnel<'_>, what: &str) {
    let largest = mtu(tunnel);
    for to in [INSIDE, "fdab:177::1"] {
        for size in [600, 1279, largest] {
            let ping = format!("{what}: an answer to {size} bytes to {to}");
            wait_for(&ping, || whole_ping(tunnel, to, size).contains("bytes from"));
        }
    }
    for direction in [&[][..], &["-R"]] {
        within_three_attempts(what, || {
            let rate = tunnel.iperf(INSIDE, &[&["-t", "1"], direction].concat());
            let found = format!("{rate:.1} Mbit/s of TCP as packets, {direction:?}");
            if rate > 10.0 { Ok(found) } else { Err(found) }
        });
    }
}

#[test]
fn paths_of_different_widths_carry_everything() {
    let test = "paths_of_different_widths_carry_everything";
    let Some((machines, _turn)) = machines(test, &["iperf3"]) else { return };
    set_widths(&machines, [1500, 1420, 1280]);
    let plan = Plan { more: &["--address-inside", "fdab:177::1/64"], ..first() };
    let tunnel = Tunnel::planned(&machines, plan, &["--no-streams"]);
    check(&tunnel, "1,500, 1,420 and 1,280 bytes");
}

#[test]
fn packets_too_large_for_every_path_are_answered() {
    let test = "packets_too_large_for_every_path_are_answered";
    let Some((machines, _turn)) = machines(test, &["iperf3"]) else { return };
    set_widths(&machines, [1420, 1350, 1300]);
    let plan = Plan { more: &["--address-inside", "fdab:177::1/64"], ..first() };
    let tunnel = Tunnel::planned(&machines, plan, &["--no-streams"]);
    wait_for("the tunnel to know its width", || mtu(&tunnel) < 1380);
    check(&tunnel, "1,420, 1,350 and 1,300 bytes");
    let largest = mtu(&tunnel);
    for to in [PUBLIC, "fdab:177::1"] {
        wait_for(&format!("a refusal of a packet to {to}"), || {
            let text = whole_ping(&tunnel, to, 1380);
            assert!(!text.contains("bytes from"), "{to}: {text}");
            ["mtu: ", "mtu=", "mtu = "].iter().any(|word| text.contains(&format!("{word}{largest}")))
        });
    }
}

#[test]
fn a_path_that_swallows_large_packets_stalls_nothing() {
    let test = "a_path_that_swallows_large_packets_stalls_nothing";
    let Some((machines, _turn)) = machines(test, &["iperf3"]) else { return };
    // The widest path delivers small packets only: the system's own tables promise more.
    swallow_large(&machines, 0, 1350);
    let plan = Plan { more: &["--address-inside", "fdab:177::1/64"], ..first() };
    let tunnel = Tunnel::planned(&machines, plan, &["--no-streams"]);
    check(&tunnel, "a path that swallows large packets");
}

#[test]
fn a_network_behind_the_client_gets_segments_that_fit() {
    let test = "a_network_behind_the_client_gets_segments_that_fit";
    let Some((machines, _turn)) = machines(test, &["iperf3"]) else { return };
    let lan = behind(&machines);
    let rules = format!(
        "add table ip lan; add chain ip lan post {{ type nat hook postrouting priority 100; }}; \
         add rule ip lan post oifname {} masquerade",
        first().near
    );
    assert!(machines.command(Side::Near, "nft").arg(rules).status().unwrap().success());
    set_widths(&machines, [1420, 1350, 1300]);
    let tunnel = Tunnel::planned(&machines, first(), &["--no-streams"]);
    wait_for("the tunnel to know its width", || mtu(&tunnel) < 1380);
    let _server = iperf_server(&machines, &["-p", "5320"]);
    for direction in [&[][..], &["-R"]] {
        let ask = [&["-c", PUBLIC, "-p", "5320", "-t", "1", "-J"], direction].concat();
        within_three_attempts(test, || {
            let output = lan.command("iperf3").args(&ask).output().unwrap();
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6;
            let found = format!("{rate:.1} Mbit/s {direction:?}: {report}");
            if rate > 10.0 { Ok(format!("{rate:.1} Mbit/s")) } else { Err(found) }
        });
    }
    // The machine behind learns that a packet is too large.
    wait_for("a refusal of a large packet", || {
        let words = ["-c", "2", "-i", "0.3", "-W", "1", "-M", "do", "-s", "1352", PUBLIC];
        let output = lan.command("ping").args(words).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        text.concat().contains(&format!("mtu = {}", mtu(&tunnel)))
    });
}
