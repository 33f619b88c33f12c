//! Markdown as far as the checks read it: prose apart from fenced blocks, links, code spans, headings.
//!
//! It reads the subset that the house's documents are written in (fences of backticks, inline links and link
//! definitions, `#` headings), and does not render.

/// A fenced block.
pub struct Block<'a> {
    /// The line of its opening fence, counted from 1.
    pub line: usize,
    /// The language after the fence.
    pub language: &'a str,
    /// What a comment on the line before the fence says: `runs` for `<!-- runs -->`.
    pub mark: Option<&'a str>,
    /// Its lines.
    pub lines: Vec<&'a str>,
}

/// A document's lines of prose with their numbers, and its fenced blocks.
pub fn parse(text: &str) -> (Vec<(usize, &str)>, Vec<Block<'_>>) {
    let mut prose: Vec<(usize, &str)> = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, inside) {
            (Some(language), false) => {
                let before = prose.iter().rev().map(|(_, line)| line.trim()).find(|line| !line.is_empty());
                let adjacent =
                    blocks.last().is_none_or(|last| prose.last().is_some_and(|(at, _)| *at > last.line));
                let mark = before.filter(|_| adjacent).and_then(comment);
                blocks.push(Block { line: index + 1, language: language.trim(), mark, lines: Vec::new() });
                inside = true;
            }
            (Some(_), true) => inside = false,
            (None, true) => blocks.iter_mut().last().into_iter().for_each(|block| block.lines.push(line)),
            (None, false) => prose.push((index + 1, line)),
        }
    }
    (prose, blocks)
}

/// What a line that is a comment says.
fn comment(line: &str) -> Option<&str> {
    Some(line.strip_prefix("<!--")?.strip_suffix("-->")?.trim())
}

/// The targets of the links in a line: `[text](target)`, and `[name]: target`.
pub fn links(line: &str) -> Vec<&str> {
    let line_without_code: Vec<&str> = line.split('`').step_by(2).collect();
    let mut targets = Vec::new();
    for part in line_without_code {
        for (at, _) in part.match_indices("](") {
            targets.extend(part[at + 2..].split([')', ' ']).next());
        }
    }
    let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    targets.extend(definition.and_then(|(_, target)| target.split_whitespace().next()));
    targets
}

/// A line whose links lead elsewhere: each target that `turn` answers gives way to the answer.
pub fn turned(line: &str, mut turn: impl FnMut(&str) -> Option<String>) -> String {
    if let Some((name, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        let target = rest.split_whitespace().next().unwrap_or_default();
        let turned = turn(target).unwrap_or_else(|| target.to_owned());
        return format!("[{name}]: {turned}{}", &rest[target.len()..]);
    }
    let mut parts: Vec<String> = Vec::new();
    for (index, part) in line.split('`').enumerate() {
        let mut pieces = part.split("](");
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let target = piece.split([')', ' ']).next().unwrap_or_default();
            let turned = if index % 2 == 0 { turn(target) } else { None };
            text = format!("{text}]({}{}", turned.as_deref().unwrap_or(target), &piece[target.len()..]);
        }
        parts.push(text);
    }
    parts.join("`")
}

/// The path from the root of what a document calls `target`; none where that leaves the root.
pub fn resolve(document: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The code spans in a line.
pub fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The anchors of a document's headings, as GitHub makes them.
pub fn anchors(text: &str) -> Vec<String> {
    let (prose, _) = parse(text);
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String =
            kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let again = (1..).map(|n| format!("{slug}-{n}"));
        anchors.extend(std::iter::once(slug.clone()).chain(again).find(|anchor| !anchors.contains(anchor)));
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_carry_the_mark_right_before_them() {
        let text = "# A\n<!-- runs -->\n\n```sh\nls\n```\n```text\nout\n```\nwords\n```sh\nb\n```\n";
        let (prose, blocks) = parse(text);
        let shape: Vec<_> = blocks.iter().map(|b| (b.line, b.language, b.mark, b.lines.join("|"))).collect();
        let expected = [
            (4, "sh", Some("runs"), "ls".to_owned()),
            (7, "text", None, "out".to_owned()),
            (11, "sh", None, "b".to_owned()),
        ];
        assert_eq!(shape, expected);
        assert_eq!(prose, [(1, "# A"), (2, "<!-- runs -->"), (3, ""), (10, "words")]);
    }

    #[test]
    fn links_are_found_outside_code() {
        assert_eq!(links("[a](b.md#c) and ![d](e.png \"t\") `[f](g)`"), ["b.md#c", "e.png"]);
        assert_eq!(links("[a]: b.md"), ["b.md"]);
        assert_eq!(spans("`a` b `c`").collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn links_are_turned_outside_code() {
        let turn = |target: &str| target.strip_suffix(".md").map(|name| format!("{name}.html"));
        assert_eq!(
            turned("[a](b.md) `[c](d.md)` [`e`](f.md \"t\") [g](h.rs)", turn),
            "[a](b.html) `[c](d.md)` [`e`](f.html \"t\") [g](h.rs)"
        );
        assert_eq!(turned("[a]: b.md", turn), "[a]: b.html");
        assert_eq!(turned("no link", turn), "no link");
    }

    #[test]
    fn targets_are_seen_from_the_root() {
        assert_eq!(resolve("docs/a/b.md", "../c.md").as_deref(), Some("docs/c.md"));
        assert_eq!(resolve("README.md", "./docs/").as_deref(), Some("docs"));
        assert_eq!(resolve("README.md", "../x"), None);
    }

    #[test]
    fn anchors_are_those_of_github() {
        assert_eq!(
            anchors("# The `way`, of data\n#no\n## Life\n## Life\n"),
            ["the-way-of-data", "life", "life-1"]
        );
    }
}
