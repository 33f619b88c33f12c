//! Runs one call on poisoned memory between guards, and compares what it wrote.
//!
//! What it deliberately does not do: know what a call computes; that is in `reference`.

use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::program::Call;
use plimsoll_runtime::cpu::kernels::{Threads, run, workspace_bytes};

/// Bytes before and after each operand and the workspace that nobody may touch.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xA5;
/// Four of these are a NaN: what is read before it is written shows.
const POISON: u8 = 0xFF;

/// Numbers that look random, the same in every run: normal enough, and never so close to 0 that a finite difference
/// crosses it.
pub struct Random(u32);

impl Random {
    pub fn new(seed: u32) -> Random {
        Random(seed << 16)
    }

    pub fn unit(&mut self) -> f32 {
        self.0 += 1;
        unit_f32(philox4x32(7, [self.0, 0, 0, 0])[0])
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let v = self.unit() + self.unit() - 1.0;
                if v.abs() < 1e-3 { 1e-3 } else { v }
            })
            .collect()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f32) as usize
    }
}

/// An operand of a call.
#[derive(Clone)]
pub enum Arg {
    /// Read.
    In(Vec<u8>),
    /// Written; so many bytes.
    Out(usize),
    /// Read and written.
    InOut(Vec<u8>),
    /// The same memory as the operand of that number: in place.
    Same(usize),
}

pub fn input(values: &[f32]) -> Arg {
    Arg::In(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

pub fn labels(values: &[i32]) -> Arg {
    Arg::In(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Room for so many floats.
pub fn output(elements: usize) -> Arg {
    Arg::Out(4 * elements)
}

pub fn updated(values: &[f32]) -> Arg {
    Arg::InOut(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// Aligned memory with a guard on either side.
struct Memory {
    store: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize, content: Option<&[u8]>) -> Memory {
        let mut store = vec![GUARD_BYTE; len + 2 * GUARD + 256];
        let start = GUARD + (256 - (store.as_ptr() as usize + GUARD) % 256) % 256;
        match content {
            Some(content) => store[start..start + len].copy_from_slice(content),
            None => store[start..start + len].fill(POISON),
        }
        Memory { store, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.store[self.start..self.start + self.len]
    }

    fn assert_guarded(&self, what: &str) {
        let (before, after) = (&self.store[..self.start], &self.store[self.start + self.len..]);
        assert!(before.iter().chain(after).all(|b| *b == GUARD_BYTE), "{what} was overrun");
    }
}

/// Runs a call, and gives what each operand holds then. Panics where a guard or an input changed.
pub fn execute(call: &Call, args: &[Arg], threads: u32) -> Vec<Vec<u8>> {
    let mut memories: Vec<Memory> = args
        .iter()
        .map(|arg| match arg {
            Arg::In(bytes) | Arg::InOut(bytes) => Memory::new(bytes.len(), Some(bytes)),
            Arg::Out(len) => Memory::new(*len, None),
            Arg::Same(_) => Memory::new(0, None),
        })
        .collect();
    let mut workspace = Memory::new(workspace_bytes(call, threads).0 as usize, None);
    let owner = |i: usize| if let Arg::Same(j) = args[i] { j } else { i };
    let mut pointer = |i: usize| {
        let memory = &mut memories[owner(i)];
        memory.store[memory.start..].as_mut_ptr()
    };
    let operands: Vec<*mut u8> = (0..args.len()).map(&mut pointer).collect();
    let pool = Threads::new(threads).expect("a few threads start");
    // SAFETY: the operands are as large as the tests' shapes say, aligned and alive; guards find mistakes.
    unsafe { run(call, &operands, workspace.store[workspace.start..].as_mut_ptr(), &pool) };
    workspace.assert_guarded(&format!("workspace of {call:?} on {threads} threads"));
    for (i, (memory, arg)) in memories.iter().zip(args).enumerate() {
        memory.assert_guarded(&format!("operand {i} of {call:?}"));
        let shared = args.iter().any(|a| matches!(a, Arg::Same(j) if *j == i));
        if let Arg::In(bytes) = arg {
            assert!(shared || memory.bytes() == bytes, "{call:?} changed its input {i}");
        }
    }
    (0..args.len()).map(|i| memories[owner(i)].bytes().to_vec()).collect()
}

/// Runs a call on one thread, demands the same bits of 2 and 3, and gives what the operands hold.
pub fn outcome(call: &Call, args: &[Arg]) -> Vec<Vec<u8>> {
    let one = execute(call, args, 1);
    for threads in [2, 3] {
        assert!(execute(call, args, threads) == one, "{call:?} on {threads} threads differs");
    }
    one
}

/// Demands that floats agree with f64 ones: to 1e-5 of the largest, and to 1e-6 where all are small.
pub fn assert_close(what: &str, got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0.1f64, |a, b| a.max(b.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*g) - e).abs() / scale;
        assert!(error < 1e-5, "{what}: element {i} is {g}, expected {e} ({error:e} of the largest)");
    }
}

/// Runs a call and compares operands, given by number, with what the reference says.
pub fn check(call: &Call, args: &[Arg], expected: &[(usize, &[f64])]) {
    let got = outcome(call, args);
    for (operand, expected) in expected {
        assert_close(&format!("operand {operand} of {call:?}"), &floats(&got[*operand]), expected);
    }
}

/// Runs a call that has `accumulate` both ways: plain into poison, and onto old values.
pub fn check_accumulate(call: impl Fn(bool) -> Call, args: &[Arg], written: usize, expected: &[f64]) {
    check(&call(false), args, &[(written, expected)]);
    let old = Random::new(99).floats(expected.len());
    let sum: Vec<f64> = expected.iter().zip(&old).map(|(e, o)| e + f64::from(*o)).collect();
    let mut args = args.to_vec();
    args[written] = updated(&old);
    check(&call(true), &args, &[(written, &sum)]);
}

/// Demands that writing operand `written` over operand `read` changes no bit of any output.
pub fn check_in_place(call: &Call, args: &[Arg], read: usize, written: usize) {
    let apart = outcome(call, args);
    let mut together = args.to_vec();
    together[written] = Arg::Same(read);
    let together = outcome(call, &together);
    for (i, arg) in args.iter().enumerate() {
        if matches!(arg, Arg::Out(_)) {
            assert!(apart[i] == together[i], "{call:?} differs in place, in operand {i}");
        }
    }
}
