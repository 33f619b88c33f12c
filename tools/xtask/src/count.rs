//! `cargo xtask count`: the size of the repository in three numbers, for people to compare.
//!
//! Code is read line by line, in the form that rustfmt gives it, and not parsed. The PyTorch front is left out: its sizes are
//! those of a different language. So is third-party code (`echarts/`).

use crate::tree::Tree;

/// Extensions of code files.
const CODE: [&str; 9] = [".rs", ".cu", ".js", ".mjs", ".py", ".sh", ".h", ".html", ".css"];

/// Returns lines of product code and of tests outside `python/`, without comments and blank lines, and words of Markdown.
pub fn table(tree: &Tree) -> String {
    let modules = test_modules(tree);
    let (mut product, mut tests) = (0, 0);
    for (path, text) in tree.files() {
        let counts = CODE.iter().any(|end| path.ends_with(end));
        if !counts || path.starts_with("python/") || path.contains("/echarts/") {
            continue;
        }
        let rest_of = |module: &String| path.strip_prefix(module.as_str());
        let of_tests = modules.iter().filter_map(rest_of).any(|rest| rest.starts_with(['.', '/']));
        for line in lines(path, text) {
            *(if of_tests || line.test { &mut tests } else { &mut product }) += 1;
        }
    }
    let words: usize = tree.ending(".md").map(|(_, text)| text.split_whitespace().count()).sum();
    format!("product code  {product:6} lines\ntests         {tests:6} lines\nMarkdown      {words:6} words\n")
}

/// A line of code: neither a comment nor blank.
pub struct Line<'a> {
    /// Line number from 1.
    pub number: usize,
    pub text: &'a str,
    /// `true` if it is compiled for tests only.
    pub test: bool,
}

/// Returns the lines of code of a file.
pub fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let comment = if path.ends_with(".py") || path.ends_with(".sh") { "#" } else { "//" };
    let of_tests = is_test_file(path);
    let mut found = Vec::new();
    let mut in_comment = false;
    // Indentation of the current item for tests; `true` if it is a module, which no product code follows.
    let mut item: Option<(usize, bool)> = None;
    for (number, text) in (1..).zip(text.lines()) {
        let code = text.trim();
        if in_comment || code.starts_with("/*") {
            in_comment = !code.ends_with("*/");
            continue;
        }
        if code.is_empty() || code.starts_with(comment) {
            continue;
        }
        let indent = text.len() - text.trim_start().len();
        if item.is_none() && code == "#[cfg(test)]" {
            item = Some((indent, false));
        } else if code.starts_with("mod ") && code.ends_with('{') {
            item = item.map(|(start, _)| (start, true));
        }
        item = item.filter(|(start, module)| *module || indent >= *start);
        found.push(Line { number, text, test: of_tests || item.is_some() });
        let ends = code.starts_with('}') || code.ends_with([';', ',']);
        item = item.filter(|(start, module)| *module || indent > *start || !ends);
    }
    found
}

/// Returns `true` if a whole file is tests, or serves them alone.
fn is_test_file(path: &str) -> bool {
    let mut names = path.split('/').rev();
    let file = names.next().unwrap_or_default();
    file == "tests.rs"
        || file.ends_with("_tests.rs")
        || names.any(|name| ["tests", "testing"].contains(&name))
}

/// Returns the path prefixes of modules that a different file declares under `#[cfg(test)]`.
fn test_modules(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let facade = ["/mod.rs", "/lib.rs", "/main.rs"].iter().find_map(|end| path.strip_suffix(end));
        let folder = facade.unwrap_or_else(|| path.trim_end_matches(".rs"));
        for declared in text.split("#[cfg(test)]\n").skip(1) {
            let line = declared.lines().next().unwrap_or_default().trim_start_matches("pub(crate) ");
            let name = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
            found.extend(name.map(|name| format!("{folder}/{name}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_from_product_code() {
        let file = "//! A file.\n\nuse a;\n/* b\n c */\nstruct D {\n    #[cfg(test)]\n    e: F,\n    g: H,\n}\n#[cfg(test)]\n\
                    mod checks;\nfn k() {}\n#[cfg(test)]\nmod tests {\n    const L: &str = \"\n}\";\n}\n";
        let product = lines("a/src/lib.rs", file).into_iter().filter(|line| !line.test);
        assert_eq!(product.map(|line| line.number).collect::<Vec<_>>(), [3, 6, 9, 10, 13]);
        let tree = Tree::of(&[
            ("a/src/lib.rs", file),
            ("a/src/checks.rs", "fn b() {}\n"),
            ("a/src/c.cu", "// d\nint e;\n"),
            ("python/src/lib.rs", "fn f() {}\n"),
            ("README.md", "Two words\n"),
        ]);
        let words: Vec<String> = table(&tree).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words.join(" "), "product code 6 lines tests 10 lines Markdown 2 words");
    }
}
