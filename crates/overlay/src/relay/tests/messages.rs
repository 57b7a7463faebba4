//! Messages and challenges from the network are bytes like any other.

use proptest::prelude::*;

use super::*;
use crate::MessageError;
use anabranch_secure::consent::{Question, challenge};
use anabranch_wire::DecodeError;

fn request() -> impl Strategy<Value = Request> {
    let target = prop_oneof![
        Just(Target::Host),
        (any::<[u8; 16]>(), any::<u16>(), any::<Option<[u8; 32]>>()).prop_map(|(ip, port, key)| {
            let address = (std::net::IpAddr::from(ip), port).into();
            Target::Address { address, key: key.map(PublicKey::from_bytes) }
        }),
    ];
    prop_oneof![
        any::<u16>().prop_map(|version| Request::Hello { version }),
        prop::collection::vec(any::<u8>(), 0..600).prop_map(|grant| Request::Show { grant }),
        (any::<(u32, u32)>(), target, any::<(u64, u64)>()).prop_map(
            |((request, via), target, (out, back))| {
                Request::Allocate { request, via: PathId(via), target, out: Pid(out), back: Pid(back) }
            }
        ),
        any::<[u64; 3]>().prop_map(|[flow, out, back]| Request::Redirect {
            flow: FlowId(flow),
            out: Pid(out),
            back: Pid(back)
        }),
        any::<u64>().prop_map(|flow| Request::Release { flow: FlowId(flow) }),
        (any::<u64>(), any::<[u8; 16]>(), any::<u32>()).prop_map(|(share, hash, flows)| Request::Host {
            share: ShareId(share),
            hash: TicketSecret::from_random(hash),
            flows
        }),
        any::<u64>().prop_map(|share| Request::Unhost { share: ShareId(share) }),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        any::<u16>().prop_map(|version| Reply::Hello { version }),
        (any::<[u8; 16]>(), any::<(u32, u64, u64, u8)>()).prop_map(
            |(id, (pids, rate, bytes, highest_tos))| {
                let rate = Rate::from_bits(rate);
                Reply::Granted { id: GrantId(id), limits: Limits { pids, rate, bytes, highest_tos } }
            }
        ),
        any::<(u32, u64, u64, u64)>().prop_map(|(request, flow, forward, back)| Reply::Allocated {
            request,
            flow: FlowId(flow),
            forward: Pid(forward),
            back: Pid(back)
        }),
        any::<u32>().prop_map(|request| Reply::Refused { request, why: Refused::KeyNeeded }),
        any::<u64>().prop_map(|flow| Reply::Flow { flow: FlowId(flow), state: FlowState::Drained }),
        any::<u64>().prop_map(|share| Reply::Hosting { share: ShareId(share) }),
        any::<u32>().prop_map(|seconds| Reply::Draining { seconds }),
    ]
}

proptest! {
    #[test]
    fn every_request_comes_back_and_is_awaited_while_it_is_cut(request in request(), rest in any::<[u8; 3]>()) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let len = bytes.len();
        prop_assert!(len <= MAX_MESSAGE);
        for cut in 0..len {
            prop_assert_eq!(Request::decode(&bytes[..cut]), Ok(None));
        }
        bytes.extend(rest);
        prop_assert_eq!(Request::decode(&bytes), Ok(Some((request, len))));
    }

    #[test]
    fn every_reply_comes_back(reply in reply()) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        prop_assert_eq!(Reply::decode(&bytes[..bytes.len() - 1]), Ok(None));
        prop_assert_eq!(Reply::decode(&bytes), Ok(Some((reply, bytes.len()))));
    }

    #[test]
    fn arbitrary_bytes_never_make_a_decoder_panic(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..80)) {
        let bytes = [&[kind, 0, body.len() as u8], &body[..]].concat();
        let _ = (Request::decode(&bytes), Reply::decode(&bytes), Request::decode(&body), Reply::decode(&body));
        let _ = answer_challenge(&body, |_| true, Some(&key(1)));
    }
}

#[test]
fn a_message_that_claims_to_be_endless_is_refused_before_it_is_read() {
    assert_eq!(Request::decode(&[2, 0xff, 0xff]), Err(MessageError::TooLong(65_538)));
    assert_eq!(Request::decode(&[0x7f, 0, 0]), Err(MessageError::Unknown(0x7f)));
    assert_eq!(
        Request::decode(&[5, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        Err(MessageError::Malformed(DecodeError::Trailing { at: 8, left: 1 }))
    );
}

#[test]
fn only_the_issuer_of_a_pid_answers_and_with_fewer_bytes() {
    let question = Question { reference: 1, token: 2 };
    let asked = challenge(Pid(9), question, None);
    assert_eq!(answer_challenge(&asked, |pid| pid == Pid(8), Some(&key(1))), None);
    let answer = answer_challenge(&asked, |pid| pid == Pid(9), None).unwrap();
    assert!(answer.len() < asked.len());
    assert_eq!((answer.len(), asked.len()), (RESPONSE_LEN, CHALLENGE_LEN));
    let (header, body) = Header::decode(&answer).unwrap();
    assert_eq!((header.kind, header.pid), (Kind::RelayResponse, Pid(9)));
    assert_eq!(body, &asked[16..32]);
    assert_eq!(answer_challenge(&asked[..47], |_| true, None), None);
    assert_eq!(answer_challenge(&answer, |_| true, None), None, "an answer is not a question");
}

#[test]
fn a_node_is_silent_to_everyone_who_does_not_know_its_key() {
    let question = Question { reference: 1, token: 2 };
    let by = |known| challenge(Pid::HANDSHAKE, question, Some(&key(known)));
    assert!(answer_challenge(&by(1), |_| false, Some(&key(1))).is_some());
    assert_eq!(answer_challenge(&by(2), |_| true, Some(&key(1))), None);
    assert_eq!(answer_challenge(&by(1), |_| true, None), None, "a node that takes no sessions");
}
