//! The line of a value in a file.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::line_at;

/// The line of `key` in the `index`-th table named `table`, or of that table if it lacks the key. Both may be written below
/// a header, with dots, or within braces. `table` may be empty, for the top of the file, or nested: `a.b`.
pub fn line_of(text: &str, table: &str, index: usize, key: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut found = None;
    let mut inner = root.get_ref();
    for name in table.split('.').filter(|name| !name.is_empty()) {
        let value = value_of(inner, name)?;
        let value = match value.get_ref() {
            DeValue::Array(tables) => tables.get(index)?,
            _ => value,
        };
        let DeValue::Table(table) = value.get_ref() else { return None };
        (found, inner) = (Some(value.span().start), table);
    }
    let of_key = inner.keys().find(|known| known.get_ref() == key).map(|known| known.span().start);
    of_key.or(found).map(|offset| line_at(text, offset))
}

fn value_of<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_table_and_key() {
        let text =
            "name = \"x\"\n[[link]]\nrate = 1\n\n[[link]] # second\ndelay = 2\nrate = 3\n[topology]\nk = 4\n";
        assert_eq!(line_of(text, "link", 1, "rate"), Some(7));
        assert_eq!(line_of(text, "link", 0, "delay"), Some(2));
        assert_eq!(line_of(text, "topology", 0, "k"), Some(9));
        assert_eq!(line_of(text, "", 0, "name"), Some(1));
        assert_eq!(line_of(text, "flow", 0, "rate"), None);
        let lists = "[[flow]]\npaths = [\n  [\"a\"],\n]\nrule = \"lia\"\n[end]\nlast = 1\n";
        assert_eq!(line_of(lists, "flow", 0, "rule"), Some(5), "after lines that begin with a bracket");
        assert_eq!(line_of(lists, "flow", 0, "last"), Some(1));
    }

    #[test]
    fn lines_are_found_in_tables_within_braces_and_after_dots() {
        let text = "flow = [\n  { name = \"a\", rate = 1 },\n  { name = \"b\",\n    rate = 2 },\n]\n\
                    links.rate = 3\n[[link]]\nname = \"x\"\n[link.back]\nrate = 4\n[expect]\n\"a.b\" = { min = 1 }\n";
        assert_eq!(line_of(text, "flow", 0, "rate"), Some(2));
        assert_eq!(line_of(text, "flow", 1, "rate"), Some(4));
        assert_eq!(line_of(text, "flow", 1, "paths"), Some(3), "the table, because it lacks the key");
        assert_eq!(line_of(text, "flow", 2, "rate"), None);
        assert_eq!(line_of(text, "links", 0, "rate"), Some(6));
        assert_eq!(line_of(text, "link", 0, "back"), Some(9));
        assert_eq!(line_of(text, "link.back", 0, "rate"), Some(10));
        assert_eq!(line_of(text, "expect", 0, "a.b"), Some(12));
    }
}
