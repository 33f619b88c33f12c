//! `--precision` on the command line: every output names the requested precision, a study keeps the one that it was begun with,
//! and bf16 halves the bytes of activations.

use crate::program::{check, json, list, read_json};
use serde_json::Value;
use std::path::Path;

/// Returns the precision that a command's table names.
#[track_caller]
fn precision(folder: &Path, line: &str) -> String {
    fn find(value: &Value) -> Option<&str> {
        match value {
            Value::Object(fields) => {
                fields.get("precision").and_then(Value::as_str).or_else(|| fields.values().find_map(find))
            }
            Value::Array(all) => all.iter().find_map(find),
            _ => None,
        }
    }
    let told = json(folder, line);
    find(&told).unwrap_or_else(|| panic!("{line} names none: {told}")).to_owned()
}

/// Returns the bytes of activations and their gradients in a trace of resnet20.
fn maps(folder: &Path, options: &str) -> u64 {
    let trace = told_trace(folder, options);
    let maps = list(&trace["tensors"])
        .iter()
        .filter(|tensor| ["activation", "gradient"].iter().any(|kind| tensor["kind"] == *kind));
    maps.map(|tensor| tensor["bytes"].as_u64().expect("bytes")).sum()
}

fn told_trace(folder: &Path, options: &str) -> Value {
    check(folder, &format!("trace resnet20 --image 32 {options} -o trace.json"), 0, &[]);
    read_json(&folder.join("trace.json"))
}

#[test]
fn a_trace_in_bf16_has_half_the_bytes_and_the_default_on_the_cpu_is_f32() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let [usual, default, f32, bf16] = ["", "--precision default", "--precision f32", "--precision bf16"]
        .map(|options| maps(folder, options));
    assert!(usual == default && usual == f32);
    // Some are rounded up to 256 bytes.
    assert!((f32 / 2..f32 / 2 + 4096).contains(&bf16), "{f32} and {bf16}");
    let names =
        |options: &str| told_trace(folder, options)["name"].as_str().map(|name| name.ends_with("-bf16"));
    assert_eq!(
        ["", "--precision bf16"].map(names),
        [Some(false), Some(true)],
        "trace/1 has a name to say it in"
    );
}

#[test]
fn every_verb_measures_plans_trains_and_verifies_in_bf16() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let of = "--network mlp --threads 1";
    assert_eq!(precision(folder, &format!("verify {of}")), "f32");
    assert_eq!(precision(folder, &format!("verify {of} --precision bf16")), "bf16");
    assert_eq!(precision(folder, &format!("profile {of} --precision bf16 --study p")), "bf16");
    let trace = "trace mlp --image 8 --channels 1 --profile p/network.profile.json";
    check(folder, &format!("{trace} -o t.json"), 0, &[]);
    let other = ["the profile was measured in bf16, and --precision asks for f32", "leave --precision out"];
    check(folder, &format!("{trace} --precision f32"), 2, &other);
    assert_eq!(precision(folder, &format!("tune {of} --precision bf16 --study s")), "bf16");
    // Measurements and choices in one precision are useless in a different one.
    let other = ["the precision is bf16 there, and f32 now"];
    check(folder, &format!("tune {of} --precision f32 --study s"), 2, &other);
    assert_eq!(precision(folder, "run s --epochs 1"), "bf16");
    assert_eq!(precision(folder, &format!("auto {of} --precision bf16 --epochs 1 --study a")), "bf16");
    let page = std::fs::read_to_string(folder.join("a/report.html")).expect("it was written");
    assert!(page.contains(r#"["precision","bf16"]"#));
}
