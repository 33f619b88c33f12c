//! Exports: the numbers are the config's or follow from its rule, and each tool can read its lines.

use plimsoll::ir::config::{Cluster, Config};
use plimsoll::ir::schedule::Schedule;
use plimsoll::ir::{Document, Seconds};
use plimsoll::study::Error;
use plimsoll::study::export::{Export, Optimizer, Tool, Wanted};
use plimsoll::study::request::DecayShape;
use std::io::Write;
use std::process::{Command, Stdio};

/// Returns a config of batch 96 on 9600 samples, from 0.05 at batch 32 by the linear rule, with 30 iterations of warm-up; its
/// plan swaps, and everything is kept up to 73 samples.
fn config() -> Config {
    Config::from_json(include_str!("data/chosen.config.json")).expect("a config")
}

fn schedule() -> Schedule {
    Schedule::from_json(include_str!("data/chosen.schedule.json")).expect("a schedule")
}

const WANTED: Wanted = Wanted {
    workers: None,
    global: None,
    epochs: 20,
    decay: DecayShape::Constant,
    optimizer: None,
    momentum: None,
    weight_decay: None,
    as_planned: false,
};

fn made(wanted: &Wanted) -> Result<Export, Error> {
    let mut export = Export::new(&config(), &schedule(), wanted)?;
    export.tell(&config(), &schedule(), "studies/a/chosen.config.json");
    Ok(export)
}

/// Exports the plan's own batch.
fn export(workers: u64, global: Option<u64>) -> Export {
    made(&Wanted { workers: Some(workers), global, as_planned: true, ..WANTED }).expect("it divides")
}

#[test]
fn what_is_exported_keeps_everything_and_accumulates_to_the_same_update() {
    let shares = |workers, global| {
        let export =
            made(&Wanted { workers: Some(workers), global, ..WANTED }).expect("it can be shared out");
        assert!(export.batch <= 73, "{export:?}");
        (export.batch, export.accumulation, export.global())
    };
    assert_eq!(shares(1, None), (48, 2, 96));
    assert_eq!(shares(8, Some(512)), (64, 1, 512));
    assert_eq!(shares(1, Some(73)), (73, 1, 73));
    assert_eq!(shares(2, Some(384)), (64, 3, 384));
    let told = made(&WANTED).expect("it can").notes.join(" ");
    assert!(
        told.contains("A batch of 48 keeps everything on the device; the tuned 96 needs the plan"),
        "{told}"
    );

    let evenly = "149 samples, which cannot be shared out evenly in batches of 25 to 73";
    // A divisor of a number that exceeds the data anyway is not searched for.
    for (as_planned, workers, global, says) in [
        (false, None, 149, [evenly, "the nearest that are: 147 and 150;"]),
        (false, Some(8), 100, ["100 is no multiple of 8 workers", "96 and 104"]),
        (false, None, u64::MAX - 58, ["more than the 9600 samples", ""]),
        (true, Some(2), 1000, ["1000 is no multiple of 192: 2 workers with 96", "960 and 1152"]),
        (true, Some(2), 100, ["", "the nearest that are: 192;"]),
        (true, Some(1), 96 * 101, ["more than the 9600 samples", ""]),
        (true, Some(u64::MAX), 96, ["no number of workers", ""]),
    ] {
        let failure = made(&Wanted { workers, global: Some(global), as_planned, ..WANTED });
        let failure = failure.expect_err("it cannot be exported");
        let said = format!("{}; {}", failure.message, failure.help.unwrap_or_default());
        assert!(says.iter().all(|words| said.contains(words)), "{says:?}: {said}");
    }

    let none = Config { keeps_all: None, ..config() };
    let failure = Export::new(&none, &schedule(), &WANTED).expect_err("no batch is known to fit");
    assert!(failure.help.expect("what to do").contains("--as-planned"));
}

#[test]
fn the_cluster_that_was_tuned_for_is_exported_unless_another_is_asked_for() {
    let cluster = Cluster {
        workers: 2,
        interconnect: "1Gbit/s,30us".parse().expect("a network"),
        nccl: false,
        global_batch: 192,
        passes: 3,
        exchange_seconds: Seconds(0.02),
        // An epoch has 9600 samples.
        update_seconds: config().measured.unwrap_or(config().predicted).epoch_seconds * (192.0 / 9600.0),
    };
    // Everything is kept up to 73 samples, and 32 were tuned.
    let config = Config { cluster: Some(cluster), batch: 32, ..config() };
    let made = |wanted: Wanted| {
        let mut export = Export::new(&config, &schedule(), &wanted).expect("it can be shared out");
        export.tell(&config, &schedule(), "studies/a/chosen.config.json");
        export
    };
    let numbers = |workers, global, as_planned| {
        let export = made(Wanted { workers, global, as_planned, ..WANTED });
        (export.workers, export.batch, export.accumulation, export.rate)
    };
    for as_planned in [false, true] {
        assert_eq!(numbers(None, None, as_planned), (2, 32, 3, 0.3));
        assert_eq!(numbers(Some(1), None, as_planned), (1, 32, 6, 0.3));
        assert_eq!(numbers(Some(3), None, as_planned), (3, 32, 2, 0.3));
        assert_eq!(numbers(None, Some(128), true), (2, 32, 2, 0.2));
        // As in `run`, with more workers than batches.
        assert_eq!(numbers(Some(8), None, as_planned), (8, 32, 1, 0.4));
    }
    assert_eq!(numbers(None, Some(128), false), (2, 64, 1, 0.2));
    assert_eq!(made(WANTED).updates, 20 * 50, "of 20 epochs");
    // Five workers cannot divide the tuned update evenly, nor can four in batches of the plan.
    assert_eq!(numbers(Some(5), None, false), (5, 32, 1, 0.25));
    assert_eq!(numbers(Some(4), None, true), (4, 32, 1, 0.2));
    let lines = made(WANTED).lines(Tool::Torchrun).expect("any");
    let told = "Tuned for 2 workers with 1Gbit/s,30us between them, and 192 samples in an update.";
    assert!(lines.contains("--nproc-per-node=2 ") && lines.contains(told), "{lines}");
}

#[test]
fn the_plans_own_batch_has_the_configs_own_numbers_and_more_follow_its_rule() {
    let alone = export(1, None);
    assert_eq!((alone.batch, alone.accumulation, alone.rate, alone.warmup), (96, 1, 0.15, 30));
    assert_eq!((alone.updates, alone.clone()), (2000, export(1, Some(96))));
    let four = export(2, Some(384));
    assert_eq!((four.batch, four.workers, four.accumulation, four.global()), (96, 2, 2, 384));
    // Twelve times the base batch; log2(12) epochs of 25 updates, but at most a tenth of 20 epochs.
    assert!(four.rate == 0.6 && four.warmup == 50, "{four:?}");
    let told = four.notes.join(" ");
    assert!(told.contains("tensors swapped: 1") && told.contains("12 times the base batch"), "{told}");
    assert!(told.contains("Batch normalisation sees 96 samples"), "{told}");
}

/// Names may be untrusted, and the lines are pasted into shells.
#[test]
fn no_name_begins_a_line_of_its_own() {
    let mut config = config();
    config.network.name = "net\nrm -rf /tmp/x\u{1b}[2K\u{202e}".to_owned();
    let mut export = Export::new(&config, &schedule(), &WANTED).expect("it divides");
    let schedule = Schedule::from_json(include_str!("data/chosen.schedule.json")).expect("a schedule");
    export.tell(&config, &schedule, "a\nb");
    for tool in [Tool::Torchrun, Tool::Accelerate, Tool::Lightning] {
        let lines = export.lines(tool).expect("every tool has constant rates");
        assert!(lines.contains("net\\nrm -rf"), "{lines}");
        assert!(
            !lines.contains(['\u{1b}', '\u{202e}']) && !lines.lines().any(|l| l.starts_with("rm")),
            "{lines}"
        );
    }
}

#[test]
fn the_rate_falls_elsewhere_as_it_does_here_and_the_users_optimizer_is_named() {
    let wanted = Wanted { decay: DecayShape::Cosine, optimizer: Some(Optimizer::Adamw), ..WANTED };
    let export = made(&wanted).expect("it can");
    let lines = export.lines(Tool::Lightning).expect("PyTorch has every schedule");
    assert!(lines.contains("torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)"), "{lines}");
    assert!(export.notes.iter().any(|note| note.contains("a rate for AdamW")), "{export:?}");
    // Its function, run by Python at three updates: the first of the warm-up, half of the way, and the end.
    let from = lines.find("WARMUP, UPDATES").expect("the constants");
    let to = lines.find("trainer =").expect("what follows the function");
    let (warmup, updates) = (export.warmup, export.updates);
    let half = warmup + (updates - warmup) / 2;
    let asked =
        format!("import math\n{}\nprint(share(0), share({half}), share({updates}))", &lines[from..to]);
    if let Ok(output) = Command::new("python3").args(["-c", &asked]).output() {
        let said = String::from_utf8_lossy(&output.stdout);
        let shares: Vec<f64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let expected = [1.0 / warmup as f64, 0.5, 0.0];
        assert!(
            shares.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9) && shares.len() == 3,
            "{said}"
        );
    } else {
        println!("skipped: no `python3` is on this machine");
    }

    let deepspeed = |export: &Export| -> serde_json::Value {
        serde_json::from_str(&export.lines(Tool::Deepspeed).expect("it has cosines")).expect("JSON")
    };
    let json = deepspeed(&export);
    assert_eq!(json["scheduler"]["type"], "WarmupCosineLR");
    assert_eq!(json["scheduler"]["params"]["total_num_steps"], export.updates);
    assert_eq!(json["optimizer"]["type"], "AdamW");
    let params = &deepspeed(&Export { warmup: 0, ..export })["scheduler"]["params"];
    assert_eq!((&params["warmup_min_ratio"], &params["warmup_num_steps"]), (&1.0.into(), &1.into()));
    let steps = made(&Wanted { decay: DecayShape::Step, ..WANTED }).expect("it can");
    assert!(steps.lines(Tool::Deepspeed).expect_err("it has none").to_string().contains("falls in steps"));
    let failure = made(&Wanted { momentum: Some(0.5), ..wanted }).expect_err("AdamW has none");
    assert!(failure.message.contains("--momentum is for --optimizer sgd"), "{failure}");
}

#[test]
fn deepspeeds_lines_are_json_and_its_batch_is_the_product() {
    for (workers, global) in [(1, None), (2, Some(384))] {
        let export = export(workers, global);
        let lines: serde_json::Value =
            serde_json::from_str(&export.lines(Tool::Deepspeed).expect("it has it")).expect("JSON");
        let number = |key: &str| lines[key].as_u64().expect("a number");
        let product =
            number("train_micro_batch_size_per_gpu") * number("gradient_accumulation_steps") * workers;
        assert_eq!(number("train_batch_size"), product);
        let warmup = &lines["scheduler"]["params"];
        assert_eq!(warmup["warmup_max_lr"], lines["optimizer"]["params"]["lr"]);
        // Its first rate is min, and each later update adds as much; our first rate is 1/W, and so is a step.
        let [least, most] =
            ["warmup_min_lr", "warmup_max_lr"].map(|key| warmup[key].as_f64().expect("a rate"));
        let step = (most - least) / warmup["warmup_num_steps"].as_f64().expect("a number");
        assert!(
            (step - least).abs() < 1e-12 && (least * export.warmup as f64 - most).abs() < 1e-12,
            "{warmup}"
        );
    }
}

/// Checks that a program accepts a text without complaint.
#[track_caller]
fn reads(program: &str, arguments: &[&str], text: &str) {
    let process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut process) = process else {
        return println!("skipped: no `{program}` is on this machine");
    };
    process.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = process.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

/// Python program that compiles a text.
const COMPILE: &str = "import sys; compile(sys.stdin.read(), 'lines', 'exec')";

#[test]
fn python_compiles_what_is_python_and_the_shell_reads_what_is_shell() {
    let decays = [DecayShape::Constant, DecayShape::Cosine, DecayShape::Step]
        .map(|decay| Export { decay, ..export(2, Some(384)) });
    let at_once = Export { warmup: 0, ..export(1, None) };
    for (tool, schedule) in
        [(Tool::Accelerate, "LambdaLR"), (Tool::Lightning, "lr_scheduler"), (Tool::Deepspeed, "WarmupLR")]
    {
        assert!(!at_once.lines(tool).expect("it can").contains(schedule), "{tool:?}");
    }
    for export in decays.into_iter().chain([export(1, None), at_once]) {
        for tool in [Tool::Accelerate, Tool::Lightning] {
            reads("python3", &["-c", COMPILE], &export.lines(tool).expect("PyTorch has every schedule"));
        }
        reads("sh", &["-n"], &export.lines(Tool::Torchrun).expect("any"));
    }
}
