//! A small HTTP server with chosen faults, on threads.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as the server reads it.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many requests came before it.
    pub number: usize,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub from: SocketAddr,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// The range that is answered; the end is exclusive and within `size`. Where the request has no end, it is a short one, so
    /// that the client asks several times.
    pub fn range(&self, size: usize) -> Option<(usize, usize)> {
        let (start, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let end = last.parse::<usize>().map_or(SHORT, |last| last + 1).min(size);
        Some((start.parse().ok()?, end))
    }
}

/// A response, with its faults.
#[derive(Clone, Debug)]
pub struct Response {
    pub version: &'static str,
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is closed.
    pub cut: Option<usize>,
    /// Bytes a second.
    pub rate: Option<usize>,
    pub chunked: bool,
    /// Whether the length is announced.
    pub has_length: bool,
}

impl Response {
    pub fn new(status: u16, body: &[u8]) -> Self {
        Self {
            version: "HTTP/1.1",
            status,
            headers: Vec::new(),
            body: body.to_vec(),
            cut: None,
            rate: None,
            chunked: false,
            has_length: true,
        }
    }

    /// Sets a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self = self.without(name);
        self.headers.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    /// The response of a correct server, which names the time of the content's change.
    pub fn right(request: &Request, content: &[u8]) -> Self {
        Self::unversioned(request, content).with("Last-Modified", changed_at(content))
    }

    /// The response of a server that names no version.
    pub fn unversioned(request: &Request, content: &[u8]) -> Self {
        let size = content.len();
        match request.range(size) {
            None => Self::new(200, content),
            Some((start, _)) if start >= size => {
                Self::new(416, b"").with("Content-Range", format!("bytes */{size}"))
            }
            Some((start, end)) => Self::new(206, &content[start..end])
                .with("Content-Range", format!("bytes {start}-{}/{size}", end - 1)),
        }
    }

    /// The response of a correct server that sends everything where a range has no end.
    pub fn long(request: &Request, content: &[u8]) -> Self {
        match request.header("range") {
            Some("bytes=0-") if !content.is_empty() => {
                let (last, size) = (content.len() - 1, content.len());
                Self::new(206, content)
                    .with("Content-Range", format!("bytes 0-{last}/{size}"))
                    .with("Last-Modified", changed_at(content))
            }
            _ => Self::right(request, content),
        }
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<bool> {
        let mut head = format!("{} {} X\r\n", self.version, self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
        } else if self.has_length {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        let sent = &self.body[..self.cut.unwrap_or(self.body.len())];
        let piece = self.rate.map_or(64 << 10, |rate| (rate / 50).max(1));
        for piece in sent.chunks(piece) {
            if self.chunked {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
            }
            stream.write_all(piece)?;
            if self.chunked {
                stream.write_all(b"\r\n")?;
            }
            if self.rate.is_some() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if self.chunked && self.cut.is_none() {
            stream.write_all(b"0\r\n\r\n")?;
        }
        stream.flush()?;
        Ok(self.cut.is_none() && (self.has_length || self.chunked) && self.version == "HTTP/1.1")
    }
}

/// The length of a short answer.
const SHORT: usize = 64 << 10;

type Answer = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// A running server.
#[derive(Clone)]
pub struct Server {
    pub port: u16,
    pub requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", answer)
    }

    /// A server at this address.
    pub fn start_at(at: &str, answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Self { port, requests: Arc::default() };
        let (answer, requests): (Answer, _) = (Arc::new(answer), server.requests.clone());
        let number = Arc::new(AtomicUsize::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, requests, number) = (answer.clone(), requests.clone(), number.clone());
                std::thread::spawn(move || serve(stream, &answer, (&requests, &number)));
            }
        });
        server
    }

    /// A correct server of this content.
    pub fn right(content: &[u8]) -> Self {
        let content = content.to_vec();
        Self::start(move |request| Response::long(request, &content))
    }

    /// A server of this content that changes its correct responses.
    pub fn changed(
        content: &[u8],
        change: impl Fn(&Request, Response) -> Response + Send + Sync + 'static,
    ) -> Self {
        let content = content.to_vec();
        Self::start(move |request| change(request, Response::right(request, &content)))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, answer: &Answer, (requests, number): (&Mutex<Vec<Request>>, &AtomicUsize)) {
    let from = stream.peer_addr().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let path = lines[0].split(' ').nth(1).unwrap_or("/").to_owned();
        let headers = lines[1..].iter().filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let number = number.fetch_add(1, Ordering::SeqCst);
        let request = Request { number, path, headers, from };
        requests.lock().unwrap().push(request.clone());
        if !answer(&request).send(&mut stream).unwrap_or(false) {
            return;
        }
    }
}

/// A time in January 1970 for each content. Of a long one only every sixteenth kilobyte counts, as it is asked for at each request.
fn changed_at(content: &[u8]) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    let kept = if content.len() > 4 << 20 { 1 } else { 16 };
    for part in content.chunks(16 << 10) {
        std::hash::Hash::hash(&part[..part.len().min(kept << 10)], &mut hasher);
    }
    let since = std::hash::Hasher::finish(&hasher) % (28 * 24 * 60 * 60);
    let (day, second) = (since / 86_400, since % 86_400);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][day as usize % 7];
    let [hours, minutes, seconds] = [second / 3600, second / 60 % 60, second % 60];
    format!("{weekday}, {:02} Jan 1970 {hours:02}:{minutes:02}:{seconds:02} GMT", day + 1)
}

/// Bytes that look random.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
