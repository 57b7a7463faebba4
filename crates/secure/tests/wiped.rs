//! Freed memory holds no secret: checked by an allocator that reads every block it frees.

#![allow(
    unsafe_code,
    reason = "an allocator that looks is unsafe to write, and there is no other way to see what was freed"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_secure::{
    CapturedSession, Dial, Envelope, Initiator, Limits, NodeKey, Protection, PublicKey, RelayHint, ResetKey,
    SessionKeys, ShareId, Ticket, TicketSecret, read_init, secret,
};
use anabranch_wire::{Fsn, Header, Kind, PathId, Pid, Span, Time};
use data_encoding::BASE32_NOPAD;
use zeroize::Zeroizing;

/// Reads every block before it is freed.
struct Reading;

/// Pieces of secrets, as bytes and as text; nothing is searched for before they are set.
static PIECES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
/// Blocks that were freed with a piece of a secret in them.
static FOUND: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's; a block is zeros at first, so that all of it may be read.
unsafe impl GlobalAlloc for Reading {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(pieces) = PIECES.get() {
            // SAFETY: the block is whole until it is freed below, and was initialised.
            let block = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
            let holds = |piece: &Vec<u8>| block.windows(piece.len()).any(|window| window == piece);
            if pieces.iter().any(holds) {
                FOUND.fetch_add(1, Ordering::Relaxed);
            }
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Reading = Reading;

const KEY: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
const OFFER: [u8; 32] = *b"an offer's secret half, 32 bytes";
const ANSWER: [u8; 32] = *b"the answer's half, of 32 bytes..";
const TICKET: [u8; 16] = *b"ABCDEFGHIJKLMNOP";

/// The largest that can be written.
fn ticket(node: PublicKey) -> Ticket {
    let addresses: Vec<SocketAddr> = (1..17).map(|port| ([192, 0, 2, 1], port).into()).collect();
    let relay = RelayHint { node, addresses: addresses.clone() };
    let (share, secret) = (ShareId(7), TicketSecret::from_random(TICKET));
    Ticket { node, addresses, relays: vec![relay; 8], share, secret, expires: None }
}

fn session(node: &NodeKey) -> [SessionKeys; 2] {
    let secret = TicketSecret::from_random(TICKET);
    let dial = Dial { remote: node.public(), credential: Some((ShareId(7), secret.clone())) };
    let mut initiator = Initiator::new(node, &dial, Pid(7), b"parameters", [3; 32]).unwrap();
    let pending = read_init(node, &initiator.init_body(None), [4; 32]).unwrap();
    let accepted = pending.accept(Some(&secret), b"parameters").unwrap();
    [initiator.handle_ack(&accepted.body).unwrap().0, accepted.keys]
}

/// A fresh exchange of a client and a server, used by both; the line that opens what follows.
fn exchange(client: &SessionKeys, server: &SessionKeys) -> Zeroizing<String> {
    let now = Time::ZERO;
    let limits = Limits { exchange_after: Span::ZERO, retention: Span::ZERO, ..Limits::default() };
    let mut ends = [Protection::new(client, limits, now), Protection::new(server, limits, now)];
    let pass = |ends: &mut [Protection; 2], from: usize, fsn: u32| {
        let key_phase = ends[from].key_phase(now);
        let header = Header { kind: Kind::Data, key_phase, tos: 0, hop_limit: 4, pid: Pid(1), fsn };
        let envelope = Envelope::new(&header, PathId(0), Fsn(fsn.into()));
        let mut packet = [0; 40];
        ends[from].seal(&envelope, &mut packet).unwrap();
        ends[1 - from].open(now, &envelope, &mut packet).unwrap();
    };
    pass(&mut ends, 0, 0);
    pass(&mut ends, 1, 0);
    let offer = ends[0].exchange(now, None, OFFER).unwrap().half.unwrap();
    let answered = ends[1].exchange(now, Some(&offer), ANSWER).unwrap();
    ends[0].exchange(now, answered.half.as_ref(), [0; 32]).unwrap();
    pass(&mut ends, 0, 1);
    pass(&mut ends, 1, 1);
    assert_eq!((ends[0].phases(), ends[1].phases()), (1, 1));
    ends[1].line_of(&answered.fresh.unwrap())
}

/// Pieces of the secret in a text, which lies between these characters, in lower and upper case.
fn pieces_of(text: &str, secret: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    let both = [text[secret.clone()].to_ascii_lowercase(), text[secret].to_ascii_uppercase()];
    both.iter().flat_map(|text| text.as_bytes().chunks_exact(10)).map(<[u8]>::to_vec).collect()
}

/// Runs `what`; returns how many freed blocks contained a piece of a secret.
fn left_by<T>(what: impl FnOnce() -> T) -> usize {
    let before = FOUND.load(Ordering::Relaxed);
    drop(what());
    FOUND.load(Ordering::Relaxed) - before
}

/// A single test, because there is only one allocator.
#[test]
fn freed_memory_holds_no_secret() {
    let node = NodeKey::from_random(KEY);
    let (file, text) = (node.to_file_text(), ticket(node.public()).to_text());
    let [client, keys] = session(&node);
    let line = keys.to_line();
    let damaged = format!("{}!{}", &text[..400], &text[401..]);
    let raw = BASE32_NOPAD.decode(line["abkeys".len()..].to_ascii_uppercase().as_bytes()).unwrap();

    let mut pieces: Vec<_> =
        [&KEY, &raw[32..96]].iter().flat_map(|bytes| bytes.chunks(16)).map(<[u8]>::to_vec).collect();
    pieces.push(TICKET.to_vec());
    pieces.extend(pieces_of(file.lines().last().unwrap(), 11..61));
    pieces.extend(pieces_of(&text, 10 + 64..10 + 84));
    pieces.extend(pieces_of(&line, 6 + 52..6 + 152));
    let fresh = exchange(&client, &keys);
    let fresh_raw = BASE32_NOPAD.decode(fresh["abfresh".len()..].to_ascii_uppercase().as_bytes()).unwrap();
    pieces.extend([&OFFER, &ANSWER, &fresh_raw[8..40]].iter().map(|bytes| bytes[..16].to_vec()));
    pieces.extend(pieces_of(&fresh, 7 + 16..7 + 56));
    PIECES.set(pieces).unwrap();

    assert_eq!(left_by(|| TICKET.to_vec()), 1, "the allocator looks");
    assert_eq!(left_by(|| Box::new(NodeKey::from_random(KEY))), 0, "a key");
    assert_eq!(left_by(|| node.to_file_text()), 0, "a key written");
    assert_eq!(left_by(|| NodeKey::from_file_text(&file)), 0, "a key read");
    assert_eq!(left_by(|| ticket(node.public()).to_text()), 0, "a ticket written");
    assert_eq!(left_by(|| text.parse::<Ticket>()), 0, "a ticket read");
    assert_eq!(left_by(|| damaged.parse::<Ticket>().unwrap_err()), 0, "a ticket with a mistake read");
    assert_eq!(left_by(|| Box::new(ResetKey::from_random(KEY))), 0, "a reset key");
    assert_eq!(left_by(|| Box::new(secret::derive::<32>("test", &[&KEY]))), 0, "what is derived");
    assert_eq!(left_by(|| keys.to_line()), 0, "a session's keys written");
    assert_eq!(left_by(|| CapturedSession::from_line(&line)), 0, "a session's keys read");
    assert_eq!(left_by(|| exchange(&client, &keys)), 0, "a fresh exchange");
    let both = Zeroizing::new(format!("{}\n{}", line.as_str(), fresh.as_str()));
    assert_eq!(left_by(|| CapturedSession::read_all(&both)), 0, "fresh secrets read");
    assert_eq!(
        left_by(|| Box::new(Protection::new(&keys, Limits::default(), Time::ZERO))),
        0,
        "a session's keys in use"
    );
}
