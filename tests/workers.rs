//! `run --workers`: any number of workers gives the same training; an update that cannot be divided is an error before
//! training.

use crate::program::{check, checked, command, json, list, number};
use crate::report::has_all_fields;
use crate::study_folder::{by_hand, press_ctrl_c, state, table};
use plimsoll::runtime::Checkpoint;
use plimsoll::runtime::group::threads;
use plimsoll::study::data::DataSource;
use plimsoll::study::device::cpu_options;
use plimsoll::study::request::{NetworkRequest, TrainRequest, Workers, defaults};
use plimsoll::study::{NetworkWorkload, Setup, Study, version};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Returns a study whose batch is 64, with a rate that needs no warm-up up to a batch of 256.
fn study() -> tempfile::TempDir {
    by_hand("mlp", "100%", |config| {
        let rate = serde_json::json!({"rate": 0.01, "rule": "linear", "base_batch": 256, "base_rate": 0.04,
            "warmup_iterations": 0});
        config["learning_rate"] = rate;
    })
}

#[test]
fn a_training_is_the_same_file_on_any_number_of_workers() {
    let line = "run study --epochs 2 --decay cosine --global-batch 256";
    let all = [1, 2, 3, 4].map(|workers| {
        let folder = study();
        let table = table(folder.path(), &format!("{line} --workers {workers}"));
        // 1442 samples are 5 updates of 256.
        for (fact, expected) in
            [("workers", workers), ("global_batch", 256), ("batch", 64), ("iterations", 10)]
        {
            assert_eq!(table[fact], expected, "{fact} of {workers}: {table}");
        }
        assert_eq!(table["learning_rate"], 0.04, "{table}");
        folder
    });
    all.iter().for_each(|folder| assert!(state(folder) == state(&all[0])));
    let accuracy = table(all[0].path(), line)["test_accuracy"].clone();
    assert!(accuracy.as_f64().expect("a share") > 0.3, "{accuracy}");
}

/// Worker 0 has a different commit, which sends more about a training than this one can read.
#[test]
fn workers_compare_the_version_with_its_commit() {
    let folder = study();
    let (study, _, config, schedule) = Study::choice_of(&folder.path().join("study")).expect("it is whole");
    let setup = Setup::Cpu(cpu_options(Some(1), None));
    let task = NetworkWorkload::new(&NetworkRequest::zoo("mlp"), &DataSource::Digits, setup).expect("a task");
    let workers = Workers { count: 2, global_batch: None };
    let request = TrainRequest { epochs: 1, workers, ..defaults() };
    let [mut first, second] = <[_; 2]>::try_from(threads(2)).ok().expect("two workers");
    let worker_0 = std::thread::spawn(move || {
        // Two virtual workers, 11 updates in an epoch, a rate, and no warm-up.
        let numbers = [2, 11, 0.01f64.to_bits(), 0];
        let mut update = numbers.iter().flat_map(|n| [*n as u32, (*n >> 32) as u32]).collect();
        first.broadcast(&mut update).expect("the other is there");
        first.broadcast(&mut b"a folder".map(u32::from).to_vec()).expect("the other is there");
        let training = br#"{"version":"1.0.0 (another)","more":0}  "#;
        let words = training.chunks(4).map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")));
        let mut words = [training.len() as u32].into_iter().chain(words).collect();
        first.broadcast(&mut words).expect("the other is there");
        first.agree(&[]).expect("the other is there");
    });
    let ended = study.work(&task, (&config, &schedule), &request, second, &|| false);
    worker_0.join().expect("no panic");
    let expected = format!("another version of Plimsoll than worker 0: {}, not 1.0.0 (another)", version());
    let said = ended.expect_err("they differ").to_string();
    assert!(said.contains(&expected), "`{expected}` in: {said}");
}

#[test]
fn a_training_goes_on_on_other_workers() {
    let [whole, parts] = [(); 2].map(|()| study());
    check(whole.path(), "run study --epochs 3 --decay constant --global-batch 256", 0, &[]);
    for (epochs, workers) in [(1, 4), (2, 1), (3, 3)] {
        // Only the first run sets the size of an update, by its number of workers.
        let line = format!("run study --epochs {epochs} --decay constant --workers {workers}");
        check(parts.path(), &line, 0, &[]);
    }
    assert!(state(&whole) == state(&parts));
    let more = "run study --epochs 4 --decay constant --workers 5";
    let says = [
        "5 workers are more than the 4 batches in an update of 256 samples",
        "lower --workers, or start anew",
    ];
    check(parts.path(), more, 2, &says);
    let other = "run study --epochs 4 --decay constant --global-batch 128";
    check(parts.path(), other, 2, &["the number of virtual workers is 4 in it and 2 now"]);
    assert!(state(&whole) == state(&parts));
}

/// If worker 0 was lost, a different worker has the newest state. The next start continues from it, and names a file that it
/// cannot read.
#[test]
fn a_training_goes_on_from_the_newest_state_that_a_worker_has_kept() {
    let folder = study();
    let at = folder.path();
    let line = |epochs: u64| format!("run study --epochs {epochs} --decay constant --global-batch 256");
    let own = at.join("study/training.safetensors");
    let [first, second, damaged] =
        [1, 2, 3].map(|rank| at.join(format!("study/training.worker-{rank}.safetensors")));
    check(at, &line(1), 0, &[]);
    let older = fs::read(&own).expect("it was saved");
    check(at, &line(2), 0, &[]);
    fs::rename(&own, &second).expect("it was saved");
    [&own, &first].iter().for_each(|path| fs::write(path, &older).expect("a file"));
    fs::write(&damaged, "damaged").expect("a file");
    let says = ["training.worker-3.safetensors", "this file is not used", "going on from iteration 10"];
    check(at, &line(3), 0, &says);
    assert!([&first, &second].iter().all(|path| !path.exists()) && damaged.exists());
    let whole = study();
    check(whole.path(), &line(3), 0, &[]);
    assert!(state(&folder) == state(&whole));
    // A state older than worker 0's own file is useless.
    fs::write(&first, &older).expect("a file");
    check(at, &line(4), 0, &["going on from iteration 15"]);
    assert!(!first.exists());
}

#[test]
fn what_cannot_be_shared_out_is_refused_with_what_can() {
    let folder = study();
    let few = "digits-train has 1442 samples, fewer than the batch of 1920";
    for (options, says) in [
        (
            "--global-batch 100",
            ["a global batch of 100 is no multiple of the batch of 64", "are: 64 and 128"],
        ),
        ("--global-batch 10", ["a global batch of 10 is no multiple", "the nearest that are: 64\n"]),
        (
            "--workers 3 --global-batch 128",
            ["3 workers are more than the 2 batches", "or raise --global-batch"],
        ),
        ("--workers 30", [few, "lower --global-batch or --workers"]),
        ("--workers 0", ["0 is not in 1..=1024", "--workers"]),
    ] {
        check(folder.path(), &format!("run study {options}"), 2, &says);
    }
    assert!(!folder.path().join("study/training.safetensors").exists(), "nothing was trained");
}

#[test]
fn workers_that_are_interrupted_leave_one_state_that_goes_on() {
    let folder = study();
    let line = "run study --epochs 20000 --decay constant --global-batch 128 --workers 2";
    let path = folder.path().join("study/training.safetensors");
    let child = command(folder.path(), line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let begun = Instant::now();
    while !path.exists() && begun.elapsed() < Duration::from_secs(600) {
        std::thread::sleep(Duration::from_millis(20));
    }
    press_ctrl_c(&child);
    let output = child.wait_with_output().expect("it ends");
    let said = checked(line, &output, 130, &["stopped while training", "the same command goes on"]);
    let step = Checkpoint::load(&path).expect("it is whole").progress.step;
    assert!(step > 0, "{said}");
    let (per_epoch, whole) = (1442 / 128, study());
    let epochs = step / per_epoch + 1;
    let line = format!("run study --epochs {epochs} --decay constant --global-batch 128");
    check(folder.path(), &line, 0, &[&format!("going on from iteration {step}")]);
    check(whole.path(), &line, 0, &[]);
    assert!(state(&whole) == state(&folder));
}

/// Returns the tables of a tuning for workers, on a modelled device.
fn tuned(folder: &Path, study: &str, options: &str) -> serde_json::Value {
    json(folder, &format!("tune --network resnet20 --device k40 --study {study} {options}"))
}

#[test]
#[ignore = "minutes: CI runs it"]
fn a_batch_is_chosen_for_what_workers_exchange() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = tuned(folder.path(), "alone", "--budget 40MB");
    assert!(alone["workers"].is_null(), "{alone}");
    // 4 bytes of each of the parameters and of the running statistics, three quarters of them each way at 12.5 MB/s, and all of
    // them over the link.
    let slow = tuned(folder.path(), "slow", "--budget 40MB --workers 4 --interconnect 100Mbit/s");
    let summed = 4.0 * (272_474.0 + 2.0 * 688.0);
    let least = 2.0 * 0.75 * summed / 12.5e6;
    let exchange = number(&slow["workers"], "exchange_seconds");
    let passes = number(&slow["workers"], "update_seconds") - exchange;
    assert!(exchange < least && exchange + passes > least, "{exchange} and {passes} for at least {least}");
    let global = 4.0 * number(&slow["choice"], "batch");
    assert_eq!(number(&slow["workers"], "global_batch"), global);
    let update = number(&slow["workers"], "update_seconds");
    assert!((number(&slow["workers"], "samples_per_second") - global / update).abs() < 1.0, "{slow}");
    // The time of an exchange does not depend on the batch: with it a large batch gains more.
    let gain = |table: &serde_json::Value| {
        let epoch = |batch: f64| {
            let mut curve = list(&table["curve"]).iter();
            number(curve.find(|line| number(line, "batch") == batch).expect("it is on both"), "epoch_seconds")
        };
        epoch(32.0) / epoch(256.0)
    };
    assert!(gain(&slow) > 2.0 * gain(&alone), "{} and {}", gain(&slow), gain(&alone));
    let config = fs::read_to_string(folder.path().join("slow/chosen.config.json")).expect("it was written");
    assert!(config.contains("\"cluster\": {"), "{config}");

    let options = "--budget 40MB --workers 3 --interconnect 10Gbit/s,30us --global-batch 160";
    let kept = tuned(folder.path(), "kept", options);
    let batch = number(&kept["choice"], "batch");
    assert!(160.0 % batch == 0.0 && batch <= 160.0 / 3.0, "{kept}");
    assert_eq!(number(&kept["workers"], "passes"), (160.0 / batch / 3.0).ceil());
    for line in list(&kept["curve"]) {
        assert!(160.0 % number(line, "batch") == 0.0, "{line}");
    }

    // The largest batch that keeps everything is 16, below the requested minimum.
    let options = "--budget 5MB --workers 3 --interconnect 10Gbit/s --global-batch 160 --min-batch 32";
    let above = tuned(folder.path(), "above", options);
    assert_eq!(
        list(&above["curve"]).iter().map(|line| number(line, "batch")).collect::<Vec<_>>(),
        [32.0, 40.0],
        "{above}"
    );
}

#[test]
fn a_report_shows_what_the_exchange_takes_what_overlap_hides_and_how_it_scales() {
    let folder = tempfile::tempdir().expect("a folder");
    for (study, options) in [
        ("slow", "--workers 4 --interconnect 100Mbit/s"),
        ("fast", "--workers 4 --interconnect 10Gbit/s,30us --max-batch 64"),
        ("uneven", "--workers 3 --interconnect 10Gbit/s,30us --global-batch 160 --min-batch 32"),
        ("nccl", "--workers 2 --interconnect 10Gbit/s --nccl --max-batch 64"),
    ] {
        let tuned = tuned(folder.path(), study, &format!("--budget 40MB {options}"));
        let report = json(folder.path(), &format!("report {study}"));
        has_all_fields(&report);
        let (found, told) = (&report["workers"], &tuned["workers"]);
        for key in
            ["workers", "global_batch", "passes", "update_seconds", "exchange_seconds", "bound_seconds"]
        {
            assert_eq!(found[key], told[key], "{study}: {key}");
        }
        assert_eq!(found["nccl"], study == "nccl");
        assert_eq!(report["answer"]["learning_rate"], told["learning_rate"], "that of an update");
        let [update, serial, bound] =
            ["predicted_update_seconds", "without_overlap_seconds", "bound_seconds"]
                .map(|key| number(found, key));
        assert!(bound <= update * (1.0 + 1e-9) && update <= serial, "{study}: {found}");
        // NCCL sums all gradients of such a small network in one piece.
        assert_eq!(update == serial, study == "nccl", "{study}: {found}");
        let resources = list(&found["resources"]).iter();
        let most = resources.max_by(|a, b| number(a, "share").total_cmp(&number(b, "share")));
        let most = most.expect("there are some");
        assert!(number(most, "share") <= 1.0 + 1e-9, "{study}: {found}");
        let busiest = most["resource"].as_str().expect("a name");
        assert_eq!(busiest == "interconnect", study == "slow", "{study}: {found}");
        let words = told["busiest"].as_str().expect("words");
        assert!(words.starts_with(busiest), "{words}");
        // One worker exchanges nothing, and with more workers each of them does less.
        let scaling = list(&found["scaling"]);
        assert_eq!((number(&scaling[0], "workers"), number(&scaling[0], "efficiency")), (1.0, 1.0));
        let own = scaling.iter().find(|of| of["workers"] == told["workers"]).expect("it is among them");
        assert_eq!(own["global_batch"], told["global_batch"]);
        assert_eq!(own["update_seconds"], found["predicted_update_seconds"]);
        let efficiency = |of: &serde_json::Value| number(of, "efficiency");
        let falls = scaling.is_sorted_by(|a, b| efficiency(a) >= efficiency(b) || a == own || b == own);
        assert!(falls, "{study}: {found}");
        let hidden = number(found, "hidden");
        let exchange = serial - number(&scaling[0], "update_seconds");
        assert!((hidden - (serial - update) / exchange).abs() < 1e-9, "{study}: {found}");
        // The paper's definition of efficiency.
        let single = &found["single"];
        let together = number(found, "samples_per_second");
        let times = together / number(single, "samples_per_second");
        assert!((number(single, "times") / times - 1.0).abs() < 1e-9, "{single}");
        assert_eq!(single["what"], "yours");
        let explained = json(folder.path(), &format!("explain {study}"));
        for key in ["learning_rate", "global_batch", "update_seconds", "busiest"] {
            assert_eq!(explained["explanation"][key], told[key], "{study}: {key}");
        }
    }
}

#[test]
fn a_file_of_settings_asks_for_workers_like_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    for (workers, says) in
        [("workers = 4", "--workers needs --interconnect"), ("global-batch = 64", "are for several workers")]
    {
        fs::write(folder.path().join("plimsoll.toml"), format!("[tune]\n{workers}\n")).expect("a file");
        check(folder.path(), "tune --network mlp --device k40 --study s", 2, &[says]);
    }
    assert!(!folder.path().join("s").exists());
}

#[test]
fn what_is_tuned_for_workers_is_trained_with_their_updates_by_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let workers = "--workers 2 --interconnect 1Gbit/s --global-batch 128";
    let line = format!("auto --network mlp --epochs 2 --study study --max-batch 64 {workers}");
    let tables = json(folder.path(), &line);
    assert_eq!(number(&tables["training"], "global_batch"), 128.0, "{tables}");
    assert_eq!(number(&tables["workers"], "global_batch"), 128.0, "{tables}");
    // The same command finds its choice, and reports it again.
    assert_eq!(json(folder.path(), &line)["workers"], tables["workers"]);
    let before = state(&folder);
    check(folder.path(), "run study --epochs 2 --workers 2", 0, &[]);
    assert!(state(&folder) == before, "two epochs were trained");
    let other = "auto --network mlp --epochs 2 --study study --min-batch 8 --max-batch 64";
    check(folder.path(), other, 2, &["workers", "2 over 1Gbit/s, 128 samples in an update"]);
}
