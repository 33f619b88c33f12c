//! The command line from a user's view: its output, and its messages for every kind of bad input.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn plimsoll(folder: &Path, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_plimsoll");
    Command::new(program)
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .expect("the program starts")
}

/// Checks that the command exits with this code, and that stderr contains all these texts.
#[track_caller]
fn check(folder: &Path, arguments: &str, code: i32, says: &[&str]) {
    let output = plimsoll(folder, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}\n{stderr}");
    for words in says {
        assert!(stderr.contains(words), "`{arguments}` does not say `{words}`:\n{stderr}");
    }
    assert!(!stderr.contains("panicked"), "{arguments}\n{stderr}");
}

/// Returns a folder with a trace and a schedule for it.
fn planned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    check(folder.path(), "trace resnet20 --batch 8 -o t.json", 0, &[]);
    // The ops take no time yet, so the plan would only recompute.
    check(folder.path(), "plan t.json --budget 70% --link 12.2GB/s --no-recompute -o s.json", 0, &[]);
    folder
}

/// Returns the same folder, with a millisecond for each op of the trace.
fn timed() -> tempfile::TempDir {
    let folder = planned();
    let path = folder.path().join("t.json");
    let text = fs::read_to_string(&path).expect("a trace").replace("\"seconds\":0.0", "\"seconds\":0.001");
    fs::write(&path, text).expect("a file");
    folder
}

#[test]
fn a_plan_is_made_checked_and_simulated_and_every_format_says_the_same() {
    let folder = planned();
    let folder = folder.path();
    check(folder, "check t.json s.json", 0, &[]);
    let json = plimsoll(folder, "simulate t.json s.json --commands --format json");
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON on stdout");
    let moved = value["simulation"]["offloaded_bytes"].as_u64().expect("a number of bytes");
    assert!(moved > 0, "at 70 % of the peak something is swapped");
    let csv = plimsoll(folder, "simulate t.json s.json --format csv");
    assert!(String::from_utf8_lossy(&csv.stdout).contains(&moved.to_string()));
    for format in ["table", "md"] {
        let text = plimsoll(folder, &format!("simulate t.json s.json --format {format}"));
        assert!(String::from_utf8_lossy(&text.stdout).contains("makespan"));
    }
    check(folder, "simulate t.json s.json --trace-out e.json", 0, &["perfetto"]);
    let events = fs::read_to_string(folder.join("e.json")).expect("the events");
    assert!(events.starts_with(r#"{"traceEvents":[{"ph":"M","name":"process_name""#), "{}", &events[..80]);
    check(folder, "simulate t.json s.json --trace-out t.json", 2, &["t.json would be overwritten"]);
}

#[test]
fn a_script_is_the_python_package_s_to_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    fs::write(folder.join("train.py"), "import plimsoll").expect("a file");
    check(folder, "auto train.py --budget 60% -- --epochs 3", 2, &["Python package", "pip install ./python"]);
    check(folder, "auto none.py", 2, &["none.py"]);
    check(folder, "auto resnet18", 2, &["resnet18 is no Python script", "--network"]);
    check(folder, "auto train.py --network lenet", 2, &["cannot be used with"]);
    check(folder, "auto train.py --format json", 2, &["--format"]);
    assert!(!folder.join("studies").exists());
}

#[test]
fn shells_and_man_know_every_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let printed = |arguments: &str| {
        let output = plimsoll(folder, arguments);
        assert!(output.status.success(), "{arguments}");
        String::from_utf8(output.stdout).expect("text")
    };
    let texts = ["completions bash", "completions zsh", "completions fish", "man"].map(printed);
    for text in &texts {
        for command in ["auto", "compare", "simulate", "completions"] {
            assert!(text.contains(command), "{command}: {text}");
        }
    }
    assert!(texts[0].contains("--no-recompute"));
    assert!(printed("man plan").contains(".TH plimsoll-plan 1"));
    check(folder, "man plans", 2, &["no command `plans`", "auto, demo, profile, tune, plan"]);
    check(folder, "completions csh", 2, &["bash", "zsh", "fish"]);
}

#[test]
fn every_policy_is_compared_with_a_plan_or_the_reason_why_it_has_none() {
    let folder = planned();
    let folder = folder.path();
    let compare = "compare t.json --link 1GB/s";
    let json = plimsoll(folder, &format!("{compare} --sweep 2 --format json"));
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON on stdout");
    let rows = value["policies"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["policy"].as_str().expect("a name")).collect();
    assert_eq!(names[..names.len() / 2], names[names.len() / 2..], "every policy at both budgets");
    for name in ["keep", "vdnn-all", "layrub-inter", "dynprog", "plimsoll"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    for row in rows {
        let seconds = row["makespan_seconds"].as_f64();
        assert_eq!(seconds.is_some(), row["why_not"].is_null(), "{row}");
        assert!(
            seconds.is_none_or(|s| s >= row["bound_seconds"].as_f64().expect("a bound") * 0.999_999),
            "{row}"
        );
    }
    for format in ["table", "csv", "md"] {
        let text =
            plimsoll(folder, &format!("{compare} --budget 70% --policies keep,greedy --format {format}"));
        let text = String::from_utf8_lossy(&text.stdout);
        assert!(text.contains("greedy") && text.contains("more than the budget"), "{text}");
    }
    check(folder, &format!("{compare} --policies keep,best"), 2, &["`best` is no policy", "greedy"]);
    check(folder, &format!("{compare} --budget 70% --sweep 3"), 2, &["--sweep"]);
}

#[test]
fn a_sweep_shows_time_over_memory_and_more_budget_never_takes_longer() {
    let folder = timed();
    let folder = folder.path();
    let plan = "plan t.json --link 20MB/s";
    let json = plimsoll(folder, &format!("{plan} --sweep 4 --format json -o frontier"));
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON on stdout");
    let rows = value["frontier"].as_array().expect("rows");
    let numbers = |rows: &[serde_json::Value], key: &str| -> Vec<f64> {
        rows.iter().map(|row| row[key].as_f64().expect("a number")).collect()
    };
    assert_eq!(rows.len(), 4);
    assert!(numbers(rows, "budget_bytes").is_sorted());
    let makespans = numbers(rows, "makespan_seconds");
    assert!(makespans.is_sorted_by(|a, b| a >= b), "{makespans:?}");
    assert!(numbers(rows, "gap").iter().all(|gap| *gap >= 0.0));
    let last = &rows[3];
    assert_eq!(last["status"], "optimal", "at the peak nothing has to leave: {last}");
    assert_eq!((last["moved_bytes"].as_u64(), last["gap"].as_f64()), (Some(0), Some(0.0)));
    for row in rows {
        let schedule = format!("frontier/t.{}.schedule.json", row["budget_bytes"]);
        check(folder, &format!("check t.json {schedule}"), 0, &[]);
        let text = fs::read_to_string(folder.join(schedule)).expect("a schedule");
        assert!(text.contains(&format!("\"budget_bytes\": {}", row["budget_bytes"])));
    }
    for format in ["table", "csv", "md"] {
        let text = plimsoll(folder, &format!("{plan} --sweep 2 --no-recompute --format {format}"));
        assert!(String::from_utf8_lossy(&text.stdout).contains("optimal"));
    }
    let compared =
        plimsoll(folder, "compare t.json --link 20MB/s --sweep 4 --policies plimsoll --format json");
    let value: serde_json::Value = serde_json::from_slice(&compared.stdout).expect("JSON on stdout");
    let makespans = numbers(value["policies"].as_array().expect("rows"), "makespan_seconds");
    assert!(makespans.is_sorted_by(|a, b| a >= b), "{makespans:?}");
    check(folder, &format!("{plan} --policy keep --sweep 1 -o t.json/x"), 2, &["t.json/x"]);
}

#[test]
fn every_outcome_of_a_plan_has_its_word_and_its_bound() {
    let folder = timed();
    let folder = folder.path();
    let facts = |arguments: &str, code: i32| -> serde_json::Value {
        let output =
            plimsoll(folder, &format!("plan t.json --link 20MB/s -o x.json --format json {arguments}"));
        assert_eq!(output.status.code(), Some(code), "{arguments}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on stdout");
        value["plan"].clone()
    };
    let at = |arguments: &str, status: &str, code: i32| {
        let plan = facts(arguments, code);
        assert_eq!(plan["status"], status, "{arguments}: {plan}");
        assert!(plan["bound_seconds"].as_f64().is_some(), "{arguments}: {plan}");
        plan
    };
    assert_eq!(at("--budget 100%", "optimal", 0)["gap"], 0.0);
    assert!(at("--budget 60% --policy naive", "feasible", 0)["gap"].as_f64() > Some(0.0));
    assert!(at("--budget 60% --time-limit 0s", "feasible, out of time", 0)["gap"].as_f64() > Some(0.0));
    let short = at("--budget 60% --policy keep", "infeasible", 3);
    assert!(short["short_by_bytes"].as_u64() > Some(0) && short["op_name"].is_string(), "{short}");
    // Below the floor nothing fits, and there is no time to bound.
    let short = facts("--budget 1MiB", 3);
    assert_eq!((short["status"].as_str(), short["bound_seconds"].as_f64()), (Some("infeasible"), None));
    // At half the rate back, tensors that go both ways take longer.
    let (even, slow) = (facts("--budget 50%", 0), facts("--budget 50% --prefetch-link 5MB/s", 0));
    assert!(slow["makespan_seconds"].as_f64() > even["makespan_seconds"].as_f64(), "{even} {slow}");
}

/// Swapped tensors fit the host's memory: less is swapped, or the message states the memory needed.
#[test]
fn host_memory_limits_what_is_swapped() {
    let folder = timed();
    let folder = folder.path();
    let plan = |arguments: &str, code: i32| {
        let line = format!("plan t.json --budget 70% --link 100MB/s -o x.json --format json {arguments}");
        let output = plimsoll(folder, &line);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}\n{stderr}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on stdout");
        (value["plan"].clone(), stderr)
    };
    let host = |arguments: &str| plan(arguments, 0).0["host_bytes"].as_u64().expect("bytes");
    let takes = host("--no-recompute");
    assert!(takes > 0);
    assert_eq!(
        host(&format!("--no-recompute --host-memory {takes}")),
        takes,
        "as much as it takes is enough"
    );
    assert_eq!(host("--host-memory 0"), 0, "it recomputes");
    check(folder, "check t.json x.json", 0, &[]);
    // With swapping alone, some bytes have to be on the host.
    let (short, says) = plan("--no-recompute --host-memory 100kB", 3);
    assert_eq!(
        short["short_by_bytes"].as_u64().zip(short["needs_bytes"].as_u64()).map(|(s, n)| n - s),
        Some(100_000)
    );
    assert!(short["shortage"].as_str().is_some_and(|words| words.starts_with("host memory")), "{short}");
    for words in [
        "only the host could hold",
        "more than its memory",
        "raise --host-memory to at least",
        "lower the batch",
    ] {
        assert!(says.contains(words), "{words}: {says}");
    }
    // A policy with fixed decisions rejects limits on them.
    let (_, says) = plan("--policy naive --host-memory 100kB", 3);
    assert!(
        says.contains("was found within a budget") && says.contains("raise --host-memory to about"),
        "{says}"
    );
    let compared =
        plimsoll(folder, "compare t.json --budget 70% --link 100MB/s --host-memory 100kB --format json");
    let value: serde_json::Value = serde_json::from_slice(&compared.stdout).expect("JSON on stdout");
    for row in value["policies"].as_array().expect("rows") {
        assert!(row["host_bytes"].as_u64().is_none_or(|bytes| bytes <= 100_000), "{row}");
    }
    let compare = "compare t.json --budget 70% --link 100MB/s --policies keep,naive --host-memory 100kB";
    check(folder, compare, 3, &["`naive` comes closest", "host's memory", "raise --host-memory to about"]);
    for bad in ["lots", "50%", "1e99GiB"] {
        let line = format!("plan t.json --budget 70% --link 1GB/s -o x.json --host-memory {bad}");
        check(folder, &line, 2, &["--host-memory", "a size such as 22GiB"]);
    }
    check(folder, "tune --study s --host-memory 8000TiB", 2, &["more than the", "lower --host-memory"]);
}

#[test]
fn what_is_asked_for_wrongly_is_named_with_what_would_be_right() {
    let folder = planned();
    let folder = folder.path();
    let plan = "plan t.json --link 12.2GB/s -o x.json --budget";
    check(
        folder,
        &format!("{plan} 1MiB"),
        3,
        &["fits a budget of 1 MiB", "MiB more than the budget", "raise --budget"],
    );
    check(folder, &format!("{plan} 0"), 3, &["more than the budget"]);
    check(folder, &format!("{plan} 12XB"), 2, &["a size such as 22GiB"]);
    check(folder, &format!("{plan} 70% --sweep 3"), 2, &["--sweep"]);
    check(folder, "plan t.json --link 12.2GB/s -o x.json", 2, &["--budget", "--sweep"]);
    check(folder, &format!("{plan} -5"), 2, &["`-5` is not a size such as 22GiB"]);
    for (line, says) in [
        ("tune --budget -1", "`-1` is not a size such as 22GiB"),
        ("tune --budget -2.5GiB", "`-2.5GiB` is not a size such as 22GiB"),
        ("verify --budget -.5%", "`-.5%` is not a size such as 22GiB"),
        ("auto --epochs -3", "invalid value '-3' for '--epochs <N>': that is no whole number from 0"),
        ("auto --seed -1", "invalid value '-1' for '--seed <N>': that is no whole number from 0"),
        ("auto --epochs many", "invalid value 'many' for '--epochs <N>': that is no whole number from 0"),
        ("tune --rate-rule linear --convexity 2", "--convexity is for --rate-rule accudnn"),
        ("tune --duplex half", "--duplex half is for a link that is paced"),
        ("auto --base-rate -0.1", "base learning rate is -0.1"),
        ("tune --study -1", "unexpected argument '-1'"),
        ("tune --budget --fresh", "a value is required for '--budget <SIZE>'"),
    ] {
        check(folder, line, 2, &[says]);
    }
    check(folder, &format!("{plan} 70% --policy best"), 2, &["`best` is no policy", "plimsoll"]);
    check(
        folder,
        &format!("{plan} 70% --without margin,seeds"),
        2,
        &["'margin'", "similar value exists: 'margins'"],
    );
    for rate in ["0", "-1GB/s", "nan", "fast"] {
        check(
            folder,
            &format!("plan t.json --budget 70% -o x.json --link={rate}"),
            2,
            &["a rate above zero"],
        );
    }
    check(folder, "networks resnt18", 2, &["did you mean resnet18"]);
    check(folder, "networks vit", 2, &["no network is called `vit`\n", "`plimsoll networks` lists all"]);
    check(folder, "networks vgg17", 2, &["vgg16"]);
    check(folder, "trace alexnet --image 32", 2, &["32x32", "too small", "63"]);
    check(folder, &format!("{plan} 5000000TiB"), 2, &["2^62"]);
    check(folder, "plan t.json --budget 70% --link 1GB/s -o t.json", 2, &["t.json would be overwritten"]);
    check(folder, "trace resnet20 --batch 0", 2, &["batch"]);
    check(folder, "trace resnet20 --classes 0", 2, &["at least 1"]);
    check(
        folder,
        "plan missing.json --budget 70% --link 1GB/s -o x.json",
        2,
        &["missing.json", "check the path"],
    );
    check(
        folder,
        "plan t.json --budget 70% --link 1GB/s -o no/such/x.json",
        2,
        &["x.json", "folder must exist"],
    );
    fs::create_dir(folder.join("there")).expect("a folder");
    check(
        folder,
        "plan t.json --budget 100% --link 1GB/s -o there",
        2,
        &["cannot write there", "name a file in it"],
    );
    check(folder, "verify --data mnist:nowhere --network lenet", 2, &["nowhere"]);
    check(folder, "verify --data digits --network lenet", 2, &["too small"]);
    check(folder, "verify --network resnet20 --image 9", 2, &["8x8x1", "9x9x1"]);
    check(folder, "verify --network mlp --batch 8 --budget 1KiB", 3, &["raise --budget"]);
    assert!(!folder.join("x.json").exists(), "a failed plan writes nothing");
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_refused_with_the_place_of_the_fault() {
    let folder = planned();
    let folder = folder.path();
    let trace = fs::read_to_string(folder.join("t.json")).expect("a trace");
    let schedule = fs::read_to_string(folder.join("s.json")).expect("a schedule");
    let faults = [
        ("empty", String::new(), "is empty"),
        ("truncated", trace[..trace.len() / 2].to_owned(), "cut short"),
        ("foreign", "{\"a\": 1}".to_owned(), "no key \"plimsoll\""),
        ("other", schedule.clone(), "`schedule/1` document; expected `trace/1`"),
        ("version", trace.replacen("trace/1", "trace/9", 1), "`trace/9`"),
        ("key", trace.replacen("\"batch\"", "\"batsch\"", 1), "batsch"),
        ("negative", trace.replacen("\"bytes\":", "\"bytes\":-", 1), "tensors[0].bytes"),
        ("batch", trace.replacen("\"batch\": 8", "\"batch\": 0", 1), "at least 1 sample"),
        ("id", trace.replacen("\"writes\":[", "\"writes\":[999999,", 1), "tensor 999999 does not exist"),
    ];
    for (name, text, says) in faults {
        assert_ne!(text, trace, "the fault `{name}` was planted");
        fs::write(folder.join("bad.json"), text).expect("a file");
        check(folder, "plan bad.json --budget 70% --link 1GB/s -o x.json", 2, &["bad.json", says]);
    }
}

#[test]
fn a_schedule_that_is_not_valid_is_exit_6() {
    let folder = planned();
    let folder = folder.path();
    let schedule = fs::read_to_string(folder.join("s.json")).expect("a schedule");
    check(folder, "trace mlp --batch 8 -o other.json", 0, &[]);
    check(
        folder,
        "check other.json s.json",
        6,
        &["the schedule is for `resnet20-32x32x3-10`", "plan this trace anew"],
    );
    let waits = schedule.replacen("\"do\":\"prefetch\"", "\"do\":\"offload\"", 1);
    assert_ne!(waits, schedule);
    fs::write(folder.join("bad.json"), waits).expect("a file");
    check(folder, "check t.json bad.json", 6, &["rule"]);
    check(folder, "simulate t.json bad.json", 6, &["rule"]);
}

#[test]
fn a_task_that_cannot_be_done_says_why_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    fs::write(folder.join("precious"), "do not lose me").expect("a file");
    let auto = "auto --study study";
    check(
        folder,
        &format!("{auto} --budget 3MiB"),
        3,
        &["layer1.0.conv1", "more than the budget", "raise --budget"],
    );
    check(
        folder,
        &format!("{auto} --budget 3.4MiB"),
        3,
        &["largest batch that can be trained is", "at least 32"],
    );
    check(folder, &format!("{auto} --max-batch 10"), 2, &["at least 32 and at most 10", "--min-batch"]);
    for budget in ["1000TiB", "101%"] {
        for verb in ["auto", "tune", "profile"] {
            let line = format!("{verb} --study study --budget {budget}");
            check(folder, &line, 2, &["more than the", "that this process may have", "lower --budget"]);
        }
    }
    check(folder, &format!("{auto} --base-rate 0"), 2, &["base learning rate is 0"]);
    check(folder, &format!("{auto} --rate-rule accudnn --convexity 20"), 2, &["convexity c is 20"]);
    check(folder, &format!("{auto} --threads 0"), 2, &["--threads"]);
    check(folder, "auto --study precious/study", 2, &["precious/study", "stands where a folder should be"]);
    assert!(!folder.join("study").exists(), "nothing was begun for any of these");
    check(folder, "run study", 2, &["cannot read study", "check the path"]);
    check(folder, "verify --batch 8 --host file:precious", 4, &["precious", "such a file already"]);
    check(folder, "verify --batch 8 --host file:no/such/slab", 4, &["its folder does not exist"]);
    check(folder, "verify --batch 8 --host disk", 2, &["`memory` or `file:PATH`"]);
    check(folder, "verify --batch 5000", 2, &["batch", "5000"]);
    assert_eq!(fs::read_to_string(folder.join("precious")).expect("it is there"), "do not lose me");
}

#[test]
fn data_that_is_cut_short_or_mislabelled_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    // A set of two images, 4x4, of the classes 1 and 12, in the format of MNIST.
    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4][..], &[7; 32]].concat();
    let labels = |second: u8| vec![0, 0, 8, 1, 0, 0, 0, 2, 1, second];
    let write = |images: &[u8], labels: &[u8]| {
        for set in ["train", "t10k"] {
            fs::write(folder.join(format!("{set}-images-idx3-ubyte")), images).expect("a file");
            fs::write(folder.join(format!("{set}-labels-idx1-ubyte")), labels).expect("a file");
        }
    };
    let verify = "verify --network mlp --data mnist:. --batch 2 --iterations 1";
    write(&images, &labels(2));
    check(folder, verify, 0, &[]);
    write(&images[..40], &labels(2));
    check(folder, verify, 2, &["train-images-idx3-ubyte", "48"]);
    write(&images, &labels(12));
    check(folder, verify, 2, &["train-labels-idx1-ubyte", "12"]);
    write(b"not an image", &labels(2));
    check(folder, verify, 2, &["train-images-idx3-ubyte"]);
    fs::write(folder.join("data_batch_1.bin"), [0; 3000]).expect("a file");
    check(folder, "verify --data cifar10:. --batch 2", 2, &["data_batch_1.bin"]);
}

#[test]
fn a_trace_goes_to_standard_output_whatever_that_is_and_through_links() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    check(folder, "trace mlp --batch 4 -o named.json", 0, &[]);
    let named = fs::read_to_string(folder.join("named.json")).expect("a trace");
    let piped = plimsoll(folder, "trace mlp --batch 4");
    assert_eq!(String::from_utf8_lossy(&piped.stdout), named);
    let file = fs::File::create(folder.join("redirected.json")).expect("a file");
    let status = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["trace", "mlp", "--batch", "4"])
        .stdout(file)
        .status();
    assert!(status.expect("the program starts").success());
    assert_eq!(fs::read_to_string(folder.join("redirected.json")).expect("a trace"), named);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.join("redirected.json"), folder.join("link.json")).expect("a link");
        check(folder, "trace mlp --batch 8 -o link.json", 0, &[]);
        assert!(fs::symlink_metadata(folder.join("link.json")).expect("it is there").is_symlink());
        let through = fs::read_to_string(folder.join("redirected.json")).expect("a trace");
        assert!(through.contains("\"batch\": 8"));
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
        let command = format!("{verb} --device cuda");
        check(
            folder,
            &command,
            4,
            &["the CUDA driver is not on this machine", "libcuda.so.1", "--device cpu"],
        );
        let output = plimsoll(folder, &command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.trim_end().lines().count(), 1, "{command} says more than one thing:\n{stderr}");
        assert!(output.stdout.is_empty(), "{command} printed a result");
    }
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0, "nothing is left behind");
    let doctor = plimsoll(folder, "doctor --format json");
    let value: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON on stdout");
    let said = value["cuda"]["cuda"].as_str().expect("a line on CUDA");
    assert!(said.contains("libcuda.so.1"), "{said}");
}

#[test]
fn options_of_another_device_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    for (options, says) in [
        ("--device gpu", "a device is `cpu`, `cuda` or `cuda:N`"),
        ("--device cuda:x", "`x` is no number of a device"),
        ("--device cuda --threads 2", "--threads is for --device cpu"),
        ("--device cuda --link 12GB/s", "--link is for --device cpu"),
        ("--device cuda --duplex half", "--duplex half is for --device cpu"),
        ("--device cuda --host file:h", "--host file:PATH is for --device cpu"),
        ("--no-graph", "--no-graph is for --device cuda"),
        ("--precision tf32", "cpu has no tensor cores for TF32"),
        ("--tf32", "there is no --tf32 any more\n  help: say --precision tf32 for it"),
        ("--deterministic", "--deterministic is for --device cuda"),
    ] {
        check(folder, &format!("verify {options}"), 2, &[says]);
    }
}

#[test]
fn hints_of_run_name_what_run_has() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    fs::create_dir(folder.join("study")).expect("a folder");
    for name in ["chosen.config.json", "chosen.schedule.json"] {
        fs::copy(data.join(name), folder.join("study").join(name)).expect("a file");
    }
    let own = plimsoll(folder, "run --help");
    let own = String::from_utf8_lossy(&own.stdout).into_owned();
    let of_run = |option: &str| own.split([' ', ',', '\n']).any(|word| word == option);
    let study = fs::File::open(folder.join("study")).expect("a folder");
    study.lock().expect("nobody else has it");
    let cases = [
        ("--data digits", "leave --data out for what it was tuned on, or tune again"),
        ("--data text", "texts are for networks such as lstm"),
        ("--device cuda", "tune again with that --device"),
        ("--data synthetic", "or take another folder"),
        ("--data synthetic --trace-out no/x.json", "the folder must exist"),
    ];
    // All run at once: each that waits for the study's lock takes seconds.
    let lines = cases.map(|(options, _)| format!("run study {options}"));
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let runs = lines.each_ref().map(|line| scope.spawn(move || plimsoll(folder, line)));
        runs.into_iter().map(|run| run.join().expect("the program starts")).collect()
    });
    for ((options, says), output) in cases.into_iter().zip(outputs) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let (_, help) = said.split_once("help: ").unwrap_or_else(|| panic!("{options}: no help: {said}"));
        assert!(help.contains(says), "{options}: {said}");
        for option in help.split([' ', ',', ';', '\n']).filter(|word| word.starts_with("--")) {
            assert!(of_run(option), "{options}: `run` has no {option}: {said}");
        }
    }
}

#[test]
fn a_study_without_a_whole_choice_is_told_alike_by_all_that_need_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let alike = |says: &[&str]| {
        for command in ["run study", "export study --to torchrun", "report study", "explain study"] {
            check(folder, command, 2, says);
        }
    };
    let task = "--network mlp --max-batch 64 --device k40 --study study";
    fs::create_dir(folder.join("study")).expect("a folder");
    alike(&["study holds no choice: chosen.config.json is missing", "name a study's folder"]);
    check(folder, &format!("profile {task}"), 0, &[]);
    alike(&[
        "study holds no choice",
        "measured and not tuned yet: run `plimsoll tune --study study` with its other",
    ]);
    check(folder, &format!("tune {task}"), 0, &[]);
    let config = fs::read_to_string(folder.join("study/chosen.config.json")).expect("a config");
    fs::remove_file(folder.join("study/chosen.schedule.json")).expect("it is there");
    let again = "run `plimsoll tune --study study` with its other options";
    alike(&["chosen.schedule.json is missing", again]);
    check(folder, &format!("auto {task}"), 2, &["chosen.schedule.json is missing", again]);
    fs::write(folder.join("study/chosen.config.json"), &config[..300]).expect("a file");
    alike(&["chosen.config.json is damaged", again]);
    check(folder, &format!("auto {task}"), 2, &["chosen.config.json is damaged", again]);
    fs::remove_file(folder.join("study/checksums.txt")).expect("it is there");
    alike(&["chosen.config.json", "cut short", again]);
    check(folder, &format!("tune {task}"), 0, &["study` shows all of it"]);
    let other =
        "holds the choice for another learning rate: AccUDNN eq. (9), c = 0.625, from 0.05 at batch 32 there";
    check(folder, &format!("auto {task} --base-rate 0.1"), 2, &[other]);
}

#[test]
fn synthetic_samples_are_made_when_they_are_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // As many and as large as ImageNet's images: 718 GiB if they were held.
    check(
        folder.path(),
        "verify --network lenet --image 224 --batch 1 --iterations 1 --data synthetic:1281167",
        0,
        &[],
    );
    let many = "verify --network mlp --batch 2 --iterations 1 --data synthetic:99999999999999";
    check(folder.path(), many, 2, &["is no number of samples from 1 to 4294967295"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_reader_of_errors_that_went_away_changes_no_exit_code() {
    for format in ["human", "json"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let status = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["verify", "--network", "mlp", "--budget", "1KiB", "--message-format", format])
            .stderr(full)
            .stdout(std::process::Stdio::null())
            .status();
        assert_eq!(status.expect("the program starts").code(), Some(3), "{format}");
    }
}

#[test]
fn what_profile_measured_is_what_tune_and_auto_go_on_from() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let calm = |line: &str| {
        let runs = (0..8).map(|_| plimsoll(folder, line)).find(|output| output.status.code() != Some(5));
        let output = runs.expect("the machine is calm at times");
        assert_eq!(output.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let journal = || fs::read(folder.join("s/profile.journal.jsonl")).expect("a journal");
    // The default budget, for 16 samples, fits fewer than the 32 that `tune` wants at least.
    calm("profile --network mlp --study s");
    let measured = journal();
    for line in ["tune --network mlp --study s", "auto --network mlp --study s --epochs 1"] {
        calm(line);
        assert_eq!(journal(), measured, "{line}");
    }
    let smaller = "auto --network mlp --study s --epochs 1 --min-batch 8 --max-batch 8";
    check(folder, smaller, 2, &["holds the choice for another batch"]);
    check(
        folder,
        "profile --network mlp --study s --budget 2MiB",
        2,
        &["the budget is", "and 2 MiB (2097152 B) now"],
    );
}

#[test]
fn what_was_measured_in_one_study_is_used_in_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let profile = "profile --network mlp --max-batch 8 --study";
    let measured =
        (0..8).map(|_| plimsoll(folder, &format!("{profile} first"))).find(|o| o.status.code() != Some(5));
    let first = measured.expect("the machine is calm at times");
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
    let kept = folder.join("cache/plimsoll/profiles");
    if plimsoll::study::COMMIT.is_some_and(|commit| commit.ends_with("-dirty")) {
        println!("a build with uncommitted changes keeps no profiles");
        assert!(!kept.exists());
        return;
    }
    assert_eq!(fs::read_dir(kept).expect("a folder").count(), 1);
    check(folder, &format!("{profile} second"), 0, &["ago in another study, and used here"]);
    let samples =
        |study: &str| fs::read(folder.join(study).join("profile.journal.jsonl")).expect("a journal");
    assert_eq!(samples("second"), samples("first"));
    // Measured anew on request, even if the machine is not calm enough.
    let third = plimsoll(folder, &format!("{profile} third --fresh"));
    assert!(String::from_utf8_lossy(&third.stderr).contains("measuring mlp"));
}
