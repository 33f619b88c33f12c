//! cuBLAS: handles, scratch, and products of two matrices by columns, one or a batch, enqueued on the handle's stream.
//!
//! A product without scratch from the caller is refused: a real one would allocate some. Setting a stream resets the
//! scratch, as in cuBLAS. All of the given scratch is filled with garbage.
#![allow(non_snake_case, reason = "the names are cuBLAS's")]

use crate::cudnn::factor;
use crate::driver::here;
use crate::numbers::{Numbers, spoil};
use crate::state::{DriverState, state};
use crate::stream::Work;
use crate::sums::{self, Matrix, Order};
use crate::{control, lock, memory};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Mutex;

const NOT_INITIALIZED: u32 = 1;
const ALLOC_FAILED: u32 = 3;
const INVALID_VALUE: u32 = 7;
const EXECUTION_FAILED: u32 = 13;
const NOT_SUPPORTED: u32 = 15;

const TRANSPOSED: u32 = 1;
const FLOAT: u32 = 0;
const BFLOAT16: u32 = 14;
const IN_F32: u32 = 68;
const IN_TF32: u32 = 77;
const USUAL: c_int = -1;

/// Flag: partial sums are added in f32 for any result format.
const SUMS_IN_F32: u32 = 16;

/// Device memory of a handle.
const OF_HANDLE: u64 = 1 << 20;

/// Scratch starts at a multiple of this.
const ALIGNMENT: u64 = 256;

/// Partial sums of a product.
const LANES: usize = 16;

type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;
type Outcome<T = ()> = Result<T, u32>;

struct Handle {
    stream: usize,
    /// See [`SUMS_IN_F32`].
    mode: u32,
    memory: u64,
    /// Address and bytes.
    scratch: Option<(u64, u64)>,
}

static HANDLES: Mutex<BTreeMap<usize, Handle>> = Mutex::new(BTreeMap::new());

fn of<T>(handle: usize, get: impl FnOnce(&mut Handle) -> T) -> Outcome<T> {
    lock(&HANDLES).get_mut(&handle).map(get).ok_or(NOT_INITIALIZED)
}

/// Storage formats of factors and results, for supported pairs.
fn stored(factors: [u32; 2], results: u32) -> Outcome<[Numbers; 2]> {
    match (factors, results) {
        ([FLOAT, FLOAT], FLOAT) => Ok([Numbers::F32; 2]),
        ([BFLOAT16, BFLOAT16], BFLOAT16) => Ok([Numbers::Bf16; 2]),
        ([BFLOAT16, BFLOAT16], FLOAT) => Ok([Numbers::Bf16, Numbers::F32]),
        _ => Err(NOT_SUPPORTED),
    }
}

fn sides<const N: usize>(of: [c_int; N]) -> Outcome<[usize; N]> {
    let mut found = [0; N];
    for (found, n) in found.iter_mut().zip(of) {
        *found = usize::try_from(n).ok().filter(|n| *n > 0).ok_or(INVALID_VALUE)?;
    }
    Ok(found)
}

calls! {
    fn cublasCreate_v2(place: Place<usize>) {
        here().map_err(|_| NOT_INITIALIZED)?;
        state().refuse_in_captures().map_err(|_| ALLOC_FAILED)?;
        let memory = memory::allocate(OF_HANDLE).map_err(|_| ALLOC_FAILED)?;
        let mut handles = lock(&HANDLES);
        let handle = handles.keys().last().map_or(0x1000, |last| last + 8);
        handles.insert(handle, Handle { stream: 0, mode: 0, memory, scratch: None });
        place.ok_or(INVALID_VALUE)?.write(handle);
        Ok(())
    }

    fn cublasDestroy_v2(handle: usize) {
        let gone = lock(&HANDLES).remove(&handle).ok_or(NOT_INITIALIZED)?;
        memory::free(gone.memory).map_err(|_| INVALID_VALUE)
    }

    fn cublasSetMathMode(handle: usize, mode: u32) {
        of(handle, |handle| handle.mode = mode)
    }

    fn cublasSetStream_v2(handle: usize, stream: usize) {
        of(handle, |handle| (handle.stream, handle.scratch) = (stream, None))
    }

    fn cublasSetWorkspace_v2(handle: usize, address: u64, bytes: usize) {
        if !address.is_multiple_of(ALIGNMENT) || memory::device(address, bytes as u64).is_err() {
            return Err(INVALID_VALUE);
        }
        of(handle, |handle| handle.scratch = Some((address, bytes as u64)))
    }

    fn cublasGemmEx(
        handle: usize, of_a: u32, of_b: u32, m: c_int, n: c_int, k: c_int, alpha: *const f32, a: u64, type_a: u32, lda: c_int,
        b: u64, type_b: u32, ldb: c_int, beta: *const f32, c: u64, type_c: u32, ldc: c_int, arithmetic: u32, algorithm: c_int,
    ) {
        let [a, b, c] = [(a, type_a, lda), (b, type_b, ldb), (c, type_c, ldc)]
            .map(|(at, kind, leading)| Side { at, kind, leading, next: 0 });
        // SAFETY: the caller keeps the factors alive during the call.
        let factors = unsafe { [factor(alpha), factor(beta)] };
        multiply(handle, [of_a, of_b], [m, n, k, 1], factors, [a, b, c], arithmetic, algorithm)
    }

    fn cublasGemmStridedBatchedEx(
        handle: usize, of_a: u32, of_b: u32, m: c_int, n: c_int, k: c_int, alpha: *const f32, a: u64, type_a: u32, lda: c_int,
        next_a: i64, b: u64, type_b: u32, ldb: c_int, next_b: i64, beta: *const f32, c: u64, type_c: u32, ldc: c_int,
        next_c: i64, count: c_int, arithmetic: u32, algorithm: c_int,
    ) {
        let [a, b, c] = [(a, type_a, lda, next_a), (b, type_b, ldb, next_b), (c, type_c, ldc, next_c)]
            .map(|(at, kind, leading, next)| Side { at, kind, leading, next });
        // SAFETY: the caller keeps the factors alive during the call.
        let factors = unsafe { [factor(alpha), factor(beta)] };
        multiply(handle, [of_a, of_b], [m, n, k, count], factors, [a, b, c], arithmetic, algorithm)
    }
}

/// A matrix as given: its address, its number format, and the distances in elements between columns and between consecutive
/// products.
#[derive(Clone, Copy)]
struct Side {
    at: u64,
    kind: u32,
    leading: c_int,
    next: i64,
}

/// Several products of m x n x k, each with its own matrices.
fn multiply(
    handle: usize,
    transposed: [u32; 2],
    lengths: [c_int; 4],
    [alpha, old]: [Option<f32>; 2],
    given: [Side; 3],
    arithmetic: u32,
    algorithm: c_int,
) -> Outcome {
    let (stream, mode, scratch) = of(handle, |handle| (handle.stream, handle.mode, handle.scratch))?;
    here().map_err(|_| EXECUTION_FAILED)?;
    let scratch = scratch.filter(|(_, bytes)| *bytes >= 16 << 10).ok_or(ALLOC_FAILED)?;
    let [of_factor, of_result] = stored([given[0].kind, given[1].kind], given[2].kind)?;
    if of_result == Numbers::Bf16 && mode & SUMS_IN_F32 == 0 {
        eprintln!("stand-in: a product to bf16 whose parts may be added in bf16");
        return Err(NOT_SUPPORTED);
    }
    if ![IN_F32, IN_TF32].contains(&arithmetic) || algorithm != USUAL {
        return Err(NOT_SUPPORTED);
    }
    let old = old.filter(|_| alpha == Some(1.0)).ok_or(INVALID_VALUE)?;
    let [m, n, k, count] = sides(lengths)?;
    let [lda, ldb, ldc] = sides(given.map(|side| side.leading))?;
    let matrix = |of: u32, leading: usize| Matrix { transposed: of == TRANSPOSED, leading };
    let [of_a, of_b] = transposed;
    let (of_a, of_b, of_c) = (matrix(of_a, lda), matrix(of_b, ldb), matrix(0, ldc));
    let rows = |of: Matrix, rows: usize, columns: usize| if of.transposed { columns } else { rows };
    if lda < rows(of_a, m, k) || ldb < rows(of_b, k, n) || ldc < m {
        return Err(INVALID_VALUE);
    }
    let bytes = [of_factor, of_factor, of_result].map(Numbers::bytes);
    let spans = [of_a.span(m, k), of_b.span(k, n), of_c.span(m, n)];
    let product = |number: u64| {
        let step = |i: usize| bytes[i] as i64 * number as i64 * given[i].next;
        [0, 1, 2].map(|i| (given[i].at.wrapping_add_signed(step(i)), bytes[i] * spans[i] as u64))
    };
    let products: Vec<[(u64, u64); 3]> = (0..count as u64).map(product).collect();
    let apart = |a: (u64, u64), b: (u64, u64)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
    for [a, b, c] in &products {
        let sound = [a, b, c].iter().all(|(at, bytes)| memory::device(*at, *bytes).is_ok())
            && apart(*a, *c)
            && apart(*b, *c)
            && [a, b, c].iter().all(|of| apart(**of, scratch));
        if !sound {
            eprintln!("stand-in: a product of {a:?} and {b:?} to {c:?} with {scratch:?}");
            return Err(INVALID_VALUE);
        }
    }
    if DriverState::is_default(stream) {
        control::note("default stream");
    }
    let order = Order { lanes: LANES, tf32: arithmetic == IN_TF32 };
    let run = move || {
        spoil(scratch)?;
        for [a, b, c] in products.iter().copied() {
            // SAFETY: the output was found not to overlap the rest; other accesses to them meanwhile are the fault of a
            // schedule, as they would be on a device.
            unsafe {
                let (factors, mut to) = ([of_factor.read(a)?, of_factor.read(b)?], of_result.read(c)?);
                let [a, b] = &factors;
                sums::product([m, n, k], order, (a, of_a), (b, of_b), (&mut to, of_c), old);
                of_result.write(c, &to)?;
            }
        }
        spoil(scratch)
    };
    state().enqueue(stream, Work::Compute(Box::new(run))).map_err(|_| EXECUTION_FAILED)
}

/// Name of a code.
#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(code: u32) -> *const c_char {
    let text = match code {
        0 => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        ALLOC_FAILED => c"CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"CUBLAS_STATUS unknown",
    };
    text.as_ptr()
}

/// The same as a text.
#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(code: u32) -> *const c_char {
    let text = if code == 0 { c"success" } else { c"what the name says" };
    text.as_ptr()
}
