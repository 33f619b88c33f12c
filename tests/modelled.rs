//! Absent devices: their model compared with published results; every verb states that it is a model, and its possible error.

#[path = "../benches/devices/fit.rs"]
mod fit;
#[path = "../benches/devices/published.rs"]
mod published;

use plimsoll::ir::Precision;
use plimsoll::ir::program::{Call, Program};
use plimsoll::networks::{LowerOptions, build, lower, usual};
use plimsoll::tuner::model::devices::{GENERATIONS, Generation, Modelled, SHEETS, sheet};
use published::{Judged, held_out, judged, sources, spread, to_state};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns every published throughput, with the model's.
fn all() -> &'static [Judged] {
    static ALL: OnceLock<Vec<Judged>> = OnceLock::new();
    ALL.get_or_init(judged)
}

/// Returns the arithmetics of a generation: f32, and TF32 if its tensor cores support it.
fn arithmetics(generation: &Generation) -> &'static [bool] {
    if generation.reach.tf32.is_some() { &[false, true] } else { &[false] }
}

/// Checks that a generation's ratios, model over published, lie within ranges: their geometric mean, and each of them. Returns
/// the number of ratios.
#[track_caller]
fn near<'a>(of: &str, ratios: impl Iterator<Item = &'a Judged>, mean: [f64; 2], each: [f64; 2]) -> usize {
    let Some(found) = spread(ratios) else { return 0 };
    println!("{of}: {found:?}");
    assert!((mean[0]..=mean[1]).contains(&found.mean), "{of}: mean of {found:?}");
    assert!((each[0]..=each[1]).contains(&found.worst), "{of}: worst of {found:?}");
    found.count
}

#[test]
fn the_model_is_near_what_was_published() {
    let mut compared = 0;
    for generation in &GENERATIONS {
        let name = generation.name;
        let fitted = |one: &&Judged| one.row.sheet.generation.name == name && one.row.is_fitted();
        compared += near(&format!("{name}, fitted"), all().iter().filter(fitted), [0.97, 1.03], [0.75, 1.30]);
        // Caffe's residual networks on an M40 are half as fast as Torch's on the same chip.
        let each = if name == "Maxwell" { [0.6, 2.0] } else { [0.75, 1.55] };
        for tf32 in [false, true] {
            let held = held_out(all(), generation, tf32);
            compared += near(&format!("{name}, held out, TF32 {tf32}"), held, [0.88, 1.15], each);
        }
    }
    assert_eq!(compared, all().len(), "each row is compared once");
    let held = || all().iter().filter(|one| !one.row.is_fitted());
    near("all, held out", held(), [0.95, 1.08], [0.6, 2.0]);
    assert!(held().count() >= 70);
}

#[test]
fn the_stated_error_is_that_of_what_was_held_out() {
    for generation in &GENERATIONS {
        let found = to_state(all(), generation);
        for tf32 in arithmetics(generation).iter().map(|tf32| usize::from(*tf32)) {
            let (states, found) = (generation.errors[tf32], found[tf32]);
            println!("{} {tf32}: states {states}, finds {found:.3}", generation.name);
            assert!((states - found).abs() < 0.01, "{} states {states}, finds {found}", generation.name);
        }
    }
    let held: Vec<&Judged> = all().iter().filter(|one| !one.row.is_fitted()).collect();
    let off = |one: &Judged| (one.ratio.ln().abs().exp() - 1.0, one.row.device().error());
    let within = held.iter().filter(|one| off(one).0 <= off(one).1).count();
    println!("{within} of {} within what is stated", held.len());
    assert!(within * 10 >= held.len() * 9, "{within} of {} within what is stated", held.len());
}

/// A generation's shares, in two digits, fit its rows as well as any others.
#[test]
fn what_kernels_reach_is_what_the_fit_finds() {
    let mut worse = Vec::new();
    for generation in &GENERATIONS {
        let (best, [least, has]) = fit::fit(generation);
        println!("{}: {:?} misses {has:.4}, {best:?} {least:.4}", generation.name, generation.reach);
        worse.extend((has > least * 1.01 + 5e-4).then_some(generation.name));
    }
    assert!(worse.is_empty(), "what fits better than {worse:?} is printed above");
}

#[test]
fn every_row_names_its_source() {
    let known: Vec<&str> = sources().iter().map(|(key, _)| *key).collect();
    for one in all() {
        assert!(known.contains(&one.row.source.as_str()), "{:?}", one.row);
    }
    for (key, address) in sources() {
        assert!(all().iter().any(|one| one.row.source == key), "nothing is of {key}");
        assert!(address.starts_with("https://") || address.contains("Table"), "{key}: {address}");
    }
}

/// Returns one iteration as a device would run it.
fn timed(network: &str, batch: u64, device: &Modelled) -> Program {
    let network = build(&usual(network).expect("in the zoo")).expect("a network");
    let alternatives = |call: &Call| device.alternatives(call);
    let feature_maps = device.precision.feature_maps();
    let options = LowerOptions { feature_maps, alternatives: &alternatives, ..LowerOptions::default() };
    let mut program = lower(&network, batch, &options).expect("a sound batch");
    device.fill(&mut program);
    program
}

#[test]
fn no_op_is_slower_where_tensor_cores_are_allowed() {
    let mut faster = Vec::new();
    for sheet in SHEETS.iter().filter(|sheet| sheet.tf32_peak.is_some()) {
        for (network, batch) in
            [("vgg16", 4), ("resnet50", 32), ("mobilenet_v2", 8), ("alexnet", 16), ("bert", 2)]
        {
            let [f32, usual, tf32] = [Precision::F32, Precision::Tf32Convolutions, Precision::Tf32]
                .map(|precision| timed(network, batch, &Modelled { precision, ..Modelled::new(sheet) }));
            for (slower, faster) in [(&f32, &usual), (&usual, &tf32)] {
                for (slow, fast) in slower.trace.ops.iter().zip(&faster.trace.ops) {
                    assert!(fast.seconds <= slow.seconds, "{} {network} {}", sheet.name, slow.name);
                    assert_eq!(fast.alternatives.len(), slow.alternatives.len(), "{}", slow.name);
                    for (slow, fast) in slow.alternatives.iter().zip(&fast.alternatives) {
                        assert!(fast.seconds <= slow.seconds, "{} {network} {}", sheet.name, slow.name);
                    }
                }
            }
            // By default, only PyTorch's matrix products remain in f32.
            for (index, kernel) in usual.kernels.iter().enumerate() {
                let seconds = |of: &Program| of.trace.ops[index].seconds;
                let as_in = match kernel.call {
                    Call::ConvForward { shape } if shape.is_matrix_product() => &f32,
                    Call::AttentionForward { .. } => &f32,
                    _ => &tf32,
                };
                if matches!(kernel.call, Call::ConvForward { .. } | Call::AttentionForward { .. }) {
                    assert_eq!(seconds(&usual), seconds(as_in), "{network} {:?}", kernel.call);
                }
            }
            let gain = f32.trace.fastest_seconds() / tf32.trace.fastest_seconds();
            println!("{} {network}: {gain:.2} times as fast in TF32", sheet.name);
            faster.extend((gain > 1.2).then_some(sheet.name));
        }
    }
    // A GeForce has one peak for both.
    assert!(["a100-40gb", "h100", "h200"].iter().all(|name| faster.contains(name)), "{faster:?}");
    assert!(!faster.contains(&"rtx4090"));
}

/// If the data sheet has bf16, activations take half the bytes, so that no op takes longer than in TF32 without the fast
/// alternatives, which transform in f32; the other devices are refused by name.
#[test]
fn bf16_is_modelled_where_the_data_sheet_has_it() {
    let with = SHEETS.iter().filter(|sheet| sheet.bf16_peak.is_some());
    let with: Vec<&str> = with.map(|sheet| sheet.name).collect();
    assert_eq!(with, ["a100-40gb", "rtx4090", "h100", "h200"]);
    for sheet in SHEETS.iter().filter(|sheet| sheet.bf16_peak.is_some()) {
        for (network, batch) in [("vgg16", 4), ("resnet50", 32), ("bert", 2)] {
            let [tf32, bf16] = [Precision::Tf32, Precision::Bf16].map(|precision| {
                timed(
                    network,
                    batch,
                    &Modelled { precision, fast_alternatives: false, ..Modelled::new(sheet) },
                )
            });
            for (slow, fast) in tf32.trace.ops.iter().zip(&bf16.trace.ops) {
                assert!(fast.seconds <= slow.seconds, "{} {network} {}", sheet.name, slow.name);
                assert!(fast.alternatives.is_empty());
            }
            let gain = tf32.trace.fastest_seconds() / bf16.trace.fastest_seconds();
            assert!((1.2..2.2).contains(&gain), "{} {network}: {gain:.2} times as fast", sheet.name);
            let sole = Modelled { precision: Precision::Bf16, ..Modelled::new(sheet) };
            assert_eq!(timed(network, batch, &sole).trace, bf16.trace, "bf16 has no fast alternatives");
            // Nothing was published in bf16, so the error is the largest that any generation states.
            assert_eq!(sole.error(), GENERATIONS.iter().flat_map(|of| of.errors).fold(0.0, f64::max));
        }
    }
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

/// Runs a line that ends with this code; returns stdout and stderr.
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
#[ignore = "minutes: CI runs it"]
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
    // The bytes on the device at the peak do not exceed its memory.
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
    let error = sheet("k40").expect("a device that is modelled").generation.errors[0];
    let off = format!("nine of ten times are off by at most {:.0} %", error * 100.0);
    for line in ["explain s", "export s --to torchrun", "auto --device k40 --max-batch 256 --study s"] {
        assert!(told(at, line, 0)[0].contains(&off), "{line}");
    }
    assert!(told(at, "explain s", 0)[0].contains("modelled from the device's data sheet, not measured"));
    assert!(told(at, "export s --to torchrun", 0)[0].contains("Nothing was measured"));
    assert_eq!(config["modelled_error"], error);
    // Every time states the model's error, combined with that of the fit.
    let states = |value: &Value| value.as_f64().is_some_and(|stated| (error..error + 0.1).contains(&stated));
    assert!(states(&config["predicted"]["relative_error"]), "{config}");
    assert!(states(&tuning["rounds"][0]["candidates"][0]["relative_error"]), "{}", tuning["rounds"][0]);
    assert!(states(&report["answer"]["settings"][0]["predicted_error"]), "{}", report["answer"]);
    assert!(tables.contains(&off) && !tables.contains(" 0.0 %"), "{tables}");
    // A second time, from the study's choice.
    assert!(
        told(at, "auto --device k40 --max-batch 256 --study s", 0)[0].contains("data sheet, not measured")
    );
    for line in ["run s", "run s --device v100", "verify --device v100"] {
        assert!(told(at, line, 4)[1].contains("nothing can run"), "{line}");
    }
    told(at, "trace resnet20 --device v100 -o t.json", 0);
    let name = json(&at.join("t.json"))["name"].as_str().expect("a name").to_owned();
    assert!(name.ends_with("-modelled-v100"), "{name}");
    let off = "nine of ten times are off by at most 21 %";
    for line in [
        "plan t.json --budget 60% --link 12.2GB/s -o plan.json",
        "simulate t.json plan.json",
        "compare t.json --budget 60% --link 12.2GB/s --policies plimsoll",
        "trace resnet20 --device v100 -o t.json",
    ] {
        let [_, said] = told(at, line, 0);
        assert!(said.contains(off), "{line}: {said}");
    }
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
    // Anew for the same device, and for a different one on request.
    told(at, &format!("tune {v100} --min-batch 40"), 0);
    told(at, &format!("tune {k40} --fresh"), 0);
    assert!(
        json(&at.join("s/chosen.config.json"))["device"].as_str().is_some_and(|name| name.contains("K40"))
    );
}

/// A modelled device's host has the memory that its sheet states, or the given limit; the choice fits it.
#[test]
fn the_host_of_a_modelled_device_has_so_much_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let [_, said] = told(at, "profile --network mlp --device m40 --max-batch 64 --study m", 0);
    assert!(said.contains("with 89.6 GiB of host memory"), "70 % of 128 GiB: {said}");
    let tune = "tune --network resnet20 --device k40 --budget 8MiB --max-batch 64 --objective fastest";
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
        ("profile --device v100 --precision tf32", "Tesla V100 PCIe 16 GB has no tensor cores for TF32"),
        ("trace lenet --device k40 --precision tf32", "no tensor cores for TF32"),
        ("trace lenet --device v100 --precision bf16", "Tesla V100 PCIe 16 GB has no tensor cores for bf16"),
        ("profile --device h100 --deterministic", "--deterministic is for --device cuda"),
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
