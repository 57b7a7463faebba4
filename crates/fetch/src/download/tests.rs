//! Downloads from a name with two addresses, of which one is of no use.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const CONTENT: &[u8] = b"the file";

/// How a machine answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    Right,
    Busy,
    Failing,
    Hanging,
}

async fn answer(mut stream: TcpStream, machine: Machine) -> std::io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        if !line.is_empty() {
            continue;
        }
        let text = match machine {
            Machine::Right => {
                let (text, len) = (String::from_utf8_lossy(CONTENT), CONTENT.len());
                format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{text}")
            }
            Machine::Busy => "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n".to_owned(),
            Machine::Failing => "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_owned(),
            Machine::Hanging => return std::future::pending().await,
        };
        writer.write_all(text.as_bytes()).await?;
    }
    Ok(())
}

/// Serves, and returns how many connections came.
fn serve(listener: TcpListener, machine: Machine) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(answer(stream, machine));
        }
    });
    count
}

async fn fetched_beside(machine: Machine) {
    let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = one.local_addr().unwrap().port();
    let other = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let (broken, right) = (serve(one, machine), serve(other, Machine::Right));
    let folder = tempfile::tempdir().unwrap();
    // An earlier attempt was answered by the first machine.
    let ip = Ipv4Addr::LOCALHOST;
    let url = format!("http://two.test:{port}/a");
    let journal = format!(
        r#"{{"size":{},"origins":[["{url}",[[0,3]]]],"peers":[["two.test",{port},"{ip}"]]}}"#,
        CONTENT.len()
    );
    let target = folder.path().join("file");
    std::fs::write(folder.path().join(".file.anabranch-fetch"), journal).unwrap();
    std::fs::write(folder.path().join(".file.anabranch-fetch-part"), &CONTENT[..3]).unwrap();
    let job = Job {
        mirrors: vec![url.parse().unwrap()],
        target: target.clone(),
        replace: false,
        keep_finished: false,
        checksums: Vec::new(),
        size: None,
    };
    let options = Options {
        routes: vec![RouteUse { route: Route::System, name: "direct".to_owned(), rank: 0, cap: None }],
        caps: Vec::new(),
        connections: 4,
        limit: None,
        tls: Tls::new().unwrap(),
    };
    let ended = fetch(&job, &options, &Progress::default(), &Notify::new()).await;
    assert!(ended.is_ok(), "{machine:?}: {ended:?}");
    assert_eq!(std::fs::read(target).unwrap(), CONTENT);
    let asked = broken.load(Ordering::SeqCst);
    let most = if machine == Machine::Busy { 2 } else { 1 };
    assert!((1..=most).contains(&asked), "{machine:?}: {asked} connections");
    assert!(right.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn a_machine_of_an_earlier_attempt_that_is_of_no_use_gives_way_to_another_one() {
    tokio::join!(
        fetched_beside(Machine::Busy),
        fetched_beside(Machine::Failing),
        fetched_beside(Machine::Hanging)
    );
}
