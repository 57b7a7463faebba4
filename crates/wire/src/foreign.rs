//! Text from a peer, and the only form in which it may be printed.
//!
//! A peer chooses the reasons of its closes, its error texts, its file names and its labels. Printed unchanged, they
//! could move a terminal's cursor, add lines to a log, or reverse the text next to them. [`ForeignText`] holds such
//! text: its `Display` and `Debug` escape it, and it cannot be printed otherwise. [`Escaped`] does the same for text in
//! other types.

use std::fmt::{self, Write as _};

/// Bytes of escaped text that are shown; an ellipsis stands for the rest.
const LONGEST_SHOWN: usize = 2048;

/// Text that a peer chose.
///
/// `Display` and `Debug` write it [`Escaped`]. [`Self::raw`] is for comparing, storing and sending it on.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignText(Box<str>);

impl ForeignText {
    /// Wraps text from a peer.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text as the peer sent it. Never print or log this.
    pub fn raw(&self) -> &str {
        &self.0
    }

    /// True for empty text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for ForeignText {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for ForeignText {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ForeignText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(&self.0).fmt(f)
    }
}

impl fmt::Debug for ForeignText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Escaped(&self.0))
    }
}

/// Text with all invisible or misleading characters escaped, cut after 2 KiB.
///
/// It escapes control characters (C0, C1, newlines), the marks and embeddings that change the direction of text, line
/// and paragraph separators, and characters without width. They appear as `\u{1b}`.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        for character in self.0.chars() {
            if shown >= LONGEST_SHOWN {
                return f.write_char('…');
            }
            if is_invisible(character) {
                shown += character.escape_unicode().len();
                write!(f, "{}", character.escape_unicode())?;
            } else {
                shown += character.len_utf8();
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// True for characters that act on a terminal or on the text next to them, or that take no space.
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character,
            // Soft hyphen; Arabic letter mark; Hangul fillers; Mongolian vowel separator.
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
            // Zero-width characters and direction marks; separators, embeddings and overrides.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            // Invisible operators, isolates, deprecated formatting; byte order mark; annotations; tags.
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_or_hides_is_escaped() {
        let text = ForeignText::new(
            "a\u{1b}[2Jb\nc\u{9b}d\u{202e}e\u{61c}f\u{2028}g\u{2029}h\u{200b}i\u{feff}j\u{2066}k",
        );
        let shown = "a\\u{1b}[2Jb\\u{a}c\\u{9b}d\\u{202e}e\\u{61c}f\\u{2028}g\\u{2029}h\\u{200b}i\\u{feff}j\\u{2066}k";
        assert_eq!(text.to_string(), shown);
        assert_eq!(format!("{text:?}"), format!("\"{shown}\""));
    }

    #[test]
    fn ordinary_text_of_any_script_is_shown_as_it_is() {
        for text in ["photos/2026 été.jpg", "日本語", "עברית", "back\\slash", "🙂"] {
            assert_eq!(ForeignText::new(text).to_string(), text);
        }
    }

    #[test]
    fn long_text_is_cut() {
        let shown = ForeignText::new("\u{7}".repeat(100_000)).to_string();
        assert!(shown.len() < LONGEST_SHOWN + 16 && shown.ends_with('…'), "{}", shown.len());
    }
}
