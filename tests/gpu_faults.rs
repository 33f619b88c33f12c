//! Faults of the device `cuda` on the command line, with the stand-in for its driver: messages, exit code 4, and the state that
//! is kept.
#![cfg(unix)]

use crate::program::{PROGRAM, change, checked, copied, patiently};
use crate::study_folder::by_hand;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Directories of CUDA's libraries and of compiled kernels, which all tests share.
pub(crate) struct Libraries {
    folder: tempfile::TempDir,
}

/// Returns the libraries; prints a message and returns `None` if there is no C compiler for the kernels.
pub(crate) fn libraries() -> Option<&'static Libraries> {
    static LIBRARIES: OnceLock<Option<Libraries>> = OnceLock::new();
    LIBRARIES.get_or_init(make).as_ref()
}

fn make() -> Option<Libraries> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler `cc` is on this machine");
        return None;
    }
    let test = std::env::current_exe().expect("a test has a file");
    let built: PathBuf = test.with_file_name("libplimsoll_standin.so");
    assert!(built.is_file(), "cargo builds the library beside its tests: {}", built.display());
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["cuda.so.1", "nvrtc.so.13", "cublas.so.13", "cudnn.so.9", "nccl.so.2", "nvidia-ml.so.1"] {
        let name = format!("lib{name}");
        std::os::unix::fs::symlink(&built, folder.path().join(name)).expect("a link can be made");
    }
    Some(Libraries { folder })
}

impl Libraries {
    /// Lets a program find the libraries.
    pub(crate) fn given_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("PLIMSOLL_CUDA_LIBRARIES", self.folder.path());
        command.env("XDG_CACHE_HOME", self.folder.path().join("cache")).env_remove("CUDA_VISIBLE_DEVICES")
    }

    /// Runs the program; `answer` is the driver's answer to one call.
    pub(crate) fn run(&self, arguments: &str, answer: &str, more: &[(&str, &str)]) -> Output {
        let mut command = Command::new(PROGRAM);
        self.given_to(command.args(arguments.split_whitespace()));
        if !answer.is_empty() {
            command.env("PLIMSOLL_STANDIN_ANSWER", answer);
        }
        command.envs(more.iter().copied());
        command.output().expect("the program starts")
    }
}

/// Checks the exit code, and that stderr contains all these texts.
#[track_caller]
pub(crate) fn check(output: &Output, code: i32, says: &[&str]) {
    checked("the program", output, code, says);
}

/// Options of a small task, with few batch sizes to plan for.
const SMALL: &str = "--network mlp --device cuda --budget 24MiB --max-batch 34";

/// Copies a study of that task, which is tuned only once.
pub(crate) fn tuned(libraries: &Libraries, study: &Path) {
    static TUNED: OnceLock<tempfile::TempDir> = OnceLock::new();
    let tuned = TUNED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tune = format!("tune {SMALL} --study {}", folder.path().join("study").display());
        check(&patiently(|| libraries.run(&tune, "", &[])), 0, &[]);
        folder
    });
    std::fs::create_dir(study).expect("a folder");
    copied(&tuned.path().join("study"), study);
}

#[test]
fn what_stands_in_the_way_of_a_start_is_said_with_what_to_do() {
    let Some(libraries) = libraries() else { return };
    let start = |answer: &str, more: &[(&str, &str)], says: &[&str]| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let study = folder.path().join("study");
        let output =
            libraries.run(&format!("profile {SMALL} --fresh --study {}", study.display()), answer, more);
        check(&output, 4, says);
    };
    start("", &[("CUDA_VISIBLE_DEVICES", "")], &["CUDA_VISIBLE_DEVICES is ``", "unset it", "nvidia-smi -L"]);
    start("", &[("CUDA_VISIBLE_DEVICES", "7")], &["CUDA_VISIBLE_DEVICES is `7`"]);
    // The driver is older than the runtime, or its halves do not match.
    let mismatch = ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine after the update"];
    start("cuInit:0:803", &[], &mismatch);
    start("cuModuleLoadData:0:222:lost", &[], &["the driver is older than NVRTC", "PLIMSOLL_CUDA_LIBRARIES"]);
    let larger = "profile --network mlp --device cuda --budget 101% --study none";
    check(&libraries.run(larger, "", &[]), 2, &["GiB of the device", "lower --budget"]);
    // Another process uses the device exclusively.
    start("cuDevicePrimaryCtxRetain:0:46", &[], &["cuda:0", "another process has it for itself"]);
    // Another process took the memory between the query and the allocation.
    start("cuMemAlloc_v2:0:2", &[], &["of device memory are needed", "--budget", "plimsoll doctor"]);
    start("cuMemHostRegister_v2:0:2", &[], &["of pinned host memory are needed"]);
    let unlocked = ["cuMemHostRegister", "CUDA_ERROR_NOT_SUPPORTED", "page-locked"];
    start("cuMemHostRegister_v2:0:801", &[], &unlocked);
}

/// A different process on the device, heat (bit 0x20), and a container in which this process does not know its own id.
const SHARED: (&str, &str) =
    ("PLIMSOLL_STANDIN_HEALTH", "slow=0x20 own=99999 other=4242:3221225472:/usr/bin/python3");

#[test]
#[ignore = "minutes: CI runs it"]
fn a_device_that_others_use_or_that_is_slowed_is_said_so() {
    let Some(libraries) = libraries() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let study = folder.path().join("study");
    let profile = format!("profile {SMALL} --study {}", study.display());
    // The first run reports it even if it cannot measure; a run that can measure records it. It measures, whatever other tests
    // did.
    let output = libraries.run(&format!("{profile} --fresh"), "", &[SHARED]);
    let other = "process 4242 (python3, 3 GiB)";
    let code = output.status.code().expect("it ends by itself");
    check(&output, code, &[&format!("{other} computes on the device, too"), "slowed down (heat)"]);
    check(&patiently(|| libraries.run(&profile, "", &[SHARED])), 0, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.matches("4242").count() == 1 && !said.contains("99999"), "once, and not itself: {said}");
    let kept = std::fs::read_to_string(study.join("network.profile.json")).expect("it was written");
    let words = [r#""slowed_by""#, r#""heat""#, "4242", r#""generation":5"#, r#""clock_mhz""#];
    for words in words.into_iter().chain([r#""pageable""#, r#""best":700.0"#]) {
        assert!(kept.contains(words), "`{words}` in the profile");
    }
    let doctor = libraries.run("doctor", "", &[SHARED]);
    check(&doctor, 0, &[]);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    for words in [other, "slowed down (heat)", "5.0 x16", "580.0", "1980", "own_f32"] {
        assert!(told.contains(words), "`{words}` in: {told}");
    }
    // The message names the process that holds the missing memory.
    let full = libraries.run(
        &format!("profile {SMALL} --fresh --study {}", folder.path().join("other").display()),
        "cuMemAlloc_v2:0:2",
        &[SHARED],
    );
    check(&full, 4, &["of device memory are needed", other, "--budget"]);
}

#[test]
fn doctor_starts_every_device_and_says_what_does_not_start() {
    let Some(libraries) = libraries() else { return };
    let doctor = |answer: &str, says: &[&str]| {
        let output = libraries.run("doctor --format json", answer, &[SHARED]);
        check(&output, 0, &[]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        for words in says {
            assert!(told.contains(words), "`{words}` in: {told}");
        }
    };
    let kernels = "cache/plimsoll/kernels-sm_90-nvrtc";
    doctor("", &["machine code for sm_90", kernels, "they start", "the libraries compute all 65"]);
    doctor("", &["Plimsoll stand-in", "4242"]);
    // A cuDNN with a missing part: it fails at its start, at the first query, or at the first computation.
    for (call, says) in [
        ("cudnnCreate", "cuda:0 does not start: "),
        ("cudnnGetConvolutionForwardWorkspaceSize", "none: "),
        ("cudnnConvolutionForward", "none: "),
    ] {
        doctor(&format!("{call}:0:3009"), &[says, "install all of cuDNN again"]);
    }
    doctor("cuDevicePrimaryCtxRetain:0:46", &["cuda:0 does not start", "another process has it for itself"]);
}

/// Returns the iterations of the kept state, by stderr.
pub(crate) fn kept_iterations(output: &Output) -> u64 {
    let said = String::from_utf8_lossy(&output.stderr);
    let after = said.split("the state after ").nth(1).and_then(|rest| rest.split(' ').next());
    after
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("a number of iterations in: {said}"))
}

fn two_epochs(libraries: &Libraries, study: &Path, answer: &str, options: &str) -> Output {
    let config = study.join("chosen.config.json");
    libraries.run(&format!("run {} --epochs 2 {options}", config.display()), answer, &[])
}

#[test]
#[ignore = "minutes: CI runs it"]
fn a_device_that_is_lost_in_training_leaves_the_state_of_the_last_finished_iteration() {
    let Some(libraries) = libraries() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let study = folder.path().join("study");
    tuned(libraries, &study);
    let run = |answer: &str, options: &str| two_epochs(libraries, &study, answer, options);
    // Without a budget a study continues with its own, whatever is free by now.
    let again = format!("profile --network mlp --device cuda --max-batch 34 --study {}", study.display());
    let profile = libraries.run(&again, "", &[]);
    check(&profile, 0, &[]);
    assert!(String::from_utf8_lossy(&profile.stdout).contains("24 MiB"), "{profile:?}");
    // A tuned study already has its budget.
    let none = "`plimsoll run` has no --budget, `plimsoll tune` has";
    check(&run("cuMemAlloc_v2:0:2", ""), 4, &["of device memory are needed", none]);
    let kept = study.join("training.safetensors");
    // Memory for the copies is refused.
    let says = ["page-locked", "for two copies of the state", "--save-every 5min"];
    check(&run("cuMemHostRegister_v2:0:801", ""), 4, &says);
    // A kernel fails before anything was saved.
    let lost = run("cuStreamSynchronize:60:719:lost", "--save-every 5min");
    check(&lost, 4, &["CUDA_ERROR_LAUNCH_FAILED", "nothing was saved yet"]);
    assert!(!kept.exists());
    // Without an interval, every iteration's state is copied during the next iteration. So wherever in an iteration the device
    // is lost, the kept state is the one before it, or the one before that if the copy was not complete. Each iteration waits
    // for the device three times: for its hyperparameters, for its end, for its metrics. (The first two of a training also wait
    // for two inputs, which no earlier iteration has transferred.)
    let lost_at = |calls: u64| {
        let output = run(&format!("cuStreamSynchronize:{calls}:719:lost"), "");
        check(&output, 4, &["CUDA_ERROR_LAUNCH_FAILED", "is kept in"]);
        std::fs::remove_file(&kept).expect("it was left");
        kept_iterations(&output)
    };
    let found: Vec<u64> = (60..66).map(lost_at).collect();
    let (least, most) = (found.iter().min().expect("six"), found.iter().max().expect("six"));
    assert!(*least > 0 && most - least <= 2, "{found:?}");
    let later = lost_at(60 + 3 * 10);
    assert!((9..=11).contains(&(later - found[0])), "ten iterations after {found:?}: {later}");
    // Every iteration is saved, and the device falls off the bus.
    let lost = run("cuStreamSynchronize:150:214:lost", "--save-every 0s");
    check(&lost, 4, &["CUDA_ERROR_ECC_UNCORRECTABLE", "is kept in", "the same command goes on from there"]);
    let after = kept_iterations(&lost);
    assert!(after > 0 && kept.exists());
    // The same command continues, to the numbers of an undisturbed training.
    let resumed = run("", "--format json");
    check(&resumed, 0, &[&format!("going on from iteration {after} of")]);
    std::fs::remove_file(&kept).expect("it is there");
    // Undisturbed except by a different process, which is reported once.
    let run_shared = format!("run {} --epochs 2 --format json", study.join("chosen.config.json").display());
    let whole = libraries.run(&run_shared, "", &[SHARED]);
    check(&whole, 0, &["process 4242 (python3, 3 GiB)", "slowed down (heat)"]);
    assert_eq!(String::from_utf8_lossy(&whole.stderr).matches("4242").count(), 1);
    assert_eq!(test_loss(&resumed), test_loss(&whole));
}

/// Returns the line of the test loss in a run's JSON output.
fn test_loss(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| line.contains("\"test_loss\"")).map(str::to_owned)
}

/// The study is made by hand: measuring needs a calm machine, which the other tests prevent.
#[test]
fn after_a_lost_device_the_same_command_goes_on_from_what_was_kept() {
    let Some(libraries) = libraries() else { return };
    let folder = by_hand("mlp", "100%", |config| config["device"] = "cuda: Plimsoll stand-in".into());
    // The device's libraries have more workspace than the processor: at most 32 MiB.
    change(&folder.path().join("trace.json"), |trace| {
        for op in trace["ops"].as_array_mut().expect("ops") {
            op["workspace_bytes"] = (32 << 20).into();
        }
    });
    let plan = "plan trace.json --budget 100% --link 1GB/s --no-recompute -o study/chosen.schedule.json";
    crate::program::check(folder.path(), plan, 0, &[]);
    let study = folder.path().join("study");
    let run = |answer: &str| two_epochs(libraries, &study, answer, "--format json");
    let whole = run("");
    check(&whole, 0, &[]);
    assert!(test_loss(&whole).is_some());
    std::fs::remove_file(study.join("training.safetensors")).expect("it was saved");
    let lost = run("cuStreamSynchronize:60:719:lost");
    check(&lost, 4, &["CUDA_ERROR_LAUNCH_FAILED", "is kept in", "the same command goes on from there"]);
    let kept = kept_iterations(&lost);
    assert!(kept > 0);
    let resumed = run("");
    check(&resumed, 0, &[&format!("going on from iteration {kept} of")]);
    assert_eq!(test_loss(&resumed), test_loss(&whole));
}
