//! The alternatives of the device `cuda` for a convolution or attention, including cuDNN's algorithms and cuBLAS, as in an
//! iteration: a program of one op, whose operands lie in resident memory between guards, under a schedule that names the
//! alternative.
//!
//! Skipped without a device, as a test of [`super::device`] reports. Calls with our own kernel as the only alternative are
//! tested without the runtime's device.

use super::harness::{Arg, GUARD};
use plimsoll_ir::program::{
    Call, Hyper, Kernel, KernelAlternative, Operand, Program, Region, Role, STORAGE_ALIGNMENT,
};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::trace::{Alternative, Op, Phase, Tensor, TensorKind, Trace, TraceKind};
use plimsoll_ir::{Bytes, BytesPerSecond, CommandId, Float, OpId, Precision, Seconds, TensorId};
use plimsoll_runtime::{CudaDevice, CudaOptions, Device, Executor, MemoryLayout};
use std::sync::{Mutex, OnceLock, PoisonError};

const GUARD_BYTE: u8 = 0xFE;
/// Four of these are a NaN.
const POISON: u8 = 0xFF;

/// Contents of a convolution's or attention's operands after each alternative; empty for other calls, and without a device.
pub fn outcomes(call: &Call, float: Float, args: &[Arg]) -> Vec<(String, Vec<Vec<u8>>)> {
    static DEVICES: [OnceLock<Option<Mutex<CudaDevice>>>; 2] = [OnceLock::new(), OnceLock::new()];
    let multiplies = matches!(
        call,
        Call::ConvForward { .. }
            | Call::ConvBackwardFilter { .. }
            | Call::ConvBackwardData { .. }
            | Call::AttentionForward { .. }
            | Call::AttentionBackward { .. }
    );
    if !multiplies {
        return Vec::new();
    }
    let precision = Some(if float == Float::F32 { Precision::F32 } else { Precision::Bf16 });
    let open = || CudaDevice::open(&CudaOptions { precision, ..CudaOptions::default() });
    let opened = || Mutex::new(open().expect("the device of this machine opens"));
    let device = DEVICES[float as usize].get_or_init(|| super::device::is_there().then(opened));
    let Some(device) = device else { return Vec::new() };
    // State left by a failed test does not matter to the next.
    let device = device.lock().unwrap_or_else(PoisonError::into_inner);
    let alternatives = device.alternatives(call);
    let program = program(call, float, args, &alternatives);
    let schedules: Vec<Schedule> = (0..alternatives.len()).map(|number| schedule(&program, number)).collect();
    let layouts = schedules.iter().map(|schedule| MemoryLayout::of(&program, schedule));
    let layout = layouts.fold(MemoryLayout::default(), MemoryLayout::union);
    let another = device.another().expect("it shares what is open");
    let mut executor = Executor::new(Box::new(another), layout).expect("the test is small");
    let run = |(alternative, schedule): (&KernelAlternative, &Schedule)| {
        let loaded = executor.load(&program, schedule).expect("the program is sound");
        let name = format!("the device's way `{}`", alternative.name);
        for region in &program.resident {
            let number = region.name.strip_prefix("operand ").and_then(|n| n.parse::<usize>().ok());
            let bytes = region.bytes().0 as usize;
            let mut content = match number.map(|n| &args[n]) {
                Some(Arg::In(bytes) | Arg::InOut(bytes)) => bytes.clone(),
                Some(arg) => vec![POISON; bytes_of(arg)],
                None => Vec::new(),
            };
            content.resize(bytes, GUARD_BYTE);
            executor.write_region(region, &content).expect("it is in range");
        }
        executor.run(&loaded).unwrap_or_else(|error| panic!("{call:?} by {name}: {error}"));
        let mut held = Vec::new();
        for region in &program.resident {
            let mut bytes = vec![0; region.bytes().0 as usize];
            executor.read_region(region, &mut bytes).expect("it is in range");
            match region.name.as_str() {
                "guard" => {
                    assert!(bytes.iter().all(|b| *b == GUARD_BYTE), "{call:?} by {name} overran an operand");
                }
                operand if operand.starts_with("operand") => {
                    let behind = bytes.split_off(bytes_of(&args[held.len()]));
                    let whole = behind.iter().all(|b| *b == GUARD_BYTE);
                    assert!(whole, "{call:?} by {name} overran operand {}", held.len());
                    if let Arg::In(input) = &args[held.len()] {
                        assert!(*input == bytes, "{call:?} by {name} changed its input {}", held.len());
                    }
                    held.push(bytes);
                }
                _ => {}
            }
        }
        (name, held)
    };
    alternatives.iter().zip(&schedules).map(run).collect()
}

/// Bytes of an operand.
fn bytes_of(arg: &Arg) -> usize {
    match arg {
        Arg::In(bytes) | Arg::InOut(bytes) => bytes.len(),
        Arg::Out(bytes) => *bytes,
        Arg::Same(_) => unreachable!("none of these calls is in place"),
    }
}

/// Consecutive regions of whole words.
#[derive(Default)]
struct Resident {
    regions: Vec<Region>,
    end: u64,
}

impl Resident {
    /// Adds a region, and a guard that fills up to the alignment; returns the region's start.
    fn add(&mut self, name: &str, role: Role, bytes: u64) -> Bytes {
        let bytes = bytes.next_multiple_of(4);
        let offset = Bytes(self.end);
        let mut push = |name: &str, role, offset, bytes: u64| {
            self.regions.push(Region { name: name.to_owned(), role, offset, shape: vec![bytes / 4] });
        };
        push(name, role, offset, bytes);
        let whole = bytes.next_multiple_of(STORAGE_ALIGNMENT);
        if whole > bytes {
            push("guard", Role::State(0.0), offset + Bytes(bytes), whole - bytes);
        }
        self.end += whole;
        offset
    }
}

/// A program of one call, whose operands are resident, each between guards; its tensor exists because a program needs
/// input.
fn program(call: &Call, float: Float, args: &[Arg], alternatives: &[KernelAlternative]) -> Program {
    let mut resident = Resident::default();
    resident.add("hyper", Role::Hyper, 4 * Hyper::WORDS);
    resident.add("metrics", Role::Metrics, 12);
    let operand = |(number, arg): (usize, &Arg)| {
        let bytes = bytes_of(arg);
        resident.add("guard", Role::State(0.0), GUARD as u64);
        Operand::Resident(resident.add(&format!("operand {number}"), Role::State(0.0), bytes as u64))
    };
    let operands = args.iter().enumerate().map(operand).collect();
    resident.add("guard", Role::State(0.0), GUARD as u64);
    let alternative = |alternative: &KernelAlternative| Alternative {
        name: alternative.name.clone(),
        seconds: Seconds::ZERO,
        workspace_bytes: alternative.workspace.round_up(STORAGE_ALIGNMENT),
    };
    let alternatives: Vec<Alternative> = alternatives.iter().map(alternative).collect();
    let op = Op {
        name: "call".to_owned(),
        layer: "call".to_owned(),
        kind: "conv".to_owned(),
        phase: Phase::Forward,
        seconds: Seconds::ZERO,
        reads: vec![INPUT],
        writes: Vec::new(),
        workspace_bytes: alternatives[0].workspace_bytes,
        flops: 0,
        recomputable: false,
        alternatives: alternatives[1..].to_vec(),
    };
    let input = Tensor { name: "input".to_owned(), bytes: Bytes(STORAGE_ALIGNMENT), kind: TensorKind::Input };
    let trace = Trace {
        kind: TraceKind,
        name: "call".to_owned(),
        batch: 1,
        resident_bytes: Bytes(resident.end),
        tensors: vec![input],
        ops: vec![op],
    };
    let kernels = vec![Kernel { call: *call, operands }];
    let feature_maps = float;
    Program { trace, kernels, resident: resident.regions, feature_maps, images: INPUT, labels: INPUT }
}

const INPUT: TensorId = TensorId(0);

/// The op in one of its alternatives, with its scratch behind the input.
fn schedule(program: &Program, alternative: usize) -> Schedule {
    let command = CommandId(0);
    let alternative = alternative.checked_sub(1).map(|k| k as u32);
    let op = &program.trace.ops[0];
    let scratch = alternative.map_or(op.workspace_bytes, |k| op.alternatives[k as usize].workspace_bytes);
    let mut buffers = vec![Buffer {
        holds: Holds::Tensor { tensor: INPUT, first_byte: None, bytes: None },
        offset: Bytes::ZERO,
        opens: None,
        closes: vec![command],
    }];
    if scratch > Bytes::ZERO {
        let holds = Holds::Workspace { command };
        let offset = Bytes(STORAGE_ALIGNMENT);
        buffers.push(Buffer { holds, offset, opens: Some(command), closes: vec![command] });
    }
    let pool_bytes = Bytes(STORAGE_ALIGNMENT) + scratch;
    Schedule {
        kind: ScheduleKind,
        trace: program.trace.name.clone(),
        batch: 1,
        budget_bytes: program.trace.resident_bytes + pool_bytes,
        pool_bytes,
        link: Link::symmetric(BytesPerSecond(1e9)),
        commands: vec![Command::Compute { op: OpId(0), again: false, alternative, waits: Vec::new() }],
        buffers,
    }
}
