//! `kill -9` of either end in twenty states leaves nothing behind, and the next start works.

use std::fs;
use std::path::PathBuf;

use super::*;

/// Moments after the start of an end, in milliseconds.
const MOMENTS: [u64; 6] = [0, 15, 40, 80, 160, 320];

/// Work under which a tunnel is killed.
const LOADS: [Load; 4] = [Load::Idle, Load::Tcp, Load::Udp, Load::LostPath];

#[derive(Clone, Copy, Debug)]
enum Load {
    Idle,
    Tcp,
    Udp,
    LostPath,
}

/// A resolver's file for the near machine alone: `ip netns exec` puts it in place of the host's.
struct Resolver(PathBuf);

impl Resolver {
    fn new(machines: &Machines) -> Self {
        let directory = PathBuf::from("/etc/netns").join(machines.namespace_name(Side::Near));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
        Self(directory)
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        // Other tests may have theirs there.
        let _ = fs::remove_dir("/etc/netns");
    }
}

fn everything(machines: &Machines, side: Side) -> String {
    let output = machines.command(side, "cat").arg("/etc/resolv.conf").output().unwrap();
    let resolver = String::from_utf8_lossy(&output.stdout).into_owned();
    let output = machines.command(side, "ip").args(["-6", "route", "show", "table", "all"]).output().unwrap();
    let all = format!("{}\n{resolver}\n{}", state(machines, side), String::from_utf8_lossy(&output.stdout));
    let mut lines: Vec<&str> = all.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Waits until the links' own IPv6 addresses and their routes are there.
fn wait_for_addresses(machines: &Machines) {
    for side in [Side::Near, Side::Far] {
        let shown = |words: &[&str]| {
            let output = machines.command(side, "ip").args(words).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let is_tentative = || shown(&["-6", "address", "show", "tentative"]).contains("inet6");
        wait_for("addresses that are not tentative", || !is_tentative());
        let routes = || shown(&["-6", "route", "show", "table", "all"]);
        wait_for("routes that stay as they are", || {
            let before = routes();
            sleep(Duration::from_millis(500));
            !is_tentative() && routes() == before
        });
    }
}

/// The lines that one of the two states lacks.
fn differences(before: &[String; 2], machines: &Machines, side: Side) -> String {
    let (before, now) = (&before[usize::from(side == Side::Far)], everything(machines, side));
    let lacks = |of: &str, line: &str| !of.lines().any(|other| other == line);
    let gone = before.lines().filter(|line| lacks(&now, line)).map(|line| format!("- {line}\n"));
    let new = now.lines().filter(|line| lacks(before, line)).map(|line| format!("+ {line}\n"));
    gone.chain(new).collect()
}

/// Starts traffic through the tunnel, or cuts a path.
fn put_under(tunnel: &Tunnel<'_>, load: Load) -> Vec<Running> {
    let far = |words: &[&str]| iperf_server(tunnel.machines, words);
    let near = |words: &[&str]| Running::start(tunnel.machines.command(Side::Near, "iperf3").args(words));
    let running = match load {
        Load::Idle => vec![],
        Load::Tcp => vec![far(&["-p", "5311"]), near(&["-c", PUBLIC, "-p", "5311", "-t", "30"])],
        Load::Udp => {
            vec![far(&["-p", "5312"]), near(&["-c", INSIDE, "-p", "5312", "-u", "-b", "40M", "-t", "30"])]
        }
        Load::LostPath => {
            tunnel.machines.set_link((Side::Near, 0), false).unwrap();
            vec![]
        }
    };
    sleep(Duration::from_millis(if running.is_empty() { 100 } else { 1000 }));
    running
}

#[test]
fn kill_in_twenty_states_leaves_nothing_behind() {
    let test = "kill_in_twenty_states_leaves_nothing_behind";
    let Some((machines, _turn)) = machines(test, &["iperf3"]) else { return };
    let _resolver = Resolver::new(&machines);
    wait_for_addresses(&machines);
    let before = [Side::Near, Side::Far].map(|side| everything(&machines, side));
    let is_clean = |side: Side| {
        let now = everything(&machines, side);
        let index = usize::from(side == Side::Far);
        now == before[index]
    };
    let options = ["--dns", INSIDE];
    let mut tunnel = Tunnel::served(&machines, first(), &options);
    let mut states = 0;
    for side in [Side::Near, Side::Far] {
        for moment in MOMENTS {
            match side {
                Side::Near => {
                    let started = tunnel.spawn_client(&[]);
                    sleep(Duration::from_millis(moment));
                    started.kill();
                }
                Side::Far => {
                    let started = tunnel.spawn_server(&options);
                    sleep(Duration::from_millis(moment));
                    started.kill();
                }
            }
            let is_so = comes(|| is_clean(side));
            assert!(is_so, "{side:?} killed after {moment} ms: {}", differences(&before, &machines, side));
            states += 1;
        }
        if side == Side::Near {
            for load in LOADS {
                tunnel.start_client(&[]);
                let _work = put_under(&tunnel, load);
                assert!(!is_clean(side), "{load:?}");
                tunnel.client.take().unwrap().kill();
                machines.set_link((Side::Near, 0), true).unwrap();
                wait_for(&format!("the near end to be clean, killed under {load:?}"), || is_clean(side));
                states += 1;
            }
            tunnel.server.take().unwrap().kill();
            wait_for("the far end to be clean", || is_clean(Side::Far));
            continue;
        }
        for load in LOADS {
            tunnel.start_server_with(&options);
            tunnel.start_client(&[]);
            let _work = put_under(&tunnel, load);
            assert!(!is_clean(side), "{load:?}");
            tunnel.server.take().unwrap().kill();
            machines.set_link((Side::Near, 0), true).unwrap();
            wait_for(&format!("the far end to be clean, killed under {load:?}"), || is_clean(side));
            tunnel.client.take().unwrap().kill();
            wait_for("the near end to be clean", || is_clean(Side::Near));
            states += 1;
        }
    }
    assert_eq!(states, 20);
    // The next start works.
    tunnel.start_server_with(&options);
    tunnel.start_client(&[]);
}

#[test]
fn the_next_start_cleans_up_when_the_guard_was_killed_too() {
    let test = "the_next_start_cleans_up_when_the_guard_was_killed_too";
    let Some((machines, _turn)) = machines(test, &[]) else { return };
    wait_for_addresses(&machines);
    let before = everything(&machines, Side::Near);
    let mut tunnel = Tunnel::up(&machines, &[]);
    let client = tunnel.client.take().unwrap();
    let process = client.child.id();
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    let guards: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(guards.len(), 1, "one guard");
    assert!(Command::new("kill").args(["-9", guards[0]]).status().unwrap().success());
    client.kill();
    assert_ne!(everything(&machines, Side::Near), before, "nobody cleaned up");
    // A tunnel of another name does it.
    let second = Tunnel::planned(&machines, second(), &["--to", "10.178.0.0/16"]);
    drop(second);
    if !comes(|| everything(&machines, Side::Near) == before) {
        assert_eq!(everything(&machines, Side::Near), before);
    }
}
