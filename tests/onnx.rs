//! `--onnx FILE` on the command line, and the copy of the architecture that a study keeps.

#[path = "../networks/tests/onnx/writer.rs"]
#[allow(dead_code, reason = "the tests of the import need more of it")]
mod writer;

use crate::study_folder::{check, command};
use crate::weights;
use plimsoll::failure::Failure;
use plimsoll::ir::network::NetworkSpec;
use plimsoll::study::data::DataSource;
use plimsoll::study::device::cpu_options;
use plimsoll::study::request::{NetworkRequest, NetworkSource};
use plimsoll::study::{NetworkWorkload, Setup, Study, Workload, onnx};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use writer::{file, input, ints, node, output, tensor, weight};

/// A network for the shipped digits: a convolution with `filters` filters, ReLU, a mean, a product; the shape between is read
/// from another file.
fn parts(filters: i64) -> Vec<Vec<u8>> {
    let entries = [("location", "shape.bin"), ("offset", "8"), ("length", "16")];
    let entries = entries
        .map(|(key, value)| writer::bytes(13, &[writer::text(1, key), writer::text(2, value)].concat()));
    vec![
        input("x", 1, &[-2, 1, 8, 8]),
        weight("c.weight", &[filters, 1, 3, 3]),
        weight("onnx::head", &[filters, 10]),
        tensor("shape", &[2], 7, &[entries.concat(), writer::number(14, 1)].concat()),
        node("Conv", &["x", "c.weight"], &["a"], &[ints("pads", &[1, 1, 1, 1])]),
        node("Relu", &["a"], &["r"], &[]),
        node("GlobalAveragePool", &["r"], &["b"], &[]),
        node("Reshape", &["b", "shape"], &["c"], &[]),
        node("Gemm", &["c", "onnx::head"], &["y"], &[]),
        output("y"),
    ]
}

/// The network's file in a folder of its own, with the shape beside it.
fn digits(folder: &Path, filters: i64) -> PathBuf {
    let path = folder.join(format!("digits{filters}.onnx"));
    fs::write(&path, file(&parts(filters))).expect("a file");
    let shape = [i64::MAX, -1, filters].map(i64::to_le_bytes).concat();
    fs::write(folder.join("shape.bin"), shape).expect("a file");
    path
}

/// What the program prints and says, and its exit code.
fn plimsoll(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).output().expect("it starts");
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (out, err, output.status.code())
}

#[test]
fn a_file_takes_the_place_of_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = digits(folder.path(), 4);
    let path = path.to_str().expect("a plain path");
    let check = |arguments: &[&str], expected: &[&str]| {
        let (out, err, code) = plimsoll(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        for part in expected {
            assert!(out.contains(part), "`{part}` is not in: {out}");
        }
        assert!(err.contains("the architecture is read"), "{err}");
    };
    check(&["networks", "--onnx", path], &["GlobalAveragePool", "8x8x4", "76", "digits4.onnx-"]);
    check(&["trace", "--onnx", path, "--batch", "2"], &["\"trace/1\"", "c.forward", "Gemm.backward_filter"]);
    check(&["verify", "--onnx", path, "--batch", "8", "--iterations", "2"], &["equal, bit for bit"]);
}

#[test]
fn files_that_cannot_be_read_are_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = digits(folder.path(), 4);
    let check = |arguments: &[&str], expected: &[&str]| {
        let (_, err, code) = plimsoll(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        for part in expected {
            assert!(err.contains(part), "`{part}` is not in: {err}");
        }
    };
    let here = folder.path().to_str().expect("a plain path");
    let path = path.to_str().expect("a plain path");
    check(&["networks", "--onnx", "nothing.onnx"], &["cannot read nothing.onnx"]);
    check(&["networks", "--onnx", here], &["is a folder", "name an ONNX file"]);
    check(&["networks", "mlp", "--onnx", path], &["cannot be used with"]);
    check(&["auto", "--network", "mlp", "--onnx", path], &["cannot be used with"]);
    check(&["trace"], &["required"]);
    check(&["verify", "--onnx", path, "--data", "synthetic", "--image", "16"], &["is for images of 8x8"]);
    let mut unknown = parts(4);
    unknown[5] = node("Tan", &["a"], &["r"], &[]);
    fs::write(path, file(&unknown)).expect("a file");
    check(&["networks", "--onnx", path], &["operator Tan (node `r`)", "export the network without them"]);
    fs::write(path, file(&parts(4))).expect("a file");
    fs::write(folder.path().join("shape.bin"), [0; 9]).expect("a file");
    check(&["networks", "--onnx", path], &["cannot read `shape.bin`", "it does not hold 16 bytes at 8"]);
    fs::remove_file(folder.path().join("shape.bin")).expect("it was there");
    check(&["networks", "--onnx", path], &["cannot read `shape.bin`", "No such file"]);
    #[cfg(unix)]
    {
        let outside = tempfile::tempdir().expect("a folder");
        digits(outside.path(), 4);
        std::os::unix::fs::symlink(outside.path().join("shape.bin"), folder.path().join("shape.bin"))
            .expect("a link");
        check(&["networks", "--onnx", path], &["it is a link to outside the folder"]);
    }
}

/// Counted numbers, the first of which is this one.
fn counted(count: i64, first: f32) -> Vec<f32> {
    (0..count).map(|at| first + at as f32 / 64.0).collect()
}

/// The bytes of numbers.
fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The network with weights, and their bytes.
fn weighted(folder: &Path, filters: i64, first: f32) -> (PathBuf, Vec<u8>) {
    let path = digits(folder, filters);
    let mut all = parts(filters);
    let [conv, head] = [9 * filters, 10 * filters].map(|count| counted(count, first));
    all[1] = writer::floats("c.weight", &[filters, 1, 3, 3], &conv);
    all[2] = writer::floats("onnx::head", &[filters, 10], &head);
    fs::write(&path, file(&all)).expect("a file");
    (path, bytes_of(&[conv, head].concat()))
}

/// A file of weights: the shape of each tensor by its name, and all numbers.
fn tensors(path: &Path) -> (BTreeMap<String, Vec<u64>>, Vec<u8>) {
    let (header, numbers) = weights::parts(path);
    let mut all = header.as_object().expect("names").clone();
    all.remove("__metadata__");
    let shape = |value: &serde_json::Value| serde_json::from_value(value["shape"].clone()).expect("lengths");
    (all.iter().map(|(name, value)| (name.clone(), shape(value))).collect(), numbers)
}

/// The initialisers of the network that are trained, as its file has them.
fn initialisers() -> BTreeMap<String, Vec<u64>> {
    [("c.weight", vec![4, 1, 3, 3]), ("onnx::head", vec![4, 10])]
        .map(|(name, shape)| (name.to_owned(), shape))
        .into()
}

#[test]
fn a_training_starts_from_the_weights_of_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let (_, bytes) = weighted(at, 4, 0.25);
    check(at, "trace --onnx digits4.onnx --batch 16 -o trace.json", 0, &[]);
    fs::create_dir(at.join("study")).expect("a folder");
    let plan = "plan trace.json --budget 100% --link 1GB/s --no-recompute -o study/chosen.schedule.json";
    check(at, plan, 0, &[]);
    let source = NetworkSource::Onnx(at.join("digits4.onnx"));
    let request = NetworkRequest { source, image: None, channels: None, classes: None };
    let setup = Setup::Cpu(cpu_options(Some(1), None));
    let task = NetworkWorkload::new(&request, &DataSource::Digits, setup).expect("it can be read");
    task.keep(&Study::at(&at.join("study")), false).expect("it is new");
    let config = |network: serde_json::Value| {
        let rate = serde_json::json!({"rate": 1e-30, "rule": "linear", "base_batch": 16, "base_rate": 1e-30,
            "warmup_iterations": 0});
        let config = serde_json::json!({
            "plimsoll": "config/1", "network": network, "data": "digits", "device": "cpu", "threads": 1,
            "link": {"offload_bytes_per_second": 1e9, "prefetch_bytes_per_second": 1e9},
            "budget_bytes": 1u64 << 30, "batch": 16, "policy": "plimsoll", "schedule": "chosen.schedule.json",
            "learning_rate": rate,
            "predicted": {"iteration_seconds": 0.01, "relative_error": 0.1, "between_seconds": 0.001,
                "epoch_seconds": 1.0, "peak_bytes": 1000},
        });
        fs::write(at.join("study/chosen.config.json"), config.to_string()).expect("a file");
    };
    let name = &task.network.spec.name;
    config(serde_json::json!({"name": name, "image": [8, 8], "channels": 1, "classes": 10}));
    let run = "run study --fresh --epochs 1 --decay constant --weights";
    check(at, &format!("{run} digits4.onnx"), 0, &[]);
    check(at, "export study --to safetensors -o same.safetensors", 0, &[]);
    // No step of this rate moves a weight: the bits are the file's, under its names, in its shapes.
    let same = tensors(&at.join("same.safetensors"));
    assert_eq!(same, (initialisers(), bytes.clone()));
    // Such a file is read again; so is one with the names and shapes of layers.
    check(at, &format!("{run} same.safetensors"), 0, &[]);
    check(at, "export study --to safetensors -o again.safetensors", 0, &[]);
    assert_eq!(tensors(&at.join("again.safetensors")), same);
    let turned: Vec<f32> = (0..40).map(|at| counted(40, 0.25)[at % 4 * 10 + at / 4]).collect();
    let of_layers = serde_json::json!({
        "Gemm.weight": {"dtype": "F32", "shape": [10, 4], "data_offsets": [144, 304]},
        "c.weight": {"dtype": "F32", "shape": [4, 1, 3, 3], "data_offsets": [0, 144]},
    });
    let numbers = bytes_of(&[counted(36, 0.25), turned].concat());
    weights::write(&at.join("layers.safetensors"), &of_layers, &numbers);
    check(at, &format!("{run} layers.safetensors"), 0, &[]);
    check(at, "export study --to safetensors -o again.safetensors", 0, &[]);
    assert_eq!(tensors(&at.join("again.safetensors")), same);
    let mut renamed = of_layers.clone();
    let moved = renamed.as_object_mut().expect("names").remove("Gemm.weight").expect("it is there");
    renamed["onnx::tail"] = moved;
    weights::write(&at.join("renamed.safetensors"), &renamed, &numbers);
    check(
        at,
        &format!("{run} renamed.safetensors"),
        2,
        &["1 missing: onnx::head", "1 superfluous: onnx::tail"],
    );
    weighted(at, 5, 0.25);
    check(
        at,
        &format!("{run} digits5.onnx"),
        2,
        &["has other layers than `digits4.onnx-", "the same architecture"],
    );
    check(at, &format!("{run} study/network.onnx"), 2, &["`c.weight`", "does not hold its numbers"]);
    weighted(at, 4, f32::NAN);
    check(at, &format!("{run} digits4.onnx"), 2, &["`c.weight`", "not finite"]);
    check(at, &format!("{run} gone.onnx"), 2, &["cannot read", "gone.onnx"]);
    config(serde_json::json!({"name": "mlp", "image": [8, 8], "channels": 1, "classes": 10}));
    check(at, "trace mlp --image 8 --channels 1 --batch 16 -o trace.json", 0, &[]);
    check(at, plan, 0, &[]);
    check(at, &format!("{run} digits4.onnx"), 2, &["`mlp` is a network of the zoo", "--onnx FILE"]);
}

#[test]
fn auto_trains_a_file_from_its_weights_and_export_gives_its_tensors_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let (_, bytes) = weighted(at, 4, 0.25);
    // What is measured may be too noisy; it goes on from what it has.
    let auto = |name: &str, more: &str| {
        let line = format!(
            "auto --onnx {name}.onnx --weights {name}.onnx --data digits --epochs 2 --decay constant --max-batch 64 {more}"
        );
        let mut runs = (0..8).map(|_| command(at, &line).output().expect("the program starts"));
        let output =
            runs.find(|output| output.status.code() != Some(5)).expect("the machine is calm at times");
        assert_eq!(output.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let export = |study: &str, name: &str| {
        check(at, &format!("export {study} --to safetensors -o {name}"), 0, &[]);
        tensors(&at.join(name))
    };
    // No step of this rate moves a weight.
    auto("digits4", "--study still --base-rate 1e-30");
    assert_eq!(export("still", "before.safetensors"), (initialisers(), bytes.clone()));
    auto("digits4", "--study mine --base-rate 0.05");
    let (names, trained) = export("mine", "after.safetensors");
    assert_eq!((names, trained.len()), (initialisers(), bytes.len()));
    assert_ne!(trained, bytes, "it was trained");
    // What no initialiser can have is told.
    let mut normed = parts(4);
    normed[2] = writer::floats("onnx::head", &[4, 10], &counted(40, 0.25));
    normed[1] = writer::floats("c.weight", &[4, 1, 3, 3], &counted(36, 0.25));
    normed[8] = node("LayerNormalization", &["c", "n.weight"], &["n"], &[]);
    normed.push(node("Gemm", &["n", "onnx::head"], &["y"], &[]));
    normed.push(writer::floats("n.weight", &[4], &counted(4, 1.0)));
    fs::write(at.join("normed.onnx"), file(&normed)).expect("a file");
    auto("normed", "--study normed --base-rate 0.01");
    let told = check(
        at,
        "export normed --to safetensors -o normed.safetensors",
        0,
        &["WARN these tensors have", "n.bias"],
    );
    assert!(told.contains("the ONNX file does not have them"), "{told}");
    let (names, _) = tensors(&at.join("normed.safetensors"));
    assert_eq!(names.into_keys().collect::<Vec<_>>(), ["c.weight", "n.bias", "n.weight", "onnx::head"]);
    // The file itself is needed no more, but for a training that starts from it.
    fs::remove_file(at.join("digits4.onnx")).expect("it is there");
    assert_eq!(export("mine", "later.safetensors"), (initialisers(), trained));
    fs::remove_file(at.join("mine/network.onnx")).expect("it is there");
    let line = "export mine --to safetensors -o none.safetensors";
    check(
        at,
        line,
        2,
        &["is from an ONNX file", "network.onnx is not there", "leave the study's files together"],
    );
    digits(at, 5);
    fs::copy(at.join("digits5.onnx"), at.join("mine/network.onnx")).expect("it is copied");
    fs::copy(at.join("shape.bin"), at.join("mine/shape.bin")).expect("it is copied");
    check(
        at,
        line,
        2,
        &["network.onnx is another network than `digits4.onnx-", "put the study's own file back"],
    );
}

#[test]
fn a_study_keeps_the_architecture_and_knows_when_it_is_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = |filters: i64| {
        let source = NetworkSource::Onnx(digits(folder.path(), filters));
        let network = NetworkRequest { source, image: None, channels: None, classes: None };
        let setup = Setup::Cpu(cpu_options(Some(1), None));
        NetworkWorkload::new(&network, &DataSource::Digits, setup).expect("it can be read")
    };
    let place = folder.path().join("study");
    let study = |task: &NetworkWorkload, fresh: bool| {
        let study = Study::at(&place);
        study.make()?;
        Ok(task.keep(&study, fresh)?)
    };
    let refused = |result: Result<(), Failure>, expected: &str| {
        let failure = result.expect_err("it is refused").to_string();
        assert!(
            failure.contains(expected) && failure.contains("help: "),
            "`{expected}` is not in: {failure}"
        );
    };
    let rebuilt = |spec| onnx::rebuilt(spec, &place).map(drop).map_err(Failure::from);
    let (four, five) = (task(4), task(5));
    study(&four, false).expect("it is new");
    study(&four, false).expect("it is the same");
    let spec = &four.network.spec;
    assert_eq!(onnx::rebuilt(spec, &place).expect("it is there"), four.network);
    refused(study(&five, false), "keeps another network");
    refused(rebuilt(&five.network.spec), "is another network than `digits5.onnx-");
    fs::write(place.join("training.safetensors"), "of four").expect("a file");
    refused(study(&five, true), "holds a training");
    assert_eq!(onnx::rebuilt(spec, &place).expect("it is still there"), four.network);
    fs::remove_file(place.join("training.safetensors")).expect("it was there");
    study(&five, true).expect("it begins anew");
    refused(rebuilt(spec), "is another network than `digits4.onnx-");
    fs::write(place.join("network.onnx"), "nothing").expect("a file");
    assert!(onnx::rebuilt(spec, &place).is_err());
    fs::remove_file(place.join("network.onnx")).expect("it was there");
    refused(rebuilt(spec), "is from an ONNX file");
    let zoo = NetworkSpec { name: "mlp".to_owned(), image: [8, 8], channels: 1, classes: 10 };
    assert_eq!(onnx::rebuilt(&zoo, &place).expect("it needs no file").spec, zoo);
}
