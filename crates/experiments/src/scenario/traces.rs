//! The trace files that a scenario names, read once each.
//!
//! The caller opens files; this module parses them and bounds what they take in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_link::{MAX_TRACE_LINES, Trace, TraceError};

use super::error::ScenarioError;

/// Longest trace file in bytes: the most lines of the longest numbers fit.
pub const MAX_TRACE_FILE: u64 = MAX_TRACE_LINES as u64 * 12;

/// Most lines of all traces of a scenario together, four bytes each in memory.
const MAX_LINES: usize = 4 * MAX_TRACE_LINES;

/// Returns at most [`MAX_TRACE_FILE`] bytes and one of a file, or why it cannot be read.
pub type OpenTrace = dyn Fn(&str) -> Result<Vec<u8>, String> + Send + Sync;

/// The traces of a scenario and its variants.
#[derive(Clone)]
pub struct Traces {
    open: Arc<OpenTrace>,
    known: Arc<Mutex<BTreeMap<String, Arc<Trace>>>>,
}

impl Traces {
    /// Traces that `open` reads by the name in the scenario.
    pub fn new(open: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static) -> Self {
        Self { open: Arc::new(open), known: Arc::default() }
    }

    /// The trace in a file; errors name `key`.
    pub(super) fn get(&self, key: &str, file: &str) -> Result<Arc<Trace>, ScenarioError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = known.get(file) {
            return Ok(Arc::clone(trace));
        }
        let error = |message: String, hint: &str| ScenarioError::new(key, message).hint(hint);
        let bytes = (self.open)(file).map_err(|why| {
            error(format!("cannot read {file}: {why}"), "its place is relative to the scenario's file")
        })?;
        let trace = parse(&bytes).map_err(|(why, hint)| error(format!("{file}: {why}"), hint))?;
        let lines: usize = known.values().map(|trace| trace.lines()).sum();
        if lines + trace.lines() > MAX_LINES {
            let message = format!("{file}: the traces have more than {MAX_LINES} lines together");
            return Err(error(message, "use fewer or shorter traces; one file may serve several links"));
        }
        let trace = Arc::new(trace);
        known.insert(file.to_owned(), Arc::clone(&trace));
        Ok(trace)
    }
}

impl Default for Traces {
    /// No files can be opened.
    fn default() -> Self {
        Self::new(|_| Err("this scenario cannot open files".to_owned()))
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Traces")
    }
}

/// Parses a file; an error is a message and a hint.
fn parse(bytes: &[u8]) -> Result<Trace, (String, &'static str)> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    if bytes.starts_with(&GZIP) {
        return Err(("it is compressed".to_owned(), "unpack it with `gunzip -k` and name the result"));
    }
    if bytes.len() as u64 > MAX_TRACE_FILE {
        return Err((format!("longer than {MAX_TRACE_FILE} bytes"), "cut it: `head -n 4000000`"));
    }
    // Bytes that are not UTF-8 become a character that is no digit, so the error names their line.
    Trace::parse(&String::from_utf8_lossy(bytes)).map_err(|why| {
        let hint = match why {
            TraceError::NotANumber { .. } => {
                "a line for each packet of 1500 B that the link can send, in milliseconds from the start"
            }
            TraceError::Backwards { .. } => "times never decrease: sort the file with `sort -n`",
            TraceError::TooLong { .. } => "cut it: `head -n 4000000`",
            TraceError::NoPeriod => "the last line is the length of the trace in milliseconds",
        };
        (why.to_string(), hint)
    })
}
