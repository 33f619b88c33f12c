//! Ctrl-C in every phase of `auto`: exit code 130, and the same command continues from the study's folder.
#![cfg(unix)]

use crate::program::{check, command, list, read_json};
use crate::study_folder::press_ctrl_c;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Runs `auto` in a study; if a marker is given, presses Ctrl-C when a line on stderr contains it. Returns exit code and
/// stderr.
fn auto(study: &Path, press_at: Option<&str>) -> (Option<i32>, String) {
    let folder = study.parent().expect("it is in a folder");
    let mut child = command(folder, "auto --epochs 12 --study study")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said = String::new();
    let mut pressed = false;
    for line in BufReader::new(child.stderr.take().expect("stderr is piped")).lines() {
        let line = line.expect("stderr is text");
        if !pressed && press_at.is_some_and(|marker| line.contains(marker)) {
            pressed = true;
            press_ctrl_c(&child);
        }
        said.push_str(&line);
        said.push('\n');
    }
    assert_eq!(pressed, press_at.is_some(), "the phase was reached:\n{said}");
    (child.wait().expect("it ends").code(), said)
}

#[test]
#[ignore = "minutes: CI runs it"]
fn every_phase_stops_and_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let study = folder.path().join("study");
    for (marker, step) in [("measuring", "measuring"), ("searching", "searching"), ("epoch 2 of", "training")]
    {
        let (code, said) = auto(&study, Some(marker));
        assert_eq!(code, Some(130), "{marker}:\n{said}");
        assert!(said.contains(&format!("error: stopped while {step}")), "{marker}:\n{said}");
        assert!(said.contains("goes on from"), "{marker}:\n{said}");
    }
    let (code, said) = auto(&study, None);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("using the choice in"), "{said}");
    assert!(said.contains("going on from iteration"), "{said}");
    one_more_iteration_is_shown_and_changes_nothing(folder.path(), &study);
}

/// Checks a study whose training is done.
fn one_more_iteration_is_shown_and_changes_nothing(folder: &Path, study: &Path) {
    let state = || std::fs::read(study.join("training.safetensors")).expect("training was saved");
    let before = state();
    check(folder, "run --epochs 12 --trace-out events.json study", 0, &[]);
    assert!(state() == before, "what was trained is as it was");
    // A refused command discards nothing, and nothing overwrites the study's files.
    let refused = |line: &str, expected: &str| {
        check(study, line, 2, &[expected]);
        assert!(state() == before, "what was trained is as it was");
    };
    for out in ["chosen.schedule.json", "training.safetensors", "tuning.json"] {
        refused(&format!("run . --epochs 12 --fresh --trace-out {out}"), "would be overwritten");
        refused(&format!("report . -o {out}"), "would be overwritten");
    }
    refused("run . --fresh --trace-out no/such", "cannot write no/such");
    refused("run . --fresh --data synthetic:5", "fewer than the batch");
    let other = std::fs::File::open(study).expect("a folder");
    other.lock().expect("nobody trains in it");
    refused("run . --fresh", "another run measures, tunes or trains in");
    drop(other);
    let events = read_json(&folder.join("events.json"));
    let events = list(&events["traceEvents"]);
    let slices = |pid: u32| {
        let own = events.iter().filter(|e| e["ph"] == "X" && e["pid"] == pid && e["cat"] != "stall");
        own.map(|e| e["name"].as_str().expect("a name")).collect::<Vec<_>>()
    };
    let names: Vec<_> =
        events.iter().filter(|e| e["name"] == "process_name").map(|e| &e["args"]["name"]).collect();
    assert_eq!(names, ["predicted", "measured"]);
    assert!(slices(1).contains(&"conv1.forward"));
    assert_eq!(slices(1), slices(2), "both show every command, in the schedule's order");
}
