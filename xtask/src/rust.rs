//! Rust source, read just closely enough to hold rules against it: what is code, what is comment, where functions
//! and test modules begin and end.
//!
//! A lexer that knows comments, literals and lifetimes is enough, because formatted code keeps its tokens in
//! predictable places; a full parser would be the only large dependency here. It knows nothing of macros or types.

/// A source text seen three times, line for line: once only its code, once only its comments, once only its literals (whose
/// quotes stay in the code, too). Whatever is left out is spaces.
pub struct Source {
    /// The code.
    pub code: String,
    /// The comments, with their slashes.
    pub comments: String,
    /// The literals, with their quotes.
    pub literals: String,
}

/// A function with a body: its name and its first and last line, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub first: usize,
    pub last: usize,
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
        let [mut code, mut comments, mut literals] = [const { String::new() }; 3];
        let mut rest = text;
        while !rest.is_empty() {
            let (kind, length) = token(rest, code.ends_with(is_name));
            for character in rest[..length].chars() {
                let blank = if character == '\n' { '\n' } else { ' ' };
                let seen = kind == Kind::Code || (kind == Kind::Literal && character == '"');
                code.push(if seen { character } else { blank });
                comments.push(if kind == Kind::Comment { character } else { blank });
                literals.push(if kind == Kind::Literal { character } else { blank });
            }
            rest = &rest[length..];
        }
        Source { code, comments, literals }
    }

    /// The code with every item under `#[cfg(test)]` left out, line for line.
    pub fn code_without_tests(&self) -> String {
        const MARK: &str = "#[cfg(test)]";
        let mut code = self.code.clone();
        while let Some(start) = code.find(MARK) {
            let end = item_end(&code, start + MARK.len());
            let blank: String = code[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
            code.replace_range(start..end, &blank);
        }
        code
    }

    /// The functions that have a body, in order of their first lines.
    pub fn functions(&self) -> Vec<Function> {
        let code = &self.code;
        let mut found = Vec::new();
        for (at, _) in words(code).filter(|(_, word)| *word == "fn") {
            let name: String = code[at + 2..].trim_start().chars().take_while(|c| is_name(*c)).collect();
            let end = item_end(code, at + 2);
            if !name.is_empty() && code[..end].ends_with('}') {
                found.push(Function { name, first: line_of(code, at), last: line_of(code, end - 1) });
            }
        }
        found
    }
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
    fn functions_end_where_their_bodies_end() {
        let text =
            "fn a(x: [u8; 2]) -> u8 {\n  if x { '}' }\n}\ntrait T { fn b(); }\ntype F = fn(u8);\nfn c() {}\n";
        let all = Source::new(text).functions();
        let lines: Vec<_> = all.iter().map(|f| (f.name.as_str(), f.first, f.last)).collect();
        assert_eq!(lines, [("a", 1, 3), ("c", 6, 6)]);
    }

    #[test]
    fn test_modules_are_left_out_and_lines_keep_their_numbers() {
        let text = "use a;\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\n#[cfg(test)]\nmod more;\nfn c() {}\n";
        let code = Source::new(text).code_without_tests();
        assert_eq!(words(&code).map(|(_, word)| word).collect::<Vec<_>>(), ["use", "a", "fn", "c"]);
        assert_eq!(code.lines().count(), 8);
    }
}
