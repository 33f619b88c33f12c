//! cuDNN: handles, descriptors, the algorithms of a convolution, and the three passes, enqueued on the handle's stream.
//!
//! Every algorithm adds in its own order (`sums.rs`) and has its own size of scratch, which it fills with garbage before and
//! after. Algorithms marked as non-deterministic add in a different order every time. Ranks depend on the batch, so that a
//! caller that relies on them is caught. Operands have to lie in live device memory and may not overlap.
#![allow(non_snake_case, reason = "the names are cuDNN's")]

use crate::driver::here;
use crate::numbers::{Numbers, spoil};
use crate::state::{DriverState, state};
use crate::stream::Work;
use crate::sums::{Order, Shape, backward_data, backward_filter, forward};
use crate::{control, lock, memory};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const NOT_INITIALIZED: u32 = 1001;
const BAD_PARAM: u32 = 2000;
const NOT_SUPPORTED: u32 = 3000;
const ALLOCATION_FAILED: u32 = 4004;
const EXECUTION_FAILED: u32 = 5000;

const FLOAT: u32 = 0;
const BFLOAT16: u32 = 9;
const NCHW: u32 = 0;
const NHWC: u32 = 1;
const CROSS_CORRELATION: u32 = 1;
const DEFAULT_MATH: u32 = 0;
const TENSOR_OP_MATH: u32 = 1;
const FMA_MATH: u32 = 3;

/// Device memory of a handle.
const OF_HANDLE: u64 = 1 << 20;

type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;
type Outcome<T = ()> = Result<T, u32>;

/// Object behind a handle.
enum Thing {
    Handle {
        stream: usize,
        memory: u64,
    },
    /// Sizes n, c, h, w, their strides, and the storage format.
    Tensor([usize; 4], [usize; 4], Numbers),
    /// Sizes k, c, h, w, `true` if they lie in this order, and the storage format.
    Filter([usize; 4], bool, Numbers),
    Convolution(Convolution),
}

#[derive(Clone, Copy, Default)]
struct Convolution {
    padding: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    math: u32,
}

/// Arithmetic of a convolution.
#[derive(Clone, Copy)]
struct Arithmetic {
    math: u32,
    /// Storage format of all three tensors.
    numbers: Numbers,
}

static THINGS: Mutex<BTreeMap<usize, Thing>> = Mutex::new(BTreeMap::new());

/// Number of sums added in an order that never repeats.
static DRAWN: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    Data,
    Filter,
}

/// An algorithm of a pass.
#[derive(Clone, Copy)]
struct Algorithm {
    number: u32,
    deterministic: bool,
    /// Only for windows of 3x3 that move by one position.
    winograd: bool,
    /// Only for planes.
    planes: bool,
    /// Bytes of scratch, in addition to those for each element of the weights.
    scratch: usize,
    of_weight: usize,
}

const fn algorithm(number: u32, deterministic: bool, scratch: usize, of_weight: usize) -> Algorithm {
    Algorithm { number, deterministic, winograd: false, planes: false, scratch, of_weight }
}

const WINOGRAD: Algorithm = Algorithm { winograd: true, ..algorithm(0, true, 3072, 8) };

impl Pass {
    /// Algorithms offered.
    fn algorithms(self) -> Vec<Algorithm> {
        match self {
            Pass::Forward => vec![
                algorithm(0, true, 0, 0),
                algorithm(1, true, 300, 4),
                Algorithm { number: 7, ..WINOGRAD },
            ],
            Pass::Data => vec![
                algorithm(0, false, 0, 0),
                algorithm(1, true, 700, 4),
                Algorithm { number: 5, ..WINOGRAD },
            ],
            Pass::Filter => vec![
                algorithm(0, false, 0, 0),
                algorithm(1, true, 100, 8),
                algorithm(3, false, 1000, 0),
                Algorithm { planes: true, ..algorithm(2, true, 2000, 4) },
                Algorithm { number: 5, ..WINOGRAD },
            ],
        }
    }

    fn algorithm(self, number: u32, shape: &Shape, math: u32) -> Outcome<Algorithm> {
        let found = self.algorithms().into_iter().find(|a| a.number == number && a.takes(shape));
        found.filter(|_| [DEFAULT_MATH, TENSOR_OP_MATH, FMA_MATH].contains(&math)).ok_or(NOT_SUPPORTED)
    }
}

impl Algorithm {
    fn takes(&self, shape: &Shape) -> bool {
        // Some are offered only for planes.
        if self.planes && !shape.planes {
            return false;
        }
        let plain = shape.window == [3, 3] && shape.stride == [1, 1] && shape.dilation == [1, 1];
        !self.winograd || plain && shape.groups == 1
    }

    /// Bytes of scratch; more with tensor cores.
    fn workspace(&self, shape: &Shape, math: u32) -> usize {
        let more = if math == FMA_MATH { 0 } else { 200 };
        self.scratch + self.of_weight * shape.elements()[1] + more
    }

    fn order(&self, Arithmetic { math, numbers }: Arithmetic) -> Order {
        let tf32 = math != FMA_MATH && numbers == Numbers::F32;
        if self.deterministic {
            return Order { lanes: 1 + self.number as usize, tf32 };
        }
        Order { lanes: 1 + DRAWN.fetch_add(1, Ordering::Relaxed) % 13, tf32 }
    }
}

/// Report on an algorithm, in the layout of `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
struct Perf {
    algorithm: u32,
    status: u32,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

fn put<T>(place: Place<T>, value: T) -> Outcome {
    place.ok_or(BAD_PARAM)?.write(value);
    Ok(())
}

fn add(place: Place<usize>, thing: Thing) -> Outcome {
    let mut things = lock(&THINGS);
    // A dead number is not reused while a later object exists.
    let handle = things.keys().last().map_or(0x1000, |last| last + 8);
    things.insert(handle, thing);
    put(place, handle)
}

fn remove(handle: usize, is: impl Fn(&Thing) -> bool) -> Outcome<Thing> {
    let mut things = lock(&THINGS);
    if !things.get(&handle).is_some_and(is) {
        return Err(BAD_PARAM);
    }
    things.remove(&handle).ok_or(BAD_PARAM)
}

/// Storage format for a data type of a tensor.
fn numbers(kind: u32) -> Outcome<Numbers> {
    match kind {
        FLOAT => Ok(Numbers::F32),
        BFLOAT16 => Ok(Numbers::Bf16),
        _ => Err(NOT_SUPPORTED),
    }
}

/// A length from C, at least `least`.
fn length(n: c_int, least: usize) -> Outcome<usize> {
    usize::try_from(n).ok().filter(|n| *n >= least).ok_or(BAD_PARAM)
}

fn lengths<const N: usize>(of: [c_int; N], least: usize) -> Outcome<[usize; N]> {
    let mut found = [0; N];
    for (found, n) in found.iter_mut().zip(of) {
        *found = length(n, least)?;
    }
    Ok(found)
}

/// Changes an existing object.
fn set<T>(handle: usize, change: impl FnOnce(&mut Thing) -> Option<T>) -> Outcome<T> {
    lock(&THINGS).get_mut(&handle).and_then(change).ok_or(BAD_PARAM)
}

fn stream_of(handle: usize) -> Outcome<usize> {
    set(handle, |thing| if let Thing::Handle { stream, .. } = thing { Some(*stream) } else { None })
}

/// Shape and arithmetic that the four descriptors give together.
fn shape(x: usize, w: usize, convolution: usize, y: usize) -> Outcome<(Shape, Arithmetic)> {
    let tensor = |handle| {
        set(handle, |thing| if let Thing::Tensor(n, of, in_) = thing { Some((*n, *of, *in_)) } else { None })
    };
    let ([batch, channels, rows, columns], of_x, numbers) = tensor(x)?;
    let ([of_batch, filters, out_rows, out_columns], of_y, in_y) = tensor(y)?;
    let ([k, depth, height, width], planes, in_w) = set(w, |thing| match thing {
        Thing::Filter(n, planes, in_) => Some((*n, *planes, *in_)),
        _ => None,
    })?;
    // There is no f32 gradient of weights from bf16 activations.
    if [in_y, in_w] != [numbers; 2] {
        return Err(NOT_SUPPORTED);
    }
    let c = set(convolution, |thing| if let Thing::Convolution(c) = thing { Some(*c) } else { None })?;
    let shape = Shape {
        batch,
        input: [rows, columns, channels],
        output: [out_rows, out_columns, filters],
        window: [height, width],
        padding: c.padding,
        stride: c.stride,
        dilation: c.dilation,
        groups: c.groups,
        strides: [of_x, of_y].map(|[n, c, h, w]| [n, h, w, c]),
        planes,
    };
    // Images have the layout of the weights.
    if [of_x, of_y].iter().any(|[_, c, _, w]| *(if planes { w } else { c }) != 1) {
        return Err(NOT_SUPPORTED);
    }
    let fits = |side: usize| {
        let span = shape.dilation[side] * (shape.window[side] - 1) + 1;
        let room = (shape.input[side] + 2 * shape.padding[side]).checked_sub(span);
        room.is_some_and(|room| room / shape.stride[side] + 1 == shape.output[side])
    };
    let agrees = of_batch == batch && filters == k && depth * c.groups == channels && k % c.groups == 0;
    if !agrees || batch == 0 || depth == 0 || c.groups == 0 || !fits(0) || !fits(1) {
        return Err(BAD_PARAM);
    }
    Ok((shape, Arithmetic { math: c.math, numbers }))
}

/// Reports all algorithms of a pass, as the heuristic does: in an order that depends on the shape.
fn rank(
    pass: Pass,
    (shape, Arithmetic { math, .. }): (Shape, Arithmetic),
    room: c_int,
    count: Place<c_int>,
    results: *mut Perf,
) -> Outcome {
    let mut told: Vec<Perf> = Vec::new();
    // Variants with tensor cores are listed in addition to those without.
    let maths = match math {
        FMA_MATH => vec![FMA_MATH],
        TENSOR_OP_MATH => vec![DEFAULT_MATH, TENSOR_OP_MATH, FMA_MATH],
        _ => vec![DEFAULT_MATH, FMA_MATH],
    };
    for number in 0..8 {
        let found = pass.algorithm(number, &shape, math);
        for math in &maths {
            told.push(Perf {
                algorithm: number,
                status: found.map_or_else(|status| status, |_| 0),
                time: -1.0,
                memory: found.map_or(0, |a| a.workspace(&shape, *math)),
                determinism: found.map_or(0, |a| u32::from(a.deterministic)),
                math: *math,
                reserved: [0; 3],
            });
        }
    }
    if shape.batch % 2 == 1 {
        told.reverse();
    }
    told.truncate(length(room, 1)?);
    put(count, told.len() as c_int)?;
    if results.is_null() {
        return Err(BAD_PARAM);
    }
    for (at, perf) in told.into_iter().enumerate() {
        // SAFETY: the caller gives room for this many.
        unsafe { results.add(at).write(perf) };
    }
    Ok(())
}

fn workspace(
    pass: Pass,
    (shape, Arithmetic { math, .. }): (Shape, Arithmetic),
    number: u32,
    bytes: Place<usize>,
) -> Outcome {
    put(bytes, pass.algorithm(number, &shape, math)?.workspace(&shape, math))
}

/// Addresses of a pass's operands.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// Address and bytes of the input, the weights and the output.
    operands: [(u64, u64); 3],
    scratch: (u64, u64),
}

impl Places {
    /// Returns `true` if all of it lies in live memory and nothing overlaps.
    fn are_sound(&self) -> bool {
        let [x, w, y] = self.operands;
        let all = [x, w, y, self.scratch];
        let apart = |a: (u64, u64), b: (u64, u64)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
        all.iter().filter(|place| place.1 > 0).all(|(at, bytes)| memory::device(*at, *bytes).is_ok())
            && (0..4).all(|a| (0..a).all(|b| apart(all[a], all[b]) || all[a].1 == 0 || all[b].1 == 0))
    }
}

/// Reads a factor in host memory.
///
/// # Safety
/// It is null or points at a number.
pub unsafe fn factor(at: *const f32) -> Option<f32> {
    // SAFETY: as the caller promises.
    (!at.is_null()).then(|| unsafe { at.read_unaligned() })
}

/// Enqueues a pass.
fn convolve(
    handle: usize,
    pass: Pass,
    (shape, arithmetic): (Shape, Arithmetic),
    number: u32,
    [alpha, beta]: [*const f32; 2],
    operands: [u64; 3],
    scratch: (u64, usize),
) -> Outcome {
    let stream = stream_of(handle)?;
    here().map_err(|_| EXECUTION_FAILED)?;
    // SAFETY: the caller keeps the factors alive during the call.
    let [alpha, old] = unsafe { [factor(alpha), factor(beta)] };
    let old = old.filter(|_| alpha == Some(1.0)).ok_or(BAD_PARAM)?;
    let Arithmetic { math, numbers } = arithmetic;
    let algorithm = pass.algorithm(number, &shape, math)?;
    let needed = algorithm.workspace(&shape, math);
    let counts = shape.elements();
    let places = Places {
        operands: [0, 1, 2].map(|at| (operands[at], numbers.bytes() * counts[at] as u64)),
        scratch: (scratch.0, needed as u64),
    };
    if scratch.1 < needed || !places.are_sound() {
        eprintln!("stand-in: {pass:?} {number} with {places:?}, where {needed} bytes of scratch are needed");
        return Err(BAD_PARAM);
    }
    if DriverState::is_default(stream) {
        control::note("default stream");
    }
    let run = move || run(pass, &shape, algorithm.order(arithmetic), numbers, places, old);
    state().enqueue(stream, Work::Compute(Box::new(run))).map_err(|_| EXECUTION_FAILED)
}

fn run(
    pass: Pass,
    shape: &Shape,
    order: Order,
    numbers: Numbers,
    places: Places,
    old: f32,
) -> Result<(), String> {
    spoil(places.scratch)?;
    // SAFETY: the three were found not to overlap; other accesses to them meanwhile are the fault of a schedule, as they
    // would be on a device.
    unsafe {
        let [of_x, of_w, of_y] = places.operands;
        let (mut x, mut w, mut y) = (numbers.read(of_x)?, numbers.read(of_w)?, numbers.read(of_y)?);
        match pass {
            Pass::Forward => forward(shape, order, &x, &w, &mut y, old),
            Pass::Data => backward_data(shape, order, &y, &w, &mut x, old),
            Pass::Filter => backward_filter(shape, order, &x, &y, &mut w, old),
        }
        match pass {
            Pass::Forward => numbers.write(of_y, &y)?,
            Pass::Data => numbers.write(of_x, &x)?,
            Pass::Filter => numbers.write(of_w, &w)?,
        }
    }
    spoil(places.scratch)
}

calls! {
    fn cudnnCreate(handle: Place<usize>) {
        here().map_err(|_| NOT_INITIALIZED)?;
        state().refuse_in_captures().map_err(|_| EXECUTION_FAILED)?;
        let memory = memory::allocate(OF_HANDLE).map_err(|_| ALLOCATION_FAILED)?;
        add(handle, Thing::Handle { stream: 0, memory })
    }

    fn cudnnDestroy(handle: usize) {
        match remove(handle, |thing| matches!(thing, Thing::Handle { .. }))? {
            Thing::Handle { memory, .. } => memory::free(memory).map_err(|_| EXECUTION_FAILED),
            _ => Err(BAD_PARAM),
        }
    }

    fn cudnnSetStream(handle: usize, to: usize) {
        set(handle, |thing| if let Thing::Handle { stream, .. } = thing { *stream = to; Some(()) } else { None })
    }

    fn cudnnCreateTensorDescriptor(handle: Place<usize>) {
        add(handle, Thing::Tensor([0; 4], [0; 4], Numbers::F32))
    }

    fn cudnnDestroyTensorDescriptor(handle: usize) {
        remove(handle, |thing| matches!(thing, Thing::Tensor(..))).map(|_| ())
    }

    fn cudnnSetTensor4dDescriptorEx(
        handle: usize, kind: u32, n: c_int, c: c_int, h: c_int, w: c_int, of_n: c_int, of_c: c_int, of_h: c_int, of_w: c_int,
    ) {
        let strides = lengths([of_n, of_c, of_h, of_w], 1)?;
        let to = Thing::Tensor(lengths([n, c, h, w], 1)?, strides, numbers(kind)?);
        set(handle, |thing| if let Thing::Tensor(..) = thing { *thing = to; Some(()) } else { None })
    }

    fn cudnnCreateFilterDescriptor(handle: Place<usize>) {
        add(handle, Thing::Filter([0; 4], false, Numbers::F32))
    }

    fn cudnnDestroyFilterDescriptor(handle: usize) {
        remove(handle, |thing| matches!(thing, Thing::Filter(..))).map(|_| ())
    }

    fn cudnnSetFilter4dDescriptor(
        handle: usize, kind: u32, format: u32, k: c_int, c: c_int, h: c_int, w: c_int,
    ) {
        if ![NCHW, NHWC].contains(&format) {
            return Err(NOT_SUPPORTED);
        }
        let to = Thing::Filter(lengths([k, c, h, w], 1)?, format == NCHW, numbers(kind)?);
        set(handle, |thing| if let Thing::Filter(..) = thing { *thing = to; Some(()) } else { None })
    }

    fn cudnnCreateConvolutionDescriptor(handle: Place<usize>) {
        add(handle, Thing::Convolution(Convolution::default()))
    }

    fn cudnnDestroyConvolutionDescriptor(handle: usize) {
        remove(handle, |thing| matches!(thing, Thing::Convolution(_))).map(|_| ())
    }

    fn cudnnSetConvolution2dDescriptor(
        handle: usize, pad_h: c_int, pad_w: c_int, u: c_int, v: c_int, dilation_h: c_int, dilation_w: c_int,
        mode: u32, kind: u32,
    ) {
        if mode != CROSS_CORRELATION || kind != FLOAT {
            return Err(NOT_SUPPORTED);
        }
        let to = Convolution {
            padding: lengths([pad_h, pad_w], 0)?,
            stride: lengths([u, v], 1)?,
            dilation: lengths([dilation_h, dilation_w], 1)?,
            groups: 1,
            math: DEFAULT_MATH,
        };
        set(handle, |thing| if let Thing::Convolution(c) = thing { *c = to; Some(()) } else { None })
    }

    fn cudnnSetConvolutionGroupCount(handle: usize, groups: c_int) {
        let to = length(groups, 1)?;
        set(handle, |thing| if let Thing::Convolution(c) = thing { c.groups = to; Some(()) } else { None })
    }

    fn cudnnSetConvolutionMathType(handle: usize, math: u32) {
        set(handle, |thing| if let Thing::Convolution(c) = thing { c.math = math; Some(()) } else { None })
    }
}

// Algorithms, and the passes themselves.
calls! {
    fn cudnnGetConvolutionForwardAlgorithm_v7(
        handle: usize, x: usize, w: usize, convolution: usize, y: usize, room: c_int, count: Place<c_int>, results: *mut Perf,
    ) {
        stream_of(handle)?;
        rank(Pass::Forward, shape(x, w, convolution, y)?, room, count, results)
    }

    fn cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle: usize, w: usize, dy: usize, convolution: usize, dx: usize, room: c_int, count: Place<c_int>, results: *mut Perf,
    ) {
        stream_of(handle)?;
        rank(Pass::Data, shape(dx, w, convolution, dy)?, room, count, results)
    }

    fn cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        handle: usize, x: usize, dy: usize, convolution: usize, dw: usize, room: c_int, count: Place<c_int>, results: *mut Perf,
    ) {
        stream_of(handle)?;
        rank(Pass::Filter, shape(x, dw, convolution, dy)?, room, count, results)
    }

    fn cudnnGetConvolutionForwardWorkspaceSize(
        handle: usize, x: usize, w: usize, convolution: usize, y: usize, number: u32, bytes: Place<usize>,
    ) {
        stream_of(handle)?;
        workspace(Pass::Forward, shape(x, w, convolution, y)?, number, bytes)
    }

    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        handle: usize, w: usize, dy: usize, convolution: usize, dx: usize, number: u32, bytes: Place<usize>,
    ) {
        stream_of(handle)?;
        workspace(Pass::Data, shape(dx, w, convolution, dy)?, number, bytes)
    }

    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
        handle: usize, x: usize, dy: usize, convolution: usize, dw: usize, number: u32, bytes: Place<usize>,
    ) {
        stream_of(handle)?;
        workspace(Pass::Filter, shape(x, dw, convolution, dy)?, number, bytes)
    }

    fn cudnnConvolutionForward(
        handle: usize, alpha: *const f32, of_x: usize, x: u64, of_w: usize, w: u64, convolution: usize, number: u32,
        scratch: u64, bytes: usize, beta: *const f32, of_y: usize, y: u64,
    ) {
        let shape = shape(of_x, of_w, convolution, of_y)?;
        convolve(handle, Pass::Forward, shape, number, [alpha, beta], [x, w, y], (scratch, bytes))
    }

    fn cudnnConvolutionBackwardData(
        handle: usize, alpha: *const f32, of_w: usize, w: u64, of_dy: usize, dy: u64, convolution: usize, number: u32,
        scratch: u64, bytes: usize, beta: *const f32, of_dx: usize, dx: u64,
    ) {
        let shape = shape(of_dx, of_w, convolution, of_dy)?;
        convolve(handle, Pass::Data, shape, number, [alpha, beta], [dx, w, dy], (scratch, bytes))
    }

    fn cudnnConvolutionBackwardFilter(
        handle: usize, alpha: *const f32, of_x: usize, x: u64, of_dy: usize, dy: u64, convolution: usize, number: u32,
        scratch: u64, bytes: usize, beta: *const f32, of_dw: usize, dw: u64,
    ) {
        let shape = shape(of_x, of_dw, convolution, of_dy)?;
        convolve(handle, Pass::Filter, shape, number, [alpha, beta], [x, dw, dy], (scratch, bytes))
    }
}

/// Version 9.1.0.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    90_100
}

/// Meaning of a code.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"CUDNN_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        ALLOCATION_FAILED => c"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_STATUS unknown",
    };
    text.as_ptr()
}

/// Only the code of an error is kept.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetLastErrorString(room: *mut c_char, length: usize) {
    if !room.is_null() && length > 0 {
        // SAFETY: the caller gives this much room.
        unsafe { room.write(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::packed;

    #[test]
    fn places_that_overlap_or_are_not_there_are_refused() {
        let at = memory::allocate(4096).expect("there is room");
        let places = |w: u64, scratch: (u64, u64)| Places {
            operands: [(at, 1024), (at + w, 512), (at + 2048, 1024)],
            scratch,
        };
        assert!(places(1024, (at + 1536, 512)).are_sound());
        assert!(places(1024, (0, 0)).are_sound(), "no scratch lies nowhere");
        assert!(!places(1000, (0, 0)).are_sound(), "the weights begin in the input");
        assert!(!places(1024, (at + 1536, 513)).are_sound(), "the scratch reaches into the output");
        assert!(!places(1024, (at + 3072, 1025)).are_sound(), "the scratch leaves the allocation");
        memory::free(at).expect("it was allocated");
        assert!(!places(1024, (at + 1536, 512)).are_sound());
    }

    #[test]
    fn every_algorithm_of_a_pass_asks_for_scratch_of_its_own_size() {
        let shape = Shape {
            batch: 2,
            input: [5, 5, 3],
            output: [5, 5, 4],
            window: [3, 3],
            padding: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            groups: 1,
            strides: [packed([5, 5, 3]), packed([5, 5, 4])],
            planes: false,
        };
        for pass in [Pass::Forward, Pass::Data, Pass::Filter] {
            let of = |a: &Algorithm| a.workspace(&shape, FMA_MATH);
            let mut sizes: Vec<usize> = pass.algorithms().iter().map(of).collect();
            sizes.sort_unstable();
            sizes.dedup();
            assert_eq!(sizes.len(), pass.algorithms().len(), "{pass:?}");
            assert!(pass.algorithm(2, &shape, FMA_MATH).is_err());
            let on_planes = Shape { planes: true, ..shape };
            assert_eq!(pass.algorithm(2, &on_planes, FMA_MATH).is_ok(), pass == Pass::Filter);
        }
    }
}
