//! No circle of files: no files of one crate use one another, directly or through others.
//!
//! A file uses another when a path in its code (`crate::…`, `super::…`, `self::…`, or a module of its own) names an
//! item that the other defines. A re-export is followed to the file that defines the item. A module owns the modules
//! below it: that it uses them makes no circle. Tests and the insides of macro calls are not read.

use crate::rust::is_test_file;
use crate::syntax::{is_test_item, is_test_method, parsed};
use crate::tree::{Finding, Tree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Ident, Item, UseTree};

/// A path of names from the crate's root.
type Names = Vec<String>;

/// What a module offers under a name, and what its code names.
#[derive(Default)]
struct Module {
    /// The file in which it stands.
    file: String,
    /// The items that it defines.
    defines: BTreeSet<String>,
    /// What it imports, by the name that it gives it.
    imports: BTreeMap<String, Names>,
    /// The modules of which it imports everything.
    globs: Vec<Names>,
    /// The paths that its code names.
    paths: BTreeSet<Names>,
}

/// A crate's modules by their paths.
#[derive(Default)]
struct Modules(BTreeMap<Names, Module>);

/// All circles; an error names a file that cannot be read.
pub fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let circles = all(tree, &parsed(tree)?);
    let fault = |circle: &Vec<String>| {
        let others = circle[1..].join(", ");
        let what =
            format!("in a circle with {others}: move what they share to a file that uses none of them");
        Finding::new(&circle[0], 1, what)
    };
    Ok(circles.iter().map(fault).collect())
}

/// The circles of all crates.
pub fn all(tree: &Tree, files: &[(&str, syn::File)]) -> Vec<Vec<String>> {
    let files: Vec<(&str, &syn::File)> = files.iter().map(|(path, file)| (*path, file)).collect();
    crates(tree).flat_map(|folder| of(&folder, &below(&files, &folder))).collect()
}

/// The source folders of all crates.
fn crates(tree: &Tree) -> impl Iterator<Item = String> {
    tree.ending("Cargo.toml").map(|(path, _)| path.replace("Cargo.toml", "src/"))
}

/// The files below a crate's source folder. A program beside a library is a crate of its own and one file.
fn below<'a>(files: &[(&'a str, &'a syn::File)], folder: &str) -> Vec<(&'a str, &'a syn::File)> {
    let library = format!("{folder}lib.rs");
    let main = format!("{folder}main.rs");
    let has_library = files.iter().any(|(path, _)| *path == library);
    let inside = |path: &str| path.starts_with(folder) && !(has_library && path == main);
    files.iter().filter(|(path, _)| inside(path)).copied().collect()
}

/// The circles within one crate, given its files below `src` by their paths, largest first; each is its files in order.
fn of(source_folder: &str, files: &[(&str, &syn::File)]) -> Vec<Vec<String>> {
    let mut modules = Modules::default();
    for (path, file) in files.iter().filter(|(path, _)| !is_test_file(path)) {
        modules.read(&file.items, module_path(&path[source_folder.len()..]), path);
    }
    strongly_connected(&modules.uses())
}

/// The module that a file below `src` is.
fn module_path(file: &str) -> Names {
    let stem = file.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if ["lib", "main"].contains(&stem) { Vec::new() } else { stem.split('/').map(str::to_owned).collect() }
}

/// The folder in which the modules below a file's module stand.
fn folder_below(file: &str) -> String {
    let (folder, name) = file.rsplit_once('/').unwrap_or_default();
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/"),
        _ => format!("{}/", file.trim_end_matches(".rs")),
    }
}

impl Modules {
    /// Takes in the items of a module, and the modules that stand within them.
    fn read(&mut self, items: &[Item], at: Names, file: &str) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items.iter().filter(|item| !is_test_item(item)) {
            module.defines.extend(name_of(item));
            match item {
                Item::Use(item) => module.import(&item.tree, &[], &at),
                Item::Mod(inner) => {
                    if let Some((_, items)) = &inner.content {
                        self.read(items, joined(&at, &inner.ident.to_string()), file);
                    }
                }
                _ => Paths { at: &at, module: &mut module }.visit_item(item),
            }
        }
        self.0.insert(at, module);
    }

    /// Which file uses which others.
    fn uses(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for module in self.0.values() {
            let named = module.imports.values().chain(&module.globs).chain(&module.paths);
            let owned = folder_below(&module.file);
            let files = named.filter_map(|names| self.file_of(names, 0));
            let files = files.filter(|file| *file != module.file && !file.starts_with(&owned));
            uses.entry(&module.file).or_default().extend(files);
        }
        uses
    }

    /// The file that defines what a path names; none where the path leads out of the crate.
    fn file_of(&self, names: &[String], depth: usize) -> Option<&str> {
        // Imports may lead in a circle, which the compiler refuses only where something is looked up along it.
        if depth > 16 {
            return None;
        }
        let known = (0..=names.len()).rev().find(|length| self.0.contains_key(&names[..*length]))?;
        let module = &self.0[&names[..known]];
        let Some(name) = names.get(known) else { return Some(&module.file) };
        if module.defines.contains(name) {
            return Some(&module.file);
        }
        let rest = &names[known + 1..];
        let through = |target: &Names| self.file_of(&[target.as_slice(), rest].concat(), depth + 1);
        if let Some(target) = module.imports.get(name) {
            return through(target);
        }
        let glob = module.globs.iter().find_map(|glob| self.defined_in(&joined(glob, name), depth + 1));
        // A path of one name may be a crate or something of the prelude's.
        glob.or_else(|| (known > 0).then_some(module.file.as_str()))
    }

    /// The same, where the path's module is known to define or import the name.
    fn defined_in(&self, names: &[String], depth: usize) -> Option<&str> {
        let (name, module) = names.split_last()?;
        let module = self.0.get(module)?;
        let offers =
            module.defines.contains(name) || module.imports.contains_key(name) || !module.globs.is_empty();
        offers.then(|| self.file_of(names, depth)).flatten()
    }
}

impl Module {
    /// Takes in what a `use` brings.
    fn import(&mut self, tree: &UseTree, before: &[String], at: &Names) {
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &joined(before, &path.ident.to_string()), at),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, at);
                }
            }
            UseTree::Glob(_) => self.globs.extend(from_root(before, at)),
            UseTree::Name(name) => self.import_as(before, &name.ident, &name.ident, at),
            UseTree::Rename(name) => self.import_as(before, &name.ident, &name.rename, at),
        }
    }

    fn import_as(&mut self, before: &[String], name: &Ident, known_as: &Ident, at: &Names) {
        let whole = if name == "self" { before.to_owned() } else { joined(before, &name.to_string()) };
        let known_as = if known_as == "self" { before.last().cloned() } else { Some(known_as.to_string()) };
        self.imports.extend(known_as.zip(from_root(&whole, at)));
    }
}

/// Gathers the paths that an item's code names.
struct Paths<'a> {
    at: &'a Names,
    module: &'a mut Module,
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A path of one name is an item of this file, or was imported.
        if names.len() > 1 {
            self.module.paths.extend(from_root(&names, self.at));
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.module.import(&item.tree, &[], self.at);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if !is_test_method(item) {
            visit::visit_impl_item(self, item);
        }
    }
}

/// A path as it is seen from the crate's root; none where its first name leads out of the crate for sure.
fn from_root(names: &[String], at: &Names) -> Option<Names> {
    let mut base = at.clone();
    let first = names.first()?;
    match first.as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => drop(base.pop()?),
        "std" | "core" | "alloc" => return None,
        _ => return Some([base.as_slice(), names].concat()),
    }
    let rest = &names[1..];
    // `super` may stand several times.
    if rest.first().is_some_and(|name| name == "super") {
        from_root(rest, &base)
    } else {
        Some([base.as_slice(), rest].concat())
    }
}

fn joined(names: &[String], name: &str) -> Names {
    [names, &[name.to_owned()]].concat()
}

/// The name of an item that has one.
fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// The groups of two files or more in which each leads to each, largest first.
fn strongly_connected(uses: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|from| (*from, reached(uses, from))).collect();
    let mut circles = BTreeSet::new();
    for (from, all) in &reached {
        let circle: Vec<String> =
            all.iter().filter(|to| reached[*to].contains(from)).map(|to| (*to).to_owned()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<Vec<String>> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// Every file that one leads to.
fn reached<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        open.extend(uses[file].iter().filter(|next| found.insert(**next)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(files: &[(&str, &str)], circles: &[&[&str]]) {
        let parsed: Vec<_> =
            files.iter().map(|(path, text)| (*path, syn::parse_file(text).unwrap())).collect();
        let files: Vec<_> = parsed.iter().map(|(path, file)| (*path, file)).collect();
        assert_eq!(of("a/src/", &files), circles);
    }

    const CIRCLE: &[&[&str]] = &[&["a/src/b.rs", "a/src/c.rs"]];

    #[test]
    fn a_file_that_only_is_used_is_in_no_circle() {
        expect(&[("a/src/b.rs", "use crate::c::D;"), ("a/src/c.rs", "pub struct D;")], &[]);
    }

    #[test]
    fn uses_paths_and_groups_make_circles() {
        for use_of_b in [
            "use crate::b::E;",
            "use super::b::E;",
            "use crate::{b::{self, F}};",
            "use crate::b::*;",
            "fn g() { crate::b::h() }",
            "fn g() { use crate::b::E; }",
            "mod inner { use super::super::b::E; }",
        ] {
            expect(&[("a/src/b.rs", "use crate::c::D; pub struct E;"), ("a/src/c.rs", use_of_b)], CIRCLE);
        }
        expect(&[("a/src/b.rs", "use crate::c::D;"), ("a/src/c.rs", "use other::b::E; use std::b::F;")], &[]);
    }

    #[test]
    fn a_module_may_use_the_modules_below_it() {
        for parent in ["a/src/b.rs", "a/src/b/mod.rs", "a/src/lib.rs"] {
            let child = if parent == "a/src/lib.rs" { "a/src/c.rs" } else { "a/src/b/c.rs" };
            let uses = "mod c; use c::E; fn f() { c::g() } pub struct D;";
            expect(&[(parent, uses), (child, "use super::D; pub struct E;")], &[]);
        }
    }

    #[test]
    fn a_path_without_a_prefix_is_one_of_the_module_below_or_of_what_was_imported() {
        let c = ("a/src/b/c.rs", "use crate::d::F; pub struct E;");
        let circle: &[&[&str]] = &[&["a/src/b/c.rs", "a/src/d.rs"]];
        expect(
            &[("a/src/b.rs", "mod c; pub use c::E;"), c, ("a/src/d.rs", "use crate::b::E; pub struct F;")],
            circle,
        );
        expect(
            &[("a/src/b.rs", "pub mod c;"), c, ("a/src/d.rs", "use crate::b; fn f() { b::c::g() }")],
            circle,
        );
    }

    #[test]
    fn re_exports_are_followed_to_the_definition() {
        let files = [
            ("a/src/lib.rs", "mod b; mod c; pub use b::B; pub use c::*;"),
            ("a/src/b.rs", "use crate::C; pub struct B;"),
            ("a/src/c.rs", "pub struct C;"),
        ];
        expect(&files, &[]);
        expect(&[files[0], files[1], ("a/src/c.rs", "use crate::B; pub struct C;")], CIRCLE);
    }

    #[test]
    fn tests_do_not_count() {
        let b = ("a/src/b.rs", "use crate::c::D; pub struct E;");
        expect(&[b, ("a/src/c.rs", "#[cfg(test)] mod tests { use crate::b::E; }")], &[]);
        expect(&[b, ("a/src/c/tests.rs", "use crate::b::E;"), ("a/src/c.rs", "pub struct D;")], &[]);
    }

    /// A circle in one crate, and the same files without their circle in another.
    const FILES: &[(&str, &str)] = &[
        ("Cargo.toml", ""),
        ("src/lib.rs", "pub mod b; pub mod c;"),
        ("src/main.rs", "use crate::b;"),
        ("src/b.rs", "use crate::c::D;"),
        ("src/c.rs", "use crate::b::E; pub struct D;"),
        ("ir/Cargo.toml", ""),
        ("ir/src/b.rs", "use crate::c::D;"),
        ("ir/src/c.rs", "pub struct D;"),
    ];

    #[test]
    fn a_circle_is_a_fault_of_its_crate() {
        let found = check(&Tree::of(FILES)).unwrap();
        let [found] = &found[..] else { panic!("one circle: {found:?}") };
        assert!(found.to_string().starts_with("src/b.rs:1: in a circle with src/c.rs: move"), "{found}");
    }

    #[test]
    fn a_file_that_is_no_rust_cannot_be_checked() {
        let fault = check(&Tree::of(&[("a.rs", "fn (")])).unwrap_err();
        assert!(fault.starts_with("a.rs: not read as Rust"), "{fault}");
    }
}
