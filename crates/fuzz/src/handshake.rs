//! Valid handshake messages and sealed packets, changed by the input: three bytes each (position, two bytes; exclusive-or).
//! A changed message is never accepted, and the original still is.

use anabranch_secure::{
    Accepted, Admission, CookieJar, Dial, Envelope, Initiator, Limits, NodeKey, Protection, SessionKeys,
    read_init,
};
use anabranch_wire::{Fsn, Header, Kind, PathId, Pid, TAG_LEN, Time};

/// Applies the input to a message; false when nothing changed.
fn change(message: &mut [u8], input: &[u8]) -> bool {
    let before = message.to_vec();
    for patch in input.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([patch[0], patch[1]])) % message.len();
        message[at] ^= patch[2];
    }
    message != before
}

struct Ends {
    server: NodeKey,
    jar: CookieJar,
    initiator: Initiator,
}

fn ends() -> Ends {
    let (server, client) = (NodeKey::from_random([1; 32]), NodeKey::from_random([2; 32]));
    let dial = Dial { remote: server.public(), credential: None };
    let initiator = Initiator::new(&client, &dial, Pid(7), &[5; 60], [3; 32]).expect("a good key");
    Ends { jar: CookieJar::new(server.public(), [4; 32]), server, initiator }
}

fn accept(ends: &Ends, body: &[u8]) -> Option<Accepted> {
    read_init(&ends.server, body, [6; 32]).ok()?.accept(None, &[8; 60]).ok()
}

/// `Cookie`, `Init` and `InitAck`.
pub fn messages(input: &[u8]) {
    let Some((which, patches)) = input.split_first() else { return };
    let mut ends = ends();
    let from = "192.0.2.1:7".parse().expect("an address");
    let bare = ends.initiator.init_body(None);
    let Admission::Challenge { body: cookie_body, .. } = ends.jar.admit(Time::ZERO, from, &bare) else {
        panic!("no cookie")
    };
    let cookie = ends.initiator.open_cookie(&cookie_body).expect("a true cookie");
    let init = ends.initiator.init_body(Some(&cookie));
    match which % 4 {
        0 => {
            let mut changed = cookie_body;
            let differs = change(&mut changed, patches);
            assert!(!differs || ends.initiator.open_cookie(&changed).is_err());
        }
        1 => {
            let mut changed = init;
            let differs = change(&mut changed, patches);
            let admitted = matches!(ends.jar.admit(Time::ZERO, from, &changed), Admission::Proceed);
            assert!(!(differs && admitted), "a changed INIT was let in");
        }
        2 => {
            let mut changed = init;
            change(&mut changed, patches);
            // Without a cookie: no panic, whatever the input.
            drop(accept(&ends, &changed));
            drop(ends.initiator.handle_ack(&changed));
        }
        _ => {
            let answer = accept(&ends, &init).expect("a true INIT");
            let mut changed = answer.body.clone();
            if change(&mut changed, patches) {
                assert!(ends.initiator.handle_ack(&changed).is_err());
            }
            assert!(ends.initiator.handle_ack(&answer.body).is_ok());
        }
    }
}

/// The keys of the client and of the server, the same every time.
pub(crate) fn keys() -> (SessionKeys, SessionKeys) {
    let mut ends = ends();
    let init = ends.initiator.init_body(None);
    let accepted = accept(&ends, &init).expect("a true INIT");
    let (client, _) = ends.initiator.handle_ack(&accepted.body).expect("a true answer");
    (client, accepted.keys)
}

/// Sealed packets on two paths, changed, cut, repeated; the originals open once each.
pub fn packets(input: &[u8]) {
    let (client, server) = keys();
    let mut from = Protection::new(&client, Limits::default(), Time::ZERO);
    let mut to = Protection::new(&server, Limits::default(), Time::ZERO);
    for (number, patches) in input.chunks(7).enumerate() {
        let (path, fsn) = (PathId(u32::from(patches[0] % 2)), Fsn(number as u64));
        let key_phase = from.key_phase(Time::ZERO);
        let header =
            Header { kind: Kind::Data, key_phase, tos: 0, hop_limit: 4, pid: Pid(9), fsn: fsn.0 as u32 };
        let mut body = vec![patches[0]; 20 + TAG_LEN];
        let envelope = Envelope::new(&header, path, fsn);
        let elsewhere = Envelope::new(&header, PathId(path.0 + 2), fsn);
        from.seal(&envelope, &mut body).expect("sealed");
        let mut changed = body.clone();
        if change(&mut changed, &patches[1..]) {
            assert!(to.open(Time::ZERO, &envelope, &mut changed).is_err());
        }
        let cut = usize::from(patches[0]) % body.len();
        assert!(to.open(Time::ZERO, &envelope, &mut body.clone()[..cut]).is_err());
        assert!(to.open(Time::ZERO, &elsewhere, &mut body.clone()).is_err());
        assert!(to.open(Time::ZERO, &envelope, &mut body.clone()).is_ok());
        assert!(to.open(Time::ZERO, &envelope, &mut body.clone()).is_err());
    }
}
