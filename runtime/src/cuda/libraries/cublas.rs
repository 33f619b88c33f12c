//! cuBLAS: the matrix products of fully connected layers and 1x1 convolutions, and batches of products for attention.
//!
//! Its scratch is a part of the pool, like every kernel's, set before each product. So it allocates nothing in an
//! iteration, and a product gives the same bits at any scratch address.
//!
//! Deliberately does not transpose anything. cuBLAS is column-major, so our row-major matrix is its own transpose there;
//! each pass is one product.

use super::super::driver::{Context, CudaStream, Handle, given_back, words_at};
use super::super::error::{Capability, Refusal};
use super::super::presence::{CUBLAS, CUBLAS_12, Search};
use super::super::table::{CublasFunctions, call};
use super::{Arithmetic, Operands, Pass, int, ints};
use crate::error::Error;
use cudarc::cublas::sys::{
    cublasComputeType_t, cublasContext, cublasGemmAlgo_t, cublasMath_t, cublasOperation_t, cudaDataType_t,
};
use plimsoll_ir::program::{ConvShape, STORAGE_ALIGNMENT};
use plimsoll_ir::{Bytes, Float};
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

/// Scratch that NVIDIA recommends (cuBLAS documentation, `cublasSetWorkspace`) for devices of capability 9.0 or later.
const HOPPER: u64 = 32 << 20;

/// Scratch recommended for other devices.
const BEFORE: u64 = 4 << 20;

/// Least scratch; 16 KiB are enough for every routine to run.
const LEAST: u64 = 64 << 10;

/// Most useful parts of a product's inner side; scratch keeps the results of each part.
const PARTS: u64 = 64;

/// cuBLAS with its handle for one context.
pub(super) struct Cublas {
    functions: CublasFunctions,
    path: PathBuf,
    handle: Handle<cublasContext>,
    context: Arc<Context>,
    /// Most scratch of a product.
    most: u64,
}

/// One pass as cuBLAS's product of two matrices: c = a b, with m x n results and an inner side of k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    transposed: [bool; 2],
    m: c_int,
    n: c_int,
    k: c_int,
    /// Stride between columns of a, b and c.
    leading: [c_int; 3],
    pub(super) workspace: Bytes,
}

impl Product {
    /// Product for a pass of a convolution with a window of one pixel and a position for each pixel. `None` for others, and
    /// if a length exceeds cuBLAS's integers.
    ///
    /// Row-major, with P positions, C channels in and K out: y `[P][K]` = x `[P][C]` weight `[K][C]`^T,
    /// dx = dy weight, dweight = dy^T x.
    pub(super) fn of(pass: Pass, shape: &ConvShape, most: u64) -> Option<Product> {
        let window = &shape.window;
        let plain =
            window.size == [1, 1] && window.stride == [1, 1] && window.padding == [0, 0] && shape.groups <= 1;
        if !plain {
            return None;
        }
        let [p] = ints([shape.output.iter().fold(shape.batch, |n, side| n.saturating_mul((*side).into()))])?;
        let (c, k) = (int(shape.in_channels), int(shape.out_channels));
        let (transposed, [m, n, inner], leading) = match pass {
            Pass::Forward => ([true, false], [k, p, c], [c, c, k]),
            Pass::BackwardData => ([false, false], [c, p, k], [c, k, c]),
            Pass::BackwardFilter => ([false, true], [c, k, p], [c, k, c]),
        };
        let workspace = scratch(u64::from(m.unsigned_abs()).saturating_mul(n.unsigned_abs().into()), most);
        Some(Product { transposed, m, n, k: inner, leading, workspace })
    }
}

/// cuBLAS's name of a number format.
fn kind(float: Float) -> cudaDataType_t {
    match float {
        Float::F32 => cudaDataType_t::CUDA_R_32F,
        Float::Bf16 => cudaDataType_t::CUDA_R_16BF,
    }
}

/// Scratch of a product with this many results; at most `most`.
pub(super) fn scratch(results: u64, most: u64) -> Bytes {
    let parts = results.saturating_mul(4 * PARTS).clamp(LEAST, most);
    Bytes(parts.next_multiple_of(STORAGE_ALIGNMENT))
}

/// Products of the same sides, in cuBLAS's form: each computes c = a b, or adds to c.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Batch {
    /// For a and b.
    pub transposed: [bool; 2],
    pub m: c_int,
    pub n: c_int,
    pub k: c_int,
    /// Strides of a, b and c: between columns, and between products.
    pub leading: [c_int; 3],
    pub strides: [i64; 3],
    pub count: c_int,
    pub add: bool,
}

/// Finds cuBLAS without using a device.
fn find(search: &Search, driver: (u32, u32)) -> Result<(CublasFunctions, PathBuf), Error> {
    let wanted = if driver.0 < 13 { CUBLAS_12 } else { CUBLAS };
    let found = search.load(&wanted)?;
    Ok((CublasFunctions::of(&found, &wanted)?, found.leak()))
}

/// cuBLAS's file, or why it is missing.
pub(in crate::cuda) fn look(search: &Search, driver: (u32, u32)) -> Result<PathBuf, Error> {
    find(search, driver).map(|(_, path)| path)
}

impl Cublas {
    /// Finds cuBLAS and creates its handle, which allocates device memory.
    pub(super) fn start(
        search: &Search,
        context: &Arc<Context>,
        driver: (u32, u32),
        capability: Capability,
    ) -> Result<Cublas, Error> {
        let (functions, path) = find(search, driver)?;
        let mut raw = null_mut();
        // SAFETY: the call writes one handle, for the context of this thread.
        let status = unsafe { (functions.cublasCreate_v2)(&mut raw) };
        let most = if capability.major >= 9 { HOPPER } else { BEFORE };
        let (handle, context) = (Handle(raw), Arc::clone(context));
        let cublas = Cublas { functions, path, handle, context, most };
        let what_to_do = "most likely it is for a later version of CUDA than the driver: install that for it, or free memory \
                          on the device";
        let started = cublas.check("cublasCreate", status).and_then(|()| cublas.sum_in_f32());
        started.map_err(|refusal| refusal.at_start(&cublas.path, what_to_do))?;
        Ok(cublas)
    }

    /// Rounds bf16 results once: by default a product split along its sums may add its parts in bf16.
    fn sum_in_f32(&self) -> Result<(), Refusal> {
        let mode = cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle was created, and lives.
        unsafe { call!(self, cublasSetMathMode(self.handle.0, mode)) }
    }

    /// cuBLAS's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Most scratch of a product.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        let texts = [self.functions.cublasGetStatusName, self.functions.cublasGetStatusString];
        // SAFETY: each gives a text that lives as long as cuBLAS, or null.
        Refusal::check(call, status, || texts.map(|text| unsafe { words_at(text(status)) }))
    }

    /// Sets the stream of later calls; with `None`, nothing may be enqueued.
    pub(super) fn set_stream(&self, stream: Option<&CudaStream>) -> Result<(), Refusal> {
        let raw = stream.map_or(null_mut(), CudaStream::raw);
        // SAFETY: the stream lives: the caller holds it, sets it before enqueueing, and unsets it before it ends.
        unsafe { call!(self, cublasSetStream_v2(self.handle.0, raw.cast())) }
    }

    /// Enqueues a product on the stream that was set last. The arithmetic gives the storage of the factors; sums are always
    /// f32.
    ///
    /// # Safety
    /// The operands are addresses of matrices of the product's sides, and `workspace` of its scratch. All of it is live
    /// until the stream has passed the product, and only accesses ordered by events touch it.
    pub(super) unsafe fn enqueue(
        &self,
        pass: Pass,
        product: &Product,
        arithmetic: Arithmetic,
        results: Float,
        operands: Operands,
        workspace: u64,
    ) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { self.set_workspace(workspace, product.workspace)? };
        let (one, old) = (1.0f32, if operands.accumulate { 1.0f32 } else { 0.0 });
        let (one, old) = (from_ref(&one).cast(), from_ref(&old).cast());
        let Operands { x, w, y, .. } = operands;
        let [a, b, c] = match pass {
            Pass::Forward => [w, x, y],
            Pass::BackwardData => [w, y, x],
            Pass::BackwardFilter => [x, y, w],
        };
        let [of_a, of_b] = product.transposed.map(operation);
        let Product { m, n, k, leading: [lda, ldb, ldc], .. } = *product;
        let (from, to) = (kind(arithmetic.factors()), kind(results));
        let how = self::arithmetic(arithmetic == Arithmetic::Tf32);
        let (h, [a, b, c], usual) =
            (self.handle.0, [a, b, c].map(|at| at as *mut c_void), cublasGemmAlgo_t::CUBLAS_GEMM_DFALT);
        // SAFETY: the handle lives; the factors are read during the call, since pointers are to the host by default; the rest
        // is passed on to the caller.
        unsafe {
            call!(
                self,
                cublasGemmEx(
                    h, of_a, of_b, m, n, k, one, a, from, lda, b, from, ldb, old, c, to, ldc, how, usual
                )
            )
        }
    }

    /// Enqueues a batch of products on the stream that was set last.
    ///
    /// # Safety
    /// As [`Cublas::enqueue`]: `addresses` are those of the first a, b and c; `workspace` is an address and its bytes.
    pub(super) unsafe fn enqueue_batch(
        &self,
        batch: &Batch,
        tf32: bool,
        addresses: [u64; 3],
        workspace: (u64, Bytes),
    ) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller.
        unsafe { self.set_workspace(workspace.0, workspace.1)? };
        let (one, old) = (1.0f32, if batch.add { 1.0f32 } else { 0.0 });
        let (one, old) = (from_ref(&one).cast(), from_ref(&old).cast());
        let [ta, tb] = batch.transposed.map(operation);
        let Batch { m, n, k, leading: [la, lb, lc], strides: [sa, sb, sc], count, .. } = *batch;
        let (h, [a, b, c], float) =
            (self.handle.0, addresses.map(|at| at as *mut c_void), cudaDataType_t::CUDA_R_32F);
        let (how, usual) = (arithmetic(tf32), cublasGemmAlgo_t::CUBLAS_GEMM_DFALT);
        // SAFETY: as in `enqueue`.
        unsafe {
            call!(
                self,
                cublasGemmStridedBatchedEx(
                    h, ta, tb, m, n, k, one, a, float, la, sa, b, float, lb, sb, old, c, float, lc, sc,
                    count, how, usual
                )
            )
        }
    }

    /// Sets the scratch of the next product.
    ///
    /// # Safety
    /// The scratch is live until the stream has passed that product, and only accesses ordered by events touch it.
    unsafe fn set_workspace(&self, workspace: u64, bytes: Bytes) -> Result<(), Refusal> {
        // SAFETY: passed on to the caller; the scratch is aligned like every workspace of the pool.
        unsafe { call!(self, cublasSetWorkspace_v2(self.handle.0, workspace as *mut _, bytes.0 as usize)) }
    }
}

fn operation(transposed: bool) -> cublasOperation_t {
    if transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
}

fn arithmetic(tf32: bool) -> cublasComputeType_t {
    if tf32 {
        cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
    } else {
        cublasComputeType_t::CUBLAS_COMPUTE_32F
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        if self.handle.0.is_null() {
            return;
        }
        // SAFETY: made once by `start`; the streams that it enqueued on are idle.
        let destroy = |()| unsafe { call!(self, cublasDestroy_v2(self.handle.0)) };
        given_back(self.context.enter().and_then(destroy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::network::Window;

    fn shape(batch: u64, image: u32, channels: [u32; 2], window: Window) -> ConvShape {
        let [in_channels, out_channels] = channels;
        let (input, output) = ([image; 2], [image; 2]);
        ConvShape { batch, input, in_channels, output, out_channels, window, groups: 1, bias: false }
    }

    #[test]
    fn a_pass_is_one_product_where_windows_are_pixels() {
        let pixel = shape(2, 3, [5, 7], Window::square(1, 1, 0));
        let sides = |pass| Product::of(pass, &pixel, HOPPER).map(|p| ([p.m, p.n, p.k], p.leading));
        assert_eq!(sides(Pass::Forward), Some(([7, 18, 5], [5, 5, 7])));
        assert_eq!(sides(Pass::BackwardData), Some(([5, 18, 7], [5, 7, 5])));
        assert_eq!(sides(Pass::BackwardFilter), Some(([5, 7, 18], [5, 7, 5])));
        let no = |shape: ConvShape| assert_eq!(Product::of(Pass::Forward, &shape, HOPPER), None);
        no(shape(2, 3, [5, 7], Window::square(3, 1, 1)));
        no(shape(2, 3, [5, 7], Window::square(1, 2, 0)));
        no(ConvShape { groups: 2, ..shape(2, 3, [6, 8], Window::square(1, 1, 0)) });
        no(shape(1 << 31, 1, [5, 7], Window::square(1, 1, 0)));
    }

    #[test]
    fn scratch_is_what_is_recommended_and_less_for_small_products() {
        let workspace = |batch, channels| {
            let found =
                Product::of(Pass::Forward, &shape(batch, 1, [8, channels], Window::square(1, 1, 0)), HOPPER);
            found.expect("it is a product").workspace.0
        };
        assert_eq!(workspace(1, 10), LEAST);
        assert_eq!(workspace(4, 100), 4 * 4 * 100 * PARTS);
        assert_eq!(workspace(256, 4096), HOPPER);
    }
}
