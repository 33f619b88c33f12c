//! The functions of a CUDA library as a table that is filled when the library is loaded.
//!
//! Types and signatures are those of the bindings (`cudarc`), and the compiler holds ours to them; loading is our own.
//! The bindings' loader knows only fixed file names, panics where a library or a function is missing, and reads what a
//! newer driver returns as an enum that does not know it. Here a missing function is an error before the first call, and a
//! status is a number.

use super::error::CudaError;
use super::presence::{Found, Wanted};

/// Defines a table: its functions return a status, 0 for success. Where the bindings have another name for a function, it
/// stands after `as`; those without bindings of the same type stand under `unbound`.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $table:ident of $bindings:ident, status $status:ty;
        bound { $($name:ident $(as $other:ident)? ($($argument:ty),*);)* }
        unbound { $($free:ident ($($free_argument:ty),*);)* }
    ) => {
        $(#[$about])*
        #[allow(non_snake_case, reason = "the names are the library's")]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(pub(super) $free: unsafe extern "C" fn($($free_argument),*) -> u32,)*
        }

        impl $table {
            /// All functions, by name.
            pub(super) fn of(found: &Found, wanted: &Wanted) -> Result<Self, CudaError> {
                let address = |name| found.symbol(name, wanted.what_to_do);
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
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($free_argument),*) -> u32>(
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

use cudarc::driver::sys as driver;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};
use cudarc::nvrtc::sys as nvrtc;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

functions! {
    /// The driver API. All of it is in drivers of CUDA 12.0 and later.
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
        cuGetErrorName(u32, *mut *const c_char);
        cuGetErrorString(u32, *mut *const c_char);
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
        nvrtcGetPTXSize(nvrtcProgram, *mut usize);
        nvrtcGetPTX(nvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
    }
    unbound {}
}
