//! Where the time of a training step goes on the CPU: runs the kernels of one lowered iteration one after another on
//! one allocation, without executor, streams or schedule, and prints the least milliseconds of each kernel's name, of
//! each op (`--ops`), and of the whole step, with its median. The least: on a shared machine it is what the kernel costs.
//!
//! `cargo run --release -p plimsoll-runtime --example kernel_step -- [NETWORK] [IMAGE] [BATCH] [THREADS] [REPEATS] [--ops |
//! --json] [--apart]`
//!
//! With `--apart` batch normalisations take nothing over: a sum or a ReLU after one is an op of its own.
//!
//! IMAGE is the side of an image, or for a network of tokens the length of a text.
//!
//! What it deliberately does not do: train (images are constant) or compare; `benches/pytorch_step.py` puts
//! it beside PyTorch, by what `--json` prints: the seconds of each step,
//! by the clock and of the processor.

use plimsoll_ir::network::{Network, NetworkSpec};
use plimsoll_ir::program::{Hyper, KernelAlternative, Operand, Program};
use plimsoll_ir::{Optimizer, UpdateRule};
use plimsoll_networks::{LowerOptions, build, lower, usual};
use plimsoll_runtime::cpu::kernels::{Threads, run, workspace_bytes};
use std::collections::BTreeMap;
use std::time::Instant;

/// All of a program's bytes in one allocation, each tensor at an address of its own.
struct Memory {
    words: Vec<[u64; 32]>,
    /// Offset of each tensor.
    tensors: Vec<u64>,
    workspace: u64,
}

impl Memory {
    fn of(program: &Program) -> Memory {
        let mut end = program.trace.resident_bytes.0;
        let mut take = |bytes: u64| {
            let start = end;
            end += bytes.next_multiple_of(256);
            start
        };
        let tensors = program.trace.tensors.iter().map(|t| take(t.bytes.0)).collect();
        let workspace = take(program.trace.ops.iter().map(|op| op.workspace_bytes.0).max().unwrap_or(0));
        // 256 zero bytes an entry, and one more for the alignment.
        Memory { words: vec![[0; 32]; end as usize / 256 + 1], tensors, workspace }
    }

    fn at(&mut self, offset: u64) -> *mut u8 {
        let base = self.words.as_mut_ptr().cast::<u8>();
        base.wrapping_add((256 - base as usize % 256) % 256).wrapping_add(offset as usize)
    }

    fn fill(&mut self, offset: u64, values: impl Iterator<Item = f32>) {
        let start = self.at(offset).cast::<f32>();
        for (i, value) in values.enumerate() {
            // SAFETY: callers give the values of one region or tensor, which lie in the allocation.
            unsafe { start.add(i).write(value) };
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Seconds of processor time that this process has had: what a busy machine does not lengthen.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to be filled in.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0, "every Linux has this clock");
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Numbers for everything that the step reads, the same in every run.
fn fill(memory: &mut Memory, program: &Program, network: &Network, batch: u32) {
    for region in &program.resident {
        let values = (0..region.elements()).map(|i| ((i * 7919 % 1000) as f32 / 1000.0 - 0.5) * 0.05);
        memory.fill(region.offset.0, values.map(f32::abs));
    }
    let (images, labels) = (memory.tensors[program.images.index()], memory.tensors[program.labels.index()]);
    let elements = u64::from(batch) * network.layers[0].output.elements();
    let pixel = |i: u64| (i * 7919 % 1000) as f32 / 500.0 - 1.0;
    let token = |i: u64| f32::from_bits((i * 7919 % u64::from(network.spec.classes)) as u32);
    memory.fill(images, (0..elements).map(|i| if network.takes_tokens() { token(i) } else { pixel(i) }));
    memory.fill(labels, (0..batch).map(f32::from_bits));
    let update = UpdateRule::usual(Optimizer::Sgd).numbers(0.0, 3);
    let hyper = Hyper { seed_low: 1, seed_high: 2, step: 3, update };
    let words: Vec<f32> =
        hyper.to_bytes().chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    memory.fill(program.hyper().offset.0, words.into_iter());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (flags, plain): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let number = |i: usize, default: u32| plain.get(i).map_or(Ok(default), |a| a.parse::<u32>());
    let name = plain.first().cloned().unwrap_or_else(|| "resnet18".to_owned());
    let (image, batch, count, repeats) = (number(1, 64)?, number(2, 16)?, number(3, 1)?, number(4, 20)?);
    let spec = match usual(&name) {
        Some(text) if text.image[1] == 1 => NetworkSpec { image: [image, 1], ..text },
        _ => NetworkSpec { name, image: [image; 2], channels: 3, classes: 1000 },
    };
    let network = build(&spec)?;
    let alternatives = |call: &_| KernelAlternative::sole(workspace_bytes(call, count));
    let fuse = !flags.iter().any(|f| f == "--apart");
    let options = LowerOptions { fuse, alternatives: &alternatives, ..LowerOptions::default() };
    let program = lower(&network, u64::from(batch), &options)?;

    let mut memory = Memory::of(&program);
    fill(&mut memory, &program, &network, batch);
    let threads = Threads::new(count).expect("the threads start");
    let mut seconds = vec![Vec::new(); program.kernels.len()];
    let (mut steps, mut processor) = (Vec::new(), Vec::new());
    for repeat in 0..repeats + 2 {
        let (step, busy) = (Instant::now(), processor_seconds());
        for (i, kernel) in program.kernels.iter().enumerate() {
            let operands: Vec<*mut u8> = kernel
                .operands
                .iter()
                .map(|o| match o {
                    Operand::Tensor(id) => memory.at(memory.tensors[id.index()]),
                    Operand::Resident(offset) => memory.at(offset.0),
                })
                .collect();
            let scratch = memory.at(memory.workspace);
            let start = Instant::now();
            // SAFETY: the lowering gives each call its operands; each has a place of its own here.
            unsafe { run(&kernel.call, &operands, scratch, &threads) };
            if repeat >= 2 {
                seconds[i].push(start.elapsed().as_secs_f64());
            }
        }
        if repeat >= 2 {
            steps.push(step.elapsed().as_secs_f64());
            processor.push(processor_seconds() - busy);
        }
    }

    if flags.iter().any(|f| f == "--json") {
        println!("{{\"seconds\": {steps:?}, \"processor_seconds\": {processor:?}}}");
        return Ok(());
    }
    let mut by_name: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for ((kernel, op), seconds) in program.kernels.iter().zip(&program.trace.ops).zip(seconds) {
        let ms = 1e3 * least(&seconds);
        let sum = by_name.entry(kernel.call.name()).or_default();
        *sum = (sum.0 + ms, sum.1 + op.flops);
        if flags.iter().any(|f| f == "--ops") {
            println!("{:44} {ms:9.3} ms {:7.1} GFLOP/s", op.name, op.flops as f64 / ms / 1e6);
        }
    }
    for (name, (ms, flops)) in by_name {
        println!("{name:44} {ms:9.3} ms {:7.1} GFLOP/s", flops as f64 / ms / 1e6);
    }
    let shortest = least(&steps);
    let workspace = program.trace.ops.iter().map(|op| op.workspace_bytes).max().unwrap_or_default();
    println!("workspace: at most {workspace}");
    let [median, processor] = [steps, processor].map(|seconds| 1e3 * median(seconds));
    println!("step: median {median:.2} ms, least {:.2} ms, processor {processor:.2} ms", 1e3 * shortest);
    Ok(())
}
