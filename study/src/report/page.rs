//! The page of a report: one HTML file that opens from a disk, without a network, and holds all that it shows.
//!
//! Template, style, scripts and the plotting library are part of the program; the report itself goes in as JSON, and the
//! page's script shows it. Names in it come from anybody's traces, so that nothing of it can end the element it stands in, and
//! the script never makes markup of a text. What it does not do: it computes nothing that is not in the report already.

use crate::report::Report;
use crate::words::is_obeyed;

/// The skeleton, with `{{places}}` to fill.
const TEMPLATE: &str = include_str!("page/report.html");
const STYLE: &str = include_str!("page/report.css");
/// Apache ECharts; `page/echarts/build.sh` says how it was made.
const LIBRARY: &str = include_str!("page/echarts/echarts.min.js");
/// The page's own scripts, in the order in which they go in.
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
/// What goes with the library wherever it goes.
const LICENCES: [&str; 5] = [
    include_str!("page/echarts/NOTICE"),
    include_str!("page/echarts/LICENSE"),
    include_str!("page/echarts/LICENSE-zrender"),
    include_str!("page/echarts/LICENSE-d3"),
    include_str!("page/echarts/LICENSE-tslib"),
];

impl Report {
    /// The report as a page, complete in itself.
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
            // Within JSON `<` stands only in texts, where it may be written by its number.
            "report" => page.push_str(&json.replace('<', "\\u003c")),
            "library" => page.push_str(LIBRARY.trim_end()),
            "script" => SCRIPTS.iter().for_each(|text| page.push_str(text)),
            other => unreachable!("the template has a place {other}"),
        };
        let mut page =
            String::with_capacity(TEMPLATE.len() + STYLE.len() + LIBRARY.len() + json.len() + (1 << 17));
        // Places are found in the template alone, never in what was filled in.
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

/// JSON in whose texts the characters that a reader obeys are written out, to be seen.
fn written_out(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match is_obeyed(character) {
            // The backslash that is to be seen is one of the text.
            true => out.extend(['\\'].into_iter().chain(character.escape_default())),
            false => out.push(character),
        }
    }
    out
}

/// Appends a text so that HTML shows it as it is, in an element or in an attribute.
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
