//! Circles of imports between the files of a crate.
//!
//! File A imports file B when A names an item that B defines: in a `use`, or by a path such as `super::b::Item`. A name is
//! followed through re-exports to the file that defines it. A re-export is an import only if its file uses the name
//! itself. Files that reach each other through imports form a circle. Test code is not read.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::Finding;
use super::source::{Source, is_test};

/// How many files a circle may have.
const MOST_FILES: usize = 3;

/// How many re-exports are followed for one name: more would be a circle of re-exports.
const MOST_RE_EXPORTS: usize = 8;

/// A path of names from the root of the crate.
type Names = Vec<String>;

/// The names in a module's scope.
#[derive(Default)]
struct Module {
    /// The index of its file.
    file: usize,
    /// The paths of names that are imported, by the name they have here.
    imported: BTreeMap<String, Names>,
    /// Modules of which everything is imported.
    globs: Vec<Names>,
    /// The names its file re-exports.
    re_exported: BTreeSet<String>,
    /// The names defined here.
    defined: BTreeSet<String>,
}

type Modules = BTreeMap<Names, Module>;

/// Finds the circles with more than [`MOST_FILES`] files.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let sources: Vec<&Source> =
        sources.iter().filter(|source| source.module.is_some() && !source.is_test).collect();
    let imports = imports(&sources);
    let name = |file: usize| sources[file].path.display().to_string();
    circles(&imports)
        .into_iter()
        .filter(|circle| circle.len() > MOST_FILES)
        .map(|circle| {
            let within =
                |file: usize| imports[file].iter().filter(|to| circle.contains(to)).map(|to| name(*to));
            let files = circle.iter().map(|file| format!("\n    {} → {}", name(*file), list(within(*file))));
            let what = format!("circle of {} files{}", circle.len(), files.collect::<String>());
            Finding { path: sources[circle[0]].path.clone(), line: 1, what }
        })
        .collect()
}

fn list(names: impl Iterator<Item = String>) -> String {
    names
        .map(|name| name.split_once("src/").map_or(name.clone(), |(_, name)| name.into()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The files each file imports, by index.
fn imports(sources: &[&Source]) -> Vec<BTreeSet<usize>> {
    let mut modules = Modules::new();
    for (file, source) in sources.iter().enumerate() {
        let path = source.module.clone().unwrap_or_default();
        collect(&mut modules, file, &path, &mut source.items());
    }
    let mut imports = vec![BTreeSet::new(); sources.len()];
    for (file, source) in sources.iter().enumerate() {
        let here = source.module.clone().unwrap_or_default();
        let mut mentions = Mentions { here: here.clone(), names: BTreeSet::new(), paths: BTreeSet::new() };
        source.items().for_each(|item| mentions.visit_item(item));
        for (module, scope) in modules.iter().filter(|(_, scope)| scope.file == file) {
            for (name, path) in &scope.imported {
                if !scope.re_exported.contains(name) || mentions.names.contains(name) {
                    imports[file].extend(definition(&modules, path));
                }
            }
            imports[file].extend(scope.globs.iter().filter_map(|glob| file_of(&modules, glob)));
            let below = mentions.paths.iter().filter(|(from, _)| from == module);
            imports[file].extend(
                below.filter_map(|(from, path)| definition(&modules, &absolute(&modules, from, path)?)),
            );
        }
        imports[file].remove(&file);
    }
    imports
}

/// Notes what a module's items define and import, and its inline modules.
fn collect(modules: &mut Modules, file: usize, path: &[String], items: &mut dyn Iterator<Item = &syn::Item>) {
    let mut module = Module { file, ..Module::default() };
    let mut uses = Vec::new();
    for item in items {
        let defined = match item {
            syn::Item::Const(item) => &item.ident,
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Fn(item) => &item.sig.ident,
            syn::Item::Static(item) => &item.ident,
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            syn::Item::Type(item) => &item.ident,
            syn::Item::Mod(item) => {
                if let Some((_, items)) = &item.content {
                    collect(modules, file, &join(path, &item.ident.to_string()), &mut items.iter());
                }
                &item.ident
            }
            syn::Item::Use(item) => {
                uses.push(item);
                continue;
            }
            _ => continue,
        };
        module.defined.insert(defined.to_string());
    }
    for item in uses {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        flatten(&item.tree, Vec::new(), &mut |names, local| {
            let Some(names) = absolute_in(&module, path, &names) else { return };
            match local {
                None => module.globs.push(names),
                Some(local) => {
                    if is_public {
                        module.re_exported.insert(local.clone());
                    }
                    module.imported.insert(local, names);
                }
            }
        });
    }
    modules.insert(path.to_vec(), module);
}

/// Gives each leaf of a `use` with its path and its name here; a glob has no name.
fn flatten(tree: &syn::UseTree, mut path: Names, leaf: &mut dyn FnMut(Names, Option<String>)) {
    match tree {
        syn::UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            flatten(&tree.tree, path, leaf);
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path.clone(), leaf)),
        syn::UseTree::Glob(_) => leaf(path, None),
        syn::UseTree::Name(tree) if tree.ident == "self" => {
            let name = path.last().cloned();
            leaf(path, name);
        }
        syn::UseTree::Name(tree) => {
            path.push(tree.ident.to_string());
            leaf(path, Some(tree.ident.to_string()));
        }
        syn::UseTree::Rename(tree) => {
            path.push(tree.ident.to_string());
            leaf(path, Some(tree.rename.to_string()));
        }
    }
}

/// A path from the root of the crate; `None` for another crate's.
fn absolute(modules: &Modules, here: &[String], path: &[String]) -> Option<Names> {
    absolute_in(modules.get(here)?, here, path)
}

fn absolute_in(module: &Module, here: &[String], path: &[String]) -> Option<Names> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => absolute_or_here(module, here, rest),
        "super" => {
            let up = path.iter().take_while(|name| *name == "super").count();
            let root = here.get(..here.len().checked_sub(up)?)?;
            Some([root, &path[up..]].concat())
        }
        name if module.defined.contains(name) => Some([here, path].concat()),
        name => module.imported.get(name).map(|imported| [&imported[..], rest].concat()),
    }
}

fn absolute_or_here(module: &Module, here: &[String], path: &[String]) -> Option<Names> {
    absolute_in(module, here, path).or_else(|| Some([here, path].concat()))
}

/// The file that defines what a path names, behind re-exports; `None` for a module as such and for what lies in other crates.
fn definition(modules: &Modules, path: &[String]) -> Option<usize> {
    let mut path = path.to_vec();
    for _ in 0..MOST_RE_EXPORTS {
        let depth = (0..=path.len()).rev().find(|depth| modules.contains_key(&path[..*depth]))?;
        let module = &modules[&path[..depth]];
        let name = path.get(depth)?;
        if module.defined.contains(name) {
            return Some(module.file);
        }
        let by_glob =
            || module.globs.iter().find(|glob| modules.get(*glob).is_some_and(|from| from.has(name)));
        path = match module.imported.get(name) {
            Some(imported) => [imported, &path[depth + 1..]].concat(),
            None => [by_glob()?, &path[depth..]].concat(),
        };
    }
    None
}

fn file_of(modules: &Modules, path: &[String]) -> Option<usize> {
    modules.get(path).map(|module| module.file)
}

impl Module {
    fn has(&self, name: &str) -> bool {
        self.defined.contains(name) || self.imported.contains_key(name)
    }
}

fn join(path: &[String], name: &str) -> Names {
    [path, &[name.into()]].concat()
}

/// The names and paths that a file mentions outside its `use` items.
struct Mentions {
    /// The module that is visited.
    here: Names,
    names: BTreeSet<String>,
    /// Paths of several names, each with the module that mentions it.
    paths: BTreeSet<(Names, Names)>,
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_item_use(&mut self, _: &'ast syn::ItemUse) {}

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_test(&module.attrs) {
            return;
        }
        self.here.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.here.pop();
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.names.extend(names.first().cloned());
        if names.len() > 1 {
            self.paths.insert((self.here.clone(), names));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        mention(called.tokens.clone(), &mut self.names);
        visit::visit_macro(self, called);
    }
}

/// Adds every identifier among the tokens.
fn mention(tokens: proc_macro2::TokenStream, names: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Ident(name) => _ = names.insert(name.to_string()),
            proc_macro2::TokenTree::Group(group) => mention(group.stream(), names),
            _ => {}
        }
    }
}

/// The groups of files that reach each other, largest first.
fn circles(imports: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..imports.len()).map(|file| reach(imports, file)).collect();
    let mut circles: BTreeSet<Vec<usize>> = BTreeSet::new();
    for (file, from_here) in reached.iter().enumerate() {
        let circle: Vec<usize> =
            from_here.iter().copied().filter(|other| reached[*other].contains(&file)).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// The files that a file imports, directly or through others.
fn reach(imports: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        left.extend(imports[file].iter().filter(|to| reached.insert(**to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn source(module: &str, text: &str) -> Source {
        let names = module.split('/').filter(|name| !name.is_empty()).map(String::from).collect();
        Source::parse(Path::new(&format!("src/{module}.rs")), Some(names), text).unwrap()
    }

    #[test]
    fn names_are_followed_through_re_exports() {
        let sources = [
            source("", "mod a; mod b; mod c; pub use a::A; pub use b::*; use c::C; fn f(_: C) {}"),
            source("a", "use crate::B; pub struct A;"),
            source("b", "pub struct B; fn g(_: super::c::C) {}"),
            source("c", "pub struct C; mod inner { fn h(_: super::super::A) {} }"),
        ];
        let imports = imports(&sources.iter().collect::<Vec<_>>());
        let expected: [&[usize]; 4] = [&[2, 3], &[2], &[3], &[1]];
        assert_eq!(
            imports.iter().map(|to| to.iter().copied().collect::<Vec<_>>()).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(circles(&imports), [[1, 2, 3]]);
        assert_eq!(check(&sources).len(), 0, "three files may import each other");
    }

    #[test]
    fn a_circle_of_four_files_is_found_and_names_them() {
        let next = |next: &str, own: &str| format!("use crate::{next}::{own};");
        let sources = [
            source("a", &(next("b", "B") + "pub struct A;")),
            source("b", &(next("c", "C") + "pub struct B;")),
            source("c", &(next("d", "D") + "pub struct C;")),
            source("d", "pub struct D; fn f(_: crate::a::A) {}"),
            source("e", "#[cfg(test)] mod tests { use crate::a::A; } pub struct E;"),
        ];
        let found = check(&sources);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("src/a.rs:1: circle of 4 files"), "{}", found[0]);
    }

    #[test]
    fn a_module_imported_as_such_counts_by_what_is_used_of_it() {
        let sources = [
            source("a", "use crate::b; fn f() { b::g() }"),
            source("b", "mod c; pub use c::g;"),
            source("b/c", "pub fn g() {}"),
        ];
        let imports = imports(&sources.iter().collect::<Vec<_>>());
        assert_eq!(imports[0], BTreeSet::from([2]));
    }
}
