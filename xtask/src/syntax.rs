//! Rust source as `syn` parses it: every file of a tree, and what of it is compiled for tests only.

use crate::tree::Tree;
use syn::{Attribute, ImplItem, Item};

/// Every Rust file by its path; an error names the one that cannot be read.
pub fn parsed(tree: &Tree) -> Result<Vec<(&str, syn::File)>, String> {
    let parse = |(path, text)| match syn::parse_file(text) {
        Ok(file) => Ok((path, file)),
        Err(error) => Err(format!("{path}: not read as Rust: {error}")),
    };
    tree.ending(".rs").map(parse).collect()
}

/// Whether an item is compiled for tests only.
pub fn is_test_item(item: &Item) -> bool {
    is_for_tests(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    })
}

pub fn is_test_method(item: &ImplItem) -> bool {
    matches!(item, ImplItem::Fn(method) if is_for_tests(&method.attrs))
}

/// Whether `#[cfg(test)]` is among the attributes.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    };
    attributes.iter().any(is_test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_rust_is_named() {
        let tree = Tree::of(&[("a.rs", "fn a() {}"), ("b.rs", "fn (")]);
        let fault = parsed(&tree).map(|files| files.len()).unwrap_err();
        assert!(fault.starts_with("b.rs: not read as Rust"), "{fault}");
    }
}
