//! Servers whose answers name other versions of a file, or none.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_fetch::FetchError;
use common::server::{Response, Server};
use common::{Place, noise};

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

#[tokio::test]
async fn a_note_says_that_a_change_would_not_show_where_several_answers_name_no_version() {
    let content = noise(SIZE, 63);
    let note = "does not name the version of the file";
    for (is_long, tag, is_told) in [(false, None, true), (false, Some("\"a\""), false), (true, None, false)] {
        let body = content.clone();
        let server = Server::start(move |request| {
            let response = match is_long {
                true => Response::long(request, &body),
                false => Response::right(request, &body),
            };
            tag.map_or(response.clone(), |tag| response.with("ETag", tag))
        });
        let place = Place::new(&[server.url("/a")]);
        let (_, notes) = place.fetch_with_notes().await;
        assert!(place.content() == content, "wrong bytes");
        assert_eq!(
            notes.iter().filter(|told| told.contains(note)).count(),
            usize::from(is_told),
            "{notes:?}"
        );
    }
}
