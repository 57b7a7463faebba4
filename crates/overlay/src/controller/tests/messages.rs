use proptest::prelude::*;

use anabranch_wire::Span;

use super::super::message::{FiguresTold, GrantedRelay, MAX_BODY, Neighbours, Reply, Request};
use super::*;
use crate::grant::GrantId;
use crate::sense::Figures;

fn round(request: Request) {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes.push(7);
    assert_eq!(Request::decode(&bytes).unwrap(), Some((request, bytes.len() - 1)));
    assert_eq!(Request::decode(&bytes[..bytes.len() - 2]).unwrap(), None);
}

#[test]
fn every_request_comes_out_as_it_went_in() {
    let ask = ask(START, 3, 2, limits(4, 10));
    let allocate = Request::allocate(&ask);
    assert_eq!(allocate.ask(), Some(ask));
    round(allocate);
    round(Request::Hello { version: 1 });
    round(Request::Register { instance: u64::MAX, offer: offer("fra", 5, 9) });
    let confirmed = vec![GrantId([0; 16]), GrantId([255; 16])];
    round(Request::Heartbeat { load: Load { pids: 1, rate: 2, draining: true }, confirmed, links: None });
    round(Request::Figures { relays: vec![key(1)], to: Some([192, 0, 2, 1].into()), known: true });
    round(Request::Renew { grant: GrantId([4; 16]), lifetime: 60 });
    round(Request::GiveBack { grant: GrantId([3; 16]) });
}

#[test]
fn every_reply_comes_out_as_it_went_in() {
    let relays = vec![GrantedRelay { node: key(3), addresses: vec!["[2001:db8::1]:4600".parse().unwrap()] }];
    let estimate = Figures { estimated: Some(0.25), ..Figures::measured(Span::from_millis(31), 0.01) };
    assert_eq!(FiguresTold::new((key(1), key(2)), &estimate).figures(), estimate);
    for reply in [
        Reply::Hello { version: 1 },
        Reply::Registered,
        Reply::Heartbeat {
            time: 5,
            revoked: vec![GrantId([1; 16])],
            known: 7,
            neighbours: Some(Neighbours {
                measure: relays.clone(),
                measured_by: vec![key(4)],
                wanted: relays.clone(),
            }),
        },
        Reply::Figures {
            figures: vec![FiguresTold::new((key(1), key(2)), &estimate)],
            node: vec![key(2)],
            draining: vec![key(1)],
            silent: vec![key(2)],
        },
        Reply::Granted { grant: "AA==".into(), relays },
        Reply::GivenBack,
        Reply::denied(&Denied::Busy.into()),
    ] {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(Reply::decode(&bytes).unwrap(), Some((reply, bytes.len())));
    }
}

#[test]
fn a_request_id_is_written_in_one_way_only() {
    for wrong in [
        "",
        "-",
        "1",
        "1-0",
        "01-0000000000000000",
        "1-00000000000000FF",
        "1-+000000000000000",
        "g-0000000000000000",
    ] {
        assert!(wrong.parse::<RequestId>().is_err(), "{wrong}");
    }
    assert!("+0000000000000000000000000000000".parse::<GrantId>().is_err());
}

#[test]
fn a_message_that_claims_to_be_long_is_refused_before_it_is_read() {
    let bytes = ((MAX_BODY + 1) as u32).to_be_bytes();
    assert!(Request::decode(&bytes).is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
        framed.extend(&bytes);
        drop((Request::decode(&bytes), Request::decode(&framed), Reply::decode(&framed)));
    }
}
