//! What every command prints, as it was when somebody looked at it: help, tables, and what is said to bad input; and that
//! what is printed as JSON is as its published schema says.
//!
//! Times and other facts of the machine are left out. What changed on purpose is taken over by `INSTA_UPDATE=always` for the
//! texts and `UPDATE_SCHEMAS=1` for the schemas; `git diff` then shows it.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs the program in a folder, without settings of the user's.
fn plimsoll(folder: &Path, arguments: &str) -> Output {
    plimsoll_with(folder, &[], arguments)
}

fn plimsoll_with(folder: &Path, variables: &[(&str, &Path)], arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env_clear()
        .envs(["PATH", "HOME", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .env("XDG_CONFIG_HOME", folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("COLUMNS", "100")
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts")
}

/// The folder in which all that is not measured is made: a trace whose ops take a millisecond each, schedules of it, a study.
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
        run("trace resnet20 --batch 64 --device v100 -o deep.json");
        run("plan deep.json --budget 60% --link 12GB/s -o deep.schedule.json");
        study_of(at, "deep", "deep.json", "deep.schedule.json");
        study_of(at, "flat", "t.json", "s.json");
        fs::write(at.join("empty.json"), "").expect("a file");
        fs::write(at.join("short.json"), &timed[..timed.len() / 2]).expect("a file");
        fs::write(at.join("foreign.json"), "{\"a\": 1}").expect("a file");
        fs::write(at.join("key.json"), timed.replacen("\"batch\"", "\"batsch\"", 1)).expect("a file");
        fs::write(at.join("wrong.toml"), "[tune]\nepoch = 3\n").expect("a file");
        folder
    };
    FOLDER.get_or_init(make).path()
}

/// A study whose choice is a schedule that was planned of a trace.
fn study_of(at: &Path, name: &str, trace: &str, schedule: &str) {
    let read = |path: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
    };
    let mut config = read(&at.join("study/chosen.config.json"));
    config["batch"] = read(&at.join(trace))["batch"].clone();
    config["budget_bytes"] = read(&at.join(schedule))["budget_bytes"].clone();
    let study = at.join(name);
    fs::create_dir(&study).expect("a folder");
    fs::write(study.join("chosen.config.json"), config.to_string()).expect("a file");
    fs::copy(at.join(trace), study.join("chosen.trace.json")).expect("a file");
    fs::copy(at.join(schedule), study.join("chosen.schedule.json")).expect("a file");
}

/// A command, what it printed, what it said, and its exit code.
fn told(folder: &Path, line: &str) -> String {
    let output = plimsoll(folder, line);
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8(output.stderr).expect("text");
    let code = output.status.code().expect("it ends by itself");
    let end = if code == 0 { String::new() } else { format!("[exit code {code}]\n") };
    format!("$ plimsoll {line}\n{stdout}{stderr}{end}\n")
}

/// The words between wide gaps, which are a table's cells.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// A table without how long planning took, which makes the widths of columns differ, too.
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

/// A table of what was measured, without what differs from machine to machine: cells with a number are `#`, words that follow
/// from numbers are left out, and rows that are alike then are one.
fn without_numbers(text: &str) -> String {
    let from_numbers = ["why", "placement", "doubtful", "device", "system", "compute threads"];
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let row = cells(line);
        let words =
            |cell: &&str| if cell.contains(|c: char| c.is_ascii_digit()) { "#" } else { *cell }.to_owned();
        let left_out = row.first().is_some_and(|first| from_numbers.contains(first));
        let mut shown: Vec<String> = row.iter().map(words).collect();
        shown.truncate(if left_out { 1 } else { usize::MAX });
        let shown = shown.join("  ");
        if lines.last() != Some(&shown) {
            lines.push(shown);
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn help_of_every_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = <plimsoll::args::Cli as clap::CommandFactory>::command();
    insta::assert_snapshot!("help", told(folder.path(), "--help"));
    for verb in program.get_subcommands().map(clap::Command::get_name) {
        insta::assert_snapshot!(format!("help-{verb}"), told(folder.path(), &format!("{verb} --help")));
    }
    for verb in ["auto", "plan", "trace"] {
        insta::assert_snapshot!(
            format!("help-all-{verb}"),
            told(folder.path(), &format!("{verb} --help-all"))
        );
    }
    let nested = ["config show --help", "config schema --help"].map(|line| told(folder.path(), line));
    insta::assert_snapshot!("help-config-verbs", nested.concat());
}

/// The commands whose tables are the same on every machine, by verb.
const EXACT: [(&str, &[&str]); 7] = [
    ("check", &["check t.json s.json"]),
    (
        "simulate",
        &["simulate t.json s.json", "simulate t.json s.json --commands", "simulate t.json keep.json"],
    ),
    (
        "explain",
        &[
            "explain --trace t.json --schedule s.json",
            "explain --trace t.json --schedule s.json --layer conv2",
        ],
    ),
    ("networks", &["networks lenet", "networks"]),
    (
        "config",
        &[
            "config show",
            "config show --all",
            "config show plan --budget 3MiB",
            "--config-file wrong.toml networks",
        ],
    ),
    (
        "export",
        &[
            "export study --to torchrun",
            "export study --to accelerate --workers 2 --global-batch 384",
            "export study --to lightning --workers 2",
            "export study --to deepspeed --optimizer adamw --decay constant",
            "export study/chosen.config.json --to deepspeed --format csv",
            "export deep --to torch-checkpoint",
            "export deep --to torch-offload",
        ],
    ),
    ("verify", &["verify --network mlp --batch 4 --iterations 2 --threads 1"]),
];

/// The verb that is asked of what is measured and of what is not.
const EXPLAIN: &str = "explain";

/// Names hold what they like: nothing of it reaches a terminal as a command, or ends a cell of a Markdown table.
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

/// Those that also say how long planning took.
const PLANNED: [(&str, &[&str]); 2] = [
    (
        "plan",
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
        "compare",
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

/// Those that measure, in the order in which one needs the other.
const MEASURED: [(&str, &[&str]); 5] = [
    ("profile", &["profile --network resnet20 --max-batch 32 --study s"]),
    (
        "tune",
        &[
            "tune --network resnet20 --max-batch 32 --study s",
            "tune --network mlp --device k40 --workers 4 --interconnect 1Gbit/s,30us --global-batch 512 --study w",
            "tune --network mlp --device k40 --workers 4 --interconnect 1Gbit/s,30us --goodput 300 --nccl --study g",
            "tune --network mlp --min-batch 16 --max-batch 16 --budget 10MB --workers 2 --interconnect 1Gbit/s \
             --optimizer adamw --sharded-momenta --study m",
        ],
    ),
    ("run", &["run s --epochs 1 --fresh", "run s --epochs 4 --workers 2 --fresh", "run m --epochs 1"]),
    ("demo", &["demo --study d", "demo --study d"]),
    (
        "auto",
        &[
            "auto --network resnet20 --max-batch 32 --epochs 1 --study a --fresh",
            "auto --network resnet20 --max-batch 32 --epochs 1 --study a",
            "auto --network mlp --device k40 --max-batch 32 --study k --fresh",
            "auto --network mlp --device k40 --max-batch 32 --study k",
            "auto --network mlp --device k40 --max-batch 32 --workers 4 --interconnect 1Gbit/s --nccl --study w4",
            "auto --network mlp --min-batch 16 --max-batch 16 --budget 10MB --workers 2 --interconnect 1Gbit/s \
             --optimizer adamw --sharded-momenta --epochs 1 --study m2",
        ],
    ),
];

#[test]
fn tables_of_what_is_not_measured() {
    for (verb, lines) in EXACT {
        let all: String = lines.iter().map(|line| told(made(), line)).collect();
        insta::assert_snapshot!(format!("table-{verb}"), all);
    }
    for (verb, lines) in PLANNED {
        let all: String = lines.iter().map(|line| without_planning(&told(made(), line)) + "\n").collect();
        insta::assert_snapshot!(format!("table-{verb}"), all);
    }
    let timeless = "plan other.json --budget 100% --link 50MB/s -o p.json";
    insta::assert_snapshot!("timeless", without_planning(&told(made(), timeless)));
    let formats = ["csv", "md", "json", "schema"]
        .map(|format| told(made(), &format!("check t.json s.json --format {format}")));
    insta::assert_snapshot!("formats", formats.concat());
}

#[test]
fn what_is_said_to_bad_input() {
    for (verb, lines) in BAD {
        let all: String = lines.iter().map(|line| told(made(), line)).collect();
        insta::assert_snapshot!(format!("bad-{verb}"), all);
    }
}

/// What every verb can be asked wrongly.
const BAD: [(&str, &[&str]); 17] = [
    ("line", &["plann", "", "--format xml networks", "networks --quiett", "--config-file no.toml networks"]),
    (
        "auto",
        &[
            "auto --study study --network resnt18",
            "auto --study a --max-batch 10",
            "auto --study a --base-rate 0",
            "auto --study a --rate-rule lineer",
            "auto --study a --convexity 20",
            "auto --study a --budget 1MiB",
            "auto --study t.json/a",
            "auto --study a --save-every 5apples",
        ],
    ),
    (
        "profile",
        &[
            "profile --study a --max-batch 0",
            "profile --study a --data cifar",
            "profile --study a --data mnist:nowhere",
            "profile --study a --threads 0",
        ],
    ),
    (
        "tune",
        &[
            "tune --study a --min-batch 40 --max-batch 39",
            "tune --study a --image 9",
            "tune --study a --host-memory 12XB",
            "tune --study a --network resnet19",
        ],
    ),
    (
        "plan",
        &[
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
        ],
    ),
    (
        "compare",
        &[
            "compare t.json --link 1GB/s --policies keep,greed",
            "compare t.json --link 1GB/s --budget 70% --sweep 2",
        ],
    ),
    ("check", &["check other.json s.json", "check t.json t.json", "check t.json no.json", "check t.json"]),
    ("simulate", &["simulate other.json s.json", "simulate t.json s.json --trace-out t.json"]),
    (
        "run",
        &[
            "run nowhere",
            "run study --decay cosin",
            "run study --epochs 0",
            "run t.json",
            "run study --data digits",
        ],
    ),
    (
        "report",
        &["report", "report nowhere", "report study", "report --trace t.json", "report study --trace t.json"],
    ),
    (
        "explain",
        &[
            "explain nowhere",
            "explain --trace t.json --schedule s.json --layer conv",
            "explain --trace other.json --schedule s.json",
        ],
    ),
    (
        "verify",
        &[
            "verify --network mlp --batch 4 --policy kep",
            "verify --network mlp --batch 4 --budget 1KiB",
            "verify --network mlp --batch 4 --host disk",
            "verify --network mlp --batch 4 --host file:t.json",
            "verify --network mlp --batch 4 --threads 2 --device cuda",
            "verify --network mlp --batch 4 --kernels own",
            "verify --network mlp --batch 5000",
            "verify --device gpu",
            "verify --network lenet",
        ],
    ),
    (
        "networks",
        &[
            "networks resnt18",
            "networks vgg17",
            "networks resnet19",
            "networks lenet --image 0",
            "networks lenet --classes 0",
        ],
    ),
    (
        "trace",
        &[
            "trace alexnet --image 32",
            "trace resnet20 --batch 0",
            "trace lenet --profile t.json",
            "trace lenet --tf32",
            "trace lenet --precision tf32",
            "trace lenet --relu masc",
            "trace lenet -o no/x.json",
        ],
    ),
    ("doctor", &["doctor --threads 0", "doctor --threads many"]),
    (
        "export",
        &[
            "export study --to horovod",
            "export study --to torchrun --workers 2 --global-batch 1000 --as-planned",
            "export study --to torchrun --workers 2 --global-batch 1334",
            "export study --to deepspeed --decay step",
            "export study --to torch-checkpoint",
            "export flat --to torch-checkpoint",
            "export deep --to torch-offload --workers 4",
            "export nowhere --to torchrun",
            "export study",
        ],
    ),
    (
        "config",
        &[
            "config",
            "config show nothing",
            "config show --help-me",
            "--config-file wrong.toml config show",
            "man plans",
            "completions csh",
        ],
    ),
];

/// What is measured needs a calm machine, which tests that run beside this one do not leave it: exit 5 is tried again.
fn patiently(folder: &Path, line: &str) -> Output {
    let mut output = plimsoll(folder, line);
    for _ in 0..8 {
        if output.status.code() != Some(5) {
            break;
        }
        output = plimsoll(folder, line);
    }
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn tables_and_json_of_what_is_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    for (verb, lines) in MEASURED {
        let mut all = String::new();
        for line in lines {
            let printed = String::from_utf8(patiently(folder, line).stdout).expect("text");
            all.push_str(&format!("$ plimsoll {line}\n{}\n", without_numbers(&printed)));
        }
        insta::assert_snapshot!(format!("table-{verb}"), all);
        conform(verb, &lines.iter().map(|line| Run { folder, line, variables: &[] }).collect::<Vec<_>>());
    }
    // What is explained of a schedule is less than of a study.
    let explain = EXACT.into_iter().filter(|(verb, _)| *verb == EXPLAIN).flat_map(|(_, lines)| lines);
    let lines = explain.map(|line| (made(), *line)).chain(
        ["explain s", "explain s --search-log", "explain a --layer layer1.0.conv1", "explain k", "explain w"]
            .map(|line| (folder, line)),
    );
    let runs: Vec<Run> = lines.map(|(folder, line)| Run { folder, line, variables: &[] }).collect();
    conform(EXPLAIN, &runs);
}

#[test]
fn json_of_what_is_not_measured() {
    for (verb, lines) in EXACT.into_iter().chain(PLANNED).filter(|(verb, _)| *verb != EXPLAIN) {
        let plain = lines.iter().filter(|line| !line.contains("--format") && !line.contains("wrong"));
        let runs: Vec<Run> = plain.map(|line| Run { folder: made(), line, variables: &[] }).collect();
        conform(verb, &runs);
    }
}

/// Without a GPU, and with the stand-in for one that others use.
#[cfg(unix)]
#[test]
fn json_of_what_the_machine_offers() {
    let test = std::env::current_exe().expect("a test has a file");
    let built = test.with_file_name("libplimsoll_standin.so");
    let libraries = tempfile::tempdir().expect("a temporary folder");
    let libraries = libraries.path();
    for name in [
        "libcuda.so.1",
        "libnvrtc.so.13",
        "libcublas.so.13",
        "libcudnn.so.9",
        "libnccl.so.2",
        "libnvidia-ml.so.1",
    ] {
        std::os::unix::fs::symlink(&built, libraries.join(name)).expect("a link can be made");
    }
    let health = Path::new("slow=0x20 own=99999 other=4242:3221225472:/usr/bin/python3");
    let variables = [("PLIMSOLL_CUDA_LIBRARIES", libraries), ("PLIMSOLL_STANDIN_HEALTH", health)];
    let bare = Run { folder: made(), line: "doctor", variables: &[] };
    conform("doctor", &[bare, Run { variables: &variables, ..bare }]);
}

/// A command that prints tables.
#[derive(Clone, Copy)]
struct Run<'a> {
    folder: &'a Path,
    line: &'a str,
    variables: &'a [(&'a str, &'a Path)],
}

fn schema_file(verb: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/{verb}.schema.json"))
}

/// What these commands print as JSON is as the verb's schema says. With `UPDATE_SCHEMAS` that is first written anew, of
/// what the commands say that they print.
fn conform(verb: &str, runs: &[Run<'_>]) {
    let parsed = |run: &Run<'_>, format: &str| -> Value {
        let Run { folder, line, variables } = *run;
        let output = plimsoll_with(folder, variables, &format!("--format {format} {line}"));
        let said = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}\n{said}"))
    };
    let path = schema_file(verb);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        let all = runs.iter().map(|run| parsed(run, "schema-of-run"));
        let mut schema = all.reduce(merged).expect("there is a command");
        schema["title"] = json!(format!("What `plimsoll {verb} --format json` prints"));
        let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
        fs::write(&path, text).expect("a file");
    }
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    // The program prints it without doing what is asked, so in a folder without what that needs; only one that was written
    // anew just now it cannot know yet.
    let empty = tempfile::tempdir().expect("a temporary folder");
    let printed = parsed(&Run { folder: empty.path(), ..runs[0] }, "schema");
    assert!(
        printed == schema || std::env::var_os("UPDATE_SCHEMAS").is_some(),
        "{verb}: another schema is printed"
    );
    assert_eq!(
        fs::read_dir(empty.path()).expect("a folder").count(),
        0,
        "{verb} does more than print its schema"
    );
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    for run in runs {
        let document = parsed(run, "json");
        let faults: Vec<String> = validator
            .iter_errors(&document)
            .map(|fault| format!("{}: {fault}", fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{}: {faults:#?}\n(UPDATE_SCHEMAS=1 writes the schemas anew)", run.line);
    }
    let nonsense = json!({"nonsense": 1});
    assert!(!validator.is_valid(&nonsense), "{verb}: the schema allows anything");
}

/// A schema that allows what either of two does: what one of them lacks is not required, and what both say is kept.
fn merged(a: Value, b: Value) -> Value {
    let (Value::Object(mut a), Value::Object(b)) = (a, b) else { return Value::Null };
    if a.get("type") != b.get("type") && (a.contains_key("type") && b.contains_key("type")) {
        panic!("a key has two types: {a:?} {b:?}");
    }
    let both = |a: &Value, b: &Value| -> Value {
        let (a, b) = (a.as_array().expect("names"), b.as_array().expect("names"));
        a.iter().filter(|name| b.contains(name)).cloned().collect()
    };
    for (key, theirs) in b {
        let ours = a.get(&key).cloned();
        let value = match (key.as_str(), ours) {
            (_, None) => theirs,
            ("required", Some(ours)) => both(&ours, &theirs),
            ("properties", Some(Value::Object(mut ours))) => {
                for (name, their) in theirs.as_object().expect("properties").clone() {
                    let known = ours.get(&name).cloned();
                    ours.insert(name, known.map_or(their.clone(), |known| merged(known, their)));
                }
                Value::Object(ours)
            }
            ("items", Some(ours)) => merged(ours, theirs),
            (_, Some(ours)) => ours,
        };
        a.insert(key, value);
    }
    Value::Object(a.into_iter().collect::<Map<_, _>>())
}
