//! Servers whose answers name other versions of a file, or none.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anabranch_fetch::{Checksum, FetchError};
use aws_lc_rs::digest;
use common::server::{Response, Server};
use common::{Place, noise};
use data_encoding::{BASE64, HEXLOWER};

const SIZE: usize = 3_000_000;
const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const LATE: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

/// Two machines behind one address, which answer by turns, each with a file and a version of its own.
fn by_turns(contents: [Vec<u8>; 2], header: &'static str, versions: [&'static str; 2]) -> Server {
    Server::start(move |request| {
        let which = request.number % 2;
        let is_other = request.header("if-range").is_some_and(|wanted| wanted != versions[which]);
        let response = match is_other {
            true => Response::new(200, &contents[which]),
            false => Response::right(request, &contents[which]),
        };
        response.with(header, versions[which]).with("Date", LATE)
    })
}

/// Two files of one size that begin alike.
fn alike() -> [Vec<u8>; 2] {
    let (content, mut other) = (noise(SIZE, 60), noise(SIZE, 61));
    other[..2_000_000].copy_from_slice(&content[..2_000_000]);
    [content, other]
}

#[tokio::test]
async fn machines_that_name_versions_of_their_own_give_the_file_by_one_answer() {
    for (header, versions) in [
        ("ETag", ["\"a\"", "\"b\""]),
        ("ETag", ["W/\"a\"", "W/\"b\""]),
        ("Last-Modified", [EARLY, "Sun, 06 Nov 1994 08:49:38 GMT"]),
    ] {
        let content = noise(SIZE, 62);
        for contents in [[content.clone(), content.clone()], alike()] {
            let server = by_turns(contents.clone(), header, versions);
            let place = Place::new(&[server.url("/a")]);
            let (_, notes) = place.fetch_with_notes().await;
            let came = place.content();
            assert!(contents.contains(&came), "{versions:?}: a mixture of both");
            let is_told = |note: &String| note.contains("names another version in other answers");
            assert!(notes.iter().any(is_told), "{versions:?}: {notes:?}");
            assert_eq!(place.names(), ["file"], "nothing else is left");
        }
    }
}

#[tokio::test]
async fn other_failures_before_do_not_keep_versions_from_being_told_apart() {
    for breaks_off in 0..3 {
        let content = noise(SIZE, 66);
        let body = content.clone();
        let server = Server::start(move |request| {
            if request.number < breaks_off {
                return Response { cut: Some(1_000_000), ..Response::new(200, &body) };
            }
            Response::right(request, &body).with("ETag", format!("\"{}\"", request.number))
        });
        let place = Place::new(&[server.url("/a")]);
        place.fetch().await.unwrap();
        assert!(place.content() == content, "wrong bytes");
    }
}

#[tokio::test]
async fn machines_that_name_versions_of_their_own_are_resumed_without_a_mixture() {
    for turn in [0, 1] {
        let contents = alike();
        let (bodies, is_second) = (contents.clone(), Arc::new(AtomicBool::new(false)));
        let now = is_second.clone();
        // One of them answers until the download is stopped, then both.
        let server = Server::start(move |request| {
            let by_turns = now.load(Ordering::SeqCst);
            let which = if by_turns { (request.number + turn) % 2 } else { 0 };
            let tag = format!("\"{which}\"");
            let is_other = request.header("if-range").is_some_and(|wanted| wanted != tag);
            let response = match is_other {
                true => Response::new(200, &bodies[which]),
                false => Response::right(request, &bodies[which]),
            };
            Response { rate: (!by_turns).then_some(1_000_000), ..response }.with("ETag", tag)
        });
        let place = Place::new(&[server.url("/a")]);
        assert!(matches!(place.fetch_until(500_000).await, Err(FetchError::Stopped)));
        is_second.store(true, Ordering::SeqCst);
        place.fetch().await.unwrap();
        assert!(contents.contains(&place.content()), "a mixture of both");
    }
}

/// Whether one answer brought the file, and a note says so.
fn is_one_answer(notes: &[String]) -> bool {
    notes.iter().any(|note| note.contains("names no version of the file") && note.contains("`--checksum`"))
}

#[tokio::test]
async fn a_server_that_names_no_version_gives_one_file_and_no_mixture() {
    let contents = alike();
    // The file changes between answers; a weak tag stays the same.
    for (tag, is_long) in [(None, false), (None, true), (Some("W/\"a\""), false)] {
        for changes_at in [1, 2, 4] {
            let bodies = contents.clone();
            let server = Server::start(move |request| {
                let body = &bodies[usize::from(request.number >= changes_at)];
                let response = match is_long {
                    true => Response::long(request, body).without("Last-Modified"),
                    false => Response::unversioned(request, body),
                };
                tag.map_or(response.clone(), |tag| response.with("ETag", tag))
            });
            let place = Place::new(&[server.url("/a")]).over_addresses(&[2, 3]);
            let (_, notes) = place.fetch_with_notes().await;
            assert!(contents.contains(&place.content()), "{tag:?} {changes_at}: a mixture of both");
            assert!(is_one_answer(&notes), "{notes:?}");
        }
    }
}

#[tokio::test]
async fn a_tag_without_quotes_is_a_version() {
    for changes_at in [usize::MAX, 3] {
        let contents = alike();
        let bodies = contents.clone();
        let server = Server::start(move |request| {
            let which = usize::from(request.number >= changes_at);
            Response::unversioned(request, &bodies[which]).with("ETag", ["5995n", "5996n"][which])
        });
        let place = Place::new(&[server.url("/a")]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(contents.contains(&place.content()), "a mixture of both");
        assert!(!is_one_answer(&notes), "{notes:?}");
        assert!(server.requests().iter().all(|request| request.header("if-range").is_none()));
    }
}

#[tokio::test]
async fn parts_without_a_version_are_joined_if_a_hash_proves_the_file() {
    let content = noise(SIZE, 63);
    let hash = HEXLOWER.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &content).as_ref());
    let sha256 = BASE64.encode(digest::digest(&digest::SHA256, &content).as_ref());
    for is_given in [true, false] {
        let (body, sha256) = (content.clone(), sha256.clone());
        let server = Server::start(move |request| {
            let response = Response::unversioned(request, &body);
            let digest = format!("sha-256=:{sha256}:");
            if is_given { response } else { response.with("Repr-Digest", digest) }
        });
        let mut place = Place::new(&[server.url("/a")]);
        place.job.checksums =
            is_given.then(|| Checksum::from_hex("sha-1", &hash).unwrap()).into_iter().collect();
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content && !is_one_answer(&notes), "{notes:?}");
        assert!(server.requests().iter().all(|request| request.header("range").is_some()));
    }
}

#[tokio::test]
async fn an_answer_without_a_version_that_ends_early_is_not_continued() {
    for is_long in [false, true] {
        let contents = alike();
        let bodies = contents.clone();
        let server = Server::start(move |request| {
            let is_first = request.number <= usize::from(!is_long);
            let body = &bodies[usize::from(!is_first)];
            let response = match is_long {
                true => Response::long(request, body).without("Last-Modified"),
                false => Response::unversioned(request, body),
            };
            let cut = (is_first && response.body.len() == SIZE).then_some(1_000_000);
            Response { cut, ..response }
        });
        let place = Place::new(&[server.url("/a")]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == contents[1], "a mixture of both: {notes:?}");
        assert!(server.requests().last().unwrap().header("range").is_none());
        assert_eq!(place.names(), ["file"]);
    }
}

#[tokio::test]
async fn a_short_file_without_a_version_is_not_joined_from_two_answers() {
    let contents = [noise(50_000, 67), noise(50_000, 68)];
    // The first answer breaks off, or is a short part.
    for is_cut in [true, false] {
        let bodies = contents.clone();
        let server = Server::start(move |request| {
            let response = Response::unversioned(request, &bodies[usize::from(request.number > 0)]);
            match (request.number, is_cut) {
                (0, true) => Response { cut: Some(20_000), ..response },
                (0, false) => {
                    Response::new(206, &bodies[0][..20_000]).with("Content-Range", "bytes 0-19999/50000")
                }
                _ => response,
            }
        });
        let place = Place::new(&[server.url("/a")]);
        place.fetch().await.unwrap();
        assert!(place.content() == contents[1], "{is_cut}: a mixture of both");
    }
}

#[tokio::test]
async fn an_answer_without_a_length_that_ends_early_is_not_the_file_if_parts_name_its_size() {
    let content = noise(SIZE, 69);
    for versions in [0, 1] {
        let (body, whole) = (content.clone(), AtomicUsize::new(0));
        let server = Server::start(move |request| {
            let response = Response::unversioned(request, &body);
            if request.header("range").is_some() {
                // Without a version, or with another one in every answer.
                return if versions == 0 {
                    response
                } else {
                    response.with("ETag", format!("\"{}\"", request.number))
                };
            }
            let cut = (whole.fetch_add(1, Ordering::SeqCst) < 2).then_some(1_000_000);
            Response { cut, has_length: false, ..response }
        });
        let place = Place::new(&[server.url("/a")]);
        place.fetch().await.unwrap();
        assert!(place.content() == content, "{versions}: a shorter file");
    }
}

#[tokio::test]
async fn a_download_begins_anew_where_no_version_is_named_now_or_was() {
    for is_named in [[false, false], [true, false], [false, true]] {
        let contents = alike();
        let (bodies, is_second) = (contents.clone(), Arc::new(AtomicBool::new(false)));
        let now = is_second.clone();
        let server = Server::start(move |request| {
            let which = usize::from(now.load(Ordering::SeqCst));
            let response = match is_named[which] {
                true => Response::right(request, &bodies[which]),
                false => Response::unversioned(request, &bodies[which]),
            };
            Response { rate: (which == 0).then_some(1_000_000), ..response }
        });
        let mut place = Place::new(&[server.url("/a")]);
        // With a hash, parts are kept without a version.
        place.job.checksums = vec![Checksum::from_hex("sha-1", &"0".repeat(40)).unwrap()];
        assert!(matches!(place.fetch_until(500_000).await, Err(FetchError::Stopped)));
        is_second.store(true, Ordering::SeqCst);
        place.job.checksums.clear();
        let (report, notes) = place.fetch_with_notes().await;
        assert!(place.content() == contents[1], "a mixture of both: {notes:?}");
        assert_eq!((report.resumed, is_one_answer(&notes)), (0, !is_named[1]), "{notes:?}");
    }
}

#[tokio::test]
async fn a_further_mirror_without_a_version_needs_a_hash_of_the_result() {
    let content = noise(SIZE, 72);
    let sha256 = BASE64.encode(digest::digest(&digest::SHA256, &content).as_ref());
    for is_first_hashed in [false, true] {
        let digest = format!("sha-256=:{sha256}:");
        let first = (is_first_hashed, digest.clone());
        let versioned = Server::changed(&content, move |_, right| {
            let right = Response { rate: Some(1_000_000), ..right };
            if first.0 { right.with("Repr-Digest", first.1.clone()) } else { right }
        });
        let body = content.clone();
        let unversioned = Server::start(move |request| {
            Response::unversioned(request, &body).with("Repr-Digest", digest.clone())
        });
        let place = Place::new(&[versioned.url("/a"), unversioned.url("/a")]);
        place.fetch().await.unwrap();
        assert!(place.content() == content, "wrong bytes");
        assert_eq!(unversioned.requests().len() > 1, is_first_hashed);
    }
}

#[tokio::test]
async fn a_mirror_that_names_no_version_gives_way_to_one_that_sends_parts() {
    let content = noise(SIZE, 64);
    let body = content.clone();
    let unversioned = Server::start(move |request| Response::unversioned(request, &body));
    let right = Server::changed(&content, |_, right| right);
    let place = Place::new(&[unversioned.url("/a"), right.url("/a")]);
    let (_, notes) = place.fetch_with_notes().await;
    assert!(place.content() == content, "wrong bytes");
    assert!(notes.iter().any(|note| note.contains("names no version of its file: only")), "{notes:?}");
    assert!(right.requests().len() > 1);
}

#[tokio::test]
async fn a_server_that_announces_another_size_later_gives_the_file_by_one_answer() {
    let content = noise(SIZE, 65);
    for announced in [SIZE - 5000, SIZE + 5000] {
        let server = Server::changed(&content, move |request, right| {
            match request.range(SIZE).filter(|_| request.number > 0) {
                Some((start, end)) => {
                    let last = end.min(announced) - 1;
                    let range = format!("bytes {start}-{last}/{announced}");
                    Response { body: right.body[..=last - start].to_vec(), ..right }
                        .with("Content-Range", range)
                }
                None => right,
            }
        });
        let place = Place::new(&[server.url("/a")]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "{announced}: a shorter file");
        assert!(notes.iter().any(|note| note.contains("another size")), "{notes:?}");
    }
}
