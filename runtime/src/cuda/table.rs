//! The functions of a CUDA library as a table, filled when the library is loaded.
//!
//! Types and signatures are those of the bindings (`cudarc`), and the compiler checks ours against them; loading is our
//! own. The bindings' loader knows only fixed file names, panics if a library or a function is missing, and reads a newer
//! driver's unknown statuses as an enum. Here a missing function is an error before the first call, and a status is a
//! number.

use super::presence::{Found, Wanted};
use crate::error::Error;

/// Defines a table. Functions under `bound` return a status, 0 for success, and have the types of the bindings, whose name,
/// if different, stands after `as`. The types of functions under `unbound` are those of the library's documentation.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $table:ident of $bindings:ident, status $status:ty;
        bound { $($name:ident $(as $other:ident)? ($($argument:ty),*);)* }
        unbound { $($free:ident ($($free_argument:ty),*) -> $returned:ty;)* }
    ) => {
        $(#[$about])*
        #[allow(non_snake_case, reason = "the names are the library's")]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(pub(super) $free: unsafe extern "C" fn($($free_argument),*) -> $returned,)*
        }

        impl $table {
            /// Types of the functions in the code, for `headers.rs`.
            #[cfg(test)]
            pub(super) const SIGNATURES: &[super::headers::Signature] = &[
                $((stringify!($name), &[$(stringify!($argument)),*], "u32"),)*
                $((stringify!($free), &[$(stringify!($free_argument)),*], stringify!($returned)),)*
            ];

            /// Loads all functions, by name.
            pub(super) fn of(found: &Found, wanted: &Wanted) -> Result<Self, Error> {
                let address = |name| found.symbol(name, wanted);
                Ok(Self {
                    $(
                        // SAFETY: the function of this name has this type, which the bindings confirm below; a status is an
                        // enum of 32 bits in C.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>(
                                address(stringify!($name))?,
                            )
                        },
                    )*
                    $(
                        // SAFETY: the function of this name has this type, by the library's documentation.
                        $free: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($free_argument),*) -> $returned>(
                                address(stringify!($free))?,
                            )
                        },
                    )*
                })
            }
        }

        $(const _: unsafe fn($($argument),*) -> $status = functions!(@binding $bindings $name $($other)?);)*
    };
    (@binding $bindings:ident $name:ident) => { $bindings::$name };
    (@binding $bindings:ident $name:ident $other:ident) => { $bindings::$other };
}

/// Makes a call of a library and converts its status: `call!(driver, cuInit(0))`. The library has `functions`, and a `check`
/// of the name of a call and its status.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr),*)) => {
        $library.check(stringify!($name), ($library.functions.$name)($($argument),*))
    };
}

pub(super) use call;
use cudarc::cublas::sys as cublas;
use cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasOperation_t, cublasStatus_t, cudaDataType_t,
};
use cudarc::cudnn::sys as cudnn;
use cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionDescriptor_t,
    cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionMode_t, cudnnDataType_t, cudnnFilterDescriptor_t,
    cudnnHandle_t, cudnnMathType_t, cudnnStatus_t, cudnnTensorDescriptor_t, cudnnTensorFormat_t,
};
use cudarc::driver::sys as driver;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};
use cudarc::nccl::sys as nccl;
use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t,
    ncclUniqueId,
};
use cudarc::nvrtc::sys as nvrtc;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::ffi::{c_char, c_int, c_longlong, c_uchar, c_uint, c_ulonglong, c_void};

functions! {
    /// The driver API. Drivers of CUDA 12.0 and later have all of it.
    DriverFunctions of driver, status CUresult;
    bound {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxSetCurrent(CUcontext);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventRecordWithFlags(CUevent, CUstream, c_uint);
        cuEventQuery(CUevent);
        cuEventElapsedTime as cuEventElapsedTime_v2 (*mut f32, CUevent, CUevent);
        cuModuleLoadData(*mut CUmodule, *const c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
        );
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphDestroy(CUgraph);
    }
    unbound {
        cuGetErrorName(u32, *mut *const c_char) -> u32;
        cuGetErrorString(u32, *mut *const c_char) -> u32;
    }
}

functions! {
    /// The compiler.
    CompilerFunctions of nvrtc, status nvrtcResult;
    bound {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcGetNumSupportedArchs(*mut c_int);
        nvrtcGetSupportedArchs(*mut c_int);
        nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        nvrtcDestroyProgram(*mut nvrtcProgram);
        nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
        nvrtcGetPTXSize(nvrtcProgram, *mut usize);
        nvrtcGetPTX(nvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
    }
    unbound {}
}

functions! {
    /// cuBLAS. The versions for CUDA 12 and later have all of it.
    CublasFunctions of cublas, status cublasStatus_t;
    bound {
        cublasCreate_v2(*mut cublasHandle_t);
        cublasDestroy_v2(cublasHandle_t);
        cublasSetMathMode(cublasHandle_t, cublas::cublasMath_t);
        cublasSetStream_v2(cublasHandle_t, cublas::cudaStream_t);
        cublasSetWorkspace_v2(cublasHandle_t, *mut c_void, usize);
        cublasGemmEx(
            cublasHandle_t, cublasOperation_t, cublasOperation_t, c_int, c_int, c_int, *const c_void,
            *const c_void, cudaDataType_t, c_int, *const c_void, cudaDataType_t, c_int,
            *const c_void, *mut c_void, cudaDataType_t, c_int, cublasComputeType_t, cublasGemmAlgo_t
        );
        cublasGemmStridedBatchedEx(
            cublasHandle_t, cublasOperation_t, cublasOperation_t, c_int, c_int, c_int, *const c_void,
            *const c_void, cudaDataType_t, c_int, c_longlong, *const c_void, cudaDataType_t, c_int, c_longlong,
            *const c_void, *mut c_void, cudaDataType_t, c_int, c_longlong, c_int, cublasComputeType_t, cublasGemmAlgo_t
        );
    }
    unbound {
        cublasGetStatusName(u32) -> *const c_char;
        cublasGetStatusString(u32) -> *const c_char;
    }
}

functions! {
    /// cuDNN: a part that all versions from 9.0 on have. Algorithms are numbers, which differ in type between the passes.
    CudnnFunctions of cudnn, status cudnnStatus_t;
    bound {
        cudnnCreate(*mut cudnnHandle_t);
        cudnnDestroy(cudnnHandle_t);
        cudnnSetStream(cudnnHandle_t, cudnn::cudaStream_t);
        cudnnCreateTensorDescriptor(*mut cudnnTensorDescriptor_t);
        cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t);
        cudnnSetTensor4dDescriptorEx(
            cudnnTensorDescriptor_t, cudnnDataType_t, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
        );
        cudnnCreateFilterDescriptor(*mut cudnnFilterDescriptor_t);
        cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t);
        cudnnSetFilter4dDescriptor(
            cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, c_int, c_int, c_int, c_int
        );
        cudnnCreateConvolutionDescriptor(*mut cudnnConvolutionDescriptor_t);
        cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t);
        cudnnSetConvolution2dDescriptor(
            cudnnConvolutionDescriptor_t, c_int, c_int, c_int, c_int, c_int, c_int, cudnnConvolutionMode_t, cudnnDataType_t
        );
        cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t, c_int);
        cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t);
        cudnnGetConvolutionForwardAlgorithm_v7(
            cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnConvolutionDescriptor_t,
            cudnnTensorDescriptor_t, c_int, *mut c_int, *mut cudnnConvolutionFwdAlgoPerf_t
        );
        cudnnGetConvolutionBackwardDataAlgorithm_v7(
            cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
            cudnnTensorDescriptor_t, c_int, *mut c_int, *mut cudnnConvolutionBwdDataAlgoPerf_t
        );
        cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
            cudnnFilterDescriptor_t, c_int, *mut c_int, *mut cudnnConvolutionBwdFilterAlgoPerf_t
        );
    }
    unbound {
        cudnnGetConvolutionForwardWorkspaceSize(
            cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnConvolutionDescriptor_t,
            cudnnTensorDescriptor_t, u32, *mut usize
        ) -> u32;
        cudnnGetConvolutionBackwardDataWorkspaceSize(
            cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
            cudnnTensorDescriptor_t, u32, *mut usize
        ) -> u32;
        cudnnGetConvolutionBackwardFilterWorkspaceSize(
            cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
            cudnnFilterDescriptor_t, u32, *mut usize
        ) -> u32;
        cudnnConvolutionForward(
            cudnnHandle_t, *const c_void, cudnnTensorDescriptor_t, *const c_void, cudnnFilterDescriptor_t,
            *const c_void, cudnnConvolutionDescriptor_t, u32, *mut c_void, usize,
            *const c_void, cudnnTensorDescriptor_t, *mut c_void
        ) -> u32;
        cudnnConvolutionBackwardData(
            cudnnHandle_t, *const c_void, cudnnFilterDescriptor_t, *const c_void, cudnnTensorDescriptor_t,
            *const c_void, cudnnConvolutionDescriptor_t, u32, *mut c_void, usize,
            *const c_void, cudnnTensorDescriptor_t, *mut c_void
        ) -> u32;
        cudnnConvolutionBackwardFilter(
            cudnnHandle_t, *const c_void, cudnnTensorDescriptor_t, *const c_void, cudnnTensorDescriptor_t,
            *const c_void, cudnnConvolutionDescriptor_t, u32, *mut c_void, usize,
            *const c_void, cudnnFilterDescriptor_t, *mut c_void
        ) -> u32;
        cudnnGetVersion() -> usize;
        cudnnGetErrorString(u32) -> *const c_char;
        cudnnGetLastErrorString(*mut c_char, usize) -> ();
    }
}

functions! {
    /// NCCL, from 2.18 on. Operations are numbers, since NCCL counts beyond the names in the bindings.
    NcclFunctions of nccl, status ncclResult_t;
    bound {
        ncclGetVersion(*mut c_int);
        ncclGetUniqueId(*mut ncclUniqueId);
        ncclCommInitRankConfig(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t);
        ncclCommGetAsyncError(ncclComm_t, *mut ncclResult_t);
        ncclCommDestroy(ncclComm_t);
        ncclCommAbort(ncclComm_t);
        ncclGroupStart();
        ncclGroupEnd();
        ncclRedOpCreatePreMulSum(*mut ncclRedOp_t, *mut c_void, ncclDataType_t, ncclScalarResidence_t, ncclComm_t);
    }
    unbound {
        ncclRedOpDestroy(u32, ncclComm_t) -> u32;
        ncclAllReduce(*const c_void, *mut c_void, usize, ncclDataType_t, u32, ncclComm_t, cudaStream_t) -> u32;
        ncclGetErrorString(u32) -> *const c_char;
        ncclGetLastError(ncclComm_t) -> *const c_char;
    }
}
