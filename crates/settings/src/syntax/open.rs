//! What is opened and never closed: text, lists, tables in braces. It is found to be wrong only where something else begins.

use super::{LISTS, value_of};
use crate::{SettingsError, key_on};

/// Text that goes on in the next line, in quotes that end with theirs: only what is left of it there is found to be wrong.
pub(super) fn broken_text(text: &str, number: usize) -> Option<SettingsError> {
    let before = number.checked_sub(2)?;
    let line = text.lines().nth(before)?.trim();
    let value = value_of(line).filter(|value| value.starts_with('"') && !value.starts_with("\"\"\""))?;
    let is_open = value.matches('"').count() - value.matches("\\\"").count() == 1;
    let hint =
        "it ends with its line: end it with the quote that it began with, or begin and end it with \"\"\"";
    let error = || SettingsError::new(key_on(line).unwrap_or_default(), "text without an end").hint(hint);
    is_open.then(|| error().at(Some(before + 1)))
}

/// A list or a table in braces that goes on in the next line, where another key or table begins: only there it is found to be
/// wrong.
pub(super) fn open_value(text: &str, number: usize) -> Option<SettingsError> {
    let lines: Vec<&str> = text.lines().take(number).map(str::trim).collect();
    let (last, earlier) = lines.split_last()?;
    let begins_table = last.trim_start_matches('[').starts_with(|c: char| c.is_ascii_alphabetic());
    if !begins_table || !(last.starts_with('[') || key_on(last).is_some()) {
        return None;
    }
    let at = earlier.iter().rposition(|line| value_of(line).is_some())?;
    let (_, value) = earlier[at].split_once('=')?;
    let parts: Vec<(Vec<char>, bool)> =
        [value].iter().chain(&earlier[at + 1..]).map(|line| brackets(line)).collect();
    let open = parts.iter().flat_map(|(brackets, _)| brackets);
    let depth: i32 = open.map(|bracket| if matches!(bracket, '[' | '{') { 1 } else { -1 }).sum();
    let first = value.trim().chars().next().filter(|first| depth > 0 && matches!(first, '[' | '{'))?;
    let told = |what: &str, hint: String, below: usize| {
        let error = SettingsError::new(key_on(earlier[at])?, what).hint(hint);
        Some(error.at(Some(at + 1 + below)))
    };
    if let Some(below) = parts.iter().position(|(_, is_text_open)| *is_text_open) {
        return told("text without an end", LISTS.to_owned(), below);
    }
    let (what, end) = if first == '{' { ("a brace", '}') } else { ("a bracket", ']') };
    told(
        &format!("{what} that nothing closes"),
        format!("write a {end} where what the {first} began is to end, or take the {first} out"),
        0,
    )
}

/// The brackets and braces of a line that are not within quotes or a comment, and whether a quote is left open.
fn brackets(line: &str) -> (Vec<char>, bool) {
    let (mut quote, mut is_escaped) = (None, false);
    let mut found = Vec::new();
    for c in line.chars() {
        match quote {
            Some(open) if c == open && !is_escaped => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if c == '#' => break,
            None if matches!(c, '[' | ']' | '{' | '}') => found.push(c),
            None => {}
        }
        is_escaped = c == '\\' && quote == Some('"') && !is_escaped;
    }
    // Text over several lines is looked at elsewhere.
    let goes_on = ["\"\"\"", "'''"].iter().any(|quotes| line.contains(quotes));
    (found, quote.is_some() && !goes_on)
}

/// Where text over several lines begins that nothing ends, and its quotes.
pub(super) fn open_text(message: &str, text: &str) -> Option<(usize, &'static str)> {
    let quotes = match message.strip_prefix("invalid multi-line ")? {
        rest if rest.starts_with("basic string, expected") => "\"\"\"",
        rest if rest.starts_with("literal string, expected") => "'''",
        _ => return None,
    };
    text.rfind(quotes).map(|place| (place, quotes))
}
