//! The acceptance program without a GPU: every section runs to its end on the stand-in of the driver, in tiny sizes, and what
//! cannot run says so; README and PyTorch's side agree with the program.

// Cargo builds the library that stands in beside this test.
use plimsoll_networks::{build, usual};
use plimsoll_standin as _;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
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

#[test]
fn every_section_runs_to_its_end() {
    let Some(libraries) = stand_in() else { return };
    let folder = libraries.path().join("results");
    let pytorch = format!("{GPU}/pytorch.py");
    let at = folder.to_str().expect("a path");
    let names = ["tests", "bits", "step", "link", "predict", "batches", "pytorch", "deep"];
    let arguments = [&["run"], &names[..], &["--small", "--results", at, "--pytorch", &pytorch]].concat();
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
    let least = [3, 3, 3, 6, 3, 1, 6, 1];
    assert_eq!(rows.len(), least.len(), "{rows:?}");
    for ((name, count), (expected, least)) in rows.iter().zip(names.into_iter().zip(least)) {
        assert!(*name == expected && *count >= least, "{rows:?}");
    }
    // Ours were measured; PyTorch's were measured, or say why not.
    for section in sections {
        for row in section["rows"].as_array().expect("a list") {
            let note = row["note"].as_str().unwrap_or_default();
            let excused = note.starts_with("skipped");
            assert!(excused || note.is_empty() || row["who"].is_string(), "{row}");
            for (key, value) in row.as_object().expect("an object") {
                let measured = key.ends_with("iteration_seconds") || key.ends_with("images_per_second");
                let ours = measured && !key.starts_with("caffe") && !key.starts_with("accudnn");
                assert!(!ours || value.is_number() || excused, "{key} of {row}");
            }
        }
    }
    // A second run of one section replaces its part and keeps the others.
    let again = accept(&["run", "bits", "--small", "--results", at, "--pytorch", &pytorch], libraries.path());
    assert!(again.status.success(), "{}", said(&again.stderr));
    assert_eq!(self::results(&folder)["sections"].as_array().map(Vec::len), Some(least.len()));
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
    let seconds: u64 = page
        .lines()
        .filter_map(|line| line.strip_suffix(" |")?.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    assert!((300..540).contains(&seconds), "{seconds} s are nine minutes and more");
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
    assert!(checked >= 8);
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
                step("tf32", "plimsoll", 0.04),
                step("tf32", "PyTorch, contiguous", 0.03),
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
        rows("pytorch", json!([{ "network": "n", "who": "w", "batch": 4, "images_per_second": 8.0 }])),
        rows("batches", json!([{ "network": "n", "keep_batch": 3, "accudnn_batch": 5, "note": "" }])),
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
        "+2.00 % at worst of 1 networks (missed)",
        "median 2.0 %, worst 2.0 %, of 2 (met)",
        "NVML sees 3.906 KiB at most (met)",
        "median +0.0 %, worst +1.0 %, of 3 |",
        "n w: 8/s at 4 |",
        "n 3/-/- (AccUDNN 5) |",
        "2 s an iteration (met)",
        "| not measured: deep ran to its end",
    ] {
        assert!(table.contains(part), "`{part}` in:\n{table}");
    }
}
