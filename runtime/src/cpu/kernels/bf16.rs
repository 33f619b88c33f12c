//! The kernels of the CPU on activations in bf16: the same arithmetic, in f32, between widening and rounding.
//!
//! Every operand that is an activation or its gradient ([`OperandSpec::feature_map`]) is bf16. Kernels widen the elements
//! that they read, compute in f32, and round each element that they write once, to the nearest, ties to even: if a gradient
//! is added to, the sum is rounded. The weights of convolutions and fully connected layers are also multiplied in bf16: the
//! f32 weight, rounded. All other operands stay f32 or integers.
//!
//! Kernels that go through activations element by element widen a few at a time; normalisations and dropout go in chunks,
//! with a buffer for one chunk in each lane (`maps.rs`). All other calls are cut into parts along their leading dimension
//! (samples, rows, elements), and the f32 kernel runs on one part after the other, widened into the workspace. The cuts
//! follow from the call's shape alone, so the number of threads never changes a result. A loss needs all rows for its mean,
//! and is one part.
//!
//! Deliberately has no arithmetic of its own, and allocates nothing: all of it lies in the call's workspace.

use super::elementwise::pieces;
use super::maps::{Map, narrow, round, widen};
use super::threads::Threads;
use super::vector::Ptr;
use plimsoll_ir::program::{Call, OperandSpec};
use plimsoll_ir::{Bytes, Float};

/// Number of activation elements of a part, over all operands, unless one sample or row has more.
const PART: u64 = 1 << 18;

/// Largest number of operands of a call.
const MOST: usize = 9;

/// Scratch memory of a call on this many threads.
pub fn workspace_bytes(call: &Call, threads: u32) -> Bytes {
    workspace_of(call, threads, PART)
}

/// Computes a call whose activations are bf16, and returns when it is done.
///
/// # Safety
/// As [`super::run`], with [`workspace_bytes`] of this module.
///
/// # Panics
/// As [`super::run`].
pub unsafe fn run(call: &Call, operands: &[*mut u8], workspace: *mut u8, threads: &Threads) {
    // SAFETY: passed on.
    unsafe { run_in_parts(call, operands, workspace, threads, PART) }
}

/// [`workspace_bytes`] for parts of this size.
fn workspace_of(call: &Call, threads: u32, part: u64) -> Bytes {
    let own = super::workspace_bytes(call, threads);
    if let Some(chunk) = super::chunk(call) {
        let maps = feature_maps(call).count() as u64;
        return own + Bytes(maps * buffers(chunk, threads));
    }
    if feature_maps(call).next().is_none() {
        return own;
    }
    let of_parts = Parts::of(call, part).sizes().into_iter().map(|count| {
        let part = resized(call, count, false);
        feature_maps(&part).map(|spec| aligned(spec.bytes)).sum::<Bytes>()
            + super::workspace_bytes(&part, threads)
    });
    weight_bytes(call) + of_parts.fold(Bytes::ZERO, Bytes::max)
}

/// [`run`] in parts of this size.
///
/// # Safety
/// As [`run`], with [`workspace_of`] parts of this size.
unsafe fn run_in_parts(call: &Call, operands: &[*mut u8], workspace: *mut u8, threads: &Threads, part: u64) {
    let call = &storable(call);
    if let Some(chunk) = super::chunk(call) {
        let own = super::workspace_bytes(call, threads.count()).0 as usize;
        let each = buffers(chunk, threads.count()) as usize;
        let specs = call.operands();
        let map = |operand: usize| {
            let before = specs[..operand].iter().filter(|spec| spec.feature_map).count();
            let buffers = Ptr::of(workspace.wrapping_add(own + before * each));
            Map::Bf16 { at: Ptr::of(operands[operand]), buffers, chunk }
        };
        // SAFETY: the caller's promise; after the call's own workspace there are buffers for every map and lane.
        return unsafe { super::run_on(call, operands, &map, workspace, threads) };
    }
    if feature_maps(call).next().is_none() {
        // SAFETY: the caller's promise: all operands have the same kinds as in f32.
        return unsafe { super::run(call, operands, workspace, threads) };
    }
    // SAFETY: the caller's promise; the workspace begins with room for the weight.
    let weight = unsafe { rounded_weight(call, operands, workspace, threads) };
    let workspace = workspace.wrapping_add(weight_bytes(call).0 as usize);
    let parts = Parts::of(call, part);
    let mut first = 0;
    while first < parts.units {
        let count = parts.each.min(parts.units - first);
        let here = Part { whole: call, call: resized(call, count, first > 0), first, weight };
        // SAFETY: the caller's promise; the part lies in the operands, and the workspace holds the largest.
        unsafe { here.run(operands, workspace, threads) };
        first += count;
    }
}

/// Replaces the call's ceiling by a bf16 number, so that clipped elements are still equal to it afterwards.
fn storable(call: &Call) -> Call {
    let mut call = *call;
    if let Call::ReluForward { ceiling, .. }
    | Call::ReluBackward { ceiling, .. }
    | Call::ReluMaskForward { ceiling, .. } = &mut call
    {
        *ceiling = Float::Bf16.nearest(*ceiling);
    }
    if let Call::BatchNormForward { then, .. } | Call::BatchNormBackward { then, .. } = &mut call
        && let Some(relu) = &mut then.relu
    {
        relu.ceiling = Float::Bf16.nearest(relu.ceiling);
    }
    call
}

/// Operands that are bf16.
fn feature_maps(call: &Call) -> impl Iterator<Item = OperandSpec> {
    call.operands().into_iter().filter(|spec| spec.feature_map)
}

/// Rounds up to the alignment of operands.
fn aligned(bytes: Bytes) -> Bytes {
    bytes.round_up(super::ALIGNMENT as u64)
}

/// Bytes of a buffer of this many f32 for each lane.
fn buffers(chunk: usize, threads: u32) -> u64 {
    aligned(Bytes(4 * chunk as u64 * u64::from(threads))).0
}

/// Index of the weight by which a call multiplies.
fn weight_of(call: &Call) -> Option<usize> {
    match call {
        Call::ConvForward { .. } | Call::ConvBackwardData { .. } => Some(call.operands().index("weight")),
        _ => None,
    }
}

/// Bytes of a call's rounded weight.
fn weight_bytes(call: &Call) -> Bytes {
    weight_of(call).map_or(Bytes::ZERO, |weight| aligned(call.operands()[weight].bytes))
}

/// The call's weight rounded to bf16 numbers, at the workspace's start; `None` if it has no weight.
///
/// # Safety
/// As [`run`].
unsafe fn rounded_weight(
    call: &Call,
    operands: &[*mut u8],
    workspace: *mut u8,
    threads: &Threads,
) -> Option<*mut u8> {
    let weight = weight_of(call)?;
    let (from, to) = (Ptr::<f32>::of(operands[weight]), Ptr::<f32>::of(workspace));
    pieces(call.operands()[weight].bytes.0 / 4, threads, |start, len| {
        // SAFETY: the caller's promise; pieces do not overlap.
        unsafe { round(from.at(start), to.at(start), len) };
    });
    Some(workspace)
}

/// Division of a call into parts of `each` units, of which the last may have fewer.
#[derive(Clone, Copy, Debug)]
struct Parts {
    units: u64,
    each: u64,
}

impl Parts {
    fn of(call: &Call, part: u64) -> Parts {
        let (units, grain) = cut(&mut call.clone()).map_or((1, 1), |(units, grain, _)| (*units, grain));
        let elements: u64 = feature_maps(call).map(|spec| spec.bytes.0 / 4).sum();
        let of_unit = elements.div_ceil(units.max(1)).max(1);
        let each = (part / of_unit / grain * grain).max(grain).min(units.max(1));
        Parts { units, each }
    }

    /// Sizes of the parts.
    fn sizes(self) -> [u64; 2] {
        [self.each.min(self.units), self.units % self.each]
    }
}

/// Units along which a call can be cut (samples, rows or elements): their number in the call, the multiple that a part must
/// be, and the flag of f32 sums over all units (gradients of parameters). `None` if all are needed at once.
fn cut(call: &mut Call) -> Option<(&mut u64, u64, Option<&mut bool>)> {
    Some(match call {
        Call::ConvForward { shape } | Call::ConvBackwardData { shape, .. } => (&mut shape.batch, 1, None),
        Call::ConvBackwardFilter { shape, accumulate } => (&mut shape.batch, 1, Some(accumulate)),
        Call::MaxPoolForward { shape }
        | Call::MaxPoolBackward { shape, .. }
        | Call::AvgPoolForward { shape }
        | Call::AvgPoolBackward { shape, .. } => (&mut shape.batch, 1, None),
        Call::EmbeddingForward { shape } => (&mut shape.batch, 1, None),
        Call::EmbeddingBackward { shape, accumulate } => (&mut shape.batch, 1, Some(accumulate)),
        Call::AttentionForward { shape } | Call::AttentionBackward { shape, .. } => {
            (&mut shape.batch, 1, None)
        }
        Call::RotaryForward { shape, .. } | Call::RotaryBackward { shape, .. } => (&mut shape.batch, 1, None),
        // A byte of the mask holds 8 elements.
        Call::ReluMaskForward { elements, .. } | Call::ReluMaskBackward { elements, .. } => {
            (elements, 8, None)
        }
        Call::BiasBackward { shape, accumulate } => (&mut shape.rows, 1, Some(accumulate)),
        Call::BatchNormInference { shape, .. }
        | Call::BiasForward { shape }
        | Call::LrnForward { shape, .. }
        | Call::LrnBackward { shape, .. }
        | Call::LstmForward { shape, .. }
        | Call::LstmBackward { shape, .. } => (&mut shape.rows, 1, None),
        Call::ConcatPart { rows, .. } | Call::SplitPart { rows, .. } => (rows, 1, None),
        _ => return None,
    })
}

/// The same call on `count` of its units. If `later` is set, f32 sums over all units are added to the operand, which the
/// earlier parts have written.
fn resized(call: &Call, count: u64, later: bool) -> Call {
    let mut part = *call;
    if let Some((units, _, accumulate)) = cut(&mut part) {
        *units = count;
        accumulate.into_iter().for_each(|accumulate| *accumulate |= later);
    }
    part
}

/// A part of a call.
struct Part<'a> {
    whole: &'a Call,
    call: Call,
    /// Units before it.
    first: u64,
    weight: Option<*mut u8>,
}

impl Part<'_> {
    /// Widens the part's inputs, computes it, and rounds its outputs.
    ///
    /// # Safety
    /// As [`run`] of the whole call; the workspace holds the part's activations in f32, and its own workspace.
    unsafe fn run(&self, operands: &[*mut u8], workspace: *mut u8, threads: &Threads) {
        let (specs, weight) = (self.call.operands(), weight_of(&self.call));
        let mut addresses = [std::ptr::null_mut(); MOST];
        let mut free = workspace;
        for (i, spec) in specs.iter().enumerate() {
            let there = operands[i].wrapping_add(self.offset(i) as usize);
            addresses[i] = match self.weight {
                Some(rounded) if weight == Some(i) => rounded,
                _ if spec.feature_map => free,
                _ => there,
            };
            if spec.feature_map {
                free = free.wrapping_add(aligned(spec.bytes).0 as usize);
            }
            // The first part of a concatenation is declared to overwrite all of y; the channels of the others must stay.
            let kept = spec.access.reads() || matches!(self.call, Call::ConcatPart { .. });
            if spec.feature_map && kept {
                let (from, to) = (Ptr::<u16>::of(there), Ptr::<f32>::of(addresses[i]));
                pieces(spec.bytes.0 / 4, threads, |start, len| {
                    // SAFETY: the caller's promise; pieces do not overlap.
                    unsafe { widen(from.at(start), to.at(start), len) };
                });
            }
        }
        // SAFETY: the caller's promise: operands of the part's shapes, in f32, followed by its workspace.
        unsafe { super::run(&self.call, &addresses[..specs.len()], free, threads) };
        let written = |spec: &OperandSpec| spec.feature_map && spec.access.writes();
        for (i, spec) in specs.iter().enumerate().filter(|(_, spec)| written(spec)) {
            let there = operands[i].wrapping_add(self.offset(i) as usize);
            let (from, to) = (Ptr::<f32>::of(addresses[i]), Ptr::<u16>::of(there));
            pieces(spec.bytes.0 / 4, threads, |start, len| {
                // SAFETY: the caller's promise; pieces do not overlap.
                unsafe { narrow(from.at(start), to.at(start), len) };
            });
        }
    }

    /// Bytes of an operand before the part's own; 0 if all parts use the whole operand.
    fn offset(&self, operand: usize) -> u64 {
        let whole = self.whole.operands()[operand];
        let before = resized(self.whole, self.first, false).operands()[operand];
        if before.bytes == whole.bytes { 0 } else { before.bytes_in(Float::Bf16).0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::maps::rounded;
    use super::*;
    use plimsoll_ir::philox::{philox4x32, unit_f32};
    use plimsoll_ir::program::Access;
    use plimsoll_testing::every_call;

    /// 4-byte words, so that every element is aligned.
    type Words = Vec<u32>;

    fn words(bytes: Bytes) -> usize {
        bytes.0.div_ceil(4) as usize
    }

    /// Pseudo-random bytes that are valid for the operand: small numbers, tokens and labels below 3, arbitrary places and
    /// bits, hyperparameters.
    fn drawn(spec: &OperandSpec, number: u32) -> Words {
        let word = |i: usize| {
            let draw = philox4x32(5, [i as u32, number, 0, 0]);
            let value = |k: usize| 2.0 * unit_f32(draw[k]) - 1.0;
            match spec.name {
                "labels" | "tokens" => draw[0] % 3,
                "places" => draw[0] & 0x0303_0303,
                "mask" => draw[0],
                _ if spec.feature_map => u32::from(rounded(value(0))) << 16 | u32::from(rounded(value(1))),
                _ => (0.2 + value(0).abs()).to_bits(),
            }
        };
        (0..words(spec.bytes_in(Float::Bf16))).map(word).collect()
    }

    /// Contents of a call's operands after it ran in parts of this size.
    fn outcome(call: &Call, part: u64, threads: u32) -> Vec<Words> {
        let pool = Threads::new(threads).expect("a few threads start");
        let mut all: Vec<Words> = call.operands().iter().zip(0..).map(|(s, n)| drawn(s, n)).collect();
        let operands: Vec<*mut u8> = all.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
        let mut workspace = vec![f32::NAN.to_bits(); words(workspace_of(call, threads, part)) + 1];
        *workspace.last_mut().expect("one more") = 0x1234_5678;
        // SAFETY: operands and workspace have the sizes that the call requires.
        unsafe { run_in_parts(call, &operands, workspace.as_mut_ptr().cast(), &pool, part) };
        assert_eq!(workspace.last(), Some(&0x1234_5678), "{call:?} overran its workspace");
        all
    }

    fn numbers(spec: &OperandSpec, words: &Words) -> Vec<f32> {
        let halves = |word: &u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
        match spec.feature_map {
            true => words.iter().flat_map(halves).take(spec.bytes.0 as usize / 4).collect(),
            false => words.iter().map(|word| f32::from_bits(*word)).collect(),
        }
    }

    /// Runs a call on these operands, in the order of its documentation.
    fn on(call: &Call, operands: [&mut Words; 3]) {
        let pool = Threads::new(1).expect("no thread is started");
        let operands = operands.map(|words| words.as_mut_ptr().cast());
        let count = call.operands().len();
        let mut workspace = vec![0u32; words(workspace_of(call, 1, PART))];
        // SAFETY: operands and workspace have the sizes that the call requires.
        unsafe { run_in_parts(call, &operands[..count], workspace.as_mut_ptr().cast(), &pool, PART) };
    }

    /// A ReLU keeps its output or a mask: both mark the same elements as clipped, for any ceiling.
    #[test]
    fn a_ceiling_that_bf16_lacks_clips_the_same_with_and_without_a_mask() {
        let elements = 1 << 12;
        let halves = |value: &dyn Fn(u32) -> f32| -> Words {
            let half = |i: u32| u32::from(rounded(value(i)));
            (0..elements as u32 / 2).map(|i| half(2 * i) | half(2 * i + 1) << 16).collect()
        };
        for ceiling in [1.3, 6.01, 0.7] {
            let drawn = |i: u32| 2.0 * ceiling * (i as f32 / elements as f32) - 0.3;
            let mut x = halves(&drawn);
            let mut dy = halves(&|_| 1.0);
            let mut mask = vec![0; x.len()];
            let [mut y, mut dx, mut masked_y, mut masked_dx] = [(); 4].map(|()| vec![0; x.len()]);
            on(&Call::ReluForward { elements, ceiling }, [&mut x, &mut y, &mut mask]);
            on(&Call::ReluMaskForward { elements, ceiling }, [&mut x, &mut masked_y, &mut mask]);
            let accumulate = false;
            on(&Call::ReluBackward { elements, ceiling, accumulate }, [&mut y, &mut dy, &mut dx]);
            on(&Call::ReluMaskBackward { elements, accumulate }, [&mut mask, &mut dy, &mut masked_dx]);
            assert_eq!(y, masked_y, "{ceiling}");
            assert_eq!(dx, masked_dx, "{ceiling}");
            let clipped = dx.iter().filter(|word| **word == 0).count();
            assert!(clipped > dx.len() / 3, "{ceiling}: gradients of clipped elements are 0");
        }
    }

    /// Any division of a call gives the same activations, and the same other results except for the order of f32 sums.
    #[test]
    fn parts_of_a_call_give_what_the_whole_gives() {
        let mut cut = 0;
        for call in every_call() {
            let whole = outcome(&call, PART, 1);
            for part in [1, 40, 150] {
                cut += usize::from(Parts::of(&call, part).each < Parts::of(&call, part).units);
                assert_eq!(outcome(&call, part, 1), outcome(&call, part, 3), "{call:?} on 1 and 3 threads");
                let found = outcome(&call, part, 2);
                for ((spec, whole), found) in call.operands().iter().zip(&whole).zip(&found) {
                    if spec.feature_map
                        || spec.access == Access::Read
                        || ["mask", "places"].contains(&spec.name)
                    {
                        assert_eq!(whole, found, "`{}` of {call:?} in parts of {part}", spec.name);
                        continue;
                    }
                    for (a, b) in numbers(spec, whole).into_iter().zip(numbers(spec, found)) {
                        assert!(
                            (a - b).abs() <= 1e-5 * (1.0 + a.abs()),
                            "`{}` of {call:?}: {a}, {b}",
                            spec.name
                        );
                    }
                }
            }
        }
        assert!(cut > 50, "{cut} calls were cut");
    }

    /// On the same numbers, the f32 kernel gives the results that are rounded here.
    #[test]
    fn feature_maps_are_what_f32_kernels_give_rounded() {
        for call in every_call() {
            let specs = call.operands();
            let found = outcome(&call, PART, 1);
            let weight = weight_of(&call);
            let mut all: Vec<Words> = (0..)
                .zip(specs.iter())
                .map(|(n, spec)| {
                    let drawn = drawn(spec, n);
                    let wide =
                        |drawn: &Words| numbers(spec, drawn).into_iter().map(f32::to_bits).collect::<Words>();
                    match () {
                        () if weight == Some(n as usize) => {
                            drawn.iter().map(|w| u32::from(rounded(f32::from_bits(*w))) << 16).collect()
                        }
                        () if spec.feature_map => wide(&drawn),
                        () => drawn,
                    }
                })
                .collect();
            let operands: Vec<*mut u8> = all.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
            let mut workspace = vec![0u32; words(super::super::workspace_bytes(&call, 1))];
            let pool = Threads::new(1).expect("no thread is started");
            // SAFETY: operands and workspace have the sizes that the call requires.
            unsafe { super::super::run(&call, &operands, workspace.as_mut_ptr().cast(), &pool) };
            for ((i, spec), found) in specs.iter().enumerate().zip(&found) {
                if !spec.access.writes() {
                    continue;
                }
                let expected = match spec.feature_map {
                    true => all[i]
                        .iter()
                        .map(|w| f32::from_bits(u32::from(rounded(f32::from_bits(*w))) << 16))
                        .collect(),
                    false => numbers(spec, &all[i]),
                };
                let bits = |all: Vec<f32>| all.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert_eq!(bits(numbers(spec, found)), bits(expected), "`{}` of {call:?}", spec.name);
            }
        }
    }
}
