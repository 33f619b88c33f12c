//! The user's files are safe: damaged files are found and named, no command removes files of a different command or of the
//! user, and a lack of any resource gives a message before it costs a training.

use crate::program::{PROGRAM, change, checked, copied, json, output, printed, read_json};
pub(crate) use crate::program::{check, command};
use plimsoll::ir::network::NetworkSpec;
use plimsoll::ir::schedule::Link;
use plimsoll::ir::{Bytes, BytesPerSecond, Document};
use plimsoll::runtime::data::digits;
use plimsoll::study::device::cpu_options;
use plimsoll::study::{NetworkWorkload, Setup, Watch, Workload};
use plimsoll::tuner::Policy;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Samples in an iteration of a study made by hand.
const BATCH: u64 = 64;

/// Runs a command line in a shell with a limit.
#[track_caller]
fn limited(folder: &Path, limit: &str, arguments: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{limit} && exec {PROGRAM} {arguments}")).current_dir(folder);
    shell.env("XDG_CACHE_HOME", folder.join("cache")).output().expect("a shell")
}

/// Returns a folder with a study made by hand: a config and a schedule from plan, trace and an editor, and no checksums.
pub(crate) fn by_hand(
    network: &str,
    budget: &str,
    change: impl Fn(&mut serde_json::Value),
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    fs::create_dir(at.join("study")).expect("a folder");
    let trace = format!("trace {network} --image 8 --channels 1 --batch {BATCH} -o trace.json");
    check(at, &trace, 0, &[]);
    check(at, &format!("plan trace.json --budget {budget} {PLAN}"), 0, &[]);
    let figures = serde_json::json!({"iteration_seconds": 0.01, "relative_error": 0.1, "between_seconds": 0.001,
        "epoch_seconds": 1.0, "peak_bytes": 1000});
    let mut config = serde_json::json!({
        "plimsoll": "config/1",
        "network": {"name": network, "image": [8, 8], "channels": 1, "classes": 10}, "data": "digits",
        "device": "cpu", "threads": 1,
        "link": {"offload_bytes_per_second": 1e9, "prefetch_bytes_per_second": 1e9},
        "budget_bytes": 1u64 << 30, "batch": BATCH, "policy": "plimsoll", "schedule": "chosen.schedule.json",
        "learning_rate": {"rate": 0.05, "rule": "linear", "base_batch": BATCH, "base_rate": 0.05, "warmup_iterations": 0},
        "predicted": figures,
    });
    change(&mut config);
    fs::write(at.join("study/chosen.config.json"), config.to_string()).expect("a file");
    folder
}

/// The rest of a line that plans for a study made by hand.
const PLAN: &str = "--link 1GB/s --no-recompute -o study/chosen.schedule.json";

/// Returns the file of a study's training.
pub(crate) fn state(of: &tempfile::TempDir) -> Vec<u8> {
    fs::read(of.path().join("study/training.safetensors")).expect("it was saved")
}

/// Returns the table of a run.
#[track_caller]
pub(crate) fn table(folder: &Path, line: &str) -> serde_json::Value {
    json(folder, line)["run"].clone()
}

/// Options of a study of a modelled device, which takes no time to measure.
const MODELLED: &str = "--network mlp --max-batch 64 --device k40 --study study";

/// Files of a choice, in the order in which they are put in place.
const CHOICE: [&str; 6] = [
    "network.profile.json",
    "network.model.json",
    "chosen.trace.json",
    "chosen.schedule.json",
    "tuning.json",
    "chosen.config.json",
];

fn tuned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    check(folder.path(), &format!("tune {MODELLED}"), 0, &[]);
    folder
}

/// Returns all files of a folder with their contents.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut all: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect();
    all.sort();
    all
}

#[test]
fn a_damaged_state_is_refused_wherever_a_bit_flipped() {
    let folder = by_hand("resnet20", "100%", |_| {});
    let folder = folder.path();
    check(folder, "run study --epochs 1", 0, &[]);
    let path = folder.join("study/training.safetensors");
    let whole = fs::read(&path).expect("it was saved");
    for place in (0..5).map(|n| n * (whole.len() - 1) / 4) {
        let mut damaged = whole.clone();
        damaged[place] ^= 1 << (place % 8);
        fs::write(&path, &damaged).expect("a file");
        check(folder, "run study --epochs 1", 2, &["training.safetensors", "--fresh"]);
        assert!(fs::read(&path).expect("it is there") == damaged, "it is left as it is");
    }
    fs::write(&path, &whole).expect("a file");
    let nothing = "trained for 1 epoch, asked for 1 epoch: nothing is left to train";
    check(folder, "run study --epochs 1", 0, &[nothing]);
}

/// One digit of each file that a study trusts is changed: the result is JSON that only a checksum distinguishes from the
/// original.
#[test]
fn a_damaged_document_of_a_study_is_named_with_what_to_do() {
    let folder = tuned();
    let folder = folder.path();
    check(folder, "report study", 0, &[]);
    let list = folder.join("study/checksums.txt");
    let listed = fs::read_to_string(&list).expect("a list");
    for name in CHOICE.into_iter().filter(|name| *name != "network.model.json") {
        assert!(listed.contains(&format!("  {name}\n")), "{name}: {listed}");
        let path = folder.join("study").join(name);
        let whole = fs::read(&path).expect("it is there");
        let at = whole.iter().rposition(u8::is_ascii_digit).expect("a digit");
        let mut damaged = whole.clone();
        damaged[at] = if damaged[at] == b'1' { b'3' } else { b'1' };
        fs::write(&path, &damaged).expect("a file");
        let says = [name, "is damaged, or was changed", "checksums.txt", "run `plimsoll tune --study study`"];
        check(folder, "report study", 2, &says);
        fs::write(&path, &whole).expect("a file");
    }
    // A user's deliberate change, declared as such, is accepted.
    let path = folder.join("study/tuning.json");
    let whole = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, format!("{whole}\n")).expect("a file");
    check(folder, "report study", 2, &["tuning.json"]);
    let without: String =
        listed.lines().filter(|l| !l.ends_with("tuning.json")).map(|l| format!("{l}\n")).collect();
    fs::write(&list, without).expect("a file");
    check(folder, "report study", 0, &[]);
    // A study of an older version has no list.
    fs::remove_file(&list).expect("it is there");
    check(folder, "report study", 0, &[]);
    check(folder, &format!("tune {MODELLED}"), 0, &[]);
    assert!(fs::read_to_string(&list).expect("it is made").contains("tuning.json"));
    // No command overwrites the listed files.
    let before = contents(&folder.join("study"));
    let plan = "plan study/chosen.trace.json --budget 100% --link 1GB/s -o study/chosen.schedule.json";
    check(folder, plan, 2, &["would be overwritten", "name another output"]);
    assert!(contents(&folder.join("study")) == before);
}

#[test]
fn nothing_is_taken_away_under_another_run() {
    let folder = tuned();
    let folder = folder.path();
    let study = fs::File::open(folder.join("study")).expect("a folder");
    study.lock().expect("nobody works in it");
    let before = contents(&folder.join("study"));
    // All run at once: each waits for the study's lock for seconds.
    std::thread::scope(|scope| {
        for verb in ["profile --fresh", "tune --fresh", "auto --fresh", "profile", "tune"] {
            let line = format!("{verb} {MODELLED}");
            scope.spawn(move || check(folder, &line, 2, &["another run", "take another folder"]));
        }
    });
    assert!(contents(&folder.join("study")) == before);
    drop(study);
    check(folder, &format!("tune --fresh {MODELLED}"), 0, &[]);
}

#[test]
fn files_of_others_stay() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    fs::create_dir(folder.join("study")).expect("a folder");
    let refused = |name: &str, line: &str| {
        let path = folder.join("study").join(name);
        fs::write(&path, "{\"my\": \"own\"}\n").expect("a file");
        check(folder, line, 2, &[name, "was not written by Plimsoll", "move it elsewhere"]);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "{\"my\": \"own\"}\n", "{line}");
        assert!(!folder.join("study/checksums.txt").exists(), "{line}: nothing else was begun");
        fs::remove_file(path).expect("it is there");
    };
    for fresh in ["", "--fresh "] {
        for name in ["network.profile.json", "profile.journal.jsonl"] {
            refused(name, &format!("profile {fresh}{MODELLED}"));
            refused(name, &format!("tune {fresh}{MODELLED}"));
        }
        for name in CHOICE[1..].iter().filter(|name| **name != "chosen.trace.json").chain(&["report.html"]) {
            refused(name, &format!("tune {fresh}{MODELLED}"));
        }
        refused("training.safetensors", &format!("auto {fresh}{MODELLED}"));
    }
}

#[test]
fn a_run_that_goes_against_its_config_is_told() {
    let says = [
        "WARN an iteration took",
        "off the predicted 16.67 min",
        "an error of 10.0 %",
        "`plimsoll tune --study DIR`, in a new folder,",
    ];
    let beyond = ["chosen.schedule.json takes", "more than the 97.66 KiB that its config allows"];
    let diverges = ["lower rate", "plimsoll tune --study DIR", "--base-rate 0.005, where it was 0.05"];
    for (place, value, code, says) in [
        ("/predicted/iteration_seconds", 1000.0, 0, &says[..]),
        ("/budget_bytes", 100_000.0, 6, &beyond),
        ("/learning_rate/rate", 1e30, 2, &diverges),
    ] {
        let folder = by_hand("resnet20", "100%", |config| {
            let changed = config.pointer_mut(place).expect("a field");
            *changed = if changed.is_u64() { (value as u64).into() } else { value.into() };
        });
        check(folder.path(), "run study --epochs 1", code, says);
    }
}

#[test]
fn a_schedule_of_another_versions_ops_is_refused_with_what_to_do() {
    let folder = by_hand("resnet20", "100%", |_| {});
    let folder = folder.path();
    // Like those of versions in which batch normalisation absorbed nothing, as on modelled devices.
    let trace = format!("trace resnet20 --image 8 --channels 1 --batch {BATCH} --device k40 -o trace.json");
    check(folder, &trace, 0, &[]);
    check(folder, &format!("plan trace.json --budget 100% {PLAN}"), 0, &[]);
    let says = [
        "chosen.schedule.json is not valid for the iteration that this version of Plimsoll computes: ",
        "where another version tuned study, go on with that one, or tune into another folder",
    ];
    check(folder, "run study --epochs 1", 6, &says);
}

#[test]
fn where_the_state_cannot_be_written_is_said_before_the_first_iteration() {
    let folder = by_hand("resnet20", "100%", |_| {});
    let folder = folder.path();
    let output = limited(folder, "ulimit -f 8", "run study --epochs 1");
    let said = checked("ulimit -f", &output, 2, &["cannot be written", "ulimit -f", "nothing was trained"]);
    assert!(!said.contains("epoch 1"), "{said}");
    assert_eq!(
        fs::read_dir(folder.join("study")).expect("a folder").count(),
        2,
        "nothing is left of the attempt"
    );
    // A run that could not be kept loses no earlier training.
    check(folder, "run study --epochs 1", 0, &[]);
    let before = contents(&folder.join("study"));
    let output = limited(folder, "ulimit -f 8", "run study --epochs 1 --fresh");
    checked("ulimit -f --fresh", &output, 2, &["nothing was trained"]);
    assert!(contents(&folder.join("study")) == before);
    // A finished training needs no space; other outputs do.
    checked("done", &limited(folder, "ulimit -f 8", "run study --epochs 1"), 0, &[]);
    let output = limited(folder, "ulimit -f 8", "trace resnet50 -o large.json");
    checked("trace", &output, 2, &["cannot write large.json", "ulimit -f"]);
}

/// Returns the studies with default names.
fn studies(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("studies")).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn another_budget_or_device_has_a_study_of_its_own_and_the_same_line_finds_it_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let auto = "auto --network mlp --max-batch 64";
    let lines =
        ["--device k40", "--device k40 --budget 1GiB", "--device h100", "--device k40 --base-rate 0.1"];
    for (known, line) in lines.iter().enumerate() {
        let said = check(folder, &format!("{auto} {line}"), 0, &["the study is studies/mlp-digits-"]);
        assert!(!said.contains("using the choice"), "{line}: {said}");
        assert_eq!(studies(folder).len(), known + 1, "{line}");
    }
    let names = studies(folder);
    for words in ["mlp-digits-k40-1GiB-", "mlp-digits-h100-"] {
        assert_eq!(names.iter().filter(|name| name.starts_with(words)).count(), 1, "{names:?}");
    }
    for line in lines {
        check(folder, &format!("{auto} {line}"), 0, &["using the choice in studies/mlp-digits-"]);
    }
    assert_eq!(studies(folder), names);
    // `tune` continues from the measurements of `profile`, and `auto` uses the choice of `tune`.
    for verb in ["profile", "tune", "auto"] {
        check(folder, &format!("{verb} --network mlp --max-batch 64 --device m40"), 0, &["mlp-digits-m40-"]);
        assert_eq!(studies(folder).len(), names.len() + 1, "{verb}");
    }
    // A folder given by name is used whatever its name, and holds one choice.
    check(folder, &format!("{auto} --device k40 --study mine"), 0, &["the study is mine"]);
    let other = format!("{auto} --device k40 --budget 1GiB --study mine");
    check(folder, &other, 2, &["mine holds the choice for another budget", "or leave --study out"]);
    let other = format!("{auto} --device k40 --data synthetic --image 8 --channels 1 --study mine");
    check(folder, &other, 2, &["for another data: digits there, synthetic:4096 now"]);
}

#[test]
fn auto_goes_on_with_its_own_training() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let auto = "auto --network mlp --threads 1 --decay constant --epochs";
    printed(folder, &format!("{auto} 2"));
    assert!(studies(folder)[0].starts_with("mlp-digits-cpu-"));
    let state = folder.join("studies").join(&studies(folder)[0]).join("training.safetensors");
    let trained = fs::read(&state).expect("it was saved");
    let nothing = "nothing is left to train";
    check(folder, &format!("{auto} 2"), 0, &["trained for 2 epochs, asked for 2 epochs", nothing]);
    check(folder, &format!("{auto} 1"), 0, &["trained for 2 epochs, asked for 1 epoch", nothing]);
    assert!(fs::read(&state).expect("it is there") == trained);
    check(folder, &format!("{auto} 3"), 0, &["using the choice in", "going on from iteration"]);
    assert!(fs::read(&state).expect("it is there") != trained);
    printed(folder, &format!("{auto} 1 --link 12GB/s"));
    assert_eq!(studies(folder).len(), 2);
}

#[test]
fn more_epochs_go_on_and_say_what_becomes_of_the_rate() {
    let [whole, parts] = [(); 2].map(|()| by_hand("mlp", "100%", |_| {}));
    // With a rate that does not depend on the epochs, the numbers equal those of one training.
    check(whole.path(), "run study --epochs 3 --decay constant", 0, &[]);
    for epochs in [1, 2, 3] {
        let line = format!("run study --epochs {epochs} --decay constant");
        let said = check(parts.path(), &line, 0, &[]);
        assert!(!said.contains("decay of the learning rate"), "{said}");
    }
    assert!(state(&whole) == state(&parts));
    let fewer = "run study --epochs 2 --decay constant";
    check(parts.path(), fewer, 0, &["trained for 3 epochs, asked for 2 epochs: nothing is left to train"]);
    assert!(state(&whole) == state(&parts));
    for decay in ["cosine", "step"] {
        let folder = by_hand("mlp", "100%", |_| {});
        let run = |epochs: u64, says: &[&str]| {
            check(folder.path(), &format!("run study --epochs {epochs} --decay {decay}"), 0, says)
        };
        run(1, &[]);
        let trained = state(&folder);
        let says = ["trained for 1 epoch, asked for 3 epochs", "decay of the learning rate", "--fresh"];
        run(3, &says);
        assert!(state(&folder) != trained, "{decay}");
        let said = run(3, &["trained for 3 epochs, asked for 3 epochs: nothing is left to train"]);
        assert!(!said.contains("decay of the learning rate"), "{said}");
    }
    let other = "run study --epochs 9 --seed 2 --decay constant";
    check(parts.path(), other, 2, &["the seed is 1 in it and 2 now"]);
    let other = "run study --epochs 9 --decay cosine";
    check(parts.path(), other, 2, &["then constant in it and 0.05, 0 iterations of warm-up, then a cosine"]);
}

#[test]
fn what_is_wrong_on_the_line_is_said_before_anything_of_a_study() {
    let folder = tuned();
    let folder = folder.path();
    fs::write(folder.join("study/training.safetensors"), "mine").expect("a file");
    let study = fs::File::open(folder.join("study")).expect("a folder");
    study.lock().expect("nobody works in it");
    let before = contents(&folder.join("study"));
    // Snapshots hold the words for other wrong options.
    let wrong = [
        ("--network resnt18", 2, "`resnt18`"),
        ("--budget 40", 3, "a budget of 40 B"),
        ("--data mnist:nowhere", 2, "nowhere"),
        ("--device h100 --threads 1", 2, "--threads is for --device cpu"),
    ];
    for verb in ["profile", "tune", "auto"] {
        for study in ["", " --study study"] {
            for (options, code, says) in wrong {
                let line = format!("{verb} {options}{study}");
                let said = check(folder, &line, code, &[says]);
                assert!(!said.contains("another run") && !said.contains("study is"), "{line}: {said}");
            }
        }
    }
    for (options, code, says) in [
        ("--data text:nowhere.txt", 2, "cannot read nowhere.txt"),
        ("--trace-out no/such.json", 2, "the folder must exist"),
        ("--device h100", 4, "nothing can run on a device that is not here"),
    ] {
        for study in ["study", "no-study"] {
            check(folder, &format!("run {study} {options}"), code, &[says]);
        }
    }
    assert!(contents(&folder.join("study")) == before);
    assert!(studies(folder).is_empty(), "no folder was made for a line that is wrong");
}

#[test]
fn a_run_trains_on_what_its_study_was_tuned_on() {
    let folder = by_hand("mlp", "100%", |config| config["data"] = "synthetic:640".into());
    let folder = folder.path();
    let iterations = |line: &str| {
        let output = output(folder, &format!("{line} --format json"));
        let said = checked(line, &output, 0, &[]);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (told["run"]["iterations"].as_u64().expect("a number"), said)
    };
    let (ten, said) = iterations("run study --epochs 1");
    assert_eq!(ten, 640 / BATCH, "of its own data");
    assert!(!said.contains("tuned on"), "{said}");
    check(folder, "run study --epochs 1 --data digits", 2, &["data set to go on with"]);
    let (others, said) = iterations("run study --epochs 1 --data digits --fresh");
    assert!(others > ten && said.contains("tuned on synthetic:640, and training on digits"), "{said}");
    // A study of an older version does not name its data, and data may have moved.
    let folder = by_hand("mlp", "100%", |config| {
        config.as_object_mut().expect("an object").remove("data");
    });
    check(folder.path(), "run study --epochs 1", 2, &["does not say on what data", "such as --data digits"]);
    change(&folder.path().join("study/chosen.config.json"), |config| {
        config["data"] = "mnist:/no/such/folder".into();
    });
    let says = ["tuned on mnist:/no/such/folder, which cannot be read", "say with --data where they are"];
    check(folder.path(), "run study --epochs 1", 2, &says);
    // A file is stored by its absolute path, which is valid from every folder.
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("text.txt"), "to be, or not to be. ".repeat(600)).expect("a file");
    let tune = "tune --network lstm --data text:text.txt --device k40 --max-batch 64 --study study";
    check(folder.path(), tune, 0, &[]);
    let config = read_json(&folder.path().join("study/chosen.config.json"));
    let whole = folder.path().canonicalize().expect("it is there").join("text.txt");
    assert_eq!(config["data"], format!("text:{}", whole.display()));
}

/// A run killed at any point while it puts a new choice in place leaves the study with either all of the old one or all of the
/// new.
#[test]
fn a_tune_that_is_killed_while_it_writes_leaves_a_whole_choice() {
    let (old, new) = (tuned(), tempfile::tempdir().expect("a temporary folder"));
    check(new.path(), &format!("tune {}", MODELLED.replace("64", "48")), 0, &[]);
    let read = |folder: &Path| -> Vec<(String, Vec<u8>)> {
        CHOICE.map(|name| (name.to_owned(), fs::read(folder.join("study").join(name)).expect(name))).into()
    };
    let (olds, news) = (read(old.path()), read(new.path()));
    let batch = |files: &[(String, Vec<u8>)]| {
        let config: serde_json::Value = serde_json::from_slice(&files[5].1).expect("JSON");
        config["batch"].as_u64().expect("a number")
    };
    assert_ne!(batch(&olds), batch(&news));
    let list =
        |of: &tempfile::TempDir| fs::read_to_string(of.path().join("study/checksums.txt")).expect("a list");
    let profile = format!("profile {MODELLED}");
    let readers = ["report study", "explain study", "export study --to torchrun", &profile];
    let all = news.len();
    let kills = (0..all).map(|gathered| (gathered, 0)).chain((0..=all).map(|placed| (all, placed)));
    for (number, (gathered, placed)) in kills.enumerate() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let study = folder.path().join("study");
        fs::create_dir(&study).expect("a folder");
        copied(&old.path().join("study"), &study);
        let is_whole = gathered == all;
        let place = study.join(if is_whole { ".tuned" } else { ".tuned.part" });
        fs::create_dir(&place).expect("a folder");
        let write = |folder: &Path, files: &[(String, Vec<u8>)]| {
            files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).expect(name));
        };
        write(&place, &news[..gathered]);
        if placed > 0 {
            // Meanwhile the list has the checksums of both.
            fs::write(study.join("checksums.txt"), list(&old) + &list(&new)).expect("a file");
            write(&study, &news[..placed]);
        }
        let line = readers[number % readers.len()];
        check(folder.path(), line, 0, &[]);
        // `profile` writes its own profile.
        let from = usize::from(line == profile);
        let expected = if is_whole { &news } else { &olds };
        assert!(read(folder.path())[from..] == expected[from..], "{gathered}, {placed}: {line}");
        assert!(!is_whole || !place.exists(), "{line}");
        check(folder.path(), "report study", 0, &[]);
    }
}

pub(crate) fn press_ctrl_c(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
}

/// Presses Ctrl-C a while after a command reports that its link is slow; returns the exit code, the time from there, and
/// stderr.
fn interrupted(folder: &Path, arguments: &str) -> (Option<i32>, Duration, String) {
    let mut child = command(folder, arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said = String::new();
    let mut pressed = None;
    for line in BufReader::new(child.stderr.take().expect("stderr is piped")).lines() {
        said += &(line.expect("stderr is text") + "\n");
        if pressed.is_none() && said.contains("the link is paced to 12 B/s") {
            // Well within the first transfer, which would take hours.
            std::thread::sleep(Duration::from_millis(1500));
            press_ctrl_c(&child);
            pressed = Some(Instant::now());
        }
    }
    let code = child.wait().expect("it ends").code();
    (code, pressed.unwrap_or_else(|| panic!("no warning of a slow link: {said}")).elapsed(), said)
}

#[test]
fn ctrl_c_ends_the_wait_for_a_slow_link_and_saves() {
    let paced = serde_json::json!({"offload_bytes_per_second": 12.0, "prefetch_bytes_per_second": 12.0});
    let folder = by_hand("resnet20", "70%", |config| config["paced"] = paced.clone());
    let folder = folder.path();
    let schedule = fs::read_to_string(folder.join("study/chosen.schedule.json")).expect("a schedule");
    assert!(schedule.contains("\"offload\""), "something is swapped");
    let verify = "verify --network resnet20 --batch 8 --link 12B/s --policy naive";
    for (line, step) in [
        ("run study --epochs 1", "training, after "),
        (verify, "training as planned, after "),
        (&format!("{verify} --duplex half"), "training as planned"),
        ("profile --network resnet20 --max-batch 32 --link 12B/s --study other", "measuring"),
    ] {
        let (code, took, said) = interrupted(folder, line);
        assert_eq!(code, Some(130), "{line}: {said}");
        assert!(said.contains(&format!("error: stopped while {step}")), "{line}: {said}");
        // A transfer would take hours.
        assert!(took < Duration::from_secs(60), "{line}: {took:?}\n{said}");
    }
    // The iteration was finished, at the pace of memory, and its state kept.
    assert!(folder.join("study/training.safetensors").exists());
    // No hurried iteration counts as measured.
    let journal = fs::read_to_string(folder.join("other/profile.journal.jsonl")).unwrap_or_default();
    assert!(!journal.contains("\"link\":{\"offload_alone\"") && !journal.contains("\"round\""), "{journal}");
}

/// The trace comes from a pipe that is never written to.
#[test]
fn ctrl_c_ends_the_wait_for_input() {
    // A script's background job ignores SIGINT, as do its children: here the default is restored.
    let mut child = Command::new("env")
        .args(["--default-signal=INT", PROGRAM, "check", "/dev/stdin", "s.json"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    std::thread::sleep(Duration::from_millis(300));
    let pressed = Instant::now();
    press_ctrl_c(&child);
    // Its end of the pipe stays open until then.
    let input = child.stdin.take();
    let mut ended = None;
    while ended.is_none() && pressed.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
        ended = child.try_wait().expect("it is ours");
    }
    drop(input);
    child.wait().expect("it ends with its input");
    assert!(ended.is_some_and(|status| !status.success()), "{ended:?} within a minute of Ctrl-C");
}

#[test]
fn a_rate_has_a_unit_everywhere() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    check(folder, "trace mlp --batch 8 -o t.json", 0, &[]);
    let wanted = "a rate above zero with its unit, such as 12.2GB/s";
    check(folder, "compare t.json --link 12.2e9", 2, &[wanted]);
    let line = "verify --network mlp --iterations 1 --batch 8";
    let output = command(folder, line).env("PLIMSOLL_LINK", "12").output().expect("the program starts");
    checked("PLIMSOLL_LINK=12", &output, 2, &["PLIMSOLL_LINK", wanted]);
    for (link, says) in [("12", "`link` is a number with its unit in quotes"), ("\"12\"", wanted)] {
        fs::write(folder.join("plimsoll.toml"), format!("link = {link}\n")).expect("a file");
        check(folder, line, 2, &["plimsoll.toml", says]);
    }
    fs::remove_file(folder.join("plimsoll.toml")).expect("it is there");
    // Planning alone accepts any rate without a warning.
    let said = check(folder, "plan t.json --budget 100% --link 12B/s -o s.json", 0, &[]);
    assert!(!said.contains("paced"), "{said}");
    change(&folder.join("s.json"), |schedule| {
        schedule["link"]["offload_bytes_per_second"] = 1e-320.into();
    });
    check(folder, "simulate t.json s.json", 2, &["at least 1e-9 bytes per second, not 1e-320"]);
}

#[test]
fn no_more_threads_than_cores() {
    let cores = std::thread::available_parallelism().expect("the system says").get();
    let folder = by_hand("mlp", "100%", |config| config["threads"] = (cores + 1).into());
    let folder = folder.path();
    for verb in ["verify --network mlp", "tune", "profile", "auto", "doctor"] {
        let says = format!("--threads 1024 is more than the {cores} cores");
        check(folder, &format!("{verb} --threads 1024"), 2, &[&says, "leave --threads out"]);
    }
    // A study from a larger machine, whose kernels need scratch for each thread, runs and warns that it takes longer.
    let setup = Setup::Cpu(cpu_options(Some(cores as u32 + 1), None));
    let spec = NetworkSpec { name: "mlp".to_owned(), image: [8, 8], channels: 1, classes: 10 };
    let task = NetworkWorkload::of_spec(&spec, digits(), setup).expect("it is for digits");
    let trace = task.trace(BATCH).expect("it can be lowered");
    let link = Link::symmetric(BytesPerSecond(1e9));
    let plan = task
        .plan(&trace, Policy::Keep, Bytes(1 << 30), link, &Watch::silent())
        .expect("a gibibyte is enough");
    fs::write(folder.join("study/chosen.schedule.json"), plan.schedule.to_json()).expect("a file");
    let says = [&*format!("it was tuned for {} compute threads", cores + 1), "tune again for this machine"];
    check(folder, "run study --epochs 1", 0, &says);
}

#[test]
fn limits_of_the_system_end_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let verify = "verify --network mlp --batch 8 --iterations 1";
    for stack in [256, 1024] {
        checked("a small stack", &limited(folder, &format!("ulimit -s {stack}"), verify), 0, &[]);
    }
    let mut codes = Vec::new();
    // The system refuses limits that are too small for the program itself, before any of our code runs.
    let program = loaded_bytes(&fs::read(env!("CARGO_BIN_EXE_plimsoll")).expect("it is there")) >> 20;
    for megabytes in [program + 8, program + 12, program + 20, program + 28, 256, 4096] {
        let output = limited(folder, &format!("ulimit -v {}", megabytes << 10), verify);
        let said = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 4)), "{megabytes} MiB: {code:?} {said}");
        assert!(!said.contains("panicked"), "{megabytes} MiB: {said}");
        assert_eq!(code == Some(4), said.contains("error: "), "{megabytes} MiB: {said}");
        codes.push(code);
    }
    assert_eq!((codes.first(), codes.last()), (Some(&Some(4)), Some(&Some(0))), "from too little to enough");
}

/// Returns the address space that a 64-bit program needs when loaded: the end of its last segment. Its file may be far larger,
/// as line tables are not loaded.
fn loaded_bytes(elf: &[u8]) -> u64 {
    let number = |at: usize, bytes: usize| {
        elf[at..at + bytes].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    assert_eq!(elf[..5], *b"\x7fELF\x02", "an ELF file of 64 bits");
    let (first, size, count) = (number(32, 8) as usize, number(54, 2) as usize, number(56, 2) as usize);
    let headers = (0..count).map(|header| first + header * size);
    let ends = headers.filter(|at| number(*at, 4) == 1).map(|at| number(at + 16, 8) + number(at + 40, 8));
    ends.max().expect("a program has segments to load")
}
