//! Functions that are too long or take too much, structs with too many fields, and long files.

use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::source::{Source, is_test};

const MOST_ARGUMENTS: usize = 5;
const MOST_FIELDS: usize = 20;
const MOST_LINES_OF_A_FUNCTION: usize = 80;
const MOST_LINES_OF_A_FILE: usize = 500;

/// A struct without public fields: its file and its name.
const PRIVATE: (&str, &str) = ("crates/engine/src/path/mod.rs", "Path");

/// Checks one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut visitor = Items { path: &source.path, is_test: source.is_test, findings: Vec::new() };
    if source.lines > MOST_LINES_OF_A_FILE {
        visitor.report(1, format!("file of {} lines without tests", source.lines));
    }
    visitor.visit_file(&source.syntax);
    visitor.findings
}

struct Items<'a> {
    path: &'a Path,
    /// Whether the item visited is test code, which may be long.
    is_test: bool,
    findings: Vec<Finding>,
}

impl Items<'_> {
    fn report(&mut self, line: usize, what: String) {
        self.findings.push(Finding { path: self.path.into(), line, what });
    }

    /// Notes an item's attributes. Returns the previous `is_test`, to be restored after the item.
    fn enter(&mut self, attributes: &[syn::Attribute]) -> bool {
        let was_test = self.is_test;
        self.is_test |= is_test(attributes);
        was_test
    }

    /// Checks a function, given the block of its body if it has one.
    fn check_function(&mut self, signature: &syn::Signature, body: Option<&syn::Block>) {
        let (name, line) = (&signature.ident, signature.ident.span().start().line);
        let arguments: usize = signature.inputs.iter().map(width).sum();
        if arguments > MOST_ARGUMENTS {
            self.report(line, format!("`{name}` takes {arguments} arguments"));
        }
        let lines = body.map_or(0, |body| body.span().end().line - line + 1);
        if lines > MOST_LINES_OF_A_FUNCTION && !self.is_test {
            self.report(line, format!("`{name}` has {lines} lines"));
        }
    }
}

/// How many arguments a parameter counts for: one per member of a tuple, none for `self`.
fn width(input: &syn::FnArg) -> usize {
    match input {
        syn::FnArg::Receiver(_) => 0,
        syn::FnArg::Typed(typed) => width_of_type(&typed.ty),
    }
}

fn width_of_type(of: &syn::Type) -> usize {
    match of {
        syn::Type::Tuple(tuple) => tuple.elems.iter().map(width_of_type).sum(),
        syn::Type::Reference(reference) => width_of_type(&reference.elem),
        _ => 1,
    }
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let was_test = self.enter(&function.attrs);
        self.check_function(&function.sig, Some(&function.block));
        visit::visit_item_fn(self, function);
        self.is_test = was_test;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let was_test = self.enter(&function.attrs);
        self.check_function(&function.sig, Some(&function.block));
        visit::visit_impl_item_fn(self, function);
        self.is_test = was_test;
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.check_function(&function.sig, function.default.as_ref());
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_struct(&mut self, of: &'ast syn::ItemStruct) {
        let (name, line) = (of.ident.to_string(), of.ident.span().start().line);
        if of.fields.len() > MOST_FIELDS {
            self.report(line, format!("`{name}` has {} fields", of.fields.len()));
        }
        let public =
            of.fields.iter().filter(|field| !matches!(field.vis, syn::Visibility::Inherited)).count();
        if public > 0 && self.path == Path::new(PRIVATE.0) && name == PRIVATE.1 {
            self.report(line, format!("`{name}` has {public} public fields"));
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let was_test = self.enter(&module.attrs);
        visit::visit_item_mod(self, module);
        self.is_test = was_test;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let source = Source::parse(Path::new(PRIVATE.0), Some(Vec::new()), text).unwrap();
        check(&source).into_iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn members_of_tuples_count_as_arguments_and_self_does_not() {
        let text = "fn five((a, b): (u8, u8), c: &(u8, u8), d: u8) {}\nimpl A { fn six(self, a: (u8, (u8, u8)), b: [u8; 3], c: u8, d: u8) {} }";
        assert_eq!(findings(text), ["2: `six` takes 6 arguments"]);
    }

    #[test]
    fn tests_may_be_long() {
        let body = "\n".repeat(90);
        let text =
            format!("fn long() {{{body}}}\n#[cfg(test)] mod tests {{ #[test] fn longer() {{{body}}} }}\n");
        assert_eq!(findings(&text), ["1: `long` has 91 lines"]);
        let tests = format!("#[cfg(test)]\nmod tests {{{}}}\n", "\n".repeat(600));
        assert_eq!(findings(&tests), Vec::<String>::new());
        let lines = "// line\n".repeat(501);
        assert_eq!(findings(&lines), ["1: file of 501 lines without tests"]);
    }

    #[test]
    fn the_fields_of_a_path_are_private_and_those_of_any_struct_few() {
        assert_eq!(findings("struct Path { pub(crate) id: u8 }"), ["1: `Path` has 1 public fields"]);
        let fields: String = (0..21).map(|field| format!("f{field}: u8,")).collect();
        assert_eq!(findings(&format!("struct Many {{ {fields} }}")), ["1: `Many` has 21 fields"]);
    }
}
