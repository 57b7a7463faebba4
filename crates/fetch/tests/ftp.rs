//! FTP servers, right ones and such with faults.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_fetch::FetchError;
use common::{Place, noise};

const SIZE: usize = 1_500_000;

/// How a server behaves.
#[derive(Clone, Copy, Default)]
struct Faults {
    no_rest: bool,
    ignores_rest: bool,
    no_epsv: bool,
    no_size: bool,
    no_time: bool,
    /// PASV names an address that no one can reach.
    private_address: bool,
    /// A transfer that is cut off is followed by two replies, late.
    stale: bool,
    /// Logins at the same time.
    most: Option<usize>,
    denied: bool,
    /// How often the file is rewritten, at the same size, while its last bytes are sent.
    rewrites: usize,
}

/// The file, and how often it was rewritten.
struct Disk<'a> {
    content: &'a [u8],
    rewritten: &'a AtomicUsize,
}

/// Where the last range of a file of [`SMALL`] bytes begins, behind the first bytes that are fetched alone.
const LAST: usize = 64 << 10;
/// One range holds the rest of such a file.
const SMALL: usize = 400_000;

/// A file of which the versions differ behind [`LAST`].
fn version(content: &[u8], number: usize) -> Vec<u8> {
    let mut content = content.to_vec();
    content.iter_mut().skip(LAST).for_each(|byte| *byte = byte.wrapping_add(number as u8));
    content
}

/// Commands that a server got.
type Log = Arc<Mutex<Vec<String>>>;

fn server(content: &[u8], faults: Faults) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ftp://127.0.0.1:{}/pub/a%20file", listener.local_addr().unwrap().port());
    let (content, log, open) = (content.to_vec(), Log::default(), Arc::new(Mutex::new(0)));
    let rewritten = Arc::new(AtomicUsize::new(0));
    let commands = log.clone();
    std::thread::spawn(move || {
        for control in listener.incoming().flatten() {
            let (content, log, open) = (content.clone(), commands.clone(), open.clone());
            let rewritten = rewritten.clone();
            std::thread::spawn(move || {
                *open.lock().unwrap() += 1;
                let is_over = faults.most.is_some_and(|most| *open.lock().unwrap() > most);
                // A client that goes away ends its connection.
                let _ = serve(
                    control,
                    Disk { content: &content, rewritten: &rewritten },
                    (faults, is_over, &log),
                );
                *open.lock().unwrap() -= 1;
            });
        }
    });
    (url, log)
}

/// Logged after a command that comes between REST and RETR.
const MISPLACED: &str = "misplaced REST";

fn serve(
    mut control: TcpStream,
    Disk { content, rewritten }: Disk<'_>,
    (faults, is_over, log): (Faults, bool, &Log),
) -> std::io::Result<()> {
    if is_over {
        return control.write_all(b"421 too many connections\r\n");
    }
    control.write_all(b"220-welcome\r\n 220 here\r\n220 ready\r\n")?;
    let (mut start, mut data) = (0, None::<TcpListener>);
    // Connections share the log, so the order of one connection's commands is checked here.
    let mut has_begun_within = false;
    for line in BufReader::new(control.try_clone()?).lines() {
        let line = line?;
        log.lock().unwrap().push(line.clone());
        let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
        if has_begun_within && !["EPSV", "PASV", "RETR"].contains(&command) {
            log.lock().unwrap().push(MISPLACED.to_owned());
        }
        has_begun_within = match command {
            "REST" => argument.parse::<u64>().is_ok_and(|offset| offset > 1),
            "RETR" => false,
            _ => has_begun_within,
        };
        let reply = match command {
            "USER" => "331 password".to_owned(),
            "PASS" if faults.denied => "530 wrong".to_owned(),
            "PASS" => "230-hello\r\n230 in".to_owned(),
            "TYPE" => "200 binary".to_owned(),
            "SIZE" if faults.no_size => "500 what".to_owned(),
            "SIZE" if argument == "pub/a file" => format!("213 {}", content.len()),
            "MDTM" if faults.no_time => "500 what".to_owned(),
            "MDTM" => format!("213 2026010203040{}", rewritten.load(Ordering::SeqCst)),
            "REST" if faults.no_rest => "502 no".to_owned(),
            "REST" => {
                start = argument.parse().unwrap_or(0);
                "350 next".to_owned()
            }
            "EPSV" if faults.no_epsv => "500 what".to_owned(),
            "EPSV" | "PASV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                data = Some(listener);
                if command == "EPSV" {
                    format!("229 extended (|||{port}|)")
                } else {
                    let host = if faults.private_address { "10,255,255,1" } else { "127,0,0,1" };
                    format!("227 passive ({host},{},{})", port / 256, port % 256)
                }
            }
            "RETR" if argument == "pub/a file" => {
                control.write_all(b"150 here it comes\r\n")?;
                let (mut stream, _) = data.take().expect("a data connection first").accept()?;
                let from = if faults.ignores_rest { 0 } else { std::mem::take(&mut start) };
                let now = rewritten.load(Ordering::SeqCst);
                let mut sent = version(content, now)[from..].to_vec();
                if from == (if faults.no_rest { 0 } else { LAST }) && now < faults.rewrites {
                    rewritten.store(now + 1, Ordering::SeqCst);
                    let half = sent.len() / 2;
                    sent[half..].copy_from_slice(&version(content, now + 1)[from + half..]);
                }
                let sent = sent.chunks(16 << 10).try_for_each(|piece| stream.write_all(piece));
                drop(stream);
                match sent {
                    Ok(()) => "226 done".to_owned(),
                    Err(_) if faults.stale => {
                        std::thread::sleep(Duration::from_millis(50));
                        "226 closed\r\n226 aborted".to_owned()
                    }
                    Err(_) => "426 cut off".to_owned(),
                }
            }
            _ => "550 no".to_owned(),
        };
        control.write_all(format!("{reply}\r\n").as_bytes())?;
    }
    Ok(())
}

async fn fetched(faults: Faults) -> Vec<String> {
    let content = noise(SIZE, 30);
    let (url, log) = server(&content, faults);
    let place = Place::new(&[url]).over_addresses(&[2, 3]);
    place.fetch().await.unwrap();
    assert!(place.content() == content, "wrong bytes");
    assert_eq!(place.names(), ["file"]);
    log.lock().unwrap().clone()
}

#[tokio::test]
async fn a_right_server_is_asked_in_parts() {
    let log = fetched(Faults::default()).await;
    assert!(!log.contains(&"PASV".to_owned()));
    // REST comes right before RETR.
    assert!(!log.contains(&MISPLACED.to_owned()), "{log:?}");
}

#[tokio::test]
async fn servers_that_cannot_begin_within_a_file_send_it_whole() {
    for faults in
        [Faults { no_rest: true, ..Faults::default() }, Faults { ignores_rest: true, ..Faults::default() }]
    {
        fetched(faults).await;
    }
    fetched(Faults { no_size: true, ..Faults::default() }).await;
}

#[tokio::test]
async fn a_file_that_begins_with_zeros_is_right_though_the_server_ignores_rest() {
    let mut content = noise(SIZE, 32);
    content[..100_000].fill(0);
    let (url, _) = server(&content, Faults { ignores_rest: true, ..Faults::default() });
    let place = Place::new(&[url]);
    place.fetch().await.unwrap();
    assert!(place.content() == content, "wrong bytes");
}

#[tokio::test]
async fn a_refused_epsv_and_a_private_address_in_pasv_do_not_matter() {
    let log = fetched(Faults { no_epsv: true, private_address: true, ..Faults::default() }).await;
    assert!(log.contains(&"PASV".to_owned()));
}

#[tokio::test]
async fn stale_replies_after_a_cut_are_not_taken_for_answers() {
    fetched(Faults { stale: true, ..Faults::default() }).await;
}

#[tokio::test]
async fn a_file_that_is_rewritten_during_its_last_range_is_fetched_again() {
    let content = noise(SMALL, 33);
    for no_rest in [false, true] {
        let (url, _) = server(&content, Faults { rewrites: 1, no_rest, ..Faults::default() });
        let place = Place::new(&[url]);
        place.fetch().await.unwrap();
        assert!(place.content() == version(&content, 1), "bytes of two versions");
        assert_eq!(place.names(), ["file"]);
    }
}

#[tokio::test]
async fn a_file_that_is_rewritten_during_every_last_range_is_reported() {
    let content = noise(SMALL, 34);
    let (url, _) = server(&content, Faults { rewrites: 9, ..Faults::default() });
    let place = Place::new(&[url]);
    let error = place.fetch().await.unwrap_err();
    assert!(matches!(error, FetchError::Changed), "{error:?}");
    assert!(place.names().is_empty(), "mixed bytes are not kept for another attempt: {:?}", place.names());
}

#[tokio::test]
async fn a_server_that_names_no_time_of_change_sends_the_file_whole() {
    fetched(Faults { no_time: true, ..Faults::default() }).await;
    let content = noise(SMALL, 35);
    let (url, log) = server(&content, Faults { no_time: true, rewrites: 1, ..Faults::default() });
    let place = Place::new(&[url]);
    let (_, notes) = place.fetch_with_notes().await;
    let came = place.content();
    assert!((0..2).any(|number| came == version(&content, number)), "bytes of two versions: {notes:?}");
    assert!(notes.iter().any(|note| note.contains("names no version of the file")), "{notes:?}");
    // Only the look for how the server begins within a file.
    let rests = log.lock().unwrap().iter().filter(|line| line.starts_with("REST ")).count();
    assert!(rests <= 2, "{rests}");
}

#[tokio::test]
async fn a_limit_of_logins_is_respected() {
    fetched(Faults { most: Some(1), ..Faults::default() }).await;
}

#[tokio::test]
async fn a_refused_login_and_a_missing_file_are_reported_at_once() {
    let content = noise(1000, 31);
    let (url, _) = server(&content, Faults { denied: true, ..Faults::default() });
    let error = Place::new(&[url]).fetch().await.unwrap_err();
    assert!(matches!(&error, FetchError::Refused(tried) if tried[0].why.contains("login")), "{error:?}");
    let (url, _) = server(&content, Faults::default());
    let error = Place::new(&[url.replace("file", "other")]).fetch().await.unwrap_err();
    assert!(matches!(&error, FetchError::Refused(tried) if tried[0].why.contains("550")), "{error:?}");
}
