//! `proxy --redirect` and `--tproxy` between namespaces: programs without proxy settings reach a server behind the exit.
//!
//! ```text
//!   behind ── lan ── near (proxy) ══ two links ══ far (exit, server at public addresses)
//! ```
//! The server answers with the address that asked it: an address of near or behind if the connection was direct, and one
//! of the far machine if the exit made it. Needs root; otherwise it reports skipped tests.
#![cfg(target_os = "linux")]

use crate::common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::netns::{Machines, Namespace, Side, run};
use common::programs::{PROGRAM, Running, Scratch, new_key, wait_for};
use common::skip;

/// Public addresses of the far machine: a server's, and the exit's own.
const SERVER: [&str; 2] = ["1.2.3.4", "2a00:1::4"];
const EXIT: &str = "1.2.3.5";
const PORT: u16 = 8000;
const METHODS: [&str; 2] = ["--redirect", "--tproxy"];

/// Answers each request with the address of its client.
const ANSWERING: &str = "
import http.server, socket
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = self.client_address[0].replace('::ffff:', '').encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)
Server(('::', 8000), Answer).serve_forever()
";

/// All machines, with a running exit and server.
struct Stage {
    machines: Machines,
    behind: Namespace,
    scratch: Scratch,
    ticket: String,
    _running: [Running; 2],
}

impl Stage {
    fn new(test: &str) -> Option<Self> {
        for name in ["curl", "python3"] {
            if Command::new(name).arg("--version").output().is_err() {
                skip(test, &format!("{name} is not installed"));
                return None;
            }
        }
        let made = Machines::new(&[100, 50]).and_then(|machines| Ok((machines, Namespace::new()?)));
        let (machines, behind) = made.map_err(|why| skip(test, &why)).ok()?;
        machines.add_two_default_routes().unwrap();
        let scratch = Scratch::new();
        let server = Running::start(machines.command(Side::Far, "python3").args(["-c", ANSWERING]));
        let command = program(&machines, Side::Far, &scratch, "from");
        let mut exit = Running::start({ command }.args(["exit", "--address", EXIT]).args(
            SERVER.iter().flat_map(|server| ["--allow", server]).chain(["--listen", "127.0.0.1:8080"]),
        ));
        let line = exit.line();
        let ticket = line.split_whitespace().last().expect("a ticket").to_owned();
        let stage = Self { machines, behind, scratch, ticket, _running: [server, exit] };
        stage.join();
        wait_for("the server", || stage.ask(Side::Near, SERVER[0]).is_some());
        Some(stage)
    }

    /// Gives the machines their further addresses and joins the one behind.
    fn join(&self) {
        let [near, far] = [Side::Near, Side::Far].map(|side| self.machines.namespace_name(side));
        let behind = self.behind.name();
        for line in [
            format!("-n {far} address add {}/32 dev lo", SERVER[0]),
            format!("-n {far} address add {EXIT}/32 dev lo"),
            format!("-n {far} address add {}/128 dev lo", SERVER[1]),
            format!("-n {near} address add fd77::1/64 dev path0 nodad"),
            format!("-n {far} address add fd77::2/64 dev path0 nodad"),
            format!("-n {near} route add default via fd77::2"),
            format!("-n {far} route add default via fd77::1"),
            format!("-n {near} link add lan type veth peer name lan netns {behind}"),
            format!("-n {near} address add 192.168.5.1/24 dev lan"),
            format!("-n {near} address add fd78::1/64 dev lan nodad"),
            format!("-n {behind} address add 192.168.5.2/24 dev lan"),
            format!("-n {behind} address add fd78::2/64 dev lan nodad"),
            format!("-n {near} link set lan up"),
            format!("-n {behind} link set lan up"),
            format!("-n {behind} route add default via 192.168.5.1"),
            format!("-n {behind} route add default via fd78::1"),
        ] {
            run("ip", &line).unwrap();
        }
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            assert!(
                self.machines
                    .command(Side::Near, "sysctl")
                    .args(["-qw", setting])
                    .status()
                    .unwrap()
                    .success()
            );
        }
    }

    /// Starts a proxy that redirects, and waits until it does.
    fn proxy(&self, options: &[&str]) -> Running {
        self.proxy_by(program(&self.machines, Side::Near, &self.scratch, "to"), options)
    }

    fn proxy_by(&self, mut command: Command, options: &[&str]) -> Running {
        let mut proxy = Running::start(command.args(["proxy", &self.ticket, "--json"]).args(options));
        // Other events come before or after.
        loop {
            let line = proxy.line();
            if line.contains(r#""redirecting""#) {
                return proxy;
            }
            if line.is_empty() || line.contains(r#""error""#) {
                panic!("{line}: {}", proxy.end().1);
            }
        }
    }

    /// The address that a server at this address sees when a program asks it; `None` if the connection fails.
    fn ask(&self, from: Side, server: &str) -> Option<String> {
        asked(&mut self.machines.command(from, "curl"), server, PORT)
    }

    fn ask_from_behind(&self, server: &str) -> Option<String> {
        asked(&mut self.behind.command("curl"), server, PORT)
    }

    /// The firewall's tables and the routing rules of the near machine.
    fn rules(&self) -> String {
        let mut text = String::new();
        for words in ["nft list tables", "ip -4 rule", "ip -6 rule", "ip -4 route show table 51876"] {
            let mut words = words.split(' ');
            let mut command = self.machines.command(Side::Near, words.next().unwrap());
            text += &String::from_utf8(command.args(words).output().unwrap().stdout).unwrap();
        }
        text
    }
}

fn program(machines: &Machines, side: Side, scratch: &Scratch, home: &str) -> Command {
    let mut command = machines.command(side, PROGRAM);
    command.env("HOME", scratch.path(home)).env("XDG_RUNTIME_DIR", scratch.path(home));
    command.env_remove("ANABRANCH_KEY").env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
    command
}

fn asked(curl: &mut Command, server: &str, port: u16) -> Option<String> {
    let host = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
    let output = curl.args(["-s", "-g", "-m", "15", &format!("http://{host}:{port}/")]).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn programs_without_proxy_settings_go_through_the_exit() {
    let Some(stage) = Stage::new("programs_without_proxy_settings_go_through_the_exit") else { return };
    let [v4, v6] = SERVER;
    assert_eq!(stage.ask(Side::Near, v4), some("10.77.1.1"), "direct before");
    let before = stage.rules();
    for method in METHODS {
        let proxy = stage.proxy(&[method]);
        let mut status = program(&stage.machines, Side::Near, &stage.scratch, "to");
        let status = String::from_utf8(status.args(["proxy", "status"]).output().unwrap().stdout).unwrap();
        assert!(status.contains("of all programs are led here"), "{status}");
        assert_eq!(stage.ask(Side::Near, v4), some(v4), "{method}");
        assert_eq!(stage.ask(Side::Near, v6), some(v6), "{method}");
        assert_eq!(stage.ask_from_behind(v4), some(v4), "{method}");
        assert_eq!(stage.ask_from_behind(v6), some(v6), "{method}");
        proxy.interrupt();
        let (code, errors) = proxy.end();
        assert_eq!((code, stage.rules()), (Some(0), before.clone()), "{method}: {errors}");
        assert_eq!(stage.ask(Side::Near, v4), some("10.77.1.1"), "direct again");
    }
}

#[test]
fn a_killed_proxy_leaves_no_rules() {
    let Some(stage) = Stage::new("a_killed_proxy_leaves_no_rules") else { return };
    let before = stage.rules();
    for method in METHODS {
        let proxy = stage.proxy(&[method]);
        assert_ne!(stage.rules(), before);
        proxy.kill();
        wait_for("the end of the rules", || stage.rules() == before);
        assert!(!stage.scratch.path("to/.nft.history").exists(), "{method}");
        assert_eq!(stage.ask(Side::Near, SERVER[0]), some("10.77.1.1"), "{method}");
    }
}

#[test]
fn the_proxys_own_connections_and_local_networks_stay_direct() {
    let Some(stage) = Stage::new("the_proxys_own_connections_and_local_networks_stay_direct") else { return };
    let near = stage.machines.namespace_name(Side::Near);
    for method in METHODS {
        let forward = format!("127.0.0.1:8080={}:{PORT}", SERVER[0]);
        let proxy = stage.proxy(&[method, "--remote-forward", &forward]);
        // From the exit to this machine, and from there to the server: the second part is the proxy's own connection.
        let through = || asked(&mut stage.machines.command(Side::Far, "curl"), "127.0.0.1", 8080);
        wait_for("the remote forward", || through().is_some());
        assert_eq!(through(), some("10.77.1.1"), "{method}");
        assert_eq!(stage.ask(Side::Near, EXIT), some("10.77.1.1"), "{method}: the exit itself");
        assert_eq!(stage.ask(Side::Near, "10.77.1.2"), some("10.77.1.1"), "{method}: a private address");
        // A network to which a route of its own appears is left alone from then on.
        assert_eq!(stage.ask(Side::Near, SERVER[0]), some(SERVER[0]), "{method}");
        run("ip", &format!("-n {near} route add 1.2.3.0/29 via 10.77.2.2")).unwrap();
        wait_for("the route", || stage.ask(Side::Near, SERVER[0]) == some("10.77.2.1"));
        run("ip", &format!("-n {near} route delete 1.2.3.0/29 via 10.77.2.2")).unwrap();
        wait_for("the route's end", || stage.ask(Side::Near, SERVER[0]) == some(SERVER[0]));
        proxy.interrupt();
        proxy.end();
    }
}

/// Shows a prompt and each line that it reads, as `nft` does with some libraries.
const PROMPTING: &str = r#"#!/bin/sh
PATH=${PATH#*:}
[ "$1" = -i ] || exec nft "$@"
exec 3>&1
while IFS= read -r line; do
    printf 'nft> %s\n' "$line" >&3
    printf '%s\n' "$line"
done | nft -i
"#;

#[test]
fn an_nft_that_shows_a_prompt_takes_changes() {
    let Some(stage) = Stage::new("an_nft_that_shows_a_prompt_takes_changes") else { return };
    let (near, tools) = (stage.machines.namespace_name(Side::Near), stage.scratch.path("tools"));
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("nft"), PROMPTING).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tools.join("nft"), mode).unwrap();
    let mut command = program(&stage.machines, Side::Near, &stage.scratch, "to");
    command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
    let proxy = stage.proxy_by(command, &["--redirect"]);
    run("ip", &format!("-n {near} route add 1.2.3.0/29 via 10.77.2.2")).unwrap();
    wait_for("the route", || stage.ask(Side::Near, SERVER[0]) == some("10.77.2.1"));
    run("ip", &format!("-n {near} route delete 1.2.3.0/29 via 10.77.2.2")).unwrap();
    wait_for("the route's end", || stage.ask(Side::Near, SERVER[0]) == some(SERVER[0]));
    proxy.interrupt();
    assert_eq!(proxy.end().0, Some(0));
}

/// Connects to the server, then waits for a line before it asks.
const EARLY: &str = "
import socket, sys
connection = socket.create_connection(('1.2.3.4', 8000))
print('connected', flush=True)
sys.stdin.readline()
connection.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
answer = b''
while part := connection.recv(4096):
    answer += part
print(answer.decode().split()[-1], flush=True)
";

#[test]
fn connections_from_before_and_from_outside_stay_as_they_are() {
    let Some(stage) = Stage::new("connections_from_before_and_from_outside_stay_as_they_are") else { return };
    let _server = Running::start(stage.machines.command(Side::Near, "python3").args(["-c", ANSWERING]));
    wait_for("a server of its own", || stage.ask(Side::Far, "10.77.1.1").is_some());
    for method in METHODS {
        let connect = |mut command: Command| {
            let mut early = Running::start(command.args(["-c", EARLY]).stdin(Stdio::piped()));
            assert_eq!(early.line(), "connected");
            early
        };
        let near = (connect(stage.machines.command(Side::Near, "python3")), "10.77.1.1");
        let behind = (connect(stage.behind.command("python3")), "192.168.5.2");
        let _proxy = stage.proxy(&[method]);
        for (mut early, address) in [near, behind] {
            early.child.stdin.take().unwrap().write_all(b"\n").unwrap();
            assert_eq!(early.line(), address, "{method}");
        }
        let mut outside = stage.machines.command(Side::Far, "curl");
        let outside = asked(outside.args(["--interface", SERVER[0]]), "10.77.1.1", PORT);
        assert_eq!(outside, some(SERVER[0]), "{method}");
    }
}

#[test]
fn networks_of_containers_stay_direct() {
    let Some(stage) = Stage::new("networks_of_containers_stay_direct") else { return };
    let (near, behind) = (stage.machines.namespace_name(Side::Near), stage.behind.name());
    for line in [
        format!("-n {near} link add docker7 type veth peer name guest netns {behind}"),
        format!("-n {near} address add 1.2.4.1/24 dev docker7"),
        format!("-n {behind} address add 1.2.4.2/24 dev guest"),
        format!("-n {near} link set docker7 up"),
        format!("-n {behind} link set guest up"),
    ] {
        run("ip", &line).unwrap();
    }
    let _server = Running::start(stage.behind.command("python3").args(["-c", ANSWERING]));
    wait_for("the container's server", || stage.ask(Side::Near, "1.2.4.2").is_some());
    for method in METHODS {
        let proxy = stage.proxy(&[method]);
        assert_eq!(stage.ask(Side::Near, "1.2.4.2"), some("1.2.4.1"), "{method}");
        proxy.interrupt();
        proxy.end();
    }
}

/// Starts a controller behind the near machine and a relay at this address of the far one; returns the controller's
/// address.
fn granted_relay(stage: &Stage, at: &str) -> (String, [Running; 2]) {
    let (near, behind) = (stage.machines.namespace_name(Side::Near), stage.behind.name());
    run("ip", &format!("-n {behind} address add 1.2.5.1/32 dev lo")).unwrap();
    run("ip", &format!("-n {near} route add 1.2.5.1 via 192.168.5.2")).unwrap();
    let [relay, user] = ["relay.key", "user.key"].map(|name| new_key(&stage.scratch.text(name)));
    let file = stage.scratch.text("controller.toml");
    let text = format!(
        "key = \"c.key\"\nport = 4500\naddresses = [\"1.2.5.1\"]\ncontrol = \"c.sock\"\n[store]\nfile = \"c.store\"\n\
         [[relay]]\nkey = \"{relay}\"\n[[client]]\nkey = \"{user}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut controller = stage.behind.command(PROGRAM);
    let mut controller = Running::start(controller.args(["--quiet", "controller", "--config", &file]));
    let (address, signs) = (controller.line(), controller.line());
    let file = stage.scratch.text("relay.toml");
    let text = format!(
        "key = \"relay.key\"\nport = 4501\naddresses = [\"{at}\", \"10.77.1.2\"]\nplace = \"far\"\ncontrol = \"r.sock\"\n\
         [[controller]]\nat = \"{address}\"\nsigns = \"{signs}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let command = || program(&stage.machines, Side::Far, &stage.scratch, "from");
    let mut relay = Running::start({ command() }.args(["relay", "--config", &file]));
    relay.line();
    let socket = stage.scratch.text("r.sock");
    wait_for("the relay's registration", || {
        let status =
            { command() }.args(["relay", "status", "--json", "--control", &socket]).output().unwrap();
        let status = serde_json::from_slice::<serde_json::Value>(&status.stdout).unwrap_or_default();
        status["controllers"][0]["registered"] == true
    });
    (address, [controller, relay])
}

#[test]
fn relays_that_a_controller_grants_stay_direct() {
    let Some(stage) = Stage::new("relays_that_a_controller_grants_stay_direct") else { return };
    let (far, relay) = (stage.machines.namespace_name(Side::Far), "1.2.3.6");
    run("ip", &format!("-n {far} address add {relay}/32 dev lo")).unwrap();
    let (controller, _running) = granted_relay(&stage, relay);
    for method in METHODS {
        let key = stage.scratch.text("user.key");
        let proxy = stage.proxy(&[method, "--controller", &controller, "--key", &key]);
        assert_eq!(stage.ask(Side::Near, relay), some("10.77.1.1"), "{method}");
        assert_eq!(stage.ask(Side::Near, SERVER[0]), some(SERVER[0]), "{method}");
        proxy.interrupt();
        proxy.end();
    }
}

#[test]
fn a_proxy_whose_rules_are_gone_ends() {
    let Some(stage) = Stage::new("a_proxy_whose_rules_are_gone_ends") else { return };
    let near = stage.machines.namespace_name(Side::Near);
    let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    for method in METHODS {
        let proxy = stage.proxy(&[method]);
        let pids = run("ip", &format!("netns pids {near}")).unwrap();
        let nft = pids.split_whitespace().find(|pid| name(pid).trim() == "nft").expect("nft");
        run("kill", &format!("-9 {nft}")).unwrap();
        let (code, errors) = proxy.end();
        assert_ne!(code, Some(0));
        assert!(errors.contains("connections are direct again"), "{errors}");
    }
}

/// Takes no rules before there is a file `go`.
const LATE: &str = r#"#!/bin/sh
PATH=${PATH#*:}
if [ "$1" = -i ]; then
    tools=${0%/*}
    : >"$tools/waits"
    while [ ! -e "$tools/go" ]; do sleep 0.05; done
fi
exec nft "$@"
"#;

#[test]
fn a_proxy_that_comes_second_leaves_the_routes_of_the_first() {
    let test = "a_proxy_that_comes_second_leaves_the_routes_of_the_first";
    let Some(stage) = Stage::new(test) else { return };
    let tools = stage.scratch.path("tools");
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("nft"), LATE).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tools.join("nft"), mode).unwrap();
    let mut command = program(&stage.machines, Side::Near, &stage.scratch, "from");
    command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
    let second = Running::start(command.args(["proxy", &stage.ticket, "--listen", "0", "--tproxy"]));
    wait_for("the second proxy", || tools.join("waits").exists());
    let _first = stage.proxy(&["--tproxy"]);
    std::fs::write(tools.join("go"), "").unwrap();
    let (code, errors) = second.end();
    assert!(code != Some(0) && errors.contains("another proxy"), "{errors}");
    assert_eq!(stage.ask(Side::Near, SERVER[0]), some(SERVER[0]));
}

#[test]
fn what_stands_in_the_way_of_redirecting_is_named() {
    let Some(stage) = Stage::new("what_stands_in_the_way_of_redirecting_is_named") else { return };
    let failure = |command: &mut Command| {
        let output = command.args([&stage.ticket, "--listen", "0", "--redirect"]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let proxy = stage.proxy(&["--tproxy"]);
    let command = || program(&stage.machines, Side::Near, &stage.scratch, "from");
    let taken = failure({ command() }.arg("proxy"));
    assert!(taken.contains("another proxy") && taken.contains("end it first"), "{taken}");
    // Nothing is at the usual places in a namespace of its own, which `ip netns exec` makes.
    let mut without = stage.machines.command(Side::Near, "sh");
    let hide = "for folder in /usr/local/sbin /usr/sbin; do mount -t tmpfs none $folder; done; PATH=/nowhere exec \"$0\" \"$@\"";
    let no_nft = failure(without.args(["-c", hide, PROGRAM, "proxy"]));
    assert!(no_nft.contains("`nft` is not installed"), "{no_nft}");
    // A user's search path often lacks the folder of `nft`.
    let mut nobody = stage.machines.command_as_nobody(Side::Near, "env");
    stage.scratch.open_to_all();
    nobody.args(["-u", "XDG_CONFIG_HOME", "HOME=/nowhere", "PATH=/usr/bin", PROGRAM, "proxy"]);
    let not_root = failure(&mut nobody);
    assert!(not_root.contains("needs root") && not_root.contains("sudo"), "{not_root}");
    proxy.interrupt();
    proxy.end();
    let mut exit = Running::start({ command() }.args(["exit", "--port", "4436", "--address", "10.77.1.1"]));
    let line = exit.line();
    let ticket = line.split_whitespace().last().unwrap();
    let (_, here) = Running::start({ command() }.args(["proxy", ticket, "--redirect"])).end();
    assert!(here.contains("the exit runs on this machine"), "{here}");
}
