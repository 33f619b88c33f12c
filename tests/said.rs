//! Output of commands: an answer on standard output, a document if requested, options for research under their own heading, and
//! numbers that do not contradict each other.

use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the program in a folder, with this standard input and without the user's settings.
fn plimsoll(folder: &Path, arguments: &str, input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("XDG_CONFIG_HOME", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A command that reads nothing has closed its end.
    let _ = child.stdin.take().expect("stdin is piped").write_all(input);
    child.wait_with_output().expect("it ends")
}

/// Returns standard output of a command that succeeds.
#[track_caller]
fn printed(folder: &Path, arguments: &str, input: &[u8]) -> Vec<u8> {
    let output = plimsoll(folder, arguments, input);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Checks that the command exits with this code, and that stderr contains all these texts.
#[track_caller]
fn refused(folder: &Path, arguments: &str, code: i32, says: &[&str]) {
    let output = plimsoll(folder, arguments, b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
    says.iter().for_each(|words| assert!(said.contains(words), "{arguments} does not say `{words}`: {said}"));
}

/// Returns a folder with a trace whose ops take a millisecond each.
fn traced() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = printed(folder.path(), "trace lenet --batch 64", b"");
    let timed = String::from_utf8(trace).expect("text").replace("\"seconds\":0.0", "\"seconds\":0.001");
    fs::write(folder.path().join("t.json"), timed).expect("a file");
    folder
}

const PLAN: &str = "plan t.json --budget 95% --link 50MB/s";

#[test]
fn a_plan_without_a_file_is_its_answer() {
    let folder = traced();
    let folder = folder.path();
    let output = plimsoll(folder, PLAN, b"");
    assert!(output.status.success());
    let answer = String::from_utf8(output.stdout).expect("text");
    for words in ["makespan / compute", "lower bound", "swapped", "recomputed", "pool"] {
        assert!(answer.contains(words), "{words}: {answer}");
    }
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.contains("-o FILE") && said.contains("-o -"),
        "it says where the schedule can be had: {said}"
    );
    let facts: Value =
        serde_json::from_slice(&printed(folder, &format!("{PLAN} --format json"), b"")).expect("JSON");
    assert!(facts["plan"]["makespan_seconds"].is_f64() && facts["plan"]["schedule"].is_null(), "{facts}");
    assert!(facts["plan"].get("last_policy_seconds").is_none(), "{PLAN} is not by the DQN");
    let dqn = printed(folder, &format!("{PLAN} --policy dqn --format json"), b"");
    let dqn: Value = serde_json::from_slice(&dqn).expect("JSON");
    let [best, last] = ["makespan_seconds", "last_policy_seconds"].map(|key| dqn["plan"][key].as_f64());
    assert!(best.zip(last).is_some_and(|(best, last)| best <= last), "{dqn}");
    let written: Value =
        serde_json::from_slice(&printed(folder, &format!("{PLAN} -o s.json --format json"), b""))
            .expect("JSON");
    assert_eq!(written["plan"]["schedule"], "s.json");
    // Only the requested files are left.
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 2);
}

#[test]
fn a_plan_is_made_from_that_of_another_batch() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"), b"");
    let trace = String::from_utf8(printed(folder, "trace lenet --batch 72", b"")).expect("text");
    fs::write(folder.join("u.json"), trace.replace("\"seconds\":0.0", "\"seconds\":0.001")).expect("a file");
    let plan = "plan u.json --budget 95% --link 50MB/s --from s.json";
    refused(folder, &format!("{plan} -o v.json"), 2, &["is not valid for its trace", "--from-trace TRACE"]);
    assert!(!folder.join("v.json").exists(), "nothing is written");
    let made = printed(folder, &format!("{plan} --from-trace t.json -o v.json --format json"), b"");
    let made: Value = serde_json::from_slice(&made).expect("JSON");
    assert_eq!(made["plan"]["batch"], 72);
    printed(folder, "check u.json v.json", b"");
    let new = printed(folder, "plan u.json --budget 95% --link 50MB/s --format json", b"");
    let new: Value = serde_json::from_slice(&new).expect("JSON");
    let [made, new] = [made, new].map(|answer| answer["plan"]["makespan_seconds"].as_f64().expect("seconds"));
    assert!(made <= 1.05 * new, "{made} s, and {new} s anew");
}

#[test]
fn documents_go_through_pipes() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"), b"");
    let schedule = fs::read(folder.join("s.json")).expect("a schedule");
    let piped = printed(folder, &format!("{PLAN} -o -"), b"");
    assert!(piped == schedule, "standard output has the schedule and nothing else");
    for command in ["check t.json -", "simulate t.json -"] {
        printed(folder, command, &piped);
    }
    let trace = fs::read(folder.join("t.json")).expect("a trace");
    let piped = printed(folder, "plan - --budget 95% --link 50MB/s -o -", &trace);
    assert!(piped == schedule, "and so from a pipe");
    assert!(!folder.join("-").exists());
    // A command without a plan writes no partial document.
    let short = plimsoll(folder, "plan t.json --budget 1KiB --link 50MB/s -o -", b"");
    assert_eq!((short.status.code(), short.stdout.len()), (Some(3), 0));
    refused(folder, "check t.json -", 2, &["standard input", "empty"]);
    refused(folder, "plan t.json --sweep 2 --link 50MB/s -o -", 2, &["--sweep", "a folder"]);
    refused(folder, "simulate t.json s.json --trace-out -", 2, &["standard output", "name a file"]);
    let twice = plimsoll(folder, "check - -", &trace);
    let said = String::from_utf8_lossy(&twice.stderr);
    assert!(twice.status.code() == Some(2) && said.contains("`-` is named twice"), "{said}");
}

/// An op has a faster alternative than its usual one, and a plan uses it.
#[test]
fn no_makespan_is_below_compute() {
    let folder = traced();
    let folder = folder.path();
    let path = folder.join("t.json");
    let mut trace: Value = serde_json::from_slice(&fs::read(&path).expect("a trace")).expect("JSON");
    for op in trace["ops"].as_array_mut().expect("ops") {
        op["alternatives"] = json!([{"name": "fast", "seconds": 0.0007, "workspace_bytes": 0}]);
    }
    fs::write(&path, trace.to_string()).expect("a file");
    let of = |line: &str, table: &str| -> Value {
        let all: Value =
            serde_json::from_slice(&printed(folder, &format!("{line} --format json"), b"")).expect("JSON");
        all[table].clone()
    };
    let check = |row: &Value| {
        let [ratio, bound, makespan] =
            ["ratio_to_compute", "bound_seconds", "makespan_seconds"].map(|key| row[key].as_f64());
        assert!(ratio.is_none_or(|ratio| ratio >= 1.0 - 1e-9), "{row}");
        assert!(makespan.is_none() || makespan >= bound, "{row}");
        ratio.is_some()
    };
    assert!(check(&of("plan t.json --budget 100% --link 50MB/s", "plan")));
    for (line, table) in [
        ("plan t.json --sweep 3 --link 50MB/s", "frontier"),
        ("compare t.json --budget 95% --link 50MB/s", "policies"),
    ] {
        let rows = of(line, table);
        let known = rows.as_array().expect("rows").iter().filter(|row| check(row)).count();
        assert!(known > 0, "{line}: {rows}");
    }
}

#[test]
fn options_for_research_stand_under_their_own_heading() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let help = |line: &str| String::from_utf8(printed(folder, line, b"")).expect("text");
    for (verb, options) in [
        ("plan", &["--without", "--no-pieces", "--seed"][..]),
        ("compare", &["--without", "--no-pieces", "--seed"]),
        ("tune", &["--search", "--convexity"]),
        ("auto", &["--search", "--convexity"]),
        ("trace", &["--relu", "--draw", "--seed"]),
    ] {
        let has = |text: &str, option: &str| text.lines().any(|line| line.trim_start().starts_with(option));
        for asked in ["--help", "-h"] {
            let all = help(&format!("{verb} {asked}"));
            let (usual, rest) = all.split_once("\nResearch options:\n").expect("the heading");
            let (research, _) = rest.split_once("\nOutput:\n").expect("the heading that follows");
            for option in options {
                assert!(has(research, option) && !has(usual, option), "{verb} {asked}: {option}: {all}");
            }
        }
    }
    assert!(!help("check --help").contains("Research options"));
}

#[test]
fn explain_counts_the_layers_that_it_leaves_out() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"), b"");
    let of = |line: &str| -> Value { serde_json::from_slice(&printed(folder, line, b"")).expect("JSON") };
    let explained = of("explain --trace t.json --schedule s.json --format json");
    printed(folder, "report --trace t.json --schedule s.json --format json -o r.json", b"");
    let report: Value =
        serde_json::from_slice(&fs::read(folder.join("r.json")).expect("a report")).expect("JSON");
    let [listed, all] =
        [&explained["layers"], &report["layers"]].map(|layers| layers.as_array().expect("layers").len());
    assert!(listed < all);
    assert_eq!(explained["explanation"]["layers_left_out"], json!(all - listed));
}

#[test]
fn csv_is_one_table_whatever_a_command_prints() {
    let folder = traced();
    let folder = folder.path();
    printed(folder, &format!("{PLAN} -o s.json"), b"");
    for (line, several) in [
        ("explain --trace t.json --schedule s.json", true),
        ("explain --trace t.json --schedule s.json --layer conv1", true),
        ("simulate t.json s.json --commands", true),
        ("config show --all", true),
        ("check t.json s.json", false),
    ] {
        let text = printed(folder, &format!("{line} --format csv"), b"");
        let text = String::from_utf8(text).expect("text");
        let heading = text.lines().next().expect("a heading");
        assert_eq!(heading.starts_with("table,"), several, "{line}: {heading}");
        let columns: Vec<&str> = heading.split(',').collect();
        let of: Value =
            serde_json::from_slice(&printed(folder, &format!("{line} --format json"), b"")).expect("JSON");
        let rows: usize =
            of.as_object().expect("tables").values().map(|t| t.as_array().map_or(1, Vec::len)).sum();
        let mut known = columns.clone();
        known.sort_unstable();
        known.dedup();
        assert_eq!(known.len(), columns.len(), "{line}: a column stands twice: {heading}");
        // No cell of these contains a line break.
        assert_eq!(text.lines().count(), 1 + rows, "{line}: {text}");
    }
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
