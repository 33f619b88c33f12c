//! Two studies side by side as a user meets them: which trains faster, which settings differ, and what is no comparison.

use crate::report::{fits_the_schema, printed, refused};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[track_caller]
fn compared(both: &str) -> Value {
    let text = printed(studies(), &format!("report {both} --format json"));
    let comparison: Value = serde_json::from_str(&text).expect("JSON on stdout");
    fits_the_schema(&comparison);
    assert_eq!(comparison["kind"], "comparison/1");
    comparison
}

/// Studies that differ in one thing each from `plain`, most of them of devices that are modelled.
fn studies() -> &'static Path {
    static STUDIES: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, folder) = STUDIES.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, options) in [
            ("plain", "resnet20 --max-batch 128 --device v100 --budget 6MiB"),
            ("roomy", "resnet20 --max-batch 128 --device v100 --budget 1GiB"),
            ("roomier", "resnet20 --max-batch 128 --device v100 --budget 2GiB"),
            ("old", "resnet20 --max-batch 128 --device k40 --budget 6MiB"),
            ("worth", "resnet20 --max-batch 128 --device v100 --budget 1GiB --goodput 64"),
            ("other-worth", "resnet20 --max-batch 128 --device v100 --budget 1GiB --goodput 640"),
            ("here", "mlp --max-batch 64"),
            ("mlp", "mlp --max-batch 64 --device v100"),
            ("text", "lstm --data text --base-batch 16 --max-batch 16 --device v100"),
        ] {
            printed(folder.path(), &format!("tune --quiet --study {name} --network {options}"));
        }
        let path = folder.path().to_owned();
        (folder, path)
    });
    folder
}

fn copy(study: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(study).expect("a study").map(|entry| entry.expect("a file")) {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("it can be copied");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn names(comparison: &Value) -> Vec<&str> {
    comparison["settings"].as_array().expect("a list").iter().filter_map(|s| s["setting"].as_str()).collect()
}

#[test]
#[ignore = "minutes: CI runs it"]
fn two_budgets_of_one_modelled_device_differ_in_the_budget_alone() {
    let both = compared("plain roomy");
    assert_eq!(names(&both), ["budget"]);
    let verdict = &both["verdict"];
    assert_eq!((&verdict["by"], &verdict["faster"]), (&"epoch".into(), &"roomy".into()), "{verdict}");
    assert_eq!(number(&verdict["equal"]), 0.01, "the model is one");
    let epoch = |at: usize| number(&both["studies"][at]["choice"]["epoch_seconds"]);
    assert!((number(&verdict["less"]) - (1.0 - epoch(1) / epoch(0))).abs() < 1e-9);
    let headline = verdict["headline"].as_str().expect("words");
    assert!(headline.starts_with("By the model, an epoch takes "), "{headline}");
    assert!(headline.contains("less with roomy than with plain"), "{headline}");
    let error = format!("{:.1} %", 100.0 * number(&both["studies"][0]["choice"]["epoch_error"]));
    assert!(verdict["why"].as_str().expect("words").contains(&error), "the band is told: {verdict}");
    let warnings = both["warnings"].as_array().expect("a list");
    assert_eq!(warnings.len(), 1, "what both say is said once: {warnings:?}");

    // The other way round it is the same.
    let turned = compared("roomy plain");
    for key in ["faster", "less", "equal", "headline"] {
        assert_eq!(turned["verdict"][key], both["verdict"][key], "{key}");
    }
    assert_eq!(turned["studies"][1], both["studies"][0]);
    assert_eq!(turned["settings"][0]["values"][1], both["settings"][0]["values"][0]);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn what_a_comparison_says_of_a_study_is_what_its_report_says() {
    let both = compared("plain roomy");
    for (at, name) in ["plain", "roomy"].into_iter().enumerate() {
        let report = printed(studies(), &format!("report {name} --format json"));
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let study = &both["studies"][at];
        assert_eq!(study["about"], report["about"]);
        assert_eq!(study["headline"], report["answer"]["headline"]);
        assert_eq!(study["choice"]["batch"], report["answer"]["batch"]);
        assert_eq!(study["choice"]["learning_rate"], report["answer"]["learning_rate"]);
        assert_eq!(study["batches"], report["batches"]);
        assert_eq!(study["memory"]["pool"], report["memory"]["pool"]);
        let slices = &report["iteration"]["timelines"][0]["slices"];
        let column = |key: &str| slices[key].as_array().expect("a column");
        let of = |code: u64, key: &str| -> f64 {
            column("what")
                .iter()
                .zip(column(key))
                .filter(|(what, _)| **what == code)
                .map(|(_, n)| number(n))
                .sum()
        };
        let choice = &study["choice"];
        assert_eq!(number(&choice["offloaded_bytes"]), of(4, "bytes"), "{name}");
        assert!((number(&choice["recomputing_seconds"]) - of(3, "length") / 1e9).abs() < 1e-6, "{name}");
        let recomputed = number(&choice["recomputed_ops"]) > 0.0;
        assert_eq!(recomputed, number(&choice["recomputed_bytes"]) > 0.0, "{choice}");
        let layers = report["layers"].as_array().expect("layers");
        let bytes: f64 = layers.iter().map(|layer| number(&layer["recomputed_bytes"])).sum();
        assert_eq!(number(&choice["recomputed_bytes"]), bytes, "{name}");
        assert!(
            name != "plain" || recomputed || number(&choice["offloaded_bytes"]) > 0.0,
            "its budget is tight"
        );
    }
}

#[test]
#[ignore = "minutes: CI runs it"]
fn two_devices_differ_where_both_errors_are_exceeded() {
    let both = compared("plain old");
    let verdict = &both["verdict"];
    let error = |at: usize| number(&both["studies"][at]["choice"]["epoch_error"]);
    assert!((number(&verdict["equal"]) - error(0).hypot(error(1))).abs() < 1e-9, "{verdict}");
    assert_eq!(verdict["faster"], "plain", "a V100 is several times as fast as a K40: {verdict}");
    assert_eq!(names(&both)[0], "device");
    assert!(verdict["headline"].as_str().expect("words").starts_with("By their models, "), "{verdict}");

    let both = compared("here plain");
    let verdict = &both["verdict"];
    assert_eq!(both["studies"][0]["times"], "measured");
    assert!(
        verdict["headline"].as_str().expect("words").contains("y one measured and one modelled time"),
        "{verdict}"
    );
    assert!(verdict["why"].as_str().expect("words").starts_with("here was measured, with a spread of "));
    assert!(names(&both).contains(&"times"));
    let warnings = both["warnings"].as_array().expect("a list");
    assert!(
        warnings.iter().any(|words| words.as_str().is_some_and(|w| w.starts_with("plain: Nothing here")))
    );
}

#[test]
#[ignore = "minutes: CI runs it"]
fn what_differs_by_no_more_than_counts_as_equal_is_no_difference() {
    let both = compared("roomy roomier");
    let verdict = &both["verdict"];
    assert!(verdict["faster"].is_null() && number(&verdict["less"]) <= 0.01, "all fits both: {verdict}");
    let headline = verdict["headline"].as_str().expect("words");
    assert!(
        headline.starts_with("Neither is shown to be faster: by the model, an epoch takes "),
        "{headline}"
    );

    let folder = tempfile::tempdir().expect("a temporary folder");
    copy(&studies().join("here"), &folder.path().join("again"));
    let line = format!("report {}/here again --format json", studies().display());
    let both: Value = serde_json::from_str(&printed(folder.path(), &line)).expect("JSON");
    let verdict = &both["verdict"];
    assert!(verdict["faster"].is_null() && number(&verdict["less"]) == 0.0, "{verdict}");
    let spread = number(&both["studies"][0]["choice"]["relative_error"]);
    assert!((number(&verdict["equal"]) - spread.hypot(spread)).abs() < 1e-12, "{verdict}");
    assert!(
        verdict["why"].as_str().expect("words").starts_with("Both were measured, with spreads of "),
        "{verdict}"
    );
    assert_eq!(both["settings"], serde_json::json!([]), "nothing differs");
    let table = printed(folder.path(), &format!("report {}/here again", studies().display()));
    assert!(!table.contains("setting that differs"), "{table}");
}

#[test]
#[ignore = "minutes: CI runs it"]
fn samples_count_by_one_noise_scale_where_there_is_one() {
    let both = compared("roomy worth");
    let verdict = &both["verdict"];
    assert_eq!(verdict["by"], "goodput");
    for study in both["studies"].as_array().expect("two") {
        let choice = &study["choice"];
        let worth = (64.0 + 32.0) / (64.0 + number(&choice["global_batch"]));
        assert!((number(&choice["efficiency"]) - worth).abs() < 1e-9, "{choice}");
        let goodput = number(&choice["samples_per_second"]) * worth;
        assert!((number(&choice["goodput"]) / goodput - 1.0).abs() < 1e-9, "{choice}");
        let points = study["batches"]["points"].as_array().expect("points");
        assert!(points.iter().all(|point| point["efficiency"].is_f64()), "each batch is worth something");
    }
    let goodput = |at: usize| number(&both["studies"][at]["choice"]["goodput"]);
    assert!(goodput(1) >= goodput(0) * 0.99, "what was chosen by goodput has no less of it");
    assert!(verdict["why"].as_str().expect("words").contains("a noise scale of 64"), "{verdict}");
    assert_eq!(names(&both), ["smallest batch", "goal"]);

    let both = compared("worth other-worth");
    assert_eq!(both["verdict"]["by"], "epoch");
    let why = both["verdict"]["why"].as_str().expect("words");
    assert!(why.contains("Goodput is not compared: their noise scales are 64 and 640."), "{why}");
}

#[test]
#[ignore = "minutes: CI runs it"]
fn other_networks_and_data_are_compared_and_it_is_said() {
    let both = compared("plain mlp");
    let why = both["verdict"]["why"].as_str().expect("words");
    assert!(why.contains("The networks differ"), "{why}");
    assert_eq!(names(&both)[0], "network");
    let both = compared("mlp text");
    assert_eq!(both["verdict"]["by"], "samples");
    let why = both["verdict"]["why"].as_str().expect("words");
    let said = [0, 1].map(|at| both["studies"][at]["batches"]["samples"].to_string()).join(" and ");
    assert!(why.contains(&format!("Their epochs have {said} samples")), "{why}");
    assert!(
        both["verdict"]["headline"].as_str().expect("words").contains("the same number of samples takes")
    );
}

#[test]
#[ignore = "minutes: CI runs it"]
fn the_terminal_gets_the_answer_and_a_browser_the_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let both = format!("report {0}/plain {0}/roomy", studies().display());
    let said = printed(folder.path(), &both);
    for words in
        ["less with roomy than with plain", "comparison.html", "plain", "recomputed", "swapped", "6 MiB"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let page = fs::read_to_string(folder.path().join("comparison.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>") && page.contains("<title>plain and roomy: "));
    printed(folder.path(), &format!("{both} --out other.html"));
    assert!(folder.path().join("other.html").exists());
    let csv = printed(folder.path(), &format!("{both} --format csv"));
    assert!(csv.starts_with("table,answer,why,"), "{csv}");
    assert!(csv.lines().any(|line| line.starts_with("settings,") && line.contains("6 MiB")), "{csv}");
    let md = printed(folder.path(), &format!("{both} --format md"));
    assert!(md.contains("| choice") && md.contains("| plain") && md.contains("| roomy"), "{md}");
    let json = printed(folder.path(), &format!("{both} --format json --out both.json"));
    assert!(json.is_empty() && folder.path().join("both.json").exists());
}

#[test]
#[ignore = "minutes: CI runs it"]
fn studies_of_the_same_name_are_told_apart_by_their_paths() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (parent, name) in [("a", "plain"), ("b", "roomy")] {
        let study = folder.path().join(parent).join("study");
        copy(&studies().join(name), &study);
    }
    let text = printed(folder.path(), "report a/study b/study --format json");
    let both: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&both["studies"][0]["name"], &both["studies"][1]["name"]),
        (&"a/study".into(), &"b/study".into())
    );
}

#[test]
#[ignore = "minutes: CI runs it"]
fn what_is_no_comparison_is_refused_by_name() {
    let folder = studies();
    refused(folder, "report plain plain", 2, &["plain is named twice", "name two studies"]);
    refused(folder, "report plain ./plain/../plain", 2, &["are the same study"]);
    refused(folder, "report plain plain/chosen.config.json", 2, &["is named twice"]);
    refused(folder, "report plain nowhere", 2, &["there is no folder nowhere", "name a study's folder"]);
    refused(folder, "report nowhere plain", 2, &["there is no folder nowhere"]);
    refused(folder, "report plain roomy old", 2, &["unexpected argument 'old'"]);
    refused(folder, "report plain --trace t.json --schedule s.json", 2, &["cannot be used with"]);
    refused(folder, "report plain roomy --out roomy/tuning.json", 2, &["tuning.json"]);
    fs::create_dir_all(folder.join("empty")).expect("a folder");
    refused(folder, "report plain empty", 2, &["empty holds no choice", "name a study's folder"]);

    let broken = tempfile::tempdir().expect("a temporary folder");
    let copied = broken.path().join("broken");
    copy(&folder.join("roomy"), &copied);
    let tuning = copied.join("tuning.json");
    let text = fs::read_to_string(&tuning).expect("a tuning");
    fs::write(&tuning, &text[..text.len() / 2]).expect("a file");
    let both = format!("report {} broken", folder.join("plain").display());
    refused(broken.path(), &both, 2, &["broken/tuning.json"]);
    fs::remove_file(&tuning).expect("it is there");
    refused(broken.path(), &both, 2, &["broken was not tuned to the end", "plimsoll tune --study broken"]);

    fs::write(broken.path().join("comparison.html"), "my own page").expect("a file");
    let both = format!("report {0}/plain {0}/roomy", folder.display());
    refused(broken.path(), &both, 2, &["was not written by Plimsoll", "--out"]);
}
