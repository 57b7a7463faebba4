//! The programs behind control sockets, and their answers.

use std::path::Path;

use anabranch_daemon::controller::status::Status as ControllerStatus;
use anabranch_daemon::relay::status::Status as RelayStatus;
use anabranch_node::SessionPath;
use anabranch_service::control;
use serde::Serialize;
use serde_json::Value;

/// A kind of program with a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Relay,
    Controller,
    /// A command that runs sessions.
    Session,
}

impl Asked {
    /// Its default control socket; a session has none.
    pub(super) fn usual(self) -> &'static Path {
        Path::new(match self {
            Self::Relay => "/run/anabranch/relay/control.sock",
            Self::Controller => "/run/anabranch/controller/control.sock",
            Self::Session => "",
        })
    }

    /// Its name, and the command that asks it.
    pub(super) fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Relay => ("a relay", "anabranch relay status"),
            Self::Controller => ("a controller", "anabranch controller status"),
            Self::Session => ("a command with sessions", "anabranch path list"),
        }
    }
}

/// A program's answer about itself.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Answer {
    Relay { status: Box<RelayStatus> },
    Controller { status: ControllerStatus },
    Session { paths: Vec<SessionPath> },
    Silent { why: String },
}

/// The kind of program behind a socket, if it answers.
pub(super) async fn who(socket: &Path) -> Option<Asked> {
    match ask(socket).await {
        Answer::Relay { .. } => Some(Asked::Relay),
        Answer::Controller { .. } => Some(Asked::Controller),
        Answer::Session { .. } => Some(Asked::Session),
        Answer::Silent { .. } => None,
    }
}

pub(super) async fn ask(socket: &Path) -> Answer {
    match control::ask::<Value>(socket, "status").await {
        Ok(answer) => read(answer),
        // A session refuses the request of a service.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            match control::ask::<Vec<SessionPath>>(socket, "list").await {
                Ok(paths) => Answer::Session { paths },
                Err(error) => Answer::Silent { why: error.to_string() },
            }
        }
        Err(error) => Answer::Silent { why: error.to_string() },
    }
}

fn read(answer: Value) -> Answer {
    if let Ok(status) = serde_json::from_value(answer.clone()) {
        return Answer::Relay { status: Box::new(status) };
    }
    match serde_json::from_value(answer) {
        Ok(status) => Answer::Controller { status },
        Err(error) => Answer::Silent { why: format!("it speaks another version: {error}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_told_by_what_it_says() {
        let controller = serde_json::json!({"node": "ab1", "signs": "abs1", "addresses": [], "relays": []});
        assert!(matches!(read(controller), Answer::Controller { .. }));
        assert!(
            matches!(read(serde_json::json!({"x": 1})), Answer::Silent { why } if why.contains("version"))
        );
    }
}
