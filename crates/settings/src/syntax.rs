//! What is wrong with a text that is no TOML, in words of what to write instead.

mod open;

use toml::de::DeTable;

use super::{SettingsError, key_on, line_at};
use open::{broken_text, open_text, open_value};

/// What to do about a mistake that has no remedy of its own.
const FORM: &str =
    "a line is `key = value`, the head of a table such as [name] or [[name]], or a comment after #";
/// What to do about a list that has no remedy of its own.
const LISTS: &str = "in a list each text begins and ends with a quote, and a comma stands before the next";
/// What to do about text that holds what has to be written in another way.
const ESCAPES: &str =
    r"in quotes a backslash is written as \\, and a control character as \u and four digits";
/// Quotes of printed text and of other languages, in place of those of TOML.
const PRINTED_QUOTES: [char; 9] = ['“', '”', '„', '‘', '’', '«', '»', '`', '´'];

/// The first mistake in the form of a text; `None` where it is TOML, whatever it says.
#[must_use]
pub fn syntax_error(text: &str) -> Option<SettingsError> {
    let error = DeTable::parse(text).err()?;
    let start = error.span().unwrap_or_default().start;
    // Text over several lines that nothing ends is known only at the end of the file: what is wrong is where it began.
    let open = open_text(error.message(), text);
    let number = line_at(text, open.map_or(start, |(place, _)| place));
    let is_twice = error.message().starts_with("duplicate key");
    let is_before = || broken_text(text, number).or_else(|| open_value(text, number).filter(|_| !is_twice));
    if let Some(error) = is_before() {
        return Some(error);
    }
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let of_line = if line.starts_with('[') { head(line) } else { key_on(line).unwrap_or_default() };
    let told =
        |message: &str, hint: String| SettingsError::new(&of_line, message).hint(hint).at(Some(number));
    if let Some((_, quotes)) = open {
        return Some(told("text without an end", format!("end it with {quotes} where it is to end")));
    }
    let is_known = ["duplicate key", "unclosed"].iter().any(|known| error.message().starts_with(known));
    if let Some((what, hint)) = odd_line(&of_line, line).filter(|_| !is_known) {
        return Some(told(&what, hint));
    }
    Some(match error.message() {
        message if message.starts_with("duplicate key") => {
            let span = error.span().unwrap_or_default();
            let key = text.get(span).map(|key| key.trim_matches(['"', '\''])).filter(|key| is_key(key));
            twice(text, number, if line.starts_with('[') { &of_line } else { key.unwrap_or(&of_line) })
        }
        message if message.starts_with("unclosed") && line.starts_with('[') && line.contains('=') => {
            let key = of_line.split('=').next().unwrap_or_default().trim();
            SettingsError::new(key, "a bracket before a key")
                .hint(format!("take it out: {}", line.trim_start_matches('[').trim()))
                .at(Some(number))
        }
        message if message.starts_with("unclosed") && line.starts_with('[') && cannot_be_name(&of_line) => {
            let hint = "it is of letters from a to z, digits, - and _; dots stand between names";
            told("cannot be the name of a table", hint.to_owned())
        }
        message if message.starts_with("unclosed") && line.starts_with('[') => {
            let whole =
                if line.starts_with("[[") { format!("[[{of_line}]]") } else { format!("[{of_line}]") };
            told("the head of a table is not closed", format!("write {whole}"))
        }
        message if message.contains("recursion") => {
            told(message, "put fewer lists and tables within each other".to_owned())
        }
        message if message.starts_with("unclosed") => told(message, "close what was opened last".to_owned()),
        message => match value_of(line) {
            Some("") => told("no value", format!("write one: `{of_line} = …`")),
            Some(value) if value.starts_with(['"', '\'']) && message.contains("string") => {
                if !message.contains("expected `\"") && !message.contains("expected `'") {
                    return Some(told(message, ESCAPES.to_owned()));
                }
                let hint = format!("end it with the quote that it began with: {of_line} = {}", quoted(value));
                told("text without an end", hint)
            }
            Some(value) if value.starts_with(['"', '\'']) && message.contains("escaped") => {
                told(message, ESCAPES.to_owned())
            }
            Some(value) if value.starts_with(PRINTED_QUOTES) => {
                let hint = format!("TOML has straight quotes: {of_line} = {}", quoted(value));
                told(&format!("found {value}, in quotes that are none of TOML's"), hint)
            }
            Some(value) if !value.starts_with(['"', '\'', '[', '{']) => {
                told(&format!("found {value}, which is no value"), instead_of(&of_line, value))
            }
            Some(value) if value.starts_with(['"', '\'']) => match behind(value) {
                Some((text, rest)) => {
                    told(&format!("found {rest} behind the value"), without(&of_line, text, rest))
                }
                None => told(message, ESCAPES.to_owned()),
            },
            _ => match without_equals(line) {
                Some((key, value)) => SettingsError::new(key, "no = between key and value")
                    .hint(format!("write {key} = {}", in_toml(value)))
                    .at(Some(number)),
                None if value_of(line).is_some_and(|value| value.starts_with('[')) => {
                    told(message, LISTS.to_owned())
                }
                None if line.starts_with(['"', '\'']) && message.contains("string") => {
                    told("text without an end", LISTS.to_owned())
                }
                None => told(message, FORM.to_owned()),
            },
        },
    })
}

/// What is wrong with a line by its look alone, and what to do about it.
fn odd_line(key: &str, line: &str) -> Option<(String, String)> {
    let odd_value = || {
        let list = list_of(value_of(line).filter(|value| value.starts_with('['))?)?;
        Some((
            "a list that is none".to_owned(),
            format!("quotes around text, commas between: {key} = {list}"),
        ))
    };
    let odd_part = || {
        let (value, mended) = odd_number(line).or_else(|| odd_comma(line))?;
        Some((format!("found {value}, which is no value"), format!("write {mended}")))
    };
    odd_key(line).or_else(|| if line.contains('{') { odd_part() } else { odd_value() })
}

/// Whether the name in a head is none: quotes make a name of anything, and dots may have blanks beside them.
fn cannot_be_name(name: &str) -> bool {
    let is_odd = |name: &str| !name.trim().chars().all(is_plain);
    !name.contains(['"', '\'', '=']) && name.split('.').any(is_odd)
}

/// Whether a key may have this without quotes, or between its names.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// What to do about a key that cannot stand without quotes; `None` where it can.
fn odd_key(line: &str) -> Option<(String, String)> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let quotes = key.matches(['"', '\'']).count();
    let is_quoted = quotes > 0 && quotes.is_multiple_of(2);
    if key.is_empty()
        || is_quoted
        || key.starts_with('[')
        || key.contains(['{', '#'])
        || key.chars().all(is_plain)
    {
        return None;
    }
    if let Some(key) = key.strip_suffix(':').map(str::trim).filter(|key| key.chars().all(is_plain)) {
        let hint = format!("between key and value stands one =: {key} = {}", in_toml(value.trim()));
        return Some(("a colon before the =".to_owned(), hint));
    }
    let joined: String = key.split_whitespace().collect::<Vec<_>>().join("_");
    let hint = if joined.chars().all(is_plain) {
        format!("words are joined by an underscore: {joined} = {}", in_toml(value.trim()))
    } else {
        "keys are letters from a to z, digits, - and _; others stand in quotes".to_owned()
    };
    Some(("cannot be a key".to_owned(), hint))
}

/// The number of a table in braces that is written as no TOML has it, and how it is written.
fn odd_number(line: &str) -> Option<(String, String)> {
    let parts = line.split(['{', '}', ',', '[', ']']).skip(1);
    let values = parts.filter_map(|part| Some(part.split_once('=')?.1.trim()));
    values.filter(|value| !value.is_empty()).find_map(|value| {
        let mended = match value {
            _ if value.starts_with('.') => format!("0{value}"),
            _ if value.ends_with('.') => format!("{value}0"),
            _ => return None,
        };
        (in_toml(&mended) == mended).then(|| (value.to_owned(), mended))
    })
}

/// The number of a table in braces that has a comma where TOML has a point, and how it is written.
fn odd_comma(line: &str) -> Option<(String, String)> {
    let is_number = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let parts: Vec<&str> = line.split(',').collect();
    parts.windows(2).find_map(|pair| {
        let whole = pair[0].rsplit(['=', ' ']).next().filter(is_number)?;
        let rest = pair[1].split(['}', ' ']).next().filter(is_number)?;
        let (found, point) = (format!("{whole},{rest}"), format!("{whole}.{rest}"));
        let mended = if in_thousands(&found) { format!("{whole}{rest}") } else { point };
        Some((found, mended))
    })
}

/// A fraction of whole numbers, as TOML writes it.
fn fraction(value: &str) -> Option<String> {
    let (above, below) = value.split_once('/')?;
    let whole = |text: &str| text.trim().parse::<u32>().ok().map(f64::from);
    let share = whole(above)? / whole(below)?;
    share.is_finite().then(|| format!("{share:?}"))
}

/// What to write instead of a value that is none.
fn instead_of(key: &str, value: &str) -> String {
    let digits = value.trim_start_matches('0');
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => format!("write {key} = true"),
        "false" | "no" | "off" => format!("write {key} = false"),
        _ if value.starts_with(['=', '>']) => {
            format!(
                "between key and value stands one =: {key} = {}",
                in_toml(value.trim_start_matches(['=', '>', ' ']))
            )
        }
        _ if value.starts_with('.') && in_toml(&format!("0{value}")) == format!("0{value}") => {
            format!("a digit stands before the point: {key} = 0{value}")
        }
        _ if value.ends_with('.') && in_toml(&format!("{value}0")) == format!("{value}0") => {
            format!("a digit stands behind the point: {key} = {value}0")
        }
        "null" | "none" | "nil" | "~" => format!("take {key} out, or give it a value"),
        "nan" | "infinity" => format!("write a number: {key} = 1.0"),
        _ if let Some(decimals) = fraction(value) => {
            format!("fractions are written as decimals: {key} = {decimals}")
        }
        _ if in_thousands(value) => {
            format!("numbers are written without commas: {key} = {}", value.replace(',', ""))
        }
        _ if odd_comma(value).is_some_and(|(found, _)| found == value) => {
            format!("a point stands before decimals: {key} = {}", value.replace(',', "."))
        }
        _ if let Some((found, mended)) =
            odd_comma(value).filter(|(found, _)| value.starts_with(&**found)) =>
        {
            let value = value.replacen(&found, &mended, 1);
            format!(
                "text and quantities stand in quotes, with a point before decimals: {key} = {}",
                quoted(&value)
            )
        }
        _ if value.starts_with('(') => {
            format!("lists stand in brackets: {key} = [{}]", value.trim_matches(['(', ')']))
        }
        _ if value.starts_with('0') && digits.chars().all(|c| c.is_ascii_digit()) && !digits.is_empty() => {
            format!("numbers begin without zeros: {key} = {digits}")
        }
        _ => format!("text and quantities stand in quotes: {key} = {}", quoted(value)),
    }
}

/// Text in quotes and what follows it; `None` where nothing does.
fn behind(value: &str) -> Option<(&str, &str)> {
    let quote = value.chars().next()?;
    let mut escaped = false;
    let is_end = |c: char| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped && quote == '"';
        ends
    };
    let end = value[1..].find(is_end)? + 2;
    let rest = value[end..].trim();
    (!rest.is_empty()).then_some((&value[..end], rest))
}

/// What to do about what follows a value.
fn without(key: &str, text: &str, rest: &str) -> String {
    let is_comment = ["//", "--", ";"].iter().any(|sign| rest.starts_with(sign) && rest.len() > sign.len());
    match rest {
        _ if is_comment => "a comment begins with #".to_owned(),
        _ if rest.contains('=') => "each key has a line of its own".to_owned(),
        _ if rest.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '%' | ' ')) => {
            let number = text.trim_matches(['"', '\'']);
            format!("a unit stands within the quotes: {key} = \"{number} {rest}\"")
        }
        _ => format!("take it out: {key} = {text}"),
    }
}

/// A value as it is, or in quotes where it is none without.
fn in_toml(value: &str) -> String {
    let is_value = DeTable::parse(&format!("x = {value}")).is_ok();
    if is_value { value.to_owned() } else { quoted(value) }
}

/// Whether this is a whole number with commas between its thousands.
fn in_thousands(value: &str) -> bool {
    let mut parts = value.split(',');
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let leads = parts.next().is_some_and(|part| is_number(part) && part.len() <= 3);
    let mut thousands = parts.peekable();
    leads && thousands.peek().is_some() && thousands.all(|part| is_number(part) && part.len() == 3)
}

/// Whether this is one key, and no more of a line.
fn is_key(text: &str) -> bool {
    !text.is_empty() && !text.contains(['\n', '=', '{', '['])
}

/// Key and value of a line that has a colon, or nothing, in place of the equals sign.
fn without_equals(line: &str) -> Option<(&str, &str)> {
    let key_ends = line.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))?;
    let (key, rest) = line.split_at(key_ends);
    let rest = rest.trim_start();
    let value = rest.strip_prefix([':', '=']).unwrap_or(rest).trim_start();
    let is_value = |c: char| matches!(c, '"' | '\'' | '[' | '{') || c.is_ascii_digit();
    let begins = value.starts_with(is_value) || value.starts_with("true") || value.starts_with("false");
    (!key.is_empty() && begins && !line.contains('=')).then_some((key, value))
}

/// The name in the head of a table.
fn head(line: &str) -> String {
    line.trim_start_matches('[').split([']', '#']).next().unwrap_or_default().trim().to_owned()
}

/// What a line gives its key, without the comment behind.
fn value_of(line: &str) -> Option<&str> {
    let (_, value) = line.split_once('=')?;
    key_on(line)?;
    Some(value.split(" #").next().unwrap_or_default().trim())
}

/// A value as text: one pair of quotes, whatever quotes are in it, with a number apart from what follows it.
fn quoted(value: &str) -> String {
    let is_quote = |c: char| matches!(c, '"' | '\'') || PRINTED_QUOTES.contains(&c);
    let inner = value.trim_matches(is_quote).trim();
    if !inner.contains(is_quote) {
        return format!("\"{inner}\"");
    }
    let parts: Vec<&str> = inner.split(is_quote).map(str::trim).filter(|part| !part.is_empty()).collect();
    format!("\"{}\"", parts.join(" "))
}

/// A list on one line, without lists in it, with quotes and commas where they are missing and no others; `None` where that makes no
/// list.
fn list_of(value: &str) -> Option<String> {
    let inner = value.strip_prefix('[')?.strip_suffix(']')?;
    if inner.contains(['[', ']']) {
        return None;
    }
    // Of items that begin and end as they are to, each is one; where quotes are astray, what is between commas is.
    let items = items_of(inner).unwrap_or_else(|| {
        let between = inner.split([',', ';']).map(|item| item.trim().trim_matches(['"', '\'']).trim());
        between.filter(|item| !item.is_empty()).map(in_toml).collect()
    });
    let list = format!("[{}]", items.join(", "));
    (!items.is_empty() && list != value && in_toml(&list) == list).then_some(list)
}

/// The items of a list, where each begins and ends with a quote or has none.
fn items_of(inner: &str) -> Option<Vec<String>> {
    let is_between = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
    let mut items = Vec::new();
    let mut rest = inner.trim_start_matches(is_between);
    while let Some(first) = rest.chars().next() {
        let is_quoted = matches!(first, '"' | '\'');
        let end =
            if is_quoted { rest[1..].find(first)? + 2 } else { rest.find([',', ';']).unwrap_or(rest.len()) };
        let item = rest[..end].trim();
        let is_astray = if is_quoted {
            item.trim_matches(first).trim().trim_matches([',', ';']).is_empty()
                || rest[end..].starts_with(['"', '\''])
        } else {
            item.contains(['"', '\''])
        };
        if is_astray {
            return None;
        }
        items.push(in_toml(item));
        rest = rest[end..].trim_start_matches(is_between);
    }
    Some(items)
}

/// The error of a key, or of a table, that is there already in an earlier line.
fn twice(text: &str, number: usize, key: &str) -> SettingsError {
    let lines: Vec<&str> = text.lines().take(number).map(str::trim).collect();
    let (last, earlier) = lines.split_last().unwrap_or((&"", &[]));
    let is_head = |line: &str| line.starts_with('[') && line.contains(']') && !line.contains(',');
    let mut back = earlier.iter().enumerate().rev();
    let first = if is_head(last) {
        back.find(|(_, line)| is_head(line) && head(line) == key)
    } else {
        back.take_while(|(_, line)| !is_head(line)).find(|(_, line)| key_on(line).as_deref() == Some(key))
    };
    let is_inline = last.contains('{');
    let first = first.filter(|_| !is_inline || key_on(last).as_deref() == Some(key));
    let place = match first {
        Some((at, _)) => format!(", first on line {}", at + 1),
        None if is_inline => " within the braces".to_owned(),
        None => String::new(),
    };
    let table = earlier.iter().rfind(|line| is_head(line)).filter(|line| line.starts_with("[["));
    let or = match table {
        _ if first.is_none() || is_head(last) => String::new(),
        _ if is_inline => ", or put what both say within the braces of one".to_owned(),
        Some(table) => format!(", or begin another table above: [[{}]]", head(table)),
        None => String::new(),
    };
    SettingsError::new(key, format!("there twice{place}"))
        .hint(format!("take one of them out{or}"))
        .at(Some(number))
}

#[cfg(test)]
mod tests;
