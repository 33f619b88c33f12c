//! Reports and explanations from a user's view: of a trace and its schedule, of a study, and of invalid input.

use plimsoll::study::report::Report;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn plimsoll(folder: &Path, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).current_dir(folder);
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    command.env("XDG_CONFIG_HOME", folder).output().expect("the program starts")
}

/// Returns stdout of a command that succeeds.
#[track_caller]
fn printed(folder: &Path, arguments: &str) -> String {
    // Tests share the machine: a measurement that is too noisy continues.
    let mut outputs = (0..8).map(|_| plimsoll(folder, arguments));
    let output =
        outputs.find(|output| output.status.code() != Some(5)).expect("the machine is calm at times");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}\n{stderr}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn json(folder: &Path, arguments: &str) -> Value {
    serde_json::from_str(&printed(folder, &format!("{arguments} --format json"))).expect("JSON on stdout")
}

/// Checks that the command exits with this code, and that stderr contains all these texts.
#[track_caller]
fn refused(folder: &Path, arguments: &str, code: i32, says: &[&str]) {
    let output = plimsoll(folder, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}\n{stderr}");
    for words in says {
        assert!(stderr.contains(words), "`{arguments}` does not say `{words}`:\n{stderr}");
    }
}

/// Checks that the document has exactly the fields of the schema's type, with their types.
#[track_caller]
pub(crate) fn fits_the_schema(document: &Value) {
    let read: Report = serde_json::from_value(document.clone()).expect("its fields have their types");
    let again = serde_json::to_value(read).expect("a report is plain JSON");
    assert!(again == *document, "a field is unknown or missing:\n{document}\n{again}");
}

/// Returns a small network, tuned once for all tests: at most 8 samples of the digits, within the memory of 16.
fn study() -> &'static Path {
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

/// Returns a copy of it, to be broken.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(study()).expect("the study").map(|entry| entry.expect("a file")) {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("it can be copied");
    }
    folder
}

/// Returns a folder with a trace whose ops take a millisecond each, and a schedule that swaps.
fn planned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    printed(folder.path(), "trace resnet20 --batch 8 -o t.json");
    let path = folder.path().join("t.json");
    let text = fs::read_to_string(&path).expect("a trace").replace("\"seconds\":0.0", "\"seconds\":0.001");
    fs::write(&path, text).expect("a file");
    printed(folder.path(), "plan t.json --budget 50% --link 100MB/s -o s.json");
    folder
}

#[test]
fn the_schema_of_reports_has_the_fields_of_one_and_needs_none() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let schema: Value =
        serde_json::from_str(&printed(empty.path(), "report --format schema")).expect("JSON on stdout");
    let report = json(study(), "report .");
    let names = |fields: &Value| -> BTreeSet<String> {
        fields.as_object().expect("an object").keys().cloned().collect()
    };
    assert_eq!(names(&schema["properties"]), names(&report));
    assert_eq!(
        schema,
        serde_json::from_str::<Value>(&printed(study(), "report . --format schema")).expect("JSON")
    );
}

#[test]
fn a_schedule_is_reported_as_it_is() {
    let folder = planned();
    let folder = folder.path();
    let report = json(folder, "report --trace t.json --schedule s.json");
    fits_the_schema(&report);
    assert!(report["answer"].is_null() && report["batches"].is_null() && report["fit"].is_null());
    let simulated = json(folder, "simulate t.json s.json --commands");
    let [timeline] = &report["iteration"]["timelines"].as_array().expect("timelines")[..] else {
        panic!("nothing was measured")
    };
    assert_eq!(timeline["makespan_seconds"], simulated["simulation"]["makespan_seconds"]);
    let commands = simulated["commands"].as_array().expect("commands");
    for column in ["lane", "start", "length", "name", "what", "bytes"] {
        assert_eq!(timeline["slices"][column].as_array().map(Vec::len), Some(commands.len()), "{column}");
    }
    let moved = |code: u64| -> u64 {
        let slices = &timeline["slices"];
        let all =
            slices["what"].as_array().expect("kinds").iter().zip(slices["bytes"].as_array().expect("bytes"));
        all.filter(|(what, _)| what.as_u64() == Some(code)).filter_map(|(_, bytes)| bytes.as_u64()).sum()
    };
    assert_eq!(Some(moved(4)), simulated["simulation"]["offloaded_bytes"].as_u64());
    assert_eq!(Some(moved(5)), simulated["simulation"]["prefetched_bytes"].as_u64());
    let most =
        |series: &Value| series["bytes"].as_array().expect("bytes").iter().filter_map(Value::as_u64).max();
    let memory = &report["memory"];
    assert_eq!(most(&memory["pool"]), simulated["simulation"]["open_bytes"].as_u64());
    assert!(most(&memory["pool"]) <= memory["pool_bytes"].as_u64());
    assert!(most(&memory["keeping_everything"]) > memory["pool_bytes"].as_u64(), "half of it is the budget");
    assert_eq!(
        memory["in_flight"]["bytes"].as_array().and_then(|b| b.last()).and_then(Value::as_u64),
        Some(0)
    );
    let layers = report["layers"].as_array().expect("layers");
    let total = |key: &str| -> u64 { layers.iter().filter_map(|layer| layer[key].as_u64()).sum() };
    assert_eq!(Some(total("offloaded_bytes")), simulated["simulation"]["offloaded_bytes"].as_u64());
    for layer in layers {
        let decision = layer["decision"].as_str().expect("a decision");
        assert_eq!(decision.contains("swapped"), layer["offloaded_bytes"].as_u64() > Some(0), "{layer}");
        let first = decision.split(" + ").next().expect("a word");
        let reason = layer["reason"].as_str().expect("a reason");
        assert!(reason.starts_with(first) || reason.starts_with("partly"), "{layer}");
    }
    let rows = report["policies"]["rows"].as_array().expect("rows");
    let own: Vec<_> = rows.iter().filter(|row| row["policy"] == "this schedule").collect();
    assert_eq!(own[0]["makespan_seconds"], timeline["makespan_seconds"]);
    assert!(rows.iter().any(|row| row["policy"] == "vdnn-all" && row["paper"] == "vDNN"));
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
fn the_addresses_of_a_report_never_overlap_and_lie_in_the_pool() {
    let folder = planned();
    let report = json(folder.path(), "report --trace t.json --schedule s.json");
    let memory = &report["memory"];
    let column = |key: &str| -> Vec<u64> {
        memory["addresses"][key]
            .as_array()
            .expect("a column")
            .iter()
            .map(|n| n.as_u64().expect("a number"))
            .collect()
    };
    let [start, length, offset, bytes] = ["start", "length", "offset", "bytes"].map(column);
    let pool = memory["pool_bytes"].as_u64().expect("bytes");
    for i in 0..start.len() {
        assert!(offset[i] + bytes[i] <= pool);
        for j in 0..i {
            let times = start[i] < start[j] + length[j] && start[j] < start[i] + length[i];
            let places = offset[i] < offset[j] + bytes[j] && offset[j] < offset[i] + bytes[i];
            assert!(!(times && places), "residencies {i} and {j} share bytes");
        }
    }
}

#[test]
fn a_study_is_reported_with_its_answer_and_everything_that_was_measured() {
    let report = json(study(), "report .");
    fits_the_schema(&report);
    let answer = &report["answer"];
    let settings = answer["settings"].as_array().expect("settings");
    let names: Vec<_> = settings.iter().map(|s| s["what"].as_str().expect("a name")).collect();
    assert_eq!(names, ["chosen", "keeping everything", "yours", "AccUDNN's search"]);
    assert_eq!(settings[0]["batch"], answer["batch"]);
    for setting in settings {
        let measured = !setting["iteration_seconds"].is_null();
        assert!(measured != setting["note"].is_string(), "it was measured, or it says why not: {setting}");
    }
    let chosen = settings[0]["epoch_seconds"].as_f64().expect("a time");
    let yours = settings[2]["epoch_seconds"].as_f64().expect("16 samples fit the default budget");
    let keep = answer["keep_your_settings"].as_bool().expect("a verdict");
    assert_eq!(keep, answer["batch"] == 16, "{answer}");
    assert!(keep || chosen < yours, "what is proposed was measured to be faster: {answer}");
    assert_eq!(answer["headline"].as_str().expect("words").starts_with("Keep your settings"), keep);
    let points = report["batches"]["points"].as_array().expect("points");
    assert!(points.iter().any(|point| point["batch"] == answer["batch"]));
    assert_eq!(report["batches"]["yours"], 16);
    let timelines = report["iteration"]["timelines"].as_array().expect("timelines");
    let names: Vec<_> = timelines.iter().map(|t| t["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["predicted", "measured"]);
    assert!(
        report["layers"]
            .as_array()
            .expect("layers")
            .iter()
            .any(|l| l["measured_seconds"].as_f64() > Some(0.0))
    );
    let fit = &report["fit"];
    for kind in fit["kinds"].as_array().expect("layer types") {
        let columns = ["predicted", "measured", "batch", "op"].map(|key| kind[key].as_array().map(Vec::len));
        assert!(columns[0] > Some(0) && columns.iter().all(|length| *length == columns[0]), "{kind}");
    }
    assert_eq!(fit["link"].as_array().map(Vec::len), Some(4));
    the_link_errors_are_those_of_its_points(fit);
    assert!(!fit["held_out"].as_array().expect("batch sizes").is_empty());
    let rows = report["policies"]["rows"].as_array().expect("rows");
    let own: Vec<_> = rows.iter().filter(|row| row["policy"] == "plimsoll").collect();
    assert_eq!(own[0]["makespan_seconds"], timelines[0]["makespan_seconds"]);
    let about = &report["about"];
    assert!(about["command"].as_str().expect("a command").starts_with("plimsoll tune --network mlp"));
    assert!(about["data"].as_str().expect("words").contains("10 classes"));
}

/// Checks that the errors shown next to the chart of the link are those of its points from its curves.
#[track_caller]
fn the_link_errors_are_those_of_its_points(fit: &Value) {
    for direction in fit["link"].as_array().expect("ways") {
        let numbers = |key: &str| -> Vec<f64> {
            direction[key]
                .as_array()
                .expect("a column")
                .iter()
                .map(|n| n.as_f64().expect("a number"))
                .collect()
        };
        let number = |key: &str| direction[key].as_f64().expect("a number");
        let fitted = |bytes: &f64| number("latency_seconds") + bytes / number("bytes_per_second");
        let seconds = numbers("seconds");
        let bytes = numbers("bytes");
        let pairs = bytes.iter().map(fitted).zip(&seconds).map(|(fitted, took)| took / fitted);
        let mut off: Vec<f64> = pairs.map(|ratio| (ratio - 1.0).abs()).collect();
        off.sort_by(f64::total_cmp);
        let middle = (off[(off.len() - 1) / 2] + off[off.len() / 2]) / 2.0;
        let same = |key: &str, expected: f64| {
            // The report's seconds have few digits: a point that is far off is only as precise as its ratio.
            assert!(
                (number(key) - expected).abs() < 1e-3 * (1.0 + expected),
                "{key}: {expected}, {direction}"
            );
        };
        same("median_error", middle);
        same("worst_error", off[off.len() - 1]);
    }
}

#[test]
fn a_training_that_took_another_time_than_stated_is_warned_of() {
    let study = copy();
    let study = study.path();
    let tuning = fs::read_to_string(study.join("tuning.json")).expect("a tuning");
    let mut tuning: Value = serde_json::from_str(&tuning).expect("JSON");
    let config = fs::read_to_string(study.join("chosen.config.json")).expect("a config");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let predicted = &config["predicted"];
    let [seconds, stated] =
        ["iteration_seconds", "relative_error"].map(|key| predicted[key].as_f64().expect("a number"));
    fs::remove_file(study.join("checksums.txt")).expect("it is there");
    let mut warned = |off: f64| {
        tuning["training"] = serde_json::json!({"iterations": 10, "iteration_seconds": seconds * (1.0 + off),
            "between_seconds": 0.001, "loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "test_samples": 10,
            "peak_bytes": 10});
        fs::write(study.join("tuning.json"), tuning.to_string()).expect("a file");
        let report = json(study, "report .");
        let warnings = report["about"]["warnings"].as_array().expect("warnings").clone();
        warnings
            .iter()
            .filter_map(Value::as_str)
            .find(|words| words.starts_with("In training"))
            .map(str::to_owned)
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
    let output = plimsoll(folder, "run . --epochs 2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("report will not show this training"), "{said}");
}

#[test]
fn a_page_stands_in_the_study_or_where_it_is_asked_for() {
    let copied = copy();
    let folder = copied.path();
    let said = printed(folder, "report .");
    assert!(said.contains("report.html"), "{said}");
    let page = fs::read_to_string(folder.join("report.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"), "{}", &page[..80]);
    printed(folder, "report . --out other.html");
    assert!(folder.join("other.html").exists());
}

#[test]
fn a_study_is_explained_and_each_of_its_layers() {
    let explained = json(study(), "explain .");
    assert!(explained["explanation"]["answer"].as_str().expect("words").contains("batch"));
    for key in ["why", "placement", "limit", "limit_budget", "limit_link", "limit_compute"] {
        assert!(explained["explanation"][key].is_string(), "{key}: {explained}");
    }
    let layers = explained["layers"].as_array().expect("layers");
    assert!(!layers.is_empty() && layers.len() <= 5);
    let of_one = json(study(), "explain . --layer fc2");
    assert_eq!(of_one["layer"]["layer"], "fc2");
    assert!(of_one["ops"].as_array().expect("ops").iter().any(|op| op["phase"] == "backward"));
    refused(study(), "explain . --layer fc22", 2, &["has no layer `fc22`", "did you mean fc2?"]);
}

#[test]
fn how_a_plan_was_searched_for_is_told_step_by_step() {
    let explained = json(study(), "explain . --search-log");
    let steps = explained["search"].as_array().expect("steps");
    let tried = |step: &Value| step["tried"].as_str().expect("words").to_owned();
    assert_eq!(tried(&steps[0]), "keeping everything", "{explained}");
    let best =
        steps.iter().filter_map(|step| step["makespan_seconds"].as_f64()).fold(f64::INFINITY, f64::min);
    let predicted = json(study(), "explain .")["explanation"]["predicted_seconds"].as_f64().expect("seconds");
    assert!((best / predicted - 1.0).abs() < 1e-6, "the fastest step is the plan: {best}, {predicted}");
    refused(study(), "explain . --search-log --layer fc2", 2, &["--search-log", "--layer"]);

    // A tuning of an earlier version has no log.
    let copied = copy();
    let file = copied.path().join("tuning.json");
    let mut tuning: Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("a tuning")).expect("JSON");
    tuning.as_object_mut().expect("an object").remove("search").expect("a log");
    fs::write(&file, tuning.to_string()).expect("a file");
    fs::remove_file(copied.path().join("checksums.txt")).expect("a study has checksums");
    refused(copied.path(), "explain . --search-log", 2, &["how its plan was searched for", "tune --fresh"]);

    // A planner reports its steps to programs as events, on standard error.
    let folder = planned();
    let told = plimsoll(folder.path(), "plan t.json --budget 60% --link 10GB/s --message-format json");
    let events: Vec<Value> = String::from_utf8_lossy(&told.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event a line"))
        .filter(|event: &Value| event["event"] == "search")
        .collect();
    let made = events.iter().filter(|event| event["result"]["kind"] == "planned").count();
    assert!(
        made > 0 && events.iter().any(|event| tried(event).starts_with("whole tensors, round")),
        "{events:?}"
    );
}

#[test]
fn the_commands_that_move_a_layer_are_told_with_their_times() {
    let folder = planned();
    let folder = folder.path();
    let explained = json(folder, "explain --trace t.json --schedule s.json");
    assert!(explained["explanation"]["answer"].is_null(), "nothing was tuned");
    let first = &explained["layers"][0];
    assert!(first["cost_seconds"].as_f64() > Some(0.0), "half of the memory costs something: {explained}");
    let report = json(folder, "report --trace t.json --schedule s.json");
    let layers = report["layers"].as_array().expect("layers");
    let swapped =
        layers.iter().find(|l| l["offloaded_bytes"].as_u64() > Some(0)).expect("something is swapped");
    let name = swapped["layer"].as_str().expect("a name");
    let of_one = json(folder, &format!("explain --trace t.json --schedule s.json --layer {name}"));
    let out = of_one["commands"].as_array().expect("commands").iter().filter(|c| c["stream"] == "swap-out");
    let bytes: u64 = out.filter_map(|command| command["bytes"].as_u64()).sum();
    assert_eq!(Some(bytes), swapped["offloaded_bytes"].as_u64());
    for format in ["table", "csv", "md"] {
        let text = printed(
            folder,
            &format!("explain --trace t.json --schedule s.json --layer {name} --format {format}"),
        );
        assert!(text.contains("swap-out"), "{text}");
    }
}

#[test]
fn what_is_no_study_or_half_of_one_is_told_what_to_do() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    refused(empty.path(), "report", 2, &["STUDY", "--trace"]);
    refused(empty.path(), "report nowhere", 2, &["there is no folder nowhere", "plimsoll auto"]);
    refused(empty.path(), "report .", 2, &["holds no choice", "plimsoll auto"]);
    refused(empty.path(), "explain .", 2, &["holds no choice"]);
    refused(empty.path(), "report --trace t.json", 2, &["--schedule"]);
    let half = copy();
    let half = half.path();
    fs::remove_file(half.join("chosen.config.json")).expect("it is there");
    refused(half, "report .", 2, &["measured and not tuned yet", "plimsoll tune --study ."]);
    for file in ["tuning.json", "chosen.trace.json", "network.profile.json"] {
        let old = copy();
        fs::remove_file(old.path().join(file)).expect("it is there");
        let says = ["not tuned to the end, or by an older version", file, "plimsoll tune --study ."];
        refused(old.path(), "report .", 2, &says);
        // If a training depends on the choice, tuning there would be refused.
        fs::write(old.path().join("training.safetensors"), "").expect("it can be written");
        refused(old.path(), "report .", 2, &["holds a training: tune into another folder"]);
    }
}

#[test]
fn a_study_of_another_version_or_with_torn_files_is_refused() {
    let check = |file: &str, change: fn(String) -> String, code: i32, says: &[&str]| {
        let folder = copy();
        let path = folder.path().join(file);
        let text = fs::read_to_string(&path).expect("it is there");
        let changed = change(text.clone());
        assert_ne!(text, changed, "{file}");
        fs::write(&path, changed).expect("it can be written");
        // Like a study that a different version wrote, or that was edited: `kept` has the damaged ones.
        fs::remove_file(folder.path().join("checksums.txt")).expect("a study has checksums");
        refused(folder.path(), "report .", code, says);
    };
    let newer = |text: String| text.replace("tuning/2", "tuning/3");
    check(
        "tuning.json",
        newer,
        2,
        &["this is a `tuning/3` document", "another version of Plimsoll", "tune --study"],
    );
    check("tuning.json", |text| text[..text.len() / 2].to_owned(), 2, &["cut short", "tune --study"]);
    let extra = |text: String| text.replacen("\"why\":", "\"because\": 1, \"why\":", 1);
    check("tuning.json", extra, 2, &["because"]);
    let none = |text: String| text.replacen("\"samples\":", "\"samples\":0,\"x\":", 1);
    check("tuning.json", none, 2, &["tuning.json"]);
    check(
        "chosen.schedule.json",
        |text| text.replacen("\"offset\":0", "\"offset\":256", 1),
        6,
        &["is not valid"],
    );
}

#[test]
fn a_study_holds_the_model_that_its_profile_gives() {
    let text = fs::read_to_string(study().join("network.model.json")).expect("a model");
    let model: Value = serde_json::from_str(&text).expect("JSON");
    let profile = fs::read_to_string(study().join("network.profile.json")).expect("a profile");
    let profile: Value = serde_json::from_str(&profile).expect("JSON");
    let ops = profile["batches"][0]["ops"].as_array().expect("a list");
    assert_eq!(model["layers"].as_object().map(serde_json::Map::len), Some(ops.len()));
    for (name, layer) in model["layers"].as_object().expect("layers by name") {
        assert!(ops.iter().any(|op| op["name"] == name.as_str()), "{name}");
        assert_eq!(layer["fitted"].as_object().map(serde_json::Map::len), Some(1), "{layer}");
    }
    assert!(model["link"]["offload_alone"]["rate"]["bytes_per_second"].as_f64() > Some(0.0), "{text}");
}
