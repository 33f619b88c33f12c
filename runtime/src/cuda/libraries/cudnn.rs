//! cuDNN: what of it a convolution needs, by the C interface that all of its versions 9 have.
//!
//! Feature maps are NHWC and weights KRSC, as everywhere here. Which algorithms there are for a shape is asked of cuDNN's own
//! heuristic (`cudnnGet...Algorithm_v7`), which needs no memory and measures nothing; each comes with the scratch that its
//! `WorkspaceSize` query tells. Descriptors are host memory, made when a call is asked for and kept, so that an iteration
//! only enqueues.
//!
//! What it deliberately does not do: choose by rank. The heuristic ranks by shape and so by batch, but a call has to have the
//! same alternatives in the same order in the profile, in the plan and in the run; so they stand in a fixed order here, the
//! generally fast and deterministic first, and the profiler finds by measurement which is best.

use super::super::driver::{Context, CudaStream, Handle};
use super::super::error::{CudaError, Refusal};
use super::super::presence::{CUDNN, Search};
use super::super::table::CudnnFunctions;
use super::{Operands, Pass, int, ints};
use cudarc::cudnn::sys::{
    cudnnContext, cudnnConvolutionBwdDataAlgo_t as Data, cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgo_t as Filter, cudnnConvolutionBwdFilterAlgoPerf_t,
    cudnnConvolutionFwdAlgo_t as Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionMode_t,
    cudnnConvolutionStruct, cudnnDataType_t, cudnnFilterStruct, cudnnMathType_t as Math, cudnnTensorFormat_t,
    cudnnTensorStruct,
};
use plimsoll_ir::Bytes;
use plimsoll_ir::program::ConvShape;
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;

/// The algorithms of a pass, the usual one first, by the names that the field has for them (cudnn_ops.h).
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

/// Room for what the heuristic tells: each algorithm at most once for each kind of arithmetic.
const RANKED: usize = 24;

/// cuDNN with its handle for one context.
pub(super) struct Cudnn {
    functions: CudnnFunctions,
    path: PathBuf,
    handle: Handle<cudnnContext>,
    context: Arc<Context>,
}

/// What the heuristic says of an algorithm: the struct of `cudnn_cnn.h` of each pass, with numbers in place of enums, which a
/// newer cuDNN may extend.
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

/// A descriptor, which destroys itself.
struct Descriptor<T> {
    cudnn: Arc<Cudnn>,
    raw: Handle<T>,
    destroy: unsafe extern "C" fn(*mut T) -> u32,
}

impl<T> Descriptor<T> {
    fn new(
        cudnn: &Arc<Cudnn>,
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
        if let Err(refusal) = self.cudnn.check("cudnnDestroy...Descriptor", status) {
            tracing::debug!("while giving back: {refusal}");
        }
    }
}

/// The tensors of a convolution: input, weights, output, whichever of them the pass writes.
struct Tensors {
    x: Descriptor<cudnnTensorStruct>,
    w: Descriptor<cudnnFilterStruct>,
    y: Descriptor<cudnnTensorStruct>,
}

/// An algorithm for a pass at a shape, ready to be enqueued.
pub(super) struct Algorithm {
    /// Its name.
    pub(super) name: &'static str,
    /// The scratch that it needs.
    pub(super) workspace: Bytes,
    /// Whether the same inputs give the same bits.
    pub(super) deterministic: bool,
    which: Which,
    tensors: Arc<Tensors>,
    convolution: Descriptor<cudnnConvolutionStruct>,
}

/// An algorithm of a pass.
#[derive(Clone, Copy, Debug)]
enum Which {
    Forward(Forward),
    Data(Data),
    Filter(Filter),
}

impl Which {
    /// All of a pass, the usual one first.
    fn all(pass: Pass) -> Vec<(Which, &'static str)> {
        match pass {
            Pass::Forward => FORWARD.map(|(a, name)| (Which::Forward(a), name)).to_vec(),
            Pass::BackwardData => DATA.map(|(a, name)| (Which::Data(a), name)).to_vec(),
            Pass::BackwardFilter => FILTER.map(|(a, name)| (Which::Filter(a), name)).to_vec(),
        }
    }

    fn number(self) -> u32 {
        match self {
            Which::Forward(a) => a as u32,
            Which::Data(a) => a as u32,
            Which::Filter(a) => a as u32,
        }
    }
}

/// The arithmetic to run an algorithm with, of what the heuristic tells for it; none where it needs one that is not asked
/// for. In f32 no tensor core takes part, whatever the heuristic calls that; with TF32 they do where they can.
fn arithmetic(tf32: bool, told: &[Ranked]) -> Option<(Math, Ranked)> {
    use Math::{CUDNN_DEFAULT_MATH as DEFAULT, CUDNN_FMA_MATH as FMA, CUDNN_TENSOR_OP_MATH as TENSOR};
    let of = |math: Math| told.iter().copied().find(|told| told.math == math as u32).map(|told| (math, told));
    if tf32 {
        of(DEFAULT).or(of(TENSOR)).or(of(FMA))
    } else {
        of(FMA).or(of(DEFAULT)).map(|(_, told)| (FMA, told))
    }
}

/// Whether a status says that what was asked is not there, rather than that something went wrong: 3000 to 3999 since
/// version 9.0 (cudnn_graph.h), but for those that say so of cuDNN itself.
fn is_unsupported(refusal: &Refusal) -> bool {
    (3000..4000).contains(&refusal.code) && broken_installation(refusal.code).is_none()
}

/// What is wrong with an installation of cuDNN that answers so, and what to do; none of an answer about a shape or an
/// algorithm.
fn broken_installation(code: u32) -> Option<&'static str> {
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

/// Finds it, and uses no device.
fn find(search: &Search) -> Result<(CudnnFunctions, PathBuf), CudaError> {
    let found = search.load(&CUDNN)?;
    Ok((CudnnFunctions::of(&found, &CUDNN)?, found.leak()))
}

fn version(functions: &CudnnFunctions) -> (u32, u32, u32) {
    // SAFETY: it takes nothing and gives a number.
    let version = unsafe { (functions.cudnnGetVersion)() } as u32;
    (version / 10_000, version / 100 % 100, version % 100)
}

/// Its file and version, or why there is none.
pub(super) fn look(search: &Search) -> Result<(PathBuf, (u32, u32, u32)), CudaError> {
    find(search).map(|(functions, path)| (path, version(&functions)))
}

impl Cudnn {
    /// Finds it and makes its handle, on which it allocates what it needs of the device.
    pub(super) fn start(search: &Search, context: &Arc<Context>) -> Result<Cudnn, CudaError> {
        let (functions, path) = find(search)?;
        let mut raw = null_mut();
        // SAFETY: the call writes one handle, for the context of this thread.
        let status = unsafe { (functions.cudnnCreate)(&mut raw) };
        let cudnn = Cudnn { functions, path, handle: Handle(raw), context: Arc::clone(context) };
        match cudnn.check("cudnnCreate", status) {
            Ok(()) => Ok(cudnn),
            Err(refusal) => Err(CudaError::Library {
                path: cudnn.path.clone(),
                refusal,
                what_to_do: "most likely it is for another version of CUDA than the driver: install that for it \
                             (nvidia-cudnn-cu12, nvidia-cudnn-cu13), or free memory on the device",
            }),
        }
    }

    /// Where it lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, such as (9, 19, 0).
    pub(super) fn version(&self) -> (u32, u32, u32) {
        version(&self.functions)
    }

    /// A status as a result, with cuDNN's word on its last error.
    fn check(&self, call: &'static str, status: u32) -> Result<(), Refusal> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it gives a text that lives as long as cuDNN, or null.
        let name = unsafe { (self.functions.cudnnGetErrorString)(status) };
        let name = if name.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        let mut text = [0 as c_char; 512];
        // SAFETY: it writes at most as many bytes as it is told; the field has a zero behind them.
        unsafe { (self.functions.cudnnGetLastErrorString)(text.as_mut_ptr(), text.len() - 1) };
        let text = super::super::driver::words(&text);
        let text = if text.is_empty() { format!("status {status}") } else { text };
        Err(Refusal { call, code: status, name, text })
    }

    /// What it enqueues from now on goes to this stream; with none, nothing may be enqueued.
    pub(super) fn set_stream(&self, stream: Option<&CudaStream>) -> Result<(), Refusal> {
        let raw = stream.map_or(null_mut(), CudaStream::raw);
        // SAFETY: the stream lives: whoever enqueues holds it and sets it before, and takes it back before it ends.
        let status = unsafe { (self.functions.cudnnSetStream)(self.handle.0, raw.cast()) };
        self.check("cudnnSetStream", status)
    }

    /// All algorithms for a pass at a shape, in the fixed order; none where cuDNN does not take such a shape. One that cuDNN
    /// cannot tell the workspace of is left out, with a warning.
    pub(super) fn algorithms(
        self: &Arc<Cudnn>,
        pass: Pass,
        shape: &ConvShape,
        tf32: bool,
    ) -> Result<Vec<Algorithm>, Refusal> {
        self.offered(pass, shape, tf32).or_else(|refusal| match broken_installation(refusal.code) {
            Some(why) => {
                let text =
                    format!("{}; cuDNN `{}` cannot work here: {why}", refusal.text, self.path.display());
                Err(Refusal { text, ..refusal })
            }
            None if is_unsupported(&refusal) => Ok(Vec::new()),
            None => Err(refusal),
        })
    }

    fn offered(
        self: &Arc<Cudnn>,
        pass: Pass,
        shape: &ConvShape,
        tf32: bool,
    ) -> Result<Vec<Algorithm>, Refusal> {
        let Some(tensors) = self.tensors(shape)? else { return Ok(Vec::new()) };
        let tensors = Arc::new(tensors);
        let asked = if tf32 { Math::CUDNN_DEFAULT_MATH } else { Math::CUDNN_FMA_MATH };
        let ranked = self.ranked(pass, &tensors, &self.convolution(shape, asked)?)?;
        let mut found = Vec::new();
        for (which, name) in Which::all(pass) {
            let told: Vec<Ranked> =
                ranked.iter().copied().filter(|r| r.status == 0 && r.algorithm == which.number()).collect();
            let Some((math, told)) = arithmetic(tf32, &told) else { continue };
            let convolution = self.convolution(shape, math)?;
            let workspace = match self.workspace(which, &tensors, &convolution) {
                Ok(bytes) => Bytes(bytes as u64),
                Err(refusal) if is_unsupported(&refusal) => continue,
                Err(refusal) if broken_installation(refusal.code).is_some() => return Err(refusal),
                Err(refusal) => {
                    tracing::warn!("{name} is left out for {pass:?} of {shape:?}: {refusal}");
                    continue;
                }
            };
            let (tensors, deterministic) = (Arc::clone(&tensors), told.determinism == 1);
            found.push(Algorithm { name, workspace, deterministic, which, tensors, convolution });
        }
        Ok(found)
    }

    /// Descriptors of a convolution's tensors; none where a length is more than it counts.
    fn tensors(self: &Arc<Cudnn>, shape: &ConvShape) -> Result<Option<Tensors>, Refusal> {
        let (nhwc, float) = (cudnnTensorFormat_t::CUDNN_TENSOR_NHWC, cudnnDataType_t::CUDNN_DATA_FLOAT);
        let Some([n, c, h, w]) =
            ints([shape.batch, shape.in_channels.into(), shape.input[0].into(), shape.input[1].into()])
        else {
            return Ok(None);
        };
        let [k, depth, rows, columns, out_h, out_w] = [
            shape.out_channels,
            shape.in_channels / shape.groups.max(1),
            shape.window.size[0],
            shape.window.size[1],
            shape.output[0],
            shape.output[1],
        ]
        .map(int);
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
        // SAFETY: the descriptors were made just now.
        unsafe {
            let status = (f.cudnnSetTensor4dDescriptor)(tensors.x.raw.0, nhwc, float, n, c, h, w);
            self.check("cudnnSetTensor4dDescriptor", status)?;
            let status =
                (f.cudnnSetFilter4dDescriptor)(tensors.w.raw.0, float, nhwc, k, depth, rows, columns);
            self.check("cudnnSetFilter4dDescriptor", status)?;
            let status = (f.cudnnSetTensor4dDescriptor)(tensors.y.raw.0, nhwc, float, n, k, out_h, out_w);
            self.check("cudnnSetTensor4dDescriptor", status)?;
        }
        Ok(Some(tensors))
    }

    fn convolution(
        self: &Arc<Cudnn>,
        shape: &ConvShape,
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
        let [dilation_h, dilation_w] = window.dilation.map(int);
        // Windows slide over the image without being turned round.
        let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let float = cudnnDataType_t::CUDNN_DATA_FLOAT;
        // SAFETY: the descriptor was made just now.
        unsafe {
            let set = f.cudnnSetConvolution2dDescriptor;
            let status = set(made.raw.0, pad_h, pad_w, u, v, dilation_h, dilation_w, mode, float);
            self.check("cudnnSetConvolution2dDescriptor", status)?;
            let status = (f.cudnnSetConvolutionGroupCount)(made.raw.0, int(shape.groups.max(1)));
            self.check("cudnnSetConvolutionGroupCount", status)?;
            let status = (f.cudnnSetConvolutionMathType)(made.raw.0, math);
            self.check("cudnnSetConvolutionMathType", status)?;
        }
        Ok(made)
    }

    /// What the heuristic tells of all algorithms.
    fn ranked(
        &self,
        pass: Pass,
        tensors: &Tensors,
        convolution: &Descriptor<cudnnConvolutionStruct>,
    ) -> Result<Vec<Ranked>, Refusal> {
        let mut room = [Ranked::default(); RANKED];
        let mut told: c_int = 0;
        let (f, most, at) = (&self.functions, RANKED as c_int, room.as_mut_ptr());
        let (handle, conv) = (self.handle.0, convolution.raw.0);
        let (x, w, y) = (tensors.x.raw.0, tensors.w.raw.0, tensors.y.raw.0);
        // SAFETY: handle and descriptors live; the call writes at most as many entries as there is room for, each of the
        // layout of `Ranked`, and their number.
        let (call, status) = unsafe {
            match pass {
                Pass::Forward => (
                    "cudnnGetConvolutionForwardAlgorithm_v7",
                    (f.cudnnGetConvolutionForwardAlgorithm_v7)(
                        handle,
                        x,
                        w,
                        conv,
                        y,
                        most,
                        &mut told,
                        at.cast(),
                    ),
                ),
                Pass::BackwardData => (
                    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
                    (f.cudnnGetConvolutionBackwardDataAlgorithm_v7)(
                        handle,
                        w,
                        y,
                        conv,
                        x,
                        most,
                        &mut told,
                        at.cast(),
                    ),
                ),
                Pass::BackwardFilter => (
                    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                    (f.cudnnGetConvolutionBackwardFilterAlgorithm_v7)(
                        handle,
                        x,
                        y,
                        conv,
                        w,
                        most,
                        &mut told,
                        at.cast(),
                    ),
                ),
            }
        };
        self.check(call, status)?;
        Ok(room[..usize::try_from(told).unwrap_or_default().min(RANKED)].to_vec())
    }

    /// The scratch of an algorithm.
    fn workspace(
        &self,
        which: Which,
        tensors: &Tensors,
        convolution: &Descriptor<cudnnConvolutionStruct>,
    ) -> Result<usize, Refusal> {
        let mut bytes = 0usize;
        let (f, handle, conv) = (&self.functions, self.handle.0, convolution.raw.0);
        let (x, w, y) = (tensors.x.raw.0, tensors.w.raw.0, tensors.y.raw.0);
        // SAFETY: handle and descriptors live; the call writes one number.
        let (call, status) = unsafe {
            match which {
                Which::Forward(a) => (
                    "cudnnGetConvolutionForwardWorkspaceSize",
                    (f.cudnnGetConvolutionForwardWorkspaceSize)(handle, x, w, conv, y, a, &mut bytes),
                ),
                Which::Data(a) => (
                    "cudnnGetConvolutionBackwardDataWorkspaceSize",
                    (f.cudnnGetConvolutionBackwardDataWorkspaceSize)(handle, w, y, conv, x, a, &mut bytes),
                ),
                Which::Filter(a) => (
                    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
                    (f.cudnnGetConvolutionBackwardFilterWorkspaceSize)(handle, x, y, conv, w, a, &mut bytes),
                ),
            }
        };
        self.check(call, status)?;
        Ok(bytes)
    }

    /// Enqueues an algorithm on the stream that was set last.
    ///
    /// # Safety
    /// The operands are the addresses of tensors of the algorithm's shape, and `workspace` of as much scratch as it asks for;
    /// all of it is live until the stream has come past it, and only what is ordered by events touches it.
    pub(super) unsafe fn enqueue(
        &self,
        algorithm: &Algorithm,
        operands: Operands,
        workspace: u64,
    ) -> Result<(), Refusal> {
        let (one, old) = (1.0f32, if operands.accumulate { 1.0f32 } else { 0.0 });
        let (one, old) = (from_ref(&one).cast(), from_ref(&old).cast());
        let Operands { x, w, y, .. } = operands;
        let (f, handle, conv) = (&self.functions, self.handle.0, algorithm.convolution.raw.0);
        let (scratch, bytes) = (workspace as *mut _, algorithm.workspace.0 as usize);
        let Tensors { x: of_x, w: of_w, y: of_y } = &*algorithm.tensors;
        let (of_x, of_w, of_y) = (of_x.raw.0, of_w.raw.0, of_y.raw.0);
        // SAFETY: handle and descriptors live; the factors are read during the call; the rest is passed on to the caller.
        let (call, status) = unsafe {
            match algorithm.which {
                Which::Forward(a) => (
                    "cudnnConvolutionForward",
                    (f.cudnnConvolutionForward)(
                        handle, one, of_x, x as _, of_w, w as _, conv, a, scratch, bytes, old, of_y, y as _,
                    ),
                ),
                Which::Data(a) => (
                    "cudnnConvolutionBackwardData",
                    (f.cudnnConvolutionBackwardData)(
                        handle, one, of_w, w as _, of_y, y as _, conv, a, scratch, bytes, old, of_x, x as _,
                    ),
                ),
                Which::Filter(a) => (
                    "cudnnConvolutionBackwardFilter",
                    (f.cudnnConvolutionBackwardFilter)(
                        handle, one, of_x, x as _, of_y, y as _, conv, a, scratch, bytes, old, of_w, w as _,
                    ),
                ),
            }
        };
        self.check(call, status)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.handle.0.is_null() {
            return;
        }
        let entered = self.context.enter();
        // SAFETY: made once by `start`; its descriptors are gone, and the streams that it enqueued on are idle.
        let status = unsafe { (self.functions.cudnnDestroy)(self.handle.0) };
        if let Err(refusal) = entered.and_then(|()| self.check("cudnnDestroy", status)) {
            tracing::debug!("while giving back: {refusal}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_takes_no_tensor_cores_and_tf32_takes_them_where_they_are() {
        let told = |maths: &[u32]| -> Vec<Ranked> {
            maths.iter().map(|math| Ranked { math: *math, ..Ranked::default() }).collect()
        };
        let check = |precision, maths: &[u32], expected: Option<Math>| {
            let found = arithmetic(precision, &told(maths)).map(|(math, _)| math);
            assert_eq!(found, expected, "{precision:?} of {maths:?}");
        };
        check(false, &[3], Some(Math::CUDNN_FMA_MATH));
        check(false, &[0], Some(Math::CUDNN_FMA_MATH));
        check(false, &[1], None);
        check(false, &[2, 9], None);
        check(true, &[3, 0], Some(Math::CUDNN_DEFAULT_MATH));
        check(true, &[3, 1], Some(Math::CUDNN_TENSOR_OP_MATH));
        check(true, &[3], Some(Math::CUDNN_FMA_MATH));
        check(true, &[2], None);
    }

    #[test]
    fn every_algorithm_of_a_pass_stands_in_its_list_once() {
        for (pass, count) in [
            (Pass::Forward, Forward::CUDNN_CONVOLUTION_FWD_ALGO_COUNT as u32),
            (Pass::BackwardData, Data::CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT as u32),
            (Pass::BackwardFilter, Filter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT as u32),
        ] {
            let mut numbers: Vec<u32> = Which::all(pass).iter().map(|(which, _)| which.number()).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{pass:?}");
        }
    }
}
