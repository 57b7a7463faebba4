//! Writing to standard output and standard error without panics.

use std::io::{self, Write};

use serde::Serialize;

use super::progress::AboveProgress;
use crate::errors::Failure;

/// Where a command's events go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// To standard output: the usual place.
    Stdout,
    /// To standard error, because standard output carries the data itself.
    Stderr,
}

impl Stream {
    /// A writer to this stream that belongs to nobody else.
    #[must_use]
    pub fn writer(self) -> Box<dyn Write + Send> {
        match self {
            Self::Stdout => Box::new(io::stdout()),
            Self::Stderr => Box::new(io::stderr()),
        }
    }

    /// Writes `value` as one line of JSON.
    ///
    /// # Errors
    /// [`Kind::ReaderGone`] when the reader of a pipe went away, [`Kind::Local`] for the rest.
    pub fn json<T: Serialize>(self, value: &T) -> Result<(), Failure> {
        write_to(&mut *self.writer(), json_line(value).as_bytes())
    }
}

/// Writes `text` to standard output as it is.
///
/// # Errors
/// [`Kind::ReaderGone`] when the reader of a pipe went away, [`Kind::Local`] for the rest.
pub fn print(text: &str) -> Result<(), Failure> {
    write_to(&mut io::stdout().lock(), text.as_bytes())
}

/// Writes `text` to standard error. Nothing can be done when that fails, so nothing is.
pub fn error(text: &str) {
    let _ = AboveProgress.write_all(text.as_bytes());
}

/// One line of JSON with its newline. A value that JSON cannot hold becomes an error event.
#[must_use]
pub fn json_line<T: Serialize>(value: &T) -> String {
    let mut line = serde_json::to_string(value).unwrap_or_else(|error| {
        serde_json::json!({ "event": "error", "message": error.to_string() }).to_string()
    });
    line.push('\n');
    line
}

fn write_to(writer: &mut dyn Write, bytes: &[u8]) -> Result<(), Failure> {
    writer.write_all(bytes).and_then(|()| writer.flush()).map_err(|error| Failure::output(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_goes_away_is_not_an_error_of_ours() {
        let gone = write_to(&mut Failing(io::ErrorKind::BrokenPipe), b"x").unwrap_err();
        assert_eq!(gone.kind.exit_code(), 0);
        let full = write_to(&mut Failing(io::ErrorKind::StorageFull), b"x").unwrap_err();
        assert_eq!(full.kind.exit_code(), 1);
    }

    #[test]
    fn a_json_event_is_one_line() {
        assert_eq!(json_line(&serde_json::json!({ "name": "a\nb" })), "{\"name\":\"a\\nb\"}\n");
    }
}
