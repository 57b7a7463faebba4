//! Mirrors whose files differ: the one that is named first decides, and files are never mixed.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_fetch::{Cap, FetchError};
use common::server::{Request, Response, Server};
use common::{Place, noise};
use data_encoding::BASE64;

const SIZE: usize = 3_000_000;

async fn fetched(place: &Place, content: &[u8]) {
    let report = place.fetch().await.unwrap();
    assert_eq!(report.bytes, content.len() as u64);
    assert!(place.content() == content, "wrong bytes");
    assert_eq!(place.names(), ["file"], "nothing else is left");
}

#[tokio::test]
async fn mirrors_with_another_size_content_or_without_ranges_are_left_out() {
    let content = noise(SIZE, 13);
    let right = Server::right(&content);
    let mut other = content.clone();
    other[100] ^= 1;
    let whole = content.clone();
    let wrong = [
        Server::right(&content[..SIZE - 1]),
        Server::right(&other),
        Server::start(move |_| Response::new(200, &whole)),
        Server::start(|_| Response::new(404, b"")),
    ];
    // The right mirror answers first.
    let slow: Vec<_> = wrong
        .iter()
        .map(|server| {
            let to = server.url("/a");
            Server::start(move |_| {
                std::thread::sleep(Duration::from_millis(300));
                Response::new(302, b"").with("Location", to.clone())
            })
        })
        .collect();
    let steady = Server::changed(&content, |_, right| Response { rate: Some(2_000_000), ..right });
    let mirrors: Vec<_> = [&right, &steady].into_iter().chain(&slow).map(|server| server.url("/a")).collect();
    fetched(&Place::new(&mirrors), &content).await;
}

/// A server that is so late with its answers.
fn late(content: &[u8], delay_ms: u64) -> Server {
    Server::changed(content, move |_, right| {
        std::thread::sleep(Duration::from_millis(delay_ms));
        Response { rate: Some(1_000_000), ..right }
    })
}

#[tokio::test]
async fn of_mirrors_with_different_files_the_one_named_first_counts_and_the_others_are_reported() {
    let (content, other) = (noise(SIZE, 35), noise(SIZE, 36));
    // The second mirror answers first, and long before the other, which comes while the wrong file is fetched.
    for (wrong, delay_ms) in [(&other[..1000], 300), (&other[..], 300), (&other[..], 1500)] {
        let (right, wrong) = (late(&content, delay_ms), late(wrong, 0));
        let place = Place::new(&[right.url("/a"), wrong.url("/a")]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "{delay_ms} ms");
        let named = format!("127.0.0.1:{}", wrong.port);
        assert!(notes.iter().any(|note| note.contains(&named) && note.contains("left out")), "{notes:?}");
        assert_eq!(place.names(), ["file"]);
    }
}

#[tokio::test]
async fn a_mirror_named_first_counts_also_without_parts_and_not_when_it_is_gone() {
    let (content, other) = (noise(SIZE, 37), noise(1000, 38));
    let body = content.clone();
    let whole = Server::start(move |_| Response::new(200, &body));
    let place = Place::new(&[whole.url("/a"), Server::right(&other).url("/a")]);
    let (_, notes) = place.fetch_with_notes().await;
    assert!(place.content() == content && notes.iter().any(|note| note.contains("left out")), "{notes:?}");
    let gone = Server::start(|_| Response::new(404, b""));
    fetched(&Place::new(&[gone.url("/a"), late(&content, 200).url("/a")]), &content).await;
}

/// Two files of one size that begin alike.
fn alike() -> (Vec<u8>, Vec<u8>) {
    let (content, mut other) = (noise(SIZE, 39), noise(SIZE, 40));
    other[..100_000].copy_from_slice(&content[..100_000]);
    (content, other)
}

#[tokio::test]
async fn bytes_of_two_files_that_begin_alike_are_not_mixed() {
    let (content, other) = alike();
    for is_capped in [false, true] {
        let (right, wrong) = (late(&content, 0), late(&other, 0));
        let mut place = Place::new(&[right.url("/a"), wrong.url("/a")]);
        if is_capped {
            let left = Arc::new((1 << 30).into());
            place.options.caps = vec![Cap { left, used_up: String::new() }];
            place.options.routes[0].cap = Some(0);
        }
        let (report, notes) = place.fetch_with_notes().await;
        assert!(wrong.requests().len() > 2, "both are used");
        assert!(place.content() == content, "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("another file; beginning again")), "{notes:?}");
        assert!(report.resumed > 100_000, "what came from the first mirror is kept: {report:?}");
        assert_eq!(place.names(), ["file"]);
    }
}

#[tokio::test]
async fn bytes_of_another_file_from_an_earlier_attempt_are_dropped() {
    let (content, other) = alike();
    for is_named_again in [false, true] {
        let delay_ms = Arc::new(AtomicU64::new(0));
        let delay = delay_ms.clone();
        let right = Server::changed(&content, move |_, right| {
            std::thread::sleep(Duration::from_millis(delay.load(Ordering::SeqCst)));
            Response { rate: Some(1_000_000), ..right }
        });
        let mut place = Place::new(&[right.url("/a"), late(&other, 0).url("/a")]);
        assert!(matches!(place.fetch_until(1_500_000).await, Err(FetchError::Stopped)));
        // The other mirror answers first now, or is not used any more.
        delay_ms.store(400, Ordering::SeqCst);
        if !is_named_again {
            place.job.mirrors.truncate(1);
        }
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("another file; beginning again")), "{notes:?}");
    }
}

/// Whether a request is one for a sample.
fn is_sample(request: &Request) -> bool {
    request.range(SIZE).is_some_and(|(start, end)| end - start == 16 << 10)
}

fn samples(servers: &[&Server]) -> usize {
    servers.iter().flat_map(|server| server.requests()).filter(is_sample).count()
}

/// Two correct mirrors that change their answers.
fn mirrors(
    content: &[u8],
    change: impl Fn(usize, &Request, Response) -> Response + Clone + Send + Sync + 'static,
) -> [Server; 2] {
    [0, 1].map(|number| {
        let change = change.clone();
        Server::changed(content, move |request, right| Response {
            rate: Some(1_000_000),
            ..change(number, request, right)
        })
    })
}

#[tokio::test]
async fn mirrors_are_sampled_unless_hashes_show_the_same_file() {
    let content = noise(SIZE, 41);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &content);
    let hash = format!("sha-256=:{}:", BASE64.encode(digest.as_ref()));
    let tag = "\"5f5e1000-1dcd6500\"".to_owned();
    for (header, value) in [("ETag", Some(tag)), ("Repr-Digest", Some(hash)), ("ETag", None)] {
        let is_proven = value.is_some() && header == "Repr-Digest";
        let [one, other] = mirrors(&content, move |number, _, right| {
            right.with(header, value.clone().unwrap_or_else(|| format!("\"5f5e1000-{number}\"")))
        });
        let place = Place::new(&[one.url("/a"), other.url("/a")]);
        let (report, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content && other.requests().len() > 1, "{report:?}");
        assert_eq!(samples(&[&one, &other]) == 0, is_proven, "{header}");
        let told = notes.iter().filter(|note| note.contains("only samples")).count();
        assert_eq!(told, usize::from(!is_proven), "{notes:?}");
    }
}

#[tokio::test]
async fn equal_tags_of_two_mirrors_do_not_prove_the_same_file() {
    let (content, other) = alike();
    // nginx makes its tags of size and time of change only.
    let [right, wrong] = [&content, &other].map(|body| {
        Server::changed(body, |_, right| {
            Response { rate: Some(1_000_000), ..right }.with("ETag", "\"5f5e1000-1dcd6500\"")
        })
    });
    let place = Place::new(&[right.url("/a"), wrong.url("/a")]);
    let (_, notes) = place.fetch_with_notes().await;
    assert!(wrong.requests().len() > 2, "both are used");
    assert!(place.content() == content, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("another file; beginning again")), "{notes:?}");
}

#[tokio::test]
async fn files_of_one_address_over_two_routes_are_not_mixed() {
    for tag in ["W/\"a\"", "\"a\""] {
        files_of_one_address(tag).await;
    }
}

/// Two machines behind one address, with other files of this tag.
async fn files_of_one_address(tag: &'static str) {
    let (content, other) = alike();
    let body = content.clone();
    let server = Server::start(move |request| {
        let is_second = request.from.ip() == std::net::IpAddr::from([127, 0, 0, 3]);
        if is_second && request.range(SIZE).is_some_and(|(start, _)| start == 0) {
            std::thread::sleep(Duration::from_millis(200));
        }
        let right = Response::right(request, if is_second { &other } else { &body }).with("ETag", tag);
        Response { rate: Some(1_000_000), ..right.with("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT") }
    });
    let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
    let (report, notes) = place.fetch_with_notes().await;
    assert!(place.content() == content, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("over lo3 sent bytes of another file")), "{notes:?}");
    assert!(report.resumed > 100_000, "what came over the first route is kept: {report:?}");
}

#[tokio::test]
async fn routes_to_one_address_with_a_strong_tag_are_sampled_once() {
    let content = noise(SIZE, 46);
    for (tag, most) in [("\"a\"", 1), ("W/\"a\"", 8)] {
        let server = Server::changed(&content, move |_, right| {
            Response { rate: Some(1_000_000), ..right }.with("ETag", tag)
        });
        let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content && notes.is_empty(), "{notes:?}");
        assert!((1..=most).contains(&samples(&[&server])), "{tag}");
    }
}

#[tokio::test]
async fn a_server_that_refused_a_request_over_any_route_is_not_asked_for_a_sample() {
    let (content, asked) = (noise(SIZE, 48), AtomicUsize::new(0));
    let body = content.clone();
    let server = Server::start(move |request| {
        let right = Response::long(request, &body).with("ETag", "\"a\"");
        let is_late = request.range(SIZE).is_some_and(|(start, _)| start > 0);
        // One later part is sent, and no more.
        match is_late && asked.fetch_add(1, Ordering::SeqCst) > 0 {
            true => Response::new(429, b"busy"),
            false => Response { rate: Some(1_500_000), ..right },
        }
    });
    let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
    fetched(&place, &content).await;
    assert_eq!(samples(&[&server]), 0);
}

#[tokio::test]
async fn a_note_says_whose_file_was_taken_when_the_mirror_named_first_was_not_used() {
    let (content, other) = alike();
    // It refuses at once, or when its first bytes were compared.
    for refused in [0, 1] {
        let first = Server::changed(&other, move |request, right| match request.number {
            number if number >= refused => Response::new(404, b""),
            _ => right,
        });
        let right = late(&content, 0);
        let place = Place::new(&[first.url("/a"), right.url("/a")]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "{notes:?}");
        let taken = format!("the file is that of 127.0.0.1:{}: 127.0.0.1:{}", right.port, first.port);
        assert!(notes.iter().any(|note| note.contains(&taken)), "{refused}: {notes:?}");
    }
}

#[tokio::test]
async fn a_mirror_with_another_hash_is_left_out() {
    let (content, other) = alike();
    let with_hash = |body: &[u8]| {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body);
        let hash = format!("sha-256=:{}:", BASE64.encode(digest.as_ref()));
        Server::changed(body, move |_, right| {
            Response { rate: Some(1_000_000), ..right }.with("Repr-Digest", hash.clone())
        })
    };
    let (right, wrong) = (with_hash(&content), with_hash(&other));
    let place = Place::new(&[right.url("/a"), wrong.url("/a")]);
    let (report, notes) = place.fetch_with_notes().await;
    assert!(place.content() == content && report.verified, "{report:?}");
    assert!(notes.iter().any(|note| note.contains("left out")), "{notes:?}");
    assert_eq!(wrong.requests().len(), 1, "it is asked for the first bytes only");
}

#[tokio::test]
async fn a_mirror_that_cannot_be_compared_at_the_end_is_named() {
    let content = noise(SIZE, 41);
    // The mirror that decides is gone: then the other one is asked. If both are gone, a note says so.
    for gone in [1, 2] {
        let servers = mirrors(&content, move |number, request, right| {
            if is_sample(request) && number < gone { Response::new(404, b"") } else { right }
        });
        let place = Place::new(&servers.each_ref().map(|server| server.url("/a")));
        let (report, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "{report:?}");
        let wanted = if gone == 1 { "only samples" } else { "could not be compared" };
        assert!(notes.iter().any(|note| note.contains(wanted)), "{notes:?}");
    }
}

#[tokio::test]
async fn a_mirror_named_first_without_parts_wins_over_one_with_other_bytes() {
    let (content, mut other) = (noise(SIZE, 44), noise(SIZE, 45));
    for is_alike in [false, true] {
        if is_alike {
            other.copy_from_slice(&content);
        }
        for chunked in [false, true] {
            for delay_ms in [0, 300] {
                let body = content.clone();
                let whole = Server::start(move |_| {
                    std::thread::sleep(Duration::from_millis(delay_ms));
                    Response { chunked, ..Response::new(200, &body) }
                });
                let place = Place::new(&[whole.url("/a"), Server::right(&other).url("/a")]);
                let (_, notes) = place.fetch_with_notes().await;
                assert!(place.content() == content, "{notes:?}");
                let wanted = if is_alike { "only the first bytes" } else { "left out: its file has another" };
                assert!(notes.iter().any(|note| note.contains(wanted)), "{notes:?}");
            }
        }
    }
}
