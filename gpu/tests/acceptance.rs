//! The acceptance program without a GPU: every section runs to its end on the stand-in of the driver, in tiny sizes, and what
//! cannot run says so; README and PyTorch's side agree with the program.

// Cargo builds the library that stands in beside this test.
use plimsoll_networks::{build, usual};
use plimsoll_standin as _;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const GPU: &str = env!("CARGO_MANIFEST_DIR");

/// The program, with nothing of this machine's environment but what is named.
fn accept(arguments: &[&str], libraries: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_accept"));
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", libraries).env("PLIMSOLL_CUDA_LIBRARIES", libraries);
    command.output().expect("the program starts")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder in which the device finds the stand-in; none, with a word, where there is no C compiler for its kernels.
fn stand_in() -> Option<tempfile::TempDir> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler `cc` is on this machine");
        return None;
    }
    let test = std::env::current_exe().expect("a test has a file");
    let built = test.with_file_name("libplimsoll_standin.so");
    assert!(built.is_file(), "cargo builds the library beside its tests");
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublas.so.13", "libcudnn.so.9", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(&built, folder.path().join(name)).expect("a link can be made");
    }
    Some(folder)
}

/// The one file of results in a folder.
fn results(folder: &Path) -> Value {
    let mut paths = std::fs::read_dir(folder).expect("there is a folder").flatten().map(|entry| entry.path());
    let path: PathBuf =
        paths.find(|path| path.extension().is_some_and(|end| end == "json")).expect("results were written");
    assert!(path.with_extension("md").is_file());
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("results are JSON")
}

/// Every section, and how many rows it gives at least in tiny sizes.
const EVERY_SECTION: [(&str, usize); 15] = [
    ("tests", 3),
    ("bits", 3),
    ("step", 12),
    ("link", 6),
    ("predict", 3),
    ("batches", 3),
    ("batches-tf32", 3),
    ("batches-bf16", 3),
    ("pytorch-bf16", 5),
    ("pytorch-tf32", 5),
    ("pytorch-f32", 5),
    ("compile-bf16", 2),
    ("compile-tf32", 2),
    ("compile-f32", 2),
    ("deep", 1),
];

#[test]
fn every_section_runs_to_its_end() {
    let Some(libraries) = stand_in() else { return };
    let folder = libraries.path().join("results");
    let pytorch = format!("{GPU}/pytorch.py");
    let at = folder.to_str().expect("a path");
    let names: Vec<&str> = EVERY_SECTION.iter().map(|(name, _)| *name).collect();
    let options = ["--small", "--seconds", "3600", "--results", at, "--pytorch", &pytorch];
    let arguments = [&["run"], &names[..], &options].concat();
    let output = accept(&arguments, libraries.path());
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let results = results(&folder);
    for fact in ["device", "date", "plimsoll", "driver", "cuda", "nvrtc", "cublas", "cudnn", "pytorch"] {
        assert!(results["machine"][fact].is_string(), "{fact} in {}", results["machine"]);
    }
    let sections = results["sections"].as_array().expect("a list");
    let rows: Vec<(&str, usize)> = sections
        .iter()
        .map(|section| {
            assert_eq!(section["state"], "done", "{section}");
            let rows = section["rows"].as_array().expect("a list");
            (section["section"].as_str().expect("a name"), rows.len())
        })
        .collect();
    assert_eq!(rows.len(), EVERY_SECTION.len(), "{rows:?}");
    for ((name, count), (expected, least)) in rows.iter().zip(EVERY_SECTION) {
        assert!(*name == expected && *count >= least, "{rows:?}");
    }
    // Ours were measured; PyTorch's were measured, or say why not.
    for section in sections {
        for row in section["rows"].as_array().expect("a list") {
            let note = row["note"].as_str().unwrap_or_default();
            let excused = note.starts_with("skipped");
            assert!(excused || note.is_empty(), "{row}");
            assert!(!excused || row["who"].as_str().is_some_and(|who| who.starts_with("PyTorch")), "{row}");
            for (key, value) in row.as_object().expect("an object") {
                let measured = key.ends_with("iteration_seconds") || key == "images_per_second";
                assert!(!measured || value.is_number() || excused, "{key} of {row}");
            }
        }
    }
    // What is beside PyTorch is there in every precision.
    for (section, precision) in [
        ("batches", "f32"),
        ("batches-tf32", "tf32"),
        ("batches-bf16", "bf16"),
        ("pytorch-f32", "f32"),
        ("pytorch-tf32", "tf32"),
        ("pytorch-bf16", "bf16"),
        ("compile-f32", "f32"),
        ("compile-tf32", "tf32"),
        ("compile-bf16", "bf16"),
    ] {
        let found = sections.iter().find(|found| found["section"] == section).expect("it was run");
        let rows = found["rows"].as_array().expect("a list");
        assert!(rows.iter().all(|row| row["precision"] == precision), "{found}");
    }
    // The loss of untrained parameters hangs on the images alone, which are the same.
    let losses = |section: &str| {
        let found = sections.iter().find(|found| found["section"] == section).expect("it was run");
        let rows = found["rows"].as_array().expect("a list").iter();
        rows.map(|row| (row["batch"].as_u64(), row["loss"].as_f64().expect("a loss"))).collect::<Vec<_>>()
    };
    let in_f32 = losses("batches");
    let same = losses("batches-bf16").into_iter().filter_map(|(batch, rounded)| {
        let exact = in_f32.iter().find(|(other, _)| *other == batch)?.1;
        Some((exact, rounded))
    });
    let same: Vec<(f64, f64)> = same.collect();
    assert!(!same.is_empty(), "{in_f32:?}");
    assert!(same.iter().all(|(exact, rounded)| (exact / rounded - 1.0).abs() < 0.02), "{same:?}");
    // Ours comes first.
    for found in sections {
        let rows = found["rows"].as_array().expect("a list");
        let first = rows.first().and_then(|row| row["who"].as_str());
        assert!(first.is_none_or(|who| who.starts_with("plimsoll")), "{found}");
    }
    // A second run of one section replaces its part and keeps the others.
    let again = accept(&["run", "bits", "--small", "--results", at, "--pytorch", &pytorch], libraries.path());
    assert!(again.status.success(), "{}", said(&again.stderr));
    let all = Some(EVERY_SECTION.len());
    assert_eq!(self::results(&folder)["sections"].as_array().map(Vec::len), all);
    // Tiny sizes are nothing to show.
    let table = said(&accept(&["table", at], libraries.path()).stdout);
    assert!(table.contains("| not measured |") && !table.contains("stand-in"), "{table}");
}

#[test]
fn what_was_measured_is_kept_where_the_run_is_killed() {
    let Some(libraries) = stand_in() else { return };
    let folder = libraries.path().join("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_accept"));
    command.args(["run", "link", "--small", "--results", folder.to_str().expect("a path")]).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", libraries.path());
    command.env("PLIMSOLL_CUDA_LIBRARIES", libraries.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    // Rows are indented, and each is printed before it is kept: that of the first is over where the second comes.
    assert_eq!(lines.filter(|line| line.starts_with("  ")).take(2).count(), 2, "it gives rows");
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    let section = &results(&folder)["sections"][0];
    assert_eq!(
        (&section["state"], &section["why"]),
        (&json!("cut"), &json!("the run was ended")),
        "{section}"
    );
    assert!(section["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{section}");
}

#[test]
fn a_section_that_is_cut_or_fails_is_a_row_and_the_run_goes_on() {
    let Some(libraries) = stand_in() else { return };
    let folder = libraries.path().join("results");
    let at = folder.to_str().expect("a path");
    let output =
        accept(&["run", "tests", "bits", "--small", "--seconds", "1", "--results", at], libraries.path());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output.stderr));
    let results = results(&folder);
    let states: Vec<&str> =
        results["sections"].as_array().expect("a list").iter().filter_map(|s| s["state"].as_str()).collect();
    assert_eq!(states, ["cut", "cut"], "{results}");
    assert!(said(&output.stderr).contains("1 s were over"), "{}", said(&output.stderr));
}

#[test]
fn what_cannot_run_says_so_with_the_exit_codes_of_the_house() {
    let nowhere = tempfile::tempdir().expect("there is a folder for temporary files");
    let at = nowhere.path().join("results").to_str().expect("a path").to_owned();
    let check = |arguments: &[&str], code: i32, parts: &[&str]| {
        let output = accept(arguments, nowhere.path());
        let err = said(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
        parts.iter().for_each(|part| assert!(err.contains(part), "`{part}` in: {err}"));
    };
    check(&["run", "stpe", "--results", &at], 2, &["there is no section `stpe`", "step, link"]);
    check(&["run", "--results", &at], 4, &["libcuda.so.1"]);
    check(&["section", "bits", "--seconds", "5"], 4, &["libcuda.so.1"]);
    check(&["walk"], 2, &["walk"]);
    std::fs::write(nowhere.path().join("other.json"), "{}").expect("a file");
    check(&["table", nowhere.path().to_str().expect("a path")], 2, &["other.json", "no results"]);
}

#[test]
fn a_test_that_fails_is_a_row_with_its_words_and_each_row_says_what_it_took() {
    let Some(libraries) = stand_in() else { return };
    // No device opens without it.
    std::fs::remove_file(libraries.path().join("libcudnn.so.9")).expect("it is there");
    let folder = libraries.path().join("results");
    let at = folder.to_str().expect("a path");
    let output = accept(&["run", "tests", "--small", "--results", at], libraries.path());
    if output.status.success() {
        return println!("skipped: this machine has a cuDNN");
    }
    assert_eq!(output.status.code(), Some(6), "{}", said(&output.stderr));
    let results = results(&folder);
    let section = &results["sections"][0];
    let rows = section["rows"].as_array().expect("a list");
    let of_tests: Vec<&Value> = rows.iter().filter(|row| row["test"].is_string()).collect();
    assert_eq!(of_tests.len(), 3, "one of each group: {section}");
    for row in of_tests {
        let words = row["words"].as_str().unwrap_or_default();
        let (_, why) = words.split_once("panicked").unwrap_or_default();
        assert!(!why.trim().is_empty() && !words.starts_with("Error"), "{row}");
    }
    let failed: u64 = rows.iter().filter_map(|row| row["failed"].as_u64()).sum();
    assert_eq!(failed, 3, "{section}");
    let took = rows.iter().map(|row| row["took_seconds"].as_f64().expect("each says so")).sum::<f64>();
    let whole = section["seconds"].as_f64().expect("it has");
    assert!(0.0 < took && took <= whole, "{took} s of {whole} s");
}

/// What stands between two marks of the README.
fn marked<'a>(page: &'a str, mark: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("<!-- {mark} -->\n")).expect("the page has the mark");
    rest.split_once("<!-- end -->").expect("it ends").0
}

#[test]
fn the_readme_is_what_the_program_says() {
    let page = std::fs::read_to_string(format!("{GPU}/README.md")).expect("a page");
    let nowhere = tempfile::tempdir().expect("there is a folder for temporary files");
    let results = format!("{GPU}/results");
    for (mark, arguments) in [("sections", vec!["sections"]), ("targets", vec!["table", &results])] {
        let output = accept(&arguments, nowhere.path());
        let table = said(&output.stdout);
        assert!(output.status.success());
        assert_eq!(marked(&page, mark), table, "put this between the marks `{mark}`:\n{table}");
    }
    let rows: Vec<(&str, u64)> = marked(&page, "sections")
        .lines()
        .filter_map(|line| line.strip_suffix(" |")?.rsplit_once(" | "))
        .filter_map(|(row, seconds)| Some((row.rsplit_once("| ")?.1, seconds.parse().ok()?)))
        .collect();
    assert_eq!(rows.len(), EVERY_SECTION.len());
    let usual: u64 = rows.iter().filter(|(when, _)| *when == "usually").map(|(_, seconds)| seconds).sum();
    assert!((300..480).contains(&usual), "{usual} s are eight minutes and more");
    assert!(rows.iter().all(|(_, seconds)| *seconds <= 590), "each fits a command of ten minutes");
}

/// The Python whose PyTorch is tried: `PYTHON`'s, that of the tests of the front, or the machine's; none, with a word, where
/// none has it.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PYTHON").map(PathBuf::from);
    let front = PathBuf::from(format!("{GPU}/../python/.venv/bin/python"));
    let found = named.into_iter().chain([front, PathBuf::from("python3")]).find(|python| {
        let import = Command::new(python).args(["-c", "import torch"]).output();
        import.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        println!("skipped: no Python here has torch");
    }
    found
}

/// Answers of PyTorch's side on the CPU.
fn ask_pytorch(python: &Path, questions: &[Value]) -> Vec<Value> {
    let mut command = Command::new(python);
    command.arg(format!("{GPU}/pytorch.py")).arg("--cpu").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    questions.iter().for_each(|question| writeln!(stdin, "{question}").expect("it listens"));
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    said(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("an answer is JSON")).collect()
}

fn step(network: &str, precision: &str, way: &str) -> Value {
    json!({
        "do": "step", "network": network, "image": 32, "classes": 10, "batch": 2, "precision": precision, "way": way,
        "share": 0.5, "format": "channels_last", "budget_bytes": 1 << 30, "steps": 2,
    })
}

#[test]
fn pytorchs_side_trains_in_each_precision_and_way() {
    let Some(python) = python() else { return };
    let mut questions = Vec::new();
    for precision in ["f32", "tf32", "default", "bf16"] {
        questions.extend(["eager", "checkpoint", "save_on_cpu"].map(|way| step("resnet20", precision, way)));
    }
    questions.extend(["alexnet", "googlenet", "vgg16"].map(|network| {
        let image = if network == "alexnet" { 64 } else { 32 };
        Value::Object({
            let mut question = step(network, "bf16", "checkpoint").as_object().expect("an object").clone();
            question.insert("image".to_owned(), json!(image));
            question
        })
    }));
    // Compiling needs a C++ compiler, as it needs Triton on a GPU.
    if Command::new("c++").arg("--version").output().is_ok() {
        questions.push(step("resnet20", "bf16", "compile"));
    } else {
        println!("skipped: no C++ compiler `c++` is on this machine, which torch.compile needs");
    }
    let answers = ask_pytorch(&python, &questions);
    assert_eq!(answers.len(), questions.len());
    for (question, answer) in questions.iter().zip(&answers) {
        let seconds = answer["seconds"].as_array().map(Vec::len);
        assert_eq!(seconds, Some(2), "{question}: {answer}");
    }
    let refused =
        [step("resnet20", "f16", "eager"), step("resnet20", "f32", "magic"), step("lenet", "f32", "eager")];
    let answers = ask_pytorch(&python, &refused);
    for (answer, part) in
        answers.iter().zip(["precisions are f32, tf32", "ways are eager", "lenet is not defined"])
    {
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(part)), "{answer}");
    }
}

#[test]
fn networks_have_the_same_numbers_of_parameters_on_both_sides() {
    let text = std::fs::read_to_string(format!("{GPU}/pytorch.py")).expect("PyTorch's side");
    let (_, rest) = text.split_once("PARAMETERS = {\n").expect("it has them");
    let (table, _) = rest.split_once('}').expect("they end");
    let mut checked = 0;
    for line in table.lines().filter(|line| line.contains(':')) {
        let (name, count) = line.trim().trim_end_matches(',').split_once(": ").expect("a name and a number");
        let (name, count) =
            (name.trim_matches('"'), count.replace('_', "").parse::<u64>().expect("a number"));
        let network = build(&usual(name).expect("the zoo has it")).expect("it can be built");
        let own: u64 = network.layers.iter().map(|layer| network.parameters(layer)).sum();
        assert_eq!(own, count, "{name}");
        checked += 1;
    }
    assert!(checked >= 9);
}

/// Those of `batches`.
const NETWORKS: [&str; 7] =
    ["alexnet", "googlenet", "vgg16", "resnet34", "resnet50", "resnet101", "resnet152"];

/// Rows of a race: ours makes 8 images a second at 4; eager and what ours does not run at are no comparison.
fn beside(networks: &[&str], theirs: f64) -> Value {
    let row = |network: &str, who: &str, batch: u64, rate: Option<f64>| {
        let mut row = json!({ "network": network, "who": who, "batch": batch });
        row["images_per_second"] = json!(rate);
        row
    };
    let of = |network: &&str| {
        [
            row(network, "plimsoll", 4, Some(8.0)),
            row(network, "PyTorch eager, contiguous", 4, Some(99.0)),
            row(network, "PyTorch, checkpoint on every block, contiguous", 4, Some(theirs)),
            row(network, "PyTorch, save_on_cpu, contiguous", 4, Some(2.0)),
            row(network, "PyTorch, save_on_cpu, contiguous", 8, Some(99.0)),
            row(network, "PyTorch, checkpoint on every block, contiguous", 8, None),
        ]
    };
    Value::Array(networks.iter().flat_map(of).collect())
}

#[test]
fn a_table_tells_what_was_reached_and_what_was_missed() {
    let rows = |section: &str, rows: Value| {
        json!({
            "section": section, "state": "done", "seconds": 1.0, "plimsoll": "x", "small": false, "rows": rows
        })
    };
    let group = |failed: u32| json!({ "group": "g", "passed": 9, "failed": failed, "lost": 0 });
    let step = |precision: &str, who: &str, seconds: f64| {
        json!({
            "precision": precision, "who": who, "iteration_seconds": seconds
        })
    };
    let planned = |plan: &str, off: f64, over: f64| {
        json!({
            "plan": plan, "off_share": off, "over_keeping_share": over, "predicted_peak_bytes": 1000, "allocated_bytes": 1000,
            "context_bytes": 1 << 29, "nvml_bytes": (1 << 29) + 5000, "state_copied_share": off,
        })
    };
    let all = [
        rows("tests", json!([group(0), group(1), group(0)])),
        rows("bits", json!([{ "plans": 2, "equal": 2 }, { "plans": 0, "equal": 0 }])),
        rows("link", json!([{ "memory": "pinned", "rate_bytes_per_second": 5e10 }])),
        rows(
            "step",
            json!([
                step("f32", "plimsoll", 0.055),
                step("f32", "PyTorch, contiguous", 0.05),
                step("f32", "PyTorch, channels_last", 0.06),
                step("tf32", "plimsoll", 0.04),
                step("tf32", "PyTorch, contiguous", 0.045),
                step("tf32", "PyTorch, channels_last", 0.03),
                step("bf16", "plimsoll", 0.019),
                step("bf16", "plimsoll, once more", 0.02),
                step("bf16", "PyTorch, channels_last", 0.02),
            ]),
        ),
        rows(
            "predict",
            json!([
                planned("tight", 0.01, 0.5),
                planned("tight", -0.02, 0.4),
                planned("without stall", 0.0, 0.02)
            ]),
        ),
        rows("pytorch-bf16", beside(&["resnet50"], 7.0)),
        rows("pytorch-tf32", beside(&NETWORKS, 7.0)),
        rows("pytorch-f32", beside(&NETWORKS, 8.5)),
        rows(
            "batches",
            json!([
                { "network": "n", "who": "plimsoll, keeping everything", "batch": 3, "paper_batch": 2 },
                { "network": "n", "who": "plimsoll, efficiency-optimal", "batch": 4, "paper_batch": 5 },
                { "network": "n", "who": "plimsoll", "note": "why" },
            ]),
        ),
        rows("deep", json!([{ "network": "resnet1517", "iteration_seconds": 2.0, "loss": 6.9 }])),
    ];
    let machine = json!({ "device": "A GPU", "date": "2026-01-02" });
    let results = json!({ "kind": "plimsoll-acceptance/1", "machine": machine, "sections": all });
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    std::fs::write(folder.path().join("a-gpu-2026-01-02.json"), results.to_string()).expect("a file");
    let table = said(&accept(&["table", folder.path().to_str().expect("a path")], folder.path()).stdout);
    for part in [
        "| A GPU, 2026-01-02 |",
        "27 of 28 passed, in 3 of 3 groups (missed)",
        "2 of 2 runs equal (met)",
        "at best 50.0 GB/s pinned |",
        "1.100 times (55 ms and 50 ms) (met)",
        "1.333 times (40 ms and 30 ms) (missed)",
        "1.000 times (20 ms and 20 ms) (met)",
        "+2.00 % at worst of 1 networks (missed)",
        "median 2.0 %, worst 2.0 %, of 2 (met)",
        "NVML sees 3.906 KiB at most (met)",
        "median +0.0 %, worst +1.0 %, of 3 |",
        "| faster in 2 of 2 of 1 networks; at least 1.143 times (resnet50, PyTorch, checkpoint on every block,",
        "| faster in 14 of 14 of 7 networks; at least 1.143 times (",
        " at 4) (met) |",
        "| faster in 7 of 14 of 7 networks; at least 0.941 times (",
        " at 4) (missed) |",
        "| keep/optimal/largest: n 3/4/- (AccUDNN 5): why |",
        "2 s an iteration (met)",
        "| not measured: deep ran to its end",
    ] {
        assert!(table.contains(part), "`{part}` in:\n{table}");
    }
    later_days_replace_what_they_measured_anew(
        folder.path(),
        &rows("tests", json!([group(0), group(0), group(0)])),
    );
}

/// What another day measured stands there, and what it did not stays, with its day.
fn later_days_replace_what_they_measured_anew(folder: &Path, tests: &Value) {
    let cut = json!({
        "section": "bits", "state": "cut", "seconds": 0.0, "plimsoll": "y", "small": false, "rows": []
    });
    let machine = json!({ "device": "A GPU", "date": "2026-01-03" });
    let results = json!({ "kind": "plimsoll-acceptance/1", "machine": machine, "sections": [tests, cut] });
    std::fs::write(folder.join("a-gpu-2026-01-03.json"), results.to_string()).expect("a file");
    let table = said(&accept(&["table", folder.to_str().expect("a path")], folder).stdout);
    for part in [
        "| A GPU, 2026-01-03 |",
        "27 of 27 passed, in 3 of 3 groups (met) |",
        "2 of 2 runs equal (met), 2026-01-02 |",
        "2 s an iteration (met), 2026-01-02 |",
    ] {
        assert!(table.contains(part), "`{part}` in:\n{table}");
    }
    assert!(!table.contains("| A GPU, 2026-01-02"), "one column a device: {table}");
}

/// What a plan for so many minutes says.
fn plan(minutes: u64) -> String {
    let nowhere = tempfile::tempdir().expect("there is a folder for temporary files");
    said(&accept(&["plan", "--minutes", &minutes.to_string()], nowhere.path()).stdout)
}

/// Its commands: program, sections, seconds.
fn commands(text: &str) -> Vec<(String, Vec<String>, u64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(command).collect()
}

fn command(line: &str) -> (String, Vec<String>, u64) {
    let (line, at_most) = line.split_once("  # ").expect("its seconds stand at its end");
    let (line, seconds) = line.split_once(" --seconds ").expect("it is given its seconds");
    assert_eq!(at_most, format!("{seconds} s at most"));
    let programs = ["gpu/accept.sh run ", "python3 python/accept.py "];
    let program = programs.into_iter().find(|program| line.starts_with(program)).expect("one of two");
    let sections = line[program.len()..].split(' ').map(str::to_owned).collect();
    (program.to_owned(), sections, seconds.parse().expect("a number"))
}

/// What a plan has no time for.
fn without(text: &str) -> Vec<(String, Vec<String>, u64)> {
    text.lines().filter_map(|line| line.strip_prefix("# no time for: ")).map(command).collect()
}

#[test]
fn no_plan_takes_longer_than_it_may_and_every_section_is_named_once() {
    let names = |text: &str| {
        let all = commands(text).into_iter().chain(without(text));
        let mut names: Vec<(String, String)> = all
            .flat_map(|(program, sections, _)| sections.into_iter().map(move |name| (program.clone(), name)))
            .collect();
        names.sort();
        names
    };
    let all = names(&plan(0));
    let mut once = all.clone();
    once.dedup();
    assert_eq!(all, once, "each is named once");
    for (name, _) in EVERY_SECTION {
        assert!(all.contains(&("gpu/accept.sh run ".to_owned(), name.to_owned())), "{name} in {all:?}");
    }
    for minutes in [1, 5, 10, 25, 30, 60, 120, 600] {
        let text = plan(minutes);
        let spent: Vec<u64> = commands(&text).into_iter().map(|(_, _, seconds)| seconds).collect();
        assert!(spent.iter().sum::<u64>() <= 60 * minutes, "{minutes} minutes:\n{text}");
        assert!(spent.iter().all(|seconds| *seconds <= 600), "{text}");
        assert_eq!(names(&text), all, "{text}");
    }
    assert_eq!(without(&plan(600)), []);
}

/// One loan of a GPU: what must be right, how fast a step is, and the comparisons beside PyTorch in bf16 and TF32.
#[test]
fn twenty_five_minutes_begin_with_what_must_be_right_and_hold_the_comparisons() {
    let text = plan(25);
    let expected = [
        &["tests", "bits", "step", "link", "predict"][..],
        &["pytorch-bf16", "pytorch-tf32"],
        &["batches", "batches-bf16", "batches-tf32"],
        &["facts"],
        // For as long as is left.
        &["compile-bf16"],
    ];
    let found: Vec<Vec<String>> = commands(&text).into_iter().map(|(_, sections, _)| sections).collect();
    assert_eq!(found, expected, "{text}");
    // `deep` shares no command with anything, and it is said what it needs.
    let text = plan(600);
    assert!(text.contains("of 140 GB, since vgg516 keeps 81.8 GiB"), "{text}");
    assert!(commands(&text).iter().any(|(_, sections, _)| sections == &["deep"]), "{text}");
}

#[test]
fn a_plan_from_results_takes_the_seconds_that_sections_took() {
    let section = |name: &str, state: &str, seconds: f64, small: bool| {
        json!({
            "section": name, "state": state, "why": "w", "seconds": seconds, "plimsoll": "x", "small": small, "rows": []
        })
    };
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let at = folder.path().to_str().expect("a path");
    let plan = || accept(&["plan", "--minutes", "0", "--from", at], folder.path());
    let none = plan();
    assert_eq!(none.status.code(), Some(2));
    assert!(said(&none.stderr).contains("has no results"), "{}", said(&none.stderr));
    let write = |device: &str, sections: Value| {
        let machine = json!({ "device": device, "date": "2026-01-02" });
        let results = json!({ "kind": "plimsoll-acceptance/1", "machine": machine, "sections": sections });
        let path = folder.path().join(format!("{device}-2026-01-02.json"));
        std::fs::write(path, results.to_string()).expect("a file");
    };
    write(
        "a",
        json!([
            section("tests", "done", 31.2, false),
            section("bits", "cut", 5.0, false),
            section("link", "done", 1.0, true)
        ]),
    );
    write("b", json!([section("tests", "done", 20.0, false)]));
    let text = said(&plan().stdout);
    for (name, most, seconds) in [("tests", 80, 35), ("bits", 40, 40), ("link", 10, 10)] {
        let line = format!("gpu/accept.sh run {name} --seconds {most}  # {seconds} s");
        assert!(text.contains(&line), "`{line}` in:\n{text}");
    }
}

#[test]
fn the_seconds_of_a_plan_are_those_of_both_programs() {
    let nowhere = tempfile::tempdir().expect("there is a folder for temporary files");
    let own = said(&accept(&["sections"], nowhere.path()).stdout);
    let text = std::fs::read_to_string(format!("{GPU}/../python/benches/acceptance/sections.py"))
        .expect("the sections of the front's program");
    // One tuple of names, as `NAMES = ("a", "b")`; `link` stands for itself.
    let networks = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} = (")));
        line.map_or(1, |names| names.matches('"').count() as u64 / 2)
    };
    let (_, table) = text.split_once("SECTIONS = {\n").expect("its table");
    let (table, _) = table.split_once("\n}\n").expect("its end");
    let theirs = |name: &str| {
        let (_, rest) = table.split_once(&format!("\"{name}\": Section(")).expect("a section");
        let arguments = rest.split(": Section(").next().expect("there is always a first");
        // Behind the last number comes the next section's name, if anything.
        let (arguments, _) = arguments.rsplit_once(')').expect("it is closed");
        let words = arguments.split([',', '\n']).map(|word| word.trim_matches([' ', '(', ')']));
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let each: u64 = words.last().and_then(|word| word.parse().ok()).expect("seconds for a network");
        each * networks(words[words.len() - 2])
    };
    let all = without(&plan(0));
    assert_eq!(all.len(), EVERY_SECTION.len() + table.matches(": Section(").count());
    for (program, sections, seconds) in all {
        let name = &sections[0];
        if program.starts_with("python3") {
            assert_eq!(seconds, theirs(name), "{name}");
        } else {
            let row = own.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect("a row");
            assert!(row.ends_with(&format!("| {seconds} |")), "{name}: {seconds} and {row}");
        }
    }
}
