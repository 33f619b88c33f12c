//! Runs one call on poisoned memory between guards, on the CPU's kernels, on the text of the CUDA ones, and on a device if
//! there is one, and compares the results; then again with activations in bf16, with the CPU's kernels as the reference.
//!
//! Deliberately does not know the formula of a call; `reference` does.

use super::device::{self, Outcome};
use super::text::{Order, kernels, text};

use plimsoll_ir::Float;
use plimsoll_ir::philox::{philox4x32, unit_f32};
use plimsoll_ir::precision::bf16;
use plimsoll_ir::program::{Access, Call, OperandSpec};
use plimsoll_runtime::cpu::kernels::{self as cpu, Threads};

/// Guard bytes before and after each operand and the workspace.
pub const GUARD: usize = 256;
/// Four of these are a number so large that a read of it shows.
pub const GUARD_BYTE: u8 = 0xFE;
/// Four of these are a NaN, which shows reads before the first write.
pub const POISON: u8 = 0xFF;

/// Numbers that look random, the same in every run: of ordinary size, and never so close to 0 that a finite difference
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
    In(Vec<u8>),
    /// Written, with this many bytes.
    Out(usize),
    InOut(Vec<u8>),
    /// In the same memory as the operand of this number.
    Same(usize),
}

pub fn input(values: &[f32]) -> Arg {
    Arg::In(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

pub fn labels(values: &[i32]) -> Arg {
    Arg::In(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Room for this many floats.
pub fn output(elements: usize) -> Arg {
    Arg::Out(4 * elements)
}

pub fn updated(values: &[f32]) -> Arg {
    Arg::InOut(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// Aligned memory between guards: bytes on either side that must not change, followed by bytes that stop the process if
/// touched, even for reading. As for tensors, padding to a multiple of 256 follows.
struct Memory {
    map: *mut u8,
    bytes: usize,
    start: usize,
    len: usize,
}

/// Bytes that stop the process if touched; a multiple of any page size.
const FORBIDDEN: usize = 1 << 18;

impl Memory {
    fn new(len: usize, content: Option<&[u8]>) -> Memory {
        let open = (GUARD + len.next_multiple_of(256)).next_multiple_of(FORBIDDEN);
        let (bytes, start) = (open + FORBIDDEN, open - len.next_multiple_of(256));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, of which this value is the only owner.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, private, -1, 0) };
        assert_ne!(map, libc::MAP_FAILED, "{bytes} bytes");
        let map = map.cast::<u8>();
        // SAFETY: the end of the mapping above, from a page's start.
        assert_eq!(unsafe { libc::mprotect(map.add(open).cast(), FORBIDDEN, libc::PROT_NONE) }, 0);
        let mut memory = Memory { map, bytes, start, len };
        memory.open()[start - GUARD..].fill(GUARD_BYTE);
        let own = &mut memory.open()[start..start + len];
        match content {
            Some(content) => own.copy_from_slice(content),
            None => own.fill(POISON),
        }
        memory
    }

    /// All bytes that may be touched.
    fn open(&mut self) -> &mut [u8] {
        // SAFETY: the mapping up to the forbidden bytes, which this value owns.
        unsafe { std::slice::from_raw_parts_mut(self.map, self.bytes - FORBIDDEN) }
    }

    fn at(&self) -> *mut u8 {
        self.map.wrapping_add(self.start)
    }

    fn bytes(&mut self) -> &[u8] {
        let own = self.start..self.start + self.len;
        &self.open()[own]
    }

    fn assert_guarded(&mut self, what: &str) {
        let (start, end) = (self.start, self.start + self.len);
        let open = self.open();
        let guarded = open[start - GUARD..start].iter().chain(&open[end..]).all(|b| *b == GUARD_BYTE);
        assert!(guarded, "{what} was overrun");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, owned by this value alone.
        unsafe { libc::munmap(self.map.cast(), self.bytes) };
    }
}

/// Kernels that compute.
#[derive(Clone, Copy, Debug)]
enum Kernels {
    /// The CPU's, on this many threads.
    Cpu(u32),
    /// The text of CUDA's, in an order of threads.
    Text(Order),
}

impl Kernels {
    fn workspace_bytes(self, call: &Call, float: Float) -> u64 {
        match (self, float) {
            (Kernels::Cpu(threads), Float::F32) => cpu::workspace_bytes(call, threads).0,
            (Kernels::Cpu(threads), Float::Bf16) => cpu::bf16::workspace_bytes(call, threads).0,
            (Kernels::Text(_), float) => kernels::workspace_bytes(call, float).0,
        }
    }

    /// # Safety
    /// As `plimsoll_runtime::cpu::kernels::run`, with guards around operands and workspace.
    unsafe fn run(self, call: &Call, float: Float, operands: &[*mut u8], workspace: *mut u8) {
        match self {
            Kernels::Cpu(threads) => {
                let pool = Threads::new(threads).expect("a few threads start");
                // SAFETY: passed on.
                unsafe {
                    match float {
                        Float::F32 => cpu::run(call, operands, workspace, &pool),
                        Float::Bf16 => cpu::bf16::run(call, operands, workspace, &pool),
                    }
                }
            }
            Kernels::Text(order) => {
                let text = text(float).expect("only where it is");
                // SAFETY: passed on.
                unsafe { text.run(call, operands, workspace, order) };
            }
        }
    }
}

/// Returns `true` if CUDA's kernels must give the CPU's bits: unless the formula leaves the order of sums open, or has a
/// sine, which a GPU rounds differently.
fn exact(call: &Call) -> bool {
    !matches!(
        call,
        Call::ConvForward { .. }
            | Call::ConvBackwardFilter { .. }
            | Call::ConvBackwardData { .. }
            | Call::BatchNormForward { .. }
            | Call::BatchNormBackward { .. }
            | Call::LayerNormForward { .. }
            | Call::LayerNormBackward { .. }
            | Call::RmsNormForward { .. }
            | Call::RmsNormBackward { .. }
            | Call::LrnForward { .. }
            | Call::LrnBackward { .. }
            | Call::BiasBackward { .. }
            | Call::AttentionForward { .. }
            | Call::AttentionBackward { .. }
            | Call::RotaryForward { .. }
            | Call::RotaryBackward { .. }
            | Call::SoftmaxCrossEntropyForward { .. }
    )
}

/// Asserts that operands match the call's table of operands: read or written, and their size.
fn assert_specified(call: &Call, float: Float, args: &[Arg]) {
    let specs = call.operands();
    assert_eq!(args.len(), specs.len(), "operands of {call:?}");
    for (arg, spec) in args.iter().zip(specs) {
        let (told, bytes) = match arg {
            Arg::In(bytes) => (spec.access == Access::Read, bytes.len()),
            Arg::Out(bytes) => (spec.access == Access::Write, *bytes),
            Arg::InOut(bytes) => (spec.access.writes(), bytes.len()),
            Arg::Same(_) => continue,
        };
        assert!(told, "{call:?} does not {:?} `{}`", spec.access, spec.name);
        assert_eq!(bytes as u64, spec.bytes_in(float).0, "bytes of `{}` of {call:?}", spec.name);
    }
}

/// Runs a call, and returns the operands' contents afterwards. Panics if a guard or an input changed.
fn execute(call: &Call, float: Float, args: &[Arg], kernels: Kernels) -> Vec<Vec<u8>> {
    assert_specified(call, float, args);
    let mut memories: Vec<Memory> = args
        .iter()
        .map(|arg| match arg {
            Arg::In(bytes) | Arg::InOut(bytes) => Memory::new(bytes.len(), Some(bytes)),
            Arg::Out(len) => Memory::new(*len, None),
            Arg::Same(_) => Memory::new(0, None),
        })
        .collect();
    let mut workspace = Memory::new(kernels.workspace_bytes(call, float) as usize, None);
    let owner = |i: usize| if let Arg::Same(j) = args[i] { j } else { i };
    let operands: Vec<*mut u8> = (0..args.len()).map(|i| memories[owner(i)].at()).collect();
    // SAFETY: the operands have the sizes of the tests' shapes, aligned and alive; guards find mistakes.
    unsafe { kernels.run(call, float, &operands, workspace.at()) };
    workspace.assert_guarded(&format!("workspace of {call:?} on {kernels:?}"));
    for (i, (memory, arg)) in memories.iter_mut().zip(args).enumerate() {
        memory.assert_guarded(&format!("operand {i} of {call:?} on {kernels:?}"));
        let shared = args.iter().any(|a| matches!(a, Arg::Same(j) if *j == i));
        if let Arg::In(bytes) = arg {
            assert!(shared || memory.bytes() == bytes, "{call:?} on {kernels:?} changed its input {i}");
        }
    }
    (0..args.len()).map(|i| memories[owner(i)].bytes().to_vec()).collect()
}

/// Returns `true` if a library may compute a call, in alternatives that differ by the order of sums.
fn multiplies(call: &Call) -> bool {
    matches!(
        call,
        Call::ConvForward { .. }
            | Call::ConvBackwardFilter { .. }
            | Call::ConvBackwardData { .. }
            | Call::AttentionForward { .. }
            | Call::AttentionBackward { .. }
    )
}

/// Runs a call on the CPU's kernels, on the text of the CUDA ones, and on a device in all its alternatives; returns the name
/// of each and the operands' contents afterwards. Asserts equal bits for any number of threads and any order of threads. The
/// CPU is the first.
pub fn outcomes(call: &Call, args: &[Arg]) -> Vec<Outcome> {
    check_in_bf16(call, args);
    let cpu = agreed(call, Float::F32, args, &[Kernels::Cpu(1), Kernels::Cpu(2), Kernels::Cpu(3)]);
    let others = cuda_outcomes(call, args);
    for (by, found) in others.iter().filter(|_| exact(call)) {
        for (i, (cpu, found)) in cpu.iter().zip(found).enumerate() {
            assert!(same(cpu, found), "operand {i} of {call:?} by {by}: {}", first_difference(cpu, found));
        }
    }
    [vec![("the CPU".to_owned(), cpu)], others].concat()
}

/// The same without the CPU, for calls that stop a run there.
pub fn cuda_outcomes(call: &Call, args: &[Arg]) -> Vec<Outcome> {
    [by_text(call, Float::F32, args), device::outcomes(call, Float::F32, args)].concat()
}

/// Runs a call on the text of CUDA's kernels, if it can run here and no library serves the call.
fn by_text(call: &Call, float: Float, args: &[Arg]) -> Vec<Outcome> {
    if !kernels::serve(call) || text(float).is_none() {
        return Vec::new();
    }
    let orders = [Kernels::Text(Order::Ascending), Kernels::Text(Order::Descending)];
    vec![("the text".to_owned(), agreed(call, float, args, &orders))]
}

/// Runs a call on kernels that must agree to the bit.
fn agreed(call: &Call, float: Float, args: &[Arg], kernels: &[Kernels]) -> Vec<Vec<u8>> {
    let first = execute(call, float, args, kernels[0]);
    for other in &kernels[1..] {
        let same = execute(call, float, args, *other) == first;
        assert!(same, "{call:?} in {float:?} on {other:?} and on {:?} differ", kernels[0]);
    }
    first
}

/// The CPU's panic message, the same on any number of threads. Fails if the call succeeds.
pub fn panics(call: &Call, args: &[Arg]) -> String {
    let said = [1, 3].map(|threads| {
        let run = std::panic::AssertUnwindSafe(|| execute(call, Float::F32, args, Kernels::Cpu(threads)));
        let payload = std::panic::catch_unwind(run).err().unwrap_or_else(|| panic!("{call:?} goes through"));
        *payload.downcast::<String>().expect("it says something")
    });
    assert_eq!(said[0], said[1], "{call:?}");
    let [said, _] = said;
    said
}

/// The operands with activations in bf16.
fn rounded(call: &Call, args: &[Arg]) -> Vec<Arg> {
    let halves = |bytes: &[u8]| floats(bytes).iter().flat_map(|v| bf16(*v).to_le_bytes()).collect();
    let of = |(arg, spec): (&Arg, OperandSpec)| match arg {
        Arg::In(bytes) if spec.feature_map => Arg::In(halves(bytes)),
        Arg::InOut(bytes) if spec.feature_map => Arg::InOut(halves(bytes)),
        Arg::Out(bytes) if spec.feature_map => Arg::Out(bytes / 2),
        other => other.clone(),
    };
    args.iter().zip(call.operands()).map(of).collect()
}

/// Results with activations in bf16, to which those of the f32 arguments are rounded.
pub fn outcomes_in_bf16(call: &Call, args: &[Arg]) -> Vec<Outcome> {
    let args = rounded(call, args);
    let cpu = ("the CPU".to_owned(), execute(call, Float::Bf16, &args, Kernels::Cpu(1)));
    let text = by_text(call, Float::Bf16, &args);
    [vec![cpu], text, device::outcomes(call, Float::Bf16, &args)].concat()
}

/// Asserts that CUDA's kernels agree with the CPU's on activations in bf16: the same bits if that is required in f32; else
/// numbers as near as in f32 before rounding, so that a few round to the other neighbour. A library may round once more.
fn check_in_bf16(call: &Call, args: &[Arg]) {
    let mut outcomes = outcomes_in_bf16(call, args).into_iter();
    let (_, cpu) = outcomes.next().expect("the CPU computes");
    for (by, found) in outcomes {
        for ((spec, cpu), found) in call.operands().iter().zip(&cpu).zip(&found) {
            let what = format!("`{}` of {call:?} in bf16 by {by}", spec.name);
            if !spec.access.writes() || cpu == found {
                continue;
            }
            if spec.name == "mask" && !exact(call) {
                // A number rounded to the other neighbour gives 0, or the ceiling.
                let others: u32 = cpu.iter().zip(found).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert!(others as usize <= 2 + cpu.len() / 20, "{what}: {others} bits are others");
                continue;
            }
            assert!(!["places", "mask"].contains(&spec.name), "{what} is not that of the CPU");
            let numbers = if spec.feature_map { wide_floats } else { floats };
            let [cpu, found] = [numbers(cpu), numbers(found)];
            if exact(call) {
                let differs = cpu.iter().zip(&found).find(|(a, b)| !is_same(**a, **b));
                assert_eq!(differs, None, "{what}, from the CPU");
                continue;
            }
            let largest = cpu.iter().fold(0.1 * terms(call).sqrt(), |most, v| most.max(f64::from(v.abs())));
            let step = if spec.feature_map { BF16_STEP } else { 0.0 };
            let by_library = multiplies(call) && by != "the text";
            let mut others = 0;
            for (a, b) in cpu.iter().zip(&found).filter(|(a, b)| !is_equal(**a, **b)) {
                let [a, b] = [a, b].map(|v| f64::from(*v));
                let own = 2.0 * OWN * largest + step * a.abs().max(b.abs());
                let near = if by_library { BF16_STEP * largest } else { own };
                assert!((a - b).abs() <= near, "{what}: {b} instead of the CPU's {a}");
                others += usize::from(spec.feature_map && !by_library);
            }
            assert!(others <= 2 + cpu.len() / 20, "{what}: {others} of {} are others", cpu.len());
        }
    }
}

/// Largest step from a bf16 to the next, as a share of it. A library may round a weight gradient, or a result before the
/// bias is added.
const BF16_STEP: f64 = 1.0 / 128.0;

/// The numbers in these bf16.
pub fn wide_floats(bytes: &[u8]) -> Vec<f32> {
    let half = |c: &[u8]| u32::from(u16::from_le_bytes([c[0], c[1]]));
    bytes.chunks_exact(2).map(|c| f32::from_bits(half(c) << 16)).collect()
}

/// Returns `true` for the same bits, or floats with NaN in the same places, whatever their bits.
fn same(cpu: &[u8], other: &[u8]) -> bool {
    let all_same = || floats(cpu).into_iter().zip(floats(other)).all(|(a, b)| is_same(a, b));
    cpu == other || (cpu.len().is_multiple_of(4) && all_same())
}

/// Returns `true` for equal sums: the order of a sum of zeros decides its sign.
fn is_equal(a: f32, b: f32) -> bool {
    a == b || is_same(a, b)
}

fn is_same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn first_difference(cpu: &[u8], other: &[u8]) -> String {
    let at = cpu.iter().zip(other).position(|(a, b)| a != b).unwrap_or(0);
    let word = |bytes: &[u8]| floats(&bytes[at / 4 * 4..]).first().copied();
    format!("from byte {at} on {:?} instead of the CPU's {:?}", word(other), word(cpu))
}

/// The CPU's result.
pub fn outcome(call: &Call, args: &[Arg]) -> Vec<Vec<u8>> {
    outcomes(call, args).swap_remove(0).1
}

/// Number of terms in an element of a call's parameter gradient; else 1.
fn terms(call: &Call) -> f64 {
    match call {
        Call::BatchNormBackward { shape, .. } | Call::LayerNormBackward { shape, .. } => shape.rows as f64,
        Call::BiasBackward { shape, .. } | Call::RmsNormBackward { shape, .. } => shape.rows as f64,
        Call::AttentionBackward { shape, .. } => (shape.length * shape.group()) as f64,
        Call::ConvBackwardFilter { shape, .. } => {
            shape.batch as f64 * f64::from(shape.output[0]) * f64::from(shape.output[1])
        }
        _ => 1.0,
    }
}

/// Tolerance of our own kernels.
const OWN: f64 = 1e-5;

/// Tolerance of a library, whose algorithms transform, and sum in a different order.
const LIBRARY: f64 = 2e-4;

/// Asserts that floats agree with f64 ones: up to a share of the largest, or of a tenth of the typical sum of this many
/// random terms, if they cancel out.
fn assert_close(what: &str, got: &[f32], expected: &[f64], terms: f64, share: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0.1 * terms.sqrt(), |a, b| a.max(b.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*g) - e).abs() / scale;
        assert!(error < share, "{what}: element {i} is {g}, expected {e} ({error:e} of the largest)");
    }
}

/// Runs a call, on the device in all its alternatives, and compares operands, given by number, with the reference.
pub fn check(call: &Call, args: &[Arg], expected: &[(usize, &[f64])]) {
    for (by, got) in outcomes(call, args) {
        let by_library = multiplies(call) && by.starts_with("the device");
        let share = if by_library { LIBRARY } else { OWN };
        for (operand, expected) in expected {
            let what = format!("operand {operand} of {call:?} by {by}");
            assert_close(&what, &floats(&got[*operand]), expected, terms(call), share);
        }
    }
}

/// Runs a call with `accumulate` off, into poison, and on, onto old values.
pub fn check_accumulate(call: impl Fn(bool) -> Call, args: &[Arg], written: usize, expected: &[f64]) {
    check_all_accumulate(call, args, &[(written, expected)]);
}

/// The same for several operands.
pub fn check_all_accumulate(call: impl Fn(bool) -> Call, args: &[Arg], expected: &[(usize, &[f64])]) {
    check(&call(false), args, expected);
    let (mut args, mut sums) = (args.to_vec(), Vec::new());
    for (written, expected) in expected {
        let old = Random::new(99).floats(expected.len());
        args[*written] = updated(&old);
        let sum = expected.iter().zip(old).map(|(e, o)| e + f64::from(o)).collect::<Vec<_>>();
        sums.push((*written, sum));
    }
    let sums: Vec<(usize, &[f64])> = sums.iter().map(|(written, sum)| (*written, &sum[..])).collect();
    check(&call(true), &args, &sums);
}

/// Asserts that writing operand `written` in place of operand `read` changes no bit of any output.
pub fn check_in_place(call: &Call, args: &[Arg], read: usize, written: usize) {
    let mut over = args.to_vec();
    over[written] = Arg::Same(read);
    for ((by, apart), (_, together)) in outcomes(call, args).into_iter().zip(outcomes(call, &over)) {
        for (i, arg) in args.iter().enumerate() {
            if matches!(arg, Arg::Out(_)) {
                assert!(apart[i] == together[i], "{call:?} by {by} differs in place, in operand {i}");
            }
        }
    }
}
