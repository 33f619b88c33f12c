//! The command line from a user's view: its output, and its messages for bad input that depends on the machine or on files.
//! Messages for all other bad input are snapshots.

use crate::program::{PROGRAM, change, check, checked, command, json, list, number, output, printed, timed};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

/// Returns a folder with a trace whose ops take a millisecond each, and a schedule for it.
fn planned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    timed(folder.path(), "resnet20 --batch 8");
    check(folder.path(), "plan t.json --budget 70% --link 12.2GB/s --no-recompute -o s.json", 0, &[]);
    folder
}

#[test]
fn a_plan_is_made_checked_and_simulated() {
    let folder = planned();
    let folder = folder.path();
    check(folder, "check t.json s.json", 0, &[]);
    let simulated = &json(folder, "simulate t.json s.json --commands")["simulation"];
    let moved = simulated["offloaded_bytes"].as_u64().expect("a number of bytes");
    assert!(moved > 0, "at 70 % of the peak something is swapped");
    assert!(printed(folder, "simulate t.json s.json --format csv").contains(&moved.to_string()));
    check(folder, "simulate t.json s.json --trace-out e.json", 0, &["perfetto"]);
    let events = fs::read_to_string(folder.join("e.json")).expect("the events");
    assert!(events.starts_with(r#"{"traceEvents":[{"ph":"M","name":"process_name""#), "{}", &events[..80]);
}

#[test]
fn a_script_is_the_python_package_s_to_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    fs::write(folder.join("train.py"), "import plimsoll").expect("a file");
    check(folder, "auto train.py --budget 60% -- --epochs 3", 2, &["Python package", "pip install ./python"]);
    check(folder, "auto train.py --network lenet", 2, &["cannot be used with"]);
    check(folder, "auto train.py --format json", 2, &["--format"]);
    assert!(!folder.join("studies").exists());
}

#[test]
fn shells_and_man_know_every_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for line in ["completions bash", "completions zsh", "completions fish", "man"] {
        let text = printed(folder.path(), line);
        for command in ["auto", "compare", "simulate", "completions"] {
            assert!(text.contains(command), "{command}: {text}");
        }
    }
    assert!(printed(folder.path(), "man plan").contains(".TH plimsoll-plan 1"));
}

#[test]
fn every_policy_is_compared_with_a_plan_or_the_reason_why_it_has_none() {
    let folder = planned();
    let compared = json(folder.path(), "compare t.json --link 1GB/s --sweep 2");
    let rows = list(&compared["policies"]);
    let names: Vec<_> = rows.iter().map(|row| row["policy"].as_str().expect("a name")).collect();
    assert_eq!(names[..names.len() / 2], names[names.len() / 2..], "every policy at both budgets");
    for name in ["keep", "vdnn-all", "layrub-inter", "dynprog", "plimsoll"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    for row in rows {
        let seconds = row["makespan_seconds"].as_f64();
        assert_eq!(seconds.is_some(), row["why_not"].is_null(), "{row}");
        assert!(seconds.is_none_or(|s| s >= number(row, "bound_seconds") * 0.999_999), "{row}");
    }
}

#[test]
fn a_sweep_shows_time_over_memory_and_more_budget_never_takes_longer() {
    let folder = planned();
    let folder = folder.path();
    let swept = json(folder, "plan t.json --link 20MB/s --sweep 4 -o frontier");
    let rows = list(&swept["frontier"]);
    let numbers = |key: &str| -> Vec<f64> { rows.iter().map(|row| number(row, key)).collect() };
    assert_eq!(rows.len(), 4);
    assert!(numbers("budget_bytes").is_sorted());
    assert!(numbers("makespan_seconds").is_sorted_by(|a, b| a >= b), "{rows:?}");
    assert!(numbers("gap").iter().all(|gap| *gap >= 0.0));
    let last = &rows[3];
    assert_eq!(last["status"], "optimal", "at the peak nothing has to leave: {last}");
    assert_eq!((last["moved_bytes"].as_u64(), last["gap"].as_f64()), (Some(0), Some(0.0)));
    for row in rows {
        let schedule = format!("frontier/t.{}.schedule.json", row["budget_bytes"]);
        check(folder, &format!("check t.json {schedule}"), 0, &[]);
        let text = fs::read_to_string(folder.join(schedule)).expect("a schedule");
        assert!(text.contains(&format!("\"budget_bytes\": {}", row["budget_bytes"])));
    }
}

#[test]
fn every_outcome_of_a_plan_has_its_word_and_its_bound() {
    let folder = planned();
    let folder = folder.path();
    let facts = |options: &str, code: i32| -> Value {
        let line = format!("plan t.json -o x.json --format json {options}");
        let output = output(folder, &line);
        checked(&line, &output, code, &[]);
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON on stdout")["plan"].clone()
    };
    let at = |options: &str, status: &str, code: i32| {
        let plan = facts(&format!("--link 20MB/s {options}"), code);
        assert_eq!(plan["status"], status, "{options}: {plan}");
        assert!(plan["bound_seconds"].is_f64(), "{options}: {plan}");
        plan
    };
    assert_eq!(at("--budget 100%", "optimal", 0)["gap"], 0.0);
    assert!(at("--budget 60% --policy naive", "feasible", 0)["gap"].as_f64() > Some(0.0));
    assert!(at("--budget 60% --time-limit 0s", "feasible, out of time", 0)["gap"].as_f64() > Some(0.0));
    let short = at("--budget 60% --policy keep", "infeasible", 3);
    assert!(short["short_by_bytes"].as_u64() > Some(0) && short["op_name"].is_string(), "{short}");
    // Below the floor nothing fits, and there is no time to bound.
    let short = facts("--budget 1MiB --link 20MB/s", 3);
    assert_eq!((short["status"].as_str(), short["bound_seconds"].as_f64()), (Some("infeasible"), None));
    // At half the rate back, tensors that go both ways take longer.
    let half = "--budget 50% --link 20MB/s";
    let (even, slow) = (facts(half, 0), facts(&format!("{half} --prefetch-link 5MB/s"), 0));
    assert!(slow["makespan_seconds"].as_f64() > even["makespan_seconds"].as_f64(), "{even} {slow}");

    // Swapped tensors fit the host's memory: less is swapped, or the answer states the memory needed.
    let host = |options: &str| {
        let plan = facts(&format!("--budget 70% --link 100MB/s {options}"), 0);
        plan["host_bytes"].as_u64().expect("bytes")
    };
    let takes = host("--no-recompute");
    assert!(takes > 0);
    assert_eq!(host(&format!("--no-recompute --host-memory {takes}")), takes, "it is enough");
    assert_eq!(host("--host-memory 0"), 0, "it recomputes");
    let short = facts("--budget 70% --link 100MB/s --no-recompute --host-memory 100kB", 3);
    let [by, needs] = ["short_by_bytes", "needs_bytes"].map(|key| number(&short, key));
    assert_eq!(needs - by, 1e5, "{short}");
    let compared = json(folder, "compare t.json --budget 70% --link 100MB/s --host-memory 100kB");
    let fits = |row: &Value| row["host_bytes"].as_u64().is_none_or(|bytes| bytes <= 100_000);
    assert!(list(&compared["policies"]).iter().all(fits), "{compared}");
}

#[test]
fn what_the_machine_cannot_do_is_said_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let too_large = ["more than the", "that this process may have", "lower --budget"];
    for (line, code, says) in [
        (
            "auto --study s --budget 3MiB",
            3,
            &["layer1.0.conv1", "more than the budget", "raise --budget"][..],
        ),
        ("auto --study s --budget 3.4MiB", 3, &["largest batch that can be trained is", "at least 32"]),
        ("auto --study s --budget 1000TiB", 2, &too_large),
        ("tune --study s --budget 101%", 2, &too_large),
        ("profile --study s --budget 101%", 2, &too_large),
        ("tune --study s --host-memory 8000TiB", 2, &["more than the", "lower --host-memory"]),
        ("verify --network mlp --batch 8 --budget 1KiB", 3, &["raise --budget"]),
    ] {
        check(folder, line, code, says);
    }
    assert!(!folder.join("s").exists(), "nothing was begun for any of these");
}

/// As many and as large as ImageNet's images: 718 GiB if they were held.
#[test]
fn synthetic_samples_are_made_when_they_are_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let many = "verify --network lenet --image 224 --batch 1 --iterations 1 --data synthetic:1281167";
    check(folder.path(), many, 0, &[]);
}

#[test]
fn a_trace_goes_to_standard_output_whatever_that_is_and_through_links() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    check(folder, "trace mlp --batch 4 -o named.json", 0, &[]);
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a trace");
    assert_eq!(printed(folder, "trace mlp --batch 4"), read("named.json"));
    let file = fs::File::create(folder.join("redirected.json")).expect("a file");
    assert!(command(folder, "trace mlp --batch 4").stdout(file).status().expect("it starts").success());
    assert_eq!(read("redirected.json"), read("named.json"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.join("redirected.json"), folder.join("link.json")).expect("a link");
        check(folder, "trace mlp --batch 8 -o link.json", 0, &[]);
        assert!(fs::symlink_metadata(folder.join("link.json")).expect("it is there").is_symlink());
        assert!(read("redirected.json").contains("\"batch\": 8"));
    }
}

#[test]
fn a_machine_without_cuda_is_told_so_in_one_message() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    match plimsoll::runtime::cuda::survey() {
        Err(error) if matches!(error.kind, plimsoll::runtime::Kind::Missing(_)) => {}
        other => return println!("skipped: this machine has a CUDA driver: {other:?}"),
    }
    for verb in ["auto", "profile", "tune", "verify"] {
        let line = format!("{verb} --device cuda");
        let output = output(folder, &line);
        let says = ["the CUDA driver is not on this machine", "libcuda.so.1", "--device cpu"];
        let said = checked(&line, &output, 4, &says);
        assert_eq!(said.trim_end().lines().count(), 1, "{verb} says more than one thing:\n{said}");
        assert!(output.stdout.is_empty(), "{verb} printed a result");
    }
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0, "nothing is left behind");
    let doctor = json(folder, "doctor");
    assert!(doctor["cuda"]["cuda"].as_str().is_some_and(|said| said.contains("libcuda.so.1")), "{doctor}");
}

#[test]
fn a_study_without_a_whole_choice_is_told_alike_by_all_that_need_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let task = "--network mlp --max-batch 64 --device k40 --study study";
    let auto = format!("auto {task}");
    let alike = |more: &[&str], says: &[&str]| {
        let all = ["run study", "export study --to torchrun", "report study", "explain study"];
        all.iter().chain(more).for_each(|line| drop(check(folder, line, 2, says)));
    };
    fs::create_dir(folder.join("study")).expect("a folder");
    alike(&[], &["study holds no choice: chosen.config.json is missing", "name a study's folder"]);
    check(folder, &format!("profile {task}"), 0, &[]);
    let again = "run `plimsoll tune --study study` with its other";
    alike(&[], &["study holds no choice", &format!("measured and not tuned yet: {again}")]);
    check(folder, &format!("tune {task}"), 0, &[]);
    let config = fs::read_to_string(folder.join("study/chosen.config.json")).expect("a config");
    fs::remove_file(folder.join("study/chosen.schedule.json")).expect("it is there");
    let again = format!("{again} options");
    alike(&[&auto], &["chosen.schedule.json is missing", &again]);
    fs::write(folder.join("study/chosen.config.json"), &config[..300]).expect("a file");
    alike(&[&auto], &["chosen.config.json is damaged", &again]);
    fs::remove_file(folder.join("study/checksums.txt")).expect("it is there");
    alike(&[], &["chosen.config.json", "cut short", &again]);
    check(folder, &format!("tune {task}"), 0, &["study` shows all of it"]);
    let other =
        "holds the choice for another learning rate: AccUDNN eq. (9), c = 0.625, from 0.05 at batch 32 there";
    check(folder, &format!("{auto} --base-rate 0.1"), 2, &[other]);
    // A choice without another of its files: of an older version, or of a tuning that did not end.
    for file in ["tuning.json", "chosen.trace.json", "network.profile.json"] {
        check(folder, &format!("tune {task} --fresh"), 0, &[]);
        fs::remove_file(folder.join("study").join(file)).expect("it is there");
        let says = ["not tuned to the end, or by an older version", file, "plimsoll tune --study study"];
        check(folder, "report study", 2, &says);
    }
    // If a training depends on the choice, tuning there would be refused.
    fs::write(folder.join("study/training.safetensors"), "").expect("it can be written");
    check(folder, "report study", 2, &["holds a training: tune into another folder"]);
}

/// A document that a different version wrote, or that was edited, has no checksum; a damaged one has.
#[test]
fn a_study_of_another_version_or_with_torn_files_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    check(folder, "tune --network mlp --max-batch 64 --device k40 --study study", 0, &[]);
    fs::remove_file(folder.join("study/checksums.txt")).expect("a study has checksums");
    let changed = |file: &str, change: fn(&str) -> String, code: i32, says: &[&str]| {
        let path = folder.join("study").join(file);
        let text = fs::read_to_string(&path).expect("it is there");
        fs::write(&path, change(&text)).expect("it can be written");
        check(folder, "report study", code, says);
        fs::write(&path, text).expect("it can be written");
    };
    let newer = ["this is a `tuning/3` document", "another version of Plimsoll", "tune --study"];
    changed("tuning.json", |text| text.replace("tuning/2", "tuning/3"), 2, &newer);
    changed("tuning.json", |text| text[..text.len() / 2].to_owned(), 2, &["cut short", "tune --study"]);
    let extra = |text: &str| text.replacen("\"why\":", "\"because\": 1, \"why\":", 1);
    changed("tuning.json", extra, 2, &["because"]);
    let none = |text: &str| text.replacen("\"samples\":", "\"samples\":0,\"x\":", 1);
    changed("tuning.json", none, 2, &["tuning.json"]);
    let moved = |text: &str| text.replacen("\"offset\":0", "\"offset\":256", 1);
    changed("chosen.schedule.json", moved, 6, &["is not valid"]);
    // A tuning of an earlier version has no log of the search for its plan.
    check(folder, "explain study --search-log", 0, &[]);
    change(&folder.join("study/tuning.json"), |tuning| {
        tuning.as_object_mut().expect("an object").remove("search").expect("a log");
    });
    check(folder, "explain study --search-log", 2, &["how its plan was searched for", "tune --fresh"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_reader_of_errors_that_went_away_changes_no_exit_code() {
    for format in ["human", "json"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let status = Command::new(PROGRAM)
            .args(["verify", "--network", "mlp", "--budget", "1KiB", "--message-format", format])
            .stderr(full)
            .stdout(Stdio::null())
            .status();
        assert_eq!(status.expect("the program starts").code(), Some(3), "{format}");
    }
}

#[test]
fn what_profile_measured_is_what_tune_auto_and_other_studies_go_on_from() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let journal =
        |study: &str| fs::read(folder.join(study).join("profile.journal.jsonl")).expect("a journal");
    let profile = "profile --network mlp --max-batch 8 --study";
    printed(folder, &format!("{profile} first"));
    let kept = folder.join("cache/plimsoll/profiles");
    if plimsoll::study::COMMIT.is_some_and(|commit| commit.ends_with("-dirty")) {
        println!("a build with uncommitted changes keeps no profiles");
        assert!(!kept.exists());
    } else {
        assert_eq!(fs::read_dir(kept).expect("a folder").count(), 1);
        check(folder, &format!("{profile} second"), 0, &["ago in another study, and used here"]);
        assert_eq!(journal("second"), journal("first"));
        // Measured anew on request, even if the machine is not calm enough.
        let third = output(folder, &format!("{profile} third --fresh"));
        assert!(String::from_utf8_lossy(&third.stderr).contains("measuring mlp"));
    }
    // The default budget, for 16 samples, fits fewer than the 32 that `tune` wants at least.
    printed(folder, "profile --network mlp --study s");
    let measured = journal("s");
    for line in ["tune --network mlp --study s", "auto --network mlp --study s --epochs 1"] {
        printed(folder, line);
        assert_eq!(journal("s"), measured, "{line}");
    }
    let smaller = "auto --network mlp --study s --epochs 1 --min-batch 8 --max-batch 8";
    check(folder, smaller, 2, &["holds the choice for another batch"]);
    let other = "profile --network mlp --study s --budget 2MiB";
    check(folder, other, 2, &["the budget is", "and 2 MiB (2097152 B) now"]);
}
