//! A stand-in for the CUDA driver, NVRTC, cuBLAS, cuDNN, NCCL, NVML and NVTX, for tests on machines without a GPU.
//!
//! The device `cuda` loads this library in place of `libcuda.so.1`, `libnvrtc.so` and the others, and does not notice the
//! difference. Memory is host memory at addresses that the host cannot use; streams are threads with queues, with delays
//! from a seed, or take turns in the order that is worst for a faulty schedule; events, captures and graphs order them by
//! the driver's rules and by nothing else; kernels are the device's own text, compiled by the machine's C compiler, and the
//! libraries' sums are plain loops. So a missing wait changes the results, and a call that breaks a rule returns the
//! driver's error.
//!
//! Every call is counted by name, and any one call can be answered without being made (`control.rs`). With that a test
//! simulates a device that forgets a call, or a driver that refuses it.
//!
//! Deliberately does not take as long as a GPU, check what a kernel does within its allocations, or offer a call that the
//! device does not make. Like the driver's interface it trusts the pointers that its callers give it for results.

/// Defines calls of a library that returns its status as a number, 0 for success; each is counted, and may be answered
/// without being made.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> u32 {
            if let Some(code) = crate::control::enter(stringify!($name)) {
                return code;
            }
            let call = move || -> Result<(), u32> { $body };
            call().err().unwrap_or_default()
        }
    )*};
}

mod control;
mod cublas;
mod cudnn;
mod delays;
mod driver;
mod graph;
mod kernels;
mod link;
mod memory;
mod nccl;
mod numbers;
mod nvml;
mod nvrtc;
mod nvtx;
mod state;
mod status;
mod stream;
mod sums;
mod turns;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex here guards plain values that are valid at every moment, so a panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
