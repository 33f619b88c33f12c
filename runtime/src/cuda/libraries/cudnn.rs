//! cuDNN: the parts that convolutions need, by the C interface common to all versions 9.
//!
//! Activations are NHWC and weights KRSC, as everywhere here, unless a method converts them for cuDNN ([`Layout`]). cuDNN's
//! heuristic (`cudnnGet...Algorithm_v7`) lists the algorithms for a shape; it needs no memory and measures nothing. Each
//! algorithm's `WorkspaceSize` query gives its scratch. Descriptors are host memory, made when a call is requested and then
//! kept, so that an iteration only enqueues.
//!
//! Deliberately does not choose by rank. The heuristic ranks by shape and so by batch, but a call must have the same
//! alternatives in the same order in the profile, in the plan and in the run. So the order is fixed here, the generally
//! fast and deterministic algorithms first, and the profiler measures which is best.

use super::super::driver::{Context, CudaStream, Handle, given_back, words, words_at};
use super::super::error::Refusal;
use super::super::presence::{CUDNN, Search};
use super::super::table::{CudnnFunctions, call};
use super::{Arithmetic, Operands, Pass, int, ints};
use crate::error::Error;
use cudarc::cudnn::sys::{
    cudnnContext, cudnnConvolutionBwdDataAlgo_t as Data, cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgo_t as Filter, cudnnConvolutionBwdFilterAlgoPerf_t,
    cudnnConvolutionFwdAlgo_t as Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionMode_t,
    cudnnConvolutionStruct, cudnnDataType_t, cudnnFilterStruct, cudnnMathType_t as Math, cudnnTensorFormat_t,
    cudnnTensorStruct,
};
use plimsoll_ir::program::ConvShape;
use plimsoll_ir::{Bytes, Float};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

/// The algorithms of a pass, the usual one first, with their common names (cudnn_ops.h).
const FORWARD: [(Forward, &str); 8] = [
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, "implicit_precomp_gemm"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, "implicit_gemm"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, "winograd_nonfused"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, "winograd"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, "fft_tiling"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT, "fft"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_GEMM, "gemm"),
    (Forward::CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, "direct"),
];
const DATA: [(Data, &str); 6] = [
    (Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, "algo_1"),
    (Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, "algo_0"),
    (Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, "winograd_nonfused"),
    (Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, "winograd"),
    (Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING, "fft_tiling"),
    (Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, "fft"),
];
const FILTER: [(Filter, &str); 7] = [
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, "algo_1"),
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, "algo_0"),
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, "algo_3"),
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, "winograd_nonfused"),
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD, "winograd"),
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING, "fft_tiling"),
    (Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, "fft"),
];

/// Room for the heuristic's answer: each algorithm at most once for each kind of arithmetic.
const RANKED: usize = 24;

/// cuDNN, loaded, without a handle; descriptors need no more.
struct Library {
    functions: CudnnFunctions,
    path: PathBuf,
}

/// cuDNN with its handle for one context.
pub(super) struct Cudnn {
    library: Arc<Library>,
    handle: Handle<cudnnContext>,
    context: Arc<Context>,
}

/// The heuristic's answer for an algorithm: the struct in `cudnn_cnn.h` of each pass, with numbers in place of enums, which
/// a newer cuDNN may extend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Ranked {
    algorithm: u32,
    status: u32,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

const _: () = {
    assert!(size_of::<Ranked>() == size_of::<cudnnConvolutionFwdAlgoPerf_t>());
    assert!(size_of::<Ranked>() == size_of::<cudnnConvolutionBwdDataAlgoPerf_t>());
    assert!(size_of::<Ranked>() == size_of::<cudnnConvolutionBwdFilterAlgoPerf_t>());
    use std::mem::offset_of;
    assert!(offset_of!(Ranked, status) == offset_of!(cudnnConvolutionFwdAlgoPerf_t, status));
    assert!(offset_of!(Ranked, memory) == offset_of!(cudnnConvolutionFwdAlgoPerf_t, memory));
    assert!(offset_of!(Ranked, determinism) == offset_of!(cudnnConvolutionFwdAlgoPerf_t, determinism));
    assert!(offset_of!(Ranked, math) == offset_of!(cudnnConvolutionFwdAlgoPerf_t, mathType));
};

/// A descriptor, destroyed on drop.
struct Descriptor<T> {
    cudnn: Arc<Library>,
    raw: Handle<T>,
    destroy: unsafe extern "C" fn(*mut T) -> u32,
}

impl<T> Descriptor<T> {
    fn new(
        cudnn: &Arc<Library>,
        call: &'static str,
        create: unsafe extern "C" fn(*mut *mut T) -> u32,
        destroy: unsafe extern "C" fn(*mut T) -> u32,
    ) -> Result<Descriptor<T>, Refusal> {
        let mut raw = null_mut();
        // SAFETY: the call writes one handle.
        cudnn.check(call, unsafe { create(&mut raw) })?;
        Ok(Descriptor { cudnn: Arc::clone(cudnn), raw: Handle(raw), destroy })
    }
}

impl<T> Drop for Descriptor<T> {
    fn drop(&mut self) {
        // SAFETY: made once by `new`; cuDNN needs descriptors during its calls only.
        let status = unsafe { (self.destroy)(self.raw.0) };
        given_back(self.cudnn.check("cudnnDestroy...Descriptor", status));
    }
}

/// Layout of a convolution's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// NHWC and KRSC.
    Rows,
    /// NCHW and KCRS.
    Planes,
    /// As `Rows`, of one group only: the memory between its channels belongs to the others.
    OneGroup,
}

impl Layout {
    /// Batch, channels, rows and columns of a tensor, and their strides; `None` if a number exceeds cuDNN's integers.
    fn tensor(self, shape: &ConvShape, channels: u32, image: [u32; 2]) -> Option<[[c_int; 4]; 2]> {
        let (of_group, all) = (u64::from(self.of(shape, channels)), u64::from(channels));
        let [height, width] = image.map(u64::from);
        let strides = match self {
            Layout::Rows | Layout::OneGroup => [height * width * all, 1, width * all, all],
            Layout::Planes => [height * width * all, height * width, width, 1],
        };
        Some([ints([shape.batch, of_group, height, width])?, ints(strides)?])
    }

    /// Number of a tensor's channels in one call.
    fn of(self, shape: &ConvShape, channels: u32) -> u32 {
        if self == Layout::OneGroup { channels / shape.groups.max(1) } else { channels }
    }

    /// Number of groups in one call.
    fn groups(self, shape: &ConvShape) -> u32 {
        if self == Layout::OneGroup { 1 } else { shape.groups.max(1) }
    }
}

/// The input, weights and output of a convolution, including the one that the pass writes.
struct Tensors {
    x: Descriptor<cudnnTensorStruct>,
    w: Descriptor<cudnnFilterStruct>,
    y: Descriptor<cudnnTensorStruct>,
}

/// An algorithm for a pass at a shape, ready to enqueue.
pub(super) struct Algorithm {
    pub(super) name: &'static str,
    pub(super) workspace: Bytes,
    /// `true` if the same inputs give the same bits.
    pub(super) deterministic: bool,
    pass: Pass,
    number: u32,
    tensors: Arc<Tensors>,
    convolution: Descriptor<cudnnConvolutionStruct>,
}

/// Number and name of all algorithms of a pass, the usual one first.
fn algorithms_of(pass: Pass) -> Vec<(u32, &'static str)> {
    match pass {
        Pass::Forward => FORWARD.map(|(algorithm, name)| (algorithm as u32, name)).to_vec(),
        Pass::BackwardData => DATA.map(|(algorithm, name)| (algorithm as u32, name)).to_vec(),
        Pass::BackwardFilter => FILTER.map(|(algorithm, name)| (algorithm as u32, name)).to_vec(),
    }
}

/// The math type for the query to the heuristic. `CUDNN_DEFAULT_MATH` lets tensor cores take f32 numbers as TF32, and no
/// more; `CUDNN_TENSOR_OP_MATH` lets them take numbers of 16 bits, and converts none (cuDNN's API reference,
/// `cudnnMathType_t`).
fn asked(arithmetic: Arithmetic) -> Math {
    match arithmetic {
        Arithmetic::F32 => Math::CUDNN_FMA_MATH,
        Arithmetic::Tf32 => Math::CUDNN_DEFAULT_MATH,
        Arithmetic::Bf16 => Math::CUDNN_TENSOR_OP_MATH,
    }
}

/// The math type to run an algorithm with, from the heuristic's answers for it; `None` if it needs one that was not
/// requested. In f32 no tensor core takes part, whatever the heuristic calls it; with TF32 and bf16 they are used if
/// possible.
fn math(arithmetic: Arithmetic, told: &[Ranked]) -> Option<(Math, Ranked)> {
    use Math::{CUDNN_DEFAULT_MATH as DEFAULT, CUDNN_FMA_MATH as FMA, CUDNN_TENSOR_OP_MATH as TENSOR};
    let of = |math: Math| told.iter().copied().find(|told| told.math == math as u32).map(|told| (math, told));
    match arithmetic {
        Arithmetic::Tf32 => of(DEFAULT).or(of(TENSOR)).or(of(FMA)),
        Arithmetic::Bf16 => of(TENSOR).or(of(DEFAULT)).or(of(FMA)),
        Arithmetic::F32 => of(FMA).or(of(DEFAULT)).map(|(_, told)| (FMA, told)),
    }
}

/// Returns `true` if a status means "not supported" rather than a failure: 3000 to 3999 since version 9.0 (cudnn_graph.h),
/// except those about cuDNN's installation.
fn is_unsupported(refusal: &Refusal) -> bool {
    (3000..4000).contains(&refusal.code) && broken_installation(refusal.code).is_none()
}

/// Fault of cuDNN's installation behind a status, and its remedy; `None` for a status about a shape or an algorithm.
pub(in crate::cuda) fn broken_installation(code: u32) -> Option<&'static str> {
    match code {
        1002 | 1008 | 3009 => Some(
            "one of the libraries beside it is missing or of another version: install all of cuDNN again",
        ),
        3005 => Some("the driver is too old for it: update the driver, or install an older cuDNN"),
        3006 => {
            Some("it finds a CUDA runtime of another version: install both for the driver's version of CUDA")
        }
        3007 => Some("it has no kernels for this GPU: install a cuDNN that has"),
        3008 => Some(
            "a library that it needs (cuBLASLt, NVRTC) is missing: install that of the same version of CUDA",
        ),
        _ => None,
    }
}

/// Finds cuDNN without using a device.
fn find(search: &Search) -> Result<Library, Error> {
    let found = search.load(&CUDNN)?;
    Ok(Library { functions: CudnnFunctions::of(&found, &CUDNN)?, path: found.leak() })
}

/// cuDNN's file and version, or why it is missing.
pub(in crate::cuda) fn look(search: &Search) -> Result<(PathBuf, (u32, u32, u32)), Error> {
    find(search).map(|library| (library.path.clone(), library.version()))
}

impl Library {
    fn version(&self) -> (u32, u32, u32) {
        // SAFETY: it takes no argument and gives a number.
        let version = unsafe { (self.functions.cudnnGetVersion)() } as u32;
        (version / 10_000, version / 100 % 100, version % 100)
    }

    /// Converts a status to a result, with cuDNN's message on its last error.
    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        Refusal::check(call, status, || {
            let mut text = [0 as c_char; 512];
            // SAFETY: it writes at most as many bytes as its argument says; the field has a zero behind them.
            unsafe { (self.functions.cudnnGetLastErrorString)(text.as_mut_ptr(), text.len() - 1) };
            // SAFETY: it gives a text that lives as long as cuDNN, or null.
            [unsafe { words_at((self.functions.cudnnGetErrorString)(status)) }, Some(words(&text))]
        })
    }

    /// Descriptors of a convolution's tensors in a layout; `None` if a length exceeds cuDNN's integers.
    fn tensors(
        self: &Arc<Library>,
        shape: &ConvShape,
        layout: Layout,
        float: Float,
    ) -> Result<Option<Tensors>, Refusal> {
        let float = match float {
            Float::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
            Float::Bf16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        };
        let format = match layout {
            Layout::Rows | Layout::OneGroup => cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
            Layout::Planes => cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        };
        let (Some(of_x), Some(of_y)) = (
            layout.tensor(shape, shape.in_channels, shape.input),
            layout.tensor(shape, shape.out_channels, shape.output),
        ) else {
            return Ok(None);
        };
        let (filters, depth) =
            (layout.of(shape, shape.out_channels), shape.in_channels / shape.groups.max(1));
        let [k, depth, rows, columns] = [filters, depth, shape.window.size[0], shape.window.size[1]].map(int);
        let f = &self.functions;
        let tensor = || {
            let (create, destroy) = (f.cudnnCreateTensorDescriptor, f.cudnnDestroyTensorDescriptor);
            Descriptor::new(self, "cudnnCreateTensorDescriptor", create, destroy)
        };
        let weights = Descriptor::new(
            self,
            "cudnnCreateFilterDescriptor",
            f.cudnnCreateFilterDescriptor,
            f.cudnnDestroyFilterDescriptor,
        )?;
        let tensors = Tensors { x: tensor()?, w: weights, y: tensor()? };
        for (tensor, [[n, c, h, w], [of_n, of_c, of_h, of_w]]) in [(&tensors.x, of_x), (&tensors.y, of_y)] {
            let raw = tensor.raw.0;
            // SAFETY: the descriptor was made just now.
            unsafe {
                call!(self, cudnnSetTensor4dDescriptorEx(raw, float, n, c, h, w, of_n, of_c, of_h, of_w))
            }?;
        }
        let raw = tensors.w.raw.0;
        // SAFETY: as above.
        unsafe { call!(self, cudnnSetFilter4dDescriptor(raw, float, format, k, depth, rows, columns)) }?;
        Ok(Some(tensors))
    }

    fn convolution(
        self: &Arc<Library>,
        shape: &ConvShape,
        layout: Layout,
        math: Math,
    ) -> Result<Descriptor<cudnnConvolutionStruct>, Refusal> {
        let f = &self.functions;
        let made = Descriptor::new(
            self,
            "cudnnCreateConvolutionDescriptor",
            f.cudnnCreateConvolutionDescriptor,
            f.cudnnDestroyConvolutionDescriptor,
        )?;
        let window = &shape.window;
        let ([pad_h, pad_w], [u, v]) = (window.padding.map(int), window.stride.map(int));
        let ([along_h, along_w], raw) = (window.dilation.map(int), made.raw.0);
        // Windows slide over the image without being flipped.
        let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let float = cudnnDataType_t::CUDNN_DATA_FLOAT;
        // SAFETY: the descriptor was made just now.
        unsafe {
            call!(
                self,
                cudnnSetConvolution2dDescriptor(raw, pad_h, pad_w, u, v, along_h, along_w, mode, float)
            )?;
            call!(self, cudnnSetConvolutionGroupCount(raw, int(layout.groups(shape))))?;
            call!(self, cudnnSetConvolutionMathType(raw, math))?;
        }
        Ok(made)
    }
}

impl Cudnn {
    /// Finds cuDNN and creates its handle, which allocates device memory.
    pub(super) fn start(search: &Search, context: &Arc<Context>) -> Result<Cudnn, Error> {
        let library = Arc::new(find(search)?);
        let mut raw = null_mut();
        // SAFETY: the call writes one handle, for the context of this thread.
        let status = unsafe { (library.functions.cudnnCreate)(&mut raw) };
        let cudnn = Cudnn { library, handle: Handle(raw), context: Arc::clone(context) };
        cudnn.library.check("cudnnCreate", status).map_err(|refusal| {
            let what_to_do = broken_installation(refusal.code).unwrap_or(
                "most likely it is for another version of CUDA than the driver: install that for it \
                 (nvidia-cudnn-cu12, nvidia-cudnn-cu13), or free memory on the device",
            );
            refusal.at_start(cudnn.path(), what_to_do)
        })?;
        Ok(cudnn)
    }

    /// cuDNN's file.
    pub(super) fn path(&self) -> &Path {
        &self.library.path
    }

    /// cuDNN's version, such as (9, 19, 0).
    pub(super) fn version(&self) -> (u32, u32, u32) {
        self.library.version()
    }

    /// Sets the stream of later calls; with `None`, nothing may be enqueued.
    pub(super) fn set_stream(&self, stream: Option<&CudaStream>) -> Result<(), Refusal> {
        let raw = stream.map_or(null_mut(), CudaStream::raw);
        // SAFETY: the stream lives: the caller holds it, sets it before enqueueing, and unsets it before it ends.
        unsafe { call!(self.library, cudnnSetStream(self.handle.0, raw.cast())) }
    }

    /// All algorithms for a pass at a shape, in the fixed order; none if cuDNN does not support the shape. An algorithm
    /// without a known workspace is left out, with a warning.
    pub(super) fn algorithms(
        &self,
        pass: Pass,
        shape: &ConvShape,
        layout: Layout,
        arithmetic: Arithmetic,
    ) -> Result<Vec<Algorithm>, Refusal> {
        self.offered(pass, shape, layout, arithmetic).or_else(|refusal| {
            if is_unsupported(&refusal) { Ok(Vec::new()) } else { Err(self.explained(refusal)) }
        })
    }

    /// Adds the fault of the installation to a refusal, if that is the cause.
    pub(super) fn explained(&self, refusal: Refusal) -> Refusal {
        let Some(why) = broken_installation(refusal.code) else { return refusal };
        let path = self.library.path.display();
        Refusal { text: format!("{}; cuDNN `{path}` cannot work here: {why}", refusal.text), ..refusal }
    }

    fn offered(
        &self,
        pass: Pass,
        shape: &ConvShape,
        layout: Layout,
        arithmetic: Arithmetic,
    ) -> Result<Vec<Algorithm>, Refusal> {
        let Some(tensors) = self.library.tensors(shape, layout, arithmetic.factors())? else {
            return Ok(Vec::new());
        };
        let tensors = Arc::new(tensors);
        let asked = self.library.convolution(shape, layout, asked(arithmetic))?;
        let ranked = self.ranked(pass, &tensors, &asked)?;
        let mut found = Vec::new();
        for (number, name) in algorithms_of(pass) {
            let told: Vec<Ranked> =
                ranked.iter().copied().filter(|r| r.status == 0 && r.algorithm == number).collect();
            let Some((math, told)) = math(arithmetic, &told) else { continue };
            let convolution = self.library.convolution(shape, layout, math)?;
            let workspace = match self.workspace(pass, number, &tensors, &convolution) {
                Ok(bytes) => Bytes(bytes as u64),
                Err(refusal) if is_unsupported(&refusal) => continue,
                Err(refusal) if broken_installation(refusal.code).is_some() => return Err(refusal),
                Err(refusal) => {
                    tracing::warn!("{name} is left out for {pass:?} of {shape:?}: {refusal}");
                    continue;
                }
            };
            let (tensors, deterministic) = (Arc::clone(&tensors), told.determinism == 1);
            found.push(Algorithm { name, workspace, deterministic, pass, number, tensors, convolution });
        }
        Ok(found)
    }

    /// The heuristic's answers for all algorithms.
    fn ranked(
        &self,
        pass: Pass,
        tensors: &Tensors,
        convolution: &Descriptor<cudnnConvolutionStruct>,
    ) -> Result<Vec<Ranked>, Refusal> {
        let mut room = [Ranked::default(); RANKED];
        let mut told: c_int = 0;
        let (lib, most, at) = (&self.library, RANKED as c_int, room.as_mut_ptr());
        let (h, conv) = (self.handle.0, convolution.raw.0);
        let (x, w, y) = (tensors.x.raw.0, tensors.w.raw.0, tensors.y.raw.0);
        let n = &mut told;
        // SAFETY: handle and descriptors live; the call writes no more entries than there is room for, each with the layout
        // of `Ranked`, and their number.
        unsafe {
            match pass {
                Pass::Forward => {
                    call!(lib, cudnnGetConvolutionForwardAlgorithm_v7(h, x, w, conv, y, most, n, at.cast()))
                }
                Pass::BackwardData => {
                    call!(
                        lib,
                        cudnnGetConvolutionBackwardDataAlgorithm_v7(h, w, y, conv, x, most, n, at.cast())
                    )
                }
                Pass::BackwardFilter => {
                    call!(
                        lib,
                        cudnnGetConvolutionBackwardFilterAlgorithm_v7(h, x, y, conv, w, most, n, at.cast())
                    )
                }
            }
        }?;
        Ok(room[..usize::try_from(told).unwrap_or_default().min(RANKED)].to_vec())
    }

    /// Scratch of an algorithm.
    fn workspace(
        &self,
        pass: Pass,
        number: u32,
        tensors: &Tensors,
        convolution: &Descriptor<cudnnConvolutionStruct>,
    ) -> Result<usize, Refusal> {
        let mut bytes = 0usize;
        let (lib, h, conv, to) = (&self.library, self.handle.0, convolution.raw.0, &mut bytes);
        let (x, w, y) = (tensors.x.raw.0, tensors.w.raw.0, tensors.y.raw.0);
        // SAFETY: handle and descriptors live; the call writes one number.
        unsafe {
            match pass {
                Pass::Forward => {
                    call!(lib, cudnnGetConvolutionForwardWorkspaceSize(h, x, w, conv, y, number, to))
                }
                Pass::BackwardData => {
                    call!(lib, cudnnGetConvolutionBackwardDataWorkspaceSize(h, w, y, conv, x, number, to))
                }
                Pass::BackwardFilter => {
                    call!(lib, cudnnGetConvolutionBackwardFilterWorkspaceSize(h, x, y, conv, w, number, to))
                }
            }
        }?;
        Ok(bytes)
    }

    /// Enqueues an algorithm on the stream that was set last.
    ///
    /// # Safety
    /// The operands are addresses of tensors of the algorithm's shape, and `workspace` of its scratch. All of it is live
    /// until the stream has passed the call, and only accesses ordered by events touch it.
    pub(super) unsafe fn enqueue(
        &self,
        algorithm: &Algorithm,
        operands: Operands,
        workspace: u64,
    ) -> Result<(), Refusal> {
        let (one, old) = (1.0f32, if operands.accumulate { 1.0f32 } else { 0.0 });
        let (one, old) = (from_ref(&one).cast(), from_ref(&old).cast());
        let [x, w, y] = [operands.x, operands.w, operands.y].map(|at| at as *mut c_void);
        let (lib, h, conv, a) = (&self.library, self.handle.0, algorithm.convolution.raw.0, algorithm.number);
        let (room, bytes) = (workspace as *mut _, algorithm.workspace.0 as usize);
        let Tensors { x: of_x, w: of_w, y: of_y } = &*algorithm.tensors;
        let (dx, dw, dy) = (of_x.raw.0, of_w.raw.0, of_y.raw.0);
        // SAFETY: handle and descriptors live; the factors are read during the call; the rest is passed on to the caller.
        unsafe {
            match algorithm.pass {
                Pass::Forward => {
                    call!(
                        lib,
                        cudnnConvolutionForward(h, one, dx, x, dw, w, conv, a, room, bytes, old, dy, y)
                    )
                }
                Pass::BackwardData => {
                    call!(
                        lib,
                        cudnnConvolutionBackwardData(h, one, dw, w, dy, y, conv, a, room, bytes, old, dx, x)
                    )
                }
                Pass::BackwardFilter => call!(
                    lib,
                    cudnnConvolutionBackwardFilter(h, one, dx, x, dy, y, conv, a, room, bytes, old, dw, w)
                ),
            }
        }
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.handle.0.is_null() {
            return;
        }
        // SAFETY: made once by `start`; its descriptors are gone, and the streams that it enqueued on are idle.
        let destroy = |()| unsafe { call!(self.library, cudnnDestroy(self.handle.0)) };
        given_back(self.context.enter().and_then(destroy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_takes_no_tensor_cores_and_tf32_and_bf16_take_them_where_they_are() {
        let told = |maths: &[u32]| -> Vec<Ranked> {
            maths.iter().map(|math| Ranked { math: *math, ..Ranked::default() }).collect()
        };
        let check = |arithmetic, maths: &[u32], expected: Option<Math>| {
            let found = math(arithmetic, &told(maths)).map(|(math, _)| math);
            assert_eq!(found, expected, "{arithmetic:?} of {maths:?}");
        };
        check(Arithmetic::F32, &[3], Some(Math::CUDNN_FMA_MATH));
        check(Arithmetic::F32, &[0], Some(Math::CUDNN_FMA_MATH));
        check(Arithmetic::F32, &[1], None);
        check(Arithmetic::F32, &[2, 9], None);
        for on_tensor_cores in [Arithmetic::Tf32, Arithmetic::Bf16] {
            check(on_tensor_cores, &[3, 0], Some(Math::CUDNN_DEFAULT_MATH));
            check(on_tensor_cores, &[3, 1], Some(Math::CUDNN_TENSOR_OP_MATH));
            check(on_tensor_cores, &[3], Some(Math::CUDNN_FMA_MATH));
            check(on_tensor_cores, &[2], None);
        }
        check(Arithmetic::Tf32, &[1, 0], Some(Math::CUDNN_DEFAULT_MATH));
        check(Arithmetic::Bf16, &[0, 1], Some(Math::CUDNN_TENSOR_OP_MATH));
        for arithmetic in [Arithmetic::F32, Arithmetic::Tf32, Arithmetic::Bf16] {
            check(arithmetic, &[asked(arithmetic) as u32], Some(asked(arithmetic)));
        }
    }

    /// The real cuDNN of NVIDIA's packages accepts the descriptors of every convolution of the zoo, in every layout used;
    /// and refuses a tensor of 2^31 elements, as `countable_batch` assumes. No device is needed.
    #[test]
    fn the_real_cudnn_takes_the_descriptors_of_every_convolution_of_the_zoo() {
        use plimsoll_ir::program::Call;
        use plimsoll_networks::{LowerOptions, build, entries, lower, usual};
        let Some(search) = Search::of_packages() else { return };
        let cudnn = Arc::new(find(&search).expect("it has a cuDNN"));
        assert_eq!(cudnn.version().0, 9);
        let take = |shape: &ConvShape, layout: Layout| -> Result<(), Refusal> {
            for arithmetic in [Arithmetic::F32, Arithmetic::Tf32, Arithmetic::Bf16] {
                cudnn.tensors(shape, layout, arithmetic.factors())?.expect("the lengths are countable");
                cudnn.convolution(shape, layout, asked(arithmetic))?;
            }
            Ok(())
        };
        let mut shapes = std::collections::HashSet::new();
        let plain = entries().iter().map(|entry| entry.name).filter(|name| !name.contains('<'));
        // One of each family.
        let families = ["vgg16", "resnet50", "resnet110-cifar", "resnet1202-imagenet", "wrn-28-10"];
        for name in plain.chain(families) {
            let network = build(&usual(name).expect("it is in the zoo")).expect("it can be built");
            let program = lower(&network, 8, &LowerOptions::default()).expect("it can be lowered");
            shapes.extend(program.kernels.iter().filter_map(|kernel| match kernel.call {
                Call::ConvForward { shape } => Some(shape),
                _ => None,
            }));
        }
        assert!(shapes.len() > 100, "{}", shapes.len());
        assert!(shapes.iter().any(|shape| shape.groups > 1));
        for shape in &shapes {
            let layouts = if shape.groups > 1 { vec![Layout::OneGroup] } else { vec![Layout::Planes] };
            for layout in [vec![Layout::Rows], layouts].concat() {
                take(shape, layout).unwrap_or_else(|refusal| panic!("{layout:?} of {shape:?}: {refusal}"));
            }
        }
        let of_batch = |batch: u64| ConvShape {
            batch,
            input: [224; 2],
            in_channels: 3,
            output: [224; 2],
            out_channels: 64,
            window: plimsoll_ir::network::Window::square(3, 1, 1),
            groups: 1,
            bias: true,
        };
        for layout in [Layout::Rows, Layout::Planes] {
            assert_eq!(take(&of_batch(668), layout), Ok(()), "{layout:?}");
            let refusal = take(&of_batch(669), layout).expect_err("2^31 elements are more than it counts");
            assert!(is_unsupported(&refusal), "{layout:?}: {refusal}");
        }
    }

    #[test]
    fn every_algorithm_of_a_pass_stands_in_its_list_once() {
        for (pass, count) in [
            (Pass::Forward, Forward::CUDNN_CONVOLUTION_FWD_ALGO_COUNT as u32),
            (Pass::BackwardData, Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT as u32),
            (Pass::BackwardFilter, Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT as u32),
        ] {
            let mut numbers: Vec<u32> = algorithms_of(pass).iter().map(|(number, _)| *number).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{pass:?}");
        }
    }
}
