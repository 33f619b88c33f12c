//! How long is an iteration beside PyTorch's? resnet50 at batch 64 on 224x224 images, everything kept, each op in the way
//! that was measured to be its fastest, replayed as a graph; PyTorch eager in the same precision, contiguous and
//! channels-last. Ours runs first, and once more after PyTorch, of which the slower counts: a card that others have warmed up
//! is no advantage.

use super::{Section, Target};
use crate::bench::{Runner, WARM_UP, cuda, keeping, middle, peak, profile, task};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use crate::torch::Torch;
use plimsoll::study::{Error, Workload};
use plimsoll_ir::{Precision, Seconds};
use plimsoll_tuner::model::Model;
use serde_json::{Value, json};

/// The section.
pub const SECTION: Section = Section {
    name: "step",
    asks: "how long is an iteration of resnet50, batch 64, beside PyTorch eager's?",
    seconds: 90,
    by_name_only: false,
    run,
    targets: &[
        Target {
            what: "resnet50, batch 64, 224x224, f32: at most 1.15 times PyTorch eager's in its faster memory format",
            verifies: false,
            judge: |rows| judge(rows, Precision::F32, 1.15),
        },
        Target {
            what: "the same in TF32: at most 1.0 times",
            verifies: false,
            judge: |rows| judge(rows, Precision::Tf32, 1.0),
        },
        Target {
            what: "the same in bf16: at most 1.0 times",
            verifies: false,
            judge: |rows| judge(rows, Precision::Bf16, 1.0),
        },
    ],
};

/// Steps of PyTorch's that warm up, and iterations that count.
const WARMING: usize = 10;
const STEPS: usize = 50;

/// Ours, in the rows.
const OURS: [&str; 2] = ["plimsoll", "plimsoll, once more"];

/// PyTorch's memory formats, and each in the rows.
const FORMATS: [(&str, &str); 2] =
    [("contiguous", "PyTorch, contiguous"), ("channels_last", "PyTorch, channels_last")];

fn run(ground: &Ground) -> Result<(), Error> {
    let mut torch = Torch::start(&ground.options);
    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
        in_precision(ground, &mut torch, precision)?;
    }
    Ok(())
}

fn in_precision(ground: &Ground, torch: &mut Torch, precision: Precision) -> Result<(), Error> {
    let (network, side, batch) = ground.pick(("resnet50", 224, 64), ("resnet20", 8, 2));
    let (count, steps) = ground.pick((WARMING, STEPS), (1, 1));
    let classes = ground.pick(1000, 10);
    let row = |who: &str, seconds: &[Seconds], note: &str| {
        let of = |f: fn((Seconds, f64)) -> f64| (!seconds.is_empty()).then(|| f(middle(seconds)));
        ground.row(&json!({
            "network": network,
            "batch": batch,
            "precision": precision.name(),
            "who": who,
            "iteration_seconds": of(|(median, _)| median.0),
            "spread_share": of(|(_, spread)| spread),
            "least_seconds": seconds.iter().map(|s| s.0).reduce(f64::min),
            "images_per_second": of(|(median, _)| 1.0 / median.0).map(|each| each * batch as f64),
            "steps": seconds.len(),
            "note": note,
        }));
    };
    let task = task(network, side, classes, &cuda(precision))?;
    // As PyTorch measures cuDNN's algorithms before it uses them.
    let mut trace = task.trace(batch)?;
    let model = Model::fit(&profile(&task, peak(&trace), vec![batch], ground)?).map_err(Error::usage)?;
    model.fill(&mut trace).map_err(Error::usage)?;
    let mut runner = Runner::new(&task, &trace, &keeping(&trace)?.schedule)?;
    runner.iterations(WARM_UP)?;
    row(OURS[0], &runner.iterations(steps)?, "");
    for (format, who) in FORMATS {
        let mut ask = |steps: usize| {
            torch.ask(&json!({
                "do": "step", "network": network, "image": side, "classes": classes, "batch": batch,
                "precision": precision.name(), "format": format, "steps": steps,
            }))
        };
        // The first steps warm up.
        match ask(count).and_then(|_| ask(steps)) {
            Ok(answer) => row(who, &times(&answer), ""),
            Err(failure) => row(who, &[], &format!("skipped: {}", failure.message)),
        }
    }
    runner.iterations(WARM_UP)?;
    row(OURS[1], &runner.iterations(steps)?, "");
    Ok(())
}

/// The seconds of an answer.
fn times(answer: &Value) -> Vec<Seconds> {
    let all = answer["seconds"].as_array().into_iter().flatten();
    all.filter_map(Value::as_f64).map(Seconds).collect()
}

/// Ours where it was slower beside PyTorch's where it is faster, and how many times longer it may be.
fn judge(rows: &[Row], precision: Precision, at_most: f64) -> Option<Verdict> {
    let of = |who: &str| {
        let found = |row: &&Row| words(row, "precision") == precision.name() && words(row, "who") == who;
        number(rows.iter().find(found)?, "iteration_seconds")
    };
    let ours = OURS.iter().filter_map(|who| of(who)).reduce(f64::max)?;
    let Some(theirs) = FORMATS.iter().filter_map(|(_, who)| of(who)).reduce(f64::min) else {
        return Some(Verdict { measured: format!("{}, without PyTorch's", Seconds(ours)), met: None });
    };
    let measured = format!("{:.3} times ({} and {})", ours / theirs, Seconds(ours), Seconds(theirs));
    Some(Verdict { measured, met: Some(ours <= at_most * theirs) })
}
