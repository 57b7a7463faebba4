//! An SSH session, a download and a ping through outages: a measurement, printed for the notebook. It takes a quarter of
//! an hour and a quiet machine.

use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::outages::Users;
use super::*;

/// Types a line into a program 50 times a second, and prints when each comes back: in seconds since the begin.
const TYPIST: &str = "
import subprocess, sys, threading, time
shell = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
begin = time.time()
def write():
    try:
        while True:
            shell.stdin.write(b'%f\\n' % time.time())
            shell.stdin.flush()
            time.sleep(0.02)
    except OSError:
        pass
threading.Thread(target=write, daemon=True).start()
for line in shell.stdout:
    print('%f' % time.time(), flush=True)
";

/// An SSH server on the far machine, and a session with it that repeats each line.
struct Shell {
    _server: Running,
    session: Running,
    scratch: Scratch,
}

impl Shell {
    fn new(machines: &Machines) -> Self {
        let scratch = Scratch::new();
        for name in ["host", "user"] {
            let words = ["-q", "-t", "ed25519", "-N", "", "-f", &scratch.text(name)];
            assert!(Command::new("ssh-keygen").args(words).status().unwrap().success());
        }
        let set = |name: &str, value: &str| format!("-o{name}={value}");
        let server = Running::start(machines.command(Side::Far, "/usr/sbin/sshd").args([
            "-D",
            "-f/dev/null",
            "-p5403",
            &set("HostKey", &scratch.text("host")),
            &set("AuthorizedKeysFile", &scratch.text("user.pub")),
            &set("StrictModes", "no"),
            &set("PidFile", "none"),
        ]));
        let mut typist = machines.command(Side::Near, "python3");
        typist.args(["-c", TYPIST, "ssh", "-F/dev/null", "-p5403", "-T", "-i", &scratch.text("user")]);
        typist.args(["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", PUBLIC, "cat"]);
        let answers = File::create(scratch.path("answers")).unwrap();
        let session = Running::start_into(&mut typist, answers);
        let shell = Self { _server: server, session, scratch };
        wait_for("lines of the session", || shell.answers().len() > 50);
        shell
    }

    /// When lines came back.
    fn answers(&self) -> Vec<f64> {
        let text = std::fs::read_to_string(self.scratch.path("answers")).unwrap();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

/// The effects of an outage that a user notices.
struct Noticed {
    /// Longest time without an answer of the shell, in milliseconds.
    shell: f64,
    ping: f64,
    /// Mbit/s of the download: before, then from 0.4 to 1.4 s, then in the last second.
    rates: [f64; 3],
    /// Until the download went on after the end of the outage, in seconds.
    resumed: f64,
}

fn seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Watches the shell, a ping and a download while `outage` runs, and for 6 s afterwards.
fn watch(machines: &Machines, (shell, users): (&Shell, &Users), outage: impl FnOnce()) -> Noticed {
    let samples = std::sync::Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    let words = ["-D", "-n", "-i", "0.02", INSIDE];
    let answers = File::create(shell.scratch.path("pings")).unwrap();
    let ping = Running::start_into(machines.command(Side::Near, "ping").args(words), answers);
    let (mut begin, mut end) = (0.0, 0.0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if let Some(bytes) = users.downloaded() {
                    samples.lock().unwrap().push((seconds(), bytes as f64));
                }
                sleep(Duration::from_millis(20));
            }
        });
        sleep(Duration::from_secs(2));
        begin = seconds();
        outage();
        end = seconds();
        sleep(Duration::from_secs(6));
        is_over.store(true, Ordering::Relaxed);
    });
    let samples = samples.into_inner().unwrap();
    ping.interrupt();
    let text = std::fs::read_to_string(shell.scratch.path("pings")).unwrap();
    let at = |line: &str| line.strip_prefix('[')?.split_once(']')?.0.parse::<f64>().ok();
    let pings: Vec<f64> = text.lines().filter(|line| line.contains("bytes from")).filter_map(at).collect();
    let gap = |times: &[f64]| {
        let times: Vec<f64> = times.iter().copied().filter(|at| *at > begin - 1.0).collect();
        times.windows(2).map(|two| (two[1] - two[0]) * 1e3).fold(0.0, f64::max)
    };
    let rate = |from: f64, to: f64| {
        let within: Vec<_> = samples.iter().filter(|(at, _)| (from..to).contains(at)).collect();
        let (Some(first), Some(last)) = (within.first(), within.last()) else { return 0.0 };
        (last.1 - first.1) * 8e-6 / (last.0 - first.0).max(0.001)
    };
    let known = samples.iter().rfind(|(at, _)| *at < end).map_or(0.0, |sample| sample.1);
    let resumed = samples.iter().find(|(at, bytes)| *at > end && *bytes > known + 1e5);
    Noticed {
        shell: gap(&shell.answers()),
        ping: gap(&pings),
        rates: [rate(begin - 1.5, begin), rate(begin + 0.4, begin + 1.4), rate(end + 5.0, end + 6.0)],
        resumed: resumed.map_or(f64::INFINITY, |(at, _)| at - end),
    }
}

#[test]
#[ignore = "a measurement: cargo test --workspace --test tunnel -- --ignored --nocapture outages_of_a_shell"]
fn outages_of_a_shell() {
    let test = "outages_of_a_shell";
    let Some((machines, _turn)) = alone(test, &["python3", "ssh", "/usr/sbin/sshd"]) else { return };
    for options in [&[][..], &["--no-streams"]] {
        let mut tunnel = Tunnel::up(&machines, options);
        let (mut shell, users) = (Shell::new(&machines), Users::new(&machines));
        let named = options.join(" ");
        let all = |cut: bool| {
            (0..3).for_each(|link| {
                if cut { machines.blackhole(link) } else { machines.restore(link) }.unwrap();
            });
        };
        let report = |what: &str, noticed: &Noticed, shell: &mut Shell, begin: Instant| {
            let is_alive = shell.session.child.try_wait().unwrap().is_none();
            println!(
                "{named} {what}: shell {} gap {:.0} ms; ping gap {:.0} ms; download {:.1?} Mbit/s, again after {:.1} s; {:.0} s",
                if is_alive { "alive" } else { "ended" },
                noticed.shell,
                noticed.ping,
                noticed.rates,
                noticed.resumed,
                begin.elapsed().as_secs_f64()
            );
            // Windows recover.
            sleep(Duration::from_secs(6));
        };
        sleep(Duration::from_secs(5));
        for _ in 0..3 {
            let begin = Instant::now();
            let noticed = watch(&machines, (&shell, &users), || {
                machines.blackhole(0).unwrap();
                sleep(Duration::from_secs(6));
            });
            machines.restore(0).unwrap();
            report("fastest silent", &noticed, &mut shell, begin);
        }
        for _ in 0..3 {
            let begin = Instant::now();
            let noticed = watch(&machines, (&shell, &users), || {
                machines.unplug(0).unwrap();
                sleep(Duration::from_secs(4));
                machines.plug(0, common::netns::RATES[0]).unwrap();
            });
            report("fastest removed for 4 s", &noticed, &mut shell, begin);
        }
        for _ in 0..3 {
            let begin = Instant::now();
            let noticed = watch(&machines, (&shell, &users), || {
                all(true);
                sleep(Duration::from_secs(60));
                all(false);
            });
            report("all silent for 60 s", &noticed, &mut shell, begin);
        }
        for _ in 0..3 {
            let begin = Instant::now();
            let noticed = watch(&machines, (&shell, &users), || {
                tunnel.server.take().unwrap().kill();
                tunnel.start_server();
            });
            report("server restarted", &noticed, &mut shell, begin);
            if options.is_empty() {
                break;
            }
        }
    }
}
