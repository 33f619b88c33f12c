//! Absent devices: their model compared with published results; every verb states that it is a model, and its possible error.

#[path = "../benches/devices/fit.rs"]
mod fit;
#[path = "../benches/devices/published.rs"]
mod published;

use crate::program::{check, checked, json, list, number, output, printed, read_json};
use plimsoll::ir::Precision;
use plimsoll::ir::program::{Call, Program};
use plimsoll::networks::{LowerOptions, build, lower, usual};
use plimsoll::tuner::model::devices::{GENERATIONS, Generation, Modelled, SHEETS, sheet};
use published::{Judged, held_out, judged, sources, spread, to_state};
use serde_json::Value;
use std::fs;
use std::path::Path;
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
    for name in ["a100-40gb", "rtx4090", "h100", "h200"] {
        let sheet = sheet(name).expect("a device that is modelled");
        assert!(sheet.bf16_peak.is_some(), "{name}");
        for (network, batch) in [("vgg16", 4), ("resnet50", 32), ("bert", 2)] {
            let [tf32, bf16] = [Precision::Tf32, Precision::Bf16].map(|precision| {
                let device = Modelled { precision, fast_alternatives: false, ..Modelled::new(sheet) };
                timed(network, batch, &device)
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

/// Runs a line that succeeds; returns stdout and stderr.
#[track_caller]
fn told(folder: &Path, line: &str) -> [String; 2] {
    let output = output(folder, line);
    [String::from_utf8(output.stdout.clone()).expect("text"), checked(line, &output, 0, &[])]
}

#[test]
#[ignore = "minutes: CI runs it"]
fn nothing_is_swapped_for_what_counts_as_equal() {
    let folder = tempfile::tempdir().expect("a folder");
    let tune = "tune --network vgg11 --image 224 --data synthetic:50000 --device v100 --study";
    let [frugal, fastest] = ["frugal", "fastest --objective fastest"].map(|study| {
        let tuned = json(folder.path(), &format!("{tune} {study}"));
        let mut curve = list(&tuned["curve"]).iter();
        curve.find(|row| row["batch"] == tuned["choice"]["batch"]).expect("it is of the curve").clone()
    });
    let epochs = [&frugal, &fastest].map(|row| number(row, "epoch_seconds"));
    assert!(epochs[0] <= 1.011 * epochs[1], "{frugal} {fastest}");
    let moved = |row: &Value| [number(row, "offloaded_bytes"), number(row, "recomputing_seconds")];
    assert_eq!(moved(&frugal), [0.0; 2], "{frugal}");
    assert!(moved(&fastest)[0] > 0.0, "{fastest}");
    assert!(number(&frugal, "batch") < number(&fastest, "batch"), "{fastest}");
    // The bytes on the device at the peak do not exceed its memory.
    assert!(number(&fastest, "at_peak_bytes") <= number(&fastest, "peak_bytes"), "{fastest}");
}

#[test]
fn every_verb_says_that_it_is_a_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let auto = "auto --device k40 --max-batch 256 --study s";
    let model = "modelled from the device's data sheet, not measured";
    let [tables, said] = told(at, auto);
    assert!(tables.contains(model), "{tables}");
    assert!(said.contains("nothing is trained"), "{said}");
    let study = at.join("s");
    assert_eq!(read_json(&study.join("network.profile.json"))["machine"]["modelled"], true);
    let config = read_json(&study.join("chosen.config.json"));
    assert_eq!((&config["modelled"], &config["measured"]), (&Value::Bool(true), &Value::Null));
    assert!(config["device"].as_str().is_some_and(|name| name.starts_with("modelled: ")));
    assert!(!study.join("training.safetensors").exists());
    let tuning = read_json(&study.join("tuning.json"));
    assert_eq!((&tuning["timeline"], &tuning["rounds"][0]["measured_seconds"]), (&Value::Null, &Value::Null));
    let report = json(at, "report s");
    assert_eq!((&report["about"]["modelled"], &report["fit"]), (&Value::Bool(true), &Value::Null));
    assert!(report["answer"]["headline"].as_str().is_some_and(|words| !words.contains(": measured")));
    let error = sheet("k40").expect("a device that is modelled").generation.errors[0];
    let off = format!("nine of ten times are off by at most {:.0} %", error * 100.0);
    // The last line takes the choice of the first.
    for (line, says) in
        [("explain s", model), ("export s --to torchrun", "Nothing was measured"), (auto, "not measured")]
    {
        let [told, _] = told(at, line);
        assert!(told.contains(&off) && told.contains(says), "{line}: {told}");
    }
    assert_eq!(config["modelled_error"], error);
    // Every time states the model's error, combined with that of the fit.
    let states = |value: &Value| value.as_f64().is_some_and(|stated| (error..error + 0.1).contains(&stated));
    assert!(states(&config["predicted"]["relative_error"]), "{config}");
    assert!(states(&tuning["rounds"][0]["candidates"][0]["relative_error"]), "{}", tuning["rounds"][0]);
    assert!(states(&report["answer"]["settings"][0]["predicted_error"]), "{}", report["answer"]);
    assert!(tables.contains(&off) && !tables.contains(" 0.0 %"), "{tables}");
    for line in ["run s", "run s --device v100", "verify --device v100"] {
        check(at, line, 4, &["nothing can run"]);
    }
    let off = "nine of ten times are off by at most 21 %";
    for line in [
        "trace resnet20 --device v100 -o t.json",
        "plan t.json --budget 60% --link 12.2GB/s -o plan.json",
        "simulate t.json plan.json",
        "compare t.json --budget 60% --link 12.2GB/s --policies plimsoll",
    ] {
        check(at, line, 0, &[off]);
    }
    let name = read_json(&at.join("t.json"))["name"].as_str().expect("a name").to_owned();
    assert!(name.ends_with("-modelled-v100"), "{name}");
    assert_eq!(json(at, "report --trace t.json --schedule plan.json")["about"]["modelled"], true);
}

#[test]
fn a_study_of_one_device_is_not_taken_over_by_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let v100 = "--network mlp --max-batch 64 --study s --device v100";
    let k40 = "--network mlp --max-batch 64 --study s --device k40";
    let there =
        || ["network.profile.json", "chosen.config.json"].map(|name| fs::read(at.join("s").join(name)).ok());
    printed(at, &format!("tune {v100}"));
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
        check(at, &line, 2, &[words, "help: "]);
        assert_eq!(there(), chosen, "{line}");
    }
    // Anew for the same device, and for a different one on request.
    printed(at, &format!("tune {v100} --min-batch 40"));
    printed(at, &format!("tune {k40} --fresh"));
    let device = &read_json(&at.join("s/chosen.config.json"))["device"];
    assert!(device.as_str().is_some_and(|name| name.contains("K40")));
}

/// A modelled device's host has the memory that its sheet states, or the given limit; the choice fits it.
#[test]
fn the_host_of_a_modelled_device_has_so_much_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let profile = "profile --network mlp --device m40 --max-batch 64 --study m";
    check(at, profile, 0, &["with 89.6 GiB of host memory"]);
    let tune = "tune --network resnet20 --device k40 --budget 8MiB --min-batch 48 --max-batch 64 --objective fastest";
    let on_host = |study: &str| number(&json(at, &format!("report {study}"))["memory"], "host_bytes");
    check(at, &format!("{tune} --study free"), 0, &[]);
    assert!(on_host("free") > 300e3, "something is swapped");
    let short = format!("{tune} --study short --host-memory 300kB");
    check(at, &short, 0, &["with 293 KiB of host memory"]);
    assert!(on_host("short") <= 300e3);
}
