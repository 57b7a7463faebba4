//! Real etcd servers on loopback, ended and removed when dropped.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

pub struct Cluster {
    dir: tempfile::TempDir,
    members: Vec<Member>,
}

struct Member {
    name: String,
    client: u16,
    peer: u16,
    child: Option<Child>,
}

impl Cluster {
    /// Starts this many members and waits for them; `None`, with a message, without an etcd on this machine.
    pub async fn start(members: usize) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
        {
            eprintln!("skipped: no etcd here (Debian: apt-get install etcd-server)");
            return None;
        }
        let ports = free_ports(2 * members);
        let make = |at: usize| Member {
            name: format!("m{at}"),
            client: ports[2 * at],
            peer: ports[2 * at + 1],
            child: None,
        };
        let mut cluster =
            Self { dir: tempfile::tempdir().unwrap(), members: (0..members).map(make).collect() };
        for at in 0..members {
            cluster.launch(at);
        }
        cluster.wait().await;
        Some(cluster)
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://127.0.0.1:{}", member.client)).collect()
    }

    fn launch(&mut self, at: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.name, url(member.peer))).collect();
        let member = &mut self.members[at];
        let child = Command::new("etcd")
            .args(["--name", &member.name, "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(self.dir.path().join(&member.name))
            .args(["--listen-client-urls", &url(member.client)])
            .args(["--advertise-client-urls", &url(member.client)])
            .args(["--listen-peer-urls", &url(member.peer)])
            .args(["--initial-advertise-peer-urls", &url(member.peer)])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        member.child = Some(child);
    }

    async fn wait(&self) {
        let ready = async {
            for member in &self.members {
                while TcpStream::connect(("127.0.0.1", member.client)).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ready).await.expect("etcd listens");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ports that are free now, below the range from which the system gives ports to connections. In that range, another
/// test's connection may take the port, and a connection to a member that does not listen yet may reach itself.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let bind = || {
        let at = (std::process::id() as u16).wrapping_mul(61);
        let at = at.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        TcpListener::bind(("127.0.0.1", 12_000 + at % 20_000)).ok()
    };
    let held: Vec<TcpListener> = std::iter::repeat_with(bind).flatten().take(count).collect();
    held.iter().map(|listener| listener.local_addr().expect("bound").port()).collect()
}

/// A member's status, in etcd's JSON.
async fn status(port: u16) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let question = "POST /v3/maintenance/status HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(question.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    json.split_once(&format!("\"{name}\":\""))?.1.split('"').next()
}

impl Cluster {
    /// Ends the leader as a power failure would; returns its index.
    #[allow(dead_code, reason = "not every test that has a cluster ends its leader")]
    pub async fn kill_leader(&mut self) -> usize {
        for _ in 0..600 {
            for (at, member) in self.members.iter_mut().enumerate() {
                let Some(json) = status(member.client).await else { continue };
                let leads =
                    field(&json, "leader").is_some() && field(&json, "leader") == field(&json, "member_id");
                if leads && let Some(mut child) = member.child.take() {
                    child.kill().expect("it runs");
                    child.wait().expect("it ends");
                    return at;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("etcd has no leader");
    }
}
