//! Weights: a training starts from a file's weights, and writes its results to a file, with PyTorch's names and shapes.

use crate::study_folder::{by_hand, check, table};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Returns a study whose learning rate changes nothing: it is too small for any f32 weight.
fn still() -> tempfile::TempDir {
    by_hand("mlp", "100%", |config| config["learning_rate"]["rate"] = 1e-30.into())
}

/// Returns a file's header, and the numbers after it.
fn parts(path: &Path) -> (Value, Vec<u8>) {
    let bytes = fs::read(path).expect("it was written");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    (serde_json::from_slice(&bytes[8..header]).expect("JSON"), bytes[header..].to_vec())
}

fn write(path: &Path, header: &Value, numbers: &[u8]) {
    let text = header.to_string();
    let bytes = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), numbers].concat();
    fs::write(path, bytes).expect("the folder can be written");
}

#[test]
fn a_training_starts_from_what_another_left() {
    let first = by_hand("mlp", "100%", |_| {});
    let at = first.path();
    let trained = table(at, "run study --epochs 3");
    check(at, "export study --to safetensors -o trained.safetensors", 0, &[]);
    let second = still();
    let file = at.join("trained.safetensors");
    let line = format!("run study --epochs 1 --decay constant --weights {}", file.display());
    let again = table(second.path(), &line);
    assert_eq!(again["test_accuracy"], trained["test_accuracy"], "the same network");
    check(second.path(), "export study --to safetensors -o same.safetensors", 0, &[]);
    let [before, after] = [file.clone(), second.path().join("same.safetensors")].map(|path| parts(&path));
    assert_eq!(before, after);
    let (header, _) = before;
    assert_eq!(header["__metadata__"]["format"], "pt");
    assert_eq!(header["fc1.weight"]["shape"], serde_json::json!([256, 64]));
    // A training that continues must have begun with the same weights.
    let other = "is of another training run: the checksum of the weights to start from is ";
    check(second.path(), "run study --epochs 2 --decay constant", 2, &[other, " in it and drawn now"]);
    let longer = table(second.path(), &line.replace("--epochs 1", "--epochs 2"));
    assert!(longer["resumed_at"].as_u64() > Some(0), "{longer}");
}

#[test]
fn all_tensors_that_are_not_the_networks_are_named() {
    let folder = by_hand("mlp", "100%", |_| {});
    let at = folder.path();
    let export = "export study --to safetensors";
    check(at, &format!("{export} -o none.safetensors"), 2, &["holds no training", "plimsoll run study"]);
    check(at, export, 2, &["--output"]);
    check(at, "run study --epochs 1", 0, &[]);
    check(at, &format!("{export} --epochs 3 -o a.safetensors"), 2, &["--epochs says how to train"]);
    check(at, "export study --to torchrun -o a.safetensors", 2, &["--output is for --to safetensors"]);
    check(at, &format!("{export} -o a.safetensors"), 0, &[]);
    let (header, numbers) = parts(&at.join("a.safetensors"));
    let mut changed = header.clone();
    let all = changed.as_object_mut().expect("names");
    let mut names: Vec<String> = all.keys().filter(|name| name.ends_with("weight")).cloned().collect();
    names.sort();
    let [turned, renamed, typed] = &names[..] else { panic!("{names:?}") };
    let moved = all.remove(renamed).expect("it is there");
    all.insert("head.weight".to_owned(), moved);
    all[turned]["shape"].as_array_mut().expect("lengths").reverse();
    all[typed]["dtype"] = "I32".into();
    write(&at.join("b.safetensors"), &changed, &numbers);
    let run = "run study --fresh --epochs 1 --weights";
    let says: [&str; 5] = [
        &format!("1 missing: {renamed}"),
        "1 superfluous: head.weight",
        &format!("1 of another shape: {turned} ["),
        &format!("1 not in f32: {typed} I32"),
        "`plimsoll networks NAME`",
    ];
    check(at, &format!("{run} b.safetensors"), 2, &says);
    // PyTorch counts batches in its normalisations; the counter is no weight.
    let mut counted = header.clone();
    let end = numbers.len();
    counted["bn.num_batches_tracked"] =
        serde_json::json!({"dtype": "I64", "shape": [], "data_offsets": [end, end + 8]});
    write(&at.join("c.safetensors"), &counted, &[&numbers[..], &[0; 8]].concat());
    check(at, &format!("{run} c.safetensors"), 0, &[]);
    let mut spoilt = numbers.clone();
    spoilt[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    write(&at.join("d.safetensors"), &header, &spoilt);
    check(at, &format!("{run} d.safetensors"), 2, &["that is not finite"]);
    fs::write(at.join("e.safetensors"), "no such file").expect("the folder can be written");
    check(at, &format!("{run} e.safetensors"), 2, &["is not a safetensors file, or is truncated"]);
    check(at, &format!("{run} f.safetensors"), 2, &["cannot read ", "f.safetensors: "]);
}
