//! What a failed connection means to its user: the library's words, the exit code, the advice set apart.

use std::io;

use anabranch_net::ConnectError;

use super::{Failure, Kind};

impl From<ConnectError> for Failure {
    /// The library's messages put what was tried after a colon and advice last; here they stand apart.
    fn from(error: ConnectError) -> Self {
        match &error {
            ConnectError::TimedOut(tried) => {
                let pairs = tried.0.iter().map(|(local, remote)| format!("{} → {remote}", local.ip()));
                pairs
                    .fold(Self::new(Kind::Unreachable, "no answer from the node"), Self::tried)
                    .hint("is it running there, is its UDP port open, and is this its newest ticket?")
            }
            ConnectError::NoRoute { .. } | ConnectError::Closed(_) => advised(Kind::Unreachable, &error),
            ConnectError::NoSuchLocal { .. } | ConnectError::RuledOut { .. } | ConnectError::NotTried(_) => {
                advised(Kind::Local, &error)
            }
            _ => advised(Kind::Refused, &error),
        }
    }
}

/// Splits the advice, which follows a semicolon or a colon, from the message.
fn advised(kind: Kind, error: &ConnectError) -> Failure {
    let text = error.to_string();
    match text.rsplit_once("; ") {
        Some((message, advice)) => Failure::new(kind, message).hint(advice),
        None => Failure::new(kind, text),
    }
}

impl Failure {
    /// An endpoint that could not be set up; the library's message says what to do after a colon.
    #[must_use]
    pub fn bind(error: &io::Error) -> Self {
        let text = error.to_string();
        match text.split_once(": ") {
            Some((message, advice)) => Self::local(message).hint(advice),
            None => Self::local(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_net::Tried;

    use super::*;

    #[test]
    fn silence_tells_every_pair_that_was_tried() {
        let pair = ("10.0.0.1:5".parse().unwrap(), "203.0.113.9:4433".parse().unwrap());
        let failure = Failure::from(ConnectError::TimedOut(Tried(vec![pair])));
        assert_eq!(failure.kind, Kind::Unreachable);
        assert_eq!(failure.tried, ["10.0.0.1 → 203.0.113.9:4433"]);
        assert!(failure.hint.is_some());
    }

    #[test]
    fn a_wrong_ticket_is_a_refusal_with_advice() {
        let failure = Failure::from(ConnectError::WrongTicket);
        assert_eq!((failure.kind, failure.hint.as_deref()), (Kind::Refused, Some("ask for a new ticket")));
    }

    #[test]
    fn a_port_that_is_taken_says_what_to_do() {
        let error = io::Error::new(
            io::ErrorKind::AddrInUse,
            "UDP port 4433 of 127.0.0.1 is taken by another program: stop it, or choose another port",
        );
        let failure = Failure::bind(&error);
        assert_eq!(failure.message, "UDP port 4433 of 127.0.0.1 is taken by another program");
        assert!(failure.hint.unwrap().contains("choose another port"));
    }
}
