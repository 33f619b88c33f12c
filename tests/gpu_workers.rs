//! Workers with one GPU each, with the stand-in for its driver: the training's file is that of one worker, and too few GPUs
//! give a message.
#![cfg(unix)]

use crate::gpu_faults::{check, kept_iterations, libraries, tuned};
use crate::mpi::{ended, launchers, mpirun};
use crate::program::{change, read_json};
use std::fs;

/// Number of a machine's GPUs, for the stand-in.
const GPUS: &str = "PLIMSOLL_STANDIN_GPUS";

#[test]
#[ignore = "minutes: CI runs it"]
fn workers_on_gpus_leave_the_file_of_one_and_each_needs_its_own() {
    let Some(libraries) = libraries() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let study = folder.path().join("study");
    tuned(libraries, &study);
    let global = 2 * read_json(&study.join("chosen.config.json"))["batch"].as_u64().expect("a batch");
    let line =
        format!("run {} --data synthetic:300 --epochs 1 --global-batch {global} --fresh", study.display());
    let state = || fs::read(study.join("training.safetensors")).expect("it was trained");
    check(&libraries.run(&line, "", &[]), 0, &[]);
    let expected = state();
    let threads = format!("{line} --workers 2");
    check(&libraries.run(&threads, "", &[(GPUS, "2")]), 0, &[]);
    assert!(state() == expected, "threads");
    let too_few = "worker 1 of this machine would train on cuda:1, and there is one GPU";
    check(&libraries.run(&threads, "", &[]), 4, &[too_few, "as it has GPUs"]);
    let from_the_second = format!("{threads} --device cuda:1");
    let too_few_behind = "worker 1 of this machine would train on cuda:2, and there are 2 GPUs";
    check(&libraries.run(&from_the_second, "", &[(GPUS, "2")]), 4, &[too_few_behind]);
    check(&libraries.run(&from_the_second, "", &[(GPUS, "3")]), 0, &[]);
    for (launcher, _) in launchers() {
        let processes = |gpus: &[(&str, &str)]| {
            let mut command = mpirun(launcher, folder.path(), &[(2, &line)]);
            libraries.given_to(&mut command).envs(gpus.iter().copied()).output().expect("it starts")
        };
        ended(&processes(&[(GPUS, "2")]), 0, &["2 workers by "]);
        assert!(state() == expected, "{launcher}");
        ended(&processes(&[(GPUS, "1")]), 4, &[too_few]);
        // The launcher shows each worker its own GPU.
        ended(&processes(&[(GPUS, "2"), ("CUDA_VISIBLE_DEVICES", "1")]), 0, &[]);
        assert!(state() == expected, "{launcher}");
    }
}

/// If GPUs are lost during an update, their memory is useless; the data that the update overwrote are on the host.
#[test]
#[ignore = "minutes: CI runs it"]
fn gpus_that_are_lost_leave_the_state_before_an_update_and_the_same_command_goes_on() {
    let Some(libraries) = libraries() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let study = folder.path().join("study");
    tuned(libraries, &study);
    let line = format!("run {} --data synthetic:300 --epochs 8 --workers 2", study.display());
    let run = |answer: &str| libraries.run(&line, answer, &[(GPUS, "2")]);
    let file = study.join("training.safetensors");
    check(&run(""), 0, &[]);
    let expected = fs::read(&file).expect("it was trained");
    let mut found = Vec::new();
    for calls in [250, 450, 650] {
        fs::remove_file(&file).expect("it was left");
        let lost = run(&format!("cuStreamSynchronize:{calls}:719:lost"));
        check(&lost, 4, &["CUDA_ERROR_LAUNCH_FAILED", "is kept in"]);
        found.push(kept_iterations(&lost));
        check(&run(""), 0, &[]);
        assert!(fs::read(&file).expect("it was trained") == expected, "lost after {calls} calls");
    }
    assert!(found.iter().all(|kept| *kept > 0) && found.last() > found.first(), "{found:?}");
}

/// The plan states if NCCL sums; the run does as it was tuned, continues on one GPU, and ends if NCCL refuses, with the state
/// kept.
#[test]
#[ignore = "minutes: CI runs it"]
fn gpus_that_sum_by_nccl_train_as_it_was_tuned() {
    let Some(libraries) = libraries() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let study = folder.path().join("study");
    let tune = |device: &str, study: &str| {
        let workers = "--workers 2 --interconnect 100Gbit/s --nccl";
        let study = folder.path().join(study);
        let tune = format!("tune --network mlp --max-batch 34 --device {device} {workers}");
        libraries.run(&format!("{tune} --study {}", study.display()), "", &[])
    };
    check(&tune("cpu", "refused"), 2, &["NCCL sums on GPUs alone", "leave --nccl out"]);
    let modelled = tune("h100", "modelled");
    check(&modelled, 0, &[]);
    assert!(String::from_utf8_lossy(&modelled.stdout).contains("by NCCL, on the GPUs"), "{modelled:?}");
    // Measurements on the stand-in, for the workers of the other study.
    tuned(libraries, &study);
    let cluster = read_json(&folder.path().join("modelled/chosen.config.json"))["cluster"].clone();
    change(&study.join("chosen.config.json"), |config| {
        config["cluster"] = cluster;
        config["cluster"]["global_batch"] = (2 * config["batch"].as_u64().expect("a batch")).into();
    });
    fs::remove_file(study.join("checksums.txt")).expect("they were written");
    let study = study.display();
    let run = |options: &str, answer: &str| {
        libraries.run(&format!("run {study} --data synthetic:300 {options}"), answer, &[(GPUS, "2")])
    };
    check(&run("--epochs 2 --workers 2", ""), 0, &[]);
    check(&run("--epochs 3", ""), 0, &[]);
    let refused = run("--epochs 6 --workers 2 --fresh", "ncclAllReduce:30:5");
    let says = ["ncclAllReduce", "each worker needs a GPU of its own", "is kept in"];
    check(&refused, 4, &says);
    assert!(kept_iterations(&refused) > 0);
    check(&run("--epochs 6 --workers 2", ""), 0, &[]);
}
