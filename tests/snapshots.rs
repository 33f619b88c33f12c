//! All output of the command line: pages that somebody has read, kept as snapshots, and rules for the rest.
//!
//! `INSTA_UPDATE=always` accepts a page that changed on purpose; `git diff` then shows the change.

use crate::program::{command, copied, read_json, timed};
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;

fn plimsoll(folder: &Path, line: &str) -> Output {
    command(folder, line).env("COLUMNS", "100").output().expect("the program starts")
}

/// Returns the folder of the tests that measure nothing: a trace whose ops take a millisecond each, schedules for it, a study.
fn made() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = folder.path();
        let run = |line: &str| assert!(plimsoll(at, line).status.success(), "{line}");
        timed(at, "lenet --batch 64");
        let trace = fs::read_to_string(at.join("t.json")).expect("a trace");
        run("plan t.json --budget 95% --link 50MB/s --no-recompute -o s.json");
        run("plan t.json --budget 100% --link 50MB/s --policy keep -o keep.json");
        run("trace mlp --batch 4 -o other.json");
        let mut damaged = read_json(&at.join("s.json"));
        damaged["pool_bytes"] = 256.into();
        let replaced = |from: &str, to: &str| {
            let text = trace.replacen(from, to, 1);
            assert_ne!(text, trace, "{from}");
            text
        };
        let renamed = trace.replace("\"name\":\"", "\"name\":\"other.");
        for (name, text) in [
            ("damaged", damaged.to_string()),
            ("stranger", renamed.replace("\"name\": \"", "\"name\": \"other.")),
            ("empty", String::new()),
            ("short", trace[..trace.len() / 2].to_owned()),
            ("foreign", "{\"a\": 1}".to_owned()),
            ("version", replaced("trace/1", "trace/9")),
            ("key", replaced("\"batch\"", "\"batsch\"")),
            ("batch", replaced("\"batch\": 64", "\"batch\": 0")),
            ("negative", replaced("\"bytes\":", "\"bytes\":-")),
            ("id", replaced("\"writes\":[", "\"writes\":[999999,")),
        ] {
            fs::write(at.join(format!("{name}.json")), text).expect("a file");
        }
        fs::create_dir(at.join("study")).expect("a folder");
        copied(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"), &at.join("study"));
        fs::create_dir(at.join("there")).expect("a folder");
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

/// Words before advice, before the valid values, or before the place of a fault. Every message has some of them.
const REMEDIES: [&str; 7] =
    ["  help: ", "try '--help'", "; ", "expected ", "whole number", ": at ", " is more than "];

#[test]
fn bad_input_is_refused_and_told_what_to_do() {
    let own = String::from_utf8(plimsoll(made(), "run --help").stdout).expect("text");
    let refused = |line: &str, code: i32| {
        let output = plimsoll(made(), line);
        let page = page(line, &output);
        assert_eq!(output.status.code(), Some(code), "{page}");
        assert!(output.stdout.is_empty() && !page.contains("panicked"), "{page}");
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|line| !line.starts_with(" WARN "));
        assert!(first.is_some_and(|line| line.starts_with("error: ")), "{page}");
        // The fault of an invalid schedule is all that there is to say.
        assert!(code == 6 || REMEDIES.iter().any(|words| said.contains(words)), "{page}");
        // A hint of `run` names only what `run` has.
        let of_run = |option: &str| own.split([' ', ',', '\n']).any(|word| word == option);
        let help = said.split_once("help: ").map_or("", |(_, help)| help);
        let mut options = help.split([' ', ',', ';', '\n', '`']).filter(|word| word.starts_with("--"));
        assert!(!line.starts_with("run study --d") || options.all(of_run), "{page}");
        page
    };
    for (code, lines) in BAD {
        let pages: String = lines.iter().map(|line| refused(line, code)).collect();
        insta::assert_snapshot!(format!("bad-{code}"), pages);
    }
    insta::assert_snapshot!("bad-plan", BAD_PLAN.map(|line| refused(line, 2)).concat());
    for left in ["a", "x.json", "v.json"] {
        assert!(!made().join(left).exists(), "a refused command left {left}");
    }
}

/// Invalid lines of `plan`.
const BAD_PLAN: [&str; 41] = [
    "plan missing.json --budget 70% --link 1GB/s -o x.json",
    "plan empty.json --budget 70% --link 1GB/s -o x.json",
    "plan short.json --budget 70% --link 1GB/s -o x.json",
    "plan foreign.json --budget 70% --link 1GB/s -o x.json",
    "plan key.json --budget 70% --link 1GB/s -o x.json",
    "plan version.json --budget 70% --link 1GB/s -o x.json",
    "plan batch.json --budget 70% --link 1GB/s -o x.json",
    "plan negative.json --budget 70% --link 1GB/s -o x.json",
    "plan id.json --budget 70% --link 1GB/s -o x.json",
    "plan s.json --budget 70% --link 1GB/s -o x.json",
    "plan t.json --budget 70% --link 1GB/s -o t.json",
    "plan t.json --budget 100% --link 1GB/s -o no/x.json",
    "plan t.json --budget 100% --link 1GB/s -o there",
    "plan t.json --sweep 2 --link 1GB/s -o -",
    "plan t.json --sweep 1 --link 1GB/s --policy keep -o t.json/x",
    "plan t.json --budget 70% -o x.json",
    "plan t.json --link 1GB/s -o x.json",
    "plan t.json --budget 12XB --link 1GB/s -o x.json",
    "plan t.json --budget -5 --link 1GB/s -o x.json",
    "plan t.json --budget 5000000TiB --link 1GB/s -o x.json",
    "plan t.json --budget 70% --link 1GB/s -o x.json --host-memory 50%",
    "plan t.json --budget 70% --link 1GB/s -o x.json --host-memory -1",
    "plan t.json --budget 70% --sweep 3 --link 1GB/s",
    "plan t.json --sweep 0 --link 1GB/s",
    "plan t.json --budget 70% --link 0 -o x.json",
    "plan t.json --budget 70% --link -1GB/s -o x.json",
    "plan t.json --budget 70% --link 1e-320 -o x.json",
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
const BAD: [(i32, &[&str]); 3] = [
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
            "auto --study a --rate-rule accudnn --convexity 20",
            "auto --rate-rule linear --convexity 2",
            "auto --base-rate -0.1",
            "auto --epochs -3",
            "auto --epochs many",
            "auto --seed -1",
            "auto none.py",
            "auto resnet18",
            "auto --device p100",
            "auto --study t.json/a",
            "auto --study a --save-every 5apples",
            "profile --study a --max-batch 0",
            "profile --study a --data cifar",
            "profile --study a --data mnist:nowhere",
            "profile --study a --threads 0",
            "profile --device v100 --precision tf32",
            "profile --device h100 --deterministic",
            "profile --device h100 --threads 2",
            "profile --device h100 --link 1GB/s",
            "profile --device h100 --duplex half",
            "profile --device h100 --host file:h",
            "tune --study a --min-batch 40 --max-batch 39",
            "tune --study -1",
            "tune --budget -1",
            "tune --budget -2.5GiB",
            "tune --budget --fresh",
            "tune --duplex half",
            "tune --network mlp --device k40 --base-rate 1e39",
            "tune --device k40 --budget 1TB",
            "tune --device k40 --budget 101%",
            "tune --network mlp --device k40 --workers 4",
            "tune --network mlp --device k40 --interconnect 1Gbit/s",
            "tune --network mlp --device k40 --global-batch 64",
            "tune --network mlp --device k40 --workers 1 --interconnect 1Gbit/s",
            "tune --network mlp --device k40 --workers 0 --interconnect 1Gbit/s",
            "tune --network mlp --device k40 --workers 2 --interconnect 1Gbps",
            "tune --network mlp --device k40 --workers 2 --interconnect 1Gbit/s,fast",
            "tune --network mlp --device k40 --workers 2 --interconnect 1Gbit/s --global-batch 3 --min-batch 2",
            "tune --network mlp --device k40 --workers 2 --interconnect 1Gbit/s --global-batch 9999",
            "tune --network mlp --device k40 --workers 60 --interconnect 1Gbit/s --min-batch 32",
            "tune --study a --image 9",
            "tune --study a --host-memory 12XB",
            "tune --study a --network resnet19",
            "compare t.json --link 1GB/s --policies keep,greed",
            "compare t.json --link 1GB/s --budget 70% --sweep 2",
            "check t.json t.json",
            "check t.json no.json",
            "check t.json",
            "check --format yaml",
            "simulate t.json s.json --trace-out t.json",
            "run nowhere",
            "run study --decay cosin",
            "run study --epochs 0",
            "run study --data text",
            "run study --data synthetic --trace-out no/x.json",
            "run study --device cuda",
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
            "verify --network mlp --batch 4 --deterministic",
            "verify --network mlp --batch 5000",
            "verify --device gpu",
            "verify --device cuda:x",
            "verify --device cuda --threads 2",
            "verify --device cuda --link 12GB/s",
            "verify --device cuda --duplex half",
            "verify --device cuda --host file:h",
            "verify --no-graph",
            "verify --precision tf32",
            "verify --tf32",
            "verify --budget -.5%",
            "verify --data mnist:nowhere --network lenet",
            "verify --data digits --network lenet",
            "verify --network resnet20 --image 9",
            "verify --network mlp --batch 2 --iterations 1 --data synthetic:99999999999999",
            "verify --network mlp --link 12",
            "networks resnt18",
            "networks vgg17",
            "networks vit",
            "networks resnet19",
            "networks lenet --image 0",
            "networks lenet --classes 0",
            "trace alexnet --image 32",
            "trace resnet20 --batch 0",
            "trace resnet20 --classes 0",
            "trace lenet --profile t.json",
            "trace lenet --tf32",
            "trace lenet --precision tf32",
            "trace lenet --device k40 --precision tf32",
            "trace lenet --device v100 --precision bf16",
            "trace lenet --device cpu",
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
    (4, &["verify --batch 4 --host file:t.json", "verify --batch 4 --host file:no/such/slab"]),
    (
        6,
        &[
            "check other.json s.json",
            "check t.json damaged.json",
            "simulate t.json damaged.json",
            "explain --trace other.json --schedule s.json",
        ],
    ),
];
