//! The command line's verbs with `--device cuda` on the stand-in: measuring, choosing, training and comparing use cuDNN and
//! cuBLAS, and missing libraries are reported.
//!
//! The device searches for its libraries by the environment, so each verb has a separate process: this test again.

#[allow(dead_code, reason = "other tests have more words with it")]
#[path = "schedules/library.rs"]
mod library;

use clap::Parser;
use library::{StandIn, child};
use plimsoll::args::{Cli, Verb};
use plimsoll::verbs;
use std::path::Path;

const CHILD: &str = "PLIMSOLL_STANDIN_VERB";

/// A network and data that take no time, with convolutions and fully connected layers.
const TASK: &str = "--network lenet --image 12 --channels 1 --classes 10 --data synthetic:96 --device cuda";

/// Runs the verb that the environment names; not a test by itself.
#[test]
fn a_verb() {
    let Ok(line) = std::env::var(CHILD) else { return };
    let cli = Cli::parse_from(line.split(' '));
    let library = StandIn::open();
    let outcome = match &cli.verb {
        Verb::Auto(args) => verbs::auto::run(args, cli.format, true),
        Verb::Run(args) => verbs::run::run(args, true),
        Verb::Trace(args) => verbs::trace::run(args),
        Verb::Verify(args) => verbs::verify::run(args, true),
        other => panic!("{other:?} is not tested here"),
    };
    match outcome {
        Ok(_) => println!("outcome 0"),
        Err(failure) => println!("outcome {}: {failure:#}", failure.kind as u8),
    }
    let counts = library.map(|library| library.counts()).unwrap_or_default();
    println!("copies to the device: {}", counts.get("cuMemcpyHtoDAsync_v2").unwrap_or(&0));
}

/// Outcome of a verb whose device finds its libraries in a folder.
fn outcome(libraries: &Path, line: &str) -> String {
    said(libraries, line)[0].clone()
}

/// Number of copies to the device outside graphs by a verb that succeeds.
fn copies(libraries: &Path, line: &str) -> u64 {
    let [outcome, copies] = said(libraries, line);
    assert_eq!(outcome, "0", "{line}");
    copies.parse().expect("a number")
}

/// Outcome of a verb, and its number of copies to the device.
fn said(libraries: &Path, line: &str) -> [String; 2] {
    let said = child(
        "a_verb",
        &[
            (CHILD, format!("plimsoll {line}").as_ref()),
            ("PLIMSOLL_CUDA_LIBRARIES", libraries.as_ref()),
            ("XDG_CACHE_HOME", libraries.as_ref()),
        ],
    );
    ["outcome ", "copies to the device: "].map(|word| {
        let found = said.lines().find_map(|line| line.split_once(word)).map(|(_, found)| found.to_owned());
        found.unwrap_or_else(|| panic!("`{line}`: {said}"))
    })
}

#[test]
fn plans_change_no_bit_in_any_precision() {
    let Some(library) = StandIn::open() else { return };
    let folder = &library.options().libraries[0];
    for options in ["", " --no-graph", " --precision f32", " --precision tf32", " --precision bf16"] {
        let verify = format!("verify {TASK} --batch 4 --iterations 4{options}");
        assert_eq!(outcome(folder, &verify), "0", "{verify}");
    }
}

#[test]
fn what_is_tuned_runs_with_the_kernels_that_it_was_tuned_for() {
    let Some(library) = StandIn::open() else { return };
    let folder = &library.options().libraries[0];
    let study = tempfile::tempdir().expect("a folder");
    let study = study.path().display();
    let auto = format!(
        "auto {TASK} --precision tf32 --budget 3MB --base-batch 4 --max-batch 8 --epochs 1 --study {study}"
    );
    // A device here is as slow as the busy processor; measurements are kept, and a second run continues.
    let tuned = (0..4).map(|_| outcome(folder, &auto)).find(|outcome| !outcome.starts_with("5:"));
    match tuned.as_deref() {
        None => return println!("skipped: this machine is too busy to measure anything"),
        Some(outcome) => assert_eq!(outcome, "0"),
    }
    // Without spaces.
    let read = |name: &str| {
        std::fs::read_to_string(format!("{study}/{name}")).expect("it was written").replace(' ', "")
    };
    let config = read("chosen.config.json");
    assert!(config.contains("\"precision\":\"tf32\""), "{config}");
    let profile = read("network.profile.json");
    for way in ["implicit_gemm", "algo_3"] {
        assert!(profile.contains(&format!("\"name\":\"{way}\"")), "`{way}` was not measured");
    }
    assert!(profile.contains("cuDNN9.1.0,TF32"), "whose kernels were measured");
    assert!(profile.contains("\"precision\":\"tf32\""), "in what was measured");
    assert_eq!(outcome(folder, &format!("run {study} --data synthetic:96 --fresh")), "0");
    // An iteration writes its hyperparameters and no input, even if it does not copy the state.
    let more = |options: &str| {
        let run = |epochs: u32| {
            copies(folder, &format!("run {study} --data synthetic:96 --fresh --epochs {epochs}{options}"))
        };
        run(12) - run(8)
    };
    let copied = more("");
    let saved = more(" --save-every 10min");
    assert!(2 * saved < 3 * copied, "{saved} and {copied}");
    let trace = format!("{study}/trace.json");
    let traced = format!(
        "trace lenet --image 12 --channels 1 --batch 8 -o {trace} --profile {study}/network.profile.json"
    );
    let refused = outcome(folder, &format!("{traced} --precision f32"));
    assert!(refused.contains("measured in TF32, and --precision asks for f32"), "{refused}");
    assert_eq!(outcome(folder, &traced), "0");
    assert!(std::fs::read_to_string(trace).expect("it was written").contains("alternatives"));
}

#[test]
fn a_library_that_is_missing_is_said_with_what_to_do() {
    let Some(library) = StandIn::open() else { return };
    let whole = &library.options().libraries[0];
    let partial = tempfile::tempdir().expect("a folder");
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublas.so.13"] {
        let file = std::fs::canonicalize(whole.join(name)).expect("it is there");
        std::os::unix::fs::symlink(file, partial.path().join(name)).expect("a link can be made");
    }
    let said = outcome(partial.path(), &format!("verify {TASK} --batch 4 --iterations 4"));
    if !said.contains("is not on this machine") {
        return println!("skipped: this machine has a cuDNN: {said}");
    }
    for part in ["4: cuDNN is not", "libcudnn.so.9", "pip install nvidia-cudnn-cu13"] {
        assert!(said.contains(part), "`{part}` in: {said}");
    }
}
