//! Rust source, read just closely enough to hold rules against it: what is code, what is comment, where test
//! modules begin and end.
//!
//! A lexer that knows comments, literals and lifetimes is enough, because formatted code keeps its tokens in
//! predictable places. A parser (`syn`, in [`crate::syntax`]) knows no comments and does not look into macro calls.

/// A source text seen three times, line for line and byte for byte: once only its code, once only its comments, once
/// only its literals, whose quotes stay in the code. Whatever is left out is spaces.
pub struct Source {
    /// The code.
    pub code: String,
    /// The comments, with their slashes.
    pub comments: String,
    /// The literals, with their quotes.
    pub literals: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    /// Splits a text.
    pub fn new(text: &str) -> Source {
        let (mut code, mut comments, mut literals) = (String::new(), String::new(), String::new());
        let mut rest = text;
        while !rest.is_empty() {
            let (kind, length) = token(rest, code.ends_with(is_name));
            let seen = &rest[..length];
            let view = |shown: Kind| if kind == shown { seen.to_owned() } else { blank(seen, &['\n']) };
            // Its quotes keep a literal's place in the code.
            code += &if kind == Kind::Literal { blank(seen, &['\n', '"']) } else { view(Kind::Code) };
            comments += &view(Kind::Comment);
            literals += &view(Kind::Literal);
            rest = &rest[length..];
        }
        Source { code, comments, literals }
    }

    /// The code with every item under `#[cfg(test)]` left out, line for line.
    pub fn code_without_tests(&self) -> String {
        without_tests(&self.code, &self.code)
    }

    /// The lines, counted from 0, that hold code outside tests: those within a literal, too, but no blank ones.
    pub fn lines_of_code(&self) -> Vec<usize> {
        let (code, literals) = (self.code_without_tests(), without_tests(&self.code, &self.literals));
        let holds = |(code, literal): (&str, &str)| !code.trim().is_empty() || !literal.trim().is_empty();
        let lines = code.lines().zip(literals.lines()).enumerate();
        lines.filter(|(_, views)| holds(*views)).map(|(line, _)| line).collect()
    }
}

/// Whether a whole file is tests or what tests need, or a bench.
pub fn is_test_file(path: &str) -> bool {
    let mut names: Vec<&str> = path.split('/').collect();
    let file = names.pop().unwrap_or_default();
    file == "tests.rs"
        || file.ends_with("_tests.rs")
        || names.iter().any(|name| ["tests", "benches"].contains(name))
}

/// The names and keywords in a text, with their offsets.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let offset = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split(|c| !is_name(c)).filter(|word| !word.is_empty()).map(move |word| (offset(word), word))
}

/// The line, counted from 1, on which an offset lies.
pub fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// A text of which only these characters are left, and each other one is as many spaces as it has bytes.
fn blank(text: &str, kept: &[char]) -> String {
    let mut left = String::with_capacity(text.len());
    for character in text.chars() {
        if kept.contains(&character) {
            left.push(character);
        } else {
            left.extend(std::iter::repeat_n(' ', character.len_utf8()));
        }
    }
    left
}

/// A view of a text without the items that its code has under `#[cfg(test)]`, line for line.
fn without_tests(code: &str, view: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut view = view.to_owned();
    let mut from = 0;
    while let Some(start) = code[from..].find(MARK).map(|at| from + at) {
        let end = item_end(code, start + MARK.len());
        let hidden = blank(&view[start..end], &['\n']);
        view.replace_range(start..end, &hidden);
        from = end;
    }
    view
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Where an item that goes on at `from` ends: after its first `;` outside brackets, or after its first pair of braces.
fn item_end(code: &str, from: usize) -> usize {
    let mut brackets = 0_i32;
    let mut braces = 0_i32;
    for (at, character) in code[from..].char_indices() {
        match character {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => {}
        }
        if brackets == 0 && braces <= 0 && matches!(character, ';' | '}') {
            return from + at + 1;
        }
    }
    code.len()
}

/// The kind and length of what begins a text.
fn token(rest: &str, after_name: bool) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    match literal(rest) {
        Some(length) if !after_name => (Kind::Literal, length),
        _ => (Kind::Code, rest.chars().next().map_or(0, char::len_utf8)),
    }
}

/// The length of a block comment, which may hold others.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while let Some(next) = rest[at..].find(['/', '*']) {
        at += next;
        let step = match rest.get(at..at + 2) {
            Some("/*") => 1,
            Some("*/") => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of the string or character that begins a text, if one does. A lifetime is none.
fn literal(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let prefix = rest.len() - body.len();
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inner = raw[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        let length = inner.find(&close).map_or(inner.len(), |at| at + close.len());
        return Some(rest.len() - inner.len() + length);
    }
    let character =
        body.strip_prefix('\'').is_some_and(|c| c.starts_with('\\') || c.chars().nth(1) == Some('\''));
    (character || body.starts_with('"')).then(|| prefix + quoted(body))
}

/// The length from a quote to the next of its kind that is not escaped.
fn quoted(body: &str) -> usize {
    let mut escaped = false;
    for (at, character) in body.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if body.starts_with(character) => return at + 1,
            _ => {}
        }
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, code: &str, comments: &str) {
        let source = Source::new(text);
        let squeeze = |view: &str| view.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            (squeeze(&source.code), squeeze(&source.comments)),
            (code.to_owned(), comments.to_owned())
        );
        assert_eq!(source.code.lines().count(), text.lines().count(), "lines of {text:?}");
    }

    #[test]
    fn comments_and_literals_are_told_from_code() {
        check("a // b\nc", "a c", "// b");
        check("a /* b /* c */ d */ e", "a e", "/* b /* c */ d */");
        check("a(\"x // \\\" y\") // z", "a(\" \" \")", "// z");
        check("a(r#\"x \" // y\"#, b) // z", "a( \" \" \" , b)", "// z");
        check("f::<'a>('\\'', '\"', b'x', &'a str)", "f::<'a>( , \" , , &'a str)", "");
        check("let r#fn = br; \"\n\" x", "let r#fn = br; \" \" x", "");
    }

    #[test]
    fn test_modules_are_left_out_and_lines_keep_their_numbers() {
        let text = "use a;\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\n#[cfg(test)]\nmod more;\nfn c() {}\n";
        let code = Source::new(text).code_without_tests();
        assert_eq!(words(&code).map(|(_, word)| word).collect::<Vec<_>>(), ["use", "a", "fn", "c"]);
        assert_eq!(code.lines().count(), 8);
    }
}
