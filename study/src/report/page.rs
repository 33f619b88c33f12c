//! The page of a report: one HTML file that opens from disk, without a network, and contains everything that it shows.
//!
//! Template, style, scripts and the plotting library are part of the program; the report is embedded as JSON, and the page's
//! script shows it. Its names come from untrusted traces, so the JSON cannot close the element around it, and the script never
//! interprets a text as markup. The page computes nothing that is not already in the report.

use crate::report::Report;
use crate::words::is_obeyed;

/// Skeleton, with `{{places}}` to fill.
const TEMPLATE: &str = include_str!("page/report.html");
const STYLE: &str = include_str!("page/report.css");
/// Apache ECharts, built by `page/echarts/build.sh`.
const LIBRARY: &str = include_str!("page/echarts/echarts.min.js");
/// The page's own scripts, in order of inclusion.
const SCRIPTS: [&str; 13] = [
    include_str!("page/words.js"),
    include_str!("page/tables.js"),
    include_str!("page/plots.js"),
    include_str!("page/parts.js"),
    include_str!("page/answer.js"),
    include_str!("page/batches.js"),
    include_str!("page/workers.js"),
    include_str!("page/timeline.js"),
    include_str!("page/memory.js"),
    include_str!("page/layers.js"),
    include_str!("page/fit.js"),
    include_str!("page/policies.js"),
    include_str!("page/page.js"),
];
/// Notices and licences that must accompany the library.
const LICENCES: [&str; 5] = [
    include_str!("page/echarts/NOTICE"),
    include_str!("page/echarts/LICENSE"),
    include_str!("page/echarts/LICENSE-zrender"),
    include_str!("page/echarts/LICENSE-d3"),
    include_str!("page/echarts/LICENSE-tslib"),
];

impl Report {
    /// Returns the report as a self-contained page.
    pub fn html(&self) -> String {
        let json = serde_json::to_string(self).expect("a report has only texts, numbers and lists");
        let json = written_out(&json);
        let Report { about, answer, .. } = self;
        let fill = |place: &str, page: &mut String| match place {
            "title" => {
                escaped(&format!("{}, batch {}: Plimsoll's report", about.network, about.batch), page);
            }
            "generator" => escaped(&format!("Plimsoll {}", about.plimsoll), page),
            "headline" => escaped(answer.as_ref().map_or("", |answer| &answer.headline), page),
            "style" => page.push_str(STYLE),
            "licences" => LICENCES.iter().for_each(|text| {
                escaped(text.trim(), page);
                page.push_str("\n\n");
            }),
            // In JSON `<` occurs only in strings, where an escape may replace it.
            "report" => page.push_str(&json.replace('<', "\\u003c")),
            "library" => page.push_str(LIBRARY.trim_end()),
            "script" => SCRIPTS.iter().for_each(|text| page.push_str(text)),
            other => unreachable!("the template has a place {other}"),
        };
        let mut page =
            String::with_capacity(TEMPLATE.len() + STYLE.len() + LIBRARY.len() + json.len() + (1 << 17));
        // Only the template has places to fill, never the text filled in.
        let mut parts = TEMPLATE.split("{{");
        page.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (place, rest) = part.split_once("}}").expect("every place of the template ends");
            fill(place, &mut page);
            page.push_str(rest);
        }
        page
    }
}

/// Returns JSON with the characters in its strings that a reader obeys escaped, so that they are visible.
fn written_out(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match is_obeyed(character) {
            // The visible backslash is part of the string.
            true => out.extend(['\\'].into_iter().chain(character.escape_default())),
            false => out.push(character),
        }
    }
    out
}

/// Appends a text so that HTML shows it unchanged, in an element or in an attribute.
fn escaped(text: &str, page: &mut String) {
    for character in text.chars() {
        match character {
            obeyed if is_obeyed(obeyed) && obeyed != '\n' => page.extend(obeyed.escape_default()),
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            '\'' => page.push_str("&#39;"),
            other => page.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_goes_in_ends_its_element() {
        for script in SCRIPTS.iter().chain([&LIBRARY]) {
            let script = script.to_lowercase();
            assert!(!script.contains("</script") && !script.contains("<!--"), "a script would end early");
        }
        assert!(!STYLE.contains("</"), "the style would end early");
        assert!(!SCRIPTS.concat().contains("innerHTML"), "texts are shown as texts");
    }

    #[test]
    fn characters_that_a_reader_obeys_are_written_out() {
        let json = written_out(&serde_json::json!({"name": "a\u{202e}b\\"}).to_string());
        let back: serde_json::Value = serde_json::from_str(&json).expect("it is JSON still");
        assert_eq!(back["name"], "a\\u{202e}b\\");
        let mut page = String::new();
        escaped("a\u{202e}b", &mut page);
        assert_eq!(page, "a\\u{202e}b");
    }

    #[test]
    fn markup_is_written_out() {
        let mut page = String::new();
        escaped("<img src=x onerror='a()'> & \"b\"", &mut page);
        assert_eq!(page, "&lt;img src=x onerror=&#39;a()&#39;&gt; &amp; &quot;b&quot;");
    }
}
