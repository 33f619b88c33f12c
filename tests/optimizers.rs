//! Optimizers on the command line: a study tuned for one trains with no other, and its settings belong to the training.

use crate::program::{check, printed, read_json};
use crate::study_folder::{by_hand, table};

/// Returns a study of `mlp` tuned for AdamW, made by hand.
fn adamw() -> tempfile::TempDir {
    by_hand("mlp --optimizer adamw", "100%", |config| {
        config["network"]["name"] = "mlp".into();
        config["optimizer"] = "adamw".into();
        config["learning_rate"]["rate"] = 2e-3.into();
        config["learning_rate"]["base_rate"] = 2e-3.into();
    })
}

#[test]
fn a_study_trains_with_the_optimizer_that_it_was_tuned_for() {
    let folder = adamw();
    let at = folder.path();
    let says = ["the study was tuned for adamw, and sgd is asked for", "leave --optimizer out"];
    check(at, "run study --optimizer sgd", 2, &says);
    check(at, "run study --momentum 0.5", 2, &["--momentum is for --optimizer sgd"]);
    let trained = table(at, "run study --epochs 3");
    assert_eq!(trained["optimizer"], "adamw");
    assert!(trained["test_accuracy"].as_f64().is_some_and(|share| share > 0.85), "{trained}");
    let other = "is of another training run: the beta1 is 0.9 in it and 0.8 now";
    check(at, "run study --epochs 4 --beta1 0.8", 2, &[other, "train with the same options"]);
    let further = table(at, "run study --epochs 4 --optimizer adamw");
    assert!(further["iterations"].as_u64() > trained["iterations"].as_u64(), "{further}");
}

#[test]
fn a_study_that_was_tuned_for_sgd_refuses_adamw() {
    let folder = by_hand("mlp", "100%", |_| {});
    let words = [
        "the study was tuned for sgd, and adamw is asked for",
        "plimsoll tune --study DIR --optimizer adamw",
    ];
    check(folder.path(), "run study --optimizer adamw", 2, &words);
    check(folder.path(), "run study --epsilon 1e-6", 2, &["--epsilon is for --optimizer adamw"]);
}

/// Both moments count against the budget, and the rate follows by the square root.
#[test]
fn what_is_tuned_for_adamw_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let task = "--network mlp --min-batch 128 --max-batch 128 --device k40 --study";
    let line = |study: &str, more: &str| {
        check(at, &format!("tune {task} {study} {more}"), 0, &[]);
        ["chosen.config.json", "chosen.trace.json"].map(|file| read_json(&at.join(study).join(file)))
    };
    let [sgd, sgd_trace] = line("sgd", "");
    let [adamw, adamw_trace] = line("adamw", "--optimizer adamw");
    assert!(sgd.get("optimizer").is_none());
    assert_eq!(adamw["optimizer"], "adamw");
    assert_eq!(adamw["learning_rate"]["rule"], "square-root");
    let rate = adamw["learning_rate"]["rate"].as_f64().expect("a number");
    assert!((rate - 2e-3).abs() < 1e-9, "twice the base rate at four times the base batch: {rate}");
    let resident = |trace: &serde_json::Value| trace["resident_bytes"].as_u64().expect("bytes") as f64;
    let grown = resident(&adamw_trace) / resident(&sgd_trace);
    assert!((grown - 4.0 / 3.0).abs() < 0.01, "{grown}");
    // Neither the measurements nor the study of one optimizer serve the other.
    check(at, &format!("auto {task} adamw"), 2, &["the choice for", "optimizer"]);
    let lines = printed(at, "export adamw --to torchrun");
    let settings = ["--optimizer adamw", "--weight-decay 0.01"];
    assert!(settings.iter().all(|setting| lines.contains(setting)), "{lines}");
    check(at, "verify --network mlp --optimizer adamw --iterations 3", 0, &[]);
}
