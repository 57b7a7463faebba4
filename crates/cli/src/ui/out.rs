//! Writing to standard output and standard error without panics.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use anabranch_wire::is_invisible;
use serde::Serialize;

use super::screen::AboveProgress;
use super::width::{Size, columns_of_stdout, wrap};
use crate::errors::Failure;

/// The stream for a command's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, the usual one.
    Stdout,
    /// Standard error, used when standard output carries the data itself.
    Stderr,
}

impl Stream {
    /// A new writer to this stream.
    pub fn writer(self) -> Box<dyn Write + Send> {
        match self {
            Self::Stdout => Box::new(io::stdout()),
            Self::Stderr => Box::new(io::stderr()),
        }
    }

    /// Writes `value` as one line of JSON.
    pub fn json<T: Serialize>(self, value: &T) -> Result<(), Failure> {
        write_to(&mut *self.writer(), json_line(value).as_bytes())
    }
}

/// Writes `text` to standard output unchanged.
pub fn print(text: &str) -> Result<(), Failure> {
    write_to(&mut io::stdout().lock(), text.as_bytes())
}

/// Writes text to standard output, in lines that fit if it is a terminal.
pub fn page(text: &str) -> Result<(), Failure> {
    let columns = columns_of_stdout();
    print(&text.lines().map(|line| wrap(line, columns) + "\n").collect::<String>())
}

/// Writes `text` to standard error. Ignores errors, because there is nowhere left to report them.
pub fn error(text: &str) {
    let _ = AboveProgress.write_all(text.as_bytes());
}

/// Writes sentences to standard error, each in lines that fit if it is a terminal.
pub fn sentence(text: &str) {
    let columns = if io::stderr().is_terminal() { Size::of_stderr().columns } else { usize::MAX };
    let lines: String = text.split('\n').map(|line| wrap(line, columns) + "\n").collect();
    error(&lines);
}

/// One line of JSON with its newline. A value that cannot be encoded becomes an error event.
///
/// Control characters are escaped, as `\u009b`, because the line may be shown on a terminal.
pub fn json_line<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|error| {
        serde_json::json!({ "event": "error", "message": error.to_string() }).to_string()
    });
    let mut line = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        if is_invisible(character) {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                // Writing to a string does not fail.
                let _ = write!(line, "\\u{unit:04x}");
            }
        } else {
            line.push(character);
        }
    }
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
    fn text_in_json_cannot_steer_a_terminal_and_is_read_back_as_it_was() {
        let text = "a\u{9b}2J\u{202e}b\u{2028}\u{e0041}\u{1b}é";
        let line = json_line(&text);
        assert_eq!(line, "\"a\\u009b2J\\u202eb\\u2028\\udb40\\udc41\\u001bé\"\n");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn a_json_event_is_one_line() {
        assert_eq!(json_line(&serde_json::json!({ "name": "a\nb" })), "{\"name\":\"a\\nb\"}\n");
    }
}
