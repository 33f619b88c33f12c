//! What does PyTorch train within the same budget? Eager, checkpointing every block, and saved tensors on the host, each at the
//! largest batch that it can train; beside keeping everything, the efficiency-optimal batch, and the largest.

use super::batches::{BUDGET, Batches, Ran, SMALL_BUDGET};
use super::{Section, Target};
use crate::bench::{cuda, task};
use crate::ground::Ground;
use crate::row::{Row, Verdict, number, words};
use crate::torch::Torch;
use plimsoll::failure::Failure;
use serde_json::{Value, json};

/// The section.
pub const SECTION: Section = Section {
    name: "pytorch",
    asks: "within 12 GiB, which batch does PyTorch train, and how fast?",
    seconds: 75,
    by_name_only: false,
    run,
    targets: &[Target {
        what: "12 GiB: images a second at the largest batch that each can train, beside PyTorch eager, checkpoint, save_on_cpu",
        verifies: false,
        judge,
    }],
};

/// PyTorch's ways to train: what they are called there, and in a table.
const WAYS: [(&str, &str); 3] = [
    ("eager", "PyTorch eager"),
    ("checkpoint", "PyTorch, checkpoint on every block"),
    ("save_on_cpu", "PyTorch, save_on_cpu"),
];

fn run(ground: &Ground) -> Result<(), Failure> {
    let networks = ground.pick(&["resnet50", "vgg16"][..], &["resnet20"]);
    let (side, classes) = ground.pick((224, 1000), (8, 10));
    let mut torch = Torch::start(&ground.options);
    for (done, network) in networks.iter().enumerate() {
        let row = |who: &str, ran: Ran, note: &str| {
            ground.row(&json!({
                "network": network,
                "who": who,
                "batch": ran.batch,
                "images_per_second": ran.rate(),
                "note": note,
            }));
        };
        // PyTorch's ways and ours share what is left for this network.
        let until = ground.left() * (1.0 - 0.5 / (networks.len() - done) as f64);
        let task = task(network, side, classes, &cuda())?;
        let found = Batches::measure(ground, &task, until);
        row("plimsoll, keeping everything", found.keep, &found.why);
        row("plimsoll, efficiency-optimal", found.best, &found.why);
        row("plimsoll, largest", found.most, &found.why);
        for (way, who) in WAYS {
            let left = ground.left() / ((networks.len() - done) as f64 * 3.0);
            let question = json!({
                "do": "largest", "network": network, "image": side, "classes": classes, "precision": "f32",
                "way": way, "budget_bytes": ground.pick(BUDGET, SMALL_BUDGET), "seconds": left,
                "limit": ground.pick(4096, 4),
            });
            match torch.ask(&question) {
                Ok(answer) => {
                    let batch = answer["batch"].as_u64();
                    let seconds = answer["seconds"].as_f64().map(plimsoll_ir::Seconds);
                    row(who, Ran { batch, seconds, loss: None }, answer["note"].as_str().unwrap_or_default());
                }
                Err(failure) => row(who, Ran::default(), &format!("skipped: {}", failure.message)),
            }
        }
    }
    Ok(())
}

fn judge(rows: &[Row]) -> Option<Verdict> {
    let of = |row: &Row| {
        let batch = row.get("batch").and_then(Value::as_u64)?;
        let rate = number(row, "images_per_second")?;
        Some(format!("{} {}: {rate:.0}/s at {batch}", words(row, "network"), words(row, "who")))
    };
    let all: Vec<String> = rows.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| Verdict { measured: all.join("; "), met: None })
}
