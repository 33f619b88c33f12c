//! Settings from a user's view: the precedence of flag, environment and file, and messages for a bad file.

use crate::program::{checked, command, list};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

/// Runs the program in a folder, with these variables.
fn plimsoll(folder: &Path, variables: &[(&str, &str)], line: &str) -> Output {
    command(folder, line).envs(variables.iter().copied()).output().expect("the program starts")
}

/// Returns the JSON output of a command that succeeds.
#[track_caller]
fn json(folder: &Path, variables: &[(&str, &str)], line: &str) -> Value {
    let output = plimsoll(folder, variables, line);
    checked(line, &output, 0, &[]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns a folder with this `plimsoll.toml`.
fn with_file(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("plimsoll.toml"), text).expect("a file");
    folder
}

/// Returns value, source and place of an option, as in `config show`.
#[track_caller]
fn shown(folder: &Path, variables: &[(&str, &str)], line: &str, option: &str) -> [Option<String>; 3] {
    let all = json(folder, variables, &format!("config show --all --format json {line}"));
    let mut rows = list(&all["settings"]).iter();
    let row = rows.find(|row| row["option"] == option).expect("the option is listed");
    ["value", "source", "place"].map(|key| row[key].as_str().map(str::to_owned))
}

#[test]
fn a_flag_is_over_the_environment_over_the_file_over_the_default() {
    let folder = with_file("epochs = 3\nbudget = \"7MiB\"\n[tune]\nepochs = 4\nfresh = true\n");
    let folder = folder.path();
    let check = |variables: &[(&str, &str)], line: &str, option: &str, expected: [&str; 3]| {
        let expected = expected.map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()));
        assert_eq!(shown(folder, variables, line, option), expected, "{line} --{option}");
    };
    let five = [("PLIMSOLL_EPOCHS", "5")];
    check(&[], "run", "epochs", ["3", "file", "plimsoll.toml"]);
    check(&[], "tune", "epochs", ["4", "file", "plimsoll.toml [tune]"]);
    check(&five, "tune", "epochs", ["5", "environment", "PLIMSOLL_EPOCHS"]);
    check(&five, "tune --epochs 6", "epochs", ["6", "flag", ""]);
    check(&[("PLIMSOLL_EPOCHS", "")], "tune", "epochs", ["4", "file", "plimsoll.toml [tune]"]);
    check(&[], "tune", "base-batch", ["32", "default", ""]);
    check(&[], "tune", "min-batch", ["", "default", ""]);
    check(&[], "tune", "fresh", ["true", "file", "plimsoll.toml [tune]"]);
    check(&[], "tune --fresh=false", "fresh", ["false", "flag", ""]);
    // A setting that contradicts one of higher rank is dropped.
    check(&[], "plan", "budget", ["7MiB", "file", "plimsoll.toml"]);
    check(&[], "plan --sweep 2", "budget", ["", "default", ""]);
    check(&[("PLIMSOLL_SWEEP", "2")], "plan", "budget", ["", "default", ""]);
}

#[test]
fn the_file_is_the_named_one_or_the_one_here_or_the_users() {
    let folder = with_file("seed = 1\n");
    let folder = folder.path();
    fs::create_dir_all(folder.join("user/plimsoll")).expect("a folder");
    fs::write(folder.join("user/plimsoll/plimsoll.toml"), "seed = 2\n").expect("a file");
    fs::write(folder.join("named.toml"), "seed = 3\n").expect("a file");
    let seed = |variables: &[(&str, &str)], line: &str| shown(folder, variables, line, "seed")[0].clone();
    assert_eq!(seed(&[], "run").as_deref(), Some("1"));
    assert_eq!(seed(&[], "--config-file named.toml run").as_deref(), Some("3"));
    assert_eq!(seed(&[("PLIMSOLL_CONFIG_FILE", "named.toml")], "run").as_deref(), Some("3"));
    fs::remove_file(folder.join("plimsoll.toml")).expect("it is there");
    assert_eq!(seed(&[], "run").as_deref(), Some("2"));
}

#[test]
fn settings_hold_where_the_command_runs() {
    let folder = with_file(
        "link = \"1GB/s\"\nformat = \"json\"\n[plan]\nsweep = 2\nwithout = [\"seeds\", \"tilts\"]\n",
    );
    let folder = folder.path();
    assert!(plimsoll(folder, &[], "trace mlp --batch 4 -o t.json").status.success());
    assert_eq!(list(&json(folder, &[], "plan t.json")["frontier"]).len(), 2);
    // A trace without a device has no times.
    assert_eq!(json(folder, &[], "plan t.json --budget 100% -o s.json")["plan"]["status"], "unknown");
    // An error in an option from file or environment names its source.
    fs::write(folder.join("plimsoll.toml"), "threads = 2\n").expect("a file");
    let refused = plimsoll(folder, &[], "verify --device cuda");
    checked("verify", &refused, 2, &["--threads is set by plimsoll.toml"]);
}

#[test]
fn a_bad_file_is_told_with_file_key_and_what_is_wanted() {
    for (text, says) in [
        ("budgett = 3\n", &["plimsoll.toml", "`budgett`", "did you mean `budget`?"][..]),
        ("[tuna]\nepochs = 3\n", &["plimsoll.toml", "`tuna`", "did you mean `tune`?"]),
        ("[tune]\nepoch = 3\n", &["plimsoll.toml [tune]", "`epoch`", "did you mean `epochs`?"]),
        ("[man]\ncommand = \"tune\"\n", &["no command with options is called `man`"]),
        ("profile = 3\n", &["`profile` is a command", "[profile]"]),
        ("trace = \"t.json\"\n", &["`trace` is a command"]),
        ("budget = \"12XB\"\n", &["plimsoll.toml: `budget`", "a size such as 22GiB"]),
        ("budget = [1, 2]\n", &["`budget` is a text in quotes, or a number, not [1, 2]"]),
        ("epochs = \"many\"\n", &["`epochs` is a whole number, not \"many\""]),
        ("epochs = 0\n", &["plimsoll.toml: `epochs`", "0 is not in 1.."]),
        ("decay = \"cosin\"\n", &["plimsoll.toml: `decay`", "similar value exists: 'cosine'"]),
        ("fresh = 1\n", &["`fresh` is true or false, not 1"]),
        ("config-file = \"other.toml\"\n", &["`config-file`"]),
        ("a = 1\nbudget = = 3\n", &["plimsoll.toml: line 2", "key = value"]),
    ] {
        let folder = with_file(text);
        checked(text, &plimsoll(folder.path(), &[], "auto"), 2, says);
        // Help works even if the file is unreadable.
        assert!(plimsoll(folder.path(), &[], "tune --help").status.success(), "{text}");
    }
    let folder = with_file("[plan]\nbudget = \"90%\"\nsweep = 3\n");
    let both = plimsoll(folder.path(), &[], "plan t.json --link 1GB/s");
    checked("both", &both, 2, &["`budget` and `sweep` are both set, by plimsoll.toml [plan]"]);
    let bad = plimsoll(folder.path(), &[("PLIMSOLL_EPOCHS", "no")], "tune");
    checked("PLIMSOLL_EPOCHS=no", &bad, 2, &["PLIMSOLL_EPOCHS: invalid value 'no' for '--epochs <N>'"]);
}

#[test]
fn a_variable_that_is_no_option_is_told_with_the_one_that_may_be_meant() {
    let folder = with_file("");
    let folder = folder.path();
    for (variable, says) in [
        ("PLIMSOLL_BUDGETT", &["no option is called `budgett`", "did you mean PLIMSOLL_BUDGET?"][..]),
        ("PLIMSOLL_HOST_MEMROY", &["`host-memroy`", "did you mean PLIMSOLL_HOST_MEMORY?"]),
        ("PLIMSOLL_X", &["`x`", "unset it"]),
    ] {
        let said = checked(variable, &plimsoll(folder, &[(variable, "1")], "networks"), 2, says);
        assert!(said.starts_with(&format!("error: {variable} is set")), "{said}");
        // Help works even if the environment is invalid; an empty variable counts as unset.
        assert!(plimsoll(folder, &[(variable, "1")], "tune --help").status.success(), "{variable}");
        assert!(plimsoll(folder, &[(variable, "")], "networks").status.success(), "{variable}");
    }
    for known in ["PLIMSOLL_CUDA_LIBRARIES", "PLIMSOLL_STANDIN_HEALTH", "PLIMSOLL_COMMIT", "PLIMSOLL_BUDGET"]
    {
        assert!(plimsoll(folder, &[(known, "1GiB")], "networks").status.success(), "{known}");
    }
}

#[test]
fn what_is_set_is_shown_and_the_rest_is_counted() {
    let folder = with_file("epochs = 3\n");
    let folder = folder.path();
    let show = |line: &str| json(folder, &[("PLIMSOLL_BUDGET", "7MiB")], &format!("config show {line}"));
    let rows = |shown: &Value| list(&shown["settings"]).to_vec();
    let few = show("tune --max-batch 9 --format json");
    let names: Vec<_> =
        rows(&few).iter().map(|row| row["option"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(names, ["format", "budget", "max-batch", "epochs"]);
    for line in ["--all tune --max-batch 9 --format json", "tune --max-batch 9 --all --format json"] {
        let all = show(line);
        assert_eq!(all["file"]["left_out"], 0, "{line}");
        let left_out = few["file"]["left_out"].as_u64().expect("a number") as usize;
        assert_eq!(rows(&all).len(), names.len() + left_out, "{line}");
    }
    // For all commands, too.
    let everywhere = show("--format json");
    assert!(rows(&everywhere).iter().all(|row| row["source"] != "default"), "{everywhere}");
    assert!(everywhere["file"]["left_out"].as_u64() > Some(50), "{everywhere}");
}

#[test]
fn programs_read_errors_and_logs_as_lines_of_json() {
    let folder = with_file("message-format = \"json\"\n");
    let folder = folder.path();
    let events = |line: &str| -> Vec<Value> {
        let said = plimsoll(folder, &[], line).stderr;
        let said = String::from_utf8(said).expect("text");
        said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let error = |line: &str| {
        let error = events(line).pop().expect("an error");
        assert_eq!(error["event"], "error", "{line}: {error}");
        assert_eq!(error["exit"], 2, "{line}: {error}");
        let keys: Vec<_> = error.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(keys, ["event", "exit", "message", "help"]);
        error
    };
    assert!(error("networks resnt18")["message"].as_str().expect("text").contains("did you mean resnet18"));
    // The line itself cannot be parsed: only its text selects the format of the error.
    let unknown = error("plann --message-format json");
    assert!(unknown["help"].as_str().expect("text").contains("'plan'"), "{unknown}");
    let all = events("verify --network mlp --image 8 --batch 16 --iterations 5000 --format json");
    let progress: Vec<_> = all.iter().filter(|event| event["event"] == "progress").collect();
    let keys = ["event", "what", "done", "of", "seconds", "left_seconds", "message"];
    for event in &progress {
        let found: Vec<_> = event.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(found, keys, "{event}");
    }
    // After its last step, long work of a command is reported under the command's own name, without a count.
    let counted = progress.iter().rfind(|event| event["what"] == "verify" && !event["of"].is_null());
    assert_eq!(counted.expect("a step")["done"], 10_000, "{progress:?}");
}
