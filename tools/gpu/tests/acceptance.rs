//! The script without a GPU: every measuring section runs to its end on the stand-in for the driver, in tiny sizes, and a
//! failing section stops nothing.

// Cargo then builds the stand-in library next to this test.
use plimsoll_standin as _;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GPU: &str = env!("CARGO_MANIFEST_DIR");

/// Runs the script with the folder's programs, libraries and results.
fn script(folder: &Path, python: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command
        .arg(format!("{GPU}/accept.sh"))
        .args(arguments)
        .env("DIST", folder)
        .env("OUT", folder.join("out"));
    let output = command.env("PYTHON", python).env("PLIMSOLL_CUDA_LIBRARIES", folder).output();
    let Output { status, stdout, stderr } = output.expect("bash starts");
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

/// The Python of `PYTHON`, of the PyTorch front's tests, or of the machine, if it has PyTorch.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PYTHON").map(PathBuf::from);
    let front = PathBuf::from(format!("{GPU}/../../python/.venv/bin/python"));
    named.into_iter().chain([front, PathBuf::from("python3")]).find(|python| {
        let import = Command::new(python).args(["-c", "import torch"]).output();
        import.is_ok_and(|output| output.status.success())
    })
}

/// A folder with the stand-in for the device and the programs for the script; `None` without a C compiler for its kernels.
fn folder() -> Option<tempfile::TempDir> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler `cc` is on this machine");
        return None;
    }
    let test = std::env::current_exe().expect("a test has a file");
    let built = test.with_file_name("libplimsoll_standin.so");
    assert!(built.is_file(), "cargo builds the library next to its tests");
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublas.so.13", "libcudnn.so.9", "libnvidia-ml.so.1"] {
        symlink(&built, folder.path().join(name)).expect("a link can be made");
    }
    symlink(env!("CARGO_BIN_EXE_accept"), folder.path().join("accept")).expect("a link can be made");
    Some(folder)
}

/// Each section with its number of rows, and the fields of each row.
const SECTIONS: [(&str, usize, &[&str]); 4] = [
    // Six rates, and an op next to transfers.
    ("link", 7, &[]),
    // Four budgets in three precisions.
    ("step", 12, &["precision", "network", "batch", "budget_bytes"]),
    ("batch", 2, &["precision", "network", "batch", "seconds", "spread_seconds", "allocated_bytes", "loss"]),
    // Three ways and two formats in three precisions.
    ("pytorch", 18, &["precision", "network", "batch", "seconds", "spread_seconds", "parameters", "pytorch"]),
];

#[test]
fn every_section_runs_to_its_end_and_one_that_fails_stops_nothing() {
    let Some(folder) = folder() else { return };
    let python = python();
    if python.is_none() {
        println!("skipped: no Python here has torch");
    }
    let sections = SECTIONS.iter().filter(|(name, ..)| *name != "pytorch" || python.is_some());
    // The folder has no test programs, so this section cannot start.
    let mut arguments = vec!["run", "--small", "device"];
    let names: Vec<String> = sections.clone().map(|(name, ..)| format!("{name}=1000")).collect();
    arguments.extend(names.iter().map(String::as_str));
    let (code, words) = script(folder.path(), python.as_deref().unwrap_or(Path::new("python3")), &arguments);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("device     rc 127"), "{words}");
    for (name, count, keys) in sections {
        assert!(words.contains(&format!("{name:<10} rc 0 ")), "{words}");
        let text = std::fs::read_to_string(folder.path().join(format!("out/{name}.jsonl"))).expect("rows");
        let rows: Vec<Value> = text.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
        assert_eq!(rows.len(), *count, "{text}");
        for row in rows {
            for key in ["device", "driver", "plimsoll", "cudnn"].iter().chain(*keys) {
                assert!(!row[key].is_null(), "{key} in {row}");
            }
            assert_eq!(row["small"], true);
            if *name == "step" {
                let measured = ["seconds", "spread_seconds", "predicted_seconds", "loss"];
                assert!(measured.iter().all(|key| row[key].is_number()) || row["note"].is_string(), "{row}");
                // Memory is exact for every row with a run.
                assert_eq!(row["allocated_bytes"], row["predicted_bytes"], "{row}");
            }
        }
    }
}

#[test]
fn a_section_that_is_cut_or_finds_no_device_says_so() {
    let Some(folder) = folder() else { return };
    let none = Path::new("python3");
    let (code, words) = script(folder.path(), none, &["run", "--small", "step=0.2", "link=1000"]);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("step       rc 124") && words.contains("link       rc 0 "), "{words}");
    let (code, words) = script(folder.path(), none, &["run", "stpe"]);
    assert_eq!((code, words.contains("there is no section `stpe`")), (Some(2), true), "{words}");
    std::fs::remove_file(folder.path().join("libcuda.so.1")).expect("it is there");
    let (code, words) = script(folder.path(), none, &["run", "--small", "link"]);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("link       rc 4") && words.contains("libcuda.so.1"), "{words}");
}
