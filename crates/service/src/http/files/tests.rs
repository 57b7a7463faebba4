//! Files over real sockets. That no path leads out is tested where the files are opened.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;

use axum::http::HeaderMap;
use hyper::body::Body as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::http::HttpSettings;

/// A directory whose paths are opened unchecked.
#[derive(Clone)]
struct Tree(PathBuf);

impl Files for Tree {
    async fn find(&self, path: &str) -> io::Result<Found> {
        let path = self.0.join(path);
        if path.is_file() {
            return File::open(path).map(Found::File);
        }
        let mut rows = Vec::new();
        for entry in fs::read_dir(path)? {
            let (name, meta) = entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)))?;
            let file = RowKind::File { size: Some(meta.len()), modified: Some(784_111_777) };
            let kind = if meta.is_dir() { RowKind::Directory } else { file };
            rows.push(Row { name: name.into_string().unwrap(), kind });
        }
        Ok(Found::Directory { rows, left_out: 0 })
    }

    async fn admit(&self, most: usize) -> usize {
        most.min(100_000)
    }
}

/// Serves a new directory with these files at a loopback address.
async fn served(files: &[(&str, &[u8])]) -> (TempDir, SocketAddr) {
    served_at("127.0.0.1:0", files).await
}

async fn served_at(address: &str, files: &[(&str, &[u8])]) -> (TempDir, SocketAddr) {
    let temp = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, content)| fs::write(temp.path().join(name), content).unwrap());
    let settings = HttpSettings { address: address.parse().unwrap(), token: None, tls: None };
    let door = Door::open(&settings).await.unwrap();
    let at = door.address().unwrap();
    tokio::spawn(serve(door, Tree(temp.path().to_owned())));
    (temp, at)
}

/// The head of an answer in small letters, and its body.
async fn ask(at: SocketAddr, what: &str, more: &str) -> (String, Vec<u8>) {
    let host = if more.contains("Host:") { String::new() } else { format!("Host: {at}\r\n") };
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("{what} HTTP/1.1\r\n{host}Connection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    (String::from_utf8_lossy(&answer[..end]).to_lowercase(), answer[end + 4..].to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_sent_as_a_whole_in_parts_or_not_at_all() {
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let (_temp, at) = served(&[("a b.txt", &content), ("empty", b"")]).await;
    let (head, body) = ask(at, "GET /a%20b.txt", "").await;
    assert!(head.starts_with("http/1.1 200") && body == content, "{head}");
    for line in
        ["accept-ranges: bytes", "content-type: text/plain; charset=utf-8", "nosniff", "last-modified: "]
    {
        assert!(head.contains(line), "{line}: {head}");
    }
    let (head, body) = ask(at, "HEAD /a%20b.txt", "Range: bytes=0-1\r\n").await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-length: 300000"), "{head}");
    assert!(body.is_empty());
    for (range, part) in [("5-9", 5..10), ("-5", 299_995..300_000), ("140000-", 140_000..300_000)] {
        let (head, body) = ask(at, "GET /a%20b.txt", &format!("Range: bytes={range}\r\n")).await;
        let told = format!("content-range: bytes {}-{}/300000", part.start, part.end - 1);
        assert!(head.starts_with("http/1.1 206") && head.contains(&told), "{range}: {head}");
        assert!(body == content[part], "{range}");
    }
    let (head, body) = ask(at, "GET /a%20b.txt", "Range: bytes=300000-\r\n").await;
    assert!(head.starts_with("http/1.1 416") && head.contains("content-range: bytes */300000"), "{head}");
    assert!(body.is_empty());
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let (head, body) =
        ask(at, "GET /a%20b.txt", &format!("If-None-Match: \"x\", {}\r\n", tag.to_uppercase())).await;
    assert!(head.starts_with("http/1.1 200") && body == content, "tags are compared as they are: {head}");
    let mut own = tag.replacen("w/", "W/", 1);
    let (head, body) = loop {
        let (head, body) = ask(at, "GET /a%20b.txt", &format!("If-None-Match: \"x\", {own}\r\n")).await;
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().replacen("w/", "W/", 1);
        // It changes once, when the file has settled.
        if own == tag {
            break (head, body);
        }
        own = tag;
    };
    assert!(head.starts_with("http/1.1 304") && !head.contains("content-length"), "{head}");
    assert!(body.is_empty());
    assert!(ask(at, "GET /empty", "").await.0.contains("content-length: 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_escapes_hostile_names_and_pages_with_scripts_are_downloads() {
    let name = "<img src=x onerror='alert(1)'>\"&\u{202e}.html";
    let (temp, at) = served(&[(name, b"<script>")]).await;
    fs::create_dir(temp.path().join("d: e")).unwrap();
    let (head, body) = ask(at, "GET /", "").await;
    let page = String::from_utf8(body).unwrap();
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(
        page.contains(">&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&quot;&amp;\\u{202e}.html</a>"),
        "{page}"
    );
    assert!(!page.contains("<img") && page.contains("<td>8 B</td><td>06 Nov 1994 08:49</td>"), "{page}");
    let link = page.split("href=\"./").find_map(|rest| rest.split_once(".html\"")).unwrap().0;
    let (head, body) = ask(at, &format!("GET /{link}.html"), "").await;
    assert!(
        head.contains("content-disposition: attachment; filename*=utf-8''%3cimg") && body == b"<script>",
        "{head}"
    );
    let (head, _) = ask(at, "GET /d%3A%20e", "").await;
    assert!(head.starts_with("http/1.1 307") && head.contains("location: ./d%3a%20e/"), "{head}");
    assert!(ask(at, "GET /d%3A%20e/", "").await.0.starts_with("http/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_other_names_of_this_machine_and_more_connections_are_refused() {
    let (_temp, at) = served(&[("a", b"a")]).await;
    let (head, _) = ask(at, "POST /a", "").await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{head}");
    assert!(ask(at, "GET /a", "Host: evil.example\r\n").await.0.starts_with("http/1.1 421"));
    for path in ["/none", "/a/", "/a%2f", "/a%00", "/%zz", "/%ff"] {
        assert!(ask(at, &format!("GET {path}"), "").await.0.starts_with("http/1.1 404"), "{path}");
    }
    // A server without connections that are about to end.
    let (_temp, at) = served(&[("a", b"a")]).await;
    let mut held = Vec::new();
    for _ in 0..32 {
        held.push(TcpStream::connect(at).await.unwrap());
    }
    let mut further = TcpStream::connect(at).await.unwrap();
    // It may be reset as well as closed.
    let read = timeout(Duration::from_secs(10), further.read(&mut [0])).await.expect("an end");
    assert!(!read.is_ok_and(|read| read > 0));
    let last = held.last_mut().unwrap();
    last.write_all(format!("GET /a HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes()).await.unwrap();
    let mut status = [0; 12];
    timeout(Duration::from_secs(10), last.read_exact(&mut status)).await.expect("an answer").unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_reads_nothing_in_a_network_under_a_name_of_its_own() {
    let (_temp, at) = served_at("0.0.0.0:0", &[("a", b"a")]).await;
    let (head, body) = ask(at, "GET /a", "Host: evil.example\r\n").await;
    assert!(head.starts_with("http/1.1 421") && body.starts_with(b"ask by an address"), "{head}");
    for host in ["192.0.2.1:8080", "nas.local"] {
        assert_eq!(ask(at, "GET /a", &format!("Host: {host}\r\n")).await.1, b"a", "{host}");
    }
}

#[tokio::test]
async fn a_file_that_is_changed_while_it_is_sent_has_no_end() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a");
    for (after, is_whole) in [("old and more", true), ("new", false), ("ne", false)] {
        fs::write(&path, "old").unwrap();
        let file = File::options().write(true).read(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let meta = file.metadata().unwrap();
        let mut body = FileBody::new(Tree(path.clone()), (file, meta), 0..3);
        fs::write(&path, after).unwrap();
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap();
        assert_eq!(frame.is_ok(), is_whole, "{after}");
    }
}

fn headers(name: HeaderName, value: &str) -> HeaderMap {
    [(name, HeaderValue::try_from(value).unwrap())].into_iter().collect()
}

#[test]
fn parts_are_sent_only_of_the_version_that_the_client_has() {
    let temp = tempfile::NamedTempFile::new().unwrap();
    let meta = temp.as_file().metadata().unwrap();
    let later = meta.modified().unwrap() + Duration::from_secs(10);
    let (fresh, old) = (Version::of(&meta, meta.modified().unwrap()), Version::of(&meta, later));
    let (tag, date) = (old.tag(), old.modified().unwrap());
    assert!(fresh.tag().starts_with("W/\"") && fresh.tag()[2..] != tag);
    assert!(old.is_wanted_in_part(&headers(header::IF_RANGE, &tag)));
    let own = headers(header::IF_RANGE, &fresh.tag()[2..]);
    assert!(!fresh.is_wanted_in_part(&own), "it may change within the same tick of the clock");
    for value in ["\"x\"", &fresh.tag(), &date, ""] {
        assert!(!old.is_wanted_in_part(&headers(header::IF_RANGE, value)), "{value}");
    }
    let check = |name, value: &str| old.check(&headers(name, value));
    let weak = format!("W/{tag}");
    assert_eq!(check(header::IF_NONE_MATCH, &weak), Some(StatusCode::NOT_MODIFIED));
    let own = headers(header::IF_NONE_MATCH, &fresh.tag());
    assert_eq!(fresh.check(&own), Some(StatusCode::NOT_MODIFIED));
    assert_eq!(old.check(&own), None, "it may have changed within the same tick of the clock");
    assert_eq!(check(header::IF_MODIFIED_SINCE, &date), Some(StatusCode::NOT_MODIFIED));
    assert_eq!(check(header::IF_MATCH, "\"x\""), Some(StatusCode::PRECONDITION_FAILED));
    let early = "Sun, 06 Nov 1994 08:49:37 GMT";
    assert_eq!(check(header::IF_UNMODIFIED_SINCE, early), Some(StatusCode::PRECONDITION_FAILED));
    let undated = Version::of(&meta, SystemTime::UNIX_EPOCH);
    assert_eq!(undated.check(&headers(header::IF_UNMODIFIED_SINCE, early)), None);
    for (name, value) in
        [(header::IF_MATCH, &*tag), (header::IF_MODIFIED_SINCE, early), (header::IF_NONE_MATCH, "")]
    {
        assert_eq!(check(name.clone(), value), None, "{name}");
    }
}

#[test]
fn ranges_are_cut_at_the_end_of_the_file_and_odd_ones_get_all_of_it() {
    let all = |range: &str| wanted(&headers(header::RANGE, range), 10);
    for (range, part) in
        [("0-", 0..10), ("bytes=9-99999999999999999999", 9..10), ("-3", 7..10), ("-30", 0..10)]
    {
        let range = if range.contains('=') { range.to_owned() } else { format!("Bytes={range}") };
        assert_eq!(all(&range), Wanted::Part(part), "{range}");
    }
    for range in ["bytes=10-", "bytes=-0", "bytes=99999999999999999999-"] {
        assert_eq!(all(range), Wanted::Nothing, "{range}");
    }
    for range in
        ["bytes=3-2", "bytes=0-1,4-5", "bytes=+1-2", "bytes=-", "bytes=a-b", "lines=0-1", "bytes", ""]
    {
        assert_eq!(all(range), Wanted::All, "{range}");
    }
    assert_eq!(wanted(&headers(header::RANGE, "bytes=0-"), 0), Wanted::Nothing);
}
