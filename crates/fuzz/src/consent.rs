//! A relay's question and its answer. Only the issuer of a PID answers, or a node whose key the sender knows, and always
//! with fewer bytes than the question.

use anabranch_secure::PublicKey;
use anabranch_secure::consent::{CHALLENGE_LEN, Question, answer_challenge, challenge, read_response};
use anabranch_wire::{Header, Kind, Pid};

/// The PID that the node issued.
const ISSUED: Pid = Pid(9);

/// The input as a question and as an answer; then a valid question about first messages, changed by the input: two bytes
/// each (position, exclusive-or).
pub fn consent(input: &[u8]) {
    let node = PublicKey::from_bytes([1; 32]);
    ask(&node, input);
    let mut changed = challenge(Pid::HANDSHAKE, Question { reference: 1, token: 2 }, Some(&node));
    for patch in input.chunks_exact(2) {
        changed[usize::from(patch[0]) % CHALLENGE_LEN] ^= patch[1];
    }
    ask(&node, &changed);
    let _ = read_response(input);
    let _ = Header::decode(input).map(|(_, body)| read_response(body));
}

/// Asks the node with these bytes: an answer repeats the question and goes only to those allowed.
fn ask(node: &PublicKey, input: &[u8]) {
    for takes_sessions in [None, Some(node)] {
        let Some(answer) = answer_challenge(input, |pid| pid == ISSUED, takes_sessions) else { continue };
        assert!(answer.len() < input.len());
        let (asked, asked_body) = Header::decode(input).expect("it was read before");
        let (said, body) = Header::decode(&answer).expect("an answer has a header");
        assert_eq!((asked.kind, said.kind, said.pid), (Kind::RelayChallenge, Kind::RelayResponse, asked.pid));
        let question = read_response(body).expect("an answer can be read");
        let true_question = challenge(asked.pid, question, Some(node));
        let (_, true_body) = Header::decode(&true_question).expect("a question has a header");
        assert_eq!(asked_body[..16], true_body[..16]);
        match asked.pid {
            Pid::HANDSHAKE => {
                assert!(takes_sessions.is_some() && asked_body == true_body, "answered a stranger");
            }
            pid => assert_eq!(pid, ISSUED),
        }
    }
}
