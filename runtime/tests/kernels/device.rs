//! Calls on the device `cuda` in all its alternatives, including cuDNN's algorithms and cuBLAS, as in an iteration: a program
//! of one op, whose operands lie in resident memory between guards, under a schedule that names the alternative.
//!
//! The device is a GPU, or the stand-in library in a folder of `PLIMSOLL_CUDA_LIBRARIES`. Without either, one test reports it,
//! and all fail if `PLIMSOLL_TEST_DEVICE` requires a device.

use super::harness::{Arg, GUARD, GUARD_BYTE, POISON};
use plimsoll_ir::program::{
    Call, Hyper, Kernel, KernelAlternative, Operand, Program, Region, Role, STORAGE_ALIGNMENT,
};
use plimsoll_ir::schedule::{Buffer, Command, Holds, Link, Schedule, ScheduleKind};
use plimsoll_ir::trace::{Alternative, Op, Phase};
use plimsoll_ir::{Bytes, BytesPerSecond, CommandId, Float, OpId, Precision, Seconds, TensorId};
use plimsoll_runtime::{CudaDevice, CudaOptions, Device, Executor, MemoryLayout};
use plimsoll_testing::hand;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Contents of a call's operands after an alternative, and its name.
pub type Outcome = (String, Vec<Vec<u8>>);

/// The device with activations in this format, opened once for all tests, or the reason why there is none.
fn opened(float: Float) -> &'static Result<Mutex<CudaDevice>, String> {
    static DEVICES: [OnceLock<Result<Mutex<CudaDevice>, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    DEVICES[float as usize].get_or_init(|| {
        let precision = Some(if float == Float::F32 { Precision::F32 } else { Precision::Bf16 });
        let device = CudaDevice::open(&CudaOptions { precision, ..CudaOptions::default() });
        if let (Err(why), Some(asked)) = (&device, std::env::var_os("PLIMSOLL_TEST_DEVICE")) {
            panic!("PLIMSOLL_TEST_DEVICE asks for {asked:?}, and {why}");
        }
        device.map(Mutex::new).map_err(|why| why.to_string().replace('\n', " "))
    })
}

/// Reports, as the only test, if the others also run on a device.
#[test]
fn kernels_are_run_on_a_device() {
    if let Err(why) = opened(Float::F32) {
        println!("skipped: the CUDA kernels and the device's ways are not run on a device: {why}");
    }
}

/// Contents of a call's operands after each alternative; empty without a device.
pub fn outcomes(call: &Call, float: Float, args: &[Arg]) -> Vec<Outcome> {
    let Ok(device) = opened(float) else { return Vec::new() };
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
        let content = |region: &Region, arg: Option<&Arg>| {
            let mut content = match arg {
                Some(Arg::In(bytes) | Arg::InOut(bytes)) => bytes.clone(),
                Some(Arg::Out(bytes)) => vec![POISON; *bytes],
                Some(Arg::Same(_)) | None => Vec::new(),
            };
            content.resize(region.bytes().0 as usize, GUARD_BYTE);
            content
        };
        for region in &program.resident {
            let content = content(region, number(region).map(|n| &args[n]));
            executor.write_region(region, &content).expect("it is in range");
        }
        executor.run(&loaded).unwrap_or_else(|error| panic!("{call:?} by {name}: {error}"));
        let mut read = |region: &Region| {
            let mut bytes = vec![0; region.bytes().0 as usize];
            executor.read_region(region, &mut bytes).expect("it is in range");
            bytes
        };
        for guard in program.resident.iter().filter(|region| region.name == "guard") {
            assert!(read(guard).iter().all(|b| *b == GUARD_BYTE), "{call:?} by {name} overran an operand");
        }
        let mut held = vec![Vec::new(); args.len()];
        for (region, number) in program.resident.iter().filter_map(|region| Some((region, number(region)?))) {
            let mut bytes = read(region);
            let behind = bytes.split_off(bytes_of(&args[number]));
            assert!(behind.iter().all(|b| *b == GUARD_BYTE), "{call:?} by {name} overran operand {number}");
            if let Arg::In(input) = &args[number] {
                let shared = args.iter().any(|arg| matches!(arg, Arg::Same(of) if *of == number));
                assert!(shared || *input == bytes, "{call:?} by {name} changed its input {number}");
            }
            held[number] = bytes;
        }
        for (number, arg) in args.iter().enumerate() {
            if let Arg::Same(of) = arg {
                held[number] = held[*of].clone();
            }
        }
        (name, held)
    };
    alternatives.iter().zip(&schedules).map(run).collect()
}

/// Number of the operand in a region.
fn number(region: &Region) -> Option<usize> {
    region.name.strip_prefix("operand ").and_then(|number| number.parse().ok())
}

/// Bytes of an operand's own memory.
fn bytes_of(arg: &Arg) -> usize {
    match arg {
        Arg::In(bytes) | Arg::InOut(bytes) => bytes.len(),
        Arg::Out(bytes) => *bytes,
        Arg::Same(_) => 0,
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

const INPUT: TensorId = TensorId(0);

/// A program of one call, whose operands are resident, each between guards; its tensor exists because a program needs
/// input.
fn program(call: &Call, float: Float, args: &[Arg], alternatives: &[KernelAlternative]) -> Program {
    let mut resident = Resident::default();
    resident.add("hyper", Role::Hyper, 4 * Hyper::WORDS);
    resident.add("metrics", Role::Metrics, 12);
    let mut operands: Vec<Operand> = Vec::new();
    for (number, arg) in args.iter().enumerate() {
        resident.add("guard", Role::State(0.0), GUARD as u64);
        let name = format!("operand {number}");
        operands.push(match arg {
            Arg::Same(of) => operands[*of],
            _ => Operand::Resident(resident.add(&name, Role::State(0.0), bytes_of(arg) as u64)),
        });
    }
    resident.add("guard", Role::State(0.0), GUARD as u64);
    let alternative = |alternative: &KernelAlternative| Alternative {
        name: alternative.name.clone(),
        seconds: Seconds::ZERO,
        workspace_bytes: alternative.workspace.round_up(STORAGE_ALIGNMENT),
    };
    let alternatives: Vec<Alternative> = alternatives.iter().map(alternative).collect();
    let (workspace_bytes, alternatives) = (alternatives[0].workspace_bytes, alternatives[1..].to_vec());
    let op = Op { workspace_bytes, alternatives, ..hand::op("call", Phase::Forward, &[INPUT.index()], &[]) };
    let mut trace = hand::trace([STORAGE_ALIGNMENT], vec![op]);
    trace.resident_bytes = Bytes(resident.end);
    let kernels = vec![Kernel { call: *call, operands }];
    let resident = resident.regions;
    Program { trace, kernels, resident, feature_maps: float, images: INPUT, labels: INPUT }
}

/// The op in one of its alternatives, with its scratch behind the input.
fn schedule(program: &Program, alternative: usize) -> Schedule {
    let command = CommandId(0);
    let alternative = alternative.checked_sub(1).map(|k| k as u32);
    let op = &program.trace.ops[0];
    let scratch = alternative.map_or(op.workspace_bytes, |k| op.alternatives[k as usize].workspace_bytes);
    let holds = Holds::Tensor { tensor: INPUT, first_byte: None, bytes: None };
    let mut buffers = vec![Buffer { holds, offset: Bytes::ZERO, opens: None, closes: vec![command] }];
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
