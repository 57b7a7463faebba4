//! Measurements over links of 50, 30 and 20 Mbit/s, printed for the notebook. They need a release build and a quiet
//! machine, so they are not part of the tests.

use super::*;

#[test]
#[ignore = "a measurement: cargo test --release -p anabranch --test tunnel -- --ignored --nocapture speed"]
fn speed_of_each_lane() {
    let Some((machines, _turn)) = alone("speed_of_each_lane", &[]) else { return };
    for options in [&[][..], &["--no-streams"], &["--no-streams", "--lane", "striped"]] {
        let tunnel = Tunnel::up(&machines, options);
        for (rule, flows) in [("cubic", "1"), ("cubic", "8"), ("bbr", "1"), ("bbr", "8")] {
            let rate = tunnel.iperf(PUBLIC, &["-t", "9", "-O", "3", "-C", rule, "-P", flows]);
            println!("{}: {flows} TCP connections, {rule}: {rate:.1} Mbit/s", options.join(" "));
        }
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -p anabranch --test tunnel -- --ignored --nocapture speed"]
fn speed_of_a_ping_under_load() {
    let test = "speed_of_a_ping_under_load";
    let Some((machines, _turn)) = alone(test, &[]) else { return };
    for options in [&[][..], &["--no-streams"]] {
        let tunnel = Tunnel::up(&machines, options);
        let ping = |when: &str| {
            let words = ["-q", "-c", "150", "-i", "0.03", "-W", "1", PUBLIC];
            let output = machines.command(Side::Near, "ping").args(words).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            println!("{} {when}: {}", options.join(" "), text.lines().last().unwrap_or_default());
        };
        ping("idle");
        std::thread::scope(|scope| {
            scope.spawn(|| tunnel.iperf(PUBLIC, &["-t", "9", "-C", "cubic"]));
            sleep(Duration::from_secs(3));
            ping("under one TCP connection");
        });
    }
}
