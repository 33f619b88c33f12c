//! Devices that are not here: what their model says beside what was published of them, and that every verb says that it is a model.

use plimsoll::networks::{LowerOptions, build, lower, usual};
use plimsoll::tuner::model::devices::{Modelled, SHEETS, sheet};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Images per second of a training iteration, each op in its usual or in its fastest way.
fn images_per_second(device: &str, network: &str, batch: u64, fast: bool) -> f64 {
    let device =
        Modelled { fast_ways: fast, ..Modelled::new(sheet(device).expect("a device that is modelled")) };
    let network = build(&usual(network).expect("in the zoo")).expect("a network");
    let ways = |call: &plimsoll::ir::program::Call| device.ways(call);
    let options = LowerOptions { ways: &ways, ..LowerOptions::default() };
    let mut program = lower(&network, batch, &options).expect("a sound batch");
    device.fill(&mut program);
    batch as f64 / program.trace.fastest_seconds().0
}

/// The model's images per second over those that were published lie within a range.
#[track_caller]
fn check(device: &str, network: &str, batch: u64, fast: bool, published: f64, range: [f64; 2]) {
    let ratio = images_per_second(device, network, batch, fast) / published;
    println!("{device} {network} {batch}: {ratio:.2} of {published}");
    let off = format!("{device} {network} {batch}: {ratio:.2} of {published}");
    assert!((range[0]..=range[1]).contains(&ratio), "{off}");
}

#[test]
fn the_model_is_near_what_was_published() {
    // AccUDNN Table 1, Caffe on an M40, cuDNN's choice of algorithms. Caffe's batch normalisation is two layers of several passes
    // each, which is why residual networks take up to twice as long there as memory and products allow.
    check("m40", "vgg16", 80, true, 51.0, [0.7, 1.4]);
    check("m40", "alexnet", 848, true, 865.0, [0.7, 1.5]);
    check("m40", "resnet34", 91, true, 99.0, [1.0, 2.0]);
    check("m40", "resnet50", 33, true, 66.0, [1.0, 2.0]);
    check("m40", "resnet101", 20, true, 29.0, [1.0, 2.3]);
    check("m40", "resnet152", 13, true, 19.0, [1.0, 2.3]);
    // Caffe2's convnet_benchmarks.py, cuDNN 4 on an M40: VGG-A at batch 64 in 1.33 s, forward and backward.
    check("m40", "vgg11", 64, false, 64.0 / 1.3277, [0.8, 1.8]);
    // Layrub Table 5, Caffe on a K40, 20 iterations: VGGNet at batch 64 in 91.8 s, AlexNet at 256 (Table 8) in 20.8 s.
    check("k40", "vgg16", 64, false, 20.0 * 64.0 / 91.815, [0.8, 1.4]);
    check("k40", "alexnet", 256, false, 20.0 * 256.0 / 20.808, [0.8, 1.8]);
}

#[test]
fn links_are_what_euro_par_measured_and_twice_that_a_generation() {
    for sheet in &SHEETS {
        let link = Modelled::new(sheet).link();
        let expected = 12.2e9 * f64::from(1 << (sheet.pcie - 3));
        assert!((link.offload_bytes_per_second.0 / expected - 1.0).abs() < 0.01, "{}: {link:?}", sheet.name);
    }
}

fn plimsoll(folder: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(line.split_whitespace())
        .current_dir(folder)
        .env("XDG_CONFIG_HOME", folder)
        .env("XDG_CACHE_HOME", folder)
        .output()
        .expect("the program starts")
}

/// Runs a line that ends with this code; gives what it printed and what it said.
#[track_caller]
fn told(folder: &Path, line: &str, code: i32) -> [String; 2] {
    let output = plimsoll(folder, line);
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert_eq!(output.status.code(), Some(code), "{line}\n{out}{err}");
    [out, err]
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn nothing_is_swapped_for_what_counts_as_equal() {
    let folder = tempfile::tempdir().expect("a folder");
    let tune = "tune --network vgg11 --image 224 --data synthetic:50000 --device v100 --format json";
    let [frugal, _] = told(folder.path(), &format!("{tune} --study frugal"), 0);
    let [fastest, _] = told(folder.path(), &format!("{tune} --study fastest --objective fastest"), 0);
    let [frugal, fastest]: [Value; 2] =
        [&frugal, &fastest].map(|text| serde_json::from_str(text).expect("JSON"));
    let chosen = |tuned: &Value| {
        let batch = &tuned["choice"]["batch"];
        let curve = tuned["curve"].as_array().expect("rows");
        curve.iter().find(|row| row["batch"] == *batch).expect("it is of the curve").clone()
    };
    let [frugal, fastest] = [chosen(&frugal), chosen(&fastest)];
    let number = |row: &Value, key: &str| row[key].as_f64().expect("a number");
    assert!(
        number(&frugal, "epoch_seconds") <= 1.011 * number(&fastest, "epoch_seconds"),
        "{frugal} {fastest}"
    );
    assert!(
        number(&frugal, "offloaded_bytes") == 0.0 && number(&frugal, "recomputing_seconds") == 0.0,
        "{frugal}"
    );
    assert!(
        number(&fastest, "offloaded_bytes") > 0.0 && number(&frugal, "batch") < number(&fastest, "batch"),
        "{fastest}"
    );
    // What is on the device at the peak is no more than it holds.
    assert!(number(&fastest, "at_peak_bytes") <= number(&fastest, "peak_bytes"), "{fastest}");
}

#[test]
fn every_verb_says_that_it_is_a_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let [tables, said] = told(at, "auto --device k40 --max-batch 256 --study s", 0);
    assert!(tables.contains("modelled from the device's data sheet, not measured"), "{tables}");
    assert!(said.contains("nothing is trained"), "{said}");
    let study = at.join("s");
    assert_eq!(json(&study.join("network.profile.json"))["machine"]["modelled"], true);
    let config = json(&study.join("chosen.config.json"));
    assert_eq!((&config["modelled"], &config["measured"]), (&Value::Bool(true), &Value::Null));
    assert!(config["device"].as_str().is_some_and(|name| name.starts_with("modelled: ")));
    assert!(!study.join("training.safetensors").exists());
    let tuning = json(&study.join("tuning.json"));
    assert_eq!((&tuning["timeline"], &tuning["rounds"][0]["measured_seconds"]), (&Value::Null, &Value::Null));
    let [report, _] = told(at, "report s --format json", 0);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["about"]["modelled"], true);
    assert_eq!(report["fit"], Value::Null);
    assert!(report["answer"]["headline"].as_str().is_some_and(|words| !words.contains(": measured")));
    assert!(told(at, "explain s", 0)[0].contains("modelled from the device's data sheet, not measured"));
    assert!(told(at, "export s --to torchrun", 0)[0].contains("Nothing was measured"));
    // A second time, from what the study holds.
    assert!(
        told(at, "auto --device k40 --max-batch 256 --study s", 0)[0].contains("data sheet, not measured")
    );
    for line in ["run s", "run s --device v100", "verify --device v100"] {
        assert!(told(at, line, 4)[1].contains("nothing can run"), "{line}");
    }
    told(at, "trace resnet20 --device v100 -o t.json", 0);
    let name = json(&at.join("t.json"))["name"].as_str().expect("a name").to_owned();
    assert!(name.ends_with("-modelled-v100"), "{name}");
    told(at, "plan t.json --budget 60% --link 12.2GB/s -o plan.json", 0);
    let [report, _] = told(at, "report --trace t.json --schedule plan.json --format json", 0);
    assert!(report.contains("\"modelled\": true") || report.contains("\"modelled\":true"));
}

#[test]
fn a_study_of_one_device_is_not_taken_over_by_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let v100 = "--network mlp --max-batch 64 --study s --device v100";
    let k40 = "--network mlp --max-batch 64 --study s --device k40";
    let there = || {
        ["network.profile.json", "chosen.config.json"].map(|name| std::fs::read(at.join("s").join(name)).ok())
    };
    told(at, &format!("tune {v100}"), 0);
    let chosen = there();
    let refused = "holds the profile of another device: modelled: NVIDIA Tesla V100";
    let cpu = "--network mlp --max-batch 64 --study s --threads 1";
    for (line, words) in [
        (format!("profile {k40}"), refused),
        (format!("tune {k40}"), refused),
        (format!("tune {cpu}"), refused),
        (format!("profile {cpu}"), refused),
        (format!("auto {k40}"), "holds the choice for another device: modelled: NVIDIA Tesla V100"),
        (format!("auto {k40} --budget 15.5GiB"), "more than the 12 GiB of the device"),
        (
            format!("tune {v100} --budget 1GiB"),
            "holds the profile of another budget: 15.5 GiB (16642998272 B) there, 1 GiB",
        ),
        (
            format!("tune {v100} --channels 1 --data synthetic"),
            "holds the profile of another network: mlp for 8x8x1",
        ),
    ] {
        let [_, said] = told(at, &line, 2);
        assert!(said.contains(words) && said.contains("help: "), "{line}: {said}");
        assert_eq!(there(), chosen, "{line}");
    }
    // The same anew, and another where that is asked for.
    told(at, &format!("tune {v100} --min-batch 40"), 0);
    told(at, &format!("tune {k40} --fresh"), 0);
    assert!(
        json(&at.join("s/chosen.config.json"))["device"].as_str().is_some_and(|name| name.contains("K40"))
    );
}

/// A modelled device's host has the memory that its sheet states, or what is said; what is chosen fits it.
#[test]
fn the_host_of_a_modelled_device_has_so_much_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let [_, said] = told(at, "profile --network mlp --device m40 --max-batch 64 --study m", 0);
    assert!(said.contains("with 89.6 GiB of host memory"), "70 % of 128 GiB: {said}");
    let tune = "tune --network resnet20 --device k40 --budget 8MiB --max-batch 64";
    let on_host = |study: &str| {
        let report: Value =
            serde_json::from_str(&told(at, &format!("report {study} --format json"), 0)[0]).expect("JSON");
        report["memory"]["host_bytes"].as_u64().expect("bytes on the host")
    };
    told(at, &format!("{tune} --min-batch 48 --study free"), 0);
    assert!(on_host("free") > 300_000, "something is swapped");
    let [_, said] = told(at, &format!("{tune} --min-batch 48 --study short --host-memory 300kB"), 0);
    assert!(said.contains("with 293 KiB of host memory"), "{said}");
    assert!(on_host("short") <= 300_000);
}

#[test]
fn what_a_modelled_device_cannot_do_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (line, words) in [
        ("profile --device v100 --tf32", "no tensor cores for TF32"),
        ("profile --device h100 --kernels own", "--kernels is for --device cuda"),
        ("profile --device h100 --threads 2", "--threads is for --device cpu"),
        ("profile --device h100 --link 1GB/s", "--link is for --device cpu"),
        ("profile --device h100 --duplex half", "--duplex half is for --device cpu"),
        ("profile --device h100 --host file:h", "--host file:PATH is for --device cpu"),
        ("trace lenet --device cpu", "only a device that is modelled"),
        ("tune --device k40 --budget 1TB", "is more than the 12 GiB of the device"),
        ("tune --device k40 --budget 101%", "is more than the 12 GiB of the device"),
        ("auto --device p100", "k40, m40, gtx1080ti, v100, a100-40gb, rtx4090, h100, h200"),
    ] {
        let [_, said] = told(folder.path(), line, 2);
        assert!(said.contains(words), "{line}: {said}");
    }
}
