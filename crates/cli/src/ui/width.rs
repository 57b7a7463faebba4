//! Makes lines fit the terminal.

use unicode_width::UnicodeWidthChar as _;

/// The terminal size assumed if the system does not report one.
const USUAL: Size = Size { columns: 80, rows: 24 };

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters in a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

impl Size {
    /// The size of the terminal at standard error.
    pub fn of_stderr() -> Self {
        let size = terminal_size::terminal_size_of(std::io::stderr());
        size.map_or(USUAL, |(columns, rows)| Self { columns: columns.0.into(), rows: rows.0.into() })
    }
}

/// The columns of the terminal at standard output; no limit in a file or a pipe.
pub fn columns_of_stdout() -> usize {
    terminal_size::terminal_size_of(std::io::stdout()).map_or(usize::MAX, |(columns, _)| columns.0.into())
}

/// The number of columns that `text` takes, ignoring its colours.
pub fn width(text: &str) -> usize {
    pieces(text).map(|piece| piece.columns).sum()
}

/// `text` cut to at most `columns`, with an ellipsis if shortened. Colours take no columns and stay balanced.
pub fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut out, mut taken, mut is_cut) = (String::with_capacity(text.len()), 0, false);
    for piece in pieces(text) {
        if piece.columns == 0 {
            // A colour sequence or its reset.
            out.push_str(piece.text);
        } else if !is_cut && taken + piece.columns < columns {
            out.push_str(piece.text);
            taken += piece.columns;
        } else if !is_cut {
            is_cut = true;
            out.push_str(if columns > 0 { "…" } else { "" });
        }
    }
    out
}

/// A line that is too long as several of at most `columns`, broken between words, with single spaces. Further lines are
/// indented. A word that is too long has a line of its own.
pub fn wrap(line: &str, columns: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let lead = line.len() - line.trim_start_matches(' ').len();
    let indent = (lead + 2).min(columns / 3).max(2);
    let (mut out, mut taken, mut is_first) = (" ".repeat(lead), lead, true);
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let wide = width(word);
        if !is_first && taken + 1 + wide > columns {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            taken = indent;
        } else if !is_first {
            out.push(' ');
            taken += 1;
        }
        out.push_str(word);
        taken += wide;
        is_first = false;
    }
    out
}

/// A character, or a sequence that sets a colour.
struct Piece<'a> {
    text: &'a str,
    columns: usize,
}

fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = match first {
            '\u{1b}' => rest.find('m').map_or(rest.len(), |at| at + 1),
            _ => first.len_utf8(),
        };
        let (text, after) = rest.split_at(end);
        rest = after;
        Some(Piece { text, columns: if first == '\u{1b}' { 0 } else { first.width().unwrap_or(0) } })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::paint::Paint;

    #[test]
    fn colours_take_no_room_and_wide_characters_take_two() {
        assert_eq!(width(&Paint::ON.green("abc")), 3);
        assert_eq!(width("日本"), 4);
    }

    #[test]
    fn words_that_do_not_fit_go_to_an_indented_line() {
        let last = "received 12 files, 104 MB in 10.3 s (81.0 Mbit/s)";
        assert_eq!(wrap(last, 80), last);
        assert_eq!(wrap(last, 40), "received 12 files, 104 MB in 10.3 s\n  (81.0 Mbit/s)");
        assert_eq!(wrap("  a bb ccc", 6), "  a bb\n  ccc");
        let row = "    path 0  eth0        192.0.2.1   acknowledgements overdue";
        assert_eq!(wrap(row, 80), row);
        assert_eq!(wrap(row, 40), "    path 0 eth0 192.0.2.1\n      acknowledgements overdue");
        assert_eq!(wrap("aaaa b", 3), "aaaa\n  b");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_its_colours_are_not() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("日本語", 4), "日…");
        let cut = fit(&Paint::ON.green("abcdef"), 3);
        assert_eq!((width(&cut), cut.ends_with("\u{1b}[0m")), (3, true), "{cut:?}");
        assert_eq!(fit("abc", 0), "");
    }
}
