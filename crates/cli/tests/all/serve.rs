//! `serve` and its clients as processes on one machine.
#![cfg(unix)]

use crate::common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use common::programs::{
    PROGRAM, Running, Scratch, errors, free_port, last_event, program, wait_for, wait_for_part,
};

/// A running `anabranch serve` with a key and a state of its own.
struct Server {
    running: Running,
    ticket: String,
    scratch: Scratch,
}

impl Server {
    /// Serves `pub` in a scratch directory, with these words.
    fn start(scratch: Scratch, words: &[&str]) -> Self {
        std::fs::create_dir_all(scratch.path("pub")).unwrap();
        let (running, ticket) = serve(&scratch, words);
        Self { running, ticket, scratch }
    }

    /// Kills it as a power cut would, and starts it again.
    fn restart(&mut self, words: &[&str]) {
        self.running.child.kill().unwrap();
        self.running.child.wait().unwrap();
        (self.running, self.ticket) = serve(&self.scratch, words);
    }

    fn put(&self, words: &[&str]) -> Output {
        self.client("put", words)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path(name)
    }

    /// Runs a client: the command, the ticket, and more words.
    fn client(&self, command: &str, words: &[&str]) -> Output {
        own(&self.scratch, &[&[command, &self.ticket], words].concat()).output().expect("the program")
    }

    fn get(&self, words: &[&str]) -> Output {
        self.client("get", &[words, &["--to", &self.scratch.text("to")]].concat())
    }
}

/// Serves `pub` in this directory, at any port unless the words name one.
fn serve(scratch: &Scratch, words: &[&str]) -> (Running, String) {
    let folder = scratch.text("pub");
    let port: &[&str] = if words.contains(&"--port") { &[] } else { &["--port", "0"] };
    let mut running = Running::start(&mut own(scratch, &[&["serve", &folder], port, words].concat()));
    let ticket = running.line();
    assert!(ticket.starts_with("anabranch1"), "{ticket:?} {:?}", running.end());
    (running, ticket)
}

/// The content of all files below a directory, by path, except unfinished ones.
fn tree(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.path().strip_prefix(path).unwrap().to_str().unwrap().to_owned();
            if entry.path().is_dir() {
                pending.push(entry.path());
            } else if !name.ends_with(".anabranch-part") {
                // The program may be replacing it.
                found.extend(std::fs::read(entry.path()).ok().map(|content| (name, content)));
            }
        }
    }
    found
}

/// A command whose key and state are in the scratch directory.
fn own(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = program(words);
    command.env("XDG_CONFIG_HOME", scratch.path("config")).env("XDG_STATE_HOME", scratch.path("state"));
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn same(one: &Path, other: &Path) -> bool {
    std::fs::read(one).unwrap() == std::fs::read(other).unwrap()
}

#[test]
fn a_folder_is_listed_and_parts_of_it_are_fetched_each_under_its_last_name() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("pub/photos/2026")).unwrap();
    scratch.file("pub/photos/2026/large.jpg", 3_000_000, 2);
    scratch.file("pub/photos/small.jpg", 1_500, 3);
    scratch.file("pub/notes.txt", 20, 4);
    let server = Server::start(scratch, &[]);
    let listed = |words: &[&str]| text(&server.client("ls", words));
    assert_eq!(listed(&[]), "           pub/\n");
    assert_eq!(listed(&["pub"]), "     20 B  notes.txt\n           photos/\n");
    let deep = "           photos/\n           photos/2026/\n  3.00 MB  photos/2026/large.jpg\n";
    assert!(listed(&["pub", "-R"]).contains(deep), "{}", listed(&["pub", "-R"]));

    let got = server.get(&["pub/photos/2026", "pub/notes.txt"]);
    assert!(got.status.success(), "{}", errors(&got));
    assert!(errors(&got).contains("received 2 files, 3.00 MB in "), "{}", errors(&got));
    let path = |name: &str| server.scratch.path(name);
    assert!(same(&path("to/2026/large.jpg"), &path("pub/photos/2026/large.jpg")));
    assert!(same(&path("to/notes.txt"), &path("pub/notes.txt")) && !path("to/pub").exists());

    let all = own(&server.scratch, &["receive", "--yes", &server.ticket, &server.scratch.text("from")]);
    assert!({ all }.output().unwrap().status.success(), "`receive` fetches everything");
    assert!(same(&path("from/pub/photos/small.jpg"), &path("pub/photos/small.jpg")));

    let missing = server.get(&["pub/photos/none"]);
    assert_eq!(missing.status.code(), Some(4));
    assert!(errors(&missing).contains("there is no pub/photos/none here"), "{}", errors(&missing));
    server.running.interrupt();
    let (code, told) = server.running.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(": get pub/photos/2026 pub/notes.txt: 2 files, 3.00 MB in "), "{told}");
}

#[test]
fn no_path_and_no_link_leads_out_of_a_folder() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("pub/inside")).unwrap();
    scratch.file("secret", 30, 1);
    std::os::unix::fs::symlink(scratch.path(""), scratch.path("pub/out")).unwrap();
    std::os::unix::fs::symlink(scratch.path("secret"), scratch.path("pub/file")).unwrap();
    let server = Server::start(scratch, &[]);
    for path in ["../secret", "pub/../secret", "pub/out/secret", "pub/file", "secret", "/secret"] {
        let got = server.get(&[path]);
        assert!(!got.status.success(), "{path}");
        assert!(std::fs::read_dir(server.scratch.path("to")).unwrap().next().is_none(), "{path}");
        let listed = server.client("ls", &[path]);
        assert!(!listed.status.success() && listed.stdout.is_empty(), "{path}");
    }
}

#[test]
fn files_are_put_where_the_rights_and_the_quota_allow_it() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("from/photos")).unwrap();
    scratch.file("from/photos/a.jpg", 2_000_000, 1);
    scratch.file("from/b.txt", 30, 2);
    let mut server = Server::start(scratch, &[]);
    let photos = server.scratch.text("from/photos");
    let refused = server.put(&[&photos, "--to", "pub"]);
    assert_eq!(refused.status.code(), Some(4), "{}", errors(&refused));
    assert!(errors(&refused).contains("may list and get, but not put"), "{}", errors(&refused));

    server.restart(&["--ticket", "editors=write", "--quota", "3MB"]);
    let put = server.put(&[&photos, &server.scratch.text("from/b.txt"), "--to", "pub/new"]);
    assert!(put.status.success(), "{}", errors(&put));
    assert!(errors(&put).contains("sent 2 files, 2.00 MB in "), "{}", errors(&put));
    assert!(same(&server.path("pub/new/photos/a.jpg"), &server.path("from/photos/a.jpg")));
    let again = server.put(&[&photos, "--to", "pub/other"]);
    assert!(errors(&again).contains("the quota leaves"), "{}", errors(&again));
    assert!(!server.path("pub/other/photos").exists());

    server.restart(&["--ticket", "inbox=drop"]);
    for command in ["ls", "get"] {
        let refused = server.client(command, &[]);
        assert!(errors(&refused).contains("drop box"), "{}", errors(&refused));
    }
    let dropped = server.put(&[&photos]);
    assert!(dropped.status.success(), "{}", errors(&dropped));
    let boxes: Vec<_> = std::fs::read_dir(server.path("pub")).unwrap().flatten().collect();
    let own = boxes.iter().find(|entry| entry.file_name().to_str().unwrap().starts_with("ab1")).unwrap();
    assert!(same(&own.path().join("photos/a.jpg"), &server.path("from/photos/a.jpg")));
}

#[test]
fn a_file_beyond_the_servers_size_limit_fails_alone_and_the_server_goes_on() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("pub")).unwrap();
    std::fs::create_dir_all(scratch.path("from/d")).unwrap();
    scratch.file("from/d/a-large", 3 << 20, 1);
    scratch.file("from/d/b-small", 1_000, 2);
    let mut command = Command::new("sh");
    // Units of 512 bytes, or of 1,024 in some shells.
    command.args(["-c", "ulimit -f 2048 && exec \"$@\"", "sh", PROGRAM, "serve", &scratch.text("pub")]);
    command.args(["--port", "0", "--ticket", "editors=write"]);
    command.env("XDG_CONFIG_HOME", scratch.path("config")).env("XDG_STATE_HOME", scratch.path("state"));
    let mut running = Running::start(&mut command);
    let ticket = running.line();
    let server = Server { running, ticket, scratch };
    let put = server.put(&[&server.scratch.text("from/d"), "--to", "pub"]);
    assert!(!put.status.success() && errors(&put).contains("d/a-large"), "{}", errors(&put));
    assert!(same(&server.path("pub/d/b-small"), &server.path("from/d/b-small")));
    let listed = server.client("ls", &[]);
    assert!(listed.status.success(), "{}", errors(&listed));
}

#[test]
fn a_directory_is_kept_as_a_copy_in_either_direction() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("pub/src/deep")).unwrap();
    for at in 0..20 {
        scratch.file(&format!("pub/src/deep/{at}"), 4_000 + at, at as u64);
    }
    let server = Server::start(scratch, &["--rights", "write"]);
    let copy = server.scratch.text("to/copy");
    let sync = |words: &[&str]| {
        let done = server.client("sync", &[&["pub/src", &copy, "--json"], words].concat());
        assert!(done.status.success(), "{}", errors(&done));
        last_event(&done)
    };
    let first = sync(&[]);
    assert_eq!((&first["event"], &first["files"]), (&"done".into(), &20.into()));
    assert_eq!(tree(&server.path("to/copy")), tree(&server.path("pub/src")));
    server.scratch.file("pub/src/deep/3", 5_000, 77);
    std::fs::remove_file(server.path("pub/src/deep/4")).unwrap();
    let second = sync(&["--delete"]);
    assert_eq!((&second["files"], &second["removed"]), (&1.into(), &1.into()), "{second}");
    assert_eq!(tree(&server.path("to/copy")), tree(&server.path("pub/src")));

    server.scratch.file("to/copy/deep/new", 5_000, 78);
    std::fs::remove_file(server.path("to/copy/deep/5")).unwrap();
    let pushed = sync(&["--push", "--delete"]);
    assert_eq!(pushed["files"], 1, "{pushed}");
    assert_eq!(tree(&server.path("to/copy")), tree(&server.path("pub/src")));
}

#[test]
fn a_ticket_survives_a_restart_until_it_is_revoked_and_then_open_sessions_end() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("pub")).unwrap();
    scratch.file("pub/large", 60_000_000, 1);
    let port = free_port().to_string();
    let words = ["--port", &port, "--rate", "40Mbit/s"];
    let mut server = Server::start(scratch, &words);
    let first = server.ticket.clone();
    server.restart(&words);
    let listed = own(&server.scratch, &["ls", &first, "pub"]).output().unwrap();
    assert!(text(&listed).contains("60.0 MB  large"), "{}", errors(&listed));
    let tickets = own(&server.scratch, &["ticket", "list"]).output().unwrap();
    assert!(text(&tickets).starts_with("pub  read, "), "{}", text(&tickets));
    let kept = server.path("state/anabranch/tickets/pub");
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    let to = server.scratch.text("to");
    let get = Running::start(&mut own(&server.scratch, &["get", &first, "pub/large", "--to", &to]));
    wait_for_part(&server.path("to"), 1_000_000);
    assert!(own(&server.scratch, &["ticket", "revoke", "pub"]).status().unwrap().success());
    let (code, told) = get.end();
    assert_eq!(code, Some(4), "{told}");
    assert!(told.contains("opens nothing here any more"), "{told}");
    let late = own(&server.scratch, &["ls", &first]).output().unwrap();
    assert_eq!(late.status.code(), Some(4), "{}", errors(&late));
    server.restart(&words);
    assert_ne!(server.ticket, first);
    assert!(server.client("ls", &[]).status.success());
}

/// Runs this command again and again, killed after a growing time, until it succeeds; `check` follows each kill.
fn kill_until_done(mut command: Command, kills: u64, step: Duration, check: impl Fn()) {
    for round in 0..kills {
        let running = Running::start(&mut command);
        std::thread::sleep(Duration::from_millis(60) + step * round as u32);
        running.kill();
        check();
    }
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", errors(&done));
    check();
}

#[test]
fn programs_killed_at_fifty_moments_leave_no_half_file_under_a_final_name() {
    let scratch = Scratch::new();
    for name in ["pub/d", "pub/in", "pub/copy", "from/d"] {
        std::fs::create_dir_all(scratch.path(name)).unwrap();
    }
    for at in 0..24 {
        let len = if at % 6 == 0 { 12_000_000 + at * 1000 } else { 7_000 * at };
        scratch.file(&format!("pub/d/{at}"), len, at as u64);
        scratch.file(&format!("from/d/{at}"), len, 100 + at as u64);
    }
    let port = free_port().to_string();
    let words = ["--port", &port, "--rights", "write"];
    let mut server = Server::start(scratch, &words);
    let (source, mine) = (tree(&server.path("pub/d")), tree(&server.path("from/d")));
    let whole = |place: &Path, expected: &BTreeMap<String, Vec<u8>>| {
        for (name, content) in tree(place) {
            assert!(expected.get(&name) == Some(&content), "{name} has its final name and is not whole");
        }
    };
    let ticket = server.ticket.clone();
    let step = Duration::from_millis(20);
    let command = |words: &[&str]| own(&server.scratch, &[&[words[0], &ticket], &words[1..]].concat());
    let (to, from) = (server.scratch.text("to"), server.scratch.text("from/d"));
    let get = command(&["get", "pub/d", "--to", &to, "-q"]);
    kill_until_done(get, 13, step, || whole(&server.path("to/d"), &source));
    assert!(tree(&server.path("to/d")) == source);
    let put = command(&["put", &from, "--to", "pub/in", "-q"]);
    kill_until_done(put, 13, step, || whole(&server.path("pub/in/d"), &mine));
    assert!(tree(&server.path("pub/in/d")) == mine);
    let sync = command(&["sync", "pub/copy", &from, "--push", "--delete", "-q"]);
    kill_until_done(sync, 12, step, || whole(&server.path("pub/copy"), &mine));
    assert!(tree(&server.path("pub/copy")) == mine);

    // The server is killed while it sends and receives; the clients find it again by the same ticket.
    std::fs::create_dir(server.path("again")).unwrap();
    let again = server.scratch.text("again");
    let words: Vec<&str> = words.iter().copied().chain(["--rate", "100Mbit/s"]).collect();
    server.restart(&words);
    let get = Running::start(&mut own(&server.scratch, &["get", &ticket, "pub/d", "--to", &again]));
    // A busy client's sessions could be taken for dead when it opens another, so the second client has its own key.
    let key = server.scratch.text("key");
    server_key(&server.scratch);
    let put = ["put", &ticket, &from, "--to", "pub/late", "--key", &key];
    let put = Running::start(&mut own(&server.scratch, &put));
    for round in 0..12 {
        std::thread::sleep(Duration::from_millis(150 + 10 * round));
        server.restart(&words);
        whole(&server.path("again/d"), &source);
        whole(&server.path("pub/late/d"), &mine);
    }
    for client in [get, put] {
        let (code, told) = client.end();
        assert_eq!(code, Some(0), "{told}");
    }
    wait_for("the last file", || tree(&server.path("again/d")) == source);
    assert!(tree(&server.path("pub/late/d")) == mine);
}

#[test]
fn a_ticket_is_drawn_as_a_qr_code_on_request_and_standard_output_holds_its_text_alone() {
    let scratch = Scratch::new();
    let file = scratch.file("a", 1000, 1);
    let file = file.to_str().unwrap();
    let sender = Running::start(&mut program(&["send", file, "--qr", "--expires", "1s"]));
    let (code, told) = sender.end();
    assert!(told.contains("█▀▀") && told.contains("▄▄▄▄▄"), "{code:?} {told}");
    let server = Server::start(Scratch::new(), &["--qr"]);
    let listed = server.client("ls", &[]);
    assert!(listed.status.success(), "{}", errors(&listed));
    server.running.interrupt();
    let Server { running, .. } = server;
    let (_, told) = running.end();
    assert!(told.contains("█▀▀"), "{told}");
    for words in [
        &["send", file, "--qr", "--json"][..],
        &["exit", "--qr", "--json"],
        &["exit", "--qr", "--no-ticket", "--client", &server_key(&scratch)],
    ] {
        let output = own(&scratch, words).output().expect("the program");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(errors(&output).contains("`--qr` draws"), "{words:?} {}", errors(&output));
    }
}

#[test]
fn browsers_read_the_folders_over_http_until_the_last_ticket_is_revoked() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path("pub/d")).unwrap();
    scratch.file("pub/large", 3_000_000, 1);
    scratch.file("secret", 30, 2);
    std::os::unix::fs::symlink(scratch.path("secret"), scratch.path("pub/file")).unwrap();
    std::os::unix::fs::symlink(scratch.path(""), scratch.path("pub/up")).unwrap();
    let at = format!("127.0.0.1:{}", free_port());
    let server = Server::start(scratch, &["--http", &at]);
    assert!(asked(&at, "GET / HTTP/1.1").unwrap().contains("href=\"./pub/\""));
    let page = asked(&at, "GET /pub/ HTTP/1.1").unwrap();
    assert!(page.contains("href=\"./large\"") && page.contains("3.0 MB"), "{page}");
    assert!(page.contains("href=\"./d/\"") && !page.contains(">file"), "{page}");
    for path in
        ["/secret", "/../secret", "/pub/%2e%2e/secret", "/pub/..%2fsecret", "/pub/file", "/pub/up/secret"]
    {
        let answer = asked(&at, &format!("GET {path} HTTP/1.1")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    // Parts of a file that has just changed are not put together.
    std::thread::sleep(Duration::from_millis(2_100));
    let (url, to) = (format!("http://{at}/pub/large"), server.scratch.text("to"));
    let fetched = own(&server.scratch, &["fetch", &url, "-o", &to]).output().expect("the program");
    assert!(fetched.status.success(), "{}", errors(&fetched));
    assert!(same(&server.path("to/large"), &server.path("pub/large")));
    assert!(own(&server.scratch, &["ticket", "revoke", "pub"]).status().unwrap().success());
    wait_for("the end of HTTP", || asked(&at, "GET / HTTP/1.1").is_err());
}

/// The answer to a request; an error if no one listens.
fn asked(at: &str, line: &str) -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(at)?;
    stream.write_all(format!("{line}\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The public key of a new key file.
fn server_key(scratch: &Scratch) -> String {
    common::programs::new_key(&scratch.text("key"))
}

#[test]
fn a_named_ticket_of_a_sender_outlives_restarts_until_it_is_revoked() {
    let scratch = Scratch::new();
    let file = scratch.file("a", 200_000, 1);
    let send = |words: &[&str]| {
        let words =
            [&["send", file.to_str().unwrap(), "--name", "family", "--expires", "10m"], words].concat();
        let mut running = Running::start(&mut own(&scratch, &words));
        let ticket = running.line();
        (running, ticket)
    };
    let (sender, first) = send(&[]);
    sender.kill();
    let (sender, again) = send(&[]);
    assert_eq!(first, again);
    let to = scratch.text("to");
    let received = common::programs::receive(&[&first, &to]);
    assert!(received.status.success(), "{}", errors(&received));
    assert!(same(&scratch.path("to/a"), &file));
    let list = own(&scratch, &["ticket", "list"]).output().unwrap();
    assert!(
        text(&list).starts_with("family  send, ") && text(&list).contains(" old, expires in "),
        "{}",
        text(&list)
    );
    let other = own(&scratch, &["send", &to, "--name", "family"]).output().unwrap();
    assert!(errors(&other).contains("the ticket `family` is for "), "{}", errors(&other));
    assert!(own(&scratch, &["ticket", "revoke", "family"]).status().unwrap().success());
    // The sender runs on for a while, to say so.
    wait_for("the refusal", || {
        let refused = common::programs::receive(&[&first, &to, "--overwrite"]);
        refused.status.code() == Some(4)
    });
    let (code, told) = sender.end();
    assert!(code == Some(0) && told.contains("the ticket `family` was revoked"), "{code:?} {told}");
    let (sender, new) = send(&[]);
    assert_ne!(first, new);
    let refused = common::programs::receive(&[&first, &to, "--overwrite"]);
    assert!(!refused.status.success());
    drop(sender);
}

#[test]
fn a_client_says_what_it_puts_before_it_starts_and_the_server_names_what_it_could_not_store() {
    let scratch = Scratch::new();
    ["from", "pub"].iter().for_each(|name| std::fs::create_dir_all(scratch.path(name)).unwrap());
    let sent = scratch.file("from/a", 2_000_000, 1);
    scratch.file("pub/a", 10, 2);
    let server = Server::start(scratch, &["--rights", "write"]);
    let put = server.put(&[sent.to_str().unwrap()]);
    assert_eq!(put.status.code(), Some(6));
    assert!(errors(&put).starts_with("sending 1 file, 2.00 MB\n"), "{}", errors(&put));
    let quiet = server.put(&[sent.to_str().unwrap(), "-q"]);
    assert!(!errors(&quiet).contains("sending"), "{}", errors(&quiet));
    server.running.interrupt();
    let (_, told) = server.running.end();
    assert!(
        told.contains("put failed: 1 file was not transferred\n  a: something else has this name"),
        "{told}"
    );
}
