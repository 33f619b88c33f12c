//! `run --workers`: whatever their number, one training; and what cannot be shared out is said before anything is trained.

use crate::study_folder::{by_hand, check, command};
use plimsoll::runtime::Checkpoint;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A study whose batch is 64, with a rate that needs no warm-up up to a batch of 256.
fn study() -> tempfile::TempDir {
    by_hand("mlp", "100%", |config| {
        let rate = serde_json::json!({"rate": 0.01, "rule": "linear", "base_batch": 256, "base_rate": 0.04,
            "warmup_iterations": 0});
        config["learning_rate"] = rate;
    })
}

fn state(of: &tempfile::TempDir) -> Vec<u8> {
    fs::read(of.path().join("study/training.safetensors")).expect("it was saved")
}

/// The table of a run.
fn table(folder: &Path, line: &str) -> serde_json::Value {
    let output = command(folder, &format!("{line} --format json")).output().expect("the program starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")["run"].clone()
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

#[test]
fn a_training_goes_on_on_other_workers() {
    let [whole, parts] = [(); 2].map(|()| study());
    check(whole.path(), "run study --epochs 3 --decay constant --global-batch 256", 0, &[]);
    for (epochs, workers) in [(1, 4), (2, 1), (3, 3)] {
        // Only the first says how large an update is, by its number of workers.
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

#[test]
fn what_cannot_be_shared_out_is_refused_with_what_can() {
    let folder = study();
    let refused =
        |options: &str, says: &[&str]| check(folder.path(), &format!("run study {options}"), 2, says);
    let nearest = "the nearest that are: 64 and 128";
    refused("--global-batch 100", &["a global batch of 100 is no multiple of the batch of 64", nearest]);
    refused("--global-batch 10", &["the nearest that are: 64\n"]);
    let raise = "lower --workers, or raise --global-batch";
    refused(
        "--workers 3 --global-batch 128",
        &["3 workers are more than the 2 batches in an update of 128", raise],
    );
    refused(
        "--workers 30",
        &["digits-train has 1442 samples, fewer than the batch of 1920", "lower --global-batch or --workers"],
    );
    refused("--workers 0", &["0 is not in 1..=1024"]);
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
    while !path.exists() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("stopped while training") && said.contains("the same command goes on"), "{said}");
    let step = Checkpoint::load(&path).expect("it is whole").progress.step;
    assert!(step > 0, "{said}");
    let (per_epoch, whole) = (1442 / 128, study());
    let epochs = step / per_epoch + 1;
    let line = format!("run study --epochs {epochs} --decay constant --global-batch 128");
    check(folder.path(), &line, 0, &[&format!("going on from iteration {step}")]);
    check(whole.path(), &line, 0, &[]);
    assert!(state(&whole) == state(&folder));
}
