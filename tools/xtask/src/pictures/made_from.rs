//! Record of the inputs of the README's pictures: a text that shows if they have changed.
//!
//! The text has the commands, a checksum of the page without its report, a checksum of the photograph, and, value by value, the
//! contents of the report's first screen. Values that differ between machines and days are left out: versions, times, the
//! commit. Numbers are rounded to four digits, since mathematical libraries differ in a last bit. The picture of memory is
//! text, and compared directly. This is built into xtask, which writes the text, and into a test of the root, which compares
//! it.

use serde_json::Value;

/// Commands that make the report, on a modelled device: it is the same on every machine.
pub const COMMANDS: [&str; 2] = [
    "plimsoll tune --network densenet121 --image 224 --data synthetic --device h100 --budget 4GiB --base-batch 64 \
     --max-batch 64 --study pictures",
    "plimsoll report pictures",
];

/// Path of the report.
pub const PAGE: &str = "pictures/report.html";

/// Directory of the pictures, from the root.
pub const FOLDER: &str = "docs/pictures";
/// Picture of the report's first screen.
pub const PHOTOGRAPH: &str = "report.png";
/// Picture of memory over time.
pub const MEMORY: &str = "memory.svg";
/// File of the text that [`made_from`] returns.
pub const MADE_FROM: &str = "made-from.txt";

/// Parts of a report that the first screen shows.
const SHOWN: [&str; 2] = ["/about", "/answer"];

/// Fields that differ between machines and days, or that the commands already contain.
const LEFT_OUT: [&str; 4] = ["plimsoll", "commit", "command", "unix_seconds"];

/// Row of the machine that names the version.
const VERSION: &str = "modelled with";

/// Splits a report's page into the report and the page around it.
pub fn taken_apart(page: &str) -> Result<(Value, String), String> {
    let begins = "<script type=\"application/json\" id=\"report\">";
    let (before, rest) = page.split_once(begins).ok_or("the page holds no report")?;
    let (report, after) = rest.split_once("</script>").ok_or("the report in the page has no end")?;
    let report = serde_json::from_str(report).map_err(|error| format!("the report in the page: {error}"))?;
    Ok((report, format!("{before}{after}")))
}

/// Returns the text for a page and its photograph.
pub fn made_from(page: &str, photograph: &[u8]) -> Result<String, String> {
    let (report, around) = taken_apart(page)?;
    let version = report["about"]["plimsoll"].as_str().ok_or("the report names no version")?;
    let around = around.replace(&format!("Plimsoll {version}"), "Plimsoll");
    let mut lines = vec!["Written by `cargo xtask pictures`, with the pictures beside it.".to_owned()];
    lines.extend(COMMANDS.map(str::to_owned));
    lines.push(format!("the page, without the report: {:016x}", checksum(around.as_bytes())));
    lines.push(format!("{PHOTOGRAPH}: {:016x}", checksum(photograph)));
    for shown in SHOWN {
        let value = report.pointer(shown).ok_or_else(|| format!("the report has no {shown}"))?;
        values(shown, value, &mut lines);
    }
    Ok(lines.join("\n") + "\n")
}

/// Writes every value below a place of the report, one per line.
fn values(place: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let stays = |name: &String| !LEFT_OUT.contains(&name.as_str());
            fields.iter().filter(|(name, _)| stays(name)).for_each(|(name, value)| {
                values(&format!("{place}/{name}"), value, lines);
            });
        }
        Value::Null => {}
        Value::Array(list) if list.first().is_some_and(|name| name == VERSION) => {}
        Value::Array(list) => list.iter().enumerate().for_each(|(at, value)| {
            values(&format!("{place}/{at}"), value, lines);
        }),
        Value::Number(number) if number.is_f64() => {
            lines.push(format!("{place}: {:.3e}", number.as_f64().unwrap_or(f64::NAN)));
        }
        Value::String(text) => lines.push(format!("{place}: {text}")),
        other => lines.push(format!("{place}: {other}")),
    }
}

/// FNV-1a of 64 bits: detects changes, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
