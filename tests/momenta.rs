//! Sharded momenta on the command line: what is tuned for them has room for a larger batch, says so, and leaves the training
//! that momenta on every device leave, byte for byte.

use crate::study_folder::{by_hand, check, command, state, table};
use plimsoll::ir::{Document, Momenta, Optimizer};
use plimsoll::study::data::DataSource;
use plimsoll::study::device::cpu_options;
use plimsoll::study::request::NetworkRequest;
use plimsoll::study::{NetworkWorkload, Setup, Workload};
use std::fs;
use std::path::Path;

/// A study of `mlp` at a batch of 64 whose momenta are sharded, made by hand.
pub(crate) fn sharded(optimizer: Optimizer) -> tempfile::TempDir {
    let folder = whole(optimizer);
    shard(folder.path(), optimizer);
    folder
}

/// Has the momenta of such a study sharded.
pub(crate) fn shard(at: &Path, optimizer: Optimizer) {
    let setup = Setup::Cpu(cpu_options(Some(1), None));
    let task = NetworkWorkload::new(&NetworkRequest::zoo("mlp"), &DataSource::Digits, setup);
    let task = task.expect("a task").trained_by(optimizer).with_momenta(Momenta::Sharded);
    let trace = task.trace(64).expect("it can be lowered");
    fs::write(at.join("sharded.trace.json"), trace.to_json()).expect("a file");
    let plan = "plan sharded.trace.json --budget 100% --link 1GB/s --no-recompute -o sharded.schedule.json";
    check(at, plan, 0, &[]);
    fs::rename(at.join("sharded.schedule.json"), at.join("study/chosen.schedule.json")).expect("it is there");
    let path = at.join("study/chosen.config.json");
    let mut config = json(&path);
    config["momenta"] = "sharded".into();
    fs::write(&path, config.to_string()).expect("a file");
}

/// The same study with momenta on every device.
fn whole(optimizer: Optimizer) -> tempfile::TempDir {
    by_hand(&format!("mlp --optimizer {optimizer}"), "100%", |config| {
        config["network"]["name"] = "mlp".into();
        config["optimizer"] = optimizer.to_string().into();
        config["learning_rate"] = serde_json::json!({"rate": 0.002, "rule": "linear", "base_batch": 256,
            "base_rate": 0.008, "warmup_iterations": 0});
    })
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("it was written")).expect("JSON")
}

#[test]
fn a_training_is_the_same_file_wherever_its_momenta_are() {
    for optimizer in [Optimizer::Sgd, Optimizer::Adamw] {
        let line = "run study --epochs 2 --decay cosine --global-batch 128";
        let expected = whole(optimizer);
        check(expected.path(), &format!("{line} --workers 2"), 0, &[]);
        for workers in [1, 2] {
            let folder = sharded(optimizer);
            let table = table(folder.path(), &format!("{line} --workers {workers}"));
            assert_eq!(
                (&table["momenta"], &table["workers"]),
                (&"sharded".into(), &workers.into()),
                "{table}"
            );
            assert!(state(&folder) == state(&expected), "{optimizer} on {workers} workers");
        }
        // One virtual worker, whose update is of one batch.
        let [whole, sharded] = [whole(optimizer), sharded(optimizer)];
        let line = "run study --epochs 1 --decay constant";
        [&whole, &sharded].iter().for_each(|folder| drop(check(folder.path(), line, 0, &[])));
        assert!(state(&sharded) == state(&whole), "{optimizer} on one worker");
    }
}

#[test]
fn a_training_goes_on_where_its_momenta_are_elsewhere() {
    let [whole, sharded] = [whole(Optimizer::Adamw), sharded(Optimizer::Adamw)];
    let line = |epochs: u64, workers: u64| {
        format!("run study --epochs {epochs} --decay constant --global-batch 128 --workers {workers}")
    };
    check(whole.path(), &line(3, 1), 0, &[]);
    let file = "study/training.safetensors";
    let other = self::whole(Optimizer::Adamw);
    check(other.path(), &line(1, 2), 0, &[]);
    fs::copy(other.path().join(file), sharded.path().join(file)).expect("a file");
    check(sharded.path(), &line(2, 2), 0, &["going on from iteration 11"]);
    fs::copy(sharded.path().join(file), other.path().join(file)).expect("a file");
    check(other.path(), &line(3, 2), 0, &["going on from iteration 22"]);
    assert!(state(&other) == state(&whole));
}

/// Measured on this machine, chosen and confirmed: the passes run without an update.
#[test]
fn a_batch_is_measured_and_trained_with_sharded_momenta() {
    let folder = tempfile::tempdir().expect("a folder");
    let workers = "--workers 2 --interconnect 1Gbit/s --global-batch 128 --sharded-momenta";
    let line = format!("auto --network mlp --epochs 2 --study study --max-batch 64 {workers}");
    let output = command(folder.path(), &format!("{line} --format json")).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tables: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(tables["choice"]["momenta"], "sharded", "{tables}");
    assert_eq!(tables["training"]["global_batch"], 128, "{tables}");
    let config = json(&folder.path().join("study/chosen.config.json"));
    assert_eq!(config["momenta"], "sharded");
    let before = state(&folder);
    check(folder.path(), "run study --epochs 2 --workers 2", 0, &[]);
    assert!(state(&folder) == before, "two epochs were trained");
}

/// Tunes `mlp` for workers on a modelled device; its tables.
fn tuned(folder: &Path, study: &str, options: &str) -> serde_json::Value {
    let line = format!(
        "tune --network mlp --device k40 --optimizer adamw --workers 2 --interconnect 1Gbit/s --study {study} {options}"
    );
    let output = command(folder, &format!("{line} --format json")).output().expect("the program starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn sharded_momenta_take_nothing_of_the_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let of = |study: &str, options: &str| {
        let tables = tuned(at, study, &format!("--budget 2MB --min-batch 16 {options}"));
        let read = |file: &str| json(&at.join(study).join(file));
        (tables, read("chosen.config.json"), read("chosen.trace.json"))
    };
    let (whole, whole_config, whole_trace) = of("whole", "");
    let (sharded, config, trace) = of("sharded", "--sharded-momenta");
    assert!(whole_config.get("momenta").is_none() && whole["choice"].get("momenta").is_none(), "{whole}");
    assert_eq!((&config["momenta"], &sharded["choice"]["momenta"]), (&"sharded".into(), &"sharded".into()));
    // Both moments of AdamW are half of what is resident, and no update is left on the device.
    let resident = |trace: &serde_json::Value| trace["resident_bytes"].as_u64().expect("bytes") as f64;
    let left = resident(&trace) / resident(&whole_trace);
    assert!((left - 0.5).abs() < 0.01, "{left}");
    let has_updates = |trace: &serde_json::Value| {
        trace["ops"].as_array().expect("ops").iter().any(|op| op["phase"] == "update")
    };
    assert!(has_updates(&whole_trace) && !has_updates(&trace));
    let largest = |tables: &serde_json::Value| tables["choice"]["largest_batch"].as_u64().expect("a batch");
    assert!(largest(&sharded) > largest(&whole), "{} and {}", largest(&sharded), largest(&whole));
    // A study of one is none of the other's.
    let auto = "auto --network mlp --device k40 --optimizer adamw --workers 2 --interconnect 1Gbit/s --budget 2MB \
                --min-batch 16 --study sharded";
    check(at, auto, 2, &["the choice for", "place of the momenta", "sharded", "on every device"]);
    check(at, &format!("{auto} --sharded-momenta"), 0, &[]);
    for verb in ["report", "explain"] {
        check(at, &format!("{verb} sharded"), 0, &[]);
    }
    for verb in ["plan", "compare"] {
        check(at, &format!("{verb} sharded/chosen.trace.json --budget 90% --link 1GB/s"), 0, &[]);
    }
    let compared = command(at, "report whole sharded --format md").output().expect("the program starts");
    let said = String::from_utf8_lossy(&compared.stdout);
    assert!(said.contains("momenta") && said.contains("on every device"), "{said}");
}

#[test]
fn sharded_momenta_go_with_global_batches_and_goodput() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let kept = tuned(at, "kept", "--global-batch 128 --sharded-momenta");
    assert_eq!(kept["workers"]["global_batch"], 128, "{kept}");
    let worth = tuned(at, "worth", "--goodput 300 --max-batch 64 --sharded-momenta");
    assert_eq!(worth["choice"]["momenta"], "sharded", "{worth}");
    assert!(worth["workers"]["passes"].as_u64().is_some_and(|passes| passes >= 1), "{worth}");
}

#[test]
fn what_sharded_momenta_do_not_go_with_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let tune = "tune --network mlp --device k40 --study s --sharded-momenta";
    let says = ["--sharded-momenta is for several workers", "--workers"];
    check(folder.path(), tune, 2, &says);
    check(folder.path(), &format!("{tune} --workers 1"), 2, &says);
    // Where a file of settings says how many workers there are, a line can shard their momenta.
    fs::write(folder.path().join("plimsoll.toml"), "workers = 2\ninterconnect = \"1Gbit/s\"\n")
        .expect("a file");
    check(folder.path(), &format!("{tune} --max-batch 64"), 0, &[]);

    let folder = sharded(Optimizer::Sgd);
    let at = folder.path();
    let one_plan = "with sharded momenta, all draws of stochastic depth run by one plan";
    check(at, "run study --per-draw", 2, &[one_plan, "leave --per-draw out"]);
    for tool in ["torchrun", "deepspeed"] {
        let says = ["the study was tuned for sharded momenta", "--as-planned"];
        check(at, &format!("export study --to {tool}"), 2, &says);
    }
    check(at, "export study --to torchrun --as-planned", 0, &[]);
    assert!(!at.join("study/training.safetensors").exists(), "nothing was trained");
}
