//! Converts node errors into errors of commands: their kind decides the exit code.

use std::io;

use anabranch_net::ConnectError;
use anabranch_node::{Error, ErrorKind};

use super::{Failure, Kind};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::Local => Kind::Local,
            ErrorKind::Usage => Kind::Usage,
            ErrorKind::Unreachable => Kind::Unreachable,
            ErrorKind::Refused => Kind::Refused,
        };
        Self { tried: error.tried, hint: error.hint, ..Self::new(kind, error.message) }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Error::from(error).into()
    }
}

impl Failure {
    /// The failure when an endpoint cannot be set up.
    pub fn bind(error: &io::Error) -> Self {
        Error::bind(error).into()
    }
}
