//! Mistakes in files of settings (scenarios, configurations): the line, the key, and the remedy. Also sizes and rates as
//! people write them.

mod line;
mod rate;
mod size;

use std::fmt::{self, Display};
use std::str::FromStr;

use anabranch_wire::Escaped;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

pub use line::line_of;
pub use rate::rate;
pub use size::size;

/// Splits `1.5 GB` into 1.5 and `GB`; `None` unless it starts with a finite number that is not negative.
pub fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// Longest word that is compared with others: the time grows with the product of both lengths.
const LONGEST: usize = 300;

/// The hint for text that is not TOML.
const FORM: &str = "a line is `key = value`, with text and quantities in quotes: `delay = \"5 ms\"`";

/// A mistake in a file of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsError {
    /// The file's name.
    pub origin: String,
    /// Counted from one; `None` when the mistake has no line.
    pub line: Option<usize>,
    /// The key, with its table: `link.top.rate`.
    pub key: String,
    /// The mistake.
    pub message: String,
    /// The remedy.
    pub hint: String,
}

impl SettingsError {
    /// A mistake at a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into(), ..Self::default() }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Adds its line, unless it has one.
    #[must_use]
    pub fn at(mut self, line: Option<usize>) -> Self {
        self.line = self.line.or(line);
        self
    }

    /// Adds the file's name.
    #[must_use]
    pub fn of(mut self, origin: &str) -> Self {
        self.origin = origin.to_owned();
        self
    }

    /// Converts the parser's error for `text`, which should be an `F`.
    pub fn from_toml<F: DeserializeOwned>(error: &toml::de::Error, text: &str) -> Self {
        let start = error.span().map(|span| span.start);
        let line = start.map(|start| line_at(text, start));
        let key = || {
            let before = start.and_then(|start| key_before(text.get(..start)?));
            before.or_else(|| key_on(text.lines().nth(line? - 1)?))
        };
        let message = error.message();
        let quoted = quoted(message);
        let found = Self { line, message: message.to_owned(), ..Self::default() };
        if toml::de::DeTable::parse(text).is_err() {
            let key = line.and_then(|line| key_on(text.lines().nth(line - 1)?));
            return Self { key: key.unwrap_or_default(), ..found }.hint(FORM);
        }
        if let Some((unknown, known)) = quoted.split_first().filter(|_| message.starts_with("unknown ")) {
            let what = if message.starts_with("unknown variant") { "value" } else { "key" };
            let hint = match nearest(unknown, known) {
                _ if what == "key" && is_top_key::<F>(unknown) => format!(
                    "`{unknown}` belongs above the first table of the file; possible here: {}",
                    known.join(", ")
                ),
                Some(near) => format!("did you mean `{near}`? Possible: {}", known.join(", ")),
                None => format!("possible: {}", known.join(", ")),
            };
            let key = if what == "value" { key() } else { None };
            return Self {
                key: key.unwrap_or_else(|| (*unknown).to_owned()),
                message: format!("unknown {what} `{unknown}`"),
                hint,
                ..found
            };
        }
        if let Some(missing) = quoted.first().filter(|_| message.starts_with("missing field")) {
            let hint = format!("add `{missing} = …` to this table");
            return Self {
                key: (*missing).to_owned(),
                message: format!("`{missing}` is missing"),
                hint,
                ..found
            };
        }
        let (message, hint) = message.split_once('\n').unwrap_or((message, ""));
        Self { key: key().unwrap_or_default(), message: message.to_owned(), hint: hint.to_owned(), ..found }
    }
}

/// Reads a text of a file with `parse`. A second line of its error is the remedy.
pub fn parsed<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// Reads a list of texts, each with its type's parser.
pub fn each_parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse()).collect::<Result<_, T::Err>>().map_err(D::Error::custom)
}

/// Adds to an error the line of its key in the `index`-th table called `table` of `text`.
pub fn located(error: SettingsError, text: &str, (table, index): (&str, usize)) -> SettingsError {
    let line = line_of(text, table, index, &error.key);
    error.at(line)
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = match self.line {
            Some(line) => format!("{}:{line}", self.origin),
            None => self.origin.clone(),
        };
        let parts = [location.as_str(), &self.key, &self.message];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.map(|part| Escaped(part).to_string()).collect();
        f.write_str(&parts.join(": "))?;
        if !self.hint.is_empty() {
            write!(f, "\n  hint    {}", Escaped(&self.hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

/// The words in backquotes in a message of the parser.
fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// Whether a file of type `F` may have this key at its top. A line appended to a file belongs to its last table, so users
/// often misplace such a key.
fn is_top_key<F: DeserializeOwned>(key: &str) -> bool {
    // No file has this key, so the parser's error lists the valid ones.
    let Err(error) = toml::from_str::<F>("\"?\" = 0") else { return false };
    let message = error.message();
    message.starts_with("unknown field") && quoted(message).iter().skip(1).any(|known| *known == key)
}

/// The key that a line of TOML sets.
fn key_on(line: &str) -> Option<String> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim().trim_matches('"');
    (!key.is_empty() && !key.starts_with('#')).then(|| key.to_owned())
}

/// The key whose value begins, or continues, after this text.
fn key_before(text: &str) -> Option<String> {
    let (head, value) = text.rsplit_once('=')?;
    // Between the key and the position of the mistake there can only be the start of a list.
    let within = value.trim().is_empty() || value.matches('[').count() > value.matches(']').count();
    let head = head.trim_end();
    let key = match head.strip_suffix('"') {
        Some(quoted) => quoted.rsplit_once('"')?.1,
        None => head.rsplit(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-'))).next()?,
    };
    (within && !key.is_empty()).then(|| key.to_owned())
}

/// The known word most similar to `word`, if one is similar enough: by letters inserted, removed, changed or swapped with
/// their neighbours. Among equally similar ones, prefers the same length, then the nearest letter in the alphabet: `n3`
/// for `n4`. Words of more than 300 bytes are like no other.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let word = word.to_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&word, &other.to_lowercase());
    let close = |other: &&&str| other.len() <= LONGEST && distance(other) <= word.chars().count() / 2;
    let first_difference = |other: &str| {
        let mut pairs = word.chars().zip(other.chars().flat_map(char::to_lowercase));
        pairs.find_map(|(a, b)| (a != b).then_some(u32::from(a).abs_diff(u32::from(b))))
    };
    let length = |other: &str| word.chars().count().abs_diff(other.chars().count());
    let difference = |other: &&&str| (distance(other), length(other), first_difference(other));
    known.iter().filter(close).min_by_key(difference).copied()
}

/// The line of a byte offset in a text, from one.
fn line_at(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_the_one_with_the_fewest_changes() {
        assert_eq!(nearest("dealy", &["rate", "delay", "queue"]), Some("delay"));
        assert_eq!(nearest("colour", &["rate", "delay", "queue"]), None);
        assert_eq!(nearest("crb", &["link", "cbr"]), Some("cbr"), "two letters swapped are one mistake");
        assert_eq!(nearest("E", &["a", "e"]), Some("e"));
        assert_eq!(nearest("sizez", &["size", "sizes"]), Some("sizes"));
        assert_eq!(nearest("n4", &["n0", "n3", "n1"]), Some("n3"));
        assert_eq!(nearest("E", &["a", "b"]), None, "every letter is one change from every other");
        let [long, other] = ["x", "y"].map(|letter| letter.repeat(200_000));
        assert_eq!(nearest(&long, &[other.as_str(), "x"]), None, "a comparison would take minutes");
        assert_eq!(nearest("delya", &[long.as_str(), "delay"]), Some("delay"));
    }

    #[test]
    fn the_key_of_a_mistake_is_the_one_whose_value_is_wrong() {
        let found = |text: &str| {
            let error = toml::from_str::<Sample>(text).expect_err("a mistake");
            let error = SettingsError::from_toml::<Sample>(&error, text);
            (error.line, error.key)
        };
        let right = Sample { a: Some(1), list: Some(vec![2]), b: None };
        assert_eq!(toml::from_str("a = 1\nlist = [2]"), Ok(right));
        assert_eq!(found("a = 1\nlist = [1]\nb = { c = true }"), (Some(3), "c".to_owned()));
        assert_eq!(found("b = { c = 1, \"d.e\" = false }"), (Some(1), "d.e".to_owned()));
        assert_eq!(found("list = [\n  1, # one\n  \"two\",\n]"), (Some(3), "list".to_owned()));
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Sample {
        a: Option<u8>,
        list: Option<Vec<u8>>,
        b: Option<std::collections::BTreeMap<String, u8>>,
    }

    #[test]
    fn the_hint_for_a_top_key_below_a_table_names_its_place() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "it never parses")]
        struct File {
            next_hops: Option<Vec<String>>,
            controller: Vec<Entry>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "it never parses")]
        struct Entry {
            at: String,
            hop: Option<String>,
        }
        let hint = |key: &str| {
            let text = format!("[[controller]]\nat = \"x\"\n{key} = [\"private\"]\n");
            let error = toml::from_str::<File>(&text).expect_err("a mistake");
            SettingsError::from_toml::<File>(&error, &text).hint
        };
        assert_eq!(
            hint("next_hops"),
            "`next_hops` belongs above the first table of the file; possible here: at, hop"
        );
        assert_eq!(hint("hopp"), "did you mean `hop`? Possible: at, hop");
        assert_eq!(hint("else"), "possible: at, hop");
    }

    #[test]
    fn the_error_for_an_unknown_value_names_its_key() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        enum Way {
            There,
            Back,
        }
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "it never parses")]
        struct Ways {
            way: Option<Way>,
            ways: Option<Vec<Way>>,
        }
        let shown = |text: &str| {
            let error = toml::from_str::<Ways>(text).expect_err("a mistake");
            SettingsError::from_toml::<Ways>(&error, text).to_string()
        };
        let hint = "unknown value `bakc`\n  hint    did you mean `back`? Possible: there, back";
        assert_eq!(shown("# ways\nway = \"bakc\""), format!(":2: way: {hint}"));
        assert_eq!(shown("ways = [\n\"there\",\n\"bakc\"]"), format!(":3: ways: {hint}"));
        let right = toml::from_str::<Ways>("ways = [\"there\", \"back\"]")
            .map(|ways| ways.ways.map(|ways| ways.len()));
        assert_eq!(right, Ok(Some(2)));
    }

    #[test]
    fn text_that_is_not_toml_names_its_line_and_shows_the_form_of_a_line() {
        let told = |text: &str| {
            let error = toml::from_str::<Sample>(text).expect_err("a mistake");
            SettingsError::from_toml::<Sample>(&error, text)
        };
        for (text, line, key) in [
            ("a = 1\nb = 5 ms", 2, "b"),
            ("a = 1\na = 2", 2, "a"),
            ("a = 1\n[b\nc = 2", 2, ""),
            ("a = \"x", 1, "a"),
            ("what is this", 1, ""),
        ] {
            let error = told(text);
            assert_eq!((error.line, error.key.as_str()), (Some(line), key), "{error}");
            assert!(error.hint.contains("`key = value`") && !error.message.is_empty(), "{error}");
        }
    }

    #[test]
    fn an_error_without_key_or_line_has_no_empty_parts() {
        assert_eq!(SettingsError::new("", "too many").of("--set").to_string(), "--set: too many");
        assert_eq!(SettingsError::new("rate", "too much").to_string(), "rate: too much");
        let coloured = SettingsError::new("name", "no \u{1b}[31m\n").hint("a\t\u{200b}b").to_string();
        assert_eq!(coloured, "name: no \\u{1b}[31m\\u{a}\n  hint    a\\u{9}\\u{200b}b");
    }
}
