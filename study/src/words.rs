//! Outside text made safe to show: names of networks, layers and files may contain any character.

use std::fmt;

/// Returns `true` if a reader obeys a character instead of showing it: colours, bells and new lines of terminals, and
/// Unicode's marks that reverse the following text or break a line.
pub fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns a text with the characters that a reader obeys escaped.
pub fn visible(text: &str) -> String {
    let shown = |c: char| if is_obeyed(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Returns equivalent JSON with those characters written as JSON escapes. Line breaks between values stay.
pub fn visible_json(json: &str) -> String {
    let shown = |c: char| match c {
        '\n' => c.to_string(),
        c if is_obeyed(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(shown).collect()
}

/// Returns one or more lines without other characters that a reader obeys, which names may contain.
pub fn lines(words: impl fmt::Display) -> String {
    words.to_string().split('\n').map(visible).collect::<Vec<_>>().join("\n")
}
