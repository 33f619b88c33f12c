//! Seconds of a whole training step, keeping everything: input, forward, backward, update, metrics. Prints JSON for
//! `benches/pytorch_step.py`, which alternates with it. `cargo bench --bench step -- NETWORK IMAGE BATCH THREADS STEPS`.
//!
//! Processor seconds, which a busy machine does not lengthen, are those of all threads of the process.

#[path = "support/subject.rs"]
mod subject;

use plimsoll::ir::schedule::Link;
use plimsoll::ir::{Bytes, BytesPerSecond};
use plimsoll::study::device::cpu_options;
use plimsoll::study::{Setup, Watch, Workload};
use plimsoll::tuner::Policy;
use std::time::Instant;
use subject::{task, trainer};

fn main() {
    let given: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let number = |at: usize, default: u32| given.get(at).map_or(default, |n| n.parse().expect("a number"));
    let network = given.first().map_or("resnet20", String::as_str);
    let (side, batch) = (number(1, 8), u64::from(number(2, 4)));
    let (threads, steps) = (number(3, 1), u64::from(number(4, 2)));
    let task = task(network, side, Setup::Cpu(cpu_options(Some(threads), None)));
    let trace = task.trace(batch).expect("the network lowers");
    let link = Link::symmetric(BytesPerSecond(1e10));
    let keep = task
        .plan(&trace, Policy::Keep, Bytes(1 << 60), link, &Watch::silent())
        .expect("everything fits 2^60 bytes");
    let mut trainer = trainer(&task, batch, &keep.schedule);
    let mut measured = (Vec::new(), Vec::new());
    for step in 1..=steps + 2 {
        let (start, before) = (Instant::now(), processor_seconds());
        trainer.train(&*task.data.train, step, &mut |_| {}, &|| false).expect("training runs");
        if step > 2 {
            measured.0.push(start.elapsed().as_secs_f64());
            measured.1.push(processor_seconds() - before);
        }
    }
    println!("{}", serde_json::json!({ "seconds": measured.0, "processor_seconds": measured.1 }));
}

/// Returns the processor seconds of all threads of this process so far.
fn processor_seconds() -> f64 {
    let of_thread = |folder: std::io::Result<std::fs::DirEntry>| -> f64 {
        let text =
            folder.and_then(|f| std::fs::read_to_string(f.path().join("schedstat"))).unwrap_or_default();
        text.split_whitespace().next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
    };
    std::fs::read_dir("/proc/self/task").map_or(f64::NAN, |threads| threads.map(of_thread).sum())
}
