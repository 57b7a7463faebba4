//! Servers with faults: never a wrong byte, a clear message, and the best that the server allows.

mod common;

use std::io::Write as _;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_fetch::{Cap, Checksum, FetchError, Progress, fetch};
use common::server::{Request, Response, Server};
use common::{Place, noise};
use data_encoding::{BASE64, HEXLOWER};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const SIZE: usize = 3_000_000;

const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const LATE: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

async fn fetched(place: &Place, content: &[u8]) {
    let report = place.fetch().await.unwrap();
    assert_eq!(report.bytes, content.len() as u64);
    assert!(place.content() == content, "wrong bytes");
    assert_eq!(place.names(), ["file"], "nothing else is left");
}

/// Continues a download with more than `least` bytes of before.
async fn resumed(place: &Place, content: &[u8], least: u64) {
    let report = place.fetch().await.unwrap();
    assert!(report.resumed > least, "{report:?}");
    assert!(place.content() == content, "wrong bytes");
}

fn causes(error: FetchError) -> String {
    match error {
        FetchError::Unreachable(tried) | FetchError::Refused(tried) => {
            tried.into_iter().map(|tried| tried.why).collect::<Vec<_>>().join("; ")
        }
        error => error.to_string(),
    }
}

#[tokio::test]
async fn a_right_server_is_asked_in_parts_over_each_route() {
    let content = noise(SIZE, 1);
    let body = content.clone();
    let server =
        Server::start(move |request| Response { rate: Some(3_000_000), ..Response::long(request, &body) });
    let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
    let report = place.fetch().await.unwrap();
    assert!(place.content() == content, "wrong bytes");
    assert!(report.sources.iter().all(|source| source.bytes > 100_000), "{:?}", report.sources);
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.header("accept-encoding") == Some("identity")));
}

#[tokio::test]
async fn empty_and_tiny_files_are_fetched() {
    for size in [0, 1, 65_535, 65_536, 65_537] {
        let content = noise(size, 2);
        fetched(&Place::new(&[Server::right(&content).url("/a")]), &content).await;
    }
}

/// A server that calls its file empty wherever it is asked for a part.
fn calls_it_empty(content: &[u8], is_called: impl Fn() -> bool + Send + Sync + 'static) -> Server {
    Server::changed(content, move |request, right| match request.header("range") {
        Some(_) if is_called() => Response::new(416, b"").with("Content-Range", "bytes */0"),
        _ => right,
    })
}

#[tokio::test]
async fn a_file_that_its_server_calls_empty_is_asked_for_whole() {
    let content = noise(SIZE, 70);
    fetched(&Place::new(&[calls_it_empty(&content, || true).url("/a")]), &content).await;
    let is_later = Arc::new(AtomicBool::new(false));
    let now = is_later.clone();
    let server = calls_it_empty(&content, move || now.load(Ordering::SeqCst));
    let mut place = Place::new(&[server.url("/a")]);
    place.options.limit = NonZeroU64::new(8_000_000);
    assert!(matches!(place.fetch_until(900_000).await, Err(FetchError::Stopped)));
    is_later.store(true, Ordering::SeqCst);
    place.options.limit = None;
    fetched(&place, &content).await;
    let empty = Place::new(&[calls_it_empty(b"", || true).url("/a")]);
    let (report, notes) = empty.fetch_with_notes().await;
    assert!(report.bytes == 0 && empty.content().is_empty() && notes.is_empty(), "{notes:?}");
}

#[tokio::test]
async fn a_server_without_ranges_sends_the_file_over_one_connection() {
    let content = noise(SIZE, 3);
    for (version, chunked, has_length) in [
        ("HTTP/1.1", false, true),
        ("HTTP/1.1", true, false),
        ("HTTP/1.0", false, false),
        ("HTTP/1.0", false, true),
    ] {
        let body = content.clone();
        let server =
            Server::start(move |_| Response { version, chunked, has_length, ..Response::new(200, &body) });
        let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
        let report = place.fetch().await.unwrap();
        assert!(place.content() == content && report.bytes == SIZE as u64, "{report:?}");
        let of_sources: u64 = report.sources.iter().map(|source| source.bytes).sum();
        assert_eq!(of_sources, report.bytes, "{report:?}");
        assert!(report.sources.iter().any(|source| source.is_ready), "{report:?}");
    }
}

#[tokio::test]
async fn a_part_under_status_200_counts_and_a_whole_file_for_a_part_does_not() {
    let content = noise(SIZE, 4);
    let server = Server::changed(&content, |_, right| Response { status: 200, ..right });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
    // Every third answer is the whole file from its beginning.
    let body = content.clone();
    let server = Server::changed(&content, move |request, right| match request.number % 3 {
        2 => Response::new(200, &body),
        _ => right,
    });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
}

#[tokio::test]
async fn a_server_that_stops_sending_parts_sends_the_rest_from_the_beginning() {
    let content = noise(SIZE, 50);
    for status in [200, 416] {
        let body = content.clone();
        let server = Server::changed(&content, move |request, right| match request.number {
            0..=1 => right,
            _ if status == 200 || request.header("range").is_none() => Response::new(200, &body),
            _ => Response::new(416, b""),
        });
        fetched(&Place::new(&[server.url("/a")]), &content).await;
        let asked = server.requests().len();
        assert!(asked <= 6, "{status}: {asked} requests");
    }
    // The whole file is another one now, which only its bytes show.
    let other = [noise(1000, 51), content[1000..].to_vec()].concat();
    let server = Server::changed(&content, move |request, right| match request.number {
        0..=1 => right,
        2..=5 => Response::new(200, &other),
        _ => Response::right(request, &other),
    });
    let place = Place::new(&[server.url("/a")]);
    place.fetch().await.unwrap();
    assert!(place.content()[..1000] == noise(1000, 51), "no bytes of two files");
}

#[tokio::test]
async fn a_server_that_allows_one_request_sends_the_file_with_it() {
    let content = noise(SIZE, 53);
    for routes in [&[2][..], &[2, 3]] {
        for has_pause in [false, true] {
            let (limited, sent) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
            let count = sent.clone();
            let body = content.clone();
            let server = Server::start(move |request| {
                if limited.fetch_add(1, Ordering::SeqCst) == 0 {
                    count.fetch_add(1, Ordering::SeqCst);
                    return Response { rate: Some(2_000_000), ..Response::long(request, &body) };
                }
                let refused = Response::new(429, b"busy");
                if has_pause { refused.with("Retry-After", "600") } else { refused }
            });
            let place = Place::new(&[server.url("/a")]).over_addresses(routes);
            fetched(&place, &content).await;
            assert_eq!(sent.load(Ordering::SeqCst), 1, "{routes:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_refuses_later_parts_sends_the_file_with_its_first_answer() {
    let content = noise(SIZE, 55);
    for routes in [&[2, 3][..], &[2, 3, 4]] {
        for status in [200, 304, 403, 416] {
            let body = content.clone();
            let server = Server::start(move |request| {
                let is_late = request.range(SIZE).is_some_and(|(start, _)| start > 0);
                let response = match is_late || request.header("range").is_none() {
                    true if status == 200 => Response::new(200, &body).with("ETag", "\"a\""),
                    true => Response::new(status, b""),
                    false => Response::long(request, &body).with("ETag", "\"a\""),
                };
                Response { rate: Some(1_500_000), ..response }
            });
            fetched(&Place::new(&[server.url("/a")]).over_addresses(routes), &content).await;
            let asked = server.requests();
            let plain = asked.iter().filter(|request| request.header("range").is_none()).count();
            assert_eq!(plain, 0, "{status}: the first answer goes on");
            // Nor is it asked for samples.
            assert!(asked.len() <= 4 * routes.len(), "{status}: {} requests", asked.len());
        }
    }
}

#[tokio::test]
async fn a_whole_file_for_all_of_its_bytes_is_a_part_where_the_server_sends_parts() {
    let content = noise(SIZE, 54);
    let body = content.clone();
    let server = Server::changed(&content, move |request, right| {
        let is_all = request.header("range") == Some("bytes=0-");
        let response = if is_all { Response::new(200, &body) } else { right };
        let response = Response { rate: Some(2_000_000), ..response };
        response.with("Accept-Ranges", "bytes").with("ETag", "\"x\"")
    });
    let place = Place::new(&[server.url("/a")]);
    assert!(matches!(place.fetch_until(500_000).await, Err(FetchError::Stopped)));
    resumed(&place, &content, 400_000).await;
}

#[tokio::test]
async fn a_server_that_cuts_every_body_short_is_used() {
    let content = noise(400_000, 55);
    let server =
        Server::changed(&content, |_, right| Response { cut: Some(right.body.len().min(20_000)), ..right });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
}

#[tokio::test]
async fn a_server_that_denies_the_rest_is_given_up_soon() {
    let content = noise(SIZE, 52);
    let server = Server::changed(&content, |request, right| match request.number {
        0..=1 => right,
        _ => Response::new(416, b""),
    });
    let place = Place::new(&[server.url("/a")]);
    assert_eq!(causes(place.fetch().await.unwrap_err()), "the server denies that it has these bytes");
    let asked = server.requests().len();
    assert!(asked <= 6, "{asked} requests");
    assert!(anabranch_fetch::kept(&place.job.target) > 0, "what came is kept");
}

#[tokio::test]
async fn a_part_that_begins_earlier_ends_earlier_or_is_cut_is_put_in_its_place() {
    let content = noise(SIZE, 5);
    let body = content.clone();
    let server = Server::start(move |request| {
        let (start, end) = request.range(body.len()).unwrap();
        let (start, end) = match request.number % 3 {
            0 => (start, end),
            1 => (start.saturating_sub(1000), end),
            _ => (start, start + (end - start).div_ceil(3)),
        };
        let cut = (request.number % 4 == 3).then_some((end - start) / 2);
        let size = body.len();
        let part = Response::new(206, &body[start..end]);
        let part = part.with("Content-Range", format!("bytes {start}-{}/{size}", end - 1));
        Response { cut, ..part.with("ETag", "\"a\"") }
    });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
}

#[tokio::test]
async fn other_bytes_than_asked_for_are_never_written() {
    let content = noise(SIZE, 6);
    let body = content.clone();
    let server = Server::start(move |request| {
        let (start, end) = request.range(body.len()).unwrap();
        if request.number % 2 == 0 {
            return Response::right(request, &body);
        }
        // Too late a start, or no word about which bytes.
        let part = Response::new(206, &body[start..end]);
        if request.number % 4 == 1 {
            part.with("Content-Range", format!("bytes {}-{}/{}", start + 1, end, body.len()))
        } else {
            part
        }
    });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
}

/// A server whose file is replaced after some requests.
fn changing(
    after: usize,
    version: impl Fn(usize) -> Vec<(&'static str, String)> + Send + Sync + 'static,
) -> Server {
    let contents = [noise(SIZE, 7), noise(SIZE, 8)];
    Server::start(move |request| {
        let which = usize::from(request.number >= after);
        let headers = version(which);
        let is_other =
            request.header("if-range").is_some_and(|wanted| headers.iter().all(|(_, has)| has != wanted));
        let response = if is_other {
            Response::new(200, &contents[which])
        } else {
            Response::right(request, &contents[which])
        };
        headers.into_iter().fold(response, |response, (name, value)| response.with(name, value))
    })
}

#[tokio::test]
async fn a_file_that_changes_is_fetched_anew() {
    for version in [
        |which: usize| vec![("ETag", format!("\"{which}\""))],
        |which: usize| vec![("ETag", format!("W/\"{which}\""))],
        |which: usize| vec![("Last-Modified", [EARLY, LATE][which].to_owned()), ("Date", LATE.to_owned())],
        |which: usize| {
            vec![("ETag", format!("W/\"{which}\"")), ("Last-Modified", [EARLY, LATE][which].to_owned())]
        },
    ] {
        let server = changing(2, version);
        fetched(&Place::new(&[server.url("/a")]), &noise(SIZE, 8)).await;
        let weak = server
            .requests()
            .iter()
            .any(|request| request.header("if-range").is_some_and(|tag| tag.starts_with("W/")));
        assert!(!weak, "weak tags are not allowed there");
    }
}

#[tokio::test]
async fn parts_without_the_version_of_the_first_are_not_mixed_with_it() {
    let (tag, time, date) = ("ETag", "Last-Modified", ("Date", LATE.to_owned()));
    let cases = [
        (vec![(tag, "\"0\"".to_owned())], vec![]),
        (vec![(tag, "\"0\"".to_owned())], vec![(time, LATE.to_owned())]),
        (vec![(tag, "\"0\"".to_owned())], vec![(tag, "W/\"0\"".to_owned())]),
        (vec![(time, EARLY.to_owned()), date.clone()], vec![date]),
    ];
    for (first, later) in cases {
        for after in [1, 2] {
            let contents = [noise(SIZE, 7), noise(SIZE, 8)];
            let (content, versions) = (contents[1].clone(), [first.clone(), later.clone()]);
            let server = Server::start(move |request| {
                let which = usize::from(request.number >= after);
                let response = Response::unversioned(request, &contents[which]);
                versions[which].iter().fold(response, |response, (name, value)| response.with(name, value))
            });
            let place = Place::new(&[server.url("/a")]);
            let (_, notes) = place.fetch_with_notes().await;
            assert!(place.content() == content, "wrong bytes after {first:?} and {later:?}");
            assert!(
                notes.iter().any(|note| note.contains("does not name the version of its parts")),
                "{notes:?}"
            );
        }
    }
}

/// A part without a word about which bytes they are, with more bytes than it says, or with lengths that make no sense.
fn malformed(kind: usize, right: Response) -> Response {
    let part = Response { status: 206, headers: Vec::new(), ..right.clone() };
    match kind {
        0 => part,
        1 => Response { body: [right.body.clone(), vec![0; 1000]].concat(), ..right },
        2 => right.with("Content-Length", "10"),
        _ => Response { has_length: false, ..right }.with("Content-Length", "-5"),
    }
}

#[tokio::test]
async fn a_server_that_answers_ranges_with_nonsense_sends_the_file_whole() {
    let content = noise(SIZE, 70);
    for kind in 0..4 {
        // From the beginning, or after the first bytes.
        for after in [0, 1] {
            let body = content.clone();
            let server = Server::changed(&content, move |request, right| match request.header("range") {
                None => Response::new(200, &body),
                Some(_) if request.number >= after => malformed(kind, right),
                Some(_) => right,
            });
            fetched(&Place::new(&[server.url("/a")]), &content).await;
            let asked = server.requests().len();
            assert!(asked <= 5, "{kind}, {after}: {asked} requests");
        }
    }
}

#[tokio::test]
async fn a_part_without_a_size_in_place_of_the_file_is_not_taken_for_it() {
    let content = noise(SIZE, 71);
    let server = Server::start(move |_| {
        Response::new(206, &content[..65_536]).with("Content-Range", "bytes 0-65535/*").with("ETag", "\"a\"")
    });
    let place = Place::new(&[server.url("/a")]);
    let error = place.fetch().await.unwrap_err();
    assert!(causes(error).contains("only a part of the file"));
    assert!(place.names().is_empty(), "nothing gets the file's name");
}

#[tokio::test]
async fn a_server_that_sends_nothing_but_nonsense_is_given_up_soon() {
    let content = noise(SIZE, 71);
    for after in [0, 1] {
        let server = Server::changed(&content, move |request, right| match request.number >= after {
            true => malformed(3, right),
            false => right,
        });
        let error = Place::new(&[server.url("/a")]).fetch().await.unwrap_err();
        assert!(causes(error).contains("cannot be read"));
        let asked = server.requests().len();
        assert!(asked <= 6, "{after}: {asked} requests");
    }
}

#[tokio::test]
async fn a_server_that_fails_or_does_not_answer_is_named_while_it_is_waited_for() {
    let content = noise(SIZE, 72);
    for (why, after) in [
        ("the server answers 500", 0),
        ("the server is busy or limits connections", 0),
        ("no answer so far", 0),
        ("the server answers 500", 1),
        ("no bytes for", 1),
    ] {
        let server = Server::changed(&content, move |request, right| match why {
            _ if request.number < after => right,
            "the server answers 500" => Response::new(500, b""),
            "the server is busy or limits connections" => Response::new(503, b""),
            _ => {
                std::thread::sleep(Duration::from_secs(60));
                right
            }
        });
        let place = Place::new(&[server.url("/a")]);
        let (progress, stop) = (Progress::default(), Notify::new());
        let named = async {
            while !progress
                .take()
                .sources
                .iter()
                .any(|source| source.why.as_deref().is_some_and(|told| told.starts_with(why)))
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            ended = fetch(&place.job, &place.options, &progress, &stop) => panic!("{why}: {ended:?}"),
            () = named => {}
        }
    }
}

#[tokio::test]
async fn one_page_in_place_of_the_file_does_not_cost_the_bytes_that_came() {
    let (content, shown) = (noise(SIZE, 24), AtomicUsize::new(0));
    let server = Server::changed(&content, move |request, right| {
        let late = request.range(SIZE).is_some_and(|(start, _)| start > 1_000_000);
        // A portal or a proxy answers once, when a third of the file is there.
        if late && shown.fetch_add(1, Ordering::SeqCst) == 0 {
            return Response::new(200, b"please log in");
        }
        right.with("ETag", "\"x\"")
    });
    resumed(&Place::new(&[server.url("/a")]), &content, 1_000_000).await;
}

#[tokio::test]
async fn a_page_in_the_middle_ends_the_download_and_does_not_replace_the_file() {
    let content = noise(SIZE, 48);
    let html = Some("text/html");
    for (name, kind) in [("/file", html), ("/file.iso", html), ("/file.dat", html), ("/file", None)] {
        let is_portal = Arc::new(AtomicBool::new(true));
        let now = is_portal.clone();
        let server = Server::changed(&content, move |request, right| match request.number {
            2.. if now.load(Ordering::SeqCst) => {
                let page = Response::new(200, b"<html>login</html>");
                kind.map_or(page.clone(), |kind| page.with("Content-Type", kind))
            }
            _ => right,
        });
        let mut place = Place::new(&[server.url(name)]);
        place.options.connections = 1;
        let (progress, stop) = (Progress::default(), Notify::new());
        let error = fetch(&place.job, &place.options, &progress, &stop).await.unwrap_err();
        assert!(matches!(error, FetchError::Unreachable(_)), "{name}: {error}");
        assert!(causes(error).contains("a web page came"), "{name}");
        let notes = progress.take().notes;
        assert!(notes.iter().any(|note| note.contains("a web page came")), "{name}: {notes:?}");
        assert!(!place.job.target.exists(), "{name}");
        let asked = server.requests().len();
        assert!(asked <= 8, "{name}: {asked} requests");
        is_portal.store(false, Ordering::SeqCst);
        resumed(&place, &content, 60_000).await;
    }
}

#[tokio::test]
async fn a_page_after_a_whole_file_that_broke_off_is_not_the_file() {
    let server = Server::start(|request| match request.number {
        0 => Response { cut: Some(100_000), ..Response::new(200, &noise(SIZE, 49)) },
        _ => Response::new(200, b"<html>login</html>").with("Content-Type", "text/html"),
    });
    let place = Place::new(&[server.url("/file")]);
    assert!(causes(place.fetch().await.unwrap_err()).contains("a web page came"));
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[tokio::test]
async fn if_range_is_dropped_for_a_server_that_does_not_understand_it() {
    let content = noise(SIZE, 9);
    let body = content.clone();
    let server = Server::changed(&content, move |request, right| {
        let response = if request.header("if-range").is_some() { Response::new(200, &body) } else { right };
        response.with("ETag", "\"same\"")
    });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
    let asked = server.requests().iter().filter(|request| request.header("if-range").is_some()).count();
    assert_eq!(asked, 1, "once is enough");
}

fn sha256(content: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, content).as_ref().to_vec()
}

fn checksum(content: &[u8]) -> Checksum {
    format!("sha-256={}", HEXLOWER.encode(&sha256(content))).parse().unwrap()
}

/// Text, and the same as gzip.
fn packed(len: usize) -> (Vec<u8>, Vec<u8>) {
    let content: Vec<u8> = noise(len, 10).iter().map(|byte| b'a' + byte % 16).collect();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1));
    encoder.write_all(&content).unwrap();
    (content, encoder.finish().unwrap())
}

#[tokio::test]
async fn a_file_that_the_server_compresses_is_unpacked() {
    let (content, gzip) = packed(SIZE);
    // Servers that compress send no parts, or parts of the compressed bytes; some do not know the length beforehand.
    for (sends_parts, chunked) in [(false, false), (false, true), (true, false)] {
        let body = gzip.clone();
        let server = Server::start(move |request| {
            let right = if sends_parts { Response::right(request, &body) } else { Response::new(200, &body) };
            Response { chunked, ..right }
                .with("Content-Encoding", "gzip")
                .with("Repr-Digest", format!("sha-256=:{}:", BASE64.encode(&sha256(&body))))
        });
        let mut place = Place::new(&[server.url("/a.txt")]);
        place.job.checksums = vec![checksum(&content)];
        // A cap counts the packed bytes.
        place.options.caps = vec![cap(gzip.len() as u64 + 200_000)];
        place.options.routes[0].cap = Some(0);
        let report = place.fetch().await.unwrap();
        assert!(report.verified);
        assert!(place.content() == content, "wrong bytes");
        assert_eq!(place.names(), ["file"]);
        let ranges = server.requests().iter().filter(|request| request.header("range").is_some()).count();
        assert_eq!(ranges, 1, "one answer shows that parts are of no use");
    }
}

#[tokio::test]
async fn a_compressed_file_that_breaks_off_or_is_another_one_gets_no_name() {
    let (content, gzip) = packed(SIZE);
    for cut in [gzip.len() - 9, gzip.len() - 1] {
        let short = gzip[..cut].to_vec();
        let server = Server::start(move |_| {
            let response = Response::new(200, &short).with("Content-Encoding", "gzip");
            // Only the end of the connection shows the end of the body.
            Response { has_length: false, version: "HTTP/1.0", ..response }
        });
        let place = Place::new(&[server.url("/a.txt")]);
        let error = place.fetch().await.unwrap_err();
        assert!(causes(error).contains("cannot be unpacked"));
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
    let body = gzip.clone();
    let server = Server::start(move |_| Response::new(200, &body).with("Content-Encoding", "gzip"));
    let mut place = Place::new(&[server.url("/a.txt")]);
    place.job.checksums = vec![checksum(&gzip)];
    assert!(matches!(place.fetch().await, Err(FetchError::Corrupt(_))));
    // A known size bounds what a small answer may unpack to.
    place.job.checksums.clear();
    place.job.size = Some(content.len() as u64 - 1);
    assert!(causes(place.fetch().await.unwrap_err()).contains("more than"));
    assert!(place.names().is_empty());
}

#[tokio::test]
async fn an_archive_is_not_unpacked_and_other_codings_are_refused() {
    let (_, gzip) = packed(SIZE);
    let server = Server::changed(&gzip, |_, right| right.with("Content-Encoding", "gzip"));
    fetched(&Place::new(&[server.url("/a.tar.gz")]), &gzip).await;
    let server = Server::changed(&gzip, |_, right| {
        right.with("Content-Encoding", "gzip").with("Content-Type", "application/gzip")
    });
    fetched(&Place::new(&[server.url("/latest")]), &gzip).await;
    let server = Server::changed(&gzip, |_, right| right.with("Content-Encoding", "br"));
    let error = Place::new(&[server.url("/a.txt")]).fetch().await.unwrap_err();
    assert!(matches!(error, FetchError::Refused(_)));
    assert!(causes(error).contains("compresses the file (br)"));
}

#[tokio::test]
async fn a_file_that_its_server_calls_compressed_and_sends_plain_is_saved_as_it_comes() {
    let content = noise(SIZE, 57);
    for sends_parts in [true, false] {
        let body = content.clone();
        let server = Server::start(move |request| {
            let right = if sends_parts { Response::right(request, &body) } else { Response::new(200, &body) };
            right.with("Content-Encoding", "gzip")
        });
        let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "wrong bytes");
        let is_told = |note: &String| note.contains("(gzip), but does not: it is saved as it comes");
        assert_eq!(notes.iter().filter(|note| is_told(note)).count(), 1, "{notes:?}");
        let later = |request: &Request| request.range(SIZE).is_some_and(|(start, _)| start > 0);
        assert_eq!(server.requests().iter().any(later), sends_parts, "its parts are used");
    }
}

#[tokio::test]
async fn a_server_that_compresses_later_answers_gives_the_file_by_one_answer() {
    let (content, gzip) = packed(SIZE);
    for routes in [&[2][..], &[2, 3]] {
        let (body, gzip) = (content.clone(), gzip.clone());
        let server = Server::start(move |request| match request.number {
            0 => Response::right(request, &body),
            _ => Response::right(request, &gzip).with("Content-Encoding", "gzip"),
        });
        let place = Place::new(&[server.url("/a")]).over_addresses(routes);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "wrong bytes");
        assert!(notes.iter().any(|note| note.contains("compresses parts of the file")), "{notes:?}");
    }
}

#[tokio::test]
async fn a_server_that_answers_if_range_with_304_is_asked_without_it() {
    let content = noise(SIZE, 58);
    let server = Server::changed(&content, |request, right| match request.header("if-range") {
        Some(_) => Response::new(304, b""),
        None => right.with("ETag", "\"a\""),
    });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
    let plain = server.requests().iter().filter(|request| request.header("range").is_none()).count();
    assert_eq!(plain, 0, "it sends parts");
}

#[tokio::test]
async fn a_server_that_compresses_is_used_only_when_no_other_has_parts() {
    let (content, gzip) = packed(SIZE);
    let packing = Server::start(move |_| Response::new(200, &gzip).with("Content-Encoding", "gzip"));
    let right = Server::changed(&content, |_, right| {
        std::thread::sleep(Duration::from_millis(100));
        right
    });
    let place = Place::new(&[packing.url("/a.txt"), right.url("/a.txt")]);
    fetched(&place, &content).await;
    assert!(right.requests().len() > 1);
}

#[tokio::test]
async fn a_long_pause_that_a_server_asks_for_is_named() {
    let server = Server::start(|_| Response::new(503, b"busy").with("Retry-After", "600"));
    let error = Place::new(&[server.url("/a")]).fetch().await.unwrap_err();
    assert_eq!(causes(error), "the server is busy and asks to wait 600 s: try again after that");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_pause_before_the_first_bytes_is_noted() {
    let content = noise(1000, 47);
    let server = Server::changed(&content, |request, right| match request.number {
        0 => Response::new(503, b"busy").with("Retry-After", "11"),
        _ => right,
    });
    let (_, notes) = Place::new(&[server.url("/a")]).fetch_with_notes().await;
    assert!(notes.iter().any(|note| note.ends_with("asks to wait 11 s")), "{notes:?}");
}

#[tokio::test]
async fn a_long_pause_within_a_download_ends_it_unless_another_source_goes_on() {
    let content = noise(SIZE, 46);
    // After some requests it asks for a pause, and closes what it is sending.
    let pausing = || {
        Server::changed(&content, |request, right| match request.number {
            0..=1 => Response { cut: Some(right.body.len().min(500_000)), ..right },
            _ => Response::new(503, b"busy").with("Retry-After", "600"),
        })
    };
    let place = Place::new(&[pausing().url("/a")]);
    let begin = Instant::now();
    let error = place.fetch().await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(20), "it does not wait");
    assert_eq!(causes(error), "the server is busy and asks to wait 600 s: try again after that");
    assert!(anabranch_fetch::kept(&place.job.target) >= 500_000, "what came is kept");
    let steady = Server::changed(&content, |_, right| Response { rate: Some(2_000_000), ..right });
    let place = Place::new(&[pausing().url("/a"), steady.url("/a")]);
    let (report, notes) = place.fetch_with_notes().await;
    assert!(place.content() == content, "{report:?}");
    let told = notes.iter().filter(|note| note.contains("asks to wait 600 s")).count();
    assert_eq!(told, 1, "{notes:?}");
}

#[tokio::test]
async fn a_server_with_a_limit_of_connections_gets_fewer_and_its_pause() {
    let content = noise(SIZE, 11);
    for status in [429, 503] {
        let (body, busy) = (content.clone(), Arc::new(AtomicUsize::new(0)));
        let refused: Arc<Mutex<Option<Instant>>> = Arc::default();
        let again = Arc::new(Mutex::new(Duration::ZERO));
        let (since, waited) = (refused.clone(), again.clone());
        let server = Server::start(move |request| {
            let mut since = since.lock().unwrap();
            match *since {
                None if request.number >= 2 => {
                    *since = Some(Instant::now());
                    busy.fetch_add(1, Ordering::SeqCst);
                    return Response::new(status, b"busy").with("Retry-After", "2");
                }
                Some(at) if *waited.lock().unwrap() == Duration::ZERO => {
                    *waited.lock().unwrap() = at.elapsed();
                }
                _ => {}
            }
            Response::right(request, &body)
        });
        fetched(&Place::new(&[server.url("/a")]), &content).await;
        let waited = *again.lock().unwrap();
        assert!(waited >= Duration::from_millis(1900), "{status}: asked again after {waited:?}");
    }
}

#[tokio::test]
async fn an_expired_redirect_is_asked_for_again() {
    for status in [400, 403] {
        expired_redirect(status).await;
    }
}

/// Links expire after a few requests, and are then answered with this status.
async fn expired_redirect(status: u16) {
    let content = noise(SIZE, 12);
    let body = content.clone();
    let server = Server::start(move |request| {
        if request.path == "/a" {
            return Response::new(302, b"").with("Location", format!("/signed?{}", request.number));
        }
        let made: usize = request.path.split('?').nth(1).unwrap().parse().unwrap();
        // Each link serves two requests only.
        if request.number > made + 2 {
            Response::new(status, b"expired")
        } else {
            Response::right(request, &body)
        }
    });
    fetched(&Place::new(&[server.url("/a")]), &content).await;
    assert!(server.requests().iter().filter(|request| request.path == "/a").count() >= 2);
}

#[tokio::test]
async fn redirects_in_a_circle_and_to_other_protocols_are_refused() {
    for to in ["/a", "file:///etc/passwd", "ftp://127.0.0.1/a", "http://"] {
        let server = Server::start(move |_| Response::new(301, b"").with("Location", to));
        let error = Place::new(&[server.url("/a")]).fetch().await.unwrap_err();
        assert!(matches!(error, FetchError::Refused(_)), "{to}: {error}");
        assert!(causes(error).contains("redirect"), "{to}");
    }
}

#[tokio::test]
async fn a_missing_file_is_reported_at_once() {
    let server = Server::start(|_| Response::new(404, b"<html>the file</html>"));
    let place = Place::new(&[server.url("/a")]);
    let begin = Instant::now();
    let error = place.fetch().await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(15));
    assert!(causes(error).contains("404"));
    assert!(!place.job.target.exists());
}

#[tokio::test]
async fn a_mirror_whose_file_changes_is_left_out_and_the_others_go_on() {
    let (old, new) = (noise(SIZE, 25), noise(SIZE, 26));
    let body = old.clone();
    // It answers first, and its file changes after a few requests.
    let changing = Server::start(move |request| {
        let which = usize::from(request.number > 2);
        let response = Response::right(request, [&body, &new][which]).with("ETag", format!("\"{which}\""));
        if request.header("if-range").is_some_and(|tag| which == 1 && tag != "\"1\"") {
            return Response::new(200, &new).with("ETag", "\"1\"");
        }
        Response { rate: (which == 0).then_some(1_000_000), ..response }
    });
    let steady =
        Server::changed(&old, |_, right| Response { rate: Some(1_000_000), ..right }.with("ETag", "\"0\""));
    let place = Place::new(&[changing.url("/a"), steady.url("/a")]);
    fetched(&place, &old).await;
    assert!(changing.requests().len() > 3, "it was asked after the change");
}

/// Two mirrors of the first file. One has the second file once `now` is 1, and then answers first.
fn one_changes(now: &Arc<AtomicUsize>, files: [&Vec<u8>; 2], rate: usize) -> (Server, Server) {
    let (which, bodies) = (now.clone(), files.map(Vec::clone));
    let changing = Server::start(move |request| {
        let which = which.load(Ordering::SeqCst);
        let response = Response::right(request, &bodies[which]).with("ETag", format!("\"{which}\""));
        Response { rate: (which == 0).then_some(rate), ..response }
    });
    let later = now.clone();
    let steady = Server::changed(files[0], move |_, right| {
        std::thread::sleep(Duration::from_millis(500 * later.load(Ordering::SeqCst) as u64));
        Response { rate: Some(rate), ..right.with("ETag", "\"0\"") }
    });
    (changing, steady)
}

#[tokio::test]
async fn a_download_goes_on_with_the_mirror_that_still_has_its_file() {
    let (old, new) = (noise(SIZE, 31), noise(SIZE, 32));
    let now = Arc::new(AtomicUsize::new(0));
    let (changing, steady) = one_changes(&now, [&old, &new], 500_000);
    let place = Place::new(&[changing.url("/a"), steady.url("/a")]);
    assert!(matches!(place.fetch_until(700_000).await, Err(FetchError::Stopped)));
    now.store(1, Ordering::SeqCst);
    resumed(&place, &old, 300_000).await;
}

#[tokio::test]
async fn a_mirror_with_another_file_now_is_left_out_over_every_route() {
    let old = noise(SIZE, 33);
    let mut new = old.clone();
    new[SIZE - 1] ^= 1;
    let now = Arc::new(AtomicUsize::new(0));
    let (changing, steady) = one_changes(&now, [&old, &new], 200_000);
    let place = Place::new(&[changing.url("/a"), steady.url("/a")]).over_addresses(&[2, 3]);
    assert!(matches!(place.fetch_until(300_000).await, Err(FetchError::Stopped)));
    now.store(1, Ordering::SeqCst);
    resumed(&place, &old, 0).await;
}

#[tokio::test]
async fn a_download_that_begins_again_uses_all_mirrors() {
    let bodies = [noise(SIZE, 34), noise(SIZE, 35)];
    let now = Arc::new(AtomicUsize::new(0));
    let mirrors = [(), ()].map(|()| {
        let (which, bodies) = (now.clone(), bodies.clone());
        Server::start(move |request| {
            let which = which.load(Ordering::SeqCst);
            let response = Response::right(request, &bodies[which]).with("ETag", format!("\"{which}\""));
            Response { rate: Some(500_000), ..response }
        })
    });
    let place = Place::new(&mirrors.map(|server| server.url("/a")));
    assert!(matches!(place.fetch_until(500_000).await, Err(FetchError::Stopped)));
    now.store(1, Ordering::SeqCst);
    let report = place.fetch().await.unwrap();
    assert!(report.sources.iter().all(|source| source.bytes > 0), "{report:?}");
    assert!(place.content() == bodies[1], "wrong bytes");
}

#[tokio::test]
async fn a_redirector_may_lead_to_hosts_with_versions_of_their_own() {
    let content = noise(SIZE, 27);
    let hosts: Vec<Server> = (0..2)
        .map(|at| {
            let body = content.clone();
            Server::start(move |request| {
                if request.path != "/file" {
                    return Response::new(404, b"");
                }
                let tag = format!("\"{at}\"");
                if request.header("if-range").is_some_and(|wanted| wanted != tag) {
                    return Response::new(200, &body).with("ETag", tag);
                }
                // Each link is good for one request.
                match request.number % 2 {
                    0 => Response::right(request, &body).with("ETag", tag),
                    _ => Response::new(403, b"expired"),
                }
            })
        })
        .collect();
    let to: Vec<String> = hosts.iter().map(|host| host.url("/file")).collect();
    let redirector = Server::start(move |request| {
        Response::new(302, b"").with("Location", to[request.number % 2].clone())
    });
    let place = Place::new(&[redirector.url("/a")]);
    fetched(&place, &content).await;
    assert!(hosts.iter().all(|host| host.requests().len() > 1), "both hosts send parts");
    assert_eq!(redirector.requests()[0].header("if-range"), None);
}

#[tokio::test]
async fn a_redirector_is_asked_again_when_the_host_that_it_named_fails() {
    let content = noise(SIZE, 43);
    let failing = Server::changed(&content, |request, right| {
        let response = right.with("ETag", "\"a\"");
        match request.number {
            0 => response,
            1 => Response { cut: Some(response.body.len() / 2), ..response },
            _ => Response::new(500, b""),
        }
    });
    let good = Server::changed(&content, |_, right| right.with("ETag", "\"b\""));
    let to = [failing.url("/file"), good.url("/file")];
    let redirector = Server::start(move |request| {
        Response::new(302, b"").with("Location", to[request.number.min(1)].clone())
    });
    fetched(&Place::new(&[redirector.url("/a")]), &content).await;
}

/// Two hosts with files of one size that begin alike, behind a redirector whose links are good for so many requests.
async fn hosts_with_two_versions(uses: usize) {
    let one = noise(SIZE, 40);
    let other = [&one[..100_000], &noise(SIZE - 100_000, 41)].concat();
    let hosts = [one.clone(), other.clone()].map(|body| {
        let used = Mutex::new(std::collections::BTreeMap::new());
        Server::start(move |request| {
            let mut used = used.lock().unwrap();
            let used = used.entry(request.path.clone()).or_insert(0);
            *used += 1;
            if *used > uses {
                return Response::new(403, b"expired");
            }
            let response = Response::right(request, &body).with("ETag", format!("\"{}\"", body[150_000]));
            Response { rate: Some(1_000_000), ..response }
        })
    });
    let to = hosts.each_ref().map(|host| host.url("/file"));
    let redirector = Server::start(move |request| {
        let number = request.number;
        Response::new(302, b"").with("Location", format!("{}?{number}", to[number % 2]))
    });
    let place = Place::new(&[redirector.url("/a")]);
    place.fetch().await.unwrap();
    let content = place.content();
    assert!(content == one || content == other, "a mixture of both");
    assert!(hosts.iter().all(|host| host.requests().len() > 1), "both hosts are asked");
}

#[tokio::test]
async fn versions_of_a_file_behind_a_redirector_are_not_mixed() {
    // With links for one or two requests the download may fail: they expire before their hosts are compared.
    for uses in [3, 4] {
        hosts_with_two_versions(uses).await;
    }
}

#[tokio::test]
async fn a_login_page_that_is_not_called_one_is_neither_taken_for_the_file_nor_for_a_change() {
    let (content, state) = (noise(SIZE, 42), Arc::new(AtomicUsize::new(1)));
    let now = state.clone();
    let server = Server::changed(&content, move |_, right| match now.load(Ordering::SeqCst) {
        1 => Response::new(200, b"<!doctype html><title>Welcome</title>Please log in")
            .with("Content-Type", "application/octet-stream"),
        _ => Response { rate: Some(1_000_000), ..right },
    });
    let place = Place::new(&[server.url("/a.iso")]);
    let is_login = |error: FetchError| {
        assert!(matches!(error, FetchError::Unreachable(_)), "{error}");
        causes(error).contains("login")
    };
    assert!(is_login(place.fetch().await.unwrap_err()));
    assert!(!place.job.target.exists());
    state.store(0, Ordering::SeqCst);
    assert!(matches!(place.fetch_until(900_000).await, Err(FetchError::Stopped)));
    state.store(1, Ordering::SeqCst);
    assert!(is_login(place.fetch().await.unwrap_err()));
    state.store(0, Ordering::SeqCst);
    resumed(&place, &content, 500_000).await;
}

#[tokio::test]
async fn a_file_that_its_server_calls_a_web_page_is_fetched_and_resumed() {
    let content = noise(SIZE, 36);
    let server = Server::changed(&content, |_, right| {
        Response { rate: Some(500_000), ..right }.with("Content-Type", "text/html")
    });
    let place = Place::new(&[server.url("/a.bin")]);
    assert!(matches!(place.fetch_until(300_000).await, Err(FetchError::Stopped)));
    resumed(&place, &content, 0).await;
}

#[tokio::test]
async fn a_login_page_that_comes_first_gives_way_to_the_file_over_another_route() {
    let content = noise(SIZE, 56);
    for is_called_one in [true, false] {
        let server = Server::changed(&content, move |request, right| {
            if request.from.ip() != std::net::IpAddr::from([127, 0, 0, 2]) {
                return right;
            }
            let page = Response::new(200, b"<html>login</html>");
            if is_called_one { page.with("Content-Type", "text/html") } else { page }
        });
        let place = Place::new(&[server.url("/latest")]).over_addresses(&[2, 3]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "{is_called_one}: {notes:?}");
        assert!(notes.iter().any(|note| note.contains("a web page came")), "{is_called_one}: {notes:?}");
    }
}

#[tokio::test]
async fn a_route_leaves_the_requests_of_a_limited_server_to_another_one_that_it_answers() {
    let content = noise(SIZE, 57);
    // The first route asks again before the second one has an answer.
    for (refused, most) in [(2, 2), (3, 1)] {
        let refused = std::net::IpAddr::from([127, 0, 0, refused]);
        let server = Server::changed(&content, move |request, right| match request.from.ip() == refused {
            true => Response::new(503, b""),
            false => Response { rate: Some(800_000), ..right },
        });
        let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
        fetched(&place, &content).await;
        let asked = server.requests().iter().filter(|request| request.from.ip() == refused).count();
        assert!(asked <= most, "{asked} requests over {refused}");
    }
}

#[tokio::test]
async fn a_login_page_of_a_network_does_not_cost_what_is_there() {
    let content = noise(SIZE, 28);
    for has_ranges in [false, true] {
        let (page, state) = (noise(5000, 29), Arc::new(AtomicUsize::new(0)));
        let now = state.clone();
        let server =
            Server::changed(&content, move |request, right| match (now.load(Ordering::SeqCst), has_ranges) {
                (0, _) => Response { rate: Some(1_000_000), ..right },
                (1, true) => Response::right(request, &page).with("Content-Type", "text/html; charset=utf-8"),
                (1, false) => Response::new(200, &page).with("Content-Type", "text/html"),
                _ => right,
            });
        let place = Place::new(&[server.url("/a.iso")]);
        assert!(matches!(place.fetch_until(900_000).await, Err(FetchError::Stopped)));
        state.store(1, Ordering::SeqCst);
        let error = place.fetch().await.unwrap_err();
        assert!(matches!(error, FetchError::Unreachable(_)), "{error}");
        assert!(causes(error).contains("login"));
        state.store(2, Ordering::SeqCst);
        resumed(&place, &content, 500_000).await;
    }
}

#[tokio::test]
async fn a_file_that_was_named_just_before_a_kill_is_checked_again() {
    let interrupted = |hash: &str| {
        let mut place = Place::new(&["http://127.0.0.1:1/a".to_owned()]);
        std::fs::write(&place.job.target, "abc").unwrap();
        let journal = r#"{"size":3,"origins":[["http://127.0.0.1:1/a",[[0,3]]]]}"#;
        std::fs::write(place.folder.path().join(".file.anabranch-fetch"), journal).unwrap();
        place.job.checksums = vec![format!("sha-256={hash}").parse::<Checksum>().unwrap()];
        place
    };
    let place = interrupted("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert!(place.fetch().await.unwrap().verified);
    let place = interrupted(&"00".repeat(32));
    let error = place.fetch().await.unwrap_err();
    assert!(matches!(error, FetchError::Exists(_)), "{error}");
    assert_eq!(place.content(), b"abc", "the file stays");
}

#[tokio::test]
async fn a_file_with_a_wrong_checksum_never_gets_its_name() {
    let content = noise(SIZE, 14);
    let server = Server::right(&content);
    let mut place = Place::new(&[server.url("/a")]);
    let wrong = format!("sha-256={}", "00".repeat(32));
    place.job.checksums = vec![wrong.parse::<Checksum>().unwrap()];
    let error = place.fetch().await.unwrap_err();
    assert!(matches!(error, FetchError::Corrupt(_)), "{error}");
    assert!(place.names().is_empty(), "nothing is left: {:?}", place.names());
    // The server's own hash counts, too.
    let digest = format!("sha-256=:{}=:", "A".repeat(43));
    let server = Server::changed(&content, move |_, right| right.with("Repr-Digest", digest.clone()));
    let error = Place::new(&[server.url("/a")]).fetch().await.unwrap_err();
    assert!(matches!(error, FetchError::Corrupt(_)), "{error}");
}

#[tokio::test]
async fn a_body_without_ranges_that_breaks_off_is_not_taken_for_the_file() {
    let content = noise(SIZE, 15);
    for chunked in [false, true] {
        let body = content.clone();
        let server = Server::start(move |request| Response {
            chunked,
            cut: (request.number == 0).then_some(SIZE / 2),
            ..Response::new(200, &body)
        });
        fetched(&Place::new(&[server.url("/a")]), &content).await;
        let server =
            Server::start(move |_| Response { chunked, cut: Some(1000), ..Response::new(200, &[0; 5000]) });
        let place = Place::new(&[server.url("/a")]);
        place.fetch().await.unwrap_err();
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
}

#[tokio::test]
async fn a_stopped_download_goes_on_where_it_stopped() {
    let content = noise(SIZE, 16);
    let server = Server::changed(&content, |request, right| {
        let rate = (request.number < 6).then_some(1_000_000);
        Response { rate, ..right.with("ETag", "\"x\"") }
    });
    let place = Place::new(&[server.url("/a")]);
    assert!(matches!(place.fetch_until(900_000).await, Err(FetchError::Stopped)));
    assert!(!place.job.target.exists());
    resumed(&place, &content, 500_000).await;
}

#[tokio::test]
async fn an_unfinished_file_of_another_version_is_not_continued() {
    // With a tag, and without any word about versions: then the bytes themselves are compared.
    for has_tag in [true, false] {
        let contents = [noise(SIZE, 17), noise(SIZE, 18)];
        let which = Arc::new(AtomicUsize::new(0));
        let now = which.clone();
        let mut mixed = contents[1].clone();
        // The first bytes are the same in both.
        mixed[..100_000].copy_from_slice(&contents[0][..100_000]);
        let new = mixed.clone();
        let server = Server::start(move |request| {
            let which = now.load(Ordering::SeqCst);
            let response = Response::right(request, if which == 0 { &contents[0] } else { &new });
            let response = Response { rate: (which == 0).then_some(1_000_000), ..response };
            if has_tag { response.with("ETag", format!("\"{which}\"")) } else { response }
        });
        let place = Place::new(&[server.url("/a")]);
        assert!(matches!(place.fetch_until(900_000).await, Err(FetchError::Stopped)));
        which.store(1, Ordering::SeqCst);
        fetched(&place, &mixed).await;
    }
}

#[tokio::test]
async fn a_file_that_exists_is_not_replaced_unasked() {
    let content = noise(1000, 19);
    let server = Server::right(&content);
    let mut place = Place::new(&[server.url("/a")]);
    std::fs::write(&place.job.target, b"mine").unwrap();
    assert!(matches!(place.fetch().await, Err(FetchError::Exists(_))));
    assert_eq!(place.content(), b"mine");
    place.job.replace = true;
    fetched(&place, &content).await;
}

#[tokio::test]
async fn a_finished_file_counts_as_fetched_while_it_is_that_of_the_server() {
    let content = noise(SIZE, 33);
    for sends_parts in [true, false] {
        let (body, version) = (content.clone(), Arc::new(Mutex::new(EARLY)));
        let modified = version.clone();
        let server = Server::start(move |request| {
            let part = Response::right(request, &body);
            let response = if sends_parts { part } else { Response::new(200, &body) };
            response.with("Last-Modified", *modified.lock().unwrap())
        });
        let mut place = Place::new(&[server.url("/a")]);
        assert!(!place.fetch().await.unwrap().was_there);
        place.job.keep_finished = true;
        let asked = server.requests().len();
        let report = place.fetch().await.unwrap();
        assert!(report.was_there && report.resumed == report.bytes, "{report:?}");
        assert!(server.requests().len() - asked <= 2, "its bytes are not fetched again");
        for other in [content[1..].to_vec(), noise(SIZE, 34)] {
            std::fs::write(&place.job.target, &other).unwrap();
            assert!(matches!(place.fetch().await, Err(FetchError::Exists(_))));
            assert!(place.content() == other);
        }
        if sends_parts {
            let mut other = content.clone();
            other[SIZE - 1] ^= 1;
            std::fs::write(&place.job.target, &other).unwrap();
            assert!(matches!(place.fetch().await, Err(FetchError::Exists(_))), "the last bytes are compared");
            std::fs::write(&place.job.target, &content).unwrap();
            *version.lock().unwrap() = "Wed, 01 Jan 2200 00:00:00 GMT";
            assert!(matches!(place.fetch().await, Err(FetchError::Exists(_))), "the server's is newer");
            place.job.checksums = vec![checksum(&content)];
            assert!(place.fetch().await.unwrap().verified, "the checksum decides");
        }
    }
}

#[tokio::test]
async fn a_limit_holds() {
    let content = noise(SIZE, 20);
    let server = Server::right(&content);
    let mut place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
    place.options.limit = std::num::NonZeroU64::new(12_000_000);
    let begin = Instant::now();
    fetched(&place, &content).await;
    let took = begin.elapsed().as_secs_f64();
    assert!(took > 1.4, "3 MB at 1.5 MB/s took {took} s");
}

#[tokio::test]
async fn a_dead_mirror_costs_no_more_than_its_share() {
    let content = noise(SIZE, 21);
    let right = Server::changed(&content, |_, right| Response { rate: Some(3_000_000), ..right });
    // It sends the first bytes, then nothing more.
    let dead = Server::changed(&content, |request, right| {
        if request.number > 0 {
            std::thread::sleep(Duration::from_secs(60));
        }
        right
    });
    let begin = Instant::now();
    fetched(&Place::new(&[right.url("/a"), dead.url("/a")]), &content).await;
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(13), "{took:?}");
}

#[tokio::test]
async fn a_backup_is_asked_only_when_it_is_needed() {
    let content = noise(SIZE, 22);
    let from_backup = |server: &Server| {
        let backup = std::net::IpAddr::from([127, 0, 0, 3]);
        server.requests().iter().filter(|request| request.from.ip() == backup).count()
    };
    // On a busy machine, the first route may seem to hang.
    let mut asked = Vec::new();
    while asked.len() < 5 && asked.last() != Some(&0) {
        let server = Server::right(&content);
        let mut place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
        place.options.routes[1].rank = 1;
        fetched(&place, &content).await;
        asked.push(from_backup(&server));
    }
    assert_eq!(asked.last(), Some(&0), "the first route works: {asked:?}");
    // The first route stops working after its first answers.
    let server = Server::changed(&content, |request, right| {
        let is_first = request.from.ip() == std::net::IpAddr::from([127, 0, 0, 2]);
        if is_first && request.number > 1 { Response::new(500, b"") } else { right }
    });
    let mut place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
    place.options.routes[1].rank = 1;
    fetched(&place, &content).await;
    assert!(from_backup(&server) > 1, "it takes over");
}

fn cap(bytes: u64) -> Cap {
    Cap { left: Arc::new(bytes.into()), used_up: "the cap of a test is used up".to_owned() }
}

#[tokio::test]
async fn a_cap_that_is_used_up_ends_the_download_and_what_came_is_kept() {
    let content = noise(SIZE, 23);
    let server = Server::right(&content);
    let mut place = Place::new(&[server.url("/a")]).over_addresses(&[2]);
    place.options.caps = vec![cap(1_000_000)];
    place.options.routes[0].cap = Some(0);
    let error = place.fetch().await.unwrap_err();
    assert!(causes(error).contains("the cap of a test is used up"));
    place.options.caps = vec![cap(10_000_000)];
    let report = place.fetch().await.unwrap();
    assert_eq!(report.resumed, 1_000_000);
    assert!(place.content() == content);
}

#[tokio::test]
async fn a_whole_file_comes_over_a_route_whose_cap_has_room_for_it() {
    let content = noise(SIZE, 73);
    let body = content.clone();
    let server = Server::start(move |_| Response::new(200, &body));
    let mut place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
    place.options.caps = vec![cap(1_000_000)];
    place.options.routes[0].cap = Some(0);
    place.options.routes[1].rank = 1;
    fetched(&place, &content).await;
    place.options.routes.truncate(1);
    place.job.keep_finished = true;
    assert!(place.fetch().await.unwrap().was_there, "its beginning is enough");
    (place.job.keep_finished, place.job.replace) = (false, true);
    let error = place.fetch().await.unwrap_err();
    assert!(causes(error).contains("the cap of a test is used up"));
}

/// Reads a request.
async fn ask(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn other_requests_are_closed_before_one_answer_brings_the_file() {
    let content = noise(200_000, 74);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = Place::new(&[format!("http://{}/a", listener.local_addr().unwrap())]);
    let place = place.over_addresses(&[2, 3]);
    let serving = async {
        let (mut one, _) = listener.accept().await.unwrap();
        ask(&mut one).await;
        let (mut other, _) = listener.accept().await.unwrap();
        ask(&mut other).await;
        let head = "HTTP/1.1 206 X\r\nContent-Range: bytes 0-199999/200000\r\nContent-Length: 200000\r\n\r\n";
        for stream in [&mut one, &mut other] {
            // The second one may be closed by now.
            let _ = stream.write_all(&[head.as_bytes(), &content[..100_000]].concat()).await;
        }
        // The rest of one answer comes when the other one is closed.
        let (mut byte, mut byte_of_other) = ([0], [0]);
        let mut open = tokio::select! {
            _ = one.read(&mut byte) => other,
            _ = other.read(&mut byte_of_other) => one,
        };
        open.write_all(&content[100_000..]).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serving => {}
        () = fetched(&place, &content) => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("the other request stays open"),
    }
}
