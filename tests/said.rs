//! Output of commands: an answer on standard output, a document if requested, options for research under their own heading, and
//! numbers that do not contradict each other.

use crate::program::{change, check, checked, command, json, list, output, printed, timed};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

/// Runs the program in a folder, with this standard input.
fn given(folder: &Path, line: &str, input: &str) -> Output {
    let mut command = command(folder, line);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // A command that reads nothing has closed its end.
    let _ = child.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

/// Returns a folder with a trace whose ops take a millisecond each.
fn traced() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    timed(folder.path(), "lenet --batch 64");
    folder
}

const PLAN: &str = "plan t.json --budget 95% --link 50MB/s";

#[test]
fn a_plan_without_a_file_is_its_answer() {
    let folder = traced();
    let folder = folder.path();
    let output = output(folder, PLAN);
    checked(PLAN, &output, 0, &["-o FILE", "-o -"]);
    let answer = String::from_utf8(output.stdout).expect("text");
    for words in ["makespan / compute", "lower bound", "swapped", "recomputed", "pool"] {
        assert!(answer.contains(words), "{words}: {answer}");
    }
    let facts = &json(folder, PLAN)["plan"];
    assert!(facts["makespan_seconds"].is_f64() && facts["schedule"].is_null(), "{facts}");
    assert!(facts.get("last_policy_seconds").is_none(), "{PLAN} is not by the DQN");
    let dqn = &json(folder, &format!("{PLAN} --policy dqn"))["plan"];
    let [best, last] = ["makespan_seconds", "last_policy_seconds"].map(|key| dqn[key].as_f64());
    assert!(best.zip(last).is_some_and(|(best, last)| best <= last), "{dqn}");
    assert_eq!(json(folder, &format!("{PLAN} -o s.json"))["plan"]["schedule"], "s.json");
    // Only the requested files are left.
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 2);
}

#[test]
fn a_plan_is_made_from_that_of_another_batch() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"));
    fs::rename(folder.join("t.json"), folder.join("old.json")).expect("a file");
    timed(folder, "lenet --batch 72");
    let plan = format!("{PLAN} --from s.json -o v.json");
    check(folder, &plan, 2, &["is not valid for its trace", "--from-trace TRACE"]);
    assert!(!folder.join("v.json").exists(), "nothing is written");
    let made = json(folder, &format!("{plan} --from-trace old.json"));
    assert_eq!(made["plan"]["batch"], 72);
    check(folder, "check t.json v.json", 0, &[]);
    let new = json(folder, PLAN);
    let [made, new] = [made, new].map(|answer| answer["plan"]["makespan_seconds"].as_f64().expect("seconds"));
    assert!(made <= 1.05 * new, "{made} s, and {new} s anew");
}

#[test]
fn documents_go_through_pipes() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a document");
    let schedule = read("s.json");
    let piped = printed(folder, &format!("{PLAN} -o -"));
    assert!(piped == schedule, "standard output has the schedule and nothing else");
    for line in ["check t.json -", "simulate t.json -"] {
        checked(line, &given(folder, line, &piped), 0, &[]);
    }
    let piped = given(folder, "plan - --budget 95% --link 50MB/s -o -", &read("t.json"));
    assert!(piped.stdout == schedule.as_bytes(), "and so from a pipe");
    assert!(!folder.join("-").exists());
    // A command without a plan writes no partial document.
    let short = output(folder, "plan t.json --budget 1KiB --link 50MB/s -o -");
    assert_eq!((short.status.code(), short.stdout.len()), (Some(3), 0));
    for (line, input, says) in [
        ("check t.json -", "", ["standard input", "empty"]),
        ("simulate t.json s.json --trace-out -", "", ["standard output", "name a file"]),
        ("check - -", &read("t.json"), ["`-` is named twice", "-"]),
    ] {
        checked(line, &given(folder, line, input), 2, &says);
    }
}

/// An op has a faster alternative than its usual one, and a plan uses it.
#[test]
fn no_makespan_is_below_compute() {
    let folder = traced();
    let folder = folder.path();
    change(&folder.join("t.json"), |trace| {
        for op in trace["ops"].as_array_mut().expect("ops") {
            op["alternatives"] =
                serde_json::json!([{"name": "fast", "seconds": 0.0007, "workspace_bytes": 0}]);
        }
    });
    let check = |row: &Value| {
        let [ratio, bound, makespan] =
            ["ratio_to_compute", "bound_seconds", "makespan_seconds"].map(|key| row[key].as_f64());
        assert!(ratio.is_none_or(|ratio| ratio >= 1.0 - 1e-9), "{row}");
        assert!(makespan.is_none() || makespan >= bound, "{row}");
        ratio.is_some()
    };
    assert!(check(&json(folder, "plan t.json --budget 100% --link 50MB/s")["plan"]));
    for (line, table) in [
        ("plan t.json --sweep 3 --link 50MB/s", "frontier"),
        ("compare t.json --budget 95% --link 50MB/s", "policies"),
    ] {
        let rows = &json(folder, line)[table];
        assert!(list(rows).iter().filter(|row| check(row)).count() > 0, "{line}: {rows}");
    }
}

#[test]
fn options_for_research_stand_under_their_own_heading() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    for (verb, options) in [
        ("plan", &["--without", "--no-pieces", "--seed"][..]),
        ("compare", &["--without", "--no-pieces", "--seed"]),
        ("tune", &["--search", "--convexity"]),
        ("auto", &["--search", "--convexity"]),
        ("trace", &["--relu"]),
    ] {
        let has = |text: &str, option: &str| text.lines().any(|line| line.trim_start().starts_with(option));
        for asked in ["--help", "-h"] {
            let all = printed(folder, &format!("{verb} {asked}"));
            let (usual, rest) = all.split_once("\nResearch options:\n").expect("the heading");
            let (research, _) = rest.split_once("\nOutput:\n").expect("the heading that follows");
            for option in options {
                assert!(has(research, option) && !has(usual, option), "{verb} {asked}: {option}: {all}");
            }
        }
    }
    assert!(!printed(folder, "check --help").contains("Research options"));
}

#[test]
fn csv_is_one_table_whatever_a_command_prints() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"));
    for (line, several) in [
        ("explain --trace t.json --schedule s.json", true),
        ("explain --trace t.json --schedule s.json --layer conv1", true),
        ("simulate t.json s.json --commands", true),
        ("config show --all", true),
        ("check t.json s.json", false),
    ] {
        let text = printed(folder, &format!("{line} --format csv"));
        let heading = text.lines().next().expect("a heading");
        assert_eq!(heading.starts_with("table,"), several, "{line}: {heading}");
        let columns: Vec<&str> = heading.split(',').collect();
        let known: std::collections::BTreeSet<&&str> = columns.iter().collect();
        assert_eq!(known.len(), columns.len(), "{line}: a column stands twice: {heading}");
        let of = json(folder, line);
        let tables = of.as_object().expect("tables").values();
        let rows: usize = tables.map(|table| table.as_array().map_or(1, Vec::len)).sum();
        // No cell of these contains a line break.
        assert_eq!(text.lines().count(), 1 + rows, "{line}: {text}");
    }
    // The layers that are left out are counted.
    let explained = json(folder, "explain --trace t.json --schedule s.json");
    let report = json(folder, "report --trace t.json --schedule s.json");
    let [listed, all] = [&explained, &report].map(|of| list(&of["layers"]).len());
    assert!(listed < all);
    assert_eq!(explained["explanation"]["layers_left_out"], all - listed);
}

/// Directories with messages, of the program and of the PyTorch front.
const SOURCES: [&str; 9] = [
    "src",
    "study/src",
    "profiler/src",
    "runtime/src",
    "networks/src",
    "tuner/src",
    "ir/src",
    "python/plimsoll",
    "python/src",
];

/// Returns the sources in a directory and below it, without comment lines. A text that continues on the next line is joined.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "py") {
            let text = fs::read_to_string(&path).expect("a source");
            let mut joined = String::new();
            let mut goes_on = false;
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let line = if goes_on { line.trim_start() } else { line };
                let part = line.strip_suffix('\\');
                goes_on = part.is_some();
                joined.push_str(part.unwrap_or(line));
                if !goes_on {
                    joined.push('\n');
                }
            }
            found.push(joined);
        }
    }
    found
}

#[test]
fn messages_that_troubleshooting_quotes_stand_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts: Vec<String> = SOURCES.iter().flat_map(|folder| sources(&root.join(folder))).collect();
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).expect("the page");
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    // Every second part lies between two backticks.
    let quoted: Vec<&str> = headings.flat_map(|heading| heading.split('`').skip(1).step_by(2)).collect();
    assert!(quoted.len() >= 30, "{quoted:?}");
    let unsaid: Vec<&&str> =
        quoted.iter().filter(|words| !texts.iter().any(|text| text.contains(**words))).collect();
    assert!(unsaid.is_empty(), "docs/troubleshooting.md quotes what no source says: {unsaid:?}");
}
