//! Dead links in the pages that mdBook made: each leads to a file of the book, and to a place in it that has the name.
//!
//! Links to the web are not followed. Only what stands in tags is read, by the form in which mdBook writes it.

use crate::markdown;
use std::collections::{BTreeMap, BTreeSet};

/// Attributes that hold a link.
const LINKS: [&str; 2] = [" href=\"", " src=\""];

/// Attributes that name a place in a page.
const NAMES: [&str; 2] = [" id=\"", " name=\""];

/// All dead links, one line each. `pages` are texts by their path from the top of the book, `others` are all other files.
pub fn dead(pages: &BTreeMap<String, String>, others: &BTreeSet<String>) -> Vec<String> {
    let names: BTreeMap<&String, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, text)| (path, NAMES.iter().flat_map(|name| values(text, name)).collect()))
        .collect();
    let mut found = Vec::new();
    for (path, text) in pages {
        let links: BTreeSet<&str> = LINKS.iter().flat_map(|link| values(text, link)).collect();
        for link in links {
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let whole = if file.is_empty() { Some(path.clone()) } else { markdown::resolve(path, file) };
            let Some(whole) = whole.filter(|whole| pages.contains_key(whole) || others.contains(whole))
            else {
                found.push(format!("{path}: `{link}` leads nowhere"));
                continue;
            };
            let anchor = anchor.replace("%20", " ");
            if !anchor.is_empty() && names.get(&whole).is_some_and(|names| !names.contains(&*anchor)) {
                found.push(format!("{path}: `{link}` leads to no place of that page"));
            }
        }
    }
    found
}

/// What an attribute holds, wherever it stands in a tag. Text has its quotes as they are, so tags alone are read.
fn values<'a>(text: &'a str, attribute: &str) -> Vec<&'a str> {
    let tags = text.split('<').skip(1).filter(|tag| tag.starts_with(char::is_alphabetic));
    let tags = tags.map(|tag| tag.split('>').next().unwrap_or_default());
    tags.filter_map(|tag| tag.split_once(attribute)?.1.split('"').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(text: &str, expected: &[&str]) {
        let pages = [("a/b.html", text), ("c.html", "<h1 id=\"one\">One</h1>")];
        let pages = pages.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        assert_eq!(dead(&pages, &["d.rs.txt".to_owned()].into()), expected);
    }

    #[test]
    fn links_lead_to_files_and_names() {
        expect(
            "<a class=\"x\" href=\"../c.html#one\">c</a> <img src=\"../d.rs.txt\"> <a href=\"https://e\">",
            &[],
        );
        expect("<h2 id=\"two\"></h2><a href=\"#two\">", &[]);
        expect("<a href=\"c.html\">", &["a/b.html: `c.html` leads nowhere"]);
        expect("<a href=\"../c.html#two\">", &["a/b.html: `../c.html#two` leads to no place of that page"]);
        expect("<a href=\"../../c.html\">", &["a/b.html: `../../c.html` leads nowhere"]);
        expect("<code>&lt;a href=\"gone\"</code>", &[]);
    }
}
