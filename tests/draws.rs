//! `run --per-draw`: each iteration runs by the plan of its own draw of stochastic depth, and the training's file is the same.

use crate::study_folder::{by_hand, check, state, table};
use std::fs;

/// Returns a study of a network with stochastic depth, with too little memory to keep everything.
fn study(network: &str, budget: &str) -> tempfile::TempDir {
    let folder = by_hand(network, budget, |_| {});
    let at = folder.path();
    fs::copy(at.join("trace.json"), at.join("study/chosen.trace.json")).expect("a file");
    folder
}

#[test]
fn plans_of_single_draws_train_to_the_same_file() {
    let [all, single] = [(); 2].map(|()| study("resnet-sd20", "60%"));
    let line = "run study --epochs 1 --decay constant";
    assert!(table(all.path(), line).get("drawn").is_none());
    let told = table(single.path(), &format!("{line} --per-draw"));
    assert_eq!(told["drawn"], told["iterations"], "{told}");
    assert!(state(&all) == state(&single));
    // Each continues from the other's state.
    let more = "run study --epochs 2 --decay constant";
    let told = table(all.path(), &format!("{more} --per-draw"));
    assert_eq!(told["drawn"].as_u64(), told["resumed_at"].as_u64(), "{told}");
    table(single.path(), more);
    assert!(state(&all) == state(&single));
}

#[test]
fn draws_that_are_none_are_refused() {
    let folder = study("mlp", "100%");
    let line = "run study --epochs 1 --per-draw";
    check(folder.path(), line, 2, &["`mlp` drops no branches", "leave --per-draw out"]);
    let folder = study("resnet-sd20", "60%");
    let says = ["an update of 2 batches has as many draws", "leave --per-draw out, or --workers"];
    check(folder.path(), &format!("{line} --global-batch 128"), 2, &says);
    let says = ["--per-draw", "--trace-out"];
    check(folder.path(), &format!("{line} --trace-out out.json"), 2, &says);
    fs::remove_file(folder.path().join("study/chosen.trace.json")).expect("it was there");
    check(folder.path(), line, 2, &["chosen.trace.json"]);
    assert!(!folder.path().join("study/training.safetensors").exists());
}
