//! What came of a run: a document of plain rows, and the tables that are made of it.
//!
//! A row is a JSON object whose names carry their units (`_seconds`, `_bytes`, `_per_second`, `_share`), as it came from a
//! section or from PyTorch; the tables read the units off the names. Results of one device and day are one file: running a
//! section again replaces its part.

use crate::row::{Row, words};
use crate::sections::{SECTIONS, Section};
use plimsoll::study::Error;
use plimsoll::study::files::write_text;
use plimsoll_ir::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// All that is known of one device on one day.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// What document this is.
    pub kind: String,
    /// Device, driver, versions and commit.
    pub machine: Row,
    /// What came of each section that was run.
    pub sections: Vec<Outcome>,
}

/// The document's kind.
pub const KIND: &str = "plimsoll-acceptance/1";

/// How names of files end that hold results of tiny sizes, which say nothing of speed.
const SMALL: &str = "-small";

/// How a section ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SectionState {
    /// It ran to its end.
    Done,
    /// It says why it could not.
    Failed,
    /// Its time was over; the rows are those until then.
    Cut,
}

/// What came of a section.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name.
    pub section: String,
    /// How it ended.
    pub state: SectionState,
    /// Why it did not run to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What it took.
    pub seconds: f64,
    /// Version and commit of what was tried.
    pub plimsoll: String,
    /// Whether it was run in tiny sizes, which say nothing of speed.
    pub small: bool,
    /// What it measured.
    pub rows: Vec<Row>,
    /// The day of the measurement, where the results around it are of another day.
    #[serde(skip)]
    pub date: Option<String>,
}

impl Results {
    /// The results of a device and day, those that are there already included; those of tiny sizes are kept apart.
    pub fn open(folder: &Path, machine: Row, small: bool) -> Result<(Results, PathBuf), Error> {
        let slug = |text: &str| {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
            text.chars().map(plain).collect::<String>()
        };
        let name = format!("{}-{}", slug(words(&machine, "device")), words(&machine, "date"));
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "create", &e))?;
        let path = folder.join(format!("{name}{}.json", if small { SMALL } else { "" }));
        let sections = if path.exists() { read(&path)?.sections } else { Vec::new() };
        Ok((Results { kind: KIND.to_owned(), machine, sections }, path))
    }

    /// Takes in what came of a section, in the place of what was known of it, and writes everything, with the tables beside.
    pub fn add(&mut self, outcome: Outcome, path: &Path) -> Result<(), Error> {
        let place = |name: &str| SECTIONS.iter().position(|section| section.name == name);
        self.sections.retain(|known| known.section != outcome.section);
        self.sections.push(outcome);
        self.sections.sort_by_key(|known| place(&known.section));
        let text = serde_json::to_string_pretty(self).expect("rows are plain");
        write_text(path, &(text + "\n"))?;
        write_text(&path.with_extension("md"), &self.markdown())
    }

    /// Adds the sections of earlier results of the same device that have no rows here.
    fn complete_with(&mut self, earlier: Results) {
        let date = words(&earlier.machine, "date");
        for mut outcome in earlier.sections {
            let known = self.sections.iter().position(|known| known.section == outcome.section);
            if known.is_some_and(|at| !self.sections[at].rows.is_empty() || outcome.rows.is_empty()) {
                continue;
            }
            outcome.date.get_or_insert_with(|| date.to_owned());
            match known {
                Some(at) => self.sections[at] = outcome,
                None => self.sections.push(outcome),
            }
        }
    }

    /// What is known of a section.
    fn of(&self, section: &Section) -> Option<&Outcome> {
        self.sections.iter().find(|outcome| outcome.section == section.name)
    }

    /// Everything, as a page.
    pub fn markdown(&self) -> String {
        let mut page = format!("# {}\n\n", self.title());
        page += &targets(std::slice::from_ref(self));
        page += "\n## Machine\n\n";
        let facts = self.machine.iter().map(|(name, value)| vec![heading(name), shown(name, value)]);
        page += &table(&[String::new(), String::new()], facts);
        for outcome in &self.sections {
            let _ = write!(page, "\n## {}\n\n{}\n", outcome.section, outcome.line());
            // Rows with the same names stand in one table.
            let mut rest: &[Row] = &outcome.rows;
            while let Some(first) = rest.first() {
                let names: Vec<&String> = first.keys().collect();
                let like = rest.iter().take_while(|row| row.keys().eq(names.iter().copied())).count();
                let head: Vec<String> = names.iter().map(|name| heading(name)).collect();
                let rows = rest[..like].iter().map(|row| row.iter().map(|(n, v)| shown(n, v)).collect());
                let _ = write!(page, "\n{}", table(&head, rows));
                rest = &rest[like..];
            }
        }
        page
    }

    /// Device and day.
    fn title(&self) -> String {
        format!("{}, {}", words(&self.machine, "device"), words(&self.machine, "date"))
    }
}

impl Outcome {
    /// How it ended, in a line.
    pub fn line(&self) -> String {
        let how = match self.state {
            SectionState::Done => "ran to its end",
            SectionState::Failed => "failed",
            SectionState::Cut => "was cut",
        };
        let why = self.why.as_deref().map_or(String::new(), |why| format!(": {why}"));
        let small = if self.small { ", in tiny sizes" } else { "" };
        format!("{} {how} after {:.0} s{small}, plimsoll {}{why}", self.section, self.seconds, self.plimsoll)
    }
}

/// Reads one file of results.
fn read(path: &Path) -> Result<Results, Error> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, "read", &e))?;
    let results: Results = serde_json::from_str(&text)
        .map_err(|e| Error::usage(format_args!("{} holds no results: {e}", path.display())))?;
    if results.kind == KIND {
        return Ok(results);
    }
    Err(Error::usage(format_args!("{} holds `{}`, not `{KIND}`", path.display(), results.kind)))
}

/// The newest measurement of each section for each device of a folder; none where there is no folder.
pub fn folder(folder: &Path) -> Result<Vec<Results>, Error> {
    let mut devices: Vec<Results> = Vec::new();
    for mut results in every(folder)? {
        let device = words(&results.machine, "device").to_owned();
        if let Some(at) = devices.iter().position(|known| words(&known.machine, "device") == device) {
            results.complete_with(devices.remove(at));
        }
        devices.push(results);
    }
    Ok(devices)
}

/// All results in a folder, in the order of their names; none where there is no folder.
pub fn every(folder: &Path) -> Result<Vec<Results>, Error> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let small = |path: &Path| path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with(SMALL));
    paths.retain(|path| path.extension().is_some_and(|end| end == "json") && !small(path));
    // Names end in the day, so that what comes later in their order is newer.
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// The table of sections: what each asks, whether it runs by name only, and for how long at most.
pub fn sections() -> String {
    let head = ["section", "what it asks", "when", "seconds at most"].map(str::to_owned);
    let row = |section: &Section| {
        let when = if section.by_name_only { "by name" } else { "usually" };
        [section.name, section.asks, when, &section.seconds.to_string()].map(str::to_owned).to_vec()
    };
    table(&head, SECTIONS.iter().map(row))
}

/// The table of targets: what must be reached, and what each of these reached.
pub fn targets(all: &[Results]) -> String {
    let mut head = vec!["section".to_owned(), "what it must reach".to_owned()];
    if all.is_empty() {
        head.push("measured".to_owned());
    }
    head.extend(all.iter().map(Results::title));
    let rows =
        SECTIONS.iter().flat_map(|section| section.targets.iter().map(move |target| (section, target)));
    let rows = rows.map(|(section, target)| {
        let mut row = vec![section.name.to_owned(), target.what.to_owned()];
        if all.is_empty() {
            row.push(NOT_MEASURED.to_owned());
        }
        row.extend(all.iter().map(|results| {
            let outcome = results.of(section).filter(|outcome| !outcome.small);
            let Some(outcome) = outcome else { return NOT_MEASURED.to_owned() };
            let day = outcome.date.as_ref().map_or(String::new(), |date| format!(", {date}"));
            let Some(verdict) = (target.judge)(&outcome.rows) else {
                return format!("{NOT_MEASURED}: {}{day}", outcome.line());
            };
            let met = match (verdict.met, outcome.state) {
                (None, _) => "",
                (Some(false), _) => " (missed)",
                (Some(true), SectionState::Done) => " (met)",
                (Some(true), _) => " (so far: it did not run to its end)",
            };
            format!("{}{met}{day}", verdict.measured)
        }));
        row
    });
    table(&head, rows)
}

/// What stands where nothing was measured.
const NOT_MEASURED: &str = "not measured";

/// A table in Markdown.
fn table(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|").replace('\n', " ")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(head);
    let _ = writeln!(text, "|{}", "---|".repeat(head.len()));
    rows.for_each(|row| text += &line(&row));
    text
}

/// A name without what a cell shows by itself.
fn heading(name: &str) -> String {
    let ends = ["_bytes_per_second", "_per_second", "_seconds", "_bytes", "_share"];
    let end = ends.iter().find(|end| name.ends_with(*end));
    let stem = end.map_or(name, |end| &name[..name.len() - end.len()]);
    let unit = if end == Some(&"_per_second") { "/s" } else { "" };
    format!("{}{unit}", stem.replace('_', " "))
}

/// A value for people, by the unit in its name.
fn shown(name: &str, value: &Value) -> String {
    let Some(number) = value.as_f64() else {
        return match value {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
    };
    if name.ends_with("_bytes_per_second") {
        return format!("{:.1} GB/s", number / 1e9);
    }
    if name.ends_with("_seconds") {
        return Seconds(number).to_string();
    }
    if name.ends_with("_bytes") {
        return Bytes(number.max(0.0) as u64).to_string();
    }
    if name.ends_with("_share") {
        return format!("{:+.2} %", number * 100.0);
    }
    if value.is_u64() || value.is_i64() { value.to_string() } else { format!("{number:.3}") }
}
