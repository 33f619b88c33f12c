//! All output of the command line: pages that somebody has read, kept as snapshots, and rules for the rest.
//!
//! `INSTA_UPDATE=always` accepts a page that changed on purpose; `git diff` then shows the change.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs the program in a folder, without the user's settings.
fn plimsoll(folder: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env_clear()
        .envs(["PATH", "HOME", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .env("XDG_CONFIG_HOME", folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("COLUMNS", "100")
        .output()
        .expect("the program starts")
}

/// Returns the folder of the tests that measure nothing: a trace whose ops take a millisecond each, schedules for it, a study.
fn made() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = folder.path();
        let run = |line: &str| assert!(plimsoll(at, line).status.success(), "{line}");
        run("trace lenet --batch 64 -o t.json");
        let text = fs::read_to_string(at.join("t.json")).expect("a trace");
        let timed = text.replace("\"seconds\":0.0", "\"seconds\":0.001");
        assert_ne!(timed, text);
        fs::write(at.join("t.json"), &timed).expect("a file");
        run("plan t.json --budget 95% --link 50MB/s --no-recompute -o s.json");
        let text = fs::read_to_string(at.join("s.json")).expect("a schedule");
        let mut damaged: Value = serde_json::from_str(&text).expect("JSON");
        damaged["pool_bytes"] = 256.into();
        fs::write(at.join("damaged.json"), damaged.to_string()).expect("a file");
        let stranger =
            timed.replace("\"name\":\"", "\"name\":\"other.").replace("\"name\": \"", "\"name\": \"other.");
        fs::write(at.join("stranger.json"), stranger).expect("a file");
        run("plan t.json --budget 100% --link 50MB/s --policy keep -o keep.json");
        run("trace mlp --batch 4 -o other.json");
        fs::create_dir(at.join("study")).expect("a folder");
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        for name in ["chosen.config.json", "chosen.schedule.json"] {
            fs::copy(data.join(name), at.join("study").join(name)).expect("a file");
        }
        fs::write(at.join("empty.json"), "").expect("a file");
        fs::write(at.join("short.json"), &timed[..timed.len() / 2]).expect("a file");
        fs::write(at.join("foreign.json"), "{\"a\": 1}").expect("a file");
        fs::write(at.join("key.json"), timed.replacen("\"batch\"", "\"batsch\"", 1)).expect("a file");
        fs::write(at.join("wrong.toml"), "[tune]\nepoch = 3\n").expect("a file");
        folder
    };
    FOLDER.get_or_init(make).path()
}

/// Returns a command, its output, and its exit code.
fn page(line: &str, output: &Output) -> String {
    let stdout = std::str::from_utf8(&output.stdout).expect("text");
    let stderr = std::str::from_utf8(&output.stderr).expect("text");
    let code = output.status.code().expect("it ends by itself");
    let end = if code == 0 { String::new() } else { format!("[exit code {code}]\n") };
    format!("$ plimsoll {line}\n{stdout}{stderr}{end}\n")
}

fn told(folder: &Path, line: &str) -> String {
    page(line, &plimsoll(folder, line))
}

/// Parses a command's JSON output.
#[track_caller]
fn parsed(line: &str, output: &Output) -> Value {
    assert!(output.status.success(), "{}", page(line, output));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
}

/// Returns a table line's cells, which wide gaps separate.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// Returns a table without the seconds of planning, which also affect the column widths.
fn without_planning(text: &str) -> String {
    let mut column = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut row = cells(line);
        if let Some(at) = row.iter().position(|cell| *cell == "planning") {
            column = Some(at);
        } else if let Some(cell) = column.and_then(|at| row.get_mut(at)) {
            *cell = "#";
        }
        if row.first() == Some(&"planning time") {
            row = vec!["planning time", "#"];
        }
        lines.push(row.join("  "));
    }
    lines.join("\n") + "\n"
}

#[test]
fn every_command_has_help() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = <plimsoll::args::Cli as clap::CommandFactory>::command();
    let mut commands = Vec::new();
    for verb in program.get_subcommands() {
        let name = verb.get_name();
        commands.push(name.to_owned());
        commands.extend(verb.get_subcommands().map(|nested| format!("{name} {}", nested.get_name())));
    }
    for command in &commands {
        let line = format!("{command} --help");
        let output = plimsoll(folder.path(), &line);
        let page = page(&line, &output);
        assert!(output.status.success() && output.stderr.is_empty(), "{page}");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.starts_with(char::is_alphabetic), "{page}");
        assert!(text.contains(&format!("\nUsage: plimsoll {command}")), "{page}");
    }
    for command in ["", "config"] {
        let output = plimsoll(folder.path(), command);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("\nUsage: plimsoll"));
    }
    insta::assert_snapshot!("help", told(folder.path(), "--help"));
    insta::assert_snapshot!("help-tune", told(folder.path(), "tune --help"));
}

/// Pages that are the same on every machine.
const EXACT: [(&str, &[&str]); 2] = [
    (
        "table-explain",
        &[
            "explain --trace t.json --schedule s.json",
            "explain --trace t.json --schedule s.json --layer conv2",
        ],
    ),
    (
        "formats",
        &[
            "check t.json s.json --format csv",
            "check t.json s.json --format md",
            "check t.json s.json --format json",
        ],
    ),
];

/// Pages that also show the time of planning.
const PLANNED: [(&str, &[&str]); 2] = [
    (
        "table-plan",
        &[
            "plan t.json --budget 95% --link 50MB/s -o p.json",
            "plan t.json --budget 100% --link 50MB/s",
            "plan t.json --budget 95% --link 50MB/s -o p.json --policy keep",
            "plan t.json --budget 1KiB --link 50MB/s -o p.json",
            "plan t.json --sweep 3 --link 50MB/s",
            "plan t.json --budget 95% --link 50MB/s -o p.json --host-memory 100KiB",
            "plan t.json --budget 95% --link 50MB/s -o p.json --host-memory 1KiB --no-recompute",
            "plan t.json --budget 1KiB --link 50MB/s -o x.json --from s.json",
        ],
    ),
    (
        "table-compare",
        &[
            "compare t.json --budget 95% --link 50MB/s",
            "compare t.json --budget 2.2MiB --link 50MB/s --policies keep,vdnn-conv",
            "compare t.json --budget 1KiB --link 50MB/s --policies keep,naive,plimsoll",
            "compare t.json --sweep 2 --link 1GB/s --policies keep,plimsoll",
            "compare t.json --budget 95% --link 50MB/s --policies keep,naive,plimsoll --host-memory 100KiB",
            "compare t.json --budget 95% --link 50MB/s --policies keep,naive,greedy --host-memory 300KiB",
        ],
    ),
];

/// Other commands that succeed.
const OTHERS: [&str; 16] = [
    "check t.json s.json",
    "simulate t.json s.json",
    "simulate t.json s.json --commands",
    "simulate t.json keep.json",
    "plan other.json --budget 100% --link 50MB/s -o p.json",
    "networks lenet",
    "networks",
    "config show",
    "config show --all",
    "config show plan --budget 3MiB",
    "export study --to torchrun",
    "export study --to accelerate --workers 2 --global-batch 384",
    "export study --to lightning --workers 2",
    "export study --to deepspeed --optimizer adamw --decay constant",
    "export study/chosen.config.json --to deepspeed --format csv",
    "verify --network mlp --batch 4 --iterations 2 --threads 1",
];

#[test]
fn what_is_printed() {
    for (name, lines) in EXACT {
        let all: String = lines.iter().map(|line| told(made(), line)).collect();
        insta::assert_snapshot!(name, all);
    }
    for (name, lines) in PLANNED {
        let all: String = lines.iter().map(|line| without_planning(&told(made(), line)) + "\n").collect();
        insta::assert_snapshot!(name, all);
    }
    for line in OTHERS {
        let output = plimsoll(made(), line);
        assert!(output.status.success() && !output.stdout.is_empty(), "{}", page(line, &output));
    }
}

/// Names may hold any character: none reaches a terminal as a command, or ends a cell of a Markdown table.
#[test]
fn names_are_printed_as_texts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = fs::read_to_string(made().join("t.json")).expect("a trace");
    let hostile = r"a\u001b[31mred\u0007|\nb\u009b";
    let [trace, layer] = ["lenet-28x28x1-10", "conv2"].map(|name| (name, format!("{hostile}{name}")));
    let text = [trace, layer].iter().fold(text, |text, (name, new)| {
        let changed = text.replace(&format!("\"{name}"), &format!("\"{new}"));
        assert_ne!(changed, text);
        changed
    });
    fs::write(folder.path().join("h.json"), text).expect("a file");
    let plan = "plan h.json --link 50MB/s -o s.json --budget";
    for line in [
        format!("{plan} 1KiB"),
        format!("{plan} 95% --no-recompute"),
        "compare h.json --link 50MB/s --budget 1KiB --policies naive".to_owned(),
        "explain --trace h.json --schedule s.json".to_owned(),
        "explain --trace h.json --schedule s.json --layer none".to_owned(),
    ] {
        for format in ["table", "md"] {
            let all = told(folder.path(), &format!("{line} --format {format}"));
            assert!(all.contains(r"a\u{1b}[31mred\u{7}"), "{all}");
            assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "{all:?}");
            let tables = all.lines().filter(|line| line.starts_with('|'));
            let bars = |line: &str| line.replace(r"\|", "").matches('|').count();
            let mut widths: Vec<usize> = tables.map(bars).collect();
            widths.dedup();
            assert!(widths.len() <= 2, "a cell ends early: {all}");
        }
    }
}

#[test]
fn the_schema_of_a_run_names_the_keys_of_its_json() {
    for line in ["check t.json s.json", "simulate t.json s.json --commands", "networks lenet"] {
        let [schema, document] = ["schema", "json"].map(|format| {
            let line = format!("{line} --format {format}");
            parsed(&line, &plimsoll(made(), &line))
        });
        fits(&schema, &document);
    }
}

/// Checks that the schema names exactly the keys of the document, and allows its values.
#[track_caller]
fn fits(schema: &Value, document: &Value) {
    match document {
        Value::Object(fields) => {
            let properties = schema["properties"].as_object().expect("properties");
            let names: Vec<_> = fields.keys().collect();
            assert_eq!(schema["type"], "object");
            assert_eq!(properties.keys().collect::<Vec<_>>(), names);
            assert_eq!(schema["required"], json!(names));
            fields.iter().for_each(|(name, value)| fits(&properties[name], value));
        }
        Value::Array(rows) => {
            assert_eq!(schema["type"], "array");
            rows.iter().for_each(|row| fits(&schema["items"], row));
        }
        Value::Null => {}
        value => {
            let kind = match value {
                Value::String(_) => "string",
                _ if value.is_u64() => "integer",
                _ => "number",
            };
            assert_eq!(schema["type"], json!([kind, "null"]), "{value}");
        }
    }
}

/// Words before advice, or before the valid values. Every message has some of them.
const REMEDIES: [&str; 5] = ["  help: ", "try '--help'", "; ", "expected ", "whole number"];

#[test]
fn bad_input_is_refused_and_told_what_to_do() {
    let refused = |line: &str, code: i32| {
        let output = plimsoll(made(), line);
        let page = page(line, &output);
        assert_eq!(output.status.code(), Some(code), "{page}");
        assert!(output.stdout.is_empty(), "{page}");
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|line| !line.starts_with(" WARN "));
        assert!(first.is_some_and(|line| line.starts_with("error: ")), "{page}");
        assert!(REMEDIES.iter().any(|words| said.contains(words)), "{page}");
        page
    };
    for (code, lines) in BAD {
        for line in lines {
            refused(line, code);
        }
    }
    insta::assert_snapshot!("bad-plan", BAD_PLAN.map(|line| refused(line, 2)).concat());
}

/// Invalid lines of `plan`.
const BAD_PLAN: [&str; 31] = [
    "plan missing.json --budget 70% --link 1GB/s -o x.json",
    "plan empty.json --budget 70% --link 1GB/s -o x.json",
    "plan short.json --budget 70% --link 1GB/s -o x.json",
    "plan foreign.json --budget 70% --link 1GB/s -o x.json",
    "plan key.json --budget 70% --link 1GB/s -o x.json",
    "plan s.json --budget 70% --link 1GB/s -o x.json",
    "plan t.json --budget 70% --link 1GB/s -o t.json",
    "plan t.json --budget 100% --link 1GB/s -o no/x.json",
    "plan t.json --sweep 2 --link 1GB/s -o -",
    "plan t.json --budget 70% -o x.json",
    "plan t.json --link 1GB/s -o x.json",
    "plan t.json --budget 12XB --link 1GB/s -o x.json",
    "plan t.json --budget 70% --link 1GB/s -o x.json --host-memory 50%",
    "plan t.json --budget 70% --link 1GB/s -o x.json --host-memory -1",
    "plan t.json --budget 70% --sweep 3 --link 1GB/s",
    "plan t.json --sweep 0 --link 1GB/s",
    "plan t.json --budget 70% --link 0 -o x.json",
    "plan t.json --budget 70% --link 1GB/s --latency soon -o x.json",
    "plan t.json --budget 70% --link 1GB/s --policy plimsol -o x.json",
    "plan t.json --budget 70% --link 1GB/s --without margin -o x.json",
    "plan t.json --budget 70% --link 1GB/s --duplex none -o x.json",
    "plan t.json --budget 70% --link 1GB/s -o x.json --from missing.json",
    "plan t.json --budget 70% --link 1GB/s -o x.json --from t.json",
    "plan t.json --budget 70% --link 1GB/s -o x.json --from damaged.json",
    "plan t.json --budget 70% --link 1GB/s -o s.json --from s.json",
    "plan t.json --budget 70% --link 1GB/s -o x.json --from s.json --policy naive",
    "plan t.json --budget 70% --link 1GB/s -o x.json --from-trace t.json",
    "plan t.json --sweep 2 --link 1GB/s --from s.json",
    "plan other.json --budget 70% --link 1GB/s -o x.json --from s.json",
    "plan other.json --budget 70% --link 1GB/s -o x.json --from s.json --from-trace other.json",
    "plan stranger.json --budget 95% --link 1GB/s -o x.json --from s.json --from-trace t.json",
];

/// Invalid lines of every other command, by their exit code.
const BAD: [(i32, &[&str]); 4] = [
    (
        2,
        &[
            "plann",
            "--format xml networks",
            "networks --quiett",
            "--config-file no.toml networks",
            "auto --study study --network resnt18",
            "auto --study a --max-batch 10",
            "auto --study a --base-rate 0",
            "auto --study a --rate-rule lineer",
            "auto --study a --convexity 20",
            "auto --study t.json/a",
            "auto --study a --save-every 5apples",
            "profile --study a --max-batch 0",
            "profile --study a --data cifar",
            "profile --study a --data mnist:nowhere",
            "profile --study a --threads 0",
            "tune --study a --min-batch 40 --max-batch 39",
            "tune --study a --image 9",
            "tune --study a --host-memory 12XB",
            "tune --study a --network resnet19",
            "compare t.json --link 1GB/s --policies keep,greed",
            "compare t.json --link 1GB/s --budget 70% --sweep 2",
            "check t.json t.json",
            "check t.json no.json",
            "check t.json",
            "check --format schema",
            "simulate t.json s.json --trace-out t.json",
            "run nowhere",
            "run study --decay cosin",
            "run study --epochs 0",
            "run t.json",
            "run study --data digits",
            "report",
            "report nowhere",
            "report study",
            "report --trace t.json",
            "report study --trace t.json",
            "explain nowhere",
            "explain --trace t.json --schedule s.json --layer conv",
            "verify --network mlp --batch 4 --policy kep",
            "verify --network mlp --batch 4 --host disk",
            "verify --network mlp --batch 4 --threads 2 --device cuda",
            "verify --network mlp --batch 4 --deterministic",
            "verify --network mlp --batch 5000",
            "verify --device gpu",
            "verify --network lenet",
            "networks resnt18",
            "networks vgg17",
            "networks resnet19",
            "networks lenet --image 0",
            "networks lenet --classes 0",
            "trace alexnet --image 32",
            "trace resnet20 --batch 0",
            "trace lenet --profile t.json",
            "trace lenet --tf32",
            "trace lenet --precision tf32",
            "trace lenet --relu masc",
            "trace lenet -o no/x.json",
            "doctor --threads many",
            "export study --to horovod",
            "export study --to torchrun --workers 2 --global-batch 1000 --as-planned",
            "export study --to torchrun --workers 2 --global-batch 1334",
            "export study --to deepspeed --decay step",
            "export nowhere --to torchrun",
            "export study",
            "config show --help-me",
            "--config-file wrong.toml config show",
            "--config-file wrong.toml networks",
            "man plans",
            "completions csh",
        ],
    ),
    (3, &["auto --study a --budget 1MiB", "verify --network mlp --batch 4 --budget 1KiB"]),
    (4, &["verify --network mlp --batch 4 --host file:t.json"]),
    (
        6,
        &[
            "check other.json s.json",
            "simulate other.json s.json",
            "explain --trace other.json --schedule s.json",
        ],
    ),
];

/// Runs a command that measures. Measuring needs a calm machine, which tests that run at the same time prevent: exit code 5 is
/// retried.
fn patiently(folder: &Path, line: &str) -> Output {
    let mut runs = (0..8).map(|_| plimsoll(folder, line));
    runs.find(|output| output.status.code() != Some(5)).expect("the machine is calm at times")
}

#[test]
fn measurements_are_printed_as_json() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (line, numbers) in [
        (
            "profile --network mlp --max-batch 32 --study s",
            [("profile", "overhead_seconds"), ("batches", "iteration_seconds"), ("link", "rate")],
        ),
        (
            "tune --network mlp --max-batch 32 --study s",
            [("choice", "batch"), ("figures", "batch"), ("curve", "epoch_seconds")],
        ),
        ("run s --epochs 1", [("run", "batch"), ("run", "peak_bytes"), ("run", "test_accuracy")]),
    ] {
        let line = format!("{line} --format json");
        let document = parsed(&line, &patiently(folder.path(), &line));
        for (table, key) in numbers {
            let first = document[table].get(0).unwrap_or(&document[table]);
            assert!(first[key].is_number(), "{line}: {table}.{key}: {document}");
        }
    }
}

/// Without a GPU, and with the stand-in for one that a different process uses.
#[cfg(unix)]
#[test]
fn json_of_what_the_machine_offers() {
    let line = "doctor --format json";
    let bare = parsed(line, &plimsoll(made(), line));
    assert!(bare["machine"]["device"].is_string(), "{bare}");
    let Some(libraries) = crate::gpu_faults::libraries() else { return };
    let health = ("PLIMSOLL_STANDIN_HEALTH", "own=99999 other=4242:3221225472:/usr/bin/python3");
    let shared = parsed(line, &libraries.run(line, "", &[health]));
    assert_eq!(shared["cuda_devices"][0]["name"], "Plimsoll stand-in");
    let others = shared["cuda_state"][0]["processes"].as_str();
    assert!(others.is_some_and(|others| others.contains("4242")), "{shared}");
}
