//! The page that lists a directory: without scripts, and every name escaped.

use std::fmt::Write as _;

use anabranch_wire::Escaped;

use super::condition::date;
use super::{Row, RowKind, encode};

/// The page may use nothing but its own style.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "<style>body{font:1rem/1.5 sans-serif;margin:2rem}td{padding:0 2rem 0 0}\
    td+td{text-align:right;white-space:nowrap}</style>";

/// Rows that begin beyond this many bytes are left out.
const LONGEST: usize = 2 << 20;

/// The page of the directory at `path`.
pub(super) fn page(path: &str, rows: &[Row], mut left_out: usize) -> String {
    let title = html(&format!("/{path}"));
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>{STYLE}\n\
         <h1>{title}</h1>\n<table>\n"
    );
    if !path.is_empty() {
        page += "<tr><td><a href=\"../\">../</a></td></tr>\n";
    }
    for (number, Row { name, kind }) in rows.iter().enumerate() {
        if page.len() > LONGEST {
            left_out += rows.len() - number;
            break;
        }
        let (link, shown) = (encode(name), html(name));
        // Writing to a string does not fail.
        let _ = match kind {
            RowKind::Directory => {
                writeln!(page, "<tr><td><a href=\"./{link}/\">{shown}/</a></td></tr>")
            }
            RowKind::Link => writeln!(page, "<tr><td>{shown} (a link)</td></tr>"),
            RowKind::File { size, modified } => {
                let (size, day) = (size.map(bytes).unwrap_or_default(), modified.and_then(minute));
                let day = day.unwrap_or_default();
                writeln!(
                    page,
                    "<tr><td><a href=\"./{link}\">{shown}</a></td><td>{size}</td><td>{day}</td></tr>"
                )
            }
        };
    }
    page += "</table>\n";
    if left_out > 0 {
        let _ = writeln!(page, "<p>{left_out} more are not shown; `anabranch ls` lists them.</p>");
    }
    page
}

/// Text for a page, without invisible characters.
fn html(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    for character in Escaped(text).to_string().chars() {
        match character {
            '&' => page += "&amp;",
            '<' => page += "&lt;",
            '>' => page += "&gt;",
            '"' => page += "&quot;",
            '\'' => page += "&#39;",
            character => page.push(character),
        }
    }
    page
}

/// The minute as `06 Nov 1994 08:49`, in UTC.
fn minute(seconds: i64) -> Option<String> {
    httpdate::fmt_http_date(date(seconds)?).get(5..22).map(str::to_owned)
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 99.95);
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_long_names_ends_and_counts_what_it_leaves_out() {
        let row = Row { name: "\"".repeat(255), kind: RowKind::Directory };
        let page = page("a", &vec![row; 10_000], 5);
        assert!((LONGEST..LONGEST + 4_096).contains(&page.len()), "{}", page.len());
        let left_out = 10_005 - page.matches("<tr><td><a href=\"./").count();
        assert!(page.contains(&format!("{left_out} more are not shown")), "{left_out}");
    }
}
