//! The readers of the four documents: an invalid document is refused, with the place of the fault; a valid one is written as
//! the same bytes.

use plimsoll_ir::config::Config;
use plimsoll_ir::profile::Profile;
use plimsoll_ir::schedule::Schedule;
use plimsoll_ir::trace::Trace;
use plimsoll_ir::{Document, Precision};
use plimsoll_testing::{random_schedule, random_trace};
use serde_json::{Value, json};

fn trace() -> Value {
    json!({
        "plimsoll": "trace/1", "name": "two", "batch": 2, "resident_bytes": 100,
        "tensors": [
            {"name": "x", "bytes": 64, "kind": "input"},
            {"name": "y", "bytes": 32, "kind": "activation"},
        ],
        "ops": [
            {"name": "conv", "layer": "conv", "kind": "conv", "phase": "forward", "seconds": 0.5, "reads": [0],
             "writes": [1], "workspace_bytes": 8, "flops": 10, "recomputable": true,
             "alternatives": [{"name": "lean", "seconds": 1.5, "workspace_bytes": 0}]},
            {"name": "back", "layer": "conv", "kind": "conv", "phase": "backward", "seconds": 0.5, "reads": [0, 1],
             "writes": [], "workspace_bytes": 0, "flops": 10, "recomputable": false},
        ],
    })
}

fn schedule() -> Value {
    json!({
        "plimsoll": "schedule/1", "trace": "two", "batch": 2, "budget_bytes": 1000, "pool_bytes": 200,
        "link": {"offload_bytes_per_second": 12.2e9, "prefetch_bytes_per_second": 1e9, "latency_seconds": 0.0,
                 "duplex": "half"},
        "commands": [
            {"do": "compute", "op": 0, "alternative": 0, "waits": []},
            {"do": "offload", "tensor": 1, "waits": [0]},
            {"do": "prefetch", "tensor": 1, "first_byte": 0, "bytes": 32, "waits": [1]},
            {"do": "compute", "op": 0, "again": true, "waits": [2]},
        ],
        "buffers": [
            {"tensor": 0, "offset": 0, "opens": null, "closes": [0, 3]},
            {"tensor": 1, "first_byte": 0, "bytes": 32, "offset": 64, "opens": 0, "closes": [1]},
            {"workspace_of": 3, "offset": 96, "opens": 3, "closes": [3]},
        ],
    })
}

fn profile() -> Value {
    let transfers = json!([{"bytes": 4096, "seconds": 0.001}]);
    json!({
        "plimsoll": "profile/1",
        "network": {"name": "mlp", "image": [8, 8], "channels": 1, "classes": 10},
        "machine": {"device": "cpu: one", "threads": 1, "system": "Linux", "plimsoll": "0.1.0", "unix_seconds": 1},
        "budget_bytes": 1000, "overhead_seconds": 1e-7,
        "link": {"offload_alone": transfers, "prefetch_alone": transfers, "offload_together": transfers,
                 "prefetch_together": transfers},
        "batches": [{"batch": 2, "iteration_seconds": [0.25], "ops": [
            {"name": "fc", "kind": "fc", "phase": "forward", "flops": 10, "seconds": [0.125, 0.25]},
        ]}],
    })
}

fn config() -> Value {
    json!({
        "plimsoll": "config/1",
        "network": {"name": "mlp", "image": [8, 8], "channels": 1, "classes": 10},
        "device": "cpu: one", "threads": 1,
        "link": {"offload_bytes_per_second": 1e9, "prefetch_bytes_per_second": 1e9, "latency_seconds": 0.0,
                 "duplex": "full"},
        "budget_bytes": 1000, "batch": 2, "policy": "plimsoll", "schedule": "two.schedule.json",
        "learning_rate": {"rate": 0.1, "rule": "linear", "base_batch": 1, "base_rate": 0.05, "warmup_iterations": 5},
        "predicted": {"iteration_seconds": 0.25, "relative_error": 0.05, "between_seconds": 0.0, "epoch_seconds": 25.0,
                      "peak_bytes": 900},
    })
}

/// Returns the message that refuses a text; empty for a valid document.
fn refusal(kind: &str, text: &str) -> String {
    let answer = match kind {
        "trace" => Trace::from_json(text).map(drop),
        "schedule" => Schedule::from_json(text).map(drop),
        "profile" => Profile::from_json(text).map(drop),
        _ => Config::from_json(text).map(drop),
    };
    answer.err().map_or(String::new(), |fault| fault.to_string())
}

/// Checks the messages that refuse changes of a valid document. A line of `changes` is a path in the document, the new value
/// there (`-` removes the key), and the message; a backslash continues it on the next one.
fn assert_refused(kind: &str, valid: fn() -> Value, changes: &str) {
    assert_eq!(refusal(kind, &valid().to_string()), "", "{kind}");
    let whole = changes.split("\\\n").map(str::trim_start).collect::<String>();
    let mut wrong = String::new();
    for line in whole.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (change, message) = line.split_once(" => ").expect(line);
        let (place, value) = change.split_once(' ').expect(line);
        let value = (value != "-").then(|| serde_json::from_str::<Value>(value).expect(line));
        let mut document = valid();
        let (parent, key) = place.rsplit_once('/').expect("a place starts with /");
        let parent = document.pointer_mut(parent).expect(place);
        match (parent, value) {
            (Value::Object(map), Some(value)) => drop(map.insert(key.to_owned(), value)),
            (Value::Object(map), None) => drop(map.remove(key).expect(place)),
            (Value::Array(items), Some(value)) => items[key.parse::<usize>().expect(place)] = value,
            _ => panic!("{place}"),
        }
        let said = refusal(kind, &document.to_string());
        // The column in one long line depends on the writer.
        let said = said.split(" (line 1, column ").enumerate();
        let said: String =
            said.map(|(i, s)| if i == 0 { s } else { s.split_once(')').map_or(s, |s| s.1) }).collect();
        if said != message {
            wrong += &format!("{kind}{place}: {said:?}\n   instead of {message:?}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn what_is_no_document_of_the_kind_is_refused() {
    let text = schedule().to_string();
    let half = text.len() / 2;
    let cases = [
        ("trace", "", "the file is empty; expected a trace/1 document"),
        ("trace", " \n\t", "the file is empty; expected a trace/1 document"),
        (
            "trace",
            "{",
            "not a whole JSON document (EOF while parsing an object at line 1, column 1); it may be cut short or of \
             another kind",
        ),
        (
            "trace",
            "null",
            "not a whole JSON document (invalid type: null, expected a JSON object at line 1, column 4); it may be \
             cut short or of another kind",
        ),
        (
            "trace",
            "[]",
            "not a whole JSON document (invalid length 0, expected a JSON object at line 1, column 2); it may be cut \
             short or of another kind",
        ),
        ("trace", "{}", r#"no key "plimsoll" that names its kind; expected a trace/1 document"#),
        (
            "trace",
            "plain words",
            "not a whole JSON document (expected value at line 1, column 1); it may be cut short or of another kind",
        ),
        (
            "trace",
            "\u{0}\u{1}PNG",
            "not a whole JSON document (expected value at line 1, column 1); it may be cut short or of another kind",
        ),
        (
            "trace",
            r#"{"plimsoll": 1}"#,
            "not a whole JSON document (invalid type: integer `1`, expected a string at line 1, column 14); it may be \
             cut short or of another kind",
        ),
        ("trace", r#"{"plimsoll": "trace/2"}"#, "this is a `trace/2` document; expected `trace/1`"),
        ("trace", r#"{"plimsoll": "trace/1"}"#, "at the top level (line 1, column 23): missing field `name`"),
        ("profile", r#"{"plimsoll": "config/1"}"#, "this is a `config/1` document; expected `profile/1`"),
        ("trace", &text, "this is a `schedule/1` document; expected `trace/1`"),
        (
            "schedule",
            &text[..half],
            "not a whole JSON document (EOF while parsing a value at line 1, column 313); it may be cut short or of \
             another kind",
        ),
        (
            "schedule",
            &format!("{text} {{}}"),
            "not a whole JSON document (trailing characters at line 1, column 629); it may be cut short or of another kind",
        ),
    ];
    let mut wrong = String::new();
    for (kind, text, message) in cases {
        let said = refusal(kind, text);
        if said != message {
            wrong += &format!("{kind} {text:?}: {said:?}\n   instead of {message:?}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn traces_are_read_strictly() {
    assert_refused(
        "trace",
        trace,
        r#"
         /surprise 1 => at surprise: unknown field `surprise`, expected one of `plimsoll`, `name`, `batch`, \
             `resident_bytes`, `tensors`, `ops`
         /batch - => at the top level: missing field `batch`
         /batch 0 => at batch: a batch has at least 1 sample
         /batch -1 => at batch: invalid value: integer `-1`, expected u64
         /batch 1.5 => at batch: invalid type: floating point `1.5`, expected u64
         /batch "2" => at batch: invalid type: string "2", expected u64
         /resident_bytes -5 => at resident_bytes: invalid value: integer `-5`, expected u64
         /resident_bytes 18446744073709551615 => at tensors: all sizes together are 18446744073709551719 bytes; at \
             most 2^62 make sense
         /resident_bytes 1e30 => at resident_bytes: invalid type: floating point `1e+30`, expected u64
         /tensors/1/surprise 1 => at tensors[1].surprise: unknown field `surprise`, expected one of `name`, `bytes`, \
             `kind`
         /tensors/1/kind "weights" => at tensors[1].kind: unknown variant `weights`, expected one of `input`, \
             `activation`, `gradient`, `other`
         /tensors/1/bytes - => at tensors[1]: missing field `bytes`
         /tensors/1/bytes 4611686018427387904 => at tensors: all sizes together are 4611686018427388076 bytes; at \
             most 2^62 make sense
         /ops [] => at ops: a trace has at least one op
        "#,
    );
}

#[test]
fn ops_of_traces_are_read_strictly() {
    assert_refused(
        "trace",
        trace,
        r#"
         /ops/0/seconds -0.5 => at ops[0]: `conv` takes -0.5 seconds; needs 0 or more
         /ops/0/seconds null => at ops[0].seconds: invalid type: null, expected f64
         /ops/0/phase "update" => at ops[1].phase: `back` is of the phase Backward, after Update
         /ops/0/phase "sideways" => at ops[0].phase: unknown variant `sideways`, expected one of `forward`, \
             `backward`, `update`
         /ops/0/reads/0 2 => at ops[0].reads[0]: tensor 2 does not exist; there are 2 tensors
         /ops/0/reads/0 -1 => at ops[0].reads[0]: invalid value: integer `-1`, expected u32
         /ops/0/reads/0 4294967296 => at ops[0].reads[0]: invalid value: integer `4294967296`, expected u32
         /ops/0/reads/0 1 => at ops[0].reads[0]: `conv` reads tensor 1 (`y`) before it is written: only `conv` (op \
             0) writes it, later; what is on the device from the start has the kind `input` or `other`
         /ops/0/writes [] => at ops[1].reads[1]: `back` reads tensor 1 (`y`) before it is written: no op writes it; \
             what is on the device from the start has the kind `input` or `other`
         /ops/0/writes [1, 1] => at ops[0].writes[1]: tensor 1 is listed twice
         /ops/1/reads [0, 0] => at ops[1].reads[1]: tensor 0 is listed twice
         /ops/0/recomputable "yes" => at ops[0].recomputable: invalid type: string "yes", expected a boolean
         /ops/0/alternatives/0/seconds -1.0 => at ops[0]: `conv` takes -1 seconds; needs 0 or more
         /ops/0/alternatives/0/surprise 1 => at ops[0].alternatives[0].surprise: unknown field `surprise`, expected \
             one of `name`, `seconds`, `workspace_bytes`
        "#,
    );
}

#[test]
fn schedules_are_read_strictly() {
    assert_refused(
        "schedule",
        schedule,
        r#"
         /surprise 1 => at surprise: unknown field `surprise`, expected one of `plimsoll`, `trace`, `batch`, \
             `budget_bytes`, `pool_bytes`, `link`, `commands`, `buffers`
         /link - => at the top level: missing field `link`
         /batch 0 => at batch: a batch has at least 1 sample
         /budget_bytes -1 => at budget_bytes: invalid value: integer `-1`, expected u64
         /pool_bytes 18446744073709551615 => at pool_bytes: at most 2^62 bytes make sense
         /link/surprise 1 => at link.surprise: unknown field `surprise`, expected one of `offload_bytes_per_second`, \
             `prefetch_bytes_per_second`, `latency_seconds`, `duplex`
         /link/duplex "none" => at link.duplex: unknown variant `none`, expected `full` or `half`
         /link/offload_bytes_per_second 0.0 => at link.offload_bytes_per_second: a rate is at least 1e-9 bytes per \
             second, not 0.0
         /link/prefetch_bytes_per_second -1.0 => at link.prefetch_bytes_per_second: a rate is at least 1e-9 bytes \
             per second, not -1.0
         /link/latency_seconds -1e-6 => at link.latency_seconds: a latency is 0 or more, not -0.000001
        "#,
    );
}

#[test]
fn commands_and_buffers_of_schedules_are_read_strictly() {
    assert_refused(
        "schedule",
        schedule,
        r#"
         /commands/0/do "sleep" => at commands[0].do: unknown variant `sleep`, expected one of `compute`, `offload`, \
             `prefetch`
         /commands/0/do - => at commands[0]: missing field `do`
         /commands/0/surprise 1 => at commands[0]: unknown field `surprise`, expected one of `op`, `again`, \
             `alternative`, `waits`
         /commands/0/tensor 1 => at commands[0]: unknown field `tensor`, expected one of `op`, `again`, \
             `alternative`, `waits`
         /commands/0/op -1 => at commands[0]: invalid value: integer `-1`, expected u32
         /commands/0/waits - => at commands[0]: missing field `waits`
         /commands/1/waits/0 -1 => at commands[1]: invalid value: integer `-1`, expected u32
         /commands/1/op 1 => at commands[1]: unknown field `op`, expected one of `tensor`, `first_byte`, `bytes`, \
             `waits`
         /commands/2/bytes "all" => at commands[2]: invalid type: string "all", expected u64
         /buffers/0/opens - => at buffers[0]: missing field `opens`
         /buffers/0/closes - => at buffers[0]: missing field `closes`
         /buffers/0/surprise 1 => at buffers[0].surprise: unknown field `surprise`, expected one of `tensor`, \
             `first_byte`, `bytes`, `workspace_of`, `offset`, `opens`, `closes`
         /buffers/0/offset -1 => at buffers[0].offset: invalid value: integer `-1`, expected u64
         /buffers/0/offset 18446744073709551615 => at buffers[0].offset: at most 2^62 bytes make sense
         /buffers/0/workspace_of 0 => at buffers[0]: a buffer holds either a `tensor` (or a piece of it) or a \
             workspace (`workspace_of`)
         /buffers/0/tensor - => at buffers[0]: a buffer holds either a `tensor` (or a piece of it) or a workspace \
             (`workspace_of`)
         /buffers/2/bytes 8 => at buffers[2]: a buffer holds either a `tensor` (or a piece of it) or a workspace \
             (`workspace_of`)
        "#,
    );
}

#[test]
fn profiles_are_read_strictly() {
    assert_refused(
        "profile",
        profile,
        r#"
         /surprise 1 => at surprise: unknown field `surprise`, expected one of `plimsoll`, `network`, `machine`, \
             `budget_bytes`, `overhead_seconds`, `link`, `batches`
         /network/image [8] => at network.image: invalid length 1, expected an array of length 2
         /machine/threads - => at machine: missing field `threads`
         /batches [] => at batches: a profile holds at least one batch size
         /batches [{"batch": 2, "iteration_seconds": [], "ops": [{"name": "fc", "kind": "fc", "phase": "forward", \
             "flops": 10, "seconds": [0.125]}]}, {"batch": 4, "iteration_seconds": [], "ops": [{"name": "other", \
             "kind": "fc", "phase": "forward", "flops": 10, "seconds": [0.125]}]}] => at batches[1].ops[0]: the ops \
             are not the same at every batch size
         /batches/0/batch 0 => at batches[0].batch: a batch has at least 1 sample
         /batches/0/ops/0/seconds [] => at batches[0].ops[0]: an op needs at least one time, and times are 0 or more
         /batches/0/ops/0/seconds/1 -0.1 => at batches[0].ops[0]: an op needs at least one time, and times are 0 or \
             more
         /link/offload_alone [] => at link: each way needs samples, alone and together
         /link/prefetch_together/0/seconds 0.0 => at link: a transfer takes more than 0 seconds
         /link/pageable {"offload": [{"bytes": 4, "seconds": 0.0}], "prefetch": []} => at link: a transfer takes \
             more than 0 seconds
         /link/beside {"bytes": 4, "alone": [0.1], "offloading": [], "prefetching": [0.0], "both": []} => at \
             link.beside: an op beside transfers takes more than 0 seconds
         /machine/health {"celsius": 40, "others": [{"pid": -7}]} => at machine.health.others[0].pid: invalid value: \
             integer `-7`, expected u32
         /batches/0/ops/0/alternatives [{"name": "lean", "workspace_bytes": 0, "seconds": [-0.5]}] => at \
             batches[0].ops[0]: an op needs at least one time, and times are 0 or more
         /link/prefetch_together/0/bytes -4 => at link.prefetch_together[0].bytes: invalid value: integer `-4`, \
             expected u64
        "#,
    );
}

#[test]
fn configs_are_read_strictly() {
    assert_refused(
        "config",
        config,
        r#"
         /surprise 1 => at surprise: unknown field `surprise`, expected one of `plimsoll`, `network`, `data`, \
             `device`, `threads`, `link`, `paced`, `deterministic`, `precision`, `modelled`, `modelled_error`, \
             `optimizer`, `budget_bytes`, `batch`, `keeps_all`, `policy`, `schedule`, `cluster`, \
             `learning_rate`, `predicted`, `measured`
         /schedule - => at the top level: missing field `schedule`
         /batch 0 => at batch: a batch has at least 1 sample
         /threads 0 => at threads: there are 1 to 1024 compute threads
         /threads -2 => at threads: invalid value: integer `-2`, expected u32
         /learning_rate/rate 0.0 => at learning_rate.rate: a learning rate is above 0, and f32 holds it: from \
             1.2e-38 to 3.4e38
         /learning_rate/base_batch 0 => at batch: a batch has at least 1 sample
         /learning_rate/rule "guess" => at learning_rate.rule: unknown variant `guess`, expected one of `linear`, \
             `square-root`, `accudnn`
         /predicted/peak_bytes 0.5 => at predicted.peak_bytes: invalid type: floating point `0.5`, expected u64
         /measured {"iteration_seconds": 1.0} => at measured: missing field `relative_error`
        "#,
    );
}

/// Older versions could shard the optimizer's momenta over the workers, and train on a GPU without its libraries.
#[test]
fn a_config_of_what_is_no_more_is_refused_by_name() {
    let kernels = json!({"libraries": false, "deterministic": false});
    for (key, value) in [("momenta", json!("sharded")), ("kernels", kernels)] {
        let mut document = config();
        document[key] = value;
        let said = refusal("config", &document.to_string());
        assert!(said.contains(&format!("unknown field `{key}`")), "{said}");
    }
}

/// A document reads back as the same value, and writes as the same bytes.
fn assert_round_trip<D: Document + PartialEq + std::fmt::Debug>(document: &D) {
    let text = document.to_json();
    let back = D::from_json(&text).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    assert_eq!(back, *document);
    assert_eq!(back.to_json(), text);
    assert!(text.starts_with(&format!("{{\n  \"plimsoll\": \"{}\",\n", D::KIND)), "{text}");
}

#[test]
fn every_document_comes_back_as_the_same_bytes() {
    assert_round_trip(&Trace::from_json(&trace().to_string()).expect("valid"));
    assert_round_trip(&Schedule::from_json(&schedule().to_string()).expect("valid"));
    assert_round_trip(&Profile::from_json(&profile().to_string()).expect("valid"));
    assert_round_trip(&Config::from_json(&config().to_string()).expect("valid"));
    let mut config = config();
    config["learning_rate"]["rule"] = json!({"accudnn": {"convexity": 0.25}});
    config["measured"] = config["predicted"].clone();
    assert_round_trip(&Config::from_json(&config.to_string()).expect("valid"));
    for seed in 0..200 {
        let trace = random_trace(seed);
        assert_round_trip(&trace);
        assert_round_trip(&random_schedule(&trace, seed));
    }
}

/// A config without a precision has that of the version that wrote it.
#[test]
fn older_configs_have_the_precision_that_they_were_written_with() {
    let arithmetic = |change: &dyn Fn(&mut Value)| {
        let mut config = config();
        change(&mut config);
        Config::from_json(&config.to_string()).expect("valid").arithmetic()
    };
    assert_eq!(arithmetic(&|_| ()), Some(Precision::F32));
    assert_eq!(arithmetic(&|config| config["modelled"] = json!(true)), None);
    let written = |config: &mut Value| config["precision"] = json!("tf32-convolutions");
    assert_eq!(arithmetic(&written), Some(Precision::Tf32Convolutions));
}

/// Absent optional keys equal their defaults.
#[test]
fn what_may_be_left_out_has_its_default() {
    let mut short = schedule();
    let link = short["link"].as_object_mut().expect("an object");
    link.remove("latency_seconds");
    link.insert("duplex".into(), json!("full"));
    let with_default = Schedule::from_json(&short.to_string()).expect("valid");
    short["link"].as_object_mut().expect("an object").remove("duplex");
    assert_eq!(Schedule::from_json(&short.to_string()), Ok(with_default));
}

#[test]
fn the_shared_traces_are_read_and_come_back_as_values() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces"));
    let Ok(files) = std::fs::read_dir(folder) else {
        println!("skipped: no {}", folder.display());
        return;
    };
    let paths = files.map(|file| file.expect("a readable folder").path());
    let mut traces = 0;
    for path in paths.filter(|path| path.to_string_lossy().ends_with(".trace.json")) {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let trace = Trace::from_json(&text).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
        assert_round_trip(&trace);
        let (memory, name) = (trace.memory(), path.display());
        let (Some(peak), Some(floor)) = (memory.peak(), memory.floor()) else { panic!("{name} has no op") };
        assert!(peak.1 >= floor.1, "{name}");
        traces += 1;
    }
    assert!(traces > 0, "no traces in {}", folder.display());
}
