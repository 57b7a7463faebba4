use proptest::prelude::*;

use anabranch_wire::Span;

use super::super::message::{FiguresTold, GrantedRelay, MAX_BODY, Neighbours, Reply, Request};
use super::*;
use crate::grant::GrantId;
use crate::sense::{Changes, Figures, LinkTold};

fn round(request: Request) {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes.push(7);
    assert_eq!(Request::decode(&bytes).unwrap(), Some((request, bytes.len() - 1)));
    assert_eq!(Request::decode(&bytes[..bytes.len() - 2]).unwrap(), None);
}

/// One message of each kind, with every optional field but the changes of links.
fn every_request() -> Vec<Request> {
    let confirmed = vec![GrantId([0; 16]), GrantId([255; 16])];
    vec![
        Request::Allocate(ask(START, 3, 2, limits(4, 10))),
        Request::Hello { version: 1 },
        Request::Register { instance: u64::MAX, offer: offer("fra", 5, 9) },
        Request::Heartbeat { load: Load { pids: 1, rate: 2, draining: true }, confirmed, links: None },
        Request::Figures { relays: vec![key(1)], to: Some([192, 0, 2, 1].into()), known: true },
        Request::Renew { grant: GrantId([4; 16]), lifetime: 60 },
        Request::GiveBack { grant: GrantId([3; 16]) },
    ]
}

fn every_change() -> Changes {
    let link = LinkTold {
        to: key(2),
        up: true,
        rtt: [1, 2],
        loss: [3, 4],
        queue: [5, 6],
        available: 7,
        capacity: 8,
    };
    Changes { since: 1, version: 2, coordinate: Default::default(), links: vec![link], gone: vec![key(3)] }
}

fn every_reply() -> Vec<Reply> {
    let relays = vec![GrantedRelay { node: key(3), addresses: vec!["[2001:db8::1]:4600".parse().unwrap()] }];
    let neighbours =
        Neighbours { measure: relays.clone(), measured_by: vec![key(4)], wanted: relays.clone() };
    vec![
        Reply::Hello { version: 1 },
        Reply::Registered { signs: "abs1".into() },
        Reply::Heartbeat { time: 5, revoked: vec![GrantId([1; 16])], known: 7, neighbours: Some(neighbours) },
        Reply::Figures {
            figures: vec![FiguresTold::new((key(1), key(2)), &estimate())],
            node: vec![key(2)],
            draining: vec![key(1)],
            silent: vec![key(2)],
        },
        Reply::Granted { grant: "AA==".into(), relays },
        Reply::GivenBack,
        Reply::denied(&Denied::Busy.into()),
    ]
}

fn estimate() -> Figures {
    Figures { estimated: Some(0.25), ..Figures::measured(Span::from_millis(31), 0.01) }
}

#[test]
fn every_request_comes_out_as_it_went_in() {
    every_request().into_iter().for_each(round);
    let load = Load::default();
    round(Request::Heartbeat { load, confirmed: Vec::new(), links: Some(every_change()) });
}

#[test]
fn every_reply_comes_out_as_it_went_in() {
    assert_eq!(FiguresTold::new((key(1), key(2)), &estimate()).figures(), estimate());
    for reply in every_reply() {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(Reply::decode(&bytes).unwrap(), Some((reply, bytes.len())));
    }
}

/// The field names in a message, at all levels; the name of its kind comes first.
fn names(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            found.extend(fields.get("kind").and_then(|kind| kind.as_str()).map(str::to_owned));
            for (name, field) in fields.iter().filter(|(name, _)| *name != "kind") {
                found.push(name.clone());
                names(field, found);
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|entry| names(entry, found)),
        _ => {}
    }
}

/// Every field of every message is in the lists of `docs/reference/protocol.md`, at its kind.
#[test]
fn the_protocols_page_names_every_field() {
    let page = include_str!("../../../../../docs/reference/protocol.md");
    let (_, section) = page.split_once("### Controllers\n").expect("the section");
    let section = section.split("\n### ").next().unwrap_or_default();
    let (requests, rest) = section.split_once("\nAnswers:\n").expect("a list of answers");
    let (answers, changes) = rest.split_once("\nChanges of links:").expect("what changes are");
    let check = |list: &str, message: serde_json::Value| {
        let mut found = Vec::new();
        names(&message, &mut found);
        let (kind, fields) = found.split_first().expect("a kind");
        let row = list.split("\n- ").find(|item| item.starts_with(&format!("`{kind}`")));
        let row = row.unwrap_or_else(|| panic!("no item of {kind}"));
        for field in fields {
            assert!(row.contains(&format!("`{field}`")), "{kind}: {field} is not in {row}");
        }
    };
    for request in every_request() {
        check(requests, serde_json::to_value(request).unwrap());
    }
    for reply in every_reply() {
        check(answers, serde_json::to_value(reply).unwrap());
    }
    let mut told = Vec::new();
    names(&serde_json::to_value(every_change()).unwrap(), &mut told);
    for field in told {
        assert!(changes.contains(&format!("`{field}`")), "{field} of changes is not named");
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
