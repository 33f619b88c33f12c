//! Exports: the numbers are those of the config or follow from its rule, and each tool can read its lines.

use plimsoll::export::{Export, Tool};
use plimsoll::ir::Document;
use plimsoll::ir::config::Config;
use plimsoll::ir::schedule::Schedule;
use std::io::Write;
use std::process::{Command, Stdio};

/// A config of batch 96 on 9600 samples, from 0.05 at batch 32 by the linear rule, with 30 iterations of warm-up.
fn config() -> Config {
    Config::from_json(include_str!("data/chosen.config.json")).expect("a config")
}

fn export(workers: u64, global: Option<u64>) -> Export {
    let mut export = Export::new(&config(), workers, global, 20).expect("it divides");
    let schedule = Schedule::from_json(include_str!("data/chosen.schedule.json")).expect("a schedule");
    export.tell(&config(), &schedule, "studies/a/chosen.config.json");
    export
}

#[test]
fn one_worker_has_the_configs_own_numbers_and_more_follow_its_rule() {
    let alone = export(1, None);
    assert_eq!((alone.batch, alone.accumulation, alone.rate, alone.warmup), (96, 1, 0.15, 30));
    assert_eq!(alone, export(1, Some(96)));
    let four = export(2, Some(384));
    assert_eq!((four.batch, four.workers, four.accumulation, four.global()), (96, 2, 2, 384));
    // Twelve times the base batch; log2(12) epochs of 25 updates, but a tenth of 20 epochs at most.
    assert!(four.rate == 0.6 && four.warmup == 50, "{four:?}");
    assert!(four.notes.iter().any(|note| note.contains("tensors swapped: 1")), "{four:?}");
    assert!(four.notes.iter().any(|note| note.contains("Batch normalisation sees 96 samples")), "{four:?}");
}

/// Names may come from anywhere, and the lines are pasted into shells.
#[test]
fn no_name_begins_a_line_of_its_own() {
    let mut config = config();
    config.network.name = "net\nrm -rf /tmp/x\u{1b}[2K\u{202e}".to_owned();
    let mut export = Export::new(&config, 1, None, 20).expect("it divides");
    let schedule = Schedule::from_json(include_str!("data/chosen.schedule.json")).expect("a schedule");
    export.tell(&config, &schedule, "a\nb");
    for tool in [Tool::Torchrun, Tool::Accelerate, Tool::Lightning] {
        let lines = export.lines(tool);
        assert!(lines.contains("net\\nrm -rf"), "{lines}");
        assert!(
            !lines.contains(['\u{1b}', '\u{202e}']) && !lines.lines().any(|l| l.starts_with("rm")),
            "{lines}"
        );
    }
}

#[test]
fn what_does_not_divide_is_refused_with_the_nearest_that_do() {
    let refused = |workers, global| {
        let failure = Export::new(&config(), workers, Some(global), 20).expect_err("it does not divide");
        format!("{}; {}", failure.message, failure.help.unwrap_or_default())
    };
    let said = refused(2, 1000);
    assert!(
        said.contains("1000 is no multiple of 192: 2 workers with 96") && said.contains("960 and 1152"),
        "{said}"
    );
    let said = refused(2, 100);
    assert!(said.contains("the nearest that are: 192;"), "{said}");
    assert!(refused(1, 96 * 101).contains("more than the 9600 samples"));
    assert!(refused(u64::MAX, 96).contains("no number of workers"));
}

#[test]
fn deepspeeds_lines_are_json_and_its_batch_is_the_product() {
    for (workers, global) in [(1, None), (2, Some(384))] {
        let export = export(workers, global);
        let lines: serde_json::Value = serde_json::from_str(&export.lines(Tool::Deepspeed)).expect("JSON");
        let number = |key: &str| lines[key].as_u64().expect("a number");
        let product =
            number("train_micro_batch_size_per_gpu") * number("gradient_accumulation_steps") * workers;
        assert_eq!(number("train_batch_size"), product);
        let warmup = &lines["scheduler"]["params"];
        assert_eq!(warmup["warmup_max_lr"], lines["optimizer"]["params"]["lr"]);
        // Its first rate is min, and each later update adds as much: the first of ours is 1/W, and so is a step.
        let [least, most] =
            ["warmup_min_lr", "warmup_max_lr"].map(|key| warmup[key].as_f64().expect("a rate"));
        let step = (most - least) / warmup["warmup_num_steps"].as_f64().expect("a number");
        assert!(
            (step - least).abs() < 1e-12 && (least * export.warmup as f64 - most).abs() < 1e-12,
            "{warmup}"
        );
    }
}

#[test]
fn without_a_warm_up_no_tool_gets_a_schedule() {
    let mut export = export(1, None);
    export.warmup = 0;
    for (tool, schedule) in
        [(Tool::Accelerate, "LinearLR"), (Tool::Lightning, "lr_scheduler"), (Tool::Deepspeed, "WarmupLR")]
    {
        assert!(!export.lines(tool).contains(schedule), "{tool:?}");
    }
}

#[test]
fn python_compiles_what_is_python_and_the_shell_reads_what_is_shell() {
    let reads = |program: &str, arguments: &[&str], text: &str| {
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
    };
    for export in [export(1, None), export(2, Some(384)), Export { warmup: 0, ..export(1, None) }] {
        for tool in [Tool::Accelerate, Tool::Lightning] {
            let compile = "import sys; compile(sys.stdin.read(), 'lines', 'exec')";
            reads("python3", &["-c", compile], &export.lines(tool));
        }
        reads("sh", &["-n"], &export.lines(Tool::Torchrun));
    }
}
