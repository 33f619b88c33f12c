//! How long is an iteration beside PyTorch's? resnet50 at batch 64 on 224x224 images, everything kept, each op in the way
//! that was measured to be its fastest, replayed as a graph; PyTorch eager in the same precision, contiguous and
//! channels-last. Both sides take turns.

use super::{Section, Target};
use crate::bench::{Runner, WARM_UP, cuda, keeping, middle, peak, profile, task};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use crate::torch::Torch;
use plimsoll::failure::Failure;
use plimsoll::study::Workload;
use plimsoll_ir::{Precision, Seconds};
use plimsoll_runtime::CudaOptions;
use plimsoll_tuner::model::Model;
use serde_json::{Value, json};

/// The section.
pub const SECTION: Section = Section {
    name: "step",
    asks: "how long is an iteration of resnet50, batch 64, beside PyTorch eager's?",
    seconds: 60,
    by_name_only: false,
    run,
    targets: &[
        Target {
            what: "resnet50, batch 64, 224x224, f32: at most 1.15 times PyTorch eager's (contiguous), side by side; \
                   aim below 1",
            verifies: false,
            judge: |rows| judge(rows, "f32"),
        },
        Target { what: "the same in TF32", verifies: false, judge: |rows| judge(rows, "tf32") },
    ],
};

/// How much longer than PyTorch's an iteration may be.
const AT_MOST: f64 = 1.15;

/// Turns, and iterations in each.
const TURNS: usize = 5;
const IN_A_TURN: usize = 10;

/// What numbers are computed with: its name here and in PyTorch's side, and the device that does.
fn precisions() -> Vec<(&'static str, CudaOptions)> {
    vec![("f32", cuda()), ("tf32", CudaOptions { precision: Some(Precision::Tf32), ..cuda() })]
}

fn run(ground: &Ground) -> Result<(), Failure> {
    let (network, side, batch) = ground.pick(("resnet50", 224, 64), ("resnet20", 8, 2));
    let (turns, count) = ground.pick((TURNS, IN_A_TURN), (1, 1));
    let mut torch = Torch::start(&ground.options);
    for (precision, options) in precisions() {
        let task = task(network, side, 1000, &options)?;
        // As PyTorch measures cuDNN's algorithms before it uses them.
        let mut trace = task.trace(batch)?;
        let model =
            Model::fit(&profile(&task, peak(&trace), vec![batch], ground)?).map_err(Failure::usage)?;
        model.fill(&mut trace).map_err(Failure::usage)?;
        let mut runner = Runner::new(&task, batch, &keeping(&trace)?.schedule)?;
        runner.iterations(WARM_UP)?;
        let sides = ["plimsoll", "contiguous", "channels_last"];
        let mut seconds: [Vec<Seconds>; 3] = Default::default();
        let mut why = String::new();
        for turn in 0..=turns {
            for (side_of, seconds) in sides.iter().zip(&mut seconds) {
                let taken = match *side_of {
                    "plimsoll" => runner.iterations(count)?,
                    format => {
                        let question = json!({
                            "do": "step", "network": network, "image": side, "batch": batch,
                            "precision": precision, "format": format, "steps": count,
                        });
                        match torch.ask(&question) {
                            Ok(answer) => times(&answer),
                            Err(failure) => {
                                why = failure.message;
                                Vec::new()
                            }
                        }
                    }
                };
                // The first turn warms up.
                seconds.extend(taken.into_iter().filter(|_| turn > 0));
            }
        }
        for (side_of, seconds) in sides.iter().zip(&seconds) {
            let of = |f: fn((Seconds, f64)) -> f64| (!seconds.is_empty()).then(|| f(middle(seconds)));
            ground.row(&json!({
                "network": network,
                "batch": batch,
                "precision": precision,
                "who": if *side_of == "plimsoll" { "plimsoll".to_owned() } else { format!("PyTorch, {side_of}") },
                "iteration_seconds": of(|(median, _)| median.0),
                "spread_share": of(|(_, spread)| spread),
                "least_seconds": seconds.iter().map(|s| s.0).reduce(f64::min),
                "images_per_second": of(|(median, _)| 1.0 / median.0).map(|each| each * batch as f64),
                "steps": seconds.len(),
                "note": if seconds.is_empty() { format!("skipped: {why}") } else { String::new() },
            }));
        }
    }
    Ok(())
}

/// The seconds of an answer.
fn times(answer: &Value) -> Vec<Seconds> {
    let all = answer["seconds"].as_array().into_iter().flatten();
    all.filter_map(Value::as_f64).map(Seconds).collect()
}

fn judge(rows: &[Row], precision: &str) -> Option<Verdict> {
    let of = |who: &str| {
        let row = rows.iter().find(|row| words(row, "precision") == precision && words(row, "who") == who);
        number(row?, "iteration_seconds")
    };
    let (ours, theirs) = (of("plimsoll")?, of("PyTorch, contiguous"));
    let Some(theirs) = theirs else {
        return Some(Verdict { measured: format!("{}, without PyTorch's", Seconds(ours)), met: None });
    };
    let measured = format!("{:.3} times ({} and {})", ours / theirs, Seconds(ours), Seconds(theirs));
    Some(Verdict { measured, met: Some(ours <= AT_MOST * theirs) })
}
