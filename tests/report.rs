//! Reports and explanations from a user's view: of a trace and its schedule, and of a study.

use crate::program::{change, check, checked, copied, json, list, number, output, printed, read_json, timed};
use plimsoll::study::report::Report;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Checks that the document has exactly the fields of a report, with their types.
#[track_caller]
pub(crate) fn has_all_fields(document: &Value) {
    let read: Report = serde_json::from_value(document.clone()).expect("its fields have their types");
    let again = serde_json::to_value(read).expect("a report is plain JSON");
    assert!(again == *document, "a field is unknown or missing:\n{document}\n{again}");
}

/// Returns a small network, tuned once for all tests: at most 8 samples of the digits, within the memory of 16.
pub(crate) fn study() -> &'static Path {
    static STUDY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, study) = STUDY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tune = "tune --network mlp --base-batch 16 --max-batch 64 --study s --quiet";
        printed(folder.path(), tune);
        let study = folder.path().join("s");
        (folder, study)
    });
    study
}

/// Returns a copy of it, to be changed.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    copied(study(), folder.path());
    folder
}

/// Returns a folder with a trace whose ops take a millisecond each, and a schedule that swaps.
fn planned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    timed(folder.path(), "resnet20 --batch 8");
    printed(folder.path(), "plan t.json --budget 50% --link 100MB/s -o s.json");
    folder
}

#[test]
fn a_schedule_is_reported_as_it_is() {
    let folder = planned();
    let folder = folder.path();
    let report = json(folder, "report --trace t.json --schedule s.json");
    has_all_fields(&report);
    assert!(report["answer"].is_null() && report["batches"].is_null() && report["fit"].is_null());
    let simulated = json(folder, "simulate t.json s.json --commands");
    let [timeline] = list(&report["iteration"]["timelines"]) else { panic!("nothing was measured") };
    assert_eq!(timeline["makespan_seconds"], simulated["simulation"]["makespan_seconds"]);
    let slices = &timeline["slices"];
    for column in ["lane", "start", "length", "name", "what", "bytes"] {
        assert_eq!(list(&slices[column]).len(), list(&simulated["commands"]).len(), "{column}");
    }
    let moved = |code: u64| -> u64 {
        let all = list(&slices["what"]).iter().zip(list(&slices["bytes"]));
        all.filter(|(what, _)| **what == code).filter_map(|(_, bytes)| bytes.as_u64()).sum()
    };
    assert_eq!(simulated["simulation"]["offloaded_bytes"], moved(4));
    assert_eq!(simulated["simulation"]["prefetched_bytes"], moved(5));
    let most = |series: &Value| list(&series["bytes"]).iter().filter_map(Value::as_u64).max();
    let memory = &report["memory"];
    assert_eq!(most(&memory["pool"]), simulated["simulation"]["open_bytes"].as_u64());
    assert!(most(&memory["pool"]) <= memory["pool_bytes"].as_u64());
    assert!(most(&memory["keeping_everything"]) > memory["pool_bytes"].as_u64(), "half of it is the budget");
    assert_eq!(list(&memory["in_flight"]["bytes"]).last(), Some(&0.into()));
    let layers = list(&report["layers"]);
    let total = |key: &str| -> u64 { layers.iter().filter_map(|layer| layer[key].as_u64()).sum() };
    assert_eq!(Some(total("offloaded_bytes")), simulated["simulation"]["offloaded_bytes"].as_u64());
    for layer in layers {
        let decision = layer["decision"].as_str().expect("a decision");
        assert_eq!(decision.contains("swapped"), layer["offloaded_bytes"].as_u64() > Some(0), "{layer}");
        let first = decision.split(" + ").next().expect("a word");
        let reason = layer["reason"].as_str().expect("a reason");
        assert!(reason.starts_with(first) || reason.starts_with("partly"), "{layer}");
    }
    let rows = list(&report["policies"]["rows"]);
    let own = rows.iter().find(|row| row["policy"] == "this schedule").expect("its row");
    assert_eq!(own["makespan_seconds"], timeline["makespan_seconds"]);
    assert!(rows.iter().any(|row| row["policy"] == "vdnn-all" && row["paper"] == "vDNN"));

    // Residencies lie in the pool, and none share bytes.
    let column = |key: &str| -> Vec<u64> {
        list(&memory["addresses"][key]).iter().map(|n| n.as_u64().expect("a number")).collect()
    };
    let [start, length, offset, bytes] = ["start", "length", "offset", "bytes"].map(column);
    for i in 0..start.len() {
        assert!(offset[i] + bytes[i] <= memory["pool_bytes"].as_u64().expect("bytes"));
        for j in 0..i {
            let times = start[i] < start[j] + length[j] && start[j] < start[i] + length[i];
            let places = offset[i] < offset[j] + bytes[j] && offset[j] < offset[i] + bytes[i];
            assert!(!(times && places), "residencies {i} and {j} share bytes");
        }
    }

    // The commands that move a layer are explained with their times.
    let explain = "explain --trace t.json --schedule s.json";
    let explained = json(folder, explain);
    assert!(explained["explanation"]["answer"].is_null(), "nothing was tuned");
    let first = &explained["layers"][0];
    assert!(number(first, "cost_seconds") > 0.0, "half of the memory costs something: {explained}");
    let swapped = layers.iter().find(|l| l["offloaded_bytes"].as_u64() > Some(0)).expect("one is swapped");
    let of_one = json(folder, &format!("{explain} --layer {}", swapped["layer"].as_str().expect("a name")));
    let out = list(&of_one["commands"]).iter().filter(|c| c["stream"] == "swap-out");
    let bytes: u64 = out.filter_map(|command| command["bytes"].as_u64()).sum();
    assert_eq!(swapped["offloaded_bytes"], bytes);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn what_keeping_everything_takes_is_one_number_with_times_and_without() {
    let folder = planned();
    let folder = folder.path();
    printed(folder, "trace resnet20 --batch 8 -o timeless.json");
    printed(folder, "plan timeless.json --budget 50% --link 100MB/s -o u.json");
    for files in ["--trace t.json --schedule s.json", "--trace timeless.json --schedule u.json"] {
        let memory = &json(folder, &format!("report {files}"))["memory"];
        let bytes = memory["keeping_everything_bytes"].as_u64().expect("bytes");
        let budget = memory["budget_bytes"].as_u64().expect("bytes");
        assert!(bytes.abs_diff(2 * budget) <= 2, "the budget is half of it: {bytes} {budget}");
        let explained = json(folder, &format!("explain {files}"));
        let said = explained["explanation"]["limit_budget"].as_str().expect("words");
        let words = format!("keeping everything takes {} at", plimsoll::ir::Bytes(bytes));
        assert!(said.starts_with(&words), "{said}");
        let page = format!("report {files} --out page.html");
        assert!(printed(folder, &page).contains("page.html"));
    }
}

#[test]
fn a_study_is_reported_with_its_answer_and_everything_that_was_measured() {
    let report = json(study(), "report .");
    has_all_fields(&report);
    let answer = &report["answer"];
    let settings = list(&answer["settings"]);
    let names: Vec<_> = settings.iter().map(|s| s["what"].as_str().expect("a name")).collect();
    assert_eq!(names, ["chosen", "keeping everything", "yours", "AccUDNN's search"]);
    assert_eq!(settings[0]["batch"], answer["batch"]);
    for setting in settings {
        let measured = !setting["iteration_seconds"].is_null();
        assert!(measured != setting["note"].is_string(), "it was measured, or it says why not: {setting}");
    }
    let [chosen, yours] = [0, 2].map(|at| number(&settings[at], "epoch_seconds"));
    let keep = answer["keep_your_settings"].as_bool().expect("a verdict");
    assert_eq!(keep, answer["batch"] == 16, "{answer}");
    assert!(keep || chosen < yours, "what is proposed was measured to be faster: {answer}");
    assert_eq!(answer["headline"].as_str().expect("words").starts_with("Keep your settings"), keep);
    assert!(list(&report["batches"]["points"]).iter().any(|point| point["batch"] == answer["batch"]));
    assert_eq!(report["batches"]["yours"], 16);
    let timelines = list(&report["iteration"]["timelines"]);
    let names: Vec<_> = timelines.iter().map(|t| t["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["predicted", "measured"]);
    let measured = |layer: &Value| layer["measured_seconds"].as_f64() > Some(0.0);
    assert!(list(&report["layers"]).iter().any(measured));
    let fit = &report["fit"];
    for kind in list(&fit["kinds"]) {
        let columns = ["predicted", "measured", "batch", "op"].map(|key| list(&kind[key]).len());
        assert!(columns[0] > 0 && columns.iter().all(|length| *length == columns[0]), "{kind}");
    }
    assert_eq!(list(&fit["link"]).len(), 4);
    list(&fit["link"]).iter().for_each(the_errors_are_those_of_the_points);
    assert!(!list(&fit["held_out"]).is_empty());
    let mut rows = list(&report["policies"]["rows"]).iter();
    let own = rows.find(|row| row["policy"] == "plimsoll").expect("its row");
    assert_eq!(own["makespan_seconds"], timelines[0]["makespan_seconds"]);
    let about = &report["about"];
    assert!(about["command"].as_str().expect("a command").starts_with("plimsoll tune --network mlp"));
    assert!(about["data"].as_str().expect("words").contains("10 classes"));

    let folder = copy();
    let folder = folder.path();
    assert!(printed(folder, "report .").contains("report.html"));
    let page = fs::read_to_string(folder.join("report.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>"), "{}", &page[..80]);
    printed(folder, "report . --out other.html");
    assert!(folder.join("other.html").exists());
}

/// Checks that the errors shown next to the chart of the link are those of its points from its curves.
#[track_caller]
fn the_errors_are_those_of_the_points(way: &Value) {
    let numbers = |key: &str| list(&way[key]).iter().map(|n| n.as_f64().expect("a number"));
    let fitted = |bytes: f64| number(way, "latency_seconds") + bytes / number(way, "bytes_per_second");
    let off = |(bytes, took): (f64, f64)| (took / fitted(bytes) - 1.0).abs();
    let mut off: Vec<f64> = numbers("bytes").zip(numbers("seconds")).map(off).collect();
    off.sort_by(f64::total_cmp);
    let middle = (off[(off.len() - 1) / 2] + off[off.len() / 2]) / 2.0;
    for (key, expected) in [("median_error", middle), ("worst_error", off[off.len() - 1])] {
        // The report's seconds have few digits: a point that is far off is only as precise as its ratio.
        let near = (number(way, key) - expected).abs() < 1e-3 * (1.0 + expected);
        assert!(near, "{key}: {expected}, {way}");
    }
}

#[test]
fn a_training_that_took_another_time_than_stated_is_warned_of() {
    let study = copy();
    let study = study.path();
    let predicted = &read_json(&study.join("chosen.config.json"))["predicted"];
    let [seconds, stated] = ["iteration_seconds", "relative_error"].map(|key| number(predicted, key));
    fs::remove_file(study.join("checksums.txt")).expect("it is there");
    let warned = |off: f64| {
        change(&study.join("tuning.json"), |tuning| {
            tuning["training"] = serde_json::json!({"iterations": 10, "iteration_seconds": seconds * (1.0 + off),
                "between_seconds": 0.001, "loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5,
                "test_samples": 10, "peak_bytes": 10});
        });
        let report = json(study, "report .");
        let mut warnings = list(&report["about"]["warnings"]).iter().filter_map(Value::as_str);
        warnings.find(|words| words.starts_with("In training")).map(str::to_owned)
    };
    assert_eq!(warned(0.9 * stated), None);
    let words = warned(stated + 0.5).expect("it is said");
    let numbers =
        [format!("{:+.1} % off", (stated + 0.5) * 100.0), format!("an error of {:.1} %", stated * 100.0)];
    assert!(numbers.iter().all(|number| words.contains(number)), "{words}");
    assert!(words.contains("tuning anew on a calm machine"), "{words}");
}

#[test]
fn a_report_shows_the_training_that_followed() {
    let copied = copy();
    let folder = copied.path();
    let training = |folder| json(folder, "report .")["answer"]["training"].clone();
    assert_eq!(training(folder), serde_json::json!([]), "it is tuned alone");
    printed(folder, "run . --epochs 1");
    let kept = training(folder);
    assert!(kept.as_array().is_some_and(|rows| rows.len() > 3), "{kept}");
    printed(folder, "run . --epochs 1");
    assert_eq!(training(folder), kept, "nothing was left to train");
    // A finished training stays finished, whatever became of the rest of the study.
    fs::remove_file(folder.join("network.profile.json")).expect("it is there");
    check(folder, "run . --epochs 2", 0, &["report will not show this training"]);
}

#[test]
fn a_study_is_explained_and_each_of_its_layers() {
    let explained = json(study(), "explain .");
    assert!(explained["explanation"]["answer"].as_str().expect("words").contains("batch"));
    for key in ["why", "placement", "limit", "limit_budget", "limit_link", "limit_compute"] {
        assert!(explained["explanation"][key].is_string(), "{key}: {explained}");
    }
    assert!((1..=5).contains(&list(&explained["layers"]).len()));
    let of_one = json(study(), "explain . --layer fc2");
    assert_eq!(of_one["layer"]["layer"], "fc2");
    assert!(list(&of_one["ops"]).iter().any(|op| op["phase"] == "backward"));
    check(study(), "explain . --layer fc22", 2, &["has no layer `fc22`", "did you mean fc2?"]);
}

#[test]
fn how_a_plan_was_searched_for_is_told_step_by_step() {
    let explained = json(study(), "explain . --search-log");
    let steps = list(&explained["search"]);
    let tried = |step: &Value| step["tried"].as_str().expect("words").to_owned();
    assert_eq!(tried(&steps[0]), "keeping everything", "{explained}");
    let times = steps.iter().filter_map(|step| step["makespan_seconds"].as_f64());
    let best = times.fold(f64::INFINITY, f64::min);
    let predicted = number(&json(study(), "explain .")["explanation"], "predicted_seconds");
    assert!((best / predicted - 1.0).abs() < 1e-6, "the fastest step is the plan: {best}, {predicted}");
    check(study(), "explain . --search-log --layer fc2", 2, &["--search-log", "--layer"]);

    // A planner reports its steps to programs as events, on standard error.
    let folder = planned();
    let line = "plan t.json --budget 60% --link 10GB/s --message-format json";
    let told = checked(line, &output(folder.path(), line), 0, &[]);
    let events = told.lines().map(|line| serde_json::from_str(line).expect("an event a line"));
    let events: Vec<Value> = events.filter(|event: &Value| event["event"] == "search").collect();
    let made = events.iter().any(|event| event["result"]["kind"] == "planned");
    let rounds = events.iter().any(|event| tried(event).starts_with("whole tensors, round"));
    assert!(made && rounds, "{events:?}");
}

#[test]
fn a_study_holds_the_model_that_its_profile_gives() {
    let [model, profile] =
        ["network.model.json", "network.profile.json"].map(|name| read_json(&study().join(name)));
    let ops = list(&profile["batches"][0]["ops"]);
    let layers = model["layers"].as_object().expect("layers by name");
    assert_eq!(layers.len(), ops.len());
    for (name, layer) in layers {
        assert!(ops.iter().any(|op| op["name"] == name.as_str()), "{name}");
        assert_eq!(layer["fitted"].as_object().map(serde_json::Map::len), Some(1), "{layer}");
    }
    assert!(number(&model["link"]["offload_alone"]["rate"], "bytes_per_second") > 0.0);
}
